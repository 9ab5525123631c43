//! An engine dies under load, and comes back.

use fleet::{EngineOptions, Fault};
use gateway::chat::Chat;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::wait::until;
use gateway::workload::plan::{Plan, Shape};
use gateway::workload::replay::{Failure, Replay};
use gateway::workload::summary::Summary;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

fn shape(stream: bool) -> Shape {
    Shape {
        seed: 5,
        conversations: 120,
        starts_per_s: 20.0,
        systems: 12,
        skew: 0.5,
        system_bytes: 4_000,
        turns: 3,
        question_bytes: 200,
        answer_tokens: 20,
        think_s: 0.3,
        stream,
    }
}

fn engine() -> EngineOptions {
    EngineOptions { decode_step_ms: 4.0, prefill_tokens_per_s: 20_000.0, ..EngineOptions::default() }
}

/// Breaks an engine under load and mends it; returns what became of the requests.
async fn break_and_mend(fault: Fault, stream: bool) -> Summary {
    let testbed = Testbed::start(4, engine(), Options::default()).await.unwrap();
    let victim = testbed.fleet.engine(0).clone();
    let replay = Replay::new(&Arc::new(Plan::new(&shape(stream))), testbed.address, 1_000);
    let run = tokio::spawn({
        let replay = Arc::clone(&replay);
        async move { replay.run().await }
    });

    until("the victim is at work", Duration::from_secs(10), async || {
        (replay.done() >= 40 && victim.report().in_flight > 0).then_some(())
    })
    .await
    .unwrap();
    victim.fault(fault).await;
    let served_before = victim.report().counts.completed;
    let done = replay.done();
    until("requests go on without it", Duration::from_secs(10), async || {
        (replay.done() >= done + 60).then_some(())
    })
    .await
    .unwrap();
    victim.fault(Fault::Clear).await;

    let summary = Summary::new(&run.await.unwrap());

    // New conversations, until it serves again.
    let mut turn = 0;
    until("the victim serves again", Duration::from_secs(10), async || {
        turn += 1;
        let reply =
            Chat::new(&format!("Newcomer {turn}. ").repeat(100)).user("Hello").post(testbed.address).await;
        assert!(reply.unwrap().is_complete());
        (victim.report().counts.completed > served_before).then_some(())
    })
    .await
    .unwrap();
    testbed.released().await.unwrap();
    summary
}

/// Answers that come in one piece: until one is there nothing has reached the client, so a retry can hide all.
#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_notice_an_engine_that_stops() {
    let summary = break_and_mend(Fault::Refuse, false).await;
    assert_eq!(summary.failures, [], "of {} requests", summary.requests);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_notice_an_engine_that_restarts() {
    let summary = break_and_mend(Fault::Restart { down_seconds: 1.0 }, false).await;
    assert_eq!(summary.failures, [], "of {} requests", summary.requests);
}

/// Of streamed answers, those that had begun on the engine that stops are lost, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn only_answers_that_had_begun_are_cut() {
    let summary = break_and_mend(Fault::Refuse, true).await;
    let errors: Vec<_> =
        summary.failures.iter().filter(|failure| matches!(failure, Failure::Answered(..))).collect();
    assert!(errors.is_empty(), "{errors:?}");
    // As many as one engine had in its batch.
    assert!(summary.failures.len() * 20 <= summary.requests, "{:?}", summary.failures);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_engine_is_left_for_another() {
    let testbed = Testbed::start(4, engine(), Options::default()).await.unwrap();
    let chat = Chat::new(&"The same long prompt for all. ".repeat(100)).user("Hello");
    let first = chat.post(testbed.address).await.unwrap();
    let home = testbed.fleet.engines().iter().find(|engine| engine.address().to_string() == first.engine());
    home.unwrap().fault(Fault::Status { code: 503 }).await;
    for _ in 0..5 {
        let reply = chat.post(testbed.address).await.unwrap();
        assert!(reply.is_complete(), "{} {:?}", reply.status, reply.body);
        assert_ne!(reply.engine(), first.engine());
    }
    testbed.released().await.unwrap();
}

