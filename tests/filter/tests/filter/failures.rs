//! When Envoy refuses a host call, the request goes on and nothing panics.
//!
//! A panic in a callback ends this process, so a test that gets to its end is itself the proof.

use fake_proxy::{Action, Options, Status, Stream};
use serde_json::json;

use crate::gateway::{
    chat_body, chat_headers, config, destinations, exposition, host, text, Engine, Gateway,
};

/// Every host function that the filter calls on a request, at a tick or for a poll. Left out are the SDK's own: `proxy_log`
/// and, but for the rescue, `proxy_set_effective_context`. Envoy does not fail these for a context that exists.
const FUNCTIONS: [&str; 14] = [
    "proxy_get_current_time_nanoseconds",
    "proxy_get_buffer_bytes",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_remove_header_map_value",
    "proxy_get_property",
    "proxy_set_property",
    "proxy_get_shared_data",
    "proxy_set_shared_data",
    "proxy_get_metric",
    "proxy_record_metric",
    "proxy_increment_metric",
    "proxy_http_call",
];

/// Those that it calls when it starts, or when requests have been held in vain. On a control listener it calls
/// `proxy_send_local_response` too.
const RARE: [&str; 4] = [
    "proxy_set_tick_period_milliseconds",
    "proxy_define_metric",
    "proxy_set_effective_context",
    "proxy_continue_stream",
];

/// What Envoy may say; [`Status::Ok`] with nothing done and no buffer filled.
const STATUSES: [Status; 4] = [Status::BadArgument, Status::NotFound, Status::InternalFailure, Status::Ok];

/// Every function with every status; but for a call over HTTP only what Envoy says to one, for there the SDK takes no other.
fn faults() -> impl Iterator<Item = (&'static str, Status)> {
    let all = FUNCTIONS.into_iter().flat_map(|function| STATUSES.map(|status| (function, status)));
    all.filter(|(function, status)| {
        *function != "proxy_http_call" || ![Status::NotFound, Status::Ok].contains(status)
    })
}

/// Whether a status is one that the filter takes for what it is: something is not there, or nothing is amiss.
fn is_no_failure(function: &str, status: Status) -> bool {
    let may_be_missing =
        ["proxy_get_header_map_value", "proxy_get_property", "proxy_get_shared_data"].contains(&function);
    status == Status::Ok || (status == Status::NotFound && may_be_missing)
}

fn refused(gateway: &Gateway) -> i64 {
    gateway.proxy.counter("kvroute_host_call_failures_total")
}

/// A chat of several pieces with a forged destination, and its streamed answer with trailers.
fn whole_chat(gateway: &Gateway, what: &str) {
    let body = chat_body(&text(1, 20_000));
    let mut headers = chat_headers(body.len());
    headers.push(("x-upstream-host".to_owned(), "192.0.2.66:80".to_owned()));
    let stream = gateway.worker().request(headers, false);
    for piece in body.as_bytes().chunks(5_000) {
        stream.body(piece, false);
    }
    assert_eq!(stream.trailers(&[("x-checksum", "1")]), Action::Continue, "{what}");
    assert!(!stream.is_held(), "{what}: a complete request goes on");
    assert_eq!(stream.local_reply().map(|reply| reply.status), None, "{what}");
    assert!(stream.upstream_body() == body.as_bytes(), "{what}: the body passes unchanged");
    let answer = b"data: {\"usage\":{\"prompt_tokens\":5000}}\n\ndata: [DONE]\n\n";
    assert_eq!(
        stream.respond("10.0.0.2:8000", 200, &[("content-type", "text/event-stream")]),
        Action::Continue
    );
    assert_eq!(stream.response_body(answer, false), Action::Continue, "{what}");
    assert_eq!(stream.response_trailers(&[("grpc-status", "0")]), Action::Continue, "{what}");
    assert!(stream.client_body() == answer, "{what}: the answer passes unchanged");
    stream.finish();
}

/// A chat between ticks, with a poll that is answered and one that is broken off.
fn chat_and_polls(gateway: &mut Gateway, what: &str) {
    gateway.engines.insert(host(1), Engine::BreaksOff);
    gateway.run(300);
    whole_chat(gateway, what);
    gateway.run(300);
}

#[test]
fn the_list_of_host_functions_is_complete() {
    let options = Options { allow_on_headers_stop_iteration: false, ..Options::default() };
    let mut gateway = Gateway::with_options(2, 2, &config(2, json!({})), options);
    gateway.run(500);
    let held = gateway.worker().request(chat_headers(5), false);
    gateway.run(2_000);
    held.body(b"hello", true);
    held.finish();
    let mut gateway_that_holds = Gateway::new(2);
    chat_and_polls(&mut gateway_that_holds, "healthy");
    let mut called = gateway.proxy.traffic().functions();
    called.extend(gateway_that_holds.proxy.traffic().functions());
    called.remove("proxy_log");
    assert_eq!(called, FUNCTIONS.into_iter().chain(RARE).collect());
}

