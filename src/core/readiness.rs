//! Has this host shown that it generates, and is its cache warm?
//!
//! `/health` says that a process lives: it is 200 while an engine is wedged, asleep or drains. A host is ready once a
//! generation has succeeded on it since its engine (re)started. The leader asks for a tiny one, and only where nothing else
//! tells: an engine whose own counters say that it has generated in this life of its process is ready unasked.
//!
//! A host that is ready when others have been for long has an empty cache. For a while it is let take only some prompts,
//! each by a hash of where it leaves what is known, so that every worker and gateway decides alike, and a prompt that was
//! let in stays in ([`WarmUp`]).

use super::config::{Config, Ready, WarmUp};
use super::fleet::{Fleet, Polled, Slot};
use super::health::Why;
use super::prompt::text_digest;
use super::scrape::EngineSample;
use super::snapshot::{Entry, Snapshot};
use super::wire::{Reader, Writer};

/// Models kept of a host. Engines serve one, data-parallel replicas too; one that names more is taken to serve any.
pub const MOST_MODELS: usize = 4;

/// Digests of the models that an engine names; none if it names none, or too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Models([u64; MOST_MODELS]);

impl Models {
    /// Those that an exposition names, if it does.
    pub fn named(self, names: &[String]) -> Self {
        if names.is_empty() {
            return self;
        }
        let listed = if names.len() > MOST_MODELS { &[] } else { names };
        Self::from_digests(listed.iter().map(|name| text_digest(name.as_bytes())))
    }

    /// Those that [`Models::iter`] named.
    pub fn from_digests(digests: impl Iterator<Item = u64>) -> Self {
        let mut models = Self::default();
        models.0.iter_mut().zip(digests).for_each(|(place, digest)| *place = digest);
        models
    }

    /// The digests, as [`text_digest`] makes them.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().copied().take_while(|digest| *digest != 0)
    }

    /// Whether it serves this one; `None` if it does not say what it serves.
    pub fn serve(&self, model: u64) -> Option<bool> {
        (self.0.first() != Some(&0)).then(|| self.iter().any(|served| served == model))
    }
}

/// What is known of a host's readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readiness {
    /// It was there when the gateway began, and nobody has learned how it is: it is taken to serve.
    #[default]
    Presumed,
    /// It has not generated since it started, as far as is known.
    Unproven(Doubt),
    /// It has generated.
    Proven {
        /// Since when that is known, in milliseconds of the wall clock.
        since_ms: u64,
        /// While it warms up: what its clock said when it began, in tokens.
        warming_from: Option<u64>,
    },
}

/// Why a host is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// Its engine has just started, or is new, and has not been asked yet.
    NotAsked,
    /// It refuses connections.
    Loading,
    /// It was asked, and failed or took too long.
    Failed,
    /// It serves, but not what it should.
    OtherModel,
    /// It has stood still, with requests. Rather than another client's it is tried with a generation of our own.
    StoodStill,
}

impl Doubt {
    const ALL: [Doubt; 5] =
        [Doubt::NotAsked, Doubt::Loading, Doubt::Failed, Doubt::OtherModel, Doubt::StoodStill];

    /// As a reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Doubt::NotAsked => "its engine is new and has not generated anything yet",
            Doubt::Loading => "it refuses connections: its engine loads, or is not there",
            Doubt::Failed => "a generation on it failed or took too long",
            Doubt::OtherModel => "it does not serve the model that it should",
            Doubt::StoodStill => "it gave no byte for long, though it has requests",
        }
    }

    /// Its number in shared values.
    pub fn number(self) -> u64 {
        Doubt::ALL.iter().position(|doubt| *doubt == self).unwrap_or(0) as u64
    }

    /// The one with a number.
    pub fn numbered(number: u64) -> Option<Self> {
        Doubt::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// What the engine's exposition says for or against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Whether it has generated since its process began; `None` if it does not count.
    pub generated: Option<bool>,
    /// Whether it is another process than the one polled before.
    pub restarted: bool,
    /// Whether it woke up since: it serves, with an empty cache.
    pub woke_up: bool,
    /// Whether it has computed anything since.
    pub moved: bool,
    /// Whether it serves the model that it should; `None` if any will do.
    pub serves: Option<bool>,
}

impl Evidence {
    /// What a poll says that turned `before` into `after`.
    pub fn of(sample: &EngineSample, before: &Polled, after: &Polled, ready: &Ready) -> Self {
        let serves = |model| sample.models.is_empty() || sample.models.contains(model);
        Self {
            generated: sample.generation_tokens.map(|tokens| tokens > 0.0),
            restarted: before.at_ms != 0 && before.is_restart(after.prompt_tokens, after.started_s),
            woke_up: before.asleep && !after.asleep,
            moved: after.moved_ms > before.moved_ms,
            serves: ready.model.as_ref().map(serves),
        }
    }
}

impl Readiness {
    /// What a host is that joins a fleet of which somebody `is_known`. With nobody known yet all are taken to serve: the
    /// first to be asked would get all requests.
    pub fn of_newcomers(is_known: bool) -> Self {
        if is_known {
            Self::Unproven(Doubt::NotAsked)
        } else {
            Self::Presumed
        }
    }

