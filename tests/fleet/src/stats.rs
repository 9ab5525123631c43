//! What has the engine counted since it started? Counters, histograms and the gauges as they stood after the last
//! step, which is all that vLLM's `/metrics` shows; `exposition` writes them down.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::scheduler::{Scheduler, Step};
use crate::sequence::{Finish, Sequence};

/// Distinct pairs of adapter lists remembered for `lora_requests_info`. vLLM keeps them for ever; with the few
/// adapters of a mock this is never reached.
const MAX_LORA_SERIES: usize = 256;

/// One engine's numbers. Tokens and seconds.
#[derive(Clone)]
pub(crate) struct Stats {
    /// Unix time of the engine's start, in seconds.
    pub(crate) started: f64,
    pub(crate) gauges: Gauges,
    pub(crate) prefix_cache_queries: u64,
    pub(crate) prefix_cache_hits: u64,
    pub(crate) external_queries: u64,
    pub(crate) external_hits: u64,
    pub(crate) preemptions: u64,
    pub(crate) prompt_tokens: u64,
    /// Not computed: had or fetched.
    pub(crate) cached_prompt_tokens: u64,
    pub(crate) fetched_prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) finished_length: u64,
    pub(crate) finished_abort: u64,
    pub(crate) finished_error: u64,
    pub(crate) rejected: u64,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) request_generation_tokens: Histogram,
    pub(crate) iteration_tokens: Histogram,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) e2e_latency: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) lora_series: Vec<LoraSeries>,
}

/// The queue as it stood after the last step.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gauges {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// 0 to 1.
    pub(crate) kv_usage: f64,
}

/// One series of `lora_requests_info`: the adapters of running and of waiting requests, and when it was so.
#[derive(Clone)]
pub(crate) struct LoraSeries {
    pub(crate) running: String,
    pub(crate) waiting: String,
    /// Unix time in seconds.
    pub(crate) seen: f64,
}

/// Observations counted by upper bound.
#[derive(Clone)]
pub(crate) struct Histogram {
    /// Upper bounds; one more bucket takes what is above them.
    pub(crate) bounds: &'static [f64],
    /// Observations per bucket, not yet summed up.
    pub(crate) buckets: Vec<u64>,
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

/// vLLM cuts these off at the longest sequence it takes.
const TOKEN_BOUNDS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5, 1e6,
];
const STEP_BOUNDS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const LATENCY_BOUNDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

impl Stats {
    pub(crate) fn new(longest_sequence: usize) -> Self {
        let bounds = TOKEN_BOUNDS.partition_point(|bound| *bound <= longest_sequence as f64);
        let token_bounds = &TOKEN_BOUNDS[..bounds];
        Self {
            started: unix_seconds(),
            gauges: Gauges::default(),
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            external_queries: 0,
            external_hits: 0,
            preemptions: 0,
            prompt_tokens: 0,
            cached_prompt_tokens: 0,
            fetched_prompt_tokens: 0,
            generation_tokens: 0,
            finished_length: 0,
            finished_abort: 0,
            finished_error: 0,
            rejected: 0,
            request_prompt_tokens: Histogram::new(token_bounds),
            request_generation_tokens: Histogram::new(token_bounds),
            iteration_tokens: Histogram::new(STEP_BOUNDS),
            time_to_first_token: Histogram::new(FIRST_TOKEN_BOUNDS),
            e2e_latency: Histogram::new(LATENCY_BOUNDS),
            queue_time: Histogram::new(LATENCY_BOUNDS),
            lora_series: Vec::new(),
        }
    }

    /// A sequence joined the batch for the first time: the moment at which vLLM asks its prefix cache, and then the
    /// connector, if it has one, for all that it did not find there.
    pub(crate) fn admitted(&mut self, sequence: &Sequence, has_tier: bool, now: Instant) {
        let (tokens, fetched) = (sequence.tokens() as u64, sequence.fetched_tokens as u64);
        let hits = sequence.computed as u64 - fetched;
        self.prefix_cache_queries += tokens;
        self.prefix_cache_hits += hits;
        if has_tier {
            self.external_queries += tokens - hits;
            self.external_hits += fetched;
        }
        self.queue_time.observe((now - sequence.arrived).as_secs_f64());
    }

    pub(crate) fn preempted(&mut self) {
        self.preemptions += 1;
    }

    /// A sequence's prefill is done. vLLM counts the whole prompt here, cached or not.
    pub(crate) fn saw_first_token(&mut self, sequence: &Sequence, now: Instant) {
        self.prompt_tokens += sequence.prompt_tokens as u64;
        self.cached_prompt_tokens += sequence.cached_tokens.unwrap_or(0) as u64;
        self.fetched_prompt_tokens += sequence.fetched_tokens as u64;
        self.time_to_first_token.observe((now - sequence.arrived).as_secs_f64());
    }

    pub(crate) fn stepped(&mut self, step: Step, generated: usize) {
        self.generation_tokens += generated as u64;
        self.iteration_tokens.observe((step.prefill + step.decoding) as f64);
    }

    pub(crate) fn finished(&mut self, sequence: &Sequence, finish: Finish, now: Instant) {
        match finish {
            Finish::Length => self.finished_length += 1,
            Finish::Abort => self.finished_abort += 1,
            Finish::Error => self.finished_error += 1,
        }
        self.request_prompt_tokens.observe(sequence.prompt_tokens as f64);
        self.request_generation_tokens.observe(sequence.generated as f64);
        self.e2e_latency.observe((now - sequence.arrived).as_secs_f64());
    }

    pub(crate) fn rejected(&mut self) {
        self.rejected += 1;
    }

    /// Takes the gauges over from the scheduler.
    pub(crate) fn publish(&mut self, scheduler: &Scheduler) {
        self.gauges = Gauges {
            running: scheduler.running().len(),
            waiting: scheduler.waiting().len(),
            kv_usage: scheduler.kv_usage(),
        };
        self.publish_loras(scheduler);
    }

    /// As in vLLM 0.32, the waiting list names the adapters of running requests too, and old series stay.
    fn publish_loras(&mut self, scheduler: &Scheduler) {
        let running: BTreeSet<_> = scheduler.running().iter().filter_map(|s| s.lora.as_deref()).collect();
        let mut waiting = running.clone();
        waiting.extend(scheduler.waiting().iter().filter_map(|s| s.lora.as_deref()));
        if waiting.is_empty() && self.lora_series.is_empty() {
            return;
        }
        let join = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(",");
        let now = LoraSeries { running: join(running), waiting: join(waiting), seen: unix_seconds() };
        let same = |old: &LoraSeries| old.running == now.running && old.waiting == now.waiting;
        match self.lora_series.iter().position(same) {
            Some(at) => self.lora_series[at].seen = now.seen,
            None if self.lora_series.len() < MAX_LORA_SERIES => self.lora_series.push(now),
            None => {}
        }
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: vec![0; bounds.len() + 1], count: 0, sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += value;
    }
}

/// Now, as Prometheus tells time: Unix seconds.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
