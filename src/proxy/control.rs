//! What does a gateway answer on its control listener? How its hosts are, and who is to go, to operators and scripts; its
//! journal, to other gateways.
//!
//! The listener is one for machines: it answers everything itself and lets nothing through. Any worker answers, for
//! placements lie in shared data and what is in flight in gauges; the filter must have the `vm_id` of the one that routes.
//! Where the configuration has a secret, whoever does not know it learns nothing; where not, anybody who reaches the listener
//! may ask and mark, and the journal is not served.

use super::host::{self, Headers};
use super::shared::Shared;
use super::stats::{OrCount, SlotGauges};
use super::worker::{now_ms, DEAD_AFTER_MS};
use crate::core::config::{is_envoy_address, Config};
use crate::core::drains::Drains;
use crate::core::fleet::Slot;
use crate::core::journal::Holding;
use crate::core::load::Freshness;
use crate::core::peers::Incoming;
use crate::core::snapshot::{Entry, Snapshot};
use crate::core::status::{self, HostStatus, Leader};
use std::cell::RefCell;
use std::rc::Rc;

/// What all requests to a control listener have in common.
pub struct Listener {
    config: Config,
    shared: Shared,
    gauges: RefCell<SlotGauges>,
}

/// One request.
pub struct Control {
    listener: Rc<Listener>,
}

/// Status, a header and the body.
type Answer = (u32, (&'static str, &'static str), Vec<u8>);

const TEXT: (&str, &str) = ("content-type", "text/plain");
const JSON: (&str, &str) = ("content-type", "application/json");

impl Control {
    /// A request to this listener.
    pub fn new(listener: Rc<Listener>) -> Self {
        Self { listener }
    }

    /// The request's headers have come: answers it.
    pub fn request(&self) {
        let (status, header, body) = self.listener.answer();
        let headers = [header, ("cache-control", "no-store")];
        // Without an answer the request stays where it is, paused, until its client or Envoy gives it up.
        host::send_local_response(status, &headers, &body).or_count();
    }
}

impl Listener {
    /// The control listener of a routed cluster.
    pub fn new(config: Config) -> Self {
        let shared = Shared::of(&config.cluster);
        Self { config, shared, gauges: RefCell::default() }
    }

    fn answer(&self) -> Answer {
        let header =
            |name: &str| host::header(Headers::Request, name).or_count().flatten().unwrap_or_default();
        let secret = self.config.peers.as_ref().map(|peers| &peers.secret);
        // First of all: who does not know it learns nothing, not even which paths there are.
        if secret.is_some_and(|secret| !secret.is_borne_by(&header("authorization"))) {
            return (401, ("www-authenticate", "Bearer"), Vec::new());
        }
        let (method, target) = (header(":method"), header(":path"));
        if let Some(asked) = Incoming::asked(&target).filter(|_| secret.is_some()) {
            return if method == b"GET" { self.journal(asked) } else { (405, ("allow", "GET"), Vec::new()) };
        }
        let (path, query) = split_at(&target, b'?');
        match (method.as_slice(), path) {
            (b"GET", b"/kvroute/status") => self.status(),
            (b"GET", b"/kvroute/signals") => self.signals(),
            (b"GET", b"/kvroute/ready") => self.for_host(query, |host| self.is_ready(host)),
            (b"GET", b"/kvroute/drain") => self.for_host(query, |host| self.one(host)),
            (b"POST", b"/kvroute/drain") => self.for_host(query, |host| {
                let now_ms = now_ms();
                self.change(host, "is to drain", |drains| drains.mark(host, now_ms))
            }),
            (b"POST", b"/kvroute/undrain") => self.for_host(query, |host| {
                self.change(host, "is no longer to drain", |drains| drains.unmark(host))
            }),
            (_, b"/kvroute/status" | b"/kvroute/signals" | b"/kvroute/ready") => {
                (405, ("allow", "GET"), Vec::new())
            }
            (_, b"/kvroute/undrain") => (405, ("allow", "POST"), Vec::new()),
            (_, b"/kvroute/drain") => (405, ("allow", "GET, POST"), Vec::new()),
            _ => (404, TEXT, b"no such path\n".to_vec()),
        }
    }

    /// What another gateway asks for.
    fn journal(&self, asked: Incoming) -> Answer {
        match self.shared.journal().and_then(|value| asked.select(&value, |slot| self.in_flight(slot))) {
            Some(value) => (200, ("content-type", "application/octet-stream"), value),
            None => {
                (503, TEXT, b"nothing to tell: does a filter with peers and this vm_id route?\n".to_vec())
            }
        }
    }

    fn status(&self) -> Answer {
        match self.shared.snapshot() {
            Some(snapshot) => {
                let tier = snapshot.tier;
                let hosts = self.hosts(snapshot);
                let lease = self.shared.lease().and_then(|(lease, _)| lease);
                let leader = lease.map(|lease| Leader { id: lease.holder, generation: lease.generation });
                let members = self.shared.members();
                let json = status::to_json(&hosts, tier, members.as_ref(), leader, self.at());
                (200, JSON, json.into_bytes())
            }
            None => unknown(),
        }
    }

