//! When does the engine compute? One task per engine runs the scheduler step by step and sleeps, in real time, for
//! as long as each step would take; with nothing to do it waits for work and costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::kv_tier::KvTier;
use crate::options::EngineOptions;
use crate::prompt::Prompt;
use crate::scheduler::Scheduler;
use crate::sequence::{Finish, Progress, Sequence};
use crate::stats::Stats;
use crate::utilisation::Utilisation;

/// How far behind its own clock an engine may fall and still catch up. Timers wake about a millisecond late, which
/// catching up evens out; a machine that stood still for longer must not be followed by a burst.
const MAX_LAG: Duration = Duration::from_millis(20);

/// The scheduler, its numbers and the life of one engine.
pub(crate) struct EngineCore {
    options: EngineOptions,
    /// What it shares with other engines. Outlives its process.
    tier: Option<KvTier>,
    state: Mutex<State>,
    work: Notify,
    /// Tells a step under way that its time was reckoned with a speed that holds no more.
    pace: Notify,
    next_id: AtomicU64,
}

struct State {
    scheduler: Scheduler,
    stats: Stats,
    life: Life,
    /// How many times slower than its options the engine is.
    slowness: f64,
    /// Requests that came while the engine computes nothing: in no queue, in no gauge.
    held: Vec<Sequence>,
    utilisation: Utilisation,
}

/// Whether the engine computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Awake,
    /// Frozen in the middle of a step, as when a worker hangs.
    Stalled,
    /// Paused by an operator: new requests are held, invisibly.
    Paused,
    /// As paused, with its weights and its KV cache gone. Level 1 keeps the weights in memory, 2 drops them.
    Asleep {
        level: u8,
    },
    /// Stopping gracefully: new requests end at once with `finish_reason` "abort".
    Draining,
    /// The process that computes is gone: every request is an error.
    Dead,
}

/// One prompt to answer.
pub(crate) struct Job {
    pub(crate) prompt: Arc<Prompt>,
    /// Adapter to run on, if not the base model.
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    /// 0 for a pooling model: the prompt is computed, and nothing of it stays in the cache.
    pub(crate) max_tokens: usize,
    /// Tells `n` answers to one prompt apart.
    pub(crate) choice: usize,
    /// New tokens worth waking the response for.
    pub(crate) wake_after: usize,
}

/// Why a request was not taken.
pub(crate) enum Refusal {
    QueueFull,
    EngineDead,
}

/// A request's hold on its sequence. Dropping it, as a disconnect does, takes the sequence out of the engine.
pub(crate) struct Ticket {
    core: Arc<EngineCore>,
    id: u64,
    pub(crate) progress: Arc<Progress>,
    pub(crate) prompt: Arc<Prompt>,
    pub(crate) seed: u64,
    /// Prompt tokens in full blocks.
    pub(crate) cacheable_tokens: usize,
}

impl EngineCore {
    /// An engine at rest, and the task that runs it; who aborts the task stops the engine.
    pub(crate) fn start(options: EngineOptions, tier: Option<KvTier>) -> (Arc<Self>, JoinHandle<()>) {
        let state = Mutex::new(State::new(&options, tier.clone()));
        let (work, pace, next_id) = (Notify::new(), Notify::new(), AtomicU64::new(0));
        let core = Arc::new(Self { options, tier, state, work, pace, next_id });
        let task = tokio::spawn(run(core.clone()));
        (core, task)
    }

