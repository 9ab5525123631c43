//! What is known of the fleet's queue at one moment.

use crate::core::fleet::{Host, Slot};
use crate::core::life::Life;
use crate::core::route::Situation;

/// No number of requests or tokens is taken to be larger: engines may say anything.
const MOST: f64 = 1e9;

/// One host at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// Its number.
    pub slot: Slot,
    /// Whether new requests go there.
    pub is_ready: bool,
    /// Whether its engine has answered recently enough.
    pub is_fresh: bool,
    /// Requests running, as it said last.
    pub running: f64,
    /// Requests waiting, as it said last.
    pub waiting: f64,
    /// Share of its KV cache in use; 0 if it did not say.
    pub kv_usage: f64,
    /// Requests of this gateway in flight there.
    pub in_flight: u32,
    /// Requests of this gateway ever begun there; only differences matter.
    pub begun: u64,
    /// Uncached prompt tokens that stand before a new request: gateways' own, and others' waiting.
    pub backlog_tokens: f64,
    /// Tokens a second that it prefills.
    pub prefill_rate: f64,
}

/// The fleet at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// All hosts.
    pub hosts: Vec<Seen>,
    /// Requests that this gateway ever turned away, because every host was full; only differences matter. `None` if that
    /// is not known at this moment.
    pub shed: Option<u64>,
}

/// Sums over the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// Hosts that take requests.
    pub ready: u32,
    /// Requests waiting.
    pub waiting: f64,
    /// Requests running.
    pub running: f64,
    /// Uncached prompt tokens that stand.
    pub backlog_tokens: f64,
    /// Requests of this gateway in flight.
    pub in_flight: f64,
    /// Tokens a second that those hosts prefill.
    pub prefill_rate: f64,
    /// How full they are, each at most 1.
    pub full: f64,
}

impl Reading {
    /// The fleet as a worker sees it, and what was ever turned away.
    pub fn of(situation: &Situation, shed: Option<u64>) -> Self {
        let hosts = situation.fleet.hosts().iter();
        Self { hosts: hosts.map(|host| Seen::of(situation, host)).collect(), shed }
    }

    /// The sums over the hosts that something is known of: those that answer, and those that take requests, as they said
    /// last. One that neither answers nor takes requests has no queue any more. `target` is how many requests fill a host.
    pub fn totals(&self, target: f64) -> Totals {
        let mut totals = Totals::default();
        for host in &self.hosts {
            if host.is_fresh || host.is_ready {
                totals.waiting += host.waiting;
                totals.running += host.running;
                totals.backlog_tokens += host.backlog_tokens;
                totals.in_flight += f64::from(host.in_flight);
            }
            if host.is_ready {
                totals.ready += 1;
                totals.prefill_rate += host.prefill_rate;
                totals.full += (host.waiting / target).max(host.kv_usage).min(1.0);
            }
        }
        for sum in [&mut totals.waiting, &mut totals.running, &mut totals.backlog_tokens] {
            *sum = sum.min(MOST);
        }
        totals
    }

    /// Whether all that take requests have answered recently, and at least one has.
    pub fn is_whole(&self) -> bool {
        self.is_known() && self.hosts.iter().all(|host| host.is_fresh || !host.is_ready)
    }

    /// Whether any host has answered recently.
    pub fn is_known(&self) -> bool {
        self.hosts.iter().any(|host| host.is_fresh)
    }
}

impl Seen {
    fn of(situation: &Situation, host: &Host) -> Self {
        let queue = situation.load.queue(host, situation.freshness);
        Self {
            slot: host.slot,
            // Also those that are ready but for their cache.
            is_ready: Life::of(host, situation.freshness.now_ms).resort() == Some(0),
            is_fresh: situation.freshness.is_fresh(host),
            running: host.polled.running.min(MOST),
            waiting: host.polled.waiting.min(MOST),
            kv_usage: Some(host.polled.kv_usage).filter(|share| share.is_finite()).unwrap_or(0.0),
            in_flight: host.own.requests,
            begun: host.own.begun,
            backlog_tokens: queue.prefill_tokens.min(MOST),
            prefill_rate: situation.rate(host),
        }
    }
}
