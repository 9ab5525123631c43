//! Higress prefix_cache: where this conversation went before, says one Redis to all gateways.
//!
//! Higress `ai-load-balancer` (`prefix_cache/lb_policy.go`, read autumn 2026). A prompt has a key for each user
//! message, the first over system prompt and first user message; the host of the deepest known key gets the request
//! whatever its load, and keys still unknown are set to it, for 1800 s since last use. If not even the first is known,
//! the host with the fewest requests of all gateways gets it. So all keys under a first one name the same host, and
//! the first, the trace's anchor, is all that decides.
//!
//! A key whose host is gone is not repaired: the script writes to other keys from there, and until the old one expires
//! its requests go to the host with the fewest requests.

use super::{Arrival, Policy, View};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

/// `redisKeyTTL`, 1800 s.
const TTL_US: u64 = 1_800_000_000;

/// The Redis, and what the gateways have under way.
#[derive(Debug)]
pub struct PrefixCache {
    keys: FxHashMap<u64, Key>,
    /// Requests under way by host; `None` until its first one, as in the Redis hash.
    requests: Vec<Option<u32>>,
    flights: FxHashMap<usize, usize>,
    random: ChaCha8Rng,
    swept_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Key {
    host: usize,
    expires_us: u64,
}

impl PrefixCache {
    /// Empty.
    pub fn new(seed: u64) -> Self {
        Self {
            keys: FxHashMap::default(),
            requests: Vec::new(),
            flights: FxHashMap::default(),
            random: ChaCha8Rng::seed_from_u64(seed),
            swept_us: 0,
        }
    }

    fn count(&self, host: usize) -> Option<u32> {
        self.requests.get(host).copied().flatten()
    }

    /// The script's own least request: a host at random unless a counted one has fewer, or as many and wins the toss.
    fn least_request(&mut self, hosts: &[usize]) -> usize {
        let mut target = hosts[self.random.random_range(0..hosts.len())];
        let Some(mut least) = self.count(target) else { return target };
        for &host in hosts {
            let Some(count) = self.count(host) else { continue };
            if count < least || (count == least && self.random.random()) {
                (target, least) = (host, count);
            }
        }
        target
    }

    fn sweep(&mut self, now_us: u64) {
        if now_us >= self.swept_us + TTL_US {
            self.swept_us = now_us;
            self.keys.retain(|_, key| key.expires_us > now_us);
        }
    }
}

impl Policy for PrefixCache {
    fn route(&mut self, arrival: &Arrival, view: &View) -> usize {
        self.sweep(view.now_us);
        let anchor = arrival.request.anchor;
        let expires_us = view.now_us + TTL_US;
        let known = self.keys.get_mut(&anchor).filter(|key| key.expires_us > view.now_us);
        let host = match known {
            Some(key) if view.hosts.contains(&key.host) => {
                key.expires_us = expires_us;
                key.host
            }
            Some(_gone) => self.least_request(view.hosts),
            None => {
                let host = self.least_request(view.hosts);
                self.keys.insert(anchor, Key { host, expires_us });
                host
            }
        };
        if host >= self.requests.len() {
            self.requests.resize(host + 1, None);
        }
        *self.requests[host].get_or_insert(0) += 1;
        self.flights.insert(arrival.number, host);
        host
    }

    fn done(&mut self, number: usize, _cached_tokens: Option<u32>, _now_us: u64) {
        let Some(host) = self.flights.remove(&number) else { return };
        if let Some(Some(count)) = self.requests.get_mut(host) {
            *count = count.saturating_sub(1);
        }
    }
}
