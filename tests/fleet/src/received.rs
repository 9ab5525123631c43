//! What came in? The whole body of a request, whatever its path, and the record that tells a test what arrived.

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_ENCODING, CONTENT_TYPE};
use hyper::{Method, Request, Response};
use xxhash_rust::xxh3::xxh3_64;

use crate::answer::ApiError;
use crate::body::Body;
use crate::report::{Outcome, RequestRecord, Usage};

/// Largest body taken, in bytes.
const MAX_BODY_BYTES: usize = 256 << 20;

/// Response header: xxh3 of the request's body as it arrived.
const BODY_DIGEST: HeaderName = HeaderName::from_static("x-mock-body-digest");
/// Response header: the request's `x-upstream-host` as it arrived.
const UPSTREAM_HOST_SEEN: HeaderName = HeaderName::from_static("x-mock-upstream-host");

/// A request that has arrived in full.
pub(crate) struct Received {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) record: RequestRecord,
    method: Method,
}

/// What a response says of the request it answers.
pub(crate) struct Seen {
    digest: Option<HeaderValue>,
    upstream_host: Option<HeaderValue>,
}

impl Received {
    pub(crate) async fn read(request: Request<Incoming>) -> Result<Self, ApiError> {
        let (head, body) = request.into_parts();
        let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(|_| ApiError::too_large())?;
        let trailers = body.trailers().is_some();
        let body = body.to_bytes();
        let text = |name: &str| header(&head.headers, name).map(str::to_owned);
        let record = RequestRecord {
            path: head.uri.path().to_owned(),
            status: 0,
            outcome: Outcome::Aborted,
            upstream_host: text("x-upstream-host"),
            is_probe: head.headers.contains_key("x-kvroute-probe"),
            request_id: text("x-request-id"),
            content_type: text(CONTENT_TYPE.as_str()),
            content_encoding: text(CONTENT_ENCODING.as_str()),
            trailers,
            body_bytes: body.len(),
            body_digest: format!("{:016x}", xxh3_64(&body)),
            usage: Usage::default(),
            ttft_ms: None,
            total_ms: 0.0,
        };
        Ok(Self { headers: head.headers, body, record, method: head.method })
    }

    /// Whether it could have brought a body; what could not, such as a scrape, is not worth a record.
    pub(crate) fn brings_a_body(&self) -> bool {
        !self.body.is_empty() || !matches!(self.method, Method::GET | Method::HEAD)
    }

    pub(crate) fn seen(&self) -> Seen {
        let digest = HeaderValue::try_from(&self.record.body_digest).ok();
        Seen {
            digest: digest.filter(|_| self.brings_a_body()),
            upstream_host: self.headers.get("x-upstream-host").cloned(),
        }
    }
}

impl Seen {
    pub(crate) fn tell(self, response: &mut Response<Body>) {
        let headers = response.headers_mut();
        headers.extend(self.digest.map(|digest| (BODY_DIGEST, digest)));
        headers.extend(self.upstream_host.map(|host| (UPSTREAM_HOST_SEEN, host)));
    }
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
