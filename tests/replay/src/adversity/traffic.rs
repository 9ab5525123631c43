//! What if traffic is not as usual?

use super::{kvroute, over, ratios, Measured, Mishap, Trial};
use crate::figures::Figures;
use crate::game::{Contender, Game};
use crate::policy::kvroute::Setup;
use crate::policy::registry::peers;
use crate::simulation::Served;
use crate::trace::Request;
use kvroute::core::blocks::BlockHash;
use serde_json::json;
use std::collections::BTreeSet;

pub(super) const MISHAPS: &[Mishap] = &[
    Mishap {
        name: "a prefix of 6,000 tokens is half of all traffic for 30 s, from one second to the next",
        measure: crowd,
    },
    Mishap { name: "40 requests with one new prefix within 20 ms, over 4 workers", measure: bursts },
    Mishap { name: "nothing is shared", measure: unique },
    Mishap { name: LONG_HEADS, measure: long_heads },
];

const SECOND_US: u64 = 1_000_000;

/// Tokens of the prefix that many ask with, and of what each adds.
const PREFIX_TOKENS: u32 = 6_000;
const OWN_TOKENS: u32 = 200;
const ANSWER_TOKENS: u32 = 150;

const LONG_HEADS: &str = "everybody's system prompt is 36 KB, and no more than 30 KB may be held, load 0.7";

/// Tokens of a system prompt that is longer than what Envoy Gateway's buffer limit lets a filter hold.
const HEAD_TOKENS: u32 = 8_192;
const HOLD_BYTES: u32 = 30_720;

/// How many ask at once in a burst.
const BURST: usize = 40;

fn crowd(trial: &Trial) -> Vec<Measured> {
    let quiet = trial.arena.game(trial.trace, 0.5, trial.seed);
    let end_us = quiet.requests.last().map_or(0, |request| request.at_us);
    let from_us = end_us * 2 / 5;
    let to_us = from_us + (30 * SECOND_US).min(end_us / 5);
    let mut game = quiet.clone();
    let joined = quiet.requests.iter().filter(|request| (from_us..to_us).contains(&request.at_us));
    // One more beside each.
    let many: Vec<Request> = joined
        .enumerate()
        .map(|(n, request)| asks(1, n as u64, request.at_us + 1_000, game.block_tokens))
        .collect();
    let prefix = many.first().map_or(0, |request| request.ids[0]);
    game.requests.extend(many);
    game.requests.sort_by_key(|request| request.at_us);
    let hosts = game.hosts.len();
    let during = |served: &[Served]| Figures::during(served, hosts, from_us, to_us).mean_s;
    let served = game.play(&kvroute()).served;
    let is_crowd: Vec<bool> =
        game.requests.iter().map(|request| request.ids.first() == Some(&prefix)).collect();
    let only = |served: &[Served], crowd: bool| -> Vec<Served> {
        served.iter().zip(&is_crowd).filter(|(_, is)| **is == crowd).map(|(one, _)| *one).collect()
    };
    let oracle = game.oracles().iter().map(|served| during(served)).fold(f64::MAX, f64::min);
    let used: BTreeSet<u32> = only(&served, true).iter().map(|request| request.host).collect();
    let usual = during(&quiet.play(&kvroute()).served);
    vec![
        Measured::ratio("TTFT meanwhile, over the oracle's", over(during(&served), oracle)),
        Measured::ratio(
            "TTFT of the other requests meanwhile, over that without the crowd",
            over(during(&only(&served, false)), usual),
        ),
        Measured::plain("TTFT of the crowd, ms", 1e3 * during(&only(&served, true))),
        Measured::plain("hosts that the crowd is spread over", used.len() as f64),
    ]
}

