//! How long is the fleet's queue, and how many replicas would it take?
//!
//! The leader reads the fleet about once a second ([`Reading`]) and goes on from what was known ([`Signals`]), which lies in
//! shared data: the next leader goes on from there. What is seen of the knee (`knee`) and the recommendation
//! (`desired`) have modules of their own.
//!
//! While engines are silent, nothing falls: what they said last stands. What the others say may still raise it.

mod desired;
mod knee;
mod reading;
mod said;
mod wire;

pub use desired::{Ground, Terms};
pub use knee::Knee;
pub use reading::{Reading, Seen, Totals};
pub use said::GAUGES;

use super::config;
use super::fleet::Slot;
use knee::Past;

/// Seconds over which the queue is averaged to act on it: a burst of a second is none, and each second more is one that a
/// new replica comes later.
const FAST_S: f64 = 5.0;

/// Seconds over which it is averaged to tell whether it rises, and stands.
const SLOW_S: f64 = 60.0;

/// Seconds over which rates, running sequences, and the queue as it is shown to followers are averaged.
const EVEN_S: f64 = 30.0;

/// By how many seconds that mean of a steady rise lies behind the fast one.
const LAG_S: f64 = EVEN_S - FAST_S;

/// How far the averaged queue must move against its last direction, as a share, before what is shown follows. A wobble of
/// less is none.
const PLAY: f64 = 0.1;

/// The longest step in seconds: what lay between two longer ones was not seen.
const LONGEST_STEP_S: f64 = 10.0;

/// The share of the engines' requests that must be this gateway's, or it cannot tell the rate of all.
const LEAST_OWN: f64 = 0.05;

/// By how much engines may have more than this gateway before it is taken to be others': the two are not read at once.
const OTHERS: f64 = 1.15;

/// Requests that can begin between two looks: a counter may jump.
const MOST_BEGUN: f64 = 1e6;

/// What followers are told, and what the next leader needs to go on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Signals {
    /// When it was computed last, in milliseconds of the wall clock.
    pub computed_ms: u64,
    /// When all hosts that take requests had answered recently; 0: never.
    pub whole_ms: u64,
    /// Whether they have not now: nothing falls until they do.
    pub stale: bool,
    /// Hosts that take requests.
    pub ready: u32,
    /// Requests waiting.
    pub waiting: f64,
    /// Requests running.
    pub running: f64,
    /// Uncached prompt tokens that stand before a first byte.
    pub backlog_tokens: f64,
    /// Tokens a second that all hosts that take requests prefill; one host's, where there is none.
    pub prefill_rate: f64,
    /// How full the hosts are, 0 to 1: the mean over those that take requests of waiting over the target, or of the KV
    /// cache's use where that is more, each at most 1.
    pub saturation: f64,
    /// Whether the queue rises: it, and its mean over 5 s, are a fifth and one request above its mean over a minute.
    pub rising: bool,
    /// What was seen of replicas at and below their knee.
    pub knee: Knee,
    /// Replicas that each ground asks for.
    pub terms: Terms,
    /// What decided.
    pub ground: Ground,
    /// Replicas by the present terms.
    pub recommended: u32,
    /// Replicas, stabilised.
    pub desired: u32,
    /// Targets and bounds.
    pub settings: config::Signals,
    /// The hosts' slots: a gauge of one that is gone is to be cleared.
    pub slots: Vec<Slot>,
    smooth: Smooth,
    /// Recommendations, with when, as far as one may still be the highest of the window: falling numbers.
    highest: Vec<(u64, u32)>,
}

/// Means over the last seconds.
#[derive(Debug, Clone, PartialEq, Default)]
struct Smooth {
    /// Of the waiting requests: over [`FAST_S`], [`SLOW_S`] and [`EVEN_S`], and what is shown of the last.
    fast: f64,
    slow: f64,
    even: f64,
    shown: f64,
    running: f64,
    backlog: f64,
    /// Requests a second, and of these those that were turned away.
    rate: f64,
    shed: f64,
    /// Requests at the engines: this gateway's, and all.
    own: f64,
    all: f64,
}

