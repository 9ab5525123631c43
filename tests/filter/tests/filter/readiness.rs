//! A host gets requests once it has generated something: its engine's counters say so, or it is asked.

use fake_proxy::Worker;
use serde_json::{json, Value};

use crate::gateway::{
    begin_response, chat, config, destinations, exposition, host, named_host, text, Engine,
};
use crate::gateway::{Gateway, CLUSTER, GENERATION};

/// An engine that has just started: it serves metrics, and has generated nothing.
fn fresh(started_s: u32) -> Engine {
    let page = exposition(0, 0).replace(
        "generation_tokens_total{engine=\"0\",model_name=\"m\"} 1.0",
        "\
        generation_tokens_total{engine=\"0\",model_name=\"m\"} 0.0",
    );
    assert!(page.contains("generation_tokens_total{engine=\"0\",model_name=\"m\"} 0.0"));
    Engine::Says(200, format!("{page}process_start_time_seconds {started_s}.0\n"))
}

/// A fleet that has served for long, whose host 1 restarts on the same address at the next poll.
fn restarting(more: Value) -> Gateway {
    let mut gateway = Gateway::with_config(2, 3, &config(3, more));
    for n in 0..3 {
        let page = exposition(0, 0) + "process_start_time_seconds 1000.0\n";
        gateway.engines.insert(host(n), Engine::Says(200, page));
    }
    // For as long as warming up takes: who comes now is a newcomer.
    gateway.run(32_000);
    assert_eq!(gateway.probes, [], "whose counters say that they have generated are not asked");
    gateway.engines.insert(host(1), fresh(2_000));
    gateway
}

/// Hosts that are named for forty new prompts on every worker.
fn named(gateway: &Gateway) -> Vec<String> {
    let mut named: Vec<String> = Vec::new();
    // Others each time: what a host holds is no question.
    let unseen = 1_000 * (1 + gateway.polls.len());
    for seed in unseen..unseen + 40 {
        for worker in &gateway.workers {
            let stream = chat(worker, &text(seed, 2_000));
            named.extend(destinations(&stream));
            begin_response(&stream);
            stream.finish();
        }
    }
    named.sort_unstable();
    named.dedup();
    named
}

/// What the control listener says of a host: its life and why, and what a readiness probe gets.
fn life(gateway: &Gateway, n: usize) -> (String, String, u32) {
    let listens = json!({ "cluster": CLUSTER, "control": true }).to_string();
    let control: Worker = gateway.proxy.worker(&listens).expect("a good configuration");
    let ask = |path: &str| {
        let stream = control.request([(":method", "GET"), (":path", path), (":authority", "gateway")], true);
        let reply = stream.local_reply().expect("answered here");
        stream.finish();
        reply
    };
    let status: Value = serde_json::from_slice(&ask("/kvroute/status").body).expect("JSON");
    let found =
        status["hosts"].as_array().into_iter().flatten().find(|known| known["host"] == host(n).as_str());
    let text = |key: &str| found.expect("listed")[key].as_str().expect("a text").to_owned();
    (text("life"), text("reason"), ask(&format!("/kvroute/ready?host={}", host(n))).status)
}

#[test]
fn an_engine_that_restarts_on_its_address_is_asked_once_and_then_serves() {
    let mut gateway = restarting(json!({}));
    gateway.generations.insert(host(1), None);
    gateway.run(1_000);
    assert_eq!(gateway.probes_by_host().into_iter().collect::<Vec<_>>(), [(host(1), 1)]);
    let probe = gateway.probes[0].clone();
    let header = |name: &str| probe.headers.get(name).unwrap_or_default();
    assert_eq!(header("x-kvroute-probe"), "ready");
    assert_eq!((header(":path"), probe.timeout_ms), ("/v1/completions".to_owned(), 5_000));
    let body: Value = serde_json::from_slice(&probe.body).expect("JSON");
    assert_eq!(body, json!({ "model": "m", "prompt": "Hi", "max_tokens": 1, "temperature": 0 }));
    assert_eq!(named(&gateway), [host(0), host(2)], "nobody is sent there before it has answered");
    assert_eq!((life(&gateway, 1).0.as_str(), life(&gateway, 1).2), ("unready", 503));
    let requests = |gateway: &Gateway| -> i64 {
        gateway
            .proxy
            .counters()
            .iter()
            .filter(|(name, _)| name.starts_with("kvroute_requests_"))
            .map(|(_, n)| n)
            .sum()
    };
    gateway.run(100);
    let before = requests(&gateway);
    gateway.proxy.answer(&probe, 200, GENERATION.as_bytes());
    gateway.run(200);
    assert_eq!(named(&gateway).len(), 3);
    assert_eq!((life(&gateway, 1).0.as_str(), life(&gateway, 1).2), ("warming", 200));
    gateway.run(40_000);
    assert_eq!(life(&gateway, 1).0, "ready");
    assert_eq!(gateway.probes.len(), 1, "once is enough");
    assert_eq!(gateway.proxy.counter("kvroute_probes_ok_total"), 1);
    assert_eq!(requests(&gateway) - before, 80, "it is no traffic");
}

