//! One worker's books and memory.

use super::support::{chat, read, router, Numbers};
use super::test;
use kvroute::core::fleet::{Own, Slot};
use kvroute::core::journal::Inbox;
use kvroute::core::prompt::{Api, Outline, Prompt};
use kvroute::core::route::{Reason, Walk};
use kvroute::core::router::{Change, Router};
use std::collections::HashMap;

const NOW_MS: u64 = 5_000;

fn prompt(n: u64) -> Prompt {
    read(Api::Chat, chat(&format!("{n} {}", "system prompt ".repeat(300)), "question").as_bytes())
}

fn decide(router: &Router, prompt: &Prompt) -> kvroute::core::route::Decision {
    let mut walk = Walk::default();
    router.advance(&mut walk, prompt, true);
    router.decide(&walk, prompt, prompt.bytes(), NOW_MS)
}

/// The gauges that all workers share.
#[derive(Default)]
struct Gauges(HashMap<Slot, (i64, i64)>);

impl Gauges {
    fn apply(&mut self, change: Change) {
        let gauge = self.0.entry(change.slot).or_default();
        gauge.0 += change.requests;
        gauge.1 += change.prefill_tokens;
        assert!(gauge.0 >= 0 && gauge.1 >= 0, "never below zero");
    }
}

#[test]
fn whatever_happens_to_streams_the_books_end_at_zero() {
    let mut numbers = Numbers(11);
    let mut router = router(4);
    let mut gauges = Gauges::default();
    for n in 0..20_000 {
        let stream = numbers.below(60) as u32;
        let changes: Vec<Change> = match numbers.below(6) {
            0 | 1 if !router.has(stream) => {
                let prompt = prompt(numbers.below(20));
                let decision = decide(&router, &prompt);
                router.commit(stream, &decision, n).into_iter().collect()
            }
            2 => router.first_byte(stream, n).into_iter().collect(),
            3 => router
                .moved(stream, Slot(numbers.below(4) as u16), None::<(&Prompt, bool)>)
                .into_iter()
                .flatten()
                .collect(),
            4 => {
                router.will_not_stream(stream, n);
                router.prefills_over(n + numbers.below(200))
            }
            _ => router.end(stream).into_iter().collect(),
        };
        changes.into_iter().for_each(|change| gauges.apply(change));
    }
    (0..60).filter_map(|stream| router.end(stream)).for_each(|change| gauges.apply(change));
    assert!(gauges.0.values().all(|gauge| *gauge == (0, 0)), "{:?}", gauges.0);
    assert!(router.holdings().is_empty());
    assert!(router.fleet().hosts().iter().all(|host| host.own.requests == 0 && host.own.prefill_tokens == 0));
}

#[test]
fn ending_twice_releases_once() {
    let mut router = router(2);
    let decision = decide(&router, &prompt(1));
    router.commit(7, &decision, NOW_MS);
    assert!(router.end(7).is_some());
    assert_eq!(
        (router.end(7), router.first_byte(7, NOW_MS), router.moved(7, Slot(0), None::<(&Prompt, bool)>)),
        (None, None, None)
    );
}

#[test]
fn a_prefill_without_a_stream_to_show_its_end_is_over_in_time() {
    let mut router = router(1);
    let decision = decide(&router, &prompt(1));
    router.commit(1, &decision, NOW_MS);
    router.will_not_stream(1, NOW_MS);
    assert_eq!(router.prefills_over(NOW_MS + 1), []);
    let over = router.prefills_over(NOW_MS + 2_000);
    assert_eq!(over.len(), 1);
    assert_eq!((over[0].requests, over[0].prefill_tokens), (0, -(decision.uncached_tokens as i64)));
}

#[test]
fn another_worker_knows_a_placement_after_one_reading() {
    let (mut here, mut there) = (router(4), router(4));
    let prompt = prompt(1);
    // Where the other worker, knowing nothing, would not send it.
    let unexpected =
        (0..4).map(Slot).find(|slot| *slot != decide(&there, &prompt).hosts[0]).expect("four hosts");
    here.remember(unexpected, &prompt, &mut Default::default(), true);
    let value = here.publish(1, NOW_MS);
    Inbox::default().read(&value, |placement| there.hear(&placement));
    let decision = decide(&there, &prompt);
    assert_eq!((decision.hosts[0], decision.reason), (unexpected, Reason::Prefix));
}

