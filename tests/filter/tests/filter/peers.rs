//! Several gateways, each a process of its own, tell each other what they placed and what they have in flight;
//! whatever goes wrong between them costs hits and nothing else.

use fake_proxy::{HttpCall, LocalReply, Options, Status, Stream, Worker};
use kvroute::core::fleet::Part;
use kvroute::core::snapshot::Snapshot;
use serde_json::{json, Value};

use crate::gateway::{
    begin_response, chat, config, destination, exposition, host, reason, route_chat, serve, text, Gateway,
    CLUSTER,
};

const HOSTS: usize = 4;
const PEERS: &str = "kvroute_peers";
const SECRET: &str = "correct-horse-battery";
const JOURNAL: &str = "kvroute/1/peers/vllm";
const HEARD: &str = "kvroute/1/heard/vllm";
const SNAPSHOT: &str = "kvroute/1/fleet/vllm";

/// Bytes of a prompt that has a few blocks.
const PROMPT: usize = 3_000;

/// Long enough for a placement to reach every worker of every gateway: two intervals, and some ticks.
const EXCHANGED: u64 = 500;

/// Long enough for a gateway that says nothing to be taken for dead.
const SILENT: u64 = 3_300;

fn address(n: usize) -> String {
    format!("10.1.0.{}:9091", n + 1)
}

fn peers_of(gateways: usize, secret: &str) -> Value {
    let hosts: Vec<String> = (0..gateways).map(address).collect();
    json!({ "cluster": PEERS, "hosts": hosts, "secret": secret })
}

/// A gateway with a control listener.
struct Member {
    gateway: Gateway,
    control: Worker,
    /// Whether the others reach it, and it them.
    connected: bool,
    /// What it answers in place of its journal.
    says: Option<(u32, Vec<u8>)>,
    /// Bytes that it was answered by its peers.
    heard_bytes: usize,
}

impl Member {
    fn new(workers: usize, gateways: usize, secret: &str) -> Self {
        let routes = config(HOSTS, json!({ "peers": peers_of(gateways, secret) }));
        let options = Options { clusters: vec![CLUSTER.to_owned(), PEERS.to_owned()], ..Options::default() };
        let gateway = Gateway::with_options(workers, HOSTS, &routes, options);
        let answers = json!({ "cluster": CLUSTER, "control": true, "peers": { "secret": secret } });
        let control = gateway.proxy.worker(&answers.to_string()).expect("a good configuration");
        Self { gateway, control, connected: true, says: None, heard_bytes: 0 }
    }

    fn worker(&self, n: usize) -> &Worker {
        &self.gateway.workers[n]
    }

    /// What the control listener answers.
    fn control(&self, method: &str, path: &str, authorization: &str) -> LocalReply {
        let headers = [
            (":method", method),
            (":path", path),
            (":authority", "gateway"),
            ("authorization", authorization),
        ];
        let stream = self.control.request(headers, true);
        let reply = stream.local_reply().expect("answered here");
        stream.finish();
        reply
    }

    /// What a peer is answered.
    fn answer(&self, call: &HttpCall) -> (u32, Vec<u8>) {
        let header = |name: &str| call.headers.get(name).expect("a complete call");
        let reply = self.control(&header(":method"), &header(":path"), &header("authorization"));
        self.says.clone().unwrap_or((reply.status, reply.body))
    }

    fn count(&self, what: &str) -> i64 {
        self.gateway.proxy.counter(&format!("kvroute_peers_{what}_total"))
    }

    /// What its gauges say that others have on a host.
    fn told(&self, slot: usize) -> (i64, i64) {
        let gauge = |what: &str| self.gateway.proxy.gauge(&format!("kvroute_slot_{slot}_peer_{what}"));
        (gauge("requests"), gauge("prefill_tokens"))
    }

    /// Requests that others have on all hosts.
    fn told_requests(&self) -> i64 {
        (0..HOSTS).map(|slot| self.told(slot).0).sum()
    }

    /// Which hosts it fills first.
    fn part(&self) -> Part {
        let value = self.gateway.proxy.shared_data(SNAPSHOT).expect("published");
        Snapshot::decode(&value).expect("a snapshot").part
    }

