//! A bad configuration is refused with one line that names the key; a good one needs little.

use fake_proxy::Worker;
use serde_json::{json, Value};

use crate::gateway::{chat, config, destinations, host, text, Gateway};

/// A key, and values it is refused with.
fn bad() -> Vec<(&'static str, Value)> {
    let hosts = |hosts: Value| json!({ "cluster": "vllm", "hosts": hosts });
    let with = |more: Value| {
        let mut good = json!({ "cluster": "vllm", "hosts": ["10.0.0.1:8000"] });
        if let (Some(good), Value::Object(more)) = (good.as_object_mut(), more) {
            good.extend(more);
        }
        good
    };
    vec![
        ("cluster", json!({ "hosts": ["10.0.0.1:8000"] })),
        ("cluster", json!({ "cluster": "", "hosts": ["10.0.0.1:8000"] })),
        ("cluster", json!({ "cluster": 7, "hosts": ["10.0.0.1:8000"] })),
        ("hosts", json!({ "cluster": "vllm" })),
        ("hosts", hosts(json!([]))),
        ("hosts", hosts(json!("10.0.0.1:8000"))),
        ("hosts[0]", hosts(json!(["example.com:8000"]))),
        ("hosts[1]", hosts(json!(["10.0.0.1:8000", "10.0.0.2"]))),
        ("hosts[1]", hosts(json!(["10.0.0.1:8000", "10.0.0.1:8000"]))),
        ("hosts[0]", hosts(json!([8000]))),
        ("hosts[0]", hosts(json!(["10.0.0.1:08000"]))),
        ("destination_header", with(json!({ "destination_header": "X-Upper" }))),
        ("destination_header", with(json!({ "destination_header": "" }))),
        ("candidates", with(json!({ "candidates": 0 }))),
        ("candidates", with(json!({ "candidates": "3" }))),
        ("candidates", with(json!({ "candidates": 2.5 }))),
        ("debug_headers", with(json!({ "debug_headers": "yes" }))),
        ("poll", with(json!({ "poll": [] }))),
        ("poll.path", with(json!({ "poll": { "path": "metrics" } }))),
        ("poll.path", with(json!({ "poll": { "path": "/metrics " } }))),
        ("poll.interval_ms", with(json!({ "poll": { "interval_ms": 0 } }))),
        ("poll.interval_ms", with(json!({ "poll": { "interval_ms": -5 } }))),
        ("poll.timeout_ms", with(json!({ "poll": { "timeout_ms": 1e12 } }))),
        ("poll.stale_after_ms", with(json!({ "poll": { "stale_after_ms": null, "interval": 1 } }))),
        ("prompt.block_bytes", with(json!({ "prompt": { "block_bytes": 0 } }))),
        ("prompt.hold_bytes", with(json!({ "prompt": { "hold_bytes": -1 } }))),
        ("prompt.max_bytes", with(json!({ "prompt": { "max_bytes": true } }))),
        ("prompt.blok_bytes", with(json!({ "prompt": { "blok_bytes": 256 } }))),
        ("clusters", with(json!({ "clusters": ["vllm"] }))),
    ]
}

#[test]
fn a_bad_configuration_is_refused_with_one_line_that_names_the_key() {
    for (key, config) in bad() {
        let proxy = Gateway::empty();
        let Err(refused) = proxy.worker(&config.to_string()) else {
            panic!("accepted: {config}");
        };
        // An unknown key beside a null is still the one at fault.
        let key = if key == "poll.stale_after_ms" { "poll.interval" } else { key };
        let lines: Vec<&String> = refused.log.iter().collect();
        assert_eq!(lines.len(), 1, "{config}: {lines:?}");
        assert!(lines[0].contains(key), "{key} for {config}: {lines:?}");
        assert!(!lines[0].contains('\n'));
    }
}

#[test]
fn what_is_not_a_json_object_is_refused() {
    for config in ["", " \n", "null", "[]", "7", "\"vllm\"", "{", "{\"cluster\":\"vllm\",}", "\u{0}"] {
        let refused = Gateway::empty().worker(config).err();
        assert_eq!(refused.map(|refused| refused.log.len()), Some(1), "{config:?}");
    }
}

fn decides(worker: &Worker) -> Vec<Vec<String>> {
    let decide = |n| destinations(&chat(worker, &text(n, 2_000)));
    (0..12).map(decide).collect()
}