#[test]
fn nothing_is_refused_while_all_is_well() {
    let mut gateway = Gateway::with_workers(2, 3);
    chat_and_polls(&mut gateway, "healthy");
    gateway.engines.insert(host(2), Engine::Says(503, String::new()));
    gateway.run(1_000);
    assert_eq!(refused(&gateway), 0);
}

#[test]
fn each_call_that_envoy_refuses_is_counted_and_logged_once_for_each_kind() {
    for (function, status) in faults() {
        let what = format!("{function} says {status:?}");
        let mut gateway = Gateway::with_workers(1, 2);
        gateway.run(1_000);
        gateway.proxy.fail(function, status);
        chat_and_polls(&mut gateway, &what);
        chat_and_polls(&mut gateway, &what);
        gateway.proxy.heal();
        // Long enough for the audit of the gauges, should they have missed something.
        gateway.run(15_000);
        assert_eq!(gateway.in_flight(), [], "{what}");
        assert_eq!(refused(&gateway) == 0, is_no_failure(function, status), "{what}");
        let log = gateway.proxy.log();
        let told = log.iter().filter(|line| line.text.contains("Envoy refuses")).count();
        assert_eq!(told, usize::from(!is_no_failure(function, status)), "{what}: {log:?}");
        assert_eq!(gateway.panics(), Vec::<String>::new(), "{what}");
    }
}

/// Not all calls of a kind, but any single one.
#[test]
fn any_one_call_may_fail_and_the_request_goes_on() {
    for status in [Status::InternalFailure, Status::BadArgument] {
        for before in 0.. {
            let what = format!("call {before} says {status:?}");
            let mut gateway = Gateway::with_workers(1, 2);
            gateway.run(500);
            gateway.proxy.fail_after(before, status);
            whole_chat(&gateway, &what);
            gateway.run(100);
            let has_happened = !gateway.proxy.heal();
            gateway.run(15_000);
            assert_eq!(gateway.in_flight(), [], "{what}");
            assert_eq!(gateway.panics(), Vec::<String>::new(), "{what}");
            if !has_happened {
                assert!(before > 50, "only {before} calls");
                break;
            }
            assert_eq!(refused(&gateway), 1, "{what}");
        }
    }
}

#[test]
fn counts_that_envoy_does_not_take_are_told_later() {
    let mut gateway = Gateway::new(2);
    gateway.run(500);
    gateway.proxy.fail("proxy_increment_metric", Status::InternalFailure);
    gateway.route_chat("hello");
    gateway.run(500);
    assert_eq!(gateway.proxy.counter("kvroute_requests_cold_total"), 0);
    gateway.proxy.heal();
    gateway.run(100);
    assert_eq!(gateway.proxy.counter("kvroute_requests_cold_total"), 1);
}

#[test]
fn a_destination_is_removed_even_where_the_headers_cannot_be_read() {
    for status in STATUSES {
        let gateway = Gateway::new(2);
        gateway.proxy.fail("proxy_get_header_map_pairs", status);
        // Nor is it only written over.
        gateway.proxy.fail("proxy_replace_header_map_value", Status::InternalFailure);
        let forged = [(":method", "GET"), (":path", "/v1/models"), ("x-upstream-host", "192.0.2.66:80")];
        let stream = gateway.worker().request(forged, true);
        assert_eq!(destinations(&stream), Vec::<String>::new(), "{status:?}");
    }
}

/// A shared value that cannot be read must not be taken for one that is not there, and written over.
#[test]
fn what_others_have_shared_survives_a_worker_that_cannot_read_it() {
    for status in STATUSES {
        let mut gateway = Gateway::with_workers(2, 2);
        gateway.run(500);
        let before = gateway.proxy.shared_data("kvroute/1/roster");
        gateway.proxy.fail("proxy_get_shared_data", status);
        let one_host = config(1, json!({ "hosts": ["10.9.9.9:8000"] }));
        assert!(gateway.worker().update(&one_host).is_ok());
        gateway.run(500);
        assert_eq!(gateway.proxy.shared_data("kvroute/1/roster"), before, "{status:?}");
    }
}

#[test]
fn a_rescue_that_envoy_refuses_is_tried_again() {
    for function in ["proxy_set_effective_context", "proxy_continue_stream"] {
        let options = Options { allow_on_headers_stop_iteration: false, ..Options::default() };
        let gateway = Gateway::with_options(1, 2, &config(2, json!({})), options);
        gateway.proxy.fail(function, Status::InternalFailure);
        let wait = |milliseconds: usize| {
            for _ in 0..milliseconds / 50 {
                gateway.proxy.advance(50);
                gateway.worker().tick();
            }
        };
        let streams: Vec<Stream> = (0..4)
            .map(|_| {
                let body = chat_body("hello");
                let stream = gateway.worker().request(chat_headers(body.len()), false);
                stream.body(body.as_bytes(), true);
                // The last one comes less than a second before holding is given up.
                wait(200);
                stream
            })
            .collect();
        wait(3_000);
        assert!(streams.iter().all(Stream::is_held), "{function}");
        gateway.proxy.heal();
        wait(1_500);
        for stream in streams {
            assert!(!stream.is_held(), "{function}");
            assert!(!destinations(&stream).is_empty(), "{function}");
            stream.finish();
        }
        wait(100);
        assert_eq!(gateway.proxy.counter("kvroute_requests_rescued_total"), 4, "{function}");
        assert!(refused(&gateway) > 4, "{function}");
        assert_eq!(gateway.in_flight(), [], "{function}");
    }
}

