//! One worker's mind: what it knows, how it decides, what it has in flight.
//!
//! The shell holds one [`Router`] for each cluster in each VM and calls it with bytes, readings and `now`;
//! the replay drives the same. Deciding ([`Router::decide`]) changes nothing; the caller commits, and is
//! handed the [`Change`]s that it shall apply to the gauges that all workers share.

use super::blocks::BlockHash;
use super::config::{Config, Learning, Routing, Shed, WarmUp};
use super::drains::Drains;
use super::fleet::{Fleet, Host, Own, Part, Peers, Slot};
use super::health::{Health, Seen, Sign, Why};
use super::index::{Index, Stamp};
use super::journal::{Bulletin, Holding, Outbox, Placement, MOST_SEEN};
use super::learning::{BytesPerToken, Pace, BYTES_PER_TOKEN};
use super::load::{FleetLoad, Freshness};
use super::members::Members;
use super::prompt::{Outline, Prompt, Unread, View};
use super::readiness::Readiness;
use super::route::{unshared, Ask, Decision, Reason, Regret, Situation, Walk};
use super::session::{response_block, Session};
use super::shadow::Shadow;
use super::shed::Overload;
use super::signals::Reading;
use super::snapshot::Snapshot;
use super::usage::Usage;
use super::wedge::{Open, Sight};
use std::collections::HashMap;

/// How fast a mean follows: one part in fifty, so that one odd request moves it by 2 %.
const GAIN: f64 = 0.02;

/// Tokens that must have been predicted to be cached for the actual ones to say anything.
const LEAST_PREDICTED: u64 = 1_024;

/// Uncached tokens of a request before any was seen.
const FIRST_UNCACHED_TOKENS: f64 = 1_000.0;

/// Tokens a second at which a prefill is taken to be over when the response cannot show it: half the
/// usual rate, to be on the safe side.
const PREFILL_OVER_RATE: f64 = 9_000.0;

/// For how long a worker goes on to tell that a host gave it a byte: with the most workers that there can be, each hears
/// the others every half second.
const BYTES_TOLD_MS: u64 = 2_000;

/// What is to be added to the gauges of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// The host.
    pub slot: Slot,
    /// Requests in flight.
    pub requests: i64,
    /// Uncached prompt tokens without a first byte.
    pub prefill_tokens: i64,
    /// Uncached prompt tokens sent.
    pub sent_tokens: i64,
    /// Cold prompts placed.
    pub cold: i64,
    /// What marks the last of these.
    pub cold_mark: Option<u64>,
}

/// What a stream holds of a host, until it is released.
#[derive(Debug, Clone, Copy)]
struct Held {
    slot: Slot,
    /// When it was sent, in milliseconds of the wall clock, and what stood before its first byte then.
    at_ms: u64,
    ahead_tokens: u64,
    matched_age_tokens: u64,
    cold_mark: Option<u64>,
    /// Whether most of its work is another prompt's.
    is_shared: bool,
    /// 0 once the prefill is over.
    prefill_tokens: u64,
    /// What is spared of the prefill by fetching: such tokens enter the cache all the same.
    spared_tokens: u64,
    /// When the prefill is taken to be over, if the response will not show it. Milliseconds of the wall
    /// clock.
    over_at_ms: Option<u64>,
    /// What its engine makes of it, and since when it has all of it, in milliseconds of the wall clock.
    work: Work,
    asked_ms: Option<u64>,
}

/// What an engine makes of a request, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing can be said.
    Unknown,
    /// It computes it, and how it answers is not known.
    Computed,
    /// It computes it, and the answer comes bit by bit unless [`Router::will_not_stream`] was told.
    Read,
}

impl Work {
    fn of(reason: Reason) -> Self {
        match reason {
            Reason::Unread(Unread::Path | Unread::NoBody | Unread::Upgrade) | Reason::NoHosts => {
                Work::Unknown
            }
            Reason::Unread(_) | Reason::Session => Work::Computed,
            Reason::Prefix | Reason::Spill | Reason::Cold | Reason::Pinned => Work::Read,
        }
    }
}

