//! Which hosts are there, how are they, and what do they hold at most?
//!
//! A host is known by its *slot*, a small number that stays its own while it is in the fleet and bounds
//! every table and metric name. What is known of it comes from three sources, kept apart because they
//! fail apart: what its engine said when last polled ([`Polled`], from the leader's snapshot), what this
//! proxy has under way on it ([`Own`], exact and immediate, summed over workers by Envoy's gauges), and
//! how its last requests ended ([`Health`], which the workers tell each other).
//!
//! Unknown is not zero and not full: a host without a fresh answer is judged by [`Own`] and by the mean of
//! the others ([`super::load`]).

use super::adapters::Adapters;
use super::drains::{Drains, Mark, Marker};
use super::health::Health;
use super::index::{Liveness, Stamp};
use super::learning::{Keeps, Pace};
use super::life::Life;
use super::members::{Members, View};
use super::scrape::EngineSample;
use super::tier::Lookups;

/// A host's number in the fleet; stays its own while it is in the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Slot(pub u16);

/// By how much a clock jumps when its engine has restarted: more than the largest cache that may be configured.
const RESTART_TOKENS: u64 = 200_000_000;

/// What an engine said when it was last polled, and what this proxy had on it then.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Polled {
    /// When, in milliseconds of the wall clock. 0: never.
    pub at_ms: u64,
    /// Requests running.
    pub running: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Share of KV blocks in use, 0 to 1; NaN if it did not say.
    pub kv_usage: f64,
    /// Tokens its cache holds; 0 if it did not say.
    pub capacity_tokens: u64,
    /// The host's virtual clock: tokens that entered its cache. Starts at 0 when first polled and jumps
    /// past the capacity when the engine restarts, which makes every older stamp expire.
    pub clock_tokens: u64,
    /// The most tokens that its counters ever said had entered: differenced into the clock. Engines count a
    /// prompt's hits when they schedule it and the prompt itself when it is done, so between the two the
    /// difference goes back.
    pub counted_tokens: f64,
    /// Its counter of prompt tokens; one that goes back tells a restart.
    pub prompt_tokens: f64,
    /// When its process started, seconds of the wall clock; 0 if it did not say.
    pub started_s: f64,
    /// Requests of this proxy and of its peers that the answer may include: a request that ended while it was on its
    /// way must not be taken for somebody else's until the next poll.
    pub known_requests: u32,
    /// [`Own`] tokens sent at that moment.
    pub own_sent_tokens: u64,
    /// Prompt tokens that it computed since it started, by its counters; they go back a little at times.
    pub computed_tokens: f64,
    /// Of late: prompt tokens that it computed, and that were expected to be uncached.
    pub computed_lately: f64,
    /// See [`Polled::computed_lately`].
    pub expected_lately: f64,
    /// How much of its capacity it keeps prefixes for, by these two.
    pub keeps: Keeps,
    /// What it looked up in a KV tier outside its own cache.
    pub lookups: Lookups,
    /// LoRA adapters that it has loaded.
    pub adapters: Adapters,
    /// Whether it sleeps: it takes requests, and lets them hang.
    pub asleep: bool,
    /// Polls that failed since the last good one.
    pub failures: u32,
    /// Its counters of steps and of prompt and generated tokens, added up: whoever computes moves it.
    pub moves: f64,
    /// When that had last moved, in milliseconds of the wall clock; 0 if it counts none of them.
    pub moved_ms: u64,
    /// Whether it counts its steps.
    pub counts_steps: bool,
}

