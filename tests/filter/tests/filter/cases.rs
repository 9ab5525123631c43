//! Scenarios from the field, step by step: what stands in `tests/cases`, and what came of it here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fake_proxy::Stream;
use serde_json::json;

use crate::gateway::{
    begin_response, config, destination, destinations, host, polled_host, route_chat, serve, text, Engine,
    Gateway,
};

/// Envoy's response flag for an upstream that did not answer in time.
const UPSTREAM_TIMEOUT: u64 = 0x4;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";
const MESSAGES: &str = "/v1/messages";
const EMBEDDINGS: &str = "/v1/embeddings";

/// Every body, and where it is sent.
fn bodies() -> Vec<(&'static str, &'static str)> {
    let path_of = |name: &str| match name.get(..3)? {
        "C05" => Some(COMPLETIONS),
        "C08" => Some(GENERATE),
        "C13" => Some(MESSAGES),
        "C17" if name == "C17-c.json" => Some(COMPLETIONS),
        "C27" => Some("/v1/audio/transcriptions"),
        "C30" => Some(EMBEDDINGS),
        _ if name.ends_with(".yaml") || name.ends_with(".prom") => None,
        _ => Some(CHAT),
    };
    cases::FILES.iter().filter_map(|(name, _)| Some((*name, path_of(name)?))).collect()
}

fn post(gateway: &Gateway, path: &str, length: usize) -> Stream {
    let length = length.to_string();
    let headers = [
        (":method", "POST"),
        (":path", path),
        (":authority", "gateway"),
        ("content-type", "application/json"),
        ("content-length", &length),
    ];
    gateway.worker().request(headers, false)
}

/// A request with this body in one piece, decided and not answered.
fn send(gateway: &Gateway, path: &str, body: &[u8]) -> Stream {
    let stream = post(gateway, path, body.len());
    stream.body(body, true);
    assert!(!stream.is_held());
    stream
}

/// How many of `placed` each host is.
fn counts(placed: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    placed.into_iter().fold(BTreeMap::new(), |mut counts, host| {
        *counts.entry(host).or_default() += 1;
        counts
    })
}

/// What an engine exposes.
fn page(waiting: u32, kv_usage: f64) -> Engine {
    let page = format!(
        "vllm:num_requests_running{{engine=\"0\"}} 0\n\
         vllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} {kv_usage}\n"
    );
    Engine::Says(200, page)
}

/// C01 to C30, C82
#[test]
fn every_body_is_forwarded_byte_for_byte_in_whatever_pieces() {
    let gateway = Gateway::new(4);
    let bodies = bodies();
    assert!(bodies.len() > 30);
    for (name, path) in bodies {
        let body = cases::body(name);
        for piece in [body.len(), 16_384, 7] {
            if body.len() / piece > 2_000 {
                continue;
            }
            let stream = post(&gateway, path, body.len());
            for piece in body.chunks(piece) {
                stream.body(piece, false);
            }
            stream.body(b"", true);
            assert!(!stream.is_held(), "{name}");
            assert_eq!(stream.local_reply(), None, "{name}");
            assert!(stream.upstream_body() == body, "{name}");
            assert_eq!(destinations(&stream).len(), 3, "{name}");
            serve(&stream);
        }
    }
    assert_eq!(gateway.panics(), Vec::<String>::new());
    assert_eq!(gateway.in_flight(), []);
}

/// C30
#[test]
fn batches_of_embeddings_that_begin_alike_are_spread_and_a_huge_one_is_not_held() {
    let gateway = Gateway::new(4);
    let huge = cases::body("C30-a.json.tmpl");
    let stream = post(&gateway, EMBEDDINGS, huge.len());
    let (lead, rest) = huge.split_at(32 << 10);
    stream.body(lead, false);
    assert!(!stream.is_held(), "what follows cannot make it wait");
    stream.body(rest, true);
    serve(&stream);
    let batch = |n: usize| {
        let input = json!(["Represent this passage for retrieval: ".repeat(40), text(n, 500)]);
        json!({ "model": "org/embed-1b", "input": input }).to_string()
    };
    let open: Vec<Stream> = (0..40).map(|n| send(&gateway, EMBEDDINGS, batch(n).as_bytes())).collect();
    let counts = counts(open.iter().map(destination));
    assert!(counts.len() == 4 && counts.values().all(|&count| count <= 20), "{counts:?}");
}

