//! How is a prompt answered? Reads what is asked, queues its prompts and answers whole or as a stream.

use std::future::poll_fn;
use std::time::Duration;

use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};

use crate::answer::{ApiError, Choice};
use crate::api::{Asked, Read};
use crate::body::{json, respond, Body};
use crate::engine::Engine;
use crate::engine_core::{Job, Refusal, Ticket};
use crate::event_stream::{choice_usage, usage, EventStream};
use crate::orca;
use crate::prompt::push_generated;
use crate::received::{header, Received};
use crate::report::{Entry, Outcome};
use crate::request::Generation;
use crate::sequence::Finish;

/// Request header: answer with this status and do nothing.
const MOCK_STATUS: &str = "x-mock-status";
/// Request header: wait so many milliseconds before the request is queued.
const MOCK_DELAY_MS: &str = "x-mock-delay-ms";

/// A request that was taken.
struct Accepted {
    generation: Generation,
    tickets: Vec<Ticket>,
}

/// Answers one generation request and books it. `has_orca`: whether vLLM reports its load in this API's answers.
pub(crate) async fn generate(
    engine: &Engine,
    read: Read,
    has_orca: bool,
    received: Received,
) -> Response<Body> {
    let Received { headers, body, record, .. } = received;
    let mut entry = engine.ledger().open(record);
    match accept(engine, read, &headers, body).await {
        Ok(accepted) if accepted.generation.stream => stream(engine, accepted, entry),
        Ok(accepted) => {
            let mut response = whole(accepted, entry).await;
            if has_orca && response.status() == StatusCode::OK {
                response.headers_mut().extend(orca::header(&headers, || engine.core().stats().gauges));
            }
            response
        }
        Err(error) => {
            let response = error.into_response();
            entry.answered(response.status().as_u16());
            entry.settle(Outcome::Failed);
            response
        }
    }
}

/// Reads a request and queues its prompts.
async fn accept(
    engine: &Engine,
    read: Read,
    headers: &HeaderMap,
    body: hyper::body::Bytes,
) -> Result<Accepted, ApiError> {
    let asked = header(headers, MOCK_STATUS).and_then(|status| status.parse().ok());
    if let Some(status) = asked.or(engine.failing_with()) {
        return Err(ApiError::injected(
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        ));
    }
    let generation = read(&Asked { engine, headers, body: &body })?;
    // A big body is not kept beside its prompts for as long as the answer takes.
    drop(body);
    if let Some(ms) = header(headers, MOCK_DELAY_MS).and_then(|ms| ms.parse().ok()) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    let jobs = jobs(&generation, engine.options().tokens_per_chunk);
    let tickets = engine.core().submit(jobs).map_err(|refusal| {
        generation.answer.refuse(match refusal {
            Refusal::QueueFull => ApiError::busy(),
            Refusal::EngineDead => ApiError::engine_dead(),
        })
    })?;
    Ok(Accepted { generation, tickets })
}

/// One job for each answer: all of the first prompt's, then all of the second's.
fn jobs(generation: &Generation, tokens_per_chunk: usize) -> Vec<Job> {
    let Generation { wish, stream, .. } = generation;
    let wake_after = if *stream { tokens_per_chunk } else { usize::MAX };
    let choices = wish.prompts.iter().flat_map(|prompt| (0..wish.n).map(move |choice| (prompt, choice)));
    choices
        .map(|(prompt, choice)| Job {
            prompt: prompt.clone(),
            lora: wish.lora.clone(),
            salt: wish.salt.clone(),
            max_tokens: wish.max_tokens,
            choice,
            wake_after,
        })
        .collect()
}

fn stream(engine: &Engine, accepted: Accepted, mut entry: Entry) -> Response<Body> {
    let Accepted { generation: Generation { wish, answer, .. }, tickets } = accepted;
    entry.answered(200);
    let tokens_per_chunk = engine.options().tokens_per_chunk;
    let events = EventStream::new(answer, tickets, wish.n, tokens_per_chunk, entry, engine.breaks_off());
    respond(StatusCode::OK, "text/event-stream; charset=utf-8", Body::Events(Box::new(events)))
}

async fn whole(accepted: Accepted, mut entry: Entry) -> Response<Body> {
    let Accepted { generation: Generation { wish, mut answer, .. }, tickets } = accepted;
    let mut choices = Vec::with_capacity(tickets.len());
    for ticket in &tickets {
        let end = poll_fn(|context| ticket.progress.poll_beyond(0, context)).await;
        let mut text = Vec::new();
        let token_bytes = ticket.prompt.token_bytes();
        (0..end.generated).for_each(|at| push_generated(&mut text, ticket.seed, at, token_bytes));
        choices.push(Choice {
            text: String::from_utf8(text).unwrap_or_default(),
            finish: end.finish.unwrap_or(Finish::Length),
            seed: ticket.seed,
            usage: choice_usage(ticket, end),
        });
    }
    let usage = usage(tickets.iter(), wish.n);
    entry.used(usage);
    if choices.iter().any(|choice| choice.finish == Finish::Error) {
        let response = answer.refuse(ApiError::engine_dead()).into_response();
        entry.answered(response.status().as_u16());
        entry.settle(Outcome::Failed);
        return response;
    }
    entry.answered(200);
    entry.settle(Outcome::Completed);
    json(StatusCode::OK, answer.whole(&choices, usage))
}