impl Polled {
    /// The state after a poll that was answered. Pure, so that whoever leads next goes on from the
    /// snapshot. An answer that does not tell both running and waiting requests is a failed poll: half of a
    /// load is not a load.
    ///
    /// `asked` is what this proxy had on the host when the poll was sent, `own` what it has now; `told` is how many
    /// requests other gateways have there.
    pub fn after(&self, sample: &EngineSample, asked: &Own, own: &Own, told: u32, now_ms: u64) -> Self {
        let (Some(running), Some(waiting)) = (sample.running, sample.waiting) else {
            return self.after_failure();
        };
        let prompt_tokens = sample.prompt_tokens.unwrap_or(self.prompt_tokens);
        let started_s = sample.start_time_seconds.unwrap_or(self.started_s);
        let capacity_tokens = sample.capacity_tokens.map_or(self.capacity_tokens, |tokens| tokens as u64);
        let counted = entered_tokens(sample).unwrap_or(self.counted_tokens);
        let asleep = sample.awake == Some(false);
        // Sleep drops what is in the cache, as a restart does.
        let restarted = self.is_restart(prompt_tokens, started_s) || (self.asleep && !asleep);
        let loaded = if restarted { Adapters::default() } else { self.adapters };
        let moves = moves(sample);
        let has_moved = moves.is_some_and(|moves| self.moved_ms == 0 || moves != self.moves);
        let (entered, counted_tokens) = if self.at_ms == 0 {
            (0, counted)
        } else if restarted {
            // More than any cache holds: every older stamp expires.
            (RESTART_TOKENS.max(2 * capacity_tokens.max(self.capacity_tokens)), counted)
        } else {
            ((counted - self.counted_tokens).max(0.0) as u64, counted.max(self.counted_tokens))
        };
        Self {
            at_ms: now_ms,
            running,
            waiting,
            kv_usage: sample.kv_usage.unwrap_or(f64::NAN),
            capacity_tokens,
            clock_tokens: self.clock_tokens + entered,
            counted_tokens,
            prompt_tokens,
            started_s,
            known_requests: (asked.requests.saturating_add(own.begun.saturating_sub(asked.begun) as u32))
                .saturating_add(told),
            own_sent_tokens: own.sent_tokens,
            lookups: self.lookups.after(sample.external_prefix_queries, sample.external_prefix_hits),
            adapters: loaded.named(&sample.lora_adapters, sample.max_lora),
            asleep,
            failures: 0,
            moves: moves.unwrap_or(self.moves),
            moved_ms: if has_moved { now_ms } else { self.moved_ms },
            counts_steps: sample.iterations.is_some(),
            ..*self
        }
        .compared(self, sample, own, restarted)
    }

    /// Compares what the engine computed since the poll `before` with what was expected to be uncached.
    fn compared(mut self, before: &Self, sample: &EngineSample, own: &Own, restarted: bool) -> Self {
        let Some((prompt, hits)) = sample.prompt_tokens.zip(sample.prefix_hits) else { return self };
        self.computed_tokens = prompt - hits;
        // What others send is not expected by anybody.
        let all_known = f64::from(self.known_requests) >= self.running + self.waiting;
        if before.at_ms == 0 || restarted || !all_known {
            return self;
        }
        let sent = own.sent_tokens.saturating_sub(before.own_sent_tokens);
        self.computed_lately =
            LATELY * before.computed_lately + self.computed_tokens - before.computed_tokens;
        self.expected_lately = LATELY * before.expected_lately + sent as f64;
        if self.expected_lately > LEAST_EXPECTED {
            self.keeps.drift(self.computed_lately, self.expected_lately);
        }
        self
    }

    /// Whether the engine is another process than the one polled before.
    fn is_restart(&self, prompt_tokens: f64, started_s: f64) -> bool {
        // A second's tolerance: engines of several processes report the start of varying children.
        let began_later = self.started_s > 0.0 && started_s > self.started_s + 1.0;
        began_later || prompt_tokens < self.prompt_tokens
    }

    /// The state after a failed poll: what was known ages, nothing else changes.
    pub fn after_failure(&self) -> Self {
        Self { failures: self.failures.saturating_add(1), ..*self }
    }
}

/// What a poll leaves of earlier ones' weight: at two a second, half a minute's worth counts.
const LATELY: f64 = 0.98;

/// Uncached tokens that must have been expected of late to compare anything with.
const LEAST_EXPECTED: f64 = 50_000.0;

