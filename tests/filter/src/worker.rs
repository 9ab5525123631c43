//! One worker of the proxy: a VM on a thread of its own, driven one callback at a time.

use std::fmt;
use std::sync::mpsc::{self, Sender};
use std::sync::Mutex;
use std::thread;

use crate::callbacks;
use crate::exchange::Exchange;
use crate::headers::HeaderMap;
use crate::state::{Here, Root};
use crate::stream::{self, Stream};

/// A worker's VM. Clones are the same VM.
///
/// Whatever a test asks of it runs to its end on the VM's thread before the method returns, so a test
/// decides the order in which several workers do things.
#[derive(Clone)]
pub struct Worker {
    pub(crate) here: Here,
    jobs: Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

/// The filter did not accept its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigRefused {
    /// The lines it logged while it was being configured.
    pub log: Vec<String>,
}

impl fmt::Display for ConfigRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration refused: {}", self.log.join("; "))
    }
}

impl std::error::Error for ConfigRefused {}

/// The SDK installs its logger on first use and fails if two threads do so at once.
static BOOT: Mutex<()> = Mutex::new(());

impl Worker {
    pub(crate) fn start(here: Here, boot: fn()) -> Self {
        let (jobs, todo) = mpsc::channel::<Job>();
        let entered = here.clone();
        thread::spawn(move || {
            entered.enter();
            {
                let _one_at_a_time = BOOT.lock();
                boot();
            }
            for job in todo {
                job();
            }
        });
        Self { here, jobs }
    }

    /// Creates a root context and gives it `config`; in a new VM as well as in one that runs.
    pub(crate) fn configure(&self, config: &str) -> Result<(), ConfigRefused> {
        let config = config.to_owned();
        self.run(move |here| {
            let (logged, root) = {
                let mut state = here.lock();
                (state.log.len(), state.next_id())
            };
            let size = config.len();
            let first = here.with(|vm| {
                vm.roots.push(Root { id: root, configuration: config.into_bytes(), tick_period_ms: 0 });
                vm.roots.len() == 1
            });
            callbacks::context_create(here, root, 0);
            let started = !first || callbacks::vm_start(here, root);
            if started && callbacks::configure(here, root, size) {
                return Ok(());
            }
            callbacks::done_delete(here, root);
            here.with(|vm| vm.roots.retain(|other| other.id != root));
            let log = here.lock().log[logged..]
                .iter()
                .filter(|line| line.vm == here.vm)
                .map(|line| line.text.clone())
                .collect();
            Err(ConfigRefused { log })
        })
    }

    /// Sends a new configuration, as a changed listener does: a second root context in the same VM.
    /// New streams belong to it; the old root goes on ticking until [`retire`](Self::retire).
    ///
    /// # Errors
    ///
    /// [`ConfigRefused`]; the old root then stays the only one.
    pub fn update(&self, config: &str) -> Result<(), ConfigRefused> {
        self.configure(config)
    }

    /// Ends all root contexts but the newest. Answers to their calls are lost.
    pub fn retire(&self) {
        self.run(|here| {
            let old: Vec<u32> = here.with(|vm| {
                let newest = vm.roots.len().saturating_sub(1);
                vm.roots.drain(..newest).map(|root| root.id).collect()
            });
            for root in old {
                callbacks::done_delete(here, root);
                here.lock().calls.retain(|call| call.context != root);
            }
        })
    }

    /// Ticks every root context that asked for ticks, oldest first.
    pub fn tick(&self) {
        self.run(|here| {
            let ticking: Vec<u32> = here.with(|vm| {
                let ticking = vm.roots.iter().filter(|root| root.tick_period_ms > 0);
                ticking.map(|root| root.id).collect()
            });
            for root in ticking {
                callbacks::tick(here, root);
            }
            stream::pump(here);
        })
    }

    /// The newest root's tick period in milliseconds; zero if it never asked for ticks.
    pub fn tick_period_ms(&self) -> u32 {
        self.here.with(|vm| vm.roots.last().map_or(0, |root| root.tick_period_ms))
    }

    /// A request arrives, with these headers (`:method`, `:path` and so on among them). The filter's
    /// header callback has run when this returns.
    pub fn request<N, V>(&self, headers: impl IntoIterator<Item = (N, V)>, end_of_stream: bool) -> Stream
    where
        N: AsRef<str>,
        V: AsRef<[u8]>,
    {
        let headers: HeaderMap = headers.into_iter().collect();
        let id = self.run(move |here| {
            let id = create_stream(here, headers);
            stream::request_headers(here, id, end_of_stream);
            id
        });
        Stream::new(self.clone(), id)
    }

    /// A request that Envoy's codec refuses: its context is created only to be logged.
    pub fn refused_by_codec(&self) {
        self.run(|here| {
            let id = create_stream(here, HeaderMap::default());
            // DPE, "downstream protocol error".
            here.with(|vm| {
                let exchange = vm.streams.entry(id).or_default();
                exchange.set_property(&["response", "flags"], &0x40000u64.to_le_bytes());
                exchange.in_access_log = true;
            });
            callbacks::log_done_delete(here, id);
            here.with(|vm| vm.streams.remove(&id));
        })
    }

    /// The VM is gone at once, as after a trap: no callback runs again, nothing is released, and the
    /// answers to its calls are lost.
    pub fn kill(self) {
        let vm = self.here.vm;
        self.here.lock().calls.retain(|call| call.vm != vm);
        // The thread must not end, or the contexts' destructors would run.
        let _ = self.jobs.send(Box::new(|| loop {
            thread::park();
        }));
    }

    /// Runs a job on the VM's thread and waits for what it returns.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce(&Here) -> R + Send + 'static) -> R {
        let (tell, told) = mpsc::channel();
        let here = self.here.clone();
        let job = Box::new(move || {
            let _ = tell.send(job(&here));
        });
        self.jobs.send(job).expect("the worker's thread has ended");
        told.recv().expect("the worker's thread has ended")
    }
}

/// Creates a stream's context under the newest root.
fn create_stream(here: &Here, request_headers: HeaderMap) -> u32 {
    let id = here.lock().next_id();
    let root = here.with(|vm| {
        let root = vm.roots.last().map_or(0, |root| root.id);
        let exchange = Exchange { request_headers, ..Exchange::default() };
        vm.streams.insert(id, exchange);
        root
    });
    callbacks::context_create(here, id, root);
    id
}
