//! Does an engine fail the way it was told to, and recover?

use std::time::Duration;

use fleet::{Engine, EngineOptions, Fault, Fleet, MetricsFault, Outcome};
use serde_json::{json, Value};

use crate::client::{cached_tokens, one_engine, text, until, value, whole, Client, Streamed};

const FOR_EVER: usize = 100_000;

/// How long nothing must come before it counts as never. Only tests that hold wait so long.
const SILENCE: Duration = Duration::from_millis(100);

async fn refused(client: &Client) -> bool {
    let answer = client.request(reqwest::Method::GET, "/health").send().await;
    answer.is_err_and(|error| error.is_connect())
}

async fn exposition(client: &Client) -> String {
    client.get("/metrics").await.text().await.expect("text")
}

async fn abandoned_after_start(client: &Client, engine: &Engine) -> reqwest::Response {
    let stream = client.start_stream("in flight", FOR_EVER).await;
    until("it runs", || engine.running() == 1).await;
    stream
}

#[tokio::test]
async fn restart_loses_cache_and_counters_and_cuts_what_is_in_flight() {
    let options = EngineOptions { decode_step_ms: 5.0, ..EngineOptions::default() };
    let (fleet, client) = one_engine(options).await;
    let engine = fleet.engine(0);
    let prompt = text("a", 64);
    client.complete(&prompt, 1).await;
    let before = exposition(&client).await;
    let cut = abandoned_after_start(&client, engine).await;
    engine.fault(Fault::Metrics(MetricsFault::Nan)).await;
    engine.fault(Fault::Restart { down_seconds: 0.0 }).await;
    assert!(cut.text().await.is_err(), "the stream has no proper end");
    let after = exposition(&client).await;
    let started = |text: &str| value(text, "process_start_time_seconds").expect("a start time");
    assert!(started(&after) > started(&before));
    assert!(value(&before, "vllm:prompt_tokens_total") > Some(0.0));
    assert_eq!(value(&after, "vllm:prompt_tokens_total"), Some(0.0));
    assert_eq!(cached_tokens(&client.complete(&prompt, 1).await), 0);
    let counts = engine.report().counts;
    assert_eq!((counts.completed, counts.aborted), (2, 1), "the report outlives the restart");
}

#[tokio::test]
async fn refuse_closes_the_port_and_clear_opens_the_same() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    let address = engine.address();
    client.complete(&text("a", 64), 1).await;
    for _ in 0..3 {
        let cut = abandoned_after_start(&client, engine).await;
        engine.fault(Fault::Refuse).await;
        assert!(refused(&client).await);
        assert!(cut.text().await.is_err());
        let report = engine.report();
        assert_eq!((report.running, report.in_flight, report.open_connections), (0, 0, 0));
        engine.fault(Fault::Clear).await;
        assert_eq!((engine.address(), client.get("/health").await.status().as_u16()), (address, 200));
    }
    assert!(cached_tokens(&client.complete(&text("a", 64), 1).await) > 0, "the cache is still there");
}

#[tokio::test]
async fn an_http2_stream_is_cut_as_well() {
    let (fleet, _) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    let client = Client::http2(engine);
    let cut = abandoned_after_start(&client, engine).await;
    assert_eq!(cut.version(), reqwest::Version::HTTP_2);
    engine.fault(Fault::Refuse).await;
    assert!(cut.text().await.is_err());
    until("nothing runs", || engine.running() == 0).await;
    engine.fault(Fault::Clear).await;
    let left = abandoned_after_start(&client, engine).await;
    drop(left);
    until("a reset stream frees its place", || engine.running() == 0).await;
}

#[tokio::test]
async fn not_ready_refuses_for_a_while() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    engine.fault(Fault::NotReady { seconds: 0.2 }).await;
    assert!(refused(&client).await);
    while refused(&client).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.complete("x", 1).await;
    engine.fault(Fault::NotReady { seconds: 1e9 }).await;
    assert!(refused(&client).await);
    engine.fault(Fault::Clear).await;
    client.complete("x", 1).await;
}

#[tokio::test]
async fn hang_accepts_and_never_answers() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    engine.fault(Fault::Hang).await;
    for path in ["/health", "/metrics", "/v1/models"] {
        let silent = tokio::time::timeout(SILENCE, client.get(path)).await;
        assert!(silent.is_err(), "{path}");
    }
    let mut held = std::pin::pin!(client.complete("x", 1));
    assert!(tokio::time::timeout(SILENCE, held.as_mut()).await.is_err());
    assert!(engine.report().open_connections > 0);
    client.fault("/control/fault", json!({ "fault": "clear" })).await;
    held.await;
}

