//! What did affinity earn and cost over a run? Sums over kvroute's decisions, and shares of them.

use serde::Serialize;

/// Sums over all decisions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Account {
    /// Decisions.
    pub requests: u64,
    /// Of these, that went elsewhere than where most of the prompt is held.
    pub spills: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of these, that spilling gave up.
    pub forgone_tokens: u64,
    /// Milliseconds of standing behind others that spilling avoided.
    pub avoided_ms: u64,
    /// Prompt tokens that chosen hosts were believed to hold, once all of a prompt had been read.
    pub predicted_tokens: u64,
    /// Prompt tokens that were cached.
    pub cached_tokens: u64,
    /// Of those predicted, tokens that were not cached.
    pub missed_tokens: u64,
}

/// The same as shares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Regret {
    /// Share of requests that went elsewhere than where most of the prompt is held.
    pub spilled: f64,
    /// Share of prompt tokens that this gave up.
    pub forgone: f64,
    /// Milliseconds of standing behind others that it avoided, a request.
    pub avoided_ms: f64,
    /// Share of prompt tokens that was believed to be cached.
    pub predicted: f64,
    /// Share of prompt tokens that was cached.
    pub cached: f64,
    /// Share of prompt tokens that was believed to be cached and was not.
    pub missed: f64,
}

impl Account {
    /// The sums as shares.
    pub fn regret(&self) -> Regret {
        let of_requests = |count: u64| count as f64 / self.requests.max(1) as f64;
        let of_tokens = |count: u64| count as f64 / self.prompt_tokens.max(1) as f64;
        Regret {
            spilled: of_requests(self.spills),
            forgone: of_tokens(self.forgone_tokens),
            avoided_ms: of_requests(self.avoided_ms),
            predicted: of_tokens(self.predicted_tokens),
            cached: of_tokens(self.cached_tokens),
            missed: of_tokens(self.missed_tokens),
        }
    }
}

impl Regret {
    /// The mean of several.
    pub fn mean(all: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
        Self {
            spilled: mean(|one| one.spilled),
            forgone: mean(|one| one.forgone),
            avoided_ms: mean(|one| one.avoided_ms),
            predicted: mean(|one| one.predicted),
            cached: mean(|one| one.cached),
            missed: mean(|one| one.missed),
        }
    }
}
