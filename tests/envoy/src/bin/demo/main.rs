//! The same conversations through round robin and through kvroute, in one real Envoy, over mock engines with
//! real queues and real prefix caches: one table. Run it through `scripts/demo`.

mod latency;
mod table;

use anyhow::{bail, Result};
use fleet::{EngineOptions, Fleet};
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::policy::Policy;
use gateway::progress::Progress;
use gateway::testbed::{polled, released};
use gateway::workload::plan::{Plan, Shape};
use gateway::workload::replay::Replay;
use gateway::workload::summary::Summary;
use serde_json::json;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use table::Column;
use tokio::signal::unix::{signal, SignalKind};

const ENGINES: usize = 4;

/// More than the engines can run at once: the engines' queues decide, not the client.
const MOST_IN_FLIGHT: usize = 512;

/// An engine that prefills 8,000 tokens a second and caches 49,152. The system prompts below alone need twice that:
/// four caches hold them all if each prompt has its place, and one cannot.
fn engine() -> EngineOptions {
    EngineOptions {
        block_size: 16,
        num_blocks: 3_072,
        prefill_tokens_per_s: 8_000.0,
        decode_step_ms: 8.0,
        ..EngineOptions::default()
    }
}

/// Sixty-four applications (system prompts of about 1,500 tokens, a few of them popular), each conversation growing
/// by about 230 tokens a turn.
fn shape() -> Shape {
    Shape {
        seed: 1,
        conversations: 160,
        starts_per_s: 8.0,
        systems: 64,
        skew: 0.7,
        system_bytes: 6_000,
        turns: 6,
        question_bytes: 800,
        answer_tokens: 24,
        think_s: 1.5,
        stream: true,
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let serve = match std::env::args().skip(1).collect::<Vec<_>>().join(" ").as_str() {
        "" => false,
        "--serve" => true,
        other => bail!("usage: scripts/demo [--serve], not {other}"),
    };
    tokio::select! {
        result = run(serve) => result,
        // Returning drops Envoy and the engines, which stops them.
        () = stopped() => Ok(ExitCode::from(130)),
    }
}

async fn stopped() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

async fn run(serve: bool) -> Result<ExitCode> {
    let progress = Progress::new();
    progress.say(&format!("starting 2 x {ENGINES} mock engines, and Envoy with two listeners"));
    // One fleet for each way, so that neither finds the other's caches.
    let (control, fleet) = (Fleet::start(ENGINES, engine()).await?, Fleet::start(ENGINES, engine()).await?);
    // What the engines are, as an operator would say.
    let config = Config::quick_start()?
        .plugin("/routing/prefill_tokens_per_s", json!(engine().prefill_tokens_per_s))
        .hosts(&fleet.addresses())
        .with_policy(Policy::RoundRobin, &control.addresses());
    let envoy = Envoy::start(&config, &Options::default()).await?;
    let (round_robin, kvroute) =
        (envoy.listener(Policy::RoundRobin.name()).await?, envoy.listener(KVROUTE).await?);
    polled(&fleet).await?;

    let plan = Arc::new(Plan::new(&shape()));
    let columns = [
        Column { name: "round robin", summary: replay(&progress, "round robin", &plan, round_robin).await },
        Column { name: "kvroute", summary: replay(&progress, "kvroute", &plan, kvroute).await },
    ];
    let direct = [control.addresses(), fleet.addresses()].map(|addresses| addresses[0]);
    let added = latency::added(&progress, direct, [round_robin, kvroute]).await?;
    let in_flight = released(&envoy).await;

    let good = table::print(&columns, added, &in_flight);
    if serve {
        keep_up(round_robin, kvroute, &envoy);
        std::future::pending::<()>().await;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn replay(progress: &Progress, name: &str, plan: &Arc<Plan>, address: SocketAddr) -> Summary {
    let replay = Replay::new(plan, address, MOST_IN_FLIGHT);
    let total = plan.requests();
    let line = || format!("{name}: {} of {total} requests", replay.done());
    let records = progress.during(line, replay.run()).await;
    progress.say(&format!("{name}: {} requests", records.len()));
    Summary::new(&records)
}

fn keep_up(round_robin: SocketAddr, kvroute: SocketAddr, envoy: &Envoy) {
    let admin = envoy.admin().address();
    println!(
        r#"
Still up; Ctrl-C stops it. To try:

  # twice: the second time, x-kvroute-matched says how much of the prompt that host holds
  curl -si http://{kvroute}/v1/chat/completions -H 'content-type: application/json' -d '{{"model": "mock",
    "max_tokens": 8, "messages": [{{"role": "user", "content": "'"$(seq 1000 | tr '\n' ' ')"'"}}]}}'

  # a stream
  curl -sN http://{kvroute}/v1/chat/completions -H 'content-type: application/json' -d '{{"model": "mock",
    "max_tokens": 50, "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

  # the same through round robin, without the filter
  curl -si http://{round_robin}/v1/chat/completions -H 'content-type: application/json' -d '{{"model": "mock",
    "max_tokens": 8, "messages": [{{"role": "user", "content": "Hello"}}]}}'

  # what kvroute counts, and what Envoy sees of the engines
  curl -s http://{admin}/stats/prometheus | grep ^kvroute_
  curl -s http://{admin}/clusters | grep ^vllm"#
    );
}
