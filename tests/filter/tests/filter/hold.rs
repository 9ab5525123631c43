//! A request is held only while its body can still change where it goes, and never for more than the
//! configured bytes.

use fake_proxy::{Action, Options};
use serde_json::json;

use crate::gateway::{
    chat_body, chat_headers, config, destination, destinations, reason, serve, text, Gateway,
};

/// Envoy Gateway's connection buffer: holding more is a 413.
const EG_BUFFER: usize = 32 << 10;

#[test]
fn no_more_than_the_configured_bytes_are_ever_held() {
    for hold_bytes in [0, 1_000, 8_192, 30_720] {
        for piece in [100, 1_024, 2_000] {
            let more = json!({ "prompt": { "hold_bytes": hold_bytes } });
            let options = Options { buffer_limit: EG_BUFFER, ..Options::default() };
            let gateway = Gateway::with_options(1, 4, &config(4, more), options);
            // Known from before, so that the walk falls off nowhere and nothing but the cap decides.
            let prompt = text(1, 100_000);
            gateway.route_chat(&prompt);
            let body = chat_body(&prompt);
            let stream = gateway.worker().request(chat_headers(body.len()), false);
            for piece in body.as_bytes().chunks(piece) {
                stream.body(piece, false);
                let held = if stream.is_held() { stream.held_bytes() } else { 0 };
                assert!(held < hold_bytes.max(1), "{held} held of {hold_bytes}");
            }
            stream.body(b"", true);
            assert_eq!(stream.local_reply(), None);
            assert!(stream.upstream_body() == body.as_bytes(), "the body passes unchanged");
            assert!(!destinations(&stream).is_empty());
        }
    }
}

/// What is held and the next read together may be more than the buffer: a read takes all that there is.
#[test]
fn a_piece_as_large_as_the_buffer_passes_behind_what_is_held() {
    let options = Options { buffer_limit: EG_BUFFER, ..Options::default() };
    let gateway = Gateway::with_options(1, 4, &config(4, json!({})), options);
    let prompt = text(1, 100_000);
    let home = gateway.route_chat(&prompt);
    let body = chat_body(&prompt);
    for first in [100, 5_000, 20_000, 30_000] {
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        let (held, rest) = body.as_bytes().split_at(first);
        stream.body(held, false);
        assert!(stream.is_held(), "{first}: it has a home that may be held deeper");
        let (large, rest) = rest.split_at(EG_BUFFER + 1);
        stream.body(large, false);
        stream.body(rest, true);
        assert_eq!(stream.local_reply(), None, "{first}");
        assert!(stream.upstream_body() == body.as_bytes(), "{first}: the body passes unchanged");
        assert_eq!(destination(&stream), home, "{first}");
        serve(&stream);
    }
}

