//! Says how far a long step is: one line that updates, or plain lines now and then where nobody watches.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// The progress line, on standard error.
pub struct Progress {
    terminal: bool,
    last: Cell<Option<Instant>>,
}

impl Progress {
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), last: Cell::new(None) }
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
