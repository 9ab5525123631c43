//! How long does one vLLM engine take? Continuous batching with chunked prefill over a prefix cache.
//!
//! A step computes one token of every sequence that decodes and, with what is left of its token budget, the next
//! chunks of prompts in order of arrival. It takes a base time, a little for each decoding sequence, and the chunks'
//! tokens at the prefill rate. A request is admitted when its memory fits (prompt and answer: nothing is preempted),
//! and finds cached then whatever earlier ones have computed by then. Steps that only decode are taken in one leap.

use crate::kv_cache::KvCache;
use kvroute::core::scrape::EngineSample;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// What an engine can do.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSpec {
    /// Tokens that its cache holds: what an 8B model leaves free on an 80 GB GPU.
    pub kv_tokens: u64,
    /// Prompt tokens a second.
    pub prefill_tokens_per_s: f64,
    /// Milliseconds of a step that computes nothing.
    pub step_ms: f64,
    /// Milliseconds more for each sequence that decodes.
    pub sequence_ms: f64,
    /// Tokens of a step at most (`max_num_batched_tokens`).
    pub step_tokens: u32,
    /// Sequences at most (`max_num_seqs`).
    pub sequences: usize,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            kv_tokens: 400_000,
            prefill_tokens_per_s: 18_000.0,
            step_ms: 8.0,
            sequence_ms: 0.4,
            step_tokens: 8_192,
            sequences: 256,
        }
    }
}

/// A request as an engine sees it.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its number in the run.
    pub number: usize,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// The prompt's blocks.
    pub ids: Arc<[u64]>,
    /// Full blocks that the answer adds.
    pub answer_ids: Arc<[u64]>,
}

/// What has happened at the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A request's first token has come. `cached_tokens` of its prompt were in the cache.
    FirstToken {
        /// The request.
        number: usize,
        /// Prompt tokens found in the cache.
        cached_tokens: u32,
    },
    /// A request's last token has come.
    Done {
        /// The request.
        number: usize,
        /// Prompt tokens found in the cache.
        cached_tokens: u32,
    },
}

#[derive(Debug)]
struct Sequence {
    job: Job,
    cached_tokens: u32,
    /// Prompt tokens in the cache or computed, the chunk of the current step included.
    computed: u32,
    /// Blocks at the front of its prompt that it pins.
    pinned: usize,
    /// Reserved tokens that no block of the cache stands for.
    private: u64,
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    spec: EngineSpec,
    block_tokens: u32,
    cache: KvCache,
    waiting: VecDeque<Job>,
    prefilling: Vec<Sequence>,
    /// Sequences that decode, by the step that ends them.
    decoding: BinaryHeap<Reverse<(u64, usize)>>,
    sequences: FxHashMap<usize, Sequence>,
    steps: u64,
    /// The step or leap under way.
    current: Option<Leap>,
    /// Counts leaps: an event of an earlier one no longer counts.
    epoch: u64,
    /// Blocks of prompts that wait or are being computed.
    coming: FxHashMap<u64, u32>,
    /// Uncached tokens of waiting requests, as far as could be told when they came.
    waiting_tokens: FxHashMap<usize, u64>,
    queued_tokens: u64,
    /// Whether anybody looks at what is coming and queued: it costs as much again to know.
    is_watched: bool,
    counters: Counters,
    /// What `/metrics` says: gauges move once a step.
    shown: Counters,
    started_s: f64,
}

/// One step, or several that only decode.
#[derive(Debug, Clone, Copy)]
struct Leap {
    begin_us: u64,
    step_us: u64,
    steps: u64,
    decoding: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    running: usize,
    waiting: usize,
    kv_usage: f64,
    prompt_tokens: u64,
    hit_tokens: u64,
    generated: u64,
}

impl Engine {
    /// An idle engine with an empty cache. A trace has blocks of `block_tokens`.
    pub fn new(spec: &EngineSpec, block_tokens: u32, now_us: u64) -> Self {
        Self {
            spec: spec.clone(),
            block_tokens,
            cache: KvCache::new(spec.kv_tokens),
            waiting: VecDeque::new(),
            prefilling: Vec::new(),
            decoding: BinaryHeap::new(),
            sequences: FxHashMap::default(),
            steps: 0,
            current: None,
            epoch: 0,
            coming: FxHashMap::default(),
            waiting_tokens: FxHashMap::default(),
            queued_tokens: 0,
            is_watched: true,
            counters: Counters::default(),
            shown: Counters::default(),
            // Any origin will do as long as a restart is later.
            started_s: 1_000_000.0 + now_us as f64 / 1e6,
        }
    }

    /// The same for a run in which nobody asks for [`Engine::expected_hit`] or [`Engine::queued_tokens`].
    pub fn unwatched(self) -> Self {
        Self { is_watched: false, ..self }
    }