fn bursts(trial: &Trial) -> Vec<Measured> {
    let mut game = trial.arena.game(trial.trace, 0.5, trial.seed);
    let end_us = game.requests.last().map_or(0, |request| request.at_us);
    let count = 10;
    let mut firsts = Vec::new();
    for burst in 0..count {
        let at_us = end_us * (burst + 1) / (count + 2);
        let asked = (0..BURST as u64).map(|n| asks(burst + 2, n, at_us + n * 500, game.block_tokens));
        let asked: Vec<Request> = asked.collect();
        firsts.push(asked[0].ids[0]);
        game.requests.extend(asked);
    }
    game.requests.sort_by_key(|request| request.at_us);
    let kvroute = Contender::kvroute("kvroute", Setup { workers: 4, ..Setup::default() });
    let served = game.play(&kvroute).served;
    let oracles = game.oracles();
    let of = |served: &[Served]| -> Vec<Served> {
        let in_burst = |request: &Request| request.ids.first().is_some_and(|id| firsts.contains(id));
        served.iter().zip(&game.requests).filter(|(_, asked)| in_burst(asked)).map(|(one, _)| *one).collect()
    };
    let mean_s = |served: &[Served]| Figures::over(&of(served), game.hosts.len()).mean_s;
    let hosts = firsts.iter().map(|first| {
        let asked = served.iter().zip(&game.requests).filter(|(_, asked)| asked.ids.first() == Some(first));
        asked.map(|(one, _)| one.host).collect::<BTreeSet<u32>>().len()
    });
    let hosts: Vec<usize> = hosts.collect();
    let best = oracles.iter().map(|served| mean_s(served)).fold(f64::MAX, f64::min);
    vec![
        Measured::plain("hosts a burst", hosts.iter().sum::<usize>() as f64 / hosts.len().max(1) as f64),
        Measured::ratio("TTFT of the bursts, over the oracle's", over(mean_s(&served), best)),
    ]
}

/// One of many who ask with the same prefix.
fn asks(prefix: u64, number: u64, at_us: u64, block_tokens: u32) -> Request {
    let prompt_tokens = PREFIX_TOKENS + OWN_TOKENS;
    let shared = u64::from(PREFIX_TOKENS / block_tokens);
    let id = |block: u64| {
        let own = if block < shared { 0 } else { number + 1 };
        BlockHash(block).under(prefix << 32 | own).0
    };
    Request {
        at_us,
        prompt_tokens,
        output_tokens: ANSWER_TOKENS,
        session: BlockHash(number).under(prefix).0,
        anchor: prefix,
        ids: (0..u64::from(prompt_tokens.div_ceil(block_tokens))).map(id).collect(),
        answer_ids: Vec::new(),
    }
}

/// Only where nothing is shared anyway: the others' capacity is not what it would be.
fn unique(trial: &Trial) -> Vec<Measured> {
    let game = trial.arena.game(trial.trace, 0.9, trial.seed);
    if shares(&game) {
        return Vec::new();
    }
    let Some(least_loaded) = peers().into_iter().find(|named| named.name == "least loaded") else {
        return Vec::new();
    };
    let ratio = |load: f64| {
        let game = trial.arena.game(trial.trace, load, trial.seed);
        let mean = |contender: &Contender| Figures::of(&game.play(contender).served, game.hosts.len()).mean_s;
        over(mean(&kvroute()), mean(&Contender::peer(&least_loaded)))
    };
    vec![
        Measured::ratio("TTFT over that of least loaded, at load 0.5", ratio(0.5)),
        Measured::ratio("TTFT over that of least loaded, at load 0.7", ratio(0.7)),
        Measured::ratio("TTFT over that of least loaded, at load 0.9", ratio(0.9)),
    ]
}

/// A system prompt that everybody shares, and that is longer than what is held back of a body: what tells sessions
/// apart has not been read when it is decided.
fn long_heads(trial: &Trial) -> Vec<Measured> {
    let game = trial.arena.game(trial.trace, 0.7, trial.seed);
    if !shares(&game) {
        return Vec::new();
    }
    let mut long = game.clone();
    let blocks = u64::from(HEAD_TOKENS / game.block_tokens);
    for request in &mut long.requests {
        let head = (0..blocks).map(|block| BlockHash(block).under(u64::MAX).0);
        request.ids.splice(0..0, head);
        request.prompt_tokens += blocks as u32 * game.block_tokens;
    }
    let config = json!({"prompt": {"hold_bytes": HOLD_BYTES}});
    let holding = Contender::kvroute("kvroute", Setup { config, ..Setup::default() });
    let (mean, p99) = ratios(&long, &holding);
    let (usual_mean, usual_p99) = ratios(&game, &holding);
    vec![
        Measured::ratio("TTFT over the oracle's", mean).usually(usual_mean),
        Measured::ratio("p99 TTFT over the oracle's", p99).usually(usual_p99),
    ]
}

fn shares(game: &Game) -> bool {
    let mut seen = BTreeSet::new();
    game.requests.iter().take(5_000).any(|request| !seen.insert(request.ids[0]))
}
