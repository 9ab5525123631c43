//! How many replicas would it take, and what says so?
//!
//! Each [`Ground`] asks for a number of replicas, and the most wins. Up at once, since a new replica takes tens of seconds
//! to load; down only to the highest recommendation of a window, as HPA does.

use super::{Signals, Smooth};

/// Seconds that a new replica is taken to load: a queue is judged by what it will be then.
const LOADS_S: f64 = 30.0;

/// A recommendation within this share of the bound to the next one leaves the replicas as they are. HPA takes a tenth.
const TOLERANCE: f64 = 0.05;

/// Requests a second that are turned away, below which none are: a mean never falls to nothing.
const LEAST_SHED: f64 = 0.01;

/// Clients that are turned away come again: of so many requests one at least is taken to be served.
const MOST_SHED: f64 = 4.0;

/// Most entries of the window's history: it holds only falling numbers.
const MOST_ENTRIES: usize = 64;

/// What decides the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ground {
    /// Nothing was seen yet: as many as there are.
    #[default]
    Start,
    /// So many wait.
    Queue,
    /// Requests are turned away.
    Shed,
    /// The queue rises.
    Rising,
    /// So much prefill stands.
    Backlog,
    /// The rate, and what a replica was seen to carry.
    Knee,
    /// The running sequences, and what a replica was seen to run without a queue.
    Running,
    /// Some wait all the time: fewer would not carry it.
    Standing,
    /// Nothing is known by which fewer could be judged.
    Unknown,
    /// No more than twice as many at once.
    Growth,
    /// Nothing asks for more than the least.
    Least,
    /// Never more.
    Most,
    /// More were recommended a while ago.
    Window,
    /// Engines are silent: the value is held.
    Stale,
}

impl Ground {
    /// All of them, in the order of their numbers.
    pub const ALL: [Ground; 14] = [
        Ground::Start,
        Ground::Queue,
        Ground::Shed,
        Ground::Rising,
        Ground::Backlog,
        Ground::Knee,
        Ground::Running,
        Ground::Standing,
        Ground::Unknown,
        Ground::Growth,
        Ground::Least,
        Ground::Most,
        Ground::Window,
        Ground::Stale,
    ];

    /// Its name, and why in words.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Ground::Start => ("start", "nothing was seen yet: as many as are listed"),
            Ground::Queue => ("queue", "waiting requests over waiting_per_replica"),
            Ground::Shed => ("shed", "requests are turned away: as many more as it takes to serve them, too"),
            Ground::Rising => {
                ("rising", "the queue rises, and a new replica takes a while: some more at once")
            }
            Ground::Backlog => ("backlog", "seconds of prefill that stand, over backlog_s"),
            Ground::Knee => {
                ("knee", "requests a second, over knee_share of what a replica was seen to carry")
            }
            Ground::Running => {
                ("running", "running sequences over the most that a replica ran without a queue")
            }
            Ground::Standing => {
                ("standing", "some requests wait all the time: fewer would not carry the rate")
            }
            Ground::Unknown => ("unknown", "nothing was seen by which fewer could be judged"),
            Ground::Growth => ("growth", "no more than twice as many, or four more, at once"),
            Ground::Least => ("min_replicas", "nothing asks for more than min_replicas"),
            Ground::Most => ("max_replicas", "never more than max_replicas"),
            Ground::Window => ("window", "the highest recommendation of the last window_s seconds"),
            Ground::Stale => ("stale", "engines do not answer: held, and never less until they do"),
        }
    }
}

/// Replicas that each ground asks for; not whole, and not bounded.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// By those who wait.
    pub queue: f64,
    /// By those who are turned away.
    pub shed: f64,
    /// By how the queue rises.
    pub rising: f64,
    /// By the prefill that stands.
    pub backlog: f64,
    /// By the rate: what it takes to carry it.
    pub carry: f64,
}

