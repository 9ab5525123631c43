//! How is it, second by second? What kvroute says on its control listener, and how the engines really are.

use super::site::{Site, Truth};
use serde_json::Value;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{timeout_at, Instant};

/// Between two looks.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// What utilisation is measured over.
pub const UTILISATION_WINDOW: Duration = Duration::from_secs(5);

/// One look.
#[derive(Debug, Clone)]
pub struct Sample {
    /// From the start.
    pub at: Duration,
    /// Each place, in order.
    pub places: Vec<Place>,
    /// Requests that wait at the engines that kvroute knows of, by its own word.
    pub waiting: Option<f64>,
    /// Requests that run there.
    pub running: Option<f64>,
    /// Hosts that take requests.
    pub ready: Option<f64>,
    /// Replicas that kvroute would have.
    pub desired: Option<f64>,
}

/// One place at one look.
#[derive(Debug, Clone)]
pub struct Place {
    /// How it really is.
    pub truth: Truth,
    /// How busy its GPU looks, 0 to 1, if its engine is at work.
    pub utilisation: Option<f64>,
    /// What kvroute thinks of it: life and reason. `None` if it knows no such host.
    pub life: Option<(String, String)>,
}

/// Does `work`, and looks meanwhile.
pub async fn during<T>(site: &Site, seen: &mut Vec<Sample>, work: impl Future<Output = T>) -> T {
    let (start, mut work) = (Instant::now(), pin!(work));
    for n in 0.. {
        if let Ok(done) = timeout_at(start + INTERVAL * n, &mut work).await {
            return done;
        }
        tokio::select! {
            sample = look(site, start) => seen.push(sample),
            done = &mut work => return done,
        }
    }
    work.await
}

async fn look(site: &Site, start: Instant) -> Sample {
    let at = start.elapsed();
    let status = site.control.status().await.unwrap_or_default();
    let signals = site.control.signals().await.unwrap_or_default();
    let places = (0..site.places()).map(|place| {
        let address = site.engine(place).address().to_string();
        let mut hosts = status["hosts"].as_array().into_iter().flatten();
        let host = hosts.find(|host| host["host"] == address);
        let word = |host: &Value, key: &str| host[key].as_str().unwrap_or_default().to_owned();
        let truth = site.truth(place);
        let busy = || site.engine(place).utilisation(UTILISATION_WINDOW);
        let life = host.map(|host| (word(host, "life"), word(host, "reason")));
        Place { truth, utilisation: (truth == Truth::Up).then(busy), life }
    });
    Sample {
        at,
        places: places.collect(),
        waiting: status["waiting"].as_f64(),
        running: status["running"].as_f64(),
        ready: signals["ready_replicas"].as_f64().or(status["ready_hosts"].as_f64()),
        desired: signals["desired_replicas"].as_f64(),
    }
}
