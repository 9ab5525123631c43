//! The decision, through one worker's router: affinity, load, what is unknown, ties.

use super::support::{addresses, chat, config, read, router};
use super::test;
use kvroute::core::fleet::{Part, Polled, Slot};
use kvroute::core::health::{Sign, Why};
use kvroute::core::learning::Keeps;
use kvroute::core::prompt::{Api, Outline, Prompt, Unread};
use kvroute::core::route::{Decision, Reason, Walk};
use kvroute::core::router::Router;
use kvroute::core::snapshot::Snapshot;
use std::collections::HashMap;

const NOW_MS: u64 = 1_000_000;

fn prompt(n: usize) -> Prompt {
    read(
        Api::Chat,
        chat(&format!("{n} {}", "words of the system prompt ".repeat(200)), "question").as_bytes(),
    )
}

fn ask(router: &Router, prompt: &Prompt) -> Decision {
    let mut walk = Walk::default();
    router.advance(&mut walk, prompt, true);
    router.decide(&walk, prompt, prompt.bytes(), NOW_MS)
}

/// Decides and carries out; the stream stays in flight.
fn send(router: &mut Router, stream: u32, prompt: &Prompt) -> Decision {
    let decision = ask(router, prompt);
    router.commit(stream, &decision, NOW_MS);
    router.remember(decision.hosts[0], prompt, &mut Default::default(), true);
    decision
}

fn polled(running: f64, waiting: f64) -> Polled {
    Polled { at_ms: NOW_MS - 100, running, waiting, ..Polled::default() }
}

#[test]
fn a_prompt_returns_to_the_host_that_has_it() {
    let mut router = router(4);
    for n in 0..40 {
        let first = send(&mut router, n, &prompt(n as usize));
        router.end(n);
        let again = ask(&router, &prompt(n as usize));
        assert_eq!((first.reason, again.reason), (Reason::Cold, Reason::Prefix));
        assert_eq!(first.hosts[0], again.hosts[0]);
        assert_eq!(again.matched_bytes, prompt(n as usize).bytes());
    }
}

#[test]
fn a_host_that_is_loaded_sheds_its_prefix_to_one_that_answers_sooner_and_keeps_the_rest() {
    let mut router = router(4);
    let home = send(&mut router, 0, &prompt(1)).hosts[0];
    let mut spilled = None;
    for stream in 1..60 {
        router.first_byte(stream - 1, NOW_MS);
        let decision = send(&mut router, stream, &prompt(1));
        if decision.hosts[0] != home {
            assert_eq!(decision.reason, Reason::Spill);
            spilled = Some(stream);
            break;
        }
        assert_eq!(decision.reason, Reason::Prefix);
    }
    // Its queue of decodes costs 12 ms a request, the prompt's prefill elsewhere about 75 ms.
    assert!((3..15).contains(&spilled.expect("spills")), "{spilled:?}");
    // Another prefix of the same fleet is as true to its host as before.
    let other = (2..).map(prompt).find(|prompt| ask(&router, prompt).hosts[0] != home).expect("another home");
    let first = send(&mut router, 100, &other).hosts[0];
    assert_eq!((ask(&router, &other).reason, ask(&router, &other).hosts[0]), (Reason::Prefix, first));
    // With the load gone the prefix contracts.
    (0..100).for_each(|stream| {
        router.end(stream);
    });
    let homes: Vec<Slot> = (0..10).map(|_| ask(&router, &prompt(1)).hosts[0]).collect();
    assert!(homes.iter().all(|host| *host == homes[0]));
}

#[test]
fn a_prefix_that_every_host_holds_goes_to_one_of_them_when_there_is_no_load() {
    let mut router = router(4);
    let shared = "the popular system prompt ".repeat(400);
    let question = |n: u32| read(Api::Chat, chat(&shared, &format!("question {n}")).as_bytes());
    for slot in 0..4 {
        router.remember(Slot(slot), &question(1_000), &mut Default::default(), true);
    }
    let mut homes = HashMap::new();
    for n in 0..50 {
        *homes.entry(send(&mut router, n, &question(n)).hosts[0]).or_insert(0) += 1;
        router.end(n);
    }
    assert_eq!(homes.len(), 1, "{homes:?}");
}

