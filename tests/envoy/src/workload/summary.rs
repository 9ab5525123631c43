//! Figures of a run: how much was cached, how long the first token took, who served, what failed.

use super::replay::{Failure, Record};
use crate::quantiles::Quantiles;
use std::collections::BTreeMap;

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
}

impl Summary {
    /// Of these records.
    pub fn new(records: &[Record]) -> Self {
        let prompt: u64 = records.iter().map(|record| record.usage.prompt).sum();
        let cached: u64 = records.iter().map(|record| record.usage.cached).sum();
        let mut per_engine = BTreeMap::new();
        for record in records.iter().filter(|record| record.failure.is_none()) {
            *per_engine.entry(record.engine.clone()).or_default() += 1;
        }
        Self {
            requests: records.len(),
            failures: records.iter().filter_map(|record| record.failure.clone()).collect(),
            cached_ratio: cached as f64 / prompt.max(1) as f64,
            ttft: Quantiles::new(records.iter().filter_map(|record| record.ttft).collect()),
            per_engine,
        }
    }
}
