//! LMETRIC: the least product of new prefill and load.
//!
//! From arXiv 2603.15202, as SGLang's new router describes its policy of that name (`experimental/sgl-router`,
//! `POLICY_DESIGN`, read autumn 2026; its code was not to be had): argmin new_prefill x (load + 1), without constants.
//! New prefill is the request's uncached tokens, load the gateway's own requests and what the engine reported of
//! others'. Real ones read cache contents from KV events; here they are guessed from what was sent, as an LRU of the
//! size that the engine reports.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::least::least;
use super::prefix_index::{Forgets, PrefixIndex};
use super::{Arrival, View};
use rand_chacha::ChaCha8Rng;

/// Tokens that a host is taken to hold until it has told: llm-d's 31250 blocks of 64.
const UNTOLD_CAPACITY_TOKENS: u64 = 2_000_000;

/// One gateway's index.
#[derive(Debug)]
pub struct Lmetric {
    index: PrefixIndex,
    random: ChaCha8Rng,
}

impl Lmetric {
    /// Draws ties from `random`.
    pub fn new(random: ChaCha8Rng) -> Self {
        Self { index: PrefixIndex::new(Forgets::Tail), random }
    }
}

impl Router for Lmetric {
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement {
        let request = arrival.request;
        self.index.look_up(request, view.block_tokens);
        // An engine computes the last token at least.
        let new_prefill = |host: usize| (request.prompt_tokens - self.index.matched(host)).max(1);
        let load = |host: usize| books.requests(host) + books.foreign(host);
        let product = |host: usize| u64::from(new_prefill(host)) * u64::from(load(host) + 1);
        let host = least(view.hosts, &mut self.random, product);
        let placement = Placement { host, uncached_tokens: new_prefill(host) };
        let capacity = books.capacity_tokens(host).unwrap_or(UNTOLD_CAPACITY_TOKENS);
        self.index.sent(host, request, view.block_tokens, capacity, view.now_us);
        placement
    }

    fn hosts(&mut self, hosts: &[usize]) {
        self.index.retain(hosts);
    }
}
