//! The default command: measures everything, prints it, writes JSON and plots.

use crate::progress::Progress;
use crate::row::{print, print_by_trace, print_regret, print_table, short, Row};
use crate::sections::Stage;
use crate::{plots, traces};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use replay::adversity::{self, Finding};
use replay::experiment::Arena;
use serde_json::{json, Map, Value};
use std::path::PathBuf;
use std::time::Instant;

/// What `--json` writes.
pub const JSON_HELP: &str = "\
The file of --json has one object:
  version    1
  seeds      seeds of the main table
  quick      whether --quick was given
  traces     [{name, requests, tuned_on}]
  capacity   {trace: requests a second at which the fleet is full}
  table, fleets, workers, gateways, ablation, learning
             [{policy, hosts, gateways, workers, peers_ms, load, mean_ratio, mean_ratio_low, mean_ratio_high, p99_ratio,
             hit_rate, oracle_hit_rate, goodput, imbalance, regret, by_trace: {trace: mean_ratio}}]
             mean_ratio is mean TTFT over the oracle's, the geometric mean over traces and seeds; low and high are those
             of the best and the worst seed. regret is {spilled, forgone, avoided_ms, predicted, cached, missed}, null for
             policies that keep no account.
  adversity  [{mishap, figure, mean, most, usually, by_trace: {trace: figure}}]
Sections that were left out are missing.";

/// A section of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// kvroute and everybody else's policies, by load.
    Table,
    /// Fleets of 4, 64 and 256 hosts.
    Fleets,
    /// 1, 4 and 16 gateways.
    Gateways,
    /// 1, 4 and 16 workers.
    Workers,
    /// What each ingredient brings.
    Ablation,
    /// What if things go wrong.
    Adversity,
    /// What must be learned.
    Learning,
}

/// Measures everything that the README quotes.
#[derive(Debug, Args)]
pub struct Report {
    /// Folder of vt1 traces (`*.vt1.jsonl.gz`). Default: those of ../shared/traces, if it is there, and synthetic ones.
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Also writes all figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where plots are written.
    #[arg(long, value_name = "DIR", default_value = "target/replay")]
    plots: PathBuf,
    /// Seeds of the main table, and of up to four workers and gateways; the rest has one. Default: 3, or 1 with --quick.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Only this section; may be repeated.
    #[arg(long, value_enum)]
    only: Vec<Section>,
    /// A rougher picture in about a minute: one seed, shorter traces, fewer policies.
    #[arg(long)]
    quick: bool,
    /// Hosts of the fleet.
    #[arg(long, value_name = "N", default_value_t = 16)]
    hosts: usize,
}

/// Requests of a trace with `--quick`.
const QUICK_REQUESTS: usize = 3_000;