    /// The worker that leads, in the order of their creation.
    fn leader(&self) -> usize {
        let calls = |worker: usize| {
            let lines = self.gateway.polls.iter().rev().take(1);
            lines.filter(move |call| call.vm == worker).count()
        };
        (0..8).find(|worker| calls(*worker) > 0).expect("somebody polls")
    }
}

/// Gateways that know each other.
struct Mesh {
    members: Vec<Member>,
}

impl Mesh {
    /// So many gateways of two workers, all of which list all, themselves included.
    fn new(gateways: usize) -> Self {
        Self { members: (0..gateways).map(|_| Member::new(2, gateways, SECRET)).collect() }
    }

    /// Lets time pass for all: every 50 ms all workers tick, engines and peers answer.
    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 50 {
            (0..self.members.len()).for_each(|n| self.tick(n));
        }
    }

    /// Lets 50 ms pass for one.
    fn tick(&mut self, n: usize) {
        let gateway = &self.members[n].gateway;
        gateway.proxy.advance(50);
        gateway.workers.iter().for_each(Worker::tick);
        for call in gateway.proxy.calls() {
            self.deliver(n, &call);
        }
    }

    fn deliver(&mut self, n: usize, call: &HttpCall) {
        let (status, body) = if call.cluster == PEERS {
            let named = call.headers.get("x-upstream-host").expect("a named peer");
            let peer = (0..self.members.len()).find(|peer| address(*peer) == named).expect("a peer");
            if self.members[n].connected && self.members[peer].connected {
                self.members[peer].answer(call)
            } else {
                (503, b"upstream connect error".to_vec())
            }
        } else {
            self.members[n].gateway.polls.push(call.clone());
            (200, exposition(0, 0).into_bytes())
        };
        self.members[n].heard_bytes += if call.cluster == PEERS { body.len() } else { 0 };
        self.members[n].gateway.proxy.answer(call, status, &body);
    }

    fn settled(gateways: usize) -> Self {
        let mut mesh = Self::new(gateways);
        mesh.run(1_000);
        mesh
    }

    fn assert_sound(&self) {
        for member in &self.members {
            assert_eq!(member.gateway.panics(), Vec::<String>::new());
            assert_eq!(member.gateway.in_flight(), []);
        }
    }
}

/// A whole chat on a worker: where it went, and why.
fn ask(worker: &Worker, prompt: &str) -> (String, String) {
    let stream = chat(worker, prompt);
    begin_response(&stream);
    let asked = (destination(&stream), reason(&stream));
    stream.response_body(b"data: [DONE]\n\n", true);
    stream.finish();
    asked
}

/// Prompts that no other `seed` shares a block with.
fn prompts(seed: usize) -> Vec<String> {
    (0..10).map(|n| text(100 * seed + n, PROMPT)).collect()
}

/// Places prompts on both workers of a gateway; answers where.
fn place(member: &Member, prompts: &[String]) -> Vec<String> {
    let workers = [member.worker(0), member.worker(1)];
    prompts
        .iter()
        .zip(workers.into_iter().cycle())
        .map(|(prompt, worker)| route_chat(worker, prompt))
        .collect()
}

/// How many of the prompts a worker sends where they were placed, because it knows that.
fn known(worker: &Worker, prompts: &[String], placed: &[String]) -> usize {
    let is_known =
        |(prompt, host): &(&String, &String)| ask(worker, prompt) == ((*host).clone(), "prefix".to_owned());
    prompts.iter().zip(placed).filter(is_known).count()
}

#[test]
fn what_one_gateway_placed_every_worker_of_the_others_knows() {
    let mut mesh = Mesh::settled(3);
    let prompts = prompts(1);
    let placed = place(&mesh.members[0], &prompts);
    mesh.run(EXCHANGED);
    assert_eq!(known(mesh.members[1].worker(0), &prompts, &placed), prompts.len());
    assert_eq!(known(mesh.members[1].worker(1), &prompts, &placed), prompts.len());
    assert_eq!(known(mesh.members[2].worker(0), &prompts, &placed), prompts.len());
    // Without the exchange nobody would: that is what makes the above mean something.
    let strangers = Mesh::settled(1);
    assert_eq!(known(strangers.members[0].worker(0), &prompts, &placed), 0);
    mesh.assert_sound();
}

