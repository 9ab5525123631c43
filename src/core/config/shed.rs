//! Shedding: past which bounds a host is full, and who is turned away when all are.
//!
//! Off unless `shed` is there; an empty object, or `true`, switches it on with the defaults.

use super::{Refusal, Section};
use serde_json::{Map, Value};

/// Past which bounds a host has no room, and for which requests that counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Shed {
    /// The request header that has a request's priority, an integer; higher is more important. Requests without it
    /// have priority 0.
    pub priority_header: String,
    /// Requests of a lower priority are turned away. 1: all that do not say that they are important.
    pub below_priority: i64,
    /// Requests that wait in a host's engine. Autoscalers aim at 5 a host (`envoy/kubernetes`): at four times as many,
    /// they have long been asked for more hosts than help can come from.
    pub waiting: f64,
    /// Seconds of uncached prefill that stand before a new request on a host: the first token comes later than anybody
    /// waits for in front of a screen.
    pub backlog_s: f64,
    /// Share of KV blocks in use, from which on a host is full if a request waits there too: what comes now waits, or
    /// drives out one that runs, which is computed again. Without a queue a full cache is only a large batch.
    pub kv_usage: f64,
}

impl Shed {
    pub(super) fn take(parent: &mut Section, name: &str) -> Result<Option<Self>, Refusal> {
        let map = match parent.take(name) {
            // To YAML, a bare `on` or `off` is a boolean.
            None | Some(Value::Bool(false)) => return Ok(None),
            Some(Value::Bool(true)) => Map::new(),
            Some(Value::Object(map)) => map,
            Some(other) => return Err(parent.wrong(name, "an object, true or false", &other)),
        };
        let mut section = Section { path: parent.key(name), map };
        let shed = Self {
            priority_header: section.header_name("priority_header", "x-request-priority")?,
            below_priority: section.whole("below_priority", 1, 0, 1_000_000)? as i64,
            waiting: section.number("waiting", 20.0, 0.0, 1e6)?,
            backlog_s: section.number("backlog_s", 10.0, 0.1, 3_600.0)?,
            kv_usage: section.number("kv_usage", 0.98, 0.0, 1.0)?,
        };
        section.finish()?;
        Ok(Some(shed))
    }
}
