//! How far is it? A bar where somebody watches, else a line now and then, on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// Parts of a bar.
const PARTS: u64 = 1_000;

/// One step.
pub struct Progress {
    name: String,
    begun: Instant,
    bar: Option<ProgressBar>,
    said: Mutex<Instant>,
}

impl Progress {
    /// A step begins.
    pub fn begin(name: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(PARTS);
            let style =
                ProgressStyle::with_template("==> {msg} [{bar:30}] {percent} % {elapsed}, {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(name.to_owned());
            bar
        });
        if bar.is_none() {
            eprintln!("==> {name}");
        }
        Self { name: name.to_owned(), begun: Instant::now(), bar, said: Mutex::new(Instant::now()) }
    }

    /// A share of it is done.
    pub fn at(&self, share: f64) {
        if let Some(bar) = &self.bar {
            bar.set_position((share * PARTS as f64) as u64);
            return;
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.elapsed() >= PLAIN_INTERVAL {
            eprintln!(
                "    {:.0} % of {}, {:.0} s",
                100.0 * share,
                self.name,
                self.begun.elapsed().as_secs_f64()
            );
            *said = Instant::now();
        }
    }

    /// It is done.
    pub fn end(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("    {}: {:.1} s", self.name, self.begun.elapsed().as_secs_f64());
    }
}
