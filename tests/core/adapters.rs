//! LoRA adapters: who has which, through scrape, snapshot and decision.

use super::support::{addresses, chat, read, router};
use super::test;
use kvroute::core::adapters::{Adapters, MOST_ADAPTERS};
use kvroute::core::fleet::{Own, Polled, Slot};
use kvroute::core::prompt::{text_digest, Api, Outline, Prompt};
use kvroute::core::route::{Decision, Walk};
use kvroute::core::router::Router;
use kvroute::core::scrape::{read_engine, EngineSample};
use kvroute::core::snapshot::Snapshot;

const NOW_MS: u64 = 1_000_000;

/// An engine that has `museum-lora` loaded.
const LOADED: &[u8] = include_bytes!("testdata/C82-h2.prom");

/// What an engine with this in its exposition said `age_ms` ago, beside its load.
fn said(exposition: &[u8], age_ms: u64) -> Polled {
    let queue = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n";
    let sample = read_engine(&[exposition, queue].concat()).expect("an engine's");
    Polled::default().after(&sample, &Own::default(), &Own::default(), 0, NOW_MS - age_ms)
}

/// A fleet of four of which the hosts named here have the adapter loaded, as the leader tells a worker.
fn fleet(loaded: &[u16], age_ms: u64) -> Router {
    let mut router = router(4);
    let mut snapshot = Snapshot::default();
    for (slot, address) in addresses(4).into_iter().enumerate() {
        let is_loaded = loaded.contains(&(slot as u16));
        snapshot.put(Slot(slot as u16), &address, said(if is_loaded { LOADED } else { b"" }, age_ms));
    }
    router.apply(&Snapshot::decode(&snapshot.encode()).expect("written by the leader"));
    router
}

