//! Does a fleet change while it runs, as a real one does?

use std::time::{Duration, Instant};

use fleet::{EngineOptions, Fault, Fleet};

use crate::client::{cached_tokens, one_engine, text, until, value, Client, Streamed};

/// Longer than any test may take: who loads for so long has not finished.
const FOR_EVER: Duration = Duration::from_secs(3_600);

async fn refuses(client: &Client) -> bool {
    let answer = client.request(reqwest::Method::GET, "/health").send().await;
    answer.is_err_and(|error| error.is_connect())
}

#[tokio::test]
async fn a_new_engine_refuses_connections_until_it_has_loaded() {
    let mut fleet = Fleet::start(1, EngineOptions::default()).await.expect("a fleet");
    let started = Instant::now();
    let loading = Duration::from_millis(200);
    let engine = fleet.launch(0, EngineOptions::default(), loading).expect("an engine");
    let client = Client::of(&engine);
    assert!(refuses(&client).await && !engine.is_listening());
    until("it listens", || engine.is_listening()).await;
    assert!(started.elapsed() >= loading);
    client.complete("x", 1).await;
    assert_eq!(fleet.addresses(), [fleet.engine(0).address(), engine.address()]);
    let never = fleet.launch(0, EngineOptions::default(), FOR_EVER).expect("an engine");
    assert!(refuses(&Client::of(&never)).await);
    let impossible = EngineOptions { num_blocks: 0, ..EngineOptions::default() };
    assert!(fleet.launch(0, impossible, FOR_EVER).is_err());
}

#[tokio::test]
async fn a_crash_leaves_nothing_until_another_process_is_started() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    let prompt = text("a", 64);
    client.complete(&prompt, 1).await;
    let cut = client.start_stream("in flight", 100_000).await;
    until("it runs", || engine.running() == 1).await;
    engine.fault(Fault::Crash).await;
    assert!(cut.text().await.is_err(), "the stream has no proper end");
    assert!(refuses(&client).await && !engine.is_listening());
    assert_eq!((engine.running(), engine.waiting()), (0, 0));
    engine.fault(Fault::Restart { down_seconds: 0.0 }).await;
    assert_eq!(client.metric("vllm:prompt_tokens_total").await, Some(0.0));
    assert_eq!(cached_tokens(&client.complete(&prompt, 1).await), 0);
}

#[tokio::test]
async fn another_model_can_be_served_where_an_engine_was_removed() {
    let mut fleet = Fleet::start(2, EngineOptions::default()).await.expect("a fleet");
    let (gone, stays) = (fleet.engine(0).address(), fleet.engine(1).address());
    let before = Client::of(fleet.engine(0)).get("/metrics").await.text().await.expect("text");
    assert!(fleet.remove(gone).await && !fleet.remove(gone).await);
    assert_eq!(fleet.addresses(), [stays]);
    let options = EngineOptions { model: "other".to_owned(), ..EngineOptions::default() };
    let engine = fleet.launch(gone.port(), options, Duration::ZERO).expect("the same port");
    assert_eq!(engine.address(), gone);
    let client = Client::of(&engine);
    assert!(client.get("/v1/models").await.text().await.expect("text").contains(r#""id":"other""#));
    let asked = serde_json::json!({ "model": "mock", "prompt": "x" });
    assert_eq!(client.post("/v1/completions", asked).await.status(), 404);
    let after = client.get("/metrics").await.text().await.expect("text");
    let started = |text: &str| value(text, "process_start_time_seconds").expect("a start time");
    assert!(started(&after) > started(&before), "a reused address is another process");
}

#[tokio::test]
async fn a_graceful_stop_waits_for_what_is_in_flight_and_not_for_ever() {
    let options = EngineOptions { decode_step_ms: 5.0, ..EngineOptions::default() };
    let (fleet, client) = one_engine(options).await;
    let engine = fleet.engine(0);
    let stream = client.start_stream("old", 40).await;
    until("it runs", || engine.running() == 1).await;
    let (ended, streamed) = tokio::join!(engine.shut_down(FOR_EVER), Streamed::read(stream));
    assert!(ended);
    assert_eq!(streamed.text().len(), 160, "in full");
    assert!(refuses(&client).await);
    engine.fault(Fault::Clear).await;
    let cut = client.start_stream("endless", 100_000).await;
    until("it runs", || engine.running() == 1).await;
    assert!(!engine.shut_down(Duration::from_millis(50)).await);
    assert!(cut.text().await.is_err());
}

#[tokio::test]
async fn the_gpu_looks_as_busy_with_one_request_as_with_a_queue() {
    let options = EngineOptions { max_num_seqs: 2, decode_step_ms: 5.0, ..EngineOptions::default() };
    let (fleet, client) = one_engine(options).await;
    let engine = fleet.engine(0);
    let window = Duration::from_millis(100);
    assert_eq!(engine.utilisation(window), 0.0);
    let one = client.start_stream("one", 100_000).await;
    until("it looks busy", || engine.utilisation(window) > 0.99).await;
    assert_eq!((engine.running(), engine.waiting()), (1, 0));
    let mut more = Vec::new();
    for _ in 0..8 {
        more.push(client.start_stream("more", 100_000).await);
    }
    until("a queue", || engine.waiting() == 7).await;
    assert!((0.99..1.01).contains(&engine.utilisation(window)), "{}", engine.utilisation(window));
    drop((one, more));
    until("it looks idle", || engine.utilisation(window) == 0.0).await;
}
