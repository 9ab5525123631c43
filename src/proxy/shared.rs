//! What lies in shared data, under which keys? The only code that touches it.
//!
//! Shared data is one map for all workers behind one lock: a read costs 2 us, a write 0.2 us, and no key
//! can ever be deleted. So there are few keys, bounded in number, and none is touched on a request's path:
//!
//! | key | value |
//! | --- | --- |
//! | `kvroute/1/roster` | which slot is which host's, for all clusters |
//! | `kvroute/1/fleet/<cluster>` | the fleet snapshot of the polling leader |
//! | `kvroute/1/leader/<cluster>` | who polls, and until when |
//! | `kvroute/1/generation/<cluster>` | number of the newest configuration |
//! | `kvroute/1/worker/<cluster>/<n>` | what worker n has placed and has in flight |
//! | `kvroute/1/gateway` | the number of this process among gateways |
//! | `kvroute/1/peers/<cluster>` | what this gateway tells others |
//! | `kvroute/1/drains/<cluster>` | which hosts are marked to go |
//! | `kvroute/1/members/<cluster>` | which hosts there are, where that is discovered |
//! | `kvroute/1/signals/<cluster>` | how long the queue is, and how many replicas it would take |
//! | `kvroute/1/heard/<cluster>` | what others told this gateway, for its workers |
//!
//! Istio gives all wasm plugins one namespace: hence the prefix. The 1 is the layout's version: shared data
//! outlives a code update.

use super::host;
use super::stats::OrCount;
use crate::core::drains::Drains;
use crate::core::fleet::Slot;
use crate::core::journal::read_bulletin;
use crate::core::members::Members;
use crate::core::roster::{Before, Roster};
use crate::core::signals::Signals;
use crate::core::snapshot::Snapshot;
use crate::core::status::Workers;
use crate::core::wire::{Reader, Writer};

/// Workers that can take part, Envoy's main thread included. More than that route, but do not share.
pub const MAX_WORKERS: usize = 256;

/// Which slot is which host's.
const ROSTER: &str = "kvroute/1/roster";

/// How often a write that lost against another is tried again before it is given up until the next tick.
const ATTEMPTS: usize = 8;

/// Layout of the small values.
const VERSION: u8 = 1;

/// Who polls, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The configuration's generation: a newer one takes over from an older one.
    pub generation: u64,
    /// The worker.
    pub holder: u64,
    /// Milliseconds of the wall clock.
    pub until_ms: u64,
}

/// A cluster's values.
#[derive(Debug)]
pub struct Shared {
    fleet: String,
    leader: String,
    generation: String,
    worker: String,
    journal: String,
    heard: String,
    drains: String,
    members: String,
    signals: String,
}

impl Shared {
    /// The values of `cluster`.
    pub fn of(cluster: &str) -> Self {
        Self {
            fleet: format!("kvroute/1/fleet/{cluster}"),
            leader: format!("kvroute/1/leader/{cluster}"),
            generation: format!("kvroute/1/generation/{cluster}"),
            worker: format!("kvroute/1/worker/{cluster}/"),
            journal: format!("kvroute/1/peers/{cluster}"),
            heard: format!("kvroute/1/heard/{cluster}"),
            drains: format!("kvroute/1/drains/{cluster}"),
            members: format!("kvroute/1/members/{cluster}"),
            signals: format!("kvroute/1/signals/{cluster}"),
        }
    }

    /// Gives the hosts of a cluster their slots, together with all other workers; see [`Roster::admit`].
    pub fn admit(
        cluster: &str,
        hosts: &[String],
        now_ms: u64,
        mut hand_over: impl FnMut(Slot) -> Before,
    ) -> Roster {
        Self::change_roster(|roster| roster.admit(cluster, hosts, now_ms, &mut hand_over))
    }

    /// Frees the slots of hosts that have left the cluster; see [`Roster::free`].
    pub fn free(cluster: &str, now_ms: u64, mut is_idle: impl FnMut(Slot) -> bool) -> Roster {
        Self::change_roster(|roster| roster.free(cluster, now_ms, &mut is_idle))
    }

