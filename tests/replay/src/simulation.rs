//! One run: requests arrive, a policy places them, engines work them off, gateways poll.

use crate::engine::{Engine, EngineSpec, Job, Outcome};
use crate::policy::{Arrival, Policy, View};
use crate::trace::Request;
use kvroute::core::scrape::EngineSample;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// How gateways poll.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polling {
    /// Microseconds between two polls of a host.
    pub interval_us: u64,
    /// Microseconds until the engine looks, and again until the answer is there.
    pub delay_us: u64,
    /// Microseconds by which answers are older than that.
    pub stale_us: u64,
    /// Whether engines answer at all.
    pub answered: bool,
}

impl Default for Polling {
    fn default() -> Self {
        Self { interval_us: 500_000, delay_us: 10_000, stale_us: 0, answered: true }
    }
}

/// What happens to the fleet during a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A host joins with an empty cache.
    Join(EngineSpec),
    /// A host is gone from the list, with all that is under way on it.
    Lose(usize),
    /// A host stops answering, but stays on the list: what is sent there fails, and so do polls.
    Die(usize),
    /// An engine restarts: its cache is empty, what was under way is lost.
    Restart(usize),
}

/// Everything about a run but the policy.
#[derive(Debug, Clone)]
pub struct Run<'a> {
    /// The requests, by time of arrival.
    pub requests: &'a [Request],
    /// Tokens of a block of the trace.
    pub block_tokens: u32,
    /// The hosts at the start.
    pub hosts: Vec<EngineSpec>,
    /// Gateways that requests come to, drawn evenly.
    pub gateways: usize,
    /// How they poll.
    pub polling: Polling,
    /// What happens to the fleet, by time.
    pub events: Vec<(u64, Event)>,
    /// Draws the gateways.
    pub seed: u64,
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    /// When it came, in microseconds.
    pub at_us: u64,
    /// Microseconds to the first token; `None` if it failed.
    pub ttft_us: Option<u64>,
    /// The host.
    pub host: u32,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of these, tokens found in the host's cache.
    pub cached_tokens: u32,
}

enum What {
    Step { host: usize, epoch: u64 },
    Ask { gateway: usize, host: usize },
    Look { gateway: usize, host: usize },
    Answer { gateway: usize, host: usize, sample: Box<Option<EngineSample>> },
    Tick,
    Fleet(Event),
}

struct Simulation<'a> {
    run: &'a Run<'a>,
    engines: Vec<Engine>,
    alive: Vec<usize>,
    dead: Vec<usize>,
    served: Vec<Served>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    due: rustc_hash::FxHashMap<u64, What>,
    next: u64,
    open: usize,
    arrived: usize,
    outcomes: Vec<Outcome>,
}

/// Plays a run through to the last request's end.
pub fn simulate(run: &Run, policy: &mut dyn Policy) -> Vec<Served> {
    let mut simulation = Simulation {
        run,
        engines: Vec::new(),
        alive: (0..run.hosts.len()).collect(),
        dead: Vec::new(),
        served: Vec::with_capacity(run.requests.len()),
        queue: BinaryHeap::new(),
        due: Default::default(),
        next: 0,
        open: 0,
        arrived: 0,
        outcomes: Vec::new(),
    };
    simulation.engines = run.hosts.iter().map(|spec| simulation.engine(spec, 0, policy)).collect();
    simulation.play(policy);
    simulation.served
}

