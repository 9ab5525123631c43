//! How are the hosts, in words that people and scripts read? The answers of the control listener, in JSON.

use super::drains::{Mark, Marker};
use super::life::Life;
use super::load::Freshness;
use super::members::Members;
use super::removal::{deletion_costs, Removable};
use super::snapshot::Entry;
use super::tier::{self, Tier};
use std::fmt::Write;

/// Milliseconds after a mark until every worker has seen it, and what they sent before has been counted: a few ticks.
const SETTLED_MS: u64 = 200;

/// One host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostStatus {
    /// What the leader knows of it.
    pub entry: Entry,
    /// Its mark at this moment, which the leader may not have seen yet.
    pub mark: Option<Mark>,
    /// What the gateway has in flight there: requests, and uncached prompt tokens without a first byte.
    pub requests: u32,
    /// See [`HostStatus::requests`].
    pub prefill_tokens: u64,
    /// How far the gateway's workers are.
    pub workers: Workers,
}

/// The living workers of a gateway: each looks at its ticks who is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// How many there are.
    pub count: usize,
    /// By when all of them have ticked, in milliseconds of the wall clock; for ever where there are none.
    pub ticked_ms: u64,
}

impl Workers {
    /// Those whose heartbeats, in milliseconds of the wall clock, are no older than `dead_after_ms`.
    pub fn of(heartbeats: impl Iterator<Item = u64>, dead_after_ms: u64, now_ms: u64) -> Self {
        let mut workers = Self { count: 0, ticked_ms: u64::MAX };
        for at_ms in heartbeats.filter(|at_ms| now_ms.saturating_sub(*at_ms) < dead_after_ms) {
            workers.count += 1;
            workers.ticked_ms = workers.ticked_ms.min(at_ms);
        }
        workers
    }
}

impl HostStatus {
    /// Its life.
    pub fn life(&self) -> Life {
        match (self.entry.life, self.mark()) {
            (life @ (Life::Sleeping | Life::Unhealthy(_) | Life::Gone), _) => life,
            (_, Some(mark)) => Life::Draining(mark),
            // The mark was taken away a moment ago.
            (Life::Draining(_), None) => Life::Ready,
            (life, None) => life,
        }
    }

    /// Its mark, if it is to go.
    fn mark(&self) -> Option<Mark> {
        match self.entry.life {
            Life::Draining(mark) if mark.by != Marker::Request => Some(mark),
            _ => self.mark,
        }
    }

