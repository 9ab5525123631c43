//! What is held against a host, by whom, and how often it is asked all the same.

use fake_proxy::{Stream, Worker};
use serde_json::{json, Value};

use crate::gateway::{
    begin_response, chat, chat_headers, destination, destinations, host, route_chat, serve, text, Engine,
    Gateway, CLUSTER,
};

/// Envoy's response flags.
const NO_CONNECTION: u64 = 0x20;
const OVERFLOW: u64 = 0x80;
const UPSTREAM_TIMEOUT: u64 = 0x4;
const RESET: u64 = 0x40;

/// A page of vLLM's, with its count of steps.
fn page(running: u32, steps: u64) -> Engine {
    let page = format!(
        "vllm:num_requests_running{{engine=\"0\"}} {running}\n\
         vllm:num_requests_waiting{{engine=\"0\"}} 0\n\
         vllm:iteration_tokens_total_count{{engine=\"0\"}} {steps}\n"
    );
    Engine::Says(200, page)
}

fn control(gateway: &Gateway) -> Worker {
    let listens = json!({ "cluster": CLUSTER, "control": true }).to_string();
    gateway.proxy.worker(&listens).expect("a good configuration")
}

/// How a host is, by the control listener.
fn status(control: &Worker, n: usize) -> Value {
    let stream =
        control.request([(":method", "GET"), (":path", "/kvroute/status"), (":authority", "gateway")], true);
    let reply = stream.local_reply().expect("answered here");
    stream.finish();
    let status: Value = serde_json::from_slice(&reply.body).expect("JSON");
    status["hosts"][n].clone()
}

fn failures(gateway: &mut Gateway) -> i64 {
    gateway.run(100);
    gateway.proxy.counter("kvroute_host_failures_total")
}

/// Requests at the same time that host 1 is the first to get.
fn for_host_1(gateway: &Gateway, seed: &mut usize, count: usize) -> Vec<Stream> {
    let (mut there, mut elsewhere) = (Vec::new(), Vec::new());
    while there.len() < count {
        *seed += 1;
        let stream = gateway.chat(&text(*seed, 1_500));
        if destination(&stream) == host(1) { &mut there } else { &mut elsewhere }.push(stream);
        assert!(elsewhere.len() < 20 * count, "it gets nothing");
    }
    elsewhere.iter().for_each(serve);
    there
}

fn one_for_host_1(gateway: &Gateway, seed: &mut usize) -> Stream {
    for_host_1(gateway, seed, 1).remove(0)
}

#[test]
fn each_kind_of_failure_counts_once_and_is_said_in_words() {
    let aborted =
        "{\"choices\":[{\"text\":\"\",\"finish_reason\":\"abort\"}],\"usage\":{\"completion_tokens\":0}}";
    type Fails<'a> = &'a dyn Fn(&Stream);
    let kinds: [(&str, Fails); 8] = [
        ("no connection could be made", &|stream| {
            stream.fail(Some(&host(1)), 503, NO_CONNECTION);
            stream.finish();
        }),
        ("its last requests were broken off before they were answered", &|stream| {
            stream.fail(Some(&host(1)), 503, RESET);
            stream.finish();
        }),
        ("its last answers were broken off", &|stream| {
            begin_response(stream);
            stream.response_body(b"data: {}\n\n", false);
            stream.reset_by_upstream();
        }),
        ("its last requests were not answered in time", &|stream| {
            stream.fail(Some(&host(1)), 504, UPSTREAM_TIMEOUT);
            stream.finish();
        }),
        ("its last requests were not answered in time", &|stream| {
            begin_response(stream);
            stream.set_property(&["response", "flags"], &UPSTREAM_TIMEOUT.to_le_bytes());
            stream.finish();
        }),
        ("its last requests were answered 5xx", &|stream| {
            stream.respond(&host(1), 500, &[]);
            stream.response_body(b"{}", true);
            stream.finish();
        }),
        ("its last requests had to be sent to another", &|stream| {
            stream.respond_after(2, &destinations(stream)[1], 200, &[]);
            stream.response_body(b"{}", true);
            stream.finish();
        }),
        ("it aborts what it is asked before it generates anything", &|stream| {
            begin_response(stream);
            stream.response_body(aborted.as_bytes(), true);
            stream.finish();
        }),
    ];
    for (words, fail) in kinds {
        let mut gateway = Gateway::new(3);
        gateway.run(1_000);
        let control = control(&gateway);
        let mut seed = 0;
        // Three at once, as many answers in a row may be: what one sees of the others is not the matter here.
        let streams = for_host_1(&gateway, &mut seed, 3);
        for (n, stream) in (1..).zip(&streams) {
            assert_eq!(status(&control, 1)["life"], "ready", "{words}: {n}");
            fail(stream);
            assert_eq!(failures(&mut gateway), n, "{words}");
        }
        let status = status(&control, 1);
        assert_eq!((&status["life"], &status["reason"]), (&json!("suspect"), &json!(words)));
        assert_eq!(gateway.in_flight(), [], "{words}");
    }
}

