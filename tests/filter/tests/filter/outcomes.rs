//! How requests end teaches whom to leave out, and when to try again.

use std::collections::BTreeMap;

use crate::gateway::{destination, host, serve, text, Gateway};

/// Sends `count` requests with new prompts, 50 ms apart. Host `bad` answers with `status`. Answers how many
/// went to each host.
fn run_with(
    gateway: &mut Gateway,
    bad: usize,
    status: u32,
    seeds: std::ops::Range<usize>,
) -> BTreeMap<String, usize> {
    let mut placed = BTreeMap::new();
    for n in seeds {
        gateway.run(50);
        let stream = gateway.chat(&text(n, 1_500));
        let went = destination(&stream);
        *placed.entry(went.clone()).or_default() += 1;
        if went == host(bad) && status != 200 {
            stream.respond(&went, status, &[]);
            stream.response_body(b"{\"error\":{}}", true);
            stream.finish();
        } else {
            serve(&stream);
        }
    }
    placed
}

#[test]
fn a_host_that_fails_every_request_is_left_out_until_it_works() {
    for status in [500, 502, 503, 504] {
        let mut gateway = Gateway::new(4);
        gateway.run(1_000);
        let first = run_with(&mut gateway, 2, status, 0..60);
        let failures = first.get(&host(2)).copied().unwrap_or_default();
        assert!(failures <= 6, "{status}: {first:?}");
        let later = run_with(&mut gateway, 2, status, 60..460);
        let failures = later.get(&host(2)).copied().unwrap_or_default();
        assert!(failures <= 8, "under 2 % of 400: {later:?}");
        // It works again, and is back within the longest back-off.
        run_with(&mut gateway, 2, 200, 460..700);
        let back = run_with(&mut gateway, 2, 200, 700..900);
        let share = back.get(&host(2)).copied().unwrap_or_default();
        assert!(share >= 30, "{back:?}");
    }
}

#[test]
fn errors_of_the_client_are_not_held_against_the_host() {
    for status in [400, 401, 404, 413, 422, 429] {
        let mut gateway = Gateway::new(4);
        gateway.run(1_000);
        let placed = run_with(&mut gateway, 2, status, 0..120);
        let share = placed.get(&host(2)).copied().unwrap_or_default();
        assert!(share >= 15, "{status}: {placed:?}");
    }
}

#[test]
fn a_host_that_cannot_be_reached_is_left_out_even_for_its_own_prompts() {
    let mut gateway = Gateway::new(4);
    gateway.run(1_000);
    let prompt = text(1, 5_000);
    let home = gateway.route_chat(&prompt);
    let mut attempts = 0;
    loop {
        let stream = gateway.chat(&prompt);
        if destination(&stream) != home {
            serve(&stream);
            break;
        }
        stream.fail(Some(&home), 503, 0x20);
        stream.finish();
        attempts += 1;
        assert!(attempts <= 5, "a prefix on a host that is gone is worth nothing");
    }
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_host_whose_requests_a_retry_had_to_rescue_is_left_out() {
    let mut gateway = Gateway::new(3);
    gateway.run(1_000);
    let mut first_named = 0;
    for n in 0..100 {
        gateway.run(50);
        let stream = gateway.chat(&text(n, 1_500));
        let named = crate::gateway::destinations(&stream);
        if named[0] == host(1) {
            first_named += 1;
            stream.respond_after(2, &named[1], 200, &[]);
            stream.response_body(b"{}", true);
            stream.finish();
        } else {
            serve(&stream);
        }
    }
    assert!(first_named <= 10, "named first {first_named} times of 100");
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn when_all_hosts_fail_all_are_tried() {
    let mut gateway = Gateway::new(2);
    gateway.run(1_000);
    for n in 0..40 {
        let stream = gateway.chat(&text(n, 1_500));
        let went = destination(&stream);
        stream.fail(Some(&went), 503, 0x20);
        stream.finish();
    }
    assert!(!crate::gateway::destinations(&gateway.chat("hello")).is_empty());
}
