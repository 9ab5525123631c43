//! A gateway with kvroute in it, and the engines behind: what every test here starts from.

use std::collections::BTreeMap;

use fake_proxy::{HttpCall, Options, Proxy, Stream, Worker};
use kvroute as _;
use serde_json::{json, Value};

extern "C" {
    /// The module's entry, as `proxy_wasm::main!` exports it.
    fn _initialize();
}

fn boot() {
    // SAFETY: a function of the filter without arguments, called once on each VM's own thread.
    unsafe { _initialize() }
}

/// The proxy's cluster in every configuration here.
pub const CLUSTER: &str = "vllm";

/// The address of host `n`, which is also the host in slot `n`.
pub fn host(n: usize) -> String {
    format!("10.0.0.{}:8000", n + 1)
}

/// A configuration for `hosts` hosts, with `more` keys on top.
pub fn config(hosts: usize, more: Value) -> String {
    let hosts: Vec<String> = (0..hosts).map(host).collect();
    let mut config = json!({ "cluster": CLUSTER, "hosts": hosts, "debug_headers": true });
    if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
        config.extend(more);
    }
    config.to_string()
}

/// A gateway: one proxy, its workers, and the engines it polls.
pub struct Gateway {
    pub proxy: Proxy,
    pub workers: Vec<Worker>,
    pub engines: BTreeMap<String, Engine>,
    /// Every poll so far, oldest first.
    pub polls: Vec<HttpCall>,
    /// How engines answer when they are asked for a generation; those not named here generate. `None`: never.
    pub generations: BTreeMap<String, Option<(u32, String)>>,
    /// Every such request so far, oldest first.
    pub probes: Vec<HttpCall>,
}

/// How an engine answers a poll.
#[derive(Debug, Clone)]
pub enum Engine {
    /// With an exposition of these requests.
    Load { running: u32, waiting: u32 },
    /// With this status and body.
    Says(u32, String),
    /// Never: the call stays open.
    Silent,
    /// The connection breaks off.
    BreaksOff,
}

impl Engine {
    pub const IDLE: Engine = Engine::Load { running: 0, waiting: 0 };
}

impl Gateway {
    /// One worker and `hosts` idle engines.
    pub fn new(hosts: usize) -> Self {
        Self::with_workers(1, hosts)
    }

    pub fn with_workers(workers: usize, hosts: usize) -> Self {
        Self::with_config(workers, hosts, &config(hosts, json!({})))
    }

    pub fn with_config(workers: usize, hosts: usize, config: &str) -> Self {
        Self::with_options(workers, hosts, config, Options::default())
    }

    pub fn with_options(workers: usize, hosts: usize, config: &str, options: Options) -> Self {
        let proxy = Proxy::with_options(boot, options);
        let start = |_| proxy.worker(config).expect("a good configuration");
        let workers = (0..workers).map(start).collect();
        let engines = (0..hosts).map(|n| (host(n), Engine::IDLE)).collect();
        let (polls, generations, probes) = Default::default();
        Self { proxy, workers, engines, polls, generations, probes }
    }

    /// A proxy without workers, for tests of the configuration.
    pub fn empty() -> Proxy {
        Proxy::new(boot)
    }

    pub fn worker(&self) -> &Worker {
        &self.workers[0]
    }

    /// Lets time pass: every 50 ms all workers tick, and the engines answer what they were asked.
    pub fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 50 {
            self.proxy.advance(50);
            for worker in &self.workers {
                worker.tick();
            }
            self.answer_polls();
        }
    }

    pub fn answer_polls(&mut self) {
        for call in self.proxy.calls() {
            if call.headers.get(":method").as_deref() == Some("POST") {
                self.answer_probe(&call);
                continue;
            }
            let host = polled_host(&call);
            // One that is never answered shows up again and again.
            if !self.polls.contains(&call) {
                self.polls.push(call.clone());
            }
            let engine = self.engines.get(&host).cloned();
            match engine.unwrap_or(Engine::Silent) {
                Engine::Load { running, waiting } => {
                    let body = exposition(running, waiting);
                    self.proxy.answer(&call, 200, body.as_bytes());
                }
                Engine::Says(status, body) => self.proxy.answer(&call, status, body.as_bytes()),
                Engine::BreaksOff => self.proxy.break_off(&call),
                Engine::Silent => {}
            }
        }
    }

    fn answer_probe(&mut self, call: &HttpCall) {
        if !self.probes.contains(call) {
            self.probes.push(call.clone());
        }
        let generates = || Some((200, String::from(GENERATION)));
        let answer = self.generations.get(&named_host(call)).cloned().unwrap_or_else(generates);
        if let Some((status, body)) = answer {
            self.proxy.answer(call, status, body.as_bytes());
        }
    }

    /// How often each host was asked for a generation.
    pub fn probes_by_host(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in &self.probes {
            *counts.entry(named_host(call)).or_default() += 1;
        }
        counts
    }

    /// How often each host was polled.
    pub fn polls_by_host(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in &self.polls {
            *counts.entry(polled_host(call)).or_default() += 1;
        }
        counts
    }

    /// A chat request on the first worker, decided and not answered.
    pub fn chat(&self, prompt: &str) -> Stream {
        chat(self.worker(), prompt)
    }

    /// A whole chat on the first worker. Answers the host it went to.
    pub fn route_chat(&self, prompt: &str) -> String {
        route_chat(self.worker(), prompt)
    }

    pub fn requests_in_flight(&self, slot: usize) -> i64 {
        self.proxy.gauge(&format!("kvroute_slot_{slot}_inflight_requests"))
    }

    pub fn prefill_in_flight(&self, slot: usize) -> i64 {
        self.proxy.gauge(&format!("kvroute_slot_{slot}_inflight_prefill_tokens"))
    }

    /// The gauges of what is in flight that are not zero: none when all is quiet.
    pub fn in_flight(&self) -> Vec<(String, i64)> {
        let gauges = self.proxy.gauges().into_iter();
        gauges.filter(|(name, value)| name.contains("_inflight_") && *value != 0).collect()
    }

    /// Lines that a panic wrote.
    pub fn panics(&self) -> Vec<String> {
        let log = self.proxy.log().into_iter();
        log.filter(|line| line.level >= 5).map(|line| line.text).collect()
    }
}

