//! Engines that count hits in a shared KV tier: affinity weakens, and the status says why.

use serde_json::{json, Value};

use crate::gateway::{config, exposition, host, serve, text, Engine, Gateway, CLUSTER};

const SECRET: &str = "correct-horse-battery";

/// What an engine says that looked so many tokens up outside its own cache, and found so many.
fn page(waiting: u32, queries: u32, hits: u32) -> Engine {
    let counted = format!(
        "vllm:external_prefix_cache_queries_total{{engine=\"0\",model_name=\"m\"}} {queries}.0\n\
         vllm:external_prefix_cache_hits_total{{engine=\"0\",model_name=\"m\"}} {hits}.0\n"
    );
    Engine::Says(200, exposition(4, waiting) + &counted)
}

/// Where a request for a prefix goes when two wait at its holder and the engines have found so many of 100,000 tokens
/// outside; and what the status says then.
fn where_it_goes(routing: Value, hits: u32) -> (bool, Value) {
    let mut gateway = Gateway::with_config(1, 2, &config(2, json!({ "routing": routing })));
    let prompt = text(1, 18_000);
    let home = gateway.route_chat(&prompt);
    for n in 0..2 {
        let waiting = if host(n) == home { 2 } else { 0 };
        gateway.engines.insert(host(n), page(waiting, 100_000, hits));
    }
    gateway.run(2_000);
    let stream = gateway.chat(&prompt);
    let stays = crate::gateway::destination(&stream) == home;
    serve(&stream);
    let listens = json!({ "cluster": CLUSTER, "control": true, "peers": { "secret": SECRET } });
    let control = gateway.proxy.worker(&listens.to_string()).expect("a good configuration");
    let secret = format!("Bearer {SECRET}");
    let path = "/kvroute/status";
    let head = [(":method", "GET"), (":path", path), (":authority", "gateway"), ("authorization", &secret)];
    let reply = control.request(head, true).local_reply().expect("answered here");
    let status: Value = serde_json::from_slice(&reply.body).expect("JSON");
    (stays, status["tier"].clone())
}

#[test]
fn a_request_goes_to_the_shorter_queue_where_its_prefix_can_be_fetched_and_the_status_says_why() {
    let (stays, tier) = where_it_goes(json!({}), 0);
    assert!(stays && tier["affinity"].as_str().expect("words").starts_with("full"), "{tier}");
    let (stays, tier) = where_it_goes(json!({}), 95_000);
    assert!(!stays && tier["affinity"].as_str().expect("words").starts_with("weaker"), "{tier}");
    assert_eq!(tier["hit_percent"], 95);
    let (stays, tier) = where_it_goes(json!({ "tier": "off" }), 95_000);
    assert!(stays && tier["hit_percent"] == 0 && tier["measured_hit_percent"] == 95, "{tier}");
}
