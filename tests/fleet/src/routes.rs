//! Which path answers what? The table of vLLM's paths, and what a fault does to all of them.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue, ALLOW, SERVER, VARY};
use hyper::{Method, Request, Response, StatusCode};
use xxhash_rust::xxh3::xxh3_64;

use crate::answer::quote;
use crate::api::{self, Asked, Read, Tell};
use crate::body::{json, respond, Body};
use crate::control;
use crate::engine::{Engine, Faults};
use crate::engine_core::Life;
use crate::exposition::CONTENT_TYPE;
use crate::fault::MetricsFault;
use crate::generate::generate;
use crate::options::EngineOptions;
use crate::port::Serve;
use crate::received::Received;
use crate::report::{Connection, Outcome, RequestRecord};
use crate::stats::unix_seconds;

/// Response header: which engine answered.
const MOCK_ENGINE: HeaderName = HeaderName::from_static("x-mock-engine");

/// What a path and a method lead to.
#[derive(Clone, Copy)]
enum Route {
    /// Computed, and answered whole or as a stream.
    Generate(Read),
    /// As `Generate`, with vLLM's load in a header for who asks.
    GenerateWithLoad(Read),
    /// Answered at once.
    Tell(Tell),
    /// What an operator or a probe asks.
    Show(Page),
}

#[derive(Clone, Copy)]
enum Page {
    Models,
    Health,
    Ping,
    Version,
    Load,
    Metrics,
    IsSleeping,
    ResetPrefixCache,
}

/// The methods of a path. A new API is one more line here and a function in `api`.
fn routes(path: &str) -> &'static [(Method, Route)] {
    match path {
        "/v1/chat/completions" => &[(Method::POST, Route::GenerateWithLoad(api::chat))],
        "/v1/chat/completions/batch" => &[(Method::POST, Route::Generate(api::batch))],
        "/v1/completions" => &[(Method::POST, Route::GenerateWithLoad(api::completions))],
        "/invocations" => &[(Method::POST, Route::Generate(api::invocations))],
        "/v1/responses" => &[(Method::POST, Route::Generate(api::responses))],
        "/v1/messages" => &[(Method::POST, Route::Generate(api::messages))],
        "/v1/messages/count_tokens" => &[(Method::POST, Route::Tell(api::count_tokens))],
        "/inference/v1/generate" => &[(Method::POST, Route::Generate(api::tokens_in_tokens_out))],
        "/generate" => &[(Method::POST, Route::Generate(api::text_in_text_out))],
        "/v1/embeddings" => &[(Method::POST, Route::Generate(api::embeddings))],
        "/pooling" => &[(Method::POST, Route::Generate(api::pooling))],
        "/score" | "/v1/score" => &[(Method::POST, Route::Generate(api::score))],
        "/rerank" | "/v1/rerank" | "/v2/rerank" => &[(Method::POST, Route::Generate(api::rerank))],
        "/classify" => &[(Method::POST, Route::Generate(api::classify))],
        "/tokenize" => &[(Method::POST, Route::Tell(api::tokenize))],
        "/detokenize" => &[(Method::POST, Route::Tell(api::detokenize))],
        "/v1/audio/transcriptions" => &[(Method::POST, Route::Tell(api::transcribe))],
        "/v1/models" => &[(Method::GET, Route::Show(Page::Models))],
        "/health" => &[(Method::GET, Route::Show(Page::Health))],
        "/ping" => &[(Method::GET, Route::Show(Page::Ping)), (Method::POST, Route::Show(Page::Ping))],
        "/version" => &[(Method::GET, Route::Show(Page::Version))],
        "/load" => &[(Method::GET, Route::Show(Page::Load))],
        "/metrics" => &[(Method::GET, Route::Show(Page::Metrics))],
        "/is_sleeping" => &[(Method::GET, Route::Show(Page::IsSleeping))],
        "/reset_prefix_cache" => &[(Method::POST, Route::Show(Page::ResetPrefixCache))],
        _ => &[],
    }
}

impl Serve for Engine {
    type Connection = Connection;

    fn connected(&self) -> Connection {
        self.ledger().connected()
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let what = request.uri().path().strip_prefix("/control/");
        let mut response = match what.and_then(|what| control::action(request.method(), what)) {
            Some(action) => control::act(&self, action, request).await,
            None => read_and_reply(&self, request).await,
        };
        let headers = response.headers_mut();
        headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
        headers.insert(VARY, HeaderValue::from_static("Origin"));
        headers.extend(
            HeaderValue::try_from(self.address().to_string()).ok().map(|engine| (MOCK_ENGINE, engine)),
        );
        response
    }
}

/// Takes the whole body in, whatever the path, and answers.
async fn read_and_reply(engine: &Engine, request: Request<Incoming>) -> Response<Body> {
    let routes = routes(request.uri().path());
    let route = routes.iter().find(|(method, _)| method == request.method()).map(|(_, route)| *route);
    match route {
        Some(Route::Show(Page::Metrics)) => engine.ledger().saw_scrape(),
        Some(Route::Show(Page::Health | Page::Ping)) => engine.ledger().saw_probe(),
        _ => {}
    }
    if route.is_some() {
        answer_when(engine, |faults| !faults.hang).await;
    }
    let received = match Received::read(request).await {
        Ok(received) => received,
        Err(error) => return error.into_response(),
    };
    let seen = received.seen();
    let mut response = match route {
        Some(Route::Generate(read)) => generate(engine, read, false, received).await,
        Some(Route::GenerateWithLoad(read)) => generate(engine, read, true, received).await,
        Some(Route::Tell(tell)) => noted(engine, told(engine, tell, &received), received),
        Some(Route::Show(page)) => noted(engine, show(engine, page).await, received),
        None => noted(engine, no_route(routes), received),
    };
    seen.tell(&mut response);
    response
}

