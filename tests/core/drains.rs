//! Marks of hosts that are to go, and their value in shared data.

use super::test;
use kvroute::core::config::MAX_HOSTS;
use kvroute::core::drains::{Drains, Marker};

fn since_ms(drains: &Drains, address: &str) -> Option<u64> {
    drains.of(address).map(|mark| {
        assert_eq!(mark.by, Marker::Request);
        mark.since_ms
    })
}

#[test]
fn a_mark_stays_as_it_was_until_it_is_taken_away() {
    let mut drains = Drains::default();
    assert!(drains.mark("10.0.0.1:8000", 7) && drains.mark("[::1]:80", 8));
    assert!(!drains.mark("10.0.0.1:8000", 99), "marked twice, it drains since the first time");
    let read = Drains::decode(&drains.encode()).expect("a value");
    assert_eq!(
        (&read, since_ms(&read, "10.0.0.1:8000"), since_ms(&read, "10.0.0.2:8000")),
        (&drains, Some(7), None)
    );
    assert!(drains.unmark("10.0.0.1:8000") && !drains.unmark("10.0.0.1:8000"));
    assert_eq!(since_ms(&drains, "[::1]:80"), Some(8));
}

#[test]
fn marks_are_bounded_and_garbage_is_no_mark() {
    let mut drains = Drains::default();
    for n in 0..2 * MAX_HOSTS {
        drains.mark(&format!("10.0.{}.{}:80", n / 250, n % 250), n as u64);
    }
    assert_eq!(since_ms(&drains, "10.0.0.0:80"), None);
    assert_eq!(since_ms(&drains, "10.0.8.47:80"), Some(2_047));
    let value = drains.encode();
    assert!(value.len() < 32 << 10);
    for cut in [1, 2, 5, value.len() - 1] {
        assert_eq!(Drains::decode(&value[..cut]), None.or((cut == 1).then(Drains::default)), "{cut}");
    }
    assert_eq!(Drains::decode(b""), None);
}
