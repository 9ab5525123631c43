//! Does a host stand still, though it has work?
//!
//! An engine whose computing is stuck accepts requests, answers `/health` and `/metrics`, and often says there that
//! nothing runs and nothing waits: by load alone it is the best of all. What gives it away is that nothing comes of it:
//! no byte of any answer, to any worker, and no movement of its counters, for much longer than what stands there should
//! take, while others go on.
//!
//! # Why it takes so much evidence
//!
//! A host that is wrongly left out costs its cache. An answer in one piece gives no byte for minutes, a prompt of
//! 100,000 tokens for many seconds. So besides the bytes the engine itself must tell: that it has made no step since, or
//! that it has nothing to do; or it must have stopped telling anything. One that counts neither steps nor tokens is
//! judged only where a request is open whose answer would have come bit by bit; one that says that it is at work and does
//! not count its steps is not judged at all: for those there are Envoy's timeouts.

use super::fleet::Polled;

/// How many times longer than predicted is much longer: pace and queue are guessed.
const MUCH: f64 = 3.0;

/// By how much a host whose pace is not known yet may be slower than the configuration says.
const SLOWER: f64 = 3.0;

/// Polls in a row that must fail for an engine to have stopped telling: one is lost now and then.
const POLLS_FAILED: u32 = 2;

/// What one worker has open on a host: requests that an engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// When the oldest was sent, in milliseconds of the wall clock.
    pub since_ms: u64,
    /// The most prompt tokens that stood before the first byte of one of them.
    pub ahead_tokens: u64,
    /// Whether one would have given a byte as soon as its prefill was over, and has not.
    pub streams: bool,
}

/// A host with something open, at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    /// What is open there.
    pub open: Open,
    /// What its engine said.
    pub polled: &'a Polled,
    /// When it last gave a byte to any worker, or was last found out, in milliseconds of the wall clock.
    pub heard_ms: u64,
    /// Uncached prompt tokens that stand there now.
    pub queued_tokens: u64,
    /// Tokens a second that it was seen to prefill, if it was.
    pub pace: Option<f64>,
    /// Tokens a second that hosts prefill by the configuration.
    pub usual_pace: f64,
}

impl Sight<'_> {
    /// Since when nothing has come of it, in milliseconds of the wall clock.
    pub fn quiet_since_ms(&self) -> u64 {
        self.open.since_ms.max(self.heard_ms).max(self.polled.moved_ms)
    }

    /// Whether it stands still, and has for at least `least_ms`.
    pub fn is_still(&self, least_ms: u64, now_ms: u64) -> bool {
        let quiet_until_ms = self.quiet_until_ms(now_ms).unwrap_or(0).min(now_ms);
        quiet_until_ms.saturating_sub(self.quiet_since_ms()) >= least_ms.max(self.patience_ms())
    }

    /// Until when the engine's own word confirms that nothing comes of it. `None` where it does not.
    fn quiet_until_ms(&self, now_ms: u64) -> Option<u64> {
        let Polled { at_ms, running, waiting, counts_steps, moved_ms, failures, .. } = *self.polled;
        let says_idle = running + waiting == 0.0;
        match () {
            () if at_ms == 0 => None,
            () if failures >= POLLS_FAILED => (counts_steps || self.open.streams).then_some(now_ms),
            () if counts_steps => Some(at_ms),
            () => (says_idle && (moved_ms != 0 || self.open.streams)).then_some(at_ms),
        }
    }

    /// How long it may take until something comes, in milliseconds.
    fn patience_ms(&self) -> u64 {
        let tokens = self.queued_tokens.max(self.open.ahead_tokens) as f64;
        let pace = self.pace.unwrap_or(self.usual_pace / SLOWER).max(1.0);
        (1_000.0 * MUCH * tokens / pace) as u64
    }
}
