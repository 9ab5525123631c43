//! What is sent, and to what engines?

use fleet::EngineOptions;
use gateway::envoy::Options;
use gateway::workload::plan::Shape;
use serde_json::{json, Value};
use std::time::Duration;

/// Engines of each fleet.
pub const ENGINES: usize = 8;

/// A first token that comes within this is in time. An idle engine needs a fifth of it for a prompt of 3,500 tokens of
/// which nothing is cached.
pub const GOOD_WITHIN: Duration = Duration::from_secs(1);

/// A workload, of which plans are drawn.
pub struct Load {
    /// One word, for files too.
    pub name: &'static str,
    /// What it is, for readers.
    pub about: &'static str,
    shape: Shape,
}

/// What kvroute is for, and what it must not harm. Conversations come so fast that the engines could not bear them
/// without their caches: with hashing alone the busiest is near its limit. Unique prompts take about three quarters of what
/// the engines can compute; they are of one size, which is as even as counting requests can get.
pub const LOADS: [Load; 2] = [
    Load {
        name: "conversations",
        about: "growing conversations over 64 shared system prompts, a few of them popular",
        shape: Shape {
            seed: 0,
            conversations: 340,
            starts_per_s: 25.0,
            systems: 64,
            skew: 0.7,
            system_bytes: 12_000,
            turns: 6,
            question_bytes: 2_400,
            answer_tokens: 24,
            think_s: 0.8,
            stream: true,
        },
    },
    Load {
        name: "unique",
        about: "prompts of one size that share nothing",
        shape: Shape {
            seed: 0,
            conversations: 250,
            starts_per_s: 30.0,
            systems: 1,
            skew: 0.0,
            system_bytes: 0,
            turns: 1,
            question_bytes: 14_000,
            answer_tokens: 24,
            think_s: 1.0,
            stream: true,
        },
    },
];

impl Load {
    /// The shape of one plan.
    pub fn shape(&self, seed: u64) -> Shape {
        Shape { seed, ..self.shape.clone() }
    }
}

/// An engine as kvroute's constants suppose it (an 8B model on one GPU), with a cache of 131,072 tokens. The system
/// prompts alone need one and a half times that.
pub fn engine() -> EngineOptions {
    EngineOptions {
        block_size: 16,
        num_blocks: 8_192,
        prefill_tokens_per_s: 18_000.0,
        decode_step_ms: 8.0,
        decode_step_ms_per_seq: 0.1,
        ..EngineOptions::default()
    }
}

/// All that a simulator must know of the fleet.
pub fn parameters() -> Value {
    let engine = engine();
    json!({
        "hosts": ENGINES,
        "envoy_workers": Options::default().concurrency,
        "block_size": engine.block_size,
        "num_blocks": engine.num_blocks,
        "bytes_per_token": engine.bytes_per_token,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "prefill_tokens_per_s": engine.prefill_tokens_per_s,
        "decode_step_ms": engine.decode_step_ms,
        "decode_step_ms_per_seq": engine.decode_step_ms_per_seq,
        "step_ms": "1000 * prefill tokens / prefill_tokens_per_s + decode_step_ms \
                    + decode_step_ms_per_seq * max(0, decoding sequences - 1)",
        "good_within_s": GOOD_WITHIN.as_secs_f64(),
    })
}
