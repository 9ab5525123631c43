//! Counters, gauges and histograms, shared by every VM of the process.

use proxy_wasm::types::{MetricType, Status};

/// All metrics; a metric's id is its place, so the same name in two VMs is the same metric.
#[derive(Default)]
pub(crate) struct Metrics {
    all: Vec<Metric>,
}

struct Metric {
    name: String,
    kind: MetricType,
    /// Wraps like Envoy's 64 bits; a gauge that went below zero shows as negative.
    value: u64,
    recorded: Vec<u64>,
}

impl Metrics {
    pub(crate) fn define(&mut self, kind: MetricType, name: &str) -> u32 {
        let same = |metric: &Metric| metric.name == name && metric.kind == kind;
        let place = self.all.iter().position(same).unwrap_or_else(|| {
            self.all.push(Metric { name: name.to_string(), kind, value: 0, recorded: Vec::new() });
            self.all.len() - 1
        });
        place as u32
    }

    pub(crate) fn get(&self, id: u32) -> Result<u64, Status> {
        let metric = self.all.get(id as usize).ok_or(Status::NotFound)?;
        match metric.kind {
            MetricType::Histogram => Err(Status::BadArgument),
            _ => Ok(metric.value),
        }
    }

    pub(crate) fn increment(&mut self, id: u32, offset: i64) -> Result<(), Status> {
        let metric = self.all.get_mut(id as usize).ok_or(Status::NotFound)?;
        match metric.kind {
            // Envoy refuses a counter's zero as much as its -1.
            MetricType::Counter if offset <= 0 => return Err(Status::BadArgument),
            MetricType::Histogram => return Err(Status::BadArgument),
            _ => metric.value = metric.value.wrapping_add_signed(offset),
        }
        Ok(())
    }

    pub(crate) fn record(&mut self, id: u32, value: u64) -> Result<(), Status> {
        let metric = self.all.get_mut(id as usize).ok_or(Status::NotFound)?;
        match metric.kind {
            MetricType::Counter => metric.value = metric.value.wrapping_add(value),
            MetricType::Gauge => metric.value = value,
            _ => metric.recorded.push(value),
        }
        Ok(())
    }

    /// A metric's value by name; `None` if nobody has defined it.
    pub(crate) fn value(&self, kind: MetricType, name: &str) -> Option<i64> {
        self.named(kind, name).map(|metric| metric.value as i64)
    }

    /// What was recorded into a histogram.
    pub(crate) fn recorded(&self, name: &str) -> Vec<u64> {
        self.named(MetricType::Histogram, name).map(|metric| metric.recorded.clone()).unwrap_or_default()
    }

    /// Names and values of all metrics of a kind, in the order of their definition.
    pub(crate) fn all(&self, kind: MetricType) -> Vec<(String, i64)> {
        let of_kind = self.all.iter().filter(|metric| metric.kind == kind);
        of_kind.map(|metric| (metric.name.clone(), metric.value as i64)).collect()
    }

    fn named(&self, kind: MetricType, name: &str) -> Option<&Metric> {
        let same = |metric: &&Metric| metric.name == name && metric.kind == kind;
        self.all.iter().find(same)
    }
}
