//! What will a host's queue cost a new request?
//!
//! Two numbers for each host: the requests it is working on, and the uncached prompt tokens it must
//! prefill before ours. This proxy's own work is counted exactly and at once; what others sent is what
//! the engine reports beyond that. Gauges lag behind by an engine step and a polling interval, so own
//! work leads and polled gauges only correct: polling every 0.1 s or every 5 s makes no difference to a
//! single gateway.

use super::fleet::{Fleet, Host};

/// What stands before a new request on one host.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Queue {
    /// Requests running and waiting: each slows a prefill and is slowed by it.
    pub requests: f64,
    /// Of these, requests for which the engine had no room when it was last asked, whoever sent them.
    pub waiting: f64,
    /// Uncached prompt tokens that are prefilled first.
    pub prefill_tokens: f64,
}

/// What is known of all hosts together, and stands in for what is not known of one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FleetLoad {
    /// Mean requests a host has from others than this proxy, over the hosts with a fresh answer.
    pub foreign_requests: f64,
    /// The same, waiting only.
    pub foreign_waiting: f64,
    /// Mean requests that a host has no room for, whoever sent them, over the hosts with a fresh answer.
    pub waiting: f64,
    /// Mean requests a host has, others' included.
    pub requests: f64,
    /// Mean uncached prompt tokens of a request.
    pub uncached_tokens: f64,
    /// Uncached prompt tokens that a host has before it, on average and as far as gateways know.
    pub queued_tokens: f64,
}

/// When an answer is too old to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// Milliseconds of the wall clock.
    pub now_ms: u64,
    /// Milliseconds after which an answer no longer counts.
    pub stale_after_ms: u64,
}

impl Freshness {
    /// Whether the host's engine answered recently enough.
    pub fn is_fresh(&self, host: &Host) -> bool {
        self.is_recent(host.polled.at_ms)
    }

    /// Whether an answer at `at_ms` counts; 0 is never.
    pub fn is_recent(&self, at_ms: u64) -> bool {
        at_ms != 0 && self.now_ms.saturating_sub(at_ms) <= self.stale_after_ms
    }
}

/// Requests on the host that no gateway accounts for: (running and waiting, waiting only).
fn foreign(host: &Host) -> (f64, f64) {
    let polled = host.polled.running + host.polled.waiting;
    let requests = (polled - f64::from(host.polled.known_requests)).max(0.0);
    (requests, host.polled.waiting.min(requests))
}

impl FleetLoad {
    /// The fleet as it is now. `uncached_tokens` is the mean of recent requests.
    pub fn of(fleet: &Fleet, freshness: Freshness, uncached_tokens: f64) -> Self {
        let mut sum = Self { uncached_tokens, ..Self::default() };
        let mut fresh = 0.0;
        for host in fleet.hosts().iter().filter(|host| freshness.is_fresh(host)) {
            let (requests, waiting) = foreign(host);
            sum.foreign_requests += requests;
            sum.foreign_waiting += waiting;
            sum.waiting += host.polled.waiting;
            fresh += 1.0;
        }
        if fresh > 0.0 {
            sum.foreign_requests /= fresh;
            sum.foreign_waiting /= fresh;
            sum.waiting /= fresh;
        }
        let known = |host: &Host| (host.own.prefill_tokens + host.peers.prefill_tokens) as f64;
        let hosts = fleet.hosts().len().max(1) as f64;
        let requests = |host: &Host| f64::from(host.own.requests) + f64::from(host.peers.requests);
        sum.requests = fleet.hosts().iter().map(requests).sum::<f64>() / hosts + sum.foreign_requests;
        sum.queued_tokens = fleet.hosts().iter().map(known).sum::<f64>() / hosts;
        sum
    }

    /// What stands before a new request on `host` by what gateways know alone, as if nobody else sent it any.
    pub fn known_queue(host: &Host) -> Queue {
        Queue {
            requests: f64::from(host.own.requests) + f64::from(host.peers.requests),
            waiting: 0.0,
            prefill_tokens: host.own.prefill_tokens.saturating_add(host.peers.prefill_tokens) as f64,
        }
    }

    /// What stands before a new request on `host`. A host that is unknown has its own work, and of
    /// others' what a host has on average: neither idle nor full.
    pub fn queue(&self, host: &Host, freshness: Freshness) -> Queue {
        let (requests, waiting) = if freshness.is_fresh(host) {
            foreign(host)
        } else {
            (self.foreign_requests, self.foreign_waiting)
        };
        let known = Self::known_queue(host);
        let requests = known.requests + requests;
        Queue {
            requests,
            waiting: if freshness.is_fresh(host) { host.polled.waiting } else { self.waiting }.min(requests),
            prefill_tokens: known.prefill_tokens + waiting * self.uncached_tokens,
        }
    }
}
