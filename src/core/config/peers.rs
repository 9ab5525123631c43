//! The exchange with other gateways: whom to ask, how often, and what proves that one may.

use super::{Refusal, Section};
use std::fmt;
use std::hint::black_box;

/// The most gateways that are asked: each is a call in every interval.
const MAX_PEERS: usize = 64;

/// A secret's length: 16 hexadecimal digits are 64 bits, beyond guessing over a network; and headers have limits.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=256;

/// The exchange with other gateways.
#[derive(Debug, Clone, PartialEq)]
pub struct Peers {
    /// Name of the Envoy cluster whose endpoints are the gateways' control listeners. Empty where nobody is asked.
    pub cluster: String,
    /// The control listeners, spelled as Envoy prints them. This gateway's own may be among them.
    pub hosts: Vec<String>,
    /// What all gateways have in common.
    pub secret: Secret,
    /// Milliseconds between two askings of one peer. Placements could wait for a second: what is heard late costs a hit.
    /// But what others have in flight ages, and gateways that decide by old loads all choose the same idle hosts.
    /// More often than they tick they cannot ask.
    pub interval_ms: u64,
    /// Milliseconds after which asking counts as failed.
    pub timeout_ms: u64,
}

/// A secret, which nothing prints.
#[derive(Clone, PartialEq)]
pub struct Secret(String);

impl Peers {
    /// Milliseconds of silence after which a peer is taken to be dead: as long as an engine's answer counts by default, and
    /// never so short that one answer that is missed makes it so.
    pub fn silent_after_ms(&self) -> u64 {
        3_000.max(2 * self.interval_ms + self.timeout_ms)
    }

    /// Takes the section, if it is there. Whoever only serves the control listener asks nobody, so needs nothing but the
    /// secret.
    pub(super) fn take(root: &mut Section, control: bool) -> Result<Option<Self>, Refusal> {
        let is_there = root.has("peers");
        let mut section = root.section("peers")?;
        if !is_there {
            return Ok(None);
        }
        let (cluster, hosts) = if control && !section.has("hosts") {
            Default::default()
        } else {
            (section.required_text("cluster")?, section.hosts("hosts", MAX_PEERS)?)
        };
        let peers = Self {
            cluster,
            hosts,
            secret: Secret::take(&mut section)?,
            interval_ms: section.whole("interval_ms", 100, 50, 60_000)? as u64,
            timeout_ms: section.whole("timeout_ms", 500, 10, 60_000)? as u64,
        };
        section.finish()?;
        Ok(Some(peers))
    }
}

impl Secret {
    fn take(section: &mut Section) -> Result<Self, Refusal> {
        let secret = section.required_text("secret")?;
        if SECRET_BYTES.contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(secret));
        }
        Err(section.refuse("secret", "must be from 16 to 256 visible ASCII characters"))
    }

    /// The value of the `authorization` header.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether an `authorization` header has it. Takes as long for any that has its length.
    pub fn is_borne_by(&self, authorization: &[u8]) -> bool {
        let wanted = self.bearer();
        let differences = wanted.bytes().zip(authorization).fold(0, |seen, (a, b)| black_box(seen | (a ^ b)));
        differences == 0 && wanted.len() == authorization.len()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
