//! What affinity earns and costs, as the metrics tell it.

use fake_proxy::Stream;
use kvroute::core::config::Routing;
use serde_json::json;

use crate::gateway::{chat_headers, config, destination, reason, serve, text, Engine, Gateway};

const PREDICTED: &str = "kvroute_match_percent_predicted";
const ACTUAL: &str = "kvroute_match_percent_actual";

fn number(stream: &Stream, name: &str) -> u64 {
    stream.filter_state(name).and_then(|value| value.parse().ok()).expect("a number")
}

/// The host answers, and tells `usage` at the end.
fn serve_with(stream: &Stream, usage: &str) {
    stream.respond(&destination(stream), 200, &[("content-type", "text/event-stream")]);
    stream.response_body(format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n").as_bytes(), false);
    stream.response_body(b"data: [DONE]\n\n", true);
    stream.finish();
}

/// A token is 4 bytes as long as no engine has told.
#[test]
fn a_spill_counts_what_it_forgoes_of_the_cache_and_what_it_avoids_of_the_queue() {
    let mut gateway = Gateway::new(2);
    gateway.run(1_000);
    let prompt = text(1, 8_000);
    let home = gateway.route_chat(&prompt);
    let held = {
        let stream = gateway.chat(&prompt);
        serve(&stream);
        number(&stream, "kvroute.matched")
    };
    gateway.run(100);
    assert_eq!(gateway.proxy.counter("kvroute_spill_forgone_tokens_total"), 0);
    assert_eq!(gateway.proxy.counter("kvroute_spill_avoided_ms_total"), 0);

    gateway.engines.insert(home.clone(), Engine::Load { running: 60, waiting: 0 });
    gateway.run(1_000);
    let stream = gateway.chat(&prompt);
    assert_ne!(destination(&stream), home);
    serve(&stream);
    assert_eq!(reason(&stream), "spill");
    gateway.run(100);
    assert_eq!(gateway.proxy.counter("kvroute_spill_forgone_tokens_total"), held as i64 / 4);
    // 60 sequences in the batch; its own last block slows them by a little more.
    let batch = (60.0 * Routing::default().decode_ms) as i64;
    let avoided = gateway.proxy.counter("kvroute_spill_avoided_ms_total");
    assert!((batch..batch + 50).contains(&avoided), "{avoided}");
}

#[test]
fn the_share_of_the_prompt_that_was_cached_is_told_as_predicted_and_as_it_was() {
    let gateway = Gateway::new(2);
    let prompt = text(1, 8_000);
    let first = gateway.chat(&prompt);
    serve_with(&first, r#"{"prompt_tokens":2000,"prompt_tokens_details":{"cached_tokens":0}}"#);
    let second = gateway.chat(&prompt);
    serve_with(&second, r#"{"prompt_tokens":2000,"prompt_tokens_details":{"cached_tokens":1500}}"#);
    assert_eq!(gateway.proxy.histogram(PREDICTED), [0, 100]);
    assert_eq!(gateway.proxy.histogram(ACTUAL), [0, 75]);
}

#[test]
fn what_an_engine_does_not_tell_is_not_zero() {
    let gateway = Gateway::new(2);
    for usage in
        [r#"{"prompt_tokens":2000}"#, r#"{"prompt_tokens":2000,"prompt_tokens_details":null}"#, "null"]
    {
        serve_with(&gateway.chat(&text(1, 4_000)), usage);
    }
    serve(&gateway.chat(&text(1, 4_000)));
    assert_eq!(gateway.proxy.histogram(PREDICTED), [0, 100, 100, 100]);
    assert_eq!(gateway.proxy.histogram(ACTUAL), [0; 0]);
}

#[test]
fn shares_stay_between_0_and_100_whatever_is_told() {
    let gateway = Gateway::new(2);
    for usage in [
        r#"{"prompt_tokens":0,"cached_tokens":0}"#,
        r#"{"prompt_tokens":10,"cached_tokens":18446744073709551615}"#,
        r#"{"prompt_tokens":18446744073709551615,"cached_tokens":18446744073709551615}"#,
    ] {
        serve_with(&gateway.chat("hello"), usage);
    }
    let told = gateway.proxy.histogram(ACTUAL);
    assert!(told.iter().all(|percent| *percent <= 100), "{told:?}");
    assert_eq!(gateway.panics(), [""; 0]);
}

#[test]
fn a_prompt_that_was_decided_by_its_head_is_predicted_by_all_of_it() {
    let gateway = Gateway::new(2);
    let prompt = text(1, 300_000);
    let decided = [(); 2].map(|()| {
        let stream = gateway.chat(&prompt);
        serve(&stream);
        number(&stream, "kvroute.matched")
    });
    assert!(decided[1] <= 31_000, "decided by the head: {decided:?}");
    assert_eq!(gateway.proxy.histogram(PREDICTED), [0, 100]);
}

#[test]
fn a_failed_request_has_no_share() {
    let gateway = Gateway::new(2);
    let stream = gateway.chat(&text(1, 4_000));
    stream.fail(Some(&destination(&stream)), 503, 0x20);
    stream.finish();
    gateway.chat(&text(1, 4_000)).abort();
    assert_eq!(gateway.proxy.histogram(PREDICTED), [0; 0]);
}

#[test]
fn a_token_id_has_four_bytes_whatever_text_has() {
    let mut gateway = Gateway::new(1);
    // Text of 2 bytes a token: what is learned moves far from 4.
    for n in 0..60 {
        let stream = gateway.chat(&text(n, 4_000));
        serve_with(&stream, r#"{"prompt_tokens":2000,"prompt_tokens_details":{"cached_tokens":0}}"#);
    }
    gateway.run(100);
    let before = gateway.proxy.counter("kvroute_predicted_cached_tokens_total");
    let ids: Vec<usize> = (0..2_000).collect();
    let body = json!({ "model": "m", "prompt": ids, "stream": true }).to_string();
    let mut matched = 0;
    for _ in 0..2 {
        let mut headers = chat_headers(body.len());
        headers[1].1 = "/v1/completions".to_owned();
        let stream = gateway.worker().request(headers, false);
        stream.body(body.as_bytes(), true);
        serve_with(&stream, r#"{"prompt_tokens":2000,"prompt_tokens_details":{"cached_tokens":1984}}"#);
        matched = number(&stream, "kvroute.matched");
    }
    gateway.run(100);
    assert!(matched >= 7_900, "{matched}");
    let predicted = gateway.proxy.counter("kvroute_predicted_cached_tokens_total") - before;
    assert_eq!(predicted, matched as i64 / 4);
}

#[test]
fn each_share_costs_one_call_a_request() {
    let config = config(2, json!({ "debug_headers": false }));
    let gateway = Gateway::with_config(1, 2, &config);
    // A cold prompt leaves a mark on its host; these are not.
    serve(&gateway.chat(&text(1, 4_000)));
    for (usage, calls) in
        [(r#"{"prompt_tokens":2000,"cached_tokens":7}"#, 2), (r#"{"prompt_tokens":2000}"#, 1), ("null", 1)]
    {
        let before = gateway.proxy.traffic();
        serve_with(&gateway.chat(&text(1, 4_000)), usage);
        let traffic = gateway.proxy.traffic().since(&before);
        assert_eq!(traffic.calls("proxy_record_metric"), calls, "{usage}");
        assert!(traffic.calls("proxy_increment_metric") <= 6, "{traffic:?}");
    }
}
