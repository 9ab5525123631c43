//! Is there room for a request of this priority? If not: why not, and when to come again.
//!
//! Under overload every request that is let in makes all others later. Whoever says which requests matter less can have
//! those turned away at once, so that clients come again and the others are served in time.
//!
//! A request is shed only where *every* host that is ready has said, lately, that it is past a bound. A host that is
//! unknown may have room. Where none is ready the cause is another, and so is the answer: the request goes where a last
//! resort or Envoy's own policy sends it. So a cause never gives 429 to one request and 503 to the next.

use super::config::Shed;
use super::fleet::Host;
use super::life::Life;
use super::prompt::{Api, Unread};
use super::route::Situation;

/// Seconds after which everybody may come again: by then an estimate says nothing any more, and an autoscaler's new
/// host is there.
const LONGEST_RETRY_S: u64 = 60;

/// The bound that a host is past; what the reason header and logs say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Requests that wait in its engine.
    Waiting,
    /// Seconds of prefill that stand before a new request.
    Backlog,
    /// KV blocks in use, while a request waits.
    KvUsage,
}

impl Bound {
    /// Its name, as in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Bound::Waiting => "waiting",
            Bound::Backlog => "backlog",
            Bound::KvUsage => "kv_usage",
        }
    }
}

/// No host has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overload {
    /// What the host with the least backlog is past.
    pub bound: Bound,
    /// Seconds until that backlog is worked off; from 1 to 60.
    pub retry_after_s: u64,
}

impl Overload {
    /// The overload of a fleet, if it is one.
    pub fn of(situation: &Situation, bounds: &Shed) -> Option<Self> {
        let now_ms = situation.freshness.now_ms;
        let mut least: Option<(f64, Bound)> = None;
        for host in situation.fleet.hosts() {
            if Life::of(host, now_ms).resort() != Some(0) {
                continue;
            }
            let backlog_s = situation.backlog_s(host);
            // One that has room, or may have, takes it.
            let bound = past(host, backlog_s, bounds).filter(|_| situation.freshness.is_fresh(host))?;
            if least.is_none_or(|(less_s, _)| backlog_s < less_s) {
                least = Some((backlog_s, bound));
            }
        }
        least.map(|(backlog_s, bound)| Self {
            bound,
            retry_after_s: (backlog_s.ceil() as u64).clamp(1, LONGEST_RETRY_S),
        })
    }

    /// The body that says so to a client, as its API has errors: vLLM's own overload looks like this, but for the
    /// status.
    pub fn to_json(self, shape: Shape) -> String {
        let message = format!(
            "All replicas are busy and take no requests of this priority. Please try again in {} s.",
            self.retry_after_s
        );
        match shape {
            Shape::OpenAi => format!(
                r#"{{"error":{{"message":"{message}","type":"Too Many Requests","param":null,"code":429}}}}"#
            ),
            Shape::Anthropic => {
                format!(r#"{{"type":"error","error":{{"type":"rate_limit_error","message":"{message}"}}}}"#)
            }
        }
    }
}

/// The first bound that a host is past. What it has not said is past none.
fn past(host: &Host, backlog_s: f64, bounds: &Shed) -> Option<Bound> {
    let polled = &host.polled;
    if polled.waiting > bounds.waiting {
        Some(Bound::Waiting)
    } else if backlog_s > bounds.backlog_s {
        Some(Bound::Backlog)
    } else if polled.kv_usage >= bounds.kv_usage && polled.waiting >= 1.0 {
        Some(Bound::KvUsage)
    } else {
        None
    }
}

/// How an API writes errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `{"error":{..}}`: OpenAI's, and what engines answer everywhere else.
    OpenAi,
    /// `{"type":"error",..}`: Anthropic's, on `/v1/messages` and below.
    Anthropic,
}

impl Shape {
    /// The shape of the API behind a path, which may have a query; `api` is what is known of the path.
    pub fn of(api: Result<Api, Unread>, path: &[u8]) -> Self {
        const MESSAGES: &[u8] = b"/v1/messages/";
        let is_below = path.windows(MESSAGES.len()).any(|part| part == MESSAGES);
        if api == Ok(Api::Messages) || is_below {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }
}

/// The priority that a header's value states. What is no integer of up to nine digits states none, so 0.
// By hand: the library's way is 600 bytes of wasm more.
pub fn priority(value: &[u8]) -> i64 {
    let value = value.trim_ascii();
    let (sign, digits) = match value.split_first() {
        Some((b'-', digits)) => (-1, digits),
        Some((b'+', digits)) => (1, digits),
        _ => (1, value),
    };
    if digits.len() > 9 || !digits.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    sign * digits.iter().fold(0, |number, digit| 10 * number + i64::from(digit & 15))
}
