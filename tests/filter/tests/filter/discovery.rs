//! Hosts come and go as Envoy says: the leader asks, every worker follows, and nothing is left of those that went.

use std::collections::BTreeSet;

use fake_proxy::{Options, Status, Stream, Worker};
use serde_json::{json, Value};

use crate::gateway::{
    begin_response, chat, destination, destinations, exposition, host, reason, route_chat, serve, text,
    Engine, Gateway, CLUSTER,
};

/// The cluster that leads to Envoy's admin interface.
const ADMIN: &str = "envoy_admin";

/// How the admin answers.
#[derive(Debug, Clone)]
enum Admin {
    /// With these members of the cluster.
    Lists(Vec<Value>),
    /// With this status and body.
    Says(u32, String),
    /// The connection breaks off.
    BreaksOff,
    /// Never.
    Silent,
}

struct Site {
    gateway: Gateway,
    admin: Admin,
    /// When the admin was asked, by whom, and for what.
    asked: Vec<(u64, usize, String)>,
}

/// A member that the control plane says is healthy.
fn member(address: &str) -> Value {
    let (ip, port) = address.rsplit_once(':').expect("ip:port");
    let port: u32 = port.parse().expect("a port");
    json!({
        "address": {"socket_address": {"address": ip, "port_value": port}},
        "stats": [{"name": "cx_total", "value": "7"}, {"type": "GAUGE", "name": "rq_active"}],
        "health_status": {"eds_health_status": "HEALTHY"}, "weight": 1, "hostname": "", "locality": {},
    })
}

fn ill(address: &str, flag: &str) -> Value {
    let mut ill = member(address);
    ill["health_status"][flag] = json!(true);
    ill
}

fn eds(address: &str, health: &str) -> Value {
    let mut member = member(address);
    member["health_status"]["eds_health_status"] = json!(health);
    member
}

fn members(hosts: std::ops::Range<usize>) -> Vec<Value> {
    hosts.map(|n| member(&host(n))).collect()
}

fn clusters(members: &[Value]) -> String {
    json!({"cluster_statuses": [{"name": CLUSTER, "added_via_api": true, "host_statuses": members}]})
        .to_string()
}

fn discovering(more: Value) -> String {
    let mut config = json!({"cluster": CLUSTER, "discover": {"admin_cluster": ADMIN}, "debug_headers": true});
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config.to_string()
}

impl Site {
    /// With `workers`, none of which has ticked.
    fn new(workers: usize, hosts: usize) -> Self {
        let options = Options { clusters: vec![CLUSTER.to_owned(), ADMIN.to_owned()], ..Options::default() };
        let gateway = Gateway::with_options(workers, hosts, &discovering(json!({})), options);
        Self { gateway, admin: Admin::Lists(members(0..hosts)), asked: Vec::new() }
    }

    /// One whose workers know the hosts and how loaded they are.
    fn settled(workers: usize, hosts: usize) -> Self {
        let mut site = Self::new(workers, hosts);
        site.run(1_000);
        site
    }

    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 50 {
            self.gateway.proxy.advance(50);
            for worker in &self.gateway.workers {
                worker.tick();
            }
            self.answer();
        }
    }

    /// Answers every call. Polls may go only to hosts that are members at this moment.
    fn answer(&mut self) {
        let proxy = &self.gateway.proxy;
        for call in proxy.calls().into_iter().filter(|call| call.cluster == ADMIN) {
            let asked = (call.at_ms, call.vm, call.headers.get(":path").expect("a path"));
            if self.asked.last() != Some(&asked) {
                self.asked.push(asked);
            }
            match &self.admin {
                Admin::Lists(members) => proxy.answer(&call, 200, clusters(members).as_bytes()),
                Admin::Says(status, body) => proxy.answer(&call, *status, body.as_bytes()),
                Admin::BreaksOff => proxy.break_off(&call),
                Admin::Silent => {}
            }
        }
        for call in proxy.calls().into_iter().filter(|call| call.cluster == CLUSTER) {
            let host = call.headers.get("x-upstream-host").expect("a named host");
            self.gateway.polls.push(call.clone());
            match self.gateway.engines.get(&host).unwrap_or(&Engine::IDLE) {
                Engine::Load { running, waiting } => {
                    proxy.answer(&call, 200, exposition(*running, *waiting).as_bytes());
                }
                Engine::Says(status, body) => proxy.answer(&call, *status, body.as_bytes()),
                Engine::BreaksOff => proxy.break_off(&call),
                Engine::Silent => {}
            }
        }
    }

    /// The admin says so from now on, and every worker has heard it.
    fn becomes(&mut self, members: Vec<Value>) {
        self.admin = Admin::Lists(members);
        self.run(1_200);
    }

    /// Where twenty new prompts go, from all workers.
    fn spread(&self, seed: usize) -> BTreeSet<String> {
        let workers = self.gateway.workers.iter().cycle();
        workers.take(20).enumerate().map(|(n, worker)| route_chat(worker, &text(seed + n, 2_000))).collect()
    }

    fn control(&self) -> Worker {
        let listens = json!({"cluster": CLUSTER, "control": true});
        self.gateway.proxy.worker(&listens.to_string()).expect("a good configuration")
    }

    fn failures(&self, why: &str) -> i64 {
        self.gateway.proxy.counter(&format!("kvroute_discovery_{why}_total"))
    }

    fn logged(&self, what: &str) -> usize {
        self.gateway.proxy.log().iter().filter(|line| line.text.contains(what)).count()
    }
}

