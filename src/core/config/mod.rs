//! What an operator may set: parsing, defaults, bounds, and refusals that name the key.
//!
//! The configuration is parsed once, at load. A key that is unknown, of the wrong type or out of its
//! range refuses the whole configuration with one line such as
//! `poll.interval_ms: must be from 50 to 60000, got 5`. An explicit `null` means "the default", since
//! that is what template engines write for a value that was left out.

mod discover;
mod failure;
mod learning;
mod mode;
mod pattern;
mod peers;
mod prompt;
mod protobuf;
mod routing;
mod shed;
mod signals;

pub use discover::{Discover, Source};
pub use failure::Failure;
pub use learning::Learning;
pub use mode::{Mode, Modes};
pub use pattern::Pattern;
pub use peers::{Peers, Secret};
pub use prompt::{Prompt, Session, ToolsPlace};
pub use routing::Routing;
pub use shed::Shed;
pub use signals::Signals;

use super::decimal::shown;
use serde_json::{Map, Value};
use std::fmt;

/// The most hosts one configuration may name. Bounds every per-host table and the number of metric
/// names (a few a host, and Envoy never forgets a metric).
pub const MAX_HOSTS: usize = 1024;

/// The whole configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the Envoy cluster that requests are routed to; the poller reaches hosts through it.
    pub cluster: String,
    /// Upstream hosts, spelled as Envoy prints them: `ip:port` or `[v6]:port`. At least one, except for
    /// [`Config::control`], and where [`Config::discover`] says who knows.
    pub hosts: Vec<String>,
    /// Who knows the hosts.
    pub discover: Option<Discover>,
    /// Hosts, of those above, that get no new requests.
    pub drain: Vec<String>,
    /// Whether this filter answers `/kvroute/..` on a control listener instead of routing.
    pub control: bool,
    /// The request header that the cluster's `override_host` policy reads.
    pub destination_header: String,
    /// How many hosts the destination header names at most: the best, then the fallbacks that Envoy's
    /// retries walk.
    pub candidates: usize,
    /// Whether responses carry `x-kvroute-*` headers.
    pub debug_headers: bool,
    /// Which requests are routed, which only judged.
    pub mode: Modes,
    /// Polling of the engines' metrics.
    pub poll: Poll,
    /// Reading of prompts.
    pub prompt: Prompt,
    /// What names a conversation when its prompt is not in the request.
    pub session: Session,
    /// The table that remembers who was sent what.
    pub index: Index,
    /// Constants of the decision.
    pub routing: Routing,
    /// What is learned from answers.
    pub learning: Learning,
    /// When a host is taken to have failed that has not said so.
    pub failure: Failure,
    /// Past which bounds unimportant requests are turned away; nothing if none ever are.
    pub shed: Option<Shed>,
    /// What is wanted of the fleet's size.
    pub signals: Signals,
    /// The exchange with other gateways, if there is one. For [`Config::control`], what its requests must prove.
    pub peers: Option<Peers>,
}

/// Polling of the engines' metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Poll {
    /// Path of the Prometheus exposition.
    pub path: String,
    /// Milliseconds between two polls of one host.
    pub interval_ms: u64,
    /// Milliseconds after which a poll counts as failed. vLLM takes up to 3 s when its API server is
    /// starved.
    pub timeout_ms: u64,
    /// Milliseconds after which an answer no longer counts and the host is *unknown*.
    pub stale_after_ms: u64,
}

/// The table that remembers who was sent what.
#[derive(Debug, Clone, PartialEq)]
pub struct Index {
    /// Entries, a power of two; 40 bytes each in each worker, taken as they are needed.
    pub entries: usize,
}