/// Tokens that entered the cache since the engine started: computed prompt tokens and generated ones.
/// Prompt tokens that were hits were there already. `None` if the engine does not count.
fn entered_tokens(sample: &EngineSample) -> Option<f64> {
    let prompt = sample.prompt_tokens?;
    let hits = sample.prefix_hits.unwrap_or(0.0).min(prompt);
    Some(prompt - hits + sample.generation_tokens.unwrap_or(0.0))
}

/// All that an engine counts up while it computes; `None` if it counts nothing.
fn moves(sample: &EngineSample) -> Option<f64> {
    let counters = [sample.iterations, sample.prompt_tokens, sample.generation_tokens];
    let told = || counters.into_iter().flatten();
    told().next().map(|_| told().sum())
}

/// What this proxy has on a host, all workers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Own {
    /// Requests in flight.
    pub requests: u32,
    /// Requests ever begun; only differences matter.
    pub begun: u64,
    /// Uncached prompt tokens of requests without a first byte yet.
    pub prefill_tokens: u64,
    /// Uncached prompt tokens ever sent; only differences matter.
    pub sent_tokens: u64,
    /// Cold prompts ever placed on it; only differences matter.
    pub cold_placed: u64,
    /// What marks the last of these: other workers cannot know yet that it is there.
    pub cold_mark: u64,
}

/// What other gateways have on a host, as they said within the last seconds; nothing if they are silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peers {
    /// Requests in flight.
    pub requests: u32,
    /// Uncached prompt tokens of requests without a first byte yet.
    pub prefill_tokens: u64,
}

/// Which hosts a gateway fills first, so that gateways that cannot see each other's newest requests do not all choose
/// the same host: every `of`th in the order of addresses, from `rank` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// This gateway's place among those that are alive, from 0.
    pub rank: u16,
    /// How many are alive.
    pub of: u16,
}

impl Part {
    /// The whole fleet: there is one gateway.
    pub const ALL: Part = Part { rank: 0, of: 1 };

    /// Whether this gateway fills a host first.
    pub fn has(self, host: &Host) -> bool {
        host.turn % self.of.max(1) == self.rank
    }
}

/// One host.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// As Envoy prints it, `ip:port`.
    pub address: String,
    /// Its number.
    pub slot: Slot,
    /// What its engine said.
    pub polled: Polled,
    /// What this proxy has on it.
    pub own: Own,
    /// What other gateways have on it.
    pub peers: Peers,
    /// Tokens that its cache is taken to hold while its engine has not said.
    capacity_unsaid: u64,
    /// How fast it prefills, as this worker saw it.
    pub pace: Pace,
    /// That against the fleet's median: 1 if it is like the others.
    pub speed: f64,
    /// How much of its capacity it keeps prefixes for, as it told this worker; nothing if it does not tell.
    pub told_keeps: Option<Keeps>,
    /// Its place in the order of addresses, the same for every gateway with these hosts.
    pub turn: u16,
    /// How its last requests ended.
    pub health: Health,
    /// When it last gave a byte of an answer to any worker, in milliseconds of the wall clock and to a tick.
    pub byte_ms: u64,
    /// Whether it has given one to this worker since the last tick.
    pub gave: bool,
    /// Its mark, if it is to go.
    pub marked: Option<Mark>,
    /// How Envoy sees it, if it is asked.
    pub envoy: View,
    /// Whether what it holds does not count, because new requests go elsewhere and will for a while.
    is_away: bool,
    /// What [`Own::cold_placed`] was when counting began; `None` before it was read. Moved up now and then, so that
    /// the past fades, and for a host that joins set so that it begins with as many as the others have.
    cold_since: Option<i64>,
}

/// Cold prompts a host on average at which all counts are halved.
const COLD_HALVED_AT: i64 = 256;

impl Host {
    /// The virtual clock now: the polled one, and what was sent since.
    pub fn clock_tokens(&self) -> u64 {
        self.polled.clock_tokens + self.own.sent_tokens.saturating_sub(self.polled.own_sent_tokens)
    }