fn ask(control: &Worker, path: &str) -> Value {
    let stream = control.request([(":method", "GET"), (":path", path), (":authority", "gateway")], true);
    let reply = stream.local_reply().expect("answered here");
    stream.finish();
    serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{path}: {}", reply.status))
}

fn hosts(range: std::ops::Range<usize>) -> BTreeSet<String> {
    range.map(host).collect()
}

#[test]
fn the_leader_asks_at_its_first_tick_and_until_then_envoy_decides() {
    let mut site = Site::new(2, 3);
    let stream = site.gateway.chat(&text(1, 2_000));
    assert_eq!(destinations(&stream), Vec::<String>::new());
    stream.respond(&host(1), 200, &[]);
    assert_eq!(reason(&stream), "no_hosts");
    stream.finish();
    site.run(50);
    let path = "/clusters?format=json&filter=%5Evllm%24".to_owned();
    assert_eq!(site.asked, [(site.gateway.proxy.now_ms(), 0, path)]);
    site.run(50);
    assert_eq!(site.spread(1), hosts(0..3));
    assert_eq!(site.logged("has come"), 3);
}

#[test]
fn one_worker_asks_for_all_once_in_an_interval() {
    let mut site = Site::new(4, 3);
    site.run(10_000);
    assert!((9..=11).contains(&site.asked.len()), "{:?}", site.asked);
    assert_eq!(site.asked.iter().map(|(_, vm, _)| vm).collect::<BTreeSet<_>>().len(), 1);
    assert_eq!(site.failures("ok"), site.asked.len() as i64);
}

#[test]
fn an_answer_that_took_long_is_not_asked_for_again_at_once() {
    let mut site = Site::new(1, 3);
    site.admin = Admin::Silent;
    site.run(1_000);
    site.admin = Admin::Lists(members(0..3));
    site.run(6_000);
    let [first, second, ..] = site.asked.as_slice() else { panic!("{:?}", site.asked) };
    assert!(second.0 - first.0 >= 4_000, "{:?}", site.asked);
}

#[test]
fn hosts_that_come_get_requests_and_hosts_that_leave_get_none_nor_polls() {
    let mut site = Site::settled(3, 3);
    assert_eq!(site.spread(0), hosts(0..3));
    site.becomes(members(0..5));
    site.run(1_000);
    assert_eq!(site.spread(100), hosts(0..5));
    site.becomes(members(3..5));
    site.gateway.polls.clear();
    site.run(3_000);
    assert_eq!(site.spread(200), hosts(3..5));
    let polled = site.gateway.polls.iter().map(|call| call.headers.get("x-upstream-host").expect("named"));
    assert_eq!(polled.collect::<BTreeSet<_>>(), hosts(3..5));
    assert_eq!(site.logged("has left"), 3);
}

