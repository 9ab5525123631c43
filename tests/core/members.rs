//! Which hosts there are, by whom it is told, and what Envoy's opinion of them does.

use super::support::{config, router};
use super::test;
use kvroute::core::drains::Drains;
use kvroute::core::fleet::Slot;
use kvroute::core::health::Why;
use kvroute::core::life::Life;
use kvroute::core::members::{resolved, told, Failure, Member, Members, Standing, Unhealthy, View};
use kvroute::core::prompt::Unread;
use kvroute::core::route::Reason;
use kvroute::core::router::Router;
use kvroute::core::scrape::clusters::Clusters;
use kvroute::core::wire::Writer;
use serde_json::{json, Value};

const NOW_MS: u64 = 50_000;

/// What Envoy tells of hosts with these `health_status`es.
fn heard(hosts: &[Value], now_ms: u64) -> Vec<Member> {
    let host = |(n, more): (usize, &Value)| {
        let mut host = json!({"address": {"socket_address": {"address": format!("10.0.0.{}", n + 1), "port_value": 8000}}});
        host.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        host
    };
    let hosts: Vec<Value> = hosts.iter().enumerate().map(host).collect();
    let answer = json!({"cluster_statuses": [{"name": "vllm", "host_statuses": hosts}]}).to_string();
    let mut clusters = Clusters::new("vllm");
    clusters.feed(answer.as_bytes());
    told(clusters.finish().expect("the cluster"), now_ms)
}

fn eds(health: &str) -> Value {
    json!({"health_status": {"eds_health_status": health}})
}

fn flag(name: &str) -> Value {
    json!({"health_status": {"eds_health_status": "HEALTHY", name: true}})
}

fn standing(host: Value) -> Standing {
    heard(&[host], NOW_MS)[0].view.standing
}

/// A router whose hosts Envoy tells so.
fn router_told(hosts: &[Value]) -> Router {
    let mut router = router(hosts.len());
    let members = Members { hosts: heard(hosts, NOW_MS), ..Members::default() };
    router.settle_members(Some(&members));
    router.settle_drains(&[], &Drains::default());
    router
}

/// The hosts that are named, by slot.
fn named(router: &Router) -> Vec<u16> {
    let mut hosts: Vec<u16> =
        router.decide_unread(Unread::Path, true, NOW_MS).hosts.iter().map(|slot| slot.0).collect();
    hosts.sort_unstable();
    hosts
}

#[test]
fn envoys_flags_come_to_what_its_own_balancing_makes_of_them() {
    let unhealthy = Standing::Unhealthy;
    for (host, wanted) in [
        (json!({}), Standing::Healthy),
        (eds("HEALTHY"), Standing::Healthy),
        (eds("UNHEALTHY"), unhealthy(Unhealthy::Told)),
        (eds("TIMEOUT"), unhealthy(Unhealthy::Told)),
        (eds("DRAINING"), Standing::Draining { since_ms: NOW_MS }),
        (eds("DEGRADED"), Standing::Degraded),
        (eds("SOMETHING_NEW"), Standing::Healthy),
        (flag("failed_active_health_check"), unhealthy(Unhealthy::FailedCheck)),
        (flag("excluded_via_immediate_hc_fail"), unhealthy(Unhealthy::FailedCheck)),
        (flag("failed_outlier_check"), unhealthy(Unhealthy::Ejected)),
        (flag("pending_active_hc"), unhealthy(Unhealthy::NotChecked)),
        (flag("pending_dynamic_removal"), Standing::Draining { since_ms: NOW_MS }),
        (flag("failed_active_degraded_check"), Standing::Degraded),
        // Says how a check failed, not that one did.
        (flag("active_hc_timeout"), Standing::Healthy),
    ] {
        assert_eq!(standing(host.clone()), wanted, "{host}");
    }
    let both = json!({"health_status": {"eds_health_status": "DRAINING", "failed_outlier_check": true}});
    assert_eq!(
        standing(both),
        unhealthy(Unhealthy::Ejected),
        "what cannot serve is worse than what is to go"
    );
}

