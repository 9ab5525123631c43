//! Whose fault a failure is, when a host is left out, and when it is tried again.

use super::support::router;
use super::test;
use kvroute::core::fleet::Slot;
use kvroute::core::health::{Health, Sign, Why};
use kvroute::core::journal::{read_bulletin, Bulletin};
use kvroute::core::life::Life;
use kvroute::core::prompt::Unread;
use kvroute::core::router::Router;

const NOW_MS: u64 = 1_000_000;

fn fail(health: &mut Health, times: usize, why: Why, at_ms: u64) {
    (0..times).for_each(|_| health.failed(why, at_ms, at_ms));
}

/// How long it is left out from now on.
fn left_out_ms(health: &Health, now_ms: u64) -> u64 {
    (0..20_000).find(|ms| !health.is_suspect(now_ms + ms)).expect("an end")
}

#[test]
fn envoys_flags_say_what_a_failed_answer_is_and_whose() {
    for (status, flags, why) in [
        (503, 0x20, Some(Why::Connect)),
        (503, 0x8020, Some(Why::Connect)),
        (503, 0x40, Some(Why::Reset)),
        (502, 0x80_0000, Some(Why::Reset)),
        (504, 0x4, Some(Why::TimedOut)),
        (408, 0x1_0000, Some(Why::TimedOut)),
        (504, 0, Some(Why::TimedOut)),
        (500, 0, Some(Why::Error)),
        (503, 0, Some(Why::Error)),
        // The circuit breaker is open, a fault was injected, a limit reached.
        (503, 0x80, None),
        (503, 0x400, None),
        (503, 0x2, None),
        (408, 0, None),
        (429, 0, None),
        (400, 0, None),
        (200, 0, None),
    ] {
        assert_eq!(Why::of_answer(status, flags, true), why, "{status} {flags:#x}");
    }
    assert_eq!(Why::of_answer(408, 0x1_0000, false), None, "the client did not send its request");
}

#[test]
fn an_answer_that_stops_is_held_against_its_host_but_not_a_client_that_leaves() {
    for (flags, began, why) in [
        (0x40, true, Some(Why::Broken)),
        (0x80_0000, true, Some(Why::Broken)),
        (0x10, false, Some(Why::Reset)),
        (0x20, false, Some(Why::Connect)),
        (0x1_0000, true, Some(Why::TimedOut)),
        (0x4, false, Some(Why::TimedOut)),
        // It was long, and the route's time short.
        (0x4, true, None),
        (0x8_0000, true, None),
        (0x4000, true, None),
        (0x4004, false, None),
        (0x4040, true, None),
        (0, true, None),
    ] {
        assert_eq!(Why::of_end(flags, began), why, "{flags:#x} {began}");
    }
}

#[test]
fn the_back_off_doubles_with_each_try_that_fails_up_to_ten_seconds() {
    let mut health = Health::default();
    fail(&mut health, 2, Why::Connect, NOW_MS);
    assert!(!health.is_suspect(NOW_MS));
    fail(&mut health, 1, Why::Connect, NOW_MS);
    let mut now_ms = NOW_MS;
    for expected in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
        assert_eq!(left_out_ms(&health, now_ms), expected);
        now_ms += expected;
        health.tried_by(7, now_ms);
        assert_eq!(left_out_ms(&health, now_ms), 10_000, "one tries, the others wait");
        now_ms += 5;
        health.failed(Why::Connect, now_ms - 5, now_ms);
    }
}

#[test]
fn what_had_been_sent_before_does_not_make_a_back_off_longer() {
    let mut health = Health::default();
    fail(&mut health, 3, Why::Reset, NOW_MS);
    (0..50).for_each(|_| health.failed(Why::Reset, NOW_MS - 5_000, NOW_MS + 10));
    assert_eq!(left_out_ms(&health, NOW_MS), 1_000);
    // Nor does a late one take a host out that has answered others since.
    health.answered(Sign::Generated, NOW_MS + 100);
    (0..50).for_each(|_| health.failed(Why::TimedOut, NOW_MS - 5_000, NOW_MS + 200));
    assert!(!health.is_suspect(NOW_MS + 200));
}

