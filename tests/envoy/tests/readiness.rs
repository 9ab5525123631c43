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

/// Breaks the last of four engines, lets the gateway find it broken, and asks until it serves again. Answers how many
/// requests it had got by the moment at which it was first seen to have generated for the gateway.
async fn until_it_serves(testbed: &Testbed, fault: Fault, mended: impl AsyncFnOnce()) {
    let engine = testbed.fleet.engine(3).clone();
    let address = engine.address().to_string();
    let told = |what: &str| testbed.envoy.log().contains(&format!("kvroute: {address} was {what}"));
    engine.fault(fault).await;
    engine.reset_report();
    let mut n = 0;
    // Until it has started anew the gateway cannot tell; what it sends there is sent to the next host by Envoy.
    until("the gateway sees another engine", SOON, async || {
        n += 1;
        ask(testbed, n).await;
        (told("ready, is unready") || told("suspect, is unready")).then_some(())
    })
    .await
    .unwrap();
    // All workers know it two ticks later; from then on it gets none, however many come.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let got = engine.report().counts.requests;
    for _ in 0..40 {
        n += 1;
        assert_ne!(ask(testbed, n).await, address, "it has not generated yet");
    }
    assert_eq!((engine.report().counts.requests, engine.report().counts.proofs), (got, 0));
    mended().await;
    until("it serves", SOON, async || {
        n += 1;
        (ask(testbed, n).await == address).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(engine.report().counts.proofs, 1, "it was asked until it answered once");
    assert_eq!(engine.report().counts.failed, 0);
}

async fn four() -> Testbed {
    Testbed::start_with(4, EngineOptions::default(), Options::workers(2), |config, _| {
        config.plugin("/warm_up", json!({"seconds": 1})).plugin("/ready", json!({"timeout_ms": 500}))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_gets_its_first_request_only_after_it_has_generated() {
    let testbed = four().await;
    let engine = testbed.fleet.engine(3).clone();
    // A process that is new, serves its metrics, and is wedged.
    engine.fault(Fault::Restart { down_seconds: 0.0 }).await;
    until_it_serves(&testbed, Fault::Stall, async || engine.fault(Fault::Wake).await).await;
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
