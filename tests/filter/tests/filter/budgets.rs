//! What a request costs, in calls to Envoy and bytes copied: what a clock cannot blur.

use fake_proxy::Traffic;
use serde_json::json;

use crate::gateway::{chat_body, chat_headers, config, destination, text, Gateway};

/// A chat in pieces of `piece` bytes, answered in ten chunks. Answers what it cost in all.
fn cost(gateway: &Gateway, prompt: &str, piece: usize) -> Traffic {
    let before = gateway.proxy.traffic();
    let body = chat_body(prompt);
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    for piece in body.as_bytes().chunks(piece) {
        stream.body(piece, false);
    }
    stream.body(b"", true);
    stream.respond(&destination(&stream), 200, &[("content-type", "text/event-stream")]);
    for _ in 0..10 {
        stream.response_body(b"data: {\"choices\":[]}\n\n", false);
    }
    stream.response_body(b"", true);
    stream.finish();
    gateway.proxy.traffic().since(&before)
}

fn quiet_gateway() -> Gateway {
    let config = config(4, json!({ "debug_headers": false }));
    let mut gateway = Gateway::with_config(2, 4, &config);
    gateway.run(2_000);
    gateway.route_chat("warm");
    gateway
}

#[test]
fn the_body_is_copied_exactly_once() {
    let gateway = quiet_gateway();
    for (n, bytes) in [100, 5_000, 30_000, 60_000, 500_000].into_iter().enumerate() {
        for piece in [1_000, 16_384, 65_536] {
            let prompt = text(n, bytes);
            let traffic = cost(&gateway, &prompt, piece);
            let copied = traffic.copied("request_body");
            let length = chat_body(&prompt).len() as u64;
            assert_eq!(copied, length, "{bytes} bytes in pieces of {piece}");
            assert_eq!(traffic.calls("proxy_set_buffer_bytes"), 0);
        }
    }
}

#[test]
fn what_lies_beyond_max_bytes_is_not_copied() {
    let more = json!({ "debug_headers": false, "prompt": { "max_bytes": 65_536 } });
    let gateway = Gateway::with_config(1, 4, &config(4, more));
    let traffic = cost(&gateway, &text(1, 1_000_000), 16_384);
    let copied = traffic.copied("request_body");
    assert!(copied <= 2 * 65_536, "{copied} of a million bytes");
}

#[test]
fn a_body_that_is_not_read_is_not_copied() {
    let gateway = quiet_gateway();
    let before = gateway.proxy.traffic();
    let headers = [(":method", "POST"), (":path", "/v1/audio/transcriptions")];
    let stream = gateway.worker().request(headers, false);
    stream.body(&[7; 100_000], false);
    stream.body(b"", true);
    let traffic = gateway.proxy.traffic().since(&before);
    assert_eq!(traffic.copied("request_body"), 0);
}

#[test]
fn a_request_touches_shared_data_at_most_twice() {
    let gateway = quiet_gateway();
    for n in 0..50 {
        let traffic = cost(&gateway, &text(n / 2, 8_000), 16_384);
        let operations = traffic.shared_data_operations();
        assert!(operations <= 2, "{operations} operations for request {n}");
    }
}

#[test]
fn a_request_in_one_piece_takes_few_calls() {
    let gateway = quiet_gateway();
    let mut most = 0;
    for n in 0..50 {
        let traffic = cost(&gateway, &text(n / 2, 8_000), usize::MAX);
        most = most.max(traffic.all_calls());
        // An answer that streams costs no call a chunk beyond reading its end.
        assert!(traffic.calls("proxy_get_buffer_bytes") <= 16, "{traffic:?}");
        assert_eq!(traffic.calls("proxy_log"), 0, "{traffic:?}");
        assert_eq!(traffic.calls("proxy_define_metric"), 0, "{traffic:?}");
    }
    assert!(most <= 60, "{most} calls");
}

#[test]
fn a_large_response_is_hardly_copied() {
    let gateway = quiet_gateway();
    let before = gateway.proxy.traffic();
    let stream = gateway.chat("hello");
    stream.respond(&destination(&stream), 200, &[("content-type", "application/json")]);
    let piece = vec![b'x'; 65_536];
    for _ in 0..32 {
        stream.response_body(&piece, false);
    }
    stream.response_body(b"", true);
    stream.finish();
    let copied = gateway.proxy.traffic().since(&before).copied("response_body");
    assert!(copied <= 64 * 1024, "{copied} bytes of 2 MiB");
}

#[test]
fn a_tick_without_news_takes_few_calls_whatever_the_number_of_requests_before() {
    let mut gateway = quiet_gateway();
    for n in 0..100 {
        gateway.route_chat(&text(n, 2_000));
    }
    gateway.run(1_000);
    let before = gateway.proxy.traffic();
    gateway.proxy.advance(50);
    gateway.worker().tick();
    let traffic = gateway.proxy.traffic().since(&before);
    assert!(traffic.all_calls() <= 60, "{traffic:?}");
}
