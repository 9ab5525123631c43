//! How do the tests talk to an engine? A small HTTP client, and waiting for conditions in place of time.

use std::time::{Duration, Instant};

use fleet::{Engine, EngineOptions, Fleet};
use reqwest::{Method, Response};
use serde_json::{json, Value};

/// Longest that any condition may take. Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client {
    http: reqwest::Client,
    base: String,
}

/// What a streamed answer said.
pub struct Streamed {
    /// The `data:` of each event, in order.
    pub events: Vec<String>,
}

/// One engine with these options, and a client of it.
pub async fn one_engine(options: EngineOptions) -> (Fleet, Client) {
    let fleet = Fleet::start(1, options).await.expect("a fleet");
    let client = Client::of(fleet.engine(0));
    (fleet, client)
}

impl Client {
    pub fn of(engine: &Engine) -> Self {
        Self::to(&engine.address().to_string())
    }

    pub fn to(address: &str) -> Self {
        Self { http: reqwest::Client::new(), base: format!("http://{address}") }
    }

    pub fn http2(engine: &Engine) -> Self {
        let http = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
        Self { http, base: format!("http://{}", engine.address()) }
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.expect("an answer")
    }

    pub async fn try_post(&self, path: &str, body: &Value) -> reqwest::Result<Response> {
        self.request(Method::POST, path).json(body).send().await
    }

    pub async fn post(&self, path: &str, body: Value) -> Response {
        self.try_post(path, &body).await.expect("an answer")
    }

    /// The whole answer to a completion of `prompt`.
    pub async fn complete(&self, prompt: &str, max_tokens: usize) -> Value {
        let body = json!({ "prompt": prompt, "max_tokens": max_tokens });
        whole(self.post("/v1/completions", body).await).await
    }

    /// Starts a streamed completion; the head of its answer is there at once, its text is not.
    pub async fn start_stream(&self, prompt: &str, max_tokens: usize) -> Response {
        let body = json!({ "prompt": prompt, "max_tokens": max_tokens, "stream": true });
        self.post("/v1/completions", body).await
    }

    /// The value of a series without labels of its own; `None` if there is none such.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text().await.expect("text");
        value(&text, name)
    }

    /// Waits until a series has a value: the gauges follow the queue at the end of a step.
    pub async fn until_metric(&self, name: &str, expected: f64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.metric(name).await;
            if value == Some(expected) {
                return;
            }
            assert!(Instant::now() < deadline, "{name} is {value:?}, not {expected}");
        }
    }

    pub async fn fault(&self, path: &str, fault: Value) {
        let response = self.post(path, fault).await;
        assert_eq!(response.status(), 200, "{:?}", response.text().await);
    }
}

impl Streamed {
    pub async fn read(response: Response) -> Self {
        let text = response.text().await.expect("a whole stream");
        let events = text.split_terminator("\n\n");
        let data = |event: &str| event.strip_prefix("data: ").expect("an event").to_owned();
        Self { events: events.map(data).collect() }
    }

    /// The text of all chunks of completions.
    pub fn text(&self) -> String {
        let chunks = self.events.iter().filter_map(|event| serde_json::from_str(event).ok());
        chunks.filter_map(|chunk: Value| Some(chunk["choices"][0]["text"].as_str()?.to_owned())).collect()
    }
}

pub async fn whole(response: Response) -> Value {
    assert_eq!(response.status(), 200);
    response.json().await.expect("JSON")
}

pub fn cached_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("details")
}

pub fn prompt_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens"].as_u64().expect("usage")
}

/// The value of the first series of a metric.
pub fn value(exposition: &str, name: &str) -> Option<f64> {
    let series = exposition
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))?;
    series.rsplit_once(' ')?.1.parse().ok()
}

/// Waits until `condition` holds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Text of about so many tokens that shares no block with that of another name.
pub fn text(name: &str, tokens: usize) -> String {
    let words = (0..tokens).map(|n| format!("{:04x}", n % 0xffff));
    let body: String = words.skip(1).collect();
    format!("{name:4}{body}")
}
