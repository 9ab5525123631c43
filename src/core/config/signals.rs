//! What is wanted of the fleet's size. How it becomes a number of replicas is in [`crate::core::signals`].

use super::{Refusal, Section};

/// Targets and bounds of the desired replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Signals {
    /// Requests that may wait at one replica: 5, as in the examples of vLLM's and llm-d's guides to HPA and KEDA.
    pub waiting_per_replica: f64,
    /// Seconds of prefill that may stand before a new request: 2, the first token's usual bound.
    pub backlog_s: f64,
    /// The share of its knee that a replica is loaded to: at 0.8 a queue of several servers is still short.
    pub knee_share: f64,
    /// Never fewer replicas.
    pub min_replicas: u32,
    /// Never more; 0 for no bound.
    pub max_replicas: u32,
    /// Seconds for which the highest recommendation stands: 300, as HPA's.
    pub window_s: u32,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            waiting_per_replica: 5.0,
            backlog_s: 2.0,
            knee_share: 0.8,
            min_replicas: 1,
            max_replicas: 0,
            window_s: 300,
        }
    }
}

impl Signals {
    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let default = Self::default();
        let signals = Self {
            waiting_per_replica: section.number(
                "waiting_per_replica",
                default.waiting_per_replica,
                0.1,
                1e4,
            )?,
            backlog_s: section.number("backlog_s", default.backlog_s, 0.01, 3_600.0)?,
            knee_share: section.number("knee_share", default.knee_share, 0.1, 1.0)?,
            min_replicas: section.whole("min_replicas", default.min_replicas as usize, 1, 10_000)? as u32,
            max_replicas: section.whole("max_replicas", default.max_replicas as usize, 0, 10_000)? as u32,
            window_s: section.whole("window_s", default.window_s as usize, 1, 86_400)? as u32,
        };
        if signals.max_replicas != 0 && signals.max_replicas < signals.min_replicas {
            return Err(
                section.refuse("max_replicas", "must not be below signals.min_replicas (0 is no bound)")
            );
        }
        section.finish()?;
        Ok(signals)
    }

    /// Never more replicas than this.
    pub fn most(&self) -> u32 {
        if self.max_replicas == 0 {
            u32::MAX
        } else {
            self.max_replicas
        }
    }
}
