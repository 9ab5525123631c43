//! What does an engine's exposition say about its load, its cache and its life?
//!
//! [`read_engine`] folds a whole page into one [`EngineSample`]. The engines call the same things by
//! different names, and vLLM has renamed its own over the years; `vocabulary` is the one place that knows
//! them.
//!
//! A page holds one series per engine of a data-parallel replica, and one per served model. Requests,
//! tokens and capacity are added up over them, since the host is one target to us.

use std::borrow::Cow;

use super::exposition::{Exposition, Labels, Sample};
use super::vocabulary::{rows_for, Concept, Row, CONCEPTS};

/// What one scrape of one host said.
///
/// Every number is finite and not negative. A series that is absent, NaN, infinite or negative leaves
/// its field `None`, and the caller shall treat `None` as *unknown*: judge the host by its own
/// in-flight count and the fleet's mean, never as if the value were zero. A page whose gauges are all
/// NaN is read without error and has every field `None`. Where only some of the series that are added
/// up make sense, those count.
///
/// Counters are as the engine exposes them, since its start: difference two samples, and take a
/// smaller value (or another [`start_time_seconds`](Self::start_time_seconds)) for a restart, which
/// emptied the cache.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSample {
    /// Requests in the running batch.
    pub running: Option<f64>,
    /// Requests that wait for a place in it.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1; the mean over a replica's engines, because the replica's
    /// own balancer puts the next request on a free one: the fullest says little about its fate.
    pub kv_usage: Option<f64>,
    /// Tokens the KV cache holds, all engines together; never zero.
    pub capacity_tokens: Option<f64>,
    /// Counter: prompt tokens taken in. Cached ones are included except by llama.cpp.
    pub prompt_tokens: Option<f64>,
    /// Counter: tokens generated.
    pub generation_tokens: Option<f64>,
    /// Counter: prompt tokens looked up in the prefix cache.
    pub prefix_queries: Option<f64>,
    /// Counter: prompt tokens found in the prefix cache.
    pub prefix_hits: Option<f64>,
    /// Counter: prompt tokens looked up in a cache beside the engine (LMCache, NIXL and the like).
    pub external_prefix_queries: Option<f64>,
    /// Counter: prompt tokens found there.
    pub external_prefix_hits: Option<f64>,
    /// Counter: engine steps. One that stands still while requests are in flight tells a stuck engine
    /// from an idle one.
    pub iterations: Option<f64>,
    /// Seconds since 1970 when the server process started. Absent with several API server processes.
    pub start_time_seconds: Option<f64>,
    /// False while an engine of this replica sleeps: it accepts requests, but they hang.
    pub awake: Option<bool>,
    /// Names of the served models, as the engine labels its series; at most [`MAX_NAMES`].
    pub models: Vec<String>,
    /// Names of the LoRA adapters in use or waited for; at most [`MAX_NAMES`].
    pub lora_adapters: Vec<String>,
    /// Adapters that can be loaded at a time.
    pub max_lora: Option<f64>,
    /// Lines that could not be read.
    pub skipped_lines: u32,
}

/// Why a scraped body told nothing. The host's load is then unknown, and the scrape has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrapeError {
    /// There is no body: an answer like 204, or a redirect that was not followed.
    Empty,
    /// The body is longer than [`MAX_BODY_BYTES`].
    TooLarge,
    /// No line names anything an engine is known to expose: a wrong path, or not an engine.
    NoEngineMetrics,
}

impl ScrapeError {
    /// The reason as a metric label and a word for the log.
    pub fn as_str(self) -> &'static str {
        match self {
            ScrapeError::Empty => "empty",
            ScrapeError::TooLarge => "too_large",
            ScrapeError::NoEngineMetrics => "no_engine_metrics",
        }
    }
}

impl std::fmt::Display for ScrapeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The longest body read, in bytes: about sixty engines' worth of vLLM's page, and some milliseconds of
/// a worker's time. A part of a page would give a part of a load, so a longer one is refused whole.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// The most names kept of each kind. Engines hold a handful; a page that lists more shall not grow us.
pub const MAX_NAMES: usize = 32;

/// Reads one exposition.
///
/// # Errors
///
/// [`ScrapeError`] if it holds nothing about an engine. A process start time alone does not count:
/// every Python server exposes one.
pub fn read_engine(body: &[u8]) -> Result<EngineSample, ScrapeError> {
    if body.trim_ascii().is_empty() {
        return Err(ScrapeError::Empty);
    }
    if body.len() > MAX_BODY_BYTES {
        return Err(ScrapeError::TooLarge);
    }
    let mut page = Page::default();
    let mut exposition = Exposition::new(body, rows_for);
    for sample in exposition.by_ref() {
        page.add(&sample);
    }
    if !page.is_engine {
        return Err(ScrapeError::NoEngineMetrics);
    }
    Ok(page.into_sample(exposition.skipped()))
}

/// What a page has said so far.
#[derive(Default)]
struct Page {
    totals: [Total; CONCEPTS],
    is_engine: bool,
    asleep: bool,
    models: Vec<String>,
    lora: Option<Adapters>,
}

/// The series of one concept: their sum, and how many there were.
#[derive(Default, Clone, Copy)]
struct Total {
    sum: f64,
    series: u32,
}

/// The newest adapter series. The engine leaves old ones standing, each with the time it was true.
struct Adapters {
    at: f64,
    names: Vec<String>,
    most: Option<f64>,
}

impl Page {
    fn add(&mut self, sample: &Sample<'_, &'static [Row]>) {
        for row in sample.key {
            let wanted = row
                .only
                .is_none_or(|(label, value)| sample.labels.get(label).as_deref() == Some(value.as_bytes()));
            if wanted {
                self.is_engine |= row.concept != Concept::StartTime;
                self.add_concept(row.concept, sample);
            }
        }
    }

