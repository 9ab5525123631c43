//! What kinds of streams are there? A request that is routed, or one to the control listener.
//!
//! Envoy's callbacks go to one type: each type that implements the SDK's traits takes 20 KB in the module, for all the
//! callbacks that it leaves to their defaults.

use super::control::Control;
use super::filter::Filter;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

/// One stream.
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large kind")]
pub enum Stream {
    /// It is routed.
    Routed(Filter),
    /// It is answered here.
    Control(Control),
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, count: usize, end_of_stream: bool) -> Action {
        match self {
            Stream::Routed(filter) => filter.on_http_request_headers(count, end_of_stream),
            Stream::Control(control) => {
                control.request();
                Action::Pause
            }
        }
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.routed().map_or(Action::Continue, |filter| filter.on_http_request_body(size, end_of_stream))
    }

    fn on_http_request_trailers(&mut self, count: usize) -> Action {
        self.routed().map_or(Action::Continue, |filter| filter.on_http_request_trailers(count))
    }

    fn on_http_response_headers(&mut self, count: usize, end_of_stream: bool) -> Action {
        self.routed().map_or(Action::Continue, |filter| filter.on_http_response_headers(count, end_of_stream))
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.routed().map_or(Action::Continue, |filter| filter.on_http_response_body(size, end_of_stream))
    }

    fn on_log(&mut self) {
        if let Some(filter) = self.routed() {
            filter.on_log();
        }
    }
}

impl Context for Stream {}

impl Stream {
    fn routed(&mut self) -> Option<&mut Filter> {
        match self {
            Stream::Routed(filter) => Some(filter),
            Stream::Control(_) => None,
        }
    }
}
