//! What is written is read: the journal, the snapshot and the roster; and that damage is harmless.

use super::support::Numbers;
use super::test;
use kvroute::core::adapters::Adapters;
use kvroute::core::blocks::BlockHash;
use kvroute::core::fleet::{Polled, Slot};
use kvroute::core::health::{Seen, Why};
use kvroute::core::index::Stamp;
use kvroute::core::journal::{read_bulletin, Bulletin, Holding, Inbox, Outbox, Placement};
use kvroute::core::roster::{Before, Roster};
use kvroute::core::snapshot::Snapshot;
use kvroute::core::tier::{Lookups, Tier};

fn bulletin(worker: u64) -> Bulletin {
    let holdings = vec![Holding { slot: Slot(3), requests: 7, prefill_tokens: 9_000 }];
    let bytes = vec![(Slot(3), 17), (Slot(5), 0)];
    let seen = Seen { failures: 3, failed_ms: 1_200, until_ms: 2_200, good_ms: 7, why: Why::TimedOut };
    Bulletin { worker, at_ms: 1_234, holdings, bytes, seen: vec![(Slot(5), seen)] }
}

fn placement(n: u64) -> Placement {
    let blocks = (0..5).map(|block| BlockHash(100 * n + block)).collect();
    Placement { slot: Slot(n as u16), stamp: Stamp::at(64 * n), blocks }
}

fn read(inbox: &mut Inbox, value: &[u8]) -> Vec<Placement> {
    let mut placements = Vec::new();
    inbox.read(value, |placement| placements.push(placement));
    placements
}

#[test]
fn a_placement_is_heard_once_by_each_reader() {
    let mut outbox = Outbox::default();
    let (mut prompt_reader, mut late_reader) = (Inbox::default(), Inbox::default());
    let mut late = Vec::new();
    for n in 0..12 {
        outbox.note(&placement(n));
        let value = outbox.publish(&bulletin(1));
        assert_eq!(read_bulletin(&value), Some(bulletin(1)));
        assert_eq!(read(&mut prompt_reader, &value), [placement(n)]);
        assert_eq!(read(&mut prompt_reader, &value), []);
        if n % 3 == 2 {
            late.extend(read(&mut late_reader, &value));
        }
    }
    assert_eq!(late, (0..12).map(placement).collect::<Vec<_>>());
}

#[test]
fn a_new_worker_under_an_old_number_is_heard_from_its_start() {
    let mut inbox = Inbox::default();
    let mut old = Outbox::default();
    (0..9).for_each(|n| {
        old.note(&placement(n));
        read(&mut inbox, &old.publish(&bulletin(1)));
    });
    let mut new = Outbox::default();
    new.note(&placement(50));
    assert_eq!(read(&mut inbox, &new.publish(&bulletin(2))), [placement(50)]);
}

#[test]
fn what_has_no_room_is_counted_not_told() {
    let mut outbox = Outbox::default();
    (0..10_000).for_each(|n| outbox.note(&placement(n)));
    let value = outbox.publish(&bulletin(1));
    assert!(value.len() < 20_000);
    let told = read(&mut Inbox::default(), &value).len() as u64;
    assert_eq!(told + outbox.take_dropped(), 10_000);
}

#[test]
fn values_cut_short_or_damaged_are_survived() {
    let mut outbox = Outbox::default();
    outbox.note(&placement(1));
    let journal = outbox.publish(&bulletin(1));
    let mut snapshot = Snapshot::default();
    snapshot.put(Slot(1), "10.0.0.1:80", Polled::default());
    let mut roster = Roster::default();
    roster.admit("c", &["10.0.0.1:80".to_owned()], 1, |_| Before::default());
    let mut numbers = Numbers(5);
    for value in [journal, snapshot.encode(), roster.encode()] {
        for len in 0..value.len() {
            let mut damaged = value[..len].to_vec();
            if let Some(byte) = damaged.get_mut(numbers.below(len.max(1) as u64) as usize) {
                *byte ^= 1 << numbers.below(8);
            }
            read(&mut Inbox::default(), &damaged);
            let _ = (Snapshot::decode(&damaged), Roster::decode(&damaged), read_bulletin(&damaged));
        }
    }
    assert_eq!(Snapshot::decode(b""), None);
    assert_eq!(Roster::decode(b"\x07"), None);
}

#[test]
fn a_batch_with_the_last_number_there_is_is_survived() {
    let mut outbox = Outbox::default();
    outbox.note(&placement(1));
    let mut value = outbox.publish(&Bulletin { worker: 1, ..Bulletin::default() });
    // Behind the version, the worker, the time, and nothing of hosts.
    value[22..30].copy_from_slice(&[0xFF; 8]);
    assert_eq!(read(&mut Inbox::default(), &value), []);
}

#[test]
fn a_snapshot_carries_all_that_the_next_leader_needs() {
    let polled = Polled {
        at_ms: 5,
        running: 3.0,
        waiting: 1.5,
        kv_usage: 0.25,
        capacity_tokens: 7,
        clock_tokens: 8,
        counted_tokens: 9.0,
        prompt_tokens: 9.5,
        started_s: 10.0,
        known_requests: 11,
        computed_tokens: 13.0,
        computed_lately: 14.0,
        expected_lately: 15.0,
        keeps: kvroute::core::learning::Keeps::from_share(0.75),
        own_sent_tokens: 12,
        lookups: Lookups { queries: 19.0, hits: 20.0, queries_lately: 21.0, hits_lately: 22.0 },
        adapters: Adapters::from_digests([16, 17, 18].into_iter()),
        asleep: true,
        failures: 13,
        moves: 19.0,
        moved_ms: 20,
        counts_steps: true,
    };
    let tier = Tier { hit_ratio: Some(0.25), fetch_share: 0.75 };
    let mut snapshot = Snapshot { foreign_share: 0.5, tier, ..Snapshot::default() };
    snapshot.put(Slot(4), "[::1]:8000", polled);
    snapshot.put(Slot(0), "10.0.0.1:8000", Polled { failures: 1, ..polled });
    assert_eq!(Snapshot::decode(&snapshot.encode()), Some(snapshot.clone()));
    assert_eq!(snapshot.entry(Slot(4), "[::1]:8000").map(|entry| entry.polled), Some(polled));
    assert_eq!(snapshot.entry(Slot(4), "10.0.0.9:8000"), None);
}
