//! When is a request turned away, and what is it told?

use super::support::{addresses, config, config_with, router};
use super::test;
use kvroute::core::config::{Config, Shed};
use kvroute::core::drains::Drains;
use kvroute::core::fleet::{Polled, Slot};
use kvroute::core::health::Why;
use kvroute::core::prompt::{api_of, Api, Unread};
use kvroute::core::route::{Decision, Reason};
use kvroute::core::router::Router;
use kvroute::core::shed::{priority, Bound, Overload, Shape};
use kvroute::core::snapshot::Snapshot;
use serde_json::Value;

const NOW_MS: u64 = 1_000_000;

fn bounds() -> Shed {
    config_with(r#""shed":{}"#).shed.expect("on")
}

fn says(waiting: f64, kv_usage: f64) -> Polled {
    Polled {
        at_ms: NOW_MS - 100,
        running: 8.0,
        waiting,
        kv_usage,
        known_requests: 1_000,
        ..Polled::default()
    }
}

fn fleet_of(hosts: &[Polled]) -> Router {
    let mut router = router(hosts.len());
    let mut snapshot = Snapshot::default();
    for (n, (address, polled)) in addresses(hosts.len()).iter().zip(hosts).enumerate() {
        snapshot.put(Slot(n as u16), address, *polled);
    }
    router.apply(&snapshot);
    router
}

fn bound(hosts: &[Polled]) -> Option<Bound> {
    fleet_of(hosts).overload(&bounds(), NOW_MS).map(|overload| overload.bound)
}

/// Puts `tokens` uncached prompt tokens on the least loaded host, for each of these streams.
fn load(router: &mut Router, tokens: u64, streams: std::ops::Range<u32>) {
    for stream in streams {
        let decision = router.decide_unread(Unread::Path, true, NOW_MS);
        router.commit(stream, &Decision { uncached_tokens: tokens, ..decision }, NOW_MS);
    }
}

/// C76
#[test]
fn a_fleet_is_full_when_every_host_has_said_lately_that_it_is() {
    let full = says(100.0, 0.99);
    assert_eq!(bound(&[full; 3]), Some(Bound::Waiting));
    let unknown = Polled::default();
    let stale = Polled { at_ms: NOW_MS - 60_000, ..full };
    for (what, other) in [
        ("it has room", says(0.0, 0.5)),
        ("it was never asked", unknown),
        ("it has not answered for a minute", stale),
        ("it says neither", Polled { kv_usage: f64::NAN, ..says(0.0, 0.0) }),
    ] {
        assert_eq!(bound(&[full, full, other]), None, "{what}");
    }
    assert_eq!(bound(&[unknown; 3]), None);
    let empty = Router::new(&config(1));
    assert_eq!(empty.overload(&bounds(), NOW_MS), None, "no hosts is another cause");
    assert_eq!(empty.decide_unread(Unread::Path, true, NOW_MS).reason, Reason::NoHosts, "left to Envoy");
}

#[test]
fn each_bound_counts_by_itself_and_by_what_is_past_it() {
    assert_eq!(bound(&[says(20.0, 0.5)]), None, "as many as may");
    assert_eq!(bound(&[says(21.0, 0.5)]), Some(Bound::Waiting));
    assert_eq!(bound(&[says(1.0, 0.98)]), Some(Bound::KvUsage));
    assert_eq!(bound(&[says(0.0, 1.0)]), None, "a large batch, and nobody waits");
    assert_eq!(bound(&[says(19.0, f64::NAN)]), None);
    // 18,000 tokens a second: ten seconds on each of two hosts.
    let mut router = fleet_of(&[says(0.0, 0.1); 2]);
    load(&mut router, 90_000, 0..4);
    assert_eq!(router.overload(&bounds(), NOW_MS), None);
    load(&mut router, 90_000, 4..6);
    let overload = router.overload(&bounds(), NOW_MS).expect("past it");
    assert_eq!((overload.bound, overload.retry_after_s), (Bound::Backlog, 15));
}

#[test]
fn when_to_come_again_is_from_a_second_to_a_minute_by_the_least_backlog() {
    let retry = |tokens: u64| {
        let mut router = fleet_of(&[says(100.0, 0.99); 3]);
        load(&mut router, tokens, 0..3);
        router.overload(&bounds(), NOW_MS).expect("full").retry_after_s
    };
    assert_eq!(retry(0), 1);
    assert_eq!(retry(20_000), 2);
    assert_eq!(retry(u64::MAX / 8), 60);
    let mut router = fleet_of(&[says(100.0, 0.99); 2]);
    load(&mut router, 360_000, 0..1);
    assert_eq!(router.overload(&bounds(), NOW_MS).expect("full").retry_after_s, 1, "the other is sooner");
}

#[test]
fn where_no_host_is_ready_the_cause_is_another_and_nothing_is_shed() {
    let full = says(100.0, 0.99);
    let mut router = fleet_of(&[full; 2]);
    for _ in 0..3 {
        (0..2).for_each(|slot| router.failed(Slot(slot), Why::Connect, NOW_MS, NOW_MS));
    }
    assert_eq!(router.overload(&bounds(), NOW_MS), None, "all fail");
    let mut router = fleet_of(&[full; 2]);
    router.settle_drains(&addresses(2), &Drains::default());
    assert_eq!(router.overload(&bounds(), NOW_MS), None, "all are marked to go");
    assert_eq!(router.decide_unread(Unread::Path, true, NOW_MS).hosts.len(), 2, "and serve on");
    let asleep = Polled { asleep: true, ..full };
    assert_eq!(bound(&[asleep; 2]), None);
    assert_eq!(bound(&[asleep, full]), Some(Bound::Waiting), "the only one that is ready is full");
    assert_eq!(bound(&[Polled { asleep: true, ..says(0.0, 0.0) }, full]), Some(Bound::Waiting));
}

#[test]
fn a_priority_is_an_integer_and_nothing_else_is() {
    for (value, wanted) in [
        ("7", 7),
        (" -3 ", -3),
        ("+2", 2),
        ("", 0),
        ("high", 0),
        ("1.5", 0),
        ("1e3", 0),
        ("99999999999999999999", 0),
        ("999999999", 999_999_999),
        ("-", 0),
        ("--1", 0),
    ] {
        assert_eq!(priority(value.as_bytes()), wanted, "{value:?}");
    }
    assert_eq!(priority(b"\xff\xfe"), 0);
}

#[test]
fn the_error_is_in_the_shape_of_the_api_that_was_asked() {
    let overload = Overload { bound: Bound::Waiting, retry_after_s: 7 };
    let shape = |path: &str| {
        let more = [("/llm/claude".to_owned(), Api::Messages)];
        Shape::of(api_of(path.as_bytes(), &more), path.as_bytes())
    };
    for path in
        ["/v1/chat/completions", "/v1/completions?x=1", "/v1/responses", "/generate", "/v1/embeddings", "/x"]
    {
        assert_eq!(shape(path), Shape::OpenAi, "{path}");
    }
    for path in
        ["/v1/messages", "/anthropic/v1/messages/?beta=true", "/v1/messages/count_tokens", "/llm/claude"]
    {
        assert_eq!(shape(path), Shape::Anthropic, "{path}");
    }
    let error: Value = serde_json::from_str(&overload.to_json(Shape::OpenAi)).expect("JSON");
    let keys: Vec<&String> = error["error"].as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["code", "message", "param", "type"]);
    assert_eq!((&error["error"]["code"], &error["error"]["param"]), (&Value::from(429), &Value::Null));
    let error: Value = serde_json::from_str(&overload.to_json(Shape::Anthropic)).expect("JSON");
    assert_eq!((&error["type"], &error["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
    assert!(error["error"]["message"].as_str().expect("words").contains("7 s"));
}

#[test]
fn it_is_off_until_it_is_switched_on_and_wrong_bounds_are_refused_by_name() {
    assert_eq!(config(1).shed, None);
    for off in ["null", "false"] {
        assert_eq!(config_with(&format!(r#""shed":{off}"#)).shed, None);
    }
    let defaults = bounds();
    assert_eq!(config_with(r#""shed":true"#).shed.as_ref(), Some(&defaults));
    assert_eq!((defaults.below_priority, defaults.priority_header.as_str()), (1, "x-request-priority"));
    let set = config_with(
        r#""shed":{"waiting":5,"kv_usage":0.9,"backlog_s":2.5,"below_priority":10,"priority_header":"x-p"}"#,
    );
    let set = set.shed.expect("on");
    assert_eq!((set.waiting, set.kv_usage, set.backlog_s, set.below_priority), (5.0, 0.9, 2.5, 10));
    for (wrong, key) in [
        (r#""on""#, "shed: "),
        (r#"{"wating":5}"#, "shed.wating: "),
        (r#"{"waiting":-1}"#, "shed.waiting: "),
        (r#"{"kv_usage":98}"#, "shed.kv_usage: "),
        (r#"{"backlog_s":0}"#, "shed.backlog_s: "),
        (r#"{"below_priority":0.5}"#, "shed.below_priority: "),
        (r#"{"priority_header":"X-P"}"#, "shed.priority_header: "),
    ] {
        let text = format!(r#"{{"cluster":"c","hosts":["10.0.0.1:80"],"shed":{wrong}}}"#);
        let refusal = Config::parse(text.as_bytes()).expect_err(wrong).to_string();
        assert!(refusal.starts_with(key), "{wrong}: {refusal}");
    }
}
