//! How good are the decisions? The same workload through Envoy's own policies and through kvroute, in one real Envoy
//! over mock engines with real queues and real prefix caches: one table. Run it through `scripts/bench --quality`.

mod figures;
mod load;
mod output;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use figures::{Figures, Outcome};
use fleet::Fleet;
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::pace::{watch, Pace};
use gateway::policy::Policy;
use gateway::progress::Progress;
use gateway::testbed::{polled, released};
use gateway::workload::plan::Plan;
use gateway::workload::replay::{Record, Replay};
use gateway::workload::trace::Trace;
use load::{engine, Load, ENGINES, LOADS};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// More than the engines can run at once: the engines' queues decide, not the client.
const MOST_IN_FLIGHT: usize = 1_024;

/// What kvroute is compared with, in the order of the table.
const CONTROLS: [Policy; 4] =
    [Policy::RoundRobin, Policy::LeastRequest, Policy::PrefixHash, Policy::BoundedPrefixHash];

/// Compares kvroute with Envoy's own load balancing policies.
#[derive(Parser)]
#[command(name = "scripts/bench --quality")]
struct Args {
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write what was sent to this folder: a vt1 trace for each shape and plan, and the engines' parameters.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,

    /// How many plans are drawn of each shape. Each takes about two and a half minutes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    plans: u64,
}

/// What one policy made of one plan.
struct Run {
    records: Vec<Record>,
    pace: Pace,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(folder) = &args.record {
        std::fs::create_dir_all(folder).with_context(|| format!("making {folder:?}"))?;
        output::write(&folder.join("mock.json"), &load::parameters())?;
    }
    let progress = Progress::new();
    let mut outcomes = Vec::new();
    for load in &LOADS {
        let outcome = measure(&progress, load, &args).await?;
        output::print(&outcome);
        outcomes.push(outcome);
    }
    if let Some(path) = &args.json {
        output::write(path, &output::document(&outcomes))?;
    }
    let failed: usize =
        outcomes.iter().flat_map(|outcome| &outcome.policies).map(|figures| figures.failed()).sum();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends the plans of one load through all policies.
async fn measure(progress: &Progress, load: &'static Load, args: &Args) -> Result<Outcome> {
    let names = CONTROLS.iter().map(|policy| policy.name()).chain(["kvroute"]);
    let mut outcome = Outcome { load, reusable: Vec::new(), policies: names.map(Figures::new).collect() };
    for seed in 1..=args.plans {
        let plan = Arc::new(Plan::new(&load.shape(seed)));
        let title = format!("{}, plan {seed} of {}", load.name, args.plans);
        let (controls, kvroute) = replay_all(progress, &title, &plan).await?;
        let trace = Trace::new(&plan, &kvroute.records, &engine())?;
        if let Some(folder) = &args.record {
            let name = format!("{}-{seed}", load.name);
            trace.write(&folder.join(format!("{name}.vt1.jsonl.gz")), &name)?;
        }
        outcome.reusable.push(trace.reusable());
        let runs = controls.into_iter().chain([kvroute]);
        outcome.policies.iter_mut().zip(runs).for_each(|(figures, run)| figures.add(run.records, run.pace));
    }
    Ok(outcome)
}

/// Sends one plan through all policies, one after another: each has a fleet of its own, so that none finds the
/// others' caches, and a listener in the same Envoy. kvroute's run comes last.
async fn replay_all(progress: &Progress, title: &str, plan: &Arc<Plan>) -> Result<(Vec<Run>, Run)> {
    let routed = Fleet::start(ENGINES, engine()).await?;
    let mut config = Config::quick_start()?.hosts(&routed.addresses());
    let mut fleets = Vec::new();
    for policy in CONTROLS {
        let fleet = Fleet::start(ENGINES, engine()).await?;
        config = config.with_policy(policy, &fleet.addresses());
        fleets.push(fleet);
    }
    let envoy = Envoy::start(&config, &Options::default()).await?;
    polled(&routed).await?;

    let mut controls = Vec::new();
    for policy in CONTROLS {
        let title = format!("{title}, {}", policy.name());
        controls.push(replay(progress, &title, plan, &envoy, policy.name()).await?);
    }
    let kvroute = replay(progress, &format!("{title}, kvroute"), plan, &envoy, KVROUTE).await?;
    released(&envoy).await?;
    same_answers(controls.iter().chain([&kvroute]))?;
    Ok((controls, kvroute))
}

async fn replay(
    progress: &Progress,
    title: &str,
    plan: &Arc<Plan>,
    envoy: &Envoy,
    listener: &str,
) -> Result<Run> {
    let replay = Replay::new(plan, envoy.listener(listener).await?, MOST_IN_FLIGHT);
    let line = || format!("{title}: {} of {} requests", replay.done(), plan.requests());
    let (records, pace) = watch(&[envoy.pid()], progress.during(line, replay.run())).await?;
    progress.say(&format!("{title}: {} requests; {pace}", records.len()));
    Ok(Run { records, pace })
}

/// An engine's answer depends on the prompt alone, so equal answers mean that all policies had the same prompts.
fn same_answers<'a>(runs: impl Iterator<Item = &'a Run>) -> Result<()> {
    let mut answers = HashMap::new();
    for record in runs.flat_map(|run| &run.records).filter(|record| record.failure.is_none()) {
        let place = (record.conversation, record.turn);
        let first = answers.entry(place).or_insert(&record.answer);
        ensure!(**first == record.answer, "conversation and turn {place:?} have two answers");
    }
    Ok(())
}
