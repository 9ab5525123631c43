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
use super::{Place, Policy};
use rand_chacha::ChaCha8Rng;

/// A policy and what it is called in tables.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// Makes it, knowing nothing yet.
    pub make: fn(&Place) -> Box<dyn Policy>,
}

/// Everybody else's policies.
pub fn peers() -> Vec<Named> {
    vec![
        Named { name: "round robin", make: |place| apart(place, RoundRobin::new) },
        Named { name: "least request", make: |place| apart(place, LeastRequest::new) },
        Named { name: "least loaded", make: |place| apart(place, LeastLoaded::new) },
        Named { name: "prefix hash", make: |place| apart(place, |_| PrefixHash) },
        Named { name: "CHWBL 1.25", make: |place| apart(place, |_| Chwbl::default()) },
        Named { name: "SGLang cache_aware", make: |place| apart(place, |_| CacheAware::default()) },
        Named { name: "llm-d affinity", make: |place| apart(place, Affinity::new) },
        Named { name: "Higress prefix_cache", make: |place| Box::new(PrefixCache::new(place.seed)) },
        Named { name: "Dynamo approximate", make: |place| apart(place, Approximate::new) },
        Named { name: "LMETRIC", make: |place| apart(place, Lmetric::new) },
    ]
}

/// A router at each gateway, sharing nothing.
fn apart<R: Router + 'static>(place: &Place, make: impl Fn(ChaCha8Rng) -> R) -> Box<dyn Policy> {
    Box::new(Gateways::new(place.gateways, place.seed, make))
}
