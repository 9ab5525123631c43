//! The index against a map that forgets nothing, and its bounds.

use super::support::Numbers;
use super::test;
use kvroute::core::blocks::BlockHash;
use kvroute::core::fleet::Slot;
use kvroute::core::index::{Index, Liveness, Stamp};
use std::collections::{BTreeMap, BTreeSet};

/// Hosts whose clocks and capacity are the test's.
struct Clocks {
    now: u64,
    capacity: u64,
}

impl Liveness for Clocks {
    fn holds(&self, _slot: Slot, stamp: Stamp) -> bool {
        stamp.age(self.now) < self.capacity
    }
}

const ALWAYS: Clocks = Clocks { now: 0, capacity: u64::MAX };

fn listed(index: &Index, block: BlockHash) -> BTreeSet<u16> {
    index.holders(block).map(|holders| holders.iter().map(|(slot, _)| slot.0).collect()).unwrap_or_default()
}

#[test]
fn while_it_has_room_it_knows_what_a_map_knows() {
    let mut numbers = Numbers(2);
    let mut index = Index::new(1 << 14);
    let mut map: BTreeMap<u64, BTreeSet<u16>> = BTreeMap::new();
    for _ in 0..3_000 {
        let block = BlockHash(numbers.below(400).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let slot = Slot(numbers.below(4) as u16);
        match numbers.below(10) {
            0 => {
                index.withdraw(block, slot);
                map.entry(block.0).or_default().remove(&slot.0);
            }
            _ => {
                index.record(block, slot, Stamp::at(0), &ALWAYS);
                map.entry(block.0).or_default().insert(slot.0);
            }
        }
        assert_eq!(listed(&index, block), map[&block.0]);
    }
    index.forget(Slot(2));
    for (block, slots) in map {
        let rest: BTreeSet<u16> = slots.into_iter().filter(|slot| *slot != 2).collect();
        assert_eq!(listed(&index, BlockHash(block)), rest);
    }
}

#[test]
fn a_million_blocks_leave_the_newest_and_no_more_than_fit() {
    let mut index = Index::new(1 << 12);
    let block = |n: u64| BlockHash(n.wrapping_mul(0xC4CE_B9FE_1A85_EC53));
    for n in 0..1_000_000 {
        index.record(block(n), Slot(0), Stamp::at(0), &ALWAYS);
    }
    let known = |range: std::ops::Range<u64>| range.filter(|n| !listed(&index, block(*n)).is_empty()).count();
    assert_eq!(known(999_900..1_000_000), 100);
    assert!(known(0..1_000_000) <= 1 << 12);
}

#[test]
fn what_is_used_again_and_again_stays() {
    let mut index = Index::new(1 << 10);
    let popular = BlockHash(42);
    for n in 0..100_000_u64 {
        index.record(BlockHash(n.wrapping_mul(0xC4CE_B9FE_1A85_EC53)), Slot(1), Stamp::at(0), &ALWAYS);
        index.record(popular, Slot(0), Stamp::at(0), &ALWAYS);
    }
    assert_eq!(listed(&index, popular), BTreeSet::from([0]));
}

#[test]
fn a_fifth_holder_overflows_until_one_of_the_listed_has_forgotten() {
    let mut index = Index::new(1 << 10);
    let block = BlockHash(7);
    let clocks = |now| Clocks { now, capacity: 6_400 };
    for slot in 0..5 {
        index.record(block, Slot(slot), Stamp::at(640 * u64::from(slot)), &clocks(2_560));
    }
    assert!(index.holders(block).expect("known").is_overflowing());
    assert_eq!(listed(&index, block), BTreeSet::from([0, 1, 2, 3]));
    // Slot 0 was stamped at 0: at 6,400 its cache has turned over, and its place is free.
    index.record(block, Slot(5), Stamp::at(6_400), &clocks(6_400));
    assert_eq!(listed(&index, block), BTreeSet::from([1, 2, 3, 5]));
    assert!(!index.holders(block).expect("known").is_overflowing());
}

#[test]
fn only_news_is_news() {
    let mut index = Index::new(1 << 10);
    let mut record = |slot, tokens| index.record(BlockHash(9), Slot(slot), Stamp::at(tokens), &ALWAYS);
    assert!(record(0, 1_000_000));
    assert!(!record(0, 1_000_000));
    assert!(!record(0, 1_001_000));
    assert!(record(0, 1_100_000));
    assert!(record(1, 1_000_000));
}

#[test]
fn a_stamp_from_a_clock_that_is_ahead_is_new() {
    assert_eq!(Stamp::at(64_000).age(0), 0);
    assert_eq!(Stamp::at(0).age(64_000), 64_000);
    // Over the end of 32 bits of ticks.
    let end = 64 * u64::from(u32::MAX);
    assert_eq!(Stamp::at(end).age(end + 6_400), 6_400);
}
