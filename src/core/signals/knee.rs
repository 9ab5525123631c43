//! Past which rate of requests does a queue stay at a replica? Seen, not assumed.
//!
//! While requests wait at an engine all the time, it completes what it can: that rate is its knee. It is counted at each
//! host by itself, for one hot prefix can make a queue at one of many idle ones; and only once a whole batch was replaced
//! since the queue began, for the first requests of a burst complete late.

use super::reading::{Reading, Seen};
use super::wire::Fields;
use crate::core::fleet::Slot;

/// Seconds for which requests must wait without a break to count.
const WINDOW_S: f64 = 10.0;

/// What a window leaves of earlier ones' weight: some thirty count, so that the knee follows the mix of requests.
const LATELY: f64 = 0.97;

/// Completions that must have been counted before the knee is known.
const LEAST_DONE: f64 = 20.0;

/// Seconds without a queue and without a change of replicas after which a rate is taken to be one that they can carry.
const CALM_S: f64 = 30.0;

/// What was seen of replicas at and below their knee.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Knee {
    /// Requests completed while others waited all the time, and in how many seconds; both fade.
    done: f64,
    seconds: f64,
    /// The most requests a second and replica without a queue.
    at_least: f64,
    /// The most sequences running at a replica without a queue.
    calm_running: f64,
    /// Seconds since a queue or a change of replicas was seen last.
    calm_s: f64,
}

/// What a host had when it was looked at last. Not told to the next leader: it looks anew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Past {
    slot: Slot,
    begun: u64,
    ended: u64,
    /// Completions since its queue began, and since they count: seconds and number.
    turned: f64,
    seconds: f64,
    done: f64,
}

impl Past {
    /// How many requests began on a host, and how many ended, since it was looked at last.
    fn look(&mut self, host: &Seen) -> (f64, f64) {
        let ended = host.begun.saturating_sub(u64::from(host.in_flight));
        let counted = (host.begun.saturating_sub(self.begun), ended.saturating_sub(self.ended));
        (self.begun, self.ended) = (host.begun, ended);
        (counted.0 as f64, counted.1 as f64)
    }
}

impl Knee {
    /// Requests a second and replica past which requests wait; `None` before that was seen.
    pub fn rate(&self) -> Option<f64> {
        (self.done >= LEAST_DONE && self.seconds > 0.0).then(|| self.done / self.seconds)
    }

    /// The most requests a second and replica that were seen without a queue; `None` before any was.
    pub fn at_least(&self) -> Option<f64> {
        (self.at_least > 0.0).then_some(self.at_least)
    }

    /// The most sequences running at a replica that were seen without a queue; `None` before any was.
    pub fn calm_running(&self) -> Option<f64> {
        (self.calm_running > 0.0).then_some(self.calm_running)
    }

    /// Looks at every host. Answers how many requests began since the last look, this gateway's alone. `scale` is what
    /// all requests are as a multiple of this gateway's.
    pub fn look(&mut self, past: &mut Vec<Past>, reading: &Reading, scale: Option<f64>, dt: f64) -> f64 {
        let before = std::mem::take(past);
        let mut begun = 0.0;
        for (n, host) in reading.hosts.iter().enumerate() {
            // Hosts mostly stand where they stood.
            let same = |past: &&Past| past.slot == host.slot;
            let known = before.get(n).filter(same).or_else(|| before.iter().find(same));
            let mut here = known.copied().unwrap_or(Past { slot: host.slot, ..Past::default() });
            let (began, ended) = here.look(host);
            if known.is_some() {
                begun += began;
                self.wait_at(&mut here, host, ended, scale, dt);
            }
            past.push(here);
        }
        begun
    }

    /// A host was looked at: do requests wait there all the time?
    fn wait_at(&mut self, past: &mut Past, host: &Seen, ended: f64, scale: Option<f64>, dt: f64) {
        let (Some(scale), true) = (scale, host.is_fresh && host.is_ready && host.waiting >= 1.0) else {
            (past.turned, past.seconds, past.done) = (0.0, 0.0, 0.0);
            return;
        };
        if past.turned < host.running.max(1.0) {
            past.turned += ended * scale;
            return;
        }
        past.done += ended * scale;
        past.seconds += dt;
        if past.seconds >= WINDOW_S && past.done >= host.running.max(1.0) {
            self.done = LATELY * self.done + past.done;
            self.seconds = LATELY * self.seconds + past.seconds;
            // More than this ran without a queue when requests were others.
            self.calm_running = self.calm_running.min(host.running);
            (past.seconds, past.done) = (0.0, 0.0);
        }
    }

    /// The whole fleet was looked at: what does a replica carry without a queue?
    pub fn calm(&mut self, is_calm: bool, rate: Option<f64>, running: f64, ready: f64, dt: f64) {
        self.calm_s = if is_calm { self.calm_s + dt } else { 0.0 };
        if self.calm_s >= CALM_S && ready > 0.0 {
            self.calm_running = self.calm_running.max(running / ready);
            self.at_least = self.at_least.max(rate.unwrap_or(0.0) / ready);
        }
    }

    pub(super) fn fields(&mut self) -> Fields<'_, 5> {
        [&mut self.done, &mut self.seconds, &mut self.at_least, &mut self.calm_running, &mut self.calm_s]
    }
}
