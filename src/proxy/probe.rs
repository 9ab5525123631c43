//! How does a host show that it generates? The leader asks it for a token, as the poller asks for metrics.
//!
//! Only hosts are asked of which nothing else tells that they have generated since their engine started: few, a few at a
//! time, each again after a while that grows. The request goes through the routed cluster with the destination header
//! naming the host, past every filter: it counts nowhere as traffic. `x-kvroute-probe: ready` marks it for the engine's
//! logs. What comes of it is judged in [`crate::core::probe`].

use super::host::{self, Buffer, Headers};
use super::stats::OrCount;
use super::worker::Worker;
use crate::core::config::{Config, Ready};
use crate::core::fleet::Slot;
use crate::core::probe::{self, Failure};
use crate::core::readiness::Doubt;
use crate::core::scrape::EngineSample;
use crate::core::snapshot::{Entry, Snapshot};

/// Hosts that are asked at the same time at most, and hosts that are asked at one tick.
const MOST_AT_ONCE: usize = 8;
const MOST_A_TICK: usize = 2;

/// The longest wait until a host is asked again, in milliseconds, unless the interval is longer: an engine that has loaded
/// in a minute may be idle for so long at most.
const LONGEST_WAIT_MS: u64 = 5_000;

/// How often the wait doubles: beyond the longest in any case.
const MOST_DOUBLINGS: u32 = 8;

/// Bytes of an answer that are read. One token's is under a kilobyte.
const MAX_ANSWER: usize = 64 << 10;

/// The longest name of a model that is put into a body, in bytes.
const MAX_MODEL: usize = 512;

/// The hosts that are asked.
#[derive(Debug, Default)]
pub struct Probes {
    hosts: Vec<Asked>,
    /// Whether the log has been told that engines want a key.
    told_of_key: bool,
}

/// A host that is asked, or whose model is known.
#[derive(Debug)]
struct Asked {
    slot: Slot,
    address: String,
    /// The model that its engine names.
    model: Option<String>,
    /// What is under way.
    token: Option<u32>,
    /// When it may be asked again, in milliseconds of the wall clock.
    next_ms: u64,
    /// How often it failed in a row, and succeeded.
    failures: u32,
    successes: u32,
}

impl Probes {
    /// Asks whoever is due.
    pub fn tick(&mut self, worker: &Worker, config: &Config, snapshot: &mut Snapshot, now_ms: u64) {
        if !config.ready.probe {
            return;
        }
        let fleet = worker.router.fleet();
        self.hosts.retain(|host| fleet.host(host.slot).is_some_and(|known| known.address == host.address));
        let doubtful = snapshot.hosts.iter().filter(|entry| is_to_be_asked(entry, &config.ready));
        let doubtful: Vec<(Slot, String)> =
            doubtful.map(|entry| (entry.slot, entry.address.clone())).collect();
        let under_way = self.hosts.iter().filter(|host| host.token.is_some()).count();
        let mut room = MOST_AT_ONCE.saturating_sub(under_way).min(MOST_A_TICK);
        for (slot, address) in doubtful {
            let Some(host) = self.host(slot, &address).filter(|host| host.is_due(now_ms)) else { continue };
            if room == 0 {
                break;
            }
            room -= 1;
            let destination = (config.destination_header.as_str(), address.as_str());
            let body = probe::body(&config.ready, host.model.as_deref());
            host.token = ask(&config.cluster, destination, &config.ready, &body);
            if host.token.is_none() {
                self.ended(worker, config, snapshot, (slot, &address), Err(Failure::Refused), now_ms);
            }
        }
    }

    /// An answer to a call that this root made. Says whether it was one of these.
    pub fn answered(
        &mut self,
        worker: &Worker,
        config: &Config,
        snapshot: &mut Snapshot,
        token: u32,
        body_size: usize,
        now_ms: u64,
    ) -> bool {
        let Some(host) = self.hosts.iter_mut().find(|host| host.token == Some(token)) else { return false };
        host.token = None;
        let (slot, address) = (host.slot, host.address.clone());
        let status = host::status(Headers::CallResponse).or_count().unwrap_or(0);
        let body = host::buffer(Buffer::CallResponseBody, 0, body_size.min(MAX_ANSWER)).or_count();
        let outcome = probe::judge(status, &body.unwrap_or_default());
        self.ended(worker, config, snapshot, (slot, &address), outcome, now_ms);
        true
    }

