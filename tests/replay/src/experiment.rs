//! Which policy is how far from the oracle? Runs of every trace, load and seed, on all cores.
//!
//! A figure is a ratio to the oracle's envelope on the same requests, and its mean over traces is geometric: no trace
//! outweighs the others.

use crate::engine::EngineSpec;
use crate::figures::Figures;
use crate::game::{Contender, Game};
use crate::load::{capacity, requests};
use crate::policy::account::Regret;
use crate::simulation::Polling;
use crate::trace::Trace;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Hosts of which the capacity is measured; that of a larger fleet of equal hosts is in proportion, as its work is.
const MEASURED_HOSTS: usize = 16;

/// A fleet, and traces whose capacity on it is known.
#[derive(Debug)]
pub struct Arena<'a> {
    /// The hosts.
    pub hosts: Vec<EngineSpec>,
    /// The traces.
    pub subjects: Vec<Subject<'a>>,
    /// The oracle's envelopes so far, by trace, load in thousandths and seed: gateways do not matter to it.
    envelopes: Mutex<FxHashMap<(usize, u64, u64), Figures>>,
    /// Requests simulated so far.
    simulated: AtomicU64,
}

/// A trace whose capacity on a fleet has been measured.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Requests a second at which the fleet is full.
    pub capacity: f64,
}

/// What surrounds the policies.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Gateways that requests come to.
    pub gateways: usize,
    /// How they poll.
    pub polling: Polling,
    /// Loads, as shares of capacity.
    pub loads: Vec<f64>,
    /// Seeds.
    pub seeds: Vec<u64>,
}

impl Scenario {
    /// So many gateways at the loads that figures are quoted for.
    pub fn of(gateways: usize, seeds: u64) -> Self {
        Self {
            gateways,
            polling: Polling::default(),
            loads: vec![0.5, 0.7, 0.9, 1.05],
            seeds: (1..=seeds).collect(),
        }
    }

    /// The same at other loads.
    pub fn at(self, loads: &[f64]) -> Self {
        Self { loads: loads.to_vec(), ..self }
    }
}

/// One policy's figures on one trace, load and seed, and the oracle's.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// Which of the contenders.
    pub contender: usize,
    /// Which of the traces.
    pub trace: usize,
    /// Which of the loads.
    pub load: usize,
    /// Which of the seeds.
    pub seed: usize,
    /// The policy's figures.
    pub figures: Figures,
    /// What affinity earned and cost, if the policy keeps an account.
    pub regret: Option<Regret>,
    /// The best that any variant of the oracle reached, figure by figure.
    pub oracle: Figures,
}

impl Cell {
    /// Mean time to the first token over the oracle's.
    pub fn mean_ratio(&self) -> f64 {
        self.figures.mean_s / self.oracle.mean_s
    }

    /// Its 99th percentile over the oracle's.
    pub fn p99_ratio(&self) -> f64 {
        self.figures.p99_s / self.oracle.p99_s
    }
}

impl<'a> Arena<'a> {
    /// Measures the capacity of `hosts` for each trace.
    pub fn measure(traces: &'a [Trace], hosts: usize, progress: impl Fn(f64) + Sync) -> Self {
        let hosts = vec![EngineSpec::default(); hosts];
        let (measured, factor) = match hosts.len() {
            many if many > MEASURED_HOSTS => (MEASURED_HOSTS, many as f64 / MEASURED_HOSTS as f64),
            few => (few, 1.0),
        };
        let done = AtomicUsize::new(0);
        let capacities = on_all_cores(traces.len(), |n| {
            let found = capacity(&traces[n], &hosts[..measured]) * factor;
            progress((done.fetch_add(1, Ordering::Relaxed) + 1) as f64 / traces.len() as f64);
            found
        });
        Self::of(hosts, traces.iter().zip(capacities))
    }

