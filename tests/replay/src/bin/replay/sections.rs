//! What is measured: who plays in each section, and in which surroundings.

use crate::progress::Progress;
use crate::row::{rows, Row, Surroundings};
use replay::experiment::{Arena, Scenario};
use replay::game::Contender;
use replay::policy::kvroute::{Setup, Without};
use replay::policy::registry::peers;
use serde_json::{json, Value};

/// Milliseconds between two exchanges of gateways that exchange.
const PEERS_MS: u64 = 100;

/// Policies of others that also take part where time is short.
const FEW: [&str; 4] = ["round robin", "least loaded", "SGLang cache_aware", "llm-d affinity"];

/// What a section is measured with.
pub struct Stage<'a> {
    /// The fleet, and the traces.
    pub arena: Arena<'a>,
    /// Seeds.
    pub seeds: u64,
    /// Whether time is short.
    pub quick: bool,
}

type Entry = (Contender, Surroundings);

impl Stage<'_> {
    /// kvroute, everybody else, by load.
    pub fn table(&self) -> Vec<Row> {
        let mut entries = vec![self.kvroute("kvroute", 1, Setup::default())];
        entries.extend(self.others(1));
        self.play("main table", 1, &[0.5, 0.7, 0.9, 1.05], self.seeds, entries)
    }

    /// kvroute on fleets of other sizes, each on its own arena.
    pub fn fleets(&self) -> Vec<Row> {
        let sizes: &[usize] = if self.quick { &[4, 64] } else { &[4, 64, 256] };
        let traces: Vec<_> = self.arena.subjects.iter().map(|subject| subject.trace.clone()).collect();
        let mut all = Vec::new();
        for &hosts in sizes {
            // The more hosts, the more copies of a trace run side by side: of its beginning only.
            let mut traces = traces.clone();
            let share = (hosts / 32).max(1);
            traces.iter_mut().for_each(|trace| trace.requests.truncate(trace.requests.len().div_ceil(share)));
            let arena = if hosts < 16 {
                let progress = Progress::begin(&format!("capacity of {hosts} hosts"));
                let arena = Arena::measure(&traces, hosts, |share| progress.at(share));
                progress.end();
                arena
            } else {
                self.arena.scaled(&traces, hosts)
            };
            let stage = Stage { arena, ..*self };
            let entries = vec![stage.kvroute(&format!("{hosts} hosts"), 1, Setup::default())];
            let loads: &[f64] = if hosts > 64 { &[0.9] } else { &[0.7, 0.9] };
            all.extend(stage.play(&format!("{hosts} hosts"), 1, loads, 1, entries));
        }
        all
    }

    /// kvroute with several workers in its gateway.
    pub fn workers(&self) -> Vec<Row> {
        let entry = |workers: usize| {
            let name = if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
            self.kvroute(&name, 1, Setup { workers, ..Setup::default() })
        };
        let few = [1, 4].map(entry).into();
        let mut all = self.play("workers", 1, &[0.5, 0.7, 0.9, 1.05], self.seeds, few);
        // Sixteen that read what sixteen publish, twenty times a second, take their time.
        all.extend(self.play("16 workers", 1, &[0.9], 1, [16].map(entry).into()));
        all
    }

    /// kvroute at several gateways, with and without exchange; and the others at four.
    pub fn gateways(&self) -> Vec<Row> {
        let mut all = Vec::new();
        for gateways in [1, 4, 16] {
            let (loads, seeds): (&[f64], u64) = match gateways {
                16 => (&[0.7, 0.9], 1),
                _ => (&[0.5, 0.7, 0.9, 1.05], self.seeds),
            };
            let mut entries =
                vec![self.kvroute(&format!("kvroute, {gateways} alone"), gateways, Setup::default())];
            if gateways > 1 {
                let setup = Setup { peers_ms: Some(PEERS_MS), ..Setup::default() };
                entries.push(self.kvroute(&format!("kvroute, {gateways} with peers"), gateways, setup));
            }
            if gateways == 4 {
                entries.extend(self.others(gateways).into_iter().map(|(mut contender, surroundings)| {
                    contender.name += ", 4";
                    (contender, surroundings)
                }));
            }
            all.extend(self.play(&format!("{gateways} gateways"), gateways, loads, seeds, entries));
        }
        all
    }

    /// kvroute without one ingredient after the other.
    pub fn ablation(&self) -> Vec<Row> {
        let surroundings =
            [(1, None, "1 gateway"), (4, None, "4 alone"), (4, Some(PEERS_MS), "4 with peers")];
        let surroundings = if self.quick { &surroundings[..1] } else { &surroundings[..] };
        let mut all = Vec::new();
        for &(gateways, peers_ms, place) in surroundings {
            let entry = |(name, config, without): (&str, Value, Without)| {
                let setup = Setup { peers_ms, config, without, ..Setup::default() };
                self.kvroute(&format!("{name}: {place}"), gateways, setup)
            };
            let entries = ingredients().into_iter().map(entry).collect();
            all.extend(self.play(&format!("ablation, {place}"), gateways, &[0.7, 0.9], 1, entries));
        }
        all
    }

    /// What kvroute has to learn, and what it may not be told.
    pub fn learning(&self) -> Vec<Row> {
        let mut all = Vec::new();
        let surroundings =
            [(1, None, "1 gateway"), (4, Some(PEERS_MS), "4 with peers"), (16, None, "16 alone")];
        for &(gateways, peers_ms, place) in &surroundings[..if self.quick { 1 } else { 3 }] {
            let usual = Setup { peers_ms, ..Setup::default() };
            let without = |key: &str| Setup { config: json!({"learning": {key: false}}), ..usual.clone() };
            let entry =
                |(name, setup): (&str, Setup)| self.kvroute(&format!("{name}: {place}"), gateways, setup);
            let settings = [
                ("4.4 bytes a token", usual.clone()),
                ("2.5 bytes a token", Setup { bytes_per_token: 2.5, ..usual.clone() }),
                ("6 bytes a token", Setup { bytes_per_token: 6.0, ..usual.clone() }),
                ("cached_tokens is not told", Setup { told: false, ..usual.clone() }),
                ("learning.prefill_rate off", without("prefill_rate")),
                ("learning.bytes_per_token off", without("bytes_per_token")),
                ("learning.capacity off", without("capacity")),
            ];
            let entries = settings.map(entry).into();
            all.extend(self.play(&format!("learning, {place}"), gateways, &[0.7, 0.9], 1, entries));
        }
        all
    }

    fn play(&self, name: &str, gateways: usize, loads: &[f64], seeds: u64, entries: Vec<Entry>) -> Vec<Row> {
        let scenario = Scenario::of(gateways, seeds).at(loads);
        let (contenders, surroundings): (Vec<Contender>, Vec<Surroundings>) = entries.into_iter().unzip();
        let progress = Progress::begin(name);
        let cells = self.arena.compare(&scenario, &contenders, |share| progress.at(share));
        progress.end();
        let entries: Vec<Entry> = contenders.into_iter().zip(surroundings).collect();
        rows(&self.arena, &scenario, &entries, &cells)
    }

    fn kvroute(&self, name: &str, gateways: usize, setup: Setup) -> Entry {
        let surroundings = Surroundings {
            hosts: self.arena.hosts.len(),
            gateways,
            workers: setup.workers,
            peers_ms: setup.peers_ms,
        };
        (Contender::kvroute(name, setup), surroundings)
    }

    fn others(&self, gateways: usize) -> Vec<Entry> {
        let surroundings =
            Surroundings { hosts: self.arena.hosts.len(), gateways, workers: 1, peers_ms: None };
        let mut named = peers();
        named.retain(|named| !self.quick || FEW.contains(&named.name));
        named.iter().map(|named| (Contender::peer(named), surroundings)).collect()
    }
}

