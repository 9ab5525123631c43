//! Shadow mode decides and learns, and touches nothing; off does not even look; shares are kept.

use kvroute::core::config::Routing;
use std::collections::BTreeMap;

use fake_proxy::{Options, Status, Stream};
use serde_json::{json, Value};

use crate::gateway::{
    chat, chat_body, chat_headers, config, destination, destinations, host, reason, serve, text, Engine,
    Gateway,
};

fn gateway(hosts: usize, mode: Value) -> Gateway {
    Gateway::with_config(1, hosts, &config(hosts, json!({ "mode": mode })))
}

fn shadow(hosts: usize) -> Gateway {
    gateway(hosts, json!("shadow"))
}

/// Envoy's own policy sends it to host `n`, which answers with a short stream.
fn served_by(stream: &Stream, n: usize) {
    stream.respond(&host(n), 200, &[("content-type", "text/event-stream")]);
    stream.response_body(b"data: [DONE]\n\n", true);
    stream.finish();
}

/// A whole chat that Envoy sends to host `n`. Answers the host that kvroute would have chosen, and the bytes
/// of the prompt that it took to be there.
fn chat_at(gateway: &Gateway, prompt: &str, n: usize) -> (String, u64) {
    let stream = gateway.chat(prompt);
    served_by(&stream, n);
    let headers = stream.response_headers();
    let matched = headers.get("x-kvroute-matched").expect("debug headers are on");
    let (matched, _) = matched.split_once('/').expect("matched/total");
    (headers.get("x-kvroute-host").expect("a host"), matched.parse().expect("bytes"))
}

/// What the counters of shadow mode say, once they have been handed over.
fn counters(gateway: &mut Gateway) -> BTreeMap<String, i64> {
    gateway.run(100);
    let all = gateway.proxy.counters().into_iter();
    let named =
        all.filter_map(|(name, value)| Some((name.strip_prefix("kvroute_shadow_")?.to_owned(), value)));
    named.filter(|(_, value)| *value != 0).collect()
}

fn expect(counts: &[(&str, i64)]) -> BTreeMap<String, i64> {
    counts.iter().map(|(name, value)| (format!("{name}_total"), *value)).collect()
}

