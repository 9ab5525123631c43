//! The decision: which hosts, in which order, and why.
//!
//! For each host that may take traffic, what would this request cost there? With `m` prompt tokens that
//! the host still holds, `u` that it must prefill, `b` requests and `q` uncached tokens before it:
//!
//! ```text
//! cost = (q + w u + batch_slowdown u b) / rate  +  decode b        seconds
//! ```
//!
//! The constants and their reasons are in [`crate::core::config::Routing`].
//!
//! The least cost wins. That is the whole load penalty: it is weighed for each request and each host,
//! so a hotspot sheds what another host would answer sooner and keeps the rest, and affinity is never
//! switched off for the fleet.
//!
//! Where hosts share a KV tier, `u` is less by what the host fetches of that which another computed ([`super::tier`]).
//!
//! A request for a LoRA adapter costs `adapter_load_ms` more where the adapter is not loaded, if it is somewhere.
//!
//! A request that names a model goes to hosts that say they serve it, if there are any. A host that has just become ready
//! among warm ones is passed over by most prompts, each by a hash ([`super::readiness`]), and named last then.
//!
//! # Why ties matter
//!
//! At low load many hosts cost about the same, and where ties go decides whether the fleet's caches fill
//! evenly and whether workers and gateways that share nothing agree. Hosts within a narrow band of the
//! best go by rendezvous hashing of the *anchor*, the first block that is this conversation's own; a
//! request whose prompt is mostly cached on several hosts goes by its deepest cached block instead, so
//! that a prefix that had spread under load contracts when the load is gone.
//!
//! # Why a burst waits
//!
//! A prefix that is new to everybody often comes many times at once. By cost alone the second request would have it
//! computed again on an idle host: that answers no later, but fills two caches with one text. So a request waits for
//! the host that is computing its prefix, within the bounds that the constants set. Other workers know of it by a mark
//! on the host, the anchor of the last cold prompt, before any journal has told them.

use super::adapters::Loading;
use super::blocks::{digest, BlockHash};
use super::config::{Routing, WarmUp};
use super::fleet::{Fleet, Host, Part, Slot};
use super::index::{Index, Liveness, Stamp, HOLDERS};
use super::life::Life;
use super::load::{FleetLoad, Freshness, Queue};
use super::prompt::Unread;
use super::tier::Fetch;

/// How much of a prompt is taken to be on a host to which another worker has just sent one that begins alike.
const MARKED: f64 = 0.95;

/// The foreign share up to which the hosts' observed paces are believed.
const LITTLE_FOREIGN: f64 = 0.2;

/// The least that counts as uncached: the engine computes at least the last block anew.
const LEAST_UNCACHED: f64 = 16.0;

/// A host that warms up is needed where at every other host more than this many times as much stands before a request as
/// there ..
const CROWDED: f64 = 2.0;

/// .. and these seconds more: half of what a user in front of a screen hardly notices.
const CROWDED_S: f64 = 0.5;

/// The share of a prompt that must be cached for its deepest cached block to be its anchor.
const MOSTLY: f64 = 0.5;

/// No model is named.
const ANY_MODEL: u64 = 0;

/// What is asked: a prompt, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask<'a> {
    /// Prompt length in bytes, read or announced.
    pub bytes: u64,
    /// Bytes of prompt text a token has.
    pub bytes_per_token: f64,
    /// A digest of the model's name, which may be an adapter's; 0 if none was named.
    pub model: u64,
    /// Who holds how much of it.
    pub walk: &'a Walk,
    /// The only host that can answer.
    pub pinned: Option<Slot>,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The best host first, then the next best: what the destination header names.
    pub hosts: Vec<Slot>,
    /// Why the first is first.
    pub reason: Reason,
    /// Prompt bytes that the first is believed to hold.
    pub matched_bytes: u64,
    /// Tokens that the first must prefill, as far as is known; what it fetches counts as it costs.
    pub uncached_tokens: u64,
    /// What the first is spared of its prefill, in tokens, because it fetches part of the prompt from a shared tier.
    pub spared_tokens: u64,
    /// Tokens that have entered the first host's cache since it was sent what it holds.
    pub matched_age_tokens: u64,
    /// Whether most of the work is another prompt's that begins alike and was sent a moment ago.
    pub is_shared: bool,
    /// What marks a prompt of which the first holds little: its anchor.
    pub cold_mark: Option<u64>,
    /// What the first costs and saves against the host that holds the most.
    pub regret: Regret,
}

