//! How often the filter called the host, and how much was copied for it.

use std::collections::{BTreeMap, BTreeSet};

/// Host calls and copied bytes, counted since the proxy started or between two moments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    calls: BTreeMap<&'static str, u64>,
    copied: BTreeMap<&'static str, u64>,
}

impl Traffic {
    /// How often the filter called one host function, by its ABI name.
    pub fn calls(&self, function: &str) -> u64 {
        self.calls.get(function).copied().unwrap_or_default()
    }

    /// Every host function that the filter called, by its ABI name.
    pub fn functions(&self) -> BTreeSet<&'static str> {
        self.calls.keys().copied().collect()
    }

    /// How often the filter called any host function.
    pub fn all_calls(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Reads and writes of shared data, each of which takes a lock on the whole process.
    pub fn shared_data_operations(&self) -> u64 {
        self.calls("proxy_get_shared_data") + self.calls("proxy_set_shared_data")
    }

    /// Bytes copied into the VM, by what they are: `request_body`, `response_body`, `call_body`,
    /// `configuration`, `headers`, `property` or `shared_data`.
    pub fn copied(&self, what: &str) -> u64 {
        self.copied.get(what).copied().unwrap_or_default()
    }

    /// What came on top of `earlier`.
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        let less = |now: &BTreeMap<&'static str, u64>, then: &BTreeMap<&'static str, u64>| {
            now.iter()
                .map(|(key, count)| (*key, count - then.get(key).copied().unwrap_or_default()))
                .filter(|(_, count)| *count > 0)
                .collect()
        };
        Traffic { calls: less(&self.calls, &earlier.calls), copied: less(&self.copied, &earlier.copied) }
    }

    pub(crate) fn count_call(&mut self, function: &'static str) {
        *self.calls.entry(function).or_default() += 1;
    }

    pub(crate) fn count_copied(&mut self, what: &'static str, bytes: usize) {
        *self.copied.entry(what).or_default() += bytes as u64;
    }
}