/// How long a value stood, and what that does to a mean.
struct Step {
    dt: f64,
    is_first: bool,
    may_fall: bool,
}

impl Step {
    /// Moves a mean over `seconds`. Without an exponential, which is a kilobyte of wasm; one copy of it, for the same
    /// reason.
    #[inline(never)]
    fn follow(&self, mean: &mut f64, now: f64, seconds: f64) {
        let gain = if self.is_first { 1.0 } else { self.dt / (seconds + self.dt) };
        let next = *mean + gain * (now - *mean);
        *mean = if self.may_fall { next } else { mean.max(next) };
    }
}

impl Signals {
    /// Before anything was seen: as many replicas as there are hosts.
    pub fn begin(settings: config::Signals, hosts: usize, now_ms: u64) -> Self {
        let desired = (hosts as u32).max(settings.min_replicas).min(settings.most());
        let highest = vec![(now_ms, desired)];
        Self {
            computed_ms: now_ms,
            stale: true,
            desired,
            recommended: desired,
            settings,
            highest,
            ..Self::default()
        }
    }

    /// Requests a second, averaged; `None` before it was seen, or where too little of it comes through this gateway.
    pub fn rate(&self) -> Option<f64> {
        (self.whole_ms != 0 && self.scale().is_some()).then_some(self.smooth.rate)
    }

    /// What all requests are as a multiple of this gateway's.
    fn scale(&self) -> Option<f64> {
        let Smooth { own, all, .. } = self.smooth;
        if all <= own * OTHERS {
            return Some(1.0);
        }
        (own >= all * LEAST_OWN).then(|| all / own)
    }

    /// Waiting requests, averaged and without wobble.
    pub fn waiting_smoothed(&self) -> f64 {
        self.smooth.shown
    }

    /// Seconds that it takes to prefill what stands, by all hosts that take requests together.
    pub fn backlog_s(&self) -> f64 {
        if self.prefill_rate > 0.0 {
            self.backlog_tokens / self.prefill_rate
        } else {
            0.0
        }
    }

    /// Whether what is known is too old: engines are silent, or whoever reads them is, since `stale_after_ms`.
    pub fn is_stale(&self, now_ms: u64, stale_after_ms: u64) -> bool {
        self.stale || now_ms.saturating_sub(self.computed_ms) > stale_after_ms
    }

    /// Milliseconds since all was known; `None` before it ever was.
    pub fn age_ms(&self, now_ms: u64) -> Option<u64> {
        (self.whole_ms != 0).then(|| now_ms.saturating_sub(self.whole_ms))
    }
}

/// The leader's part: the signals, and what it saw of each host last.
#[derive(Debug)]
pub struct Meter {
    signals: Signals,
    past: Vec<Past>,
    /// Requests that were ever turned away, when it looked last.
    shed: u64,
}

impl Meter {
    /// Goes on from what was published.
    pub fn from(signals: Signals) -> Self {
        Self { signals, past: Vec::new(), shed: 0 }
    }