    /// Everything that was under way is lost, and the cache with it. Answers the requests that are cut.
    pub fn restart(&mut self, now_us: u64) -> Vec<usize> {
        let mut lost: Vec<usize> = self.waiting.iter().map(|job| job.number).collect();
        lost.extend(self.prefilling.iter().map(|sequence| sequence.job.number));
        lost.extend(self.sequences.keys());
        lost.sort_unstable();
        let epoch = self.epoch + 1;
        let is_watched = self.is_watched;
        *self = Self { epoch, is_watched, ..Self::new(&self.spec, self.block_tokens, now_us) };
        lost
    }

    /// Takes a request. Answers when the step under way ends, if that is news.
    pub fn accept(&mut self, job: Job, now_us: u64) -> Option<(u64, u64)> {
        if self.is_watched {
            self.expect(&job);
        }
        self.waiting.push_back(job);
        match &mut self.current {
            None => self.schedule(now_us),
            Some(leap) if leap.steps > 1 => {
                // The leap ends with the step that is under way.
                let steps = ((now_us - leap.begin_us) / leap.step_us + 1).min(leap.steps);
                if steps == leap.steps {
                    return None;
                }
                leap.steps = steps;
                self.epoch += 1;
                self.next_end()
            }
            Some(_) => None,
        }
    }

    /// The end of a step, if `epoch` is the current one. Answers what has happened, and the next step's end.
    pub fn step_ended(&mut self, epoch: u64, now_us: u64, outcomes: &mut Vec<Outcome>) -> Option<(u64, u64)> {
        if epoch != self.epoch {
            return None;
        }
        let leap = self.current.take()?;
        self.steps += leap.steps;
        self.counters.generated += leap.steps * leap.decoding as u64;
        while let Some(&Reverse((end, number))) = self.decoding.peek() {
            if end > self.steps {
                break;
            }
            self.decoding.pop();
            if let Some(sequence) = self.sequences.remove(&number) {
                self.finish(sequence, outcomes);
            }
        }
        let mut still = Vec::new();
        for sequence in std::mem::take(&mut self.prefilling) {
            if sequence.computed < sequence.job.prompt_tokens {
                still.push(sequence);
                continue;
            }
            self.counters.prompt_tokens += u64::from(sequence.job.prompt_tokens);
            self.counters.generated += 1;
            let (number, cached_tokens) = (sequence.job.number, sequence.cached_tokens);
            outcomes.push(Outcome::FirstToken { number, cached_tokens });
            if self.is_watched {
                for id in sequence.job.ids.iter() {
                    self.came(*id);
                }
            }
            if sequence.job.output_tokens <= 1 {
                self.finish(sequence, outcomes);
            } else {
                let end = self.steps + u64::from(sequence.job.output_tokens) - 1;
                self.decoding.push(Reverse((end, number)));
                self.sequences.insert(number, sequence);
            }
        }
        self.prefilling = still;
        self.schedule(now_us)
    }

    fn expect(&mut self, job: &Job) {
        let uncached = u64::from(job.prompt_tokens - self.expected_hit(&job.ids, job.prompt_tokens));
        self.queued_tokens += uncached;
        self.waiting_tokens.insert(job.number, uncached);
        for &id in job.ids.iter() {
            *self.coming.entry(id).or_default() += 1;
        }
    }