#[test]
fn a_placement_is_told_once_and_not_told_on() {
    let mut mesh = Mesh::settled(3);
    place(&mesh.members[0], &prompts(1));
    mesh.run(10_000);
    let heard: Vec<i64> = mesh.members.iter().map(|member| member.count("placements")).collect();
    assert_eq!(heard, [0, 10, 10]);
    // One that lists itself asks itself too, and hears nothing.
    assert!(mesh.members[0].count("pulled") >= 3 * 10);
    assert_eq!(mesh.members[0].count("refused"), 0);
}

#[test]
fn each_peer_is_asked_once_an_interval_by_one_worker() {
    let mut mesh = Mesh::settled(3);
    let before = mesh.members[0].count("pulled");
    mesh.run(10_000);
    let pulled = mesh.members[0].count("pulled") - before;
    assert!((285..=315).contains(&pulled), "{pulled}");
}

#[test]
fn a_peer_that_does_not_answer_is_not_asked_again_meanwhile() {
    let member = Member::new(2, 2, SECRET);
    for _ in 0..100 {
        member.gateway.proxy.advance(50);
        member.gateway.workers.iter().for_each(Worker::tick);
    }
    let calls = member.gateway.proxy.calls().into_iter().filter(|call| call.cluster == PEERS);
    let mut asked: Vec<Option<String>> = calls.map(|call| call.headers.get("x-upstream-host")).collect();
    asked.sort();
    assert_eq!(asked, [Some(address(0)), Some(address(1))]);
}

#[test]
fn a_gateway_with_another_secret_learns_nothing_and_tells_nothing() {
    let mut mesh = Mesh::settled(2);
    mesh.members.push(Member::new(2, 3, "another-secret-altogether"));
    let (before, after) = (prompts(1), prompts(2));
    let placed = place(&mesh.members[0], &before);
    let told = place(&mesh.members[2], &after);
    mesh.run(2 * EXCHANGED);
    assert_eq!(known(mesh.members[2].worker(0), &before, &placed), 0);
    assert_eq!(known(mesh.members[0].worker(0), &after, &told), 0);
    assert_eq!(mesh.members[2].count("placements"), 0);
    assert!(mesh.members[2].count("refused") > 0);
    let log = mesh.members[2].gateway.proxy.log();
    let warnings: Vec<_> = log.iter().filter(|line| line.text.contains("secret")).collect();
    assert_eq!(warnings.len(), 2, "one for each peer: {warnings:?}");
    assert!(!log.iter().any(|line| line.text.contains("another-secret-altogether")));
    mesh.assert_sound();
}

#[test]
fn answers_that_are_no_journal_are_refused() {
    let mut mesh = Mesh::settled(2);
    mesh.members[0].says = Some((200, b"nonsense".to_vec()));
    place(&mesh.members[0], &prompts(1));
    mesh.run(1_000);
    let mut half = mesh.members[0].gateway.proxy.shared_data(JOURNAL).expect("published");
    half.truncate(half.len() / 2);
    for body in [b"".to_vec(), b"<html>".to_vec(), vec![1; 100], vec![1; 3 << 20], half] {
        let before = mesh.members[1].count("refused");
        mesh.members[0].says = Some((200, body));
        mesh.run(2_000);
        assert!(mesh.members[1].count("refused") > before);
    }
    assert_eq!(mesh.members[1].count("placements"), 0);
    mesh.members[0].says = None;
    let prompts = prompts(2);
    let placed = place(&mesh.members[0], &prompts);
    mesh.run(EXCHANGED);
    assert_eq!(known(mesh.members[1].worker(1), &prompts, &placed), prompts.len());
    mesh.assert_sound();
}

#[test]
fn a_partition_costs_what_was_placed_too_long_ago_and_no_more() {
    let mut mesh = Mesh::settled(2);
    mesh.members[0].connected = false;
    let lost = prompts(1);
    place(&mesh.members[0], &lost);
    mesh.run(20_000);
    let failed = mesh.members[1].count("failed");
    assert!(failed >= 15, "{failed}");
    let prompts = prompts(2);
    let placed = place(&mesh.members[0], &prompts);
    mesh.members[0].connected = true;
    mesh.run(EXCHANGED);
    assert_eq!(known(mesh.members[1].worker(0), &prompts, &placed), prompts.len());
    let log = mesh.members[1].gateway.proxy.log();
    assert_eq!(log.iter().filter(|line| line.text.contains("tells nothing")).count(), 1);
    mesh.assert_sound();
}