impl Decision {
    /// Another worker has just placed a prompt with this mark on the same host: most of the work is shared.
    pub fn share(&mut self) {
        self.is_shared = true;
        self.uncached_tokens = unshared(self.uncached_tokens);
        self.spared_tokens = 0;
    }
}

/// What a decision forgoes of the cache, and what it gains by that, against going where most of the prompt is
/// held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Regret {
    /// Prompt tokens that the best holder has and the chosen host has not.
    pub forgone_tokens: u64,
    /// Milliseconds of standing behind others that are avoided.
    pub avoided_ms: u64,
}

/// Why a host was chosen; the label in metrics, headers and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It holds the longest prefix.
    Prefix,
    /// Another holds more of the prompt, but is so loaded that this one answers sooner.
    Spill,
    /// Nobody holds any of it.
    Cold,
    /// It gave the answer that the request goes on from, and nobody else has it.
    Pinned,
    /// It had the last request of the conversation, whose prompt is not in this one.
    Session,
    /// The prompt is not known; by load alone.
    Unread(Unread),
    /// There is no host that may take traffic: Envoy's own policy decides.
    NoHosts,
}

impl Reason {
    /// The reason as it appears in metrics, headers and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Prefix => "prefix",
            Reason::Spill => "spill",
            Reason::Cold => "cold",
            Reason::Pinned => "pinned",
            Reason::Session => "session",
            Reason::Unread(why) => why.as_str(),
            Reason::NoHosts => "no_hosts",
        }
    }
}

/// What one host holds of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Holding {
    slot: Slot,
    /// Prompt bytes up to the deepest block.
    bytes: u64,
    /// When it was sent that block.
    stamp: Stamp,
}

/// The walk of one prompt down the index: who holds how much.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Walk {
    /// The view of the prompt that it walks along, and the positions passed.
    view: u64,
    passed: usize,
    /// Hosts that hold something.
    held: Vec<Holding>,
    /// Bytes that more hosts hold than can be listed: everybody counts as a holder.
    everyone: u64,
    /// Bytes up to the deepest position stepped on.
    seen: u64,
    deepest: Option<BlockHash>,
    /// The first block with fewer than [`HOLDERS`] live holders.
    anchor: Option<BlockHash>,
    /// The first block that nobody holds.
    first_absent: Option<BlockHash>,
}

impl Walk {
    /// Goes on along a view of the prompt and answers how many positions have been passed. Along another than so
    /// far the walk begins anew.
    pub fn resume(&mut self, view: u64) -> usize {
        if view != self.view {
            *self = Self { view, ..Self::default() };
        }
        self.passed
    }

    /// Whether it goes along this view of the prompt.
    pub fn is_along(&self, view: u64) -> bool {
        view == self.view
    }

    /// All positions up to `passed` have been stepped on.
    pub fn reached(&mut self, passed: usize) {
        self.passed = passed;
    }

    /// Takes the next position, deeper than all before. `bytes` is the prompt up to its end.
    pub fn step(&mut self, block: BlockHash, bytes: u64, index: &Index, hosts: &impl Liveness) {
        if self.has_fallen_off() {
            return;
        }
        self.seen = bytes;
        let mut live = 0;
        if let Some(holders) = index.holders(block) {
            for (slot, stamp) in holders.iter().filter(|&(slot, stamp)| hosts.holds(slot, stamp)) {
                live += 1;
                let holding = Holding { slot, bytes, stamp };
                match self.held.iter_mut().find(|held| held.slot == slot) {
                    Some(held) => *held = holding,
                    None => self.held.push(holding),
                }
            }
            if holders.is_overflowing() {
                live = HOLDERS;
                self.everyone = bytes;
            }
        }
        if live < HOLDERS {
            self.anchor.get_or_insert(block);
        }
        if live > 0 {
            self.deepest = Some(block);
        } else {
            self.first_absent = Some(block);
        }
    }

