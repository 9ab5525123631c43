//! Which hosts has the cluster just now, as Envoy or a resolver says, and how does Envoy think they are?
//!
//! The leader asks and puts the answer into one shared value; every worker takes its hosts from there. While nobody
//! answers, the last list stays in force, and the value says since when. It begins with a digest of the list, so that
//! workers read no further while the list is the same.
//!
//! Envoy's opinion counts here, since the `override_host` policy does not ask for it: a host that is named gets the
//! request, however ill it is.

use super::blocks::digest;
use super::config::{is_envoy_address, MAX_HOSTS};
use super::drains::{Mark, Marker};
use super::scrape::clusters::{self, EdsHealth, Fault};
use super::wire::{Reader, Writer};
use std::fmt::Write;

/// Layout of the value.
const VERSION: u8 = 1;

/// What the leader found out last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// Whom it asks.
    pub source: Source,
    /// When it was answered last, in milliseconds of the wall clock; 0 if never.
    pub at_ms: u64,
    /// How often it has not been since.
    pub failures: u32,
    /// Why, the last time.
    pub failure: Option<Failure>,
    /// The hosts, at most [`MAX_HOSTS`].
    pub hosts: Vec<Member>,
}

/// Whom the leader asks for the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Envoy, by its admin interface.
    #[default]
    Admin,
    /// The resolver.
    Dns,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// As Envoy prints it.
    pub address: String,
    /// How Envoy sees it.
    pub view: View,
}

/// How Envoy sees a host. Its weight counts for nothing here: how fast a host is, is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// Whether it would send requests there.
    pub standing: Standing,
    /// Hosts of a lower number are used first.
    pub priority: u32,
}

/// Whether Envoy would send requests to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// It would.
    #[default]
    Healthy,
    /// Where no other is healthy.
    Degraded,
    /// Nothing new: it is to go.
    Draining {
        /// When that was first seen, in milliseconds of the wall clock.
        since_ms: u64,
    },
    /// It would not.
    Unhealthy(Unhealthy),
}

/// Why Envoy would not send requests to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhealthy {
    /// It fails active health checks, or said itself that it does.
    FailedCheck,
    /// It has not been checked yet.
    NotChecked,
    /// Its requests failed: it is ejected for a while.
    Ejected,
    /// EDS says so.
    Told,
}

/// Why asking brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or a status other than 200.
    Status,
    /// No answer in time.
    Timeout,
    /// Envoy did not take the call.
    Refused,
    /// The answer is not what was asked for, or broke off.
    Broken,
    /// Envoy has no such cluster, or the name does not resolve.
    Unknown,
}

impl Source {
    /// Its name in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Admin => "admin",
            Source::Dns => "dns",
        }
    }
}

impl Failure {
    /// Every kind.
    pub const ALL: [Failure; 5] =
        [Failure::Status, Failure::Timeout, Failure::Refused, Failure::Broken, Failure::Unknown];

    /// Its name in metrics, status and log.
    pub fn as_str(self) -> &'static str {
        match self {
            Failure::Status => "status",
            Failure::Timeout => "timeout",
            Failure::Refused => "refused",
            Failure::Broken => "broken",
            Failure::Unknown => "unknown",
        }
    }
}

impl Unhealthy {
    const ALL: [Unhealthy; 4] =
        [Unhealthy::FailedCheck, Unhealthy::NotChecked, Unhealthy::Ejected, Unhealthy::Told];

    /// As a reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Unhealthy::FailedCheck => "it fails Envoy's health checks",
            Unhealthy::NotChecked => "Envoy has not checked its health yet",
            Unhealthy::Ejected => "Envoy has ejected it as an outlier",
            Unhealthy::Told => "the control plane says that it is unhealthy",
        }
    }

    /// A number that stands for it in shared values.
    pub fn code(self) -> u64 {
        self as u64
    }

    /// What a number stands for.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|why| why.code() == code)
    }
}