/// C37
#[test]
fn sixteen_workers_scrape_each_host_once_a_second_and_all_know_what_was_said() {
    let config = config(8, json!({ "poll": { "interval_ms": 1_000 } }));
    let mut gateway = Gateway::with_config(16, 8, &config);
    gateway.run(60_000);
    let polls = gateway.polls_by_host();
    assert_eq!(polls.len(), 8);
    assert!(polls.values().all(|count| (30..=90).contains(count)), "{polls:?}");

    // One host after the other becomes idle among busy ones. Two periods later every worker knows.
    for idle in [3, 6] {
        for n in 0..8 {
            let busy = Engine::Load { running: 60, waiting: 60 };
            gateway.engines.insert(host(n), if n == idle { Engine::IDLE } else { busy });
        }
        gateway.run(2_000);
        for (n, worker) in gateway.workers.iter().enumerate() {
            assert_eq!(route_chat(worker, &text(100 * idle + n, 2_000)), host(idle), "worker {n}");
        }
    }

    let leader = gateway.polls.last().map(|call| call.vm).expect("polls");
    gateway.workers.remove(leader).kill();
    gateway.polls.clear();
    gateway.run(3_000);
    assert!(!gateway.polls.is_empty(), "nobody took over");
}

/// C43
#[test]
fn pass_through_requests_count_as_load_and_one_engine_does_not_get_all() {
    let mut gateway = Gateway::new(8);
    gateway.run(1_000);
    let lead = cases::expand("@@INTS(512,43)@@");
    let open: Vec<Stream> = (0..480)
        .map(|n| {
            let body =
                format!("{{\"token_ids\":[{lead},{}],\"sampling_params\":{{\"max_tokens\":4}}}}", n + 100);
            send(&gateway, "/inference/v1/generate", body.as_bytes())
        })
        .collect();
    let in_flight: Vec<i64> = (0..8).map(|slot| gateway.requests_in_flight(slot)).collect();
    assert_eq!(in_flight.iter().sum::<i64>(), 480);
    assert!(in_flight.iter().all(|count| (1..=120).contains(count)), "{in_flight:?}");
    open.iter().for_each(serve);
    assert_eq!(gateway.in_flight(), []);
}

/// C50
#[test]
fn a_host_that_was_never_scraped_is_not_better_than_one_that_is_idle() {
    let mut gateway = Gateway::new(4);
    let [ghost, idle, mid, busy] = [0, 1, 2, 3].map(host);
    gateway.engines.insert(ghost.clone(), Engine::Silent);
    gateway.engines.insert(idle.clone(), page(0, 0.05));
    gateway.engines.insert(mid, page(2, 0.5));
    gateway.engines.insert(busy.clone(), page(20, 0.95));
    gateway.run(4_000);
    let placed = (0..100).map(|n| {
        gateway.run(50);
        gateway.route_chat(&text(n, 2_000))
    });
    let counts = counts(placed.collect::<Vec<_>>());
    let share = |host: &String| counts.get(host).copied().unwrap_or_default();
    assert!((15..=35).contains(&share(&ghost)), "{counts:?}");
    assert!(share(&idle) >= share(&ghost) && share(&busy) < 10, "{counts:?}");
}

