//! What the control listener says of hosts.

use super::test;
use kvroute::core::drains::{Mark, Marker};
use kvroute::core::fleet::Polled;
use kvroute::core::life::Life;
use kvroute::core::load::Freshness;
use kvroute::core::snapshot::Entry;
use kvroute::core::status::{to_json, HostStatus, Leader, Workers};
use kvroute::core::tier::Tier;
use serde_json::{json, Value};

const TIER: Tier = Tier { hit_ratio: None, fetch_share: 0.3 };

const NOW: Freshness = Freshness { now_ms: 100_000, stale_after_ms: 3_000 };

fn host(polled: Polled, draining_since_ms: Option<u64>, requests: u32) -> HostStatus {
    let life = if polled.asleep { Life::Sleeping } else { Life::Ready };
    let entry = Entry { polled, life, since_ms: 99_000, ..Entry::gone("[fd00::1]:8000") };
    let mark = draining_since_ms.map(|since_ms| Mark { since_ms, by: Marker::Request });
    let workers = Workers { count: 2, ticked_ms: 99_960 };
    HostStatus { entry, mark, requests, prefill_tokens: 7, workers }
}

fn said(at_ms: u64, running: f64, waiting: f64) -> Polled {
    Polled { at_ms, running, waiting, kv_usage: 0.255, ..Polled::default() }
}

#[test]
fn a_host_may_go_when_engine_and_gateway_both_have_nothing_and_not_before() {
    let marked = Some(NOW.now_ms - 1_000);
    assert!(host(said(99_900, 0.0, 0.0), marked, 0).is_drained(NOW));
    for (what, status) in [
        ("it is not marked", host(said(99_900, 0.0, 0.0), None, 0)),
        ("something runs", host(said(99_900, 1.0, 0.0), marked, 0)),
        ("something waits", host(said(99_900, 0.0, 1.0), marked, 0)),
        ("the gateway has something in flight", host(said(99_900, 0.0, 0.0), marked, 1)),
        ("the engine said so before the mark was seen", host(said(99_100, 0.0, 0.0), marked, 0)),
        ("the engine says nothing any more", host(said(90_000, 0.0, 0.0), Some(1), 0)),
        ("the engine never said anything", host(Polled::default(), marked, 0)),
        ("the mark is new", host(said(100_000, 0.0, 0.0), Some(99_900), 0)),
        ("a worker has not seen it", {
            let workers = Workers { count: 2, ticked_ms: 99_100 };
            HostStatus { workers, ..host(said(99_900, 0.0, 0.0), marked, 0) }
        }),
    ] {
        assert!(!status.is_drained(NOW), "{what}");
    }
}

#[test]
fn workers_that_are_dead_are_not_waited_for() {
    let workers = |heartbeats: &[u64]| Workers::of(heartbeats.iter().copied(), 10_000, NOW.now_ms);
    assert_eq!(workers(&[99_990, 95_000, 90_000, 7]), Workers { count: 2, ticked_ms: 95_000 });
    assert_eq!(workers(&[]), Workers { count: 0, ticked_ms: u64::MAX });
}

#[test]
fn the_status_is_json_with_what_is_known_and_without_what_is_not() {
    let hosts = [
        host(said(99_500, 3.0, 2.0), None, 4),
        host(Polled::default(), None, 1),
        host(said(90_000, 50.0, 50.0), Some(1), 0),
        host(Polled { asleep: true, ..said(99_999, 0.0, 0.0) }, None, 0),
    ];
    let status: Value =
        serde_json::from_str(&to_json(&hosts, TIER, None, Some(Leader { id: 77, generation: 3 }), NOW))
            .expect("JSON");
    let totals = ["known_hosts", "running", "waiting", "in_flight"].map(|key| status[key].as_u64());
    assert_eq!(totals, [Some(2), Some(3), Some(2), Some(5)], "what is stale does not count");
    assert_eq!(
        status["hosts"][0],
        json!({
            "host": "[fd00::1]:8000", "life": "ready", "reason": "it serves", "since_ms": 1_000, "draining": false,
            "drained": false, "in_flight": 4, "prefill_tokens": 7, "running": 3, "waiting": 2, "age_ms": 500,
            "failed_polls": 0, "kv_usage_percent": 25, "deletion_cost": 50,
        })
    );
    assert_eq!((&status["leader"], &status["generation"]), (&json!("000000000000004d"), &json!(3)));
    assert_eq!(status["ready_hosts"], 2);
    assert_eq!((&status["workers"], &status["oldest_tick_ms"]), (&json!(2), &json!(40)));
    let lives: Vec<&Value> = (0..4).map(|n| &status["hosts"][n]["life"]).collect();
    assert_eq!(lives, ["ready", "ready", "draining", "sleeping"]);
    assert!(status["hosts"][1].get("running").is_none(), "unknown is not zero");
    let none: Value = serde_json::from_str(&to_json(&[], TIER, None, None, NOW)).expect("JSON");
    assert_eq!(none["hosts"], json!([]));
}
