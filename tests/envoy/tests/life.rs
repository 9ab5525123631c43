//! `scripts/life hour` in little more than a minute: engines are added and load, one crashes and is replaced, one hangs
//! until it is ended, one is restarted without a word, one drains; chats go on all the while.

use gateway::life::run::{Outcome, Plot};
use gateway::life::story::Beat;
use std::collections::{BTreeMap, BTreeSet};

/// What kvroute said of a place between two times, in seconds; `gone` if it knew no such host.
fn lives(outcome: &Outcome, place: usize, from_s: f64, to_s: f64) -> BTreeSet<&str> {
    let between = outcome.samples.iter().filter(|sample| (from_s..to_s).contains(&sample.at.as_secs_f64()));
    between
        .map(|sample| sample.places[place].life.as_ref().map_or("gone", |(life, _)| life.as_str()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_that_could_have_been_saved_while_engines_come_break_and_go() {
    let plot = Plot::abridged(Vec::new());
    let outcome = plot.run(|_| {}).await.unwrap();
    let verdicts = &outcome.verdicts;
    assert!(verdicts.avoidable.is_empty(), "{:#?}", verdicts.avoidable);
    assert!(outcome.undrained.is_empty(), "{:?} did not get empty", outcome.undrained);
    // Three processes ended with six answers under way at most, and what was sent before the hang was seen.
    assert!(verdicts.unavoidable <= 40, "{} of {} were cut", verdicts.unavoidable, verdicts.requests);

    let end = plot.curve.seconds();
    for event in &plot.events {
        let (place, at) = (event.place, event.at_s);
        let until = |seconds: f64| lives(&outcome, place, at, (at + seconds).min(end));
        match event.beat {
            Beat::Launch => assert!(until(20.0).contains("ready"), "{} is used: {:?}", place, until(20.0)),
            Beat::Crash | Beat::Hang | Beat::Restart => {
                let said = until(if event.beat == Beat::Hang { 17.0 } else { 6.0 });
                assert!(said.iter().any(|life| *life != "ready"), "{}: {said:?}", event.words());
            }
            Beat::Drain => assert!(until(4.0).contains("draining"), "{:?}", until(4.0)),
            Beat::Remove => assert!(until(6.0).contains("gone"), "{:?}", until(6.0)),
        }
    }
    let mut served: BTreeMap<&str, usize> = BTreeMap::new();
    for record in outcome.records.iter().filter(|record| record.failure.is_none()) {
        *served.entry(&record.engine).or_default() += 1;
    }
    assert_eq!(served.len(), plot.setup.places, "each engine served: {served:?}");
}
