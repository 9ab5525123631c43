//! Did the machine keep up, so that the engines' simulated speed decided and not the CPU's?

use crate::admin::cpu_time;
use crate::quantiles::Quantiles;
use anyhow::Result;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{timeout_at, Instant};

/// Between two timers whose lateness is measured.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);

/// How the machine kept up with some work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    /// Share of the machine's CPU time that the watched processes used.
    pub cpu: f64,
    /// Of a hundred timers in this process 99 fired at most this late. The engines make up for what is a few times
    /// longer; about a millisecond is what timers always lack.
    pub late: Duration,
}

impl Pace {
    /// Of two works, the one with which the machine kept up worse.
    pub fn worse(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), late: self.late.max(other.late) }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {:.0} %, timers {:.1} ms late", self.cpu * 100.0, self.late.as_secs_f64() * 1e3)
    }
}

/// Does `work`, and watches the machine, this process and those with the given ids meanwhile.
pub async fn watch<T>(processes: &[u32], work: impl Future<Output = T>) -> Result<(T, Pace)> {
    let used = || -> Result<Duration> {
        let all = processes.iter().copied().chain([std::process::id()]);
        all.map(cpu_time).sum()
    };
    let (start, before) = (Instant::now(), used()?);
    let mut late = Vec::new();
    let mut work = pin!(work);
    let done = loop {
        let due = Instant::now() + PROBE_INTERVAL;
        match timeout_at(due, &mut work).await {
            Ok(done) => break done,
            Err(_) => late.push(due.elapsed()),
        }
    };
    let cpus = std::thread::available_parallelism()?.get() as f64;
    let cpu = used()?.saturating_sub(before).as_secs_f64() / (start.elapsed().as_secs_f64() * cpus);
    Ok((done, Pace { cpu, late: Quantiles::new(late).at(0.99) }))
}