#[test]
fn a_restarted_gateway_is_heard_and_hears() {
    let mut mesh = Mesh::settled(2);
    place(&mesh.members[0], &prompts(1));
    mesh.run(EXCHANGED);
    // Another process at the same address, whose batches begin at 1 again.
    mesh.members[0] = Member::new(2, 2, SECRET);
    mesh.run(1_000);
    let (theirs, ours) = (prompts(2), prompts(3));
    let placed = (place(&mesh.members[0], &theirs), place(&mesh.members[1], &ours));
    mesh.run(EXCHANGED);
    assert_eq!(known(mesh.members[1].worker(1), &theirs, &placed.0), theirs.len());
    assert_eq!(known(mesh.members[0].worker(1), &ours, &placed.1), ours.len());
    mesh.assert_sound();
}

#[test]
fn clocks_that_disagree_by_hours_change_nothing() {
    let mut mesh = Mesh::new(2);
    mesh.members[0].gateway.proxy.advance(7 * 3_600_000 + 123);
    mesh.run(1_000);
    let (theirs, ours) = (prompts(2), prompts(3));
    let placed = (place(&mesh.members[0], &theirs), place(&mesh.members[1], &ours));
    mesh.run(EXCHANGED);
    assert_eq!(known(mesh.members[1].worker(1), &theirs, &placed.0), theirs.len());
    assert_eq!(known(mesh.members[0].worker(1), &ours, &placed.1), ours.len());
}

#[test]
fn when_the_lead_moves_the_exchange_goes_on() {
    let mut mesh = Mesh::settled(2);
    place(&mesh.members[0], &prompts(1));
    mesh.run(6_000);
    let heard = mesh.members[1].count("placements");
    for member in &mut mesh.members {
        let leader = member.leader();
        member.gateway.workers.remove(leader).kill();
    }
    mesh.run(4_000);
    assert_eq!(mesh.members[1].count("placements"), heard, "nothing is told a second time");
    let prompts = prompts(2);
    let survivor = mesh.members[0].worker(0);
    let placed: Vec<String> = prompts.iter().map(|prompt| route_chat(survivor, prompt)).collect();
    mesh.run(EXCHANGED);
    assert_eq!(known(mesh.members[1].worker(0), &prompts, &placed), prompts.len());
    mesh.assert_sound();
}

#[test]
fn an_update_does_not_end_the_exchange() {
    let mut mesh = Mesh::settled(2);
    let update = config(HOSTS, json!({ "candidates": 2, "peers": peers_of(2, SECRET) }));
    for worker in &mesh.members[0].gateway.workers {
        worker.update(&update).expect("a good configuration");
    }
    mesh.run(3_000);
    let (theirs, ours) = (prompts(2), prompts(3));
    let placed = (place(&mesh.members[0], &theirs), place(&mesh.members[1], &ours));
    mesh.run(EXCHANGED);
    assert_eq!(known(mesh.members[1].worker(1), &theirs, &placed.0), theirs.len());
    assert_eq!(known(mesh.members[0].worker(1), &ours, &placed.1), ours.len());
}

#[test]
fn bytes_and_keys_stay_bounded_however_much_is_placed() {
    let mut mesh = Mesh::settled(2);
    let keys = mesh.members[0].gateway.proxy.shared_data_keys();
    for seed in 0..20 {
        for n in 0..30 {
            route_chat(mesh.members[0].worker(n % 2), &text(1_000 + 30 * seed + n, 60_000));
        }
        mesh.run(500);
    }
    mesh.run(EXCHANGED);
    for member in &mesh.members {
        let proxy = &member.gateway.proxy;
        assert_eq!(
            proxy.shared_data_keys().len(),
            keys.len() + usize::from(proxy.shared_data(HEARD).is_some())
        );
        let bytes = |key: &str| proxy.shared_data(key).map_or(0, |value| value.len());
        assert!(bytes(JOURNAL) < 300 << 10 && bytes(HEARD) < 70 << 10, "{} {}", bytes(JOURNAL), bytes(HEARD));
    }
    assert!(mesh.members[1].count("placements") > 0);
    // Quiet peers are not told the same again and again.
    mesh.members[1].heard_bytes = 0;
    mesh.run(10_000);
    assert!(mesh.members[1].heard_bytes < 10 << 10, "{}", mesh.members[1].heard_bytes);
    mesh.assert_sound();
}