    /// What its removal costs.
    fn removable(&self) -> Removable<'_> {
        Removable {
            polled: &self.entry.polled,
            mark: self.mark(),
            requests: self.requests,
            prefill_tokens: self.prefill_tokens,
        }
    }

    /// Whether it may go: it is marked, every worker has seen that, its engine has said since that nothing runs and nothing
    /// waits, and the gateway has nothing in flight there. An engine that does not answer may still be at work.
    pub fn is_drained(&self, at: Freshness) -> bool {
        let Some(mark) = self.mark() else { return false };
        let polled = &self.entry.polled;
        let settled_ms = mark.since_ms.saturating_add(SETTLED_MS);
        let said = at.is_recent(polled.at_ms) && polled.at_ms >= settled_ms;
        let is_idle = polled.running == 0.0 && polled.waiting == 0.0 && self.requests == 0;
        said && is_idle && self.workers.ticked_ms >= settled_ms
    }

    /// As one JSON object.
    pub fn to_json(&self, at: Freshness) -> String {
        let Entry { address, polled, since_ms, .. } = &self.entry;
        let life = self.life();
        let mut json = String::from("{");
        // Addresses are plain ASCII without quotes: the configuration allows no others.
        let _ = write!(json, "\"host\":\"{address}\",\"life\":\"{}\"", life.as_str());
        let _ = write!(json, ",\"reason\":\"{}\"", life.reason());
        if *since_ms != 0 {
            let _ = write!(json, ",\"since_ms\":{}", at.now_ms.saturating_sub(*since_ms));
        }
        let _ = write!(json, ",\"draining\":{}", self.mark().is_some());
        let _ = write!(json, ",\"drained\":{}", self.is_drained(at));
        let _ = write!(json, ",\"in_flight\":{},\"prefill_tokens\":{}", self.requests, self.prefill_tokens);
        if polled.at_ms != 0 {
            let age_ms = at.now_ms.saturating_sub(polled.at_ms);
            let (running, waiting) = (polled.running as u64, polled.waiting as u64);
            let _ = write!(json, ",\"running\":{running},\"waiting\":{waiting},\"age_ms\":{age_ms}");
            let _ = write!(json, ",\"failed_polls\":{}", polled.failures);
        }
        if polled.at_ms != 0 && polled.kv_usage >= 0.0 {
            let _ = write!(json, ",\"kv_usage_percent\":{}", (100.0 * polled.kv_usage) as u64);
        }
        if polled.prompt_tokens >= 1.0 {
            let hits = 1.0 - polled.computed_tokens / polled.prompt_tokens;
            let _ = write!(json, ",\"prefix_hit_percent\":{}", (100.0 * hits) as u64);
        }
        if let Some(ratio) = polled.lookups.hit_ratio(polled.prompt_tokens) {
            let _ = write!(json, ",\"tier_hit_percent\":{}", (100.0 * ratio) as u64);
        }
        json.push('}');
        json
    }
}
/// Who polls for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// The worker.
    pub id: u64,
    /// Number of its configuration.
    pub generation: u64,
}

/// The whole fleet as one JSON object. `tier` is how misses are priced, `members` say where the hosts come from, unless they are configured.
pub fn to_json(
    hosts: &[HostStatus],
    tier: Tier,
    members: Option<&Members>,
    leader: Option<Leader>,
    at: Freshness,
) -> String {
    let known = || hosts.iter().map(|host| &host.entry.polled).filter(|polled| at.is_recent(polled.at_ms));
    let running: f64 = known().map(|polled| polled.running).sum();
    let waiting: f64 = known().map(|polled| polled.waiting).sum();
    let in_flight: u64 = hosts.iter().map(|host| u64::from(host.requests)).sum();
    let ready = hosts.iter().filter(|host| host.life().resort() == Some(0)).count();
    let removable: Vec<Removable> = hosts.iter().map(HostStatus::removable).collect();
    let costs = deletion_costs(&removable);
    let with_cost = |(host, cost): (&HostStatus, i32)| {
        let mut json = host.to_json(at);
        json.pop();
        let _ = write!(json, ",\"deletion_cost\":{cost}}}");
        json
    };
    let listed: Vec<String> = hosts.iter().zip(costs).map(with_cost).collect();
    let mut json = format!("{{\"hosts\":[{}],\"known_hosts\":{}", listed.join(","), known().count());
    let (running, waiting) = (running as u64, waiting as u64);
    let _ = write!(json, ",\"ready_hosts\":{ready},\"running\":{running},\"waiting\":{waiting}");
    let _ = write!(json, ",\"in_flight\":{in_flight}");
    if let Some(Workers { count, ticked_ms }) = hosts.first().map(|host| host.workers) {
        let _ =
            write!(json, ",\"workers\":{count},\"oldest_tick_ms\":{}", at.now_ms.saturating_sub(ticked_ms));
    }
    if let Some(Leader { id, generation }) = leader {
        let _ = write!(json, ",\"leader\":\"{id:016x}\",\"generation\":{generation}");
    }
    if let Some(members) = members {
        let _ = write!(json, ",\"discovery\":{}", members.to_json(at.now_ms));
    }
    let lookups = hosts.iter().map(|host| &host.entry.polled.lookups);
    let _ = write!(json, ",\"tier\":{}", tier::to_json(tier, lookups));
    json.push_str("}\n");
    json
}
