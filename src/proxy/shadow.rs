//! What is learned of a request that Envoy's own policy sends on?
//!
//! In shadow mode a request is decided like any other, but no header is set and no book opened: who got it shows only
//! when its response begins. Then it is compared with the host that would have had it, and taken into the books of
//! the one that has it, so that the index holds what is true.

use super::reading::Reading;
use super::worker::Worker;
use crate::core::fleet::Slot;
use crate::core::route::Decision;
use crate::core::shadow;

/// A decision that is not carried out, until it shows who got the request.
pub struct Shadow {
    decision: Decision,
    /// Nothing where no host was chosen.
    kept: Option<shadow::Shadow>,
}

impl Shadow {
    /// Keeps what must be known then.
    pub fn new(decision: Decision, worker: &Worker, now_ms: u64) -> Self {
        let kept = worker.router.shadow(&decision, now_ms);
        Self { decision, kept }
    }

    /// A host got the request, and answered it. To be called before the prompt is remembered for that host.
    pub fn settle(self, stream: u32, got: Slot, reading: Option<&Reading>, worker: &mut Worker, now_ms: u64) {
        let (router, stats) = (&worker.router, &worker.stats);
        let bytes = reading.map_or(0, Reading::prompt_bytes);
        let matched = |slot: Slot| reading.map_or(0, |reading| reading.walk.matched(slot)).min(bytes);
        let tokens = |bytes: u64| reading.map_or(0, |reading| router.tokens(bytes, &reading.prompt));
        if let Some(kept) = &self.kept {
            let saving = kept.saving(got, |slot| tokens(matched(slot)));
            stats.shadow_requests.add(1);
            stats.shadow_agreed.add(u64::from(kept.chosen == got));
            stats.shadow_saved_tokens.add(saving.tokens.max(0).unsigned_abs());
            stats.shadow_lost_tokens.add(saving.tokens.min(0).unsigned_abs());
            stats.shadow_avoided_ms.add(saving.standing_ms.max(0).unsigned_abs());
            stats.shadow_added_ms.add(saving.standing_ms.min(0).unsigned_abs());
        }
        stats.prompt_bytes.add(bytes);
        stats.matched_bytes.add(matched(got));
        let uncached_tokens =
            reading.map_or(self.decision.uncached_tokens, |_| tokens(bytes.saturating_sub(matched(got))));
        let placed = Decision { hosts: vec![got], uncached_tokens, spared_tokens: 0, ..self.decision };
        let change = worker.router.commit(stream, &placed, now_ms);
        worker.apply(change);
    }
}
