//! Which host is cheapest to remove?
//!
//! A number for each, in the form that Kubernetes' `controller.kubernetes.io/pod-deletion-cost` takes: of a set's pods
//! the one with the lowest goes first. It says in thousands of tokens what is lost with a host:
//!
//! * what it is working on, which would be cut or waited for: prompt tokens that stand there, and for each request what
//!   it has had computed and generated (`REQUEST`);
//! * what it saves the others: the tokens in its cache, as far as such tokens are found again, by the share of its
//!   prompt tokens that were hits. A full cache that nobody asks for is worth nothing.
//!
//! What is not known of a host is taken to be what the others have on average. A host that is marked to go comes before
//! all that are not, the one with the least left to do first.

use super::drains::Mark;
use super::fleet::Polled;

/// What a request in flight is worth, in thousands of tokens: a long prompt, and an answer that somebody reads. A fleet's
/// worth of cached prefixes is some hundreds.
const REQUEST: f64 = 10.0;

/// By how much a host that is to go is cheaper than any that is not.
const MARKED: f64 = 1e9;

/// A host, as far as its removal goes.
#[derive(Debug, Clone, Copy)]
pub struct Removable<'a> {
    /// What its engine said.
    pub polled: &'a Polled,
    /// Its mark, if it is to go.
    pub mark: Option<Mark>,
    /// What the gateway has in flight there.
    pub requests: u32,
    /// Uncached prompt tokens of these without a first byte.
    pub prefill_tokens: u64,
}

/// What the removal of each host costs, in their order: the lowest is to go first. Equal hosts cost the same.
pub fn deletion_costs(hosts: &[Removable]) -> Vec<i32> {
    let (mut sum, mut known) = (0.0, 0.0);
    for cached in hosts.iter().filter_map(Removable::cached) {
        sum += cached;
        known += 1.0;
    }
    let mean = if known > 0.0 { sum / known } else { 0.0 };
    hosts.iter().map(|host| host.cost(mean)).collect()
}

impl Removable<'_> {
    /// What its removal costs, where caches save `mean` on average.
    fn cost(&self, mean: f64) -> i32 {
        // Of two numbers of which one is none, `max` takes the other.
        let lost = (self.at_work() + self.cached().unwrap_or(mean)).max(0.0);
        let least = if self.mark.is_some() { -MARKED } else { 0.0 };
        (least + lost.min(MARKED - 1.0)) as i32
    }

    /// What it is working on. Its engine knows of others' requests, the gateway of those that it has just sent.
    fn at_work(&self) -> f64 {
        let told = self.polled.running + self.polled.waiting;
        REQUEST * told.max(f64::from(self.requests)) + self.prefill_tokens as f64 / 1_000.0
    }

    /// What its cache saves. `None` if its engine does not count what it finds there, or how much there is room for.
    fn cached(&self) -> Option<f64> {
        let Polled { prompt_tokens, computed_tokens, counted_tokens, capacity_tokens, asleep, .. } =
            *self.polled;
        if asleep {
            return Some(0.0);
        }
        if self.polled.at_ms == 0 || capacity_tokens == 0 {
            return None;
        }
        let found = if prompt_tokens >= 1.0 { 1.0 - computed_tokens / prompt_tokens } else { 0.0 };
        let filled = counted_tokens.min(capacity_tokens as f64);
        Some(found.clamp(0.0, 1.0) * filled / 1_000.0)
    }
}