    fn add_concept(&mut self, concept: Concept, sample: &Sample<'_, &'static [Row]>) {
        let labels = &sample.labels;
        match concept {
            Concept::CacheConfig => self.add_value(Concept::CapacityTokens, config_tokens(labels)),
            Concept::LoraInfo => self.add_adapters(labels, sample.value),
            // Percent, or nonsense: either way not a share.
            Concept::KvUsage | Concept::KvUsageOld if sample.value > 1.0 => {}
            _ => self.add_value(concept, Some(sample.value)),
        }
        match concept {
            Concept::Awake => self.asleep |= sample.value == 0.0,
            Concept::Running => add_name(&mut self.models, labels.get("model_name").as_deref()),
            _ => {}
        }
    }

    #[inline(never)]
    /// Adds a series' value, unless it is one that no engine can mean.
    fn add_value(&mut self, concept: Concept, value: Option<f64>) {
        let usable = value.filter(|value| value.is_finite() && *value >= 0.0);
        let (Some(value), Some(total)) = (usable, self.totals.get_mut(concept as usize)) else {
            return;
        };
        total.sum += value;
        total.series += 1;
    }

    #[inline(never)]
    fn add_adapters(&mut self, labels: &Labels<'_>, at: f64) {
        if !at.is_finite() || self.lora.as_ref().is_some_and(|lora| lora.at >= at) {
            return;
        }
        let mut names = Vec::new();
        for label in ["running_lora_adapters", "waiting_lora_adapters"] {
            let listed = labels.get(label).unwrap_or_default();
            for name in listed.split(|&b| b == b',') {
                add_name(&mut names, Some(name.trim_ascii()));
            }
        }
        self.lora = Some(Adapters { at, names, most: labels.number("max_lora") });
    }

    fn total(&self, concept: Concept) -> Option<Total> {
        let total = self.totals.get(concept as usize)?;
        (total.series > 0).then_some(*total)
    }

    #[inline(never)]
    /// The sum over the series of `concept`; `None` if there was none to use.
    fn sum(&self, concept: Concept) -> Option<f64> {
        finite(self.total(concept)?.sum)
    }

    #[inline(never)]
    /// The mean over the series of `concept`; `None` if there was none to use.
    fn mean(&self, concept: Concept) -> Option<f64> {
        let total = self.total(concept)?;
        finite(total.sum / f64::from(total.series))
    }

    fn into_sample(self, skipped_lines: u32) -> EngineSample {
        let (prefix_queries, prefix_hits) = self.prefix_counters();
        EngineSample {
            running: self.sum(Concept::Running),
            waiting: self.sum(Concept::Waiting),
            kv_usage: self.mean(Concept::KvUsage).or_else(|| self.mean(Concept::KvUsageOld)),
            capacity_tokens: self.capacity(),
            prompt_tokens: self.sum(Concept::PromptTokens),
            generation_tokens: self.sum(Concept::GenerationTokens),
            prefix_queries,
            prefix_hits,
            external_prefix_queries: self.sum(Concept::ExternalQueries),
            external_prefix_hits: self.sum(Concept::ExternalHits),
            iterations: self.sum(Concept::Iterations),
            start_time_seconds: self.mean(Concept::StartTime),
            awake: self.total(Concept::Awake).map(|_| !self.asleep),
            models: self.models,
            max_lora: self.lora.as_ref().and_then(|lora| lora.most),
            lora_adapters: self.lora.map(|lora| lora.names).unwrap_or_default(),
            skipped_lines,
        }
    }

    fn capacity(&self) -> Option<f64> {
        self.sum(Concept::CapacityTokens)
            .or_else(|| Some(self.sum(Concept::CapacityBlocks)? * self.mean(Concept::BlockTokens)?))
            .filter(|tokens| *tokens > 0.0 && tokens.is_finite())
    }

    /// Prefix cache queries and hits, in tokens. Engines without a query counter look every prompt
    /// token up, so their prompt tokens stand for it.
    fn prefix_counters(&self) -> (Option<f64>, Option<f64>) {
        let prompt = self.sum(Concept::PromptTokens);
        if let Some(cached) = self.sum(Concept::CachedInPrompt) {
            return (prompt, Some(cached));
        }
        if let Some(cached) = self.sum(Concept::CachedBesidePrompt) {
            return (prompt.and_then(|computed| finite(computed + cached)), Some(cached));
        }
        let newer = |new, old| self.sum(new).or_else(|| self.sum(old));
        (
            newer(Concept::PrefixQueries, Concept::PrefixQueriesOld),
            newer(Concept::PrefixHits, Concept::PrefixHitsOld),
        )
    }
}

/// A sum of numbers, each of which was finite.
fn finite(sum: f64) -> Option<f64> {
    sum.is_finite().then_some(sum)
}

/// The size in tokens that vLLM's cache configuration states: outright since 0.26, before that in
/// blocks. `None` where it says "None", as engines without a KV cache do.
fn config_tokens(labels: &Labels<'_>) -> Option<f64> {
    labels
        .number("kv_cache_size_tokens")
        .or_else(|| Some(labels.number("block_size")? * labels.number("num_gpu_blocks")?))
}

/// Adds a name that is not there yet. Bytes that are not UTF-8 become replacement characters.
fn add_name(names: &mut Vec<String>, name: Option<&[u8]>) {
    let name = name.map(String::from_utf8_lossy).unwrap_or_default();
    let known = |name: &Cow<'_, str>| names.iter().any(|other| other == name.as_ref());
    if !name.is_empty() && names.len() < MAX_NAMES && !known(&name) {
        names.push(name.into_owned());
    }
}
