//! Least loaded: of all hosts, the one with the fewest requests, own ones and, by polls, others'.
//!
//! No product's policy but the best that can be done by load alone, and so the reference where no prompt is shared.

use super::books::Books;
use super::gateways::{Placement, Router};
use super::least::least;
use super::{Arrival, View};
use rand_chacha::ChaCha8Rng;

/// One gateway's source of ties.
#[derive(Debug)]
pub struct LeastLoaded {
    random: ChaCha8Rng,
}

impl LeastLoaded {
    /// Draws ties from `random`.
    pub fn new(random: ChaCha8Rng) -> Self {
        Self { random }
    }
}

impl Router for LeastLoaded {
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement {
        let load = |host| books.requests(host) + books.foreign(host);
        Placement::unknown(least(view.hosts, &mut self.random, load), arrival)
    }
}
