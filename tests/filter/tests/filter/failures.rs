//! When Envoy refuses a host call, the request goes on and nothing panics.
//!
//! A panic in a callback ends this process, so a test that gets to its end is itself the proof.

use fake_proxy::{Options, Status};
use serde_json::json;

use crate::gateway::{chat_body, chat_headers, config, text, Gateway};

/// Every host function the filter may call, but for the body's own. Left out are also `proxy_log` and `proxy_set_effective_context`:
/// the SDK itself relies on these, and Envoy does not fail them for a context that exists.
const FUNCTIONS: [&str; 17] = [
    "proxy_get_log_level",
    "proxy_get_current_time_nanoseconds",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_add_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_remove_header_map_value",
    "proxy_get_property",
    "proxy_set_property",
    "proxy_get_shared_data",
    "proxy_set_shared_data",
    "proxy_define_metric",
    "proxy_get_metric",
    "proxy_record_metric",
    "proxy_increment_metric",
    "proxy_http_call",
    "proxy_continue_stream",
];

const STATUSES: [Status; 2] = [Status::BadArgument, Status::InternalFailure];

/// Requests of several kinds and ends, with ticks and polls between them.
fn traffic(gateway: &mut Gateway, fault: &str) {
    for n in 0..4 {
        let body = chat_body(&text(n, 50_000));
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        for piece in body.as_bytes().chunks(1_000) {
            stream.body(piece, false);
        }
        stream.body(b"", true);
        gateway.run(100);
        assert!(!stream.is_held(), "{fault}: a complete request goes on");
        assert_eq!(stream.local_reply().map(|reply| reply.status), None, "{fault}");
        assert!(stream.upstream_body() == body.as_bytes(), "{fault}: the body passes unchanged");
        stream.respond("10.0.0.2:8000", 200, &[("content-type", "text/event-stream")]);
        stream.response_body(b"data: {}\n\n", false);
        if n % 2 == 0 {
            stream.response_body(b"data: [DONE]\n\n", true);
            stream.finish();
        } else {
            stream.abort();
        }
        let get = [(":method", "GET"), (":path", "/health")];
        let stream = gateway.worker().request(get, true);
        assert!(!stream.is_held());
        stream.fail(None, 503, 2);
        stream.finish();
        gateway.run(600);
    }
}

#[test]
fn every_host_call_may_fail_on_the_way() {
    for function in FUNCTIONS {
        for status in STATUSES {
            let options = Options { buffer_limit: 32 << 10, ..Options::default() };
            let mut gateway = Gateway::with_options(2, 2, &config(2, json!({})), options);
            gateway.run(1_000);
            gateway.proxy.fail(function, status);
            traffic(&mut gateway, function);
            gateway.proxy.heal();
            traffic(&mut gateway, "none");
            assert_eq!(gateway.panics(), Vec::<String>::new(), "{function} {status:?}");
        }
    }
}

#[test]
fn every_host_call_may_fail_from_the_start() {
    for function in FUNCTIONS {
        let proxy = Gateway::empty();
        proxy.fail(function, Status::InternalFailure);
        let Ok(worker) = proxy.worker(&config(2, json!({}))) else { continue };
        worker.tick();
        let body = chat_body("hello");
        let stream = worker.request(chat_headers(body.len()), false);
        stream.body(body.as_bytes(), true);
        assert!(!stream.is_held(), "{function}");
        assert!(stream.upstream_body() == body.as_bytes(), "the body passes unchanged");
        stream.abort();
    }
}

#[test]
fn a_body_that_cannot_be_read_is_not_held_beyond_the_cap() {
    let options = Options { buffer_limit: 32 << 10, ..Options::default() };
    let gateway = Gateway::with_options(1, 2, &config(2, json!({})), options);
    gateway.proxy.fail("proxy_get_buffer_bytes", Status::InternalFailure);
    let body = chat_body(&text(1, 100_000));
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    for piece in body.as_bytes().chunks(1_000) {
        stream.body(piece, false);
    }
    stream.body(b"", true);
    assert_eq!(stream.local_reply().map(|reply| reply.status), None);
    assert!(stream.upstream_body() == body.as_bytes(), "the body passes unchanged");
}

#[test]
fn garbage_in_shared_data_is_ignored() {
    let mut gateway = Gateway::with_workers(2, 2);
    gateway.run(2_000);
    let garbage: [&[u8]; 5] = [b"", b"\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"{}", &[1; 300]];
    for value in garbage {
        for key in gateway.proxy.shared_data_keys() {
            gateway.proxy.write_shared_data(&key, value);
            gateway.route_chat(&text(1, 2_000));
            gateway.run(200);
        }
    }
    gateway.run(12_000);
    gateway.polls.clear();
    gateway.run(2_000);
    assert_eq!(gateway.polls_by_host().len(), 2, "polling goes on");
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn shared_values_cut_short_anywhere_are_ignored() {
    let mut gateway = Gateway::with_workers(2, 3);
    gateway.route_chat(&text(1, 5_000));
    gateway.run(2_000);
    for key in gateway.proxy.shared_data_keys() {
        let value = gateway.proxy.shared_data(&key).unwrap_or_default();
        let step = 1 + value.len() / 40;
        for end in (0..value.len()).step_by(step) {
            gateway.proxy.write_shared_data(&key, &value[..end]);
            gateway.proxy.advance(50);
            gateway.workers[1].tick();
            gateway.workers[0].tick();
        }
    }
    gateway.route_chat(&text(1, 5_000));
    assert_eq!(gateway.panics(), Vec::<String>::new());
}

#[test]
fn responses_of_every_shape_pass_unchanged() {
    let gateway = Gateway::new(2);
    let bodies: [&[u8]; 6] = [
        b"",
        b"{}",
        b"data: {\"usage\":{\"prompt_tokens\":18446744073709551615,\"prompt_tokens_details\":{\"cached_tokens\":-1}}}\n\n",
        b"{\"usage\":",
        b"\xff\xff\xff",
        b"data: {\"usage\":null}\n\ndata: [DONE]\n\n",
    ];
    for body in bodies {
        for status in [200, 400, 429, 500, 503] {
            let stream = gateway.chat("hello");
            stream.respond("10.0.0.1:8000", status, &[("content-type", "application/json")]);
            for byte in body {
                stream.response_body(&[*byte], false);
            }
            stream.response_body(b"", true);
            stream.response_trailers(&[("grpc-status", "0")]);
            assert_eq!(stream.client_body(), body);
            stream.finish();
        }
    }
    assert_eq!(gateway.in_flight(), []);
}
