//! A prefix that another host computed is fetched where hosts share a KV tier, and affinity weakens by that much.

use super::support::{addresses, chat, config, config_with, read, Numbers};
use super::test;
use kvroute::core::config::Config;
use kvroute::core::fleet::{Own, Polled, Slot};
use kvroute::core::prompt::{Api, Outline, Prompt};
use kvroute::core::route::{Decision, Reason, Walk};
use kvroute::core::router::Router;
use kvroute::core::scrape::EngineSample;
use kvroute::core::snapshot::Snapshot;
use kvroute::core::tier::{self, Lookups, Tier};
use serde_json::Value;

const NOW_MS: u64 = 1_000_000;

/// A router with `hosts` hosts, and this under `routing`.
fn router_with(hosts: usize, routing: &str) -> Router {
    let names: Vec<String> = addresses(hosts).iter().map(|host| format!("{host:?}")).collect();
    let text = format!(r#"{{"cluster":"vllm","hosts":[{}],"routing":{{{routing}}}}}"#, names.join(","));
    let config = Config::parse(text.as_bytes()).expect("valid");
    let mut router = Router::new(&config);
    let slots: Vec<(String, Slot)> =
        addresses(hosts).into_iter().enumerate().map(|(n, address)| (address, Slot(n as u16))).collect();
    router.configure(&config, &slots);
    router
}

/// What the engines have said: requests waiting there, and what they looked up and found outside.
fn say(router: &mut Router, hosts: &[(f64, f64, f64)]) {
    let mut snapshot = Snapshot::default();
    for (n, (waiting, queries, hits)) in hosts.iter().enumerate() {
        let lookups = Lookups::default().after(Some(*queries), Some(*hits));
        let prompt_tokens = 1e6;
        let polled = Polled {
            at_ms: NOW_MS - 100,
            running: 4.0,
            waiting: *waiting,
            prompt_tokens,
            lookups,
            ..Polled::default()
        };
        snapshot.put(Slot(n as u16), &addresses(hosts.len())[n], polled);
    }
    router.apply(&snapshot);
}

fn prompt(n: u64) -> Prompt {
    read(
        Api::Chat,
        chat(&format!("{n} {}", "words of a long system prompt ".repeat(600)), "question").as_bytes(),
    )
}

fn decide(router: &Router, prompt: &Prompt) -> Decision {
    let mut walk = Walk::default();
    router.advance(&mut walk, prompt, true);
    router.decide(&walk, prompt, prompt.bytes(), NOW_MS)
}

fn holds(router: &mut Router, slot: u16, prompt: &Prompt) {
    router.remember(Slot(slot), prompt, &mut Default::default(), true);
}

/// Where the holder of the prompt has so many requests waiting, and the other none.
fn with_a_queue(routing: &str, waiting: f64, queries: f64, hits: f64) -> Decision {
    let mut router = router_with(2, routing);
    holds(&mut router, 0, &prompt(1));
    say(&mut router, &[(waiting, queries, hits), (0.0, queries, hits)]);
    decide(&router, &prompt(1))
}

#[test]
fn with_a_tier_a_request_leaves_its_holder_for_a_shorter_queue_that_it_would_not_leave_for_otherwise() {
    // 4,500 tokens, a quarter of a second of prefill. Two that wait stand for some 110 ms each.
    let stays = with_a_queue("", 2.0, 1e6, 0.0);
    assert_eq!((stays.hosts[0], stays.reason), (Slot(0), Reason::Prefix));
    for (routing, hits) in [("", 950_000.0), (r#""tier":"on""#, 0.0), (r#""tier":0.9"#, 0.0)] {
        let goes = with_a_queue(routing, 2.0, 1e6, hits);
        assert_eq!((goes.hosts[0], goes.reason), (Slot(1), Reason::Spill), "{routing} {hits}");
    }
    for (routing, hits) in [(r#""tier":"off""#, 950_000.0), (r#""fetch_share":1"#, 950_000.0), ("", 50_000.0)]
    {
        assert_eq!(with_a_queue(routing, 2.0, 1e6, hits), stays, "{routing} {hits}");
    }
    let near = with_a_queue(r#""tier":"on""#, 0.0, 0.0, 0.0);
    assert_eq!(near.hosts[0], Slot(0), "what is there is still cheaper than what is fetched");
}

#[test]
fn the_books_say_what_the_host_really_has_to_do_and_its_clock_what_really_enters_its_cache() {
    let books = |routing: &str| {
        let mut router = router_with(2, routing);
        holds(&mut router, 0, &prompt(1));
        say(&mut router, &[(200.0, 0.0, 0.0), (0.0, 0.0, 0.0)]);
        let decision = decide(&router, &prompt(1));
        assert_eq!(decision.hosts[0], Slot(1));
        router.commit(1, &decision, NOW_MS);
        let mut walk = Walk::default();
        router.advance(&mut walk, &prompt(1), true);
        router.correct(1, &walk, &prompt(1));
        router.fleet().host(Slot(1)).expect("known").own
    };
    let computed = books(r#""tier":"off""#);
    let fetched = books(r#""tier":"on","fetch_share":0.25"#);
    let share = fetched.prefill_tokens as f64 / computed.prefill_tokens as f64;
    // All but the question is fetched, and the question is short.
    assert!((0.25..0.28).contains(&share), "{fetched:?} {computed:?}");
    assert!(fetched.sent_tokens.abs_diff(computed.sent_tokens) <= 1, "{fetched:?} {computed:?}");
    let half = books(r#""tier":0.5,"fetch_share":0.5"#);
    assert!((0.74..0.77).contains(&(half.prefill_tokens as f64 / computed.prefill_tokens as f64)));
}

#[test]
fn what_is_still_being_computed_or_what_nobody_has_is_not_fetched() {
    let mut router = router_with(2, r#""tier":"on""#);
    let cold = decide(&router, &prompt(1));
    assert_eq!(cold, decide(&router_with(2, r#""tier":"off""#), &prompt(1)), "nobody has it");
    router.commit(1, &cold, NOW_MS);
    let busy = cold.hosts[0];
    holds(&mut router, busy.0, &prompt(1));
    let queue = |slot: u16| if busy == Slot(slot) { (90.0, 0.0, 0.0) } else { (0.0, 0.0, 0.0) };
    say(&mut router, &[queue(0), queue(1)]);
    let while_computed = decide(&router, &prompt(1));
    assert!(while_computed.hosts[0] != busy && while_computed.spared_tokens == 0, "{while_computed:?}");
    router.first_byte(1, NOW_MS + 300);
    let computed = decide(&router, &prompt(1));
    assert!(computed.hosts[0] != busy && computed.spared_tokens > 2_000, "{computed:?}");
}

/// A router in some state that `numbers` choose: who holds what, what is in flight, who has how long a queue.
fn random(routing: &str, numbers: &mut Numbers, hits: bool) -> Router {
    let mut router = router_with(4, routing);
    for n in 0..8 {
        (0..numbers.below(3)).for_each(|_| holds(&mut router, numbers.below(4) as u16, &prompt(n)));
    }
    let hosts: Vec<(f64, f64, f64)> = (0..4)
        .map(|_| {
            let queries = numbers.below(1_000_000) as f64;
            let found = numbers.below(1_000_000) as f64;
            (numbers.below(30) as f64, queries, if hits { queries.min(found) } else { 0.0 })
        })
        .collect();
    say(&mut router, &hosts);
    for stream in 0..numbers.below(20) {
        let decision = decide(&router, &prompt(numbers.below(10)));
        router.commit(stream as u32, &decision, NOW_MS);
    }
    router
}

#[test]
fn where_nothing_is_ever_found_every_decision_is_the_same_as_without_a_tier() {
    for seed in 0..200 {
        let same = |routing: &str, hits: bool| {
            let mut numbers = Numbers(seed);
            let router = random(routing, &mut numbers, hits);
            let decisions: Vec<Decision> = (0..10).map(|n| decide(&router, &prompt(n))).collect();
            let holdings: Vec<Own> = router.fleet().hosts().iter().map(|host| host.own).collect();
            (decisions, holdings)
        };
        let without = same(r#""tier":"off""#, true);
        assert_eq!(same("", false), without, "seed {seed}: measured, and nothing found");
        assert_eq!(same(r#""tier":0"#, true), without, "seed {seed}: set to nothing");
        assert_eq!(
            same(r#""tier":"on","fetch_share":1"#, true),
            without,
            "seed {seed}: fetching costs as much"
        );
    }
}

#[test]
fn a_ratio_is_that_of_late_and_outlives_a_restart() {
    let known = |lookups: &Lookups| lookups.hit_ratio(1e6).expect("known");
    let close = |ratio: f64, wanted: f64| assert!((ratio - wanted).abs() < 0.02, "{ratio} for {wanted}");
    let mut lookups = Lookups::default().after(Some(1e6), Some(0.0));
    close(known(&lookups), 0.0);
    // A quarter of a million tokens later half of what is looked up is found.
    for step in 1..=100 {
        lookups = lookups.after(Some(1e6 + 20_000.0 * f64::from(step)), Some(10_000.0 * f64::from(step)));
    }
    close(known(&lookups), 0.5);
    let restarted = lookups.after(Some(0.0), Some(0.0));
    assert_eq!(known(&restarted), known(&lookups), "a new process has found nothing yet, and lost nothing");
    let after = restarted.after(Some(2_000.0), Some(2_000.0));
    close(known(&after), 0.505);
    let idle =
        (0..1_000).fold(lookups, |lookups, _| lookups.after(Some(lookups.queries), Some(lookups.hits)));
    assert_eq!(known(&idle), known(&lookups), "an idle hour forgets nothing");
    assert_eq!(lookups.after(None, Some(5.0)), lookups);
    assert_eq!(lookups.after(Some(5.0), None), lookups);
}

#[test]
fn a_ratio_is_never_odd_whatever_is_said() {
    let odd = [0.0, 1.0, 1e300, f64::MAX, 12_345.0, 1e15, 3.0];
    let mut lookups = Lookups::default();
    for (n, queries) in odd.iter().enumerate() {
        for hits in odd.iter().rev().cycle().skip(n).take(odd.len()) {
            lookups = lookups.after(Some(*queries), Some(*hits));
            let ratio = lookups.hit_ratio(1e6);
            assert!(ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)), "{ratio:?} {lookups:?}");
        }
    }
    // NaN never gets here: what is no count is as if it had not been said.
    let page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n\
        vllm:external_prefix_cache_queries_total NaN\nvllm:external_prefix_cache_hits_total 5\n";
    let sample: EngineSample = kvroute::core::scrape::read_engine(page).expect("an engine's");
    let own = Own::default();
    let polled = Polled { lookups, ..Polled::default() }.after(&sample, &own, &own, 0, NOW_MS);
    assert_eq!(polled.lookups, lookups);
}

#[test]
fn a_host_that_is_too_new_is_like_the_others_and_one_without_a_connector_is_not() {
    let goes = |queries: f64, prompt_tokens: f64| {
        let mut router = router_with(3, "");
        holds(&mut router, 0, &prompt(1));
        let lookups = |queries: f64| Lookups::default().after(Some(queries), Some(0.95 * queries));
        let mut snapshot = Snapshot::default();
        for (n, (waiting, queries, prompt_tokens)) in
            [(2.0, 1e6, 1e6), (0.0, queries, prompt_tokens), (90.0, 1e6, 1e6)].into_iter().enumerate()
        {
            let lookups = lookups(queries);
            let polled = Polled {
                at_ms: NOW_MS - 100,
                running: 4.0,
                waiting,
                prompt_tokens,
                lookups,
                ..Polled::default()
            };
            snapshot.put(Slot(n as u16), &addresses(3)[n], polled);
        }
        router.apply(&snapshot);
        decide(&router, &prompt(1)).hosts[0] == Slot(1)
    };
    assert!(goes(1e6, 1e6), "it fetches as the others do");
    assert!(goes(0.0, 0.0), "it has just come");
    assert!(!goes(0.0, 1e6), "it has worked, and never looked anything up");
}

#[test]
fn the_status_says_how_much_is_found_and_why_affinity_is_weaker() {
    let status = |hit_ratio: Option<f64>, fetch_share: f64, lookups: &[(f64, f64)]| -> Value {
        let lookups: Vec<Lookups> = lookups
            .iter()
            .map(|(queries, hits)| Lookups::default().after(Some(*queries), Some(*hits)))
            .collect();
        let json = tier::to_json(Tier { hit_ratio, fetch_share }, lookups.iter());
        serde_json::from_str(&json).expect("JSON")
    };
    let measured = status(None, 0.3, &[(100_000.0, 90_000.0), (100_000.0, 30_000.0)]);
    assert_eq!((&measured["hit_percent"], &measured["measured_hit_percent"]), (&60.into(), &60.into()));
    assert_eq!((&measured["fetch_cost_percent"], &measured["saved_percent"]), (&30.into(), &42.into()));
    assert!(measured["affinity"].as_str().expect("words").starts_with("weaker: engines find"));
    let set = status(Some(1.0), 0.5, &[(100_000.0, 0.0)]);
    assert_eq!((&set["hit_percent"], &set["measured_hit_percent"]), (&100.into(), &0.into()));
    assert!(set["affinity"].as_str().expect("words").contains("routing.tier"));
    for (none, why) in [
        (status(None, 0.3, &[]), "full: no engine"),
        (status(None, 0.3, &[(1e6, 0.0)]), "full: engines find next to nothing"),
        (status(Some(0.0), 0.3, &[(1e6, 1e6)]), "full: routing.tier"),
    ] {
        assert_eq!(none["saved_percent"], 0);
        assert!(none["affinity"].as_str().expect("words").starts_with(why), "{none}");
    }
}

#[test]
fn a_tier_is_measured_unless_it_is_set() {
    let tier = |routing: &str| config_with(&format!(r#""routing":{{{routing}}}"#)).routing.tier;
    assert_eq!(config(1).routing.tier, Tier { hit_ratio: None, fetch_share: 0.3 });
    for (set, hit_ratio) in [
        (r#""tier":null"#, None),
        (r#""tier":"auto""#, None),
        (r#""tier":"on""#, Some(1.0)),
        (r#""tier":true"#, Some(1.0)),
        (r#""tier":"off""#, Some(0.0)),
        (r#""tier":false"#, Some(0.0)),
        (r#""tier":0.6"#, Some(0.6)),
    ] {
        assert_eq!(tier(set).hit_ratio, hit_ratio, "{set}");
    }
    assert_eq!(tier(r#""fetch_share":0.15"#).fetch_share, 0.15);
    for (wrong, key) in [
        (r#""tier":"lmcache""#, "routing.tier: "),
        (r#""tier":1.5"#, "routing.tier: "),
        (r#""tier":{}"#, "routing.tier: "),
        (r#""fetch_share":-1"#, "routing.fetch_share: "),
    ] {
        let text = format!(r#"{{"cluster":"c","hosts":["10.0.0.1:80"],"routing":{{{wrong}}}}}"#);
        let refusal = Config::parse(text.as_bytes()).expect_err(wrong).to_string();
        assert!(refusal.starts_with(key), "{wrong}: {refusal}");
    }
}
