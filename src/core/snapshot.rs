//! The fleet snapshot: what the polling leader writes and every worker reads, one value for all hosts.
//!
//! It carries all that the next leader needs to go on where this one stopped, so that a change of
//! leadership forgets neither clocks nor counters.

use super::adapters::{Adapters, MOST_ADAPTERS};
use super::config::Routing;
use super::fleet::{Fleet, Part, Polled, Slot};
use super::health::Health;
use super::learning::Keeps;
use super::life::Life;
use super::readiness::{Doubt, Models, Readiness, MOST_MODELS};
use super::tier::{Lookups, Tier};
use super::wire::{Reader, Writer};

/// Layout of the value.
const VERSION: u8 = 8;

/// What the leader knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The share of the fleet's load that neither this proxy nor a peer sent, 0 to 1, slowly averaged.
    pub foreign_share: f64,
    /// In the order of slots.
    pub hosts: Vec<Entry>,
    /// Which hosts this gateway fills first.
    pub part: Part,
    /// How misses are priced where requests are routed.
    pub tier: Tier,
}

/// What the leader knows of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its slot, and who had it then: a slot may change hands.
    pub slot: Slot,
    /// See [`Entry::slot`].
    pub address: String,
    /// What its engine said.
    pub polled: Polled,
    /// Its life as the leader sees it, and since when, in milliseconds of the wall clock.
    pub life: Life,
    /// See [`Entry::life`].
    pub since_ms: u64,
    /// Whether it has shown that it generates.
    pub readiness: Readiness,
}

impl Entry {
    /// A host of which nothing is known.
    fn new(slot: Slot, address: &str, life: Life) -> Self {
        let (polled, readiness) = Default::default();
        Self { slot, address: address.to_owned(), polled, life, since_ms: 0, readiness }
    }

    /// One that is not in the fleet.
    pub fn gone(address: &str) -> Self {
        Self::new(Slot::default(), address, Life::Gone)
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { foreign_share: 0.0, part: Part::ALL, tier: Routing::default().tier, hosts: Vec::new() }
    }
}

/// How fast the foreign share follows a poll: one part in fifty, half a minute at two polls a second.
const FOREIGN_GAIN: f64 = 0.02;

impl Snapshot {
    /// What is known of a host, if the snapshot has it.
    pub fn entry(&self, slot: Slot, address: &str) -> Option<&Entry> {
        self.hosts.iter().find(|entry| entry.slot == slot && entry.address == address)
    }

    /// Puts what an engine said in.
    pub fn put(&mut self, slot: Slot, address: &str, polled: Polled) {
        if let Some(entry) = self.entry_mut(slot, address) {
            entry.polled = polled;
        }
    }

    /// Takes the lives that `fleet`'s hosts have at this moment, and answers those that are new: the host, what its life
    /// was and what it is.
    pub fn settle_lives(&mut self, fleet: &Fleet, now_ms: u64) -> Vec<(String, Life, Life)> {
        let mut changes = Vec::new();
        for host in fleet.hosts() {
            let Some(entry) = self.entry_mut(host.slot, &host.address) else { continue };
            let life = Life::of(host, now_ms);
            let before = std::mem::replace(&mut entry.life, life);
            if !before.is_like(life) || entry.since_ms == 0 {
                entry.since_ms = now_ms;
            }
            if !before.is_like(life) {
                changes.push((entry.address.clone(), before, life));
            }
        }
        changes
    }

    /// What is known of a host, to be updated; nothing yet if it is new.
    pub fn entry_mut(&mut self, slot: Slot, address: &str) -> Option<&mut Entry> {
        let place = self.hosts.partition_point(|entry| entry.slot < slot);
        let known = self.hosts.get(place).filter(|entry| entry.slot == slot);
        if known.is_none_or(|entry| entry.address != address) {
            self.hosts.retain(|entry| entry.slot != slot);
            self.hosts.insert(place, Entry::new(slot, address, Life::Ready));
        }
        self.hosts.get_mut(place)
    }

    /// Drops hosts that are no longer in the fleet. Answers whether there were any.
    pub fn retain(&mut self, fleet: &Fleet) -> bool {
        let before = self.hosts.len();
        self.hosts.retain(|entry| fleet.host(entry.slot).is_some_and(|host| host.address == entry.address));
        self.hosts.len() < before
    }

    /// Takes a poll into account: what share of the requests on the host did neither we nor a peer send? An idle host
    /// says nothing about it.
    pub fn weigh_foreign(&mut self, polled: &Polled) {
        let requests = polled.running + polled.waiting;
        if requests >= 1.0 {
            let share = (1.0 - f64::from(polled.known_requests) / requests).clamp(0.0, 1.0);
            self.foreign_share += FOREIGN_GAIN * (share - self.foreign_share);
        }
    }

