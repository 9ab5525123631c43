//! What is learned from answers, and what is not.

use super::support::{addresses, chat, config, read, router};
use super::test;
use kvroute::core::fleet::{Own, Polled, Slot};
use kvroute::core::learning::{BytesPerToken, Keeps, Pace, BYTES_PER_TOKEN};
use kvroute::core::prompt::{Api, Outline, Prompt};
use kvroute::core::route::{Decision, Walk};
use kvroute::core::router::Router;
use kvroute::core::scrape::EngineSample;
use kvroute::core::snapshot::Snapshot;
use kvroute::core::tier::Lookups;
use kvroute::core::usage::Usage;

const NOW_MS: u64 = 5_000;

fn prompt(n: usize, words: usize) -> Prompt {
    read(Api::Chat, chat(&format!("{n} {}", "a prompt of some length ".repeat(words)), "question").as_bytes())
}

fn decide(router: &Router, prompt: &Prompt, now_ms: u64) -> Decision {
    let mut walk = Walk::default();
    router.advance(&mut walk, prompt, true);
    router.decide(&walk, prompt, prompt.bytes(), now_ms)
}

#[test]
fn models_are_bounded_and_the_first_to_come_is_forgotten() {
    let mut bytes = BytesPerToken::default();
    (0..100).for_each(|model| (0..500).for_each(|_| bytes.learn(model, 200, 100)));
    assert_eq!(bytes.of(0), BYTES_PER_TOKEN);
    assert!((bytes.of(99) - 2.0).abs() < 0.01);
    bytes.learn(99, 0, 100);
    bytes.learn(99, 100, 0);
    assert!((bytes.of(99) - 2.0).abs() < 0.01);
}

#[test]
fn a_host_at_half_speed_is_known_by_its_first_bytes_and_gets_less() {
    let mut router = router(4);
    let mut now_ms = NOW_MS;
    let mut share = [0_u32; 4];
    for n in 0..800 {
        let prompt = prompt(n as usize, 900);
        let decision = decide(&router, &prompt, now_ms);
        let slot = decision.hosts[0];
        router.commit(n, &decision, now_ms);
        // Two requests at a time, over before the next two: host 2 takes twice as long for its tokens.
        let ms = decision.uncached_tokens * if slot == Slot(2) { 2 } else { 1 } / 18;
        router.first_byte(n, now_ms + ms);
        router.end(n);
        now_ms += 1_000;
        router.apply(&Snapshot::default());
        if n >= 400 {
            share[usize::from(slot.0)] += 1;
        }
    }
    let speeds: Vec<f64> = router.fleet().hosts().iter().map(|host| host.speed).collect();
    assert_eq!([speeds[0], speeds[1], speeds[3]], [1.0; 3], "{speeds:?}");
    assert!((0.4..0.6).contains(&speeds[2]), "{speeds:?}");
    // On an idle fleet all that is cold goes to the faster ones.
    assert_eq!(share[2], 0, "{share:?}");
}

#[test]
fn an_odd_first_byte_and_a_small_difference_change_nothing() {
    let mut pace = Pace::default();
    (0..100).for_each(|_| pace.observe(18_000, 1.0));
    pace.observe(18_000, 600.0);
    assert!((15_000.0..18_000.0).contains(&pace.rate().expect("judged")), "{pace:?}");
    assert_eq!(pace.against(21_000.0), 1.0);
    assert_eq!(Pace::default().against(18_000.0), 1.0);
}