/// Its computing stops in mid-step, and nothing else: `/health` is 200, `/metrics` are answered, no client gives up.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_stands_still_gets_few_requests_and_clients_of_others_do_not_notice() {
    let testbed = Testbed::start(3, engine(), Options::workers(2)).await.unwrap();
    let victim = testbed.fleet.engine(0).clone();
    victim.fault(Fault::Stall).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    let mut at_verdict = None;
    // Half a minute, eight requests a second.
    for n in 0..240 {
        let chat = Chat::new(&format!("Conversation {n}. ").repeat(50)).user("Hello");
        let (address, done) = (testbed.address, Arc::clone(&sent));
        clients.push(tokio::spawn(async move {
            let reply = chat.post(address).await;
            done.fetch_add(1, Ordering::Relaxed);
            reply
        }));
        tokio::time::sleep(Duration::from_millis(125)).await;
        let found = testbed.stats().await.unwrap().value("wasmcustom.kvroute_hosts_wedged_total");
        if found > 0 {
            at_verdict.get_or_insert((n, victim.report().in_flight));
        }
    }
    let (since, before) = at_verdict.expect("it is found out");
    assert!(since < 130, "after {} s", since / 8);
    // By load alone, and by its share of what is new.
    assert!(before <= 30, "{before} stood there when it was found out");
    let stuck = victim.report().in_flight;
    // What tries it is a generation of the gateway's own, one at a time.
    assert!(stuck <= before + 2, "{stuck} after {before}");
    let unanswered = clients.len() - sent.load(Ordering::Relaxed);
    assert!(unanswered <= stuck + 2, "{unanswered} clients wait, {stuck} of them there");
    // It goes on: what waited is answered, and nobody has seen an error.
    victim.fault(Fault::Wake).await;
    for client in clients {
        let reply = client.await.unwrap().unwrap();
        assert!(reply.is_complete(), "{} {:?}", reply.status, reply.body);
    }
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_that_its_engine_breaks_off_is_held_against_it_once() {
    let slow = EngineOptions { decode_step_ms: 50.0, ..engine() };
    let testbed = Testbed::start(1, slow, Options::default()).await.unwrap();
    let engine = testbed.fleet.engine(0).clone();
    let clients: Vec<_> = (0..5)
        .map(|n| {
            let chat = Chat::new(&format!("Conversation {n}.")).user("Go on.").max_tokens(400);
            let address = testbed.address;
            tokio::spawn(async move { chat.post(address).await })
        })
        .collect();
    until("all answers have begun", Duration::from_secs(10), async || {
        let stats = testbed.stats().await.ok()?;
        let begun = [("kvroute_slot_0_inflight_requests", 5)];
        (engine.running() == 5 && stats.in_flight() == begun).then_some(())
    })
    .await
    .unwrap();
    engine.fault(Fault::Refuse).await;
    for client in clients {
        assert!(!client.await.unwrap().is_ok_and(|reply| reply.is_complete()));
    }
    testbed.released().await.unwrap();
    let failures = until("they are counted", Duration::from_secs(5), async || {
        let stats = testbed.stats().await.ok()?;
        Some(stats.value("wasmcustom.kvroute_host_failures_total")).filter(|failures| *failures >= 5)
    });
    assert_eq!(failures.await.unwrap(), 5);
}

/// Each begins well, one after another: only that none comes to its end tells.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_breaks_its_answers_off_one_after_another_is_left_for_another() {
    let testbed = Testbed::start(2, engine(), Options::workers(1)).await.unwrap();
    let chat = Chat::new(&"The same long prompt for all. ".repeat(100)).user("Hello");
    let first = chat.post(testbed.address).await.unwrap();
    let home = testbed.fleet.engines().iter().find(|engine| engine.address().to_string() == first.engine());
    home.unwrap().fault(Fault::BreakOff).await;
    let mut broken = 0;
    for _ in 0..12 {
        match chat.clone().max_tokens(2).post(testbed.address).await {
            Ok(reply) if reply.is_complete() => assert_ne!(reply.engine(), first.engine()),
            _ => broken += 1,
        }
    }
    // Three; and on a busy machine one that tries it again a second later.
    assert!((3..=5).contains(&broken), "{broken} of 12");
    testbed.released().await.unwrap();
}