#[tokio::test]
async fn a_status_is_for_generation_only() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    fleet.engine(0).fault(Fault::Status { code: 500 }).await;
    let response = client.post("/v1/completions", json!({ "prompt": "x" })).await;
    assert_eq!(response.status(), 500);
    assert_eq!(client.get("/health").await.status(), 200);
    assert_eq!(client.metric("vllm:num_requests_running").await, Some(0.0));
    assert_eq!(fleet.report().total.failed, 1);
}

#[tokio::test]
async fn an_answer_that_is_broken_off_begins_well_and_has_no_end() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    fleet.engine(0).fault(Fault::BreakOff).await;
    let asked = json!({ "prompt": "x", "max_tokens": 4, "stream": true });
    let mut response = client.post("/v1/completions", asked).await;
    assert_eq!(response.status(), 200);
    let first = response.chunk().await.expect("it begins").expect("with text");
    assert!(first.starts_with(b"data: {"), "{first:?}");
    response.chunk().await.expect_err("it is cut");
    assert_eq!(fleet.report().total.failed, 1);
    fleet.engine(0).fault(Fault::Clear).await;
    client.complete("x", 4).await;
}

#[tokio::test]
async fn metrics_lie_in_each_way_while_requests_are_served() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let metrics = |fault| fleet.engine(0).fault(Fault::Metrics(fault));
    let tokens = "vllm:generation_tokens_total";

    metrics(MetricsFault::Stale).await;
    client.complete("x", 4).await;
    assert_eq!(client.metric(tokens).await, Some(0.0));
    metrics(MetricsFault::Nan).await;
    assert!(client.metric(tokens).await.expect("a series").is_nan());
    metrics(MetricsFault::Garbage).await;
    let garbage = client.get("/metrics").await;
    assert_eq!(garbage.status(), 200);
    assert!(String::from_utf8(garbage.bytes().await.expect("bytes").to_vec()).is_err());
    metrics(MetricsFault::Missing).await;
    assert_eq!(client.get("/metrics").await.status(), 404);
    metrics(MetricsFault::Hang).await;
    let mut held = std::pin::pin!(client.metric(tokens));
    assert!(tokio::time::timeout(SILENCE, held.as_mut()).await.is_err());
    client.complete("x", 4).await;
    metrics(MetricsFault::Clear).await;
    assert_eq!(held.await, Some(8.0));
    metrics(MetricsFault::Slow { ms: 150 }).await;
    let quick = tokio::time::timeout(SILENCE, client.metric(tokens)).await;
    assert!(quick.is_err());
    assert_eq!(client.metric(tokens).await, Some(8.0));
    assert_eq!(fleet.report().total.scrapes, 7, "a scrape counts when it arrives");
}

#[tokio::test]
async fn slow_makes_steps_longer_until_cleared() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    engine.fault(Fault::Slow { factor: 50.0 }).await;
    client.complete("x", 4).await;
    let slow = engine.report().last.expect("a record").total_ms;
    assert!(slow >= 190.0, "four steps of 50 ms: {slow}");
    engine.fault(Fault::Slow { factor: f64::INFINITY }).await;
    let stream = client.start_stream("x", 4).await;
    until("it runs", || engine.running() == 1).await;
    engine.fault(Fault::Clear).await;
    assert_eq!(Streamed::read(stream).await.text().len(), 16, "a step without end was ended");
}

