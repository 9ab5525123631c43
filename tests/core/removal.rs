//! Which host is to go first.

use super::test;
use kvroute::core::drains::{Mark, Marker};
use kvroute::core::fleet::Polled;
use kvroute::core::removal::{deletion_costs, Removable};

const MARK: Mark = Mark { since_ms: 1, by: Marker::Request };

/// An engine at work on so many requests, with so many tokens in its cache, of which half were found again.
fn engine(running: f64, cached: f64) -> Polled {
    Polled {
        at_ms: 1,
        running,
        capacity_tokens: 400_000,
        counted_tokens: cached,
        prompt_tokens: 2_000.0,
        computed_tokens: 1_000.0,
        ..Polled::default()
    }
}

fn host(polled: &Polled) -> Removable<'_> {
    Removable { polled, mark: None, requests: 0, prefill_tokens: 0 }
}

/// Places in the order in which they are to go.
fn order(hosts: &[Removable]) -> Vec<usize> {
    let costs = deletion_costs(hosts);
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|n| costs[*n]);
    order
}

#[test]
fn idle_and_cold_goes_before_busy_and_warm_and_what_is_marked_before_all() {
    let (cold, warm, busy, both) =
        (engine(0.0, 0.0), engine(0.0, 300_000.0), engine(5.0, 0.0), engine(5.0, 300_000.0));
    let marked_busy = Removable { mark: Some(MARK), ..host(&both) };
    let marked_idle = Removable { mark: Some(MARK), ..host(&cold) };
    let hosts = [host(&both), host(&warm), marked_busy, host(&busy), host(&cold), marked_idle];
    assert_eq!(order(&hosts), [5, 2, 4, 3, 1, 0]);
    assert_eq!(deletion_costs(&hosts), [200, 150, 200 - 1_000_000_000, 50, 0, -1_000_000_000]);
}

#[test]
fn a_full_cache_that_nobody_asks_for_is_worth_nothing() {
    let unused = Polled { computed_tokens: 2_000.0, ..engine(0.0, 400_000.0) };
    let used = engine(0.0, 40_000.0);
    assert_eq!(order(&[host(&used), host(&unused)]), [1, 0]);
    let asleep = Polled { asleep: true, ..engine(0.0, 400_000.0) };
    assert_eq!(deletion_costs(&[host(&asleep)]), [0]);
}

#[test]
fn what_the_gateway_has_just_sent_counts() {
    let idle = engine(0.0, 0.0);
    let sent = Removable { requests: 1, prefill_tokens: 8_000, ..host(&idle) };
    assert_eq!(deletion_costs(&[sent, host(&idle)]), [18, 0]);
}

#[test]
fn what_is_unknown_is_neither_worthless_nor_precious_and_equals_are_equal() {
    let (warm, cold, unknown) = (engine(0.0, 300_000.0), engine(0.0, 0.0), Polled::default());
    assert_eq!(deletion_costs(&[host(&warm), host(&unknown), host(&cold)]), [150, 75, 0]);
    assert_eq!(deletion_costs(&[host(&unknown), host(&unknown)]), [0, 0]);
    assert_eq!(order(&[host(&warm), host(&warm), host(&warm)]), [0, 1, 2]);
    assert!(deletion_costs(&[]).is_empty());
}

#[test]
fn no_number_is_too_large_or_none() {
    for odd in [f64::NAN, f64::INFINITY, 1e300, -1e300] {
        let polled = Polled { running: odd, computed_tokens: odd, counted_tokens: odd, ..engine(0.0, 0.0) };
        let marked =
            Removable { mark: Some(MARK), requests: u32::MAX, prefill_tokens: u64::MAX, ..host(&polled) };
        let costs = deletion_costs(&[marked, host(&polled)]);
        assert!(costs[0] < 0 && costs[0] < costs[1], "{odd}: {costs:?}");
    }
}
