//! Which loops learn from answers. What each does is in [`crate::core::learning`].

use super::{Refusal, Section};

/// The loops, each on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learning {
    /// How fast each host prefills, from the time to the first byte.
    pub prefill_rate: bool,
    /// How many bytes a token of each model has, from `usage.prompt_tokens`.
    pub bytes_per_token: bool,
    /// How long each host keeps prefixes, from cached tokens that it tells or counts.
    pub capacity: bool,
}

impl Default for Learning {
    fn default() -> Self {
        Self { prefill_rate: true, bytes_per_token: true, capacity: true }
    }
}

impl Learning {
    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let default = Self::default();
        let learning = Self {
            prefill_rate: section.flag("prefill_rate", default.prefill_rate)?,
            bytes_per_token: section.flag("bytes_per_token", default.bytes_per_token)?,
            capacity: section.flag("capacity", default.capacity)?,
        };
        section.finish()?;
        Ok(learning)
    }
}