#[test]
fn an_unknown_host_is_neither_idle_nor_full() {
    let mut router = router(4);
    for (host, state) in router_hosts(&mut router).into_iter().zip([
        None,
        Some((0.0, 0.0)),
        Some((6.0, 2.0)),
        Some((30.0, 20.0)),
    ]) {
        set_polled(
            &mut router,
            host,
            state.map_or(Polled::default(), |(running, waiting)| polled(running, waiting)),
        );
    }
    let mut share = HashMap::new();
    for n in 0..100 {
        *share.entry(send(&mut router, n, &prompt(n as usize)).hosts[0]).or_insert(0) += 1;
        router.end(n);
    }
    let of = |slot: u16| share.get(&Slot(slot)).copied().unwrap_or(0);
    // One at a time: the true zero is the best, the unknown is not, and the busy gets nothing.
    assert!(of(1) > of(0) && of(1) > 50 && of(3) == 0, "{share:?}");
    // Its own work leads: under a burst the unknown takes its share.
    share.clear();
    for n in 100..200 {
        *share.entry(send(&mut router, n, &prompt(n as usize)).hosts[0]).or_insert(0) += 1;
    }
    let of = |slot: u16| share.get(&Slot(slot)).copied().unwrap_or(0);
    assert!((15..=45).contains(&of(0)) && of(1) > of(3), "{share:?}");
}

#[test]
fn a_stale_answer_does_not_count() {
    let mut router = router(2);
    let stale = Polled { at_ms: NOW_MS - 60_000, ..polled(50.0, 50.0) };
    set_polled(&mut router, Slot(0), stale);
    set_polled(&mut router, Slot(1), stale);
    let mut share = [0; 2];
    for n in 0..60 {
        share[usize::from(send(&mut router, n, &prompt(n as usize)).hosts[0].0)] += 1;
    }
    assert!(share.iter().all(|&count| count >= 25), "{share:?}");
}

#[test]
fn gauges_frozen_at_zero_do_not_draw_everything() {
    // An engine that starts reports nothing for many seconds: own work in flight must lead.
    let mut router = router(4);
    (0..4).for_each(|slot| set_polled(&mut router, Slot(slot), polled(0.0, 0.0)));
    let mut share = [0; 4];
    for n in 0..200 {
        share[usize::from(send(&mut router, n, &prompt(n as usize)).hosts[0].0)] += 1;
    }
    assert!(share.iter().all(|&count| (30..=70).contains(&count)), "{share:?}");
}

#[test]
fn unrelated_prompts_at_low_load_fall_evenly_on_four_hosts() {
    // 64 prompts, 200 different sets: each host gets 15 to 35 % of them, nearly always.
    let mut uneven = 0;
    for set in 0..200 {
        let mut router = router(4);
        let mut share = [0; 4];
        for n in 0..64_usize {
            let prompt = read(
                Api::Chat,
                chat(&format!("set {set} prompt {n} {}", "text ".repeat(90)), "x").as_bytes(),
            );
            share[usize::from(send(&mut router, n as u32, &prompt).hosts[0].0)] += 1;
            router.end(n as u32);
        }
        uneven += usize::from(share.iter().any(|&count| !(10..=22).contains(&count)));
    }
    assert!(uneven <= 2, "{uneven} of 200 sets");
}

#[test]
fn workers_that_share_nothing_place_alike_and_the_order_of_hosts_does_not_matter() {
    let mut forward = router(6);
    let backward_config = config(6);
    let mut backward = Router::new(&backward_config);
    let slots: Vec<(String, Slot)> =
        addresses(6).into_iter().rev().enumerate().map(|(n, address)| (address, Slot(n as u16))).collect();
    backward.configure(&backward_config, &slots);
    let address = |router: &Router, slot: Slot| router.fleet().host(slot).expect("known").address.clone();
    let mut same = 0;
    for n in 0..300 {
        let a = send(&mut forward, n, &prompt(n as usize)).hosts[0];
        forward.end(n);
        // The other gateway sees the prompts in another order.
        let m = (n * 7) % 300;
        let b = send(&mut backward, n, &prompt(m as usize)).hosts[0];
        backward.end(n);
        let _ = b;
        same += usize::from(
            address(&forward, a) == address(&backward, ask(&backward, &prompt(n as usize)).hosts[0]),
        );
    }
    assert!(same >= 270, "{same} of 300");
}

