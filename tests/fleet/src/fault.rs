//! How can an engine fail? Each way is one JSON object on the control path and one value in Rust; what is not named
//! by a fault stays as it was, so several can hold at once, and `Clear` ends them all.

use serde::{Deserialize, Serialize};

/// Something to do to an engine. In JSON `{"fault":"slow","factor":4}`, `{"fault":"metrics","how":"nan"}`, ...
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// Healthy again: listening, awake, at full speed, honest. Cache and counters stay, except those a fault has lost.
    Clear,
    /// Steps take `factor` times as long, at most a million times; the one under way ends at once.
    Slow {
        /// 1 is full speed.
        factor: f64,
    },
    /// Connections are accepted, and no request that arrives is ever answered, on any path.
    Hang,
    /// The listening socket closes and all connections drop: connection refused, and requests in flight are cut.
    Refuse,
    /// As `Refuse`, until so many seconds have passed: an engine that loads its model.
    NotReady {
        /// Seconds until it listens.
        seconds: f64,
    },
    /// The process is gone, and with it cache, counters and other faults: as `Refuse`, until `Restart` or `Clear` starts
    /// another.
    Crash,
    /// A new process: requests in flight are cut, cache, counters and other faults are gone, the start time is now.
    Restart {
        /// Seconds until it listens.
        #[serde(default)]
        down_seconds: f64,
    },
    /// Generation requests are answered with this status at once. `/health` and `/metrics` look well.
    Status {
        /// HTTP status, 400 to 599.
        code: u16,
    },
    /// Each streamed answer begins, and its connection is cut after the first text.
    BreakOff,
    /// Only `/metrics` fails.
    Metrics(MetricsFault),
    /// Computing stops in mid-step: requests stand still, gauges too, `/health` is 200.
    Stall,
    /// `POST /pause`: requests in flight end with "abort", new ones are held, and nothing in `/metrics` says so.
    Pause,
    /// `POST /sleep`: as `Pause`, the cache is lost, and `engine_sleep_state` tells.
    Sleep {
        /// 1 keeps the weights in memory, 2 drops them.
        #[serde(default = "first_level")]
        level: u8,
    },
    /// Ends `Stall`, `Pause`, `Sleep`, `Drain` and `Dead`; held requests are queued.
    Wake,
    /// SIGTERM with a shutdown timeout: new requests get 200, no text and `finish_reason` "abort"; those in flight
    /// go on.
    Drain,
    /// The computing process died: every request ends in an error, `/health` is 503.
    Dead,
}

/// What is wrong with `/metrics`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum MetricsFault {
    /// It is well again.
    Clear,
    /// It takes long.
    Slow {
        /// Milliseconds before the answer.
        ms: u64,
    },
    /// 200 with bytes that are no exposition.
    Garbage,
    /// Every value is NaN.
    Nan,
    /// 404.
    Missing,
    /// It is never answered.
    Hang,
    /// It shows for ever what it showed when this fault came.
    Stale,
}

fn first_level() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_spelled_in_json_as_documented() {
        for (text, fault) in [
            (r#"{"fault":"refuse"}"#, Fault::Refuse),
            (r#"{"fault":"slow","factor":4.5}"#, Fault::Slow { factor: 4.5 }),
            (r#"{"fault":"sleep"}"#, Fault::Sleep { level: 1 }),
            (r#"{"fault":"restart"}"#, Fault::Restart { down_seconds: 0.0 }),
            (r#"{"fault":"metrics","how":"nan"}"#, Fault::Metrics(MetricsFault::Nan)),
            (r#"{"fault":"metrics","how":"slow","ms":5}"#, Fault::Metrics(MetricsFault::Slow { ms: 5 })),
        ] {
            assert_eq!(serde_json::from_str::<Fault>(text).expect(text), fault);
        }
    }
}