/// Why a configuration was refused: which key, and what is wrong with it, in one line.
// Boxed: it is passed up from a hundred places, each of which would copy its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(Box<str>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Config {
    /// Parses a plugin configuration: one JSON object, from a `StringValue`, or the `Struct` that stands for one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let root = match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => map,
            Ok(other) => {
                return Err(refuse("", &format!("configuration must be a JSON object, got {}", kind(&other))))
            }
            Err(_) if bytes.iter().all(u8::is_ascii_whitespace) => {
                return Err(refuse(
                    "",
                    "configuration is empty: `cluster`, and `hosts` or `discover`, are required",
                ))
            }
            Err(error) => protobuf::object(bytes)
                .ok_or_else(|| refuse("", &format!("configuration is not JSON: {error}")))?,
        };
        let mut section = Section { path: String::new(), map: root };
        let control = section.flag("control", false)?;
        let config = Self {
            cluster: section.required_text("cluster")?,
            // A filter that does not route needs none, but may be given the configuration of one that does.
            hosts: match (section.has("hosts"), section.has("discover")) {
                (false, is_discovered) if control || is_discovered => {
                    section.take("hosts");
                    Vec::new()
                }
                (true, true) => return Err(section.refuse("hosts", "must not stand beside discover")),
                _ => section.hosts("hosts", MAX_HOSTS)?,
            },
            discover: Discover::take(&mut section)?,
            drain: if section.has("drain") { section.hosts("drain", MAX_HOSTS)? } else { Vec::new() },
            control,
            peers: Peers::take(&mut section, control)?,
            destination_header: section.header_name("destination_header", "x-upstream-host")?,
            candidates: section.whole("candidates", 3, 1, 8)?,
            debug_headers: section.flag("debug_headers", false)?,
            mode: Modes::take(&mut section, "mode")?,
            poll: Poll::take(section.section("poll")?)?,
            prompt: Prompt::take(section.section("prompt")?)?,
            session: Session::take(section.section("session")?)?,
            index: Index::take(section.section("index")?)?,
            routing: Routing::take(section.section("routing")?)?,
            learning: Learning::take(section.section("learning")?)?,
            failure: Failure::take(section.section("failure")?)?,
            shed: Shed::take(&mut section, "shed")?,
            signals: Signals::take(section.section("signals")?)?,
        };
        section.finish()?;
        Ok(config)
    }
}

impl Poll {
    fn take(mut section: Section) -> Result<Self, Refusal> {
        let path = section.path_text("path", "/metrics")?;
        let interval_ms = section.whole("interval_ms", 500, 50, 60_000)?;
        let timeout_ms = section.whole("timeout_ms", 1_000, 10, 60_000)?;
        // An operator who only slows polling down must not thereby make every answer stale.
        let stale_default = 3_000.max(2 * interval_ms + timeout_ms);
        let stale_after_ms = section.whole("stale_after_ms", stale_default, 100, 600_000)?;
        if stale_after_ms < interval_ms {
            return Err(section.refuse("stale_after_ms", "must not be below poll.interval_ms"));
        }
        section.finish()?;
        Ok(Self {
            path,
            interval_ms: interval_ms as u64,
            timeout_ms: timeout_ms as u64,
            stale_after_ms: stale_after_ms as u64,
        })
    }
}

impl Index {
    fn take(mut section: Section) -> Result<Self, Refusal> {
        let entries = section.whole("entries", 1 << 18, 1 << 10, 1 << 22)?;
        if !entries.is_power_of_two() {
            return Err(section.refuse("entries", &format!("must be a power of two, got {entries}")));
        }
        section.finish()?;
        Ok(Self { entries })
    }
}

/// One JSON object on its way to becoming a struct: keys are taken out, and what is left over at the
/// end is unknown.
struct Section {
    path: String,
    map: Map<String, Value>,
}