    /// After a poll was answered. `proven` is what it is if it has just been proven.
    fn heard(self, evidence: Evidence, proven: Self) -> Self {
        let Evidence { generated, restarted, woke_up, moved, serves } = evidence;
        match self {
            _ if serves == Some(false) => Self::Unproven(Doubt::OtherModel),
            _ if restarted && generated == Some(true) => proven,
            _ if restarted => Self::Unproven(Doubt::NotAsked),
            // An engine that counts nothing gives no reason for doubt.
            Self::Presumed if generated == Some(false) => Self::Unproven(Doubt::NotAsked),
            // For how long it has been warm is not known, so it does not make others newcomers yet.
            Self::Presumed => proven.warm(),
            Self::Unproven(Doubt::OtherModel) if serves.is_none() => self,
            // It goes on, with the cache that it had.
            Self::Unproven(Doubt::StoodStill) if moved => proven.warm(),
            Self::Unproven(Doubt::StoodStill) => self,
            // Once asked, it shall answer: what it has generated may be what was asked for, and came too late.
            Self::Unproven(Doubt::Failed) => self,
            Self::Unproven(_) if generated == Some(true) => proven,
            Self::Unproven(Doubt::Loading | Doubt::OtherModel) => Self::Unproven(Doubt::NotAsked),
            Self::Proven { .. } if woke_up => proven,
            Self::Unproven(_) | Self::Proven { .. } => self,
        }
    }

    /// The same, with a cache that is warm.
    fn warm(self) -> Self {
        match self {
            Self::Proven { since_ms, .. } => Self::Proven { since_ms, warming_from: None },
            other => other,
        }
    }

    /// After a poll failed. Metrics that are broken are no verdict on a host; that it does not listen is one, unless it was
    /// ready: then its requests show it sooner, and its next engine will be known by its counters.
    fn refused(self) -> Self {
        match self {
            Self::Presumed | Self::Unproven(_) => Self::Unproven(Doubt::Loading),
            Self::Proven { .. } => self,
        }
    }

    /// Why it is not ready, if it is not.
    pub fn doubt(self) -> Option<Doubt> {
        match self {
            Self::Unproven(doubt) => Some(doubt),
            Self::Presumed | Self::Proven { .. } => None,
        }
    }

    /// When it was proven, if it was.
    pub fn proven_ms(self) -> Option<u64> {
        match self {
            Self::Proven { since_ms, .. } => Some(since_ms),
            Self::Presumed | Self::Unproven(_) => None,
        }
    }

    /// Since when it warms up, if it does.
    pub fn warming_since_ms(self) -> Option<u64> {
        match self {
            Self::Proven { since_ms, warming_from: Some(_) } => Some(since_ms),
            _ => None,
        }
    }

    /// Writes it into a value.
    pub fn encode(self, value: &mut Writer) {
        let (tag, first, second) = match self {
            Self::Presumed => (0, 0, 0),
            Self::Unproven(doubt) => (1, doubt.number(), 0),
            Self::Proven { since_ms, warming_from: None } => (2, since_ms, 0),
            Self::Proven { since_ms, warming_from: Some(tokens) } => (3, since_ms, tokens),
        };
        value.u8(tag);
        value.u64(first);
        value.u64(second);
    }

    /// Reads it from one.
    pub fn decode(value: &mut Reader) -> Option<Self> {
        let (tag, first, second) = (value.u8()?, value.u64()?, value.u64()?);
        Some(match tag {
            0 => Self::Presumed,
            1 => Self::Unproven(Doubt::numbered(first)?),
            2 => Self::Proven { since_ms: first, warming_from: None },
            3 => Self::Proven { since_ms: first, warming_from: Some(second) },
            _ => return None,
        })
    }
}

impl WarmUp {
    /// How far a host that warms up has come, 0 to 1, by time or by what has entered its cache. A clock that was set back
    /// must not make it begin anew.
    fn progress(&self, since_ms: u64, from_tokens: u64, clock_tokens: u64, now_ms: u64) -> f64 {
        let share = |done: u64, all: u64| if all == 0 { 1.0 } else { done as f64 / all as f64 };
        let by_time = now_ms.checked_sub(since_ms).map_or(1.0, |since| share(since, 1_000 * self.seconds));
        let entered = clock_tokens.saturating_sub(from_tokens);
        let by_tokens = if self.tokens == 0 { 0.0 } else { share(entered, self.tokens) };
        by_time.max(by_tokens).min(1.0)
    }

    /// The share of all prompts that a host may take, one of `hosts`; 1 unless it warms up. It begins at `share` of what a
    /// host has on average, has that after half of the time, and then grows quickly, for by then what counts is what it
    /// costs there.
    pub fn admits(&self, readiness: Readiness, clock_tokens: u64, hosts: usize, now_ms: u64) -> f64 {
        let Readiness::Proven { since_ms, warming_from: Some(from_tokens) } = readiness else { return 1.0 };
        let left = 1.0 - self.progress(since_ms, from_tokens, clock_tokens, now_ms);
        let others = (hosts as f64 / self.share - 1.0).max(0.0);
        1.0 / (1.0 + others * left * left * left)
    }
}

