//! Prefix hash: the host that rendezvous hashing gives for the anchor, whatever its load.
//!
//! LiteLLM's `prompt_prefix_affinity_check` (`litellm/router_utils/pre_call_checks`, read autumn 2026) and, over a
//! ring, Plano's `x-plano-prefix-hash`. LiteLLM hashes up to 2048 tokens, Plano system prompt, tools and first user
//! message: the trace's anchor is the latter.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::rendezvous::home;
use super::{Arrival, View};

/// Needs no state.
#[derive(Debug)]
pub struct PrefixHash;

impl Router for PrefixHash {
    fn route(&mut self, arrival: &Arrival, view: &View, _books: &Books) -> Placement {
        let host = home(arrival.request.anchor, view.hosts.iter().copied());
        Placement::unknown(host, arrival)
    }
}