impl Simulation<'_> {
    fn play(&mut self, policy: &mut dyn Policy) {
        let mut random = ChaCha8Rng::seed_from_u64(self.run.seed);
        for host in 0..self.engines.len() {
            self.begin_polling(host, 0);
        }
        for (at_us, event) in &self.run.events {
            self.push(*at_us, What::Fleet(event.clone()));
        }
        if let Some(tick_us) = policy.tick_us() {
            self.push(tick_us, What::Tick);
        }
        while self.arrived < self.run.requests.len() || self.open > 0 {
            let arrival = self.run.requests.get(self.arrived).map(|request| request.at_us);
            let event = self.queue.peek().map(|Reverse((at_us, _))| *at_us);
            match (arrival, event) {
                (Some(at_us), event) if event.is_none_or(|event| at_us <= event) => {
                    let gateway = random.random_range(0..self.run.gateways);
                    self.arrive(at_us, gateway, policy);
                }
                (_, Some(_)) => self.happen(policy),
                (_, None) => break,
            }
        }
    }

    fn engine(&self, spec: &EngineSpec, now_us: u64, policy: &dyn Policy) -> Engine {
        let engine = Engine::new(spec, self.run.block_tokens, now_us);
        if policy.sees_engines() {
            engine
        } else {
            engine.unwatched()
        }
    }

    fn push(&mut self, at_us: u64, what: What) {
        self.queue.push(Reverse((at_us, self.next)));
        self.due.insert(self.next, what);
        self.next += 1;
    }

    fn begin_polling(&mut self, host: usize, now_us: u64) {
        let interval_us = self.run.polling.interval_us;
        for gateway in 0..self.run.gateways {
            // Spread over the interval, differently for each gateway.
            let offset = (host * 7_919 + gateway * 104_729) as u64 * 1_000 % interval_us;
            self.push(now_us + offset, What::Ask { gateway, host });
        }
    }

    fn arrive(&mut self, now_us: u64, gateway: usize, policy: &mut dyn Policy) {
        let number = self.arrived;
        self.arrived += 1;
        let request = &self.run.requests[number];
        let view =
            View { now_us, engines: &self.engines, hosts: &self.alive, block_tokens: self.run.block_tokens };
        let host = policy.route(&Arrival { number, gateway, request }, &view);
        self.served.push(Served {
            at_us: now_us,
            host: host as u32,
            prompt_tokens: request.prompt_tokens,
            ..Served::default()
        });
        if !self.alive.contains(&host) {
            policy.done(number, None, now_us);
            return;
        }
        self.open += 1;
        let job = Job {
            number,
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            ids: Arc::from(request.ids.as_slice()),
            answer_ids: Arc::from(request.answer_ids.as_slice()),
        };
        if let Some((at_us, epoch)) = self.engines[host].accept(job, now_us) {
            self.push(at_us, What::Step { host, epoch });
        }
    }

    fn happen(&mut self, policy: &mut dyn Policy) {
        let Some(Reverse((now_us, key))) = self.queue.pop() else { return };
        let Some(what) = self.due.remove(&key) else { return };
        let polling = self.run.polling;
        match what {
            What::Step { host, epoch } => self.step(host, epoch, now_us, policy),
            What::Ask { gateway, host } => {
                if self.dead.contains(&host) {
                    policy.polled(gateway, host, None, now_us);
                    self.push(now_us + polling.interval_us, What::Ask { gateway, host });
                } else if self.alive.contains(&host) {
                    policy.asked(gateway, host, now_us);
                    self.push(now_us + polling.delay_us, What::Look { gateway, host });
                    self.push(now_us + polling.interval_us, What::Ask { gateway, host });
                }
            }
            What::Look { gateway, host } => {
                let sample = polling.answered.then(|| self.engines[host].sample());
                let at_us = now_us + polling.delay_us + polling.stale_us;
                self.push(at_us, What::Answer { gateway, host, sample: Box::new(sample) });
            }
            What::Answer { gateway, host, sample } => {
                policy.polled(gateway, host, sample.as_ref().as_ref(), now_us);
            }
            What::Tick => {
                policy.tick(now_us);
                if let Some(tick_us) = policy.tick_us() {
                    self.push(now_us + tick_us, What::Tick);
                }
            }
            What::Fleet(event) => self.change(event, now_us, policy),
        }
    }

    fn step(&mut self, host: usize, epoch: u64, now_us: u64, policy: &mut dyn Policy) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let next = self.engines[host].step_ended(epoch, now_us, &mut outcomes);
        for outcome in outcomes.drain(..) {
            match outcome {
                Outcome::FirstToken { number, cached_tokens } => {
                    let served = &mut self.served[number];
                    served.ttft_us = Some(now_us - served.at_us);
                    served.cached_tokens = cached_tokens;
                    policy.first_token(number, now_us);
                }
                Outcome::Done { number, cached_tokens } => {
                    self.open -= 1;
                    policy.done(number, Some(cached_tokens), now_us);
                }
            }
        }
        self.outcomes = outcomes;
        if let Some((at_us, epoch)) = next {
            self.push(at_us, What::Step { host, epoch });
        }
    }

    fn change(&mut self, event: Event, now_us: u64, policy: &mut dyn Policy) {
        match event {
            Event::Join(spec) => {
                let host = self.engines.len();
                let engine = self.engine(&spec, now_us, policy);
                self.engines.push(engine);
                self.alive.push(host);
                self.begin_polling(host, now_us);
                policy.hosts(&self.alive, now_us);
            }
            Event::Lose(host) => {
                self.alive.retain(|alive| *alive != host);
                self.dead.retain(|dead| *dead != host);
                policy.hosts(&self.alive, now_us);
                self.cut(host, now_us, policy);
            }
            Event::Die(host) => {
                self.alive.retain(|alive| *alive != host);
                self.dead.push(host);
                self.cut(host, now_us, policy);
            }
            Event::Restart(host) => self.cut(host, now_us, policy),
        }
    }

    fn cut(&mut self, host: usize, now_us: u64, policy: &mut dyn Policy) {
        for number in self.engines[host].restart(now_us) {
            self.open -= 1;
            policy.done(number, None, now_us);
        }
    }
}
