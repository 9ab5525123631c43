//! How are the hosts, in words that people and scripts read? The answers of the control listener, in JSON.
//!
//! What is known of a host here is what all workers know: its engine's last answer, what the gateway has in flight on
//! it, and its mark. Back-off after failures is each worker's own and not told.

use super::fleet::Polled;
use super::tier::{self, Tier};
use std::fmt::Write;

/// Milliseconds after a mark until every worker has seen it, and what they sent before has been counted: a few ticks.
const SETTLED_MS: u64 = 200;

/// One host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostStatus {
    /// As Envoy prints it.
    pub address: String,
    /// What its engine said last; nothing if it never did.
    pub polled: Polled,
    /// Since when it is marked to go, in milliseconds of the wall clock.
    pub draining_since_ms: Option<u64>,
    /// What the gateway has in flight there: requests, and uncached prompt tokens without a first byte.
    pub requests: u32,
    /// See [`HostStatus::requests`].
    pub prefill_tokens: u64,
}

/// A moment, and how old an answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds of the wall clock.
    pub now_ms: u64,
    /// Milliseconds after which an answer no longer counts.
    pub stale_after_ms: u64,
}

impl HostStatus {
    /// Whether its engine has answered recently enough.
    fn is_fresh(&self, moment: Moment) -> bool {
        self.polled.at_ms != 0 && moment.now_ms.saturating_sub(self.polled.at_ms) <= moment.stale_after_ms
    }

    /// Whether it may go: it is marked, its engine has said since that nothing runs and nothing waits, and the gateway
    /// has nothing in flight there. An engine that does not answer may still be at work.
    pub fn is_drained(&self, moment: Moment) -> bool {
        self.draining_since_ms.is_some_and(|since_ms| {
            let settled_ms = since_ms.saturating_add(SETTLED_MS);
            let said = self.is_fresh(moment) && self.polled.at_ms >= settled_ms;
            let is_idle = self.polled.running == 0.0 && self.polled.waiting == 0.0 && self.requests == 0;
            said && is_idle && moment.now_ms >= settled_ms
        })
    }

    /// Its life, as far as all workers know it, and why.
    pub fn life(&self, moment: Moment) -> (&'static str, &'static str) {
        if self.draining_since_ms.is_some() {
            match self.is_drained(moment) {
                true => ("draining", "marked to go; nothing runs, waits or is in flight"),
                false => ("draining", "marked to go; not empty yet, or its engine does not say"),
            }
        } else if self.polled.asleep {
            ("sleeping", "its engine says that it sleeps")
        } else if self.polled.at_ms == 0 {
            ("ready", "its engine has not said anything yet: judged by what is in flight")
        } else if !self.is_fresh(moment) {
            ("ready", "its engine does not answer: judged by what is in flight")
        } else {
            ("ready", "its engine answers")
        }
    }

    /// As one JSON object.
    pub fn to_json(&self, moment: Moment) -> String {
        let (life, reason) = self.life(moment);
        let mut json = String::from("{");
        // Addresses are plain ASCII without quotes: the configuration allows no others.
        let _ = write!(json, "\"host\":\"{}\",\"life\":\"{life}\",\"reason\":\"{reason}\"", self.address);
        let _ = write!(json, ",\"draining\":{}", self.draining_since_ms.is_some());
        let _ = write!(json, ",\"drained\":{}", self.is_drained(moment));
        let _ = write!(json, ",\"in_flight\":{},\"prefill_tokens\":{}", self.requests, self.prefill_tokens);
        if self.polled.at_ms != 0 {
            let age_ms = moment.now_ms.saturating_sub(self.polled.at_ms);
            let (running, waiting) = (self.polled.running as u64, self.polled.waiting as u64);
            let _ = write!(json, ",\"running\":{running},\"waiting\":{waiting},\"age_ms\":{age_ms}");
            let _ = write!(json, ",\"failed_polls\":{}", self.polled.failures);
        }
        if self.polled.at_ms != 0 && self.polled.kv_usage >= 0.0 {
            let _ = write!(json, ",\"kv_usage_percent\":{}", (100.0 * self.polled.kv_usage) as u64);
        }
        if let Some(ratio) = self.polled.lookups.hit_ratio(self.polled.prompt_tokens) {
            let _ = write!(json, ",\"tier_hit_percent\":{}", (100.0 * ratio) as u64);
        }
        json.push('}');
        json
    }
}

/// The whole fleet as one JSON object. `tier` is how misses are priced.
pub fn to_json(hosts: &[HostStatus], tier: Tier, moment: Moment) -> String {
    let known = || hosts.iter().filter(|host| host.is_fresh(moment));
    let running: f64 = known().map(|host| host.polled.running).sum();
    let waiting: f64 = known().map(|host| host.polled.waiting).sum();
    let in_flight: u64 = hosts.iter().map(|host| u64::from(host.requests)).sum();
    let listed: Vec<String> = hosts.iter().map(|host| host.to_json(moment)).collect();
    format!(
        "{{\"hosts\":[{}],\"known_hosts\":{},\"running\":{},\"waiting\":{},\"in_flight\":{in_flight},\"tier\":{}}}\n",
        listed.join(","),
        known().count(),
        running as u64,
        waiting as u64,
        tier::to_json(tier, hosts.iter().map(|host| &host.polled.lookups)),
    )
}
