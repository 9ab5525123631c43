//! Is the simulated engine's cache that of the mock fleet? The same conversations through both, placed alike.

#![allow(missing_docs)]

use fleet::{EngineOptions, Fleet, Footprint};
use replay::engine::EngineSpec;
use replay::figures::Figures;
use replay::policy::{Arrival, Policy, View};
use replay::simulation::{simulate, Polling, Run};
use replay::trace::Request;
use serde_json::{json, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENGINES: usize = 3;
const SESSIONS: usize = 30;
const TURNS: usize = 5;

/// Small enough for some of the conversations to be evicted before they go on.
fn options() -> EngineOptions {
    EngineOptions { num_blocks: 700, ..EngineOptions::default() }
}

/// A request that was sent to the mock fleet.
struct Sent {
    request: Request,
    host: usize,
}

/// Text that nobody else says.
fn words(speaker: usize, bytes: usize) -> String {
    (0..).map(|n| format!("{speaker}.{n} ")).take(bytes / 6).collect()
}

/// One conversation. `host` is asked where each turn goes.
async fn converse(
    session: usize,
    addresses: Arc<Vec<std::net::SocketAddr>>,
    begun: Instant,
    host: Arc<dyn Fn(usize) -> usize + Send + Sync>,
) -> Vec<Sent> {
    let client = reqwest::Client::new();
    let system = words(session % 3, 1_500);
    let mut messages = vec![json!({"role": "system", "content": system})];
    tokio::time::sleep(Duration::from_millis(session as u64 * 9)).await;
    let mut sent = Vec::new();
    for turn in 0..TURNS {
        messages.push(json!({"role": "user", "content": words(100 + session * TURNS + turn, 500)}));
        let body = json!({"model": "mock", "messages": messages, "max_tokens": 12});
        let host = host(session);
        let at_us = begun.elapsed().as_micros() as u64;
        let url = format!("http://{}/v1/chat/completions", addresses[host]);
        let answered = client.post(url).json(&body).send().await.expect("an answer");
        let answered: Value = answered.json().await.expect("an answer in JSON");
        let answer = answered["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
        let options = options();
        let footprint =
            Footprint::of_chat(body.to_string().as_bytes(), &answer, options.block_size, &options)
                .expect("a chat");
        let request = Request {
            at_us,
            prompt_tokens: footprint.prompt_tokens as u32,
            output_tokens: footprint.answer_tokens as u32,
            session: session as u64,
            anchor: session as u64,
            ids: footprint.prompt,
            answer_ids: footprint.answer,
        };
        sent.push(Sent { request, host });
        messages.push(json!({"role": "assistant", "content": answer}));
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    sent
}

/// Hit rates: of the mock fleet, and of the simulated one.
async fn hit_rates(host: impl Fn(usize) -> usize + Send + Sync + 'static) -> (f64, f64) {
    let fleet = Fleet::start(ENGINES, options()).await.expect("a fleet");
    let (addresses, host) = (Arc::new(fleet.addresses()), Arc::new(host));
    let begun = Instant::now();
    let conversations: Vec<_> = (0..SESSIONS)
        .map(|session| tokio::spawn(converse(session, addresses.clone(), begun, host.clone())))
        .collect();
    let mut sent = Vec::new();
    for conversation in conversations {
        sent.extend(conversation.await.expect("a conversation"));
    }
    let total = fleet.report().total;
    assert_eq!(total.completed as usize, SESSIONS * TURNS);
    (total.cached_tokens as f64 / total.prompt_tokens as f64, simulated(sent))
}

fn simulated(mut sent: Vec<Sent>) -> f64 {
    struct Recorded(Vec<usize>);
    impl Policy for Recorded {
        fn route(&mut self, arrival: &Arrival, _view: &View) -> usize {
            self.0[arrival.number]
        }
    }
    sent.sort_by_key(|sent| sent.request.at_us);
    let (requests, hosts): (Vec<Request>, Vec<usize>) =
        sent.into_iter().map(|sent| (sent.request, sent.host)).unzip();
    let options = options();
    let spec = EngineSpec {
        kv_tokens: (options.num_blocks * options.block_size) as u64,
        prefill_tokens_per_s: options.prefill_tokens_per_s,
        step_ms: options.decode_step_ms,
        sequence_ms: options.decode_step_ms_per_seq,
        step_tokens: options.max_num_batched_tokens as u32,
        sequences: options.max_num_seqs,
    };
    let run = Run {
        requests: &requests,
        block_tokens: options.block_size as u32,
        hosts: vec![spec; ENGINES],
        gateways: 1,
        polling: Polling::default(),
        events: Vec::new(),
        seed: 0,
    };
    Figures::over(&simulate(&run, &mut Recorded(hosts)), ENGINES).hit_rate
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_robin_hits_alike() {
    let next = AtomicUsize::new(0);
    let (mock, simulated) = hit_rates(move |_| next.fetch_add(1, Ordering::Relaxed) % ENGINES).await;
    assert!((0.1..0.9).contains(&mock), "{mock:.3} says nothing");
    assert!(
        (mock - simulated).abs() < 0.03,
        "the mock fleet hits {mock:.3}, the simulated one {simulated:.3}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sticky_sessions_hit_alike() {
    let (mock, simulated) = hit_rates(|session| session % ENGINES).await;
    assert!((0.1..0.95).contains(&mock), "{mock:.3} says nothing");
    assert!(
        (mock - simulated).abs() < 0.03,
        "the mock fleet hits {mock:.3}, the simulated one {simulated:.3}"
    );
}
