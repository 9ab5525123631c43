//! Chat completions: what a client asks, and what it gets back, with the time to the first token.

use crate::client::{self, Body, Connection};
use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::{json, Value};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Where chat completions are asked for.
pub const PATH: &str = "/v1/chat/completions";

/// A conversation so far, and how it is to be continued.
#[derive(Debug, Clone)]
pub struct Chat {
    messages: Vec<Value>,
    /// The most tokens of the answer.
    pub max_tokens: u32,
    /// Whether the answer comes as it is generated.
    pub stream: bool,
}

impl Chat {
    /// A conversation that starts with a system prompt. Streamed; short answers.
    pub fn new(system: &str) -> Self {
        Self { messages: vec![json!({"role": "system", "content": system})], max_tokens: 4, stream: true }
    }

    /// The user says something.
    pub fn user(mut self, content: &str) -> Self {
        self.messages.push(json!({"role": "user", "content": content}));
        self
    }

    /// The assistant has answered.
    pub fn assistant(mut self, content: &str) -> Self {
        self.messages.push(json!({"role": "assistant", "content": content}));
        self
    }

    /// Asks for an answer of up to this many tokens.
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.max_tokens = tokens;
        self
    }

    /// Asks for the answer in one piece.
    pub fn unstreamed(mut self) -> Self {
        self.stream = false;
        self
    }

    /// The request body.
    pub fn body(&self) -> Bytes {
        let mut body = json!({
            "model": "mock",
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "temperature": 0.7,
        });
        if self.stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        body.to_string().into()
    }

    /// The request.
    pub fn request(&self) -> Request<Body> {
        post(PATH, client::whole(self.body()))
    }

    /// Sends it on this connection and reads the whole answer.
    pub async fn send(&self, connection: &mut Connection) -> Result<Reply> {
        send(connection, self.request()).await
    }

    /// Sends it on a connection of its own.
    pub async fn post(&self, address: SocketAddr) -> Result<Reply> {
        self.send(&mut Connection::open(address).await?).await
    }
}

/// A JSON POST with this body.
pub fn post(path: &str, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = hyper::Method::POST;
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert("host", hyper::header::HeaderValue::from_static("llm"));
    request.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    request
}

/// The same request for HTTP/2, where it names its scheme and authority.
pub fn absolute(mut request: Request<Body>) -> Request<Body> {
    *request.uri_mut() = format!("http://llm{}", request.uri()).parse().unwrap_or_default();
    request.headers_mut().remove("host");
    request
}

/// Sends a request on this connection and reads the whole answer.
pub async fn send(connection: &mut Connection, request: Request<Body>) -> Result<Reply> {
    let sent = Instant::now();
    let response = connection.send(request).await?;
    Reply::read(response, sent).await
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The response's headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
    /// The answer's text.
    pub text: String,
    /// From sending to the first event of the stream that carries text. None for an answer in one piece.
    pub ttft: Option<Duration>,
    /// From sending to the end.
    pub elapsed: Duration,
    /// When each piece of the body came, from sending.
    pub arrivals: Vec<Duration>,
    /// What the engine says it has computed.
    pub usage: Option<Usage>,
    finished: bool,
}

/// Tokens of one request, as the engine counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the prompt that were in the engine's cache.
    pub cached: u64,
    /// Tokens of the answer.
    pub completion: u64,
}

impl Reply {
    /// Reads a response to its end. `sent` is when its request was sent.
    pub async fn read(response: Response<Incoming>, sent: Instant) -> Result<Self> {
        let (head, mut incoming) = response.into_parts();
        let events = head
            .headers
            .get("content-type")
            .is_some_and(|kind| kind.to_str().is_ok_and(|kind| kind.starts_with("text/event-stream")));
        let mut reply = Self {
            status: head.status,
            headers: head.headers,
            body: Bytes::new(),
            text: String::new(),
            ttft: None,
            elapsed: Duration::ZERO,
            arrivals: Vec::new(),
            usage: None,
            finished: false,
        };
        let (mut body, mut read) = (Vec::new(), 0);
        while let Some(frame) = incoming.frame().await {
            let Ok(data) = frame.context("reading a response")?.into_data() else {
                continue;
            };
            reply.arrivals.push(sent.elapsed());
            body.extend_from_slice(&data);
            if events {
                read += reply.take_events(&body[read..], sent);
            }
        }
        reply.elapsed = sent.elapsed();
        if !events {
            reply.take_document(&body);
        }
        reply.body = body.into();
        Ok(reply)
    }

    /// Whether this is an answer as it should be: 200, some text, and an end.
    pub fn is_complete(&self) -> bool {
        self.status == StatusCode::OK && self.finished && !self.text.is_empty()
    }

    /// A response header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The engine that answered, by its own word.
    pub fn engine(&self) -> &str {
        self.header("x-mock-engine")
    }

    /// The host that kvroute chose.
    pub fn decided(&self) -> &str {
        self.header("x-kvroute-host")
    }

    /// How much of the prompt kvroute believed to be cached there: matched and total bytes.
    pub fn matched(&self) -> Option<(u64, u64)> {
        let (matched, total) = self.header("x-kvroute-matched").split_once('/')?;
        Some((matched.parse().ok()?, total.parse().ok()?))
    }

    /// Takes the whole events at the start of `bytes`; returns how many bytes they are.
    fn take_events(&mut self, bytes: &[u8], sent: Instant) -> usize {
        let mut taken = 0;
        while let Some(length) = bytes[taken..].windows(2).position(|pair| pair == b"\n\n") {
            let event = String::from_utf8_lossy(&bytes[taken..taken + length]).into_owned();
            taken += length + 2;
            match event.strip_prefix("data: ") {
                Some("[DONE]") => self.finished = true,
                Some(data) => self.take_event(&serde_json::from_str(data).unwrap_or_default(), sent),
                None => {}
            }
        }
        taken
    }

    fn take_event(&mut self, event: &Value, sent: Instant) {
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        if !text.is_empty() {
            self.ttft.get_or_insert_with(|| sent.elapsed());
            self.text.push_str(text);
        }
        self.take_usage(event);
    }

    fn take_document(&mut self, body: &[u8]) {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let choice = &document["choices"][0];
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str());
        self.text = text.unwrap_or_default().to_owned();
        self.finished = choice["finish_reason"].is_string();
        self.take_usage(&document);
    }

    fn take_usage(&mut self, document: &Value) {
        let usage = &document["usage"];
        if let Some(prompt) = usage["prompt_tokens"].as_u64() {
            self.usage = Some(Usage {
                prompt,
                cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
                completion: usage["completion_tokens"].as_u64().unwrap_or(0),
            });
        }
    }
}