    fn change_roster(mut change: impl FnMut(&mut Roster) -> bool) -> Roster {
        let mut roster = Roster::default();
        for _ in 0..ATTEMPTS {
            let Some((found, cas)) = read_or_create(ROSTER) else {
                // Slots that others do not know of are better than no hosts.
                change(&mut roster);
                break;
            };
            roster = Roster::decode(&found).unwrap_or_default();
            if !change(&mut roster) || set_if_unchanged(ROSTER, &roster.encode(), cas) != Some(false) {
                break;
            }
        }
        roster
    }

    /// Which slot is which host's.
    pub fn roster() -> Roster {
        read(ROSTER).and_then(|(value, _)| Roster::decode(&value)).unwrap_or_default()
    }

    /// Which hosts there are, if somebody has found out.
    pub fn members(&self) -> Option<Members> {
        Members::decode(&read(&self.members)?.0)
    }

    /// The same, unless the list is the one with this digest.
    pub fn new_members(&self, known: Option<u64>) -> Option<(u64, Members)> {
        let (value, _) = read(&self.members)?;
        let list = Members::list(&value).filter(|list| Some(*list) != known)?;
        Some((list, Members::decode(&value)?))
    }

    /// Publishes which hosts there are, or that nobody looks any more. Only the leader does.
    pub fn publish_members(&self, members: Option<&Members>) {
        let value = members.map(Members::encode).unwrap_or_default();
        host::set_shared(&self.members, &value, None).or_count();
    }

    /// The number of this process among gateways: the first to ask chooses, a random one. `None` if others kept winning
    /// or Envoy refuses; try again at the next tick.
    pub fn gateway(drawn: u64) -> Option<u64> {
        const KEY: &str = "kvroute/1/gateway";
        for _ in 0..ATTEMPTS {
            let (found, cas) = read_or_create(KEY)?;
            let known = Reader::new(&found, VERSION).and_then(|mut value| value.u64());
            if known.is_some() {
                return known;
            }
            let mut value = Writer::new(VERSION);
            value.u64(drawn);
            set_if_unchanged(KEY, &value.finish(), cas)?;
        }
        None
    }

    /// What this gateway tells others, if any of its workers has published it.
    pub fn journal(&self) -> Option<Vec<u8>> {
        Some(read(&self.journal)?.0)
    }

    /// Publishes what this gateway tells others. Only the leader does.
    pub fn publish_journal(&self, value: &[u8]) {
        host::set_shared(&self.journal, value, None).or_count();
    }

    /// What others told this gateway, if they did.
    pub fn heard(&self) -> Option<Vec<u8>> {
        Some(read(&self.heard)?.0)
    }

    /// Publishes what others told this gateway. Only the leader does.
    pub fn publish_heard(&self, value: &[u8]) {
        host::set_shared(&self.heard, value, None).or_count();
    }

    /// Which hosts are marked to go.
    pub fn drains(&self) -> Drains {
        read(&self.drains).and_then(|(value, _)| Drains::decode(&value)).unwrap_or_default()
    }

    /// Changes the marks; answers how they are then. `None` if others kept winning or Envoy refuses.
    pub fn change_drains(&self, mut change: impl FnMut(&mut Drains) -> bool) -> Option<Drains> {
        for _ in 0..ATTEMPTS {
            let (found, cas) = read_or_create(&self.drains)?;
            let mut drains = Drains::decode(&found).unwrap_or_default();
            if !change(&mut drains) || set_if_unchanged(&self.drains, &drains.encode(), cas)? {
                return Some(drains);
            }
        }
        None
    }

    /// The signals, if any worker has published them.
    pub fn signals(&self) -> Option<Signals> {
        Signals::decode(&read(&self.signals)?.0)
    }

    /// Publishes the signals. Only the leader does, once there are any.
    pub fn publish_signals(&self, signals: &Signals) {
        host::set_shared(&self.signals, &signals.encode(), None).or_count();
    }

    /// The snapshot, if there is one.
    pub fn snapshot(&self) -> Option<Snapshot> {
        Snapshot::decode(&read(&self.fleet)?.0)
    }

    /// Publishes the snapshot. Only the leader does.
    pub fn publish_snapshot(&self, snapshot: &Snapshot) {
        host::set_shared(&self.fleet, &snapshot.encode(), None).or_count();
    }