    /// Puts prompts into the queue, all or none.
    pub(crate) fn submit(self: &Arc<Self>, jobs: Vec<Job>) -> Result<Vec<Ticket>, Refusal> {
        let (tickets, sequences): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| self.sequence(job)).unzip();
        let mut state = self.lock();
        match state.life {
            Life::Dead => return Err(Refusal::EngineDead),
            Life::Draining => sequences.iter().for_each(|sequence| sequence.tell(Some(Finish::Abort))),
            Life::Paused | Life::Asleep { .. } => state.held.extend(sequences),
            Life::Awake | Life::Stalled => {
                let queued = state.scheduler.waiting().len() + sequences.len();
                if self.options.max_num_queued_reqs.is_some_and(|limit| queued > limit) {
                    state.stats.rejected();
                    return Err(Refusal::QueueFull);
                }
                sequences.into_iter().for_each(|sequence| state.scheduler.enqueue(sequence));
                self.work.notify_one();
            }
        }
        Ok(tickets)
    }

    /// A copy of the numbers.
    pub(crate) fn stats(&self) -> Stats {
        self.lock().stats.clone()
    }

    pub(crate) fn life(&self) -> Life {
        self.lock().life
    }

    /// Sequences running and waiting at this moment.
    pub(crate) fn queue(&self) -> (usize, usize) {
        let state = self.lock();
        (state.scheduler.running().len(), state.scheduler.waiting().len())
    }

    /// The share of the last `window` in which any sequence was in the batch, 0 to 1.
    pub(crate) fn utilisation(&self, window: Duration) -> f64 {
        self.lock().utilisation.over(window, Instant::now())
    }

    /// Changes the engine's life, with what that does to the requests it has.
    pub(crate) fn live(&self, life: Life) {
        let mut state = self.lock();
        state.life = life;
        match life {
            Life::Awake | Life::Stalled | Life::Draining => {
                let held = std::mem::take(&mut state.held);
                held.into_iter().for_each(|sequence| state.scheduler.enqueue(sequence));
            }
            Life::Paused => state.finish_all(Finish::Abort),
            Life::Asleep { .. } => {
                state.finish_all(Finish::Abort);
                state.scheduler.forget_prefixes();
            }
            Life::Dead => state.finish_all(Finish::Error),
        }
        self.work.notify_one();
    }

    /// Makes steps this many times slower; the one under way ends at once.
    pub(crate) fn slow_down(&self, slowness: f64) {
        self.lock().slowness = slowness;
        self.pace.notify_waiters();
    }

    /// A new process: nothing cached, nothing counted, nothing queued.
    pub(crate) fn restart(&self) {
        *self.lock() = State::new(&self.options, self.tier.clone());
        self.pace.notify_waiters();
        self.work.notify_one();
    }

    /// Forgets all cached prefixes that no running sequence uses.
    pub(crate) fn forget_prefixes(&self) {
        self.lock().scheduler.forget_prefixes();
    }

    fn sequence(self: &Arc<Self>, job: Job) -> (Ticket, Sequence) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let model = job.lora.as_deref().unwrap_or(&self.options.model);
        let block_size = self.options.block_size;
        let chain = match job.max_tokens {
            0 => job.prompt.no_blocks(block_size),
            _ => job.prompt.blocks(block_size, model, job.salt.as_deref()),
        };
        let progress = Arc::new(Progress::new(job.wake_after));
        let seed = job.prompt.seed().wrapping_add(job.choice as u64);
        let ticket = Ticket {
            core: self.clone(),
            id,
            progress: progress.clone(),
            prompt: job.prompt.clone(),
            seed,
            cacheable_tokens: chain.hashes().len() * block_size,
        };
        let sequence = Sequence {
            id,
            lora: job.lora,
            prompt_tokens: job.prompt.tokens(),
            max_tokens: job.max_tokens,
            seed,
            token_bytes: job.prompt.token_bytes(),
            chain,
            arrived: Instant::now(),
            progress,
            blocks: Vec::new(),
            published: 0,
            stored: 0,
            computed: 0,
            scheduled: 0,
            generated: 0,
            cached_tokens: None,
            fetched_tokens: 0,
        };
        (ticket, sequence)
    }

    /// Plans a step and says how long it takes; `None` when there is nothing to do.
    fn begin_step(&self) -> Option<Duration> {
        let mut state = self.lock();
        if !matches!(state.life, Life::Awake | Life::Draining) {
            return None;
        }
        let now = Instant::now();
        let State { scheduler, stats, slowness, .. } = &mut *state;
        let step = scheduler.begin_step(now, stats)?;
        let duration = self.options.step_time(step).mul_f64(*slowness);
        state.note_utilisation(now);
        Some(duration)
    }

    /// Books a step whose time is over. False while the engine is stalled: the step is still under way.
    fn end_step(&self) -> bool {
        let mut state = self.lock();
        if state.life == Life::Stalled {
            return false;
        }
        let now = Instant::now();
        let State { scheduler, stats, .. } = &mut *state;
        scheduler.end_step(now, stats);
        stats.publish(scheduler);
        state.note_utilisation(now);
        true
    }

    fn abort(&self, id: u64) {
        let mut state = self.lock();
        let State { scheduler, stats, life, held, .. } = &mut *state;
        held.retain(|sequence| sequence.id != id);
        if let Some(sequence) = scheduler.remove(id) {
            stats.finished(&sequence, Finish::Abort, Instant::now());
        }
        if *life != Life::Stalled {
            stats.publish(scheduler);
        }
        state.note_utilisation(Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(options: &EngineOptions, tier: Option<KvTier>) -> Self {
        Self {
            scheduler: Scheduler::new(options, tier),
            stats: Stats::new(options.longest_sequence()),
            life: Life::Awake,
            slowness: 1.0,
            held: Vec::new(),
            utilisation: Utilisation::default(),
        }
    }

    /// Somebody may have entered the batch or left it.
    fn note_utilisation(&mut self, now: Instant) {
        self.utilisation.note(!self.scheduler.running().is_empty(), now);
    }

    fn finish_all(&mut self, finish: Finish) {
        let now = Instant::now();
        for sequence in self.scheduler.remove_all() {
            self.stats.finished(&sequence, finish, now);
            sequence.tell(Some(finish));
        }
        self.stats.publish(&self.scheduler);
        self.note_utilisation(now);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.progress.now().finish.is_none() {
            self.core.abort(self.id);
        }
    }
}

/// Steps for as long as there is work. Steps follow each other on the engine's own clock, so that late timers do
/// not make the engine slower than its options say.
async fn run(core: Arc<EngineCore>) {
    let mut clock = Instant::now();
    loop {
        // Made before the step is planned: no change of pace after that is missed.
        let other_pace = core.pace.notified();
        let Some(duration) = core.begin_step() else {
            core.work.notified().await;
            clock = Instant::now();
            continue;
        };
        clock = clock.max(Instant::now() - MAX_LAG) + duration;
        tokio::select! {
            () = tokio::time::sleep_until(clock.into()) => {}
            () = other_pace => clock = Instant::now(),
        }
        // Also when the sleep was none: whoever the last step woke must get to answer.
        tokio::task::yield_now().await;
        while !core.end_step() {
            core.work.notified().await;
            clock = Instant::now();
        }
    }
}