    /// More of the same hosts: capacity is in proportion. `traces` are the same ones, or beginnings of them.
    pub fn scaled<'b>(&self, traces: &'b [Trace], hosts: usize) -> Arena<'b> {
        let factor = hosts as f64 / self.hosts.len() as f64;
        let capacities = self.subjects.iter().map(|subject| subject.capacity * factor);
        Arena::of(vec![EngineSpec::default(); hosts], traces.iter().zip(capacities))
    }

    fn of(hosts: Vec<EngineSpec>, capacities: impl Iterator<Item = (&'a Trace, f64)>) -> Self {
        Self {
            hosts,
            subjects: capacities.map(|(trace, capacity)| Subject { trace, capacity }).collect(),
            envelopes: Mutex::default(),
            simulated: AtomicU64::new(0),
        }
    }

    /// Requests simulated so far, capacities aside.
    pub fn simulated(&self) -> u64 {
        self.simulated.load(Ordering::Relaxed)
    }

    /// Plays everybody on everything. `progress` is told the share that is done.
    pub fn compare(
        &self,
        scenario: &Scenario,
        contenders: &[Contender],
        progress: impl Fn(f64) + Sync,
    ) -> Vec<Cell> {
        let (loads, seeds) = (scenario.loads.len(), scenario.seeds.len());
        let games = self.subjects.len() * loads * seeds;
        let done = AtomicUsize::new(0);
        let cells = on_all_cores(games, |n| {
            let (trace, load, seed) = (n / (loads * seeds), n / seeds % loads, n % seeds);
            let (share, drawn) = (scenario.loads[load], scenario.seeds[seed]);
            let mut game = self.game(trace, share, drawn);
            let oracle = self.envelope(trace, share, &game);
            (game.gateways, game.polling) = (scenario.gateways, scenario.polling);
            let cells: Vec<Cell> = (contenders.iter().enumerate())
                .map(|(contender, policy)| {
                    let played = game.play(policy);
                    self.simulated.fetch_add(played.served.len() as u64, Ordering::Relaxed);
                    let figures = Figures::of(&played.served, self.hosts.len());
                    Cell { contender, trace, load, seed, figures, regret: played.regret, oracle }
                })
                .collect();
            progress((done.fetch_add(1, Ordering::Relaxed) + 1) as f64 / games as f64);
            cells
        });
        cells.into_iter().flatten().collect()
    }

    /// One trace at one load, as one seed draws it, with one gateway.
    pub fn game(&self, trace: usize, load: f64, seed: u64) -> Game {
        let Subject { trace, capacity } = &self.subjects[trace];
        Game {
            requests: requests(trace, load * capacity, self.hosts.len(), seed),
            block_tokens: trace.block_tokens,
            hosts: self.hosts.clone(),
            gateways: 1,
            polling: Polling::default(),
            events: Vec::new(),
            seed,
        }
    }

    fn envelope(&self, trace: usize, load: f64, game: &Game) -> Figures {
        let key = (trace, (load * 1e3) as u64, game.seed);
        let known = || self.envelopes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(envelope) = known().get(&key).copied() {
            return envelope;
        }
        let envelope = game.envelope();
        self.simulated.fetch_add(4 * game.requests.len() as u64, Ordering::Relaxed);
        known().insert(key, envelope);
        envelope
    }
}

/// Computes `count` values on as many threads as there are cores, in any order; answers them in order.
pub fn on_all_cores<T: Send>(count: usize, compute: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get()).min(count.max(1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    break;
                }
                let value = compute(n);
                done.lock().unwrap_or_else(PoisonError::into_inner).push((n, value));
            });
        }
    });
    let mut values = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    values.sort_by_key(|(n, _)| *n);
    values.into_iter().map(|(_, value)| value).collect()
}

/// The mean of ratios: geometric.
pub fn geometric_mean(ratios: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) =
        ratios.into_iter().fold((0.0, 0.0), |(sum, count), ratio: f64| (sum + ratio.ln(), count + 1.0));
    if count == 0.0 {
        f64::NAN
    } else {
        f64::exp(sum / count)
    }
}