    /// The generation of the configuration with this fingerprint: the newest one's if it is that, else a
    /// new number. `None` if others kept winning or Envoy refuses; try again at the next tick.
    pub fn generation(&self, fingerprint: u64) -> Option<u64> {
        for _ in 0..ATTEMPTS {
            let (found, cas) = read_or_create(&self.generation)?;
            let known = Reader::new(&found, VERSION).and_then(|mut value| Some((value.u64()?, value.u64()?)));
            let number = match known {
                Some((number, newest)) if newest == fingerprint => return Some(number),
                Some((number, _)) => number + 1,
                None => 1,
            };
            let mut value = Writer::new(VERSION);
            value.u64(number);
            value.u64(fingerprint);
            if set_if_unchanged(&self.generation, &value.finish(), cas)? {
                return Some(number);
            }
        }
        None
    }

    /// The lease as it stands, and the number to replace it with [`Shared::take_lease`]. `None` if Envoy refuses.
    pub fn lease(&self) -> Option<(Option<Lease>, u32)> {
        let (found, cas) = read_or_create(&self.leader)?;
        let lease = Reader::new(&found, VERSION).and_then(|mut value| {
            Some(Lease { generation: value.u64()?, holder: value.u64()?, until_ms: value.u64()? })
        });
        Some((lease, cas))
    }

    /// Takes or renews the lease, unless somebody else was faster.
    pub fn take_lease(&self, lease: Lease, cas: u32) -> bool {
        let mut value = Writer::new(VERSION);
        value.u64(lease.generation);
        value.u64(lease.holder);
        value.u64(lease.until_ms);
        set_if_unchanged(&self.leader, &value.finish(), cas) == Some(true)
    }

    /// What worker `n` has published. `None` if no worker ever had that number.
    pub fn worker(&self, n: usize) -> Option<(Vec<u8>, u32)> {
        read(&self.worker_key(n))
    }

    /// The workers that live: not silent for `dead_after_ms`.
    pub fn workers(&self, dead_after_ms: u64, now_ms: u64) -> Workers {
        let values = (0..MAX_WORKERS).map_while(|n| self.worker(n));
        let heartbeats = values.filter_map(|(value, _)| Some(read_bulletin(&value)?.at_ms));
        Workers::of(heartbeats, dead_after_ms, now_ms)
    }

    /// Takes the first number that no living worker has: never used, or silent since `silent_before_ms`.
    pub fn claim_worker(&self, value: &[u8], silent_before_ms: u64) -> Option<usize> {
        for n in 0..MAX_WORKERS {
            let key = self.worker_key(n);
            let (found, cas) = read_or_create(&key)?;
            let alive = read_bulletin(&found).is_some_and(|bulletin| bulletin.at_ms >= silent_before_ms);
            if !alive && set_if_unchanged(&key, value, cas)? {
                return Some(n);
            }
        }
        None
    }

    /// Publishes for worker `n`, unless somebody else has taken the number since it was read.
    pub fn publish_worker(&self, n: usize, value: &[u8], cas: u32) {
        set_if_unchanged(&self.worker_key(n), value, cas);
    }

    fn worker_key(&self, n: usize) -> String {
        format!("{}{n}", self.worker)
    }
}

/// Reads a value that shall be replaced only by who read it, so that there is something to replace: a key
/// that does not exist is created empty. `None` if Envoy refuses.
fn read_or_create(key: &str) -> Option<(Vec<u8>, u32)> {
    // No value has this number, so a key that exists by now is left alone; Envoy checks numbers only there.
    const IF_ABSENT: u32 = u32::MAX;
    if let Some(found) = host::shared(key).or_count()? {
        return Some(found);
    }
    set_if_unchanged(key, &[], IF_ABSENT)?;
    read(key)
}

/// Reads a value, if there is one and Envoy gives it.
// One copy for all values: each would be two hundred bytes of wasm more.
#[inline(never)]
fn read(key: &str) -> Option<(Vec<u8>, u32)> {
    host::shared(key).or_count().flatten()
}

/// Whether a value was still the one with this number, and has been replaced. `None` if Envoy refuses.
fn set_if_unchanged(key: &str, value: &[u8], cas: u32) -> Option<bool> {
    host::set_shared(key, value, Some(cas)).or_count()
}