    /// Cold prompts that were placed on it lately.
    pub fn cold_lately(&self) -> i64 {
        self.cold_since.map_or(0, |since| self.own.cold_placed as i64 - since)
    }

    /// Tokens its cache holds, as it said, or as the configuration says.
    pub fn capacity_tokens(&self) -> u64 {
        match self.polled.capacity_tokens {
            0 => self.capacity_unsaid,
            said => said,
        }
    }

    /// Tokens that enter its cache before a prefix is taken to be evicted.
    fn kept_tokens(&self) -> u64 {
        let keeps = self.told_keeps.unwrap_or(self.polled.keeps);
        (self.capacity_tokens() as f64 * keeps.share()) as u64
    }

    /// Tokens that have entered its cache since `stamp`.
    pub fn age_tokens(&self, stamp: Stamp) -> u64 {
        stamp.age(self.clock_tokens())
    }
}

/// All hosts, as one worker sees them.
#[derive(Debug, Default)]
pub struct Fleet {
    hosts: Vec<Host>,
    /// Slot -> place in `hosts`.
    places: Vec<Option<u16>>,
    /// Places in `hosts`, in the order of addresses.
    order: Vec<u16>,
}

impl Fleet {
    /// Takes a new list of hosts, whose caches are taken to hold `capacity_unsaid` tokens while their engines have not
    /// said. A host that stays in its slot keeps what is known of it. Answers the
    /// slots whose number is no longer the host's it was.
    pub fn assign(&mut self, roster: &[(String, Slot)], capacity_unsaid: u64) -> Vec<Slot> {
        let old = std::mem::take(&mut self.hosts);
        self.places.clear();
        for (address, slot) in roster {
            let place = usize::from(slot.0);
            if self.places.len() <= place {
                self.places.resize(place + 1, None);
            }
            if let Some(entry) = self.places.get_mut(place) {
                *entry = Some(self.hosts.len() as u16);
            }
            let kept = old.iter().find(|host| host.slot == *slot && host.address == *address);
            self.hosts.push(kept.cloned().unwrap_or_else(|| Host {
                address: address.clone(),
                slot: *slot,
                polled: Polled::default(),
                own: Own::default(),
                peers: Peers::default(),
                capacity_unsaid: 0,
                pace: Pace::default(),
                speed: 1.0,
                told_keeps: None,
                turn: 0,
                health: Health::default(),
                byte_ms: 0,
                gave: false,
                marked: None,
                envoy: View::default(),
                is_away: false,
                cold_since: None,
            }));
        }
        self.order.clear();
        for (place, host) in self.hosts.iter().enumerate() {
            let at = self.turn_of(&host.address);
            self.order.insert(at, place as u16);
        }
        for (turn, place) in self.order.iter().enumerate() {
            if let Some(host) = self.hosts.get_mut(usize::from(*place)) {
                host.turn = turn as u16;
            }
        }
        for host in &mut self.hosts {
            host.capacity_unsaid = capacity_unsaid;
        }
        let stays = |host: &Host| self.host(host.slot).is_some_and(|new| new.address == host.address);
        old.iter().filter(|host| !stays(host)).map(|host| host.slot).collect()
    }

    /// Begins to count cold prompts on hosts that are new, and halves all counts once they are large. To be called
    /// when [`Own`] has been read. Hosts that are away are counted as if they had their share: they shall neither look
    /// like ones that lag behind when they return, nor make the others look ahead.
    pub fn settle_cold(&mut self) {
        let counted = || self.hosts.iter().filter(|host| host.cold_since.is_some() && !host.is_away);
        let hosts = (counted().count() as i64).max(1);
        let mean = counted().map(Host::cold_lately).sum::<i64>() / hosts;
        for host in &mut self.hosts {
            let lately = host.cold_lately();
            let since = host.cold_since.get_or_insert(host.own.cold_placed as i64 - mean);
            if mean > COLD_HALVED_AT {
                *since += lately / 2;
            }
            if host.is_away {
                *since = host.own.cold_placed as i64 - mean;
            }
        }
    }

