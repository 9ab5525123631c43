//! What would a decision have saved that was not carried out?
//!
//! In shadow mode Envoy's own policy chooses, and who got a request shows only when its response begins. By then the
//! queues are others, so what stood before the request on each host is kept from its decision on.

use super::fleet::Slot;

/// A decision that is not carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct Shadow {
    /// The host that would have had the request.
    pub chosen: Slot,
    /// Milliseconds that it would have stood behind others, on each host.
    pub standing_ms: Vec<(Slot, u32)>,
}

/// What the chosen host would have saved against the one that got the request. Negative where it would have cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Saving {
    /// Prompt tokens that need no prefill.
    pub tokens: i64,
    /// Milliseconds of standing behind others.
    pub standing_ms: i64,
}

impl Shadow {
    /// Compares with the host that got the request. `tokens` tells how much of the prompt a host holds; this request's
    /// own blocks must not count.
    pub fn saving(&self, got: Slot, tokens: impl Fn(Slot) -> u64) -> Saving {
        let standing =
            |slot: Slot| self.standing_ms.iter().find(|(host, _)| *host == slot).map(|(_, ms)| *ms);
        // A host that has joined or left since says nothing.
        let both = standing(self.chosen).zip(standing(got));
        Saving {
            tokens: tokens(self.chosen) as i64 - tokens(got) as i64,
            standing_ms: both.map_or(0, |(chosen, got)| i64::from(got) - i64::from(chosen)),
        }
    }
}
