//! What does this VM know of a cluster? One [`Worker`] for each, shared by all its streams.
//!
//! It outlives configurations: a new root of the same cluster in the same VM finds the index of the old.
//! Here the core meets the gauges and the journal; what is decided is decided in
//! [`crate::core::router`].

use super::host;
use super::shared::Shared;
use super::stats::{OrCount, SlotGauges, Stats};
use crate::core::audit::{Audit, InFlight};
use crate::core::config::Config;
use crate::core::fleet::{Own, Peers, Slot};
use crate::core::health::{Seen, Sign, Why};
use crate::core::journal::{read_bulletin, Bulletin, Holding as Books, Inbox, Placement};
use crate::core::members::Members;
use crate::core::peers::Outgoing;
use crate::core::route::Decision;
use crate::core::router::{Change, Router};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;

/// Milliseconds of silence after which a worker is taken to be dead. Envoy's own watchdog calls a thread
/// that is stuck for 0.2 s a miss; ten seconds is a trapped VM.
pub const DEAD_AFTER_MS: u64 = 10_000;

/// Values of other workers that are read in a tick: each takes 2 us under a lock that all share. With more workers,
/// each hears the others that much more rarely.
const WORKERS_HEARD_A_TICK: u64 = 32;

/// Nanoseconds for which a reading of the gauges stays good, for each host. This worker's own requests are always
/// counted at once; what a reading brings is the other workers'. Reading takes three calls a host, five with peers, so that at most a
/// hundredth of a worker goes into it, and a reading is never older than a tick.
const GAUGES_GOOD_NS_PER_HOST: u64 = 250_000;

/// Milliseconds between two looks whether slots can be freed.
const FREED_EVERY_MS: u64 = 1_000;

/// Ticks between two tries to get slots for hosts that found none.
const ADMITTED_EVERY_TICKS: u64 = 20;

/// How many requests must have been resumed without a body ever having come, before holding is given up.
const RESCUES_BEFORE_GIVING_UP: u32 = 3;

/// Milliseconds after which a held request without a body is suspicious. Long for a client on a slow line,
/// which is why one such request proves nothing.
const HELD_TOO_LONG_MS: u64 = 1_000;

/// A cluster as this VM knows it.
pub struct Worker {
    /// The core.
    pub router: Router,
    /// The fixed metrics.
    pub stats: Stats,
    /// The cluster's values in shared data.
    pub shared: Rc<Shared>,
    /// Tells this VM from all others.
    pub id: u64,
    /// Hosts that the configuration marks to go.
    drain: Vec<String>,
    cluster: String,
    /// Its hosts, as configured or as discovered; more than have a slot only while all are taken.
    hosts: Vec<String>,
    /// Whether they are discovered.
    discovers: bool,
    /// The digest of the list that was discovered last.
    list: Option<u64>,
    /// Slots of hosts that have left; `None` before the first look, and when some may have.
    left: Option<Vec<Slot>>,
    freed_ms: u64,
    /// What this gateway's workers placed, for other gateways: collected by the leader.
    pub outgoing: Option<Outgoing>,
    /// How far this worker's own placements have been collected.
    collected: Inbox,
    /// How far what other gateways placed has been read, if there are any.
    heard: Option<Inbox>,
    /// The hosts' metrics.
    pub gauges: SlotGauges,
    gauges_read_ns: u64,
    /// This worker's number in shared data, once it has one.
    number: Option<usize>,
    inboxes: Vec<Inbox>,
    /// What all living workers have in flight, as they last said.
    books: Vec<Books>,
    /// What all other living workers have against hosts, as they last said.
    seen: Vec<(Slot, Seen)>,
    audit: Audit,
    ticked_ms: u64,
    ticks: u64,
    hear_every: u64,
    /// Requests whose headers are held and whose body has not begun, with when they came.
    held: Vec<(u32, u64)>,
    /// Requests that wait for more of their body, though a small buffer is full, with when the last piece came.
    waiting: Vec<(u32, u64)>,
    told_of_stall: bool,
    told_of_slots: bool,
    holding: Holding,
}

