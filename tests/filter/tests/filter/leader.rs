//! One worker polls for all of them, whichever it is.

use std::collections::BTreeSet;

use serde_json::json;

use crate::gateway::{config, host, polled_host, Gateway};

/// Polls of each host in `seconds` seconds at two a second, give or take.
fn assert_polled_twice_a_second(gateway: &Gateway, hosts: usize, seconds: usize) {
    let polls = gateway.polls_by_host();
    assert_eq!(polls.len(), hosts, "{polls:?}");
    for (host, count) in polls {
        let expected = 2 * seconds;
        let fits = count >= expected - 3 && count <= expected + 3;
        assert!(fits, "{host} was polled {count} times in {seconds} s");
    }
}

/// The worker that makes the next poll.
fn leader_of(gateway: &mut Gateway) -> usize {
    for _ in 0..40 {
        gateway.proxy.advance(50);
        for worker in &gateway.workers {
            worker.tick();
        }
        let poller = gateway.proxy.calls().first().map(|call| call.vm);
        gateway.answer_polls();
        if let Some(poller) = poller {
            return poller;
        }
    }
    panic!("nobody polls");
}

#[test]
fn four_workers_poll_each_host_once_a_period() {
    let mut gateway = Gateway::with_workers(4, 3);
    gateway.run(10_000);
    assert_polled_twice_a_second(&gateway, 3, 10);
}

#[test]
fn a_poll_names_its_host_and_the_configured_path_and_timeout() {
    let more = json!({ "poll": { "path": "/engine/metrics", "timeout_ms": 700 } });
    let mut gateway = Gateway::with_config(1, 2, &config(2, more));
    gateway.proxy.advance(1_000);
    gateway.worker().tick();
    let calls = gateway.proxy.calls();
    assert!(!calls.is_empty());
    for call in calls {
        assert!([host(0), host(1)].contains(&polled_host(&call)));
        assert_eq!(call.headers.get(":path").as_deref(), Some("/engine/metrics"));
        assert_eq!(call.timeout_ms, 700);
        assert_eq!(call.body, b"");
    }
    gateway.answer_polls();
}

#[test]
fn one_worker_polls_while_it_lives() {
    let mut gateway = Gateway::with_workers(4, 2);
    let mut pollers = BTreeSet::new();
    for _ in 0..100 {
        gateway.proxy.advance(50);
        for worker in &gateway.workers {
            worker.tick();
        }
        pollers.extend(gateway.proxy.calls().iter().map(|call| call.vm));
        gateway.answer_polls();
    }
    assert_eq!(pollers.len(), 1, "{pollers:?}");
}

#[test]
fn when_the_leader_dies_another_takes_over() {
    let mut gateway = Gateway::with_workers(4, 2);
    gateway.run(2_000);
    let leader = leader_of(&mut gateway);
    gateway.workers.remove(leader).kill();
    let died = gateway.proxy.now_ms();
    gateway.polls.clear();
    gateway.run(5_000);
    let next = gateway.polls.first().map(|call| call.at_ms - died);
    assert!(next.is_some_and(|after| after <= 2_500), "{next:?}");
    gateway.polls.clear();
    gateway.run(5_000);
    assert_polled_twice_a_second(&gateway, 2, 5);
}

#[test]
fn calls_that_a_dead_leader_left_open_do_not_stop_the_next() {
    let mut gateway = Gateway::with_workers(2, 2);
    gateway.proxy.advance(1_000);
    let worker = gateway.workers.remove(0);
    worker.tick();
    assert!(!gateway.proxy.calls().is_empty());
    worker.kill();
    gateway.run(8_000);
    assert_eq!(gateway.polls_by_host().len(), 2);
}

