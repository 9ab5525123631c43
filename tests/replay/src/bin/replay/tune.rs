//! Which configuration is better? Several side by side, on the traces that may be tuned on.

use crate::traces::{self, is_tuned_on};
use anyhow::{bail, Context, Result};
use clap::Args;
use replay::experiment::{geometric_mean, Arena, Cell, Scenario};
use replay::game::Contender;
use replay::policy::kvroute::Setup;
use serde_json::{json, Map, Value};
use std::path::PathBuf;

/// Tries configurations side by side.
#[derive(Debug, Args)]
pub struct Tune {
    /// Configurations as JSON: the plugin's keys, and for the surroundings `bpt` (bytes a token), `announced`, `told`,
    /// `workers` and `peers_ms`.
    configurations: Vec<String>,
    /// One more configuration, key by key: `routing.batch_slowdown=0.2`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Hosts.
    #[arg(long, default_value_t = 16)]
    hosts: usize,
    /// Gateways.
    #[arg(long, default_value_t = 1)]
    gateways: usize,
    /// Workers of each gateway.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Milliseconds between two exchanges among gateways; 0 for none.
    #[arg(long, default_value_t = 0)]
    peers_ms: u64,
    /// Seeds.
    #[arg(long, default_value_t = 2)]
    seeds: u64,
    /// Loads, as shares of capacity.
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 0.7, 0.9, 1.05])]
    loads: Vec<f64>,
    /// Folder of vt1 traces. Default: the project's.
    #[arg(long)]
    traces: Option<PathBuf>,
    /// Traces whose names have one of these in them; `all` for all. Without it, those that may be tuned on.
    #[arg(long, value_delimiter = ',')]
    trace_name: Vec<String>,
    /// Also prints each trace's ratios.
    #[arg(long)]
    per_trace: bool,
}

impl Tune {
    /// Runs and prints.
    pub fn run(&self) -> Result<()> {
        let mut traces = traces::read(self.traces.as_deref())?;
        traces.retain(|trace| self.wants(&trace.name));
        if traces.is_empty() {
            bail!("no trace has such a name");
        }
        let contenders = self.contenders()?;
        let arena = Arena::measure(&traces, self.hosts, |_| {});
        let scenario = Scenario::of(self.gateways, self.seeds).at(&self.loads);
        let cells = arena.compare(&scenario, &contenders, |_| {});
        for (n, contender) in contenders.iter().enumerate() {
            let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.contender == n).collect();
            self.print(&contender.name, &arena, &cells);
        }
        Ok(())
    }

    fn wants(&self, name: &str) -> bool {
        if self.trace_name.is_empty() {
            return is_tuned_on(name);
        }
        self.trace_name.iter().any(|wanted| wanted == "all" || name.contains(wanted.as_str()))
    }

    fn contenders(&self) -> Result<Vec<Contender>> {
        let mut configurations = Vec::new();
        for text in &self.configurations {
            let keys: Value = serde_json::from_str(text).with_context(|| format!("in {text}"))?;
            configurations.push((text.clone(), keys));
        }
        if !self.set.is_empty() || configurations.is_empty() {
            let mut keys = json!({});
            for assignment in &self.set {
                let (path, value) =
                    assignment.split_once('=').with_context(|| format!("{assignment}: no `=`"))?;
                let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
                set(&mut keys, path, value);
            }
            configurations.push((if self.set.is_empty() { "{}".into() } else { self.set.join(" ") }, keys));
        }
        configurations.into_iter().map(|(name, keys)| self.contender(name, keys)).collect()
    }

    fn contender(&self, name: String, mut keys: Value) -> Result<Contender> {
        let mut setup = Setup {
            workers: self.workers,
            peers_ms: (self.peers_ms > 0).then_some(self.peers_ms),
            ..Setup::default()
        };
        let surroundings = keys.as_object_mut().context("a configuration is a JSON object")?;
        take_surroundings(&mut setup, surroundings);
        setup.config = keys;
        Ok(Contender::kvroute(&name, setup))
    }

    fn print(&self, name: &str, arena: &Arena, cells: &[&Cell]) {
        let row = |cells: &[&Cell], of: &dyn Fn(&Cell) -> f64| -> String {
            let at = |load: usize| geometric_mean(cells.iter().filter(|c| c.load == load).map(|c| of(c)));
            let shown: Vec<String> = (0..self.loads.len()).map(|load| format!("{:.3}", at(load))).collect();
            shown.join(" ")
        };
        let hit = |cell: &Cell| cell.figures.hit_rate.max(1e-9) / cell.oracle.hit_rate.max(1e-9);
        println!(
            "{name:50} mean {} p99 {} hit {}",
            row(cells, &Cell::mean_ratio),
            row(cells, &Cell::p99_ratio),
            row(cells, &hit)
        );
        if self.per_trace {
            for (n, subject) in arena.subjects.iter().enumerate() {
                let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.trace == n).copied().collect();
                println!("     {:25} {}", subject.trace.name, row(&cells, &Cell::mean_ratio));
            }
        }
    }
}

/// What is not the plugin's configuration but what surrounds it.
fn take_surroundings(setup: &mut Setup, keys: &mut Map<String, Value>) {
    let mut take = |key: &str| keys.remove(key);
    if let Some(bytes) = take("bpt").and_then(|value| value.as_f64()) {
        setup.bytes_per_token = bytes;
    }
    if let Some(announced) = take("announced").and_then(|value| value.as_bool()) {
        setup.announced = announced;
    }
    if let Some(told) = take("told").and_then(|value| value.as_bool()) {
        setup.told = told;
    }
    if let Some(workers) = take("workers").and_then(|value| value.as_u64()) {
        setup.workers = workers as usize;
    }
    if let Some(peers_ms) = take("peers_ms") {
        setup.peers_ms = peers_ms.as_u64().filter(|ms| *ms > 0);
    }
}

/// Sets `a.b` in nested objects.
fn set(keys: &mut Value, path: &str, value: Value) {
    match path.split_once('.') {
        Some((section, rest)) => set(&mut keys[section], rest, value),
        None => keys[path] = value,
    }
}