impl Section {
    fn key(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    fn refuse(&self, name: &str, problem: &str) -> Refusal {
        refuse(&self.key(name), problem)
    }

    fn wrong(&self, name: &str, wanted: &str, got: &Value) -> Refusal {
        self.refuse(name, &format!("must be {wanted}, got {}", kind(got)))
    }

    fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a key; absent and `null` are the same.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    fn section(&mut self, name: &str) -> Result<Section, Refusal> {
        match self.take(name) {
            None => Ok(Section { path: self.key(name), map: Map::new() }),
            Some(Value::Object(map)) => Ok(Section { path: self.key(name), map }),
            Some(other) => Err(self.wrong(name, "an object", &other)),
        }
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    fn required_text(&mut self, name: &str) -> Result<String, Refusal> {
        match self.text(name)? {
            Some(text) if !text.trim().is_empty() => Ok(text),
            Some(_) => Err(self.refuse(name, "must not be empty")),
            None => Err(self.refuse(name, "is required")),
        }
    }

    fn path_text(&mut self, name: &str, default: &str) -> Result<String, Refusal> {
        let Some(path) = self.text(name)? else {
            return Ok(default.to_owned());
        };
        if !path.starts_with('/') || path.bytes().any(|b| !b.is_ascii_graphic()) {
            return Err(self.refuse(name, "must start with '/' and hold no spaces or control characters"));
        }
        Ok(path)
    }

    fn header_name(&mut self, name: &str, default: &str) -> Result<String, Refusal> {
        match self.text(name)? {
            None => Ok(default.to_owned()),
            Some(header) if is_header_name(&header) => Ok(header),
            Some(_) => Err(self.refuse(name, "must be a lower-case header name")),
        }
    }

    fn header_names(&mut self, name: &str, default: &[&str], most: usize) -> Result<Vec<String>, Refusal> {
        if !self.has(name) {
            return Ok(default.iter().map(|&header| header.to_owned()).collect());
        }
        let headers = self.texts(name, most)?;
        match headers.iter().position(|header| !is_header_name(header)) {
            None => Ok(headers),
            Some(n) => Err(self.refuse(&format!("{name}[{n}]"), "must be a lower-case header name")),
        }
    }

    /// A list of strings; none where it is absent.
    fn texts(&mut self, name: &str, most: usize) -> Result<Vec<String>, Refusal> {
        let list = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(other) => return Err(self.wrong(name, "a list of strings", &other)),
        };
        if list.len() > most {
            return Err(self.refuse(name, &format!("must hold at most {most} strings, got {}", list.len())));
        }
        let text = |(n, value)| match value {
            Value::String(text) if !text.is_empty() => Ok(text),
            Value::String(_) => Err(self.refuse(&format!("{name}[{n}]"), "must not be empty")),
            other => Err(self.wrong(&format!("{name}[{n}]"), "a string", &other)),
        };
        list.into_iter().enumerate().map(text).collect()
    }

    /// The keys that are there.
    fn names(&self) -> Vec<String> {
        self.map.keys().cloned().collect()
    }

    fn flag(&mut self, name: &str, default: bool) -> Result<bool, Refusal> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(self.wrong(name, "true or false", &other)),
        }
    }

    /// A whole number from `least` to `most`. `500.0` is whole: a protobuf `Struct` knows only floats.
    fn whole(&mut self, name: &str, default: usize, least: usize, most: usize) -> Result<usize, Refusal> {
        let Some(value) = self.take(name) else {
            return Ok(default);
        };
        let Some(number) = value.as_f64() else {
            return Err(self.wrong(name, "a whole number", &value));
        };
        if number < least as f64 || number > most as f64 || number != (number as usize) as f64 {
            let got = shown(number);
            return Err(
                self.refuse(name, &format!("must be a whole number from {least} to {most}, got {got}"))
            );
        }
        Ok(number as usize)
    }

    fn number(&mut self, name: &str, default: f64, least: f64, most: f64) -> Result<f64, Refusal> {
        let Some(value) = self.take(name) else {
            return Ok(default);
        };
        match value.as_f64() {
            None => Err(self.wrong(name, "a number", &value)),
            Some(number) if (least..=most).contains(&number) => Ok(number),
            Some(number) => {
                let (least, most, got) = (shown(least), shown(most), shown(number));
                Err(self.refuse(name, &format!("must be a number from {least} to {most}, got {got}")))
            }
        }
    }

    fn hosts(&mut self, name: &str, most: usize) -> Result<Vec<String>, Refusal> {
        let list = match self.take(name) {
            None => return Err(self.refuse(name, "is required")),
            Some(Value::Array(list)) => list,
            Some(other) => return Err(self.wrong(name, "a list of \"ip:port\"", &other)),
        };
        if list.is_empty() || list.len() > most {
            return Err(self.refuse(name, &format!("must name from 1 to {most} hosts, got {}", list.len())));
        }
        let mut hosts: Vec<String> = Vec::with_capacity(list.len());
        for (n, value) in list.into_iter().enumerate() {
            let key = format!("{name}[{n}]");
            let Value::String(host) = value else {
                return Err(self.wrong(&key, "a string", &value));
            };
            if !is_envoy_address(&host) {
                return Err(self.refuse(
                    &key,
                    &format!("must be spelled as Envoy prints addresses, \"ip:port\" or \"[v6]:port\", got \"{host}\""),
                ));
            }
            if hosts.contains(&host) {
                return Err(self.refuse(&key, &format!("names \"{host}\" a second time")));
            }
            hosts.push(host);
        }
        Ok(hosts)
    }

    fn finish(self) -> Result<(), Refusal> {
        match self.map.keys().next() {
            Some(name) => Err(self.refuse(name, "is not a known key")),
            None => Ok(()),
        }
    }
}

fn refuse(key: &str, problem: &str) -> Refusal {
    let line = if key.is_empty() { problem.to_owned() } else { format!("{key}: {problem}") };
    // One line in Envoy's log, whatever the operator wrote into the value, or for a key.
    let on_one_line = |c: char| if c.is_control() { ' ' } else { c };
    Refusal(line.chars().map(on_one_line).collect())
}

/// Whether `text` is what Envoy's `asString()` prints for an IP address: the `override_host` policy
/// compares strings, so `[::1]:80` matches and `[0:0::1]:80` or `localhost:80` never would.
pub fn is_envoy_address(text: &str) -> bool {
    text.parse::<std::net::SocketAddr>()
        .is_ok_and(|address| address.to_string() == text && address.port() != 0)
}

/// As Envoy keeps them.
fn is_header_name(text: &str) -> bool {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    !text.is_empty() && text.bytes().all(valid)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
