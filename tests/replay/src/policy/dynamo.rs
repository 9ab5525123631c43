//! Dynamo approximate: the least of prefill and decode work, counted in blocks.
//!
//! NVIDIA Dynamo's KV router without events (`--no-kv-events`; `lib/kv-router/src/scheduling/selector/default.rs`,
//! read autumn 2026), with its defaults: cost = 1.0 x max(prefill under way + prompt - cached, 0) + blocks of the
//! requests under way, this one included and shared ones counted once; temperature 0, ties drawn; no replica sync.
//! Prefill under way is the uncached prompt tokens of requests without a first token; answers are not counted. What a
//! host holds is what was sent there within 120 s. Tokens stand for blocks here: the sum only changes its unit.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::least::least;
use super::prefix_index::{Forgets, PrefixIndex};
use super::{Arrival, View};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// Time for which a block is believed cached after it was last sent: 120 s.
const TTL_US: u64 = 120_000_000;

/// One gateway's scheduler.
#[derive(Debug)]
pub struct Approximate {
    index: PrefixIndex,
    random: ChaCha8Rng,
    /// By host: blocks of requests under way, each with its tokens and how many requests it is in.
    active: Vec<Active>,
    flights: FxHashMap<usize, Vec<u64>>,
    /// By host: what this request would add to the active tokens.
    added: Vec<u64>,
}

#[derive(Debug, Clone, Default)]
struct Active {
    blocks: FxHashMap<u64, (u32, u32)>,
    tokens: u64,
}

impl Approximate {
    /// Draws ties from `random`.
    pub fn new(random: ChaCha8Rng) -> Self {
        Self {
            index: PrefixIndex::new(Forgets::Tail),
            random,
            active: Vec::new(),
            flights: FxHashMap::default(),
            added: Vec::new(),
        }
    }
}

impl Router for Approximate {
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement {
        let request = arrival.request;
        self.index.expire(view.now_us.saturating_sub(TTL_US));
        self.index.look_up(request, view.block_tokens);
        let size = view.hosts.iter().max().map_or(0, |host| host + 1).max(self.active.len());
        self.active.resize_with(size, Active::default);
        self.added.resize(size, 0);
        for &host in view.hosts {
            let blocks = &self.active[host].blocks;
            let shared = request.ids.iter().take_while(|id| blocks.contains_key(*id)).count() as u32;
            let tokens = shared.saturating_mul(view.block_tokens);
            self.added[host] = u64::from(request.prompt_tokens.saturating_sub(tokens));
        }
        let uncached = |host: usize| request.prompt_tokens - self.index.matched(host);
        let cost = |host: usize| {
            let prefill = books.prefill_tokens(host) + u64::from(uncached(host));
            prefill + self.active[host].tokens + self.added[host]
        };
        let host = least(view.hosts, &mut self.random, cost);
        let placement = Placement { host, uncached_tokens: uncached(host) };
        self.index.sent(host, request, view.block_tokens, u64::MAX, view.now_us);
        let active = &mut self.active[host];
        for (n, id) in request.ids.iter().enumerate() {
            let begin = (n as u32).saturating_mul(view.block_tokens);
            let tokens = request.prompt_tokens.saturating_sub(begin).min(view.block_tokens);
            let (_, requests) = active.blocks.entry(*id).or_insert_with(|| {
                active.tokens += u64::from(tokens);
                (tokens, 0)
            });
            *requests += 1;
        }
        self.flights.insert(arrival.number, request.ids.clone());
        placement
    }

    fn done(&mut self, number: usize, host: usize) {
        let Some(ids) = self.flights.remove(&number) else { return };
        let Some(active) = self.active.get_mut(host) else { return };
        for id in ids {
            let Entry::Occupied(mut block) = active.blocks.entry(id) else { continue };
            let (tokens, requests) = block.get_mut();
            *requests -= 1;
            if *requests == 0 {
                active.tokens -= u64::from(*tokens);
                block.remove();
            }
        }
    }

    fn hosts(&mut self, hosts: &[usize]) {
        self.index.retain(hosts);
    }
}
