//! A host goes, and what is hot on it gets new homes: one each, and everywhere the same.

use super::support::{addresses, chat, read, router};
use super::test;
use kvroute::core::blocks::BlockHash;
use kvroute::core::drains::Drains;
use kvroute::core::fleet::{Polled, Slot};
use kvroute::core::index::{Index, Liveness, Stamp};
use kvroute::core::prompt::{Api, Outline, Prompt};
use kvroute::core::route::{Decision, Reason, Walk};
use kvroute::core::router::Router;
use kvroute::core::snapshot::Snapshot;
use std::collections::BTreeSet;

const NOW_MS: u64 = 5_000;
const PREFIXES: usize = 240;

/// One conversation of many that begin with the same system prompt.
fn conversation(prefix: usize, n: usize) -> Prompt {
    let system = format!("{prefix} {}", "a system prompt that many share ".repeat(120));
    let question = format!("question {n} of its own, {}", "and nobody else's words ".repeat(20 + n));
    read(Api::Chat, chat(&system, &question).as_bytes())
}

/// A conversation begins, is answered and ends.
fn send(router: &mut Router, stream: u32, prompt: &Prompt) -> Decision {
    let mut walk = Walk::default();
    router.advance(&mut walk, prompt, true);
    let decision = router.decide(&walk, prompt, prompt.bytes(), NOW_MS);
    router.commit(stream, &decision, NOW_MS);
    router.remember(decision.hosts[0], prompt, &mut Default::default(), true);
    router.end(stream);
    decision
}

fn mark(router: &mut Router, slots: &[Slot]) {
    let mut drains = Drains::default();
    slots.iter().for_each(|slot| {
        drains.mark(&addresses(4)[usize::from(slot.0)], 1);
    });
    router.settle_drains(&[], &drains);
}

/// Where the conversations of each prefix go. `order` shuffles them, so that no two routers see the same.
fn homes(router: &mut Router, prefixes: &[usize], from: usize, order: usize) -> Vec<BTreeSet<Slot>> {
    let mut homes = vec![BTreeSet::new(); prefixes.len()];
    for n in from..from + 4 {
        for place in 0..prefixes.len() {
            let place = (place * order + n) % prefixes.len();
            let prompt = conversation(prefixes[place], n);
            homes[place].insert(send(router, 0, &prompt).hosts[0]);
        }
    }
    homes
}

#[test]
fn hot_prefixes_of_a_host_that_goes_get_one_new_home_each_the_same_everywhere_and_return() {
    const GOES: Slot = Slot(2);
    let all: Vec<usize> = (0..PREFIXES).collect();
    let mut routers = [router(4), router(4)];
    let mut hot: Vec<Vec<usize>> = Vec::new();
    for (order, router) in [1, 7].into_iter().zip(&mut routers) {
        let homes = homes(router, &all, 0, order);
        let single = homes.iter().filter(|homes| homes.len() == 1).count();
        assert_eq!(single, PREFIXES, "nothing scatters before");
        hot.push((0..PREFIXES).filter(|prefix| homes[*prefix].contains(&GOES)).collect());
    }
    let hot: Vec<usize> = hot[0].iter().copied().filter(|prefix| hot[1].contains(prefix)).collect();
    assert!(hot.len() >= 20, "{hot:?}");

    routers.iter_mut().for_each(|router| mark(router, &[GOES]));
    let [first, second] = &mut routers;
    // Orders that have no factor in common with their number.
    let orders = if hot.len().is_multiple_of(7) { (1, 11) } else { (1, 7) };
    let (first, second) = (homes(first, &hot, 10, orders.0), homes(second, &hot, 10, orders.1));
    let mut counts = [0; 4];
    let mut agreed = 0;
    for (prefix, (first, second)) in hot.iter().zip(first.iter().zip(&second)) {
        assert_eq!((first.len(), second.len()), (1, 1), "prefix {prefix} scatters: {first:?} {second:?}");
        assert!(!first.contains(&GOES));
        agreed += usize::from(first == second);
        first.iter().for_each(|slot| counts[usize::from(slot.0)] += 1);
    }
    assert!(agreed * 10 >= hot.len() * 9, "{agreed} of {} agree", hot.len());
    let fair = hot.len() / 3;
    let spread = [0, 1, 3].map(|slot| counts[slot]);
    assert!(spread.iter().all(|count| (fair * 3 / 5..=fair * 7 / 5).contains(count)), "{spread:?}");

    // It stays after all: its conversations find what they had.
    for router in &mut routers {
        mark(router, &[]);
        for prefix in &hot {
            let decision = send(router, 0, &conversation(*prefix, 1));
            assert_eq!((decision.hosts[0], decision.reason), (GOES, Reason::Prefix), "prefix {prefix}");
        }
    }
}

#[test]
fn a_prefix_that_another_host_has_too_stays_with_that_one() {
    let mut router = router(4);
    let prompt = conversation(1, 1);
    let home = send(&mut router, 0, &prompt).hosts[0];
    let second = Slot((home.0 + 1) % 4);
    router.remember(second, &conversation(1, 2), &mut Default::default(), true);
    mark(&mut router, &[home]);
    for n in 10..20 {
        assert_eq!(send(&mut router, 0, &conversation(1, n)).hosts[0], second);
    }
}

#[test]
fn where_all_go_each_still_has_its_own() {
    let mut router = router(4);
    let homes: Vec<Slot> =
        (0..20).map(|prefix| send(&mut router, 0, &conversation(prefix, 1)).hosts[0]).collect();
    mark(&mut router, &[Slot(0), Slot(1), Slot(2), Slot(3)]);
    for (prefix, home) in homes.iter().enumerate() {
        assert_eq!(send(&mut router, 0, &conversation(prefix, 2)).hosts[0], *home);
    }
}

#[test]
fn what_a_sleeping_engine_held_does_not_scatter_conversations_either() {
    let mut router = router(4);
    let home = send(&mut router, 0, &conversation(1, 1)).hosts[0];
    let mut snapshot = Snapshot::default();
    for (n, address) in addresses(4).iter().enumerate() {
        let asleep = n == usize::from(home.0);
        snapshot.put(Slot(n as u16), address, Polled { at_ms: NOW_MS, asleep, ..Polled::default() });
    }
    router.apply(&snapshot);
    let homes: BTreeSet<Slot> =
        (10..20).map(|n| send(&mut router, 0, &conversation(1, n)).hosts[0]).collect();
    assert_eq!(homes.len(), 1, "{homes:?}");
}

/// Hosts of which some are away.
struct Away(Vec<u16>);

impl Liveness for Away {
    fn holds(&self, slot: Slot, _stamp: Stamp) -> bool {
        !self.0.contains(&slot.0)
    }

    fn may_return(&self, slot: Slot, _stamp: Stamp) -> bool {
        self.0.contains(&slot.0)
    }
}

#[test]
fn who_may_return_loses_its_place_in_an_entry_only_where_there_is_no_other() {
    let listed = |index: &Index| -> Vec<u16> {
        let mut slots: Vec<u16> =
            index.holders(BlockHash(5)).expect("known").iter().map(|(slot, _)| slot.0).collect();
        slots.sort_unstable();
        slots
    };
    let mut index = Index::new(1 << 10);
    let away = Away(vec![0]);
    for slot in 0..4 {
        index.record(BlockHash(5), Slot(slot), Stamp::at(0), &away);
    }
    assert_eq!(listed(&index), [0, 1, 2, 3]);
    index.record(BlockHash(5), Slot(4), Stamp::at(0), &away);
    assert_eq!(listed(&index), [1, 2, 3, 4]);
}