#[test]
fn a_wedged_engine_that_still_shows_metrics_stays_out_and_is_asked_again_ever_more_rarely() {
    let mut gateway = restarting(json!({}));
    gateway.generations.insert(host(1), Some((504, "upstream request timeout".to_owned())));
    gateway.run(30_000);
    assert_eq!(named(&gateway), [host(0), host(2)]);
    let (life_is, why, _) = life(&gateway, 1);
    assert_eq!((life_is.as_str(), why.as_str()), ("unready", "a generation on it failed or took too long"));
    let asked = gateway.probes.len();
    assert!((5..=10).contains(&asked), "1, 2, 4 and then 5 s apart: {asked}");
    let told = gateway.proxy.log().iter().filter(|line| line.text.contains("no answer in time")).count();
    assert_eq!(told, 1);
    gateway.generations.clear();
    gateway.run(6_000);
    assert_eq!(named(&gateway).len(), 3);
}

#[test]
fn an_answer_without_a_token_is_no_generation() {
    let mut gateway = restarting(json!({}));
    let aborted = r#"{"choices":[{"text":"","finish_reason":"abort"}],"usage":{"completion_tokens":0}}"#;
    gateway.generations.insert(host(1), Some((200, aborted.to_owned())));
    gateway.run(3_000);
    assert_eq!(named(&gateway), [host(0), host(2)]);
    assert!(gateway.proxy.counter("kvroute_probes_nothing_total") >= 2);
}

#[test]
fn an_engine_that_does_not_know_the_model_says_so() {
    let mut gateway = restarting(json!({ "ready": { "body": { "model": "wanted", "prompt": "Hi" } } }));
    let error =
        r#"{"error":{"message":"The model `wanted` does not exist.","type":"NotFoundError","code":404}}"#;
    gateway.generations.insert(host(1), Some((404, error.to_owned())));
    gateway.run(3_000);
    assert_eq!(life(&gateway, 1).1, "it does not serve the model that it should");
    let body: Value = serde_json::from_slice(&gateway.probes[0].body).expect("JSON");
    assert_eq!(body["model"], "wanted");
    assert_eq!(named(&gateway), [host(0), host(2)]);
}

#[test]
fn a_host_whose_metrics_name_another_model_than_it_should_serve_is_out_until_they_name_it() {
    let mut gateway = Gateway::with_config(1, 3, &config(3, json!({ "ready": { "model": "m" } })));
    let other = exposition(0, 0).replace("\"m\"", "\"other\"");
    gateway.engines.insert(host(2), Engine::Says(200, other));
    gateway.run(2_000);
    assert_eq!(named(&gateway), [host(0), host(1)]);
    assert_eq!((life(&gateway, 2).0.as_str(), gateway.probes.len()), ("unready", 0));
    gateway.engines.insert(host(2), Engine::IDLE);
    gateway.run(1_000);
    assert_eq!((named(&gateway).len(), gateway.probes.len()), (3, 0));
}

#[test]
fn a_request_goes_only_where_its_model_is_served_if_that_is_known() {
    let mut gateway = Gateway::new(3);
    for n in 0..3 {
        let page = exposition(0, 0).replace("\"m\"", if n == 2 { "\"m\"" } else { "\"other\"" });
        gateway.engines.insert(host(n), Engine::Says(200, page));
    }
    gateway.run(1_000);
    assert_eq!(named(&gateway), [host(2)]);
    // An adapter's name is nobody's: then there is nothing to go by.
    gateway.engines.insert(host(2), Engine::Says(200, exposition(0, 0).replace("\"m\"", "\"third\"")));
    gateway.run(1_000);
    assert_eq!(named(&gateway).len(), 3);
}