impl Standing {
    /// What Envoy's flags come to, as its own balancing reads them, except that it would go on sending to hosts that it
    /// keeps only until they fail a check.
    fn of(host: &clusters::Member, now_ms: u64) -> Self {
        let has = |fault| host.faults.has(fault);
        // A host that has not been checked counts as one that failed.
        if has(Fault::PendingActiveHc) {
            Standing::Unhealthy(Unhealthy::NotChecked)
        } else if has(Fault::FailedActiveHealthCheck) || has(Fault::ExcludedViaImmediateHcFail) {
            Standing::Unhealthy(Unhealthy::FailedCheck)
        } else if has(Fault::FailedOutlierCheck) {
            Standing::Unhealthy(Unhealthy::Ejected)
        } else if matches!(host.eds_health, EdsHealth::Unhealthy | EdsHealth::Timeout) {
            Standing::Unhealthy(Unhealthy::Told)
        } else if host.eds_health == EdsHealth::Draining || has(Fault::PendingDynamicRemoval) {
            Standing::Draining { since_ms: now_ms }
        } else if host.eds_health == EdsHealth::Degraded || has(Fault::FailedActiveDegradedCheck) {
            Standing::Degraded
        } else {
            Standing::Healthy
        }
    }

    /// Its mark, if it is to go.
    pub fn mark(self) -> Option<Mark> {
        match self {
            Standing::Draining { since_ms } => Some(Mark { since_ms, by: Marker::Envoy }),
            _ => None,
        }
    }

    fn encode(self, value: &mut Writer) {
        let (tag, number) = match self {
            Standing::Healthy => (0, 0),
            Standing::Degraded => (1, 0),
            Standing::Draining { since_ms } => (2, since_ms),
            Standing::Unhealthy(why) => (3, why.code()),
        };
        value.u8(tag);
        value.u64(number);
    }

    fn decode(value: &mut Reader) -> Option<Self> {
        let (tag, number) = (value.u8()?, value.u64()?);
        Some(match tag {
            0 => Standing::Healthy,
            1 => Standing::Degraded,
            2 => Standing::Draining { since_ms: number },
            3 => Standing::Unhealthy(Unhealthy::from_code(number)?),
            _ => return None,
        })
    }
}

/// The hosts that Envoy's admin tells of.
pub fn told(cluster: clusters::Cluster, now_ms: u64) -> Vec<Member> {
    let member = |host: clusters::Member| {
        let view = View { standing: Standing::of(&host, now_ms), priority: host.priority };
        Member { address: host.address, view }
    };
    cluster.members.into_iter().map(member).collect()
}

/// The hosts that the resolver tells of, at `port`, in the order of their addresses: resolvers turn them round. Envoy hands
/// over how many there are, for how many seconds each is good, and then each as `ip:0` with a NUL behind.
///
/// # Errors
///
/// [`Failure::Unknown`] if there are none, [`Failure::Broken`] if it is something else.
pub fn resolved(answer: &[u8], port: u16) -> Result<Vec<Member>, Failure> {
    if answer.is_empty() {
        return Err(Failure::Unknown);
    }
    let mut rest = Reader::whole(answer);
    let count = rest.u32().ok_or(Failure::Broken)? as usize;
    let names = count.checked_mul(4).and_then(|ttls| rest.raw(ttls).map(|_| rest)).ok_or(Failure::Broken)?;
    let names = names.rest();
    let mut hosts: Vec<Member> = Vec::new();
    for name in names.split(|&byte| byte == 0).take(count).filter(|name| !name.is_empty()) {
        let ip = std::str::from_utf8(name).ok().and_then(|name| name.strip_suffix(":0"));
        let address = ip.map(|ip| format!("{ip}:{port}")).filter(|address| is_envoy_address(address));
        let address = address.ok_or(Failure::Broken)?;
        let place = hosts.partition_point(|host| host.address < address);
        let is_known = hosts.get(place).is_some_and(|host| host.address == address);
        if !is_known && hosts.len() < MAX_HOSTS {
            hosts.insert(place, Member { address, view: View::default() });
        }
    }
    if hosts.is_empty() {
        Err(Failure::Unknown)
    } else {
        Ok(hosts)
    }
}