/// Whether request headers can be held while the body comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holding {
    /// Not known yet; so many requests had to be resumed without a body.
    Untried(u32),
    /// It has worked once.
    Works,
    /// `allow_on_headers_stop_iteration` is not set: the body does not come while headers are held.
    GivenUp,
}

thread_local! {
    static WORKERS: RefCell<Vec<(String, Rc<RefCell<Worker>>)>> = const { RefCell::new(Vec::new()) };
}

impl Worker {
    /// The worker of a cluster in this VM, with the newest settings.
    pub fn of(config: &Config) -> Rc<RefCell<Worker>> {
        let worker = WORKERS.with_borrow_mut(|workers| {
            // A cluster that no root has any more is forgotten with all that was learned of it.
            workers.retain(|(cluster, worker)| *cluster == config.cluster || Rc::strong_count(worker) > 1);
            let found = workers.iter().find(|(cluster, _)| *cluster == config.cluster);
            if let Some((_, worker)) = found {
                return Rc::clone(worker);
            }
            let worker = Rc::new(RefCell::new(Worker::new(config)));
            workers.push((config.cluster.clone(), Rc::clone(&worker)));
            worker
        });
        worker.borrow_mut().configure(config);
        worker
    }

    fn new(config: &Config) -> Self {
        Self {
            router: Router::new(config),
            stats: Stats::new(),
            shared: Rc::new(Shared::of(&config.cluster)),
            id: RandomState::new().build_hasher().finish(),
            drain: Vec::new(),
            cluster: config.cluster.clone(),
            hosts: Vec::new(),
            discovers: false,
            list: None,
            left: None,
            freed_ms: 0,
            outgoing: None,
            collected: Inbox::default(),
            heard: None,
            gauges: SlotGauges::default(),
            gauges_read_ns: 0,
            number: None,
            inboxes: Vec::new(),
            books: Vec::new(),
            seen: Vec::new(),
            audit: Audit::default(),
            ticked_ms: 0,
            ticks: 0,
            hear_every: 1,
            held: Vec::new(),
            waiting: Vec::new(),
            told_of_stall: false,
            told_of_slots: false,
            holding: Holding::Untried(0),
        }
    }

    fn configure(&mut self, config: &Config) {
        self.discovers = config.discover.is_some();
        let discovered = if self.discovers { self.shared.new_members(None) } else { None };
        let (list, members) = discovered.unzip();
        self.list = list;
        self.hosts = members.as_ref().map_or_else(|| config.hosts.clone(), addresses);
        let hosts = self.admit();
        self.router.configure(config, &hosts);
        self.router.settle_members(members.as_ref());
        // What is known already counts from the first request on.
        if let Some(snapshot) = self.shared.snapshot() {
            self.router.apply(&snapshot);
        }
        self.drain.clone_from(&config.drain);
        self.router.settle_drains(&self.drain, &self.shared.drains());
        self.heard = config.peers.as_ref().map(|_| self.heard.take().unwrap_or_default());
        self.gauges.keep_peers(config.peers.is_some());
        self.read_gauges();
    }

    /// The hosts that have a slot.
    fn admit(&mut self) -> Vec<(String, Slot)> {
        self.left = None;
        let gauges = &mut self.gauges;
        let roster = Shared::admit(&self.cluster, &self.hosts, now_ms(), |slot| gauges.hand_over(slot));
        let slot = |host: &String| Some((host.clone(), roster.slot(&self.cluster, host)?));
        let hosts: Vec<(String, Slot)> = self.hosts.iter().filter_map(slot).collect();
        for (_, slot) in &hosts {
            self.gauges.begins_at(*slot, roster.before(*slot));
        }
        hosts
    }

    /// Takes over which hosts there are, where that is discovered and has changed.
    pub fn follow_members(&mut self) {
        let discovered = if self.discovers { self.shared.new_members(self.list) } else { None };
        let Some((list, members)) = discovered else { return };
        self.list = Some(list);
        let hosts = addresses(&members);
        // An opinion may change where the list does not.
        if hosts != self.hosts {
            self.hosts = hosts;
            self.assign();
        }
        self.router.settle_members(Some(&members));
    }

    fn assign(&mut self) {
        let hosts = self.admit();
        self.router.assign(&hosts);
        self.read_gauges();
    }

