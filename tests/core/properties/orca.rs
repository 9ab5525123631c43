//! A load report is what its numbers say, and never a load that no engine can have.

use super::json::{strict, Document};
use super::{memory, nearly};
use kvroute::core::scrape::orca::{read_report, LoadReport};
use serde_json::Value;

pub fn holds(bytes: &[u8]) {
    any_header(bytes);
    for format in ["TEXT ", "JSON "] {
        any_header(&[format.as_bytes(), bytes].concat());
    }
    // As if all the rest were there.
    any_header(&[b"JSON {\"named_metrics\":{".as_slice(), bytes, b"}}"].concat());
    any_header(&[b"TEXT named_metrics.".as_slice(), bytes].concat());
}

fn any_header(value: &[u8]) {
    let (report, heap) = memory::most(|| read_report(value));
    assert!(heap < 1_024, "{heap} bytes");
    let LoadReport { waiting, kv_usage } = report;
    assert!(waiting.is_none_or(|waiting| waiting.is_finite() && waiting >= 0.0));
    assert!(kv_usage.is_none_or(|usage| (0.0..=1.0).contains(&usage)));
    let expected = match value.get(..5) {
        Some(b"TEXT ") => Some(naive_text(&String::from_utf8_lossy(&value[5..]))),
        Some(b"JSON ") => naive_json(&value[5..]),
        _ => None,
    };
    if let Some((waiting, kv_usage)) = expected {
        same(report.waiting, waiting, f64::MAX);
        same(report.kv_usage, kv_usage, 1.0);
    }
}

/// Where the last bits decide whether there is a number at all, either is right.
fn same(read: Option<f64>, expected: Option<f64>, most: f64) {
    match (read, expected) {
        (Some(read), Some(expected)) => assert!(nearly(read, expected), "{read} {expected}"),
        (Some(number), None) | (None, Some(number)) => assert!(number > most * 0.99, "{read:?} {expected:?}"),
        (None, None) => {}
    }
}

/// Sum of the requests, mean of the shares.
fn naive_text(list: &str) -> (Option<f64>, Option<f64>) {
    let blank = |c: char| c.is_ascii_whitespace();
    let all = |name: &str, most: f64| -> Vec<f64> {
        let items = list.split(',').filter_map(|item| item.trim_matches(blank).split_once('='));
        let named = items.filter(|(key, _)| {
            key.strip_prefix("named_metrics.").map(|key| key.trim_end_matches(blank)) == Some(name)
        });
        named
            .filter_map(|(_, number)| number.trim_matches(blank).parse().ok())
            .filter(|n| (0.0..=most).contains(n))
            .collect()
    };
    let (waiting, shares) = (all("num_requests_waiting", f64::MAX), all("kv_cache_usage_perc", 1.0));
    let waiting = (!waiting.is_empty()).then(|| waiting.iter().sum::<f64>()).filter(|sum| sum.is_finite());
    (waiting, (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64))
}

/// `None` where serde_json takes less, or another number: one that the scanner had to cut.
fn naive_json(text: &[u8]) -> Option<(Option<f64>, Option<f64>)> {
    let is_cut = strict(text).1.iter().any(|number| number.len() >= 32);
    if is_cut || Document::read(text)? == Document::Scalar {
        return None;
    }
    let value: Value = serde_json::from_slice(text).ok()?;
    let named = &value["named_metrics"];
    let number = |name: &str, most: f64| named[name].as_f64().filter(|number| (0.0..=most).contains(number));
    Some((number("num_requests_waiting", f64::MAX), number("kv_cache_usage_perc", 1.0)))
}