/// How much of a prompt the index knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remembered {
    /// The early view, as it was.
    view: u64,
    /// Positions of it, and the first of them.
    depth: usize,
    first: Option<BlockHash>,
    /// Whether the whole view is known too.
    whole: bool,
}

impl Remembered {
    /// Whether there is nothing to add: the prompt has been remembered to its end.
    pub fn is_whole(self) -> bool {
        self.whole
    }
}

/// One worker's mind for one cluster.
#[derive(Debug)]
pub struct Router {
    candidates: usize,
    stale_after_ms: u64,
    wedged_after_ms: u64,
    routing: Routing,
    warm_up: WarmUp,
    probes: bool,
    fleet: Fleet,
    index: Index,
    outbox: Outbox,
    held: HashMap<u32, Held>,
    foreign_share: f64,
    part: Part,
    learning: Learning,
    bytes_per_token: BytesPerToken,
    uncached_tokens: f64,
}

impl Router {
    /// A worker that knows nothing yet.
    pub fn new(config: &Config) -> Self {
        Self {
            candidates: config.candidates,
            stale_after_ms: config.poll.stale_after_ms,
            wedged_after_ms: config.failure.wedged_after_ms,
            routing: config.routing.clone(),
            warm_up: config.warm_up,
            probes: config.ready.probe,
            fleet: Fleet::default(),
            index: Index::new(config.index.entries),
            outbox: Outbox::default(),
            held: HashMap::new(),
            foreign_share: 0.0,
            part: Part::ALL,
            learning: config.learning,
            bytes_per_token: BytesPerToken::default(),
            uncached_tokens: FIRST_UNCACHED_TOKENS,
        }
    }

    /// Takes new settings and a new list of hosts; keeps what was learned.
    pub fn configure(&mut self, config: &Config, hosts: &[(String, Slot)]) {
        self.candidates = config.candidates;
        self.stale_after_ms = config.poll.stale_after_ms;
        self.wedged_after_ms = config.failure.wedged_after_ms;
        self.routing = config.routing.clone();
        self.warm_up = config.warm_up;
        self.learning = config.learning;
        if !self.index.has_entries(config.index.entries) {
            self.index = Index::new(config.index.entries);
        }
        self.probes = config.ready.probe;
        self.assign(hosts);
        self.fleet.settle_cold();
    }

    /// Takes a new list of hosts; keeps what was learned of those that stay, and forgets the others.
    pub fn assign(&mut self, hosts: &[(String, Slot)]) {
        // Who joins a fleet that is known must show that it generates.
        let is_known = self.fleet.hosts().iter().any(|host| host.polled.is_known());
        self.fleet.newcomers_are(Readiness::of_newcomers(is_known && self.probes));
        let gone = self.fleet.assign(hosts, self.routing.capacity_tokens);
        self.index.forget(&gone);
    }

    /// Takes over how Envoy sees the hosts.
    pub fn settle_members(&mut self, members: Option<&Members>) {
        self.fleet.settle_members(members);
    }

    /// The hosts as this worker sees them.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Takes over what the polling leader knows.
    pub fn apply(&mut self, snapshot: &Snapshot) {
        self.foreign_share = snapshot.foreign_share;
        self.part = snapshot.part;
        snapshot.apply(&mut self.fleet);
        self.fleet.settle_paces();
    }

    /// Takes over which hosts are marked to go.
    pub fn settle_drains(&mut self, configured: &[String], drains: &Drains) {
        self.fleet.settle_drains(configured, drains);
    }

    /// Takes over what all workers together have on each host, and what other gateways have, as `read` finds it in the
    /// gauges.
    pub fn refresh(&mut self, mut read: impl FnMut(Slot, &mut Own, &mut Peers)) {
        for host in self.fleet.hosts_mut() {
            read(host.slot, &mut host.own, &mut host.peers);
        }
        self.fleet.settle_cold();
    }

