//! How are the engines polled? By one worker, the leader, for all.
//!
//! `GET /metrics` goes through the routed cluster itself, with the destination header naming the host, so
//! that no further cluster is needed. Polls are spread over the interval. What comes back, or fails to,
//! goes into one snapshot that every worker reads at its tick.
//!
//! Envoy answers for an engine that does not: 503 where it cannot connect, 504 when the time is up. A host
//! that fails keeps its last answer until that is stale; then it is unknown, neither idle nor full.

use super::host::{self, Buffer, Headers};
use super::probe::Probes;
use super::shared::Lease;
use super::stats::{OrCount, PollFailure};
use super::worker::Worker;
use crate::core::blocks::digest;
use crate::core::config::Config;
use crate::core::fleet::{Own, Part, Polled, Slot};
use crate::core::scrape::engine::MAX_BODY_BYTES;
use crate::core::scrape::{read_engine, EngineSample};
use crate::core::snapshot::Snapshot;

/// Milliseconds for which the lease is taken: a leader that is gone is replaced within this time.
const LEASE_MS: u64 = 2_000;

/// Milliseconds for which a root of an older configuration leaves an expired lease to newer ones. An update
/// may be refused after it took a number; then somebody old must go on.
const OLD_WAITS_MS: u64 = 5_000;

/// One root's part in polling.
#[derive(Debug)]
pub struct Poller {
    /// Equal for equal configurations: all VMs that load one take part in one generation.
    fingerprint: u64,
    generation: Option<u64>,
    /// What is known of the hosts, while leading.
    leading: Option<Leading>,
}

#[derive(Debug, Default)]
struct Leading {
    snapshot: Snapshot,
    /// Whether the snapshot has news.
    news: bool,
    under_way: Vec<Call>,
    /// What this proxy had on each host at the last tick.
    own: Vec<(Slot, Own)>,
    /// The round in which each host was polled last.
    rounds: Vec<(Slot, u64)>,
    /// Who is asked for a generation.
    probes: Probes,
}

/// A poll that has not been answered.
#[derive(Debug)]
struct Call {
    token: u32,
    slot: Slot,
    address: String,
    /// What this proxy had on the host a tick before it was sent: engines count a request that has ended until
    /// their next step.
    own: Own,
}

impl Poller {
    /// The part of a root with this configuration, as Envoy handed it over.
    pub fn new(configuration: &[u8]) -> Self {
        Self { fingerprint: digest(configuration), generation: None, leading: None }
    }

    /// Takes or keeps the lead if it can, and polls whoever is due. `part` is for the snapshot, once it is known.
    pub fn tick(&mut self, worker: &mut Worker, config: &Config, part: Option<Part>, now_ms: u64) {
        if !self.holds_lease(worker, now_ms) {
            self.leading = None;
            return;
        }
        let leading = self.leading.get_or_insert_with(|| Leading {
            // Go on where the last leader stopped.
            snapshot: worker.shared.snapshot().unwrap_or_default(),
            ..Leading::default()
        });
        let part = part.unwrap_or(leading.snapshot.part);
        leading.news |= std::mem::replace(&mut leading.snapshot.part, part) != part;
        let tier = config.routing.tier;
        leading.news |= std::mem::replace(&mut leading.snapshot.tier, tier) != tier;
        worker.audit(now_ms);
        worker.free_slots(now_ms);
        leading.poll_due(worker, config, now_ms);
        leading.settle_readiness(worker, config, now_ms);
        leading.settle_lives(worker, now_ms);
        leading.own = worker.router.fleet().hosts().iter().map(|host| (host.slot, host.own)).collect();
        leading.news |= leading.snapshot.retain(worker.router.fleet());
        if std::mem::take(&mut leading.news) {
            worker.shared.publish_snapshot(&leading.snapshot);
        }
    }

    /// Whether this root did what only one does for all, at its last tick.
    pub fn leads(&self) -> bool {
        self.leading.is_some()
    }

    fn holds_lease(&mut self, worker: &Worker, now_ms: u64) -> bool {
        if self.generation.is_none() {
            self.generation = worker.shared.generation(self.fingerprint);
        }
        let Some(generation) = self.generation else {
            return false;
        };
        let Some((lease, cas)) = worker.shared.lease() else {
            return false;
        };
        let mine = Lease { generation, holder: worker.id, until_ms: now_ms + LEASE_MS };
        let Some(lease) = lease else {
            return worker.shared.take_lease(mine, cas);
        };
        // Nobody takes one for longer: the clock was set back, or the value is garbage.
        let is_possible = lease.until_ms <= now_ms + 2 * LEASE_MS;
        let is_mine = lease.holder == mine.holder && lease.generation == generation;
        if is_mine && is_possible && lease.until_ms > now_ms + LEASE_MS / 2 {
            return true;
        }
        let grace = if lease.generation > generation { OLD_WAITS_MS } else { 0 };
        let is_free =
            is_mine || !is_possible || lease.generation < generation || lease.until_ms + grace < now_ms;
        is_free && worker.shared.take_lease(mine, cas)
    }

