//! Clients do not choose the host, and do not speak in the filter's name.

use fake_proxy::{Status, Stream};
use serde_json::json;

use crate::gateway::{chat_body, chat_headers, config, destinations, host, text, Gateway};

const FORGED: &str = "192.0.2.66:80";

const SPELLINGS: [&str; 4] = ["x-upstream-host", "X-Upstream-Host", "X-UPSTREAM-HOST", "x-uPstream-hOst"];

/// Headers of the kinds of request there are; with whether a body follows.
fn kinds() -> Vec<(Vec<(&'static str, &'static str)>, bool)> {
    let post = [(":method", "POST"), (":authority", "gateway")];
    let with = |more: &[(&'static str, &'static str)]| [&post[..], more].concat();
    vec![
        (with(&[(":path", "/v1/chat/completions"), ("content-type", "application/json")]), true),
        (with(&[(":path", "/v1/completions")]), true),
        (with(&[(":path", "/v1/chat/completions"), ("content-encoding", "gzip")]), true),
        (
            with(&[
                (":path", "/v1/audio/transcriptions"),
                ("content-type", "multipart/form-data; boundary=x"),
            ]),
            true,
        ),
        (with(&[(":path", "/elsewhere")]), true),
        (vec![(":method", "GET"), (":path", "/v1/models"), (":authority", "gateway")], false),
        (vec![(":method", "GET"), (":path", "/ws"), ("upgrade", "websocket")], true),
        (vec![(":method", "CONNECT"), (":authority", "gateway:443")], true),
        (vec![], false),
    ]
}

fn send(gateway: &Gateway, headers: Vec<(&str, &str)>, has_body: bool) -> Stream {
    let stream = gateway.worker().request(headers, !has_body);
    if has_body {
        stream.body(chat_body("hello").as_bytes(), true);
    }
    assert!(!stream.is_held());
    stream
}

fn assert_only_ours(stream: &Stream) {
    let known: Vec<String> = (0..4).map(host).collect();
    for name in destinations(stream) {
        assert!(known.contains(&name), "{name} in {:?}", stream.headers());
    }
}

#[test]
fn a_destination_that_a_client_sends_never_reaches_the_cluster() {
    let gateway = Gateway::new(4);
    for spelling in SPELLINGS {
        for (mut headers, has_body) in kinds() {
            headers.push((spelling, FORGED));
            assert_only_ours(&send(&gateway, headers, has_body));
        }
    }
}

#[test]
fn nor_does_it_sent_twice_or_as_a_list_that_begins_well() {
    let gateway = Gateway::new(4);
    let list = format!("{}, {FORGED}", host(0));
    for (mut headers, has_body) in kinds() {
        headers.insert(0, ("x-upstream-host", FORGED));
        headers.push(("X-Upstream-Host", &list));
        assert_only_ours(&send(&gateway, headers, has_body));
    }
}

/// Where the filter's own destination cannot be set, or is not decided yet, the client's is gone already.
#[test]
fn it_is_removed_and_not_only_overwritten() {
    let gateway = Gateway::new(4);
    gateway.proxy.fail("proxy_replace_header_map_value", Status::InternalFailure);
    for spelling in SPELLINGS {
        for (mut headers, has_body) in kinds() {
            headers.push((spelling, FORGED));
            let stream = gateway.worker().request(headers.clone(), !has_body);
            assert_eq!(destinations(&stream), Vec::<String>::new(), "{headers:?}");
        }
    }
}

#[test]
fn a_request_of_every_kind_that_has_hosts_goes_to_one_of_them() {
    let gateway = Gateway::new(4);
    for (headers, has_body) in kinds() {
        let stream = send(&gateway, headers.clone(), has_body);
        assert!(!destinations(&stream).is_empty(), "{headers:?}");
    }
}

#[test]
fn with_another_destination_header_that_one_is_guarded_and_set() {
    let name = "x-gateway-destination-endpoint";
    let config = config(4, json!({ "destination_header": name }));
    let gateway = Gateway::with_config(1, 4, &config);
    let body = chat_body(&text(1, 1000));
    let mut headers = chat_headers(body.len());
    headers.push(("X-Gateway-Destination-Endpoint".to_owned(), FORGED.to_owned()));
    let stream = gateway.worker().request(headers, false);
    stream.body(body.as_bytes(), true);
    let values = stream.headers().all(name);
    assert_eq!(values.len(), 1);
    assert!(!values[0].contains(FORGED), "{values:?}");
    assert!(values[0].starts_with("10.0.0."), "{values:?}");
}

#[test]
fn debug_headers_that_a_client_sends_are_dropped() {
    let gateway = Gateway::new(2);
    for (mut headers, has_body) in kinds() {
        headers.push(("x-kvroute-host", FORGED));
        headers.push(("X-Kvroute-Reason", "forged"));
        headers.push(("X-KVROUTE-MATCHED", "1/1"));
        let stream = send(&gateway, headers, has_body);
        let upstream = stream.headers();
        let ours = upstream.iter().filter(|(name, _)| name.starts_with("x-kvroute-"));
        assert_eq!(ours.collect::<Vec<_>>(), [], "{upstream:?}");
    }
}

#[test]
fn header_values_that_are_not_utf8_do_no_harm() {
    let gateway = Gateway::new(2);
    let agent: &[u8] = b"crawler/\xff\xfe\xc3";
    let body = chat_body("hello");
    for has_body in [false, true] {
        let headers: [(&str, &[u8]); 5] = [
            (":method", b"POST"),
            (":path", b"/v1/chat/completions"),
            ("user-agent", agent),
            ("content-type", b"application/json\xff"),
            ("x-upstream-host", b"\xff\xff"),
        ];
        let stream = gateway.worker().request(headers, !has_body);
        if has_body {
            stream.body(body.as_bytes(), true);
        }
        assert!(stream.headers().iter().any(|pair| pair == ("user-agent", agent)));
        assert_only_ours_of_two(&stream);
    }
    let next = gateway.route_chat("still there?");
    assert!(next == host(0) || next == host(1));
}

fn assert_only_ours_of_two(stream: &Stream) {
    for name in destinations(stream) {
        assert!([host(0), host(1)].contains(&name), "{name}");
    }
}

#[test]
fn without_debug_headers_a_response_carries_none() {
    let config = config(2, json!({ "debug_headers": false }));
    let gateway = Gateway::with_config(1, 2, &config);
    let stream = gateway.chat("hello");
    stream.respond(&host(0), 200, &[]);
    let headers = stream.response_headers();
    assert!(!headers.iter().any(|(name, _)| name.starts_with("x-kvroute-")));
}
