//! Envoy's `/clusters`, captured from a real one, and what may stand in it otherwise.

use super::test;
use kvroute::core::config::MAX_HOSTS;
use kvroute::core::scrape::clusters::{Cluster, Clusters, ClustersError, EdsHealth, Fault, Member};

/// Envoy 1.40: two clusters, one with every kind of host. No host answered the health checks.
const CAPTURED: &str = include_str!("testdata/envoy_1_40_clusters.json");

fn read(answer: &str) -> Result<Cluster, ClustersError> {
    let mut clusters = Clusters::new("vllm");
    clusters.feed(answer.as_bytes());
    clusters.finish()
}

fn members(hosts: &str) -> Vec<Member> {
    let answer = format!(r#"{{"cluster_statuses":[{{"name":"vllm","host_statuses":[{hosts}]}}]}}"#);
    read(&answer).expect("the cluster").members
}

fn host(address: &str, port: &str, more: &str) -> String {
    format!(r#"{{"address":{{"socket_address":{{"address":"{address}","port_value":{port}}}}}{more}}}"#)
}

fn addresses(members: &[Member]) -> Vec<&str> {
    members.iter().map(|member| member.address.as_str()).collect()
}

#[test]
fn a_real_envoy_tells_its_hosts_as_its_policies_name_them() {
    let cluster = read(CAPTURED).expect("the cluster");
    let told: Vec<_> = cluster
        .members
        .iter()
        .map(|host| (host.address.as_str(), host.eds_health, host.weight, host.priority))
        .collect();
    // The pipe among them is left out, and Envoy tells TIMEOUT, which the last has, as UNHEALTHY.
    assert_eq!(
        told,
        [
            ("127.0.0.1:29903", EdsHealth::Healthy, 3, 0),
            ("[::1]:29904", EdsHealth::Draining, 1, 0),
            ("127.0.0.1:29906", EdsHealth::Unhealthy, 1, 0),
            ("127.0.0.1:29907", EdsHealth::Degraded, 1, 0),
            ("127.0.0.1:29905", EdsHealth::Unhealthy, 1, 1),
        ]
    );
    assert!(cluster.members.iter().all(|host| host.faults.has(Fault::FailedActiveHealthCheck)));
    assert!(cluster.members.iter().all(|host| !host.faults.has(Fault::FailedOutlierCheck)));
    assert!(!cluster.added_via_api && cluster.left_out == 0);
}

#[test]
fn cut_short_it_says_nothing() {
    for len in 0..CAPTURED.trim_end().len() {
        assert_eq!(read(&CAPTURED[..len]), Err(ClustersError::Broken), "{len}");
    }
    assert_eq!(read("upstream connect error"), Err(ClustersError::Broken));
}

#[test]
fn a_cluster_that_is_not_there_is_told_apart_from_one_without_hosts() {
    for none in [
        "{}",
        r#"{"cluster_statuses":[]}"#,
        r#"{"cluster_statuses":[{"name":"vllm-2"},{"name":"vll"},{"name":""},{},7]}"#,
        r#"{"cluster_statuses":{"name":"vllm"}}"#,
        r#"[{"name":"vllm"}]"#,
        "null ",
    ] {
        assert_eq!(read(none), Err(ClustersError::NoCluster), "{none}");
    }
    assert_eq!(
        read(r#"{"cluster_statuses":[{"name":"vllm","added_via_api":true}]}"#),
        Ok(Cluster { added_via_api: true, ..Cluster::default() })
    );
}

#[test]
fn hosts_belong_to_the_cluster_they_stand_in_wherever_its_name_stands() {
    let (ours, theirs) = (host("10.0.0.1", "80", ""), host("10.9.9.9", "80", ""));
    let answer = format!(
        r#"{{"cluster_statuses":[{{"host_statuses":[{theirs}],"name":"before"}},
        {{"host_statuses":[{ours}],"name":"vllm"}},{{"name":"after","host_statuses":[{theirs}]}}]}}"#
    );
    assert_eq!(addresses(&read(&answer).expect("the cluster").members), ["10.0.0.1:80"]);
}

#[test]
fn every_flag_is_read_under_its_own_name() {
    for fault in Fault::ALL {
        let told = format!(r#","health_status":{{"{}":true}}"#, fault.as_str());
        let [member] = members(&host("10.0.0.1", "80", &told)).try_into().expect("one");
        for other in Fault::ALL {
            assert_eq!(member.faults.has(other), other == fault, "{fault:?}");
        }
    }
    let calm = r#","health_status":{"failed_outlier_check":false,"failed_active_health_check":"true"}"#;
    assert!(members(&host("10.0.0.1", "80", calm))[0].faults.is_empty());
}

#[test]
fn what_is_not_told_is_the_default() {
    let [member] = members(&host("10.0.0.1", "80", "")).try_into().expect("one");
    assert_eq!((member.weight, member.priority, member.eds_health), (1, 0, EdsHealth::Unknown));
    let newer = members(&host("10.0.0.1", "80", r#","health_status":{"eds_health_status":"SLEEPING"}"#));
    assert_eq!(newer[0].eds_health, EdsHealth::Unknown);
}

#[test]
fn hosts_without_an_address_that_a_header_can_name_are_left_out() {
    for (address, port) in [
        ("10.0.0.1", "70000"),
        ("10.0.0.1", "-1"),
        ("10.0.0.1", "null"),
        ("10.0.0.1", "0"),
        ("10.0.0.1,10.0.0.2", "80"),
        ("", "80"),
        ("localhost", "80"),
        (&"1".repeat(300), "80"),
    ] {
        assert_eq!(members(&host(address, port, "")), [], "{address} {port}");
    }
    assert_eq!(members(r#"{"address":{"pipe":{"path":"/run/engine.sock"}}},{},7,[],null"#), []);
    // What stands under the same keys elsewhere is no address, and one host's is not the next one's.
    let list = [
        host("10.0.0.1", "80", ""),
        r#"{"address":{"pipe":{"path":"x"}},"locality":{"address":"10.0.0.3","port_value":80}}"#.to_owned(),
        host("::ffff:10.0.0.2", "80", r#","hostname":"h","locality":{"weight":9,"priority":9}"#),
    ];
    let members = members(&list.join(","));
    assert_eq!(addresses(&members), ["10.0.0.1:80", "[::ffff:10.0.0.2]:80"]);
    assert_eq!((members[1].weight, members[1].priority), (1, 0));
}

#[test]
fn more_hosts_than_the_bound_are_counted_and_not_kept() {
    let list: Vec<String> =
        (0..MAX_HOSTS + 5).map(|n| host(&format!("10.0.{}.{}", n / 256, n % 256), "80", "")).collect();
    let answer =
        format!(r#"{{"cluster_statuses":[{{"name":"vllm","host_statuses":[{}]}}]}}"#, list.join(","));
    let cluster = read(&answer).expect("the cluster");
    assert_eq!((cluster.members.len(), cluster.left_out), (MAX_HOSTS, 5));
}
