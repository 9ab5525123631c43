//! A host is found by name: a real Envoy's resolver is asked, by the filter that is built with the feature `dns`.
//!
//! That resolver is the system's, whatever the bootstrap says, so that only names can be asked for here that every machine
//! has. How records come and go is tested with the fake proxy; with a name server, and Envoy's own clusters, in `discovery.rs`.

use fleet::{EngineOptions, Fleet};
use gateway::chat::Chat;
use gateway::config::{Config, CONTROL, KVROUTE};
use gateway::control::Control;
use gateway::envoy::{dns_artifact, Envoy, Options};
use gateway::testbed::{generated, released};
use gateway::wait::until;
use serde_json::{json, Value};
use std::time::Duration;

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(20);

/// A fleet of one, found by this name.
async fn start(fleet: &Fleet, name: &str) -> (Envoy, Control) {
    let (hosts, port) = (fleet.addresses(), fleet.addresses()[0].port());
    let config = Config::quick_start().unwrap().hosts(&hosts).with_control(None).unwrap();
    let config = config.module(&dns_artifact().unwrap()).edit_plugin(|plugin| {
        plugin["hosts"] = Value::Null;
        plugin["discover"] = json!({"dns": name, "port": port, "interval_ms": 200});
    });
    let envoy = Envoy::start(&config, &Options::workers(2)).await.unwrap();
    let control = Control::new(envoy.listener(CONTROL).await.unwrap());
    (envoy, control)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_found_by_its_name() {
    let fleet = Fleet::start(1, EngineOptions::default()).await.unwrap();
    let (envoy, control) = start(&fleet, "localhost").await;
    generated(&fleet).await.unwrap();
    let address = envoy.listener(KVROUTE).await.unwrap();
    let chat = Chat::new(&"A prompt that comes again. ".repeat(100)).user("Hello");
    // Both are what is called so; Envoy sends either to the one that it has.
    let port = fleet.addresses()[0].port();
    let found = [format!("127.0.0.1:{port}"), format!("[::1]:{port}")];
    let returns = async || {
        let reply = chat.post(address).await.ok()?;
        assert!(reply.is_complete(), "{}", reply.status);
        (found.contains(&reply.decided().to_owned()) && reply.matched()?.0 > 0).then_some(())
    };
    until("a prompt returns to where it was", SOON, returns).await.unwrap();
    let discovery = control.status().await.unwrap()["discovery"].clone();
    assert_eq!((&discovery["source"], &discovery["failures"]), (&json!("dns"), &json!(0)), "{discovery}");
    released(&envoy).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve_leaves_requests_to_envoys_own_policy_and_is_said() {
    let fleet = Fleet::start(1, EngineOptions::default()).await.unwrap();
    // Nobody ever has such a name (RFC 6761).
    let (envoy, _) = start(&fleet, "engines.invalid").await;
    let told = || {
        envoy.log().lines().any(|line| line.contains("which hosts there are is not told (dns")).then_some(())
    };
    until("the log says so", SOON, async || told()).await.unwrap();
    let reply =
        Chat::new("Anybody?").user("Hello").post(envoy.listener(KVROUTE).await.unwrap()).await.unwrap();
    assert!(reply.is_complete(), "{}", reply.status);
    assert_eq!(reply.header("x-kvroute-reason"), "no_hosts");
}