    /// Sees who is away: what such hosts hold shall not steer requests that go elsewhere anyway. A prompt that only they
    /// hold is new to the others, and gets a new home as new prompts do; so do all that begin like it. What they hold is
    /// not forgotten, and counts again when they are back. Not so for suspect ones, which are back within seconds, and
    /// not where nobody is left. To be called when anything has changed that [`Life`] is told from.
    pub fn settle_away(&mut self) {
        // At the end of time no back-off lasts.
        let is_away = |host: &Host| Life::of(host, u64::MAX).resort() != Some(0);
        let somebody_is_there = self.hosts.iter().any(|host| !is_away(host));
        for host in &mut self.hosts {
            host.is_away = somebody_is_there && is_away(host);
        }
    }

    /// Takes over which hosts are marked to go: those of the configuration, those that were marked since, and those of
    /// which Envoy says so.
    pub fn settle_drains(&mut self, configured: &[String], drains: &Drains) {
        for host in &mut self.hosts {
            let is_configured = configured.contains(&host.address);
            let always = is_configured.then_some(Mark { since_ms: 0, by: Marker::Configuration });
            let told = always.or_else(|| drains.of(&host.address));
            host.marked = told.or_else(|| host.envoy.standing.mark());
        }
        self.settle_away();
    }

    /// Takes over how Envoy sees the hosts; without `members` nobody has asked it.
    pub fn settle_members(&mut self, members: Option<&Members>) {
        for host in &mut self.hosts {
            host.envoy = View::default();
        }
        for member in members.iter().flat_map(|members| &members.hosts) {
            let slot = self.by_address(&member.address).map(|host| host.slot);
            if let Some(host) = slot.and_then(|slot| self.host_mut(slot)) {
                host.envoy = member.view;
            }
        }
        self.settle_away();
    }

    /// Compares the hosts' paces.
    pub fn settle_paces(&mut self) {
        // Put in place one by one: the library's sort is 6 KiB of wasm for each type.
        let mut paces: Vec<f64> = Vec::new();
        for pace in self.hosts.iter().filter_map(|host| host.pace.rate()) {
            paces.insert(paces.partition_point(|other| *other < pace), pace);
        }
        let median = paces.get(paces.len() / 2).copied();
        for host in &mut self.hosts {
            host.speed = median.map_or(1.0, |median| host.pace.against(median));
        }
    }

    /// The hosts, in the order of the roster.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts, to be updated.
    pub fn hosts_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    /// The host in a slot.
    pub fn host(&self, slot: Slot) -> Option<&Host> {
        let place = (*self.places.get(usize::from(slot.0))?)?;
        self.hosts.get(usize::from(place))
    }

    /// The host in a slot, to be updated.
    pub fn host_mut(&mut self, slot: Slot) -> Option<&mut Host> {
        let place = (*self.places.get(usize::from(slot.0))?)?;
        self.hosts.get_mut(usize::from(place))
    }

    /// The host with an address.
    pub fn by_address(&self, address: &str) -> Option<&Host> {
        let place = self.order.get(self.turn_of(address))?;
        self.hosts.get(usize::from(*place)).filter(|host| host.address == address)
    }

    /// How many hosts stand before an address, in the order of addresses.
    fn turn_of(&self, address: &str) -> usize {
        let stands_before = |host: &Host| host.address.as_str() < address;
        self.order.partition_point(|place| self.hosts.get(usize::from(*place)).is_some_and(stands_before))
    }
}

impl Liveness for Fleet {
    fn holds(&self, slot: Slot, stamp: Stamp) -> bool {
        self.host(slot).is_some_and(|host| !host.is_away && host.age_tokens(stamp) < host.kept_tokens())
    }

    fn may_return(&self, slot: Slot, stamp: Stamp) -> bool {
        self.host(slot).is_some_and(|host| host.is_away && host.age_tokens(stamp) < host.kept_tokens())
    }
}
