//! A prompt goes where its prefix is, unless that host is so loaded that another answers sooner.

use std::collections::BTreeMap;

use serde_json::json;

use crate::gateway::{
    begin_response, chat, chat_headers, config, destination, destinations, host, reason, route_chat, text,
    Gateway,
};

/// A conversation of `turns` user messages, with answers between them.
fn conversation(seed: usize, turns: usize) -> String {
    let mut messages = vec![json!({ "role": "system", "content": text(seed, 2000) })];
    for turn in 0..turns {
        messages.push(json!({ "role": "user", "content": text(1000 * seed + turn, 700) }));
        messages.push(json!({ "role": "assistant", "content": text(5000 * seed + turn, 700) }));
    }
    messages.pop();
    json!({ "model": "m", "messages": messages }).to_string()
}

#[test]
fn every_turn_of_a_conversation_goes_to_the_host_of_the_first() {
    let mut gateway = Gateway::new(4);
    gateway.run(1000);
    for seed in 1..6 {
        let mut hosts = Vec::new();
        for turns in 1..5 {
            let body = conversation(seed, turns);
            let stream = gateway.worker().request(chat_headers(body.len()), false);
            stream.body(body.as_bytes(), true);
            hosts.push(destination(&stream));
            begin_response(&stream);
            let expected = if turns == 1 { "cold" } else { "prefix" };
            assert_eq!(reason(&stream), expected, "turn {turns} of {seed}");
            stream.finish();
            gateway.run(100);
        }
        hosts.dedup();
        assert_eq!(hosts.len(), 1, "{hosts:?}");
    }
}

#[test]
fn another_worker_knows_after_its_tick() {
    let mut gateway = Gateway::with_workers(2, 4);
    gateway.run(1000);
    for seed in 0..20 {
        let prompt = text(seed, 4000);
        let first = route_chat(&gateway.workers[0], &prompt);
        gateway.run(100);
        let stream = chat(&gateway.workers[1], &prompt);
        assert_eq!(destination(&stream), first);
        begin_response(&stream);
        assert_eq!(reason(&stream), "prefix");
        stream.finish();
    }
}

#[test]
fn a_worker_that_never_heard_of_a_prompt_still_names_the_same_home() {
    let gateway = Gateway::with_workers(2, 4);
    let same = (0..40).filter(|&seed| {
        let prompt = text(seed, 3000);
        route_chat(&gateway.workers[0], &prompt) == route_chat(&gateway.workers[1], &prompt)
    });
    let same = same.count();
    // Evening out the fleet's caches moves a few: both workers count what either has placed.
    assert!(same >= 32, "{same} of 40");
}

#[test]
fn different_prompts_are_spread() {
    let mut gateway = Gateway::new(4);
    gateway.run(1000);
    let mut placed: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..80 {
        *placed.entry(gateway.route_chat(&text(seed, 3000))).or_default() += 1;
    }
    assert_eq!(placed.len(), 4, "{placed:?}");
    assert!(placed.values().all(|&n| (8..=36).contains(&n)), "{placed:?}");
}

#[test]
fn requests_in_flight_on_the_holder_send_the_next_one_elsewhere_and_only_that() {
    let mut gateway = Gateway::new(2);
    gateway.run(1000);
    // Two prompts, each at home on another host.
    let (hot, busy) = (text(1, 8000), gateway.route_chat(&text(1, 8000)));
    let mut seeds = 2..;
    let (other, quiet) = loop {
        let prompt = text(seeds.next().unwrap_or(0), 8000);
        let host = gateway.route_chat(&prompt);
        if host != busy {
            break (prompt, host);
        }
    };
    let mut open = Vec::new();
    let spilled = loop {
        let stream = gateway.chat(&hot);
        let went = destination(&stream);
        begin_response(&stream);
        open.push(stream);
        if went != busy {
            break open.last();
        }
        assert!(open.len() < 200, "the holder takes everything");
    };
    assert!(open.len() > 2, "a holder with hardly any load keeps its prompt");
    assert_eq!(spilled.map(reason).as_deref(), Some("spill"));
    // The override is for that request: a prompt of the other host stays true to it.
    assert_eq!(gateway.route_chat(&other), quiet);
    for stream in &open {
        stream.finish();
    }
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn the_header_names_as_many_hosts_as_configured_and_none_twice() {
    for candidates in [1, 2, 3] {
        let config = config(4, json!({ "candidates": candidates }));
        let gateway = Gateway::with_config(1, 4, &config);
        let mut hosts = destinations(&gateway.chat(&text(1, 2000)));
        assert_eq!(hosts.len(), candidates);
        hosts.sort();
        hosts.dedup();
        assert_eq!(hosts.len(), candidates);
    }
    let gateway = Gateway::new(1);
    assert_eq!(destinations(&gateway.chat("alone")), [host(0)]);
}

#[test]
fn debug_headers_say_who_why_and_how_much() {
    let gateway = Gateway::new(2);
    let prompt = text(3, 5000);
    let first = gateway.route_chat(&prompt);
    let stream = gateway.chat(&prompt);
    begin_response(&stream);
    let headers = stream.response_headers();
    assert_eq!(headers.get("x-kvroute-host"), Some(first));
    assert_eq!(headers.get("x-kvroute-reason").as_deref(), Some("prefix"));
    let matched = headers.get("x-kvroute-matched").expect("matched");
    let (held, total) = matched.split_once('/').expect("held/total");
    let (held, total): (u64, u64) = (held.parse().unwrap(), total.parse().unwrap());
    assert!(held > 4000 && held <= total && total >= 5000, "{matched}");
}

#[test]
fn a_burst_with_one_new_prefix_stays_together_over_all_workers() {
    for burst in 0..10 {
        let mut gateway = Gateway::with_workers(8, 8);
        gateway.run(1000);
        let mut used: Vec<String> = Vec::new();
        let mut on_two = 0;
        let mut streams = Vec::new();
        for n in 0..40 {
            // No tick falls into the burst: nothing has been told by the journal.
            let prompt = format!("{} question {n}?", text(9000 + burst, 4096));
            let stream = chat(&gateway.workers[(n * 5 + burst) % 8], &prompt);
            let host = destination(&stream);
            if !used.contains(&host) {
                used.push(host);
            }
            if used.len() <= 2 {
                on_two = n + 1;
            }
            streams.push(stream);
        }
        // Until a host has a batch of its own.
        assert!(on_two >= 32 && used.len() <= 3, "{on_two} requests on two hosts, then {used:?}");
        streams.iter().for_each(|stream| stream.finish());
        gateway.run(100);
        assert!(gateway.in_flight().iter().all(|(_, requests)| *requests == 0));
    }
}