#[test]
fn a_request_served_elsewhere_is_remembered_there() {
    let mut router = router(4);
    let prompt = prompt(1);
    let decision = decide(&router, &prompt);
    router.commit(1, &decision, NOW_MS);
    router.remember(decision.hosts[0], &prompt, &mut Default::default(), true);
    let served = decision.hosts[1];
    router.moved(1, served, Some((&prompt, true)));
    router.end(1);
    let again = decide(&router, &prompt);
    assert_eq!((again.hosts[0], again.reason), (served, Reason::Prefix));
}

#[test]
fn a_long_prompt_decided_by_its_head_is_found_by_its_head_and_by_all_of_it() {
    // `model` comes behind the messages: the head does not know it.
    let text = "a long conversation ".repeat(5_000);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"model":"m"}}"#);
    let mut head = Prompt::new(Api::Chat, &super::support::settings());
    head.feed(&body.as_bytes()[..30_000]);
    let mut router = router(4);
    let whole = read(Api::Chat, body.as_bytes());
    router.remember(Slot(3), &whole, &mut Default::default(), true);
    let matched = |prompt: &Prompt, full: bool| {
        let mut walk = Walk::default();
        router.advance(&mut walk, prompt, full);
        let decision = router.decide(&walk, prompt, 100_000, NOW_MS);
        (decision.hosts[0], decision.matched_bytes)
    };
    let (host, bytes) = matched(&head, false);
    assert!(host == Slot(3) && bytes > 20_000, "{bytes}");
    let (host, bytes) = matched(&whole, true);
    assert!(host == Slot(3) && bytes > 90_000, "{bytes}");
    // Another model with the same text shares nothing once it is known.
    let other = read(Api::Chat, body.replace(r#""model":"m""#, r#""model":"n""#).as_bytes());
    assert_eq!(matched(&other, true).1, 0);
}

#[test]
fn tools_are_a_prefix_of_their_own() {
    let tool = format!(
        r#"[{{"type":"function","function":{{"name":"f","description":"{}"}}}}]"#,
        "does things ".repeat(400)
    );
    let ask = |question: &str| {
        let body = format!(
            r#"{{"model":"m","tools":{tool},"messages":[{{"role":"user","content":"{question}"}}]}}"#
        );
        read(Api::Chat, body.as_bytes())
    };
    let mut router = router(4);
    router.remember(Slot(2), &ask("one"), &mut Default::default(), true);
    let decision = decide(&router, &ask("another"));
    assert_eq!((decision.hosts[0], decision.reason), (Slot(2), Reason::Prefix));
    assert!(decision.matched_bytes > 4_000);
}

#[test]
fn bytes_a_token_follow_what_engines_tell() {
    let mut router = router(1);
    let dense = read(Api::Chat, br#"{"model":"dense","messages":[{"role":"user","content":"some text"}]}"#);
    let usage = |prompt_tokens| kvroute::core::usage::Usage { prompt_tokens, cached_tokens: None };
    let told = usage(dense.bytes() / 3);
    (0..500).for_each(|_| router.learn(1, &dense, true, 0, &told));
    let exactly = dense.bytes() as f64 / told.prompt_tokens as f64;
    assert!(router.tokens(30_000, &dense).abs_diff((30_000.0 / exactly) as u64) <= 1);
    // Another model's tokens are its own, token ids have four bytes, and what was not read to its end tells nothing.
    assert_eq!(router.tokens(4_000, &prompt(1)), 1_000);
    let ids = read(Api::Completions, br#"{"model":"dense","prompt":[1,2,3]}"#);
    assert_eq!(router.tokens(4_000, &ids), 1_000);
    (0..500).for_each(|_| router.learn(1, &prompt(1), false, 0, &usage(1)));
    assert_eq!(router.tokens(4_000, &prompt(1)), 1_000);
    // An image in base64 is no text.
    (0..500).for_each(|_| router.learn(1, &prompt(1), true, 0, &usage(1)));
    assert!(router.tokens(8_000, &prompt(1)) >= 1_000);
}

#[test]
fn a_long_conversation_decided_by_its_head_stays_and_its_books_are_corrected() {
    let text = "a long conversation, told in full ".repeat(12_000);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let whole = read(Api::Chat, body.as_bytes());
    let mut router = router(4);
    router.remember(Slot(3), &whole, &mut Default::default(), true);
    let mut prompt = Prompt::new(Api::Chat, &super::support::settings());
    let mut walk = Walk::default();
    prompt.feed(&body.as_bytes()[..30_720]);
    router.advance(&mut walk, &prompt, false);
    let decision = router.decide(&walk, &prompt, whole.bytes(), NOW_MS);
    assert_eq!((decision.hosts[0], decision.reason), (Slot(3), Reason::Prefix));
    router.commit(1, &decision, NOW_MS);
    prompt.feed(&body.as_bytes()[30_720..]);
    prompt.finish();
    router.advance(&mut walk, &prompt, false);
    router.correct(1, &walk, &prompt);
    assert_eq!(router.holdings()[0].prefill_tokens, 0, "all of it is held");
    router.end(1);
    assert!(router.holdings().is_empty());
}

/// Eight workers of one proxy, each with a mind of its own, and the gauges that they share.
struct Workers {
    routers: Vec<Router>,
    gauges: Vec<Own>,
    read_us: Vec<u64>,
}

impl Workers {
    /// One request through a worker, as the shell takes it: gauges are read again when they are older than a quarter
    /// of a millisecond a host.
    fn send(&mut self, worker: usize, stream: u32, prompt: &Prompt, now_us: u64) -> Slot {
        let (router, gauges) = (&mut self.routers[worker], &mut self.gauges);
        if now_us - self.read_us[worker] > 250 * gauges.len() as u64 {
            self.read_us[worker] = now_us;
            router.refresh(|slot, own, _| *own = gauges[usize::from(slot.0)]);
        }
        let mut decision = decide(router, prompt);
        let slot = decision.hosts[0];
        let gauge = &mut gauges[usize::from(slot.0)];
        if decision.cold_mark.is_some_and(|mark| mark == gauge.cold_mark) {
            decision.share();
        }
        let change = router.commit(stream, &decision, NOW_MS).expect("there are hosts");
        gauge.requests += change.requests as u32;
        gauge.prefill_tokens += change.prefill_tokens as u64;
        gauge.sent_tokens += change.sent_tokens as u64;
        gauge.cold_placed += change.cold as u64;
        gauge.cold_mark = change.cold_mark.unwrap_or(gauge.cold_mark);
        router.remember(slot, prompt, &mut Default::default(), true);
        slot
    }
}

#[test]
fn a_burst_with_one_new_prefix_stays_together_over_all_workers() {
    for prefix in 0..50 {
        let mut workers = Workers {
            routers: (0..8).map(|_| router(8)).collect(),
            gauges: vec![Own::default(); 8],
            read_us: vec![0; 8],
        };
        let mut numbers = Numbers(prefix);
        let mut used: Vec<Slot> = Vec::new();
        let mut first_two = 0;
        for n in 0..40 {
            let text = format!("{prefix} {}", "system prompt ".repeat(292));
            let prompt = read(Api::Chat, chat(&text, &format!("question {n}?")).as_bytes());
            let slot = workers.send(numbers.below(8) as usize, n, &prompt, 10_000 + u64::from(n) * 500);
            if !used.contains(&slot) {
                used.push(slot);
            }
            if used.len() <= 2 {
                first_two = n + 1;
            }
        }
        // Load says otherwise once a host has a batch of its own.
        assert!(
            first_two >= 16 && used.len() <= 4,
            "prefix {prefix}: {first_two} requests on two hosts, {used:?}"
        );
    }
}
