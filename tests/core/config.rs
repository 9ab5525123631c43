//! What is accepted, and that a refusal names its key.

use super::test;
use kvroute::core::config::{Config, Mode, Modes, Source};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text.as_bytes()).map_err(|refusal| refusal.to_string())
}

#[test]
fn the_least_configuration_has_the_documented_defaults() {
    let config = parse(r#"{"cluster":"vllm","hosts":["10.0.0.1:8000","[::1]:8000"]}"#).expect("valid");
    assert_eq!(config.destination_header, "x-upstream-host");
    assert_eq!((config.candidates, config.debug_headers), (3, false));
    assert_eq!(config.poll.path, "/metrics");
    assert_eq!(
        (config.poll.interval_ms, config.poll.timeout_ms, config.poll.stale_after_ms),
        (500, 1000, 3000)
    );
    assert_eq!(
        (config.prompt.block_bytes, config.prompt.hold_bytes, config.prompt.max_bytes),
        (256, 30720, 1048576)
    );
}

#[test]
fn nulls_are_defaults() {
    let least = parse(r#"{"cluster":"vllm","hosts":["10.0.0.1:8000"]}"#);
    let nulls = parse(
        r#"{"cluster":"vllm","hosts":["10.0.0.1:8000"],"destination_header":null,"candidates":null,
            "debug_headers":null,"poll":null,"prompt":{"block_bytes":null},"index":null}"#,
    );
    assert_eq!(least, nulls);
}

#[test]
fn whole_floats_are_whole_numbers() {
    // What a protobuf Struct turns every number into.
    let config =
        parse(r#"{"cluster":"c","hosts":["10.0.0.1:80"],"candidates":2.0,"poll":{"interval_ms":1e3}}"#);
    let config = config.expect("valid");
    assert_eq!((config.candidates, config.poll.interval_ms), (2, 1000));
}

/// A protobuf `Struct` on the wire, from the JSON it stands for.
fn encode(value: &serde_json::Value) -> Vec<u8> {
    use serde_json::Value;
    let field = |number: u8, bytes: &[u8]| {
        assert!(bytes.len() < 1 << 14);
        let len = [bytes.len() as u8 & 0x7F | 0x80, (bytes.len() >> 7) as u8];
        [&[number << 3 | 2], len.as_slice(), bytes].concat()
    };
    let object = |map: &serde_json::Map<String, Value>| {
        let entry = |(key, value): (&String, &Value)| {
            field(1, &[field(1, key.as_bytes()), field(2, &encode(value))].concat())
        };
        map.iter().flat_map(entry).collect::<Vec<u8>>()
    };
    match value {
        Value::Null => vec![1 << 3, 0],
        Value::Number(number) => {
            [&[2 << 3 | 1], number.as_f64().expect("finite").to_le_bytes().as_slice()].concat()
        }
        Value::String(text) => field(3, text.as_bytes()),
        Value::Bool(flag) => vec![4 << 3, u8::from(*flag)],
        Value::Object(map) => field(5, &object(map)),
        Value::Array(list) => {
            field(6, &list.iter().flat_map(|inner| field(1, &encode(inner))).collect::<Vec<u8>>())
        }
    }
}

#[test]
fn a_protobuf_struct_is_the_json_it_stands_for() {
    let json = r#"{"cluster":"vllm","hosts":["10.0.0.1:80","10.0.0.2:80"],"debug_headers":true,
        "poll":{"interval_ms":700,"path":null}}"#;
    let value: serde_json::Value = serde_json::from_str(json).expect("valid");
    // A Struct is the inside of a Value that holds one: behind the tag and two bytes of length.
    let bytes = encode(&value).split_off(3);
    assert_eq!(Config::parse(&bytes), Config::parse(json.as_bytes()));
    // Cut anywhere it is refused, or stands for less.
    for len in 0..bytes.len() {
        assert_ne!(Config::parse(&bytes[..len]), Config::parse(&bytes), "{len}");
    }
    let wrong = encode(&serde_json::json!({"cluster":"c","hosts":["10.0.0.1:80"],"poll":{"interval_ms":1}}))
        .split_off(3);
    assert!(Config::parse(&wrong).expect_err("out of range").to_string().starts_with("poll.interval_ms"));
}

#[test]
fn slower_polling_alone_does_not_make_answers_stale() {
    let config =
        parse(r#"{"cluster":"c","hosts":["10.0.0.1:80"],"poll":{"interval_ms":5000}}"#).expect("valid");
    assert!(config.poll.stale_after_ms >= 10_000);
}

#[test]
fn a_refusal_is_one_line_that_names_the_key() {
    let with = |more: &str| format!(r#"{{"cluster":"c","hosts":["10.0.0.1:80"]{more}}}"#);
    let peers = |more: &str| format!(r#","peers":{{"cluster":"p","hosts":["10.1.0.1:80"],{more}}}"#);
    for (text, key, about) in [
        (String::new(), "", "empty"),
        ("{hosts: [".to_owned(), "", "not JSON"),
        ("[1]".to_owned(), "", "object"),
        (r#"{"hosts":["10.0.0.1:80"]}"#.to_owned(), "cluster", "required"),
        (r#"{"cluster":"","hosts":["10.0.0.1:80"]}"#.to_owned(), "cluster", "empty"),
        (r#"{"cluster":"c"}"#.to_owned(), "hosts", "required"),
        (r#"{"cluster":"c","hosts":[]}"#.to_owned(), "hosts", "from 1"),
        (r#"{"cluster":"c","hosts":"10.0.0.1:80"}"#.to_owned(), "hosts", "list"),
        (r#"{"cluster":"c","hosts":["localhost:80"]}"#.to_owned(), "hosts[0]", "ip:port"),
        (r#"{"cluster":"c","hosts":["10.0.0.1"]}"#.to_owned(), "hosts[0]", "ip:port"),
        (r#"{"cluster":"c","hosts":["[0::1]:80"]}"#.to_owned(), "hosts[0]", "as Envoy prints"),
        (r#"{"cluster":"c","hosts":["10.0.0.1:80",7]}"#.to_owned(), "hosts[1]", "string"),
        (r#"{"cluster":"c","hosts":["10.0.0.1:80","10.0.0.1:80"]}"#.to_owned(), "hosts[1]", "second time"),
        (with(r#","debug_headrs":true"#), "debug_headrs", "known"),
        (with(r#","debug\nheaders":true"#), "debug headers", "known"),
        (with(r#","debug_headers":"true""#), "debug_headers", "true or false"),
        (with(r#","destination_header":"X-Host""#), "destination_header", "lower-case"),
        (with(r#","candidates":0"#), "candidates", "from 1"),
        (with(r#","candidates":"3""#), "candidates", "whole number"),
        (with(r#","candidates":2.5"#), "candidates", "whole number"),
        (with(r#","poll":7"#), "poll", "object"),
        (with(r#","poll":{"interval_ms":-1}"#), "poll.interval_ms", "from 50"),
        (with(r#","poll":{"interval_ms":1e99}"#), "poll.interval_ms", "to 60000"),
        (with(r#","poll":{"path":"metrics"}"#), "poll.path", "'/'"),
        (with(r#","poll":{"path":"/metrics "}"#), "poll.path", "spaces"),
        (with(r#","poll":{"stale_after_ms":100}"#), "poll.stale_after_ms", "interval_ms"),
        (with(r#","poll":{"intervall_ms":100}"#), "poll.intervall_ms", "known"),
        (with(r#","prompt":{"block_bytes":0}"#), "prompt.block_bytes", "from 32"),
        (with(r#","prompt":{"max_bytes":1}"#), "prompt.max_bytes", "from 4096"),
        (with(r#","index":{"entries":5000}"#), "index.entries", "power of two"),
        (with(r#","mode":"shaddow""#), "mode", "\"shadow\""),
        (with(r#","mode":"""#), "mode", "\"on\""),
        (with(r#","mode":50"#), "mode", "an object"),
        (with(r#","mode":["on"]"#), "mode", "an object"),
        (with(r#","mode":{"on":60,"shadow":60}"#), "mode.shadow", "100 together at most, got 120"),
        (with(r#","mode":{"on":-1}"#), "mode.on", "from 0"),
        (with(r#","mode":{"shadow":100.5}"#), "mode.shadow", "to 100"),
        (with(r#","mode":{"on":"half"}"#), "mode.on", "a number"),
        (with(r#","mode":{"off":50}"#), "mode.off", "known"),
        (with(r#","signals":5"#), "signals", "object"),
        (with(r#","signals":{"waiting_per_replica":0}"#), "signals.waiting_per_replica", "from 0.1"),
        (with(r#","signals":{"backlog_s":"2"}"#), "signals.backlog_s", "a number"),
        (with(r#","signals":{"knee_share":1.5}"#), "signals.knee_share", "to 1"),
        (with(r#","signals":{"min_replicas":0}"#), "signals.min_replicas", "from 1"),
        (with(r#","signals":{"min_replicas":4,"max_replicas":3}"#), "signals.max_replicas", "min_replicas"),
        (with(r#","signals":{"window_s":0}"#), "signals.window_s", "from 1"),
        (with(r#","signals":{"target":5}"#), "signals.target", "known"),
        (with(r#","control":1"#), "control", "true or false"),
        (with(r#","control":true,"peers":{}"#), "peers.secret", "required"),
        (with(r#","peers":7"#), "peers", "object"),
        (with(r#","peers":{}"#), "peers.cluster", "required"),
        (with(r#","peers":{"cluster":"p"}"#), "peers.hosts", "required"),
        (with(r#","peers":{"cluster":"p","hosts":["gateway-1:80"]}"#), "peers.hosts[0]", "ip:port"),
        (with(r#","peers":{"cluster":"p","hosts":["10.1.0.1:80"]}"#), "peers.secret", "required"),
        (with(&peers(r#""secret":17"#)), "peers.secret", "string"),
        (with(&peers(r#""secret":"fifteen letters""#)), "peers.secret", "from 16"),
        (with(&peers(r#""secret":"a secret with spaces in it""#)), "peers.secret", "visible"),
        (with(&peers(r#""secret":"sixteen-letters-","interval_ms":1"#)), "peers.interval_ms", "from 50"),
        (with(&peers(r#""secret":"sixteen-letters-","intervall_ms":1"#)), "peers.intervall_ms", "known"),
    ] {
        let refusal = parse(&text).expect_err(&text);
        assert!(refusal.starts_with(key), "{text}: {refusal}");
        assert!(refusal.contains(about), "{text}: {refusal}");
        assert_eq!(refusal.lines().count(), 1, "{text}: {refusal}");
    }
}

#[test]
fn a_mode_is_a_word_or_shares_and_on_by_default() {
    let mode = |text: &str| {
        parse(&format!(r#"{{"cluster":"c","hosts":["10.0.0.1:80"]{text}}}"#)).map(|config| config.mode)
    };
    for (text, on, shadow) in [
        ("", 100.0, 0.0),
        (r#","mode":null"#, 100.0, 0.0),
        (r#","mode":"on""#, 100.0, 0.0),
        (r#","mode":"shadow""#, 0.0, 100.0),
        (r#","mode":"off""#, 0.0, 0.0),
        // What a bare word becomes in YAML.
        (r#","mode":true"#, 100.0, 0.0),
        (r#","mode":false"#, 0.0, 0.0),
        (r#","mode":{}"#, 0.0, 0.0),
        (r#","mode":{"on":10,"shadow":null}"#, 10.0, 0.0),
        (r#","mode":{"on":10,"shadow":90}"#, 10.0, 90.0),
        (r#","mode":{"on":0.1,"shadow":99.9}"#, 0.1, 99.9),
    ] {
        assert_eq!(mode(text), Ok(Modes { on, shadow }), "{text}");
    }
}

#[test]
fn modes_are_drawn_in_their_shares() {
    let draw = |on: f64, shadow: f64| {
        let modes = Modes { on, shadow };
        let count = |mode: Mode| (0..1000_u64).filter(|n| modes.draw(n * (u64::MAX / 1000)) == mode).count();
        [Mode::On, Mode::Shadow, Mode::Off].map(count)
    };
    assert_eq!(draw(100.0, 0.0), [1000, 0, 0]);
    assert_eq!(draw(0.0, 100.0), [0, 1000, 0]);
    assert_eq!(draw(0.0, 0.0), [0, 0, 1000]);
    assert_eq!(draw(10.0, 60.0), [101, 599, 300]);
    // Nobody falls through the ends.
    assert_eq!([0, u64::MAX].map(|lot| Modes { on: 100.0, shadow: 0.0 }.draw(lot)), [Mode::On; 2]);
    assert_eq!([0, u64::MAX].map(|lot| Modes { on: 0.0, shadow: 100.0 }.draw(lot)), [Mode::Shadow; 2]);
    assert_eq!([0, u64::MAX].map(|lot| Modes { on: 0.0, shadow: 0.0 }.draw(lot)), [Mode::Off; 2]);
}

#[test]
fn a_thousand_hosts_are_taken_and_more_are_not() {
    let hosts = |count: usize| {
        let list =
            (0..count).map(|n| format!("\"10.0.{}.{}:80\"", n / 256, n % 256)).collect::<Vec<_>>().join(",");
        format!(r#"{{"cluster":"c","hosts":[{list}]}}"#)
    };
    assert_eq!(parse(&hosts(1024)).expect("valid").hosts.len(), 1024);
    assert!(parse(&hosts(1025)).expect_err("too many").starts_with("hosts:"));
}

#[test]
fn a_control_listener_needs_the_cluster_and_the_secret_only() {
    let config =
        parse(r#"{"cluster":"c","control":true,"peers":{"secret":"sixteen-letters-"}}"#).expect("valid");
    assert!(config.control && config.hosts.is_empty());
    // It may as well be given what the filter that routes has.
    let routing = r#"{"cluster":"c","hosts":["10.0.0.1:80"],"control":true,
        "peers":{"cluster":"p","hosts":["10.1.0.1:80"],"secret":"sixteen-letters-"}}"#;
    assert!(parse(routing).expect("valid").control);
    let without = parse(r#"{"cluster":"c","hosts":["10.0.0.1:80"],"peers":null}"#).expect("valid");
    assert!(!without.control && without.peers.is_none());
}

#[test]
fn hosts_come_from_one_source() {
    let discover = |more: &str| parse(&format!(r#"{{"cluster":"c",{more}}}"#));
    let config = discover(r#""discover":{"admin_cluster":"prometheus_stats"}"#).expect("valid");
    let found = config.discover.expect("configured");
    assert_eq!(found.source, Source::Admin { cluster: "prometheus_stats".to_owned() });
    assert_eq!((found.interval_ms, found.timeout_ms, config.hosts.len()), (1_000, 3_000, 0));
    for (more, refusal) in [
        (r#""candidates":3"#, "hosts: is required"),
        (r#""discover":null"#, "hosts: is required"),
        (
            r#""hosts":["10.0.0.1:80"],"discover":{"admin_cluster":"a"}"#,
            "hosts: must not stand beside discover",
        ),
        (r#""discover":{}"#, "discover.admin_cluster: is required"),
        (r#""discover":{"admin_cluster":" "}"#, "discover.admin_cluster: must not be empty"),
        (r#""discover":{"admin_cluster":"a","port":80}"#, "discover.port: is not a known key"),
        (
            r#""discover":{"admin_cluster":"a","interval_ms":1}"#,
            "discover.interval_ms: must be a whole number from 100 to 60000, got 1",
        ),
        (r#""discover":["a"]"#, "discover: must be an object, got a list"),
    ] {
        assert_eq!(discover(more).expect_err("refused"), refusal, "{more}");
    }
    for nulls in [
        r#""hosts":null,"discover":{"admin_cluster":"a","dns":null}"#,
        r#""hosts":["10.0.0.1:80"],"discover":null"#,
        r#""control":true,"hosts":null"#,
    ] {
        discover(nulls).expect(nulls);
    }
    let control = discover(r#""control":true,"discover":{"admin_cluster":"a"}"#).expect("valid");
    assert!(control.control && control.discover.is_some());
}

#[test]
fn a_name_to_resolve_needs_a_filter_that_can() {
    let discover = |more: &str| {
        parse(&format!(r#"{{"cluster":"c","discover":{{"dns":"vllm.ns.svc"{more}}}}}"#))
            .map(|config| config.discover)
    };
    if cfg!(feature = "dns") {
        let found = discover(r#","port":8000"#).expect("valid").expect("configured");
        assert_eq!(found.source, Source::Dns { name: "vllm.ns.svc".to_owned(), port: 8_000 });
        assert_eq!(found.interval_ms, 5_000);
        assert_eq!(discover("").expect_err("refused"), "discover.port: is required with discover.dns");
        let both = discover(r#","port":80,"admin_cluster":"a""#).expect_err("refused");
        assert_eq!(both, "discover.dns: must not stand beside discover.admin_cluster");
    } else {
        let refusal = discover(r#","port":8000"#).expect_err("refused");
        assert_eq!(
            refusal,
            "discover.dns: needs a filter that was built with `scripts/build --features dns`"
        );
    }
}

#[test]
fn a_secret_is_never_printed_and_nothing_but_it_passes() {
    const SECRET: &str = "correct-horse-battery";
    let text = |secret: &str| {
        format!(
            r#"{{"cluster":"c","hosts":["10.0.0.1:80"],
                "peers":{{"cluster":"p","hosts":["10.1.0.1:80"],"secret":"{secret}"}}}}"#
        )
    };
    let config = parse(&text(SECRET)).expect("valid");
    assert!(!format!("{config:?}").contains(SECRET));
    for wrong in ["correct horse", "correct\thorse\tbattery", "correct-h", &SECRET.repeat(20)] {
        let refusal = parse(&text(wrong)).expect_err("no good");
        assert!(!refusal.contains("correct"), "{refusal}");
    }
    let peers = config.peers.expect("configured");
    assert_eq!((peers.interval_ms, peers.timeout_ms, peers.silent_after_ms()), (100, 500, 3_000));
    assert!(peers.secret.is_borne_by(peers.secret.bearer().as_bytes()));
    for wrong in
        ["", "Bearer ", "Bearer correct-horse-batterY", "Bearer correct-horse-battery ", SECRET, "Bearer"]
    {
        assert!(!peers.secret.is_borne_by(wrong.as_bytes()), "{wrong}");
    }
}
