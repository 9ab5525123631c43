//! The fleet's life, shown: engines come, load, crash, hang, restart and go under load, and the queue scales them. Run it
//! through `scripts/life`.

mod curves;
mod day;
mod hour;
mod lanes;
mod scaler;
mod svg;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use day::Day;
use gateway::progress::Progress;
use scaler::Signal;
use std::path::PathBuf;
use std::process::ExitCode;

/// Shows the life of a fleet of mock engines behind a real Envoy.
#[derive(Parser)]
#[command(name = "life", max_term_width = 110)]
struct Flags {
    /// What to show; everything, if it is not said.
    #[arg(value_enum)]
    shows: Vec<Show>,

    /// Where the figures go.
    #[arg(long, default_value = "target/life")]
    out: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Show {
    /// An hour of life in minutes: 2, 6, 3 engines, a crash, a hang, a restart, drains.
    Hour,
    /// The closed loop: a day of load, and kvroute's desired replicas scale the fleet.
    Loop,
    /// The same day by the queue and by GPU utilisation.
    Gpu,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let flags = Flags::parse();
    std::fs::create_dir_all(&flags.out)?;
    let asked = |show: Show| flags.shows.is_empty() || flags.shows.contains(&show);
    let progress = Progress::new();
    let mut good = true;
    if asked(Show::Hour) {
        good &= hour::show(&progress, &flags.out).await?;
    }
    if asked(Show::Loop) || asked(Show::Gpu) {
        let queue = Day::run(&progress, Signal::Queue).await?;
        if asked(Show::Loop) {
            good &= day::show_loop(&queue, &flags.out)?;
        }
        if asked(Show::Gpu) {
            let gpu = Day::run(&progress, Signal::Utilisation).await?;
            day::show_both(&queue, &gpu, &flags.out)?;
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
