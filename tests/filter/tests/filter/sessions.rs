//! Conversations whose prompt is not in the request: answers that only one host has, and names.

use fake_proxy::Stream;
use serde_json::{json, Value};

use crate::gateway::{config, destination, destinations, host, reason, text, Gateway};

const STREAM: &[u8] = include_bytes!("../../../core/testdata/vllm_0_32_responses_stream.sse");
const STREAM_ID: &str = "resp_b4c5c7f5d8ad05c1";

fn post(gateway: &Gateway, worker: usize, path: &str, more: &[(&str, &str)], body: &[u8]) -> Stream {
    let length = body.len().to_string();
    let headers =
        [(":method", "POST"), (":path", path), (":authority", "gateway"), ("content-length", &length)];
    let stream = gateway.workers[worker].request(headers.iter().chain(more).copied(), false);
    stream.body(body, true);
    assert!(!stream.is_held(), "a complete request goes on");
    stream
}

fn respond(gateway: &Gateway, worker: usize, body: &Value) -> Stream {
    post(
        gateway,
        worker,
        "/v1/responses",
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    )
}

/// The best host answers, in pieces of so many bytes.
fn answer(stream: &Stream, body: &[u8], piece: usize) {
    stream.respond(&destination(stream), 200, &[]);
    for piece in body.chunks(piece) {
        stream.response_body(piece, false);
    }
    stream.response_body(b"", true);
    stream.finish();
}

fn gateway(workers: usize) -> Gateway {
    let mut gateway = Gateway::with_workers(workers, 4);
    gateway.run(1_000);
    gateway
}

#[test]
fn the_next_turn_goes_to_the_host_that_has_the_answer_before_it() {
    for piece in [1, 100, 100_000] {
        let mut gateway = gateway(2);
        let mut hosts = Vec::new();
        for turn in 0..8 {
            let first = respond(&gateway, 0, &json!({ "input": text(turn, 600) }));
            let home = destination(&first);
            let body = json!({ "id": format!("resp_{turn}"), "output": [{ "id": "msg_1" }] });
            answer(&first, body.to_string().as_bytes(), piece);
            gateway.run(200);
            // Another worker has it from this one's journal.
            for worker in [0, 1] {
                let next = json!({ "input": "Go on.", "previous_response_id": format!("resp_{turn}") });
                let next = respond(&gateway, worker, &next);
                assert_eq!(destination(&next), home, "turn {turn} on worker {worker}");
                answer(&next, b"{}", 100);
                assert_eq!(reason(&next), "pinned");
            }
            hosts.push(home);
        }
        hosts.sort();
        hosts.dedup();
        assert!(hosts.len() > 1, "all on {hosts:?}");
    }
}