    fn signals(&self) -> Answer {
        let Some(signals) = self.shared.signals() else { return unknown() };
        let hosts = self.shared.snapshot().unwrap_or_default().hosts;
        (200, JSON, signals.to_json(&hosts, self.at()).into_bytes())
    }

    /// Answers about the host that a query names, as `host=10.0.0.1:8000`.
    fn for_host(&self, query: &[u8], answer: impl FnOnce(&str) -> Answer) -> Answer {
        let named = query.split(|&byte| byte == b'&').find_map(|pair| pair.strip_prefix(b"host="));
        match named.and_then(address) {
            Some(host) => answer(&host),
            None => (400, TEXT, b"which host? As Envoy prints it: ?host=10.0.0.1:8000\n".to_vec()),
        }
    }

    /// Marks a host, or takes the mark away, and answers how it is then.
    fn change(&self, host: &str, what: &str, mut change: impl FnMut(&mut Drains) -> bool) -> Answer {
        let mut changed = false;
        let done = self.shared.change_drains(|drains| {
            changed = change(drains);
            changed
        });
        if done.is_none() {
            return (503, TEXT, b"not done: try again\n".to_vec());
        }
        if changed {
            log::info!("kvroute: {host} {what}");
        }
        self.one(host)
    }

    fn one(&self, host: &str) -> Answer {
        (200, JSON, (self.host(host).to_json(self.at()) + "\n").into_bytes())
    }

    /// For probes: whether new requests go to a host.
    fn is_ready(&self, host: &str) -> Answer {
        let life = self.host(host).life();
        let code = if life.resort() == Some(0) { 200 } else { 503 };
        (code, TEXT, format!("{}: {}\n", life.as_str(), life.reason()).into_bytes())
    }

    /// A host, whether the fleet has it or not: one may be marked before it is there.
    fn host(&self, host: &str) -> HostStatus {
        let known = self
            .shared
            .snapshot()
            .and_then(|snapshot| self.hosts(snapshot).into_iter().find(|known| known.entry.address == host));
        known.unwrap_or_else(|| {
            // Kubernetes takes a pod off the list when it begins to end: what it has in flight goes on.
            let slot = Shared::roster().slot(&self.config.cluster, host);
            let held = slot.map(|slot| self.in_flight(slot)).unwrap_or_default();
            HostStatus {
                entry: Entry::gone(host),
                mark: self.shared.drains().of(host),
                requests: held.requests,
                prefill_tokens: held.prefill_tokens,
                workers: self.shared.workers(DEAD_AFTER_MS, now_ms()),
            }
        })
    }

    /// All hosts that the leader knows of.
    fn hosts(&self, snapshot: Snapshot) -> Vec<HostStatus> {
        // The workers first: what they had in flight by then is in the gauges.
        let workers = self.shared.workers(DEAD_AFTER_MS, now_ms());
        let drains = self.shared.drains();
        let host = |entry: Entry| {
            let Holding { requests, prefill_tokens, .. } = self.in_flight(entry.slot);
            HostStatus { mark: drains.of(&entry.address), entry, requests, prefill_tokens, workers }
        };
        snapshot.hosts.into_iter().map(host).collect()
    }

    fn at(&self) -> Freshness {
        Freshness { now_ms: now_ms(), stale_after_ms: self.config.poll.stale_after_ms }
    }

    /// What all workers have on a host at this moment: what was published with the placements is older.
    fn in_flight(&self, slot: Slot) -> Holding {
        let now = self.gauges.borrow_mut().in_flight(slot);
        let requests = u32::try_from(now.requests.max(0)).unwrap_or(u32::MAX);
        Holding { slot, requests, prefill_tokens: now.prefill_tokens.max(0) as u64 }
    }
}

/// No leader has published anything.
fn unknown() -> Answer {
    (503, TEXT, b"nothing is known: does a filter with this cluster and vm_id route?\n".to_vec())
}

/// What stands before and behind the first `mark`.
fn split_at(text: &[u8], mark: u8) -> (&[u8], &[u8]) {
    let at = text.iter().position(|&byte| byte == mark).unwrap_or(text.len());
    (text.get(..at).unwrap_or(&[]), text.get(at + 1..).unwrap_or(&[]))
}

/// An address in a query, which may have its brackets and colons escaped.
fn address(mut text: &[u8]) -> Option<String> {
    let mut plain = String::new();
    while let Some((&byte, rest)) = text.split_first() {
        let (byte, rest) = match (byte, rest) {
            (b'%', [b'3', b'A' | b'a', rest @ ..]) => (b':', rest),
            (b'%', [b'5', b'B' | b'b', rest @ ..]) => (b'[', rest),
            (b'%', [b'5', b'D' | b'd', rest @ ..]) => (b']', rest),
            _ => (byte, rest),
        };
        plain.push(char::from(byte));
        text = rest;
    }
    is_envoy_address(&plain).then_some(plain)
}