/// Each ingredient with what takes it out.
fn ingredients() -> Vec<(&'static str, Value, Without)> {
    let by_key = |name: &'static str, keys: Value| (name, keys, Without::default());
    let all_in = Without::default();
    vec![
        ("as it is", json!({}), all_in),
        ("no prefix index", json!({}), Without { index: true, ..all_in }),
        ("no queue term", json!({}), Without { queue: true, ..all_in }),
        ("no liveness", json!({}), Without { liveness: true, ..all_in }),
        by_key("batch_slowdown 0", json!({"routing": {"batch_slowdown": 0}})),
        by_key("decode_ms 0", json!({"routing": {"decode_ms": 0}})),
        by_key("congestion_weight 0", json!({"routing": {"congestion_weight": 0}})),
        by_key("no tie band", json!({"routing": {"tie_share": 0, "tie_ms": 0}})),
        by_key("home_credit 0", json!({"routing": {"home_credit": 0}})),
        by_key("foreign_discount 0", json!({"routing": {"foreign_discount": 0}})),
        by_key("peer_spread 0", json!({"routing": {"peer_spread": 0}})),
        by_key("unread_share 0", json!({"routing": {"unread_share": 0}})),
        by_key("hold_bytes 30720 instead of 262144", json!({"prompt": {"hold_bytes": 30_720}})),
        by_key("index of 4,096 entries", json!({"index": {"entries": 4_096}})),
    ]
}