#[test]
fn a_streamed_answer_is_known_by_its_first_event_and_looked_up_by_its_path() {
    let mut gateway = gateway(1);
    let first = respond(&gateway, 0, &json!({ "input": text(1, 600), "stream": true }));
    let home = destination(&first);
    answer(&first, STREAM, 64);
    gateway.run(200);
    for (method, path) in [
        ("GET", format!("/v1/responses/{STREAM_ID}")),
        ("POST", format!("/gateway/v1/responses/{STREAM_ID}/cancel?x=1")),
    ] {
        let headers = [(":method", method), (":path", &path), (":authority", "gateway")];
        let asked = gateway.worker().request(headers, true);
        assert_eq!(destination(&asked), home, "{method} {path}");
        asked.respond(&home, 200, &[]);
        assert_eq!(reason(&asked), "pinned");
        asked.finish();
    }
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn an_answer_that_nobody_gave_is_asked_for_by_its_conversation_or_by_load() {
    let mut gateway = gateway(1);
    let turn = |gateway: &Gateway, key: Value| {
        let body = json!({ "input": "Go on.", "previous_response_id": "resp_before_the_restart", "prompt_cache_key": key });
        let stream = respond(gateway, 0, &body);
        let home = destination(&stream);
        answer(&stream, b"{}", 9);
        (home, reason(&stream))
    };
    let (home, why) = turn(&gateway, json!("conversation-7"));
    assert_eq!(why, "no_prompt");
    for _ in 0..5 {
        gateway.run(100);
        assert_eq!(turn(&gateway, json!("conversation-7")), (home.clone(), "session".to_owned()));
    }
    assert_eq!(turn(&gateway, Value::Null).1, "cold");
}

#[test]
fn a_first_event_that_only_says_hello_ends_no_prefill() {
    let gateway = gateway(1);
    let stream = respond(&gateway, 0, &json!({ "input": text(1, 6_000), "stream": true }));
    let slot = (0..4).find(|n| host(*n) == destination(&stream)).expect("a host");
    stream.respond(&destination(&stream), 200, &[]);
    let output = STREAM.windows(15).position(|window| window == b"response.output").expect("an event");
    stream.response_body(&STREAM[..output - 20], false);
    assert!(gateway.prefill_in_flight(slot) > 1_000);
    stream.response_body(&STREAM[output - 20..], false);
    assert_eq!(gateway.prefill_in_flight(slot), 0);
    stream.response_body(b"", true);
    stream.finish();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_body_that_cannot_be_read_follows_its_session() {
    let sessions = json!({ "session": { "headers": ["x-chat"], "cookies": ["sid"] } });
    let mut gateway = Gateway::with_config(1, 4, &config(4, sessions));
    gateway.run(1_000);
    let zipped = [0x1F, 0x8B, 8, 0, 0, 0, 0, 0];
    let send = |gateway: &Gateway, more: &[(&str, &str)]| {
        let more = [&[("content-encoding", "gzip")], more].concat();
        let stream = post(gateway, 0, "/v1/chat/completions", &more, &zipped);
        let home = destination(&stream);
        answer(&stream, b"{}", 9);
        (home, reason(&stream))
    };
    for name in ["a", "b", "c", "d", "e", "f"] {
        let cookie = format!("theme=dark; sid=c{name}; sids=x");
        for header in [("x-chat", name), ("cookie", cookie.as_str())] {
            let first = send(&gateway, &[header]).0;
            for _ in 0..3 {
                gateway.run(100);
                assert_eq!(send(&gateway, &[header]), (first.clone(), "session".to_owned()), "{header:?}");
            }
        }
    }
    assert_eq!(send(&gateway, &[("x-session-id", "a")]).1, "encoding", "no longer one that counts");
    gateway.run(100);
    assert_eq!(gateway.proxy.counter("kvroute_requests_session_total"), 36);
}

#[test]
fn a_session_counts_for_nothing_where_the_prompt_is_there() {
    let mut gateway = gateway(1);
    let send = |gateway: &Gateway, seed: usize| {
        let body = json!({ "messages": [{ "role": "user", "content": text(seed, 3_000) }] }).to_string();
        let stream = post(gateway, 0, "/v1/chat/completions", &[("x-session-id", "one")], body.as_bytes());
        let home = destination(&stream);
        answer(&stream, b"{}", 9);
        home
    };
    let mut homes = Vec::new();
    for seed in 0..12 {
        let home = send(&gateway, seed);
        gateway.run(100);
        assert_eq!(send(&gateway, seed), home);
        homes.push(home);
    }
    homes.sort();
    homes.dedup();
    assert!(homes.len() > 1, "all on {homes:?}");
}

#[test]
fn an_answer_outlasts_a_flood_of_prompts() {
    let small = json!({ "index": { "entries": 1_024 } });
    let mut gateway = Gateway::with_config(1, 4, &config(4, small));
    gateway.run(1_000);
    let first = respond(&gateway, 0, &json!({ "input": text(1, 600) }));
    let home = destination(&first);
    answer(&first, br#"{"id":"resp_old"}"#, 99);
    for seed in 0..150 {
        gateway.route_chat(&text(seed + 10, 4_000));
    }
    let next = respond(&gateway, 0, &json!({ "input": "Go on.", "previous_response_id": "resp_old" }));
    assert_eq!(destinations(&next)[0], home);
    answer(&next, b"{}", 9);
    // Not by chance: it is remembered.
    assert_eq!(reason(&next), "pinned");
}
