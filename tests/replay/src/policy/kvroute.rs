//! kvroute itself: the core that is in the wasm, driven as the shell drives it.
//!
//! Each gateway has its workers, each with a [`Router`] of its own. What Envoy shares between them is here too: the
//! in-flight gauges, the journal that is written and heard at ticks, the leader's snapshot.

use super::account::Account;
use super::{Arrival, Policy, View};
use crate::outline::{Seen, TracePrompt};
use crate::trace::Request;
use kvroute::core::config::Config;
use kvroute::core::fleet::{Own, Part, Peers, Slot};
use kvroute::core::health::{Sign, Why};
use kvroute::core::journal::{Inbox, Placement};
use kvroute::core::prompt::Outline;
use kvroute::core::route::{Decision, Reason, Walk};
use kvroute::core::router::{Change, Router};
use kvroute::core::scrape::EngineSample;
use kvroute::core::snapshot::Snapshot;
use kvroute::core::usage::Usage;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Milliseconds between two ticks of a worker, as in `proxy/root.rs`.
const TICK_MS: u64 = 50;

/// The wall clock when a run begins, in milliseconds.
const EPOCH_MS: u64 = 1_000_000_000;

/// The gauges of hosts are read again after this many microseconds a host, as in `proxy/worker.rs`.
const GAUGES_GOOD_US_PER_HOST: u64 = 250;

/// Tokens of a cache that never evicts: more than any host computes, and stamps can count it.
const FOR_EVER_TOKENS: f64 = 1e10;

/// How a fleet of gateways is set up.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Gateways.
    pub gateways: usize,
    /// Workers of each.
    pub workers: usize,
    /// Milliseconds between two exchanges of placements among gateways; none without `peers`.
    pub peers_ms: Option<u64>,
    /// Bytes of prompt text that a token has.
    pub bytes_per_token: f64,
    /// Whether requests announce their length.
    pub announced: bool,
    /// Whether engines tell `cached_tokens`.
    pub told: bool,
    /// Keys of the plugin's configuration, over those of envoy/envoy.yaml.
    pub config: serde_json::Value,
    /// What the router has to do without.
    pub without: Without,
    /// Draws addresses and workers.
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            gateways: 1,
            workers: 1,
            peers_ms: None,
            bytes_per_token: 4.4,
            announced: true,
            told: true,
            config: serde_json::json!({}),
            without: Without::default(),
            seed: 0,
        }
    }
}

/// Ingredients that no configuration takes out, for ablation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Without {
    /// Placements are not remembered: every prompt is new.
    pub index: bool,
    /// Prefill tokens that stand before a request are not known; requests are.
    pub queue: bool,
    /// What was placed is believed to be held for ever.
    pub liveness: bool,
}

impl Without {
    /// What is left of what a poll says.
    fn leaves(self, sample: &EngineSample) -> EngineSample {
        let mut left = sample.clone();
        if self.queue {
            left.running = sample.running.zip(sample.waiting).map(|(running, waiting)| running + waiting);
            left.waiting = Some(0.0);
        }
        if self.liveness {
            left.capacity_tokens = Some(FOR_EVER_TOKENS);
        }
        left
    }
}

/// All gateways of a run.
#[derive(Debug)]
pub struct Kvroute {
    setup: Setup,
    config: Config,
    gateways: Vec<Gateway>,
    /// Where each request is: gateway, worker, host.
    placed: Vec<Option<Placed>>,
    random: ChaCha8Rng,
    ticks: u64,
    account: Account,
    /// What each gateway last told the others that it has in flight.
    said: Vec<Vec<Own>>,
}

#[derive(Debug, Clone, Copy)]
struct Placed {
    gateway: usize,
    worker: usize,
    host: usize,
    prompt_bytes: u64,
    prompt_tokens: u32,
    predicted_tokens: u64,
}

#[derive(Debug)]
struct Gateway {
    workers: Vec<Worker>,
    /// The gauges, by slot; and as they were at the leader's last tick.
    own: Vec<Own>,
    own_at_tick: Vec<Own>,
    /// The gauges of what other gateways have.
    peers: Vec<Peers>,
    /// What they were when the poll under way was sent.
    asked: Vec<Own>,
    snapshot: Snapshot,
    /// What each worker last published.
    values: Vec<Vec<u8>>,
    /// Placements that other gateways have not been told.
    for_peers: Vec<Placement>,
    collected: Vec<Inbox>,
}

#[derive(Debug)]
struct Worker {
    router: Router,
    inboxes: Vec<Inbox>,
    gauges_read_us: u64,
}

