//! When every host is full, what matters less is turned away, and nothing else is.

use fake_proxy::{Options, Status, Stream, Worker};
use serde_json::{json, Value};

use crate::gateway::{
    chat_body, chat_headers, config, destinations, exposition, host, serve, text, Engine, Gateway,
};

/// An engine that is past every bound.
fn full() -> Engine {
    Engine::Says(200, exposition(8, 100).replace(" 0.1\n", " 0.99\n"))
}

/// Three hosts, and this in the configuration.
fn gateway(more: Value, engine: &Engine) -> Gateway {
    let mut gateway = Gateway::with_config(1, 3, &config(3, more));
    for n in 0..3 {
        gateway.engines.insert(host(n), engine.clone());
    }
    gateway.run(1_000);
    gateway
}

fn shedding(engine: &Engine) -> Gateway {
    gateway(json!({ "shed": {} }), engine)
}

/// A request to `path` with these headers more, all of it.
fn request(worker: &Worker, path: &str, more: &[(&str, &str)], body: &str) -> Stream {
    let mut headers = chat_headers(body.len());
    headers[1].1 = path.to_owned();
    headers.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let stream = worker.request(headers, false);
    stream.body(body.as_bytes(), false);
    stream.body(b"", true);
    stream
}

fn chat_with(gateway: &Gateway, more: &[(&str, &str)]) -> Stream {
    request(gateway.worker(), "/v1/chat/completions", more, &chat_body(&text(1, 2_000)))
}

/// Has the worker seen that bodies come while headers are held, as any first request shows.
fn warm(gateway: &Gateway) {
    let stream = chat_with(gateway, &[("x-request-priority", "1")]);
    assert_eq!(stream.local_reply(), None);
    serve(&stream);
}

