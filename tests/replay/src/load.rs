//! How much is a load of 0.9? The rate at which a fleet is full, per trace.
//!
//! Capacity is where the oracle's goodput breaks: the most requests a second at which nine tenths of what it answers in
//! time at a trickle is still answered in time. Loads are shares of it, so that they compare across traces.

use crate::engine::EngineSpec;
use crate::figures::Figures;
use crate::policy::oracle::VARIANTS;
use crate::simulation::{simulate, Polling, Run};
use crate::trace::{Request, Trace};
use kvroute::core::blocks::BlockHash;

/// Goodput over that at a trickle, at which a fleet counts as full.
const BREAKS_AT: f64 = 0.9;

/// The requests of a trace at `rate` requests a second, as a seed draws them: a tenth of the sessions is left out.
/// Copies of the trace with texts of their own run side by side where the fleet is larger than 16 hosts.
pub fn requests(trace: &Trace, rate: f64, hosts: usize, seed: u64) -> Vec<Request> {
    let copies = (hosts / 16).max(1) as u64;
    let mut requests = Vec::new();
    for copy in 0..copies {
        let own = |id: u64| if copies == 1 { id } else { BlockHash(id).under(copy + 1).0 };
        for request in &trace.requests {
            if BlockHash(own(request.session)).under(seed).0.is_multiple_of(10) {
                continue;
            }
            requests.push(Request {
                ids: request.ids.iter().map(|id| own(*id)).collect(),
                answer_ids: request.answer_ids.iter().map(|id| own(*id)).collect(),
                session: own(request.session),
                anchor: own(request.anchor),
                ..*request
            });
        }
    }
    // A fleet of fewer hosts sees the first part only: the same time, fewer requests.
    requests.sort_by_key(|request| request.at_us);
    if hosts < 16 {
        requests.truncate(requests.len() * hosts.max(4) / 16);
    }
    let first = requests.first().map_or(0, |request| request.at_us);
    let span_us = requests.last().map_or(1, |request| request.at_us - first).max(1);
    let factor = requests.len() as f64 / rate * 1e6 / span_us as f64;
    for request in &mut requests {
        request.at_us = ((request.at_us - first) as f64 * factor) as u64;
    }
    requests
}

/// Requests a second at which `hosts` hosts are full.
pub fn capacity(trace: &Trace, hosts: &[EngineSpec]) -> f64 {
    let goodput = |rate: f64| {
        let requests = requests(trace, rate, hosts.len(), 0);
        let run = Run {
            requests: &requests,
            block_tokens: trace.block_tokens,
            hosts: hosts.to_vec(),
            gateways: 1,
            // The oracle needs no polls.
            polling: Polling { interval_us: 3_600_000_000, ..Polling::default() },
            events: Vec::new(),
            seed: 0,
        };
        let mut oracle = VARIANTS[0];
        Figures::of(&simulate(&run, &mut oracle), hosts.len()).goodput
    };
    let tokens: f64 = trace.requests.iter().map(|request| f64::from(request.prompt_tokens)).sum();
    let per_request = tokens / trace.requests.len() as f64;
    let prefill: f64 = hosts.iter().map(|spec| spec.prefill_tokens_per_s).sum();
    // What it takes without any cache; then between a twentieth and thirty times that.
    let uncached = prefill / per_request;
    let least = BREAKS_AT * goodput(uncached / 20.0);
    let (mut low, mut high) = (uncached / 20.0, uncached * 30.0);
    while high / low > 1.02 {
        let middle = (low * high).sqrt();
        if goodput(middle) >= least {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
