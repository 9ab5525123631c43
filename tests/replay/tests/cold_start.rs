//! A host joins a busy fleet with an empty cache: it is neither flooded nor does it starve.

#![allow(missing_docs)]

use replay::engine::EngineSpec;
use replay::experiment::Arena;
use replay::game::Contender;
use replay::policy::kvroute::Setup;
use replay::simulation::{Event, Served};
use replay::synthesis::Kind;
use replay::trace::{Request, Trace};
use serde_json::{json, Value};

/// Hosts before: the fewer, the more one that is added counts.
const HOSTS: usize = 4;

/// When the next one joins: the others have been warm for as long as a warm-up takes.
const JOINS_S: u64 = 40;

const LOAD: f64 = 0.75;
const SEEDS: u64 = 3;

/// A prefix of 6,000 tokens is everybody's, and only a short question is one's own.
fn hot() -> Trace {
    let requests = (0..48_000_u64).map(|n| Request {
        at_us: n * 20_000,
        prompt_tokens: 25 * 256,
        output_tokens: 60,
        session: n,
        anchor: n,
        ids: (0..24).chain([1_000_000 + n]).collect(),
        answer_ids: Vec::new(),
    });
    Trace { name: "hot".into(), block_tokens: 256, requests: requests.collect() }
}

/// What the newcomer gets and how it does, beside the others.
#[derive(Debug)]
struct Joined {
    /// Its requests in the first five seconds, and from 30 to 60 s, over what a host has on average.
    share_at_first: f64,
    share_later: f64,
    /// The 95th percentile of its time to first token over that of the others, in the first 30 s.
    ttft: f64,
}

fn joins(arena: &Arena, trace: usize, warm_up: &Value) -> Joined {
    let mut after: Vec<Served> = Vec::new();
    for seed in 1..=SEEDS {
        let mut game = arena.game(trace, LOAD, seed);
        game.events.push((JOINS_S * 1_000_000, Event::Join(EngineSpec::default())));
        let setup = Setup { config: json!({ "warm_up": warm_up }), ..Setup::default() };
        let served = game.play(&Contender::kvroute("kvroute", setup)).served;
        let last_s = served.last().map_or(0, |last| last.at_us / 1_000_000);
        assert!(last_s > JOINS_S + 60, "{}: over after {last_s} s", arena.subjects[trace].trace.name);
        after.extend(served.iter().filter(|request| request.at_us >= JOINS_S * 1_000_000));
    }
    let is_new = |request: &Served| request.host as usize == HOSTS;
    let during = |from_s: u64, to_s: u64| {
        let range = (JOINS_S + from_s) * 1_000_000..(JOINS_S + to_s) * 1_000_000;
        after.iter().copied().filter(move |request| range.contains(&request.at_us))
    };
    let share = |from_s, to_s| {
        let own = during(from_s, to_s).filter(is_new).count();
        own as f64 * (HOSTS + 1) as f64 / during(from_s, to_s).count() as f64
    };
    let p95_s = |new: bool| {
        let of = during(0, 30).filter(|request| is_new(request) == new);
        let mut ttft: Vec<u64> = of.filter_map(|request| request.ttft_us).collect();
        ttft.sort_unstable();
        ttft[ttft.len() * 95 / 100] as f64 / 1e6
    };
    Joined { share_at_first: share(0, 5), share_later: share(30, 60), ttft: p95_s(true) / p95_s(false) }
}

/// Without a warm-up the cost alone keeps it from starving, but not from being flooded: it looks idle, and everything that
/// nobody holds goes there at once.
#[test]
fn a_host_that_joins_a_busy_fleet_is_neither_flooded_nor_does_it_starve() {
    let traces =
        [Kind::Chat.trace(24_000, 1), Kind::Rag.trace(8_000, 1), Kind::Unique.trace(16_000, 1), hot()];
    let arena = Arena::measure(&traces, HOSTS, |_| ());
    for (n, trace) in traces.iter().enumerate() {
        let with = joins(&arena, n, &json!({}));
        let without = joins(&arena, n, &json!({ "seconds": 0 }));
        let what = format!("{}: {with:?}, without a warm-up {without:?}", trace.name);
        println!("{what}");
        assert!(with.share_at_first < 0.6 && with.ttft < 2.0, "{what}");
        assert!(with.share_later > 0.7 && without.share_later > 0.7, "{what}");
        match trace.name.as_str() {
            "unique" => assert!(without.ttft > 4.0 * with.ttft, "{what}"),
            "hot" => assert!(without.ttft > 1.5 * with.ttft, "{what}"),
            _ => {}
        }
    }
}