/// What a request that was turned away was told: the seconds, the reason and the body.
fn told(stream: &Stream) -> (u64, String, Value) {
    let reply = stream.local_reply().expect("turned away");
    assert_eq!(reply.status, 429);
    let header = |name: &str| reply.headers.get(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(header("content-type"), "application/json");
    let seconds = header("retry-after").parse().expect("whole seconds");
    (seconds, header("x-kvroute-shed"), serde_json::from_slice(&reply.body).expect("JSON"))
}

fn shed(gateway: &mut Gateway) -> i64 {
    gateway.run(100);
    gateway.proxy.counter("kvroute_requests_shed_total")
}

/// C76
#[test]
fn when_every_host_is_full_a_request_is_turned_away_and_told_when_to_come_again() {
    let mut gateway = shedding(&full());
    for _ in 0..2 {
        let stream = chat_with(&gateway, &[]);
        let (seconds, reason, body) = told(&stream);
        assert!((1..=60).contains(&seconds), "{seconds}");
        assert_eq!(reason, "waiting");
        let error = &body["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!(429), &Value::Null), "OpenAI's form");
        assert!(error["message"].is_string() && error["type"].is_string());
        assert!(!body.to_string().contains("sentence"), "nothing of the prompt");
        assert_eq!(stream.filter_state("kvroute.reason").as_deref(), Some("shed"));
        assert!(stream.upstream_body().is_empty() && destinations(&stream).is_empty());
        stream.finish();
        // The second is read to its end before it is answered.
        warm(&gateway);
    }
    assert_eq!((shed(&mut gateway), gateway.in_flight()), (2, Vec::new()));
    assert!(gateway.proxy.log().iter().all(|line| !line.text.contains("sentence")));
}

/// C76
#[test]
fn without_shedding_the_same_fleet_serves_by_the_least_load() {
    for off in [json!({}), json!({ "shed": null }), json!({ "shed": false })] {
        let mut gateway = gateway(off, &full());
        let waiting = exposition(8, 60).replace(" 0.1\n", " 0.99\n");
        gateway.engines.insert(host(1), Engine::Says(200, waiting));
        gateway.run(1_000);
        let stream = chat_with(&gateway, &[]);
        assert_eq!(stream.local_reply(), None);
        assert_eq!(destinations(&stream)[0], host(1));
        serve(&stream);
        assert_eq!(shed(&mut gateway), 0);
    }
}

/// C76
#[test]
fn a_fleet_that_says_nothing_is_not_full() {
    let mut gateway = shedding(&Engine::Silent);
    assert_eq!(chat_with(&gateway, &[]).local_reply(), None);
    // Full once, and silent for longer than that counts.
    for n in 0..3 {
        gateway.engines.insert(host(n), full());
    }
    gateway.run(2_000);
    told(&chat_with(&gateway, &[]));
    for n in 0..3 {
        gateway.engines.insert(host(n), Engine::BreaksOff);
    }
    gateway.run(5_000);
    assert_eq!(chat_with(&gateway, &[]).local_reply(), None);
    assert_eq!(shed(&mut gateway), 1);
}

/// C76
#[test]
fn where_no_host_may_have_requests_they_go_by_the_last_resort_and_are_not_shed() {
    let hosts: Vec<String> = (0..3).map(host).collect();
    let mut marked = gateway(json!({ "shed": {}, "drain": hosts }), &full());
    let stream = chat_with(&marked, &[]);
    assert_eq!((stream.local_reply(), destinations(&stream).len()), (None, 3), "all are to go, and serve on");
    serve(&stream);
    assert_eq!(shed(&mut marked), 0);
    // All asleep: Envoy's own policy decides, and what it answers is its own.
    let asleep = exposition(0, 100) + "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n";
    let mut asleep = shedding(&Engine::Says(200, asleep));
    let stream = chat_with(&asleep, &[]);
    assert_eq!((stream.local_reply(), destinations(&stream).len()), (None, 0));
    stream.fail(None, 503, 0x2);
    stream.finish();
    assert_eq!(shed(&mut asleep), 0);
    assert_eq!(asleep.proxy.counter("kvroute_requests_no_hosts_total"), 1);
}

#[test]
fn one_host_with_room_is_enough() {
    let mut gateway = shedding(&full());
    told(&chat_with(&gateway, &[]));
    gateway.engines.insert(host(2), Engine::IDLE);
    gateway.run(1_000);
    let stream = chat_with(&gateway, &[]);
    assert_eq!((stream.local_reply(), destinations(&stream)[0].clone()), (None, host(2)));
    serve(&stream);
}

#[test]
fn what_is_important_enough_is_served_and_the_header_and_the_bar_can_be_set() {
    let gateway = shedding(&full());
    for (value, is_shed) in
        [("1", false), ("7", false), ("0", true), ("-1", true), ("urgent", true), ("", true)]
    {
        let stream = chat_with(&gateway, &[("x-request-priority", value)]);
        assert_eq!(stream.local_reply().is_some(), is_shed, "{value:?}");
        if !is_shed {
            serve(&stream);
        }
    }
    let first_counts = [("x-request-priority", "0"), ("x-request-priority", "9")];
    told(&chat_with(&gateway, &first_counts));
    let set = json!({ "shed": { "priority_header": "x-tier", "below_priority": 0 } });
    let gateway = self::gateway(set, &full());
    assert_eq!(chat_with(&gateway, &[]).local_reply(), None, "only what says that it matters less");
    told(&chat_with(&gateway, &[("x-tier", "-1")]));
}

#[test]
fn each_api_is_answered_in_its_own_form_and_what_computes_nothing_passes() {
    let gateway = shedding(&full());
    warm(&gateway);
    for path in ["/v1/completions", "/v1/responses", "/generate", "/v1/embeddings", "/my/own", "/invocations"]
    {
        let (_, _, body) = told(&request(gateway.worker(), path, &[], "{}"));
        assert_eq!((&body["error"]["code"], &body["type"]), (&json!(429), &Value::Null), "{path}");
    }
    for path in ["/v1/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens"] {
        let (_, _, body) = told(&request(gateway.worker(), path, &[], "{}"));
        assert_eq!(
            (&body["type"], &body["error"]["type"]),
            (&json!("error"), &json!("rate_limit_error")),
            "{path}"
        );
    }
    let zipped = [("content-encoding", "gzip")];
    told(&request(gateway.worker(), "/v1/chat/completions", &zipped, "\x1f"));
    let get = [(":method", "GET"), (":path", "/v1/models"), (":authority", "gateway")];
    assert_eq!(gateway.worker().request(get, true).local_reply(), None);
}

#[test]
fn a_short_body_is_read_before_the_answer_so_that_the_connection_lives_and_a_long_one_is_not() {
    let gateway = shedding(&full());
    warm(&gateway);
    let begin = |length: Option<&str>| {
        let mut headers = chat_headers(0);
        headers.retain(|(name, _)| name != "content-length");
        headers.extend(length.map(|length| ("content-length".to_owned(), length.to_owned())));
        gateway.worker().request(headers, false)
    };
    let stream = begin(Some("20"));
    stream.body(&[b' '; 10], false);
    assert_eq!(stream.local_reply(), None, "half of it has come");
    stream.body(&[b' '; 10], false);
    stream.trailers(&[]);
    told(&stream);
    stream.finish();
    for length in [Some("10000000"), None] {
        let stream = begin(length);
        told(&stream);
        stream.body(&[b' '; 1_000], true);
        assert_eq!(stream.held_bytes(), 0, "{length:?}");
        stream.finish();
    }
    assert_eq!((gateway.in_flight(), gateway.panics()), (Vec::new(), Vec::new()));
}

#[test]
fn where_bodies_do_not_come_while_headers_are_held_the_answer_does_not_wait_for_one() {
    let options = Options { allow_on_headers_stop_iteration: false, ..Options::default() };
    let mut gateway = Gateway::with_options(1, 3, &config(3, json!({ "shed": {} })), options);
    for n in 0..3 {
        gateway.engines.insert(host(n), full());
    }
    gateway.run(1_000);
    let stream = gateway.worker().request(chat_headers(20), false);
    told(&stream);
    stream.finish();
    assert_eq!(shed(&mut gateway), 1);
}

#[test]
fn in_shadow_mode_nothing_is_shed_but_counted() {
    let mut gateway = gateway(json!({ "shed": {}, "mode": "shadow" }), &full());
    let stream = chat_with(&gateway, &[]);
    assert_eq!(stream.local_reply(), None);
    stream.respond(&host(0), 200, &[]);
    stream.finish();
    assert_eq!(shed(&mut gateway), 0);
    assert_eq!(gateway.proxy.counter("kvroute_shadow_shed_total"), 1);
    let mut off = self::gateway(json!({ "shed": {}, "mode": "off" }), &full());
    assert_eq!(chat_with(&off, &[]).local_reply(), None);
    assert_eq!((shed(&mut off), off.proxy.counter("kvroute_shadow_shed_total")), (0, 0));
}

#[test]
fn where_envoy_refuses_to_answer_a_host_does() {
    let mut gateway = shedding(&full());
    for is_read_first in [false, true] {
        gateway.proxy.fail("proxy_send_local_response", Status::InternalFailure);
        let stream = chat_with(&gateway, &[]);
        assert_eq!((stream.local_reply(), destinations(&stream).len()), (None, 3), "{is_read_first}");
        assert!(stream.upstream_body().starts_with(b"{"), "with all of its body");
        serve(&stream);
        gateway.proxy.heal();
        assert_eq!(shed(&mut gateway), 0);
    }
    assert_eq!(gateway.in_flight(), Vec::new());
}

/// Whoever scales the fleet must see them.
#[test]
fn those_who_are_turned_away_are_in_the_queue_signals() {
    let mut gateway = shedding(&full());
    let listens = json!({ "cluster": crate::gateway::CLUSTER, "control": true }).to_string();
    let control = gateway.proxy.worker(&listens).expect("a good configuration");
    let signals = || -> Value {
        let asked = [(":method", "GET"), (":path", "/kvroute/signals"), (":authority", "gateway")];
        let stream = control.request(asked, true);
        let reply = stream.local_reply().expect("answered here");
        stream.finish();
        serde_json::from_slice(&reply.body).expect("JSON")
    };
    assert_eq!(signals()["terms"]["shed_per_second_mean_30s"], json!(0));
    for _ in 0..300 {
        told(&chat_with(&gateway, &[]));
        gateway.run(100);
    }
    let terms = &signals()["terms"];
    let number = |name: &str| terms[name].as_f64().expect("a number");
    assert!((4.0..=10.0).contains(&number("shed_per_second_mean_30s")), "{terms}");
    // Nobody is served: four times as many as there are.
    assert_eq!(number("shed_replicas"), 12.0, "{terms}");
}
