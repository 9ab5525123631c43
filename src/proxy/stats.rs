//! Which metrics are there? Every name that is ever defined is defined here.
//!
//! Envoy never forgets a metric, so their number is bounded: a fixed list, and for each host slot
//! ([`crate::core::config::MAX_HOSTS`] at most) eight, ten with peers. A name is the same metric in every worker.

use super::host::{self, MetricKind, Refused};
use crate::core::audit::InFlight;
use crate::core::fleet::{Own, Peers, Slot};
use crate::core::members;
use crate::core::probe;
use crate::core::prompt::Unread;
use crate::core::roster::Before;
use crate::core::route::{Decision, Reason};
use crate::core::router::Change;
use crate::core::scrape::ScrapeError;
use crate::core::signals::{Signals, GAUGES};
use std::cell::Cell;
use std::fmt;

/// Why a poll failed; the middle of the metric's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollFailure {
    /// No connection, no answer in time, or a status other than 200.
    Status(u32),
    /// Envoy did not take the call: circuit breaker, or no such cluster.
    Refused,
    /// The answer says nothing known.
    Content(ScrapeError),
}

impl PollFailure {
    const NAMES: [&'static str; 4] = ["status", "timeout", "refused", "content"];

    fn place(self) -> usize {
        match self {
            PollFailure::Status(504) => 1,
            PollFailure::Status(_) => 0,
            PollFailure::Refused => 2,
            PollFailure::Content(_) => 3,
        }
    }
}

impl fmt::Display for PollFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PollFailure::Status(0) => f.write_str("no answer"),
            PollFailure::Status(504) => f.write_str("no answer in time"),
            PollFailure::Status(status) => write!(f, "status {status}"),
            PollFailure::Refused => {
                f.write_str("Envoy did not take the call (circuit breaker, or no such cluster)")
            }
            PollFailure::Content(why) => write!(f, "content: {why}"),
        }
    }
}

/// What is done about a call that Envoy refuses: it is counted, and the caller goes on without.
pub trait OrCount<T> {
    /// What the call brought, if it was not refused.
    fn or_count(self) -> Option<T>;
}

impl<T> OrCount<T> for Result<T, Refused> {
    fn or_count(self) -> Option<T> {
        self.map_err(count_refused).ok()
    }
}