    /// Says once in the log that hosts are left without a slot.
    fn tell_of_slots(&mut self) {
        let short = self.hosts.len().saturating_sub(self.router.fleet().hosts().len());
        if short > 0 && !std::mem::replace(&mut self.told_of_slots, true) {
            log::warn!(
                "kvroute: {short} hosts of {} get nothing: all slots of this Envoy are taken by others",
                self.cluster
            );
        }
        self.told_of_slots &= short > 0;
    }

    /// Frees the slots of hosts that have left and have nothing in flight any more. Only the leader does.
    pub fn free_slots(&mut self, now_ms: u64) {
        let nobody_left = self.left.as_ref().is_some_and(Vec::is_empty);
        if nobody_left || now_ms.abs_diff(self.freed_ms) < FREED_EVERY_MS {
            return;
        }
        self.freed_ms = now_ms;
        let gauges = &mut self.gauges;
        let roster =
            Shared::free(&self.cluster, now_ms, |slot| gauges.in_flight(slot) == InFlight::default());
        self.left = Some(roster.left(&self.cluster));
    }

    /// Applies a change to the gauges that all workers share.
    pub fn apply(&mut self, change: Option<Change>) {
        if let Some(change) = change {
            self.gauges.apply(change);
        }
    }

    /// A host gave a sign of life. Where nothing is held against it, a tick's time is good enough.
    pub fn answered(&mut self, slot: Slot, sign: Sign) {
        let now_ms = if self.router.is_doubted(slot) { now_ms() } else { self.ticked_ms };
        self.router.worked(slot, sign, now_ms);
    }

    /// A request has been sent to its end. A tick's time is good enough.
    pub fn asked(&mut self, stream: u32) {
        self.router.asked(stream, self.ticked_ms);
    }

    /// A request that was sent at `sent_ms` failed by the host's fault.
    pub fn failed(&mut self, slot: Slot, why: Why, sent_ms: u64) {
        self.stats.host_failures.add(1);
        self.router.failed(slot, why, sent_ms, now_ms());
    }

    /// Makes sure that the hosts' gauges were read recently enough for a decision.
    pub fn look_at_gauges(&mut self, now_ns: u64) {
        let hosts = self.router.fleet().hosts().len() as u64;
        // A clock that was set back makes every reading old.
        if now_ns.abs_diff(self.gauges_read_ns) > hosts * GAUGES_GOOD_NS_PER_HOST {
            self.gauges_read_ns = now_ns;
            let gauges = &mut self.gauges;
            self.router.refresh(|slot, own, peers| gauges.read_in_flight(slot, own, peers));
        }
    }

    /// Looks whether another worker has placed a prompt that begins alike on the chosen host a moment ago.
    pub fn look_at_mark(&mut self, decision: &mut Decision) {
        if let Some((slot, mark)) = decision.hosts.first().copied().zip(decision.cold_mark) {
            if self.gauges.cold_mark(slot) == Some(mark) {
                decision.share();
            }
        }
    }

    /// What all workers together have on a host at this moment, and what other gateways have there.
    pub fn known(&mut self, slot: Slot) -> (Own, Peers) {
        let mut own = self.router.fleet().host(slot).map(|host| host.own).unwrap_or_default();
        let mut peers = Peers::default();
        self.gauges.read(slot, &mut own, &mut peers);
        (own, peers)
    }

    fn read_gauges(&mut self) {
        let gauges = &mut self.gauges;
        self.router.refresh(|slot, own, peers| gauges.read(slot, own, peers));
    }

