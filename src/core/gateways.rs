//! Which other gateways are alive, and what do they have in flight?
//!
//! Each says so with every answer, and is taken to be alive until it has been silent for some time. Gateways are known by
//! their own numbers, not by where they were asked: two addresses that lead to the same one count it once.

use super::fleet::{Part, Peers};
use super::journal::Holding;

/// The most gateways that are kept: all that can be asked, each restarted within the time that it may be silent.
const MAX_OTHERS: usize = 128;

/// The gateways, as one of them sees them.
#[derive(Debug)]
pub struct Gateways {
    own: u64,
    silent_after_ms: u64,
    others: Vec<Other>,
}

/// What another gateway said last.
#[derive(Debug)]
struct Other {
    gateway: u64,
    said_ms: u64,
    in_flight: Vec<Holding>,
}

impl Gateways {
    /// The gateway `own`, which has heard nobody yet.
    pub fn new(own: u64, silent_after_ms: u64) -> Self {
        Self { own, silent_after_ms, others: Vec::new() }
    }

    /// A gateway has answered: what it has in flight, by this one's slots.
    pub fn hear(&mut self, gateway: u64, in_flight: Vec<Holding>, now_ms: u64) {
        if gateway == self.own {
            return;
        }
        self.others.retain(|other| other.gateway != gateway);
        if self.others.len() < MAX_OTHERS {
            self.others.push(Other { gateway, said_ms: now_ms, in_flight });
        }
    }

    /// Forgets those that have been silent for too long: what they had in flight has died with them.
    pub fn forget_silent(&mut self, now_ms: u64) {
        // A clock that was set back makes all of them silent, until their next answer.
        self.others.retain(|other| now_ms.abs_diff(other.said_ms) <= self.silent_after_ms);
    }

    /// What all others together have in flight, by slot.
    pub fn in_flight(&self) -> Vec<Peers> {
        let mut sums: Vec<Peers> = Vec::new();
        for holding in self.others.iter().flat_map(|other| &other.in_flight) {
            let place = usize::from(holding.slot.0);
            if sums.len() <= place {
                sums.resize(place + 1, Peers::default());
            }
            if let Some(sum) = sums.get_mut(place) {
                sum.requests = sum.requests.saturating_add(holding.requests);
                sum.prefill_tokens = sum.prefill_tokens.saturating_add(holding.prefill_tokens);
            }
        }
        sums
    }

    /// Which hosts this gateway fills first: its place among those that are alive, in the order of their numbers.
    pub fn part(&self) -> Part {
        let before = self.others.iter().filter(|other| other.gateway < self.own).count();
        Part { rank: before as u16, of: 1 + self.others.len() as u16 }
    }
}