    /// Brings a worker's view of the fleet up to date.
    pub fn apply(&self, fleet: &mut Fleet) {
        for entry in &self.hosts {
            if let Some(host) = fleet.host_mut(entry.slot).filter(|host| host.address == entry.address) {
                // A generation came to its end: what failed before was another engine. One that stood still is the same.
                let is_same = host.readiness.doubt() == Some(Doubt::StoodStill);
                if entry.readiness.proven_ms() > host.readiness.proven_ms() && !is_same {
                    host.health = Health::default();
                }
                host.polled = entry.polled;
                host.readiness = entry.readiness;
            }
        }
        fleet.settle_away();
    }

    /// The value for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(VERSION);
        value.f64(self.foreign_share);
        value.u16(self.part.rank);
        value.u16(self.part.of);
        value.f64(self.tier.hit_ratio.unwrap_or(f64::NAN));
        value.f64(self.tier.fetch_share);
        value.u16(self.hosts.len() as u16);
        for Entry { slot, address, polled, life, since_ms, readiness } in &self.hosts {
            value.u16(slot.0);
            value.short_str(address);
            life.encode(&mut value);
            value.u64(*since_ms);
            readiness.encode(&mut value);
            value.u64(polled.at_ms);
            value.f64(polled.running);
            value.f64(polled.waiting);
            value.f64(polled.kv_usage);
            value.u64(polled.capacity_tokens);
            value.u64(polled.clock_tokens);
            value.f64(polled.counted_tokens);
            value.f64(polled.prompt_tokens);
            value.f64(polled.started_s);
            value.u32(polled.known_requests);
            value.u64(polled.own_sent_tokens);
            value.f64(polled.computed_tokens);
            value.f64(polled.computed_lately);
            value.f64(polled.expected_lately);
            value.f64(polled.keeps.share());
            value.f64(polled.lookups.queries);
            value.f64(polled.lookups.hits);
            value.f64(polled.lookups.queries_lately);
            value.f64(polled.lookups.hits_lately);
            value.u32(polled.failures);
            value.f64(polled.moves);
            value.u64(polled.moved_ms);
            value.u8(u8::from(polled.counts_steps));
            value.u8(u8::from(polled.asleep));
            value.u8(polled.adapters.iter().count() as u8);
            polled.adapters.iter().for_each(|adapter| value.u64(adapter));
            value.u8(polled.models.iter().count() as u8);
            polled.models.iter().for_each(|model| value.u64(model));
        }
        value.finish()
    }

    /// Reads the value; `None` if it is not one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = Reader::new(value, VERSION)?;
        let foreign_share = rest.f64()?.clamp(0.0, 1.0);
        let part = Part { rank: rest.u16()?, of: rest.u16()? };
        let tier =
            Tier { hit_ratio: Some(rest.f64()?).filter(|ratio| !ratio.is_nan()), fetch_share: rest.f64()? };
        let count = rest.u16()?;
        let mut hosts = Vec::new();
        for _ in 0..count {
            let slot = Slot(rest.u16()?);
            let address = rest.short_str()?.to_owned();
            let (life, since_ms) = (Life::decode(&mut rest)?, rest.u64()?);
            let readiness = Readiness::decode(&mut rest)?;
            let polled = Polled {
                at_ms: rest.u64()?,
                running: rest.f64()?,
                waiting: rest.f64()?,
                kv_usage: rest.f64()?,
                capacity_tokens: rest.u64()?,
                clock_tokens: rest.u64()?,
                counted_tokens: rest.f64()?,
                prompt_tokens: rest.f64()?,
                started_s: rest.f64()?,
                known_requests: rest.u32()?,
                own_sent_tokens: rest.u64()?,
                computed_tokens: rest.f64()?,
                computed_lately: rest.f64()?,
                expected_lately: rest.f64()?,
                keeps: Keeps::from_share(rest.f64()?),
                lookups: Lookups {
                    queries: rest.f64()?,
                    hits: rest.f64()?,
                    queries_lately: rest.f64()?,
                    hits_lately: rest.f64()?,
                },
                failures: rest.u32()?,
                moves: rest.f64()?,
                moved_ms: rest.u64()?,
                counts_steps: rest.u8()? != 0,
                asleep: rest.u8()? != 0,
                adapters: Adapters::from_digests(decode_digests::<MOST_ADAPTERS>(&mut rest)?.into_iter()),
                models: Models::from_digests(decode_digests::<MOST_MODELS>(&mut rest)?.into_iter()),
            };
            hosts.push(Entry { slot, address, polled, life, since_ms, readiness });
        }
        rest.is_empty().then_some(Self { foreign_share, part, tier, hosts })
    }
}

fn decode_digests<const MOST: usize>(rest: &mut Reader) -> Option<[u64; MOST]> {
    let mut digests = [0; MOST];
    let count = usize::from(rest.u8()?);
    for digest in digests.get_mut(..count)? {
        *digest = rest.u64()?;
    }
    Some(digests)
}
