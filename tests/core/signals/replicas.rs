//! A tiny model of replicas that load, batch and queue, in steps of a tenth of a second.

use crate::support::Numbers;
use kvroute::core::config;
use kvroute::core::fleet::Slot;
use kvroute::core::signals::{Meter, Reading, Seen, Signals};
use std::collections::VecDeque;

/// Milliseconds of a step.
const STEP_MS: u64 = 100;

/// Seconds that a new replica takes to load.
pub const LOADS_S: f64 = 20.0;

/// Places in a replica's batch.
pub const BATCH: usize = 8;

/// Seconds that a request runs on average.
pub const SERVICE_S: f64 = 2.0;

/// What a replica completes at most, requests a second.
pub const KNEE: f64 = BATCH as f64 / SERVICE_S;

struct Replica {
    slot: Slot,
    ready_at_s: f64,
    leaves: bool,
    begun: u64,
    running: Vec<f64>,
    queue: VecDeque<f64>,
}

pub struct Model {
    numbers: Numbers,
    replicas: Vec<Replica>,
    next_slot: u16,
    now_ms: u64,
    pub meter: Meter,
    settings: config::Signals,
    /// Seconds that each request waited for its place.
    pub waited_s: Vec<f64>,
    pub replica_seconds: f64,
    /// Desired replicas, second by second.
    pub desired: Vec<u32>,
}

const START_MS: u64 = 1_000_000;

impl Model {
    pub fn new(replicas: usize, settings: config::Signals, seed: u64) -> Self {
        let mut model = Self {
            numbers: Numbers(seed),
            replicas: Vec::new(),
            next_slot: 0,
            now_ms: START_MS,
            meter: Meter::from(Signals::begin(settings, replicas, START_MS)),
            settings,
            waited_s: Vec::new(),
            replica_seconds: 0.0,
            desired: Vec::new(),
        };
        (0..replicas).for_each(|_| model.add(0.0));
        model
    }

    pub fn now_s(&self) -> f64 {
        (self.now_ms - START_MS) as f64 / 1_000.0
    }

    fn add(&mut self, loads_s: f64) {
        let ready_at_s = self.now_s() + loads_s;
        let slot = Slot(self.next_slot);
        self.next_slot += 1;
        self.replicas.push(Replica {
            slot,
            ready_at_s,
            leaves: false,
            begun: 0,
            running: Vec::new(),
            queue: VecDeque::new(),
        });
    }

    fn uniform(&mut self) -> f64 {
        (self.numbers.below(1 << 30) as f64 + 0.5) / (1u64 << 30) as f64
    }

    /// One second with `rate` requests a second on average; the fleet follows what is desired if `follows`.
    pub fn second(&mut self, rate: f64, follows: bool) {
        for _ in 0..1_000 / STEP_MS {
            self.step(rate);
        }
        let reading = self.reading();
        self.meter.step(&reading, &self.settings, self.now_ms);
        let desired = self.meter.signals().desired;
        self.desired.push(desired);
        if follows {
            self.scale(desired as usize);
        }
    }

    fn step(&mut self, rate: f64) {
        self.now_ms += STEP_MS;
        let now_s = self.now_s();
        let step_s = STEP_MS as f64 / 1_000.0;
        // Poisson by its exponential gaps.
        let mut at = -self.uniform().ln() / rate.max(1e-9);
        while at < step_s {
            self.arrive(now_s);
            at -= self.uniform().ln() / rate.max(1e-9);
        }
        for place in 0..self.replicas.len() {
            self.replicas[place].running.retain(|end| *end > now_s);
            while self.replicas[place].running.len() < BATCH {
                let Some(arrived) = self.replicas[place].queue.pop_front() else { break };
                self.waited_s.push(now_s - arrived);
                let service = SERVICE_S * (0.5 + self.uniform());
                self.replicas[place].running.push(now_s + service);
            }
        }
        self.replicas.retain(|replica| !replica.leaves || !replica.running.is_empty());
        self.replica_seconds += self.replicas.len() as f64 * step_s;
    }

    /// To whom has the least to do.
    fn arrive(&mut self, now_s: f64) {
        let ready = self.replicas.iter_mut().filter(|replica| !replica.leaves && replica.ready_at_s <= now_s);
        if let Some(replica) = ready.min_by_key(|replica| replica.running.len() + replica.queue.len()) {
            replica.queue.push_back(now_s);
            replica.begun += 1;
        }
    }

    fn scale(&mut self, desired: usize) {
        let staying = self.replicas.iter().filter(|replica| !replica.leaves).count();
        for _ in staying..desired {
            self.add(LOADS_S);
        }
        let now_s = self.now_s();
        for _ in desired..staying {
            // One that loads first, then the least busy; who waits there is served elsewhere.
            let staying = self.replicas.iter_mut().filter(|replica| !replica.leaves);
            let least = staying.min_by_key(|replica| {
                (replica.ready_at_s <= now_s, replica.running.len() + replica.queue.len())
            });
            let waiting = least.map(|replica| {
                replica.leaves = true;
                std::mem::take(&mut replica.queue)
            });
            waiting.unwrap_or_default().into_iter().for_each(|arrived| self.arrive(arrived));
        }
    }

    /// As a gateway sees it: hosts that load are not listed yet.
    fn reading(&self) -> Reading {
        let now_s = self.now_s();
        let listed = self.replicas.iter().filter(|replica| replica.ready_at_s <= now_s);
        let hosts = listed.map(|replica| Seen {
            is_ready: !replica.leaves,
            in_flight: (replica.running.len() + replica.queue.len()) as u32,
            begun: replica.begun,
            // A prompt of 500 tokens each.
            backlog_tokens: 500.0 * replica.queue.len() as f64,
            prefill_rate: 18_000.0,
            ..super::seen(replica.slot.0, replica.running.len() as f64, replica.queue.len() as f64)
        });
        Reading { hosts: hosts.collect(), shed: None }
    }

    /// The 95th of a hundred waits, in seconds.
    pub fn p95_waited_s(&self) -> f64 {
        let mut waited = self.waited_s.clone();
        waited.sort_by(f64::total_cmp);
        waited[waited.len() * 95 / 100]
    }

    /// How often the desired replicas turned from up to down or back.
    pub fn turns(&self) -> usize {
        let moves: Vec<bool> =
            self.desired.windows(2).filter(|pair| pair[0] != pair[1]).map(|pair| pair[1] > pair[0]).collect();
        moves.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }
}
