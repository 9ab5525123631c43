//! Which slot is which host's? Agreed among all workers through one shared value.
//!
//! A slot bounds tables and metric names, which Envoy never forgets. A host has its slot while it is in its cluster, and
//! afterwards until nothing of it can be under way: seconds later, when its last stream has ended ([`Roster::free`]). One
//! that returns before that finds its slot again. Clusters share the slots, and each frees only what is its own.

use super::blocks::digest;
use super::config::MAX_HOSTS;
use super::fleet::Slot;
use super::wire::{Reader, Writer};

/// Layout of the value.
const VERSION: u8 = 2;

/// Milliseconds for which a host that has left keeps its slot at least: as long as a worker may be silent before it is
/// taken to be dead. By then all know that it has left, and have told what they sent there.
const KEPT_MS: u64 = 10_000;

/// Who has each slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roster {
    seats: Vec<Option<Seat>>,
}

/// A slot that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seat {
    /// Digests: names may be long, and nobody needs to spell them.
    cluster: u64,
    host: u64,
    /// When the host left, in milliseconds of the wall clock; 0 while it is there.
    left_ms: u64,
    before: Before,
}

/// What a slot's counters said when its host took it: they never fall, and others had the slot before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Before {
    /// Uncached prompt tokens sent.
    pub sent_tokens: u64,
    /// Cold prompts placed.
    pub cold_placed: u64,
}

impl Roster {
    /// Gives every host of `hosts` a slot, as long as there are any, and notes which of the cluster's have left.
    /// `hand_over` is asked what the counters of a slot say that changes hands. Answers whether anything changed.
    pub fn admit(
        &mut self,
        cluster: &str,
        hosts: &[String],
        now_ms: u64,
        mut hand_over: impl FnMut(Slot) -> Before,
    ) -> bool {
        let cluster = digest(cluster.as_bytes());
        let hosts: Vec<u64> = hosts.iter().map(|host| digest(host.as_bytes())).collect();
        let mut changed = false;
        for seat in self.seats.iter_mut().flatten().filter(|seat| seat.cluster == cluster) {
            let has_left = !hosts.contains(&seat.host);
            if has_left != (seat.left_ms != 0) {
                seat.left_ms = if has_left { now_ms.max(1) } else { 0 };
                changed = true;
            }
        }
        for host in hosts {
            if self.find(cluster, host).is_none() {
                let Some(slot) = self.free_slot() else { break };
                let seat = Seat { cluster, host, left_ms: 0, before: hand_over(slot) };
                self.seats.get_mut(usize::from(slot.0)).map(|free| free.insert(seat));
                changed = true;
            }
        }
        changed
    }

    /// Frees the slots of hosts that have left the cluster and have nothing in flight, as `is_idle` says. Answers whether
    /// there were any.
    pub fn free(&mut self, cluster: &str, now_ms: u64, mut is_idle: impl FnMut(Slot) -> bool) -> bool {
        let cluster = digest(cluster.as_bytes());
        let mut changed = false;
        for (place, taken) in self.seats.iter_mut().enumerate() {
            let left = taken.filter(|seat| seat.cluster == cluster && seat.left_ms != 0);
            // A clock that was set back must not keep them for as long.
            let is_over = left.is_some_and(|seat| now_ms.abs_diff(seat.left_ms) >= KEPT_MS);
            if is_over && is_idle(Slot(place as u16)) {
                *taken = None;
                changed = true;
            }
        }
        changed
    }

    /// The slots of hosts that have left the cluster.
    pub fn left(&self, cluster: &str) -> Vec<Slot> {
        let cluster = digest(cluster.as_bytes());
        let has_left = |seat: &Seat| seat.cluster == cluster && seat.left_ms != 0;
        let places = self.seats.iter().enumerate();
        places.filter(|(_, seat)| seat.as_ref().is_some_and(has_left)).map(|(n, _)| Slot(n as u16)).collect()
    }

    /// The slot of a host, if it has one, there or not.
    pub fn slot(&self, cluster: &str, host: &str) -> Option<Slot> {
        self.find(digest(cluster.as_bytes()), digest(host.as_bytes()))
    }

    /// What a slot's counters said before its host had it.
    pub fn before(&self, slot: Slot) -> Before {
        let seat = self.seats.get(usize::from(slot.0)).copied().flatten();
        seat.map(|seat| seat.before).unwrap_or_default()
    }

    fn find(&self, cluster: u64, host: u64) -> Option<Slot> {
        let is_it = |seat: &Seat| seat.cluster == cluster && seat.host == host;
        let place = self.seats.iter().position(|seat| seat.as_ref().is_some_and(is_it))?;
        Some(Slot(place as u16))
    }

    fn free_slot(&mut self) -> Option<Slot> {
        let free = self.seats.iter().position(Option::is_none).unwrap_or(self.seats.len());
        if free == self.seats.len() && free < MAX_HOSTS {
            self.seats.push(None);
        }
        (free < self.seats.len()).then_some(Slot(free as u16))
    }

    /// The value for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(VERSION);
        for taken in &self.seats {
            value.u8(u8::from(taken.is_some()));
            if let Some(Seat { cluster, host, left_ms, before }) = *taken {
                let fields = [cluster, host, left_ms, before.sent_tokens, before.cold_placed];
                fields.into_iter().for_each(|field| value.u64(field));
            }
        }
        value.finish()
    }

    /// Reads the value; `None` if it is not one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = Reader::new(value, VERSION)?;
        let mut seats = Vec::new();
        while !rest.is_empty() {
            let is_taken = rest.u8()? != 0;
            seats.push(if is_taken {
                let [cluster, host, left_ms] = [rest.u64()?, rest.u64()?, rest.u64()?];
                let before = Before { sent_tokens: rest.u64()?, cold_placed: rest.u64()? };
                Some(Seat { cluster, host, left_ms, before })
            } else {
                None
            });
        }
        (seats.len() <= MAX_HOSTS).then_some(Self { seats })
    }
}