    /// Whether a block was met that nobody holds: nothing deeper can be held, a block is never without
    /// its parent.
    pub fn has_fallen_off(&self) -> bool {
        self.first_absent.is_some()
    }

    /// Bytes of a prompt of `total` bytes that `slot` is taken to hold: of the part not read yet `unread_share`, if
    /// it holds all that was read.
    pub fn expected(&self, slot: Slot, total: u64, unread_share: f64) -> f64 {
        let matched = self.matched(slot);
        let unseen = total.saturating_sub(self.seen);
        if matched > 0 && matched == self.seen {
            matched as f64 + unread_share * unseen as f64
        } else {
            matched as f64
        }
    }

    /// Whether what a host holds is so new that it is still being computed there: no more tokens have been sent since
    /// than stand before a request now.
    fn is_coming(&self, host: &Host) -> bool {
        let queued = host.own.prefill_tokens;
        let held = self.held.iter().find(|held| held.slot == host.slot);
        queued > 0 && held.is_some_and(|held| host.age_tokens(held.stamp) <= queued)
    }

    /// Tokens that have entered a host's cache since it was sent the deepest block that it holds.
    fn age_tokens(&self, host: &Host) -> u64 {
        let held = self.held.iter().find(|held| held.slot == host.slot);
        held.map_or(0, |held| host.age_tokens(held.stamp))
    }

    /// Whether another worker has just sent a host a prompt that begins like this one, and that is not known here yet.
    fn is_marked(&self, host: &Host) -> bool {
        self.matched(host.slot) == 0 && self.anchor.is_some_and(|anchor| anchor.0 == host.own.cold_mark)
    }

    /// Bytes of the prompt that `slot` is believed to hold.
    pub fn matched(&self, slot: Slot) -> u64 {
        let listed = self.held.iter().find(|held| held.slot == slot).map_or(0, |held| held.bytes);
        listed.max(self.everyone)
    }
}

/// What is left of a prompt's tokens where most of the work is another prompt's.
pub fn unshared(tokens: u64) -> u64 {
    (tokens as f64 * (1.0 - MARKED)).max(LEAST_UNCACHED) as u64
}

/// How evenly cold prompts have been placed lately, so that the tie-break can even it out.
///
/// Rendezvous hashing alone gives each of 4 hosts its share of 64 prompts only within two fifths in four tries of
/// five; caches filled unevenly evict early. Within a quarter of the mean nothing is done, so that gateways
/// that share nothing still agree on nine homes of ten.
#[derive(Debug, Clone, Copy)]
struct Spread {
    /// Cold prompts a host, with the head start.
    mean: f64,
}

impl Spread {
    /// How far from the mean a host's share may be, before its chances change.
    const TOLERANCE: f64 = 0.27;
    /// Prompts added to each count, so that the first few decide nothing.
    const HEAD_START: f64 = 4.0;

    fn of(fleet: &Fleet) -> Self {
        let total: i64 = fleet.hosts().iter().map(Host::cold_lately).sum();
        Self { mean: total as f64 / fleet.hosts().len().max(1) as f64 + Self::HEAD_START }
    }

    /// The weight of a host in rendezvous hashing: 1 within the tolerance, quickly more for those that
    /// lag behind it and less for those ahead.
    fn weight(self, host: &Host) -> f64 {
        let share = (host.cold_lately() as f64 + Self::HEAD_START).max(1.0) / self.mean.max(1.0);
        // From 1 on at the edge of the tolerance: a jump there would move homes that agree everywhere else.
        let beyond = match share {
            share if share < 1.0 - Self::TOLERANCE => share / (1.0 - Self::TOLERANCE),
            share if share > 1.0 + Self::TOLERANCE => share / (1.0 + Self::TOLERANCE),
            _ => 1.0,
        };
        beyond.powi(-14)
    }
}