#[test]
fn a_request_costs_two_reads_a_host_more_with_peers_and_nothing_without() {
    let prompt = text(1, PROMPT);
    let cost = |gateway: &Gateway| {
        let before = gateway.proxy.traffic();
        route_chat(gateway.worker(), &prompt);
        let traffic = gateway.proxy.traffic().since(&before);
        let reads = traffic.calls("proxy_get_metric");
        (reads, traffic.all_calls() - reads)
    };
    let mesh = Mesh::settled(1);
    let mut alone = Gateway::with_workers(2, HOSTS);
    alone.run(1_000);
    let (reads, calls) = cost(&alone);
    // Four a host, and the mark of the one that is chosen for a cold prompt.
    assert_eq!(reads, 4 * HOSTS as u64 + 1);
    // But for the gauges of what peers have in flight.
    assert_eq!(cost(&mesh.members[0].gateway), (6 * HOSTS as u64 + 1, calls));
    let names = alone.proxy.gauges().into_iter().filter(|(name, _)| name.contains("_peer_"));
    assert_eq!(names.count(), 0, "without peers");
}

/// Begins so many requests on a worker that no host has seen.
fn begin(worker: &Worker, seed: usize, count: usize) -> Vec<Stream> {
    (0..count).map(|n| chat(worker, &text(seed + n, PROMPT))).collect()
}

#[test]
fn what_a_gateway_has_in_flight_the_others_gauges_follow() {
    let mut mesh = Mesh::settled(3);
    let streams: Vec<Vec<Stream>> =
        [0, 1].map(|n| begin(mesh.members[n].worker(n), 10 * n, 4)).into_iter().collect();
    mesh.run(200);
    let all: Vec<&Stream> = streams.iter().flatten().collect();
    for slot in 0..HOSTS {
        let here = all.iter().filter(|stream| destination(stream) == host(slot)).count() as i64;
        assert_eq!(mesh.members[2].told(slot).0, here);
        assert_eq!(mesh.members[2].told(slot).1 > 0, here > 0);
    }
    assert_eq!((mesh.members[0].told_requests(), mesh.members[1].told_requests()), (4, 4), "not their own");
    // The first bytes have come: nothing waits any more, and all still run.
    for stream in &all {
        begin_response(stream);
        stream.response_body(b"data: {}\n\n", false);
    }
    mesh.run(200);
    assert_eq!(mesh.members[2].told_requests(), 8);
    assert!((0..HOSTS).all(|slot| mesh.members[2].told(slot).1 == 0));
    all.iter().for_each(|stream| stream.finish());
    mesh.run(200);
    assert!(mesh.members.iter().all(|member| member.told_requests() == 0));
    mesh.assert_sound();
}

#[test]
fn what_is_told_is_in_flight_now_not_at_the_last_tick() {
    let mut mesh = Mesh::settled(2);
    let streams = begin(mesh.members[0].worker(1), 0, 3);
    // Nothing ticks in the gateway that is asked.
    (0..3).for_each(|_| mesh.tick(1));
    assert_eq!(mesh.members[1].told_requests(), 3);
    streams.iter().for_each(serve);
    (0..3).for_each(|_| mesh.tick(1));
    assert_eq!(mesh.members[1].told_requests(), 0);
}

#[test]
fn a_gateway_avoids_what_another_has_loaded() {
    let mut mesh = Mesh::settled(2);
    let loaded = begin(mesh.members[0].worker(0), 0, 1);
    let named = destination(&loaded[0]);
    let _others: Vec<Stream> = (0..12).map(|_| chat(mesh.members[0].worker(0), &text(0, PROMPT))).collect();
    mesh.run(200);
    for n in 0..20 {
        assert_ne!(route_chat(mesh.members[1].worker(n % 2), &text(100 + n, PROMPT)), named);
    }
}

