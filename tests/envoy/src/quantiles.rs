//! What share of the requests took how long?

use std::time::Duration;

/// Durations in order, to take quantiles from.
#[derive(Debug, Clone, Default)]
pub struct Quantiles {
    sorted: Vec<Duration>,
}

impl Quantiles {
    /// Of these durations.
    pub fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self { sorted: durations }
    }

    /// The smallest duration that at least this share (0 to 1) of them do not exceed; zero if there are none.
    pub fn at(&self, share: f64) -> Duration {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Their mean; zero if there are none.
    pub fn mean(&self) -> Duration {
        self.sorted.iter().sum::<Duration>().checked_div(self.sorted.len() as u32).unwrap_or_default()
    }

    /// How many do not exceed `limit`.
    pub fn within(&self, limit: Duration) -> usize {
        self.sorted.partition_point(|duration| *duration <= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_nearest_rank() {
        let quantiles = Quantiles::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(quantiles.at(0.5), Duration::from_millis(50));
        assert_eq!(quantiles.at(0.99), Duration::from_millis(99));
        assert_eq!(quantiles.at(1.0), Duration::from_millis(100));
        assert_eq!(quantiles.at(0.0), Duration::from_millis(1));
        assert_eq!(quantiles.mean(), Duration::from_micros(50_500));
        assert_eq!(quantiles.within(Duration::from_millis(30)), 30);
        let none = Quantiles::new(Vec::new());
        assert_eq!((none.at(0.5), none.mean(), none.within(Duration::MAX)), Default::default());
    }
}
