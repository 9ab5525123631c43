//! Which of Envoy's own load balancing policies is kvroute compared with, and how is each configured?

use serde_json::{json, Value};

/// The request header that hashing policies read. Their client must send it, with a hash of what the prompts of one
/// conversation have in common ([`crate::workload::plan::Plan::anchor`]): without a filter, Envoy reads no body.
pub const ANCHOR_HEADER: &str = "x-prompt-anchor";

/// A policy that needs no filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// One host after the other.
    RoundRobin,
    /// Of two hosts drawn at random, the one with fewer requests in flight: Envoy's default.
    LeastRequest,
    /// The host that the anchor hashes to, whatever its load.
    PrefixHash,
    /// The same with bounded loads (CHWBL): a host with more than 1.25 times the mean in flight is passed over.
    BoundedPrefixHash,
}

impl Policy {
    /// The name of its listener and of its cluster.
    pub fn name(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round_robin",
            Policy::LeastRequest => "least_request",
            Policy::PrefixHash => "prefix_hash",
            Policy::BoundedPrefixHash => "bounded_prefix_hash",
        }
    }

    /// The cluster's `load_balancing_policy`.
    pub(crate) fn load_balancing(self) -> Value {
        let (extension, message, mut config) = match self {
            Policy::RoundRobin => ("round_robin", "RoundRobin", json!({})),
            Policy::LeastRequest => ("least_request", "LeastRequest", json!({})),
            Policy::PrefixHash => ("maglev", "Maglev", json!({})),
            Policy::BoundedPrefixHash => (
                "ring_hash",
                "RingHash",
                json!({
                    // A ring as fine as maglev's table. Envoy's default of 1024 gives some hosts a third more.
                    "minimum_ring_size": 65_537,
                    "consistent_hashing_lb_config": {"hash_balance_factor": 125},
                }),
            ),
        };
        let package = "type.googleapis.com/envoy.extensions.load_balancing_policies";
        config["@type"] = json!(format!("{package}.{extension}.v3.{message}"));
        let name = format!("envoy.load_balancing_policies.{extension}");
        json!({"policies": [{"typed_extension_config": {"name": name, "typed_config": config}}]})
    }

    /// The route's `hash_policy`.
    pub(crate) fn hash_policy(self) -> Value {
        match self {
            Policy::RoundRobin | Policy::LeastRequest => json!([]),
            Policy::PrefixHash | Policy::BoundedPrefixHash => {
                json!([{"header": {"header_name": ANCHOR_HEADER}}])
            }
        }
    }
}
