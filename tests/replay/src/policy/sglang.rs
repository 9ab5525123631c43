//! SGLang cache_aware: the longest match over a threshold, unless the fleet is out of balance.
//!
//! sglang-router 0.3.2 (`sgl-router/src/policies/{cache_aware,tree}.rs` and its wheel, read autumn 2026), with the
//! command line's defaults: `balance-abs-threshold` 64, `balance-rel-threshold` 1.5, `cache-threshold` 0.3,
//! `max-tree-size` 2^26 characters a worker. Out of balance, every request goes to the worker with the fewest
//! requests. Else a match of more than 0.3 of the text goes to a holder of its deepest node, and anything else to the
//! worker with the smallest tree. Every request is written into the chosen worker's tree.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::prefix_index::{Forgets, PrefixIndex};
use super::rendezvous::home;
use super::{Arrival, View};

/// `balance-abs-threshold`: out of balance needs more requests than this between busiest and idlest.
const BALANCE_ABS: u32 = 64;

/// `balance-rel-threshold`: and the busiest more than this times the idlest's.
const BALANCE_REL: f64 = 1.5;

/// `cache-threshold`: share of the text that must match.
const CACHE_THRESHOLD: f64 = 0.3;

/// `max-tree-size`, in characters of each worker.
const TREE_CHARACTERS: u64 = 1 << 26;

/// Characters of a token, to know the tree's size in tokens.
const CHARACTERS_PER_TOKEN: u64 = 4;

/// One gateway's trees.
#[derive(Debug)]
pub struct CacheAware {
    trees: PrefixIndex,
}

impl Default for CacheAware {
    fn default() -> Self {
        Self { trees: PrefixIndex::new(Forgets::Tail) }
    }
}

impl Router for CacheAware {
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement {
        let request = arrival.request;
        self.trees.look_up(request, view.block_tokens);
        let load = |host: &usize| books.requests(*host);
        let least = view.hosts.iter().map(load).min().unwrap_or(0);
        let most = view.hosts.iter().map(load).max().unwrap_or(0);
        let host = if most - least > BALANCE_ABS && f64::from(most) > BALANCE_REL * f64::from(least) {
            view.hosts.iter().copied().min_by_key(load).unwrap_or(view.hosts[0])
        } else {
            self.by_tree(arrival, view)
        };
        let uncached_tokens = request.prompt_tokens - self.trees.matched(host);
        let capacity = TREE_CHARACTERS / CHARACTERS_PER_TOKEN;
        self.trees.sent(host, request, view.block_tokens, capacity, view.now_us);
        Placement { host, uncached_tokens }
    }

    fn hosts(&mut self, hosts: &[usize]) {
        self.trees.retain(hosts);
    }
}

impl CacheAware {
    fn by_tree(&self, arrival: &Arrival, view: &View) -> usize {
        let request = arrival.request;
        let matched = |host: &usize| self.trees.matched(*host);
        let deepest = view.hosts.iter().map(matched).max().unwrap_or(0);
        if f64::from(deepest) > CACHE_THRESHOLD * f64::from(request.prompt_tokens) {
            // Of several holders the tree names one by the order of a hash map: always the same for a node.
            let node = request.ids[(deepest.div_ceil(view.block_tokens) as usize).max(1) - 1];
            home(node, view.hosts.iter().copied().filter(|host| matched(host) == deepest))
        } else {
            let smallest = view.hosts.iter().copied().min_by_key(|host| self.trees.held(*host));
            smallest.unwrap_or(view.hosts[0])
        }
    }
}
