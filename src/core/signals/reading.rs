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
}

impl Reading {
    /// The fleet as a worker sees it.
    pub fn of(situation: &Situation) -> Self {
        Self { hosts: situation.fleet.hosts().iter().map(|host| Seen::of(situation, host)).collect() }
    }

    /// The sum of something over the hosts that it is known of: those that answer, and those that take requests, as
    /// they said last. One that neither answers nor takes requests has no queue any more.
    pub fn sum(&self, of: impl Fn(&Seen) -> f64) -> f64 {
        let known = self.hosts.iter().filter(|host| host.is_fresh || host.is_ready);
        known.map(of).sum::<f64>().min(MOST)
    }

    /// How many hosts take requests.
    pub fn ready(&self) -> u32 {
        self.hosts.iter().filter(|host| host.is_ready).count() as u32
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
            // `max` and `min` of NaN are the other.
            kv_usage: host.polled.kv_usage.max(0.0).min(1.0),
            in_flight: host.own.requests,
            begun: host.own.begun,
            backlog_tokens: queue.prefill_tokens.min(MOST),
            prefill_rate: situation.rate(host),
        }
    }
}