#[test]
fn a_host_that_envoy_holds_something_against_gets_nothing_new_from_any_worker() {
    for flag in
        ["failed_active_health_check", "failed_outlier_check", "pending_active_hc", "pending_dynamic_removal"]
    {
        let mut site = Site::settled(2, 3);
        site.becomes(vec![member(&host(0)), ill(&host(1), flag), member(&host(2))]);
        assert_eq!(site.spread(0), [host(0), host(2)].into(), "{flag}");
        site.becomes(members(0..3));
        assert_eq!(site.spread(100), hosts(0..3), "{flag}");
    }
    for health in ["UNHEALTHY", "DRAINING", "DEGRADED"] {
        let mut site = Site::settled(2, 3);
        let prompts: Vec<String> = (0..9).map(|n| text(500 + n, 4_000)).collect();
        let homes: Vec<String> = prompts.iter().map(|prompt| site.gateway.route_chat(prompt)).collect();
        site.becomes(vec![member(&host(0)), eds(&host(1), health), member(&host(2))]);
        assert!(homes.contains(&host(1)));
        for prompt in &prompts {
            let stream = site.gateway.chat(prompt);
            assert!(!destinations(&stream).contains(&host(1)), "{health}: not even as a fallback");
            serve(&stream);
        }
    }
}

#[test]
fn streams_on_a_host_that_drains_end_normally_and_the_control_listener_says_so() {
    let mut site = Site::settled(1, 2);
    let open = site.gateway.chat(&text(1, 3_000));
    let leaving = destination(&open);
    begin_response(&open);
    let n = usize::from(leaving == host(1));
    let mut list = members(0..2);
    list[n] = eds(&leaving, "DRAINING");
    site.becomes(list);
    let control = site.control();
    let status = ask(&control, &format!("/kvroute/drain?host={leaving}"));
    assert_eq!(
        [&status["life"], &status["reason"], &status["draining"], &status["drained"], &status["in_flight"]],
        [&json!("draining"), &json!("Envoy says that it is to go"), &json!(true), &json!(false), &json!(1)]
    );
    open.response_body(b"data: [DONE]\n\n", true);
    open.finish();
    site.run(1_000);
    assert_eq!(ask(&control, &format!("/kvroute/drain?host={leaving}"))["drained"], true);
}

#[test]
fn while_the_admin_tells_nothing_the_last_list_stays_in_force_and_says_so() {
    let elsewhere =
        json!({"cluster_statuses": [{"name": "other", "host_statuses": members(7..9)}]}).to_string();
    let half = clusters(&members(0..3));
    for (why, admin) in [
        ("status", Admin::Says(503, "upstream connect error".to_owned())),
        ("timeout", Admin::Says(504, "upstream request timeout".to_owned())),
        ("status", Admin::Says(404, String::new())),
        ("status", Admin::BreaksOff),
        ("broken", Admin::Says(200, "<html>".to_owned())),
        ("broken", Admin::Says(200, String::new())),
        ("broken", Admin::Says(200, half[..half.len() / 2].to_owned())),
        ("unknown", Admin::Says(200, elsewhere)),
        ("timeout", Admin::Silent),
    ] {
        let mut site = Site::settled(2, 3);
        let control = site.control();
        let before = ask(&control, "/kvroute/status");
        assert_eq!(
            (&before["discovery"]["source"], &before["discovery"]["failures"]),
            (&json!("admin"), &json!(0))
        );
        site.admin = admin.clone();
        site.run(20_000);
        assert_eq!(site.spread(0), hosts(0..3), "{admin:?}");
        let failures = site.failures(why);
        assert!(failures >= 2, "{admin:?}: {failures}");
        assert_eq!(site.logged("which hosts there are is not told"), 1, "{admin:?}");
        let discovery = &ask(&control, "/kvroute/status")["discovery"];
        assert_eq!((&discovery["failures"], &discovery["failure"]), (&json!(failures), &json!(why)));
        assert!(discovery["age_ms"].as_u64().is_some_and(|age| age > 18_000), "{discovery}");
        site.becomes(members(0..4));
        site.run(8_000);
        assert_eq!(site.logged("hosts are known again"), 1, "{admin:?}");
        assert_eq!(site.spread(100), hosts(0..4));
        assert_eq!(ask(&control, "/kvroute/status")["discovery"]["failures"], 0);
    }
}

