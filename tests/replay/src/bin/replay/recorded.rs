//! Does a real Envoy see the same order of policies? Replays what `scripts/bench --quality --record` recorded.
//!
//! The recorded times are those at which requests were sent through kvroute. Under another policy the same clients,
//! who wait for an answer before they ask on, would have sent them a little later.

use crate::row::print_table;
use anyhow::{Context, Result};
use clap::Args;
use replay::engine::EngineSpec;
use replay::figures::Figures;
use replay::game::{Contender, Game};
use replay::policy::kvroute::Setup;
use replay::policy::registry::peers;
use replay::simulation::Polling;
use replay::trace::Trace;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The policies, as they are called here and there.
const POLICIES: [(&str, &str); 5] = [
    ("round robin", "round_robin"),
    ("least request", "least_request"),
    ("prefix hash", "prefix_hash"),
    ("CHWBL 1.25", "bounded_prefix_hash"),
    ("kvroute", "kvroute"),
];

/// Replays a recorded workload.
#[derive(Debug, Args)]
pub struct Compare {
    /// Folder that `scripts/bench --quality --record DIR` wrote.
    #[arg(long, value_name = "DIR")]
    record: PathBuf,
    /// What `scripts/bench --quality --json FILE` wrote in the same run.
    #[arg(long, value_name = "FILE")]
    quality: Option<PathBuf>,
}

/// The engines' parameters, from `mock.json`.
#[derive(Debug, Deserialize)]
struct Mock {
    block_size: u64,
    bytes_per_token: f64,
    decode_step_ms: f64,
    decode_step_ms_per_seq: f64,
    envoy_workers: usize,
    hosts: usize,
    max_num_batched_tokens: u32,
    max_num_seqs: usize,
    num_blocks: u64,
    prefill_tokens_per_s: f64,
}

#[derive(Debug, Deserialize)]
struct Quality {
    shapes: Vec<Shape>,
}

#[derive(Debug, Deserialize)]
struct Shape {
    name: String,
    policies: Vec<Measured>,
}

#[derive(Debug, Deserialize)]
struct Measured {
    name: String,
    hit_rate: f64,
    ttft_mean_s: f64,
}

impl Compare {
    /// Runs and prints.
    pub fn run(&self) -> Result<()> {
        let mock: Mock = read(&self.record.join("mock.json"))?;
        let quality: Option<Quality> = self.quality.as_deref().map(read).transpose()?;
        let mut plans: BTreeMap<String, Vec<Trace>> = BTreeMap::new();
        for trace in Trace::read_all(&self.record)? {
            let shape = trace.name.rsplit_once('-').map_or(trace.name.as_str(), |(shape, _)| shape);
            plans.entry(shape.to_owned()).or_default().push(trace);
        }
        for (shape, traces) in &plans {
            let measured = quality.as_ref().and_then(|all| all.shapes.iter().find(|one| one.name == *shape));
            print(shape, &mock.replay(traces), measured);
        }
        Ok(())
    }
}

impl Mock {
    /// Hit rate and mean TTFT of each policy, over all plans of a shape.
    fn replay(&self, traces: &[Trace]) -> Vec<(f64, f64)> {
        let spec = EngineSpec {
            kv_tokens: self.num_blocks * self.block_size,
            prefill_tokens_per_s: self.prefill_tokens_per_s,
            step_ms: self.decode_step_ms,
            sequence_ms: self.decode_step_ms_per_seq,
            step_tokens: self.max_num_batched_tokens,
            sequences: self.max_num_seqs,
        };
        let others = peers();
        let contender = |name: &str| match others.iter().find(|named| named.name == name) {
            Some(named) => Contender::peer(named),
            None => {
                let workers = self.envoy_workers;
                let setup = Setup { workers, bytes_per_token: self.bytes_per_token, ..Setup::default() };
                Contender::kvroute(name, setup)
            }
        };
        let figures = |name: &str| {
            let (mut prompt, mut cached, mut ttft_s, mut count) = (0.0, 0.0, 0.0, 0.0);
            for (n, trace) in traces.iter().enumerate() {
                let game = Game {
                    requests: trace.requests.clone(),
                    block_tokens: trace.block_tokens,
                    hosts: vec![spec.clone(); self.hosts],
                    gateways: 1,
                    polling: Polling::default(),
                    events: Vec::new(),
                    seed: n as u64,
                };
                let served = game.play(&contender(name)).served;
                let figures = Figures::over(&served, self.hosts);
                let tokens: f64 = served.iter().map(|request| f64::from(request.prompt_tokens)).sum();
                prompt += tokens;
                cached += figures.hit_rate * tokens;
                ttft_s += figures.mean_s * served.len() as f64;
                count += served.len() as f64;
            }
            (cached / prompt, ttft_s / count)
        };
        POLICIES.map(|(name, _)| figures(name)).into()
    }
}

fn print(shape: &str, replayed: &[(f64, f64)], measured: Option<&Shape>) {
    println!("\n{shape}: replayed, and measured through a real Envoy\n");
    let found = |there: &str| measured.and_then(|shape| shape.policies.iter().find(|one| one.name == there));
    let ranks = |times: &[f64]| -> Vec<usize> {
        times.iter().map(|time| 1 + times.iter().filter(|other| *other < time).count()).collect()
    };
    let here = ranks(&replayed.iter().map(|(_, ttft_s)| *ttft_s).collect::<Vec<_>>());
    let times: Vec<f64> =
        POLICIES.map(|(_, there)| found(there).map_or(f64::NAN, |one| one.ttft_mean_s)).into();
    let there = ranks(&times);
    let head = ["policy", "hit rate", "measured", "mean TTFT, ms", "measured", "rank", "measured"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for (n, (name, key)) in POLICIES.into_iter().enumerate() {
        let (hit_rate, ttft_s) = replayed[n];
        let real = found(key);
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.push(vec![
            name.to_owned(),
            format!("{hit_rate:.3}"),
            or_none(real.map(|real| format!("{:.3}", real.hit_rate))),
            format!("{:.0}", 1e3 * ttft_s),
            or_none(real.map(|real| format!("{:.0}", 1e3 * real.ttft_mean_s))),
            here[n].to_string(),
            or_none(real.map(|_| there[n].to_string())),
        ]);
    }
    print_table(&table);
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("in {}", path.display()))
}
