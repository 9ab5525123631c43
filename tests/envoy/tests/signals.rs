//! What a scaler reads of a real Envoy: before the first request, while requests wait, and when the engines are gone.

use fleet::{EngineOptions, Fleet};
use gateway::chat::Chat;
use gateway::config::{Config, CONTROL, KVROUTE};
use gateway::control::Control;
use gateway::envoy::{Envoy, Options};
use gateway::testbed::polled;
use gateway::wait::until;
use std::time::Duration;

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_real_requests_is_told_in_json_and_in_envoys_metrics_and_stays_when_engines_are_gone() {
    // One at a time, for minutes: whoever comes next waits.
    let engine = EngineOptions { max_num_seqs: 1, decode_step_ms: 50.0, ..EngineOptions::default() };
    let fleet = Fleet::start(2, engine).await.unwrap();
    let config = Config::quick_start().unwrap().hosts(&fleet.addresses()).with_control(None).unwrap();
    let envoy = Envoy::start(&config, &Options::workers(2)).await.unwrap();
    let address = envoy.listener(KVROUTE).await.unwrap();
    let control = Control::new(envoy.listener(CONTROL).await.unwrap());

    let first = control.signals().await.unwrap();
    assert_eq!((&first["desired_replicas"], &first["waiting"]), (&2.into(), &0.into()), "{first}");
    let prometheus = envoy.admin().prometheus().await.unwrap();
    for series in ["kvroute_signals_desired_replicas{} 2", "kvroute_signals_waiting_requests{} 0"] {
        assert!(prometheus.lines().any(|line| line == series), "no {series}");
    }

    polled(&fleet).await.unwrap();
    let requests: Vec<_> = (0..32)
        .map(|n| {
            let chat = Chat::new(&format!("Assistant {n}")).user("Tell me everything.").max_tokens(4_000);
            tokio::spawn(async move { chat.post(address).await })
        })
        .collect();
    let said = until("thirty wait, and more replicas are desired", SOON, async || {
        let said = control.signals().await.ok()?;
        (said["waiting"] == 30 && said["desired_replicas"].as_u64()? >= 5).then_some(said)
    });
    let said = said.await.unwrap();
    assert_eq!(
        (&said["running"], &said["stale"], &said["saturation"]),
        (&2.into(), &false.into(), &1.into()),
        "{said}"
    );
    let stats = envoy.admin().stats().await.unwrap();
    assert_eq!(stats.value("wasmcustom.kvroute_signals_waiting_requests"), 30);
    assert!(stats.value("wasmcustom.kvroute_signals_desired_replicas") >= 5);
    let by_host = [0, 1].map(|n| stats.value(&format!("wasmcustom.kvroute_slot_{n}_waiting_requests")));
    assert_eq!(by_host[0] + by_host[1], 30, "{by_host:?}");

    requests.iter().for_each(tokio::task::JoinHandle::abort);
    let desired = said["desired_replicas"].as_u64();
    drop(fleet);
    let gone = until("the signals say that engines are silent", SOON, async || {
        let said = control.signals().await.ok()?;
        (said["stale"] == true && said["age_ms"].as_u64()? > 4_000).then_some(said)
    });
    let gone = gone.await.unwrap();
    assert!(gone["desired_replicas"].as_u64() >= desired, "{gone}");
}
