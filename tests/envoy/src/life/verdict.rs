//! Could a failed request have been saved? Not one whose answer was already coming from an engine whose process then
//! ended: no gateway can go on with it elsewhere. Everything else could have been.

use super::site::Site;
use super::story::{Beat, Event};
use crate::workload::replay::{Failure, Record};
use std::net::SocketAddr;
use std::time::Duration;

/// For how long requests may still be sent to an engine that hangs: kvroute's `failure.wedged_after_ms` of 10 s, and what it
/// takes to see it and to tell all workers. It looks well, and a long prefill is silent too.
pub const UNNOTICED: Duration = Duration::from_secs(12);

/// How long before the end of a process is on record its streams may already be cut.
const ENDING: Duration = Duration::from_secs(1);

/// From the end of a process until its last client knows: loopback, and a busy machine.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// An engine's process that ended with requests in flight.
#[derive(Debug, Clone, PartialEq)]
struct Incident {
    engine: SocketAddr,
    /// Until when nobody can be blamed for a request that was sent there.
    excused_until: Duration,
    /// When its process ended.
    ended: Duration,
}

/// What became of the requests of a run.
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    /// How many were sent.
    pub requests: usize,
    /// How many answers were cut with the process that gave them.
    pub unavoidable: usize,
    /// All other failures, in words.
    pub avoidable: Vec<String>,
}

impl Verdicts {
    /// Of these records, given what happened.
    pub fn new(site: &Site, events: &[Event], records: &[Record]) -> Self {
        let incidents = incidents(events, |place| site.engine(place).address());
        let mut verdicts = Self { requests: records.len(), ..Self::default() };
        for record in records {
            let Some(failure) = &record.failure else { continue };
            if incidents.iter().any(|incident| incident.excuses(record)) {
                verdicts.unavoidable += 1;
            } else {
                let (sent, after) = (record.sent.as_secs_f64(), record.elapsed.as_secs_f64());
                let engine = if record.engine.is_empty() { "no engine" } else { &record.engine };
                verdicts.avoidable.push(format!("sent at {sent:.1} s, {after:.1} s, {engine}: {failure}"));
            }
        }
        verdicts
    }
}

fn incidents(events: &[Event], address: impl Fn(usize) -> SocketAddr) -> Vec<Incident> {
    let ends = events.iter().filter(|event| matches!(event.beat, Beat::Crash | Beat::Restart));
    ends.map(|end| {
        let mut of_place = events.iter().filter(|event| event.place == end.place && event.at_s < end.at_s);
        let hung = of_place.next_back().filter(|event| event.beat == Beat::Hang);
        let ended = Duration::from_secs_f64(end.at_s);
        let noticed = hung.map(|hang| Duration::from_secs_f64(hang.at_s) + UNNOTICED);
        Incident { engine: address(end.place), excused_until: noticed.unwrap_or(ended).min(ended), ended }
    })
    .collect()
}

impl Incident {
    fn excuses(&self, record: &Record) -> bool {
        let failed = record.sent + record.elapsed;
        let was_cut = matches!(record.failure, Some(Failure::Cut(_)));
        let by_its_end = failed + ENDING >= self.ended && failed <= self.ended + TOLD_WITHIN;
        was_cut && record.engine == self.engine.to_string() && record.sent <= self.excused_until && by_its_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Usage;

    const EVENTS: [Event; 4] = [
        Event::new(10.0, 0, Beat::Crash),
        Event::new(20.0, 1, Beat::Hang),
        Event::new(40.0, 1, Beat::Restart),
        Event::new(60.0, 2, Beat::Drain),
    ];

    fn address(place: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 8_000 + place as u16))
    }

    fn excused(place: usize, sent_s: f64, failed_s: f64, failure: Failure) -> bool {
        let record = Record {
            conversation: 0,
            turn: 0,
            sent: Duration::from_secs_f64(sent_s),
            ttft: None,
            elapsed: Duration::from_secs_f64(failed_s - sent_s),
            engine: address(place).to_string(),
            usage: Usage::default(),
            answer: String::new(),
            failure: Some(failure),
        };
        incidents(&EVENTS, address).iter().any(|incident| incident.excuses(&record))
    }

    #[test]
    fn only_an_answer_that_its_engines_end_has_cut_is_excused() {
        let cut = || Failure::Cut("reset".to_owned());
        assert!(excused(0, 9.0, 10.1, cut()));
        assert!(!excused(1, 9.0, 10.1, cut()), "another engine");
        assert!(!excused(0, 5.0, 8.0, cut()), "before it crashed");
        assert!(!excused(0, 10.5, 10.6, cut()), "sent to a dead engine");
        assert!(!excused(
            0,
            9.0,
            10.1,
            Failure::Answered(hyper::StatusCode::SERVICE_UNAVAILABLE, String::new())
        ));
        assert!(excused(1, 25.0, 40.1, cut()));
        assert!(!excused(1, 35.0, 40.1, cut()), "by then it should have been known that it hangs");
        assert!(!excused(2, 59.0, 60.5, cut()), "who drains cuts nobody");
    }
}
