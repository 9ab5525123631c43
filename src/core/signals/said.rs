//! The signals in JSON, for whoever scales the fleet, and as whole numbers for gauges.

use super::{Signals, Terms};
use crate::core::decimal::shown;
use crate::core::fleet::{Polled, Slot};
use crate::core::status::Moment;
use std::fmt::Write;

/// Names of the gauges, in the order of [`Signals::gauges`].
pub const GAUGES: [&str; 15] = [
    "desired_replicas",
    "ready_replicas",
    "waiting_requests",
    "waiting_smoothed_requests",
    "running_requests",
    "backlog_tokens",
    "backlog_ms",
    "saturation_percent",
    "rising",
    "requests_per_1000s",
    "knee_requests_per_1000s",
    "knee_at_least_requests_per_1000s",
    "recommended_replicas",
    "stale",
    "age_ms",
];

impl Signals {
    /// The values of the gauges, in whole numbers. What is not known is 0.
    pub fn gauges(&self, now_ms: u64) -> [u64; GAUGES.len()] {
        let thousandths = |number: Option<f64>| (1_000.0 * number.unwrap_or(0.0)).round() as u64;
        [
            u64::from(self.desired),
            u64::from(self.ready),
            self.waiting.round() as u64,
            self.waiting_smoothed().round() as u64,
            self.running.round() as u64,
            self.backlog_tokens.round() as u64,
            thousandths(Some(self.backlog_s())),
            (100.0 * self.saturation).round() as u64,
            u64::from(self.rising),
            thousandths(self.rate()),
            thousandths(self.knee.rate()),
            thousandths(self.knee.at_least()),
            u64::from(self.recommended),
            u64::from(self.stale),
            if self.stale { self.age_ms(now_ms).unwrap_or(0) } else { 0 },
        ]
    }

    /// One JSON object. What a scaler takes stands at its top, as plain numbers; what is not known is `null`.
    pub fn to_json(&self, hosts: &[(Slot, String, Polled)], moment: Moment) -> String {
        let mut json = String::from("{");
        let number = |number: f64| Some(number);
        for (name, value) in [
            ("desired_replicas", number(f64::from(self.desired))),
            ("ready_replicas", number(f64::from(self.ready))),
            ("waiting", number(self.waiting)),
            ("waiting_smoothed", number(self.waiting_smoothed())),
            ("running", number(self.running)),
            ("backlog_tokens", number(self.backlog_tokens)),
            ("backlog_seconds", number(self.backlog_s())),
            ("saturation", number(self.saturation)),
            ("requests_per_second", self.rate()),
            ("knee_requests_per_second_per_replica", self.knee.rate()),
            ("knee_at_least_requests_per_second_per_replica", self.knee.at_least()),
            ("age_ms", self.age_ms(moment.now_ms).map(|age_ms| age_ms as f64)),
        ] {
            field(&mut json, name, value);
        }
        let stale = self.is_stale(moment.now_ms, moment.stale_after_ms);
        let _ = write!(json, "\"rising\":{},\"stale\":{stale},", self.rising);
        let (decided_by, reason) = self.ground.words();
        let _ = write!(json, "\"decided_by\":\"{decided_by}\",\"reason\":\"{reason}\",\"terms\":{{");
        self.terms_to_json(&mut json);
        json.push_str("},\"hosts\":[");
        for (_, address, polled) in hosts {
            // Addresses are plain ASCII without quotes: the configuration allows no others.
            let _ = write!(json, "{{\"host\":\"{address}\",");
            let answered = polled.at_ms != 0;
            field(&mut json, "waiting", answered.then_some(polled.waiting));
            field(&mut json, "running", answered.then_some(polled.running));
            let age_ms = answered.then(|| moment.now_ms.saturating_sub(polled.at_ms) as f64);
            field(&mut json, "age_ms", age_ms);
            end(&mut json, "},");
        }
        end(&mut json, "]}\n");
        json
    }

    /// What the number of replicas was made of.
    fn terms_to_json(&self, json: &mut String) {
        let Terms { queue, rising, backlog, carry } = self.terms;
        let (smooth, settings) = (&self.smooth, &self.settings);
        let most = (settings.max_replicas != 0).then_some(f64::from(settings.max_replicas));
        for (name, value) in [
            ("queue_replicas", Some(queue)),
            ("rising_replicas", Some(rising)),
            ("backlog_replicas", Some(backlog)),
            ("carry_replicas", Some(carry)),
            ("recommended_replicas", Some(f64::from(self.recommended))),
            ("ready_replicas", Some(f64::from(self.ready))),
            ("waiting_mean_10s", Some(smooth.fast)),
            ("waiting_mean_60s", Some(smooth.slow)),
            ("running_mean_30s", Some(smooth.running)),
            ("backlog_tokens_mean_10s", Some(smooth.backlog)),
            ("prefill_tokens_per_second", Some(self.prefill_rate)),
            ("requests_per_second_mean_30s", self.rate()),
            ("knee_requests_per_second_per_replica", self.knee.rate()),
            ("running_per_replica_without_queue", self.knee.calm_running()),
            ("waiting_per_replica", Some(settings.waiting_per_replica)),
            ("backlog_s", Some(settings.backlog_s)),
            ("knee_share", Some(settings.knee_share)),
            ("min_replicas", Some(f64::from(settings.min_replicas))),
            ("max_replicas", most),
            ("window_s", Some(f64::from(settings.window_s))),
        ] {
            field(json, name, value);
        }
        end(json, "");
    }
}

/// Appends `"name":value,`; `null` where it is not known.
#[inline(never)]
fn field(json: &mut String, name: &str, value: Option<f64>) {
    let value = value.filter(|value| value.abs() < 1e12);
    let text = value.map_or_else(|| "null".to_owned(), shown);
    for part in ["\"", name, "\":", &text, ","] {
        json.push_str(part);
    }
}

/// Takes the last comma away, if there is one, and closes.
fn end(json: &mut String, close: &str) {
    if json.ends_with(',') {
        json.pop();
    }
    json.push_str(close);
}
