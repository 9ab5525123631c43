//! How many engines are there to be? Two autoscalers: one that follows kvroute's desired replicas, and one that follows how
//! busy the GPUs look, by the rule of Kubernetes' HPA. Both start engines that have to load, and drain those that go.

use anyhow::Result;
use gateway::life::site::{Site, Truth};
use gateway::life::watch::UTILISATION_WINDOW;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Between two decisions.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// The longest that an engine may take to get empty.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// How busy the GPUs are to be, as guides to HPA have it.
const TARGET_UTILISATION: f64 = 0.8;

/// HPA leaves the replicas as they are within this of the target.
const TOLERANCE: f64 = 0.1;

/// What an autoscaler follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `desired_replicas` of `GET /kvroute/signals`, which is stabilised already.
    Queue,
    /// The mean utilisation of the GPUs.
    Utilisation,
}

/// Bounds that both have.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub least: usize,
    pub most: usize,
    /// Replicas go down only to the most that was wanted for so long.
    pub stabilisation: Duration,
}

/// What an autoscaler has done.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// From when on how many engines were wanted, in seconds; only changes.
    pub wanted: Vec<(f64, f64)>,
    /// Engines that did not get empty in time.
    pub undrained: usize,
}

impl History {
    /// How often it turned from adding to removing, or back.
    pub fn turns(&self) -> usize {
        let steps: Vec<bool> = self.wanted.windows(2).map(|pair| pair[1].1 > pair[0].1).collect();
        steps.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }
}

/// Scales the site until `end`, then lets what is leaving leave.
pub async fn scale(site: &Arc<Site>, signal: Signal, bounds: Bounds, end: Duration) -> Result<History> {
    let start = Instant::now();
    let (mut history, mut recent) = (History::default(), VecDeque::new());
    let mut leaving = JoinSet::new();
    let mut wanted = staying(site).len();
    history.wanted.push((0.0, wanted as f64));
    while start.elapsed() < end {
        let current = staying(site).len();
        // Without an answer everything stays as it is.
        let asked = match signal {
            Signal::Queue => desired(site).await.unwrap_or(wanted),
            Signal::Utilisation => stabilised(&mut recent, by_utilisation(site), bounds.stabilisation),
        };
        let asked = asked.clamp(bounds.least, bounds.most);
        if asked != wanted {
            wanted = asked;
            history.wanted.push((start.elapsed().as_secs_f64(), wanted as f64));
        }
        for place in empty(site).into_iter().take(wanted.saturating_sub(current)) {
            site.launch(place).await?;
        }
        let spare = current.saturating_sub(wanted);
        let going = if spare > 0 { cheapest(site).await } else { Vec::new() };
        for place in going.into_iter().take(spare) {
            site.leave(place);
            let site = Arc::clone(site);
            leaving.spawn(async move { site.drain(place, DRAINED_WITHIN).await });
        }
        tokio::time::sleep(INTERVAL).await;
    }
    for drained in leaving.join_all().await {
        history.undrained += usize::from(!drained?);
    }
    Ok(history)
}

async fn desired(site: &Site) -> Option<usize> {
    let signals = site.control.signals().await.ok()?;
    signals["desired_replicas"].as_f64().map(|desired| desired as usize)
}

/// HPA's rule. Engines that still load count as idle where that keeps it from adding more.
fn by_utilisation(site: &Site) -> usize {
    let staying = staying(site);
    let up: Vec<usize> = staying.iter().copied().filter(|place| site.truth(*place) == Truth::Up).collect();
    let busy: f64 = up.iter().map(|place| site.engine(*place).utilisation(UTILISATION_WINDOW)).sum();
    let ratio = |engines: usize| busy / engines.max(1) as f64 / TARGET_UTILISATION;
    let counted = if ratio(up.len()) > 1.0 { staying.len() } else { up.len() };
    let ratio = ratio(counted);
    if up.is_empty() || (ratio - 1.0).abs() <= TOLERANCE || (counted > up.len() && ratio < 1.0) {
        return staying.len();
    }
    (ratio * counted as f64).ceil() as usize
}

/// The most that was wanted of late.
fn stabilised(recent: &mut VecDeque<(Instant, usize)>, wanted: usize, window: Duration) -> usize {
    let now = Instant::now();
    recent.push_back((now, wanted));
    recent.retain(|(at, _)| now.duration_since(*at) <= window);
    recent.iter().map(|(_, wanted)| *wanted).max().unwrap_or(wanted)
}

/// Places whose engines are at work or will be.
fn staying(site: &Site) -> Vec<usize> {
    let stays = |place: &usize| matches!(site.truth(*place), Truth::Loading | Truth::Up);
    (0..site.places()).filter(stays).collect()
}

fn empty(site: &Site) -> Vec<usize> {
    (0..site.places()).filter(|place| site.truth(*place) == Truth::Empty).collect()
}

/// Engines in the order in which they can best be spared: those that do not serve yet, then by `deletion_cost` of
/// `GET /kvroute/status`.
async fn cheapest(site: &Site) -> Vec<usize> {
    let status = site.control.status().await.unwrap_or_default();
    let cost = |place: usize| {
        let address = site.engine(place).address().to_string();
        let mut hosts = status["hosts"].as_array().into_iter().flatten();
        hosts.find(|host| host["host"] == address).and_then(|host| host["deletion_cost"].as_i64())
    };
    let mut places = staying(site);
    places.sort_by_cached_key(|place| (site.truth(*place) == Truth::Up, cost(*place)));
    places
}
