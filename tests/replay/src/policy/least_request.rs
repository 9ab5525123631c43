//! Least request: of two hosts drawn at random, the one with fewer own requests under way.
//!
//! Envoy's `LEAST_REQUEST` with equal weights, by its documentation: `choice_count` 2, drawn with repetition, the first
//! drawn wins a tie.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::{Arrival, View};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Envoy's `choice_count`.
const CHOICES: usize = 2;

/// One gateway's source of choices.
#[derive(Debug)]
pub struct LeastRequest {
    random: ChaCha8Rng,
}

impl LeastRequest {
    /// Draws from `random`.
    pub fn new(random: ChaCha8Rng) -> Self {
        Self { random }
    }
}

impl Router for LeastRequest {
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement {
        let drawn = [(); CHOICES].map(|()| view.hosts[self.random.random_range(0..view.hosts.len())]);
        let host = drawn.into_iter().min_by_key(|host| books.requests(*host)).unwrap_or(view.hosts[0]);
        Placement::unknown(host, arrival)
    }
}
