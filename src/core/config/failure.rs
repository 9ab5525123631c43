//! When a host is taken to have failed that has not said so.

use super::{Refusal, Section};

/// What is asked of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Milliseconds without a byte after which a host that has work may be taken to stand still, if that is also much
    /// longer than predicted ([`crate::core::wedge`]); 0: never.
    ///
    /// Engines pause for seconds at times (vLLM while it captures graphs for a new shape, loads an adapter, or its API
    /// server is starved), and every wrong verdict costs a cache. A client waits that long now and then, twice hardly.
    pub wedged_after_ms: u64,
}

impl Failure {
    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let wedged_after_ms = section.whole("wedged_after_ms", 10_000, 0, 600_000)? as u64;
        section.finish()?;
        Ok(Self { wedged_after_ms })
    }
}
