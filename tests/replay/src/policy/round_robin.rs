//! Round robin: hosts in turn, whatever they do.
//!
//! Envoy's `ROUND_ROBIN` with equal weights, by its documentation. Each gateway begins somewhere else, as Envoy's
//! workers do.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::{Arrival, View};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// One gateway's turn.
#[derive(Debug)]
pub struct RoundRobin {
    next: usize,
}

impl RoundRobin {
    /// Begins somewhere.
    pub fn new(mut random: ChaCha8Rng) -> Self {
        Self { next: random.random_range(0..1 << 20) }
    }
}

impl Router for RoundRobin {
    fn route(&mut self, arrival: &Arrival, view: &View, _books: &Books) -> Placement {
        let host = view.hosts[self.next % view.hosts.len()];
        self.next += 1;
        Placement::unknown(host, arrival)
    }
}
