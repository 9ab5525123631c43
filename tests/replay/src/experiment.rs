//! Which policy is how far from the oracle? Runs of every trace, load and seed, on all cores.
//!
//! A figure is a ratio to the oracle's envelope on the same requests, and its mean over traces is geometric: no trace
//! outweighs the others.

use crate::engine::EngineSpec;
use crate::figures::Figures;
use crate::load::{capacity, requests};
use crate::policy::oracle::VARIANTS;
use crate::policy::Policy;
use crate::simulation::{simulate, Polling, Run};
use crate::trace::{Request, Trace};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// A trace whose capacity on a fleet has been measured.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Requests a second at which the fleet is full.
    pub capacity: f64,
}

/// What surrounds the policy.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The hosts.
    pub hosts: Vec<EngineSpec>,
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
    /// One gateway over `hosts` equal hosts at the loads that figures are quoted for.
    pub fn of(hosts: usize, seeds: u64) -> Self {
        Self {
            hosts: vec![EngineSpec::default(); hosts],
            gateways: 1,
            polling: Polling::default(),
            loads: vec![0.5, 0.7, 0.9, 1.05],
            seeds: (1..=seeds).collect(),
        }
    }
}

/// What a policy is made for.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Gateways.
    pub gateways: usize,
    /// Hosts at the start.
    pub hosts: usize,
    /// Tokens of a block of the trace.
    pub block_tokens: u32,
    /// Draws whatever is random.
    pub seed: u64,
}

/// Makes a policy for a run.
pub type Make = Box<dyn Fn(&Place) -> Box<dyn Policy> + Sync>;

/// A policy that takes part.
pub struct Contender {
    /// As the tables name it.
    pub name: String,
    /// Makes it.
    pub make: Make,
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

/// Measures the capacity of `hosts` for each trace.
pub fn subjects<'a>(traces: &'a [Trace], hosts: &[EngineSpec]) -> Vec<Subject<'a>> {
    let capacities = on_all_cores(traces.len(), |n| capacity(&traces[n], hosts));
    traces.iter().zip(capacities).map(|(trace, capacity)| Subject { trace, capacity }).collect()
}

/// Plays everybody on everything. `progress` is told the share that is done.
pub fn compare(
    subjects: &[Subject],
    scenario: &Scenario,
    contenders: &[Contender],
    progress: impl Fn(f64) + Sync,
) -> Vec<Cell> {
    let (loads, seeds) = (scenario.loads.len(), scenario.seeds.len());
    let games = subjects.len() * loads * seeds;
    let done = AtomicUsize::new(0);
    let cells = on_all_cores(games, |n| {
        let (trace, load, seed) = (n / (loads * seeds), n / seeds % loads, n % seeds);
        let game = Game::new(&subjects[trace], scenario, scenario.loads[load], scenario.seeds[seed]);
        let oracle = game.oracle();
        let cells: Vec<Cell> = (contenders.iter().enumerate())
            .map(|(contender, policy)| {
                let figures = game.play(&mut *(policy.make)(&game.place));
                Cell { contender, trace, load, seed, figures, oracle }
            })
            .collect();
        progress((done.fetch_add(1, Ordering::Relaxed) + 1) as f64 / games as f64);
        cells
    });
    cells.into_iter().flatten().collect()
}

/// One trace at one load, as one seed draws it.
struct Game<'a> {
    requests: Vec<Request>,
    scenario: &'a Scenario,
    place: Place,
}

impl<'a> Game<'a> {
    fn new(subject: &Subject, scenario: &'a Scenario, load: f64, seed: u64) -> Self {
        let hosts = scenario.hosts.len();
        let place =
            Place { gateways: scenario.gateways, hosts, block_tokens: subject.trace.block_tokens, seed };
        let requests = requests(subject.trace, load * subject.capacity, hosts, seed);
        Self { requests, scenario, place }
    }

    fn play(&self, policy: &mut dyn Policy) -> Figures {
        let run = Run {
            requests: &self.requests,
            block_tokens: self.place.block_tokens,
            hosts: self.scenario.hosts.clone(),
            gateways: self.scenario.gateways,
            polling: self.scenario.polling,
            events: Vec::new(),
            seed: self.place.seed,
        };
        Figures::of(&simulate(&run, policy), self.place.hosts)
    }

    fn oracle(&self) -> Figures {
        let mut best = Figures { mean_s: f64::MAX, p50_s: f64::MAX, p99_s: f64::MAX, ..Figures::default() };
        best.imbalance = f64::MAX;
        for mut variant in VARIANTS {
            let figures = self.play(&mut variant);
            best.mean_s = best.mean_s.min(figures.mean_s);
            best.p50_s = best.p50_s.min(figures.p50_s);
            best.p99_s = best.p99_s.min(figures.p99_s);
            best.hit_rate = best.hit_rate.max(figures.hit_rate);
            best.goodput = best.goodput.max(figures.goodput);
            best.imbalance = best.imbalance.min(figures.imbalance);
        }
        best
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
                done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((n, value));
            });
        }
    });
    let mut values = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
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