#[test]
fn a_host_that_envoy_would_not_send_to_gets_nothing_and_says_why() {
    let router = router_told(&[
        json!({}),
        eds("UNHEALTHY"),
        flag("failed_active_health_check"),
        flag("failed_outlier_check"),
        eds("DRAINING"),
        eds("DEGRADED"),
    ]);
    assert_eq!(named(&router), [0]);
    let lives: Vec<(&str, &str)> = router
        .fleet()
        .hosts()
        .iter()
        .map(|host| Life::of(host, NOW_MS))
        .map(|life| (life.as_str(), life.reason()))
        .collect();
    assert_eq!(
        lives,
        [
            ("ready", "it serves"),
            ("unhealthy", "the control plane says that it is unhealthy"),
            ("unhealthy", "it fails Envoy's health checks"),
            ("unhealthy", "Envoy has ejected it as an outlier"),
            ("draining", "Envoy says that it is to go"),
            ("degraded", "Envoy says that it is degraded"),
        ]
    );
}

#[test]
fn where_nobody_is_better_degraded_hosts_serve_then_suspects_then_draining_ones_and_unhealthy_ones_never() {
    let sick = || eds("UNHEALTHY");
    let mut router = router_told(&[eds("DRAINING"), eds("DEGRADED"), json!({}), sick()]);
    (0..3).for_each(|_| router.failed(Slot(2), Why::Connect, NOW_MS, NOW_MS));
    assert_eq!(named(&router), [1]);
    (0..3).for_each(|_| router.failed(Slot(1), Why::Connect, NOW_MS, NOW_MS));
    assert_eq!(named(&router), [1, 2]);
    assert_eq!(named(&router_told(&[eds("DRAINING"), sick(), sick()])), [0]);
    let all_sick = router_told(&[sick(), sick()]);
    assert_eq!(all_sick.decide_unread(Unread::Path, true, NOW_MS).reason, Reason::NoHosts, "Envoy decides");
}

#[test]
fn hosts_of_a_lower_priority_number_come_first_as_long_as_one_may_serve() {
    let at = |priority: u32, mut host: Value| {
        host["priority"] = json!(priority);
        host
    };
    let hosts = [at(1, json!({})), at(0, json!({})), at(0, eds("UNHEALTHY")), at(2, json!({}))];
    assert_eq!(named(&router_told(&hosts)), [1]);
    let failed_over = [at(1, json!({})), at(0, eds("DRAINING")), at(0, eds("UNHEALTHY")), at(2, json!({}))];
    assert_eq!(named(&router_told(&failed_over)), [0]);
}

#[test]
fn a_life_survives_the_value_in_which_the_leader_tells_it() {
    for host in [
        eds("DRAINING"),
        eds("DEGRADED"),
        eds("UNHEALTHY"),
        flag("pending_active_hc"),
        flag("failed_outlier_check"),
    ] {
        let router = router_told(&[host]);
        let life = Life::of(&router.fleet().hosts()[0], NOW_MS);
        let mut value = Writer::default();
        life.encode(&mut value);
        let bytes = value.finish();
        assert_eq!(Life::decode(&mut kvroute::core::wire::Reader::whole(&bytes)), Some(life));
    }
}

#[test]
fn the_list_is_read_again_only_when_it_has_changed() {
    let mut members = Members::default();
    let (new, gone) = members.answered(heard(&[json!({}), eds("DRAINING")], 1_000), 1_000);
    assert_eq!((new, gone), (vec!["10.0.0.1:8000".to_owned(), "10.0.0.2:8000".to_owned()], vec![]));
    let first = members.encode();
    // A second later all is the same, and still draining since then.
    members.answered(heard(&[json!({}), eds("DRAINING")], 2_000), 2_000);
    let second = members.encode();
    assert!(
        first != second && Members::list(&first) == Members::list(&second) && Members::list(&first).is_some()
    );
    assert_eq!(members.hosts[1].view.standing, Standing::Draining { since_ms: 1_000 });
    members.failed(Failure::Timeout);
    assert_eq!(Members::list(&members.encode()), Members::list(&first));
    let (new, gone) = members.answered(heard(&[json!({})], 3_000), 3_000);
    assert_eq!((new, gone), (vec![], vec!["10.0.0.2:8000".to_owned()]));
    assert_ne!(Members::list(&members.encode()), Members::list(&first));
}

