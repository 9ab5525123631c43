//! What can be set on an engine? Its model, its cache, its speed and its limits, named as vLLM's own flags
//! where vLLM has one.

use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use crate::scheduler::Step;

/// How one engine behaves. The defaults are small and fast, for tests: 1,000 prompt tokens take about 10 ms.
///
/// The binary takes the same fields as flags, so each is described once, here.
#[derive(Args, Clone, Debug)]
pub struct EngineOptions {
    /// Name of the base model, as clients send it in `model`.
    #[arg(long, default_value_t = Self::default().model)]
    pub model: String,

    /// Names of LoRA adapters served beside the base model, comma separated.
    #[arg(long, value_delimiter = ',')]
    pub loras: Vec<String>,

    /// Version that `/version` and `system_fingerprint` tell.
    #[arg(long, default_value_t = Self::default().version)]
    pub version: String,

    /// Tokens in a KV cache block.
    #[arg(long, default_value_t = Self::default().block_size)]
    pub block_size: usize,

    /// KV cache capacity, in blocks. Memory is taken only for blocks in use (about 60 bytes each).
    #[arg(long, default_value_t = Self::default().num_blocks)]
    pub num_blocks: usize,

    /// Tokens in the KV tier that the fleet's engines share, as with LMCache; 0 means that there is none, or none for this
    /// engine. The first engine with one makes it. Memory is taken only for blocks in use (about 100 bytes each).
    #[arg(long, default_value_t = Self::default().kv_tier_tokens)]
    pub kv_tier_tokens: usize,

    /// What a token costs that is fetched from the KV tier, as a share of one that is computed. A fetch holds up the step
    /// that it is for, as LMCache's does.
    #[arg(long, default_value_t = Self::default().kv_tier_fetch_share)]
    pub kv_tier_fetch_share: f64,

    /// Bytes of text that make one token, 1 to 8.
    #[arg(long, default_value_t = Self::default().bytes_per_token)]
    pub bytes_per_token: usize,

    /// Most tokens in a prompt and its answer together; 0 means as many as the cache holds.
    #[arg(long, default_value_t = Self::default().max_model_len)]
    pub max_model_len: usize,

    /// Most sequences that run at once; the others wait.
    #[arg(long, default_value_t = Self::default().max_num_seqs)]
    pub max_num_seqs: usize,

    /// Most tokens computed in one engine step, prefill and decode together.
    #[arg(long, default_value_t = Self::default().max_num_batched_tokens)]
    pub max_num_batched_tokens: usize,

    /// Most sequences that may wait; a request beyond it is answered 503. Without it the queue has no limit.
    #[arg(long)]
    pub max_num_queued_reqs: Option<usize>,

    /// Prefill speed, in prompt tokens a second. Tokens found in the cache cost nothing.
    #[arg(long, default_value_t = Self::default().prefill_tokens_per_s)]
    pub prefill_tokens_per_s: f64,

    /// Time of an engine step, in milliseconds, before what its tokens add: the time between two tokens of a
    /// lone request.
    #[arg(long, default_value_t = Self::default().decode_step_ms)]
    pub decode_step_ms: f64,

    /// What each decoding sequence after the first adds to a step, in milliseconds.
    #[arg(long, default_value_t = Self::default().decode_step_ms_per_seq)]
    pub decode_step_ms_per_seq: f64,

    /// Tokens in one streamed chunk. 1 is vLLM's way at usual speeds; more saves CPU.
    #[arg(long, default_value_t = Self::default().tokens_per_chunk)]
    pub tokens_per_chunk: usize,

    /// Tell `usage.prompt_tokens_details`, as vLLM does with --enable-prompt-tokens-details.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub prompt_tokens_details: bool,

    /// Which vLLM's metric names `/metrics` uses.
    #[arg(long, value_enum, default_value_t = Self::default().metrics_names)]
    pub metrics_names: MetricsNames,
}

/// The spelling of KV cache metrics, which vLLM changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsNames {
    /// vLLM 0.11 and later: `kv_cache_usage_perc`, `prefix_cache_*`.
    Current,
    /// vLLM 0.9.2 to 0.10: the current and the old names side by side.
    Both,
    /// vLLM 0.8 to 0.9.1: only `gpu_cache_usage_perc`, `gpu_prefix_cache_*`.
    Old,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            model: "mock".to_owned(),
            loras: Vec::new(),
            version: "0.32.0".to_owned(),
            block_size: 16,
            num_blocks: 16_384,
            kv_tier_tokens: 0,
            kv_tier_fetch_share: 0.15,
            bytes_per_token: 4,
            max_model_len: 0,
            max_num_seqs: 64,
            max_num_batched_tokens: 2_048,
            max_num_queued_reqs: None,
            prefill_tokens_per_s: 100_000.0,
            decode_step_ms: 1.0,
            decode_step_ms_per_seq: 0.02,
            tokens_per_chunk: 1,
            prompt_tokens_details: true,
            metrics_names: MetricsNames::Current,
        }
    }
}

impl EngineOptions {
    /// Refuses values with which an engine could never answer, naming the field.
    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = [
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("tokens_per_chunk", self.tokens_per_chunk),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        if !(1..=8).contains(&self.bytes_per_token) {
            return Err("bytes_per_token must be 1 to 8".to_owned());
        }
        if !(self.prefill_tokens_per_s.is_finite() && self.prefill_tokens_per_s >= 1.0) {
            return Err("prefill_tokens_per_s must be at least 1".to_owned());
        }
        if !(0.0..=100.0).contains(&self.kv_tier_fetch_share) {
            return Err("kv_tier_fetch_share must be 0 to 100".to_owned());
        }
        for (name, ms) in
            [("decode_step_ms", self.decode_step_ms), ("decode_step_ms_per_seq", self.decode_step_ms_per_seq)]
        {
            if !(0.0..=60_000.0).contains(&ms) {
                return Err(format!("{name} must be 0 to 60000"));
            }
        }
        Ok(())
    }

    /// Most tokens of a prompt and its answer: never more than the cache can hold at once.
    pub(crate) fn longest_sequence(&self) -> usize {
        let cache = self.num_blocks * self.block_size;
        match self.max_model_len {
            0 => cache,
            limit => limit.min(cache),
        }
    }

    /// How long a step takes. The fixed part stands for reading the weights, which a step pays whatever it computes.
    pub(crate) fn step_time(&self, step: Step) -> Duration {
        let Step { prefill, fetched, decoding } = step;
        let prefill = prefill as f64 + self.kv_tier_fetch_share * fetched as f64;
        let seconds = prefill / self.prefill_tokens_per_s
            + (self.decode_step_ms + self.decode_step_ms_per_seq * decoding.saturating_sub(1) as f64) / 1e3;
        Duration::from_secs_f64(seconds)
    }
}