    /// Goes on along what has been read since the prompt was decided. Where it has turned out to stand elsewhere from its
    /// first position on, the walk begins anew; from a later one it stays, or it would find what was `remembered` of this
    /// prompt itself.
    pub fn advance_further(&self, walk: &mut Walk, prompt: &impl Outline, remembered: &Remembered) {
        let view = prompt.view(false);
        if walk.is_along(view.id) || remembered.first != first_of(&view) {
            self.advance(walk, prompt, false);
        }
    }

    /// Goes on along the prompt's positions. `whole` says that all parts of the prompt have been read.
    pub fn advance(&self, walk: &mut Walk, prompt: &impl Outline, whole: bool) {
        let view = prompt.view(whole);
        let from = walk.resume(view.id);
        for (block, bytes) in view.keys().skip(from) {
            walk.step(block, bytes, &self.index, &self.fleet);
        }
        walk.reached(view.depth());
    }

    /// Whether the prompt cannot be held any deeper than has been walked, whatever the rest of it says.
    pub fn is_settled(&self, walk: &Walk, prompt: &Prompt) -> bool {
        let is_held = |block: BlockHash| self.index.holders(block).is_some();
        walk.has_fallen_off() && !prompt.elsewhere().into_iter().any(is_held)
    }

    /// Decides for a prompt of `bytes` bytes, read or announced, as far as it has been walked.
    pub fn decide(&self, walk: &Walk, prompt: &impl Outline, bytes: u64, now_ms: u64) -> Decision {
        let bytes_per_token = self.bytes_a_token(prompt);
        let pinned = prompt.previous_response().and_then(|response| self.answered(response));
        self.situation(now_ms).route(&Ask { bytes, bytes_per_token, model: prompt.model(), walk, pinned })
    }

    /// Who gave the answer that `response` is a digest of, if that is known.
    fn answered(&self, response: u64) -> Option<Slot> {
        let holders = self.index.holders(response_block(response))?;
        let known = holders.iter().find(|(slot, _)| self.fleet.host(*slot).is_some());
        known.map(|(slot, _)| slot)
    }

    /// Remembers who gave the answer that `response` is a digest of, and tells the other workers.
    pub fn answered_by(&mut self, slot: Slot, response: u64) {
        if self.fleet.host(slot).is_none() {
            return;
        }
        let (block, stamp) = (response_block(response), self.stamp(slot));
        self.index.record(block, slot, stamp, &self.fleet);
        self.outbox.note(&Placement { slot, stamp, blocks: vec![block] });
    }

    /// Remembers who had a request of the conversation that `name` is a digest of, and tells the other workers.
    pub fn has_session(&mut self, slot: Slot, name: u64) {
        let session = self.session(Some(name), None, true);
        self.remember(slot, &session, &mut Remembered::default(), true);
    }

    /// A request whose prompt is not in it, but what names its conversation: `name` is a digest of that, `response` of
    /// the answer that it asks about. It is taken to be as much work as requests are on average.
    pub fn session(&self, name: Option<u64>, response: Option<u64>, has_body: bool) -> Session {
        let bytes = if has_body { (self.uncached_tokens * BYTES_PER_TOKEN) as u64 } else { 0 };
        Session::new(name, response, bytes)
    }

    /// Decides for a request whose prompt is not known, by what names its conversation.
    pub fn decide_session(&self, why: Unread, session: &Session, now_ms: u64) -> Decision {
        let mut walk = Walk::default();
        self.advance(&mut walk, session, true);
        let mut decision = self.decide(&walk, session, session.bytes(), now_ms);
        decision.reason = match decision.reason {
            Reason::Prefix => Reason::Session,
            Reason::Cold | Reason::Spill => Reason::Unread(why),
            other => other,
        };
        decision.matched_bytes = 0;
        decision.cold_mark = None;
        decision.regret = Regret::default();
        decision
    }

    /// Decides for a request whose prompt is not known. One with a body is taken to be as much work as
    /// requests are on average, one without to be none.
    pub fn decide_unread(&self, why: Unread, has_body: bool, now_ms: u64) -> Decision {
        let uncached_tokens = if has_body { self.uncached_tokens } else { 0.0 };
        self.situation(now_ms).route_unread(why, uncached_tokens)
    }

