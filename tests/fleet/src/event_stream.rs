//! What goes out on a stream, and when? An event for each token (or each few) as the engine generates it, made
//! when the connection asks for more: no task and no channel in between.

use std::io;
use std::task::{Context, Poll};

use hyper::body::Bytes;

use crate::answer::{Answer, ApiError, Delta};
use crate::engine_core::Ticket;
use crate::prompt::push_generated;
use crate::report::{Entry, Outcome, Usage};
use crate::sequence::{Finish, Snapshot};

/// The server-sent events of one answer.
pub(crate) struct EventStream {
    answer: Box<dyn Answer>,
    choices: Vec<StreamedChoice>,
    /// Choices that share one prompt.
    n: usize,
    tokens_per_chunk: usize,
    entry: Entry,
    greeted: bool,
    ended: bool,
    /// Whether the connection is cut after the first text.
    breaks_off: bool,
    cut: Cut,
}

/// Where a stream stands that is cut.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    /// Nothing was said yet.
    Later,
    /// What was said must be on its way first: a connection sends when nothing more is ready.
    Sending,
    Now,
}

struct StreamedChoice {
    ticket: Ticket,
    told: usize,
    begun: bool,
    finished: bool,
}

impl EventStream {
    pub(crate) fn new(
        answer: Box<dyn Answer>,
        tickets: Vec<Ticket>,
        n: usize,
        tokens_per_chunk: usize,
        entry: Entry,
        breaks_off: bool,
    ) -> Self {
        let choice = |ticket| StreamedChoice { ticket, told: 0, begun: false, finished: false };
        let choices = tickets.into_iter().map(choice).collect();
        Self {
            answer,
            choices,
            n,
            tokens_per_chunk,
            entry,
            greeted: false,
            ended: false,
            breaks_off,
            cut: Cut::Later,
        }
    }

    /// All events that are due, or the end; an error where the connection is to be cut.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match self.cut {
            Cut::Later => self.poll_events(context).map(|events| events.map(Ok)),
            Cut::Sending => {
                self.cut = Cut::Now;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Cut::Now => {
                self.entry.settle(Outcome::Failed);
                Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())))
            }
        }
    }

    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut events = String::new();
        if !std::mem::replace(&mut self.greeted, true) {
            self.answer.greet(&mut events);
            if !events.is_empty() {
                return Poll::Ready(Some(Bytes::from(events)));
            }
        }
        for index in 0..self.choices.len() {
            let choice = &self.choices[index];
            if choice.finished {
                continue;
            }
            if let Poll::Ready(snapshot) = choice.ticket.progress.poll_beyond(choice.told, context) {
                if snapshot.finish == Some(Finish::Error) {
                    return Poll::Ready(Some(self.break_off()));
                }
                self.tell(index, snapshot, &mut events);
            }
        }
        if events.is_empty() {
            return Poll::Pending;
        }
        self.entry.saw_first_token();
        self.entry.used(self.usage());
        if self.breaks_off {
            self.cut = Cut::Sending;
        } else if self.choices.iter().all(|choice| choice.finished) {
            self.end(&mut events);
        }
        Poll::Ready(Some(Bytes::from(events)))
    }

    /// Writes what is new of one choice.
    fn tell(&mut self, index: usize, snapshot: Snapshot, events: &mut String) {
        let others_finished =
            self.choices.iter().enumerate().all(|(other, choice)| other == index || choice.finished);
        let Self { answer, choices, tokens_per_chunk, .. } = self;
        let choice = &mut choices[index];
        let usage = choice_usage(&choice.ticket, snapshot);
        if !std::mem::replace(&mut choice.begun, true) {
            answer.begin(events, index, usage);
        }
        let (seed, token_bytes) = (choice.ticket.seed, choice.ticket.prompt.token_bytes());
        let mut text = Vec::with_capacity(*tokens_per_chunk * token_bytes);
        while !choice.finished {
            let new = (snapshot.generated - choice.told).min(*tokens_per_chunk);
            if new < *tokens_per_chunk && snapshot.finish.is_none() {
                return;
            }
            text.clear();
            (choice.told..choice.told + new).for_each(|at| push_generated(&mut text, seed, at, token_bytes));
            choice.told += new;
            let finish = snapshot.finish.filter(|_| choice.told == snapshot.generated);
            choice.finished = finish.is_some();
            let delta = Delta {
                index,
                text: std::str::from_utf8(&text).unwrap_or_default(),
                finish,
                usage: Usage { generated_tokens: choice.told, ..usage },
                last: choice.finished && others_finished,
            };
            answer.chunk(events, &delta);
        }
    }

    fn end(&mut self, events: &mut String) {
        self.answer.end(events, self.usage());
        self.ended = true;
        self.entry.settle(Outcome::Completed);
    }

    /// The engine died: vLLM says so in the stream, whose status is already 200.
    fn break_off(&mut self) -> Bytes {
        self.ended = true;
        self.entry.settle(Outcome::Failed);
        Bytes::from(self.answer.break_off(&ApiError::engine_dead()))
    }

    fn usage(&self) -> Usage {
        usage(self.choices.iter().map(|choice| &choice.ticket), self.n)
    }
}

/// Tokens of one choice, with all of its prompt.
pub(crate) fn choice_usage(ticket: &Ticket, snapshot: Snapshot) -> Usage {
    let Snapshot { generated: generated_tokens, cached_tokens, .. } = snapshot;
    let created_cache_tokens = ticket.cacheable_tokens.saturating_sub(cached_tokens);
    Usage { prompt_tokens: ticket.prompt.tokens(), cached_tokens, created_cache_tokens, generated_tokens }
}

/// Tokens of all choices so far. A prompt counts once however many choices share it, and its first choice says what
/// was cached.
pub(crate) fn usage<'a>(tickets: impl Iterator<Item = &'a Ticket>, n: usize) -> Usage {
    let mut usage = Usage::default();
    for (at, ticket) in tickets.enumerate() {
        let progress = ticket.progress.now();
        usage.generated_tokens += progress.generated;
        if at % n == 0 {
            usage.prompt_tokens += ticket.prompt.tokens();
            usage.cached_tokens += progress.cached_tokens;
            usage.created_cache_tokens += ticket.cacheable_tokens.saturating_sub(progress.cached_tokens);
        }
    }
    usage
}

/// Writes an event of data alone.
pub(crate) fn event(events: &mut String, write: impl FnOnce(&mut String)) {
    events.push_str("data: ");
    write(events);
    events.push_str("\n\n");
}
