//! Does the simulated engine do what a vLLM engine does? By hand-computed figures, and against a naive model.

#![allow(missing_docs)]

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use replay::engine::{Engine, EngineSpec, Job, Outcome};
use std::sync::Arc;

const BLOCK_TOKENS: u32 = 16;

/// 1 ms a step, 1 ms for ten prompt tokens, and nothing for who decodes.
fn spec() -> EngineSpec {
    EngineSpec {
        kv_tokens: 100_000,
        prefill_tokens_per_s: 10_000.0,
        step_ms: 1.0,
        sequence_ms: 0.0,
        step_tokens: 512,
        sequences: 64,
    }
}

fn job(number: usize, prompt_tokens: u32, output_tokens: u32, text: u64) -> Job {
    let blocks = u64::from(prompt_tokens.div_ceil(BLOCK_TOKENS));
    Job {
        number,
        prompt_tokens,
        output_tokens,
        ids: (0..blocks).map(|block| text * 1_000_000 + block).collect(),
        answer_ids: Arc::from([]),
    }
}

/// When a request's first and last token came, and how much of its prompt was cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    first_us: u64,
    done_us: u64,
    cached_tokens: u32,
}

/// Plays jobs, each at its time.
fn play(spec: &EngineSpec, jobs: &[(u64, Job)]) -> Vec<Seen> {
    let mut engine = Engine::new(spec, BLOCK_TOKENS, 0);
    let mut seen = vec![Seen::default(); jobs.len()];
    let (mut next, mut end) = (0, None);
    loop {
        match (jobs.get(next), end) {
            (Some((at_us, job)), end_now) if end_now.is_none_or(|(end_us, _)| *at_us <= end_us) => {
                next += 1;
                end = engine.accept(job.clone(), *at_us).or(end);
            }
            (_, Some((end_us, epoch))) => {
                let mut outcomes = Vec::new();
                end = engine.step_ended(epoch, end_us, &mut outcomes);
                for outcome in outcomes {
                    match outcome {
                        Outcome::FirstToken { number, cached_tokens } => {
                            (seen[number].first_us, seen[number].cached_tokens) = (end_us, cached_tokens);
                        }
                        Outcome::Done { number, .. } => seen[number].done_us = end_us,
                    }
                }
            }
            _ => return seen,
        }
    }
}

#[test]
fn a_prompt_is_prefilled_in_chunks() {
    let seen = play(&spec(), &[(0, job(0, 1_200, 1, 1))]);
    // Chunks of 512, 512 and 176 tokens: 52.2 ms, 52.2 ms and 18.6 ms.
    assert_eq!(seen[0].first_us, 52_200 + 52_200 + 18_600);
    assert_eq!(seen[0].done_us, seen[0].first_us, "one token is the first and the last");
}

#[test]
fn who_decodes_takes_from_the_budget_of_who_prefills() {
    let spec = EngineSpec { sequence_ms: 0.5, ..spec() };
    let seen = play(&spec, &[(0, job(0, 100, 100, 1)), (12_000, job(1, 512, 1, 2))]);
    assert_eq!(seen[0].first_us, 11_000);
    // The second comes in the first's second step, that ends at 12.5 ms; then chunks of 511 tokens and of 1.
    assert_eq!(seen[1].first_us, 12_500 + (1_500 + 51_100) + (1_500 + 100));
}

#[test]
fn a_prefix_is_computed_once() {
    let seen =
        play(&spec(), &[(0, job(0, 320, 1, 1)), (100_000, job(1, 480, 1, 1)), (200_000, job(2, 480, 1, 2))]);
    assert_eq!(seen.iter().map(|seen| seen.cached_tokens).collect::<Vec<_>>(), [0, 320, 0]);
    assert_eq!(seen[1].first_us, 100_000 + 1_000 + 16_000, "160 tokens are left to compute");
    assert_eq!(seen[2].first_us, 200_000 + 1_000 + 48_000);
}

