//! Which policies of others is kvroute compared with? All by name.

use super::chwbl::Chwbl;
use super::dynamo::Approximate;
use super::gateways::{Gateways, Router};
use super::higress::PrefixCache;
use super::least_loaded::LeastLoaded;
use super::least_request::LeastRequest;
use super::llmd::Affinity;
use super::lmetric::Lmetric;
use super::prefix_hash::PrefixHash;
use super::round_robin::RoundRobin;
use super::sglang::CacheAware;
use super::Policy;
use rand_chacha::ChaCha8Rng;

/// What a policy is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Gateways of the run.
    pub gateways: usize,
    /// Of all its draws.
    pub seed: u64,
    /// Hosts at the start.
    pub hosts: usize,
    /// Tokens of a block of the trace.
    pub block_tokens: u32,
}

/// A policy and what it is called in tables.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// Makes it, knowing nothing yet.
    pub make: fn(&Setup) -> Box<dyn Policy>,
}

/// Everybody else's policies.
pub fn peers() -> Vec<Named> {
    vec![
        Named { name: "round robin", make: |setup| apart(setup, RoundRobin::new) },
        Named { name: "least request", make: |setup| apart(setup, LeastRequest::new) },
        Named { name: "least loaded", make: |setup| apart(setup, LeastLoaded::new) },
        Named { name: "prefix hash", make: |setup| apart(setup, |_| PrefixHash) },
        Named { name: "CHWBL 1.25", make: |setup| apart(setup, |_| Chwbl::default()) },
        Named { name: "SGLang cache_aware", make: |setup| apart(setup, |_| CacheAware::default()) },
        Named { name: "llm-d affinity", make: |setup| apart(setup, Affinity::new) },
        Named { name: "Higress prefix_cache", make: |setup| Box::new(PrefixCache::new(setup.seed)) },
        Named { name: "Dynamo approximate", make: |setup| apart(setup, Approximate::new) },
        Named { name: "LMETRIC", make: |setup| apart(setup, Lmetric::new) },
    ]
}

/// A router at each gateway, sharing nothing.
fn apart<R: Router + 'static>(setup: &Setup, make: impl Fn(ChaCha8Rng) -> R) -> Box<dyn Policy> {
    Box::new(Gateways::new(setup.gateways, setup.seed, make))
}
