//! How busy does the GPU look? As `nvidia-smi` and DCGM tell it: the share of time in which anything ran, however
//! little. One sequence makes it as busy as a full batch, and a queue does not show at all.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The longest window that can be asked for.
pub(crate) const LONGEST_WINDOW: Duration = Duration::from_secs(60);

/// A shorter pause is none. It bounds what is kept, and the drivers' own samples are much coarser.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// When something ran.
#[derive(Default)]
pub(crate) struct Utilisation {
    since: Option<Instant>,
    /// Earlier times, oldest first.
    past: VecDeque<(Instant, Instant)>,
}

impl Utilisation {
    /// Something runs from now on, or nothing does.
    pub(crate) fn note(&mut self, runs: bool, now: Instant) {
        match (self.since, runs) {
            (None, true) => self.since = Some(self.continued(now)),
            (Some(since), false) => {
                self.past.push_back((since, now));
                self.since = None;
            }
            _ => {}
        }
        while self.past.front().is_some_and(|(_, end)| now.duration_since(*end) > LONGEST_WINDOW) {
            self.past.pop_front();
        }
    }

    /// The share of the last `window` in which something ran, 0 to 1.
    pub(crate) fn over(&self, window: Duration, now: Instant) -> f64 {
        let window = window.clamp(SHORTEST_PAUSE, LONGEST_WINDOW);
        let spans = self.past.iter().copied().chain(self.since.map(|since| (since, now)));
        let in_window = |(start, end): (Instant, Instant)| {
            let before = now.duration_since(start).min(window);
            before.saturating_sub(now.duration_since(end))
        };
        spans.map(in_window).sum::<Duration>().as_secs_f64() / window.as_secs_f64()
    }

    /// When the time that goes on now began: with the last one if that has only just ended.
    fn continued(&mut self, now: Instant) -> Instant {
        match self.past.back() {
            Some((start, end)) if now.duration_since(*end) < SHORTEST_PAUSE => {
                let start = *start;
                self.past.pop_back();
                start
            }
            _ => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_share_of_the_window_in_which_something_ran() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut utilisation = Utilisation::default();
        let over = |utilisation: &Utilisation, window, now| {
            (utilisation.over(Duration::from_millis(window), at(now)) * 1e3).round()
        };
        assert_eq!(over(&utilisation, 1_000, 0), 0.0);
        utilisation.note(true, at(0));
        utilisation.note(true, at(100));
        utilisation.note(false, at(200));
        assert_eq!(over(&utilisation, 1_000, 1_000), 200.0);
        assert_eq!(over(&utilisation, 1_000, 1_100), 100.0, "half of it has left the window");
        assert_eq!(over(&utilisation, 1_000, 3_000), 0.0);
        utilisation.note(true, at(2_500));
        assert_eq!(over(&utilisation, 1_000, 3_000), 500.0, "it still runs");
        assert_eq!(over(&utilisation, 1_000, 9_000), 1_000.0);
    }

    #[test]
    fn only_a_window_of_it_is_kept() {
        let start = Instant::now();
        let mut utilisation = Utilisation::default();
        for ms in 0..200_000 {
            utilisation.note(ms % 4 < 2, start + Duration::from_millis(ms));
        }
        assert!(utilisation.past.len() <= 15_001, "{}", utilisation.past.len());
    }
}
