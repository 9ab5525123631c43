//! Which hosts does Envoy know in one cluster, and how does it think they are?
//!
//! Envoy's admin answers `/clusters?format=json` with every cluster and a page of counters for each host: 7 MB where there
//! are 2,000 clusters of 4, since releases before 1.38 ignore `filter=`. So the answer is read as it comes, with the
//! scanner that reads prompts, and nothing is kept of it but the hosts of the one cluster: their addresses as the
//! `override_host` policy compares them, and what decides whether they may take traffic.
//!
//! An answer that breaks off says nothing: half of a list would look as if the other hosts had left.

use crate::core::bytes::Short;
use crate::core::config::{is_envoy_address, MAX_HOSTS};
use crate::core::prompt::json::{Container, Scanner, Sink};
use std::fmt::Write;

/// What Envoy says of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Whether the cluster came over xDS, and may leave that way.
    pub added_via_api: bool,
    /// Its hosts that have an IP address, in Envoy's order; at most [`MAX_HOSTS`].
    pub members: Vec<Member>,
    /// How many more there are than that.
    pub left_out: u32,
}

/// One host of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// As Envoy prints it: `ip:port`, `[v6]:port`.
    pub address: String,
    /// What Envoy holds against it.
    pub faults: Faults,
    /// What the control plane said of its health, if it did. Envoy tells `TIMEOUT` as `UNHEALTHY`.
    pub eds_health: EdsHealth,
    /// Its share of the traffic against its neighbours; 1 where none was set.
    pub weight: u32,
    /// 0 is used first.
    pub priority: u32,
}

/// The flags of a host's `health_status` that are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults(u8);

/// One flag of `health_status`, under the name that it has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `failed_active_health_check`
    FailedActiveHealthCheck,
    /// `failed_outlier_check`: ejected for now.
    FailedOutlierCheck,
    /// `failed_active_degraded_check`: it asks for less traffic.
    FailedActiveDegradedCheck,
    /// `pending_dynamic_removal`: gone from EDS, kept while it passes health checks.
    PendingDynamicRemoval,
    /// `pending_active_hc`: not checked yet.
    PendingActiveHc,
    /// `excluded_via_immediate_hc_fail`: it said itself that it goes.
    ExcludedViaImmediateHcFail,
    /// `active_hc_timeout`: its check failed by running out of time.
    ActiveHcTimeout,
}

/// `eds_health_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EdsHealth {
    /// Not told, or in a word that is not known here.
    #[default]
    Unknown,
    /// `HEALTHY`
    Healthy,
    /// `UNHEALTHY`
    Unhealthy,
    /// `DRAINING`
    Draining,
    /// `TIMEOUT`
    Timeout,
    /// `DEGRADED`
    Degraded,
}

/// Why an answer told nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClustersError {
    /// No JSON, or not all of it.
    Broken,
    /// The cluster is not among those that Envoy knows.
    NoCluster,
}

impl ClustersError {
    /// The reason as a metric label and a word for the log.
    pub fn as_str(self) -> &'static str {
        match self {
            ClustersError::Broken => "broken",
            ClustersError::NoCluster => "no_cluster",
        }
    }
}

impl Fault {
    /// Every flag.
    pub const ALL: [Fault; 7] = [
        Fault::FailedActiveHealthCheck,
        Fault::FailedOutlierCheck,
        Fault::FailedActiveDegradedCheck,
        Fault::PendingDynamicRemoval,
        Fault::PendingActiveHc,
        Fault::ExcludedViaImmediateHcFail,
        Fault::ActiveHcTimeout,
    ];

    /// The key in `health_status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Fault::FailedActiveHealthCheck => "failed_active_health_check",
            Fault::FailedOutlierCheck => "failed_outlier_check",
            Fault::FailedActiveDegradedCheck => "failed_active_degraded_check",
            Fault::PendingDynamicRemoval => "pending_dynamic_removal",
            Fault::PendingActiveHc => "pending_active_hc",
            Fault::ExcludedViaImmediateHcFail => "excluded_via_immediate_hc_fail",
            Fault::ActiveHcTimeout => "active_hc_timeout",
        }
    }
}

impl Faults {
    /// Whether the flag is set.
    pub fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u8 != 0
    }

    /// Whether none is.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn set(&mut self, fault: Fault, to: bool) {
        self.0 = self.0 & !(1 << fault as u8) | u8::from(to) << fault as u8;
    }
}

impl EdsHealth {
    fn from_name(name: &[u8]) -> Self {
        match name {
            b"HEALTHY" => EdsHealth::Healthy,
            b"UNHEALTHY" => EdsHealth::Unhealthy,
            b"DRAINING" => EdsHealth::Draining,
            b"TIMEOUT" => EdsHealth::Timeout,
            b"DEGRADED" => EdsHealth::Degraded,
            _ => EdsHealth::Unknown,
        }
    }
}

