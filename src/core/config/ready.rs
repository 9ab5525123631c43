//! What must a host show before it gets requests, and what does it get at first?

use super::{is_header_name, Refusal, Section};
use crate::core::probe::write_members;
use std::fmt;

/// One token is a generation; where a host is not cold, it is found in its cache.
const DEFAULT_BODY: &str = r#""prompt":"Hi","max_tokens":1,"temperature":0"#;

/// The longest body of a probe, in bytes: it is sent again and again.
const MAX_BODY: usize = 16 << 10;

/// The most headers of a probe.
const MOST_HEADERS: usize = 8;

/// The longest value of one, in bytes.
const MAX_HEADER: usize = 4_096;

/// Headers of a probe that are not to be set: the filter sets them.
const OWN_HEADERS: [&str; 5] = ["content-length", "content-type", "host", "user-agent", "x-kvroute-probe"];

/// How a host is asked for a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    /// Whether hosts are asked at all. If not, all are taken to be ready.
    pub probe: bool,
    /// Path of the request.
    pub path: String,
    /// Its body, a JSON object without the braces.
    pub body: String,
    /// Whether that has a `model`. If not, the one that the engine names is put in.
    pub names_model: bool,
    /// Headers that it has beside those that it needs, such as `authorization`.
    pub headers: Headers,
    /// The model that hosts must serve, as their metrics name it; any if `None`.
    pub model: Option<String>,
    /// Milliseconds within which it must succeed. Long for one token of an engine that has nothing else to do; but its
    /// first may have to compile something.
    pub timeout_ms: u64,
    /// Milliseconds until it is tried again; twice as long each time, up to some seconds.
    pub interval_ms: u64,
    /// How many must succeed, one after another.
    pub successes: u32,
}

/// Headers with values that nothing prints.
#[derive(Clone, PartialEq, Default)]
pub struct Headers(pub Vec<(String, String)>);

/// What a host gets that has just become ready while others were warm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUp {
    /// Seconds until it is as good as any; 0 is at once.
    pub seconds: u64,
    /// Or tokens that have entered its cache until then, if that is sooner; 0 leaves it to the time.
    pub tokens: u64,
    /// What it gets at first, as a share of what a host gets on average.
    pub share: f64,
}

impl Ready {
    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let (body, names_model) = body(&mut section)?;
        let ready = Self {
            probe: section.flag("probe", true)?,
            path: section.path_text("path", "/v1/completions")?,
            body,
            names_model,
            headers: Headers::take(section.section("headers")?)?,
            model: section.text("model")?,
            timeout_ms: section.whole("timeout_ms", 5_000, 10, 600_000)? as u64,
            interval_ms: section.whole("interval_ms", 1_000, 50, 60_000)? as u64,
            successes: section.whole("successes", 1, 1, 10)? as u32,
        };
        section.finish()?;
        Ok(ready)
    }
}

/// The members, and whether the model is among them.
fn body(section: &mut Section) -> Result<(String, bool), Refusal> {
    if !section.has("body") {
        return Ok((DEFAULT_BODY.to_owned(), false));
    }
    let body = section.section("body")?.map;
    let mut json = String::new();
    write_members(&body, &mut json);
    if json.len() > MAX_BODY {
        return Err(section.refuse("body", "must not be longer than 16 KiB"));
    }
    Ok((json, body.contains_key("model")))
}

impl Headers {
    fn take(mut section: Section) -> Result<Self, Refusal> {
        let names = section.names();
        if let Some(name) = names.get(MOST_HEADERS) {
            return Err(section.refuse(name, "is one too many: at most 8"));
        }
        let mut headers = Vec::new();
        for name in names {
            if !is_header_name(&name) || OWN_HEADERS.contains(&name.as_str()) {
                return Err(section.refuse(&name, "is not a header that can be set here"));
            }
            let value = section.required_text(&name)?;
            let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
            if value.len() > MAX_HEADER || !value.bytes().all(is_plain) {
                return Err(section.refuse(&name, "must be at most 4096 visible ASCII characters"));
            }
            headers.push((name, value));
        }
        Ok(Self(headers))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl WarmUp {
    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let warm_up = Self {
            seconds: section.whole("seconds", 30, 0, 3_600)? as u64,
            tokens: section.whole("tokens", 0, 0, 1_000_000_000)? as u64,
            share: section.number("share", 0.3, 0.01, 1.0)?,
        };
        section.finish()?;
        Ok(warm_up)
    }
}