#[test]
fn an_engine_that_wants_a_key_counts_as_ready_and_the_log_says_what_to_set() {
    let mut gateway = restarting(json!({}));
    gateway.generations.insert(host(1), Some((401, r#"{"error":"Unauthorized"}"#.to_owned())));
    gateway.run(2_000);
    assert_eq!((named(&gateway).len(), gateway.probes.len()), (3, 1));
    let told: Vec<_> =
        gateway.proxy.log().into_iter().filter(|line| line.text.contains("ready.headers")).collect();
    assert_eq!(told.len(), 1);
}

#[test]
fn a_key_can_be_set_and_is_never_logged() {
    let headers = json!({ "authorization": "Bearer sesame-open" });
    let mut gateway = restarting(json!({ "ready": { "headers": headers, "path": "/v1/chat/completions" } }));
    gateway.generations.insert(host(1), Some((500, String::new())));
    gateway.run(3_000);
    let probe = &gateway.probes[0];
    assert_eq!(probe.headers.get("authorization").as_deref(), Some("Bearer sesame-open"));
    assert_eq!(probe.headers.get(":path").as_deref(), Some("/v1/chat/completions"));
    assert!(gateway.proxy.log().iter().all(|line| !line.text.contains("sesame")));
}

#[test]
fn it_can_be_switched_off() {
    let mut gateway = restarting(json!({ "ready": { "probe": false }, "warm_up": { "seconds": 0 } }));
    gateway.run(2_000);
    assert_eq!((named(&gateway).len(), gateway.probes.len()), (3, 0));
    assert_eq!(life(&gateway, 1).0, "ready");
}

#[test]
fn a_gateway_that_starts_with_a_fleet_sends_to_all_of_it_at_once_and_asks_each_host_once() {
    let mut gateway = Gateway::with_workers(2, 6);
    for n in 0..6 {
        gateway.engines.insert(host(n), fresh(1_000));
    }
    assert_eq!(named(&gateway).len(), 6, "before anybody was asked");
    gateway.run(5_000);
    assert!(gateway.probes_by_host().values().all(|count| *count == 1), "{:?}", gateway.probes_by_host());
    assert_eq!((gateway.probes.len(), named(&gateway).len()), (6, 6));
    assert_eq!(life(&gateway, 0).0, "ready", "nobody was warm before: none holds back");
}

#[test]
fn a_host_that_joins_gets_nothing_before_it_has_generated() {
    let mut gateway = Gateway::with_workers(2, 3);
    // The others have been warm for as long as warming up takes.
    gateway.run(31_000);
    gateway.engines.insert(host(3), Engine::Says(503, "upstream connect error".to_owned()));
    gateway.generations.insert(host(3), Some((503, "upstream connect error".to_owned())));
    let update = config(4, json!({}));
    let updated: Vec<_> =
        gateway.workers.iter().map(|worker| worker.update(&update).expect("a good configuration")).collect();
    let three = [host(0), host(1), host(2)];
    assert_eq!(named(&gateway), three, "from the first moment");
    // It loads for twenty seconds.
    gateway.run(20_000);
    assert_eq!(named(&gateway), three);
    assert!(life(&gateway, 3).1.contains("loads"));
    gateway.engines.insert(host(3), fresh(1_000));
    gateway.generations.clear();
    // The next poll finds it, and the tick after that asks it.
    gateway.run(1_000);
    assert_eq!(life(&gateway, 3).0, "warming");
    gateway.run(31_000);
    assert_eq!(named(&gateway).len(), 4);
    drop(updated);
}

#[test]
fn the_next_leader_asks_nobody_who_has_shown_it() {
    let mut gateway = restarting(json!({}));
    gateway.run(1_000);
    assert_eq!(gateway.probes.len(), 1);
    let leader = gateway.probes[0].vm;
    gateway.workers.remove(leader).kill();
    gateway.run(10_000);
    assert_eq!(gateway.probes.len(), 1);
    assert_eq!(named_host(&gateway.probes[0]), host(1));
}

#[test]
fn where_nobody_has_shown_it_all_are_used() {
    let mut gateway = Gateway::new(3);
    for n in 0..3 {
        gateway.engines.insert(host(n), fresh(1_000));
        gateway.generations.insert(host(n), Some((500, String::new())));
    }
    gateway.run(3_000);
    assert_eq!(named(&gateway).len(), 3);
}

#[test]
fn a_host_that_was_ready_stays_so_while_its_polls_fail() {
    let mut gateway = Gateway::new(3);
    gateway.run(1_000);
    gateway.engines.insert(host(0), Engine::Says(503, String::new()));
    gateway.run(10_000);
    assert_eq!((named(&gateway).len(), gateway.probes.len()), (3, 0));
}