#[test]
fn answers_that_break_off_together_take_a_host_out() {
    let mut gateway = Gateway::new(3);
    gateway.run(1_000);
    let mut seed = 0;
    let open = for_host_1(&gateway, &mut seed, 6);
    for stream in &open {
        begin_response(stream);
        stream.response_body(b"data: {}\n\n", false);
    }
    gateway.run(500);
    open.iter().for_each(Stream::reset_by_upstream);
    assert_eq!(failures(&mut gateway), 6);
    let control = control(&gateway);
    let status = status(&control, 1);
    assert_eq!(
        (&status["life"], &status["reason"]),
        (&json!("suspect"), &json!("its last answers were broken off"))
    );
}

#[test]
fn a_host_that_breaks_every_answer_off_is_left_out_though_each_begins() {
    let mut gateway = Gateway::with_workers(2, 3);
    gateway.run(1_000);
    let mut sent = 0;
    for n in 0..600 {
        gateway.run(50);
        let stream = chat(&gateway.workers[n % 2], &text(n, 1_000));
        if destination(&stream) == host(1) {
            sent += 1;
            stream.respond(&host(1), 200, &[]);
            stream.response_body(b"data: {}\n\n", false);
            gateway.run(50);
            stream.reset_by_upstream();
        } else {
            serve(&stream);
        }
    }
    // A third of them, were it not for that.
    assert!((5..=25).contains(&sent), "{sent} of 600 in a minute");
    // One that comes to its end, and it has its share again.
    let mut back = 0;
    for n in 600..1_200 {
        gateway.run(50);
        let stream = chat(&gateway.workers[n % 2], &text(n, 1_000));
        back += usize::from(destination(&stream) == host(1));
        serve(&stream);
    }
    assert!(back > 120, "{back} of 600");
}

#[test]
fn what_is_not_the_hosts_fault_is_not_held_against_it() {
    let mut gateway = Gateway::new(3);
    gateway.run(1_000);
    let control = control(&gateway);
    let mut seed = 0;
    for round in 0..8 {
        // The client leaves before the answer begins, amid it, and while it still sends.
        one_for_host_1(&gateway, &mut seed).abort();
        let stream = one_for_host_1(&gateway, &mut seed);
        begin_response(&stream);
        stream.response_body(b"data: {}\n\n", false);
        stream.abort();
        let stream = gateway.worker().request(chat_headers(100_000), false);
        stream.body(&[b' '; 40_000], false);
        stream.abort();
        // The circuit breaker is open; Envoy does not know the host.
        let stream = one_for_host_1(&gateway, &mut seed);
        stream.fail(Some(&host(1)), 503, OVERFLOW);
        stream.finish();
        let stream = one_for_host_1(&gateway, &mut seed);
        let second = destinations(&stream)[1].clone();
        stream.respond(&second, 200, &[]);
        stream.response_body(b"{}", true);
        stream.finish();
        assert_eq!(failures(&mut gateway), 0, "{round}");
        assert_eq!(status(&control, 1)["life"], "ready");
    }
    assert_eq!(gateway.in_flight(), []);
}