#[test]
fn after_an_update_the_old_configuration_does_not_poll() {
    let mut gateway = Gateway::with_workers(2, 2);
    gateway.run(2_000);
    let update = config(2, json!({ "poll": { "path": "/new/metrics" } }));
    for worker in &gateway.workers {
        worker.update(&update).expect("a good configuration");
    }
    // The lease that an old root holds may run out first.
    gateway.run(3_000);
    gateway.polls.clear();
    for _ in 0..100 {
        gateway.proxy.advance(50);
        for worker in &gateway.workers {
            worker.tick();
        }
        for call in gateway.proxy.calls() {
            assert_eq!(call.headers.get(":path").as_deref(), Some("/new/metrics"));
        }
        gateway.answer_polls();
    }
    assert_polled_twice_a_second(&gateway, 2, 5);
    for worker in &gateway.workers {
        worker.retire();
    }
    gateway.polls.clear();
    gateway.run(5_000);
    assert_polled_twice_a_second(&gateway, 2, 5);
}

#[test]
fn a_canary_that_is_thrown_away_at_once_does_not_keep_the_lease_for_ever() {
    let mut gateway = Gateway::with_workers(2, 2);
    let canary = gateway.workers.remove(0);
    canary.tick();
    canary.kill();
    gateway.run(10_000);
    gateway.polls.clear();
    gateway.run(5_000);
    assert_polled_twice_a_second(&gateway, 2, 5);
    assert_eq!(gateway.in_flight(), []);
}

#[test]
fn shared_data_keys_are_few_and_do_not_grow_with_traffic_or_time() {
    let mut gateway = Gateway::with_workers(3, 4);
    gateway.run(2_000);
    let before = gateway.proxy.shared_data_keys();
    for n in 0..200 {
        gateway.route_chat(&crate::gateway::text(n, 2_000));
        gateway.run(50);
    }
    let after = gateway.proxy.shared_data_keys();
    assert_eq!(before, after);
    assert!(after.len() <= 16, "{after:?}");
    assert!(after.iter().all(|key| key.starts_with("kvroute")), "{after:?}");
}

#[test]
fn a_clock_that_is_set_back_stops_polling_for_no_longer_than_it_was_set_back() {
    let mut gateway = Gateway::with_workers(2, 2);
    gateway.run(2_000);
    gateway.proxy.set_back(5_000);
    gateway.run(9_000);
    gateway.polls.clear();
    gateway.run(5_000);
    assert_polled_twice_a_second(&gateway, 2, 5);
}

#[test]
fn a_leader_that_dies_after_the_clock_was_set_back_is_replaced_as_soon() {
    let mut gateway = Gateway::with_workers(2, 2);
    gateway.run(2_000);
    // Its lease now seems to run for another hour.
    gateway.proxy.set_back(3_600_000);
    let leader = leader_of(&mut gateway);
    gateway.workers.remove(leader).kill();
    gateway.run(5_000);
    gateway.polls.clear();
    gateway.run(5_000);
    assert_polled_twice_a_second(&gateway, 2, 5);
}

/// Two workers whose very first ticks interleave: neither may lose what it wrote, or what it holds is
/// counted twice.
#[test]
fn workers_that_start_at_the_same_moment_do_not_overwrite_each_other() {
    for call in ["proxy_set_shared_data", "proxy_get_shared_data"] {
        let mut gateway = Gateway::with_workers(2, 2);
        let streams: Vec<_> = (0..2).map(|n| crate::gateway::chat(&gateway.workers[n], "hello")).collect();
        let other = gateway.workers[1].clone();
        gateway.proxy.advance(50);
        gateway.proxy.interrupt_before(call, move || other.tick());
        gateway.workers[0].tick();
        gateway.run(2_000);
        let open: i64 = (0..2).map(|slot| gateway.requests_in_flight(slot)).sum();
        assert_eq!(open, 2, "before {call}");
        for stream in streams {
            crate::gateway::serve(&stream);
        }
        gateway.run(2_000);
        assert_eq!(gateway.in_flight(), [], "before {call}");
    }
}
