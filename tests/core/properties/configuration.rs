//! A configuration is taken whole or refused in one line, and means the same in whatever spelling.

use kvroute::core::config::{is_envoy_address, Config, MAX_HOSTS};
use serde_json::{Map, Value};

pub fn holds(bytes: &[u8]) {
    let parsed = Config::parse(bytes);
    assert_eq!(parsed, Config::parse(bytes));
    match parsed {
        Ok(config) => {
            makes_sense(&config);
            means_the_same_otherwise(bytes, &config);
        }
        Err(refusal) => {
            let line = refusal.to_string();
            assert!(!line.trim().is_empty() && !line.contains(char::is_control), "{line:?}");
        }
    }
}

fn makes_sense(config: &Config) {
    assert!(!config.cluster.trim().is_empty());
    assert!(config.hosts.len() <= MAX_HOSTS && (config.control || !config.hosts.is_empty()));
    assert!(config.hosts.iter().all(|host| is_envoy_address(host)));
    assert!(!config.control || config.peers.is_some());
    assert!((1..=8).contains(&config.candidates));
    assert!((32..=4_096).contains(&config.prompt.block_bytes));
    assert!(config.index.entries.is_power_of_two() && config.index.entries <= 1 << 22);
    assert!(config.poll.stale_after_ms >= config.poll.interval_ms && config.poll.interval_ms >= 50);
    assert!(config.mode.on >= 0.0 && config.mode.shadow >= 0.0);
    assert!(config.mode.on + config.mode.shadow < 100.001);
    let signals = &config.signals;
    assert!(1 <= signals.min_replicas && signals.min_replicas <= signals.most() && signals.window_s >= 1);
    assert!(signals.waiting_per_replica > 0.0 && signals.backlog_s > 0.0 && signals.knee_share > 0.0);
    assert!(config.routing.prefill_tokens_per_s >= 1.0 && config.routing.capacity_tokens >= 1_000);
}

/// Written anew, and as the protobuf `Struct` that stands for it.
fn means_the_same_otherwise(bytes: &[u8], config: &Config) {
    // It was a Struct: there is no JSON of it.
    let Ok(Value::Object(map)) = serde_json::from_slice(bytes) else { return };
    assert_eq!(Config::parse(&object(&map)).as_ref(), Ok(config));
    let text = serde_json::to_vec(&map).expect("JSON");
    // serde_json reads some numbers not quite as it writes them.
    if serde_json::from_slice::<Map<String, Value>>(&text).ok().as_ref() == Some(&map) {
        assert_eq!(Config::parse(&text).as_ref(), Ok(config));
    }
}

fn object(map: &Map<String, Value>) -> Vec<u8> {
    let entry = |(key, value): (&String, &Value)| {
        field(1, &[field(1, key.as_bytes()), field(2, &wire(value))].concat())
    };
    map.iter().flat_map(entry).collect()
}

fn wire(value: &Value) -> Vec<u8> {
    match value {
        Value::Null => vec![1 << 3, 0],
        Value::Number(number) => {
            [&[2 << 3 | 1], number.as_f64().expect("finite").to_le_bytes().as_slice()].concat()
        }
        Value::String(text) => field(3, text.as_bytes()),
        Value::Bool(flag) => vec![4 << 3, u8::from(*flag)],
        Value::Object(map) => field(5, &object(map)),
        Value::Array(list) => {
            field(6, &list.iter().flat_map(|inner| field(1, &wire(inner))).collect::<Vec<u8>>())
        }
    }
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut written = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len > 0x7F {
        written.push(len as u8 | 0x80);
        len >>= 7;
    }
    written.push(len as u8);
    written.extend_from_slice(bytes);
    written
}