impl Kvroute {
    /// Gateways over hosts 0 to `hosts` - 1.
    pub fn new(setup: &Setup, hosts: usize) -> Self {
        let config = configuration(setup);
        let gateway = || Gateway {
            workers: (0..setup.workers)
                .map(|_| Worker {
                    router: Router::new(&config),
                    inboxes: vec![Inbox::default(); setup.workers],
                    gauges_read_us: 0,
                })
                .collect(),
            own: Vec::new(),
            own_at_tick: Vec::new(),
            peers: Vec::new(),
            asked: Vec::new(),
            snapshot: Snapshot::default(),
            values: vec![Vec::new(); setup.workers],
            for_peers: Vec::new(),
            collected: vec![Inbox::default(); setup.workers],
        };
        let mut kvroute = Self {
            gateways: (0..setup.gateways).map(|_| gateway()).collect(),
            placed: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(setup.seed),
            ticks: 0,
            account: Account::default(),
            said: vec![Vec::new(); setup.gateways],
            setup: setup.clone(),
            config,
        };
        kvroute.hosts(&(0..hosts).collect::<Vec<_>>(), 0);
        kvroute
    }

    fn address(&self, host: usize) -> String {
        format!("10.{}.{}.{}:8000", self.setup.seed % 256, host / 250, host % 250 + 1)
    }

    /// A host was asked for a token, and generated it: engines here are there or not.
    fn generates(&mut self, gateway: usize, host: usize, now_us: u64) {
        let address = self.address(host);
        let snapshot = &mut self.gateways[gateway].snapshot;
        snapshot.asked((Slot(host as u16), &address), Ok(()), &self.config.warm_up, now_ms(now_us));
    }

    /// Tells every other gateway what one has placed.
    fn exchange(&mut self, from: usize) {
        self.said[from] = self.gateways[from].own.clone();
        let count = self.said.len() as u16;
        for (n, gateway) in self.gateways.iter_mut().enumerate() {
            gateway.snapshot.part = Part { rank: n as u16, of: count };
            for (host, peers) in gateway.peers.iter_mut().enumerate() {
                *peers = Peers::default();
                for (_, said) in self.said.iter().enumerate().filter(|(other, _)| *other != n) {
                    let own = said.get(host).copied().unwrap_or_default();
                    peers.requests += own.requests;
                    peers.prefill_tokens += own.prefill_tokens;
                }
            }
        }
        let placements = std::mem::take(&mut self.gateways[from].for_peers);
        for (_, gateway) in self.gateways.iter_mut().enumerate().filter(|(n, _)| *n != from) {
            for placement in &placements {
                for worker in &mut gateway.workers {
                    worker.router.hear_from_peer(placement.slot, &placement.blocks);
                }
            }
        }
    }
}

