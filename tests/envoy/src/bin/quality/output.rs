//! The table, and the same as JSON.

use crate::figures::{Figures, Outcome};
use crate::load::GOOD_WITHIN;
use anyhow::{Context, Result};
use serde_json::{json, Value};
use std::path::Path;
use std::time::Duration;

/// Timers later than this: half of what an engine makes up for. Its simulated speed may not have been what decided.
const TOO_LATE: Duration = Duration::from_millis(10);

/// Prints the table of one load.
pub fn print(outcome: &Outcome) {
    println!();
    println!("{}: {}", outcome.load.name, outcome.load.about);
    println!();
    println!("                     |          time to first token, ms          |  tokens | in time | imbal-");
    println!("                     |   mean  (by plan)       |    p50 |    p99 |  cached |         |   ance");
    println!("---------------------|-------------------------|--------|--------|---------|---------|-------");
    for figures in &outcome.policies {
        let summary = figures.summary();
        let plans: Vec<String> =
            figures.ttft_means_s().iter().map(|mean| format!("{:.0}", mean * 1e3)).collect();
        println!(
            "{:<20} | {:>6.0}  {:<15} | {:>6.0} | {:>6.0} | {:>7} | {:>7} | {:>6.2}",
            figures.name,
            milliseconds(summary.ttft.mean()),
            format!("({})", plans.join(", ")),
            milliseconds(summary.ttft.at(0.5)),
            milliseconds(summary.ttft.at(0.99)),
            percent(summary.cached_ratio),
            percent(figures.goodput()),
            figures.imbalance(),
        );
    }
    println!();
    let requests = outcome.policies.first().map_or(0, |figures| figures.summary().requests);
    let reusable = outcome.reusable.iter().sum::<f64>() / outcome.reusable.len() as f64;
    println!("{requests} requests each. One endless cache would have {} of the tokens.", percent(reusable));
    println!("In time: the first token came within {GOOD_WITHIN:?}. Imbalance: prompt tokens computed, busiest engine over mean.");
    outcome.policies.iter().for_each(print_troubles);
}

fn print_troubles(figures: &Figures) {
    for failure in figures.summary().failures.iter().take(3) {
        println!("{}: a request failed: {failure}", figures.name);
    }
    if figures.pace.late > TOO_LATE {
        println!(
            "{}: the machine may not have kept up, so these figures may be too bad: {}",
            figures.name, figures.pace
        );
    }
}

/// All figures.
pub fn document(outcomes: &[Outcome]) -> Value {
    let shape = |outcome: &Outcome| {
        let policies: Vec<Value> = outcome.policies.iter().map(policy).collect();
        json!({"name": outcome.load.name, "reusable_by_plan": outcome.reusable, "policies": policies})
    };
    let shapes: Vec<Value> = outcomes.iter().map(shape).collect();
    json!({"good_within_s": GOOD_WITHIN.as_secs_f64(), "shapes": shapes})
}

fn policy(figures: &Figures) -> Value {
    let summary = figures.summary();
    json!({
        "name": figures.name,
        "ttft_mean_s": summary.ttft.mean().as_secs_f64(),
        "ttft_mean_s_by_plan": figures.ttft_means_s(),
        "ttft_p50_s": summary.ttft.at(0.5).as_secs_f64(),
        "ttft_p99_s": summary.ttft.at(0.99).as_secs_f64(),
        "hit_rate": summary.cached_ratio,
        "goodput": figures.goodput(),
        "imbalance": figures.imbalance(),
        "requests": summary.requests,
        "failed": figures.failed(),
        "cpu": figures.pace.cpu,
        "timers_late_s": figures.pace.late.as_secs_f64(),
    })
}

/// Writes a document for people and programs.
pub fn write(path: &Path, document: &Value) -> Result<()> {
    std::fs::write(path, format!("{document:#}\n")).with_context(|| format!("writing {path:?}"))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