    /// An answer to a call that this root made.
    pub fn answered(
        &mut self,
        worker: &mut Worker,
        config: &Config,
        token: u32,
        body_size: usize,
        now_ms: u64,
    ) {
        let Some(leading) = &mut self.leading else {
            return;
        };
        let Some(place) = leading.under_way.iter().position(|call| call.token == token) else {
            let Leading { probes, snapshot, news, .. } = leading;
            *news |= probes.answered(worker, config, snapshot, token, body_size, now_ms);
            return;
        };
        let call = leading.under_way.swap_remove(place);
        // The host has left meanwhile, and its slot may be another's.
        if worker.router.fleet().host(call.slot).is_none_or(|host| host.address != call.address) {
            return;
        }
        let (own, peers) = worker.known(call.slot);
        match outcome(body_size) {
            Ok(sample) => {
                worker.stats.polls_ok.add(1);
                let told = peers.requests.saturating_add(u32::from(leading.probes.is_asking(call.slot)));
                let polled = leading.known(&call).after(&sample, &call.own, &own, told, now_ms);
                leading.heard(&call, &sample, &polled, config);
                leading.snapshot.weigh_foreign(&polled);
                leading.learned(&call, polled);
            }
            Err(why) => leading.failed(worker, config, &call, why),
        }
    }
}

impl Leading {
    /// Who has to show that it generates is asked.
    fn settle_readiness(&mut self, worker: &Worker, config: &Config, now_ms: u64) {
        self.snapshot.settle_readiness(worker.router.fleet(), config, now_ms);
        if config.ready.probe {
            self.snapshot.doubt_still(worker.router.fleet(), now_ms);
        }
        self.probes.tick(worker, config, &mut self.snapshot, now_ms);
    }

    /// What an answered poll says of a host's readiness.
    fn heard(&mut self, call: &Call, sample: &EngineSample, polled: &Polled, config: &Config) {
        let place = (call.slot, call.address.as_str());
        let turned_up = self.snapshot.heard(place, sample, polled, config);
        self.probes.heard(place, sample, turned_up);
    }

    /// Tells the log whose life has changed, and why.
    fn settle_lives(&mut self, worker: &Worker, now_ms: u64) {
        for (address, before, life) in self.snapshot.settle_lives(worker.router.fleet(), now_ms) {
            let (before, name, why) = (before.as_str(), life.as_str(), life.reason());
            log::info!("kvroute: {address} was {before}, is {name}: {why}");
            self.news = true;
        }
    }

    fn poll_due(&mut self, worker: &mut Worker, config: &Config, now_ms: u64) {
        let hosts: Vec<(Slot, String)> =
            worker.router.fleet().hosts().iter().map(|host| (host.slot, host.address.clone())).collect();
        let (interval_ms, count) = (config.poll.interval_ms, hosts.len() as u64);
        for (n, (slot, address)) in hosts.into_iter().enumerate() {
            // Each host has its own moment in the interval, so that polls do not come in bursts. Rounds are
            // counted on the wall clock: a new leader goes on in the old one's.
            let round = (now_ms + interval_ms * n as u64 / count) / interval_ms;
            if self.is_due(slot, round) {
                self.poll(worker, config, slot, address);
            }
        }
    }

    /// Whether a host has not been polled in this round and has no poll under way.
    fn is_due(&mut self, slot: Slot, round: u64) -> bool {
        if self.under_way.iter().any(|call| call.slot == slot) {
            return false;
        }
        match self.rounds.iter_mut().find(|(polled, _)| *polled == slot) {
            Some((_, last)) => std::mem::replace(last, round) != round,
            None => {
                self.rounds.push((slot, round));
                true
            }
        }
    }

    fn poll(&mut self, worker: &mut Worker, config: &Config, slot: Slot, address: String) {
        let earlier = self.own.iter().find(|(there, _)| *there == slot).map(|(_, own)| *own);
        let own = earlier.unwrap_or_else(|| worker.known(slot).0);
        let destination = (config.destination_header.as_str(), address.as_str());
        let more = ("accept", "text/plain");
        let token = host::get(&config.cluster, destination, &config.poll.path, more, config.poll.timeout_ms);
        match token.or_count() {
            Some(token) => self.under_way.push(Call { token, slot, address, own }),
            None => self.failed(worker, config, &Call { token: 0, slot, address, own }, PollFailure::Refused),
        }
    }

    fn known(&self, call: &Call) -> Polled {
        self.snapshot.entry(call.slot, &call.address).map(|entry| entry.polled).unwrap_or_default()
    }

    fn learned(&mut self, call: &Call, polled: Polled) {
        self.snapshot.put(call.slot, &call.address, polled);
        self.news = true;
    }

    fn failed(&mut self, worker: &Worker, config: &Config, call: &Call, why: PollFailure) {
        worker.stats.poll_failed(why);
        let polled = self.known(call).after_failure();
        if why == PollFailure::Status(503) {
            self.snapshot.refused((call.slot, &call.address));
        }
        // Once when it begins: a host that stays away must not fill the log.
        if polled.failures == 1 {
            log::warn!("kvroute: poll of {} at {} failed: {why}", call.address, config.poll.path);
        }
        self.learned(call, polled);
    }
}

/// What the answer says, or why it says nothing. To be called inside the answer's callback.
fn outcome(body_size: usize) -> Result<EngineSample, PollFailure> {
    let status = host::status(Headers::CallResponse).or_count().unwrap_or(0);
    if status != 200 {
        return Err(PollFailure::Status(status));
    }
    let body = host::buffer(Buffer::CallResponseBody, 0, body_size.min(MAX_BODY_BYTES + 1)).or_count();
    read_engine(&body.unwrap_or_default()).map_err(PollFailure::Content)
}
