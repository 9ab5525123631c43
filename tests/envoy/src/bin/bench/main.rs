//! What does the filter cost? CPU a request and added latency, against the same Envoy without it.
//!
//! One Envoy with one worker has both listeners; the upstream answers at once; requests go over one
//! keep-alive connection a listener, in batches that alternate. Run it through `scripts/bench`.

mod bodies;
mod measure;
mod upstream;

use anyhow::{ensure, Result};
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::policy::Policy;
use measure::{measure, Figures, Way};
use serde_json::json;
use std::io::{IsTerminal, Write};
use upstream::Upstream;

/// Body sizes, in KiB.
const SIZES_KIB: [usize; 4] = [1, 8, 64, 512];

/// DESIGN.md's budgets of one body size; none where it sets none.
#[derive(Default)]
struct Budget {
    cpu_ratio: Option<f64>,
    added_median_ms: Option<f64>,
    added_p99_ms: Option<f64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut upstreams = Vec::new();
    for _ in 0..4 {
        upstreams.push(Upstream::start().await?);
    }
    let hosts: Vec<_> = upstreams.iter().map(|upstream| upstream.address).collect();
    let config = Config::quick_start()?
        .plugin("/debug_headers", json!(false))
        .hosts(&hosts)
        .with_policy(Policy::RoundRobin, &hosts);
    let envoy = Envoy::start(&config, &Options::workers(1)).await?;
    let mut ways = [
        Way::open(envoy.listener(KVROUTE).await?, envoy.pid()).await?,
        Way::open(envoy.listener(Policy::RoundRobin.name()).await?, envoy.pid()).await?,
    ];

    let mut all = Vec::new();
    for size in SIZES_KIB {
        let figures = measure(size << 10, &mut ways, |share| progress(size, share)).await?;
        all.push(figures);
    }
    clear_progress();
    let routed: u64 = upstreams.iter().map(Upstream::routed).sum();
    ensure!(routed > 0, "no request reached the upstream with a decision: the filter did nothing");
    print(&all);
    Ok(())
}

fn budget(size: usize) -> Budget {
    match size >> 10 {
        8 => Budget { cpu_ratio: Some(1.25), added_median_ms: Some(0.05), added_p99_ms: Some(0.3) },
        64 => Budget { cpu_ratio: Some(1.5), ..Budget::default() },
        512 => Budget { cpu_ratio: Some(2.0), added_median_ms: Some(0.4), added_p99_ms: None },
        _ => Budget::default(),
    }
}

fn print(all: &[Figures]) {
    println!("Envoy with kvroute against the same Envoy without it (one worker, one connection)");
    println!();
    println!("   body | CPU a request, us |         CPU ratio         |      added p50, ms        |  added p99, ms");
    println!("        |  with   | without | median  p10..p90   budget |   all  p10..p90   budget  |   all   budget");
    println!("--------|---------|---------|---------------------------|---------------------------|----------------");
    for figures in all {
        let Budget { cpu_ratio, added_median_ms, added_p99_ms } = budget(figures.size);
        println!(
            "{:>3} KiB | {:>7.1} | {:>7.1} | {:>5.2}  {:>4.2}..{:<4.2}   {:>6} | {:>6.3} {:>6.3}..{:<6.3} {:>5} | {:>6.3}  {:>5}",
            figures.size >> 10,
            figures.cpu_us[0],
            figures.cpu_us[1],
            at(&figures.ratios, 0.5),
            at(&figures.ratios, 0.1),
            at(&figures.ratios, 0.9),
            bound(cpu_ratio),
            figures.added_ms[0],
            at(&figures.added_median_ms, 0.1),
            at(&figures.added_median_ms, 0.9),
            bound(added_median_ms),
            figures.added_ms[1],
            bound(added_p99_ms),
        );
    }
    println!();
    println!(
        "p10..p90: of {} pairs of batches. Polls and ticks are part of both sides.",
        all[0].ratios.len()
    );
}

fn at(ordered: &[f64], share: f64) -> f64 {
    ordered[((ordered.len() - 1) as f64 * share).round() as usize]
}

fn bound(budget: Option<f64>) -> String {
    budget.map_or_else(|| "-".to_owned(), |budget| format!("<{budget}"))
}

/// A line that updates, on standard error and only for a person.
fn progress(size: usize, share: f64) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{size} KiB bodies: {:>3.0} %", share * 100.0);
        let _ = std::io::stderr().flush();
    } else if share == 1.0 {
        eprintln!("{size} KiB bodies: done");
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}
