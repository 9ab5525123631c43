//! The process: what all workers share, and what a test can see of it and do to it.

use std::sync::{Arc, Mutex, MutexGuard};

use proxy_wasm::types::{LogLevel, MetricType, Status};

use crate::callbacks;
use crate::headers::HeaderMap;
use crate::state::{lock, Answer, Here, Interruption, State, Vm};
use crate::stream::response_head;
use crate::traffic::Traffic;
use crate::worker::{ConfigRefused, Worker};

/// How the proxy is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Envoy's `allow_on_headers_stop_iteration` (1.35 and later). Without it, a filter that pauses
    /// in its header callback sees no body until something resumes the request.
    pub allow_on_headers_stop_iteration: bool,
    /// Bytes of body that can be held; over it Envoy answers 413. Envoy's default for HTTP/1.
    pub buffer_limit: usize,
    /// What `proxy_get_log_level` says.
    pub log_level: LogLevel,
    /// Clusters that calls can be made to.
    pub clusters: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            allow_on_headers_stop_iteration: true,
            buffer_limit: 1 << 20,
            log_level: LogLevel::Debug,
            clusters: vec!["vllm".to_owned()],
        }
    }
}

/// An HTTP call that the filter made and that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCall {
    /// Which worker made it, in the order of their creation.
    pub vm: usize,
    /// The root context that made it.
    pub(crate) context: u32,
    pub(crate) token: u32,
    /// The cluster it goes to.
    pub cluster: String,
    /// Its headers, `:path` and so on among them.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Vec<u8>,
    /// The timeout it asked for.
    pub timeout_ms: u32,
    /// When it was made, by the proxy's clock in milliseconds.
    pub at_ms: u64,
}

/// A line of the proxy's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Which worker wrote it, in the order of their creation.
    pub vm: usize,
    /// `0` trace to `5` critical; critical is what a panic writes.
    pub level: u32,
    /// The line.
    pub text: String,
}

/// An Envoy process.
pub struct Proxy {
    state: Arc<Mutex<State>>,
    boot: fn(),
    workers: Mutex<Vec<Worker>>,
}

impl Proxy {
    /// A process whose VMs run `boot` when they start: the module's `_initialize`.
    pub fn new(boot: fn()) -> Self {
        Self::with_options(boot, Options::default())
    }