impl Snapshot {
    /// Takes in hosts that are new, and ends what is over.
    pub fn settle_readiness(&mut self, fleet: &Fleet, config: &Config, now_ms: u64) {
        let is_known = self.hosts.iter().any(|entry| entry.polled.is_known());
        let newcomers = Readiness::of_newcomers(is_known);
        for host in fleet.hosts() {
            if self.entry(host.slot, &host.address).is_none() {
                self.set((host.slot, &host.address), newcomers);
            }
        }
        let settled: Vec<Readiness> =
            self.hosts.iter().map(|entry| self.settled(entry, config, now_ms)).collect();
        for (entry, readiness) in self.hosts.iter_mut().zip(settled) {
            entry.readiness = readiness;
        }
    }

    fn settled(&self, entry: &Entry, config: &Config, now_ms: u64) -> Readiness {
        match entry.readiness {
            // Nobody asks, so there is nothing to wait for.
            Readiness::Unproven(doubt) if !config.ready.probe && doubt != Doubt::OtherModel => {
                self.proven(entry, &config.warm_up, now_ms)
            }
            Readiness::Proven { since_ms, warming_from: Some(from) }
                if config.warm_up.progress(since_ms, from, entry.polled.clock_tokens, now_ms) >= 1.0 =>
            {
                Readiness::Proven { since_ms, warming_from: None }
            }
            readiness => readiness,
        }
    }

    /// An engine was polled, and answered with `sample`, which made `polled` of what was known. Answers whether it has
    /// just turned up, and may be asked for a generation at once.
    pub fn heard(
        &mut self,
        place: (Slot, &str),
        sample: &EngineSample,
        polled: &Polled,
        config: &Config,
    ) -> bool {
        let (slot, address) = place;
        let Some(entry) = self.entry_mut(slot, address).cloned() else { return false };
        let evidence = Evidence::of(sample, &entry.polled, polled, &config.ready);
        let proven = self.proven(&Entry { polled: *polled, ..entry.clone() }, &config.warm_up, polled.at_ms);
        let readiness = entry.readiness.heard(evidence, proven);
        self.set(place, readiness);
        readiness != entry.readiness && readiness.doubt() == Some(Doubt::NotAsked)
    }

    /// An engine was polled, and does not listen.
    pub fn refused(&mut self, place: (Slot, &str)) {
        if let Some(entry) = self.entry_mut(place.0, place.1) {
            entry.readiness = entry.readiness.refused();
        }
    }

    /// Doubts hosts that were found to stand still since they were proven.
    pub fn doubt_still(&mut self, fleet: &Fleet, now_ms: u64) {
        for host in fleet.hosts() {
            let seen = host.health.standing();
            let stands = host.health.is_suspect(now_ms) && seen.why == Why::Silent;
            let Some(entry) = self.entry_mut(host.slot, &host.address).filter(|_| stands) else { continue };
            let is_new = match entry.readiness {
                Readiness::Presumed => true,
                Readiness::Proven { since_ms, .. } => since_ms < seen.failed_ms,
                Readiness::Unproven(_) => false,
            };
            if is_new {
                entry.readiness = Readiness::Unproven(Doubt::StoodStill);
            }
        }
    }

    /// A generation on a host succeeded, or did not for this reason.
    pub fn asked(&mut self, place: (Slot, &str), outcome: Result<(), Doubt>, warm_up: &WarmUp, now_ms: u64) {
        // It may have been proven otherwise since, or be gone.
        let Some(entry) = self.entry(place.0, place.1).filter(|entry| entry.readiness.doubt().is_some())
        else {
            return;
        };
        let stood_still = entry.readiness == Readiness::Unproven(Doubt::StoodStill);
        let readiness = match outcome {
            Ok(()) if stood_still => self.proven(entry, warm_up, now_ms).warm(),
            Ok(()) => self.proven(entry, warm_up, now_ms),
            Err(Doubt::Failed) if stood_still => entry.readiness,
            Err(doubt) => Readiness::Unproven(doubt),
        };
        self.set(place, readiness);
    }

    fn set(&mut self, place: (Slot, &str), readiness: Readiness) {
        if let Some(entry) = self.entry_mut(place.0, place.1) {
            entry.readiness = readiness;
        }
    }

    /// What a host is that has just been proven. It warms up if others have been warm for as long as that takes: in a
    /// fleet that has just begun as a whole, the first would otherwise get nearly everything.
    fn proven(&self, of: &Entry, warm_up: &WarmUp, now_ms: u64) -> Readiness {
        let warms_ms = 1_000 * warm_up.seconds;
        let is_warm = |entry: &Entry| match entry.readiness {
            Readiness::Proven { since_ms, warming_from: None } => now_ms.saturating_sub(since_ms) >= warms_ms,
            _ => false,
        };
        let others = || self.hosts.iter().filter(|entry| entry.slot != of.slot);
        let warms_up = warms_ms > 0 && others().any(is_warm);
        Readiness::Proven { since_ms: now_ms, warming_from: warms_up.then_some(of.polled.clock_tokens) }
    }
}
