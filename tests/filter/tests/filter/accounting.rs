//! What a request holds of a host it gives back, whichever way it ends.

use fake_proxy::Stream;
use serde_json::json;

use crate::gateway::{
    begin_response, chat_body, chat_headers, config, destination, destinations, host, serve, text, Gateway,
};

/// Envoy's response flags.
const CONNECT_FAILURE: u64 = 0x20;
const NO_HEALTHY_UPSTREAM: u64 = 0x2;

fn slot_of(address: &str) -> usize {
    let slot = (0..4).find(|&n| host(n) == address);
    slot.expect("one of the hosts")
}

/// A gateway with one chat decided; its prompt is new, so there is prefill to count.
fn decided() -> (Gateway, Stream, usize) {
    let gateway = Gateway::new(4);
    let stream = gateway.chat(&text(1, 6000));
    let slot = slot_of(&destination(&stream));
    assert_eq!(gateway.requests_in_flight(slot), 1);
    assert!(gateway.prefill_in_flight(slot) > 500);
    (gateway, stream, slot)
}

#[test]
fn a_request_counts_until_its_end_and_its_prefill_until_its_first_byte() {
    let (gateway, stream, slot) = decided();
    begin_response(&stream);
    stream.response_body(b"data: {}\n\n", false);
    assert_eq!(gateway.requests_in_flight(slot), 1);
    assert_eq!(gateway.prefill_in_flight(slot), 0);
    stream.response_body(b"data: [DONE]\n\n", true);
    assert_eq!(gateway.requests_in_flight(slot), 1);
    stream.finish();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_client_that_leaves_before_the_response_leaves_nothing_behind() {
    let (gateway, stream, _) = decided();
    stream.abort();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_client_that_leaves_during_the_response_leaves_nothing_behind() {
    let (gateway, stream, _) = decided();
    begin_response(&stream);
    stream.response_body(b"data: {}\n\n", false);
    stream.abort();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn an_upstream_that_breaks_off_leaves_nothing_behind() {
    for has_begun in [false, true] {
        let (gateway, stream, _) = decided();
        if has_begun {
            begin_response(&stream);
            stream.response_body(b"data: {}\n\n", false);
        }
        stream.reset_by_upstream();
        assert_eq!(gateway.in_flight(), []);
    }
}

#[test]
fn a_client_that_leaves_while_its_request_is_held_leaves_nothing_behind() {
    let gateway = Gateway::new(4);
    let body = chat_body(&text(1, 6000));
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    stream.body(&body.as_bytes()[..100], false);
    assert!(stream.is_held());
    stream.abort();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_retry_moves_the_request_to_the_host_that_served_it() {
    let (gateway, stream, slot) = decided();
    let next = destinations(&stream)[1].clone();
    let next_slot = slot_of(&next);
    stream.respond_after(2, &next, 200, &[("content-type", "text/event-stream")]);
    assert_eq!(gateway.requests_in_flight(slot), 0);
    assert_eq!(gateway.prefill_in_flight(slot), 0);
    assert_eq!(gateway.requests_in_flight(next_slot), 1);
    stream.response_body(b"data: {}\n\n", true);
    stream.finish();
    assert_eq!(gateway.in_flight(), []);
    // Its prefix is where it was served now, not where it was meant to be.
    let again = gateway.chat(&text(1, 6000));
    assert_eq!(destination(&again), next);
}

#[test]
fn a_host_that_nobody_knows_may_serve_a_request_without_upsetting_the_books() {
    let (gateway, stream, _) = decided();
    stream.respond("10.9.9.9:1", 200, &[]);
    stream.response_body(b"{}", true);
    stream.finish();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn replies_of_envoy_itself_end_the_request_like_any_other() {
    for (is_known, status, flags) in [
        (true, 503, CONNECT_FAILURE),
        (false, 503, NO_HEALTHY_UPSTREAM),
        (true, 504, 0x4),
        (false, 404, 0x100),
    ] {
        let (gateway, stream, _) = decided();
        let address = is_known.then(|| destination(&stream));
        stream.fail(address.as_deref(), status, flags);
        stream.finish();
        assert_eq!(gateway.in_flight(), [], "{status} {flags:x}");
    }
}

#[test]
fn a_request_that_the_codec_refused_is_logged_without_ever_counting() {
    let gateway = Gateway::new(4);
    gateway.worker().refused_by_codec();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn requests_decided_by_load_count_as_well() {
    let gateway = Gateway::new(4);
    let get = [(":method", "GET"), (":path", "/v1/models")];
    let stream = gateway.worker().request(get, true);
    let slot = slot_of(&destination(&stream));
    assert_eq!(gateway.requests_in_flight(slot), 1);
    serve(&stream);
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn an_early_response_while_the_body_still_comes_counts_once() {
    let gateway = Gateway::new(4);
    let body = chat_body(&text(1, 200_000));
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    let pieces: Vec<&[u8]> = body.as_bytes().chunks(16_384).collect();
    for piece in &pieces[..4] {
        stream.body(piece, false);
    }
    begin_response(&stream);
    stream.body(pieces[4], false);
    stream.response_body(b"too early", true);
    stream.finish();
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn many_streams_at_once_add_up_and_come_back_to_zero() {
    let gateway = Gateway::with_workers(3, 4);
    let streams: Vec<Stream> =
        (0..60).map(|n| crate::gateway::chat(&gateway.workers[n % 3], &text(n / 4, 3000))).collect();
    let total: i64 = (0..4).map(|slot| gateway.requests_in_flight(slot)).sum();
    assert_eq!(total, 60);
    for (n, stream) in streams.iter().enumerate() {
        match n % 4 {
            0 => serve(stream),
            1 => stream.abort(),
            2 => stream.reset_by_upstream(),
            _ => {
                stream.fail(Some(&destination(stream)), 503, CONNECT_FAILURE);
                stream.finish();
            }
        }
    }
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn what_a_dead_worker_had_in_flight_is_taken_back_in_the_end() {
    let mut gateway = Gateway::with_workers(2, 4);
    gateway.run(1000);
    let lost: Vec<Stream> =
        (0..5).map(|n| crate::gateway::chat(&gateway.workers[0], &text(n, 3000))).collect();
    gateway.run(200);
    drop(lost);
    gateway.workers.remove(0).kill();
    // The rest finds it, whether or not a new VM takes the dead one's place.
    gateway.run(20_000);
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn requests_in_flight_for_long_are_not_taken_for_a_leak() {
    let mut gateway = Gateway::with_workers(2, 4);
    let streams: Vec<Stream> =
        (0..6).map(|n| crate::gateway::chat(&gateway.workers[n % 2], &text(n, 3000))).collect();
    gateway.run(60_000);
    let requests = gateway.in_flight().into_iter().filter(|(name, _)| name.ends_with("requests"));
    assert_eq!(requests.map(|(_, count)| count).sum::<i64>(), 6);
    streams.iter().for_each(crate::gateway::serve);
    gateway.run(60_000);
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_prompt_that_was_decided_inside_its_instructions_has_all_of_them_in_the_books() {
    // The decision falls at 4 KiB of the body, before the message ends; its own blocks are no cache hit.
    for order in [["role", "content"], ["content", "role"]] {
        let mut gateway = Gateway::new(4);
        gateway.run(1000);
        let message = |role: &str, content: &str| {
            let field =
                |key: &str| format!("\"{key}\":{}", json!(if key == "role" { role } else { content }));
            format!("{{{},{}}}", field(order[0]), field(order[1]))
        };
        let (system, user) = (message("system", &text(7, 4_500)), message("user", "And now?"));
        let body = format!(r#"{{"messages":[{system},{user}],"model":"m","stream":true}}"#);
        let stream = gateway.worker().request(chat_headers(body.len()), false);
        stream.body(body.as_bytes(), true);
        let slot = (0..4).find(|n| host(*n) == destination(&stream)).expect("a host");
        let booked = gateway.prefill_in_flight(slot);
        assert!((1_100..1_200).contains(&booked), "{order:?}: {booked} tokens for 4,500 bytes");
        stream.finish();
    }
}

#[test]
fn what_was_remembered_of_a_prompt_while_its_body_comes_is_no_cache_hit_of_its_own() {
    let settings = json!({ "prompt": { "hold_bytes": 8_192 } });
    let mut gateway = Gateway::with_config(1, 4, &config(4, settings));
    gateway.run(1000);
    // Decided while its role is not known yet; it is another than the first message's mostly is.
    let (long, more) = (text(7, 12_000), text(8, 9_000));
    let body = format!(
        r#"{{"messages":[{{"content":"{long}","role":"user"}},{{"content":"{more}","role":"tool"}}],"stream":true}}"#
    );
    let (head, rest) = body.as_bytes().split_at(14_000);
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    stream.body(head, false);
    let slot = (0..4).find(|n| host(*n) == destination(&stream)).expect("decided");
    begin_response(&stream);
    stream.body(rest, true);
    let booked = gateway.prefill_in_flight(slot);
    assert!((5_000..5_500).contains(&booked), "{booked} tokens for 21,000 bytes");
    stream.finish();
}