/// 3 until it is left out, one or two more in the same tick, and a try after 1, 3, 7, 15, 25, 35, 45 and 55 seconds.
#[test]
fn a_host_that_refuses_gets_fourteen_requests_a_minute_at_most_over_all_workers() {
    let mut gateway = Gateway::with_workers(2, 4);
    gateway.run(1_000);
    let mut sent = 0;
    for n in 0..2_400 {
        if n % 2 == 0 {
            gateway.run(50);
        }
        let stream = chat(&gateway.workers[n % 2], &text(n, 1_000));
        if destination(&stream) == host(2) {
            sent += 1;
            stream.fail(Some(&host(2)), 503, NO_CONNECTION);
            stream.finish();
        } else {
            serve(&stream);
        }
    }
    assert!((9..=14).contains(&sent), "{sent} in a minute");
    // It works again: the worker that finds out tells the other within a tick.
    let mut back = [0; 2];
    for n in 2_400..3_200 {
        gateway.run(50);
        back[n % 2] += usize::from(route_chat(&gateway.workers[n % 2], &text(n, 1_000)) == host(2));
    }
    assert!(back.iter().all(|&count| count > 40), "{back:?}");
}

/// C64, with clients that wait for ever: nothing but its silence tells.
#[test]
fn a_host_that_never_answers_gets_at_most_ten_of_a_hundred_though_nothing_times_out() {
    let mut gateway = Gateway::with_workers(2, 3);
    gateway.run(1_000);
    let control = control(&gateway);
    let mut open = Vec::new();
    for n in 0..100 {
        gateway.run(600);
        let stream = chat(&gateway.workers[n % 2], &text(n, 1_500));
        if destination(&stream) == host(2) {
            open.push(stream);
        } else {
            serve(&stream);
        }
    }
    assert!((1..=10).contains(&open.len()), "it got {}", open.len());
    assert!(gateway.proxy.counter("kvroute_hosts_wedged_total") > 0);
    assert_eq!(status(&control, 2)["reason"], "it has requests and gives no byte");
    // It wakes up: all that waited is answered, and both workers send there again.
    open.iter().for_each(serve);
    gateway.run(100);
    assert_eq!(status(&control, 2)["life"], "ready");
    for worker in &gateway.workers {
        assert!((0..30).any(|n| route_chat(worker, &text(200 + n, 1_500)) == host(2)));
    }
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn a_long_answer_in_one_piece_is_waited_for_as_long_as_its_engine_makes_steps() {
    let mut gateway = Gateway::new(2);
    for n in 0..2 {
        gateway.engines.insert(host(n), page(0, 1));
    }
    gateway.run(1_000);
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] }).to_string();
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    stream.body(body.as_bytes(), true);
    let busy = destination(&stream);
    let other = (0..2).map(host).find(|host| *host != busy).expect("two hosts");
    for step in 0..240 {
        gateway.engines.insert(busy.clone(), page(1, 2 + step));
        gateway.engines.insert(other.clone(), page(0, 2 + step));
        gateway.run(500);
    }
    assert_eq!(gateway.proxy.counter("kvroute_hosts_wedged_total"), 0, "after two minutes");
    // Its steps cease.
    for step in 0..24 {
        gateway.engines.insert(other.clone(), page(0, 300 + step));
        gateway.run(500);
    }
    assert_eq!(gateway.proxy.counter("kvroute_hosts_wedged_total"), 1);
    stream.abort();
}

#[test]
fn with_wedged_after_ms_0_nobody_is_taken_to_stand_still() {
    let config = crate::gateway::config(2, json!({ "failure": { "wedged_after_ms": 0 } }));
    let mut gateway = Gateway::with_config(1, 2, &config);
    gateway.run(1_000);
    let stream = gateway.chat("hello");
    gateway.run(60_000);
    assert_eq!(gateway.proxy.counter("kvroute_hosts_wedged_total"), 0);
    stream.abort();
}
