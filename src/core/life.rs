//! May this host have requests, and if not, why not?
//!
//! Each host has one life at a moment, told from what is known of it: its mark, its engine's last answer, and how its
//! last requests ended. Whoever reads a status or a log sees the reason in words.

use super::drains::{Mark, Marker};
use super::fleet::Host;
use super::health::Why;
use super::members::{Standing, Unhealthy};
use super::wire::{Reader, Writer};

/// In a shared value, what is held against a suspect host is added to this.
const SUSPECT: u8 = 128;

/// What a host is fit for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It takes requests.
    Ready,
    /// Envoy says that it can do less than others: it is used where there are none.
    Degraded,
    /// Envoy would not send it requests, for a reason.
    Unhealthy(Unhealthy),
    /// Its last requests failed: it is left out until then, and then tried with one.
    Suspect {
        /// Milliseconds of the wall clock.
        until_ms: u64,
        /// What is held against it.
        why: Why,
    },
    /// It is marked to go: no new requests, unless there is nobody else.
    Draining(Mark),
    /// Its engine sleeps: it would take requests and let them hang.
    Sleeping,
    /// It is not one of the cluster's hosts.
    Gone,
}

impl Life {
    /// The life of a host.
    pub fn of(host: &Host, now_ms: u64) -> Self {
        if host.polled.asleep {
            Self::Sleeping
        } else if let Standing::Unhealthy(why) = host.envoy.standing {
            Self::Unhealthy(why)
        } else if let Some(mark) = host.marked {
            Self::Draining(mark)
        } else if host.health.is_suspect(now_ms) {
            let seen = host.health.standing();
            Self::Suspect { until_ms: seen.until_ms, why: seen.why }
        } else if host.envoy.standing == Standing::Degraded {
            Self::Degraded
        } else {
            Self::Ready
        }
    }

    /// Its name in status and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Life::Ready => "ready",
            Life::Degraded => "degraded",
            Life::Unhealthy(_) => "unhealthy",
            Life::Suspect { .. } => "suspect",
            Life::Draining(_) => "draining",
            Life::Sleeping => "sleeping",
            Life::Gone => "gone",
        }
    }

    /// Why, in words.
    pub fn reason(self) -> &'static str {
        match self {
            Life::Ready => "it serves",
            Life::Degraded => "Envoy says that it is degraded",
            Life::Unhealthy(why) => why.as_str(),
            Life::Suspect { why, .. } => why.as_str(),
            Life::Draining(mark) => mark.by.as_str(),
            Life::Sleeping => "its engine says that it sleeps",
            Life::Gone => "it is not one of the cluster's hosts",
        }
    }

    /// How much is lost by sending it a request: hosts of the least are named, others only where there are none. `None`
    /// if it is better to leave the request to Envoy.
    pub fn resort(self) -> Option<u8> {
        match self {
            Life::Ready => Some(0),
            // It serves, if less well.
            Life::Degraded => Some(1),
            // Better a try than none.
            Life::Suspect { .. } => Some(2),
            // It still serves: an error for a client would be worse than a host that goes later.
            Life::Draining(_) => Some(3),
            Life::Sleeping | Life::Unhealthy(_) | Life::Gone => None,
        }
    }

    /// Whether it is the same, but for when it ends.
    pub fn is_like(self, other: Life) -> bool {
        self.as_str() == other.as_str() && self.reason() == other.reason()
    }

    /// Writes it into a value.
    pub fn encode(self, value: &mut Writer) {
        let (tag, number) = match self {
            Life::Ready => (0, 0),
            Life::Suspect { until_ms, why } => (SUSPECT + why.code(), until_ms),
            Life::Draining(Mark { since_ms, by: Marker::Configuration }) => (2, since_ms),
            Life::Draining(Mark { since_ms, by: Marker::Request }) => (3, since_ms),
            Life::Sleeping => (4, 0),
            Life::Gone => (5, 0),
            Life::Draining(Mark { since_ms, by: Marker::Envoy }) => (20, since_ms),
            Life::Degraded => (21, 0),
            Life::Unhealthy(why) => (22, why.code()),
        };
        value.u8(tag);
        value.u64(number);
    }

    /// Reads it from one.
    pub fn decode(value: &mut Reader) -> Option<Self> {
        let (tag, number) = (value.u8()?, value.u64()?);
        let draining = |by| Life::Draining(Mark { since_ms: number, by });
        Some(match tag {
            0 => Life::Ready,
            2 => draining(Marker::Configuration),
            3 => draining(Marker::Request),
            4 => Life::Sleeping,
            5 => Life::Gone,
            20 => draining(Marker::Envoy),
            21 => Life::Degraded,
            22 => Life::Unhealthy(Unhealthy::from_code(number)?),
            _ => Life::Suspect { until_ms: number, why: Why::from_code(tag.checked_sub(SUSPECT)?)? },
        })
    }
}
