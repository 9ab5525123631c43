//! Envoy's admin interface: readiness, listeners, statistics, and the CPU its process has used.

use crate::client::{self, Connection};
use anyhow::{ensure, Context, Result};
use http_body_util::BodyExt;
use hyper::Request;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The admin interface of one Envoy.
#[derive(Debug, Clone, Copy)]
pub struct Admin {
    address: SocketAddr,
}

impl Admin {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether Envoy is live: configured, its workers running.
    pub async fn ready(&self) -> bool {
        self.get("/ready").await.is_ok()
    }

    /// Where the listener of this name listens; an error while there is none.
    pub async fn listener(&self, name: &str) -> Result<SocketAddr> {
        let text = self.get("/listeners?format=json").await?;
        let document: Value = serde_json::from_str(&text)?;
        let listener = document["listener_statuses"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|listener| listener["name"] == name)
            .with_context(|| format!("Envoy has no listener {name}"))?;
        let address = &listener["local_address"]["socket_address"];
        let host = address["address"].as_str().context("a listener without an address")?;
        let port = address["port_value"].as_u64().context("a listener without a port")?;
        Ok(SocketAddr::new(host.parse()?, u16::try_from(port)?))
    }

    /// The hosts of a cluster, and what its endpoint discovery says of each, as `HEALTHY`.
    pub async fn hosts(&self, cluster: &str) -> Result<BTreeMap<SocketAddr, String>> {
        let document: Value = serde_json::from_str(&self.get("/clusters?format=json").await?)?;
        let statuses = document["cluster_statuses"].as_array().into_iter().flatten();
        let of_cluster = statuses.filter(|status| status["name"] == cluster);
        let hosts = of_cluster.filter_map(|status| status["host_statuses"].as_array()).flatten();
        hosts
            .map(|host| {
                let address = &host["address"]["socket_address"];
                let ip = address["address"].as_str().context("a host without an address")?.parse()?;
                let port = address["port_value"].as_u64().context("a host without a port")?;
                let health = host["health_status"]["eds_health_status"].as_str().unwrap_or_default();
                Ok((SocketAddr::new(ip, u16::try_from(port)?), health.to_owned()))
            })
            .collect()
    }

    /// All counters and gauges. Filter metrics have the prefix `wasmcustom.` here.
    pub async fn stats(&self) -> Result<Stats> {
        let text = self.get("/stats").await?;
        let values = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Ok(Stats { values: values.collect() })
    }

    /// The statistics as Prometheus scrapes them.
    pub async fn prometheus(&self) -> Result<String> {
        self.get("/stats/prometheus").await
    }

    async fn get(&self, path: &str) -> Result<String> {
        let request = Request::get(path).header("host", "admin").body(client::empty())?;
        let mut connection = Connection::open(self.address).await?;
        let response = connection.send(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status == 200, "admin {path} answers {status}");
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

/// Envoy's counters and gauges at one moment.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    values: BTreeMap<String, u64>,
}

impl Stats {
    /// One value; 0 for a name that Envoy does not know (it makes many at first use).
    pub fn value(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// Connections that this worker, from 0, has taken on all listeners.
    pub fn worker_connections(&self, worker: u32) -> u64 {
        let suffix = format!(".worker_{worker}.downstream_cx_total");
        let of_listeners = self.values.iter().filter(|(name, _)| {
            name.starts_with("listener.") && !name.starts_with("listener.admin.") && name.ends_with(&suffix)
        });
        of_listeners.map(|(_, value)| value).sum()
    }

    /// The filter's metrics, by their names without Envoy's prefix.
    pub fn kvroute(&self) -> impl Iterator<Item = (&str, u64)> {
        self.values
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("wasmcustom.")?, *value)))
            .filter(|(name, _)| name.starts_with("kvroute_"))
    }

    /// The filter's in-flight gauges (requests, and prefill tokens, of each host) that are not 0.
    /// A gauge that was released too often shows as a huge value, and so is in here as well.
    pub fn in_flight(&self) -> Vec<(&str, u64)> {
        self.kvroute().filter(|(name, value)| name.contains("_inflight_") && *value != 0).collect()
    }
}

/// The CPU time that all threads of a process have used, to the nanosecond where the kernel keeps
/// `schedstat`, else in the 10 ms ticks of `stat`.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else {
            return ticks(pid);
        };
        nanoseconds += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

fn ticks(pid: u32) -> Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the command in brackets, which may hold spaces; utime is the 14th field.
    let (_, fields) = text.rsplit_once(") ").context("an odd /proc/PID/stat")?;
    let used: u64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(used * 10))
}