/// Where `hold_bytes` is above the connection buffer, Envoy stops reading before the filter has what it waits for.
#[test]
fn a_long_body_that_stops_coming_goes_on_by_load_and_a_short_one_is_waited_for() {
    let more = json!({ "prompt": { "hold_bytes": 262_144 } });
    let mut gateway = Gateway::with_config(1, 4, &config(4, more));
    let prompt = text(1, 100_000);
    let home = gateway.route_chat(&prompt);
    let body = chat_body(&prompt);
    let half = |bytes: usize| {
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        stream.body(&body.as_bytes()[..bytes], false);
        assert!(stream.is_held());
        stream
    };
    let (long, short) = (half(EG_BUFFER + 1), half(EG_BUFFER));
    gateway.run(1_500);
    assert!(!long.is_held(), "nothing more would ever come");
    assert!(short.is_held(), "its client is slow");
    for (stream, sent) in [(&long, EG_BUFFER + 1), (&short, EG_BUFFER)] {
        stream.body(&body.as_bytes()[sent..], true);
        assert!(stream.upstream_body() == body.as_bytes(), "the body passes unchanged");
        serve(stream);
    }
    assert_eq!(destination(&short), home);
    assert_eq!(reason(&short), "prefix");
    assert_eq!(gateway.proxy.counter("kvroute_requests_not_held_total"), 1);
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_new_prompt_is_let_go_as_soon_as_its_length_is_known() {
    let gateway = Gateway::new(4);
    let body = chat_body(&text(1, 100_000));
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    let mut sent = 0;
    for piece in body.as_bytes().chunks(1_000) {
        stream.body(piece, false);
        sent += piece.len();
        if !stream.is_held() {
            break;
        }
    }
    assert!(sent <= 8_192, "held for {sent} bytes that nobody has seen before");
}

#[test]
fn what_has_no_body_to_wait_for_is_never_held() {
    let gateway = Gateway::new(4);
    let chat = "/v1/chat/completions";
    let multipart = "multipart/form-data; boundary=x";
    let cases: [(&[(&str, &str)], bool); 9] = [
        (&[(":method", "GET"), (":path", "/v1/models")], true),
        (&[(":method", "GET"), (":path", chat)], false),
        (&[(":method", "HEAD"), (":path", "/health")], true),
        (&[(":method", "POST"), (":path", chat)], true),
        (&[(":method", "GET"), (":path", "/ws"), ("upgrade", "websocket")], false),
        (&[(":method", "POST"), (":path", chat), ("upgrade", "websocket")], false),
        (&[(":method", "CONNECT"), (":authority", "a:443")], false),
        (&[(":method", "POST"), (":path", chat), ("content-type", multipart)], false),
        (&[(":method", "POST"), (":path", chat), ("content-encoding", "zstd")], false),
    ];
    for (headers, end_of_stream) in cases {
        let stream = gateway.worker().request(headers.iter().copied(), end_of_stream);
        assert!(!stream.is_held(), "{headers:?}");
        assert!(!destinations(&stream).is_empty(), "by load: {headers:?}");
        serve(&stream);
    }
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_body_that_is_not_read_passes_unchanged() {
    let gateway = Gateway::new(4);
    let headers = [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-encoding", "gzip")];
    let body: Vec<u8> = (0..100_000u32).map(|n| (n * 31) as u8).collect();
    let stream = gateway.worker().request(headers, false);
    for piece in body.chunks(16_384) {
        assert_eq!(stream.body(piece, false), Action::Continue);
    }
    stream.body(b"", true);
    assert!(stream.upstream_body() == body, "the body passes unchanged");
    assert_eq!(stream.headers().get("content-encoding").as_deref(), Some("gzip"));
}

#[test]
fn json_that_is_wrong_goes_by_load_unchanged_and_is_counted() {
    let mut gateway = Gateway::new(4);
    let bodies: [&[u8]; 7] =
        [b"{\"messages\": [}", b"not json", b"\xff\xfe\x00", b"{\"messages\":", b"[]]", b"", b"\"\\ud800"];
    for body in bodies {
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        stream.body(body, true);
        assert!(!stream.is_held());
        assert!(stream.upstream_body() == body, "the body passes unchanged");
        let host = destination(&stream);
        stream.respond(&host, 400, &[]);
        let why = reason(&stream);
        assert!(["bad_json", "no_prompt"].contains(&why.as_str()), "{why} for {body:?}");
        stream.finish();
    }
    gateway.run(100);
    let counted = |reason: &str| gateway.proxy.counter(&format!("kvroute_requests_{reason}_total"));
    assert_eq!(counted("bad_json") + counted("no_prompt"), bodies.len() as i64);
    assert!(counted("bad_json") >= 4);
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_body_broken_behind_its_prompt_is_still_routed_by_it() {
    let gateway = Gateway::new(4);
    let prompt = text(1, 3_000);
    let first = gateway.route_chat(&prompt);
    let mut body = chat_body(&prompt).replace("\"model\"", "model");
    body.truncate(body.len() - 1);
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    stream.body(body.as_bytes(), true);
    if destination(&stream) == first {
        return;
    }
    // By load then; but never refused or held.
    assert!(!stream.is_held() && stream.local_reply().is_none());
}

#[test]
fn without_the_flag_requests_are_rescued_and_holding_is_given_up() {
    let options = Options { allow_on_headers_stop_iteration: false, ..Options::default() };
    let mut gateway = Gateway::with_options(1, 4, &config(4, json!({})), options);
    for n in 0..10 {
        let body = chat_body(&text(n, 2_000));
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        stream.body(body.as_bytes(), true);
        let was_held = stream.is_held();
        gateway.run(3_000);
        assert!(!stream.is_held(), "request {n} hangs");
        assert!(stream.upstream_body() == body.as_bytes(), "the body passes unchanged");
        stream.respond(&crate::gateway::host(0), 200, &[]);
        stream.response_body(b"{}", true);
        stream.finish();
        assert!(n < 5 || !was_held, "holding is given up in the end");
    }
    assert_eq!(gateway.in_flight(), []);
    let log = gateway.proxy.log();
    let told = log.iter().any(|line| line.text.contains("allow_on_headers_stop_iteration"));
    assert!(told, "the operator is told what to set");
}
