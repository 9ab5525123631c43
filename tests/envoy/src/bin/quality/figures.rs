//! What came of a load?

use crate::load::{Load, ENGINES, GOOD_WITHIN};
use gateway::pace::Pace;
use gateway::workload::replay::Record;
use gateway::workload::summary::Summary;

/// What all policies made of one load.
pub struct Outcome {
    /// The load.
    pub load: &'static Load,
    /// Share of the prompt tokens that an endless cache would have had, plan by plan.
    pub reusable: Vec<f64>,
    /// The figures of each policy.
    pub policies: Vec<Figures>,
}

/// The figures of one policy, over all plans.
pub struct Figures {
    /// The policy.
    pub name: &'static str,
    /// How the machine kept up, in the plan where that was worst.
    pub pace: Pace,
    records: Vec<Record>,
    plans: Vec<Summary>,
}

impl Figures {
    /// Of no plan yet.
    pub fn new(name: &'static str) -> Self {
        Self { name, pace: Pace::default(), records: Vec::new(), plans: Vec::new() }
    }

    /// Adds the records of one plan, and how the machine kept up with it.
    pub fn add(&mut self, records: Vec<Record>, pace: Pace) {
        self.plans.push(Summary::new(&records));
        self.records.extend(records);
        self.pace = self.pace.worse(pace);
    }

    /// Of the requests of all plans alike.
    pub fn summary(&self) -> Summary {
        Summary::new(&self.records)
    }

    /// How many requests failed.
    pub fn failed(&self) -> usize {
        self.plans.iter().map(|plan| plan.failures.len()).sum()
    }

    /// Share of the requests whose first token came in time.
    pub fn goodput(&self) -> f64 {
        self.summary().goodput(GOOD_WITHIN)
    }

    /// Mean time to the first token in seconds, plan by plan.
    pub fn ttft_means_s(&self) -> Vec<f64> {
        self.plans.iter().map(|plan| plan.ttft.mean().as_secs_f64()).collect()
    }

    /// What the busiest engine computed over the mean of all: the mean over the plans, as each has its own fleet.
    pub fn imbalance(&self) -> f64 {
        self.plans.iter().map(|plan| plan.imbalance(ENGINES)).sum::<f64>() / self.plans.len() as f64
    }
}