    /// Whether every host is past one of these bounds.
    pub fn overload(&self, bounds: &Shed, now_ms: u64) -> Option<Overload> {
        Overload::of(&self.situation(now_ms), bounds)
    }

    /// What is to be kept of a decision that is not carried out; nothing where it named no host.
    pub fn shadow(&self, decision: &Decision, now_ms: u64) -> Option<Shadow> {
        let chosen = *decision.hosts.first()?;
        let situation = self.situation(now_ms);
        let uncached = decision.uncached_tokens as f64;
        let standing_ms = |host: &Host| (1_000.0 * situation.standing_s(host, uncached)) as u32;
        let hosts = self.fleet.hosts().iter();
        Some(Shadow { chosen, standing_ms: hosts.map(|host| (host.slot, standing_ms(host))).collect() })
    }

    /// Tokens of so many bytes of a prompt.
    pub fn tokens(&self, bytes: u64, prompt: &impl Outline) -> u64 {
        (bytes as f64 / self.bytes_a_token(prompt)) as u64
    }

    /// The fleet's queue at this moment.
    pub fn reading(&self, shed: Option<u64>, now_ms: u64) -> Reading {
        Reading::of(&self.situation(now_ms), shed)
    }

    /// Whether the stream counts on a host.
    pub fn has(&self, stream: u32) -> bool {
        self.held.contains_key(&stream)
    }

