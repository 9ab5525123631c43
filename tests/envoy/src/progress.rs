//! Says how far a long step is: one line that updates, or plain lines now and then where nobody watches.

use std::cell::Cell;
use std::future::Future;
use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::{Duration, Instant};

/// Between two looks at how far a step is.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// The progress line, on standard error.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    last: Cell<Option<Instant>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), last: Cell::new(None) }
    }
}

impl Progress {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does `work`, and shows `line` as it changes meanwhile.
    pub async fn during<T>(&self, line: impl Fn() -> String, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            self.update(&line());
            if let Ok(done) = tokio::time::timeout(LOOK_INTERVAL, &mut work).await {
                return done;
            }
        }
    }

    /// Something that stays on the screen.
    pub fn say(&self, line: &str) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
        eprintln!("{line}");
        self.last.set(Some(Instant::now()));
    }

    /// Something that the next line replaces.
    pub fn update(&self, line: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else if self.last.get().is_none_or(|last| last.elapsed() >= PLAIN_INTERVAL) {
            self.say(line);
        }
    }
}
