//! What does a gateway answer on its control listener? Its journal, to other gateways that know the secret.
//!
//! The listener is one for machines: it answers everything itself and lets nothing through. Any worker answers, for
//! placements lie in shared data and what is in flight in gauges; the filter must have the `vm_id` of the one that routes.

use super::host::{self, Headers};
use super::shared::Shared;
use super::stats::{OrCount, SlotGauges};
use crate::core::config::Config;
use crate::core::fleet::Slot;
use crate::core::journal::Holding;
use crate::core::peers::Incoming;
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
        const TEXT: (&str, &str) = ("content-type", "text/plain");
        let header =
            |name: &str| host::header(Headers::Request, name).or_count().flatten().unwrap_or_default();
        let secret = self.config.peers.as_ref().map(|peers| &peers.secret);
        // First of all: who does not know it learns nothing, not even which paths there are.
        if !secret.is_some_and(|secret| secret.is_borne_by(&header("authorization"))) {
            return (401, ("www-authenticate", "Bearer"), Vec::new());
        }
        let Some(asked) = Incoming::asked(&header(":path")) else {
            return (404, TEXT, b"no such path\n".to_vec());
        };
        if header(":method") != b"GET" {
            return (405, ("allow", "GET"), Vec::new());
        }
        match self.shared.journal().and_then(|value| asked.select(&value, |slot| self.in_flight(slot))) {
            Some(value) => (200, ("content-type", "application/octet-stream"), value),
            None => {
                (503, TEXT, b"nothing to tell: does a filter with peers and this vm_id route?\n".to_vec())
            }
        }
    }

    /// What all workers have on a host at this moment: what was published with the placements is older.
    fn in_flight(&self, slot: Slot) -> Holding {
        let now = self.gauges.borrow_mut().in_flight(slot);
        let requests = u32::try_from(now.requests.max(0)).unwrap_or(u32::MAX);
        Holding { slot, requests, prefill_tokens: now.prefill_tokens.max(0) as u64 }
    }
}