#[test]
fn what_is_off_is_not_learned() {
    let mut config = config(2);
    config.learning.prefill_rate = false;
    config.learning.bytes_per_token = false;
    config.learning.capacity = false;
    let mut router = Router::new(&config);
    let hosts: Vec<(String, Slot)> =
        config.hosts.iter().enumerate().map(|(n, host)| (host.clone(), Slot(n as u16))).collect();
    router.configure(&config, &hosts);
    let prompt = prompt(1, 900);
    for n in 0..100 {
        let decision = decide(&router, &prompt, NOW_MS);
        router.commit(n, &decision, NOW_MS);
        router.first_byte(n, NOW_MS + 60_000);
        let usage = Usage { prompt_tokens: 1, cached_tokens: Some(0) };
        router.learn(n, &prompt, true, prompt.bytes(), &usage);
        router.end(n);
    }
    assert_eq!(router.tokens(4_000, &prompt), 1_000);
    let learned = |host: &kvroute::core::fleet::Host| host.pace.rate().is_some() || host.told_keeps.is_some();
    assert!(!router.fleet().hosts().iter().any(learned));
}

#[test]
fn how_long_a_host_keeps_prefixes_is_not_learned_from_what_it_fetches() {
    let keeps = |found: f64| {
        let mut router = router(1);
        let polled = Polled { at_ms: NOW_MS, capacity_tokens: 1_000, ..Polled::default() };
        let lookups = Lookups::default().after(Some(50_000.0), Some(found));
        let mut snapshot = Snapshot::default();
        snapshot.put(Slot(0), &addresses(1)[0], Polled { lookups, ..polled });
        router.apply(&snapshot);
        let prompt = prompt(1, 900);
        let decision = decide(&router, &prompt, NOW_MS);
        router.commit(1, &decision, NOW_MS);
        let usage = Usage { prompt_tokens: 1_000, cached_tokens: Some(1_000) };
        router.learn(1, &prompt, true, prompt.bytes(), &usage);
        router.fleet().host(Slot(0)).expect("there").told_keeps
    };
    assert!(keeps(0.0).is_some());
    assert_eq!(keeps(20_000.0), None);
}

#[test]
fn a_prefix_that_was_not_there_any_more_makes_older_ones_doubtful_and_one_that_was_there_makes_up_for_it() {
    let mut keeps = Keeps::default();
    // Found missing at 60 % of the capacity's worth of tokens, again and again.
    (0..500).for_each(|_| keeps.observe(4_000, 100, 60_000, 100_000));
    assert!((0.59..0.61).contains(&keeps.share()), "{keeps:?}");
    // Absent while new is a fault of another kind.
    let before = keeps;
    keeps.observe(4_000, 3_900, 10_000, 100_000);
    assert_eq!(keeps, before);
    (0..500).for_each(|_| keeps.observe(4_000, 3_900, 90_000, 100_000));
    assert!(keeps.share() > 0.95, "{keeps:?}");
    // Never below half, whatever is told.
    (0..5_000).for_each(|_| keeps.observe(4_000, 0, 0, 100_000));
    assert_eq!(keeps.share(), 0.5);
}

#[test]
fn an_engine_that_computes_more_than_was_expected_keeps_less_than_it_says() {
    let mut polled = Polled::default();
    let mut own = Own::default();
    let (mut prompt_tokens, mut hits) = (0.0, 0.0);
    let mut poll = |polled: &Polled, computed: f64, running: f64, at_ms: u64| {
        own.sent_tokens += 5_000;
        prompt_tokens += 10_000.0;
        hits += 10_000.0 - computed;
        let sample = EngineSample {
            running: Some(running),
            waiting: Some(0.0),
            prompt_tokens: Some(prompt_tokens),
            prefix_hits: Some(hits),
            ..EngineSample::default()
        };
        polled.after(&sample, &own, &own, 0, at_ms)
    };
    for n in 1..200 {
        polled = poll(&polled, 9_000.0, 0.0, n * 500);
    }
    assert_eq!(polled.keeps.share(), 0.5);
    for n in 200..600 {
        polled = poll(&polled, 5_000.0, 0.0, n * 500);
    }
    assert_eq!(polled.keeps.share(), 1.0);
    // What others send is not expected by anybody, and proves nothing.
    for n in 600..800 {
        polled = poll(&polled, 9_000.0, 5.0, n * 500);
    }
    assert_eq!(polled.keeps.share(), 1.0);
}
