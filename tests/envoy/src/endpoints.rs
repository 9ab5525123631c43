//! Which endpoints has the routed cluster, while Envoy runs? A file that Envoy reads again whenever another is moved over
//! it: EDS without a server, as an operator on the same machine would do it.

use anyhow::Result;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// What a control plane says of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It may have requests.
    Healthy,
    /// It is to go: what it has may end.
    Draining,
    /// It must not have requests.
    Unhealthy,
}

impl Health {
    /// As Envoy spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Healthy => "HEALTHY",
            Health::Draining => "DRAINING",
            Health::Unhealthy => "UNHEALTHY",
        }
    }
}

/// The endpoints of one cluster. Each change is one new file; Envoy has it some milliseconds later.
#[derive(Debug)]
pub struct Endpoints {
    home: TempDir,
    cluster: String,
    listed: Mutex<BTreeMap<SocketAddr, Health>>,
}

impl Endpoints {
    /// The endpoints of `cluster`, all healthy.
    pub fn new(cluster: &str, hosts: &[SocketAddr]) -> Result<Self> {
        let listed = hosts.iter().map(|host| (*host, Health::Healthy)).collect();
        let endpoints =
            Self { home: tempfile::tempdir()?, cluster: cluster.to_owned(), listed: Mutex::new(listed) };
        endpoints.change(|_| {})?;
        Ok(endpoints)
    }

    /// Adds an endpoint, or changes what is said of it.
    pub fn set(&self, host: SocketAddr, health: Health) -> Result<()> {
        self.change(|listed| {
            listed.insert(host, health);
        })
    }

    /// Takes an endpoint away.
    pub fn remove(&self, host: SocketAddr) -> Result<()> {
        self.change(|listed| {
            listed.remove(&host);
        })
    }

    /// All of them, and what is said of each.
    pub fn listed(&self) -> BTreeMap<SocketAddr, Health> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where Envoy finds the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.home.path().join("endpoints.json")
    }

    /// The cluster that they are of.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<SocketAddr, Health>)) -> Result<()> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut listed);
        // Written aside and moved, with the lock held: Envoy never reads half a file, nor an older one last.
        let fresh = self.home.path().join(".endpoints.json");
        std::fs::write(&fresh, resources(&self.cluster, &listed).to_string())?;
        Ok(std::fs::rename(fresh, self.path())?)
    }
}

/// The discovery response.
fn resources(cluster: &str, listed: &BTreeMap<SocketAddr, Health>) -> Value {
    let endpoints: Vec<Value> = listed
        .iter()
        .map(|(host, health)| {
            let address = json!({"address": host.ip().to_string(), "port_value": host.port()});
            let endpoint = json!({"address": {"socket_address": address}});
            json!({"endpoint": endpoint, "health_status": health.as_str()})
        })
        .collect();
    json!({"resources": [{
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": endpoints}],
    }]})
}
