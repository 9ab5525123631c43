//! The second and the third show: a day of load in minutes, and the fleet scaled by kvroute's queue signals, and by how busy
//! the GPUs look.

use crate::curves::{self, Series};
use crate::scaler::{self, Bounds, History, Signal};
use anyhow::{ensure, Result};
use fleet::EngineOptions;
use gateway::life::run::{engine, known};
use gateway::life::site::{Setup, Site, Truth};
use gateway::life::traffic::{self, Curve};
use gateway::life::watch::{self, Sample};
use gateway::progress::Progress;
use gateway::quantiles::Quantiles;
use gateway::workload::plan::Shape;
use gateway::workload::replay::{Record, Replay};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Never more engines: half as many again as the peak needs.
const MOST: usize = 8;

/// Engines at night.
const LEAST: usize = 1;

/// For how long engines load. In life it is more, and so is a day: see [`SAID`].
const LOADING: Duration = Duration::from_secs(4);

/// For how long the highest wish stands: HPA's five minutes would be a third of this day.
const STABILISATION: Duration = Duration::from_secs(15);

/// What time to first token 95 of 100 requests must have in the closed loop.
pub const TTFT_P95: Duration = Duration::from_secs(3);

/// Up, down at noon, up, and down at night, and one more: who turns more often flaps.
const MOST_TURNS: usize = 4;

/// More than all engines and their queues ever have: the client holds nothing back.
const MOST_IN_FLIGHT: usize = 2_000;

/// Three seconds of an answer.
const ANSWER_TOKENS: u32 = 150;

/// The width of what time to first token is shown over.
const BIN_S: f64 = 6.0;

/// What is true of these runs, and not of a day.
const SAID: &str =
    "A day of load in 160 seconds. Engines load for 4 s, wishes to go down wait for 15 s; the \
    engines themselves and kvroute run in real time.";

/// A fleet over a day.
pub struct Day {
    samples: Vec<Sample>,
    records: Vec<Record>,
    history: History,
}

/// An engine that serves five requests a second, sixteen at a time. As with a real one, its GPU looks busy with the first of
/// them.
fn batching() -> EngineOptions {
    EngineOptions { max_num_seqs: 16, tokens_per_chunk: 8, ..engine() }
}

/// Requests a second from midnight to midnight.
fn curve() -> Curve {
    let points =
        [(0.0, 1.5), (8.0, 1.5), (58.0, 18.0), (68.0, 18.0), (80.0, 12.0), (90.0, 17.0), (98.0, 17.0)];
    let night = [(120.0, 1.5), (160.0, 1.5)];
    Curve::new(&[&points[..], &night[..]].concat())
}

impl Day {
    /// Runs one.
    pub async fn run(progress: &Progress, signal: Signal) -> Result<Self> {
        let name = signal.name();
        progress.say(&format!("a day, scaled by {name}: {SAID}"));
        let signals = json!({
            "min_replicas": LEAST,
            "max_replicas": MOST,
            "window_s": STABILISATION.as_secs(),
            // Lower than usual: the load rises tenfold within a minute.
            "waiting_per_replica": 2,
        });
        let setup = Setup {
            places: MOST,
            serving: LEAST,
            engine: batching(),
            loading: LOADING,
            settings: vec![("/signals", signals)],
        };
        let site = Arc::new(Site::start(&setup).await?);
        known(&site, LEAST).await?;
        let curve = curve();
        let chats = Shape { answer_tokens: ANSWER_TOKENS, ..traffic::chats() };
        let plan = Arc::new(traffic::plan(&chats, &curve));
        let replay = Replay::new(&plan, site.address, MOST_IN_FLIGHT);
        let bounds = Bounds { least: LEAST, most: MOST, stabilisation: STABILISATION };
        let end = Duration::from_secs_f64(curve.seconds());
        let mut samples = Vec::new();
        let start = Instant::now();
        let line = || format!("{:.0} of {:.0} s", start.elapsed().as_secs_f64(), curve.seconds());
        let all = async { tokio::join!(replay.run(), scaler::scale(&site, signal, bounds, end)) };
        let all = watch::during(&site, &mut samples, all);
        let (records, history) = progress.during(line, all).await;
        samples.retain(|sample| sample.at <= end);
        ensure!(!samples.is_empty(), "nothing was seen");
        Ok(Self { samples, records, history: history? })
    }

    fn failures(&self) -> usize {
        self.records.iter().filter(|record| record.failure.is_some()).count()
    }

    fn ttft(&self) -> Quantiles {
        Quantiles::new(self.records.iter().filter_map(|record| record.ttft).collect())
    }

    /// Engines that cost something, at each look.
    fn replicas(&self) -> Vec<(f64, f64)> {
        let costs =
            |sample: &Sample| sample.places.iter().filter(|place| place.truth != Truth::Empty).count() as f64;
        self.samples.iter().map(|sample| (sample.at.as_secs_f64(), costs(sample))).collect()
    }