impl Signals {
    /// What each ground asks for, and which of them asks for most.
    pub(super) fn ask(&self) -> (Terms, Ground) {
        let (ready, smooth, settings) = (f64::from(self.ready), &self.smooth, &self.settings);
        let target = settings.waiting_per_replica;
        let slope = (smooth.fast - smooth.even).max(0.0) / super::LAG_S;
        let soon = smooth.fast + slope * LOADS_S;
        let rises = self.rising && soon > target * ready;
        let tokens_a_replica = settings.backlog_s * self.prefill_rate / ready.max(1.0);
        let (carry, ground) = self.carry();
        let terms = Terms {
            queue: smooth.fast / target,
            shed: self.with_shed(),
            rising: if rises { ready + (ready / 4.0).max(1.0) } else { 0.0 },
            backlog: if tokens_a_replica > 0.0 { smooth.backlog / tokens_a_replica } else { 0.0 },
            carry,
        };
        let asked = [
            (Ground::Queue, terms.queue),
            (Ground::Shed, terms.shed),
            (Ground::Rising, terms.rising),
            (Ground::Backlog, terms.backlog),
        ];
        let most =
            asked.into_iter().fold((ground, carry), |most, ask| if ask.1 > most.1 { ask } else { most });
        (terms, most.0)
    }

    /// Replicas that would serve those as well who are turned away: all are full when that begins.
    fn with_shed(&self) -> f64 {
        let Smooth { rate, shed, .. } = self.smooth;
        if shed < LEAST_SHED {
            return 0.0;
        }
        f64::from(self.ready) * rate / (rate - shed).max(rate / MOST_SHED)
    }

    /// Replicas that carry the present rate. Fewer than there are only by what was seen.
    fn carry(&self) -> (f64, Ground) {
        let (ready, smooth) = (f64::from(self.ready), &self.smooth);
        let (carry, ground) = match (self.rate(), self.knee.rate(), self.knee.calm_running()) {
            (Some(rate), Some(knee), _) => (rate / (knee * self.settings.knee_share), Ground::Knee),
            (_, _, Some(calm)) => ((smooth.running / calm).min(ready), Ground::Running),
            _ if smooth.running < 0.05 => (0.0, Ground::Running),
            _ => (ready, Ground::Unknown),
        };
        // Half a request at each, on average, over the slow mean's minute.
        let stands = smooth.slow >= 0.5 * ready;
        if stands && ready >= carry {
            (ready, Ground::Standing)
        } else {
            (carry, ground)
        }
    }

    /// Takes the terms into account: the recommendation, and the highest of the window.
    pub(super) fn recommend(&mut self, now_ms: u64) {
        let (terms, mut ground) = self.ask();
        self.terms = terms;
        let Terms { queue, shed, rising, backlog, carry } = terms;
        let need = queue.max(shed).max(rising).max(backlog).max(carry);
        // Casts saturate.
        let [up, down] = [need * (1.0 - TOLERANCE), need * (1.0 + TOLERANCE)].map(|need| need.ceil() as u32);
        let mut wanted = self.desired.max(up).min(down);
        let grown = self.ready.saturating_mul(2).max(self.ready.saturating_add(4)).max(self.desired);
        for (bound, by) in [(grown, Ground::Growth), (self.settings.most(), Ground::Most)] {
            if wanted > bound {
                (wanted, ground) = (bound, by);
            }
        }
        if wanted <= self.settings.min_replicas {
            (wanted, ground) = (self.settings.min_replicas, Ground::Least);
        }
        self.recommended = wanted;
        self.remember(wanted, now_ms);
        let highest = self.highest.first().map_or(wanted, |(_, highest)| *highest);
        self.desired = highest.min(self.settings.most()).max(wanted);
        self.ground = if self.desired > wanted { Ground::Window } else { ground };
    }

    /// The history of recommendations, as far as one may still be the highest of the window.
    pub(super) fn remember(&mut self, wanted: u32, now_ms: u64) {
        let oldest_ms = now_ms.saturating_sub(u64::from(self.settings.window_s) * 1_000);
        // A clock that was set back must not keep any for longer.
        self.highest.iter_mut().for_each(|(at_ms, _)| *at_ms = now_ms.min(*at_ms));
        self.highest.retain(|(at_ms, replicas)| *at_ms >= oldest_ms && *replicas > wanted);
        if self.highest.len() >= MOST_ENTRIES {
            // The last one stands a little longer.
            if let Some((at_ms, _)) = self.highest.last_mut() {
                *at_ms = now_ms;
            }
        } else {
            self.highest.push((now_ms, wanted));
        }
    }
}
