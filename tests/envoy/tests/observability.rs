//! Can an operator see what was decided? In the access log, in the metrics, in debug headers if they are wanted.

use fleet::EngineOptions;
use gateway::chat::Chat;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::wait::until;
use serde_json::{json, Value};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_and_the_metrics_tell_the_decision() {
    let testbed = Testbed::start(4, EngineOptions::default(), Options::workers(1)).await.unwrap();
    let chat = Chat::new(&"A prompt worth logging. ".repeat(200)).user("Hello");
    chat.post(testbed.address).await.unwrap();
    let reply = chat.post(testbed.address).await.unwrap();

    let entry = until("both requests are logged", Duration::from_secs(5), async || {
        let log = testbed.envoy.access_log();
        (log.lines().count() == 2).then(|| log.lines().last().map(str::to_owned))
    });
    let entry: Value = serde_json::from_str(&entry.await.unwrap().unwrap()).unwrap();
    let (matched, prompt_bytes) = reply.matched().unwrap();
    assert_eq!(entry["kvroute_host"], reply.decided());
    assert_eq!(entry["kvroute_reason"], reply.header("x-kvroute-reason"));
    assert_eq!(entry["kvroute_matched"], matched.to_string());
    assert_eq!(entry["kvroute_prompt_bytes"], prompt_bytes.to_string());
    assert_eq!(entry["upstream"], reply.engine());
    assert!(matched > 4_000 && prompt_bytes >= matched, "{entry}");

    let prometheus = testbed.envoy.admin().prometheus().await.unwrap();
    assert!(prometheus.lines().any(|line| line.starts_with("kvroute_")), "no kvroute_ metrics");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_learn_nothing_of_the_fleet_unless_asked_for() {
    let testbed = Testbed::start_with(2, EngineOptions::default(), Options::default(), |config, _| {
        config.plugin("/debug_headers", json!(false))
    })
    .await
    .unwrap();
    let reply = Chat::new("You are discreet.").user("Hello").post(testbed.address).await.unwrap();
    assert!(reply.is_complete());
    let told: Vec<_> = reply.headers.keys().filter(|name| name.as_str().starts_with("x-kvroute")).collect();
    assert!(told.is_empty(), "{told:?}");
}
