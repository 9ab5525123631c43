//! What is learned from answers: how many bytes a token has, how fast a host computes, how long it keeps a prefix.
//!
//! Every loop is bounded and can be switched off (`learning` in the configuration), and each is on by default only
//! where the replay shows that it does no harm with one gateway and with many, at every load.

/// Models whose bytes per token are told apart; the first to come is forgotten when there are more.
const MODELS: usize = 16;

/// Bytes a token before any engine has said: the usual figure for English text, and the width of a token id.
pub const BYTES_PER_TOKEN: f64 = 4.0;

/// How fast a mean follows: one part in fifty, so that one odd request moves it by 2 %.
const GAIN: f64 = 0.02;

/// Bytes of prompt text that a token has, by model.
#[derive(Debug, Default)]
pub struct BytesPerToken {
    models: Vec<(u64, f64)>,
}

impl BytesPerToken {
    /// For a model, known by the digest of its name.
    pub fn of(&self, model: u64) -> f64 {
        let found = self.models.iter().find(|(known, _)| *known == model);
        found.map_or(BYTES_PER_TOKEN, |(_, bytes)| *bytes)
    }

    /// A prompt for `model` had so many bytes, and by its engine so many tokens.
    pub fn learn(&mut self, model: u64, bytes: u64, tokens: u64) {
        if bytes == 0 || tokens == 0 {
            return;
        }
        // Between the densest text (CJK, code) and repeated words; images in base64 lie outside.
        let seen = (bytes as f64 / tokens as f64).clamp(1.0, 8.0);
        match self.models.iter_mut().find(|(known, _)| *known == model) {
            Some((_, mean)) => *mean += GAIN * (seen - *mean),
            None => {
                if self.models.len() == MODELS {
                    self.models.remove(0);
                }
                self.models.push((model, BYTES_PER_TOKEN + GAIN * (seen - BYTES_PER_TOKEN)));
            }
        }
    }
}

/// How fast a host prefills: uncached tokens that stood before first bytes, over the time that these took.
///
/// Sums, not a mean of ratios: a short prompt's time is mostly that of the step that is under way. Each observation is
/// cut to a factor of four around what is known, and only the ratio to the fleet's median is used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pace {
    tokens: f64,
    seconds: f64,
    seen: u32,
}

impl Pace {
    /// The most that one observation may differ from what is known.
    const ODD: f64 = 4.0;
    /// The most that a host is taken to be slower or faster than the median.
    const MOST: f64 = 3.0;
    /// Tokens below which the time to the first byte says little about the rate.
    pub const LEAST_TOKENS: u64 = 4_000;
    /// Observations before a host is judged.
    const FIRST: u32 = 20;
    /// What an observation leaves of earlier ones' weight: some two hundred count.
    const LATELY: f64 = 0.995;
    /// A host within this factor of the median is like the others.
    const ALIKE: f64 = 1.4;

    /// The first byte came `seconds` after a request before which `tokens` stood in all, its own among them.
    pub fn observe(&mut self, tokens: u64, seconds: f64) {
        let tokens = tokens as f64;
        let expected =
            if self.seen < Self::FIRST { seconds } else { tokens * self.seconds / self.tokens.max(1.0) };
        self.tokens = Self::LATELY * self.tokens + tokens;
        // Not `clamp`, which panics where the bounds are the wrong way round, and prints them: 20 KiB of wasm.
        let seconds = seconds.max(expected / Self::ODD).min(expected * Self::ODD);
        self.seconds = Self::LATELY * self.seconds + seconds;
        self.seen = self.seen.saturating_add(1);
    }

    /// Tokens a second, if enough was seen.
    pub fn rate(&self) -> Option<f64> {
        (self.seen >= Self::FIRST && self.seconds > 0.0).then(|| self.tokens / self.seconds)
    }

    /// The rate against the median's; 1 for those that are alike or not known.
    pub fn against(&self, median: f64) -> f64 {
        let factor = self.rate().map_or(1.0, |rate| rate / median);
        if factor < Self::ALIKE && factor > 1.0 / Self::ALIKE {
            1.0
        } else {
            factor.clamp(1.0 / Self::MOST, Self::MOST)
        }
    }
}

/// How much of its capacity a host turns out to keep prefixes for.
///
/// Running sequences take room that idle prefixes cannot have, and an engine may have been given less than it says. A
/// prefix that was believed and was not there tells that its age is too much; one of great age that was there, that it
/// is not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keeps(f64);

impl Default for Keeps {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Keeps {
    /// The least share of its capacity that a host is taken to keep prefixes for. Believing too little costs more than
    /// believing too much.
    const LEAST: f64 = 0.5;

    /// The share of the capacity, from a half to 1.
    pub fn share(self) -> f64 {
        self.0
    }

    /// As it was told.
    pub fn from_share(share: f64) -> Self {
        Self(share.clamp(Self::LEAST, 1.0))
    }

    /// A prefix of `predicted` tokens, placed `age` tokens of the host's clock ago, was believed on a host of
    /// `capacity`; the engine found `cached` tokens.
    pub fn observe(&mut self, predicted: u64, cached: u64, age: u64, capacity: u64) {
        let age = age as f64 / capacity.max(1) as f64;
        if cached * 2 < predicted {
            self.0 = (self.0 - GAIN * (self.0 - age).max(0.0)).max(Self::LEAST);
        } else if age > 0.8 * self.0 {
            self.0 += GAIN * (1.0 - self.0);
        }
    }

    /// Over some time a host computed `computed` prompt tokens where `expected` were expected to be uncached.
    pub fn drift(&mut self, computed: f64, expected: f64) {
        let step = match computed / expected {
            ratio if ratio > 1.3 => -0.01,
            ratio if ratio < 1.15 => 0.01,
            _ => 0.0,
        };
        *self = Self::from_share(self.0 + step);
    }
}
