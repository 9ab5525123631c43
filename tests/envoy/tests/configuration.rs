//! A configuration that cannot be is refused with a line that names the key; one that can replaces the old one.

use fleet::{EngineOptions, Fleet};
use gateway::chat::Chat;
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{Envoy, Options, Refusal};
use gateway::testbed::polled;
use gateway::wait::until;
use serde_json::{json, Value};
use std::time::{Duration, Instant};

/// How long Envoy may take to answer an update: it builds new filter contexts on every worker.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// What is wrong, and the key that must be named.
fn mistakes() -> Vec<(&'static str, Value)> {
    vec![
        ("/poll/interval", json!(500)),
        ("/poll/interval_ms", json!(5)),
        ("/poll/timeout_ms", json!("1s")),
        ("/cluster", Value::Null),
        ("/cluster", json!(7)),
        ("/hosts", json!([])),
        ("/hosts", json!(["engine-1"])),
        ("/candidates", json!("three")),
        ("/candidates", json!(0)),
        ("/debug_headers", json!("yes")),
        ("/prompt/hold_bytes", json!(-1)),
        ("/prompt/block_bytes", json!(0)),
        ("/colour", json!("blue")),
    ]
}

/// The lines of a log that come from the filter and name this key.
fn lines_naming<'a>(log: &'a str, key: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains("wasm log") && line.contains(key)).collect()
}

async fn refusal(config: &Config) -> Refusal {
    match Envoy::start(config, &Options::default()).await {
        Ok(_) => panic!("Envoy started"),
        Err(error) => error.downcast().expect("Envoy did not end by itself"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_refuses_to_start_with_one_line_that_names_the_key() {
    let hosts = ["127.0.0.1:1".parse().unwrap()];
    for (pointer, value) in mistakes() {
        let config = Config::quick_start().unwrap().hosts(&hosts).plugin(pointer, value.clone());
        let refusal = refusal(&config).await;
        assert!(!refusal.status.success(), "{pointer} = {value}");
        let key = pointer[1..].replace('/', ".");
        let lines = lines_naming(&refusal.log, &key);
        assert_eq!(lines.len(), 1, "{pointer} = {value}: {lines:?}\n{refusal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_update_keeps_the_old_configuration_and_a_good_one_replaces_it() {
    const PERIOD: Duration = Duration::from_millis(250);
    let fleet = Fleet::start(4, EngineOptions::default()).await.unwrap();
    let good = Config::quick_start()
        .unwrap()
        .hosts(&fleet.addresses())
        .plugin("/poll/interval_ms", json!(PERIOD.as_millis() as u64));
    let options = Options { dynamic: true, drain_time_s: 30, ..Options::default() };
    let envoy = Envoy::start(&good, &options).await.unwrap();
    polled(&fleet).await.unwrap();
    let chat = Chat::new(&"A prompt that stays. ".repeat(200)).user("Hello");
    let ask = async || {
        let reply = chat.post(envoy.listener(KVROUTE).await.unwrap()).await.unwrap();
        assert!(reply.is_complete(), "{}", reply.status);
        reply
    };
    let home = ask().await;

    let stat = async |name: &str| envoy.admin().stats().await.unwrap().value(name);
    envoy.update(&good.clone().plugin("/poll/interval_ms", json!("often"))).unwrap();
    until("Envoy rejects the update", ANSWERED_WITHIN, async || {
        (stat("listener_manager.lds.update_rejected").await == 1).then_some(())
    })
    .await
    .unwrap();
    assert!(!lines_naming(&envoy.log(), "poll.interval_ms").is_empty());
    assert_eq!(ask().await.engine(), home.engine());

    let before = stat("listener_manager.lds.update_success").await;
    envoy.update(&good.clone().plugin("/candidates", json!(2))).unwrap();
    until("Envoy takes the update", ANSWERED_WITHIN, async || {
        (stat("listener_manager.lds.update_success").await > before).then_some(())
    })
    .await
    .unwrap();
    until("the new listener has replaced the old", ANSWERED_WITHIN, async || {
        (stat("listener_manager.total_listeners_warming").await == 0
            && stat("listener_manager.listener_modified").await == 1)
            .then_some(())
    })
    .await
    .unwrap();
    let reply = ask().await;
    assert_eq!(reply.engine(), home.engine(), "the placement is forgotten");
    assert_eq!(
        reply.header("x-mock-upstream-host").split(',').count(),
        2,
        "the new `candidates` is not in force"
    );

    // The old configuration's contexts live until the drain is over; they must not poll.
    fleet.reset_report();
    let start = Instant::now();
    tokio::time::sleep(12 * PERIOD).await;
    let periods = start.elapsed().as_secs_f64() / PERIOD.as_secs_f64();
    for engine in fleet.report().engines {
        let scrapes = engine.counts.scrapes as f64 / periods;
        assert!((0.5..=1.5).contains(&scrapes), "{} was polled {scrapes:.2} times a period", engine.address);
    }
}
