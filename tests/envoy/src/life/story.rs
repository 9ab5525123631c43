//! What happens when? A list of events, played against a site.

use super::site::Site;
use anyhow::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The longest that an engine may take to get empty.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// Something that happens to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// An engine is added, and has to load.
    Launch,
    /// Its process dies; it stays an endpoint.
    Crash,
    /// It answers nothing any more, and looks well.
    Hang,
    /// Its process is ended, without a word to anybody, and another one loads at the same address.
    Restart,
    /// It goes, as a pod does that runs `scripts/prestop`.
    Drain,
    /// It is no endpoint any more.
    Remove,
}

/// One event: when, from the start, at which place, and what.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// Seconds from the start.
    pub at_s: f64,
    /// The place, from 0.
    pub place: usize,
    /// What happens.
    pub beat: Beat,
}

impl Event {
    /// An event.
    pub const fn new(at_s: f64, place: usize, beat: Beat) -> Self {
        Self { at_s, place, beat }
    }

    /// In words.
    pub fn words(&self) -> String {
        let what = match self.beat {
            Beat::Launch => "is added and loads",
            Beat::Crash => "crashes",
            Beat::Hang => "hangs",
            Beat::Restart => "restarts at its address",
            Beat::Drain => "drains and goes",
            Beat::Remove => "is removed",
        };
        format!("{} {what}", name(self.place))
    }
}

/// What a place is called.
pub fn name(place: usize) -> String {
    format!("engine {}", place + 1)
}

/// What has happened.
#[derive(Debug, Clone, Default)]
pub struct Played {
    /// The events, at the times when each was done: a busy machine is late.
    pub events: Vec<Event>,
    /// Places that were to drain and did not get empty in time.
    pub undrained: Vec<usize>,
}

/// Lets all of it happen; `tell` hears of each event as it comes. Ends when the last engine that was to go is gone.
pub async fn play(site: &Arc<Site>, events: &[Event], tell: impl Fn(&Event)) -> Result<Played> {
    let (start, mut played) = (Instant::now(), Played::default());
    let mut drains = JoinSet::new();
    for event in events {
        tokio::time::sleep_until(start + Duration::from_secs_f64(event.at_s)).await;
        tell(event);
        let place = event.place;
        match event.beat {
            Beat::Launch => site.launch(place).await?,
            Beat::Crash => site.crash(place).await,
            Beat::Hang => site.hang(place).await,
            Beat::Restart => site.restart(place).await,
            Beat::Remove => site.remove(place)?,
            Beat::Drain => {
                let site = Arc::clone(site);
                drains.spawn(async move { (place, site.drain(place, DRAINED_WITHIN).await) });
            }
        }
        played.events.push(Event { at_s: start.elapsed().as_secs_f64(), ..*event });
    }
    for (place, drained) in drains.join_all().await {
        if !drained? {
            played.undrained.push(place);
        }
    }
    Ok(played)
}
