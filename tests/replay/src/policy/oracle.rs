//! The decision with perfect knowledge: every cache and every queue as it is at this moment.
//!
//! It does not see the future, so there is no one best rule: [`VARIANTS`] are several weighings of the same truth, and
//! what policies are measured against is the best of them in each cell, the envelope.

use super::{Arrival, Policy, View};

/// A weighing of the truth.
#[derive(Debug, Clone, Copy)]
pub struct Oracle {
    /// Weight of the request's own uncached tokens.
    pub prefill_weight: f64,
    /// How much each request in the batch is slowed by a prefill, as a share of it.
    pub batch_slowdown: f64,
    /// Seconds that one more sequence in the batch costs.
    pub decode_s: f64,
}

/// From the selfish one, who only minimises its own time to the first token, to one that spares others twice over.
pub const VARIANTS: [Oracle; 4] = [
    Oracle { prefill_weight: 2.0, batch_slowdown: 0.2, decode_s: 0.03 },
    Oracle { prefill_weight: 1.0, batch_slowdown: 0.05, decode_s: 0.01 },
    Oracle { prefill_weight: 1.0, batch_slowdown: 0.0, decode_s: 0.001 },
    Oracle { prefill_weight: 3.0, batch_slowdown: 0.5, decode_s: 0.03 },
];

impl Policy for Oracle {
    fn sees_engines(&self) -> bool {
        true
    }

    fn route(&mut self, arrival: &Arrival, view: &View) -> usize {
        let request = arrival.request;
        let cost = |host: usize| {
            let engine = &view.engines[host];
            let hit = engine.expected_hit(&request.ids, request.prompt_tokens);
            let uncached = f64::from(request.prompt_tokens - hit);
            let batch = engine.requests() as f64;
            let prefill = engine.queued_tokens() as f64
                + self.prefill_weight * uncached
                + self.batch_slowdown * uncached * batch;
            let under_way_s = engine.step_remains_us(view.now_us) as f64 / 1e6;
            under_way_s + prefill / engine.spec().prefill_tokens_per_s + self.decode_s * batch
        };
        let costs = view.hosts.iter().map(|host| (cost(*host), *host));
        costs.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, host)| host)
    }
}
