//! Figures of a run: how much was cached, how long the first token took, who served, what failed.

use super::replay::{Failure, Record};
use crate::quantiles::Quantiles;
use std::collections::BTreeMap;
use std::time::Duration;

/// The figures of some requests.
#[derive(Debug, Clone)]
pub struct Summary {
    /// How many requests were sent.
    pub requests: usize,
    /// What went wrong, of each request that failed.
    pub failures: Vec<Failure>,
    /// Prompt tokens that the engines found in their caches, as a share of all prompt tokens.
    pub cached_ratio: f64,
    /// Time to the first token of those that succeeded.
    pub ttft: Quantiles,
    /// Requests that each engine served.
    pub per_engine: BTreeMap<String, usize>,
    /// Prompt tokens that each engine computed: those that were not in its cache.
    pub computed: BTreeMap<String, u64>,
}

impl Summary {
    /// Of these records.
    pub fn new(records: &[Record]) -> Self {
        let prompt: u64 = records.iter().map(|record| record.usage.prompt).sum();
        let cached: u64 = records.iter().map(|record| record.usage.cached).sum();
        let (mut per_engine, mut computed) = (BTreeMap::new(), BTreeMap::new());
        for record in records.iter().filter(|record| record.failure.is_none()) {
            *per_engine.entry(record.engine.clone()).or_default() += 1;
            *computed.entry(record.engine.clone()).or_default() +=
                record.usage.prompt.saturating_sub(record.usage.cached);
        }
        Self {
            requests: records.len(),
            failures: records.iter().filter_map(|record| record.failure.clone()).collect(),
            cached_ratio: cached as f64 / prompt.max(1) as f64,
            ttft: Quantiles::new(records.iter().filter_map(|record| record.ttft).collect()),
            per_engine,
            computed,
        }
    }

    /// Share of all requests whose first token came within `limit`. What failed did not.
    pub fn goodput(&self, limit: Duration) -> f64 {
        self.ttft.within(limit) as f64 / self.requests.max(1) as f64
    }

    /// How many times the mean of all `engines` the busiest of them computed, in prompt tokens: 1 is even.
    pub fn imbalance(&self, engines: usize) -> f64 {
        let most = self.computed.values().max().copied().unwrap_or(0);
        let total: u64 = self.computed.values().sum();
        (most * engines as u64) as f64 / total.max(1) as f64
    }
}