    fn replica_seconds(&self) -> f64 {
        let replicas = self.replicas();
        replicas.windows(2).map(|pair| pair[0].1 * (pair[1].0 - pair[0].0)).sum()
    }

    /// The most engines that it had: a fixed fleet would have as many all the time.
    fn peak(&self) -> usize {
        self.replicas().iter().map(|(_, engines)| *engines as usize).max().unwrap_or(0)
    }

    /// How long it lasted.
    fn seconds(&self) -> f64 {
        self.samples.last().map_or(0.0, |sample| sample.at.as_secs_f64())
    }

    /// The 95th percentile of those that were sent in each bin, at the bin's middle.
    fn ttft_over_time(&self) -> Vec<(f64, f64)> {
        let bins = (self.seconds() / BIN_S) as usize;
        let inside = |bin: usize| {
            let of_bin = move |record: &&Record| (record.sent.as_secs_f64() / BIN_S) as usize == bin;
            Quantiles::new(self.records.iter().filter(of_bin).filter_map(|record| record.ttft).collect())
        };
        (0..bins).map(|bin| (BIN_S * (bin as f64 + 0.5), inside(bin).at(0.95).as_secs_f64())).collect()
    }

    fn busy(&self) -> Vec<(f64, f64)> {
        let mean = |sample: &Sample| {
            let up: Vec<f64> = sample.places.iter().filter_map(|place| place.utilisation).collect();
            100.0 * up.iter().sum::<f64>() / up.len().max(1) as f64
        };
        self.samples.iter().map(|sample| (sample.at.as_secs_f64(), mean(sample))).collect()
    }

    fn series(&self, signal: Signal) -> Series {
        let (name, colour) = match signal {
            Signal::Queue => ("by kvroute's desired replicas", "#1f7a4d"),
            Signal::Utilisation => ("by GPU utilisation", "#d9792b"),
        };
        Series { name, colour, replicas: self.replicas(), busy: self.busy(), ttft: self.ttft_over_time() }
    }

    /// Whether the closed loop did what it is for.
    fn is_good(&self) -> bool {
        let fixed = self.peak() as f64 * self.seconds();
        self.failures() == 0
            && self.history.undrained == 0
            && self.ttft().at(0.95) <= TTFT_P95
            && self.replica_seconds() < fixed
            && self.history.turns() <= MOST_TURNS
    }

    fn print(&self, name: &str, fixed: usize) {
        let (spent, fixed) = (self.replica_seconds(), fixed as f64 * self.seconds());
        println!(
            "  {name:<32} {:>8} {:>7} {:>11.2} {:>11.2} {:>9.0} {:>8.0} % {:>6}",
            self.records.len(),
            self.failures(),
            self.ttft().at(0.5).as_secs_f64(),
            self.ttft().at(0.95).as_secs_f64(),
            spent,
            100.0 * spent / fixed,
            self.history.turns(),
        );
        for failure in self.records.iter().filter_map(|record| record.failure.as_ref()).take(3) {
            println!("    a request failed: {failure}");
        }
    }
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Signal::Queue => "kvroute's desired replicas",
            Signal::Utilisation => "GPU utilisation",
        }
    }
}

fn print_head(title: &str) {
    println!("{title}");
    println!(
        "  {:<32} {:>8} {:>7} {:>11} {:>11} {:>9} {:>10} {:>6}",
        "scaled by", "requests", "failed", "TTFT p50 s", "TTFT p95 s", "replica s", "of fixed", "turns"
    );
}

/// The second show: the closed loop. Whether it kept its bounds.
pub fn show_loop(day: &Day, out: &Path) -> Result<bool> {
    let path = out.join("loop.svg");
    let title = "A fleet that kvroute's signals scale through a day";
    curves::draw(&path, title, SAID, &curve(), day.peak(), &[day.series(Signal::Queue)])?;
    print_head("The closed loop");
    day.print(Signal::Queue.name(), day.peak());
    println!(
        "  bounds: TTFT p95 {:.0} s, fewer replica seconds than {} engines all day ({:.0}), {MOST_TURNS} turns, no failure",
        TTFT_P95.as_secs_f64(),
        day.peak(),
        day.peak() as f64 * day.seconds(),
    );
    println!("  figure: {}\n", path.display());
    Ok(day.is_good())
}

/// The third show: the same day, by each signal.
pub fn show_both(queue: &Day, gpu: &Day, out: &Path) -> Result<()> {
    let path = out.join("queue-or-gpu.svg");
    let title = "The same day, scaled by the queue and by how busy the GPUs look";
    let series = [queue.series(Signal::Queue), gpu.series(Signal::Utilisation)];
    curves::draw(&path, title, SAID, &curve(), queue.peak(), &series)?;
    print_head("Queue or GPU utilisation");
    queue.print(Signal::Queue.name(), queue.peak());
    gpu.print(Signal::Utilisation.name(), queue.peak());
    println!("  figure: {}\n", path.display());
    Ok(())
}
