//! Envoy's own policies, as kvroute is compared with them: does each do what its name says?

use fleet::{EngineOptions, Fleet};
use gateway::chat::{self, Chat};
use gateway::client::Connection;
use gateway::config::Config;
use gateway::envoy::{Envoy, Options};
use gateway::policy::{Policy, ANCHOR_HEADER};
use std::collections::BTreeSet;

const ENGINES: usize = 4;

/// How many engines answer requests that follow each other on one connection, with this anchor.
async fn engines(envoy: &Envoy, policy: Policy, anchor: u64) -> usize {
    let listener = envoy.listener(policy.name()).await.unwrap();
    let mut connection = Connection::open(listener).await.unwrap();
    let mut engines = BTreeSet::new();
    for turn in 0..2 * ENGINES {
        let mut request = Chat::new("You are brief.").user(&format!("Question {turn}?")).request();
        request.headers_mut().insert(ANCHOR_HEADER, anchor.into());
        let reply = chat::send(&mut connection, request).await.unwrap();
        assert!(reply.is_complete(), "{policy:?}: {}", reply.status);
        engines.insert(reply.engine().to_owned());
    }
    engines.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn hashing_keeps_an_anchor_on_one_host_and_counting_does_not() {
    let fleet = Fleet::start(ENGINES, EngineOptions::default()).await.unwrap();
    let hosts = fleet.addresses();
    let all = [Policy::RoundRobin, Policy::LeastRequest, Policy::PrefixHash, Policy::BoundedPrefixHash];
    let config = Config::quick_start().unwrap().hosts(&hosts);
    let config = all.into_iter().fold(config, |config, policy| config.with_policy(policy, &hosts));
    let envoy = Envoy::start(&config, &Options::workers(1)).await.unwrap();

    assert_eq!(engines(&envoy, Policy::RoundRobin, 1).await, ENGINES);
    assert!(engines(&envoy, Policy::LeastRequest, 1).await > 1);
    for anchor in 0..8 {
        assert_eq!(engines(&envoy, Policy::PrefixHash, anchor).await, 1);
        assert_eq!(engines(&envoy, Policy::BoundedPrefixHash, anchor).await, 1);
    }
}
