//! One request and its response as the host holds them: maps, buffers, properties, phase.

use std::collections::BTreeMap;

use proxy_wasm::types::{BufferType, MapType};

use crate::headers::HeaderMap;

/// A response that did not come from an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReply {
    /// HTTP status.
    pub status: u32,
    /// What `%RESPONSE_CODE_DETAILS%` shows.
    pub details: String,
    /// Headers beside `:status`.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) request_headers: HeaderMap,
    pub(crate) request_trailers: HeaderMap,
    pub(crate) response_headers: HeaderMap,
    pub(crate) response_trailers: HeaderMap,
    /// What a body callback can read: all that is buffered while held, one chunk otherwise.
    pub(crate) request_body: Vec<u8>,
    pub(crate) response_body: Vec<u8>,
    /// What is buffered under a watermark: no callback sees it again.
    pub(crate) watermarked_body: Vec<u8>,
    pub(crate) properties: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) filter_state: BTreeMap<String, Vec<u8>>,
    /// The maps that the filter may change now. Envoy takes the request's away with `Continue`.
    pub(crate) open_maps: Vec<MapType>,
    /// In `on_log` every map can be read and none changed.
    pub(crate) in_access_log: bool,
    /// The upstream has the headers; each piece of body follows as the filter lets it.
    pub(crate) released: bool,
    /// The last body callback paused: the next one sees everything so far.
    pub(crate) buffering: bool,
    /// Body that came while Envoy stopped all iteration, which is what it makes of a pause in the
    /// header callback unless `allow_on_headers_stop_iteration` is set.
    pub(crate) stopped: Option<Vec<u8>>,
    pub(crate) end_of_request: bool,
    /// The filter called `proxy_continue_stream`; acted upon after its callback.
    pub(crate) resume: bool,
    pub(crate) local_reply: Option<LocalReply>,
    pub(crate) local_reply_sent: bool,
    /// What has reached the upstream, and the client.
    pub(crate) upstream_body: Vec<u8>,
    pub(crate) client_body: Vec<u8>,
}

impl Exchange {
    /// Lets the headers and all buffered body go to the upstream.
    pub(crate) fn release(&mut self) {
        self.released = true;
        self.buffering = false;
        self.open_maps.clear();
        self.upstream_body.append(&mut self.watermarked_body);
        self.upstream_body.append(&mut self.request_body);
    }

    pub(crate) fn map(&self, kind: u32) -> Option<&HeaderMap> {
        let kind = map_type(kind)?;
        if !self.in_access_log && !self.open_maps.contains(&kind) {
            return None;
        }
        Some(match kind {
            MapType::HttpRequestHeaders => &self.request_headers,
            MapType::HttpRequestTrailers => &self.request_trailers,
            MapType::HttpResponseHeaders => &self.response_headers,
            _ => &self.response_trailers,
        })
    }

    pub(crate) fn map_mut(&mut self, kind: u32) -> Option<&mut HeaderMap> {
        let kind = map_type(kind)?;
        if self.in_access_log || !self.open_maps.contains(&kind) {
            return None;
        }
        Some(match kind {
            MapType::HttpRequestHeaders => &mut self.request_headers,
            MapType::HttpRequestTrailers => &mut self.request_trailers,
            MapType::HttpResponseHeaders => &mut self.response_headers,
            _ => &mut self.response_trailers,
        })
    }

    pub(crate) fn buffer(&self, kind: u32) -> Option<(&'static str, &[u8])> {
        if kind == BufferType::HttpRequestBody as u32 {
            Some(("request_body", &self.request_body))
        } else if kind == BufferType::HttpResponseBody as u32 {
            Some(("response_body", &self.response_body))
        } else {
            None
        }
    }

    pub(crate) fn set_property(&mut self, path: &[&str], value: &[u8]) {
        let path = path.join("\0").into_bytes();
        self.properties.insert(path, value.to_vec());
    }
}

fn map_type(kind: u32) -> Option<MapType> {
    [
        MapType::HttpRequestHeaders,
        MapType::HttpRequestTrailers,
        MapType::HttpResponseHeaders,
        MapType::HttpResponseTrailers,
    ]
    .into_iter()
    .find(|known| *known as u32 == kind)
}