    /// What is to be done every so often: tell the others, hear them, learn what the leader knows. Roots of
    /// several configurations share a worker; it ticks once for all of them.
    pub fn tick(&mut self, now_ms: u64, period_ms: u64) {
        if now_ms.abs_diff(self.ticked_ms) < period_ms / 2 {
            return;
        }
        self.ticked_ms = now_ms;
        for change in self.router.prefills_over(now_ms) {
            self.gauges.apply(change);
        }
        self.follow_members();
        self.publish(now_ms);
        self.ticks += 1;
        let is_short_of_slots = self.router.fleet().hosts().len() < self.hosts.len();
        if is_short_of_slots && self.ticks.is_multiple_of(ADMITTED_EVERY_TICKS) {
            self.assign();
            self.tell_of_slots();
        }
        if self.ticks.is_multiple_of(self.hear_every) {
            self.hear(now_ms);
        }
        self.hear_peers();
        if let Some(snapshot) = self.shared.snapshot() {
            self.router.apply(&snapshot);
        }
        self.router.settle_drains(&self.drain, &self.shared.drains());
        for slot in self.router.find_still(now_ms) {
            self.stats.hosts_wedged.add(1);
            let address = self.router.fleet().host(slot).map_or("", |host| host.address.as_str());
            log::warn!("kvroute: {address} has requests and gives no byte: it is left out");
        }
        self.stats.untold.add(self.router.take_untold());
        self.stats.flush();
        self.gauges.flush();
        self.read_gauges();
    }

    fn publish(&mut self, now_ms: u64) {
        let value = self.router.publish(self.id, now_ms);
        // Even while another worker collects: what that one has heard must not be told again later.
        if self.heard.is_some() {
            let outgoing = &mut self.outgoing;
            self.collected.read(&value, |placement| collect(outgoing, &placement));
        }
        let found = self.number.and_then(|number| Some((number, self.shared.worker(number)?)));
        if let Some((number, (old, cas))) = found {
            let holder = read_bulletin(&old).map(|bulletin| bulletin.worker);
            // A number is lost to a worker that took this one for dead.
            if holder.is_none_or(|holder| holder == self.id) {
                self.shared.publish_worker(number, &value, cas);
                return;
            }
        }
        self.number = self.shared.claim_worker(&value, now_ms.saturating_sub(DEAD_AFTER_MS));
    }

    /// Hears what the others placed, and adds up what all have in flight.
    fn hear(&mut self, now_ms: u64) {
        self.books = self.router.holdings();
        self.seen.clear();
        let mut n = 0;
        loop {
            // What this one wrote it knows.
            if self.number != Some(n) {
                let Some((value, _)) = self.shared.worker(n) else { break };
                self.hear_worker(n, &value, now_ms);
            }
            n += 1;
        }
        self.hear_every = 1 + n as u64 / WORKERS_HEARD_A_TICK;
        self.router.hear_seen(&self.seen, now_ms);
    }

    fn hear_worker(&mut self, n: usize, value: &[u8], now_ms: u64) {
        if self.inboxes.len() <= n {
            self.inboxes.resize_with(n + 1, Inbox::default);
        }
        let Some(inbox) = self.inboxes.get_mut(n) else { return };
        let (router, outgoing) = (&mut self.router, &mut self.outgoing);
        let bulletin = inbox.read(value, |placement| {
            router.hear(&placement);
            collect(outgoing, &placement);
        });
        let alive = |bulletin: &Bulletin| now_ms.saturating_sub(bulletin.at_ms) < DEAD_AFTER_MS;
        let Some(bulletin) = bulletin.filter(alive) else { return };
        self.router.hear_bytes(&bulletin.bytes, bulletin.at_ms);
        self.books.extend(bulletin.holdings);
        self.seen.extend(bulletin.seen);
    }

    /// Hears what other gateways placed, unless it was this worker that passed it on.
    fn hear_peers(&mut self) {
        let (None, Some(heard)) = (&self.outgoing, &mut self.heard) else { return };
        if let Some(value) = self.shared.heard() {
            let router = &mut self.router;
            heard.read(&value, |placement| router.hear(&placement));
        }
    }

    /// Compares the gauges with the books of all workers, and corrects what has leaked. Only the leader does.
    pub fn audit(&mut self, now_ms: u64) {
        let here = self.router.fleet().hosts().iter().map(|host| host.slot);
        let slots: Vec<Slot> = here.chain(self.left.iter().flatten().copied()).collect();
        for slot in slots {
            let mut books = InFlight::default();
            for holding in self.books.iter().filter(|holding| holding.slot == slot) {
                books.requests += i64::from(holding.requests);
                books.prefill_tokens += holding.prefill_tokens as i64;
            }
            let gauges = self.gauges.in_flight(slot);
            if let Some(change) = self.audit.compare(slot, gauges, books, now_ms) {
                log::warn!(
                    "kvroute: in-flight gauges of slot {} corrected by {} requests, {} tokens",
                    slot.0,
                    change.requests,
                    change.prefill_tokens
                );
                self.gauges.apply(change);
            }
        }
    }

