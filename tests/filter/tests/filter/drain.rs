//! A host is marked to go: nothing new goes there, and the control listener says when it is empty. And one that sleeps.

use std::collections::BTreeSet;

use fake_proxy::{LocalReply, Worker};
use serde_json::{json, Value};

use crate::gateway::{
    begin_response, chat, chat_body, chat_headers, config, destination, destinations, exposition, host,
    reason, route_chat, text, Engine, Gateway, CLUSTER,
};

const SECRET: &str = "correct-horse-battery";

struct Operator {
    gateway: Gateway,
    control: Worker,
}

impl Operator {
    fn new(workers: usize) -> Self {
        let mut gateway = Gateway::with_workers(workers, 3);
        gateway.run(1_000);
        let listens = json!({ "cluster": CLUSTER, "control": true, "peers": { "secret": SECRET } });
        let control = gateway.proxy.worker(&listens.to_string()).expect("a good configuration");
        Self { gateway, control }
    }

    fn ask(&self, method: &str, path: &str) -> LocalReply {
        let secret = format!("Bearer {SECRET}");
        let headers =
            [(":method", method), (":path", path), (":authority", "gateway"), ("authorization", &secret)];
        let stream = self.control.request(headers, true);
        let reply = stream.local_reply().expect("answered here");
        stream.finish();
        reply
    }