#[test]
fn what_it_takes_to_be_believed_again_depends_on_what_was_wrong() {
    let enough = |why: Why, sign: Sign| {
        let mut health = Health::default();
        fail(&mut health, 3, why, NOW_MS);
        health.answered(sign, NOW_MS + 10);
        !health.is_suspect(NOW_MS + 10)
    };
    for (why, answered, generated) in [
        (Why::Connect, true, true),
        (Why::Error, true, true),
        (Why::Retried, true, true),
        (Why::Reset, false, true),
        (Why::TimedOut, false, true),
        // A stuck engine still finds fault with requests.
        (Why::Silent, false, true),
        (Why::Broken, false, true),
        (Why::Aborts, false, false),
    ] {
        assert_eq!(enough(why, Sign::Answered), answered, "{why:?}");
        assert_eq!(enough(why, Sign::Generated), generated, "{why:?}");
        assert!(enough(why, Sign::Finished), "{why:?}");
    }
}

#[test]
fn answers_that_are_broken_off_one_after_another_add_up_until_one_comes_to_its_end() {
    for ends in [None, Some(Sign::Ended), Some(Sign::Finished)] {
        let mut health = Health::default();
        for _ in 0..3 {
            health.answered(Sign::Generated, NOW_MS);
            health.failed(Why::Broken, NOW_MS - 100, NOW_MS);
            if let Some(sign) = ends {
                health.answered(Sign::Generated, NOW_MS);
                health.answered(sign, NOW_MS);
            }
        }
        assert_eq!(health.is_suspect(NOW_MS), ends.is_none(), "{ends:?}");
        assert_eq!(health.is_doubted(), ends.is_none(), "{ends:?}");
    }
}

#[test]
fn a_host_that_broke_answers_off_gets_one_at_a_time_until_one_comes_to_its_end() {
    let mut health = Health::default();
    fail(&mut health, 3, Why::Broken, NOW_MS);
    let mut now_ms = NOW_MS + 1_000;
    // The first that begins lets the next in, before it has ended.
    for stream in 0..3 {
        assert!(!health.is_suspect(now_ms), "{stream}");
        health.tried_by(stream, now_ms);
        assert!(health.is_suspect(now_ms + 10), "{stream}: the others wait for its first byte");
        now_ms += 200;
        health.answered(Sign::Generated, now_ms);
    }
    // It breaks off again: what was learned holds.
    health.failed(Why::Broken, now_ms - 100, now_ms);
    assert_eq!(left_out_ms(&health, now_ms), 2_000);
    now_ms += 2_000;
    health.tried_by(9, now_ms);
    health.answered(Sign::Generated, now_ms + 10);
    health.answered(Sign::Finished, now_ms + 500);
    assert!(!health.is_doubted());
}

#[test]
fn a_try_whose_client_leaves_lets_the_next_one_try() {
    let mut health = Health::default();
    fail(&mut health, 3, Why::Connect, NOW_MS);
    let later = NOW_MS + 1_000;
    health.tried_by(7, later);
    health.ended(8);
    assert!(health.is_suspect(later + 1));
    health.ended(7);
    assert!(!health.is_suspect(later + 1));
    health.tried_by(9, later + 1);
    assert!(health.is_suspect(later + 2), "but with one again");
}

#[test]
fn a_clock_that_is_set_back_neither_holds_a_host_out_nor_in() {
    let mut health = Health::default();
    fail(&mut health, 3, Why::Connect, NOW_MS + 3_600_000);
    health.answered(Sign::Finished, NOW_MS + 3_600_000);
    fail(&mut health, 3, Why::TimedOut, NOW_MS);
    assert_eq!(left_out_ms(&health, NOW_MS), 1_000);
}

/// Workers that read each other's bulletins at each tick.
struct Workers(Vec<Router>);

