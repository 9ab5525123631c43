//! Where does one prompt stand? A sequence is what the scheduler works on; its progress is the part that the HTTP
//! response watches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::kv_cache::BlockId;
use crate::prompt::{push_generated, BlockChain};

/// One prompt and the answer growing behind it.
pub(crate) struct Sequence {
    pub(crate) id: u64,
    /// The adapter it runs on, if not the base model.
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) prompt_tokens: usize,
    /// 0 for a pooling model's: it is done with its prompt.
    pub(crate) max_tokens: usize,
    /// What the answer is drawn from.
    pub(crate) seed: u64,
    pub(crate) token_bytes: usize,
    pub(crate) chain: BlockChain,
    pub(crate) arrived: Instant,
    pub(crate) progress: Arc<Progress>,
    /// Pinned blocks, in order, and how many of them are findable in the cache.
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) published: usize,
    /// Blocks of which the tier has been told.
    pub(crate) stored: usize,
    /// Tokens whose KV is there, and tokens that the step under way adds.
    pub(crate) computed: usize,
    pub(crate) scheduled: usize,
    pub(crate) generated: usize,
    /// Tokens that it did not have to compute when it was admitted first.
    pub(crate) cached_tokens: Option<usize>,
    /// Of these, fetched from the tier.
    pub(crate) fetched_tokens: usize,
}

/// Why a sequence ended, in vLLM's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finish {
    /// It has its `max_tokens`.
    Length,
    /// The engine was paused, put to sleep or is draining.
    Abort,
    /// The engine died.
    Error,
}

/// What the response may tell by now.
#[derive(Clone, Copy, Default)]
pub(crate) struct Snapshot {
    /// Tokens generated.
    pub(crate) generated: usize,
    /// Prompt tokens found in the cache or the tier.
    pub(crate) cached_tokens: usize,
    pub(crate) finish: Option<Finish>,
}

/// Carries a snapshot from the scheduler to the task that answers.
pub(crate) struct Progress {
    state: Mutex<ProgressState>,
    /// New tokens that are worth waking the answering task for.
    wake_after: usize,
}

#[derive(Default)]
struct ProgressState {
    snapshot: Snapshot,
    seen: usize,
    waker: Option<Waker>,
}

impl Sequence {
    pub(crate) fn tokens(&self) -> usize {
        self.prompt_tokens + self.generated
    }

    /// Tokens whose KV is missing before the next one can be generated: 1 while it decodes.
    pub(crate) fn uncomputed(&self) -> usize {
        self.tokens() - self.computed
    }

    pub(crate) fn is_decoding(&self) -> bool {
        self.generated > 0 && self.uncomputed() == 1
    }

    pub(crate) fn is_finished(&self) -> bool {
        match self.max_tokens {
            0 => self.uncomputed() == 0,
            most => self.generated >= most,
        }
    }

    /// Adds the next generated token, whose bytes may fill a block.
    pub(crate) fn generate(&mut self) {
        let mut text = Vec::with_capacity(self.token_bytes);
        push_generated(&mut text, self.seed, self.generated, self.token_bytes);
        self.chain.extend(&text);
        self.generated += 1;
    }

    /// Shows the response how far things are.
    pub(crate) fn tell(&self, finish: Option<Finish>) {
        let (generated, cached_tokens) = (self.generated, self.cached_tokens.unwrap_or(0));
        self.progress.advance(Snapshot { generated, cached_tokens, finish });
    }
}

impl Finish {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

impl Progress {
    pub(crate) fn new(wake_after: usize) -> Self {
        Self { state: Mutex::default(), wake_after }
    }

    pub(crate) fn now(&self) -> Snapshot {
        self.lock().snapshot
    }

    /// Waits until there are `wake_after` tokens beyond `seen`, or the end.
    pub(crate) fn poll_beyond(&self, seen: usize, context: &mut Context<'_>) -> Poll<Snapshot> {
        let mut state = self.lock();
        state.seen = seen;
        if self.is_worth_waking(&state) {
            return Poll::Ready(state.snapshot);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn advance(&self, snapshot: Snapshot) {
        let mut state = self.lock();
        state.snapshot = snapshot;
        if self.is_worth_waking(&state) {
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }

    fn is_worth_waking(&self, state: &ProgressState) -> bool {
        state.snapshot.finish.is_some() || state.snapshot.generated - state.seen >= self.wake_after
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
