//! Shared data: one map for the whole process, with compare-and-swap.

use std::collections::BTreeMap;

use proxy_wasm::types::Status;

/// Keys, values, and the number each value was set with.
#[derive(Default)]
pub(crate) struct SharedData {
    values: BTreeMap<String, (Vec<u8>, u32)>,
    last_cas: u32,
}

impl SharedData {
    pub(crate) fn get(&self, key: &str) -> Option<(&[u8], u32)> {
        self.values.get(key).map(|(value, cas)| (value.as_slice(), *cas))
    }

    /// Sets a value if `cas` is the number of the present one, or zero. A key that does not exist has
    /// no number to compare, so there any `cas` sets it, as in Envoy.
    pub(crate) fn set(&mut self, key: &str, value: &[u8], cas: u32) -> Result<(), Status> {
        let present = self.get(key).map(|(_, present)| present);
        if cas != 0 && present.is_some_and(|present| present != cas) {
            return Err(Status::CasMismatch);
        }
        // Zero stands for "unconditional" and is never given out.
        self.last_cas = self.last_cas.checked_add(1).unwrap_or(1);
        let entry = (value.to_vec(), self.last_cas);
        self.values.insert(key.to_string(), entry);
        Ok(())
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.values.keys().cloned().collect()
    }
}