/// The configuration that operators would write.
fn configuration(setup: &Setup) -> Config {
    let mut keys = serde_json::json!({
        "cluster": "vllm",
        "hosts": ["10.0.0.1:8000"],
        // As in envoy/envoy.yaml.
        "prompt": {"hold_bytes": 262_144},
    });
    merge(&mut keys, &setup.config);
    Config::parse(keys.to_string().as_bytes()).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn merge(into: &mut serde_json::Value, from: &serde_json::Value) {
    match (into, from) {
        (serde_json::Value::Object(into), serde_json::Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn now_ms(now_us: u64) -> u64 {
    EPOCH_MS + now_us / 1_000
}

impl Policy for Kvroute {
    fn route(&mut self, arrival: &Arrival, view: &View) -> usize {
        let Kvroute { setup, config, gateways, placed, random, account, .. } = self;
        let request: &Request = arrival.request;
        let prompt = TracePrompt::new(
            request,
            view.block_tokens,
            setup.bytes_per_token,
            config.prompt.block_bytes as u64,
        );
        let at = now_ms(view.now_us);
        let worker = random.random_range(0..setup.workers);
        let gateway = &mut gateways[arrival.gateway];
        let (decision, matched_bytes) =
            gateway.decide(worker, arrival.number as u32, &prompt, config, setup, view.now_us, at);
        let predicted_tokens = (matched_bytes as f64 / setup.bytes_per_token) as u64;
        book(account, &decision, request.prompt_tokens, predicted_tokens);
        let host = decision.hosts.first().map_or(0, |slot| usize::from(slot.0));
        if placed.len() <= arrival.number {
            placed.resize(arrival.number + 1, None);
        }
        placed[arrival.number] = Some(Placed {
            gateway: arrival.gateway,
            worker,
            host,
            prompt_bytes: prompt.bytes(),
            prompt_tokens: request.prompt_tokens,
            predicted_tokens,
        });
        host
    }

    fn first_token(&mut self, number: usize, now_us: u64) {
        let Some(Some(placed)) = self.placed.get(number).copied() else { return };
        let gateway = &mut self.gateways[placed.gateway];
        let change = gateway.workers[placed.worker].router.first_byte(number as u32, now_ms(now_us));
        gateway.apply(change);
    }

    fn done(&mut self, number: usize, cached_tokens: Option<u32>, now_us: u64) {
        let Some(placed) = self.placed.get_mut(number).and_then(Option::take) else { return };
        let gateway = &mut self.gateways[placed.gateway];
        let router = &mut gateway.workers[placed.worker].router;
        let failed_at = cached_tokens.is_none().then(|| now_ms(now_us));
        let slot = Slot(placed.host as u16);
        match failed_at {
            Some(at_ms) => {
                router.failed(slot, Why::Connect, at_ms, at_ms);
            }
            None => router.worked(slot, Sign::Finished, now_ms(now_us)),
        }
        if let Some(cached) = cached_tokens {
            self.account.cached_tokens += u64::from(cached);
            self.account.missed_tokens += placed.predicted_tokens.saturating_sub(u64::from(cached));
            let cached_tokens = self.setup.told.then_some(u64::from(cached));
            let usage = Usage { prompt_tokens: u64::from(placed.prompt_tokens), cached_tokens };
            let prompt = Seen::of_length(placed.prompt_bytes);
            let predicted_bytes = placed.predicted_tokens as f64 * self.setup.bytes_per_token;
            router.learn(number as u32, &prompt, true, predicted_bytes as u64, &usage);
        }
        let change = router.end(number as u32);
        gateway.apply(change);
    }

    fn asked(&mut self, gateway: usize, host: usize, now_us: u64) {
        self.generates(gateway, host, now_us);
        let gateway = &mut self.gateways[gateway];
        gateway.asked[host] = gateway.own_at_tick[host];
    }

    fn polled(&mut self, number: usize, host: usize, sample: Option<&EngineSample>, now_us: u64) {
        let address = self.address(host);
        let slot = Slot(host as u16);
        let gateway = &mut self.gateways[number];
        if gateway.workers[0].router.fleet().host(slot).is_none() {
            return;
        }
        let known = gateway.snapshot.entry(slot, &address).map(|entry| entry.polled).unwrap_or_default();
        let sample = sample.map(|sample| self.setup.without.leaves(sample));
        let polled = match &sample {
            Some(sample) => {
                let told = gateway.peers[host].requests;
                known.after(sample, &gateway.asked[host], &gateway.own[host], told, now_ms(now_us))
            }
            None => known.after_failure(),
        };
        if let Some(sample) = &sample {
            gateway.snapshot.weigh_foreign(&polled);
            gateway.snapshot.heard((slot, &address), sample, &polled, &self.config);
        }
        gateway.snapshot.put(slot, &address, polled);
        if sample.is_some() {
            self.generates(number, host, now_us);
        }
    }

    fn hosts(&mut self, hosts: &[usize], _now_us: u64) {
        let named: Vec<(String, Slot)> =
            hosts.iter().map(|host| (self.address(*host), Slot(*host as u16))).collect();
        let most = hosts.iter().max().map_or(0, |host| host + 1);
        for gateway in &mut self.gateways {
            for table in [&mut gateway.own, &mut gateway.own_at_tick, &mut gateway.asked] {
                table.resize(most.max(table.len()), Own::default());
            }
            gateway.peers.resize(most.max(gateway.peers.len()), Peers::default());
            for worker in &mut gateway.workers {
                worker.router.configure(&self.config, &named);
            }
            gateway.snapshot.retain(gateway.workers[0].router.fleet());
        }
    }

    fn account(&self) -> Option<Account> {
        Some(self.account)
    }

    fn tick_us(&self) -> Option<u64> {
        Some(TICK_MS * 1_000 / self.setup.workers as u64)
    }

    /// Each worker has its own moment in the period.
    fn tick(&mut self, now_us: u64) {
        let worker = (self.ticks % self.setup.workers as u64) as usize;
        self.ticks += 1;
        let collect = self.setup.peers_ms.is_some();
        for gateway in &mut self.gateways {
            if worker == 0 {
                let Gateway { workers, snapshot, .. } = gateway;
                snapshot.settle_readiness(workers[0].router.fleet(), &self.config, now_ms(now_us));
            }
            gateway.tick(worker, now_ms(now_us), collect);
        }
        if let Some(period_ms) = self.setup.peers_ms {
            // Each gateway has its own moment in the period.
            let count = self.gateways.len() as u64;
            let tick_ms = TICK_MS / self.setup.workers as u64;
            let before_ms = (now_us / 1_000).saturating_sub(tick_ms);
            for gateway in 0..count {
                let rounds = |ms: u64| (ms + period_ms * gateway / count) / period_ms;
                if rounds(now_us / 1_000) != rounds(before_ms) {
                    self.exchange(gateway as usize);
                }
            }
        }
    }
}

impl Gateway {
    /// One request through one worker, as `proxy/filter.rs` takes it.
    #[allow(clippy::too_many_arguments)]
    fn decide(
        &mut self,
        worker: usize,
        stream: u32,
        prompt: &TracePrompt,
        config: &Config,
        setup: &Setup,
        now_us: u64,
        now_ms: u64,
    ) -> (Decision, u64) {
        let Gateway { workers, own, peers, .. } = self;
        let Worker { router, gauges_read_us, .. } = &mut workers[worker];
        let hosts = router.fleet().hosts().len() as u64;
        if now_us.saturating_sub(*gauges_read_us) > hosts * GAUGES_GOOD_US_PER_HOST {
            *gauges_read_us = now_us;
            router.refresh(|slot, seen, told| {
                *seen = own[usize::from(slot.0)];
                *told = peers[usize::from(slot.0)];
            });
        }
        if setup.without.queue {
            router.refresh(|_, seen, told| (seen.prefill_tokens, told.prefill_tokens) = (0, 0));
        }
        let mut walk = Walk::default();
        let whole = prompt.whole();
        // The body is JSON around the prompt: a little less than the held bytes is prompt.
        let head = prompt.head(config.prompt.hold_bytes as u64 * 97 / 100);
        let mut decision = match &head {
            Some(head) => {
                router.advance(&mut walk, head, false);
                let bytes = if setup.announced { prompt.bytes() } else { head.bytes() };
                router.decide(&walk, head, bytes, now_ms)
            }
            None => {
                router.advance(&mut walk, &whole, true);
                router.decide(&walk, &whole, prompt.bytes(), now_ms)
            }
        };
        let Some(slot) = decision.hosts.first().copied() else { return (decision, 0) };
        if decision.cold_mark.is_some_and(|mark| own[usize::from(slot.0)].cold_mark == mark) {
            decision.share();
        }
        let mut changes = vec![router.commit(stream, &decision, now_ms)];
        if head.is_some() {
            router.advance(&mut walk, &whole, false);
            changes.push(router.correct(stream, &walk, &whole));
        }
        let matched = walk.matched(slot);
        if !setup.without.index {
            router.remember(slot, &whole, &mut Default::default(), true);
        }
        for change in changes {
            self.apply(change);
        }
        (decision, matched)
    }

    fn apply(&mut self, change: Option<Change>) {
        let Some(change) = change else { return };
        let own = &mut self.own[usize::from(change.slot.0)];
        own.requests = (i64::from(own.requests) + change.requests).max(0) as u32;
        own.begun += change.requests.max(0) as u64;
        own.prefill_tokens = own.prefill_tokens.saturating_add_signed(change.prefill_tokens);
        own.sent_tokens = own.sent_tokens.saturating_add_signed(change.sent_tokens);
        own.cold_placed = own.cold_placed.saturating_add_signed(change.cold);
        own.cold_mark = change.cold_mark.unwrap_or(own.cold_mark);
    }

    /// A worker's tick, as in `proxy/worker.rs`.
    fn tick(&mut self, worker: usize, now_ms: u64, collect: bool) {
        let Gateway { workers, own, peers, own_at_tick, snapshot, values, for_peers, collected, .. } = self;
        if worker == 0 {
            own_at_tick.clone_from(own);
        }
        let Worker { router, inboxes, .. } = &mut workers[worker];
        values[worker] = router.publish(worker as u64 + 1, now_ms);
        for (n, value) in values.iter().enumerate().filter(|(n, _)| *n != worker) {
            inboxes[n].read(value, |placement| router.hear(&placement));
        }
        router.apply(snapshot);
        router.refresh(|slot, seen, told| {
            *seen = own[usize::from(slot.0)];
            *told = peers[usize::from(slot.0)];
        });
        if collect && worker == 0 {
            for (inbox, value) in collected.iter_mut().zip(values.iter()) {
                inbox.read(value, |placement| for_peers.push(placement));
            }
        }
    }
}

/// Books a decision.
fn book(account: &mut Account, decision: &Decision, prompt_tokens: u32, predicted_tokens: u64) {
    account.requests += 1;
    account.spills += u64::from(decision.reason == Reason::Spill);
    account.prompt_tokens += u64::from(prompt_tokens);
    account.forgone_tokens += decision.regret.forgone_tokens;
    account.avoided_ms += decision.regret.avoided_ms;
    account.predicted_tokens += predicted_tokens;
}
