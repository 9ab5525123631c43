//! Every engine is full, by its own `/metrics`: what matters less is turned away by a real Envoy, on connections that live.

use fleet::EngineOptions;
use gateway::chat::{self, Chat};
use gateway::client::{self, Connection};
use gateway::config::{set, Config, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::testbed::Testbed;
use gateway::wait::until;
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode};
use serde_json::{json, Value};
use std::time::Duration;

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(20);

fn important(mut request: Request<client::Body>) -> Request<client::Body> {
    request.headers_mut().insert("x-request-priority", HeaderValue::from_static("1"));
    request
}

/// C76
#[tokio::test(flavor = "multi_thread")]
async fn a_full_fleet_turns_the_unimportant_away_and_keeps_their_connections() {
    // One at a time, for minutes: whoever comes next waits.
    let engine = EngineOptions { max_num_seqs: 1, decode_step_ms: 50.0, ..EngineOptions::default() };
    let shedding = |config: Config, _: &[_]| config.plugin("/shed", json!({ "waiting": 0 }));
    let testbed = Testbed::start_with(2, engine, Options::workers(1), shedding).await.unwrap();
    let mut connection = Connection::open(testbed.address).await.unwrap();
    let reply = Chat::new("before").send(&mut connection).await.unwrap();
    assert!(reply.is_complete(), "there is room yet: {}", reply.status);

    let mut long = Vec::new();
    for n in 0..6 {
        let address = testbed.address;
        let chat = Chat::new(&format!("an important story, number {n}")).max_tokens(1_000);
        long.push(tokio::spawn(async move {
            let mut connection = Connection::open(address).await.unwrap();
            chat::send(&mut connection, important(chat.request())).await
        }));
    }
    let is_full = || testbed.fleet.engines().iter().all(|engine| engine.waiting() > 0).then_some(());
    until("requests wait everywhere", SOON, async || is_full()).await.unwrap();
    // Until the filter has seen it, who comes waits with the others.
    let chat = Chat::new("a lighthouse of little importance");
    let turned_away = async || {
        let sent = chat.post(testbed.address);
        let reply = tokio::time::timeout(Duration::from_millis(500), sent).await.ok()?.ok()?;
        (reply.status == StatusCode::TOO_MANY_REQUESTS).then_some(())
    };
    until("one is turned away", SOON, turned_away).await.unwrap();

    let seen = || -> u64 {
        let engines = testbed.fleet.report().engines;
        engines.iter().map(|engine| engine.in_flight as u64 + engine.counts.requests).sum()
    };
    let before = seen();
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/chat/completions"] {
        // The same connection, again and again.
        let reply = chat::send(&mut connection, chat::post(path, client::whole(chat.body()))).await.unwrap();
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
        assert!((1..=60).contains(&reply.header("retry-after").parse::<u32>().unwrap()));
        assert_eq!((reply.header("x-kvroute-shed"), reply.header("connection")), ("waiting", ""));
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        let is_anthropic = body["type"] == "error" && body["error"]["type"] == "rate_limit_error";
        assert!(
            if path.ends_with("messages") { is_anthropic } else { body["error"]["code"] == 429 },
            "{body}"
        );
        assert!(!body.to_string().contains("lighthouse"));
    }
    assert_eq!(before, seen(), "no engine saw any of them");
    long.iter().for_each(tokio::task::JoinHandle::abort);
    testbed.released().await.unwrap();
    let told = async || {
        (testbed.stats().await.ok()?.value("wasmcustom.kvroute_requests_shed_total") >= 4).then_some(())
    };
    until("they are counted", SOON, told).await.unwrap();
    assert!(!testbed.envoy.log().contains("lighthouse"));
}

/// C76
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_hosts_is_answered_503_by_envoy_and_never_429() {
    let nobody = "127.0.0.1:9".parse().unwrap();
    let config = Config::quick_start().unwrap().hosts(&[nobody]).plugin("/shed", json!({ "waiting": 0 }));
    let config = config.edit_cluster(|cluster| set(cluster, "/load_assignment/endpoints", json!([])));
    let envoy = Envoy::start(&config, &Options::workers(1)).await.unwrap();
    let address = envoy.listener(KVROUTE).await.unwrap();
    for _ in 0..20 {
        let reply = Chat::new("anybody?").post(address).await.unwrap();
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