/// C52
#[test]
fn gauges_that_lag_by_seconds_do_not_draw_everything_to_one_host() {
    let of = |placed: &[usize], slot: usize| placed.iter().filter(|&&n| n == slot).count();
    let mut over = 0;
    for set in 0..5 {
        let placed = with_lagging_gauges(set);
        for slot in 0..4 {
            let count = of(&placed, slot);
            assert!((30..=70).contains(&count), "host {slot} got {count} of 200");
            let most = placed.windows(10).map(|second| of(second, slot)).max();
            // Nowhere near all of them: twice the fair share, and two by the chance of hashing.
            assert!(most <= Some(7), "host {slot} got {most:?} of the ten in one second");
            over += placed.windows(10).filter(|second| of(second, slot) > 6).count();
        }
    }
    // More than six of ten come together by that chance in one second of a hundred.
    assert!(over * 100 <= 5 * 191, "{over} of {} seconds", 5 * 191);
}

/// Where 200 requests go, ten a second, that take 15 s, while the gauges say 0 for 18 s and lag by 4 s afterwards.
fn with_lagging_gauges(set: usize) -> Vec<usize> {
    let config = config(4, json!({ "poll": { "interval_ms": 5_000 } }));
    let mut gateway = Gateway::with_config(1, 4, &config);
    gateway.run(1_000);
    let mut open: VecDeque<(u64, usize, Stream)> = VecDeque::new();
    // What each host really had, a tenth of a second after the other.
    let mut history: Vec<[u32; 4]> = Vec::new();
    let mut placed = Vec::new();
    for step in 0..200_u64 {
        let real = (0..4).map(|n| open.iter().filter(|(_, slot, _)| *slot == n).count() as u32);
        let real: Vec<u32> = real.collect();
        history.push([real[0], real[1], real[2], real[3]]);
        let told = if step < 180 { [0; 4] } else { history[step as usize - 40] };
        for (n, running) in told.into_iter().enumerate() {
            gateway.engines.insert(host(n), Engine::Load { running, waiting: 0 });
        }
        gateway.run(100);
        let stream = gateway.chat(&text(1_000 * set + step as usize, 3_000));
        let slot = (0..4).find(|&n| host(n) == destination(&stream)).expect("one of four");
        placed.push(slot);
        open.push_back((step, slot, stream));
        while open.front().is_some_and(|(since, ..)| since + 150 <= step) {
            open.pop_front().iter().for_each(|(.., stream)| serve(stream));
        }
    }
    placed
}

/// C56
#[test]
fn an_owner_of_a_prefix_that_fails_is_left_until_it_works_and_client_errors_do_not_count() {
    let mut gateway = Gateway::new(3);
    gateway.run(1_000);
    let prefix = text(56, 6_000);
    let owner = gateway.route_chat(&prefix);
    let mut count =
        |asked: std::ops::Range<usize>, of: &dyn Fn(usize) -> String, failing: Option<(&str, u32)>| {
            let mut placed = Vec::new();
            for n in asked {
                gateway.run(50);
                let stream = gateway.chat(&of(n));
                let went = destination(&stream);
                match failing.filter(|(host, _)| *host == went) {
                    Some((host, status)) => {
                        stream.respond(host, status, &[]);
                        stream.response_body(b"{\"error\":{}}", true);
                        stream.finish();
                    }
                    None => serve(&stream),
                }
                placed.push(went);
            }
            counts(placed)
        };
    let same = |n: usize| format!("{prefix} And {n}?");
    let new = |n: usize| text(n, 1_500);
    let bad = count(0..200, &same, Some((&owner, 500)));
    assert!(bad[&owner] <= 9, "{bad:?}");

    // It works again: within the longest back-off, 10 s, it has its share of what is new.
    count(200..400, &new, None);
    let good = count(400..500, &new, None);
    assert!(good[&owner] >= 15, "{good:?}");

    let other = (0..3).map(host).find(|host| *host != owner).expect("three hosts");
    let refused = count(500..600, &new, Some((&other, 400)));
    assert!(refused[&other] >= 20, "{refused:?}");
}

