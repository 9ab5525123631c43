//! What the process knows, behind one lock; and which VM the current thread is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy_wasm::types::Status;

use crate::exchange::Exchange;
use crate::headers::HeaderMap;
use crate::metrics::Metrics;
use crate::proxy::{HttpCall, LogLine, Options};
use crate::shared_data::SharedData;
use crate::traffic::Traffic;

/// 2027-01-15, in nanoseconds: a filter may not assume that clocks start at zero.
const START_NS: u64 = 1_800_000_000_000_000_000;

pub(crate) struct State {
    pub(crate) options: Options,
    pub(crate) clock_ns: u64,
    pub(crate) shared_data: SharedData,
    pub(crate) metrics: Metrics,
    pub(crate) vms: Vec<Vm>,
    /// Dispatched and not yet answered, oldest first.
    pub(crate) calls: Vec<HttpCall>,
    pub(crate) log: Vec<LogLine>,
    pub(crate) traffic: Traffic,
    /// Host functions that fail, and with what.
    pub(crate) faults: BTreeMap<String, Status>,
    /// The one call that fails, by how many come before it.
    pub(crate) fault_after: Option<(usize, Status)>,
    /// What names resolve to, and whether the answer comes while the call is being made.
    pub(crate) names: BTreeMap<String, (Vec<u8>, bool)>,
    /// Names that are being resolved: by which worker's which context, and under which token.
    #[cfg(feature = "dns")]
    pub(crate) lookups: Vec<Lookup>,
    /// What happens just before the next call of a host function.
    pub(crate) interruption: Option<Interruption>,
    last_id: u32,
}

/// A name that is being resolved.
#[cfg(feature = "dns")]
pub(crate) struct Lookup {
    pub(crate) vm: usize,
    pub(crate) context: u32,
    pub(crate) token: u32,
    pub(crate) name: String,
}

pub(crate) struct Interruption {
    pub(crate) function: String,
    pub(crate) act: Box<dyn FnOnce() + Send>,
}

/// One VM: its root contexts and streams.
#[derive(Default)]
pub(crate) struct Vm {
    pub(crate) roots: Vec<Root>,
    pub(crate) streams: BTreeMap<u32, Exchange>,
    /// The context that host calls act on.
    pub(crate) effective: u32,
    /// The answer that `proxy_on_http_call_response` is being told of.
    pub(crate) answer: Option<Answer>,
    /// What `envoy_on_resolve_dns` is being told of.
    pub(crate) call_data: Option<Vec<u8>>,
}

pub(crate) struct Root {
    pub(crate) id: u32,
    pub(crate) configuration: Vec<u8>,
    /// Zero until the root asks for ticks.
    pub(crate) tick_period_ms: u32,
}

pub(crate) struct Answer {
    /// None if the call broke off.
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) body: Vec<u8>,
}

impl State {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            clock_ns: START_NS,
            shared_data: SharedData::default(),
            metrics: Metrics::default(),
            vms: Vec::new(),
            calls: Vec::new(),
            log: Vec::new(),
            traffic: Traffic::default(),
            faults: BTreeMap::new(),
            fault_after: None,
            names: BTreeMap::new(),
            #[cfg(feature = "dns")]
            lookups: Vec::new(),
            interruption: None,
            last_id: 0,
        }
    }

    /// A number for a context or a call, never given out twice.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }
}

impl Vm {
    pub(crate) fn root_mut(&mut self, id: u32) -> Option<&mut Root> {
        self.roots.iter_mut().find(|root| root.id == id)
    }

    /// The stream that host calls act on; none while a root context is in effect.
    pub(crate) fn exchange(&mut self) -> Option<&mut Exchange> {
        self.streams.get_mut(&self.effective)
    }
}

/// The process's state, and the number of a VM in it.
#[derive(Clone)]
pub(crate) struct Here {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) vm: usize,
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

impl Here {
    /// Makes the current thread this VM.
    pub(crate) fn enter(self) {
        HERE.with(|here| *here.borrow_mut() = Some(self));
    }

    /// The VM of the current thread; none on a test's own thread, or when the thread is ending.
    pub(crate) fn current() -> Option<Self> {
        HERE.try_with(|here| here.borrow().clone()).ok().flatten()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Does something to this VM's part of the state.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Vm) -> R) -> R {
        act(&mut self.lock().vms[self.vm])
    }
}

/// A test that failed while it held the lock shall not hide behind a second panic.
pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
