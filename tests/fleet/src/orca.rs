//! What does a response tell about load? The `endpoint-load-metrics` header (ORCA), which vLLM puts on whole answers
//! when the request asks for TEXT or JSON.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::stats::Gauges;

const FORMAT: &str = "endpoint-load-metrics-format";
const REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// The header a request asked for. `gauges` is only called when it did.
pub(crate) fn header(
    request: &HeaderMap,
    gauges: impl FnOnce() -> Gauges,
) -> Option<(HeaderName, HeaderValue)> {
    let format = request.get(FORMAT)?.to_str().ok()?.to_ascii_uppercase();
    if format != "TEXT" && format != "JSON" {
        return None;
    }
    let Gauges { waiting, kv_usage, .. } = gauges();
    let waiting = waiting as f64;
    let report = match format.as_str() {
        "TEXT" => {
            format!("TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={kv_usage:?}")
        }
        _ => format!(
            r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {kv_usage:?}}}}}"#
        ),
    };
    Some((REPORT, HeaderValue::try_from(report).ok()?))
}
