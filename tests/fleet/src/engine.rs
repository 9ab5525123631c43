//! What is one mock engine? A port, the engine core behind it, the book of what it saw and the faults it has.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::api::StoredResponses;
use crate::engine_core::{EngineCore, Life};
use crate::exposition;
use crate::fault::{Fault, MetricsFault};
use crate::kv_tier::KvTier;
use crate::options::EngineOptions;
use crate::port::Port;
use crate::report::{EngineReport, Ledger, RequestRecord};

/// Slowest an engine can be made: a step of a millisecond then takes a quarter of an hour.
const MAX_SLOWNESS: f64 = 1e6;

/// Between two looks at whether the last request has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// One engine of a fleet. Clones are the same engine.
#[derive(Clone)]
pub struct Engine(Arc<Parts>);

struct Parts {
    options: EngineOptions,
    port: Port,
    core: Arc<EngineCore>,
    /// Runs the core.
    steps: JoinHandle<()>,
    ledger: Arc<Ledger>,
    faults: watch::Sender<Faults>,
    /// Opens the port again after a while. Locked while a fault is put in force, so that they follow each other.
    reopening: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    request_ids: AtomicU64,
    responses: Arc<StoredResponses>,
    /// What `/metrics` shows while stale.
    frozen: Mutex<Option<String>>,
}

/// Faults of the HTTP side; the others are in the port and in the core.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    pub(crate) hang: bool,
    pub(crate) status: Option<u16>,
    pub(crate) break_off: bool,
    pub(crate) metrics: Option<MetricsFault>,
}

impl Engine {
    /// An engine that listens on `port`, 0 lets the system choose, once it has loaded its model for so long. Until then
    /// connections are refused.
    pub(crate) fn start(
        address: (Ipv4Addr, u16),
        options: EngineOptions,
        tier: Option<KvTier>,
        loading: Duration,
    ) -> io::Result<Self> {
        let port = Port::reserve(address)?;
        let (core, steps) = EngineCore::start(options.clone(), tier);
        let engine = Self(Arc::new(Parts {
            options,
            port,
            core,
            steps,
            ledger: Arc::default(),
            faults: watch::Sender::default(),
            reopening: tokio::sync::Mutex::default(),
            request_ids: AtomicU64::new(0),
            responses: Arc::default(),
            frozen: Mutex::default(),
        }));
        if loading.is_zero() {
            engine.0.port.open(engine.clone())?;
        } else {
            // Free: nobody else has the engine yet.
            let mut reopening = engine.0.reopening.try_lock().map_err(io::Error::other)?;
            engine.reopen(&mut reopening, loading);
        }
        Ok(engine)
    }

    /// Where it listens, or would if no fault had closed the port.
    pub fn address(&self) -> SocketAddr {
        self.0.port.address()
    }

    /// Sequences in the batch at this moment; `/metrics` shows how many there were after the last step.
    pub fn running(&self) -> usize {
        self.0.core.queue().0
    }

    /// Sequences in the queue at this moment.
    pub fn waiting(&self) -> usize {
        self.0.core.queue().1
    }

    /// Whether connections are accepted: not while it loads its model, nor after a crash.
    pub fn is_listening(&self) -> bool {
        self.0.port.is_open()
    }

    /// How busy its GPU looked over the last `window` (at most a minute), as `nvidia-smi` and DCGM tell it: the share of
    /// time, 0 to 1, in which any sequence was in the batch, however few. Time before its process began counts as idle.
    pub fn utilisation(&self, window: Duration) -> f64 {
        self.0.core.utilisation(window)
    }