#[test]
fn nothing_of_a_request_is_held_or_changed() {
    let gateway = shadow(4);
    for (n, bytes) in [10, 3_000, 100_000].into_iter().enumerate() {
        for piece in [7_000, usize::MAX] {
            let body = chat_body(&text(n, bytes));
            let mut headers = chat_headers(body.len());
            headers.push(("x-upstream-host".to_owned(), host(1)));
            headers.push(("x-kvroute-host".to_owned(), host(1)));
            let stream = gateway.worker().request(headers, false);
            assert!(!stream.is_held());
            for piece in body.as_bytes().chunks(piece) {
                stream.body(piece, false);
                assert_eq!(stream.held_bytes(), 0);
            }
            stream.body(b"", true);
            assert!(stream.upstream_body() == body.as_bytes());
            let sent = stream.headers();
            let forged =
                sent.iter().filter(|(name, _)| *name == "x-upstream-host" || name.starts_with("x-kvroute"));
            assert_eq!(forged.count(), 0);
            served_by(&stream, 0);
        }
    }
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn the_same_body_is_decided_alike_on_and_in_shadow_in_whatever_pieces() {
    for piece in [900, 5_000, usize::MAX] {
        let told = ["on", "shadow"].map(|mode| {
            let gateway = gateway(4, json!(mode));
            let mut told = Vec::new();
            for (n, bytes) in [(1, 2_000), (1, 3_000), (2, 90_000), (2, 120_000)] {
                let body = chat_body(&text(n, bytes));
                let stream = gateway.worker().request(chat_headers(body.len()), false);
                body.as_bytes().chunks(piece).for_each(|piece| {
                    stream.body(piece, false);
                });
                stream.body(b"", true);
                let decided = stream.filter_state("kvroute.host").expect("decided");
                stream.respond(&decided, 200, &[]);
                stream.response_body(b"data: {}\n\n", true);
                stream.finish();
                let matched = stream.filter_state("kvroute.matched");
                told.push((decided, reason(&stream).trim_start_matches("shadow_").to_owned(), matched));
            }
            told
        });
        assert_eq!(told[0], told[1]);
    }
}

#[test]
fn a_request_counts_on_the_host_that_answers_it_until_its_end() {
    let gateway = shadow(4);
    let stream = gateway.chat(&text(1, 6_000));
    assert_eq!(gateway.in_flight(), [], "nobody knows yet who has it");
    stream.respond(&host(3), 200, &[]);
    assert_eq!(gateway.requests_in_flight(3), 1);
    assert!(gateway.prefill_in_flight(3) > 1_000, "{}", gateway.prefill_in_flight(3));
    stream.response_body(b"data: {}\n\n", false);
    assert_eq!((gateway.requests_in_flight(3), gateway.prefill_in_flight(3)), (1, 0));
    stream.response_body(b"data: [DONE]\n\n", true);
    stream.finish();
    assert_eq!(gateway.in_flight(), []);
    // The same again is hardly any work there, and all of it elsewhere.
    for (n, works) in [(3, false), (1, true)] {
        let stream = gateway.chat(&text(1, 6_000));
        stream.respond(&host(n), 200, &[]);
        assert_eq!(gateway.prefill_in_flight(n) > 1_000, works, "{}", gateway.prefill_in_flight(n));
        stream.finish();
    }
}

#[test]
fn in_flight_returns_to_zero_however_requests_end() {
    let gateway = shadow(4);
    for n in 0..24 {
        let stream = gateway.chat(&text(n, 3_000));
        match n % 6 {
            0 => served_by(&stream, n % 4),
            1 => stream.abort(),
            2 => {
                stream.respond(&host(0), 200, &[]);
                stream.reset_by_upstream();
            }
            3 => {
                stream.fail(Some(&host(1)), 503, 0x20);
                stream.finish();
            }
            4 => served_by(&stream, 200),
            _ => {
                stream.fail(None, 503, 0x2);
                stream.finish();
            }
        }
    }
    let get = gateway.worker().request([(":method", "GET"), (":path", "/v1/models")], true);
    assert_eq!(destinations(&get), [""; 0]);
    get.respond(&host(2), 200, &[]);
    assert_eq!(gateway.requests_in_flight(2), 1);
    get.finish();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn what_was_served_where_is_known_when_routing_is_switched_on() {
    let gateway = shadow(4);
    let prompt = |n: usize| text(n, 2_000 + 5_000 * n);
    // Neither where kvroute would have sent it, nor all on one.
    for n in 0..12 {
        chat_at(&gateway, &prompt(n), n % 4);
    }
    gateway.worker().update(&config(4, json!({}))).expect("a good configuration");
    for n in 0..12 {
        let stream = gateway.chat(&prompt(n));
        assert_eq!(destination(&stream), host(n % 4), "prompt {n}");
        serve(&stream);
        assert_eq!(reason(&stream), "prefix");
    }
}

#[test]
fn a_prompt_that_is_answered_before_it_has_ended_is_remembered_to_its_end() {
    let gateway = shadow(2);
    let body = chat_body(&text(1, 200_000));
    for _ in 0..2 {
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        let (head, rest) = body.as_bytes().split_at(60_000);
        stream.body(head, false);
        stream.respond(&host(1), 200, &[]);
        stream.body(rest, true);
        stream.response_body(b"data: {}\n\n", true);
        stream.finish();
    }
    assert_eq!(gateway.in_flight(), []);
    gateway.worker().update(&config(2, json!({ "prompt": { "hold_bytes": 1_000_000 } }))).expect("good");
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    stream.body(body.as_bytes(), true);
    let matched: u64 =
        stream.filter_state("kvroute.matched").and_then(|bytes| bytes.parse().ok()).expect("bytes");
    assert_eq!(destination(&stream), host(1));
    assert!(matched > 150_000, "{matched}");
    stream.abort();
}

#[test]
fn what_failed_teaches_nothing_and_is_not_compared() {
    let mut gateway = shadow(2);
    for status in [404, 429, 500, 503] {
        let stream = gateway.chat(&text(1, 4_000));
        stream.respond(&host(0), status, &[]);
        stream.response_body(b"{\"error\":{}}", true);
        stream.finish();
        assert_eq!(gateway.in_flight(), []);
    }
    assert_eq!(counters(&mut gateway), expect(&[]));
    let (_, matched) = chat_at(&gateway, &text(1, 4_000), 0);
    assert_eq!(matched, 0);
}

/// A token is 4 bytes as long as no engine has told.
#[test]
fn what_routing_would_have_saved_is_the_difference_to_the_host_that_served() {
    let mut gateway = shadow(2);
    gateway.run(1_000);
    let prompt = text(1, 8_000);

    let (chosen, _) = chat_at(&gateway, &prompt, 0);
    let agreed = i64::from(chosen == host(0));
    assert_eq!(counters(&mut gateway).get("saved_tokens_total"), None, "nobody held any of it");

    // Host 0 has it, host 1 gets it.
    let (chosen, matched) = chat_at(&gateway, &prompt, 1);
    assert_eq!(chosen, host(0));
    assert!(matched > 8_000);
    let saved = matched as i64 / 4;
    let so_far = [("requests", 2), ("agreed", agreed), ("saved_tokens", saved)];
    assert_eq!(counters(&mut gateway), expect(&so_far).into_iter().filter(|(_, n)| *n != 0).collect());

    // Now both have it: whoever gets it, nothing is saved or lost.
    let (chosen, _) = chat_at(&gateway, &prompt, 0);
    let agreed = agreed + i64::from(chosen == host(0));
    let counts = counters(&mut gateway);
    assert_eq!((counts["saved_tokens_total"], counts.get("lost_tokens_total")), (saved, None));
    assert_eq!(counts["requests_total"], 3);
    assert_eq!(counts.get("agreed_total").copied().unwrap_or(0), agreed);
}

#[test]
fn what_routing_would_have_cost_counts_as_lost() {
    let mut gateway = shadow(2);
    let prompt = text(1, 8_000);
    chat_at(&gateway, &prompt, 0);
    let before = counters(&mut gateway);
    // The holder is so loaded that kvroute would have spilled; Envoy's policy does not.
    gateway.engines.insert(host(0), Engine::Load { running: 60, waiting: 0 });
    gateway.run(1_000);
    let stream = gateway.chat(&prompt);
    served_by(&stream, 0);
    assert_eq!(reason(&stream), "shadow_spill");
    assert_eq!(stream.filter_state("kvroute.host"), Some(host(1)));
    let counts = counters(&mut gateway);
    let total: u64 = stream.filter_state("kvroute.prompt_bytes").and_then(|n| n.parse().ok()).expect("bytes");
    assert_eq!(counts["lost_tokens_total"], total as i64 / 4, "all of it was there");
    assert_eq!(counts.get("saved_tokens_total"), before.get("saved_tokens_total"));
    // 60 sequences in the batch, each of them slowed by a part of a prefill of some 2,000 tokens.
    let routing = Routing::default();
    let prefill_ms = 1_000.0 * (total as f64 / 4.0) / routing.prefill_tokens_per_s;
    let batch = 60.0 * (routing.decode_ms + routing.batch_slowdown * prefill_ms);
    let avoided = counts["avoided_ms_total"] as f64;
    assert!((avoided - batch).abs() < 0.01 * batch, "{avoided} ms of {batch}");
    assert_eq!(counts.get("added_ms_total"), None);
}

#[test]
fn standing_behind_others_for_the_sake_of_a_prefix_counts_as_added() {
    let mut gateway = shadow(2);
    let prompt = text(1, 20_000);
    chat_at(&gateway, &prompt, 0);
    gateway.engines.insert(host(0), Engine::Load { running: 2, waiting: 0 });
    gateway.run(1_000);
    let (chosen, _) = chat_at(&gateway, &prompt, 1);
    assert_eq!(chosen, host(0), "a little load is not worth a prefill");
    let counts = counters(&mut gateway);
    let two = (2.0 * Routing::default().decode_ms) as i64;
    assert!((two..=two + 2).contains(&counts["added_ms_total"]), "{counts:?}");
    assert_eq!(counts.get("avoided_ms_total"), None);
}

#[test]
fn requests_in_shadow_are_not_counted_as_sent() {
    let mut gateway = shadow(2);
    for n in 0..6 {
        chat_at(&gateway, &text(n / 2, 3_000), n % 2);
    }
    assert_eq!(counters(&mut gateway)["requests_total"], 6);
    let sent = gateway
        .proxy
        .counters()
        .into_iter()
        .filter(|(name, count)| name.starts_with("kvroute_requests_") && *count > 0);
    assert_eq!(sent.collect::<Vec<_>>(), []);
    // What came of the prompts, all the same.
    assert!(gateway.proxy.counter("kvroute_prompt_bytes_total") > 6 * 3_000);
    assert!(gateway.proxy.counter("kvroute_sent_tokens_total") == 0);
}

#[test]
fn shadow_needs_no_held_headers() {
    let options = Options { allow_on_headers_stop_iteration: false, ..Options::default() };
    let config = config(2, json!({ "mode": "shadow" }));
    let mut gateway = Gateway::with_options(1, 2, &config, options);
    let prompt = text(1, 4_000);
    chat_at(&gateway, &prompt, 1);
    let (chosen, matched) = chat_at(&gateway, &prompt, 0);
    assert_eq!(chosen, host(1));
    assert!(matched > 4_000);
    gateway.run(2_000);
    assert_eq!(gateway.proxy.counter("kvroute_requests_rescued_total"), 0);
}

#[test]
fn where_headers_cannot_be_held_the_shadowed_share_is_read_all_the_same() {
    let options = Options { allow_on_headers_stop_iteration: false, ..Options::default() };
    let config = config(2, json!({ "mode": { "on": 50, "shadow": 50 } }));
    let mut gateway = Gateway::with_options(1, 2, &config, options);
    let body = chat_body(&text(1, 4_000));
    let send = |gateway: &Gateway| {
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        stream.body(body.as_bytes(), true);
        stream
    };
    for _ in 0..20 {
        let stream = send(&gateway);
        gateway.run(1_200);
        stream.abort();
    }
    let mut reasons: Vec<String> = Vec::new();
    for _ in 0..40 {
        let stream = send(&gateway);
        served_by(&stream, 0);
        reasons.push(reason(&stream));
    }
    reasons.sort();
    reasons.dedup();
    assert!(reasons.contains(&"not_held".to_owned()), "holding is given up: {reasons:?}");
    assert!(reasons.contains(&"shadow_prefix".to_owned()), "{reasons:?}");
    assert!(!reasons.contains(&"shadow_not_held".to_owned()), "{reasons:?}");
}

/// The model stands behind the messages. A prompt that was decided with all of it known is compared by all of it.
#[test]
fn the_same_text_for_another_model_saves_nothing() {
    let body = |model: &str| {
        chat_body(&text(1, 8_000)).replace("\"model\":\"m\"", &format!("\"model\":\"{model}\""))
    };
    let more = json!({ "mode": "shadow", "prompt": { "hold_bytes": body("a").len() } });
    let mut gateway = Gateway::with_config(1, 2, &config(2, more));
    for model in ["a", "b"] {
        let body = body(model);
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        stream.body(body.as_bytes(), false);
        stream.body(b"", true);
        served_by(&stream, 0);
        assert_eq!(stream.filter_state("kvroute.matched").as_deref(), Some("0"));
    }
    let counts = counters(&mut gateway);
    assert_eq!((counts["requests_total"], counts.get("saved_tokens_total")), (2, None));
    assert_eq!(counts.get("lost_tokens_total"), None);
    assert_eq!(gateway.proxy.histogram("kvroute_match_percent_predicted"), [0, 0]);
}

#[test]
fn where_it_does_not_show_who_served_nothing_is_learned_and_nothing_held() {
    for function in
        ["proxy_get_property", "proxy_set_property", "proxy_get_buffer_bytes", "proxy_get_header_map_value"]
    {
        let mut gateway = shadow(2);
        gateway.proxy.fail(function, Status::BadArgument);
        for n in 0..3 {
            let stream = gateway.chat(&text(1, 4_000));
            served_by(&stream, n % 2);
        }
        gateway.proxy.heal();
        assert_eq!(gateway.in_flight(), [], "{function}");
        assert_eq!(gateway.panics(), [""; 0], "{function}");
        chat_at(&gateway, &text(1, 4_000), 1);
        let (chosen, matched) = chat_at(&gateway, &text(1, 4_000), 0);
        assert!(chosen == host(1) || function == "proxy_set_property", "{function}");
        assert!(matched > 4_000, "{function}");
        assert!(counters(&mut gateway)["requests_total"] >= 2, "{function}");
    }
}

#[test]
fn off_removes_what_a_client_must_not_send_and_does_nothing_else() {
    let mut gateway = gateway(2, json!("off"));
    let before = gateway.proxy.traffic();
    let body = chat_body(&text(1, 50_000));
    let mut headers = chat_headers(body.len());
    headers.push(("x-upstream-host".to_owned(), host(1)));
    headers.push(("x-kvroute-reason".to_owned(), "forged".to_owned()));
    let stream = gateway.worker().request(headers, false);
    assert!(!stream.is_held());
    stream.body(body.as_bytes(), true);
    assert_eq!(destinations(&stream), [""; 0]);
    assert_eq!(stream.headers().get("x-kvroute-reason"), None);
    served_by(&stream, 0);
    assert!(!stream.response_headers().iter().any(|(name, _)| name.starts_with("x-kvroute")));
    assert_eq!(stream.filter_state("kvroute.host"), None);
    let traffic = gateway.proxy.traffic().since(&before);
    assert_eq!((traffic.copied("request_body"), traffic.copied("response_body")), (0, 0));
    // Reads the headers, and removes two.
    assert_eq!(traffic.all_calls(), 3, "{traffic:?}");
    gateway.run(100);
    assert_eq!(gateway.proxy.counter("kvroute_requests_off_total"), 1);
    assert_eq!(gateway.in_flight(), []);
}

/// Each share within five standard deviations.
#[test]
fn requests_are_drawn_in_the_stated_shares() {
    const REQUESTS: usize = 2_000;
    for (on, shadow) in [(10.0, 60.0), (50.0, 50.0), (0.0, 2.5), (99.5, 0.0), (100.0, 0.0)] {
        let gateway =
            Gateway::with_config(2, 2, &config(2, json!({ "mode": { "on": on, "shadow": shadow } })));
        let mut seen = [0; 3];
        for n in 0..REQUESTS {
            let stream = chat(&gateway.workers[n % 2], "hi");
            let is_on = !destinations(&stream).is_empty();
            served_by(&stream, 0);
            let told = stream.response_headers().get("x-kvroute-reason");
            let is_shadow = told.as_deref().is_some_and(|reason| reason.starts_with("shadow_"));
            assert!(!(is_on && is_shadow) && told.is_some() == (is_on || is_shadow));
            seen[if is_on { 0 } else { 2 - usize::from(is_shadow) }] += 1;
        }
        for (seen, percent) in seen.into_iter().zip([on, shadow, 100.0 - on - shadow]) {
            let share = percent / 100.0;
            let likely = REQUESTS as f64 * share;
            let deviation = (likely * (1.0 - share)).sqrt();
            assert!(
                (f64::from(seen) - likely).abs() <= 5.0 * deviation,
                "{seen} for {percent} % of {REQUESTS}"
            );
        }
        assert_eq!(gateway.in_flight(), []);
    }
}

/// A client that sends every second request must not thereby choose its mode, nor two workers draw alike.
#[test]
fn the_draw_follows_no_pattern_that_a_client_could_use() {
    let draw = || {
        let gateway = gateway(2, json!({ "on": 50, "shadow": 50 }));
        let drawn = (0..64).map(|_| {
            let stream = gateway.chat("hi");
            let is_on = !destinations(&stream).is_empty();
            stream.abort();
            is_on
        });
        drawn.collect::<Vec<bool>>()
    };
    let (first, second) = (draw(), draw());
    assert_ne!(first, second, "another process, another draw");
    let changes = first.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((12..=51).contains(&changes), "{changes} changes of 63");
}

#[test]
fn the_routed_share_goes_where_the_shadowed_share_was_served() {
    let gateway = gateway(4, json!({ "on": 50, "shadow": 50 }));
    let (mut routed, mut right) = (0, 0);
    for n in 0..60 {
        // Envoy serves each conversation where it likes, until one turn of it is routed: there it must have been.
        let prompt = text(n, 6_000);
        let mut held = Vec::new();
        for turn in 0..6 {
            let stream = gateway.chat(&prompt);
            let named = destinations(&stream).into_iter().next();
            let at = named.clone().unwrap_or_else(|| host((n + turn) % 4));
            if named.is_some() && !held.is_empty() {
                routed += 1;
                right += usize::from(held.contains(&at));
            }
            stream.respond(&at, 200, &[]);
            stream.response_body(b"data: {}\n\n", true);
            stream.finish();
            held.push(at);
        }
    }
    assert!(routed > 60);
    assert_eq!(right, routed);
    assert_eq!(gateway.in_flight(), []);
}
