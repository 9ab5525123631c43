//! llm-d affinity: only hosts that hold the prompt, until they would be much slower than others.
//!
//! llm-d-router's default since August 2026 (`guides/optimized-baseline`; `prefixcacheaffinity/plugin.go`,
//! `tokenload`, `inflightload`, `approximateprefix/indexer.go`, read autumn 2026). Hosts that hold at least 0.80 of
//! the prompt are the candidates, unless the fastest of them is estimated to be more than 18000 ms behind the fastest
//! other; an estimate is the host's own uncached tokens without a first token, at 15928 tokens a second. Of the
//! candidates, the one with the least of these tokens and the request's own uncached ones; ties are drawn. What a host
//! holds is an LRU of 31250 blocks of 64 tokens, written when a request is sent and in reading order, so that heads of
//! prompts are forgotten first; at most 131072 tokens of a prompt are looked at.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::least::least;
use super::prefix_index::{Forgets, PrefixIndex};
use super::{Arrival, View};
use rand_chacha::ChaCha8Rng;

/// `affinityThreshold`.
const AFFINITY: f64 = 0.80;

/// `maxTTFTPenaltyMs`.
const MAX_TTFT_PENALTY_MS: f64 = 18_000.0;

/// `peakPrefillThroughput`, in tokens a second.
const PEAK_PREFILL_THROUGHPUT: f64 = 15_928.0;

/// `queueThresholdTokens` of the token-load scorer: more than this is all the same to it.
const QUEUE_THRESHOLD_TOKENS: u64 = 4_194_304;

/// Blocks of a host's LRU, and a block's tokens.
const LRU_BLOCKS: u64 = 31_250;
const BLOCK_TOKENS: u64 = 64;

/// Tokens of a prompt that are looked at.
const PROMPT_TOKENS: u32 = 131_072;

/// One gateway's endpoint picker.
#[derive(Debug)]
pub struct Affinity {
    index: PrefixIndex,
    random: ChaCha8Rng,
    candidates: Vec<usize>,
}

impl Affinity {
    /// Draws ties from `random`.
    pub fn new(random: ChaCha8Rng) -> Self {
        Self { index: PrefixIndex::new(Forgets::Head), random, candidates: Vec::new() }
    }
}

impl Router for Affinity {
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement {
        let request = arrival.request;
        self.index.look_up(request, view.block_tokens);
        let looked_at = f64::from(request.prompt_tokens.min(PROMPT_TOKENS));
        let warm =
            |host: &usize| f64::from(self.index.matched(*host).min(PROMPT_TOKENS)) >= AFFINITY * looked_at;
        let ttft_ms = |host: &usize| books.prefill_tokens(*host) as f64 / PEAK_PREFILL_THROUGHPUT * 1e3;

        let (mut best_warm_ms, mut best_cold_ms) = (f64::INFINITY, f64::INFINITY);
        self.candidates.clear();
        for host in view.hosts {
            if warm(host) {
                best_warm_ms = best_warm_ms.min(ttft_ms(host));
                self.candidates.push(*host);
            } else {
                best_cold_ms = best_cold_ms.min(ttft_ms(host));
            }
        }
        let released = best_warm_ms - best_cold_ms > MAX_TTFT_PENALTY_MS;
        let candidates =
            if released || self.candidates.is_empty() { view.hosts } else { self.candidates.as_slice() };

        let uncached = |host: usize| request.prompt_tokens - self.index.matched(host);
        let tokens = |host: usize| {
            (books.prefill_tokens(host) + u64::from(uncached(host))).min(QUEUE_THRESHOLD_TOKENS)
        };
        let host = least(candidates, &mut self.random, tokens);
        let placement = Placement { host, uncached_tokens: uncached(host) };
        self.index.sent(host, request, view.block_tokens, LRU_BLOCKS * BLOCK_TOKENS, view.now_us);
        placement
    }

    fn hosts(&mut self, hosts: &[usize]) {
        self.index.retain(hosts);
    }
}
