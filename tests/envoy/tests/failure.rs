//! An engine dies under load, and comes back.

use fleet::{EngineOptions, Fault};
use gateway::chat::Chat;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::wait::until;
use gateway::workload::plan::{Plan, Shape};
use gateway::workload::replay::{Failure, Replay};
use gateway::workload::summary::Summary;
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
