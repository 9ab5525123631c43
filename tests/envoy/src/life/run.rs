//! One run: requests come as a curve says, things happen as a story says, and what became of it is kept.

use super::site::{Setup, Site};
use super::story::{self, Beat, Event, Played};
use super::traffic::{self, Curve};
use super::verdict::Verdicts;
use super::watch::{self, Sample};
use crate::wait::until;
use crate::workload::replay::{Record, Replay};
use anyhow::Result;
use fleet::EngineOptions;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// More than all engines and their queues ever have: the client holds nothing back.
const MOST_IN_FLIGHT: usize = 2_000;

/// Within this kvroute knows the engines that are there at the start.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plot {
    /// What is there.
    pub setup: Setup,
    /// How many requests come.
    pub curve: Curve,
    /// What happens.
    pub events: Vec<Event>,
}

/// What became of it.
#[derive(Debug)]
pub struct Outcome {
    /// Second by second.
    pub samples: Vec<Sample>,
    /// All requests.
    pub records: Vec<Record>,
    /// What became of them.
    pub verdicts: Verdicts,
    /// Places that were to drain and did not get empty in time.
    pub undrained: Vec<usize>,
}

impl Plot {
    /// About two minutes and a half: 2, then 6, then 3 engines; one crashes and is replaced, one hangs until its liveness
    /// probe ends it, one is restarted without a word, one drains. Engines load for 20 s, in real time.
    pub fn hour(settings: Vec<(&'static str, Value)>) -> Self {
        use Beat::{Crash, Drain, Hang, Launch, Remove, Restart};
        let events = [
            (12.0, 2, Launch),
            (12.0, 3, Launch),
            (12.0, 4, Launch),
            (12.0, 5, Launch),
            (48.0, 1, Crash),
            (52.0, 6, Launch),
            (60.0, 1, Remove),
            (76.0, 3, Hang),
            (94.0, 3, Restart),
            (102.0, 4, Restart),
            (128.0, 2, Drain),
            (134.0, 5, Drain),
            (138.0, 6, Drain),
        ];
        let curve = [(0.0, 5.0), (8.0, 5.0), (40.0, 14.0), (112.0, 14.0), (126.0, 7.0), (150.0, 7.0)];
        Self {
            setup: Setup {
                places: 7,
                serving: 2,
                engine: engine(),
                loading: Duration::from_secs(20),
                settings,
            },
            curve: Curve::new(&curve),
            events: events.map(|(at_s, place, beat)| Event::new(at_s, place, beat)).to_vec(),
        }
    }

    /// The same in little more than a minute, with five engines that load for 5 s.
    pub fn abridged(settings: Vec<(&'static str, Value)>) -> Self {
        use Beat::{Crash, Drain, Hang, Launch, Remove, Restart};
        let events = [
            (4.0, 2, Launch),
            (4.0, 3, Launch),
            (18.0, 1, Crash),
            (20.0, 4, Launch),
            (26.0, 1, Remove),
            (32.0, 2, Hang),
            (50.0, 2, Restart),
            (58.0, 3, Restart),
            (68.0, 0, Drain),
        ];
        Self {
            setup: Setup {
                places: 5,
                serving: 2,
                engine: engine(),
                loading: Duration::from_secs(5),
                settings,
            },
            curve: Curve::new(&[(0.0, 4.0), (4.0, 4.0), (10.0, 7.0), (62.0, 7.0), (66.0, 4.0), (74.0, 4.0)]),
            events: events.map(|(at_s, place, beat)| Event::new(at_s, place, beat)).to_vec(),
        }
    }

    /// Lets it happen. `tell` hears of each event.
    pub async fn run(&self, tell: impl Fn(&Event)) -> Result<Outcome> {
        let site = Arc::new(Site::start(&self.setup).await?);
        known(&site, self.setup.serving).await?;
        let plan = Arc::new(traffic::plan(&traffic::chats(), &self.curve));
        let replay = Replay::new(&plan, site.address, MOST_IN_FLIGHT);
        let mut samples = Vec::new();
        let all = async { tokio::join!(replay.run(), story::play(&site, &self.events, tell)) };
        let (records, played) = watch::during(&site, &mut samples, all).await;
        let Played { events, undrained } = played?;
        let verdicts = Verdicts::new(&site, &events, &records);
        Ok(Outcome { samples, records, verdicts, undrained })
    }
}

/// Waits until kvroute has heard from so many engines.
pub async fn known(site: &Site, engines: usize) -> Result<()> {
    until("kvroute knows the engines", KNOWN_WITHIN, async || {
        let status = site.control.status().await.ok()?;
        (status["known_hosts"].as_u64()? as usize >= engines).then_some(())
    })
    .await
}

/// An engine that serves four requests a second: six at a time, each for a second and a half. Its times are those of a
/// small model; that only six run at a time keeps the load light enough for a small machine.
pub fn engine() -> EngineOptions {
    EngineOptions {
        num_blocks: 4_096,
        max_num_seqs: 6,
        prefill_tokens_per_s: 8_000.0,
        decode_step_ms: 20.0,
        tokens_per_chunk: 4,
        ..EngineOptions::default()
    }
}