#[test]
fn a_call_that_envoy_does_not_take_is_an_outage_like_any_other() {
    let mut site = Site::settled(1, 3);
    site.gateway.proxy.fail("proxy_http_call", Status::InternalFailure);
    site.run(5_000);
    assert!(site.failures("refused") >= 4);
    assert_eq!(site.spread(0), hosts(0..3));
    site.gateway.proxy.heal();
    site.becomes(members(1..3));
    assert_eq!(site.spread(100), hosts(1..3));
}

#[test]
fn a_cluster_without_hosts_leaves_requests_to_envoy() {
    let mut site = Site::settled(2, 3);
    site.becomes(Vec::new());
    let stream = site.gateway.chat(&text(1, 2_000));
    assert_eq!(destinations(&stream), Vec::<String>::new());
    stream.respond_from_nowhere(503, [("content-type", "text/plain")]);
    stream.finish();
    assert_eq!(ask(&site.control(), "/kvroute/status")["hosts"], json!([]));
    site.becomes(members(0..3));
    assert_eq!(site.spread(1), hosts(0..3));
}

/// Envoy before 1.38 does not know `filter=`.
#[test]
fn an_answer_about_two_thousand_clusters_is_read_as_well_and_in_slices() {
    let mut site = Site::new(1, 3);
    let others = |from: usize| -> Vec<Value> {
        (from..from + 1_000)
            .map(|n| json!({"name": format!("vllm-{n}"), "host_statuses": members(0..8)}))
            .collect()
    };
    let ours = json!({"name": CLUSTER, "host_statuses": members(0..3)});
    let all = [others(0), vec![ours], others(1_000)].concat();
    let answer = json!({"cluster_statuses": all}).to_string();
    assert!(answer.len() > 2 << 20, "{}", answer.len());
    let slices = answer.len().div_ceil(64 << 10) as u64;
    site.admin = Admin::Says(200, answer);
    let before = site.gateway.proxy.traffic();
    site.run(50);
    let traffic = site.gateway.proxy.traffic().since(&before);
    assert_eq!(traffic.calls("proxy_get_buffer_bytes"), slices);
    site.run(50);
    assert_eq!(site.spread(0), hosts(0..3));
}

#[test]
fn a_worker_that_starts_anew_and_a_leader_that_follows_a_dead_one_go_on_with_the_last_list() {
    let mut site = Site::settled(2, 3);
    site.admin = Admin::Says(503, String::new());
    let leader = site.asked[0].1;
    site.gateway.workers.remove(leader).kill();
    let fresh = site.gateway.proxy.worker(&discovering(json!({}))).expect("a good configuration");
    assert_eq!((0..20).map(|n| route_chat(&fresh, &text(n, 2_000))).collect::<BTreeSet<_>>(), hosts(0..3));
    site.gateway.workers.push(fresh);
    site.run(5_000);
    assert!(site.asked.iter().any(|(_, vm, _)| *vm != leader), "another asks");
    assert_eq!(site.spread(100), hosts(0..3));
    assert_eq!(site.logged("has left"), 0);
}

#[test]
fn what_is_open_on_a_host_that_has_left_is_released_there_and_only_then_another_gets_its_slot() {
    let mut site = Site::settled(2, 1);
    let control = site.control();
    let open: Vec<Stream> = (0..2).map(|n| chat(&site.gateway.workers[n], &text(n, 4_000))).collect();
    open.iter().for_each(begin_response);
    site.becomes(members(5..6));
    let gone = ask(&control, &format!("/kvroute/drain?host={}", host(0)));
    assert_eq!((&gone["life"], &gone["in_flight"]), (&json!("gone"), &json!(2)));
    site.run(30_000);
    // Newcomers take new slots as long as it is not empty.
    site.becomes(members(5..7));
    assert_eq!(site.gateway.requests_in_flight(0), 2);
    let slot_of = |site: &Site, n: usize| {
        let in_flight = || [0, 1, 2].map(|slot| site.gateway.requests_in_flight(slot));
        let before = in_flight();
        let stream = site.gateway.chat(&text(900 + n, 2_000));
        let place = in_flight().iter().zip(before).position(|(now, before)| *now > before);
        serve(&stream);
        place
    };
    assert_ne!(slot_of(&site, 0), Some(0));
    open[0].response_body(b"data: {}\n\n", true);
    open[0].finish();
    assert_eq!(ask(&control, &format!("/kvroute/drain?host={}", host(0)))["in_flight"], 1);
    open[1].abort();
    assert_eq!(ask(&control, &format!("/kvroute/drain?host={}", host(0)))["in_flight"], 0);
    assert_eq!(site.gateway.in_flight(), []);
    site.run(2_000);
    site.becomes(members(7..8));
    assert_eq!(slot_of(&site, 1), Some(0), "now it is free");
    assert_eq!(site.gateway.in_flight(), []);
}

