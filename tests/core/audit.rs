//! Leaks are found, traffic is not taken for one.

use super::support::Numbers;
use super::test;
use kvroute::core::audit::{Audit, InFlight};
use kvroute::core::fleet::Slot;

fn requests(requests: i64) -> InFlight {
    InFlight { requests, prefill_tokens: 0 }
}

#[test]
fn a_difference_that_lasts_is_a_leak_in_either_direction() {
    for leaked in [-3, 7] {
        let mut audit = Audit::default();
        let mut gauge = 10 + leaked;
        for now_ms in (0..20_000).step_by(50) {
            if let Some(change) = audit.compare(Slot(2), requests(gauge), requests(10), now_ms) {
                assert!(now_ms >= 5_000, "too soon: {now_ms}");
                gauge += change.requests;
            }
        }
        assert_eq!(gauge, 10);
    }
}

#[test]
fn books_that_lag_are_no_leak_and_a_leak_behind_them_is_found() {
    let mut numbers = Numbers(3);
    for leaked in [0, 5] {
        let (mut audit, mut gauge, mut books) = (Audit::default(), 20 + leaked, 20);
        for now_ms in (0..120_000).step_by(50) {
            // What is within the lag's own noise is found when traffic pauses.
            let step = if now_ms < 110_000 { numbers.below(9) as i64 - 4 } else { 0 };
            gauge += step;
            if let Some(change) = audit.compare(Slot(0), requests(gauge), requests(books), now_ms) {
                gauge += change.requests;
            }
            books += step;
        }
        assert_eq!(gauge, books, "leaked {leaked}");
    }
}
