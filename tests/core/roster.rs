//! Who has which slot, while hosts come and go.

use super::test;
use kvroute::core::config::MAX_HOSTS;
use kvroute::core::fleet::Slot;
use kvroute::core::roster::{Before, Roster};

fn hosts(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("10.{}.{}.{}:80", n >> 16, (n >> 8) & 255, n & 255)).collect()
}

fn admit(roster: &mut Roster, cluster: &str, range: std::ops::Range<usize>, now_ms: u64) -> bool {
    roster.admit(cluster, &hosts(range), now_ms, |_| Before::default())
}

fn slots(roster: &Roster, cluster: &str, range: std::ops::Range<usize>) -> Vec<Option<u16>> {
    hosts(range).iter().map(|host| roster.slot(cluster, host).map(|slot| slot.0)).collect()
}

fn read(roster: &Roster) -> Roster {
    Roster::decode(&roster.encode()).expect("written")
}

#[test]
fn a_host_keeps_its_slot_and_one_that_returns_in_time_finds_it_again() {
    let mut roster = Roster::default();
    assert!(admit(&mut roster, "c", 0..4, 1_000));
    assert!(!admit(&mut roster, "c", 0..4, 2_000), "nothing is new");
    assert!(admit(&mut roster, "c", 1..3, 3_000));
    assert!(admit(&mut roster, "c", 2..6, 4_000));
    let mut roster = read(&roster);
    assert_eq!(slots(&roster, "c", 0..6), [0, 1, 2, 3, 4, 5].map(Some));
    assert_eq!(roster.left("c"), [Slot(0), Slot(1)]);
    assert!(!roster.free("c", 12_999, |_| true), "too early for anybody");
    assert!(admit(&mut roster, "c", 0..1, 13_000));
    assert!(roster.free("c", 14_000, |_| true));
    assert_eq!(slots(&roster, "c", 0..6), [Some(0), None, Some(2), Some(3), Some(4), Some(5)]);
}

#[test]
fn a_slot_is_not_given_on_while_anything_is_in_flight_there() {
    let mut roster = Roster::default();
    admit(&mut roster, "c", 0..2, 1);
    admit(&mut roster, "c", 2..3, 1_000);
    assert!(roster.free("c", 60_000, |slot| slot == Slot(1)));
    assert_eq!(roster.left("c"), [Slot(0)]);
    admit(&mut roster, "c", 2..5, 60_000);
    assert_eq!(slots(&roster, "c", 0..5), [Some(0), None, Some(2), Some(1), Some(3)]);
    assert!(!roster.free("c", 90_000, |_| false));
    assert!(roster.free("c", 90_000, |_| true));
    assert_eq!(slots(&roster, "c", 0..1), [None]);
}

#[test]
fn clusters_share_the_slots_and_free_only_their_own() {
    let mut roster = Roster::default();
    admit(&mut roster, "a", 0..2, 1);
    admit(&mut roster, "b", 0..2, 1);
    admit(&mut roster, "a", 9..10, 2);
    assert!(!roster.free("b", 60_000, |_| true));
    assert_eq!(
        (slots(&roster, "a", 0..2), slots(&roster, "b", 0..2)),
        (vec![Some(0), Some(1)], vec![Some(2), Some(3)])
    );
    assert!(roster.free("a", 60_000, |_| true));
    admit(&mut roster, "b", 0..4, 60_001);
    assert_eq!(slots(&roster, "b", 0..4), [2, 3, 0, 1].map(Some));
}

#[test]
fn a_host_is_told_what_its_slots_counters_said_before_it() {
    let mut roster = Roster::default();
    let total = |slot: Slot| Before { sent_tokens: 100 + u64::from(slot.0), cold_placed: 7 };
    roster.admit("c", &hosts(0..2), 1, total);
    // Those that stay are not asked for again.
    roster.admit("c", &hosts(0..3), 2, |slot| Before { sent_tokens: 500, ..total(slot) });
    let roster = read(&roster);
    let before = [0, 1, 2, 3].map(|slot| roster.before(Slot(slot)).sent_tokens);
    assert_eq!(before, [100, 101, 500, 0]);
}

#[test]
fn a_day_of_pods_that_come_and_go_takes_no_more_slots_than_there_are_at_once() {
    let mut roster = Roster::default();
    let mut most = 0;
    for n in 0..20_000 {
        // Sixteen at a time, a new one each second.
        let now_ms = 1_000 * n as u64;
        roster.free("c", now_ms, |_| true);
        admit(&mut roster, "c", n..n + 16, now_ms);
        let taken = slots(&roster, "c", n..n + 16);
        most = most.max(taken.into_iter().map(|slot| slot.expect("a slot")).max().unwrap_or(0));
        assert!(roster.encode().len() < 2_000);
    }
    assert!(most < 32, "{most}");
}

#[test]
fn when_all_slots_are_taken_the_rest_waits_until_some_are_free() {
    let mut roster = Roster::default();
    admit(&mut roster, "c", 0..MAX_HOSTS, 1);
    admit(&mut roster, "c", MAX_HOSTS..2 * MAX_HOSTS, 1_000);
    assert!(slots(&roster, "c", MAX_HOSTS..2 * MAX_HOSTS).iter().all(Option::is_none));
    roster.free("c", 20_000, |_| true);
    admit(&mut roster, "c", MAX_HOSTS..2 * MAX_HOSTS, 20_000);
    let taken = slots(&roster, "c", MAX_HOSTS..2 * MAX_HOSTS);
    assert!(taken.iter().all(|slot| slot.is_some_and(|slot| usize::from(slot) < MAX_HOSTS)));
    assert!(roster.encode().len() < 64 << 10);
}
