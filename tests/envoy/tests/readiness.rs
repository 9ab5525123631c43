//! An engine that is added loads for a while and then has to show that it generates: no client notices.

use fleet::{EngineOptions, Fault};
use gateway::chat::Chat;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::wait::until;
use serde_json::json;
use std::time::Duration;

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(30);

async fn ask(testbed: &Testbed, n: usize) -> String {
    let prompt = format!("Nobody has asked number {n} before. ").repeat(60);
    let reply = Chat::new(&prompt).user("Go on.").max_tokens(2).post(testbed.address).await.unwrap();
    assert!(reply.is_complete(), "{}", reply.status);
    reply.engine().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_gets_its_first_request_only_after_it_has_generated() {
    let testbed = Testbed::start_with(4, EngineOptions::default(), Options::workers(2), |config, _| {
        config.plugin("/warm_up", json!({"seconds": 1})).plugin("/ready", json!({"timeout_ms": 500}))
    })
    .await
    .unwrap();
    let engine = testbed.fleet.engine(3).clone();
    let address = engine.address().to_string();
    // A process that is new, serves its metrics, and is wedged.
    engine.fault(Fault::Restart { down_seconds: 0.0 }).await;
    engine.fault(Fault::Stall).await;
    engine.reset_report();
    let failed = format!("{address} is not ready, /v1/completions failed: no answer in time");
    until("its time is up", SOON, async || testbed.envoy.log().contains(&failed).then_some(()))
        .await
        .unwrap();
    for n in 0..60 {
        assert_ne!(ask(&testbed, n).await, address, "it has not generated yet");
    }
    let counts = engine.report().counts;
    assert_eq!((counts.requests, counts.proofs), (0, 0));
    engine.fault(Fault::Wake).await;
    let mut n = 60;
    until("it serves", SOON, async || {
        n += 1;
        (ask(&testbed, n).await == address).then_some(())
    })
    .await
    .unwrap();
    let counts = engine.report().counts;
    assert_eq!((counts.proofs, counts.failed), (1, 0), "it was asked until it answered once");
}

/// Its address is listed from the beginning; it loads for some seconds, and is asked as soon as it listens.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_started_later_costs_no_client_an_error() {
    let mut fleet = fleet::Fleet::start(3, EngineOptions::default()).await.unwrap();
    let late = fleet.launch(0, EngineOptions::default(), Duration::from_secs(6)).unwrap();
    let config = gateway::config::Config::quick_start().unwrap().hosts(&fleet.addresses());
    let envoy = gateway::envoy::Envoy::start(&config, &Options::workers(2)).await.unwrap();
    let address = envoy.listener(gateway::config::KVROUTE).await.unwrap();
    let testbed = Testbed { fleet, envoy, address };
    let late_address = late.address().to_string();
    let unready = format!("{late_address} was ready, is unready: it refuses connections");
    until("it is seen to load", SOON, async || testbed.envoy.log().contains(&unready).then_some(()))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut n = 0;
    until("it serves", SOON, async || {
        n += 1;
        let is_proven = late.report().counts.proofs > 0;
        let served = ask(&testbed, n).await == late_address;
        assert!(!served || is_proven || late.report().counts.proofs > 0, "it had not generated before");
        served.then_some(())
    })
    .await
    .unwrap();
    assert!(n > 10, "{n} requests while it loaded");
    assert_eq!(late.report().counts.failed, 0);
    testbed.released().await.unwrap();
}