#[test]
fn nulls_and_absent_keys_and_written_out_defaults_are_the_same() {
    let minimal = json!({ "cluster": "vllm", "hosts": [host(0), host(1)] });
    let nulls = json!({
        "cluster": "vllm", "hosts": [host(0), host(1)],
        "destination_header": null, "candidates": null, "debug_headers": null,
        "poll": null, "prompt": { "block_bytes": null, "hold_bytes": null, "max_bytes": null },
    });
    let written = json!({
        "cluster": "vllm", "hosts": [host(0), host(1)],
        "destination_header": "x-upstream-host", "candidates": 3, "debug_headers": false,
        "poll": { "path": "/metrics", "interval_ms": 500, "timeout_ms": 1000, "stale_after_ms": 3000 },
        "prompt": { "block_bytes": 256, "hold_bytes": 30720, "max_bytes": 1048576 },
    });
    let outcomes = [minimal, nulls, written].map(|config| {
        let mut gateway = Gateway::with_config(1, 2, &config.to_string());
        gateway.run(1_000);
        (decides(gateway.worker()), gateway.polls_by_host())
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0], outcomes[2]);
}

#[test]
fn numbers_may_be_floats_as_a_protobuf_struct_writes_them() {
    let more = json!({ "candidates": 2.0, "poll": { "interval_ms": 500.0 } });
    let gateway = Gateway::with_config(1, 4, &config(4, more));
    assert_eq!(destinations(&gateway.chat("hello")).len(), 2);
}

#[test]
fn a_bad_update_leaves_the_running_configuration_in_force() {
    let gateway = Gateway::new(2);
    let before = gateway.route_chat(&text(1, 3_000));
    let worker = gateway.worker();
    assert!(worker.update(&config(2, json!({ "candidates": 99 }))).is_err());
    assert_eq!(gateway.route_chat(&text(1, 3_000)), before);
}

#[test]
fn an_update_keeps_what_was_learned_and_takes_the_new_hosts() {
    let mut gateway = Gateway::new(2);
    gateway.run(1_000);
    let homes: Vec<String> = (0..6).map(|n| gateway.route_chat(&text(n, 4_000))).collect();
    let config = config(3, json!({ "candidates": 3 }));
    gateway.worker().update(&config).expect("a good configuration");
    gateway.run(200);
    let after: Vec<String> = (0..6).map(|n| gateway.route_chat(&text(n, 4_000))).collect();
    assert_eq!(homes, after);
    assert!(destinations(&gateway.chat("hello")).contains(&host(2)));
}

#[test]
fn a_host_that_left_the_configuration_gets_nothing_more() {
    let mut gateway = Gateway::new(3);
    let homes: Vec<String> = (0..12).map(|n| gateway.route_chat(&text(n, 4_000))).collect();
    assert!(homes.contains(&host(2)));
    gateway.worker().update(&config(2, json!({}))).expect("a good configuration");
    gateway.run(200);
    for n in 0..12 {
        let stream = gateway.chat(&text(n, 4_000));
        assert!(!destinations(&stream).contains(&host(2)));
    }
}

#[test]
fn hosts_that_find_no_slot_are_named_once_in_the_log_and_the_others_serve() {
    let cluster = |name: &str, hosts: usize| {
        let host = |n: usize| format!("10.{}.{}.{}:8000", name.len(), n / 200, n % 200);
        let hosts: Vec<String> = (0..hosts).map(host).collect();
        json!({ "cluster": name, "hosts": hosts, "poll": { "interval_ms": 60_000 } }).to_string()
    };
    let mut gateway = Gateway::with_config(1, 0, &cluster("many", 1_000));
    gateway.workers.push(gateway.proxy.worker(&cluster("other", 60)).expect("a good configuration"));
    gateway.run(5_000);
    let log = gateway.proxy.log();
    let about_slots = log.iter().map(|line| line.text.as_str()).filter(|text| text.contains("slots"));
    let told: Vec<&str> = about_slots.collect();
    assert_eq!(told, ["kvroute: 36 hosts of other get nothing: all slots of this Envoy are taken by others"]);
    let stream = chat(&gateway.workers[1], &text(1, 1_000));
    assert!(destinations(&stream).iter().all(|host| host.starts_with("10.5.0.")));
}
