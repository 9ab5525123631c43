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
    index.forget(&[Slot(2)]);
    for (block, slots) in map {
        let rest: BTreeSet<u16> = slots.into_iter().filter(|slot| *slot != 2).collect();
        assert_eq!(listed(&index, BlockHash(block)), rest);
    }
}

#[test]
fn a_million_blocks_leave_the_newest_and_no_more_than_fit() {
    let mut index = Index::new(1 << 12);
    (0..1_000_000).for_each(|n| record(&mut index, n));
    assert_eq!(known(&index, 999_900..1_000_000), 100);
    assert!(known(&index, 0..1_000_000) <= 1 << 12);
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

/// Blocks that differ everywhere.
fn spread(n: u64) -> BlockHash {
    BlockHash(n.wrapping_mul(0xC4CE_B9FE_1A85_EC53))
}

/// How many of `blocks` are known.
fn known(index: &Index, blocks: impl IntoIterator<Item = u64>) -> usize {
    blocks.into_iter().filter(|n| index.holders(spread(*n)).is_some()).count()
}

fn record(index: &mut Index, n: u64) {
    index.record(spread(n), Slot(0), Stamp::at(0), &ALWAYS);
}

const ENTRIES: u64 = 1 << 12;

/// The first number of blocks that are recorded once.
const ONE_OFF: u64 = 1 << 32;

#[test]
fn prefixes_that_come_now_and_then_survive_a_flood_of_prompts_that_never_come_again() {
    let mut index = Index::new(ENTRIES as usize);
    // A quarter of the table is useful. Of what it meets, three tables' worth and more lie between two uses.
    let useful = 0..ENTRIES / 4;
    let mut one_offs = ONE_OFF..;
    for _ in 0..8 {
        useful.clone().for_each(|n| record(&mut index, n));
    }
    for round in 0..10 {
        one_offs.by_ref().take(3 * ENTRIES as usize).for_each(|n| record(&mut index, n));
        let found = known(&index, useful.clone());
        assert!(found * 100 >= useful.clone().count() * 99, "round {round}: {found}");
        useful.clone().for_each(|n| record(&mut index, n));
    }
}

#[test]
fn a_prefix_that_came_twice_outlives_those_that_came_once() {
    let mut index = Index::new(ENTRIES as usize);
    let (twice, once) = (0..ENTRIES / 8, ENTRIES / 8..ENTRIES / 4);
    twice.clone().for_each(|n| record(&mut index, n));
    twice.clone().for_each(|n| record(&mut index, n));
    once.clone().for_each(|n| record(&mut index, n));
    (ONE_OFF..ONE_OFF + ENTRIES).for_each(|n| record(&mut index, n));
    let (twice, once) = (known(&index, twice), known(&index, once));
    assert!(
        twice * 100 >= 80 * ENTRIES as usize / 8 && once * 100 <= 30 * ENTRIES as usize / 8,
        "{twice} {once}"
    );
}

#[test]
fn what_was_popular_yesterday_makes_room_for_what_is_used_today() {
    let mut index = Index::new(ENTRIES as usize);
    let yesterday = 0..ENTRIES;
    for _ in 0..300 {
        yesterday.clone().for_each(|n| record(&mut index, n));
    }
    assert!(known(&index, yesterday.clone()) as u64 > ENTRIES / 2);
    // Where several of today's share a set with the most popular of yesterday, they have to come 16 times.
    let today = ONE_OFF..ONE_OFF + ENTRIES / 10;
    for _ in 0..17 {
        today.clone().for_each(|n| record(&mut index, n));
    }
    let found = known(&index, today);
    assert!(found as u64 * 100 >= ENTRIES / 10 * 99, "{found}");
    // Ten tables' worth later nothing of yesterday is left.
    let later = 2 * ONE_OFF..2 * ONE_OFF + 10 * ENTRIES;
    later.for_each(|n| record(&mut index, n));
    let left = known(&index, yesterday);
    assert!((left as u64) < ENTRIES / 100, "{left}");
}

#[test]
fn a_prompt_that_a_retry_sent_elsewhere_has_come_once() {
    let mut index = Index::new(ENTRIES as usize);
    let moved = 0..ENTRIES / 8;
    for n in moved.clone() {
        record(&mut index, n);
        index.withdraw(spread(n), Slot(0));
        index.record(spread(n), Slot(1), Stamp::at(0), &ALWAYS);
    }
    (ONE_OFF..ONE_OFF + ENTRIES).for_each(|n| record(&mut index, n));
    let left = known(&index, moved);
    assert!(left * 100 <= 25 * ENTRIES as usize / 8, "{left}");
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