/// An answer on its way through the scanner.
#[derive(Debug)]
pub struct Clusters<'a> {
    scanner: Scanner,
    reading: Reading<'a>,
}

impl<'a> Clusters<'a> {
    /// The path under which Envoy's admin tells of the cluster that is called `wanted`, and from 1.38 on of no other.
    pub fn path(wanted: &str) -> String {
        let mut path = String::from("/clusters?format=json&filter=%5E");
        for byte in wanted.bytes() {
            if byte.is_ascii_alphanumeric() || byte == b'_' {
                path.push(char::from(byte));
                continue;
            }
            // In the regular expression a backslash takes every meaning off, but for bytes that are no ASCII, which have
            // none. In the path all are escaped.
            let _ = write!(path, "{}%{byte:02X}", if byte.is_ascii() { "%5C" } else { "" });
        }
        path.push_str("%24");
        path
    }

    /// Looks for the cluster that is called `wanted`.
    pub fn new(wanted: &'a str) -> Self {
        Self { scanner: Scanner::default(), reading: Reading::new(wanted.as_bytes()) }
    }

    /// Reads the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.scanner.feed(bytes, &mut self.reading);
    }

    /// What it said, once it has ended.
    ///
    /// # Errors
    ///
    /// [`ClustersError`] if it did not end, was no JSON, or is of other clusters only.
    pub fn finish(self) -> Result<Cluster, ClustersError> {
        if !self.scanner.is_done() {
            return Err(ClustersError::Broken);
        }
        self.reading.found.ok_or(ClustersError::NoCluster)
    }
}

/// Where in the answer a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Clusters,
    Cluster,
    Name,
    AddedViaApi,
    Hosts,
    Host,
    Address,
    Socket,
    Ip,
    Port,
    Health,
    Fault(Fault),
    EdsHealth,
    Weight,
    Priority,
    Ignored,
}

/// Which key of which object leads where. A table, not a match: compared one by one in code, they are 4 KiB of wasm.
static KEYS: [(Place, &str, Place); 19] = {
    const fn fault(fault: Fault) -> (Place, &'static str, Place) {
        (Place::Health, fault.as_str(), Place::Fault(fault))
    }
    [
        (Place::Root, "cluster_statuses", Place::Clusters),
        (Place::Cluster, "name", Place::Name),
        (Place::Cluster, "added_via_api", Place::AddedViaApi),
        (Place::Cluster, "host_statuses", Place::Hosts),
        (Place::Host, "address", Place::Address),
        (Place::Host, "health_status", Place::Health),
        (Place::Host, "weight", Place::Weight),
        (Place::Host, "priority", Place::Priority),
        (Place::Address, "socket_address", Place::Socket),
        (Place::Socket, "address", Place::Ip),
        (Place::Socket, "port_value", Place::Port),
        (Place::Health, "eds_health_status", Place::EdsHealth),
        fault(Fault::FailedActiveHealthCheck),
        fault(Fault::FailedOutlierCheck),
        fault(Fault::FailedActiveDegradedCheck),
        fault(Fault::PendingDynamicRemoval),
        fault(Fault::PendingActiveHc),
        fault(Fault::ExcludedViaImmediateHcFail),
        fault(Fault::ActiveHcTimeout),
    ]
};

/// The longest address there is, with a scope: `ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%interface-name`.
const MAX_IP: usize = 63;

/// What has been read so far.
#[derive(Debug)]
struct Reading<'a> {
    wanted: &'a [u8],
    found: Option<Cluster>,
    /// Open containers; the scanner bounds how many.
    places: Vec<Place>,
    /// Where the next value stands.
    next: Place,
    /// How much of the wanted name the cluster's name has been so far; `None` if it is another.
    name: Option<usize>,
    /// The cluster that is being read: hosts may come before the name.
    cluster: Cluster,
    host: Host,
    text: Short<{ MAX_IP + 1 }>,
}

/// The host that is being read.
#[derive(Debug)]
struct Host {
    ip: Short<{ MAX_IP + 1 }>,
    port: Option<u16>,
    faults: Faults,
    eds_health: EdsHealth,
    weight: u32,
    priority: u32,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            ip: Short::default(),
            port: None,
            faults: Faults::default(),
            eds_health: EdsHealth::Unknown,
            weight: 1,
            priority: 0,
        }
    }
}

impl<'a> Reading<'a> {
    fn new(wanted: &'a [u8]) -> Self {
        Self {
            wanted,
            found: None,
            places: Vec::new(),
            next: Place::Root,
            name: Some(0),
            cluster: Cluster::default(),
            host: Host::default(),
            text: Short::default(),
        }
    }