impl Report {
    /// Runs.
    pub fn run(&self) -> Result<()> {
        let begun = Instant::now();
        let mut traces = traces::read(self.traces.as_deref())?;
        if self.quick {
            traces.iter_mut().for_each(|trace| trace.requests.truncate(QUICK_REQUESTS));
        }
        traces::print(&traces);
        let progress = Progress::begin(&format!("capacity of {} hosts", self.hosts));
        let arena = Arena::measure(&traces, self.hosts, |share| progress.at(share));
        progress.end();
        println!("\nRequests a second at which {} hosts are full:", self.hosts);
        for subject in &arena.subjects {
            println!("  {:24} {:6.1}", subject.trace.name, subject.capacity);
        }
        let seeds = self.seeds.unwrap_or(if self.quick { 1 } else { 3 }).max(1);
        let stage = Stage { arena, seeds, quick: self.quick };
        let mut json = self.head(&stage);
        let measuring = Instant::now();
        self.sections(&stage, &mut json)?;
        let (requests, took_s) = (stage.arena.simulated(), measuring.elapsed().as_secs_f64());
        println!(
            "\n{requests} requests simulated on the main fleet in {took_s:.0} s, {:.0} a second; {:.0} s in all.",
            requests as f64 / took_s,
            begun.elapsed().as_secs_f64()
        );
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&Value::Object(json))?;
            std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
            println!("Figures: {}", path.display());
        }
        Ok(())
    }

    fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }

    fn head(&self, stage: &Stage) -> Map<String, Value> {
        let traces = stage.arena.subjects.iter().map(|subject| {
            let name = &subject.trace.name;
            json!({"name": name, "requests": subject.trace.requests.len(), "tuned_on": traces::is_tuned_on(name)})
        });
        let capacity = stage.arena.subjects.iter();
        let capacity: Map<_, _> =
            capacity.map(|subject| (subject.trace.name.clone(), json!(subject.capacity))).collect();
        let head = json!({
            "version": 1,
            "seeds": stage.seeds,
            "quick": stage.quick,
            "traces": traces.collect::<Vec<_>>(),
            "capacity": capacity,
        });
        match head {
            Value::Object(head) => head,
            _ => Map::new(),
        }
    }

    fn sections(&self, stage: &Stage, json: &mut Map<String, Value>) -> Result<()> {
        std::fs::create_dir_all(&self.plots).with_context(|| format!("making {}", self.plots.display()))?;
        let hosts = stage.arena.hosts.len();
        let plot = |name: &str| self.plots.join(name).with_extension("svg");
        if self.wants(Section::Table) {
            let rows = stage.table();
            print(&format!("Mean TTFT over the oracle's, {hosts} hosts, by load:"), "policy", &rows);
            print_by_trace(&rows, 0.9);
            print_regret(&rows);
            plots::by_load(&plot("table"), "Mean TTFT over the oracle's, by load", &rows)?;
            json.insert("table".into(), json!(rows));
        }
        if self.wants(Section::Workers) {
            let rows = stage.workers();
            print("Workers of one gateway, mean TTFT over the oracle's by load:", "kvroute", &rows);
            json.insert("workers".into(), json!(rows));
        }
        if self.wants(Section::Gateways) {
            let rows = stage.gateways();
            print("Gateways, mean TTFT over the oracle's by load:", "policy, gateways", &rows);
            plots::by_load(
                &plot("gateways"),
                "Several gateways: mean TTFT over the oracle's, by load",
                &rows,
            )?;
            json.insert("gateways".into(), json!(rows));
        }
        if self.wants(Section::Ablation) {
            let rows = stage.ablation();
            print_ablation("Without one ingredient, mean TTFT over the oracle's:", &rows);
            json.insert("ablation".into(), json!(rows));
        }
        if self.wants(Section::Learning) {
            let rows = stage.learning();
            print_ablation("What must be learned, mean TTFT over the oracle's:", &rows);
            json.insert("learning".into(), json!(rows));
        }
        if self.wants(Section::Adversity) {
            let progress = Progress::begin("adversity");
            let findings = adversity::all(&stage.arena, 1, |share| progress.at(share));
            progress.end();
            print_findings(&findings);
            json.insert("adversity".into(), json!(findings));
        }
        if self.wants(Section::Fleets) {
            let rows = stage.fleets();
            print("Fleets of other sizes, mean TTFT over the oracle's by load:", "kvroute", &rows);
            plots::by_load(&plot("fleets"), "Fleet sizes: mean TTFT over the oracle's, by load", &rows)?;
            json.insert("fleets".into(), json!(rows));
        }
        println!("\nPlots: {}", self.plots.display());
        Ok(())
    }
}

/// Rows are named `what: where`: a line for each what, columns for each where and load.
fn print_ablation(title: &str, rows: &[Row]) {
    println!("\n{title}\n");
    let split = |row: &Row| -> (String, String) {
        let (what, place) = row.policy.split_once(": ").unwrap_or((&row.policy, ""));
        (what.to_owned(), format!("{place} at {}", row.load))
    };
    let (mut whats, mut places): (Vec<String>, Vec<String>) = Default::default();
    for (what, place) in rows.iter().map(split) {
        if !whats.contains(&what) {
            whats.push(what);
        }
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let mut table = vec![std::iter::once(String::new()).chain(places.iter().cloned()).collect::<Vec<_>>()];
    for what in &whats {
        let figure = |place: &String| {
            let row = rows.iter().find(|row| split(row) == (what.clone(), place.clone()));
            row.map_or(String::new(), |row| short(row.mean_ratio))
        };
        table.push(std::iter::once(what.clone()).chain(places.iter().map(figure)).collect());
    }
    print_table(&table);
}

fn print_findings(findings: &[Finding]) {
    println!("\nAdversity (`usually`: the same figure where nothing happens):\n");
    let mut table = vec![["what happens", "figure", "mean", "most", "usually"].map(str::to_owned).to_vec()];
    let mut last = "";
    for finding in findings {
        let mishap = if finding.mishap == last { String::new() } else { finding.mishap.clone() };
        last = &finding.mishap;
        let usually = finding.usually.map_or(String::new(), short);
        table.push(vec![mishap, finding.figure.clone(), short(finding.mean), short(finding.most), usually]);
    }
    print_table(&table);
}
