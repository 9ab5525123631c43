//! What is a run worth? Its figures.

use crate::simulation::Served;
use serde::Serialize;

/// Requests at the start of a run that are not counted: caches and books begin empty.
const WARM_UP_SHARE: f64 = 0.1;

/// Seconds within which a first token is good.
const GOOD_S: f64 = 2.0;

/// Figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Figures {
    /// Seconds to the first token, on average.
    pub mean_s: f64,
    /// Its median.
    pub p50_s: f64,
    /// Its 99th percentile.
    pub p99_s: f64,
    /// Share of prompt tokens that were cached.
    pub hit_rate: f64,
    /// Share of requests with a first token within two seconds; failed ones are not.
    pub goodput: f64,
    /// Uncached prompt tokens of the busiest host over the mean.
    pub imbalance: f64,
    /// Requests that failed.
    pub failed: usize,
}

impl Figures {
    /// Of a whole run but its start, over `hosts` hosts.
    pub fn of(served: &[Served], hosts: usize) -> Self {
        Self::over(&served[(served.len() as f64 * WARM_UP_SHARE) as usize..], hosts)
    }

    /// The best of several, figure by figure.
    pub fn envelope(several: impl IntoIterator<Item = Self>) -> Self {
        let best = |best: Self, next: Self| Self {
            mean_s: best.mean_s.min(next.mean_s),
            p50_s: best.p50_s.min(next.p50_s),
            p99_s: best.p99_s.min(next.p99_s),
            hit_rate: best.hit_rate.max(next.hit_rate),
            goodput: best.goodput.max(next.goodput),
            imbalance: best.imbalance.min(next.imbalance),
            failed: best.failed.min(next.failed),
        };
        several.into_iter().reduce(best).unwrap_or_default()
    }

    /// Of the requests that came from `from_us` on, before `to_us`.
    pub fn during(served: &[Served], hosts: usize, from_us: u64, to_us: u64) -> Self {
        let before = |us: u64| served.partition_point(|request| request.at_us < us);
        Self::over(&served[before(from_us)..before(to_us).max(before(from_us))], hosts)
    }

    /// Of these requests.
    pub fn over(served: &[Served], hosts: usize) -> Self {
        let mut ttft: Vec<u64> = served.iter().filter_map(|request| request.ttft_us).collect();
        ttft.sort_unstable();
        let seconds = |us: u64| us as f64 / 1e6;
        let at = |share: f64| {
            ttft.get((ttft.len().max(1) as f64 * share) as usize)
                .or(ttft.last())
                .map_or(0.0, |us| seconds(*us))
        };
        let prompt: u64 = served.iter().map(|request| u64::from(request.prompt_tokens)).sum();
        let cached: u64 = served.iter().map(|request| u64::from(request.cached_tokens)).sum();
        let mut work = vec![0_u64; hosts];
        for request in served {
            if work.len() <= request.host as usize {
                work.resize(request.host as usize + 1, 0);
            }
            work[request.host as usize] += u64::from(request.prompt_tokens - request.cached_tokens);
        }
        let total: u64 = work.iter().sum();
        let good = ttft.partition_point(|us| seconds(*us) <= GOOD_S);
        Self {
            mean_s: ttft.iter().map(|us| seconds(*us)).sum::<f64>() / ttft.len().max(1) as f64,
            p50_s: at(0.5),
            p99_s: at(0.99),
            hit_rate: cached as f64 / prompt.max(1) as f64,
            goodput: good as f64 / served.len().max(1) as f64,
            imbalance: work.iter().max().copied().unwrap_or(0) as f64 * work.len() as f64
                / total.max(1) as f64,
            failed: served.len() - ttft.len(),
        }
    }
}