#[test]
fn header_values_of_any_bytes_pass_in_requests_answers_and_polls() {
    let cookie = vec![0xc0; 60 << 10];
    let headers: [(&str, &[u8]); 4] = [
        ("user-agent", b"test-\xc7\xb5\x81\xff-pr\xf2be"),
        ("x-session-id", b"\xfe\xfe\xfd"),
        ("content-type", b"application/json\xc3\xa8\xff"),
        ("cookie", &cookie),
    ];
    for (name, value) in headers {
        let mut gateway = Gateway::new(2);
        gateway.run(200);
        let body = chat_body("hello");
        let length = body.len().to_string();
        let mut head: Vec<(&str, &[u8])> = vec![
            (":method", b"POST"),
            (":path", b"/v1/chat/completions"),
            (":authority", b"gateway"),
            ("content-length", length.as_bytes()),
            (name, value),
        ];
        let stream = gateway.worker().request(head.clone(), false);
        stream.body(body.as_bytes(), true);
        assert!(!stream.is_held(), "{name}");
        assert!(stream.upstream_body() == body.as_bytes(), "{name}: the body passes unchanged");
        assert!(stream.headers().iter().any(|pair| pair == (name, value)), "{name} passes unchanged");
        stream.set_property(&["upstream", "address"], host(0).as_bytes());
        stream.respond_from_nowhere(200, [(name, value)]);
        assert!(stream.response_headers().iter().any(|pair| pair == (name, value)), "{name}");
        stream.response_body(b"{}", true);
        stream.finish();
        head.retain(|(other, _)| *other == name);
        let polls = gateway.proxy.counter("kvroute_polls_ok_total");
        while gateway.proxy.calls().is_empty() {
            gateway.proxy.advance(50);
            gateway.worker().tick();
        }
        for call in gateway.proxy.calls() {
            gateway.proxy.answer_with(&call, 200, head.clone(), exposition(1, 0).as_bytes());
        }
        gateway.run(100);
        assert!(gateway.proxy.counter("kvroute_polls_ok_total") > polls, "{name}: the poll counts");
        assert_eq!(gateway.in_flight(), [], "{name}");
        assert_eq!(refused(&gateway), 0, "{name}");
        assert_eq!(gateway.panics(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn an_answer_of_which_envoy_does_not_tell_the_upstream_changes_nothing() {
    let mut gateway = Gateway::new(2);
    for address in [None, Some(&b""[..]), Some(b"\xff\xfe"), Some(b"/run/engine.sock")] {
        let stream = gateway.chat("hello");
        if let Some(address) = address {
            stream.set_property(&["upstream", "address"], address);
        }
        stream.respond_from_nowhere(200, [("content-type", "application/json")]);
        stream.response_body(b"{}", true);
        assert_eq!(stream.client_body(), b"{}");
        stream.finish();
        assert_eq!(gateway.in_flight(), [], "{address:?}");
    }
    gateway.run(100);
    assert_eq!(refused(&gateway), 0);
    assert_eq!(gateway.panics(), Vec::<String>::new());
}

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
    for (function, status) in faults() {
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

#[test]
fn every_host_call_may_fail_from_the_start() {
    let rare = RARE.into_iter().filter(|function| *function != "proxy_set_effective_context");
    let rare = rare.flat_map(|function| STATUSES.map(|status| (function, status)));
    for (function, status) in faults().chain(rare) {
        let what = format!("{function} says {status:?}");
        let proxy = Gateway::empty();
        proxy.fail(function, status);
        let Ok(worker) = proxy.worker(&config(2, json!({}))) else {
            // Without its configuration or its ticks the filter is none.
            let needed = ["proxy_get_buffer_bytes", "proxy_set_tick_period_milliseconds"];
            assert!(needed.contains(&function), "{what}");
            continue;
        };
        worker.tick();
        let body = chat_body("hello");
        let stream = worker.request(chat_headers(body.len()), false);
        stream.body(body.as_bytes(), true);
        assert!(!stream.is_held(), "{what}");
        assert!(stream.upstream_body() == body.as_bytes(), "{what}: the body passes unchanged");
        stream.abort();
        assert!(proxy.log().iter().all(|line| line.level < 5), "{what}");
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