#[test]
fn a_gateway_that_falls_silent_has_nothing_in_flight_after_some_time() {
    let mut mesh = Mesh::settled(2);
    let streams = begin(mesh.members[0].worker(0), 0, 5);
    mesh.run(200);
    mesh.members[0].connected = false;
    mesh.run(2_500);
    assert_eq!(mesh.members[1].told_requests(), 5, "it may only have missed a few askings");
    mesh.run(1_000);
    assert_eq!(mesh.members[1].told_requests(), 0);
    mesh.members[0].connected = true;
    mesh.run(200);
    assert_eq!(mesh.members[1].told_requests(), 5);
    streams.iter().for_each(serve);
}

#[test]
fn gateways_part_the_hosts_among_those_that_are_alive() {
    let mut mesh = Mesh::settled(3);
    let parts = |mesh: &Mesh| {
        let mut parts: Vec<(u16, u16)> =
            mesh.members.iter().map(|member| member.part()).map(|part| (part.rank, part.of)).collect();
        parts.sort_unstable();
        parts
    };
    assert_eq!(parts(&mesh), [(0, 3), (1, 3), (2, 3)]);
    mesh.members[1].connected = false;
    mesh.run(SILENT);
    assert_eq!(mesh.members[1].part(), Part::ALL);
    assert_eq!(parts(&mesh), [(0, 1), (0, 2), (1, 2)]);
    mesh.members[1].connected = true;
    mesh.run(300);
    assert_eq!(parts(&mesh), [(0, 3), (1, 3), (2, 3)]);
}

#[test]
fn a_new_leader_goes_on_with_the_part_and_the_gauges() {
    let mut mesh = Mesh::settled(2);
    let part = mesh.members[1].part();
    assert_eq!(part.of, 2);
    let streams = begin(mesh.members[0].worker(0), 0, 5);
    mesh.run(200);
    let leader = mesh.members[1].leader();
    mesh.members[1].gateway.workers.remove(leader).kill();
    streams[0].finish();
    for _ in 0..80 {
        mesh.run(50);
        assert_eq!(mesh.members[1].part(), part);
    }
    assert_eq!(mesh.members[1].told_requests(), 4);
    streams[1..].iter().for_each(Stream::finish);
    mesh.run(200);
    assert_eq!(mesh.members[1].told_requests(), 0);
}

#[test]
fn without_peers_any_more_there_is_nothing_in_flight_elsewhere() {
    let mut mesh = Mesh::settled(2);
    let streams = begin(mesh.members[0].worker(0), 0, 5);
    mesh.run(200);
    assert_eq!(mesh.members[1].told_requests(), 5);
    let alone = config(HOSTS, json!({}));
    for worker in &mesh.members[1].gateway.workers {
        worker.update(&alone).expect("a good configuration");
    }
    mesh.run(200);
    assert_eq!((mesh.members[1].told_requests(), mesh.members[1].part()), (0, Part::ALL));
    streams.iter().for_each(serve);
}

#[test]
fn an_engines_requests_that_peers_told_are_not_foreign() {
    let mut mesh = Mesh::settled(2);
    let streams = begin(mesh.members[0].worker(0), 0, 8);
    for _ in 0..40 {
        mesh.run(50);
        let value = mesh.members[1].gateway.proxy.shared_data(SNAPSHOT).expect("published");
        let snapshot = Snapshot::decode(&value).expect("a snapshot");
        let known: u32 = snapshot.hosts.iter().map(|entry| entry.polled.known_requests).sum();
        if known == 8 {
            streams.iter().for_each(serve);
            return;
        }
    }
    panic!("polls do not know what peers told");
}

/// Whatever Envoy refuses, nothing panics and nobody is let in or through.
#[test]
fn a_control_listener_whose_calls_are_refused_tells_nothing_that_it_should_not() {
    let mesh = Mesh::settled(1);
    let member = &mesh.members[0];
    let functions = ["proxy_get_header_map_value", "proxy_get_shared_data", "proxy_send_local_response"];
    for (function, told) in functions.into_iter().zip([Some(401), Some(503), None]) {
        for status in [Status::BadArgument, Status::NotFound, Status::InternalFailure, Status::Ok] {
            member.gateway.proxy.fail(function, status);
            let bearer = format!("Bearer {SECRET}");
            let headers = [(":method", "GET"), (":path", "/kvroute/journal"), ("authorization", &bearer)];
            let stream = member.control.request(headers, true);
            assert_eq!(stream.local_reply().map(|reply| reply.status), told, "{function} {status:?}");
            assert!(told.is_some() || stream.is_held(), "{function} {status:?}");
            stream.finish();
            member.gateway.proxy.heal();
        }
    }
    assert_eq!(member.gateway.panics(), Vec::<String>::new());
}

