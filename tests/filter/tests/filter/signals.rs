//! What those who scale the fleet read: on the control listener, and in Envoy's gauges.

use fake_proxy::{LocalReply, Worker};
use serde_json::{json, Value};

use crate::gateway::{begin_response, config, host, text, Engine, Gateway, CLUSTER};

const SECRET: &str = "correct-horse-battery";

/// A gateway, and whoever reads its signals.
struct Scaler {
    gateway: Gateway,
    control: Worker,
}

impl Scaler {
    fn new(workers: usize, hosts: usize, more: Value) -> Self {
        let gateway = Gateway::with_config(workers, hosts, &config(hosts, more));
        let listens = json!({ "cluster": CLUSTER, "control": true, "peers": { "secret": SECRET } });
        let control = gateway.proxy.worker(&listens.to_string()).expect("a good configuration");
        Self { gateway, control }
    }

    fn ask(&self, method: &str) -> LocalReply {
        let secret = format!("Bearer {SECRET}");
        let headers = [(":method", method), (":path", "/kvroute/signals"), ("authorization", &secret)];
        let stream = self.control.request(headers, true);
        let reply = stream.local_reply().expect("answered here");
        stream.finish();
        reply
    }

    fn signals(&self) -> Value {
        let reply = self.ask("GET");
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    fn gauge(&self, name: &str) -> i64 {
        let name = format!("kvroute_signals_{name}");
        let gauges = self.gateway.proxy.gauges();
        gauges.iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    /// All engines say the same.
    fn all(&mut self, engine: &Engine) {
        self.gateway.engines.values_mut().for_each(|other| *other = engine.clone());
    }
}

/// Names of the gauges that belong to the signals.
fn series(scaler: &Scaler) -> Vec<String> {
    let gauges = scaler.gateway.proxy.gauges().into_iter().map(|(name, _)| name);
    let of_slot = |name: &str| name.ends_with("_waiting_requests") || name.ends_with("_running_requests");
    gauges.filter(|name| name.starts_with("kvroute_signals_") || of_slot(name)).collect()
}

#[test]
fn all_series_are_there_before_the_first_tick_and_request_and_want_as_many_replicas_as_there_are() {
    let mut scaler = Scaler::new(2, 3, json!({}));
    let first = series(&scaler);
    assert_eq!(first.len(), 15 + 2 * 3, "{first:?}");
    assert_eq!((scaler.gauge("desired_replicas"), scaler.gauge("stale")), (3, 1));
    let said = scaler.signals();
    assert_eq!(
        (&said["desired_replicas"], &said["waiting"], &said["stale"]),
        (&json!(3), &json!(0), &json!(true))
    );
    assert_eq!(said["knee_requests_per_second_per_replica"], Value::Null);
    scaler.gateway.run(3_000);
    let said = scaler.signals();
    assert_eq!(
        (&said["desired_replicas"], &said["ready_replicas"], &said["stale"]),
        (&json!(3), &json!(3), &json!(false))
    );
    assert_eq!(
        (scaler.gauge("desired_replicas"), scaler.gauge("ready_replicas"), scaler.gauge("stale")),
        (3, 3, 0)
    );
    assert_eq!(series(&scaler), first, "and no more");
    assert_eq!(scaler.ask("POST").status, 405);
}

#[test]
fn the_queue_is_summed_and_told_by_host_and_more_replicas_are_wanted() {
    let mut scaler = Scaler::new(2, 3, json!({}));
    scaler.gateway.run(2_000);
    scaler.gateway.engines.insert(host(0), Engine::Load { running: 8, waiting: 20 });
    scaler.gateway.engines.insert(host(2), Engine::Load { running: 7, waiting: 10 });
    scaler.gateway.run(30_000);
    let said = scaler.signals();
    assert_eq!(
        (&said["waiting"], &said["running"], &said["stale"]),
        (&json!(30), &json!(15), &json!(false)),
        "{said}"
    );
    assert_eq!(said["hosts"][2]["waiting"], 10);
    assert_eq!(said["hosts"][1]["host"], host(1));
    assert_eq!(said["hosts"][1]["running"], 0);
    let desired = said["desired_replicas"].as_i64().expect("a number");
    assert!((5..=7).contains(&desired), "{said}");
    assert_eq!(said["decided_by"], "queue");
    // All of it is others': a thousand tokens for each that waits, at 18,000 a second and host.
    assert_eq!((&said["backlog_tokens"], &said["backlog_seconds"]), (&json!(30_000), &json!(0.556)));
    assert_eq!(scaler.gauge("desired_replicas"), desired);
    assert_eq!((scaler.gauge("waiting_requests"), scaler.gauge("running_requests")), (30, 15));
    assert_eq!((scaler.gauge("backlog_tokens"), scaler.gauge("backlog_ms")), (30_000, 556));
    assert_eq!(scaler.gauge("saturation_percent"), 70, "two full, and one with a tenth of its cache in use");
    let slot = |name: &str| scaler.gateway.proxy.gauge(&format!("kvroute_slot_{name}"));
    assert_eq!((slot("0_waiting_requests"), slot("2_running_requests")), (20, 7));
}

#[test]
fn what_is_known_only_here_counts_as_backlog() {
    let mut scaler = Scaler::new(1, 2, json!({}));
    scaler.gateway.run(2_000);
    let streams: Vec<_> = (0..10).map(|n| scaler.gateway.chat(&text(n, 36_000))).collect();
    scaler.gateway.run(2_000);
    let said = scaler.signals();
    let tokens = said["backlog_tokens"].as_f64().expect("a number");
    assert!((80_000.0..100_000.0).contains(&tokens), "{said}");
    let seconds = said["backlog_seconds"].as_f64().expect("a number");
    assert!((seconds - tokens / 36_000.0).abs() < 0.001, "{said}");
    for stream in &streams {
        begin_response(stream);
        stream.response_body(b"data: {}\n\n", false);
    }
    scaler.gateway.run(2_000);
    assert_eq!(scaler.signals()["backlog_tokens"], 0);
    assert!(scaler.signals()["requests_per_second"].as_f64().is_some_and(|rate| rate > 0.0));
}

#[test]
fn when_the_engines_fall_silent_the_signals_stay_and_say_so() {
    let mut scaler = Scaler::new(2, 3, json!({}));
    scaler.all(&Engine::Load { running: 8, waiting: 10 });
    scaler.gateway.run(60_000);
    let before = scaler.signals();
    assert_eq!((&before["stale"], &before["waiting"]), (&json!(false), &json!(30)));
    scaler.all(&Engine::Silent);
    scaler.gateway.run(400_000);
    let after = scaler.signals();
    for held in ["desired_replicas", "waiting", "waiting_smoothed", "running", "backlog_tokens", "saturation"]
    {
        assert_eq!(after[held], before[held], "{held}");
    }
    assert_eq!((&after["stale"], &after["decided_by"]), (&json!(true), &json!("stale")));
    assert!(after["age_ms"].as_u64().is_some_and(|age_ms| (395_000..=400_000).contains(&age_ms)), "{after}");
    assert_eq!((scaler.gauge("waiting_requests"), scaler.gauge("stale")), (30, 1));
    assert_eq!(scaler.gauge("desired_replicas"), before["desired_replicas"].as_i64().expect("a number"));
    assert!(scaler.gauge("age_ms") > 390_000);
    assert_eq!(scaler.gateway.proxy.gauge("kvroute_slot_1_waiting_requests"), 10, "unknown is not zero");
    scaler.all(&Engine::IDLE);
    scaler.gateway.run(5_000);
    let back = scaler.signals();
    assert_eq!((&back["stale"], &back["waiting"]), (&json!(false), &json!(0)));
    assert_eq!(back["desired_replicas"], before["desired_replicas"], "down only when the window is over");
}

#[test]
fn a_change_of_leader_and_of_configuration_goes_on_from_what_was_published() {
    let mut scaler = Scaler::new(3, 3, json!({}));
    scaler.all(&Engine::Load { running: 8, waiting: 10 });
    scaler.gateway.run(60_000);
    let before = scaler.signals();
    assert!(before["desired_replicas"].as_u64().is_some_and(|desired| desired >= 6), "{before}");
    scaler.all(&Engine::IDLE);
    // The leader dies; another goes on. Then comes a configuration with one host less, and a bound.
    scaler.gateway.workers.remove(0).kill();
    scaler.gateway.run(5_000);
    let after = scaler.signals();
    assert_eq!(after["desired_replicas"], before["desired_replicas"]);
    assert_eq!((&after["stale"], &after["waiting"]), (&json!(false), &json!(0)));
    assert_eq!(scaler.gauge("desired_replicas"), before["desired_replicas"].as_i64().expect("a number"));
    scaler.gateway.engines.insert(host(2), Engine::Load { running: 3, waiting: 2 });
    scaler.gateway.run(2_000);
    assert_eq!(scaler.gateway.proxy.gauge("kvroute_slot_2_waiting_requests"), 2);
    let update = config(2, json!({ "signals": { "max_replicas": 5 } }));
    for worker in &scaler.gateway.workers {
        worker.update(&update).expect("a good configuration");
        worker.retire();
    }
    assert_eq!(scaler.gauge("desired_replicas"), before["desired_replicas"].as_i64().expect("a number"));
    scaler.gateway.run(10_000);
    let bounded = scaler.signals();
    assert_eq!((&bounded["desired_replicas"], &bounded["terms"]["max_replicas"]), (&json!(5), &json!(5)));
    assert_eq!(bounded["ready_replicas"], 2);
    assert_eq!(
        scaler.gateway.proxy.gauge("kvroute_slot_2_waiting_requests"),
        0,
        "a host that is gone has none"
    );
}

#[test]
fn whoever_does_not_know_the_secret_learns_nothing() {
    let scaler = Scaler::new(1, 1, json!({}));
    let stream = scaler.control.request([(":method", "GET"), (":path", "/kvroute/signals")], true);
    assert_eq!(stream.local_reply().expect("answered here").status, 401);
    stream.finish();
}
