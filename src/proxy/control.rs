//! What does a gateway answer on its control listener? Its journal, to other gateways that know the secret.
//!
//! The listener is one for machines: it answers everything itself and lets nothing through. Any worker answers, for
//! what it tells lies in shared data; the filter must have the `vm_id` of the one that routes.

use super::host::{self, Headers};
use super::shared::Shared;
use crate::core::config::Config;
use crate::core::peers::Incoming;
use std::rc::Rc;

/// One request.
pub struct Control {
    config: Rc<Config>,
    shared: Rc<Shared>,
}

/// Status, a header and the body.
type Answer = (u32, (&'static str, &'static str), Vec<u8>);

impl Control {
    /// A request to the control listener of the cluster whose values are `shared`.
    pub fn new(config: Rc<Config>, shared: Rc<Shared>) -> Self {
        Self { config, shared }
    }

    /// The request's headers have come: answers it.
    pub fn request(&self) {
        let (status, header, body) = self.answer();
        host::send_local_response(status, &[header, ("cache-control", "no-store")], &body);
    }

    fn answer(&self) -> Answer {
        const TEXT: (&str, &str) = ("content-type", "text/plain");
        let header = |name: &str| host::header(Headers::Request, name).unwrap_or_default();
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
        match self.shared.journal().and_then(|value| asked.select(&value)) {
            Some(value) => (200, ("content-type", "application/octet-stream"), value),
            None => {
                (503, TEXT, b"nothing to tell: does a filter with peers and this vm_id route?\n".to_vec())
            }
        }
    }
}