fn request(model: &str, n: usize) -> Prompt {
    let body = chat(&format!("{n} {}", "The reading room opens at nine. ".repeat(40)), "Hi");
    read(Api::Chat, body.replace(r#""model":"m","#, model).as_bytes())
}

fn for_adapter(n: usize) -> Prompt {
    request(r#""model":"museum-lora","#, n)
}

fn ask(router: &Router, prompt: &Prompt) -> Decision {
    let mut walk = Walk::default();
    router.advance(&mut walk, prompt, true);
    router.decide(&walk, prompt, prompt.bytes(), NOW_MS)
}

/// How many of 40 prompts each host gets, with nothing else in flight.
fn share(router: &Router, request: impl Fn(usize) -> Prompt) -> [usize; 4] {
    let mut share = [0; 4];
    (0..40).for_each(|n| share[usize::from(ask(router, &request(n)).hosts[0].0)] += 1);
    share
}

#[test]
fn a_model_name_has_the_same_digest_in_a_request_and_in_an_exposition() {
    assert_eq!(for_adapter(0).model(), text_digest(b"museum-lora"));
    assert!(said(LOADED, 0).adapters.has(for_adapter(0).model()));
    let escaped = read(Api::Chat, br#"{"model":"museum\u002dlora","messages":[]}"#);
    assert_eq!(escaped.model(), text_digest(b"museum-lora"));
    let long = "n".repeat(700);
    let named = read(Api::Chat, format!(r#"{{"model":"{long}","messages":[]}}"#).as_bytes());
    assert_eq!(named.model(), text_digest(long.as_bytes()));
    assert_eq!(request("", 0).model(), text_digest(b""));
}

#[test]
fn a_request_for_an_adapter_that_nobody_configured_goes_where_it_is_loaded() {
    assert_eq!(share(&fleet(&[1], 100), for_adapter), [0, 40, 0, 0]);
}

#[test]
fn the_host_that_has_the_adapter_is_left_for_another_when_it_is_overloaded() {
    let mut router = fleet(&[1], 100);
    let mut busy = |requests, prefill_tokens| {
        router.refresh(|slot, own, _| {
            (own.requests, own.prefill_tokens) =
                if slot == Slot(1) { (requests, prefill_tokens) } else { (0, 0) };
        });
        ask(&router, &for_adapter(1)).hosts[0]
    };
    assert_eq!((busy(0, 0), busy(8, 0), busy(0, 3_000)), (Slot(1), Slot(1), Slot(1)));
    assert_ne!(busy(30, 0), Slot(1));
    assert_ne!(busy(4, 20_000), Slot(1));
}

#[test]
fn where_nobody_or_everybody_has_the_adapter_it_decides_nothing() {
    let plain = share(&fleet(&[], 100), for_adapter);
    assert!(plain.iter().all(|count| *count > 0), "{plain:?}");
    assert_eq!(share(&fleet(&[0, 1, 2, 3], 100), for_adapter), plain);
}

#[test]
fn other_models_and_requests_without_one_are_not_drawn_to_the_adapter() {
    for model in [r#""model":"base","#, "", r#""model":null,"#, r#""model":"museum-lora2","#] {
        let with = share(&fleet(&[1], 100), |n| request(model, n));
        assert_eq!(with, share(&fleet(&[], 100), |n| request(model, n)), "{model}");
        assert!(with.iter().all(|count| *count > 0), "{model} {with:?}");
    }
}

#[test]
fn a_list_that_is_stale_counts_no_more() {
    let plain = share(&fleet(&[], 100), for_adapter);
    assert_eq!(share(&fleet(&[1], 60_000), for_adapter), plain);
}

#[test]
fn a_host_that_has_not_answered_lately_neither_has_the_adapter_nor_lacks_it() {
    let mut router = fleet(&[1], 100);
    let mut snapshot = Snapshot::default();
    // Of the three that answer one has it: the silent one is taken to have to load it in two cases of three.
    snapshot.put(Slot(3), &addresses(4)[3], said(LOADED, 60_000));
    router.apply(&snapshot);
    let mut next_to = |requests| {
        router.refresh(|slot, own, _| own.requests = if slot == Slot(1) { requests } else { 0 });
        ask(&router, &for_adapter(1)).hosts[0]
    };
    assert_eq!((next_to(0), next_to(11)), (Slot(1), Slot(3)));
}

#[test]
fn an_adapter_stays_loaded_when_its_requests_are_done_until_others_need_its_place_or_the_engine_restarts() {
    let sample = |names: &[&str], started_s: f64| EngineSample {
        running: Some(0.0),
        waiting: Some(0.0),
        start_time_seconds: Some(started_s),
        lora_adapters: names.iter().map(|name| (*name).to_owned()).collect(),
        max_lora: Some(2.0),
        ..EngineSample::default()
    };
    let own = Own::default();
    let poll = |before: Polled, names: &[&str]| before.after(&sample(names, 100.0), &own, &own, 0, 10);
    let has = |polled: &Polled| ["a", "b", "c"].map(|name| polled.adapters.has(text_digest(name.as_bytes())));
    let one = poll(Polled::default(), &["a"]);
    let idle = poll(one, &[]);
    let two = poll(idle, &["b"]);
    assert_eq!((has(&idle), has(&two)), ([true, false, false], [true, true, false]));
    // `a` was named last.
    let three = poll(poll(two, &["a"]), &["c"]);
    assert_eq!(has(&three), [true, false, true]);
    // More wait than there are places for: all are about to be loaded.
    assert_eq!(has(&poll(three, &["a", "b", "c"])), [true, true, true]);
    let restarted = three.after(&sample(&[], 200.0), &own, &own, 0, 20);
    assert_eq!(has(&restarted), [false; 3]);
    assert_eq!(three.after_failure().adapters, three.adapters);
}

#[test]
fn no_more_adapters_are_kept_than_there_is_room_for() {
    let names: Vec<String> = (0..40).map(|n| format!("adapter-{n}")).collect();
    let adapters = Adapters::default().named(&names, Some(64.0));
    let digests: Vec<u64> = names.iter().map(|name| text_digest(name.as_bytes())).collect();
    assert_eq!(adapters.iter().collect::<Vec<_>>(), digests[..MOST_ADAPTERS]);
    assert_eq!(adapters.named(&names[..1], None), adapters);
    assert_eq!(Adapters::default().named(&[], Some(-1.0)), Adapters::default());
}
