//! Do the gauges agree with the workers' books? What to correct where they do not.
//!
//! What is in flight on a host is summed in gauges, to which each worker adds and from which it takes. A worker whose
//! VM traps takes nothing any more, and what it began or ended since it last published is known to nobody. So the
//! leader compares the gauges with the sum of all living workers' books. Books are a tick old and the two differ a
//! little all the time; a difference that keeps its sign for five seconds is a leak, and the least that it was is
//! taken off.

use super::fleet::Slot;
use super::router::Change;

/// How long a difference must last, in milliseconds: a hundred ticks, in which requests begin and end.
const PATIENCE_MS: u64 = 5_000;

/// Requests and prefill tokens of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Requests.
    pub requests: i64,
    /// Uncached prompt tokens without a first byte.
    pub prefill_tokens: i64,
}

/// The differences that are being watched, by slot.
#[derive(Debug, Default)]
pub struct Audit {
    slots: Vec<(Slot, Watched, Watched)>,
}

/// A difference with the sign it has kept.
#[derive(Debug, Clone, Copy, Default)]
struct Watched {
    since_ms: u64,
    least: i64,
}

impl Audit {
    /// Compares one host's gauges with the books, and answers what is to be added to the gauges.
    pub fn compare(&mut self, slot: Slot, gauges: InFlight, books: InFlight, now_ms: u64) -> Option<Change> {
        let place = self.slots.iter().position(|(watched, _, _)| *watched == slot).unwrap_or_else(|| {
            self.slots.push((slot, Watched::default(), Watched::default()));
            self.slots.len() - 1
        });
        let (_, requests, tokens) = self.slots.get_mut(place)?;
        let change = Change {
            slot,
            requests: -requests.leak(gauges.requests - books.requests, now_ms),
            prefill_tokens: -tokens.leak(gauges.prefill_tokens - books.prefill_tokens, now_ms),
            ..Change::default()
        };
        (change.requests != 0 || change.prefill_tokens != 0).then_some(change)
    }
}

impl Watched {
    /// The leak that has been proved by now; 0 if none.
    fn leak(&mut self, difference: i64, now_ms: u64) -> i64 {
        if difference.signum() != self.least.signum() {
            *self = Self { since_ms: now_ms, least: difference };
        } else if difference.abs() < self.least.abs() {
            self.least = difference;
        }
        if self.least == 0 || now_ms.saturating_sub(self.since_ms) < PATIENCE_MS {
            return 0;
        }
        std::mem::take(&mut self.least)
    }
}