/// C58
#[test]
fn gateways_that_share_nothing_agree_on_homes_before_and_after_a_restart() {
    const PREFIXES: usize = 300;
    let reversed: Vec<String> = (0..6).rev().map(host).collect();
    let reversed = json!({ "cluster": "vllm", "hosts": reversed }).to_string();
    let start = |n: usize| {
        let mut gateway = if n == 2 { Gateway::with_config(1, 6, &reversed) } else { Gateway::new(6) };
        gateway.run(1_000);
        gateway
    };
    let mut gateways: Vec<Gateway> = (0..3).map(start).collect();
    let mut homes = vec![BTreeSet::new(); PREFIXES];
    for restarted in [None, Some(1)] {
        if let Some(n) = restarted {
            gateways[n] = start(n);
        }
        let mut now = vec![BTreeSet::new(); PREFIXES];
        for round in 0..6 {
            for prefix in 0..PREFIXES {
                let gateway = &mut gateways[(prefix + round) % 3];
                gateway.run(50);
                let home = gateway.route_chat(&text(prefix, 2_000));
                now[prefix].insert(home.clone());
                homes[prefix].insert(home);
            }
        }
        for homes in [&now, &homes] {
            let single = homes.iter().filter(|homes| homes.len() == 1).count();
            assert!(single * 10 >= PREFIXES * 9, "{single} of {PREFIXES} have one home");
        }
    }
}

/// C64
#[test]
fn an_engine_that_looks_idle_and_never_answers_is_left_out() {
    const TIMEOUT_MS: u64 = 10_000;
    let mut gateway = Gateway::new(3);
    gateway.run(1_000);
    let mut hung: VecDeque<(u64, Stream)> = VecDeque::new();
    let mut sent = 0;
    for n in 0..100 {
        gateway.run(600);
        let now = gateway.proxy.now_ms();
        while hung.front().is_some_and(|(since, _)| since + TIMEOUT_MS <= now) {
            let (_, stream) = hung.pop_front().expect("the front");
            stream.fail(Some(&host(2)), 504, UPSTREAM_TIMEOUT);
            stream.finish();
        }
        let stream = gateway.chat(&text(n, 1_500));
        if destination(&stream) == host(2) {
            sent += 1;
            hung.push_back((now, stream));
        } else {
            serve(&stream);
        }
        assert!(hung.len() <= 6, "{} wait on it", hung.len());
    }
    assert!((1..=10).contains(&sent), "it got {sent} of 100");
}

/// C72
#[test]
fn an_answer_that_says_nothing_is_a_failed_scrape_with_its_reason() {
    let answers = [
        (307, "", "status", "307"),
        (204, "", "status", "204"),
        (200, "# nothing here\n", "content", "no_engine_metrics"),
        (200, "python_info{version=\"3\"} 1\n", "content", "no_engine_metrics"),
    ];
    for (status, body, counted, named) in answers {
        let mut gateway = Gateway::new(4);
        for n in 0..4 {
            gateway.engines.insert(host(n), Engine::Load { running: 30, waiting: 20 });
        }
        gateway.engines.insert(host(2), Engine::Says(status, body.to_owned()));
        gateway.run(10_000);
        let failed = gateway.proxy.counter(&format!("kvroute_polls_{counted}_total"));
        assert!((15..=25).contains(&failed), "{status} {body:?}: {:?}", gateway.proxy.counters());
        // No redirect is followed, and nothing is asked again at once.
        assert_eq!(gateway.polls_by_host()[&host(2)] as i64, failed, "{status}");
        let log = gateway.proxy.log();
        let told =
            |what: &str| log.iter().any(|line| line.text.contains(&host(2)) && line.text.contains(what));
        assert!(told(named) && told("/metrics"), "{status} {body:?}: {log:?}");

        let counts = counts((0..200).map(|n| gateway.route_chat(&text(n, 1_500))));
        let share = counts.get(&host(2)).copied().unwrap_or_default();
        assert!((20..=80).contains(&share), "{status} {body:?}: {counts:?}");
    }
    for path in ["/metrics/", "/engine_metrics"] {
        let mut gateway = Gateway::with_config(1, 2, &config(2, json!({ "poll": { "path": path } })));
        gateway.run(2_000);
        assert!(!gateway.polls.is_empty());
        assert!(gateway.polls.iter().all(|call| call.headers.get(":path").as_deref() == Some(path)));
    }
    let refused = Gateway::empty().worker(&config(2, json!({ "poll": { "path": "/metrics " } }))).err();
    assert!(refused.is_some_and(|refused| refused.log.iter().all(|line| line.contains("poll.path"))));
}

