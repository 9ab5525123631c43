//! Do hosts share a KV tier, and what is a prefix worth that only another host has?
//!
//! With LMCache or another connector, engines keep KV blocks beyond their own cache: in memory, on a disk or on the network,
//! where other engines find them. There a prefix that another host computed is fetched, and a miss costs less. So affinity
//! weakens: a request may go where the queue is shorter, for it takes its prefix along.
//!
//! vLLM counts the prompt tokens that it did not have itself and looked up outside, and those that it found there. Their
//! ratio of late is the hit ratio. It understates: what nobody has computed yet was looked up too. An operator who knows
//! better sets it (`routing.tier`).

use super::fleet::Host;
use std::fmt::Write;

/// Tokens looked up that count as *of late*: what was before fades as more come. By tokens and not by time, or an idle
/// hour would make a tier be forgotten.
const WINDOW_TOKENS: f64 = 200_000.0;

/// Tokens that must have been looked up, or computed without a look-up, for their ratio to say anything: a few prompts.
const LEAST_TOKENS: f64 = 10_000.0;

/// The largest counter that is believed; sums of such stay numbers.
const MOST_TOKENS: f64 = 1e15;

/// How misses are priced: what the configuration says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tier {
    /// The share of missing tokens that are found in a shared tier, if another host computed them; `None` if that is to be
    /// told from the engines' counters.
    pub hit_ratio: Option<f64>,
    /// What a token that is fetched costs, as a share of one that is computed.
    pub fetch_share: f64,
}

/// What an engine looked up in a tier outside its own cache, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lookups {
    /// Its counter of tokens looked up, as it said last.
    pub queries: f64,
    /// Its counter of tokens found.
    pub hits: f64,
    /// Tokens looked up of late.
    pub queries_lately: f64,
    /// Of these, tokens found.
    pub hits_lately: f64,
}

impl Lookups {
    /// The state after an answer with these counters. One that does not have both says nothing.
    pub fn after(&self, queries: Option<f64>, hits: Option<f64>) -> Self {
        let Some((queries, hits)) = queries.zip(hits) else { return *self };
        let (queries, hits) = (queries.min(MOST_TOKENS), hits.min(MOST_TOKENS));
        // Another process counts from zero.
        let restarted = queries < self.queries || hits < self.hits;
        let before = if restarted { (0.0, 0.0) } else { (self.queries, self.hits) };
        let queries_lately = self.queries_lately + queries - before.0;
        let fades = (WINDOW_TOKENS / queries_lately.max(1.0)).min(1.0);
        let hits_lately = self.hits_lately + hits - before.1;
        Self { queries, hits, queries_lately: queries_lately * fades, hits_lately: hits_lately * fades }
    }

    /// Whether it has found anything there of late.
    pub fn finds(&self) -> bool {
        self.hits_lately >= 1.0
    }

    /// The share that was found; `None` if that is not known. `prompt_tokens` is what the engine has been asked in all: one
    /// that has worked and looked nothing up has no connector.
    pub fn hit_ratio(&self, prompt_tokens: f64) -> Option<f64> {
        if self.queries_lately >= LEAST_TOKENS {
            Some((self.hits_lately / self.queries_lately).min(1.0))
        } else if prompt_tokens >= LEAST_TOKENS {
            Some(0.0)
        } else {
            None
        }
    }
}

/// What fetching saves at this moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fetch {
    tier: Tier,
    /// The hit ratio of a host that is too new to have one: that of all others together.
    of_all: f64,
}

impl Fetch {
    /// For these hosts.
    pub fn of<'a>(tier: Tier, hosts: impl Iterator<Item = &'a Host>) -> Self {
        let of_all = of_all(hosts.map(|host| &host.polled.lookups)).unwrap_or(0.0);
        Self { tier, of_all }
    }

    /// Whether a miss costs less anywhere than computing it.
    pub fn saves_anything(&self) -> bool {
        self.tier.fetch_share < 1.0 && self.tier.hit_ratio.unwrap_or(self.of_all) > 0.0
    }

    /// What is saved of a missing token's cost on a host, if another host computed it.
    pub fn saved_share(&self, host: &Host) -> f64 {
        let measured = || host.polled.lookups.hit_ratio(host.polled.prompt_tokens).unwrap_or(self.of_all);
        self.tier.hit_ratio.unwrap_or_else(measured) * (1.0 - self.tier.fetch_share)
    }
}

/// The hit ratio of all hosts together, if they have looked enough up.
fn of_all<'a>(lookups: impl Iterator<Item = &'a Lookups>) -> Option<f64> {
    let (mut queries, mut hits) = (0.0, 0.0);
    for host in lookups {
        queries += host.queries_lately;
        hits += host.hits_lately;
    }
    (queries >= LEAST_TOKENS).then(|| (hits / queries).min(1.0))
}

/// What fetching does to affinity, and why, as a JSON object. `lookups` are those of all hosts.
pub fn to_json<'a>(tier: Tier, lookups: impl Iterator<Item = &'a Lookups>) -> String {
    let measured = of_all(lookups);
    let ratio = tier.hit_ratio.or(measured).unwrap_or(0.0);
    let saved = ratio * (1.0 - tier.fetch_share);
    let why = match (tier.hit_ratio, measured) {
        (Some(_), _) if saved > 0.0 => "weaker: routing.tier says that misses are found in a shared tier",
        (None, Some(_)) if saved > 0.0 => "weaker: engines find misses in a shared tier",
        (Some(_), _) => "full: routing.tier and fetch_share leave a miss its whole cost",
        (None, Some(_)) => "full: engines find next to nothing in a shared tier",
        (None, None) => "full: no engine has looked for much in a shared tier",
    };
    let mut json = format!("{{\"affinity\":\"{why}\"");
    let (ratio, fetch_cost, saved) = (Some(ratio), Some(tier.fetch_share), Some(saved));
    for (name, share) in
        [("measured_hit", measured), ("hit", ratio), ("fetch_cost", fetch_cost), ("saved", saved)]
    {
        if let Some(share) = share {
            let _ = write!(json, ",\"{name}_percent\":{}", (100.0 * share).round() as u64);
        }
    }
    json.push('}');
    json
}