    /// SIGTERM with a shutdown timeout: new requests are aborted, those in flight have `grace` to end, and then the
    /// process is gone. Returns whether all had ended.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        self.fault(Fault::Drain).await;
        let ended = tokio::time::timeout(grace, self.emptied()).await.is_ok();
        self.fault(Fault::Crash).await;
        ended
    }

    /// What it saw since its start or the last reset.
    pub fn report(&self) -> EngineReport {
        let (running, waiting) = self.0.core.queue();
        let ledger = &self.0.ledger;
        EngineReport {
            address: self.address(),
            running,
            waiting,
            in_flight: ledger.in_flight(),
            open_connections: ledger.open_connections(),
            counts: ledger.counts(),
            last: ledger.last(),
        }
    }

    /// The last requests with a body that ended, oldest first; at most 1,024.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.0.ledger.records()
    }

    /// Starts the report anew. vLLM's own metrics go on.
    pub fn reset_report(&self) {
        self.0.ledger.reset();
    }

    /// Forgets all cached prefixes that no running sequence uses, as `POST /reset_prefix_cache` does.
    pub fn reset_prefix_cache(&self) {
        self.0.core.forget_prefixes();
    }

    /// Puts a fault in force; it is when this returns.
    pub async fn fault(&self, fault: Fault) {
        let mut reopening = self.0.reopening.lock().await;
        let core = &self.0.core;
        match fault {
            Fault::Clear => {
                core.slow_down(1.0);
                core.live(Life::Awake);
                self.heal_http();
                self.reopen(&mut reopening, Duration::ZERO);
            }
            Fault::Slow { factor } if factor.is_nan() => {}
            Fault::Slow { factor } => core.slow_down(factor.clamp(0.0, MAX_SLOWNESS)),
            Fault::Hang => self.0.faults.send_modify(|faults| faults.hang = true),
            Fault::Refuse => self.shut(&mut reopening).await,
            Fault::NotReady { seconds } => {
                self.shut(&mut reopening).await;
                self.reopen(&mut reopening, duration(seconds));
            }
            Fault::Crash => self.crash(&mut reopening).await,
            Fault::Restart { down_seconds } => {
                self.crash(&mut reopening).await;
                self.reopen(&mut reopening, duration(down_seconds));
            }
            Fault::Status { code } => self.0.faults.send_modify(|faults| faults.status = Some(code)),
            Fault::BreakOff => self.0.faults.send_modify(|faults| faults.break_off = true),
            Fault::Metrics(fault) => self.fault_metrics(fault),
            Fault::Stall => core.live(Life::Stalled),
            Fault::Pause => core.live(Life::Paused),
            Fault::Sleep { level } => core.live(Life::Asleep { level }),
            Fault::Wake => core.live(Life::Awake),
            Fault::Drain => core.live(Life::Draining),
            Fault::Dead => core.live(Life::Dead),
        }
    }

    /// Stops the engine without waiting for it.
    pub(crate) fn stop(&self) {
        self.0.steps.abort();
        self.0.port.abandon();
        if let Ok(mut reopening) = self.0.reopening.try_lock() {
            cancel(&mut reopening);
        }
    }

    pub(crate) fn options(&self) -> &EngineOptions {
        &self.0.options
    }

    pub(crate) fn core(&self) -> &Arc<EngineCore> {
        &self.0.core
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.0.ledger
    }

    /// The responses that a `previous_response_id` may name.
    pub(crate) fn responses(&self) -> &Arc<StoredResponses> {
        &self.0.responses
    }

    /// The status that a fault makes all generation requests end in.
    pub(crate) fn failing_with(&self) -> Option<u16> {
        self.0.faults.borrow().status
    }

    /// Whether a fault cuts all answers off after their first text.
    pub(crate) fn breaks_off(&self) -> bool {
        self.0.faults.borrow().break_off
    }

    /// The HTTP side's faults; wait on it for one to end.
    pub(crate) fn faults(&self) -> watch::Receiver<Faults> {
        self.0.faults.subscribe()
    }

    /// What `/metrics` shows, stale or not.
    pub(crate) fn exposition(&self) -> String {
        let frozen = self.0.frozen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        frozen.unwrap_or_else(|| self.fresh_exposition())
    }

    /// For requests that bring no id: 16 hexadecimal digits.
    pub(crate) fn next_request_id(&self) -> String {
        let number = self.0.request_ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", xxh3_64_with_seed(&number.to_le_bytes(), u64::from(self.address().port())))
    }

    fn fresh_exposition(&self) -> String {
        exposition::render(&self.0.options, &self.0.core.stats(), self.0.core.life())
    }

    fn fault_metrics(&self, fault: MetricsFault) {
        let frozen = (fault == MetricsFault::Stale).then(|| self.fresh_exposition());
        self.freeze(frozen);
        let fault = Some(fault).filter(|fault| *fault != MetricsFault::Clear);
        self.0.faults.send_modify(|faults| faults.metrics = fault);
    }

    fn heal_http(&self) {
        self.freeze(None);
        self.0.faults.send_replace(Faults::default());
    }

    fn freeze(&self, frozen: Option<String>) {
        *self.0.frozen.lock().unwrap_or_else(PoisonError::into_inner) = frozen;
    }

    async fn emptied(&self) {
        while self.0.core.queue() != (0, 0) || self.0.ledger.in_flight() > 0 {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Cuts everything and leaves nothing of the process.
    async fn crash(&self, reopening: &mut Option<JoinHandle<()>>) {
        self.shut(reopening).await;
        self.0.core.restart();
        self.0.responses.clear();
        self.heal_http();
    }

    async fn shut(&self, reopening: &mut Option<JoinHandle<()>>) {
        cancel(reopening);
        self.0.port.close().await;
    }

    /// Listens again, at once or after a while.
    fn reopen(&self, reopening: &mut Option<JoinHandle<()>>, after: Duration) {
        cancel(reopening);
        if after.is_zero() {
            return self.open();
        }
        let engine = self.clone();
        *reopening = Some(tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _one_at_a_time = engine.0.reopening.lock().await;
            engine.open();
        }));
    }

    fn open(&self) {
        if let Err(error) = self.0.port.open(self.clone()) {
            // The number is reserved, so only a lack of descriptors or memory comes here.
            eprintln!("fleet: {} stays closed: {error}", self.address());
        }
    }
}

fn cancel(reopening: &mut Option<JoinHandle<()>>) {
    if let Some(task) = reopening.take() {
        task.abort();
    }
}

/// Seconds as asked for in JSON; nonsense is none.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
