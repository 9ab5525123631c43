//! Which hosts are marked to go, and since when? One shared value, written by whoever is told to, read by all workers.

use super::config::MAX_HOSTS;
use super::wire::{Reader, Writer};

/// Layout of the value.
const VERSION: u8 = 1;

/// The marks, by address: a mark outlives a configuration update, and waits for a host that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drains {
    marks: Vec<(String, u64)>,
}

impl Drains {
    /// Marks a host at `now_ms`, if it is not marked. Answers whether anything changed.
    pub fn mark(&mut self, address: &str, now_ms: u64) -> bool {
        if self.since_ms(address).is_some() {
            return false;
        }
        // The oldest mark of all is of a host that is long gone.
        if self.marks.len() >= MAX_HOSTS {
            self.marks.remove(0);
        }
        self.marks.push((address.to_owned(), now_ms));
        true
    }

    /// Takes a host's mark away. Answers whether it had one.
    pub fn unmark(&mut self, address: &str) -> bool {
        let before = self.marks.len();
        self.marks.retain(|(marked, _)| marked != address);
        self.marks.len() < before
    }

    /// When a host was marked, in milliseconds of the wall clock.
    pub fn since_ms(&self, address: &str) -> Option<u64> {
        self.marks.iter().find(|(marked, _)| marked == address).map(|(_, since_ms)| *since_ms)
    }

    /// The value for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(VERSION);
        for (address, since_ms) in &self.marks {
            value.short_str(address);
            value.u64(*since_ms);
        }
        value.finish()
    }

    /// Reads the value; `None` if it is not one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = Reader::new(value, VERSION)?;
        let mut marks = Vec::new();
        while !rest.is_empty() {
            marks.push((rest.short_str()?.to_owned(), rest.u64()?));
        }
        Some(Self { marks })
    }
}