    /// What is to be published.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// The fleet was read: goes on.
    pub fn step(&mut self, reading: &Reading, settings: &config::Signals, now_ms: u64) {
        let signals = &mut self.signals;
        let is_first = signals.whole_ms == 0;
        let dt = (now_ms.saturating_sub(signals.computed_ms) as f64 / 1_000.0).min(LONGEST_STEP_S);
        signals.computed_ms = now_ms;
        signals.settings = *settings;
        signals.stale = !reading.is_whole();
        let totals = reading.totals(settings.waiting_per_replica);
        let readies = std::mem::replace(&mut signals.ready, totals.ready);
        signals.slots = reading.hosts.iter().map(|host| host.slot).collect();
        let scale = signals.scale();
        let had_looked = !self.past.is_empty();
        let began = signals.knee.look(&mut self.past, reading, scale, dt);
        let ever = reading.shed.unwrap_or(self.shed);
        let shed = ever.saturating_sub(std::mem::replace(&mut self.shed, ever)) as f64;
        let rates = (had_looked && dt > 0.0).then(|| {
            let shed = shed.min(MOST_BEGUN);
            ((began.min(MOST_BEGUN) * scale.unwrap_or(1.0) + shed) / dt, shed / dt)
        });
        if !reading.is_known() {
            signals.hold(now_ms);
            return;
        }
        if !signals.stale {
            signals.whole_ms = now_ms;
        }
        signals.read(reading, &totals);
        let rates = rates.unwrap_or((signals.smooth.rate, signals.smooth.shed));
        signals.average(totals.in_flight, rates, is_first, dt);
        if !signals.stale {
            let is_calm = signals.waiting < 1.0 && rates.1 == 0.0 && readies == signals.ready;
            // The mean of what ran a moment ago does not run now.
            let (rate, running) = (signals.rate(), signals.smooth.running.min(signals.running));
            signals.knee.calm(is_calm, rate, running, f64::from(signals.ready), dt);
        }
        let held = signals.desired;
        signals.recommend(now_ms);
        if signals.stale {
            signals.desired = signals.desired.max(held);
            signals.hold(now_ms);
        }
    }
}

impl Signals {
    /// Engines are silent: the replicas stay as they are, and the window begins anew.
    fn hold(&mut self, now_ms: u64) {
        self.desired = self.desired.min(self.settings.most()).max(self.settings.min_replicas);
        self.remember(self.desired, now_ms);
        self.ground = Ground::Stale;
    }

    /// Takes the sums over.
    fn read(&mut self, reading: &Reading, totals: &Totals) {
        let sums = [
            (&mut self.waiting, totals.waiting),
            (&mut self.running, totals.running),
            (&mut self.backlog_tokens, totals.backlog_tokens),
            (&mut self.saturation, totals.full / f64::from(totals.ready.max(1))),
        ];
        for (known, now) in sums {
            *known = if self.stale { known.max(now) } else { now };
        }
        let one = reading.hosts.first().map_or(0.0, |host| host.prefill_rate);
        self.prefill_rate = totals.prefill_rate.max(one);
    }

    /// Moves the means. `rates` are those of all requests and of those that were turned away.
    fn average(&mut self, own: f64, rates: (f64, f64), is_first: bool, dt: f64) {
        let step = Step { dt, is_first, may_fall: !self.stale };
        let smooth = &mut self.smooth;
        step.follow(&mut smooth.fast, self.waiting, FAST_S);
        step.follow(&mut smooth.slow, self.waiting, SLOW_S);
        step.follow(&mut smooth.even, self.waiting, EVEN_S);
        step.follow(&mut smooth.running, self.running, EVEN_S);
        step.follow(&mut smooth.backlog, self.backlog_tokens, FAST_S);
        step.follow(&mut smooth.rate, rates.0, EVEN_S);
        step.follow(&mut smooth.shed, rates.1, EVEN_S);
        step.follow(&mut smooth.own, own, SLOW_S);
        step.follow(&mut smooth.all, self.running + self.waiting, SLOW_S);
        // Below a tenth of a request nothing waits.
        let (even, shown) = (smooth.even, smooth.shown);
        smooth.shown = if is_first {
            even
        } else if even < 0.1 {
            0.0
        } else {
            shown.max(even * (1.0 - PLAY)).min(even * (1.0 + PLAY))
        };
        // Not while it drains, though the mean of the last seconds is still high.
        let lately = self.smooth.fast.min(self.waiting);
        self.rising = lately > 1.2 * self.smooth.slow + 1.0 || (self.stale && self.rising);
    }
}