#[test]
fn losing_a_host_moves_little_more_than_its_own_prompts() {
    let home = |hosts: &[(String, Slot)]| {
        let config = config(11);
        let mut router = Router::new(&config);
        router.configure(&config, hosts);
        let mut homes = Vec::new();
        for n in 0..1_000 {
            let slot = send(&mut router, n, &prompt(n as usize)).hosts[0];
            router.end(n);
            homes.push(router.fleet().host(slot).expect("known").address.clone());
        }
        homes
    };
    let all: Vec<(String, Slot)> =
        addresses(11).into_iter().enumerate().map(|(n, address)| (address, Slot(n as u16))).collect();
    let before = home(&all[..10]);
    let changed: Vec<(String, Slot)> = all.iter().filter(|(_, slot)| slot.0 != 4).cloned().collect();
    let moved = before.iter().zip(home(&changed)).filter(|(a, b)| *a != b).count();
    // A tenth had the lost host, an eleventh goes to the new one.
    assert!(moved <= 250, "{moved} of 1000 moved");
}

#[test]
fn the_next_best_hosts_follow_and_none_twice() {
    let mut router = router(5);
    let decision = send(&mut router, 0, &prompt(1));
    assert_eq!(decision.hosts.len(), 3);
    let unique: std::collections::HashSet<_> = decision.hosts.iter().collect();
    assert_eq!(unique.len(), 3);
}

#[test]
fn a_host_that_fails_is_left_out_tried_again_and_taken_back() {
    let mut router = router(3);
    let home = send(&mut router, 0, &prompt(1)).hosts[0];
    (0..3).for_each(|_| {
        router.failed(home, Why::Connect, NOW_MS, NOW_MS);
    });
    assert!(!ask(&router, &prompt(1)).hosts.contains(&home));
    // After the back-off one request goes there, and until it has ended no other.
    let later = |router: &Router, at_ms| {
        let mut walk = Walk::default();
        router.advance(&mut walk, &prompt(1), true);
        router.decide(&walk, &prompt(1), prompt(1).bytes(), at_ms)
    };
    let again = NOW_MS + 1_001;
    let probe = later(&router, again);
    assert_eq!(probe.hosts[0], home);
    router.commit(50, &probe, again);
    assert_ne!(later(&router, again + 1).hosts[0], home);
    router.worked(home, Sign::Generated, again + 5);
    assert_eq!(later(&router, again + 11).hosts[0], home);
}

#[test]
fn a_clock_set_back_makes_no_back_off_longer() {
    let mut router = router(3);
    let home = send(&mut router, 0, &prompt(1)).hosts[0];
    (0..3).for_each(|_| router.failed(home, Why::Connect, NOW_MS + 3_600_000, NOW_MS + 3_600_000));
    assert_eq!(ask(&router, &prompt(1)).hosts[0], home);
}

#[test]
fn when_every_host_fails_all_are_named() {
    let mut router = router(3);
    for slot in 0..3 {
        (0..5).for_each(|_| {
            router.failed(Slot(slot), Why::Connect, NOW_MS, NOW_MS);
        });
    }
    assert_eq!(ask(&router, &prompt(1)).hosts.len(), 3);
}