    /// The same with other options.
    pub fn with_options(boot: fn(), options: Options) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(options))), boot, workers: Mutex::default() }
    }

    /// Starts a worker: a new VM with a root context that is given `config`.
    ///
    /// # Errors
    ///
    /// [`ConfigRefused`] if the filter does not accept it.
    pub fn worker(&self, config: &str) -> Result<Worker, ConfigRefused> {
        let vm = {
            let mut state = self.lock();
            state.vms.push(Vm::default());
            state.vms.len() - 1
        };
        let here = Here { state: self.state.clone(), vm };
        let worker = Worker::start(here, self.boot);
        if let Ok(mut workers) = self.workers.lock() {
            workers.push(worker.clone());
        }
        worker.configure(config).map(|()| worker)
    }

    // ---- the clock ----

    /// Milliseconds since 1970 by the proxy's clock.
    pub fn now_ms(&self) -> u64 {
        self.lock().clock_ns / 1_000_000
    }

    /// Moves the clock on. Nothing ticks by itself.
    pub fn advance(&self, milliseconds: u64) {
        self.lock().clock_ns += milliseconds * 1_000_000;
    }

    /// Sets the clock back, as NTP may.
    pub fn set_back(&self, milliseconds: u64) {
        self.lock().clock_ns -= milliseconds * 1_000_000;
    }

    // ---- HTTP calls ----

    /// The calls that wait for an answer, oldest first.
    pub fn calls(&self) -> Vec<HttpCall> {
        self.lock().calls.clone()
    }

    /// Answers a call. What Envoy says on the host's behalf are answers too: 503 "upstream connect
    /// error", 504 "upstream request timeout".
    ///
    /// # Panics
    ///
    /// If the call does not wait any more.
    pub fn answer(&self, call: &HttpCall, status: u32, body: &[u8]) {
        let none: [(&str, &[u8]); 0] = [];
        self.answer_with(call, status, none, body);
    }

    /// Answers a call with further headers.
    ///
    /// # Panics
    ///
    /// If the call does not wait any more.
    pub fn answer_with<N: AsRef<str>, V: AsRef<[u8]>>(
        &self,
        call: &HttpCall,
        status: u32,
        headers: impl IntoIterator<Item = (N, V)>,
        body: &[u8],
    ) {
        let mut head = response_head(status, headers);
        head.add("content-length", body.len().to_string().as_bytes());
        self.deliver(call, Some(head), body);
    }

    /// Ends a call without an answer: a reset, or a body over the limit of Envoy's client.
    ///
    /// # Panics
    ///
    /// If the call does not wait any more.
    pub fn break_off(&self, call: &HttpCall) {
        self.deliver(call, None, b"");
    }

    fn deliver(&self, call: &HttpCall, headers: Option<HeaderMap>, body: &[u8]) {
        let place = {
            let mut state = self.lock();
            let waiting = state.calls.iter().position(|other| other == call);
            let place = waiting.expect("the call does not wait any more");
            state.calls.remove(place).vm
        };
        let worker = self.workers.lock().ok().and_then(|w| w.get(place).cloned());
        let worker = worker.expect("the worker that made the call");
        let (context, token, body) = (call.context, call.token, body.to_vec());
        worker.run(move |here| {
            let (count, size) = (headers.as_ref().map_or(0, HeaderMap::len), body.len());
            here.with(|vm| vm.answer = Some(Answer { headers, body }));
            callbacks::http_call_response(here, context, token, count, size);
            here.with(|vm| vm.answer = None);
        });
    }

    // ---- names ----

    /// From now on a name resolves to these addresses, spelled `ip:0`, or to nothing. The answer comes while the call is
    /// being made, or at [`Proxy::answer_lookups`].
    pub fn resolves(&self, name: &str, addresses: &[&str], at_once: bool) {
        let mut answer = Vec::new();
        if !addresses.is_empty() {
            answer.extend((addresses.len() as u32).to_le_bytes());
            addresses.iter().for_each(|_| answer.extend(30_u32.to_le_bytes()));
            addresses.iter().for_each(|address| answer.extend([address.as_bytes(), b"\0"].concat()));
        }
        self.lock().names.insert(name.to_owned(), (answer, at_once));
    }

    /// Answers the calls of names that resolve by now.
    #[cfg(feature = "dns")]
    pub fn answer_lookups(&self) {
        let answered = {
            let mut state = self.lock();
            let lookups = std::mem::take(&mut state.lookups);
            let names = &state.names;
            let (known, unknown): (Vec<_>, Vec<_>) =
                lookups.into_iter().partition(|lookup| names.contains_key(&lookup.name));
            let answer = |lookup: crate::state::Lookup| {
                let answer = names.get(&lookup.name).map(|(answer, _)| answer.clone());
                (lookup, answer.unwrap_or_default())
            };
            let answered: Vec<_> = known.into_iter().map(answer).collect();
            state.lookups = unknown;
            answered
        };
        for (lookup, answer) in answered {
            let worker = self.workers.lock().ok().and_then(|workers| workers.get(lookup.vm).cloned());
            let worker = worker.expect("the worker that made the call");
            worker.run(move |here| crate::callbacks::resolved(here, lookup.context, lookup.token, answer));
        }
    }

    // ---- what can be seen ----

    /// A gauge's value; zero if nobody has defined it.
    pub fn gauge(&self, name: &str) -> i64 {
        let value = self.lock().metrics.value(MetricType::Gauge, name);
        value.unwrap_or_default()
    }

    /// A counter's value; zero if nobody has defined it.
    pub fn counter(&self, name: &str) -> i64 {
        let value = self.lock().metrics.value(MetricType::Counter, name);
        value.unwrap_or_default()
    }

    /// Everything that was recorded into a histogram.
    pub fn histogram(&self, name: &str) -> Vec<u64> {
        self.lock().metrics.recorded(name)
    }

    /// Names and values of all gauges.
    pub fn gauges(&self) -> Vec<(String, i64)> {
        self.lock().metrics.all(MetricType::Gauge)
    }

    /// Names and values of all counters.
    pub fn counters(&self) -> Vec<(String, i64)> {
        self.lock().metrics.all(MetricType::Counter)
    }

    /// The value of a shared-data key.
    pub fn shared_data(&self, key: &str) -> Option<Vec<u8>> {
        self.lock().shared_data.get(key).map(|(v, _)| v.to_vec())
    }

    /// All shared-data keys there are. They never go away.
    pub fn shared_data_keys(&self) -> Vec<String> {
        self.lock().shared_data.keys()
    }

    /// Writes a shared-data key, as another filter in the same process could.
    pub fn write_shared_data(&self, key: &str, value: &[u8]) {
        let written = self.lock().shared_data.set(key, value, 0);
        written.expect("an unconditional write");
    }

    /// Everything that was logged, oldest first.
    pub fn log(&self) -> Vec<LogLine> {
        self.lock().log.clone()
    }

    /// Host calls and copies so far.
    pub fn traffic(&self) -> Traffic {
        self.lock().traffic.clone()
    }

    // ---- faults ----

    /// Makes a host function, by its ABI name, fail from now on. With [`Status::Ok`] it says that it succeeded, and has
    /// done nothing and filled no buffer.
    pub fn fail(&self, function: &str, status: Status) {
        self.lock().faults.insert(function.to_owned(), status);
    }

    /// Makes a single call fail, whatever it is: the one that comes after `before` others. The SDK's own are left out.
    pub fn fail_after(&self, before: usize, status: Status) {
        self.lock().fault_after = Some((before, status));
    }

    /// Ends all faults. Answers whether a single call that was to fail had still not come.
    pub fn heal(&self) -> bool {
        let mut state = self.lock();
        state.faults.clear();
        state.fault_after.take().is_some()
    }

    /// Lets `act` happen just before the next call of a host function, by its ABI name: what another
    /// worker does between two steps of the one that makes the call.
    pub fn interrupt_before(&self, function: &str, act: impl FnOnce() + Send + 'static) {
        self.lock().interruption = Some(Interruption { function: function.to_owned(), act: Box::new(act) });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