    fn situation(&self, now_ms: u64) -> Situation<'_> {
        let freshness = Freshness { now_ms, stale_after_ms: self.stale_after_ms };
        Situation {
            fleet: &self.fleet,
            load: FleetLoad::of(&self.fleet, freshness, self.uncached_tokens),
            freshness,
            routing: &self.routing,
            warm_up: self.warm_up,
            part: self.part,
            foreign_share: self.foreign_share,
            candidates: self.candidates,
        }
    }

    /// The decision is being carried out: the stream counts on its host from now on.
    pub fn commit(&mut self, stream: u32, decision: &Decision, now_ms: u64) -> Option<Change> {
        let slot = *decision.hosts.first()?;
        let tokens = decision.uncached_tokens;
        if matches!(decision.reason, Reason::Prefix | Reason::Spill | Reason::Cold) {
            self.uncached_tokens += GAIN * (tokens as f64 - self.uncached_tokens);
        }
        let mut ahead = tokens;
        if let Some(host) = self.fleet.host_mut(slot) {
            host.health.tried_by(stream, now_ms);
            ahead += host.own.prefill_tokens + host.peers.prefill_tokens;
        }
        let held = Held {
            slot,
            at_ms: now_ms,
            ahead_tokens: ahead,
            matched_age_tokens: decision.matched_age_tokens,
            cold_mark: decision.cold_mark,
            is_shared: decision.is_shared,
            prefill_tokens: tokens,
            spared_tokens: decision.spared_tokens,
            over_at_ms: None,
            work: Work::of(decision.reason),
            asked_ms: None,
        };
        self.held.insert(stream, held);
        Some(self.apply_change(Change {
            slot,
            requests: 1,
            prefill_tokens: tokens as i64,
            sent_tokens: (tokens + decision.spared_tokens) as i64,
            cold: i64::from(decision.reason == Reason::Cold),
            cold_mark: decision.cold_mark,
        }))
    }

    /// The request's body has been sent to its end: its engine has it from now on.
    pub fn asked(&mut self, stream: u32, now_ms: u64) {
        if let Some(held) = self.held.get_mut(&stream) {
            held.asked_ms = Some(now_ms.max(held.at_ms));
        }
    }

    /// The prompt has been read and walked to its end after it was decided by its head: corrects what its host was
    /// taken to have to prefill.
    pub fn correct(&mut self, stream: u32, walk: &Walk, prompt: &impl Outline) -> Option<Change> {
        let slot = self.held.get(&stream)?.slot;
        let uncached_bytes = prompt.bytes().saturating_sub(walk.matched(slot));
        let tokens = self.tokens(uncached_bytes, prompt);
        let held = self.held.get_mut(&stream).filter(|held| held.prefill_tokens > 0)?;
        let tokens = if held.is_shared { unshared(tokens) } else { tokens };
        let tokens = tokens.saturating_sub(held.spared_tokens);
        let more = tokens as i64 - held.prefill_tokens as i64;
        held.ahead_tokens = held.ahead_tokens.saturating_add_signed(more);
        held.prefill_tokens = tokens;
        Some(self.apply_change(Change { slot, prefill_tokens: more, sent_tokens: more, ..Change::default() }))
    }

    fn bytes_a_token(&self, prompt: &impl Outline) -> f64 {
        if prompt.is_token_ids() {
            BYTES_PER_TOKEN
        } else {
            self.bytes_per_token.of(prompt.model())
        }
    }

    /// The response will come in one piece: its first byte will not show when the prefill is over, so it
    /// is taken to be over after the time that it and what stands before it should take.
    pub fn will_not_stream(&mut self, stream: u32, now_ms: u64) {
        if let Some(held) = self.held.get_mut(&stream) {
            let queued = self.fleet.host(held.slot).map_or(0, |host| host.own.prefill_tokens);
            let seconds = queued.max(held.prefill_tokens) as f64 / PREFILL_OVER_RATE;
            held.over_at_ms = Some(now_ms + (seconds * 1_000.0) as u64);
        }
    }

    /// Remembers that a host was sent what of the prompt is not `remembered` yet, and tells the other workers. With
    /// `whole`, in both views.
    pub fn remember(&mut self, slot: Slot, prompt: &impl Outline, remembered: &mut Remembered, whole: bool) {
        // A host that has left: its slot may be another's when the next request comes.
        if self.fleet.host(slot).is_none() {
            return;
        }
        let stamp = self.stamp(slot);
        let early = prompt.view(false);
        if early.id != remembered.view {
            *remembered = Remembered { view: early.id, ..Remembered::default() };
        }
        // What stood behind the text was not known before now.
        let also = (whole && !remembered.whole).then(|| prompt.view(true)).filter(|view| view.id != early.id);
        let mut blocks = Vec::new();
        let news = early.keys().skip(remembered.depth);
        let assumed = early.assumed().filter(|_| whole);
        for block in news.chain(also.iter().flat_map(View::keys)).map(|(block, _)| block).chain(assumed) {
            if self.index.record(block, slot, stamp, &self.fleet) {
                blocks.push(block);
            }
        }
        self.outbox.note(&Placement { slot, stamp, blocks });
        remembered.depth = early.depth();
        remembered.first = first_of(&early);
        remembered.whole = whole;
    }

    /// Another worker placed a prompt.
    pub fn hear(&mut self, placement: &Placement) {
        if self.fleet.host(placement.slot).is_none() {
            return;
        }
        for &block in &placement.blocks {
            self.index.record(block, placement.slot, placement.stamp, &self.fleet);
        }
    }

    /// Another gateway placed a prompt, lately by its own clock: stamped by this one's. Answers what of it was news, for
    /// this gateway's other workers.
    pub fn hear_from_peer(&mut self, slot: Slot, blocks: &[BlockHash]) -> Option<Placement> {
        self.fleet.host(slot)?;
        let stamp = self.stamp(slot);
        let (index, fleet) = (&mut self.index, &self.fleet);
        let blocks: Vec<BlockHash> =
            blocks.iter().copied().filter(|block| index.record(*block, slot, stamp, fleet)).collect();
        (!blocks.is_empty()).then_some(Placement { slot, stamp, blocks })
    }

    /// Another host than the one decided for served the request.
    pub fn moved(
        &mut self,
        stream: u32,
        to: Slot,
        prompt: Option<(&impl Outline, bool)>,
    ) -> Option<[Change; 2]> {
        let held = self.held.get_mut(&stream)?;
        let from = std::mem::replace(&mut held.slot, to);
        let tokens = held.prefill_tokens as i64;
        let (cold_mark, sent_tokens) = (held.cold_mark, tokens + held.spared_tokens as i64);
        if let Some((prompt, whole)) = prompt {
            for (block, _) in prompt.view(false).keys().chain(prompt.view(true).keys()) {
                self.index.withdraw(block, from);
            }
            self.remember(to, prompt, &mut Remembered::default(), whole);
        }
        let unmarked = cold_mark.map(|_| 0);
        let left = Change {
            slot: from,
            requests: -1,
            prefill_tokens: -tokens,
            cold_mark: unmarked,
            ..Change::default()
        };
        let entered = Change {
            slot: to,
            requests: 1,
            prefill_tokens: tokens,
            sent_tokens,
            cold_mark,
            ..Change::default()
        };
        Some([self.apply_change(left), self.apply_change(entered)])
    }

    /// The first byte of the answer has come: the prefill is over, and tells how fast the host is.
    pub fn first_byte(&mut self, stream: u32, now_ms: u64) -> Option<Change> {
        let held = *self.held.get(&stream)?;
        // The first byte of an answer in one piece comes with the last.
        let tells =
            held.over_at_ms.is_none() && held.ahead_tokens >= Pace::LEAST_TOKENS && held.prefill_tokens > 0;
        if self.learning.prefill_rate && tells {
            if let Some(host) = self.fleet.host_mut(held.slot) {
                let seconds = now_ms.saturating_sub(held.at_ms) as f64 / 1_000.0;
                host.pace.observe(held.ahead_tokens, seconds);
            }
        }
        self.prefill_over(stream)
    }

    fn prefill_over(&mut self, stream: u32) -> Option<Change> {
        let held = self.held.get_mut(&stream)?;
        held.over_at_ms = None;
        let tokens = std::mem::take(&mut held.prefill_tokens);
        let slot = held.slot;
        (tokens > 0).then(|| {
            self.apply_change(Change { slot, prefill_tokens: -(tokens as i64), ..Change::default() })
        })
    }

    /// Prefills that are taken to be over by now.
    pub fn prefills_over(&mut self, now_ms: u64) -> Vec<Change> {
        let over = |held: &Held| held.over_at_ms.is_some_and(|at| at <= now_ms);
        let streams: Vec<u32> =
            self.held.iter().filter(|(_, held)| over(held)).map(|(stream, _)| *stream).collect();
        streams.into_iter().filter_map(|stream| self.prefill_over(stream)).collect()
    }

    /// The stream has ended: what it held is released.
    pub fn end(&mut self, stream: u32) -> Option<Change> {
        let held = self.held.remove(&stream)?;
        if let Some(host) = self.fleet.host_mut(held.slot) {
            host.health.ended(stream);
        }
        Some(self.apply_change(Change {
            slot: held.slot,
            requests: -1,
            prefill_tokens: -(held.prefill_tokens as i64),
            ..Change::default()
        }))
    }

    /// A host gave a sign of life, at `now_ms`.
    pub fn worked(&mut self, slot: Slot, sign: Sign, now_ms: u64) {
        if let Some(host) = self.fleet.host_mut(slot) {
            host.health.answered(sign, now_ms);
        }
    }

    /// A request that was sent at `sent_ms` failed by the host's fault.
    pub fn failed(&mut self, slot: Slot, why: Why, sent_ms: u64, now_ms: u64) {
        if let Some(host) = self.fleet.host_mut(slot) {
            host.health.failed(why, sent_ms, now_ms);
        }
    }

    /// Whether anything is held against a host: then it matters when exactly it answers.
    pub fn is_doubted(&self, slot: Slot) -> bool {
        self.fleet.host(slot).is_some_and(|host| host.health.is_doubted())
    }

    /// A byte of an answer came that its engine has generated.
    pub fn gave_byte(&mut self, slot: Slot) {
        if let Some(host) = self.fleet.host_mut(slot) {
            host.gave = true;
        }
    }

    /// Another worker's bulletin, written at `at_ms`, says when hosts gave it bytes.
    pub fn hear_bytes(&mut self, bytes: &[(Slot, u16)], at_ms: u64) {
        for (slot, ago_ms) in bytes {
            if let Some(host) = self.fleet.host_mut(*slot) {
                host.byte_ms = host.byte_ms.max(at_ms.saturating_sub(u64::from(*ago_ms)));
            }
        }
    }

    /// Takes over what all other living workers have against hosts, and for them.
    pub fn hear_seen(&mut self, seen: &[(Slot, Seen)], now_ms: u64) {
        for host in self.fleet.hosts_mut() {
            host.health.forget_others();
        }
        // Before anything is held against a host it must be known when it worked.
        for hear in [Health::heard_good, Health::heard_failures] {
            for (slot, seen) in seen {
                if let Some(host) = self.fleet.host_mut(*slot) {
                    hear(&mut host.health, seen, now_ms);
                }
            }
        }
    }

    /// Looks at a tick who stands still though it has work, and leaves them out; and who moves again. Answers the former.
    pub fn find_still(&mut self, now_ms: u64) -> Vec<Slot> {
        for host in self.fleet.hosts_mut() {
            // What a clock says that has been set back since lies ahead of it.
            if std::mem::take(&mut host.gave) || host.byte_ms > now_ms {
                host.byte_ms = now_ms;
            }
            let seen = host.health.standing();
            let has_moved = host.byte_ms.max(host.polled.moved_ms) > seen.failed_ms;
            if seen.failures > 0 && seen.why == Why::Silent && has_moved {
                host.health.answered(Sign::Generated, now_ms);
            }
        }
        if self.wedged_after_ms == 0 {
            return Vec::new();
        }
        let mut still = Vec::new();
        for (slot, open) in self.open() {
            if self.is_still(slot, open, now_ms) {
                self.failed(slot, Why::Silent, now_ms, now_ms);
                still.push(slot);
            }
        }
        still
    }

    /// What this worker has open on each host that engines compute.
    fn open(&self) -> Vec<(Slot, Open)> {
        let mut all: Vec<(Slot, Open)> = Vec::new();
        for held in self.held.values().filter(|held| held.work != Work::Unknown) {
            let Some(since_ms) = held.asked_ms else { continue };
            let streams = held.work == Work::Read && held.over_at_ms.is_none() && held.prefill_tokens > 0;
            let one = Open { since_ms, ahead_tokens: held.ahead_tokens, streams };
            match all.iter_mut().find(|(slot, _)| *slot == held.slot) {
                Some((_, open)) => {
                    open.since_ms = open.since_ms.min(one.since_ms);
                    open.ahead_tokens = open.ahead_tokens.max(one.ahead_tokens);
                    open.streams |= streams;
                }
                None => all.push((held.slot, one)),
            }
        }
        all
    }

    fn is_still(&self, slot: Slot, open: Open, now_ms: u64) -> bool {
        let Some(host) = self.fleet.host(slot).filter(|host| !host.health.is_suspect(now_ms)) else {
            return false;
        };
        let seen = host.health.standing();
        let found_out_ms = if seen.failures > 0 && seen.why == Why::Silent { seen.failed_ms } else { 0 };
        let sight = Sight {
            open,
            polled: &host.polled,
            heard_ms: host.byte_ms.max(found_out_ms),
            queued_tokens: host.own.prefill_tokens.saturating_add(host.peers.prefill_tokens),
            pace: host.pace.rate(),
            usual_pace: self.routing.prefill_tokens_per_s,
        };
        sight.is_still(self.wedged_after_ms, now_ms) && self.others_go_on(slot, sight.quiet_since_ms())
    }

    /// Whether another host has given a byte or made a step since, or none has anything to do: where all stand still, it
    /// is not the hosts.
    fn others_go_on(&self, slot: Slot, since_ms: u64) -> bool {
        let others = || self.fleet.hosts().iter().filter(|host| host.slot != slot);
        others().any(|host| host.byte_ms.max(host.polled.moved_ms) > since_ms)
            || others().all(|host| host.own.requests == 0)
    }

    /// The engine told what a stream's prompt was. `predicted_bytes` of it were believed to be on the host that served;
    /// `whole` says that the prompt was read to its end. To be called before the stream ends.
    pub fn learn(
        &mut self,
        stream: u32,
        prompt: &impl Outline,
        whole: bool,
        predicted_bytes: u64,
        usage: &Usage,
    ) {
        if self.learning.bytes_per_token && whole && !prompt.is_token_ids() {
            self.bytes_per_token.learn(prompt.model(), prompt.bytes(), usage.prompt_tokens);
        }
        let predicted = self.tokens(predicted_bytes, prompt);
        let Some(cached) = usage.cached_tokens.filter(|_| self.learning.capacity) else { return };
        let Some(held) = self.held.get(&stream) else { return };
        // What is fetched from a tier is told as cached, too: of the host's own cache that says nothing.
        let tells = |host: &&mut Host| predicted >= LEAST_PREDICTED && !host.polled.lookups.finds();
        if let Some(host) = self.fleet.host_mut(held.slot).filter(tells) {
            let capacity = host.capacity_tokens();
            let keeps = host.told_keeps.get_or_insert_default();
            keeps.observe(predicted, cached, held.matched_age_tokens, capacity);
        }
    }

    /// What this worker publishes at its tick.
    pub fn publish(&mut self, worker: u64, now_ms: u64) -> Vec<u8> {
        let holdings = self.holdings();
        let (mut bytes, mut seen) = (Vec::new(), Vec::new());
        for host in self.fleet.hosts() {
            let ago_ms = if host.gave { 0 } else { now_ms.saturating_sub(host.byte_ms) };
            if ago_ms < BYTES_TOLD_MS {
                bytes.push((host.slot, ago_ms as u16));
            }
            if let Some(told) = host.health.told(now_ms).filter(|_| seen.len() < MOST_SEEN) {
                seen.push((host.slot, told));
            }
        }
        self.outbox.publish(&Bulletin { worker, at_ms: now_ms, holdings, bytes, seen })
    }

    /// What this worker has in flight, by host.
    pub fn holdings(&self) -> Vec<Holding> {
        let mut holdings: Vec<Holding> = Vec::new();
        for held in self.held.values() {
            let place = holdings.iter().position(|holding| holding.slot == held.slot);
            let place = place.unwrap_or_else(|| {
                holdings.push(Holding { slot: held.slot, ..Holding::default() });
                holdings.len() - 1
            });
            if let Some(holding) = holdings.get_mut(place) {
                holding.requests += 1;
                holding.prefill_tokens += held.prefill_tokens;
            }
        }
        holdings
    }

    /// Placements that the journal had no room for, since the last call.
    pub fn take_untold(&mut self) -> u64 {
        self.outbox.take_dropped()
    }

    fn stamp(&self, slot: Slot) -> Stamp {
        Stamp::at(self.fleet.host(slot).map_or(0, |host| host.clock_tokens()))
    }

    /// Brings the own view up to date at once; the shell does the same to the gauges.
    fn apply_change(&mut self, change: Change) -> Change {
        if let Some(host) = self.fleet.host_mut(change.slot) {
            let own = &mut host.own;
            own.requests =
                u32::try_from((i64::from(own.requests) + change.requests).max(0)).unwrap_or(u32::MAX);
            own.begun = own.begun.saturating_add_signed(change.requests.max(0));
            own.prefill_tokens = own.prefill_tokens.saturating_add_signed(change.prefill_tokens);
            own.sent_tokens = own.sent_tokens.saturating_add_signed(change.sent_tokens);
            own.cold_placed = own.cold_placed.saturating_add_signed(change.cold);
            own.cold_mark = change.cold_mark.unwrap_or(own.cold_mark);
        }
        change
    }
}

fn first_of(view: &View) -> Option<BlockHash> {
    view.keys().next().map(|(block, _)| block)
}