    fn came(&mut self, id: u64) {
        if let Some(count) = self.coming.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.coming.remove(&id);
            }
        }
    }

    fn finish(&mut self, mut sequence: Sequence, outcomes: &mut Vec<Outcome>) {
        // The answer's blocks are full ones behind the prompt's full ones: they take the sequence's own tokens.
        let answer = Arc::clone(&sequence.job.answer_ids);
        let mut added = 0;
        for &id in answer.iter() {
            if sequence.private < u64::from(self.block_tokens) || !self.cache.insert(id, self.block_tokens) {
                break;
            }
            sequence.private -= u64::from(self.block_tokens);
            added += 1;
        }
        self.cache.release(sequence.private);
        // The last block is freed first, and so evicted first.
        for &id in answer.iter().take(added).rev() {
            self.cache.unpin(id);
        }
        for &id in sequence.job.ids.iter().take(sequence.pinned).rev() {
            self.cache.unpin(id);
        }
        outcomes.push(Outcome::Done { number: sequence.job.number, cached_tokens: sequence.cached_tokens });
    }

    /// Begins the next step.
    fn schedule(&mut self, now_us: u64) -> Option<(u64, u64)> {
        let mut budget = self.spec.step_tokens.saturating_sub(self.decoding.len() as u32);
        let mut chunks = 0;
        let mut prefilling = std::mem::take(&mut self.prefilling);
        for sequence in &mut prefilling {
            chunks += self.compute(sequence, &mut budget);
        }
        while budget > 0 && self.decoding.len() + prefilling.len() < self.spec.sequences {
            let Some(mut sequence) = self.admit() else { break };
            chunks += self.compute(&mut sequence, &mut budget);
            prefilling.push(sequence);
        }
        self.prefilling = prefilling;
        self.counters.running = self.decoding.len() + self.prefilling.len();
        self.counters.waiting = self.waiting.len();
        self.counters.kv_usage = self.cache.usage();
        self.shown = self.counters;
        self.epoch += 1;
        if self.counters.running == 0 {
            return None;
        }
        let decoding = self.decoding.len();
        let ms = self.spec.step_ms
            + self.spec.sequence_ms * decoding as f64
            + 1_000.0 * f64::from(chunks) / self.spec.prefill_tokens_per_s;
        let next_end = self.decoding.peek().map_or(u64::MAX, |Reverse((end, _))| *end);
        let steps = if self.prefilling.is_empty() { (next_end - self.steps).max(1) } else { 1 };
        self.current = Some(Leap { begin_us: now_us, step_us: ((ms * 1e3) as u64).max(1), steps, decoding });
        self.next_end()
    }

    fn next_end(&self) -> Option<(u64, u64)> {
        self.current.map(|leap| (leap.begin_us + leap.steps * leap.step_us, self.epoch))
    }

    /// Admits the first of those that wait, if it fits.
    fn admit(&mut self) -> Option<Sequence> {
        let job = self.waiting.front()?;
        let hit_blocks = job.ids.iter().take_while(|id| self.cache.has(**id)).count();
        let hit = (hit_blocks as u32 * self.block_tokens).min(job.prompt_tokens - 1);
        for &id in job.ids.iter().take(hit_blocks) {
            self.cache.pin(id);
        }
        let need = u64::from(job.prompt_tokens.saturating_sub(hit_blocks as u32 * self.block_tokens))
            + u64::from(job.output_tokens);
        // A request that can never fit would stop everything: it runs alone, beyond the cache's size.
        let alone = self.decoding.is_empty() && self.prefilling.is_empty();
        if !alone && !self.cache.has_room(need) {
            for &id in job.ids.iter().take(hit_blocks).rev() {
                self.cache.unpin(id);
            }
            return None;
        }
        let job = self.waiting.pop_front()?;
        self.cache.reserve(need);
        self.counters.hit_tokens += u64::from(hit);
        let estimated = self.waiting_tokens.remove(&job.number).unwrap_or(0);
        self.queued_tokens = self.queued_tokens - estimated + u64::from(job.prompt_tokens - hit);
        Some(Sequence { job, cached_tokens: hit, computed: hit, pinned: hit_blocks, private: need })
    }

    /// Computes the next chunk of a prompt within the budget. Its blocks are there for whoever comes next.
    fn compute(&mut self, sequence: &mut Sequence, budget: &mut u32) -> u32 {
        let chunk = (sequence.job.prompt_tokens - sequence.computed).min(*budget);
        *budget -= chunk;
        sequence.computed += chunk;
        self.queued_tokens -= u64::from(chunk);
        while let Some(&id) = sequence.job.ids.get(sequence.pinned) {
            let begin = sequence.pinned as u32 * self.block_tokens;
            let tokens = self.block_tokens.min(sequence.job.prompt_tokens - begin);
            if begin + tokens > sequence.computed || !self.cache.insert(id, tokens) {
                break;
            }
            sequence.private -= u64::from(tokens);
            sequence.pinned += 1;
        }
        chunk
    }

    /// Prompt tokens that a request would find cached here by the time that it is scheduled, eviction aside.
    pub fn expected_hit(&self, ids: &[u64], prompt_tokens: u32) -> u32 {
        let known = |id: &&u64| self.cache.has(**id) || self.coming.contains_key(*id);
        let blocks = ids.iter().take_while(known).count() as u32;
        (blocks * self.block_tokens).min(prompt_tokens - 1)
    }

    /// Uncached prompt tokens that are to be computed before a new request's.
    pub fn queued_tokens(&self) -> u64 {
        self.queued_tokens
    }

    /// Microseconds until the step under way ends.
    pub fn step_remains_us(&self, now_us: u64) -> u64 {
        self.current.map_or(0, |leap| leap.step_us - (now_us - leap.begin_us) % leap.step_us)
    }

    /// Requests running and waiting.
    pub fn requests(&self) -> usize {
        self.waiting.len() + self.prefilling.len() + self.decoding.len()
    }

    /// What it can do.
    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }

    /// What a poll reads now.
    pub fn sample(&self) -> EngineSample {
        let shown = self.shown;
        EngineSample {
            running: Some(shown.running as f64),
            waiting: Some(shown.waiting as f64),
            kv_usage: Some(shown.kv_usage),
            capacity_tokens: Some(self.cache.capacity() as f64),
            prefix_hits: Some(shown.hit_tokens as f64),
            prompt_tokens: Some(shown.prompt_tokens as f64),
            generation_tokens: Some(shown.generated as f64),
            start_time_seconds: Some(self.started_s),
            ..EngineSample::default()
        }
    }
}
