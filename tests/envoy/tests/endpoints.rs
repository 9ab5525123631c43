//! Endpoints come and go while Envoy runs, and it knows each change.

use fleet::{EngineOptions, Fleet};
use gateway::chat::Chat;
use gateway::config::{Config, CLUSTER, CONTROL, KVROUTE};
use gateway::control::Control;
use gateway::endpoints::{Endpoints, Health};
use gateway::envoy::{Envoy, Options};
use gateway::wait::until;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(20);

async fn becomes(envoy: &Envoy, expected: &[(SocketAddr, Health)]) {
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(host, health)| (*host, health.as_str().to_owned())).collect();
    let known = async || envoy.admin().hosts(CLUSTER).await.ok().filter(|hosts| *hosts == expected);
    until(&format!("{expected:?}"), SOON, known).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_follows_a_file_of_endpoints_and_has_a_way_to_its_own_admin() {
    let fleet = Fleet::start(3, EngineOptions::default()).await.unwrap();
    let [a, b, c] = fleet.addresses()[..] else { unreachable!("three engines") };
    let endpoints = Endpoints::new(CLUSTER, &[a]).unwrap();
    let config = Config::quick_start().unwrap().hosts(&fleet.addresses()).endpoints_from(&endpoints);
    let config = config.with_admin_cluster("admin").with_control(None).unwrap();
    let envoy = Envoy::start(&config, &Options::workers(1)).await.unwrap();
    let admin: Vec<_> = envoy.admin().hosts("admin").await.unwrap().into_keys().collect();
    assert_eq!(admin, [envoy.admin().address()]);

    becomes(&envoy, &[(a, Health::Healthy)]).await;
    endpoints.set(b, Health::Healthy).unwrap();
    endpoints.set(c, Health::Unhealthy).unwrap();
    becomes(&envoy, &[(a, Health::Healthy), (b, Health::Healthy), (c, Health::Unhealthy)]).await;
    endpoints.set(b, Health::Draining).unwrap();
    endpoints.remove(c).unwrap();
    becomes(&envoy, &[(a, Health::Healthy), (b, Health::Draining)]).await;
    endpoints.remove(b).unwrap();
    becomes(&envoy, &[(a, Health::Healthy)]).await;

    let reply = Chat::new("Hello").user("Go on.").post(envoy.listener(KVROUTE).await.unwrap()).await.unwrap();
    assert!(reply.is_complete());
    assert_eq!(reply.engine(), a.to_string());
    let control = Control::new(envoy.listener(CONTROL).await.unwrap());
    let status = until("a status", SOON, async || control.status().await.ok()).await.unwrap();
    assert!(status["hosts"].is_array(), "{status}");
    assert!(control.ask("GET", "/kvroute/nothing").await.is_err());
}
