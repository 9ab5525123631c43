//! Envoy's list of hosts reads the same however it is cut, in little memory, and as serde_json would have it.

use super::json::Document;
use super::{memory, ways_of_cutting, Source};
use kvroute::core::config::{is_envoy_address, MAX_HOSTS};
use kvroute::core::scrape::clusters::{Cluster, Clusters, ClustersError, EdsHealth, Fault};
use serde_json::Value;

pub fn holds(bytes: &[u8]) {
    any_answer(bytes);
    any_answer(answer(&mut Source(bytes)).as_bytes());
}

fn any_answer(bytes: &[u8]) {
    let ways = ways_of_cutting(bytes);
    let whole = read(&ways[0]);
    for way in &ways[1..] {
        assert_eq!(read(way), whole, "{way:?}");
    }
    if let Some(document) = Document::read(bytes).filter(|document| !document.has_twins()) {
        // A number at the top has no end that could be seen.
        if document != Document::Scalar {
            let value: Value = serde_json::from_slice(bytes).expect("a document");
            compare(whole, naive(&value));
        }
    }
}

fn read(pieces: &[&[u8]]) -> Result<Cluster, ClustersError> {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let (read, heap) = memory::most(|| {
        let mut clusters = Clusters::new("vllm");
        pieces.iter().for_each(|piece| clusters.feed(piece));
        clusters.finish()
    });
    // Two lists of hosts, the one that was found and the one that may be it, however long the answer.
    let most = 2 * MAX_HOSTS * 256;
    assert!(heap <= most.min(16 * bytes) + 4_096, "{heap} bytes for {bytes}");
    read
}

type Host<'a> = (String, Vec<&'a str>, &'a str, u32, u32);

/// The cluster's flag and hosts, from the document as a whole.
fn naive(answer: &Value) -> Option<(bool, Vec<Host<'_>>)> {
    let clusters = answer.get("cluster_statuses")?.as_array()?;
    let cluster = clusters.iter().rfind(|cluster| cluster["name"] == "vllm")?;
    let hosts = cluster["host_statuses"].as_array().map_or(&[][..], Vec::as_slice);
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let host = |host: &'_ Value| -> Option<(String, u32, u32)> {
        let socket = host["address"].get("socket_address")?;
        let (ip, port) = (socket["address"].as_str()?, socket["port_value"].as_u64()?);
        let address = if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        let is_named = is_envoy_address(&address) && ip.len() < 64;
        is_named.then_some((
            address,
            number(&host["weight"]).unwrap_or(1),
            number(&host["priority"]).unwrap_or(0),
        ))
    };
    let hosts = hosts.iter().filter_map(|member| {
        let (address, weight, priority) = host(member)?;
        let health = &member["health_status"];
        let faults = Fault::ALL.iter().map(|fault| fault.as_str()).filter(|name| health[name] == true);
        let eds = health["eds_health_status"].as_str().unwrap_or_default();
        Some((address, faults.collect(), eds, weight, priority))
    });
    Some((cluster["added_via_api"] == true, hosts.collect()))
}

fn compare(read: Result<Cluster, ClustersError>, expected: Option<(bool, Vec<Host>)>) {
    let Some((added_via_api, hosts)) = expected else {
        return assert_eq!(read, Err(ClustersError::NoCluster));
    };
    let cluster = read.expect("the cluster");
    assert_eq!(cluster.added_via_api, added_via_api);
    assert_eq!(cluster.members.len() + cluster.left_out as usize, hosts.len());
    for (member, (address, faults, eds, weight, priority)) in cluster.members.iter().zip(hosts) {
        let read = Fault::ALL.iter().filter(|fault| member.faults.has(**fault)).map(|fault| fault.as_str());
        assert_eq!(read.collect::<Vec<_>>(), faults);
        let eds = match eds {
            "HEALTHY" => EdsHealth::Healthy,
            "UNHEALTHY" => EdsHealth::Unhealthy,
            "DRAINING" => EdsHealth::Draining,
            "TIMEOUT" => EdsHealth::Timeout,
            "DEGRADED" => EdsHealth::Degraded,
            _ => EdsHealth::Unknown,
        };
        assert_eq!((&member.address, member.eds_health), (&address, eds));
        assert_eq!((member.weight, member.priority), (weight, priority));
    }
}

/// An answer much like Envoy's, with keys in any order, and values that stand where they should not.
fn answer(source: &mut Source) -> String {
    let clusters = source.list(4, cluster).join(",");
    format!("{{{}\"cluster_statuses\":[{clusters}]}}", source.of(&["", "\"a\":[{\"name\":\"vllm\"}],"]))
}

fn cluster(source: &mut Source) -> String {
    let hosts = source.list(12, host).join(",");
    let name = source.of(&["\"vllm\"", "\"vllm\"", "\"vll\\u006D\"", "\"vllm2\"", "\"vll\"", "7", "{}"]);
    let mut fields = vec![
        format!("\"name\":{name}"),
        format!("\"host_statuses\":{}", wrapped(source, &format!("[{hosts}]"))),
    ];
    fields.extend(source.list(2, |source| {
        source
            .of(&[
                "\"circuit_breakers\":{\"thresholds\":[{\"priority\":\"HIGH\"}]}",
                "\"added_via_api\":true",
            ])
            .to_owned()
    }));
    shuffled(source, fields)
}

fn host(source: &mut Source) -> String {
    let ip =
        source.of(&["10.0.0.1", "10.0.0.2", "::1", "fd00::2", "fe80::1%3", "0::1", "host", "10.0.0.1,x"]);
    let port = source.of(&["80", "8000", "0", "65535", "65536", "8e1", "\"80\"", "null", "4294967376"]);
    let socket = shuffled(source, vec![format!("\"address\":\"{ip}\""), format!("\"port_value\":{port}")]);
    let address = source.of(&["socket_address", "socket_address", "socket_address", "pipe"]);
    let mut flags = source.list(4, |source| {
        let flag = source.of(&Fault::ALL).as_str();
        format!("\"{flag}\":{}", source.of(&["true", "true", "false", "1", "\"true\"", "[true]"]))
    });
    let eds = source.of(&["HEALTHY", "UNHEALTHY", "DRAINING", "TIMEOUT", "DEGRADED", "UNKNOWN", "healthy"]);
    flags.push(format!("\"eds_health_status\":\"{eds}\""));
    let health = shuffled(source, flags);
    let fields = vec![
        format!("\"address\":{}", wrapped(source, &format!("{{\"{address}\":{socket}}}"))),
        format!("\"health_status\":{}", wrapped(source, &health)),
        format!("\"weight\":{}", source.of(&["1", "128", "0", "4294967295", "4294967296", "-1", "1.0"])),
        format!("\"priority\":{}", source.of(&["0", "1", "2", "\"HIGH\"", "{}"])),
        format!("\"stats\":[{{\"name\":\"rq_total\",\"value\":\"{}\"}}]", source.u16()),
        "\"locality\":{\"address\":\"10.9.9.9\",\"weight\":7}".to_owned(),
    ];
    shuffled(source, fields)
}

/// The value, now and then in a list.
fn wrapped(source: &mut Source, value: &str) -> String {
    if source.u8() % 16 == 15 {
        format!("[{value}]")
    } else {
        value.to_owned()
    }
}

fn shuffled(source: &mut Source, mut fields: Vec<String>) -> String {
    for at in 1..fields.len() {
        fields.swap(at, source.below(at + 1));
    }
    format!("{{{}}}", fields.join(source.of(&[",", ", ", ",\n  "])))
}
