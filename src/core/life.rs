//! May this host have requests, and if not, why not?
//!
//! Each host has one life at a moment, told from what is known of it: its mark, its engine's last answer, and how its
//! last requests ended. Whoever reads a status or a log sees the reason in words.

use super::fleet::Host;

/// What a host is fit for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It takes requests.
    Ready,
    /// Its last requests failed: it is left out until then, and then tried with one.
    Suspect {
        /// Milliseconds of the wall clock.
        until_ms: u64,
    },
    /// It is marked to go: no new requests, unless there is nobody else.
    Draining {
        /// When it was marked, in milliseconds of the wall clock; 0 if the configuration says so.
        since_ms: u64,
    },
    /// Its engine sleeps: it would take requests and let them hang.
    Sleeping,
}

impl Life {
    /// The life of a host.
    pub fn of(host: &Host, now_ms: u64) -> Self {
        if host.polled.asleep {
            Self::Sleeping
        } else if let Some(since_ms) = host.draining_since_ms {
            Self::Draining { since_ms }
        } else if host.health.is_suspect(now_ms) {
            Self::Suspect { until_ms: host.health.suspect_until_ms() }
        } else {
            Self::Ready
        }
    }

    /// Its name in status and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Life::Ready => "ready",
            Life::Suspect { .. } => "suspect",
            Life::Draining { .. } => "draining",
            Life::Sleeping => "sleeping",
        }
    }

    /// How much is lost by sending it a request: hosts of the least are named, others only where there are none. `None`
    /// if it is better to leave the request to Envoy.
    pub fn resort(self) -> Option<u8> {
        match self {
            Life::Ready => Some(0),
            // Better a try than none.
            Life::Suspect { .. } => Some(1),
            // It still serves: an error for a client would be worse than a host that goes later.
            Life::Draining { .. } => Some(2),
            Life::Sleeping => None,
        }
    }
}
