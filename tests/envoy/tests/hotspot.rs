//! A prefix that is more popular than one host can bear: it spreads, and comes back together.

use fleet::EngineOptions;
use gateway::chat::Chat;
use gateway::envoy::Options;
use gateway::testbed::{polled_again, Testbed};
use gateway::workload::plan::{Plan, Shape};
use gateway::workload::replay::Replay;
use gateway::workload::summary::Summary;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Eight sequences at a time and 30 steps of 8 ms each: an engine serves some 30 requests a second.
fn engine() -> EngineOptions {
    EngineOptions {
        max_num_seqs: 8,
        decode_step_ms: 8.0,
        prefill_tokens_per_s: 20_000.0,
        ..EngineOptions::default()
    }
}

/// 70 requests a second, all with one system prompt of 2,000 tokens: more than two engines can serve.
fn shape() -> Shape {
    Shape {
        seed: 3,
        conversations: 350,
        starts_per_s: 70.0,
        systems: 1,
        skew: 1.0,
        system_bytes: 8_000,
        turns: 1,
        question_bytes: 200,
        answer_tokens: 30,
        think_s: 1.0,
        stream: true,
    }
}

async fn replay(plan: &Arc<Plan>, address: SocketAddr) -> Summary {
    Summary::new(&Replay::new(plan, address, 1_000).run().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_popular_prefix_spreads_under_load_and_contracts_after_it() {
    let testbed = Testbed::start(4, engine(), Options::default()).await.unwrap();
    let plan = Arc::new(Plan::new(&shape()));
    let routed = replay(&plan, testbed.address).await;
    assert_eq!(routed.failures, []);

    // Three engines are the fewest that bear the load: each takes a real share of it, and none more than it can serve.
    let shares = routed.per_engine.values().filter(|count| **count * 10 >= routed.requests).count();
    let most = routed.per_engine.values().max().copied().unwrap_or(0);
    assert!(shares >= 3 && most * 5 <= routed.requests * 2, "{:?}", routed.per_engine);

    testbed.released().await.unwrap();
    // The engines say that the load is gone, and the filter has asked them.
    polled_again(&testbed.fleet).await.unwrap();
    let chat = Chat::new(&plan.systems[0]);
    let mut after: BTreeMap<String, usize> = BTreeMap::new();
    for turn in 0..20 {
        let reply = chat.clone().user(&format!("Question {turn}?")).post(testbed.address).await.unwrap();
        *after.entry(reply.engine().to_owned()).or_default() += 1;
    }
    let most = after.values().max().copied().unwrap_or(0);
    assert!(most >= 18, "one after the other they land on {after:?}");
}
