//! `replay`: how well does kvroute's core decide, in a simulated fleet of vLLM engines?
//!
//! | question | module |
//! | --- | --- |
//! | which traces, and what may they be used for | `traces` |
//! | what is measured by default | `report`, `sections` |
//! | how is it shown | `row`, `plots`, `progress` |
//! | which configuration is better | `tune` |
//! | does a real Envoy see the same | `recorded` |

mod plots;
mod progress;
mod recorded;
mod report;
mod row;
mod sections;
mod traces;
mod tune;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Replays request traces through a simulated fleet of vLLM engines, and says how well kvroute's core, the code that
/// is in the wasm, decides beside other routers' policies and an oracle that sees all caches and queues.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_long_help = report::JSON_HELP)]
struct Arguments {
    #[command(flatten)]
    report: report::Report,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tries configurations side by side, for tuning.
    Try(tune::Tune),
    /// Replays what `scripts/bench --quality --record` recorded, and sets it beside what the real Envoy measured.
    Compare(recorded::Compare),
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Try(tune)) => tune.run(),
        Some(Command::Compare(compare)) => compare.run(),
        None => arguments.report.run(),
    }
}
