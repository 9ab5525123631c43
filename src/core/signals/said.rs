//! The signals in JSON, for whoever scales the fleet, and as whole numbers for gauges.

use super::Signals;
use crate::core::decimal::shown;
use crate::core::load::Freshness;
use crate::core::snapshot::Entry;
use std::fmt::Write;

/// Names of the gauges, in the order of [`Signals::gauges`]: the numbers at the top of the JSON, and three more.
pub const GAUGES: [&str; 15] = [
    "desired_replicas",
    "ready_replicas",
    "waiting_requests",
    "waiting_smoothed_requests",
    "running_requests",
    "backlog_tokens",
    "backlog_ms",
    "saturation_percent",
    "requests_per_1000s",
    "knee_requests_per_1000s",
    "knee_at_least_requests_per_1000s",
    "age_ms",
    "rising",
    "stale",
    "recommended_replicas",
];

/// What a gauge's unit is as a multiple of the JSON's: gauges hold whole numbers.
const UNITS: [f64; TOP.len()] =
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1_000.0, 100.0, 1_000.0, 1_000.0, 1_000.0, 1.0];

/// Names of the numbers at the top of the JSON.
const TOP: [&str; 12] = [
    "desired_replicas",
    "ready_replicas",
    "waiting",
    "waiting_smoothed",
    "running",
    "backlog_tokens",
    "backlog_seconds",
    "saturation",
    "requests_per_second",
    "knee_requests_per_second_per_replica",
    "knee_at_least_requests_per_second_per_replica",
    "age_ms",
];

/// Names of what the desired replicas were made of.
const TERMS: [&str; 22] = [
    "queue_replicas",
    "shed_replicas",
    "rising_replicas",
    "backlog_replicas",
    "carry_replicas",
    "recommended_replicas",
    "ready_replicas",
    "waiting_mean_5s",
    "waiting_mean_60s",
    "running_mean_30s",
    "backlog_tokens_mean_5s",
    "prefill_tokens_per_second",
    "requests_per_second_mean_30s",
    "shed_per_second_mean_30s",
    "knee_requests_per_second_per_replica",
    "running_per_replica_without_queue",
    "waiting_per_replica",
    "backlog_s",
    "knee_share",
    "min_replicas",
    "max_replicas",
    "window_s",
];

/// What stands for a number that is not known: `null` in JSON, 0 in a gauge.
const UNKNOWN: f64 = f64::NAN;

impl Signals {
    /// The values of the gauges. What is not known is 0.
    pub fn gauges(&self, now_ms: u64) -> Vec<u64> {
        let top = self.top(now_ms).into_iter().zip(UNITS);
        // A cast makes 0 of what is no number.
        let mut gauges: Vec<u64> = top.map(|(value, unit)| (value * unit + 0.5) as u64).collect();
        gauges.extend([u64::from(self.rising), u64::from(self.stale), u64::from(self.recommended)]);
        gauges
    }

    /// The numbers at the top of the JSON.
    #[inline(never)]
    fn top(&self, now_ms: u64) -> [f64; TOP.len()] {
        [
            f64::from(self.desired),
            f64::from(self.ready),
            self.waiting,
            self.waiting_smoothed(),
            self.running,
            self.backlog_tokens,
            self.backlog_s(),
            self.saturation,
            self.rate().unwrap_or(UNKNOWN),
            self.knee.rate().unwrap_or(UNKNOWN),
            self.knee.at_least().unwrap_or(UNKNOWN),
            self.age_ms(now_ms).map_or(UNKNOWN, |age_ms| age_ms as f64),
        ]
    }

    /// One JSON object. What a scaler takes stands at its top, as plain numbers; what is not known is `null`.
    pub fn to_json(&self, hosts: &[Entry], freshness: Freshness) -> String {
        let mut json = String::from("{");
        fields(&mut json, &TOP, &self.top(freshness.now_ms));
        let stale = self.is_stale(freshness.now_ms, freshness.stale_after_ms);
        let (decided_by, reason) = self.ground.words();
        let _ = write!(
            json,
            ",\"rising\":{},\"stale\":{stale},\"decided_by\":\"{decided_by}\",\"reason\":\"{reason}\",\"terms\":{{",
            self.rising
        );
        fields(&mut json, &TERMS, &self.made_of());
        json.push_str("},\"hosts\":[");
        for (n, Entry { address, polled, .. }) in hosts.iter().enumerate() {
            // Addresses are plain ASCII without quotes: the configuration allows no others.
            let comma = if n == 0 { "" } else { "," };
            let _ = write!(json, "{comma}{{\"host\":\"{address}\",");
            let age_ms = freshness.now_ms.saturating_sub(polled.at_ms) as f64;
            let said = match polled.at_ms {
                0 => [UNKNOWN; 3],
                _ => [polled.waiting, polled.running, age_ms],
            };
            fields(&mut json, &["waiting", "running", "age_ms"], &said);
            json.push('}');
        }
        json.push_str("]}\n");
        json
    }

    /// What the number of replicas was made of.
    fn made_of(&self) -> [f64; TERMS.len()] {
        let (terms, smooth, settings) = (&self.terms, &self.smooth, &self.settings);
        [
            terms.queue,
            terms.shed,
            terms.rising,
            terms.backlog,
            terms.carry,
            f64::from(self.recommended),
            f64::from(self.ready),
            smooth.fast,
            smooth.slow,
            smooth.running,
            smooth.backlog,
            self.prefill_rate,
            self.rate().unwrap_or(UNKNOWN),
            smooth.shed,
            self.knee.rate().unwrap_or(UNKNOWN),
            self.knee.calm_running().unwrap_or(UNKNOWN),
            settings.waiting_per_replica,
            settings.backlog_s,
            settings.knee_share,
            f64::from(settings.min_replicas),
            if settings.max_replicas == 0 { UNKNOWN } else { f64::from(settings.max_replicas) },
            f64::from(settings.window_s),
        ]
    }
}

/// Appends `"name":value` for each, with commas between them.
#[inline(never)]
fn fields(json: &mut String, names: &[&str], values: &[f64]) {
    for (n, (name, value)) in names.iter().zip(values).enumerate() {
        let comma = if n == 0 { "" } else { "," };
        // What is beyond all bounds is not known either.
        let text = if value.abs() < 1e12 { shown(*value) } else { "null".to_owned() };
        let _ = write!(json, "{comma}\"{name}\":{text}");
    }
}
