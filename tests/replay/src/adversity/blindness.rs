//! What if hosts differ, or the router cannot see what it usually sees?

use super::{kvroute, ratios, Measured, Mishap, Trial};
use crate::game::{Contender, Game};
use crate::policy::kvroute::Setup;
use crate::simulation::Polling;

pub(super) const MISHAPS: &[Mishap] = &[
    Mishap { name: "one host at half speed, load 0.7", measure: slow },
    Mishap { name: "metrics are 5 s old, load 0.9", measure: |trial| polls(trial, 1, OLD) },
    Mishap { name: "metrics are 5 s old, load 0.9, 4 gateways", measure: |trial| polls(trial, 4, OLD) },
    Mishap { name: "no metrics at all, load 0.9", measure: |trial| polls(trial, 1, NONE) },
    Mishap { name: "no metrics at all, load 0.9, 4 gateways", measure: |trial| polls(trial, 4, NONE) },
    Mishap { name: "no content-length, load 0.9", measure: unannounced },
];

const OLD: Polling = Polling { interval_us: 500_000, delay_us: 10_000, stale_us: 5_000_000, answered: true };
const NONE: Polling = Polling { interval_us: 500_000, delay_us: 10_000, stale_us: 0, answered: false };

const MEAN: &str = "TTFT over the oracle's";
const P99: &str = "p99 TTFT over the oracle's";

fn slow(trial: &Trial) -> Vec<Measured> {
    let even = trial.arena.game(trial.trace, 0.7, trial.seed);
    let hosts = even.hosts.len() as f64;
    let mut game = trial.arena.game(trial.trace, 0.7 * (hosts - 0.5) / hosts, trial.seed);
    if let Some(spec) = game.hosts.first_mut() {
        spec.prefill_tokens_per_s /= 2.0;
        spec.step_ms *= 2.0;
        spec.sequence_ms *= 2.0;
    }
    against(&game, &kvroute(), &even, &kvroute())
}

fn polls(trial: &Trial, gateways: usize, polling: Polling) -> Vec<Measured> {
    let usual = Game { gateways, ..trial.arena.game(trial.trace, 0.9, trial.seed) };
    let game = Game { polling, ..usual.clone() };
    against(&game, &kvroute(), &usual, &kvroute())
}

fn unannounced(trial: &Trial) -> Vec<Measured> {
    let game = trial.arena.game(trial.trace, 0.9, trial.seed);
    let blind = Contender::kvroute("kvroute", Setup { announced: false, ..Setup::default() });
    against(&game, &blind, &game, &kvroute())
}

/// Ratios to an oracle that knows, beside the usual ones.
fn against(game: &Game, contender: &Contender, usual: &Game, usually: &Contender) -> Vec<Measured> {
    let (mean, p99) = ratios(game, contender);
    let (usual_mean, usual_p99) = ratios(usual, usually);
    vec![Measured::ratio(MEAN, mean).usually(usual_mean), Measured::ratio(P99, p99).usually(usual_p99)]
}
