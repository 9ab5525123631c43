//! Runs a fleet of mock vLLM engines from the command line, until interrupted.

use std::io;
use std::net::SocketAddr;

use clap::Parser;
use fleet::{EngineOptions, Fleet};

/// A fleet of mock vLLM engines on 127.0.0.1, with real queues and real prefix caches.
///
/// Each engine also answers POST /control/fault and GET /control/report; the control port reaches all of them by
/// number, also those that refuse connections.
#[derive(Parser)]
#[command(name = "fleet", max_term_width = 110)]
struct Flags {
    /// Engines to run.
    #[arg(long, default_value_t = 4)]
    engines: u16,

    /// Port of the first engine; the others follow.
    #[arg(long, default_value_t = 8001)]
    base_port: u16,

    /// Ports of the engines, comma separated, in place of --engines and --base-port.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["engines", "base_port"])]
    ports: Vec<u16>,

    /// Port that controls the whole fleet; 0 lets the system choose.
    #[arg(long, default_value_t = 8100)]
    control_port: u16,

    /// Threads that serve all engines. One is enough for some thousand requests a second.
    #[arg(long, default_value_t = 1)]
    threads: usize,

    #[command(flatten)]
    options: EngineOptions,
}

fn main() -> io::Result<()> {
    let flags = Flags::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(flags.threads.max(1))
        .enable_all()
        .build()?;
    // On a worker, so that the one thread is the one that serves.
    runtime.block_on(async { tokio::spawn(run(flags)).await? })
}

async fn run(flags: Flags) -> io::Result<()> {
    let ports = match flags.ports.is_empty() {
        true => (0..flags.engines).map(|n| flags.base_port.saturating_add(n)).collect(),
        false => flags.ports,
    };
    let mut fleet = Fleet::start_on(&ports, flags.options).await?;
    let control = fleet.serve_control(flags.control_port)?;
    introduce(&fleet, control);
    interrupted().await
}

fn introduce(fleet: &Fleet, control: SocketAddr) {
    for (n, address) in fleet.addresses().iter().enumerate() {
        println!("engine {n} on http://{address}");
    }
    println!("control on http://{control}");
    let Some(first) = fleet.addresses().first().copied() else {
        return;
    };
    println!();
    println!("curl -s http://{first}/v1/completions -H 'content-type: application/json' -d '{{\"prompt\":\"Once upon a time\"}}'");
    println!("curl -s http://{first}/metrics");
    println!("curl -s http://{control}/report");
    println!("curl -s -X DELETE http://{control}/report");
    println!("curl -s http://{control}/engines/0/requests");
    println!("curl -s http://{control}/engines/0/fault -d '{{\"fault\":\"slow\",\"factor\":4}}'");
    println!("curl -s http://{control}/engines/0/fault -d '{{\"fault\":\"refuse\"}}'");
    println!("curl -s http://{control}/engines/0/fault -d '{{\"fault\":\"metrics\",\"how\":\"stale\"}}'");
    println!("curl -s http://{control}/engines/0/fault -d '{{\"fault\":\"clear\"}}'");
}

async fn interrupted() -> io::Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt,
        _ = terminated.recv() => Ok(()),
    }
}