#[test]
fn whoever_takes_a_slot_begins_anew() {
    let mut site = Site::settled(1, 2);
    let prompts: Vec<String> = (0..12).map(|n| text(n, 4_000)).collect();
    let homes: Vec<String> = prompts.iter().map(|prompt| site.gateway.route_chat(prompt)).collect();
    assert!(homes.contains(&host(1)));
    site.becomes(members(0..1));
    site.run(15_000);
    site.becomes(vec![member(&host(0)), member(&host(8))]);
    site.run(1_000);
    let (mut cold, mut kept) = (0, 0);
    for (prompt, home) in prompts.iter().zip(&homes) {
        let stream = site.gateway.chat(prompt);
        begin_response(&stream);
        match reason(&stream).as_str() {
            "prefix" => kept += usize::from(*home == host(0)),
            "cold" => cold += usize::from(*home == host(1)),
            other => panic!("{other}"),
        }
        stream.finish();
    }
    assert_eq!(cold + kept, 12, "what the last one held, the next does not");
    assert!(
        site.gateway.proxy.gauges().iter().all(|(name, _)| !name.contains("slot_2_")),
        "the slot was given on"
    );
}

#[test]
fn a_host_that_returns_at_once_finds_its_slot_but_not_its_prefixes() {
    let mut site = Site::settled(1, 1);
    let open = site.gateway.chat(&text(1, 4_000));
    begin_response(&open);
    site.gateway.route_chat(&text(2, 4_000));
    site.becomes(members(3..4));
    site.becomes(members(0..1));
    assert_eq!(ask(&site.control(), "/kvroute/status")["hosts"][0]["in_flight"], 1, "the same slot");
    let stream = site.gateway.chat(&text(1, 4_000));
    begin_response(&stream);
    assert_eq!(reason(&stream), "cold", "a pod of the same address is another engine");
    stream.finish();
    open.finish();
    assert_eq!(site.gateway.in_flight(), []);
}

#[test]
fn what_a_worker_that_trapped_had_on_a_host_that_has_left_does_not_keep_its_slot_for_ever() {
    let mut site = Site::settled(2, 1);
    let open = chat(&site.gateway.workers[1], &text(1, 4_000));
    begin_response(&open);
    site.gateway.workers.remove(1).kill();
    site.becomes(members(2..3));
    assert_eq!(site.gateway.requests_in_flight(0), 1);
    site.run(40_000);
    assert_eq!(site.gateway.in_flight(), []);
    site.becomes(members(2..4));
    assert_eq!(site.spread(0), hosts(2..4));
    assert!(site.gateway.proxy.gauges().iter().all(|(name, _)| !name.contains("slot_2_")));
}

