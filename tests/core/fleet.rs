//! What polls do to a host's state.

use super::support::addresses;
use super::test;
use kvroute::core::fleet::{Fleet, Own, Polled, Slot};
use kvroute::core::index::{Liveness, Stamp};
use kvroute::core::scrape::EngineSample;

fn sample(prompt: f64, hits: f64, generated: f64) -> EngineSample {
    EngineSample {
        running: Some(1.0),
        waiting: Some(0.0),
        prompt_tokens: Some(prompt),
        prefix_hits: Some(hits),
        generation_tokens: Some(generated),
        start_time_seconds: Some(1_700_000_000.0),
        ..EngineSample::default()
    }
}

#[test]
fn the_clock_counts_tokens_that_entered_the_cache() {
    let own = Own::default();
    let first = Polled::default().after(&sample(5_000.0, 1_000.0, 100.0), &own, &own, 0, 10);
    assert_eq!((first.clock_tokens, first.at_ms), (0, 10));
    let second = first.after(&sample(9_000.0, 3_000.0, 300.0), &own, &own, 0, 20);
    // 4,000 prompt tokens came, 2,000 of them were there; 200 were generated.
    assert_eq!(second.clock_tokens, 2_200);
}

#[test]
fn between_polls_the_clock_runs_by_what_was_sent() {
    let mut fleet = Fleet::default();
    fleet.assign(&[(addresses(1).remove(0), Slot(0))], 400_000);
    let host = &mut fleet.hosts_mut()[0];
    host.polled = Polled { clock_tokens: 100, own_sent_tokens: 50, ..Polled::default() };
    host.own.sent_tokens = 80;
    assert_eq!(host.clock_tokens(), 130);
}

#[test]
fn a_restart_expires_every_prefix() {
    let own = Own::default();
    let before = Polled::default().after(&sample(5_000.0, 0.0, 0.0), &own, &own, 0, 10);
    let counters_back = before.after(&sample(10.0, 0.0, 0.0), &own, &own, 0, 20);
    let later_start = EngineSample { start_time_seconds: Some(1_700_000_500.0), ..sample(6_000.0, 0.0, 0.0) };
    let started_later = before.after(&later_start, &own, &own, 0, 20);
    for restarted in [counters_back, started_later] {
        let mut fleet = Fleet::default();
        fleet.assign(&[(addresses(1).remove(0), Slot(0))], 400_000);
        let stamp = Stamp::at(before.clock_tokens);
        fleet.hosts_mut()[0].polled = before;
        assert!(fleet.holds(Slot(0), stamp));
        fleet.hosts_mut()[0].polled = restarted;
        assert!(!fleet.holds(Slot(0), stamp));
    }
}

#[test]
fn known_requests_that_end_while_a_poll_is_on_its_way_are_not_taken_for_others() {
    // The engine answered when our short request was running; now it is over.
    let asked = Own { begun: 10, ..Own::default() };
    let now = Own { begun: 12, ..Own::default() };
    let polled = Polled::default().after(&sample(1.0, 0.0, 0.0), &asked, &now, 0, 10);
    assert_eq!(polled.known_requests, 2);
    let long = Own { requests: 3, begun: 10, ..Own::default() };
    let over = Own { requests: 0, begun: 10, ..Own::default() };
    assert_eq!(Polled::default().after(&sample(1.0, 0.0, 0.0), &long, &over, 0, 10).known_requests, 3);
}

#[test]
fn hits_counted_before_their_prompt_are_neither_a_restart_nor_counted_twice() {
    // An engine counts a prompt's hits when it is scheduled, and the prompt when its prefill is done.
    let own = Own::default();
    let first = Polled::default().after(&sample(5_000.0, 1_000.0, 0.0), &own, &own, 0, 10);
    let scheduled = first.after(&sample(5_000.0, 2_500.0, 0.0), &own, &own, 0, 20);
    assert_eq!(scheduled.clock_tokens, 0);
    let done = scheduled.after(&sample(7_000.0, 2_500.0, 0.0), &own, &own, 0, 30);
    assert_eq!(done.clock_tokens, 500);
}

#[test]
fn an_answer_without_load_is_no_answer() {
    let good = Polled::default().after(&sample(1.0, 0.0, 0.0), &Own::default(), &Own::default(), 0, 10);
    for half in [
        EngineSample { kv_usage: Some(0.5), ..EngineSample::default() },
        EngineSample { running: Some(0.0), ..EngineSample::default() },
    ] {
        let after = good.after(&half, &Own::default(), &Own::default(), 0, 20);
        assert_eq!((after.at_ms, after.failures), (10, 1));
    }
}

#[test]
fn counters_that_are_missing_once_are_not_a_restart() {
    let before = Polled::default().after(&sample(5_000.0, 0.0, 0.0), &Own::default(), &Own::default(), 0, 10);
    let uncounted = EngineSample { running: Some(1.0), waiting: Some(0.0), ..EngineSample::default() };
    let after = before.after(&uncounted, &Own::default(), &Own::default(), 0, 20);
    assert_eq!((after.clock_tokens, after.counted_tokens), (before.clock_tokens, before.counted_tokens));
}

#[test]
fn a_host_forgets_after_its_own_capacity() {
    let mut fleet = Fleet::default();
    fleet.assign(&[(addresses(1).remove(0), Slot(0))], 400_000);
    let at = |fleet: &mut Fleet, clock| {
        fleet.hosts_mut()[0].polled.clock_tokens = clock;
        fleet.holds(Slot(0), Stamp::at(0))
    };
    assert!(at(&mut fleet, 400_000 - 64) && !at(&mut fleet, 400_000));
    fleet.hosts_mut()[0].polled.capacity_tokens = 64_000;
    assert!(at(&mut fleet, 63_900) && !at(&mut fleet, 64_000));
    assert!(!fleet.holds(Slot(9), Stamp::at(0)), "no such host");
}

#[test]
fn a_host_that_stays_keeps_what_is_known_of_it_and_one_that_changes_is_named() {
    let hosts = addresses(3);
    let mut fleet = Fleet::default();
    fleet.assign(&[(hosts[0].clone(), Slot(0)), (hosts[1].clone(), Slot(1))], 400_000);
    fleet.hosts_mut()[1].own.requests = 5;
    let gone = fleet.assign(&[(hosts[1].clone(), Slot(1)), (hosts[2].clone(), Slot(0))], 400_000);
    assert_eq!(gone, [Slot(0)]);
    assert_eq!(fleet.host(Slot(1)).expect("stays").own.requests, 5);
    assert_eq!(fleet.by_address(&hosts[2]).expect("new").slot, Slot(0));
    assert!(fleet.by_address(&hosts[0]).is_none());
}
