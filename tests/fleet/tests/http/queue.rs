//! Do load and speed look real: queues, time to first token, admission, preemption, disconnects?

use fleet::{Engine, EngineOptions, Fault, Outcome};
use serde_json::json;

use crate::client::{one_engine, text, until, Streamed};

/// Two at a time, and answers that never end by themselves within a test.
fn narrow() -> EngineOptions {
    EngineOptions { max_num_seqs: 2, decode_step_ms: 5.0, ..EngineOptions::default() }
}

const FOR_EVER: usize = 100_000;

async fn until_queue_is(engine: &Engine, running: usize, waiting: usize) {
    until("the queue", || (engine.running(), engine.waiting()) == (running, waiting)).await;
}

#[tokio::test]
async fn requests_beyond_the_batch_wait_and_metrics_tell() {
    let (fleet, client) = one_engine(narrow()).await;
    let mut streams = Vec::new();
    for n in 0..6 {
        streams.push(client.start_stream(&text(&n.to_string(), 64), FOR_EVER).await);
    }
    until_queue_is(fleet.engine(0), 2, 4).await;
    client.until_metric("vllm:num_requests_running", 2.0).await;
    client.until_metric("vllm:num_requests_waiting", 4.0).await;
    let usage = client.metric("vllm:kv_cache_usage_perc").await.expect("a gauge");
    assert!(usage > 8.0 / 16_384.0 && usage < 0.1, "{usage}");
    let load = client.get("/load").await.text().await.expect("text");
    assert_eq!(load, r#"{"server_load":6}"#);
    drop(streams);
    until_queue_is(fleet.engine(0), 0, 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place_at_once() {
    let (fleet, client) = one_engine(narrow()).await;
    let engine = fleet.engine(0);
    let running = client.start_stream("one", FOR_EVER).await;
    let _second = client.start_stream("two", FOR_EVER).await;
    until_queue_is(engine, 2, 0).await;
    let waiting = client.start_stream("three", FOR_EVER).await;
    until_queue_is(engine, 2, 1).await;
    drop(waiting);
    until_queue_is(engine, 2, 0).await;
    drop(running);
    until_queue_is(engine, 1, 0).await;
    until("the book", || engine.report().counts.aborted == 2).await;
    assert!(engine.requests().iter().all(|request| request.outcome == Outcome::Aborted));
    assert_eq!(engine.report().in_flight, 1);
}

#[tokio::test]
async fn a_whole_answer_that_nobody_waits_for_is_given_up() {
    let (fleet, client) = one_engine(narrow()).await;
    let body = json!({ "prompt": "x", "max_tokens": FOR_EVER });
    let request = client.post("/v1/completions", body);
    tokio::select! {
        _ = request => panic!("it has no end"),
        () = until_queue_is(fleet.engine(0), 1, 0) => {}
    }
    until_queue_is(fleet.engine(0), 0, 0).await;
}

#[tokio::test]
async fn time_to_first_token_grows_with_the_prompt_and_falls_with_a_hit() {
    let options = EngineOptions { prefill_tokens_per_s: 10_000.0, ..EngineOptions::default() };
    let (fleet, client) = one_engine(options).await;
    for prompt in [text("long", 2_000), text("long", 2_000), text("tiny", 20)] {
        Streamed::read(client.start_stream(&prompt, 1).await).await;
    }
    let ttft: Vec<_> = fleet.engine(0).requests().iter().filter_map(|r| r.ttft_ms).collect();
    assert!(ttft[0] >= 200.0, "2,000 tokens at 10,000 a second: {ttft:?}");
    assert!(ttft[1] < ttft[0] / 2.0 && ttft[2] < ttft[0] / 2.0, "{ttft:?}");
}

#[tokio::test]
async fn who_came_first_is_served_first_and_the_last_waits_for_all() {
    let options = EngineOptions { max_num_seqs: 1, decode_step_ms: 2.0, ..EngineOptions::default() };
    let (fleet, client) = one_engine(options).await;
    let engine = fleet.engine(0);
    engine.fault(Fault::Stall).await;
    let mut streams = Vec::new();
    for n in 0..5 {
        streams.push(client.start_stream(&n.to_string(), 20).await);
    }
    engine.fault(Fault::Wake).await;
    let mut arrived = Vec::new();
    for stream in streams {
        arrived.push(stream.headers()["x-mock-body-digest"].to_str().expect("text").to_owned());
        Streamed::read(stream).await;
    }
    let records = engine.requests();
    let served: Vec<_> = records.iter().map(|request| request.body_digest.clone()).collect();
    assert_eq!(served, arrived);
    let last = records[4].ttft_ms.expect("streamed");
    assert!(last >= 4.0 * 20.0 * 2.0 * 0.8, "four answers of 20 steps of 2 ms went before: {last}");
    assert_eq!(client.metric("vllm:time_to_first_token_seconds_count").await, Some(5.0));
}

#[tokio::test]
async fn a_prompt_without_room_in_the_cache_waits() {
    let options = EngineOptions { num_blocks: 64, decode_step_ms: 5.0, ..EngineOptions::default() };
    let (fleet, client) = one_engine(options).await;
    let first = client.start_stream(&text("a", 640), 300).await;
    until_queue_is(fleet.engine(0), 1, 0).await;
    let second = client.start_stream(&text("b", 640), 8).await;
    until_queue_is(fleet.engine(0), 1, 1).await;
    drop(first);
    let answer = Streamed::read(second).await;
    assert_eq!(answer.text().len(), 8 * 4);
}

#[tokio::test]
async fn sequences_that_outgrow_the_cache_are_preempted_and_still_finish() {
    let options = EngineOptions { num_blocks: 16, decode_step_ms: 0.1, ..EngineOptions::default() };
    let (_fleet, client) = one_engine(options).await;
    let body = |name| json!({ "prompt": text(name, 100), "max_tokens": 100 });
    let (a, b) = (body("a"), body("b"));
    let answers =
        tokio::join!(client.try_post("/v1/completions", &a), client.try_post("/v1/completions", &b));
    for answer in [answers.0, answers.1] {
        let answer: serde_json::Value = answer.expect("an answer").json().await.expect("JSON");
        assert_eq!(answer["usage"]["completion_tokens"], 100);
        assert_eq!(answer["choices"][0]["text"].as_str().map(str::len), Some(400));
    }
    let preemptions = client.metric("vllm:num_preemptions_total").await.expect("a counter");
    assert!(preemptions >= 1.0);
    assert_eq!(client.metric("vllm:kv_cache_usage_perc").await, Some(0.0));
}

#[tokio::test]
async fn a_full_queue_answers_503() {
    let options = EngineOptions { max_num_queued_reqs: Some(1), ..narrow() };
    let (fleet, client) = one_engine(options).await;
    let mut streams = Vec::new();
    for (n, running, waiting) in [(0, 1, 0), (1, 2, 0), (2, 2, 1)] {
        streams.push(client.start_stream(&n.to_string(), FOR_EVER).await);
        until_queue_is(fleet.engine(0), running, waiting).await;
    }
    let refused = client.post("/v1/completions", json!({ "prompt": "x" })).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(client.metric("vllm:admission_rejections_total").await, Some(1.0));
    assert_eq!(fleet.report().total.failed, 1);
}

#[tokio::test]
async fn chunks_can_be_merged_without_losing_text() {
    let one_by_one = one_engine(EngineOptions::default()).await;
    let options = EngineOptions { tokens_per_chunk: 8, ..EngineOptions::default() };
    let merged = one_engine(options).await;
    let many = Streamed::read(one_by_one.1.start_stream("x", 20).await).await;
    let few = Streamed::read(merged.1.start_stream("x", 20).await).await;
    assert_eq!(many.text(), few.text());
    assert_eq!((many.events.len(), few.events.len()), (21, 4), "chunks and [DONE]");
}

#[tokio::test]
async fn a_big_body_is_taken_whole() {
    let options = EngineOptions {
        num_blocks: 4 << 20,
        prefill_tokens_per_s: 1e9,
        max_num_batched_tokens: 8 << 20,
        ..EngineOptions::default()
    };
    let (fleet, client) = one_engine(options).await;
    let answer = client.complete(&"x".repeat(16 << 20), 1).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 4 << 20);
    assert!(fleet.engine(0).report().last.expect("a record").body_bytes > 16 << 20);
}

#[tokio::test]
async fn the_client_and_the_report_learn_what_arrived() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let request = client.request(reqwest::Method::POST, "/v1/completions");
    let request = request.header("x-upstream-host", "10.0.0.1:8000,10.0.0.2:8000");
    let request = request.header("endpoint-load-metrics-format", "text");
    let response = request.json(&json!({ "prompt": "x" })).send().await.expect("an answer");
    let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
    let engine = fleet.engine(0);
    let record = engine.report().last.expect("a record");
    assert_eq!(header("x-mock-engine"), engine.address().to_string());
    assert_eq!(header("x-mock-body-digest"), record.body_digest);
    assert_eq!(header("x-mock-upstream-host"), "10.0.0.1:8000,10.0.0.2:8000");
    assert_eq!(record.upstream_host.as_deref(), Some("10.0.0.1:8000,10.0.0.2:8000"));
    let orca = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0";
    assert_eq!(header("endpoint-load-metrics"), orca);
    client.get("/metrics").await;
    client.get("/health").await;
    let counts = engine.report().counts;
    assert_eq!((counts.requests, counts.scrapes, counts.probes), (1, 1, 1));
    fleet.reset_report();
    assert_eq!(fleet.report().total, fleet::Counts::default());
}

#[tokio::test]
async fn a_request_can_ask_for_a_status_or_a_delay() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let request = || client.request(reqwest::Method::POST, "/v1/completions");
    let body = json!({ "prompt": "x", "max_tokens": 1 });
    let failed = request().header("x-mock-status", "502").json(&body).send().await;
    assert_eq!(failed.expect("an answer").status(), 502);
    let delayed = request().header("x-mock-delay-ms", "50").json(&body).send().await;
    assert_eq!(delayed.expect("an answer").status(), 200);
    assert!(fleet.engine(0).report().last.expect("a record").total_ms >= 50.0);
}