/// The host with an address: almost always in the place where it was.
fn find<'a>(hosts: &'a [Member], place: usize, address: &str) -> Option<&'a Member> {
    let is_it = |host: &&Member| host.address == address;
    hosts.get(place).filter(is_it).or_else(|| hosts.iter().find(is_it))
}

impl Members {
    /// The source has answered. Answers the addresses that are new, and those that are gone.
    pub fn answered(&mut self, mut hosts: Vec<Member>, now_ms: u64) -> (Vec<String>, Vec<String>) {
        for (n, host) in hosts.iter_mut().enumerate() {
            let was = find(&self.hosts, n, &host.address).map(|old| old.view.standing);
            if let (Standing::Draining { .. }, Some(was @ Standing::Draining { .. })) =
                (host.view.standing, was)
            {
                host.view.standing = was;
            }
        }
        let missing = |from: &[Member], in_: &[Member]| -> Vec<String> {
            let places = from.iter().enumerate();
            let missing = places.filter(|(n, host)| find(in_, *n, &host.address).is_none());
            missing.map(|(_, host)| host.address.clone()).collect()
        };
        let changes = (missing(&hosts, &self.hosts), missing(&self.hosts, &hosts));
        *self = Self { source: self.source, at_ms: now_ms, failures: 0, failure: None, hosts };
        changes
    }

    /// The source has not answered, or nothing that can be used: the list stays in force.
    pub fn failed(&mut self, why: Failure) {
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(why);
    }

    /// As one JSON object. `hosts` are those that are in force.
    pub fn to_json(&self, now_ms: u64) -> String {
        let mut json = format!("{{\"source\":\"{}\",\"failures\":{}", self.source.as_str(), self.failures);
        if let Some(why) = self.failure {
            let _ = write!(json, ",\"failure\":\"{}\"", why.as_str());
        }
        if self.at_ms != 0 {
            let _ = write!(json, ",\"age_ms\":{}", now_ms.saturating_sub(self.at_ms));
        }
        let _ = write!(json, ",\"hosts\":{}}}", self.hosts.len());
        json
    }

    /// The value for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut list = Writer::default();
        for Member { address, view } in &self.hosts {
            list.short_str(address);
            view.standing.encode(&mut list);
            list.u32(view.priority);
        }
        let list = list.finish();
        let mut value = Writer::new(VERSION);
        value.u64(digest(&list));
        value.u8(self.source as u8);
        value.u64(self.at_ms);
        value.u32(self.failures);
        value.u8(self.failure.map_or(0, |why| 1 + why as u8));
        value.raw(&list);
        value.finish()
    }

    /// The digest of a value's list, without reading it; `None` if it is no value.
    pub fn list(value: &[u8]) -> Option<u64> {
        Reader::new(value, VERSION)?.u64()
    }

    /// Reads the value; `None` if it is not one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = Reader::new(value, VERSION)?;
        let list = rest.u64()?;
        let source = if rest.u8()? == 0 { Source::Admin } else { Source::Dns };
        let (at_ms, failures) = (rest.u64()?, rest.u32()?);
        let failure =
            usize::from(rest.u8()?).checked_sub(1).and_then(|place| Failure::ALL.get(place).copied());
        if digest(rest.rest()) != list {
            return None;
        }
        let mut hosts = Vec::new();
        while !rest.is_empty() {
            let address = rest.short_str()?.to_owned();
            let view = View { standing: Standing::decode(&mut rest)?, priority: rest.u32()? };
            hosts.push(Member { address, view });
        }
        (hosts.len() <= MAX_HOSTS).then_some(Self { source, at_ms, failures, failure, hosts })
    }
}
