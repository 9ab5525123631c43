//! Who asks what, how often? Conversations with shared prefixes, whose number follows a curve.

use crate::workload::plan::{Plan, Shape};
use std::time::Duration;

/// Requests a second over time: points that straight lines join.
#[derive(Debug, Clone)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Through these points: seconds, in order and from 0, and requests a second.
    pub fn new(points: &[(f64, f64)]) -> Self {
        Self { points: points.to_vec() }
    }

    /// Requests a second at a time; 0 after the end.
    pub fn rate(&self, at_s: f64) -> f64 {
        let spans = self.points.windows(2);
        let mut inside = spans.filter(|pair| (pair[0].0..=pair[1].0).contains(&at_s));
        inside.next().map_or(0.0, |pair| {
            let share = (at_s - pair[0].0) / (pair[1].0 - pair[0].0);
            pair[0].1 + share * (pair[1].1 - pair[0].1)
        })
    }

    /// Seconds until its end.
    pub fn seconds(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.0)
    }

    /// The highest rate.
    pub fn peak(&self) -> f64 {
        self.points.iter().map(|point| point.1).fold(0.0, f64::max)
    }

    /// When so many requests have been asked; `None` if that is beyond the end.
    fn time_of(&self, requests: f64) -> Option<f64> {
        let mut left = requests;
        for pair in self.points.windows(2) {
            let (length, first, last) = (pair[1].0 - pair[0].0, pair[0].1, pair[1].1);
            let area = length * (first + last) / 2.0;
            if left <= area {
                // first * x + slope * x^2 / 2 = left, for the x at which it gets there first.
                let slope = (last - first) / length;
                let root = (first * first + 2.0 * slope * left).max(0.0).sqrt();
                return Some(pair[0].0 + if first + root > 0.0 { 2.0 * left / (first + root) } else { 0.0 });
            }
            left -= area;
        }
        None
    }
}

/// Draws conversations of this shape (whose `conversations` and `starts_per_s` do not matter) that start as often as the
/// curve's requests need. A conversation's later turns come somewhat later than the curve says.
pub fn plan(shape: &Shape, curve: &Curve) -> Plan {
    let turns = (1 + shape.turns) as f64 / 2.0;
    let most = (curve.seconds() * curve.peak() / turns).ceil() as usize;
    // One start a second, on average, which the curve's own clock then turns into its rate.
    let mut plan = Plan::new(&Shape { conversations: most, starts_per_s: 1.0, ..shape.clone() });
    plan.conversations.retain_mut(|conversation| {
        let start = curve.time_of(conversation.start.as_secs_f64() * turns);
        conversation.start = Duration::from_secs_f64(start.unwrap_or_default());
        start.is_some()
    });
    plan
}

/// Chats of a few short turns: eight applications share system prompts of some 700 tokens.
pub fn chats() -> Shape {
    Shape {
        seed: 11,
        conversations: 0,
        starts_per_s: 0.0,
        systems: 8,
        skew: 0.6,
        system_bytes: 3_000,
        turns: 4,
        question_bytes: 300,
        answer_tokens: 64,
        think_s: 1.5,
        stream: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_start_as_often_as_the_curve_says() {
        let curve = Curve::new(&[(0.0, 2.0), (100.0, 2.0), (200.0, 22.0), (300.0, 0.0)]);
        assert_eq!((curve.rate(50.0), curve.rate(150.0), curve.rate(301.0)), (2.0, 12.0, 0.0));
        assert_eq!((curve.time_of(100.0), curve.time_of(2_501.0)), (Some(50.0), None));
        let plan = plan(&chats(), &curve);
        let between = |from: u64, to: u64| {
            let span = Duration::from_secs(from)..Duration::from_secs(to);
            let inside = plan.conversations.iter().filter(|conversation| span.contains(&conversation.start));
            inside.map(|conversation| conversation.turns.len()).sum::<usize>() as f64
        };
        for (from, to, expected) in [(0, 100, 200.0), (100, 200, 1_200.0), (200, 300, 1_100.0)] {
            let drawn = between(from, to);
            assert!((drawn / expected - 1.0).abs() < 0.25, "{from} to {to}: {drawn} of {expected}");
        }
    }
}