    fn json(&self, method: &str, path: &str) -> Value {
        let reply = self.ask(method, path);
        assert_eq!(reply.status, 200, "{method} {path}: {}", String::from_utf8_lossy(&reply.body));
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    fn is_drained(&self, n: usize) -> bool {
        let status = self.json("GET", &format!("/kvroute/drain?host={}", host(n)));
        assert_eq!(status["draining"], true);
        status["drained"] == true
    }
}

/// An idle engine that says whether it is awake.
fn sleeper(is_awake: bool) -> Engine {
    let awake = u32::from(is_awake);
    let sleep = format!("vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}.0\n");
    Engine::Says(200, exposition(0, 0) + &sleep)
}

/// C60
#[test]
fn from_the_mark_on_a_host_gets_nothing_new_not_even_its_own_prefixes_and_its_streams_end_normally() {
    let mut operator = Operator::new(2);
    // Long ones: going elsewhere costs more than standing behind three others.
    let prompts: Vec<String> = (0..24).map(|seed| text(seed, 24_000)).collect();
    let homes: Vec<String> = prompts.iter().map(|prompt| operator.gateway.route_chat(prompt)).collect();
    operator.gateway.run(200);
    let leaving = homes[0].clone();
    let slot = (0..3).find(|&n| host(n) == leaving).expect("a host");
    let of_leaving =
        || prompts.iter().zip(&homes).filter(|(_, home)| **home == leaving).map(|(prompt, _)| prompt);
    let open: Vec<_> = of_leaving().take(4).map(|prompt| chat(operator.gateway.worker(), prompt)).collect();
    assert!(open.len() == 4 && open.iter().all(|stream| destination(stream) == leaving));
    let marked = operator.json("POST", &format!("/kvroute/drain?host={leaving}"));
    assert_eq!((&marked["draining"], &marked["drained"]), (&json!(true), &json!(false)));
    // One tick, and every worker knows.
    operator.gateway.run(50);
    for worker in &operator.gateway.workers {
        for prompt in &prompts {
            let stream = chat(worker, prompt);
            assert!(!destinations(&stream).contains(&leaving), "not even as a fallback");
            begin_response(&stream);
            stream.finish();
        }
    }
    operator.gateway.run(1_000);
    assert!(!operator.is_drained(slot), "{} streams are open", open.len());
    for stream in &open {
        stream.respond(&leaving, 200, &[]);
        stream.response_body(b"data: {}", true);
        assert_eq!(stream.client_body(), b"data: {}");
        stream.finish();
    }
    operator.gateway.run(1_000);
    assert!(operator.is_drained(slot));
    // A configuration update changes nothing; taking the mark away does.
    let update = config(3, json!({ "candidates": 2 }));
    operator.gateway.worker().update(&update).expect("a good configuration");
    assert_ne!(route_chat(operator.gateway.worker(), of_leaving().next().expect("one")), leaving);
    operator.json("POST", &format!("/kvroute/undrain?host={leaving}"));
    operator.gateway.run(50);
    let back = (0..40).filter(|&n| operator.gateway.route_chat(&text(100 + n, 3_000)) == leaving).count();
    assert!(back > 4, "{back} of 40");
}

#[test]
fn hot_prefixes_of_a_host_that_goes_get_one_new_home_each_whichever_worker_asks_and_return() {
    let mut operator = Operator::new(2);
    // Many conversations each, which have a long prompt in common and then part.
    let conversation = |seed: usize, n: usize| text(seed, 6_000) + &text(1_000 + 50 * seed + n, 1_500);
    let homes: Vec<String> =
        (0..30).map(|seed| operator.gateway.route_chat(&conversation(seed, 0))).collect();
    operator.gateway.run(200);
    let leaving = homes[0].clone();
    let hot: Vec<usize> = (0..30).filter(|seed| homes[*seed] == leaving).collect();
    operator.json("POST", &format!("/kvroute/drain?host={leaving}"));
    operator.gateway.run(50);
    let mut used = BTreeSet::new();
    for &seed in &hot {
        let mut new_homes = BTreeSet::new();
        for n in 1..7 {
            new_homes.insert(route_chat(&operator.gateway.workers[n % 2], &conversation(seed, n)));
            operator.gateway.run(100);
        }
        assert_eq!(new_homes.len(), 1, "prefix {seed} scatters");
        used.extend(new_homes);
    }
    assert_eq!(used.len(), 2, "{used:?} of two for {} prefixes", hot.len());
    operator.json("POST", &format!("/kvroute/undrain?host={leaving}"));
    operator.gateway.run(50);
    for &seed in &hot {
        assert_eq!(operator.gateway.route_chat(&conversation(seed, 0)), leaving, "prefix {seed}");
    }
}

#[test]
fn a_host_whose_engine_is_still_at_work_for_others_is_not_drained() {
    let mut operator = Operator::new(1);
    operator.json("POST", &format!("/kvroute/drain?host={}", host(1)));
    operator.gateway.engines.insert(host(1), Engine::Load { running: 1, waiting: 0 });
    operator.gateway.run(2_000);
    assert!(!operator.is_drained(1));
    operator.gateway.engines.insert(host(1), Engine::Silent);
    operator.gateway.run(5_000);
    assert!(!operator.is_drained(1), "silence is not idleness");
    operator.gateway.engines.insert(host(1), Engine::IDLE);
    operator.gateway.run(1_000);
    assert!(operator.is_drained(1));
}

/// Nobody knows what such a worker will still send there.
#[test]
fn a_host_is_not_drained_before_every_worker_has_seen_its_mark() {
    let mut operator = Operator::new(2);
    assert_eq!(operator.json("GET", "/kvroute/status")["workers"], 2);
    let busy = operator.gateway.workers.pop().expect("two");
    operator.json("POST", &format!("/kvroute/drain?host={}", host(1)));
    operator.gateway.run(3_000);
    assert!(!operator.is_drained(1), "one has not ticked since");
    operator.gateway.workers.push(busy);
    operator.gateway.run(500);
    assert!(operator.is_drained(1));
    // One that is dead sends nothing.
    let dead = operator.gateway.workers.pop();
    operator.json("POST", &format!("/kvroute/drain?host={}", host(2)));
    operator.gateway.run(12_000);
    assert!(operator.is_drained(2));
    assert_eq!(operator.json("GET", "/kvroute/status")["workers"], 1);
    drop(dead);
}

#[test]
fn when_all_are_marked_they_serve_on() {
    let mut operator = Operator::new(1);
    for n in 0..3 {
        operator.json("POST", &format!("/kvroute/drain?host={}", host(n)));
    }
    operator.gateway.run(100);
    let stream = operator.gateway.chat(&text(1, 2_000));
    assert_eq!(destinations(&stream).len(), 3);
    begin_response(&stream);
    stream.finish();
}

/// C41
#[test]
fn where_all_drain_or_sleep_a_destination_that_a_client_names_is_not_taken_either() {
    let forged = |gateway: &Gateway| {
        let mut headers = chat_headers(chat_body("hello").len());
        headers.push(("x-upstream-host".to_owned(), "192.0.2.66:8000".to_owned()));
        let stream = gateway.worker().request(headers, false);
        stream.body(chat_body("hello").as_bytes(), true);
        let named = destinations(&stream);
        stream.finish();
        named
    };
    let mut operator = Operator::new(1);
    for n in 0..3 {
        operator.json("POST", &format!("/kvroute/drain?host={}", host(n)));
    }
    operator.gateway.run(100);
    let named = forged(&operator.gateway);
    assert!(named.len() == 3 && named.iter().all(|name| (0..3).any(|n| host(n) == *name)), "{named:?}");
    for n in 0..3 {
        operator.gateway.engines.insert(host(n), sleeper(false));
    }
    operator.gateway.run(1_000);
    assert!(forged(&operator.gateway).is_empty(), "Envoy's own policy decides");
}

#[test]
fn the_configuration_can_mark_a_host() {
    let mut gateway = Gateway::with_config(1, 3, &config(3, json!({ "drain": [host(0)] })));
    gateway.run(1_000);
    for seed in 0..20 {
        assert_ne!(gateway.route_chat(&text(seed, 2_000)), host(0));
    }
}

/// C62
#[test]
fn a_sleeping_engine_gets_nothing_and_returns_without_its_prefixes() {
    let mut operator = Operator::new(1);
    let prompt = text(1, 4_000);
    let home = operator.gateway.route_chat(&prompt);
    let slot = (0..3).find(|&n| host(n) == home).expect("a host");
    operator.gateway.engines.insert(home.clone(), sleeper(false));
    operator.gateway.run(1_000);
    assert_eq!(operator.json("GET", "/kvroute/status")["hosts"][slot]["life"], "sleeping");
    assert_eq!(operator.ask("GET", &format!("/kvroute/ready?host={home}")).status, 503);
    for seed in 0..20 {
        assert_ne!(operator.gateway.route_chat(&text(10 + seed, 2_000)), home);
    }
    assert_ne!(operator.gateway.route_chat(&prompt), home);
    operator.gateway.engines.insert(home.clone(), sleeper(true));
    operator.gateway.run(1_000);
    assert_eq!(operator.ask("GET", &format!("/kvroute/ready?host={home}")).status, 200);
    operator.gateway.run(30_000);
    let back = (0..30).filter(|&n| operator.gateway.route_chat(&text(100 + n, 2_000)) == home).count();
    assert!(back > 3, "{back} of 30, once it has warmed up");
    let stream = operator.gateway.chat(&prompt);
    assert_ne!(destination(&stream), home, "what it held it has dropped");
    begin_response(&stream);
    assert_eq!(reason(&stream), "prefix");
    stream.finish();
}

#[test]
fn the_control_listener_says_what_is_wrong_with_a_request() {
    let operator = Operator::new(1);
    for (method, path, status) in [
        ("GET", "/kvroute/drain", 400),
        ("POST", "/kvroute/drain?host=nonsense", 400),
        ("POST", "/kvroute/drain?host=10.0.0.1", 400),
        ("DELETE", "/kvroute/drain?host=10.0.0.1:8000", 405),
        ("GET", "/kvroute/undrain?host=10.0.0.1:8000", 405),
        ("POST", "/kvroute/status", 405),
        ("GET", "/kvroute/ready?host=10.9.9.9:8000", 503),
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions", 404),
    ] {
        assert_eq!(operator.ask(method, path).status, status, "{method} {path}");
    }
    let escaped = operator.json("POST", "/kvroute/drain?x=1&host=%5Bfd00%3A%3A1%5D%3A8000");
    assert_eq!((&escaped["host"], &escaped["drained"]), (&json!("[fd00::1]:8000"), &json!(false)));
    assert_eq!(operator.json("GET", "/kvroute/status")["hosts"].as_array().map(Vec::len), Some(3));
}

#[test]
fn without_a_secret_whoever_reaches_the_listener_may_ask_but_gets_no_journal() {
    let mut gateway = Gateway::with_workers(1, 3);
    gateway.run(1_000);
    let listens = json!({ "cluster": CLUSTER, "control": true });
    let control = gateway.proxy.worker(&listens.to_string()).expect("a good configuration");
    let ask = |path: &str| {
        let stream = control.request([(":method", "GET"), (":path", path), (":authority", "gateway")], true);
        let reply = stream.local_reply().expect("answered here");
        stream.finish();
        reply.status
    };
    assert_eq!(
        (ask("/kvroute/status"), ask("/kvroute/journal?sent=1"), ask("/kvroute/journal")),
        (200, 404, 404)
    );
}
