//! What polls say is used; what they do not say is unknown, which is neither idle nor full.

use std::collections::BTreeMap;

use crate::gateway::{exposition, host, text, Engine, Gateway};

/// One that does not listen for polls has shown by then that it generates, and has warmed up.
const WARM_MS: u64 = 35_000;

/// Answers that tell nothing about load.
fn useless() -> Vec<(&'static str, Engine)> {
    let says = |status, body: &str| Engine::Says(status, body.to_owned());
    let nan = "vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n";
    let odd = "vllm:num_requests_running -3\nvllm:num_requests_waiting 1e400\n";
    vec![
        ("503", says(503, "upstream connect error or disconnect/reset before headers")),
        ("504", says(504, "upstream request timeout")),
        ("404", says(404, "{\"detail\":\"Not Found\"}")),
        ("307", says(307, "")),
        ("204", says(204, "")),
        ("500 with an idle page", says(500, &exposition(0, 0))),
        ("empty", says(200, "")),
        ("a comment", says(200, "# nothing here\n")),
        ("another exporter", says(200, "python_info{version=\"3\"} 1\n")),
        ("garbage", says(200, "\u{0}\u{1}{{{\"\n==\n")),
        ("html", says(200, "<html><body>It works!</body></html>")),
        ("NaN", says(200, nan)),
        ("negative and infinite", says(200, odd)),
        ("broken off", Engine::BreaksOff),
        ("silent", Engine::Silent),
    ]
}

/// Where 200 prompts that nobody has seen go, each done before the next comes.
fn spread(gateway: &mut Gateway) -> BTreeMap<String, usize> {
    let mut placed = BTreeMap::new();
    for n in 0..200 {
        let host = gateway.route_chat(&text(n, 1_500));
        *placed.entry(host).or_default() += 1;
        if n % 10 == 0 {
            gateway.run(50);
        }
    }
    placed
}

#[test]
fn a_host_that_tells_nothing_gets_its_fair_share_of_an_idle_fleet() {
    for (what, engine) in useless() {
        let mut gateway = Gateway::new(4);
        gateway.engines.insert(host(2), engine);
        gateway.run(WARM_MS);
        let placed = spread(&mut gateway);
        let ghost = placed.get(&host(2)).copied().unwrap_or_default();
        assert!((30..=70).contains(&ghost), "{what}: {placed:?}");
    }
}

#[test]
fn nor_does_it_look_idle_when_the_others_are_busy() {
    for (what, engine) in useless() {
        let mut gateway = Gateway::new(4);
        for n in 0..4 {
            let busy = Engine::Load { running: 30, waiting: 20 };
            gateway.engines.insert(host(n), busy);
        }
        gateway.engines.insert(host(2), engine);
        gateway.run(WARM_MS);
        let placed = spread(&mut gateway);
        let ghost = placed.get(&host(2)).copied().unwrap_or_default();
        assert!((20..=80).contains(&ghost), "{what}: {placed:?}");
    }
}

#[test]
fn a_host_that_is_polled_idle_is_preferred_to_busy_ones_and_to_unknown_ones() {
    let mut gateway = Gateway::new(4);
    for n in 0..2 {
        let busy = Engine::Load { running: 40, waiting: 30 };
        gateway.engines.insert(host(n), busy);
    }
    gateway.engines.insert(host(2), Engine::Says(503, String::new()));
    gateway.run(WARM_MS);
    let placed = spread(&mut gateway);
    // The unknown one has its share of what is new, and no more; the idle one all the rest.
    let of = |n: usize| placed.get(&host(n)).copied().unwrap_or_default();
    assert!((30..=70).contains(&of(2)) && of(2) + of(3) >= 195, "{placed:?}");
}

#[test]
fn when_every_poll_fails_nothing_is_refused_and_requests_in_flight_still_spread() {
    let mut gateway = Gateway::new(4);
    for n in 0..4 {
        gateway.engines.insert(host(n), Engine::Says(503, String::new()));
    }
    gateway.run(60_000);
    let streams: Vec<_> = (0..40).map(|n| gateway.chat(&text(n, 3_000))).collect();
    for slot in 0..4 {
        let open = gateway.requests_in_flight(slot);
        assert!((5..=15).contains(&open), "slot {slot} has {open} of 40");
    }
    assert!(streams.iter().all(|stream| stream.local_reply().is_none()));
}

#[test]
fn a_host_whose_answers_stop_becomes_unknown_and_returns_with_the_next() {
    let mut gateway = Gateway::new(2);
    let load = Engine::Load { running: 40, waiting: 40 };
    gateway.engines.insert(host(0), load);
    gateway.run(4_000);
    let placed = spread(&mut gateway);
    assert!(placed.get(&host(0)).copied().unwrap_or_default() < 20, "{placed:?}");
    // Its last word is too old now: it is no longer taken to be full.
    gateway.engines.insert(host(0), Engine::Silent);
    gateway.run(20_000);
    let mut placed = BTreeMap::new();
    for n in 1_000..1_200 {
        *placed.entry(gateway.route_chat(&text(n, 1_500))).or_insert(0) += 1;
    }
    let share = placed.get(&host(0)).copied().unwrap_or_default();
    assert!(share >= 50, "{placed:?}");
}

#[test]
fn failed_polls_are_counted_and_logged_with_what_failed() {
    let mut gateway = Gateway::new(2);
    gateway.engines.insert(host(1), Engine::Says(307, String::new()));
    gateway.run(5_000);
    let counters = gateway.proxy.counters();
    let failed: i64 = counters
        .iter()
        .filter(|(name, _)| name.starts_with("kvroute_polls_") && !name.contains("_ok_"))
        .map(|(_, count)| count)
        .sum();
    assert!(failed >= 5, "{counters:?}");
    let log = gateway.proxy.log();
    let named: Vec<_> =
        log.iter().filter(|line| line.text.contains("307") && line.text.contains(&host(1))).collect();
    assert!(!named.is_empty(), "the log names status and host");
    assert!(named.len() <= 3, "and does not repeat it at every poll: {}", named.len());
}

#[test]
fn calls_that_envoy_does_not_take_do_no_harm() {
    let mut gateway = Gateway::new(2);
    gateway.proxy.fail("proxy_http_call", fake_proxy::Status::InternalFailure);
    gateway.run(5_000);
    gateway.route_chat("hello");
    gateway.proxy.heal();
    gateway.run(2_000);
    assert_eq!(gateway.polls_by_host().len(), 2);
}

#[test]
fn a_request_in_flight_while_gauges_say_zero_still_counts() {
    let mut gateway = Gateway::new(4);
    gateway.run(2_000);
    // The engines claim to be idle all the while.
    let streams: Vec<_> = (0..80)
        .map(|n| {
            gateway.run(50);
            gateway.chat(&text(n, 3_000))
        })
        .collect();
    for slot in 0..4 {
        let open = gateway.requests_in_flight(slot);
        assert!((12..=28).contains(&open), "slot {slot} has {open} of 80");
    }
    drop(streams);
}