/// C74
#[test]
fn a_pool_whose_samples_are_all_too_old_serves_on_and_by_what_is_in_flight() {
    // How many hosts, and whether the first goes on to tell that it is busy.
    for (hosts, one_is_fresh) in [(1, false), (4, false), (4, true)] {
        let mut gateway = Gateway::new(hosts);
        gateway.run(2_000);
        for n in 0..hosts {
            gateway.engines.insert(host(n), Engine::Silent);
        }
        if one_is_fresh {
            gateway.engines.insert(host(0), page(30, 0.5));
        }
        let mut open: VecDeque<Stream> = VecDeque::new();
        let mut placed = Vec::new();
        for n in 0..1_200 {
            gateway.run(50);
            let stream = gateway.chat(&text(n, 1_500));
            assert_eq!(stream.local_reply(), None);
            placed.push(destination(&stream));
            begin_response(&stream);
            open.push_back(stream);
            // Each takes a second.
            if open.len() > 20 {
                open.pop_front().iter().for_each(|stream| {
                    stream.response_body(b"", true);
                    stream.finish();
                });
            }
        }
        let counts = counts(placed);
        if one_is_fresh {
            assert!(counts.get(&host(0)).copied().unwrap_or_default() < 600, "{counts:?}");
        } else {
            assert_eq!(counts.len(), hosts);
            assert!(counts.values().all(|&count| count >= 1_200 * 3 / 5 / hosts), "{counts:?}");
        }
    }
}

/// C80
#[test]
fn five_hundred_hosts_are_taken_and_used() {
    let hosts: Vec<String> = (0..500).map(|n| format!("10.1.{}.{}:8000", n / 250, 1 + n % 250)).collect();
    let config = json!({ "cluster": "vllm", "hosts": hosts }).to_string();
    let mut gateway = Gateway::with_config(1, 0, &config);
    for host in &hosts {
        gateway.engines.insert(host.clone(), Engine::IDLE);
    }
    gateway.run(2_000);
    assert_eq!(gateway.polls.iter().map(polled_host).collect::<BTreeSet<_>>().len(), 500);
    let used: BTreeSet<String> = (0..200).map(|n| gateway.route_chat(&text(n, 1_500))).collect();
    assert!(used.len() > 100, "{} hosts for 200 prompts", used.len());
    assert_eq!(gateway.panics(), Vec::<String>::new());
}

/// C82
#[test]
fn the_host_that_has_an_adapter_loaded_is_preferred_to_the_others_unless_it_is_overloaded() {
    let prompt = |n: usize| {
        let body = cases::expand(cases::text("C82-a.json.tmpl"));
        body.replace("The reading room", &format!("The reading room number {n}"))
    };
    for (waiting, most, least) in [(0, 40, 30), (200, 10, 0)] {
        let mut gateway = Gateway::new(4);
        for n in 0..4 {
            gateway.engines.insert(host(n), page(0, 0.1));
        }
        let Engine::Says(status, load) = page(waiting, 0.1) else { unreachable!() };
        gateway.engines.insert(host(1), Engine::Says(status, load + cases::text("C82-h2.prom")));
        gateway.run(4_000);
        let placed = (0..40).map(|n| {
            let stream = send(&gateway, CHAT, prompt(n).as_bytes());
            serve(&stream);
            destination(&stream)
        });
        let share = counts(placed).get(&host(1)).copied().unwrap_or_default();
        assert!((least..=most).contains(&share), "{share} of 40 with {waiting} waiting there");
    }
}
