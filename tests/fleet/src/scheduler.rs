//! What does the engine compute next? vLLM's V1 scheduler: each step has a budget of tokens; running sequences
//! come first, one token each or a chunk of their prompt; then waiting ones are admitted in order of arrival, as
//! far as sequences, budget and KV blocks allow. Knows no clock: the caller says how long a step took.

use std::collections::VecDeque;
use std::time::Instant;

use crate::kv_cache::KvCache;
use crate::kv_tier::KvTier;
use crate::options::EngineOptions;
use crate::sequence::{Finish, Sequence};
use crate::stats::Stats;

/// The queue, the batch and the cache of one engine.
pub(crate) struct Scheduler {
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    cache: KvCache,
    tier: Option<KvTier>,
    block_size: usize,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    /// The step under way.
    step: Option<Step>,
}

/// What one step computes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Step {
    /// Prompt tokens.
    pub(crate) prefill: usize,
    /// Tokens that come from the tier.
    pub(crate) fetched: usize,
    /// Sequences that get their next token.
    pub(crate) decoding: usize,
}

impl Scheduler {
    pub(crate) fn new(options: &EngineOptions, tier: Option<KvTier>) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::new(),
            cache: KvCache::new(options.num_blocks),
            tier,
            block_size: options.block_size,
            max_num_seqs: options.max_num_seqs,
            max_num_batched_tokens: options.max_num_batched_tokens,
            step: None,
        }
    }

    pub(crate) fn running(&self) -> &[Sequence] {
        &self.running
    }

    pub(crate) fn waiting(&self) -> &VecDeque<Sequence> {
        &self.waiting
    }

    /// Share of the KV cache that running sequences use, 0 to 1.
    pub(crate) fn kv_usage(&self) -> f64 {
        self.cache.usage()
    }

    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Takes a sequence out, wherever it is, and frees its blocks.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Sequence> {
        if let Some(at) = self.waiting.iter().position(|sequence| sequence.id == id) {
            return self.waiting.remove(at);
        }
        let at = self.running.iter().position(|sequence| sequence.id == id)?;
        let sequence = self.running.remove(at);
        self.cache.release(&sequence.blocks);
        Some(sequence)
    }

    /// Takes every sequence out.
    pub(crate) fn remove_all(&mut self) -> Vec<Sequence> {
        self.running.iter().for_each(|sequence| self.cache.release(&sequence.blocks));
        self.running.drain(..).chain(self.waiting.drain(..)).collect()
    }

    /// Forgets all cached prefixes that no running sequence uses.
    pub(crate) fn forget_prefixes(&mut self) {
        self.cache.forget();
    }

    /// Fills the next step, or tells that there is nothing to do.
    pub(crate) fn begin_step(&mut self, now: Instant, stats: &mut Stats) -> Option<Step> {
        let mut budget = self.max_num_batched_tokens;
        let mut step = Step::default();
        let mut at = 0;
        while at < self.running.len() && budget > 0 {
            if self.make_room(at, budget, stats) {
                budget -= self.schedule(at, budget, &mut step);
                at += 1;
            }
        }
        while budget > 0 && self.running.len() < self.max_num_seqs && self.admit_first(&mut step, now, stats)
        {
            budget -= self.schedule(self.running.len() - 1, budget, &mut step);
        }
        self.step = (step.prefill + step.decoding > 0).then_some(step);
        self.step
    }

    /// Books what the step under way computed; sequences that got their last token leave.
    pub(crate) fn end_step(&mut self, now: Instant, stats: &mut Stats) {
        let Some(step) = self.step.take() else { return };
        let mut generated = 0;
        for sequence in &mut self.running {
            if sequence.scheduled == 0 {
                continue;
            }
            sequence.computed += std::mem::take(&mut sequence.scheduled);
            store(self.tier.as_ref(), sequence, self.block_size);
            if sequence.uncomputed() > 0 || sequence.is_finished() {
                continue;
            }
            sequence.generate();
            generated += 1;
            if sequence.generated == 1 {
                stats.saw_first_token(sequence, now);
            }
        }
        stats.stepped(step, generated);
        self.retire(now, stats);
    }

    /// Lets finished sequences go and tells each response how far it is.
    fn retire(&mut self, now: Instant, stats: &mut Stats) {
        let cache = &mut self.cache;
        self.running.retain(|sequence| {
            let finish = sequence.is_finished().then_some(Finish::Length);
            if let Some(finish) = finish {
                cache.release(&sequence.blocks);
                stats.finished(sequence, finish, now);
            }
            sequence.tell(finish);
            finish.is_none()
        });
    }

    /// Gives the sequence at `at` the blocks its next tokens need. When none is free, the newest running sequence
    /// goes back to the head of the queue, to be computed again; false when that was this one.
    fn make_room(&mut self, at: usize, budget: usize, stats: &mut Stats) -> bool {
        let sequence = &self.running[at];
        let tokens = sequence.computed + sequence.uncomputed().min(budget);
        while self.running[at].blocks.len() < tokens.div_ceil(self.block_size) {
            if let Some(block) = self.cache.pin_new() {
                self.running[at].blocks.push(block);
                continue;
            }
            let Some(mut newest) = self.running.pop() else {
                return false;
            };
            self.cache.release(&newest.blocks);
            newest.blocks.clear();
            (newest.computed, newest.scheduled, newest.published, newest.stored) = (0, 0, 0, 0);
            self.waiting.push_front(newest);
            stats.preempted();
            if self.running.len() == at {
                return false;
            }
        }
        true
    }

    /// Moves the first waiting sequence into the batch if all its blocks can be had. At most all but one of its
    /// tokens come from the cache and the tier, since the last one must be computed to generate anything.
    fn admit_first(&mut self, step: &mut Step, now: Instant, stats: &mut Stats) -> bool {
        let Some(sequence) = self.waiting.front() else {
            return false;
        };
        let hashes = sequence.chain.hashes();
        let hittable = hashes.len().min((sequence.tokens() - 1) / self.block_size);
        let total = sequence.tokens().div_ceil(self.block_size);
        let Some((blocks, hits)) = self.cache.pin_sequence(&hashes[..hittable], total) else {
            return false;
        };
        let Some(mut sequence) = self.waiting.pop_front() else {
            return false;
        };
        (sequence.blocks, sequence.published) = (blocks, hits);
        let fetched = self.fetchable(&sequence, hits);
        sequence.computed = hits * self.block_size + fetched;
        step.fetched += fetched;
        if sequence.cached_tokens.is_none() {
            (sequence.cached_tokens, sequence.fetched_tokens) = (Some(sequence.computed), fetched);
            stats.admitted(&sequence, self.tier.is_some(), now);
        }
        self.running.push(sequence);
        true
    }

    /// Tokens of a sequence that the tier has after the first `hits` blocks. As LMCache says it to vLLM: all but the last
    /// token, if it has the last block too.
    fn fetchable(&self, sequence: &Sequence, hits: usize) -> usize {
        let Some(tier) = &self.tier else { return 0 };
        let run = tier.run(&sequence.chain.hashes()[hits..]);
        (run * self.block_size).min(sequence.tokens() - hits * self.block_size - 1)
    }

    /// Puts the next tokens of a running sequence into the step, at most `budget`, and says how many. As in vLLM
    /// its blocks can be hit from now on, before they are computed: a burst of equal prompts shares them.
    fn schedule(&mut self, at: usize, budget: usize, step: &mut Step) -> usize {
        let sequence = &mut self.running[at];
        if sequence.is_decoding() {
            step.decoding += 1;
        } else {
            step.prefill += sequence.uncomputed().min(budget);
        }
        sequence.scheduled = sequence.uncomputed().min(budget);
        // A prompt's last token may lack bytes, so the chain can be a block behind the tokens.
        let hashes = sequence.chain.hashes();
        let full = hashes.len().min((sequence.computed + sequence.scheduled) / self.block_size);
        let fresh = sequence.blocks.iter().zip(hashes).take(full).skip(sequence.published);
        fresh.for_each(|(id, hash)| self.cache.publish(*id, *hash));
        sequence.published = full.max(sequence.published);
        sequence.scheduled
    }
}

/// Puts what a sequence has computed into the tier, when it is at least a block more.
fn store(tier: Option<&KvTier>, sequence: &mut Sequence, block_size: usize) {
    let hashes = sequence.chain.hashes();
    let full = hashes.len().min(sequence.computed / block_size);
    if let Some(tier) = tier.filter(|_| full > sequence.stored) {
        tier.put(&hashes[..full], block_size);
        sequence.stored = full;
    }
}
