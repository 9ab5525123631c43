//! Which slot is which host's? Agreed among all workers through one shared value.
//!
//! A slot bounds tables and metric names, which Envoy never forgets. A host keeps its slot for good, so
//! that a host that returns finds its numbers again; only when all [`MAX_HOSTS`] slots have been given out
//! does a new host take one whose host has left.

use super::config::MAX_HOSTS;
use super::fleet::Slot;
use super::wire::{Reader, Writer};

/// Layout of the value.
const VERSION: u8 = 1;

/// The address that each slot belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roster {
    addresses: Vec<String>,
}

impl Roster {
    /// Gives every host of `hosts` a slot. Answers whether anything changed.
    pub fn admit(&mut self, hosts: &[String]) -> bool {
        let mut changed = false;
        for host in hosts {
            if self.addresses.contains(host) {
                continue;
            }
            changed = true;
            if self.addresses.len() < MAX_HOSTS {
                self.addresses.push(host.clone());
            } else if let Some(left) = self.addresses.iter_mut().find(|address| !hosts.contains(address)) {
                host.clone_into(left);
            }
        }
        changed
    }

    /// The slot of a host that was admitted.
    pub fn slot(&self, host: &str) -> Option<Slot> {
        let place = self.addresses.iter().position(|address| address == host)?;
        Some(Slot(place as u16))
    }

    /// The value for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(VERSION);
        for address in &self.addresses {
            value.short_str(address);
        }
        value.finish()
    }

    /// Reads the value; `None` if it is not one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = Reader::new(value, VERSION)?;
        let mut addresses = Vec::new();
        while !rest.is_empty() {
            addresses.push(rest.short_str()?.to_owned());
        }
        Some(Self { addresses })
    }
}
