//! What does an engine say of its load in an answer's `endpoint-load-metrics` header?
//!
//! vLLM adds it where a request asks with `endpoint-load-metrics-format`, to answers that are not streamed. It tells the
//! queue and the cache's use, in one of two spellings:
//!
//! ```text
//! TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0
//! JSON {"named_metrics": {"num_requests_waiting": 6.0, "kv_cache_usage_perc": 0.00054}}
//! ```
//!
//! A data-parallel replica repeats each name in TEXT, once an engine: requests are added up, and of the cache's use it is
//! the mean, as in [`EngineSample`](super::EngineSample). In JSON the last engine is all that is left.

use super::number::parse_number;
use crate::core::prompt::json::{Container, Scanner, Sink};

/// What one answer said. What is absent, NaN, infinite or negative is `None`: *unknown*, never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadReport {
    /// Requests that wait for a place in the batch, all engines together.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
}

/// Reads the header's value.
pub fn read_report(value: &[u8]) -> LoadReport {
    let value = value.trim_ascii();
    let (format, rest) = value.split_at_checked(4).unwrap_or_default();
    let is_apart = rest.first().is_some_and(u8::is_ascii_whitespace);
    if is_apart && format.eq_ignore_ascii_case(b"TEXT") {
        read_text(rest)
    } else if is_apart && format.eq_ignore_ascii_case(b"JSON") {
        read_json(rest)
    } else {
        LoadReport::default()
    }
}

/// Which of the two a name is.
#[derive(Debug, Clone, Copy)]
enum Metric {
    Waiting,
    KvUsage,
}

impl Metric {
    fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"num_requests_waiting" => Some(Metric::Waiting),
            b"kv_cache_usage_perc" => Some(Metric::KvUsage),
            _ => None,
        }
    }

    /// The value, unless it is one that no engine can mean.
    fn usable(self, value: f64) -> Option<f64> {
        let most = match self {
            Metric::Waiting => f64::MAX,
            Metric::KvUsage => 1.0,
        };
        (0.0..=most).contains(&value).then_some(value)
    }
}

fn read_text(list: &[u8]) -> LoadReport {
    let (mut waiting, mut usage, mut engines) = (None, None, 0.0);
    for item in list.split(|&byte| byte == b',') {
        let Some((metric, value)) = text_item(item.trim_ascii()) else { continue };
        match metric {
            Metric::Waiting => waiting = Some(waiting.unwrap_or(0.0) + value),
            Metric::KvUsage => {
                usage = Some(usage.unwrap_or(0.0) + value);
                engines += 1.0;
            }
        }
    }
    // A sum of finite numbers may be none.
    LoadReport {
        waiting: waiting.and_then(|sum| Metric::Waiting.usable(sum)),
        kv_usage: usage.map(|sum| sum / engines),
    }
}

fn text_item(item: &[u8]) -> Option<(Metric, f64)> {
    let item = item.strip_prefix(b"named_metrics.")?;
    let (name, value) = item.split_at_checked(item.iter().position(|&byte| byte == b'=')?)?;
    let metric = Metric::from_name(name.trim_ascii_end())?;
    let value = parse_number(value.strip_prefix(b"=")?.trim_ascii_start())?;
    Some((metric, metric.usable(value)?))
}

fn read_json(text: &[u8]) -> LoadReport {
    let (mut scanner, mut named) = (Scanner::default(), Named::default());
    scanner.feed(text, &mut named);
    // Of a value that was cut it is not sure what the numbers would have been.
    if scanner.is_done() {
        named.report
    } else {
        LoadReport::default()
    }
}

/// Finds the two in `{"named_metrics": {..}}`.
#[derive(Debug, Default)]
struct Named {
    report: LoadReport,
    depth: u32,
    /// The last key at depth 1 was `named_metrics`, and its value may be what is looked for.
    inside: bool,
    metric: Option<Metric>,
}

/// A number that may have been cut by the scanner: as long as any that it hands out.
const CUT: usize = 32;

impl Sink for Named {
    fn open(&mut self, container: Container) {
        self.value(None);
        self.depth += 1;
        self.inside &= self.depth != 2 || container == Container::Object;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.metric = None;
    }

    fn key(&mut self, key: &[u8]) {
        match self.depth {
            1 if key == b"named_metrics" => (self.inside, self.report) = (true, LoadReport::default()),
            1 => self.inside = false,
            2 if self.inside => self.metric = Metric::from_name(key),
            _ => {}
        }
    }

    fn text_begin(&mut self) {
        self.value(None);
    }

    fn text(&mut self, _: &[u8]) {}

    fn text_end(&mut self) {}

    fn scalar(&mut self, raw: &[u8]) {
        self.value(parse_number(raw).filter(|_| raw.len() < CUT));
    }
}

impl Named {
    /// The value of the key that came last; of several the last counts.
    fn value(&mut self, value: Option<f64>) {
        match self.metric.take() {
            Some(Metric::Waiting) => self.report.waiting = value.and_then(|n| Metric::Waiting.usable(n)),
            Some(Metric::KvUsage) => self.report.kv_usage = value.and_then(|n| Metric::KvUsage.usable(n)),
            None => {}
        }
    }
}
