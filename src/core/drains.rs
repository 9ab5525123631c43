//! Which hosts are marked to go, and since when? One shared value, written by whoever is told to, read by all workers.

use super::config::MAX_HOSTS;
use super::wire::{Reader, Writer};

/// Layout of the value.
const VERSION: u8 = 1;

/// A host's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// When it was made, in milliseconds of the wall clock; 0 if it always was there.
    pub since_ms: u64,
    /// Who made it.
    pub by: Marker,
}

/// Who marked a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// Its configuration names it under `drain`.
    Configuration,
    /// A request to the control listener.
    Request,
    /// Envoy: EDS says that it drains, or has it no more.
    Envoy,
}

impl Marker {
    /// As a reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Marker::Configuration => "the configuration says that it is to go",
            Marker::Request => "it was told to drain",
            Marker::Envoy => "Envoy says that it is to go",
        }
    }
}

/// The marks, by address: a mark outlives a configuration update, and waits for a host that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drains {
    marks: Vec<(String, u64)>,
}

impl Drains {
    /// Marks a host at `now_ms`, if it is not marked. Answers whether anything changed.
    pub fn mark(&mut self, address: &str, now_ms: u64) -> bool {
        if self.of(address).is_some() {
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

    /// The mark of a host.
    pub fn of(&self, address: &str) -> Option<Mark> {
        let found = self.marks.iter().find(|(marked, _)| marked == address);
        found.map(|(_, since_ms)| Mark { since_ms: *since_ms, by: Marker::Request })
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