impl Workers {
    fn tick(&mut self, now_ms: u64) {
        let values: Vec<Vec<u8>> =
            (1..).zip(&mut self.0).map(|(worker, router)| router.publish(worker, now_ms)).collect();
        let bulletins: Vec<Bulletin> =
            values.iter().map(|value| read_bulletin(value).expect("written")).collect();
        for (n, router) in self.0.iter_mut().enumerate() {
            let others = bulletins.iter().enumerate().filter(|(other, _)| *other != n);
            let seen: Vec<_> = others.flat_map(|(_, bulletin)| bulletin.seen.clone()).collect();
            router.hear_seen(&seen, now_ms);
        }
    }

    fn life(&self, n: usize, now_ms: u64) -> Life {
        Life::of(self.0[n].fleet().host(Slot(1)).expect("there"), now_ms)
    }

    fn suspect(&self, now_ms: u64) -> Vec<bool> {
        (0..self.0.len()).map(|n| matches!(self.life(n, now_ms), Life::Suspect { .. })).collect()
    }
}

#[test]
fn failures_in_a_row_count_over_all_workers_and_a_success_ends_them_everywhere() {
    let mut workers = Workers((0..3).map(|_| router(4)).collect());
    for n in 0..3 {
        workers.0[n].failed(Slot(1), Why::Reset, NOW_MS, NOW_MS);
        workers.tick(NOW_MS);
    }
    assert_eq!(workers.suspect(NOW_MS), [true; 3]);
    let Life::Suspect { until_ms, why } = workers.life(2, NOW_MS) else { panic!("suspect") };
    assert_eq!((until_ms, why), (NOW_MS + 1_000, Why::Reset));
    assert_eq!(
        workers.life(0, NOW_MS).reason(),
        "its last requests were broken off before they were answered"
    );

    // An answer of one that had begun before goes on, and is told.
    workers.0[0].worked(Slot(1), Sign::Generated, NOW_MS + 50);
    workers.tick(NOW_MS + 50);
    assert_eq!(workers.suspect(NOW_MS + 50), [false; 3]);
    // What was said is not said for ever, and what comes then begins anew.
    for tick in 2..100 {
        workers.tick(NOW_MS + 50 * tick);
    }
    assert!(read_bulletin(&workers.0[0].publish(1, NOW_MS + 5_000)).expect("written").seen.is_empty());
    workers.0[0].failed(Slot(1), Why::Reset, NOW_MS + 6_000, NOW_MS + 6_000);
    workers.tick(NOW_MS + 6_000);
    assert_eq!(workers.suspect(NOW_MS + 6_000), [false; 3]);
}

#[test]
fn of_all_workers_one_tries_a_host_whose_back_off_is_over() {
    // Three hosts, so that all are named.
    let mut workers = Workers((0..4).map(|_| router(3)).collect());
    (0..3).for_each(|_| workers.0[2].failed(Slot(1), Why::Connect, NOW_MS, NOW_MS));
    let mut tries = Vec::new();
    let mut stream = 0;
    for now_ms in (NOW_MS..NOW_MS + 60_000).step_by(5) {
        if now_ms % 50 == 0 {
            workers.tick(now_ms);
        }
        for n in 0..4 {
            let router = &mut workers.0[n];
            let mut decision = router.decide_unread(Unread::Path, true, now_ms);
            // Whoever may go there does.
            if let Some(place) = decision.hosts.iter().position(|slot| *slot == Slot(1)) {
                decision.hosts.swap(0, place);
            }
            if decision.hosts[0] == Slot(1) {
                tries.push(now_ms - NOW_MS);
                router.commit(stream, &decision, now_ms);
                router.failed(Slot(1), Why::Connect, now_ms, now_ms);
                router.end(stream);
            }
            stream += 1;
        }
    }
    // 1, 3, 7, 15, 25, 35, 45, 55 seconds.
    assert!(tries.len() <= 9, "{tries:?}");
    assert!(tries.len() >= 6, "{tries:?}");
}

#[test]
fn what_a_worker_says_of_hosts_is_bounded() {
    let mut router = router(200);
    for slot in 0..200 {
        (0..3).for_each(|_| router.failed(Slot(slot), Why::Connect, NOW_MS, NOW_MS));
    }
    let value = router.publish(1, NOW_MS);
    assert!(value.len() < 4_096, "{}", value.len());
    assert_eq!(read_bulletin(&value).expect("written").seen.len(), 64);
}
