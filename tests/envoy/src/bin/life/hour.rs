//! The first show: an hour of life in minutes.

use crate::lanes;
use anyhow::Result;
use gateway::life::run::Plot;
use gateway::progress::Progress;
use gateway::quantiles::Quantiles;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// What an hour is here.
const SAID: &str = "2, then 6, then 3 engines. Nothing runs faster than in life, and loading takes 20 s; what is short is the \
    quiet time between events.";

/// What else is short.
const WINDOW: &str = "Wishes for fewer replicas wait for 20 s.";

/// Runs it, draws it, prints what became of it; whether all went well.
pub async fn show(progress: &Progress, out: &Path) -> Result<bool> {
    let plot = Plot::hour(vec![("/signals/window_s", json!(20))]);
    progress.say(&format!("an hour of life: {SAID} {WINDOW}"));
    progress.say(&format!("about {:.0} s", plot.curve.seconds()));
    let start = Instant::now();
    let line = || format!("{:.0} of {:.0} s", start.elapsed().as_secs_f64(), plot.curve.seconds());
    let run = plot.run(|event| progress.say(&format!("{:5.0} s  {}", event.at_s, event.words())));
    let outcome = progress.during(line, run).await?;

    let verdicts = &outcome.verdicts;
    let came = format!(
        "{} requests, {} cut with their engine, {} that could have been saved. {WINDOW}",
        verdicts.requests,
        verdicts.unavoidable,
        verdicts.avoidable.len(),
    );
    let path = out.join("hour.svg");
    lanes::draw(
        &path,
        "An hour of a fleet's life in minutes",
        [SAID, &came],
        &outcome.samples,
        &plot.events,
    )?;

    let ttft = Quantiles::new(outcome.records.iter().filter_map(|record| record.ttft).collect());
    let seconds = |duration: Duration| duration.as_secs_f64();
    println!("An hour of life");
    println!("  requests                                    {:>6}", verdicts.requests);
    println!(
        "  time to first token, p50 / p95         {:>5.2} / {:.2} s",
        seconds(ttft.at(0.5)),
        seconds(ttft.at(0.95))
    );
    println!("  cut with the engine that was answering      {:>6}", verdicts.unavoidable);
    println!("  failed and could have been saved            {:>6}", verdicts.avoidable.len());
    println!("  engines that did not get empty in time      {:>6}", outcome.undrained.len());
    println!("  figure: {}", path.display());
    for failure in verdicts.avoidable.iter().take(10) {
        println!("  {failure}");
    }
    println!();
    Ok(verdicts.avoidable.is_empty() && outcome.undrained.is_empty())
}
