//! How is a request turned away, and when?
//!
//! It is judged by its headers: priority and path are there, and the prompt does not matter. So it is as early as can be,
//! before anything is held or read, and no host is in the books for it.
//!
//! It is *answered* at once where the body is long or its length unknown. HTTP/1 connections end with that, since the
//! rest of the body would come as the next request; so a short body is waited for, and the connection lives on: under
//! overload the last thing wanted is that every client connects anew.

use super::host::{self, Headers};
use super::stats::OrCount;
use crate::core::config::Config;
use crate::core::prompt::api_of;
use crate::core::shed::{Overload, Shape};

/// Whether a request is being turned away.
#[derive(Debug, Clone, Copy, Default)]
pub enum Shedding {
    /// It is not.
    #[default]
    No,
    /// It will be answered when its body has come.
    AtEnd(Overload),
    /// It has been answered. Never twice: Envoy does not survive it.
    Answered,
}

/// Answers in the upstream's place; nothing if Envoy refuses that.
pub fn answer(overload: Overload, config: &Config) -> Option<()> {
    const TOO_MANY_REQUESTS: u32 = 429;
    let path = host::header(Headers::Request, ":path").or_count().flatten().unwrap_or_default();
    let shape = Shape::of(api_of(&path, &config.prompt.paths), &path);
    let headers = [
        ("content-type", "application/json"),
        ("retry-after", &overload.retry_after_s.to_string()),
        ("x-kvroute-shed", overload.bound.as_str()),
    ];
    let body = overload.to_json(shape);
    host::set_property("kvroute.reason", "shed").or_count();
    host::send_local_response(TOO_MANY_REQUESTS, &headers, body.as_bytes()).or_count()
}