#[test]
fn the_last_token_is_always_computed() {
    let seen = play(&spec(), &[(0, job(0, 320, 1, 1)), (100_000, job(1, 320, 1, 1))]);
    assert_eq!(seen[1].cached_tokens, 319);
}

#[test]
fn the_least_recently_used_prompt_is_evicted() {
    // Room for two prompts and their answers.
    let spec = EngineSpec { kv_tokens: 700, ..spec() };
    let asked = [1, 2, 1, 3, 1, 2];
    let jobs: Vec<(u64, Job)> =
        asked.iter().enumerate().map(|(n, text)| (n as u64 * 100_000, job(n, 320, 1, *text))).collect();
    let cached: Vec<u32> = play(&spec, &jobs).iter().map(|seen| seen.cached_tokens).collect();
    assert_eq!(cached[..3], [0, 0, 319]);
    assert_eq!(cached[3], 0, "the third text is new, and pushes out the second");
    assert_eq!(cached[4], 319, "the first was used last");
    assert!(cached[5] < 160, "the second is gone, but for what of it was not needed: {}", cached[5]);
}

#[test]
fn a_restart_forgets_everything() {
    let mut engine = Engine::new(&spec(), BLOCK_TOKENS, 0);
    let begun = engine.sample().start_time_seconds;
    engine.accept(job(7, 320, 10, 1), 0);
    assert_eq!(engine.restart(5_000_000), [7]);
    assert_eq!(engine.expected_hit(&job(8, 320, 1, 1).ids, 320), 0);
    assert!(engine.sample().start_time_seconds > begun);
}

/// The same engine, one step after the other, for prompts that share nothing and a cache that holds everything.
fn naive(spec: &EngineSpec, jobs: &[(u64, Job)]) -> Vec<Seen> {
    let mut seen = vec![Seen::default(); jobs.len()];
    // Each with what it has left.
    let mut prefilling: Vec<(usize, u32)> = Vec::new();
    let mut decoding: Vec<(usize, u32)> = Vec::new();
    let (mut next, mut now_us) = (0, 0);
    while next < jobs.len() || !prefilling.is_empty() || !decoding.is_empty() {
        if prefilling.is_empty() && decoding.is_empty() {
            now_us = now_us.max(jobs[next].0);
        }
        while next < jobs.len() && jobs[next].0 <= now_us {
            prefilling.push((next, jobs[next].1.prompt_tokens));
            next += 1;
        }
        let mut budget = spec.step_tokens - decoding.len() as u32;
        let mut computed = 0;
        let room = spec.sequences - decoding.len();
        for (_, left) in prefilling.iter_mut().take(room) {
            let chunk = budget.min(*left);
            *left -= chunk;
            budget -= chunk;
            computed += chunk;
        }
        let ms = spec.step_ms
            + spec.sequence_ms * decoding.len() as f64
            + 1_000.0 * f64::from(computed) / spec.prefill_tokens_per_s;
        now_us += (ms * 1e3) as u64;
        for (number, left) in &mut decoding {
            *left -= 1;
            if *left == 0 {
                seen[*number].done_us = now_us;
            }
        }
        decoding.retain(|(_, left)| *left > 0);
        for (number, _) in prefilling.extract_if(.., |(_, left)| *left == 0) {
            seen[number].first_us = now_us;
            match jobs[number].1.output_tokens {
                1 => seen[number].done_us = now_us,
                tokens => decoding.push((number, tokens - 1)),
            }
        }
    }
    seen
}

#[test]
fn leaps_equal_single_steps() {
    for seed in 0..20 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let spec =
            EngineSpec { kv_tokens: 10_000_000, sequence_ms: 0.037, step_ms: 1.009, sequences: 8, ..spec() };
        let mut at_us = 0;
        let jobs: Vec<(u64, Job)> = (0..60)
            .map(|number| {
                at_us += random.random_range(0..60_000);
                let (prompt, output) = (random.random_range(1..1_500), random.random_range(1..80));
                (at_us, job(number, prompt, output, number as u64))
            })
            .collect();
        assert_eq!(play(&spec, &jobs), naive(&spec, &jobs), "seed {seed}");
    }
}
