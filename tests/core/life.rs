//! Which hosts may have requests.

use super::support::{addresses, config, router};
use super::test;
use kvroute::core::drains::{Drains, Mark, Marker};
use kvroute::core::fleet::{Own, Polled, Slot};
use kvroute::core::health::Why;
use kvroute::core::life::Life;
use kvroute::core::prompt::Unread;
use kvroute::core::route::Reason;
use kvroute::core::router::Router;
use kvroute::core::scrape::EngineSample;
use kvroute::core::snapshot::Snapshot;

const NOW_MS: u64 = 50_000;

/// The hosts that are named, best first.
fn named(router: &Router) -> Vec<u16> {
    let decision = router.decide_unread(Unread::Path, true, NOW_MS);
    decision.hosts.iter().map(|slot| slot.0).collect()
}

fn drain(router: &mut Router, slots: &[u16]) {
    let mut drains = Drains::default();
    for slot in slots {
        drains.mark(&addresses(4)[usize::from(*slot)], 1);
    }
    router.settle_drains(&[], &drains);
}

fn sleep(router: &mut Router, asleep: &[u16]) {
    let mut snapshot = Snapshot::default();
    for (n, address) in addresses(4).iter().enumerate() {
        let asleep = asleep.contains(&(n as u16));
        snapshot.put(Slot(n as u16), address, Polled { at_ms: NOW_MS, asleep, ..Polled::default() });
    }
    router.apply(&snapshot);
}

#[test]
fn a_marked_host_is_not_named_even_as_a_fallback() {
    let mut router = router(4);
    drain(&mut router, &[1]);
    let mut hosts = named(&router);
    hosts.sort_unstable();
    assert_eq!(hosts, [0, 2, 3]);
    drain(&mut router, &[]);
    assert_eq!(named(&router).len(), config(4).candidates);
}

#[test]
fn the_configuration_marks_hosts_too() {
    let mut router = router(4);
    router.settle_drains(&addresses(4)[..3], &Drains::default());
    assert_eq!(named(&router), [3]);
}

#[test]
fn hosts_that_fail_are_tried_before_those_that_are_to_go_and_these_before_nobody() {
    let mut router = router(4);
    drain(&mut router, &[0, 1]);
    for slot in [2, 3] {
        (0..3).for_each(|_| {
            router.failed(Slot(slot), Why::Connect, NOW_MS, NOW_MS);
        });
    }
    let mut hosts = named(&router);
    hosts.sort_unstable();
    assert_eq!(hosts, [2, 3]);
    drain(&mut router, &[0, 1, 2, 3]);
    assert_eq!(named(&router).len(), 3, "all are to go: they serve as long as they can");
    let life = Life::of(router.fleet().host(Slot(2)).expect("there"), NOW_MS);
    assert_eq!(
        (life, life.as_str()),
        (Life::Draining(Mark { since_ms: 1, by: Marker::Request }), "draining")
    );
}

#[test]
fn a_sleeping_engine_gets_nothing_and_where_all_sleep_envoy_decides() {
    let mut router = router(4);
    sleep(&mut router, &[0, 2]);
    let mut hosts = named(&router);
    hosts.sort_unstable();
    assert_eq!(hosts, [1, 3]);
    sleep(&mut router, &[0, 1, 2, 3]);
    assert_eq!(router.decide_unread(Unread::Path, true, NOW_MS).reason, Reason::NoHosts);
}

#[test]
fn an_engine_that_wakes_up_has_forgotten_its_prefixes() {
    let sample = |awake| EngineSample {
        running: Some(0.0),
        waiting: Some(0.0),
        awake: Some(awake),
        prompt_tokens: Some(10_000.0),
        capacity_tokens: Some(100_000.0),
        ..EngineSample::default()
    };
    let own = Own::default();
    let awake = Polled::default().after(&sample(true), &own, &own, 0, 1_000);
    let asleep = awake.after(&sample(false), &own, &own, 0, 2_000);
    assert!(asleep.asleep && asleep.clock_tokens == awake.clock_tokens);
    let woken = asleep.after(&sample(true), &own, &own, 0, 3_000);
    assert!(!woken.asleep && woken.clock_tokens > asleep.clock_tokens + 100_000, "older than any cache");
    let mut snapshot = Snapshot::default();
    snapshot.put(Slot(0), "10.0.0.1:8000", asleep);
    assert_eq!(Snapshot::decode(&snapshot.encode()).map(|read| read.hosts[0].polled.asleep), Some(true));
}
