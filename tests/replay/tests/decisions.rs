//! Does kvroute's core decide well? Outcomes on reduced synthetic traces, that fail where a change makes them worse.

#![allow(missing_docs)]

use replay::experiment::{geometric_mean, Arena, Cell, Scenario};
use replay::figures::Figures;
use replay::game::{Contender, Game};
use replay::policy::kvroute::Setup;
use replay::policy::registry::peers;
use replay::simulation::Polling;
use replay::synthesis::Kind;
use replay::trace::Trace;

const HOSTS: usize = 8;

fn traces(kinds: &[Kind]) -> Vec<Trace> {
    kinds.iter().map(|kind| kind.trace(6_000, 7)).collect()
}

fn arena(traces: &[Trace]) -> Arena<'_> {
    Arena::measure(traces, HOSTS, |_| {})
}

fn kvroute(setup: Setup) -> Contender {
    Contender::kvroute("kvroute", setup)
}

/// Each contender's mean ratio to the oracle.
fn ratios(arena: &Arena, gateways: usize, seeds: u64, contenders: &[Contender]) -> Vec<f64> {
    let scenario = Scenario::of(gateways, seeds).at(&[0.9]);
    let cells = arena.compare(&scenario, contenders, |_| {});
    let of = |number: usize| cells.iter().filter(move |cell| cell.contender == number).map(Cell::mean_ratio);
    (0..contenders.len()).map(|number| geometric_mean(of(number))).collect()
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let traces = traces(&[Kind::Chat]);
    let arena = arena(&traces);
    let game = arena.game(0, 0.8, 3);
    let setup = Setup { workers: 4, peers_ms: Some(100), ..Setup::default() };
    let play = || game.play(&kvroute(setup.clone())).served;
    assert_eq!(play(), play());
    assert_ne!(play(), arena.game(0, 0.8, 4).play(&kvroute(setup.clone())).served);
}

#[test]
fn kvroute_is_ahead_of_every_peer() {
    let traces = traces(&[Kind::Chat, Kind::Rag]);
    let mut contenders = vec![kvroute(Setup::default())];
    contenders.extend(peers().iter().map(Contender::peer));
    let ratios = ratios(&arena(&traces), 1, 1, &contenders);
    for (contender, ratio) in contenders.iter().zip(&ratios).skip(1) {
        assert!(
            ratios[0] < *ratio,
            "{} is at {ratio:.3} of the oracle, kvroute at {:.3}",
            contender.name,
            ratios[0]
        );
    }
    assert!(ratios[0] < 1.3, "kvroute is at {:.3} of the oracle", ratios[0]);
}

#[test]
fn four_workers_decide_as_one() {
    let traces = traces(&[Kind::Chat, Kind::Rag]);
    let setups = [1, 4].map(|workers| kvroute(Setup { workers, ..Setup::default() }));
    let ratios = ratios(&arena(&traces), 1, 2, &setups);
    let worse = ratios[1] / ratios[0];
    assert!(worse < 1.03, "4 workers are at {worse:.3} of 1");
}

#[test]
fn gateways_that_exchange_are_ahead_of_those_that_do_not() {
    let traces = traces(&[Kind::Chat, Kind::Rag]);
    let setups = [None, Some(100)].map(|peers_ms| kvroute(Setup { peers_ms, ..Setup::default() }));
    let ratios = ratios(&arena(&traces), 4, 1, &setups);
    assert!(ratios[1] < 0.9 * ratios[0], "with peers {:.3} of the oracle, alone {:.3}", ratios[1], ratios[0]);
}

#[test]
fn where_nothing_is_shared_it_is_as_good_as_least_loaded() {
    let traces = traces(&[Kind::Unique]);
    let arena = arena(&traces);
    let least_loaded = peers().into_iter().find(|named| named.name == "least loaded").expect("it is listed");
    for load in [0.7, 0.9] {
        let game = arena.game(0, load, 1);
        let mean_s = |contender: &Contender| Figures::of(&game.play(contender).served, HOSTS).mean_s;
        let ratio = mean_s(&kvroute(Setup::default())) / mean_s(&Contender::peer(&least_loaded));
        assert!(ratio <= 1.03, "{ratio:.3} of least loaded at load {load}");
    }
}

/// It knows its own work, and each host generates what it is asked for.
#[test]
fn one_gateway_decides_as_well_without_any_metrics() {
    let traces = traces(&[Kind::Chat]);
    let arena = arena(&traces);
    let usual = arena.game(0, 0.9, 1);
    let polling = Polling { answered: false, ..usual.polling };
    let mean_s = |game: &Game| Figures::of(&game.play(&kvroute(Setup::default())).served, HOSTS).mean_s;
    let ratio = mean_s(&Game { polling, ..usual.clone() }) / mean_s(&usual);
    assert!(ratio < 1.2, "{ratio:.3} of what it is with them");
}