#[test]
fn the_control_listener_answers_those_who_know_the_secret() {
    let mesh = Mesh::settled(1);
    let member = &mesh.members[0];
    let bearer = format!("Bearer {SECRET}");
    let all = member.control("GET", "/kvroute/journal", &bearer);
    assert_eq!(all.status, 200);
    assert!(all.body.len() < 20, "nothing has happened: {:?}", all.body);
    for query in ["", "?", "?after=7", "?gateway=x&after=y", "?after=99999999999999999999999&gateway=1"] {
        assert_eq!(
            member.control("GET", &format!("/kvroute/journal{query}"), &bearer).status,
            200,
            "{query}"
        );
    }
    for (method, path, authorization, status) in [
        ("GET", "/kvroute/journal", "", 401),
        ("GET", "/kvroute/journal", SECRET, 401),
        ("GET", "/kvroute/journal", "Bearer correct-horse-batterx", 401),
        ("GET", "/nothing", "", 401),
        ("GET", "/nothing", bearer.as_str(), 404),
        ("GET", "/kvroute/journal/", bearer.as_str(), 404),
        ("GET", "/", bearer.as_str(), 404),
        ("POST", "/kvroute/journal", bearer.as_str(), 405),
        ("DELETE", "/kvroute/journal", bearer.as_str(), 405),
    ] {
        let reply = member.control(method, path, authorization);
        assert_eq!(reply.status, status, "{method} {path} {authorization}");
        assert!(!String::from_utf8_lossy(&reply.body).contains(SECRET));
    }
}

#[test]
fn a_control_listener_of_a_cluster_that_nobody_routes_says_so() {
    let proxy = Gateway::empty();
    let answers = json!({ "cluster": "other", "control": true, "peers": { "secret": SECRET } });
    let control = proxy.worker(&answers.to_string()).expect("a good configuration");
    assert_eq!(control.tick_period_ms(), 0, "it has nothing to do");
    let authorization = format!("Bearer {SECRET}");
    let headers =
        [(":method", "GET"), (":path", "/kvroute/journal"), ("authorization", authorization.as_str())];
    let stream = control.request(headers, true);
    assert_eq!(stream.local_reply().map(|reply| reply.status), Some(503));
    // A request with a body is answered at once, too.
    let headers =
        [(":method", "POST"), (":path", "/kvroute/journal"), ("authorization", authorization.as_str())];
    let stream = control.request(headers, false);
    assert_eq!(stream.local_reply().map(|reply| reply.status), Some(405));
}

#[test]
fn whatever_fails_in_envoy_requests_are_served() {
    for function in
        ["proxy_http_call", "proxy_get_shared_data", "proxy_set_shared_data", "proxy_send_local_response"]
    {
        let mut mesh = Mesh::settled(2);
        mesh.members[0].gateway.proxy.fail(function, fake_proxy::Status::InternalFailure);
        for _ in 0..40 {
            mesh.members[0].gateway.proxy.advance(50);
            mesh.members[0].gateway.workers.iter().for_each(Worker::tick);
        }
        let (host, _) = ask(mesh.members[0].worker(0), &text(1, PROMPT));
        assert!(!host.is_empty(), "{function}");
        mesh.members[0].gateway.proxy.heal();
        for call in mesh.members[0].gateway.proxy.calls() {
            mesh.deliver(0, &call);
        }
        let prompts = prompts(2);
        mesh.run(3_000);
        let placed = place(&mesh.members[1], &prompts);
        mesh.run(EXCHANGED);
        assert_eq!(known(mesh.members[0].worker(1), &prompts, &placed), prompts.len(), "{function}");
        assert_eq!(mesh.members[0].gateway.panics(), Vec::<String>::new());
    }
}