#[tokio::test]
async fn asleep_it_looks_idle_and_healthy_and_answers_after_waking() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    let prompt = text("a", 64);
    client.complete(&prompt, 1).await;
    let ended = abandoned_after_start(&client, engine).await;
    engine.fault(Fault::Sleep { level: 1 }).await;
    let ended = Streamed::read(ended).await;
    assert!(ended.events[ended.events.len() - 2].contains(r#""finish_reason":"abort""#));

    let mut held = std::pin::pin!(client.complete(&prompt, 1));
    assert!(tokio::time::timeout(SILENCE, held.as_mut()).await.is_err());
    let asleep = exposition(&client).await;
    assert!(asleep.contains(r#"sleep_state="awake"} 0.0"#));
    assert!(asleep.contains(r#"sleep_state="weights_offloaded"} 1.0"#));
    assert_eq!(value(&asleep, "vllm:num_requests_running"), Some(0.0));
    assert_eq!(value(&asleep, "vllm:num_requests_waiting"), Some(0.0));
    assert_eq!(client.get("/health").await.status(), 200);
    assert_eq!(whole(client.get("/is_sleeping").await).await, json!({ "is_sleeping": true }));
    assert_eq!(engine.report().in_flight, 1, "/load still tells");

    engine.fault(Fault::Wake).await;
    assert_eq!(cached_tokens(&held.await), 0, "sleep lost the cache");
    assert!(exposition(&client).await.contains(r#"sleep_state="awake"} 1.0"#));
}

#[tokio::test]
async fn paused_it_says_nothing_of_it() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    let prompt = text("a", 64);
    client.complete(&prompt, 1).await;
    engine.fault(Fault::Pause).await;
    let mut held = std::pin::pin!(client.complete(&prompt, 1));
    assert!(tokio::time::timeout(SILENCE, held.as_mut()).await.is_err());
    assert!(exposition(&client).await.contains(r#"sleep_state="awake"} 1.0"#));
    assert_eq!((engine.running(), engine.waiting()), (0, 0));
    engine.fault(Fault::Wake).await;
    assert!(cached_tokens(&held.await) > 0);
}

#[tokio::test]
async fn stalled_it_stands_still_in_the_middle() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    let mut stream = client.start_stream("x", FOR_EVER).await;
    stream.chunk().await.expect("a first token");
    engine.fault(Fault::Stall).await;
    let before = client.metric("vllm:generation_tokens_total").await;
    while let Ok(chunk) = tokio::time::timeout(SILENCE, stream.chunk()).await {
        assert!(chunk.expect("no error").is_some(), "no end");
    }
    assert_eq!(client.metric("vllm:generation_tokens_total").await, before);
    assert_eq!(client.metric("vllm:num_requests_running").await, Some(1.0));
    assert_eq!(client.get("/health").await.status(), 200);
    engine.fault(Fault::Wake).await;
    assert!(stream.chunk().await.expect("no error").is_some());
}

#[tokio::test]
async fn draining_it_finishes_what_it_has_and_aborts_what_comes() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let old = client.start_stream("old", 50).await;
    until("it runs", || fleet.engine(0).running() == 1).await;
    fleet.engine(0).fault(Fault::Drain).await;
    let new = client.complete("new", 50).await;
    assert_eq!(new["choices"][0]["finish_reason"], "abort");
    assert_eq!((&new["choices"][0]["text"], &new["usage"]["completion_tokens"]), (&json!(""), &json!(0)));
    let streamed = Streamed::read(client.start_stream("new", 50).await).await;
    assert_eq!(streamed.events.len(), 2, "one chunk and [DONE]: {:?}", streamed.events);
    assert_eq!(Streamed::read(old).await.text().len(), 200);
}

#[tokio::test]
async fn dead_it_says_so_in_streams_in_answers_and_to_probes() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    let stream = abandoned_after_start(&client, engine).await;
    engine.fault(Fault::Dead).await;
    let stream = Streamed::read(stream).await;
    let [.., error, done] = stream.events.as_slice() else { panic!("{:?}", stream.events) };
    let error: Value = serde_json::from_str(error).expect("JSON");
    assert_eq!((error["error"]["code"].as_u64(), done.as_str()), (Some(500), "[DONE]"));
    assert_eq!(client.post("/v1/completions", json!({ "prompt": "x" })).await.status(), 500);
    assert_eq!(client.get("/health").await.status(), 503);
    assert!(engine.requests().iter().all(|request| request.outcome == Outcome::Failed));
}

#[tokio::test]
async fn the_control_port_reaches_an_engine_that_refuses() {
    let mut fleet = Fleet::start(2, EngineOptions::default()).await.expect("a fleet");
    let control = fleet.serve_control(0).expect("a port").to_string();
    let control = Client::to(&control);
    let (first, second) = (Client::of(fleet.engine(0)), Client::of(fleet.engine(1)));
    first.complete("x", 1).await;
    control.fault("/engines/1/fault", json!({ "fault": "refuse" })).await;
    assert!(refused(&second).await);
    first.complete("x", 1).await;
    let report = whole(control.get("/report").await).await;
    assert_eq!(report["total"]["completed"], 2);
    assert_eq!(report["engines"][1]["counts"]["requests"], 0);
    assert_eq!(whole(control.get("/engines/0/requests").await).await.as_array().map(Vec::len), Some(2));
    control.fault("/engines/1/fault", json!({ "fault": "clear" })).await;
    second.complete("x", 1).await;
    control.request(reqwest::Method::DELETE, "/report").send().await.expect("an answer");
    assert_eq!(whole(control.get("/report").await).await["total"]["requests"], 0);
    for (path, fault) in [("/engines/2/fault", "clear"), ("/engines/0/fault", "tired")] {
        let status = control.post(path, json!({ "fault": fault })).await.status();
        assert!(status.is_client_error(), "{path} {fault}");
    }
}

#[tokio::test]
async fn a_dropped_fleet_leaves_its_ports() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let address = fleet.engine(0).address();
    client.complete("x", 1).await;
    drop(fleet);
    while !refused(&client).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let again = loop {
        match Fleet::start_on(&[address.port()], EngineOptions::default()).await {
            Ok(fleet) => break fleet,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    assert_eq!(again.addresses(), [address]);
    client.complete("x", 1).await;
}