    /// An engine answered a poll: which model it serves, and whether it has just turned up.
    pub fn heard(&mut self, (slot, address): (Slot, &str), sample: &EngineSample, turned_up: bool) {
        let Some(host) = self.host(slot, address) else { return };
        let model = sample.models.first().filter(|model| model.len() <= MAX_MODEL);
        if host.model.as_ref() != model {
            host.model = model.cloned();
        }
        if turned_up {
            (host.next_ms, host.failures, host.successes) = (0, 0, 0);
        }
    }

    /// Whether a host is being asked: its engine may count that request.
    pub fn is_asking(&self, slot: Slot) -> bool {
        self.hosts.iter().any(|host| host.slot == slot && host.token.is_some())
    }

    fn host(&mut self, slot: Slot, address: &str) -> Option<&mut Asked> {
        let is_it = |host: &Asked| host.slot == slot && host.address == address;
        if !self.hosts.iter().any(is_it) {
            let (address, model, token) = (address.to_owned(), None, None);
            self.hosts.push(Asked { slot, address, model, token, next_ms: 0, failures: 0, successes: 0 });
        }
        self.hosts.iter_mut().find(|host| is_it(host))
    }

    fn ended(
        &mut self,
        worker: &Worker,
        config: &Config,
        snapshot: &mut Snapshot,
        place: (Slot, &str),
        outcome: Result<(), Failure>,
        now_ms: u64,
    ) {
        worker.stats.probed(outcome.err());
        let Some(host) = self.host(place.0, place.1) else { return };
        host.wait(&config.ready, outcome.is_ok(), now_ms);
        match outcome {
            Ok(()) if host.successes < config.ready.successes => {}
            Ok(()) => snapshot.asked(place, Ok(()), &config.warm_up, now_ms),
            Err(Failure::Key) => {
                snapshot.asked(place, Ok(()), &config.warm_up, now_ms);
                if !std::mem::replace(&mut self.told_of_key, true) {
                    log::warn!(
                        "kvroute: {} wants a key for {}: taken to be ready without having generated; set ready.headers",
                        place.1,
                        config.ready.path
                    );
                }
            }
            Err(why) => {
                // Once when it begins: a host that stays so must not fill the log.
                if host.failures == 1 {
                    log::info!("kvroute: {} is not ready, {} failed: {why}", place.1, config.ready.path);
                }
                snapshot.asked(place, Err(why.doubt(&config.ready)), &config.warm_up, now_ms);
            }
        }
    }
}

impl Asked {
    fn is_due(&self, now_ms: u64) -> bool {
        // Nobody waits for longer than a minute: the clock was set back.
        let waits_ms = self.next_ms.saturating_sub(now_ms);
        self.token.is_none() && (waits_ms == 0 || waits_ms > 60_000)
    }

    fn wait(&mut self, ready: &Ready, succeeded: bool, now_ms: u64) {
        if succeeded {
            (self.failures, self.successes) = (0, self.successes + 1);
        } else {
            (self.failures, self.successes) = (self.failures.saturating_add(1), 0);
        }
        let doublings = self.failures.saturating_sub(1).min(MOST_DOUBLINGS);
        let longest_ms = LONGEST_WAIT_MS.max(ready.interval_ms);
        self.next_ms = now_ms + (ready.interval_ms << doublings).min(longest_ms);
    }
}

/// Whether a host is to be asked: not one that sleeps, for it would let the request hang, and not one whose metrics say
/// that it serves another model than it should.
fn is_to_be_asked(entry: &Entry, ready: &Ready) -> bool {
    let doubt = entry.readiness.doubt().filter(|_| !entry.polled.asleep);
    doubt.is_some_and(|doubt| doubt != Doubt::OtherModel || ready.model.is_none())
}

fn ask(cluster: &str, destination: (&str, &str), ready: &Ready, body: &str) -> Option<u32> {
    let mut headers = vec![("content-type", "application/json"), ("x-kvroute-probe", "ready")];
    headers.extend(ready.headers.0.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    host::post(cluster, destination, &ready.path, &headers, body, ready.timeout_ms).or_count()
}