/// The answer to a request for which nothing was computed, once the request is on record.
fn noted(engine: &Engine, response: Response<Body>, received: Received) -> Response<Body> {
    if received.brings_a_body() {
        let status = response.status();
        let outcome = if status.is_success() { Outcome::Completed } else { Outcome::Failed };
        engine.ledger().note(RequestRecord { status: status.as_u16(), outcome, ..received.record });
    }
    response
}

fn told(engine: &Engine, tell: Tell, received: &Received) -> Response<Body> {
    let Received { headers, body, .. } = received;
    match tell(&Asked { engine, headers, body }) {
        Ok(answer) => json(StatusCode::OK, answer),
        Err(error) => error.into_response(),
    }
}

async fn show(engine: &Engine, page: Page) -> Response<Body> {
    match page {
        Page::Models => json(StatusCode::OK, models(engine)),
        Page::Health | Page::Ping if engine.core().life() == Life::Dead => {
            status_only(StatusCode::SERVICE_UNAVAILABLE)
        }
        Page::Health | Page::Ping => status_only(StatusCode::OK),
        Page::Version => {
            json(StatusCode::OK, format!(r#"{{"version":{}}}"#, quote(&engine.options().version)))
        }
        Page::Load => json(StatusCode::OK, format!(r#"{{"server_load":{}}}"#, engine.ledger().in_flight())),
        Page::Metrics => metrics(engine).await,
        Page::IsSleeping => {
            let asleep = matches!(engine.core().life(), Life::Asleep { .. });
            json(StatusCode::OK, format!(r#"{{"is_sleeping":{asleep}}}"#))
        }
        Page::ResetPrefixCache => {
            engine.reset_prefix_cache();
            json(StatusCode::OK, r#"{"success":true}"#.to_owned())
        }
    }
}

/// FastAPI's words for a path, or a method of a path, that is not there.
pub(crate) fn not_found() -> Response<Body> {
    json(StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#.to_owned())
}

fn no_route(routes: &[(Method, Route)]) -> Response<Body> {
    if routes.is_empty() {
        return not_found();
    }
    let mut response = json(StatusCode::METHOD_NOT_ALLOWED, r#"{"detail":"Method Not Allowed"}"#.to_owned());
    let methods: Vec<_> = routes.iter().map(|(method, _)| method.as_str()).collect();
    response.headers_mut().extend(HeaderValue::try_from(methods.join(", ")).ok().map(|allow| (ALLOW, allow)));
    response
}

fn status_only(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Waits until the faults allow an answer. A stopped fleet never does.
async fn answer_when(engine: &Engine, allowed: impl FnMut(&Faults) -> bool) {
    if engine.faults().wait_for(allowed).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn metrics(engine: &Engine) -> Response<Body> {
    let fault = engine.faults().borrow().metrics.clone();
    match fault {
        None | Some(MetricsFault::Clear | MetricsFault::Stale) => {}
        Some(MetricsFault::Slow { ms }) => tokio::time::sleep(Duration::from_millis(ms)).await,
        Some(MetricsFault::Garbage) => return respond(StatusCode::OK, CONTENT_TYPE, GARBAGE),
        Some(MetricsFault::Nan) => {
            return respond(StatusCode::OK, CONTENT_TYPE, with_nan(&engine.exposition()))
        }
        Some(MetricsFault::Missing) => return not_found(),
        Some(MetricsFault::Hang) => {
            answer_when(engine, |faults| faults.metrics != Some(MetricsFault::Hang)).await;
        }
    }
    respond(StatusCode::OK, CONTENT_TYPE, engine.exposition())
}

/// Near misses of every line a parser looks for, bytes that are no UTF-8, and no newline at the end.
const GARBAGE: &[u8] = b"<html>\nvllm:num_requests_running{engine=\"0\",model_name=\"\nvllm:num_requests_waiting\n\
    vllm:kv_cache_usage_perc{} twelve\nvllm:num_requests_running{}} 1e999\n\xff\xfe\x00\x80\n\n \n# HELP\n\
    vllm:cache_config_info{block_size=\"-1\",num_gpu_blocks=\"99999999999999999999\"} 1.0\n{} \nvllm:prefix_cache";

fn with_nan(exposition: &str) -> String {
    let lines = exposition.lines().map(|line| match line.rsplit_once(' ') {
        Some((series, _)) if !line.starts_with('#') => format!("{series} NaN\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

fn models(engine: &Engine) -> String {
    let options = engine.options();
    let base = model(&options.model, options, "null", &options.longest_sequence().to_string());
    let parent = quote(&options.model);
    let loras = options.loras.iter().map(|lora| model(lora, options, &parent, "null"));
    let all: Vec<_> = std::iter::once(base).chain(loras).collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, all.join(","))
}

fn model(name: &str, options: &EngineOptions, parent: &str, max_model_len: &str) -> String {
    let (id, root) = (quote(name), quote(&format!("/models/{}", options.model)));
    let created = unix_seconds() as u64;
    let digest = xxh3_64(name.as_bytes());
    format!(
        r#"{{"id":{id},"object":"model","created":{created},"owned_by":"vllm","root":{root},"parent":{parent},"max_model_len":{max_model_len},"permission":[{{"id":"modelperm-{digest:016x}","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#
    )
}
