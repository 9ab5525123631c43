//! How is a prompt answered? Reads the body, parses it, queues its prompts and answers whole or as a stream.

use std::future::poll_fn;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_TYPE};
use hyper::{Request, Response, StatusCode};
use xxhash_rust::xxh3::xxh3_64;

use crate::answer::{quote, ApiError, Choice, Envelope};
use crate::body::{json, respond, Body};
use crate::engine::Engine;
use crate::engine_core::{Job, Refusal, Ticket};
use crate::event_stream::{usage, EventStream, StreamShape};
use crate::orca;
use crate::prompt::push_generated;
use crate::report::{Entry, Outcome, RequestRecord, Usage};
use crate::request::{Api, GenerationRequest};
use crate::sequence::Finish;
use crate::stats::unix_seconds;

/// Largest body taken, in bytes.
const MAX_BODY_BYTES: usize = 256 << 20;

/// Request header: answer with this status and do nothing.
const MOCK_STATUS: &str = "x-mock-status";
/// Request header: wait so many milliseconds before the request is queued.
const MOCK_DELAY_MS: &str = "x-mock-delay-ms";
/// Response header: xxh3 of the request's body as it arrived.
const BODY_DIGEST: HeaderName = HeaderName::from_static("x-mock-body-digest");
/// Response header: the request's `x-upstream-host` as it arrived.
const UPSTREAM_HOST_SEEN: HeaderName = HeaderName::from_static("x-mock-upstream-host");

/// A request that was taken.
struct Accepted {
    request: GenerationRequest,
    envelope: Envelope,
    tickets: Vec<Ticket>,
}

/// Answers one generation request and books it.
pub(crate) async fn generate(engine: &Engine, api: Api, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY_BYTES).collect().await else {
        return ApiError::too_large().into_response();
    };
    let body = body.to_bytes();
    let record = record(head.uri.path(), &head.headers, &body);
    let digest = HeaderValue::try_from(&record.body_digest);
    let mut entry = engine.ledger().open(record);
    let mut response = match accept(engine, api, &head.headers, body).await {
        Ok(accepted) if accepted.request.stream => stream(engine, accepted, entry),
        Ok(accepted) => whole(engine, &head.headers, accepted, entry).await,
        Err(error) => {
            let response = error.into_response();
            entry.answered(response.status().as_u16());
            entry.settle(Outcome::Failed);
            response
        }
    };
    let headers = response.headers_mut();
    headers.extend(digest.ok().map(|digest| (BODY_DIGEST, digest)));
    headers.extend(head.headers.get("x-upstream-host").map(|host| (UPSTREAM_HOST_SEEN, host.clone())));
    response
}

/// Parses a body and queues its prompts.
async fn accept(engine: &Engine, api: Api, headers: &HeaderMap, body: Bytes) -> Result<Accepted, ApiError> {
    let asked = header(headers, MOCK_STATUS).and_then(|status| status.parse().ok());
    if let Some(status) = asked.or(engine.failing_with()) {
        return Err(ApiError::injected(
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        ));
    }
    let media_type = header(headers, CONTENT_TYPE.as_str()).and_then(|value| value.split(';').next());
    if !media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json")) {
        return Err(ApiError::content_type());
    }
    let options = engine.options();
    let request = GenerationRequest::parse(api, &body, options)?;
    // A big body is not kept beside its prompts for as long as the answer takes.
    drop(body);
    if let Some(ms) = header(headers, MOCK_DELAY_MS).and_then(|ms| ms.parse().ok()) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    let tickets =
        engine.core().submit(jobs(&request, options.tokens_per_chunk)).map_err(|refusal| match refusal {
            Refusal::QueueFull => ApiError::busy(),
            Refusal::EngineDead => ApiError::engine_dead(),
        })?;
    let prefix = match api {
        Api::Chat => "chatcmpl",
        Api::Completions => "cmpl",
    };
    let id = header(headers, "x-request-id").map_or_else(|| engine.next_request_id(), str::to_owned);
    let envelope = Envelope {
        api,
        id: quote(&format!("{prefix}-{id}")),
        created: unix_seconds() as u64,
        model: quote(&request.model),
        fingerprint: format!("vllm-{}-mock", options.version),
        details: options.prompt_tokens_details,
    };
    Ok(Accepted { request, envelope, tickets })
}

/// One job for each answer: all of the first prompt's, then all of the second's.
fn jobs(request: &GenerationRequest, tokens_per_chunk: usize) -> Vec<Job> {
    let wake_after = if request.stream { tokens_per_chunk } else { usize::MAX };
    let choices =
        request.prompts.iter().flat_map(|prompt| (0..request.n).map(move |choice| (prompt, choice)));
    choices
        .map(|(prompt, choice)| Job {
            prompt: prompt.clone(),
            lora: request.lora.clone(),
            salt: request.salt.clone(),
            max_tokens: request.max_tokens,
            choice,
            wake_after,
        })
        .collect()
}

fn stream(engine: &Engine, accepted: Accepted, mut entry: Entry) -> Response<Body> {
    let Accepted { request, envelope, tickets } = accepted;
    let shape = StreamShape {
        n: request.n,
        tokens_per_chunk: engine.options().tokens_per_chunk,
        include_usage: request.include_usage,
        continuous_usage: request.continuous_usage,
    };
    entry.answered(200);
    let events = Box::new(EventStream::new(envelope, tickets, shape, entry));
    respond(StatusCode::OK, "text/event-stream; charset=utf-8", Body::Events(events))
}

async fn whole(engine: &Engine, headers: &HeaderMap, accepted: Accepted, mut entry: Entry) -> Response<Body> {
    let Accepted { request, envelope, tickets } = accepted;
    let mut choices = Vec::with_capacity(tickets.len());
    for ticket in &tickets {
        let end = poll_fn(|context| ticket.progress.poll_beyond(0, context)).await;
        let mut text = Vec::new();
        let token_bytes = ticket.prompt.token_bytes();
        (0..end.generated).for_each(|at| push_generated(&mut text, ticket.seed, at, token_bytes));
        choices.push(Choice {
            text: String::from_utf8(text).unwrap_or_default(),
            finish: end.finish.unwrap_or(Finish::Length),
        });
    }
    let usage = usage(tickets.iter(), request.n);
    entry.used(usage);
    if choices.iter().any(|choice| choice.finish == Finish::Error) {
        let response = ApiError::engine_dead().into_response();
        entry.answered(response.status().as_u16());
        entry.settle(Outcome::Failed);
        return response;
    }
    entry.answered(200);
    entry.settle(Outcome::Completed);
    let mut response = json(StatusCode::OK, envelope.whole(&choices, usage));
    response.headers_mut().extend(orca::header(headers, || engine.core().stats().gauges));
    response
}

fn record(path: &str, headers: &HeaderMap, body: &Bytes) -> RequestRecord {
    RequestRecord {
        path: path.to_owned(),
        status: 0,
        outcome: Outcome::Aborted,
        upstream_host: header(headers, "x-upstream-host").map(str::to_owned),
        request_id: header(headers, "x-request-id").map(str::to_owned),
        body_bytes: body.len(),
        body_digest: format!("{:016x}", xxh3_64(body)),
        usage: Usage::default(),
        ttft_ms: None,
        total_ms: 0.0,
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
