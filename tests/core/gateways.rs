//! Who is alive, and what all of them have in flight.

use super::test;
use kvroute::core::fleet::{Part, Peers, Slot};
use kvroute::core::gateways::Gateways;
use kvroute::core::journal::Holding;

const SILENT_AFTER_MS: u64 = 3_000;

fn busy(slot: u16, requests: u32, prefill_tokens: u64) -> Holding {
    Holding { slot: Slot(slot), requests, prefill_tokens }
}

fn on(gateways: &Gateways, slot: usize) -> (u32, u64) {
    let peers = gateways.in_flight().get(slot).copied().unwrap_or_default();
    (peers.requests, peers.prefill_tokens)
}

#[test]
fn what_others_have_in_flight_adds_up_and_their_last_word_counts() {
    let mut gateways = Gateways::new(5, SILENT_AFTER_MS);
    assert_eq!(gateways.in_flight(), Vec::<Peers>::new());
    gateways.hear(1, vec![busy(0, 2, 700), busy(3, 1, 50)], 1_000);
    gateways.hear(2, vec![busy(3, 4, 5)], 1_000);
    assert_eq!((on(&gateways, 0), on(&gateways, 1), on(&gateways, 3)), ((2, 700), (0, 0), (5, 55)));
    gateways.hear(1, vec![busy(0, 1, 0)], 1_100);
    assert_eq!((on(&gateways, 0), on(&gateways, 3)), ((1, 0), (4, 5)));
    // A gateway that is asked at two addresses counts once; one that lists itself, not at all.
    gateways.hear(2, vec![busy(3, 4, 5)], 1_110);
    gateways.hear(5, vec![busy(3, 9, 9)], 1_110);
    assert_eq!(on(&gateways, 3), (4, 5));
    // Whatever a gateway says.
    gateways.hear(1, vec![busy(3, u32::MAX, u64::MAX)], 1_200);
    assert_eq!(on(&gateways, 3), (u32::MAX, u64::MAX));
}

#[test]
fn who_is_silent_for_too_long_has_nothing_in_flight() {
    let mut gateways = Gateways::new(5, SILENT_AFTER_MS);
    gateways.hear(1, vec![busy(0, 2, 0)], 10_000);
    gateways.hear(2, vec![busy(0, 1, 0)], 11_000);
    gateways.forget_silent(13_000);
    assert_eq!(on(&gateways, 0), (3, 0));
    gateways.forget_silent(13_001);
    assert_eq!(on(&gateways, 0), (1, 0));
    // A clock that was set back by hours does not keep the dead alive.
    gateways.forget_silent(11_000 - SILENT_AFTER_MS - 1);
    assert_eq!(on(&gateways, 0), (0, 0));
}

#[test]
fn gateways_that_hear_each_other_part_the_hosts_between_them() {
    let ids = [40, 7, 300];
    let part = |own: u64, alive: &[u64]| {
        let mut gateways = Gateways::new(own, SILENT_AFTER_MS);
        alive.iter().for_each(|id| gateways.hear(*id, Vec::new(), 1_000));
        gateways.part()
    };
    assert_eq!(part(40, &[]), Part::ALL);
    assert_eq!(part(40, &[40]), Part::ALL);
    let mut ranks = ids.map(|own| part(own, &ids));
    ranks.sort_by_key(|part| part.rank);
    assert_eq!(ranks, [0, 1, 2].map(|rank| Part { rank, of: 3 }));
    assert_eq!(part(300, &[7]), Part { rank: 1, of: 2 });
}

#[test]
fn their_number_is_bounded() {
    let mut gateways = Gateways::new(0, SILENT_AFTER_MS);
    (1..1_000).for_each(|id| gateways.hear(id, vec![busy(0, 1, 0)], 1_000));
    assert!(on(&gateways, 0).0 <= 128);
}