#[test]
fn while_nobody_answers_the_last_list_stays_and_says_since_when() {
    let mut members = Members::default();
    members.failed(Failure::Refused);
    let never: Value = serde_json::from_str(&members.to_json(NOW_MS)).expect("JSON");
    assert_eq!(never, json!({"source": "admin", "failures": 1, "failure": "refused", "hosts": 0}));
    members.answered(heard(&[json!({})], NOW_MS), NOW_MS);
    members.failed(Failure::Timeout);
    members.failed(Failure::Unknown);
    let read = Members::decode(&members.encode()).expect("written");
    assert_eq!(read, members);
    let status: Value = serde_json::from_str(&read.to_json(NOW_MS + 700)).expect("JSON");
    assert_eq!(
        status,
        json!({"source": "admin", "failures": 2, "failure": "unknown", "age_ms": 700, "hosts": 1})
    );
}

#[test]
fn damaged_values_are_no_values() {
    let mut members = Members::default();
    members.answered(heard(&[json!({}), eds("UNHEALTHY")], 1), 1);
    let value = members.encode();
    for len in 0..value.len() {
        assert_eq!(Members::decode(&value[..len]), None, "{len}");
    }
    for place in 23..value.len() {
        let mut damaged = value.clone();
        damaged[place] ^= 1;
        assert_eq!(Members::decode(&damaged), None, "{place}");
    }
    assert_eq!(Members::list(b""), None);
}

#[test]
fn hosts_that_stay_keep_what_is_known_of_them_and_those_that_leave_are_forgotten() {
    let mut router = router(3);
    (0..3).for_each(|_| router.failed(Slot(0), Why::Connect, NOW_MS, NOW_MS));
    (0..3).for_each(|_| router.failed(Slot(1), Why::Connect, NOW_MS, NOW_MS));
    let host = |n: usize| format!("10.0.0.{n}:8000");
    router.assign(&[(host(1), Slot(0)), (host(9), Slot(1))]);
    let suspects: Vec<bool> =
        router.fleet().hosts().iter().map(|host| host.health.is_suspect(NOW_MS)).collect();
    assert_eq!(suspects, [true, false], "another host in the same slot begins anew");
    // What a stream has still to say of a host that has left is nobody's.
    router.answered_by(Slot(2), 77);
    assert_eq!(named(&router), [1]);
    assert_eq!(config(3).candidates, 3);
}

#[test]
fn a_path_asks_for_the_one_cluster_whatever_it_is_called() {
    assert_eq!(Clusters::path("vllm_2"), "/clusters?format=json&filter=%5Evllm_2%24");
    assert_eq!(
        Clusters::path("outbound|80||a-b.ns.svc"),
        "/clusters?format=json&filter=%5Eoutbound%5C%7C80%5C%7C%5C%7Ca%5C%2Db%5C%2Ens%5C%2Esvc%24"
    );
    assert_eq!(Clusters::path("é&"), "/clusters?format=json&filter=%5E%C3%A9%5C%26%24");
}

/// What Envoy hands over for these names.
fn answer(names: &[&str]) -> Vec<u8> {
    let mut bytes = (names.len() as u32).to_le_bytes().to_vec();
    names.iter().for_each(|_| bytes.extend(30_u32.to_le_bytes()));
    names.iter().for_each(|name| bytes.extend([name.as_bytes(), b"\0"].concat()));
    bytes
}

#[test]
fn a_name_resolves_to_hosts_in_the_order_of_their_addresses() {
    let hosts = |names: &[&str]| {
        resolved(&answer(names), 8_000)
            .map(|hosts| hosts.into_iter().map(|host| host.address).collect::<Vec<_>>())
    };
    assert_eq!(
        hosts(&["10.0.0.2:0", "[fd00::1]:0", "10.0.0.1:0", "10.0.0.2:0"]),
        Ok(["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"].map(str::to_owned).to_vec())
    );
    assert_eq!((hosts(&[]), resolved(b"", 80)), (Err(Failure::Unknown), Err(Failure::Unknown)));
    for odd in [&["localhost:0"][..], &["10.0.0.1:80"], &["10.0.0.1"], &["10.0.0.1:0", "\u{7f}"]] {
        assert_eq!(hosts(odd), Err(Failure::Broken), "{odd:?}");
    }
    let whole = answer(&["10.0.0.1:0", "10.0.0.2:0"]);
    for len in 0..12 {
        assert!(resolved(&whole[..len], 80).is_err(), "{len}");
    }
    assert_eq!(resolved(&u32::MAX.to_le_bytes(), 80), Err(Failure::Broken));
    assert_eq!(resolved(&whole, 80).map(|hosts| hosts[0].view), Ok(View::default()));
}
