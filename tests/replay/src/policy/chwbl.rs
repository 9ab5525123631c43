//! CHWBL: consistent hashing with bounded loads.
//!
//! KubeAI (`internal/loadbalancer/balance_chwbl.go`, read autumn 2026): from the key's place on a ring, the first host
//! whose own requests, this one included, are at most 1.25 times the mean. If there is none, as is usual with less
//! than one request a host, the first of all. KubeAI's key is the first 100 characters of the first user message;
//! here it is the anchor.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::rendezvous::{claim, mix};
use super::{Arrival, View};

/// Points of a host on the ring: KubeAI's `replication`.
const REPLICAS: u64 = 256;

/// KubeAI's `meanLoadPercentage` of 125.
const LOAD_FACTOR: f64 = 1.25;

/// One gateway's ring.
#[derive(Debug, Default)]
pub struct Chwbl {
    /// Point and host, by point.
    ring: Vec<(u64, usize)>,
    hosts: Vec<usize>,
}

impl Router for Chwbl {
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement {
        if self.hosts != view.hosts {
            self.build(view.hosts);
        }
        let total: u32 = view.hosts.iter().map(|host| books.requests(*host)).sum();
        let bound = LOAD_FACTOR * f64::from(total + 1) / view.hosts.len() as f64;
        let fits = |host: usize| total == 0 || f64::from(books.requests(host) + 1) <= bound;
        let key = mix(arrival.request.anchor);
        let begin = self.ring.partition_point(|(point, _)| *point < key) % self.ring.len();
        let first = self.ring[begin].1;
        // Where nobody fits, there is no need to walk the whole ring to know.
        let host = if view.hosts.iter().any(|host| fits(*host)) {
            let mut walk = self.ring[begin..].iter().chain(&self.ring[..begin]).map(|(_, host)| *host);
            walk.find(|host| fits(*host)).unwrap_or(first)
        } else {
            first
        };
        Placement::unknown(host, arrival)
    }
}

impl Chwbl {
    fn build(&mut self, hosts: &[usize]) {
        self.hosts = hosts.to_vec();
        self.ring.clear();
        for &host in hosts {
            self.ring.extend((0..REPLICAS).map(|replica| (claim(replica, host), host)));
        }
        self.ring.sort_unstable();
    }
}
