//! What if things go wrong? Each mishap with its figures.
//!
//! | mishap | module |
//! | --- | --- |
//! | a host joins, dies, is taken off the list, restarts | `fleet` |
//! | one prefix takes over, comes in bursts; nothing is shared | `traffic` |
//! | one host is slow; polls are old or fail; lengths are not announced | `blindness` |

mod blindness;
mod fleet;
mod traffic;

use crate::experiment::{geometric_mean, on_all_cores, Arena};
use crate::figures::Figures;
use crate::game::{Contender, Game};
use crate::policy::kvroute::Setup;
use serde::Serialize;
use std::collections::BTreeMap;

/// One figure of one mishap, over all traces and seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What happens.
    pub mishap: String,
    /// What is measured.
    pub figure: String,
    /// The mean over traces and seeds; of ratios, the geometric one.
    pub mean: f64,
    /// The largest of all.
    pub most: f64,
    /// The same figure where nothing happens.
    pub usually: Option<f64>,
    /// Means by trace.
    pub by_trace: BTreeMap<String, f64>,
}

/// How a figure's mean is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mean {
    Ratio,
    Plain,
}

/// A figure of one trace and seed.
struct Measured {
    figure: &'static str,
    mean: Mean,
    value: f64,
    usually: Option<f64>,
}

impl Measured {
    fn ratio(figure: &'static str, value: f64) -> Self {
        Self { figure, mean: Mean::Ratio, value, usually: None }
    }

    fn plain(figure: &'static str, value: f64) -> Self {
        Self { figure, mean: Mean::Plain, value, usually: None }
    }

    fn usually(self, value: f64) -> Self {
        Self { usually: Some(value), ..self }
    }
}

/// One trace of an arena, as one seed draws it.
struct Trial<'a> {
    arena: &'a Arena<'a>,
    trace: usize,
    seed: u64,
}

/// A mishap.
struct Mishap {
    name: &'static str,
    measure: fn(&Trial) -> Vec<Measured>,
}

/// All mishaps on all traces of an arena. `progress` is told the share that is done.
pub fn all(arena: &Arena, seeds: u64, progress: impl Fn(f64) + Sync) -> Vec<Finding> {
    let mishaps: Vec<&Mishap> =
        [fleet::MISHAPS, traffic::MISHAPS, blindness::MISHAPS].into_iter().flatten().collect();
    let traces = arena.subjects.len();
    let each = traces * seeds as usize;
    let done = std::sync::atomic::AtomicUsize::new(0);
    let measured = on_all_cores(mishaps.len() * each, |n| {
        let (mishap, trace, seed) = (n / each, n % traces, (n % each / traces) as u64 + 1);
        let measured = (mishaps[mishap].measure)(&Trial { arena, trace, seed });
        let count = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        progress(count as f64 / (mishaps.len() * each) as f64);
        (mishap, trace, measured)
    });
    let mut findings = Vec::new();
    for (number, mishap) in mishaps.iter().enumerate() {
        let rows = || measured.iter().filter(|(of, _, _)| *of == number);
        let figures = rows().map(|(_, _, measured)| measured).max_by_key(|measured| measured.len());
        for figure in figures.into_iter().flatten() {
            let values = rows().flat_map(|(_, trace, measured)| {
                measured.iter().filter(|one| one.figure == figure.figure).map(|one| (*trace, one))
            });
            findings.push(summary(arena, mishap.name, figure, &values.collect::<Vec<_>>()));
        }
    }
    findings
}

fn summary(arena: &Arena, mishap: &str, figure: &Measured, all: &[(usize, &Measured)]) -> Finding {
    let mean = |values: &[f64]| match figure.mean {
        Mean::Ratio => geometric_mean(values.iter().copied()),
        Mean::Plain => values.iter().sum::<f64>() / values.len().max(1) as f64,
    };
    let values: Vec<f64> = all.iter().map(|(_, one)| one.value).collect();
    let usually: Vec<f64> = all.iter().filter_map(|(_, one)| one.usually).collect();
    let by_trace = arena.subjects.iter().enumerate().filter_map(|(number, subject)| {
        let of: Vec<f64> =
            all.iter().filter(|(trace, _)| *trace == number).map(|(_, one)| one.value).collect();
        (!of.is_empty()).then(|| (subject.trace.name.clone(), mean(&of)))
    });
    Finding {
        mishap: mishap.to_owned(),
        figure: figure.figure.to_owned(),
        mean: mean(&values),
        most: values.iter().copied().fold(f64::MIN, f64::max),
        usually: (!usually.is_empty()).then(|| mean(&usually)),
        by_trace: by_trace.collect(),
    }
}

/// kvroute with its defaults.
fn kvroute() -> Contender {
    Contender::kvroute("kvroute", Setup::default())
}

/// A ratio of times, neither of which may be nothing.
fn over(time: f64, other: f64) -> f64 {
    time.max(1e-6) / other.max(1e-6)
}

/// Mean and p99 TTFT over those of an oracle that knows what happens.
fn ratios(game: &Game, contender: &Contender) -> (f64, f64) {
    let figures = Figures::of(&game.play(contender).served, game.hosts.len());
    let oracle = game.envelope();
    (over(figures.mean_s, oracle.mean_s), over(figures.p99_s, oracle.p99_s))
}