    /// Whether a request's headers may be held.
    pub fn may_hold(&self) -> bool {
        self.holding != Holding::GivenUp
    }

    /// Whether request bodies are known to come while headers are held.
    pub fn holding_works(&self) -> bool {
        self.holding == Holding::Works
    }

    /// A request's headers are being held.
    pub fn held(&mut self, stream: u32) {
        if self.holding != Holding::Works {
            self.held.push((stream, now_ms()));
        }
    }

    /// A body came while its headers were held: holding works here.
    pub fn body_came(&mut self) {
        if self.holding != Holding::Works {
            self.holding = Holding::Works;
            self.held.clear();
        }
    }

    /// A held request goes on waiting for more of its body, though a small buffer is full.
    pub fn waits_for_more(&mut self, stream: u32) {
        self.waiting.retain(|(waiting, _)| *waiting != stream);
        self.waiting.push((stream, now_ms()));
    }

    /// A request is not held any more.
    pub fn not_held(&mut self, stream: u32) {
        self.held.retain(|(held, _)| *held != stream);
        self.waiting.retain(|(waiting, _)| *waiting != stream);
    }

    /// Requests of which nothing more has come for long: they are to be resumed. Where `hold_bytes` is more than the
    /// connection buffer has room for, Envoy has stopped reading, and would hold them for ever.
    pub fn stalled(&mut self, now_ms: u64) -> Vec<u32> {
        let stalled = take_old(&mut self.waiting, now_ms);
        if !stalled.is_empty() && !std::mem::replace(&mut self.told_of_stall, true) {
            log::warn!(
                "kvroute: a long body stopped coming and is routed by load: unless its client is slow, \
                 prompt.hold_bytes is not below per_connection_buffer_limit_bytes"
            );
        }
        stalled
    }

    /// Requests that have been held for long without any body ever having come to this VM: they are to be
    /// resumed. Envoy without `allow_on_headers_stop_iteration` would hold them for ever.
    pub fn stuck(&mut self, now_ms: u64) -> Vec<u32> {
        let stuck = take_old(&mut self.held, now_ms);
        // Those that were held last are still to be resumed when holding has been given up.
        let Holding::Untried(rescues) = self.holding else {
            return stuck;
        };
        let rescues = rescues.saturating_add(stuck.len() as u32);
        self.holding =
            if rescues < RESCUES_BEFORE_GIVING_UP { Holding::Untried(rescues) } else { Holding::GivenUp };
        if self.holding == Holding::GivenUp {
            log::error!(
                "kvroute: no request body arrives while headers are held: set allow_on_headers_stop_iteration: true \
                 (Envoy 1.35 and newer). Until then requests are routed by load alone"
            );
        }
        stuck
    }
}

fn addresses(members: &Members) -> Vec<String> {
    members.hosts.iter().map(|member| member.address.clone()).collect()
}

/// Takes out the streams that have waited for too long.
fn take_old(streams: &mut Vec<(u32, u64)>, now_ms: u64) -> Vec<u32> {
    let is_old = |at: u64| now_ms.saturating_sub(at) >= HELD_TOO_LONG_MS;
    let old = streams.iter().filter(|(_, at)| is_old(*at)).map(|(stream, _)| *stream).collect();
    streams.retain(|(_, at)| !is_old(*at));
    old
}

/// Notes for other gateways what a worker of this one placed.
fn collect(outgoing: &mut Option<Outgoing>, placement: &Placement) {
    if let Some(outgoing) = outgoing {
        outgoing.note(placement.slot, &placement.blocks);
    }
}

/// The wall clock in milliseconds.
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// The wall clock in nanoseconds. Without one it is 1970: nothing is too old then, and every reading is renewed.
// Called in a dozen places.
#[inline(never)]
pub fn now_ns() -> u64 {
    host::now_ns().or_count().unwrap_or(0)
}