#[test]
fn a_day_of_pods_that_come_and_go_leaves_nothing_behind() {
    let mut site = Site::settled(2, 4);
    let address = |n: usize| format!("10.{}.{}.{}:8000", 1 + (n >> 16), (n >> 8) & 255, n & 255);
    let keys = site.gateway.proxy.shared_data_keys();
    let (mut most_metrics, mut value) = (0, 0);
    for step in 0..100 {
        // Fifty at a time, all of them new.
        let now: Vec<String> = (50 * step..50 * (step + 1)).map(address).collect();
        site.becomes(now.iter().map(|address| member(address)).collect());
        let open = site.gateway.chat(&text(step, 2_000));
        assert!(now.contains(&destination(&open)), "{step}");
        begin_response(&open);
        // One tick a second will do: the clock matters here, not what happens meanwhile.
        for _ in 0..11 {
            site.gateway.proxy.advance(950);
            site.run(50);
        }
        open.finish();
        let metrics = site.gateway.proxy.gauges().len() + site.gateway.proxy.counters().len();
        most_metrics = most_metrics.max(metrics);
        value = value.max(site.gateway.proxy.shared_data("kvroute/1/roster").expect("a roster").len());
    }
    assert_eq!(site.gateway.proxy.shared_data_keys(), keys);
    let slots = |name: &str| name.contains("_slot_") && name.ends_with("_inflight_requests");
    let slots = site.gateway.proxy.gauges().iter().filter(|(name, _)| slots(name)).count();
    assert!(slots <= 160, "{slots} slots for 50 hosts at a time");
    assert!(value < 8_192 && most_metrics < 1_500, "{value} bytes, {most_metrics} metrics");
    assert_eq!(site.gateway.in_flight(), []);
}

#[test]
fn an_update_may_change_where_hosts_come_from_and_back() {
    let mut site = Site::settled(2, 3);
    let control = site.control();
    let fixed = json!({"cluster": CLUSTER, "hosts": [host(1), host(7)]}).to_string();
    for worker in &site.gateway.workers {
        worker.update(&fixed).expect("a good configuration");
        worker.retire();
    }
    site.run(4_000);
    site.asked.clear();
    site.run(2_000);
    assert_eq!((site.spread(0), site.asked.len()), ([host(1), host(7)].into(), 0));
    assert_eq!(ask(&control, "/kvroute/status")["discovery"], Value::Null);
    for worker in &site.gateway.workers {
        worker.update(&discovering(json!({}))).expect("a good configuration");
        worker.retire();
    }
    site.run(4_000);
    assert_eq!(site.spread(100), hosts(0..3));
}

/// By name, where the filter is built for it.
#[cfg(feature = "dns")]
mod dns {
    use super::*;

    const NAME: &str = "vllm-headless.ns.svc";

    fn gateway(workers: usize) -> Gateway {
        let config =
            json!({"cluster": CLUSTER, "discover": {"dns": NAME, "port": 8000}, "debug_headers": true});
        Gateway::with_config(workers, 3, &config.to_string())
    }

    fn run(gateway: &mut Gateway, milliseconds: u64) {
        for _ in 0..milliseconds / 50 {
            gateway.run(50);
            gateway.proxy.answer_lookups();
        }
    }

    fn spread(gateway: &Gateway, seed: usize) -> BTreeSet<String> {
        let workers = gateway.workers.iter().cycle();
        workers.take(20).enumerate().map(|(n, worker)| route_chat(worker, &text(seed + n, 2_000))).collect()
    }

    #[test]
    fn a_headless_name_lists_the_hosts_whether_the_answer_comes_at_once_or_later() {
        for at_once in [true, false] {
            let mut gateway = gateway(2);
            gateway.proxy.resolves(NAME, &["10.0.0.2:0", "10.0.0.1:0"], at_once);
            run(&mut gateway, 200);
            assert_eq!(spread(&gateway, 0), hosts(0..2), "{at_once}");
            gateway.proxy.resolves(NAME, &["10.0.0.3:0", "10.0.0.2:0"], at_once);
            run(&mut gateway, 6_000);
            assert_eq!(spread(&gateway, 100), hosts(1..3), "{at_once}");
            // The name resolves no more.
            gateway.proxy.resolves(NAME, &[], at_once);
            run(&mut gateway, 12_000);
            assert_eq!(spread(&gateway, 200), hosts(1..3), "{at_once}");
            assert!(gateway.proxy.counter("kvroute_discovery_unknown_total") >= 2);
        }
    }

    #[test]
    fn a_resolver_that_never_answers_is_asked_again() {
        let mut gateway = gateway(1);
        run(&mut gateway, 10_000);
        assert!(gateway.proxy.counter("kvroute_discovery_timeout_total") >= 1);
        gateway.proxy.resolves(NAME, &["10.0.0.1:0"], false);
        run(&mut gateway, 8_000);
        assert_eq!(spread(&gateway, 0), hosts(0..1));
    }
}