/// A whole answer of one token, as vLLM gives it.
pub const GENERATION: &str = r#"{"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":" there",
    "finish_reason":"length"}],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}}"#;

/// The host that a poll is for.
pub fn polled_host(call: &HttpCall) -> String {
    assert_eq!(call.headers.get(":method").as_deref(), Some("GET"));
    named_host(call)
}

/// The host that a call is for.
pub fn named_host(call: &HttpCall) -> String {
    assert_eq!(call.cluster, CLUSTER);
    call.headers.get("x-upstream-host").expect("a named host")
}

/// What an engine with so many requests exposes.
pub fn exposition(running: u32, waiting: u32) -> String {
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.1\n\
         vllm:prompt_tokens_total{{engine=\"0\",model_name=\"m\"}} 0.0\n\
         vllm:prefix_cache_hits_total{{engine=\"0\",model_name=\"m\"}} 0.0\n\
         vllm:generation_tokens_total{{engine=\"0\",model_name=\"m\"}} 1.0\n"
    )
}

/// Text of `bytes` bytes that no other `seed` shares a block with.
pub fn text(seed: usize, bytes: usize) -> String {
    let mut text = String::new();
    let mut n = 0;
    while text.len() < bytes {
        text += &format!("sentence {n} of text {seed} says nothing else. ");
        n += 1;
    }
    text.truncate(bytes);
    text
}

/// A chat with one user message.
pub fn chat_body(prompt: &str) -> String {
    json!({
        "model": "m",
        "messages": [{ "role": "user", "content": prompt }],
        "stream": true,
    })
    .to_string()
}

/// The headers of a chat with a body of `length` bytes.
pub fn chat_headers(length: usize) -> Vec<(String, String)> {
    [
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        (":authority", "gateway"),
        ("content-type", "application/json"),
        ("content-length", &length.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// A chat request, its body in one piece, decided and not answered.
pub fn chat(worker: &Worker, prompt: &str) -> Stream {
    let body = chat_body(prompt);
    let stream = worker.request(chat_headers(body.len()), false);
    stream.body(body.as_bytes(), true);
    assert!(!stream.is_held(), "a complete request goes on");
    stream
}

/// The hosts that the destination header names, best first.
pub fn destinations(stream: &Stream) -> Vec<String> {
    let values = stream.headers().all("x-upstream-host");
    assert!(values.len() <= 1, "one destination header: {values:?}");
    let names = values.iter().flat_map(|value| value.split(','));
    names.map(|name| name.trim().to_owned()).collect()
}

/// The best host that the destination header names.
pub fn destination(stream: &Stream) -> String {
    destinations(stream).into_iter().next().expect("a destination")
}

/// The best host's response begins.
pub fn begin_response(stream: &Stream) {
    let head = [("content-type", "text/event-stream")];
    stream.respond(&destination(stream), 200, &head);
}

/// The best host answers with a short stream, and the exchange ends.
pub fn serve(stream: &Stream) {
    begin_response(stream);
    stream.response_body(b"data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n", false);
    stream.response_body(b"data: [DONE]\n\n", true);
    stream.finish();
}

/// A whole chat. Answers the host it went to.
pub fn route_chat(worker: &Worker, prompt: &str) -> String {
    let stream = chat(worker, prompt);
    let host = destination(&stream);
    serve(&stream);
    host
}

/// Why the filter chose, as a debug header of the response says.
pub fn reason(stream: &Stream) -> String {
    stream.response_headers().get("x-kvroute-reason").expect("debug headers are on")
}
