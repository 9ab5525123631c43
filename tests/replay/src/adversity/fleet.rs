//! What if the fleet changes under load?

use super::{kvroute, over, Measured, Mishap, Trial};
use crate::engine::EngineSpec;
use crate::figures::Figures;
use crate::game::Game;
use crate::simulation::{Event, Served};

pub(super) const MISHAPS: &[Mishap] = &[
    Mishap { name: "a cold host joins at load 0.8", measure: joins },
    Mishap { name: "a host dies at load 0.7, and is taken off the list 5 s later", measure: dies },
    Mishap { name: "a host is taken off the list at load 0.7", measure: leaves },
    Mishap { name: "an engine restarts at load 0.7", measure: restarts },
];

/// When it happens, as a share of the run.
const AT: f64 = 0.4;

/// Where the host that it happens to is in the list.
const WHOM: usize = 3;

const SECOND_US: u64 = 1_000_000;

/// A share of a host's work this large is its share.
const ITS_SHARE: f64 = 0.8;

fn joins(trial: &Trial) -> Vec<Measured> {
    let before = trial.arena.game(trial.trace, 0.8, trial.seed);
    let (at_us, end_us) = times(&before);
    let mut game = before.clone();
    game.events.push((at_us, Event::Join(EngineSpec::default())));
    let served = game.play(&kvroute()).served;
    let without = before.play(&kvroute()).served;
    let newcomer = before.hosts.len();
    let minute = |served: &[Served], from_us: u64| {
        let others: Vec<Served> =
            served.iter().filter(|request| request.host as usize != newcomer).copied().collect();
        Figures::during(&others, newcomer, from_us, from_us + 60 * SECOND_US).mean_s
    };
    let earlier = minute(&served, at_us.saturating_sub(60 * SECOND_US));
    vec![
        Measured::plain(
            "seconds until it gets 80 % of a host's share of requests",
            share_after_s(&served, newcomer, at_us, end_us, |_| 1),
        ),
        Measured::plain(
            "seconds until it computes 80 % of a host's share of tokens",
            share_after_s(&served, newcomer, at_us, end_us, |one| one.prompt_tokens - one.cached_tokens),
        ),
        Measured::ratio(
            "TTFT of the others, the minute after over the minute before",
            over(minute(&served, at_us), earlier),
        )
        .usually(over(minute(&without, at_us), earlier)),
    ]
}

/// Seconds until a window begins over which a host has nearly as much `work` as the others.
fn share_after_s(
    served: &[Served],
    newcomer: usize,
    at_us: u64,
    end_us: u64,
    work: impl Fn(&Served) -> u32,
) -> f64 {
    // Long enough for a count of twenty a host to be expected.
    let rate = served.len() as f64 / (end_us as f64 / 1e6);
    let window_us = ((20.0 * (newcomer + 1) as f64 / rate).max(5.0) * 1e6) as u64;
    let mut from_us = at_us;
    while from_us + window_us < end_us {
        let first = served.partition_point(|request| request.at_us < from_us);
        let last = served.partition_point(|request| request.at_us < from_us + window_us);
        let (mut others, mut own) = (0, 0);
        for request in &served[first..last] {
            let whose = if request.host as usize == newcomer { &mut own } else { &mut others };
            *whose += u64::from(work(request));
        }
        if own as f64 * newcomer as f64 >= ITS_SHARE * others as f64 {
            break;
        }
        from_us += SECOND_US / 2;
    }
    (from_us - at_us) as f64 / 1e6
}

fn dies(trial: &Trial) -> Vec<Measured> {
    let at_us = times(&trial.arena.game(trial.trace, 0.7, trial.seed)).0;
    shock(trial, &[(at_us, Event::Die(WHOM)), (at_us + 5 * SECOND_US, Event::Lose(WHOM))])
}

fn leaves(trial: &Trial) -> Vec<Measured> {
    let at_us = times(&trial.arena.game(trial.trace, 0.7, trial.seed)).0;
    shock(trial, &[(at_us, Event::Lose(WHOM))])
}

fn restarts(trial: &Trial) -> Vec<Measured> {
    let at_us = times(&trial.arena.game(trial.trace, 0.7, trial.seed)).0;
    shock(trial, &[(at_us, Event::Restart(WHOM))])
}

fn shock(trial: &Trial, events: &[(u64, Event)]) -> Vec<Measured> {
    let mut game = trial.arena.game(trial.trace, 0.7, trial.seed);
    let (at_us, _) = times(&game);
    let usual = game.play(&kvroute()).served;
    game.events = events.to_vec();
    let served = game.play(&kvroute()).served;
    let hosts = game.hosts.len();
    let after = |served: &[Served]| Figures::during(served, hosts, at_us, at_us + 30 * SECOND_US).mean_s;
    let before = Figures::during(&served, hosts, at_us.saturating_sub(30 * SECOND_US), at_us).mean_s;
    let oracle = game.oracles().iter().map(|served| after(served)).fold(f64::MAX, f64::min);
    // What was under way there is lost whoever routes.
    let lost = served.iter().filter(|request| request.ttft_us.is_none() && request.at_us < at_us).count();
    let failed = served.iter().filter(|request| request.ttft_us.is_none()).count() - lost;
    vec![
        Measured::plain("requests lost that were waiting there", lost as f64),
        Measured::plain("requests failed that were sent there later", failed as f64),
        Measured::ratio("TTFT, 30 s after over 30 s before", over(after(&served), before))
            .usually(over(after(&usual), before)),
        Measured::ratio("TTFT in the 30 s after, over the oracle's", over(after(&served), oracle)),
    ]
}

/// When it happens, and when the last request comes.
fn times(game: &Game) -> (u64, u64) {
    let end_us = game.requests.last().map_or(0, |request| request.at_us);
    ((end_us as f64 * AT) as u64, end_us)
}