/// Everything a decision is made from.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The hosts.
    pub fleet: &'a Fleet,
    /// Their load on average.
    pub load: FleetLoad,
    /// What counts as fresh.
    pub freshness: Freshness,
    /// Which hosts this gateway fills first.
    pub part: Part,
    /// Constants of the cost.
    pub routing: &'a Routing,
    /// What hosts get that have just become ready.
    pub warm_up: WarmUp,
    /// The share of the fleet's load that this proxy did not send, 0 to 1.
    pub foreign_share: f64,
    /// Hosts to name at most.
    pub candidates: usize,
}

/// A host with what the request would cost there.
#[derive(Debug, Clone, Copy)]
struct Candidate<'a> {
    host: &'a Host,
    /// Prompt tokens that it holds.
    matched: f64,
    /// Tokens that it is spared because others hold them and it fetches them.
    spared: f64,
    /// Seconds that stand before the request there.
    standing_s: f64,
    cost_s: f64,
    /// Whether only this host can answer.
    pinned: bool,
    /// Whether the request waits there for a prefix that is being computed, whatever it costs elsewhere.
    waits: bool,
    /// Whether the host warms up and does not take this prompt yet.
    passed_over: bool,
    /// Lower goes first among equals.
    rank: f64,
}

impl Situation<'_> {
    /// Decides for a prompt.
    pub fn route(&self, ask: &Ask) -> Decision {
        let per_token = ask.bytes_per_token.max(0.5);
        let total = ask.bytes as f64 / per_token;
        let eligible = self.eligible(ask.model);
        let home = home(&eligible, ask.walk.anchor.filter(|_| self.foreign_share > 0.0));
        let untold = self.untold_home(&eligible, ask.walk);
        let hosts = || eligible.iter().copied();
        let loading = Loading::of(ask.model, hosts(), self.freshness, self.routing.adapter_load_ms);
        let fetch = Fetch::of(self.routing.tier, self.fleet.hosts().iter());
        let stored = if fetch.saves_anything() { self.stored(ask) / per_token } else { 0.0 };
        let mut candidates: Vec<Candidate> = Vec::new();
        for host in hosts() {
            let mut matched = ask.walk.expected(host.slot, ask.bytes, self.routing.unread_share) / per_token;
            if ask.walk.is_marked(host) {
                matched = matched.max(MARKED * total);
            }
            let lacking = (total - matched).max(0.0);
            let spared = (stored - matched).max(0.0).min(lacking) * fetch.saved_share(host);
            let missing = lacking - spared;
            let credit = if home == Some(host.slot) {
                self.foreign_share * self.routing.home_credit * missing
            } else {
                0.0
            };
            let uncached = (missing - credit).max(LEAST_UNCACHED);
            let queue =
                if untold == Some(host.slot) { FleetLoad::known_queue(host) } else { self.queue(host) };
            let mut candidate = self.candidate(host, &queue, matched, uncached);
            candidate.spared = spared;
            candidate.cost_s += loading.seconds(host);
            candidate.pinned = ask.pinned == Some(host.slot);
            candidate.waits =
                matched >= MOSTLY * total && self.is_worth_waiting(ask.walk, host, total, lacking);
            candidates.push(candidate);
        }
        let holder = candidates.iter().max_by(|a, b| a.matched.total_cmp(&b.matched)).copied();
        let longest = holder.map_or(0.0, |holder| holder.matched);
        self.pass_over(&mut candidates, ask.walk.first_absent.or(ask.walk.deepest));
        let anchor = if longest >= MOSTLY * total { ask.walk.deepest } else { ask.walk.first_absent };
        let hosts = self.order(&mut candidates, anchor.or(ask.walk.deepest));
        let Some(best) = candidates.first() else {
            return self.nowhere();
        };
        let reason = match best.matched {
            _ if best.pinned => Reason::Pinned,
            matched if matched + LEAST_UNCACHED < longest => Reason::Spill,
            matched if matched > 0.0 => Reason::Prefix,
            _ => Reason::Cold,
        };
        Decision {
            hosts,
            reason,
            matched_bytes: ask.walk.matched(best.host.slot).min(ask.bytes),
            uncached_tokens: (total - best.matched - best.spared).max(LEAST_UNCACHED) as u64,
            spared_tokens: best.spared as u64,
            matched_age_tokens: ask.walk.age_tokens(best.host),
            is_shared: ask.walk.is_marked(best.host),
            cold_mark: ask.walk.anchor.filter(|_| best.matched < MOSTLY * total).map(|block| block.0),
            regret: holder.filter(|_| reason == Reason::Spill).map_or_else(Regret::default, |holder| {
                Regret {
                    forgone_tokens: (longest - best.matched) as u64,
                    avoided_ms: (1_000.0 * (holder.standing_s - best.standing_s)).max(0.0) as u64,
                }
            }),
        }
    }

    /// Decides for a request whose prompt is not known and is taken to be `uncached_tokens` of work.
    pub fn route_unread(&self, why: Unread, uncached_tokens: f64) -> Decision {
        let uncached = uncached_tokens.max(LEAST_UNCACHED);
        let eligible = self.eligible(ANY_MODEL).into_iter();
        let mut candidates: Vec<Candidate> =
            eligible.map(|host| self.candidate(host, &self.queue(host), 0.0, uncached)).collect();
        self.pass_over(&mut candidates, None);
        let hosts = self.order(&mut candidates, None);
        if hosts.is_empty() {
            return self.nowhere();
        }
        Decision {
            hosts,
            reason: Reason::Unread(why),
            matched_bytes: 0,
            uncached_tokens: uncached as u64,
            spared_tokens: 0,
            matched_age_tokens: 0,
            is_shared: false,
            cold_mark: None,
            regret: Regret::default(),
        }
    }

    /// A host with what `uncached` tokens cost there. Where there is no block to go by, the one that was given the
    /// least so far goes first.
    fn candidate<'a>(&self, host: &'a Host, queue: &Queue, matched: f64, uncached: f64) -> Candidate<'a> {
        let routing = self.routing;
        let standing_s = self.behind(queue, host, uncached);
        let mut cost_s = standing_s + self.prefill_weight() * uncached / self.rate(host);
        if !self.part.has(host) {
            // What another gateway may just have sent there, for all of the prompt that is not held.
            let missing = uncached / (uncached + matched);
            cost_s += routing.peer_spread * missing * self.load.uncached_tokens / self.rate(host);
        }
        Candidate {
            host,
            matched,
            spared: 0.0,
            standing_s,
            cost_s,
            pinned: false,
            waits: false,
            passed_over: false,
            rank: host.own.sent_tokens as f64,
        }
    }

    /// Prompt bytes that some host of the fleet has computed: what a shared tier can have of it. What is being computed is
    /// not there yet.
    fn stored(&self, ask: &Ask) -> f64 {
        let has = |host: &Host| !ask.walk.is_coming(host);
        let hosts = self.fleet.hosts().iter().filter(|host| has(host));
        let expected = |host: &Host| ask.walk.expected(host.slot, ask.bytes, self.routing.unread_share);
        hosts.map(expected).fold(0.0, f64::max)
    }

    /// Whether a request waits for the prefix that a host is computing right now, rather than have it computed a second
    /// time on an idle one: a burst with one new prefix stays together until its host has a batch of its own.
    fn is_worth_waiting(&self, walk: &Walk, host: &Host, total: f64, missing: f64) -> bool {
        let queue = self.queue(host);
        let before = queue.prefill_tokens + missing;
        // What is being computed stands in the queue.
        (walk.is_coming(host) || walk.is_marked(host))
            && queue.prefill_tokens >= MOSTLY * (total - missing)
            && before <= (self.routing.burst_prompts * total).min(self.routing.burst_tokens)
            && queue.requests <= self.load.requests + self.routing.burst_requests
    }

    /// The weight of a request's own uncached tokens. Where prompts queue everywhere, each token that is computed anew
    /// delays all that stand behind it; only what the queues are known to be can say so.
    fn prefill_weight(&self) -> f64 {
        let routing = self.routing;
        let queued_s = self.load.queued_tokens / routing.prefill_tokens_per_s;
        let congestion = routing.congestion_weight * queued_s * (1.0 - self.foreign_share);
        routing.prefill_weight + congestion.min(routing.most_congestion)
    }

    /// Tokens a second that a host prefills. What was observed while others' work could not be seen says little.
    pub fn rate(&self, host: &Host) -> f64 {
        let speed = if self.foreign_share < LITTLE_FOREIGN { host.speed } else { 1.0 };
        self.routing.prefill_tokens_per_s * speed
    }

    /// Seconds that stand before `uncached` tokens on a host.
    pub fn standing_s(&self, host: &Host, uncached: f64) -> f64 {
        self.behind(&self.queue(host), host, uncached)
    }

    /// Seconds of uncached prefill that stand before a new request on a host.
    pub fn backlog_s(&self, host: &Host) -> f64 {
        self.queue(host).prefill_tokens / self.rate(host)
    }

    fn queue(&self, host: &Host) -> Queue {
        self.load.queue(host, self.freshness)
    }

    /// Seconds that a queue on a host stands before `uncached` tokens.
    fn behind(&self, queue: &Queue, host: &Host, uncached: f64) -> f64 {
        let routing = self.routing;
        // The less of the load is known, the less the known part says.
        let known = queue.prefill_tokens / (1.0 + routing.foreign_discount * self.foreign_share);
        let standing = known + routing.batch_slowdown * uncached * queue.requests;
        let sequences = queue.requests + routing.waiting_weight * queue.waiting;
        standing / self.rate(host) + routing.decode_ms / 1_000.0 * sequences
    }

    fn nowhere(&self) -> Decision {
        Decision {
            hosts: Vec::new(),
            reason: Reason::NoHosts,
            matched_bytes: 0,
            uncached_tokens: 0,
            spared_tokens: 0,
            matched_age_tokens: 0,
            is_shared: false,
            cold_mark: None,
            regret: Regret::default(),
        }
    }

    /// Hosts that may take traffic: those by which the least is lost, as [`Life::resort`] says, and of these those of the
    /// lowest priority number that Envoy has for them. If any of them says that it serves the model, not those that serve
    /// others only. It may be an adapter's name: nobody says so then.
    fn eligible(&self, model: u64) -> Vec<&Host> {
        let mut eligible: Vec<&Host> = Vec::new();
        let mut least = (u8::MAX, u32::MAX);
        let mut is_served = false;
        for host in self.fleet.hosts() {
            let Some(resort) = Life::of(host, self.freshness.now_ms).resort() else { continue };
            let rank = (resort, host.envoy.priority);
            if rank < least {
                (least, is_served) = (rank, false);
                eligible.clear();
            }
            if rank == least {
                is_served |= serves(host, model) == Some(true);
                eligible.push(host);
            }
        }
        if is_served && model != ANY_MODEL {
            eligible.retain(|host| serves(host, model) != Some(false));
        }
        eligible
    }

    /// Marks the hosts that warm up and do not take this prompt yet: neither do they hold more of it than any other, nor
    /// is it among the share that they may take. Those whose home is there come in first. Where there is no block to go
    /// by, what they have in flight decides. A fleet that has just doubled, or more, must not leave its queue to the old
    /// hosts: where much more stands before a request at all of these, newcomers take it.
    fn pass_over(&self, candidates: &mut [Candidate], anchor: Option<BlockHash>) {
        let hosts = candidates.len();
        let admits = |host: &Host| {
            let now_ms = self.freshness.now_ms;
            self.warm_up.admits(host.readiness, host.clock_tokens(), hosts, now_ms)
        };
        if candidates.iter().all(|candidate| candidate.host.readiness.warming_since_ms().is_none()) {
            return;
        }
        let warm = |candidate: &&Candidate| candidate.host.readiness.warming_since_ms().is_none();
        let held = candidates.iter().filter(warm).map(|candidate| candidate.matched).fold(0.0, f64::max);
        let standing = candidates.iter().filter(warm).map(|candidate| candidate.standing_s);
        let least_s = standing.fold(f64::INFINITY, f64::min);
        // A few newcomers are spared, for the others can carry what they leave.
        let are_many = 2 * candidates.iter().filter(warm).count() <= hosts;
        for candidate in candidates {
            let (host, admits) = (candidate.host, admits(candidate.host));
            let is_let_in = match anchor {
                Some(anchor) => rendezvous(anchor, &host.address) < -(1.0 - admits).ln(),
                None => f64::from(host.own.requests) < admits * hosts as f64 * self.load.requests,
            };
            let is_needed = are_many && least_s > CROWDED * candidate.standing_s + CROWDED_S;
            candidate.passed_over =
                admits < 1.0 && !(is_let_in || is_needed || candidate.pinned || candidate.matched > held);
        }
    }

    /// The home of a prompt that nobody holds, if its engine does not tell its load. Taken to be as loaded as the others
    /// are on average, it would get nothing while one of these is idle, and never show that it serves: so the prompts
    /// whose home it is, its fair share, go by what gateways have there themselves.
    fn untold_home(&self, eligible: &[&Host], walk: &Walk) -> Option<Slot> {
        let is_told = |host: &Host| self.freshness.is_fresh(host);
        if eligible.iter().all(|host| is_told(host)) || !walk.held.is_empty() {
            return None;
        }
        home(eligible, walk.first_absent).filter(|slot| !self.fleet.host(*slot).is_some_and(is_told))
    }

    /// Names the first few by cost, those that tie with the best by rank, and puts them in front.
    fn order(&self, candidates: &mut [Candidate], anchor: Option<BlockHash>) -> Vec<Slot> {
        let taking = candidates.iter().filter(|candidate| !candidate.passed_over);
        let least = taking.map(|candidate| candidate.cost_s).fold(f64::INFINITY, f64::min);
        let tied = least * (1.0 + self.routing.tie_share) + self.routing.tie_ms / 1_000.0;
        if let Some(anchor) = anchor {
            let spread = Spread::of(self.fleet);
            for candidate in candidates.iter_mut().filter(|candidate| candidate.cost_s <= tied) {
                candidate.rank = rendezvous(anchor, &candidate.host.address) / spread.weight(candidate.host);
            }
        }
        let order = |a: &Candidate, b: &Candidate| {
            let both = a.cost_s <= tied && b.cost_s <= tied;
            let by_rank = if both { a.rank.total_cmp(&b.rank) } else { std::cmp::Ordering::Equal };
            (b.pinned, a.passed_over, b.waits)
                .cmp(&(a.pinned, b.passed_over, a.waits))
                .then(by_rank)
                .then(a.cost_s.total_cmp(&b.cost_s))
                .then(a.host.slot.cmp(&b.host.slot))
        };
        // A few of many, one after another: less work than sorting them all, and 10 KiB less code.
        let mut named = Vec::new();
        let mut rest = candidates;
        while named.len() < self.candidates {
            let best = rest.iter().enumerate().min_by(|(_, a), (_, b)| order(a, b)).map(|(n, _)| n);
            let Some(best) = best else { break };
            rest.swap(0, best);
            let Some((first, others)) = rest.split_first_mut() else { break };
            named.push(first.host.slot);
            rest = others;
        }
        named
    }
}

/// Whether a host serves a model, as its base or as an adapter that it has loaded; `None` if it does not say.
fn serves(host: &Host, model: u64) -> Option<bool> {
    host.polled.models.serve(model).map(|serves| serves || host.polled.adapters.has(model))
}

/// The host that every gateway would name for this anchor, knowing nothing.
fn home(eligible: &[&Host], anchor: Option<BlockHash>) -> Option<Slot> {
    let anchor = anchor?;
    let distance = |host: &&&Host| rendezvous(anchor, &host.address);
    eligible.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).map(|host| host.slot)
}

/// A host's distance from an anchor, exponentially distributed: divided by weights, the least distance
/// falls on each host in proportion to its weight. Depends on the address alone, so that every worker
/// and gateway computes the same, in whatever order it lists its hosts.
fn rendezvous(anchor: BlockHash, address: &str) -> f64 {
    let hash = BlockHash(digest(address.as_bytes())).under(anchor.0).0;
    // 53 bits into (0, 1].
    let uniform = ((hash >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -uniform.ln()
}