#[test]
fn prompts_of_which_no_block_has_come_yet_spread_too() {
    // A head full of other things: the decision is due before the prompt begins.
    let mut prompt = Prompt::new(Api::Chat, &super::support::settings());
    prompt.feed(format!(r#"{{"metadata":"{}""#, "x".repeat(30_000)).as_bytes());
    let mut router = router(4);
    let mut share = [0; 4];
    for n in 0..80 {
        let mut walk = Walk::default();
        router.advance(&mut walk, &prompt, false);
        let decision = router.decide(&walk, &prompt, 40_000, NOW_MS);
        share[usize::from(decision.hosts[0].0)] += 1;
        router.commit(n, &decision, NOW_MS);
        router.end(n);
    }
    assert!(share.iter().all(|&count| (15..=25).contains(&count)), "{share:?}");
}

#[test]
fn without_hosts_nothing_is_named() {
    let router = Router::new(&config(1));
    assert_eq!((ask(&router, &prompt(1)).reason, ask(&router, &prompt(1)).hosts), (Reason::NoHosts, vec![]));
    assert_eq!(router.decide_unread(Unread::Path, true, NOW_MS).reason, Reason::NoHosts);
}

#[test]
fn what_is_not_read_goes_by_load() {
    let mut router = router(4);
    let mut share = [0; 4];
    for n in 0..200 {
        let decision = router.decide_unread(Unread::Encoding, true, NOW_MS);
        assert_eq!(decision.reason.as_str(), "encoding");
        share[usize::from(decision.hosts[0].0)] += 1;
        router.commit(n, &decision, NOW_MS);
        if n % 2 == 0 {
            router.end(n);
        }
    }
    assert!(share.iter().all(|&count| (40..=60).contains(&count)), "{share:?}");
}

fn router_hosts(router: &mut Router) -> Vec<Slot> {
    router.fleet().hosts().iter().map(|host| host.slot).collect()
}

fn set_polled(router: &mut Router, slot: Slot, polled: Polled) {
    let mut snapshot = Snapshot::default();
    let address = router.fleet().host(slot).expect("known").address.clone();
    snapshot.put(slot, &address, polled);
    router.apply(&snapshot);
}

/// A prompt of some 4,000 tokens.
fn long() -> Prompt {
    read(Api::Chat, chat(&"a system prompt of some length ".repeat(520), "question").as_bytes())
}

#[test]
fn the_fuller_the_fleet_the_more_is_borne_for_not_computing_a_prompt_anew() {
    let chosen = |queued: u64| {
        let mut router = router(4);
        router.remember(Slot(2), &long(), &mut Default::default(), true);
        router.refresh(|slot, own, _| {
            own.prefill_tokens = queued;
            own.requests = if slot == Slot(2) { 30 } else { 0 };
        });
        ask(&router, &long()).hosts[0]
    };
    assert_ne!(chosen(0), Slot(2));
    assert_eq!(chosen(36_000), Slot(2));
}

#[test]
fn each_gateway_fills_its_own_part_of_the_hosts_first() {
    for rank in 0..4 {
        let mut router = router(8);
        router.apply(&Snapshot { part: Part { rank, of: 4 }, ..Snapshot::default() });
        let own =
            |router: &Router, slot: Slot| Part { rank, of: 4 }.has(router.fleet().host(slot).expect("known"));
        for n in 0..20 {
            let chosen = ask(&router, &prompt(n)).hosts[0];
            assert!(own(&router, chosen), "{chosen:?} by gateway {rank}");
        }
        // What another gateway's host holds is still found there.
        let theirs = (0..8).map(Slot).find(|slot| !own(&router, *slot)).expect("six of them");
        router.remember(theirs, &prompt(1), &mut Default::default(), true);
        assert_eq!(ask(&router, &prompt(1)).hosts[0], theirs);
    }
}

#[test]
fn a_host_that_keeps_half_of_what_it_says_is_believed_half_as_long() {
    let found = |share: f64| {
        let mut router = router(2);
        let polled = Polled { at_ms: NOW_MS, capacity_tokens: 100_000, ..Polled::default() };
        set_polled(&mut router, Slot(1), Polled { keeps: Keeps::from_share(share), ..polled });
        router.remember(Slot(1), &prompt(1), &mut Default::default(), true);
        router.refresh(|_, own, _| own.sent_tokens = 75_000);
        ask(&router, &prompt(1)).reason
    };
    assert_eq!((found(1.0), found(0.5)), (Reason::Prefix, Reason::Cold));
}