thread_local! {
    /// Calls that Envoy refused this VM since a worker last told, and a bit for each kind of call that was ever.
    static REFUSED: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

#[cold]
#[inline(never)]
fn count_refused(refused: Refused) {
    let (count, kinds) = REFUSED.get();
    let kind = 1 << refused.call as u32;
    REFUSED.set((count + 1, kinds | kind));
    // Once for each kind: a call that is always refused must not fill the log.
    if kinds & kind == 0 {
        log::warn!("kvroute: Envoy refuses {} (status {})", refused.call.name(), refused.status);
    }
}

/// A metric that only rises. What is added is kept until the next tick: a request would otherwise spend most of
/// its calls to Envoy on counting.
#[derive(Debug)]
pub struct Counter {
    id: Option<u32>,
    pending: Cell<u64>,
}

impl Counter {
    // Called some fifty times: inlined, each would be a hundred bytes of wasm more.
    #[inline(never)]
    fn new(name: &str) -> Self {
        Self { id: define(MetricKind::Counter, format_args!("kvroute_{name}_total")), pending: Cell::new(0) }
    }

    /// Adds to it.
    pub fn add(&self, more: u64) {
        self.pending.set(self.pending.get().saturating_add(more));
    }

    /// What all workers have told Envoy.
    pub fn told(&self) -> Option<u64> {
        read(self.id)
    }

    fn flush(&self) {
        let more = self.pending.get();
        if let Some(id) = self.id.filter(|_| more > 0) {
            // What Envoy does not take is still to be told.
            if add(id, i64::try_from(more).unwrap_or(i64::MAX)) {
                self.pending.set(0);
            }
        }
    }
}

/// How much of each prompt was in a cache, in percent. These cannot be added up until the next tick: each value is a
/// call to Envoy, one of either kind a request.
#[derive(Debug)]
pub struct MatchPercent {
    id: Option<u32>,
}

impl MatchPercent {
    fn new(whose: &str) -> Self {
        Self { id: define(MetricKind::Histogram, format_args!("kvroute_match_percent_{whose}")) }
    }

    /// Records that `part` of `whole` was found. An empty prompt has no share.
    pub fn record(&self, part: u64, whole: u64) {
        let percent = part.min(whole).saturating_mul(100).checked_div(whole);
        if let Some((id, percent)) = self.id.zip(percent) {
            record(id, percent);
        }
    }
}

/// The fixed metrics.
#[derive(Debug)]
pub struct Stats {
    decided: [Counter; 6],
    unread: [Counter; Unread::ALL.len()],
    polls_failed: [Counter; PollFailure::NAMES.len()],
    discovery_failed: [Counter; members::Failure::ALL.len()],
    /// Askings for the hosts that were answered.
    pub discovery_ok: Counter,
    /// Polls that were answered.
    pub polls_ok: Counter,
    probes_failed: [Counter; probe::Failure::NAMES.len()],
    probes_ok: Counter,
    /// Bytes of the prompts that were read.
    pub prompt_bytes: Counter,
    /// Of these, bytes that the chosen host was believed to hold.
    pub matched_bytes: Counter,
    /// Prompt tokens of the answers that told.
    pub told_prompt_tokens: Counter,
    /// Of these, tokens that the engine had cached.
    pub told_cached_tokens: Counter,
    /// Of these, tokens that the filter believed to be cached.
    pub predicted_cached_tokens: Counter,
    /// How much of each prompt the host that served was believed to hold.
    pub match_predicted: MatchPercent,
    /// How much of each prompt its engine told it had cached.
    pub match_actual: MatchPercent,
    /// Prompt tokens that another host held when a request was spilled.
    pub spill_forgone_tokens: Counter,
    /// Milliseconds of standing behind others that this avoided.
    pub spill_avoided_ms: Counter,
    /// Requests left alone.
    pub off: Counter,
    /// Requests turned away because no host had room for one as unimportant.
    pub shed: Counter,
    /// Requests in shadow mode that would have been.
    pub shadow_shed: Counter,
    /// Requests that were decided, went by Envoy's own policy, and were answered.
    pub shadow_requests: Counter,
    /// Of these, requests that went where they would have been sent.
    pub shadow_agreed: Counter,
    /// Prompt tokens that the chosen hosts held beyond those that got the requests.
    pub shadow_saved_tokens: Counter,
    /// Prompt tokens that they held less.
    pub shadow_lost_tokens: Counter,
    /// Milliseconds that requests would have stood less behind others.
    pub shadow_avoided_ms: Counter,
    /// Milliseconds that they would have stood more.
    pub shadow_added_ms: Counter,
    /// Requests served by another host than the first named: retries, and hosts Envoy does not know.
    pub moved: Counter,
    /// Bodies with wrong JSON.
    pub broken_bodies: Counter,
    /// Requests that failed by their host's fault.
    pub host_failures: Counter,
    /// How often a host was found to stand still.
    pub hosts_wedged: Counter,
    /// Calls that Envoy refused.
    host_call_failures: Counter,
    /// Placements that the journal had no room for.
    pub untold: Counter,
    /// Requests resumed because no body came while their headers were held.
    pub rescued: Counter,
    /// Gateways asked that answered.
    pub peers_pulled: Counter,
    /// Gateways asked that did not answer.
    pub peers_failed: Counter,
    /// Gateways asked that know another secret, or answered something else.
    pub peers_refused: Counter,
    /// Placements that they told.
    pub peers_placements: Counter,
    /// Placements that were not told to them, or not passed on to all workers, for want of room.
    pub peers_untold: Counter,
}

impl Stats {
    /// Defines all of them, or finds them defined.
    pub fn new() -> Self {
        let requests = |reason: &str| Counter::new(&format!("requests_{reason}"));
        Self {
            decided: [
                Reason::Prefix,
                Reason::Spill,
                Reason::Cold,
                Reason::Pinned,
                Reason::Session,
                Reason::NoHosts,
            ]
            .map(|why| requests(why.as_str())),
            unread: Unread::ALL.map(|why| requests(why.as_str())),
            polls_failed: PollFailure::NAMES.map(|why| Counter::new(&format!("polls_{why}"))),
            discovery_failed: members::Failure::ALL
                .map(|why| Counter::new(&format!("discovery_{}", why.as_str()))),
            discovery_ok: Counter::new("discovery_ok"),
            polls_ok: Counter::new("polls_ok"),
            probes_failed: probe::Failure::NAMES.map(|why| Counter::new(&format!("probes_{why}"))),
            probes_ok: Counter::new("probes_ok"),
            prompt_bytes: Counter::new("prompt_bytes"),
            matched_bytes: Counter::new("matched_bytes"),
            told_prompt_tokens: Counter::new("told_prompt_tokens"),
            told_cached_tokens: Counter::new("told_cached_tokens"),
            predicted_cached_tokens: Counter::new("predicted_cached_tokens"),
            match_predicted: MatchPercent::new("predicted"),
            match_actual: MatchPercent::new("actual"),
            spill_forgone_tokens: Counter::new("spill_forgone_tokens"),
            spill_avoided_ms: Counter::new("spill_avoided_ms"),
            off: Counter::new("requests_off"),
            shed: Counter::new("requests_shed"),
            shadow_shed: Counter::new("shadow_shed"),
            shadow_requests: Counter::new("shadow_requests"),
            shadow_agreed: Counter::new("shadow_agreed"),
            shadow_saved_tokens: Counter::new("shadow_saved_tokens"),
            shadow_lost_tokens: Counter::new("shadow_lost_tokens"),
            shadow_avoided_ms: Counter::new("shadow_avoided_ms"),
            shadow_added_ms: Counter::new("shadow_added_ms"),
            moved: Counter::new("requests_moved"),
            broken_bodies: Counter::new("bodies_broken"),
            host_failures: Counter::new("host_failures"),
            hosts_wedged: Counter::new("hosts_wedged"),
            host_call_failures: Counter::new("host_call_failures"),
            untold: Counter::new("placements_untold"),
            rescued: Counter::new("requests_rescued"),
            peers_pulled: Counter::new("peers_pulled"),
            peers_failed: Counter::new("peers_failed"),
            peers_refused: Counter::new("peers_refused"),
            peers_placements: Counter::new("peers_placements"),
            peers_untold: Counter::new("peers_untold"),
        }
    }

    /// A request was decided.
    pub fn decided(&self, decision: &Decision) {
        self.spill_forgone_tokens.add(decision.regret.forgone_tokens);
        self.spill_avoided_ms.add(decision.regret.avoided_ms);
        let [prefix, spill, cold, pinned, session, no_hosts] = &self.decided;
        let counter = match decision.reason {
            Reason::Prefix => Some(prefix),
            Reason::Spill => Some(spill),
            Reason::Cold => Some(cold),
            Reason::Pinned => Some(pinned),
            Reason::Session => Some(session),
            Reason::NoHosts => Some(no_hosts),
            Reason::Unread(why) => {
                let place = Unread::ALL.iter().position(|unread| *unread == why);
                place.and_then(|place| self.unread.get(place))
            }
        };
        if let Some(counter) = counter {
            counter.add(1);
        }
    }

    /// A poll failed.
    pub fn poll_failed(&self, why: PollFailure) {
        if let Some(counter) = self.polls_failed.get(why.place()) {
            counter.add(1);
        }
    }

    /// Asking for the hosts failed.
    pub fn discovery_failed(&self, why: members::Failure) {
        if let Some(counter) = self.discovery_failed.get(why as usize) {
            counter.add(1);
        }
    }

    /// A host was asked for a generation, and generated something or failed.
    pub fn probed(&self, failed: Option<probe::Failure>) {
        let counter = failed.map_or(Some(&self.probes_ok), |why| self.probes_failed.get(why.place()));
        if let Some(counter) = counter {
            counter.add(1);
        }
    }

    /// Hands over to Envoy what was added since the last call.
    pub fn flush(&self) {
        let (refused, kinds) = REFUSED.get();
        REFUSED.set((0, kinds));
        self.host_call_failures.add(refused);
        let single = [
            &self.discovery_ok,
            &self.polls_ok,
            &self.probes_ok,
            &self.prompt_bytes,
            &self.matched_bytes,
            &self.told_prompt_tokens,
            &self.told_cached_tokens,
            &self.predicted_cached_tokens,
            &self.spill_forgone_tokens,
            &self.spill_avoided_ms,
            &self.off,
            &self.shed,
            &self.shadow_shed,
            &self.shadow_requests,
            &self.shadow_agreed,
            &self.shadow_saved_tokens,
            &self.shadow_lost_tokens,
            &self.shadow_avoided_ms,
            &self.shadow_added_ms,
            &self.moved,
            &self.broken_bodies,
            &self.host_failures,
            &self.hosts_wedged,
            &self.host_call_failures,
            &self.untold,
            &self.rescued,
            &self.peers_pulled,
            &self.peers_failed,
            &self.peers_refused,
            &self.peers_placements,
            &self.peers_untold,
        ];
        let by_reason = self.decided.iter().chain(&self.unread).chain(&self.polls_failed);
        by_reason
            .chain(&self.discovery_failed)
            .chain(&self.probes_failed)
            .chain(single)
            .for_each(Counter::flush);
    }
}

/// The gauges of the queue signals: set by the leader, for whoever scales the fleet.
#[derive(Debug)]
pub struct SignalGauges {
    ids: Vec<Option<u32>>,
}

impl SignalGauges {
    /// Defines all of them, or finds them defined.
    pub fn new() -> Self {
        let gauge = |name| define(MetricKind::Gauge, format_args!("kvroute_signals_{name}"));
        Self { ids: GAUGES.into_iter().map(gauge).collect() }
    }

    /// Tells what is known.
    pub fn set(&self, signals: &Signals, now_ms: u64) {
        for (id, value) in self.ids.iter().zip(signals.gauges(now_ms)) {
            if let Some(id) = id {
                record(*id, value);
            }
        }
    }
}

/// The gauges of all slots: what the proxy has on each host, summed over its workers by Envoy.
#[derive(Debug, Default)]
pub struct SlotGauges {
    slots: Vec<Option<SlotGauge>>,
    /// Whether there are peers: without them, what they have in flight costs nothing.
    with_peers: bool,
}

#[derive(Debug, Clone)]
struct SlotGauge {
    requests: Option<u32>,
    begun: Option<u32>,
    prefill_tokens: Option<u32>,
    sent_tokens: Option<u32>,
    cold: Option<u32>,
    /// The anchor of the last cold prompt, so that a burst of them finds together before any journal is heard.
    cold_mark: Option<u32>,
    /// Sent tokens that Envoy has not been told of yet.
    pending_tokens: i64,
    /// What the counters said when the host took the slot.
    before: Before,
    peers: Option<PeerGauge>,
    load: Option<LoadGauge>,
}

/// What an engine said of its queue: set by the leader.
#[derive(Debug, Clone)]
struct LoadGauge {
    waiting: Option<u32>,
    running: Option<u32>,
}

/// What other gateways have on a host: set by the leader, read by every worker.
#[derive(Debug, Clone)]
struct PeerGauge {
    requests: Option<u32>,
    prefill_tokens: Option<u32>,
}

impl PeerGauge {
    fn set(&self, peers: Peers) {
        for (id, value) in
            [(self.requests, u64::from(peers.requests)), (self.prefill_tokens, peers.prefill_tokens)]
        {
            if let Some(id) = id {
                record(id, value);
            }
        }
    }
}

impl SlotGauge {
    fn new(slot: Slot) -> Self {
        Self {
            requests: gauge(MetricKind::Gauge, slot, "inflight_requests"),
            begun: gauge(MetricKind::Counter, slot, "requests_total"),
            prefill_tokens: gauge(MetricKind::Gauge, slot, "inflight_prefill_tokens"),
            sent_tokens: gauge(MetricKind::Counter, slot, "sent_tokens_total"),
            cold: gauge(MetricKind::Counter, slot, "cold_total"),
            cold_mark: gauge(MetricKind::Gauge, slot, "cold_mark"),
            pending_tokens: 0,
            before: Before::default(),
            peers: None,
            load: None,
        }
    }

    fn load(&mut self, slot: Slot) -> &LoadGauge {
        self.load.get_or_insert_with(|| LoadGauge {
            waiting: gauge(MetricKind::Gauge, slot, "waiting_requests"),
            running: gauge(MetricKind::Gauge, slot, "running_requests"),
        })
    }

    fn peers(&mut self, slot: Slot) -> &PeerGauge {
        self.peers.get_or_insert_with(|| PeerGauge {
            requests: gauge(MetricKind::Gauge, slot, "peer_requests"),
            prefill_tokens: gauge(MetricKind::Gauge, slot, "peer_prefill_tokens"),
        })
    }
}

// What follows is called in many places: inlined, it would be a kilobyte of wasm more.

/// Defines a host's metric, or finds it defined.
#[inline(never)]
fn gauge(kind: MetricKind, slot: Slot, what: &str) -> Option<u32> {
    define(kind, format_args!("kvroute_slot_{}_{what}", slot.0))
}

/// Defines a metric. One that Envoy refuses is neither written nor read.
#[inline(never)]
fn define(kind: MetricKind, name: fmt::Arguments) -> Option<u32> {
    host::define_metric(kind, &name.to_string()).or_count()
}

/// Adds to a metric. Answers whether Envoy took it.
#[inline(never)]
fn add(id: u32, offset: i64) -> bool {
    host::add_metric(id, offset).or_count().is_some()
}

/// Records a value, unless Envoy refuses it.
#[inline(never)]
fn record(id: u32, value: u64) {
    host::record_metric(id, value).or_count();
}

/// Reads a metric, unless Envoy refused it.
#[inline(never)]
fn read(id: Option<u32>) -> Option<u64> {
    host::metric(id?).or_count()
}

impl SlotGauges {
    // As above.
    #[inline(never)]
    fn of(&mut self, slot: Slot) -> Option<&mut SlotGauge> {
        let place = usize::from(slot.0);
        if self.slots.len() <= place {
            self.slots.resize(place + 1, None);
        }
        Some(self.slots.get_mut(place)?.get_or_insert_with(|| SlotGauge::new(slot)))
    }

    /// Applies what the router did: at once where other workers decide by it, the tokens sent at the next
    /// [`SlotGauges::flush`].
    pub fn apply(&mut self, change: Change) {
        let Some(gauge) = self.of(change.slot) else { return };
        gauge.pending_tokens += change.sent_tokens;
        if let Some((id, mark)) = gauge.cold_mark.zip(change.cold_mark) {
            record(id, mark);
        }
        for (id, offset) in [
            (gauge.requests, change.requests),
            (gauge.begun, change.requests.max(0)),
            (gauge.prefill_tokens, change.prefill_tokens),
            (gauge.cold, change.cold),
        ] {
            if let Some(id) = id.filter(|_| offset != 0) {
                // A gauge that misses one is corrected by the audit.
                add(id, offset);
            }
        }
    }

    /// Hands over to Envoy what was sent since the last call.
    pub fn flush(&mut self) {
        for gauge in self.slots.iter_mut().flatten() {
            // A correction may have taken more back than was sent since: a counter cannot fall.
            if let Some(id) = gauge.sent_tokens.filter(|_| gauge.pending_tokens > 0) {
                if add(id, gauge.pending_tokens) {
                    gauge.pending_tokens = 0;
                }
            }
        }
    }

    /// A slot changes hands: what its counters say, for the next host begins there. That the last one had a burst
    /// is nothing to it.
    pub fn hand_over(&mut self, slot: Slot) -> Before {
        let Some(gauge) = self.of(slot) else { return Before::default() };
        if let Some(id) = gauge.cold_mark {
            record(id, 0);
        }
        let total = |id| read(id).unwrap_or(0);
        Before { sent_tokens: total(gauge.sent_tokens), cold_placed: total(gauge.cold) }
    }

    /// Says what a slot's counters said before its host had it.
    pub fn begins_at(&mut self, slot: Slot, before: Before) {
        if let Some(gauge) = self.of(slot) {
            gauge.before = before;
        }
    }

    /// What the gauges say is in flight on a host; two host calls.
    pub fn in_flight(&mut self, slot: Slot) -> InFlight {
        let Some(gauge) = self.of(slot) else { return InFlight::default() };
        let read = |id| read(id).unwrap_or(0) as i64;
        InFlight { requests: read(gauge.requests), prefill_tokens: read(gauge.prefill_tokens) }
    }

    /// Makes sure that a host's gauges of its engine's queue are there before anything is known of it.
    pub fn define_load(&mut self, slot: Slot) {
        self.of(slot).map(|gauge| gauge.load(slot));
    }

    /// Tells how many requests wait and run at a host's engine. Only the leader does.
    pub fn set_load(&mut self, slot: Slot, waiting: f64, running: f64) {
        let Some(LoadGauge { waiting: waits, running: runs }) = self.of(slot).map(|gauge| gauge.load(slot))
        else {
            return;
        };
        for (id, value) in [(waits, waiting), (runs, running)] {
            if let Some(id) = id {
                record(*id, value as u64);
            }
        }
    }

    /// Says whether there are peers. When there are none any more, what they had in flight falls to zero.
    pub fn keep_peers(&mut self, with_peers: bool) {
        if !with_peers {
            self.clear_peers();
        }
        self.with_peers = with_peers;
    }

    /// Other gateways have nothing in flight, or nobody knows what.
    pub fn clear_peers(&self) {
        let gauges = self.slots.iter().flatten().filter_map(|gauge| gauge.peers.as_ref());
        gauges.for_each(|gauge| gauge.set(Peers::default()));
    }

    /// Sets what other gateways have on a host. Only the leader does.
    pub fn set_peers(&mut self, slot: Slot, peers: Peers) {
        // A root of an older configuration may still exchange, but nobody would clear what it sets.
        if self.with_peers {
            if let Some(gauge) = self.of(slot) {
                gauge.peers(slot).set(peers);
            }
        }
    }

    /// What other gateways have on a host; two host calls, none without peers.
    pub fn peers(&mut self, slot: Slot) -> Peers {
        if !self.with_peers {
            return Peers::default();
        }
        let Some(PeerGauge { requests, prefill_tokens }) = self.of(slot).map(|gauge| gauge.peers(slot))
        else {
            return Peers::default();
        };
        let read = |id: &Option<u32>| read(*id).unwrap_or(0);
        let requests = u32::try_from(read(requests)).unwrap_or(u32::MAX);
        Peers { requests, prefill_tokens: read(prefill_tokens) }
    }

    /// The anchor of the last cold prompt that any worker placed on a host; one host call.
    pub fn cold_mark(&mut self, slot: Slot) -> Option<u64> {
        read(self.of(slot)?.cold_mark)
    }

    /// Reads what other workers and gateways may have changed since; four host calls, six with peers. A gauge below
    /// zero, a leak before it is found, reads as zero.
    pub fn read_in_flight(&mut self, slot: Slot, own: &mut Own, peers: &mut Peers) {
        *peers = self.peers(slot);
        let InFlight { requests, prefill_tokens } = self.in_flight(slot);
        own.requests = u32::try_from(requests.max(0)).unwrap_or(u32::MAX);
        own.prefill_tokens = prefill_tokens.max(0) as u64;
        let cold =
            self.of(slot).and_then(|gauge| Some(read(gauge.cold)?.saturating_sub(gauge.before.cold_placed)));
        own.cold_placed = cold.unwrap_or(own.cold_placed);
        own.cold_mark = self.cold_mark(slot).unwrap_or(own.cold_mark);
    }

    /// Reads everything about a host; six host calls, eight with peers.
    pub fn read(&mut self, slot: Slot, own: &mut Own, peers: &mut Peers) {
        self.read_in_flight(slot, own, peers);
        let Some(gauge) = self.of(slot) else { return };
        if let Some(begun) = read(gauge.begun) {
            own.begun = begun;
        }
        if let Some(tokens) = read(gauge.sent_tokens) {
            let tokens = tokens.saturating_sub(gauge.before.sent_tokens);
            own.sent_tokens = tokens.saturating_add_signed(gauge.pending_tokens);
        }
    }
}