    /// Which container this is, or [`Place::Ignored`] if it should be another kind of value.
    fn enter(&self, container: Container) -> Place {
        let is_right = match self.next {
            Place::Clusters | Place::Hosts => container == Container::Array,
            Place::Root | Place::Cluster | Place::Host | Place::Address | Place::Socket | Place::Health => {
                container == Container::Object
            }
            _ => false,
        };
        if is_right {
            self.next
        } else {
            Place::Ignored
        }
    }

    /// Where an element of the innermost array stands.
    fn element(&self) -> Place {
        match self.places.last() {
            Some(Place::Clusters) => Place::Cluster,
            Some(Place::Hosts) => Place::Host,
            _ => Place::Ignored,
        }
    }

    fn end_of_cluster(&mut self) {
        let cluster = std::mem::take(&mut self.cluster);
        if self.name == Some(self.wanted.len()) {
            self.found = Some(cluster);
        }
    }

    fn end_of_host(&mut self) {
        let Some(address) = self.host.address() else { return };
        let Host { faults, eds_health, weight, priority, .. } = self.host;
        if self.cluster.members.len() < MAX_HOSTS {
            self.cluster.members.push(Member { address, faults, eds_health, weight, priority });
        } else {
            self.cluster.left_out = self.cluster.left_out.saturating_add(1);
        }
    }
}

impl Host {
    /// As Envoy prints it. `None` for a pipe, and whatever else has no IP address.
    fn address(&self) -> Option<String> {
        let (ip, port) = (self.ip.bytes(), self.port?);
        let ip = std::str::from_utf8(ip).ok().filter(|ip| !ip.is_empty() && ip.len() <= MAX_IP)?;
        let mut address = String::with_capacity(ip.len() + 8);
        let is_v6 = ip.contains(':');
        address.push_str(if is_v6 { "[" } else { "" });
        address.push_str(ip);
        address.push_str(if is_v6 { "]:" } else { ":" });
        address.push_str(&port.to_string());
        is_envoy_address(&address).then_some(address)
    }
}

impl Sink for Reading<'_> {
    fn open(&mut self, container: Container) {
        let place = self.enter(container);
        match place {
            Place::Cluster => (self.name, self.cluster) = (Some(0), Cluster::default()),
            Place::Host => self.host = Host::default(),
            _ => {}
        }
        self.places.push(place);
        self.next = self.element();
    }

    fn close(&mut self) {
        match self.places.pop() {
            Some(Place::Cluster) => self.end_of_cluster(),
            Some(Place::Host) => self.end_of_host(),
            _ => {}
        }
        self.next = self.element();
    }

    fn key(&mut self, key: &[u8]) {
        let here = self.places.last().copied().unwrap_or(Place::Ignored);
        let known = KEYS.iter().find(|(place, name, _)| *place == here && name.as_bytes() == key);
        self.next = match known.map(|(_, _, next)| *next) {
            // The cluster is another one: so are its hosts.
            Some(Place::Hosts) if self.name.is_none() => Place::Ignored,
            Some(next) => next,
            None => Place::Ignored,
        };
    }

    fn text_begin(&mut self) {
        match self.next {
            Place::Name => self.name = Some(0),
            Place::Ip | Place::EdsHealth => self.text.clear(),
            _ => {}
        }
    }

    fn text(&mut self, piece: &[u8]) {
        match self.next {
            Place::Name => {
                let rest = self.name.and_then(|matched| self.wanted.get(matched..));
                let goes_on = rest.is_some_and(|rest| rest.starts_with(piece));
                self.name = self.name.filter(|_| goes_on).map(|matched| matched + piece.len());
            }
            Place::Ip | Place::EdsHealth => self.text.push(piece),
            _ => {}
        }
    }

    fn text_end(&mut self) {
        match self.next {
            // The beginning of the wanted name is another name, too.
            Place::Name => self.name = self.name.filter(|matched| *matched == self.wanted.len()),
            Place::Ip => self.host.ip = std::mem::take(&mut self.text),
            Place::EdsHealth => self.host.eds_health = EdsHealth::from_name(self.text.bytes()),
            _ => {}
        }
        self.next = self.element();
    }

    fn scalar(&mut self, raw: &[u8]) {
        match self.next {
            Place::AddedViaApi => self.cluster.added_via_api = raw == b"true",
            Place::Port => self.host.port = whole(raw).and_then(|port| u16::try_from(port).ok()),
            Place::Fault(fault) => self.host.faults.set(fault, raw == b"true"),
            Place::Weight => self.host.weight = whole(raw).unwrap_or(1),
            Place::Priority => self.host.priority = whole(raw).unwrap_or(0),
            _ => {}
        }
        self.next = self.element();
    }
}

/// The value of decimal digits, if they fit.
fn whole(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
