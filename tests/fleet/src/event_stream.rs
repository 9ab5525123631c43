//! What goes out on a stream, and when? One event for each token (or each few) as the engine generates it, made
//! when the connection asks for more: no task and no channel in between.

use std::task::{Context, Poll};

use hyper::body::Bytes;

use crate::answer::{ApiError, Delta, Envelope};
use crate::engine_core::Ticket;
use crate::prompt::push_generated;
use crate::report::{Entry, Outcome, Usage};
use crate::request::Api;
use crate::sequence::{Finish, Snapshot};

/// The server-sent events of one answer.
pub(crate) struct EventStream {
    envelope: Envelope,
    choices: Vec<StreamedChoice>,
    /// Prompts among the choices: `n` choices share one.
    n: usize,
    tokens_per_chunk: usize,
    include_usage: bool,
    continuous_usage: bool,
    entry: Entry,
    ended: bool,
}

/// How an answer is to be streamed.
pub(crate) struct StreamShape {
    /// Choices that share one prompt.
    pub(crate) n: usize,
    pub(crate) tokens_per_chunk: usize,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
}

struct StreamedChoice {
    ticket: Ticket,
    told: usize,
    role_told: bool,
    finished: bool,
}

impl EventStream {
    pub(crate) fn new(envelope: Envelope, tickets: Vec<Ticket>, shape: StreamShape, entry: Entry) -> Self {
        let StreamShape { n, tokens_per_chunk, include_usage, continuous_usage } = shape;
        let role_told = envelope.api == Api::Completions;
        let choices = tickets
            .into_iter()
            .map(|ticket| StreamedChoice { ticket, told: 0, role_told, finished: false })
            .collect();
        Self { envelope, choices, n, tokens_per_chunk, include_usage, continuous_usage, entry, ended: false }
    }

    /// All events that are due, or the end.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut events = String::new();
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
        if self.choices.iter().all(|choice| choice.finished) {
            self.end(&mut events);
        }
        Poll::Ready(Some(Bytes::from(events)))
    }

    /// Writes what is new of one choice.
    fn tell(&mut self, index: usize, snapshot: Snapshot, events: &mut String) {
        let others_finished =
            self.choices.iter().enumerate().all(|(other, choice)| other == index || choice.finished);
        let usage = self.continuous_usage.then(|| self.choice_usage(index, snapshot));
        let Self { envelope, choices, tokens_per_chunk, include_usage, .. } = self;
        let choice = &mut choices[index];
        if !std::mem::replace(&mut choice.role_told, true) {
            event(events, |out| out.push_str(&envelope.role_chunk(index, usage)));
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
                usage: usage.map(|usage| Usage { generated_tokens: choice.told, ..usage }),
                last: choice.finished && others_finished && !*include_usage,
            };
            event(events, |out| envelope.write_chunk(out, &delta));
        }
    }

    fn end(&mut self, events: &mut String) {
        if self.include_usage {
            let usage = self.usage();
            event(events, |out| out.push_str(&self.envelope.usage_chunk(usage)));
        }
        events.push_str("data: [DONE]\n\n");
        self.ended = true;
        self.entry.settle(Outcome::Completed);
    }

    /// The engine died: vLLM says so in the stream, whose status is already 200.
    fn break_off(&mut self) -> Bytes {
        self.ended = true;
        self.entry.settle(Outcome::Failed);
        Bytes::from(format!("data: {}\n\ndata: [DONE]\n\n", ApiError::engine_dead().to_json()))
    }

    fn usage(&self) -> Usage {
        usage(self.choices.iter().map(|choice| &choice.ticket), self.n)
    }

    fn choice_usage(&self, index: usize, snapshot: Snapshot) -> Usage {
        let prompt_tokens = self.choices[index].ticket.prompt.tokens();
        Usage { prompt_tokens, generated_tokens: snapshot.generated, ..Usage::default() }
    }
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

fn event(events: &mut String, write: impl FnOnce(&mut String)) {
    events.push_str("data: ");
    write(events);
    events.push_str("\n\n");
}
