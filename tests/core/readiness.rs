//! When a host is ready, and what it gets at first.

use super::support::{addresses, chat, config, config_with, read, router};
use super::test;
use kvroute::core::config::{Config, WarmUp};
use kvroute::core::fleet::{Own, Polled, Slot};
use kvroute::core::health::Why;
use kvroute::core::life::Life;
use kvroute::core::probe::{body, judge, Failure};
use kvroute::core::prompt::{Api, Outline, Unread};
use kvroute::core::readiness::{Doubt, Readiness};
use kvroute::core::route::Walk;
use kvroute::core::router::Router;
use kvroute::core::scrape::EngineSample;
use kvroute::core::snapshot::Snapshot;

const HOST: &str = "10.0.0.1:8000";
const WARM: Readiness = Readiness::Proven { since_ms: 0, warming_from: None };

/// A fleet of two, as the leader knows it; the second has been warm for long.
struct Leader {
    config: Config,
    router: Router,
    snapshot: Snapshot,
}

impl Leader {
    fn new() -> Self {
        let (config, router) = (config(2), router(2));
        let mut leader = Self { config, router, snapshot: Snapshot::default() };
        leader.settle(1_000);
        leader.hear(1, 1_000, &sample(500.0, 7.0, 100.0));
        leader
    }

    fn settle(&mut self, now_ms: u64) {
        self.snapshot.settle_readiness(self.router.fleet(), &self.config, now_ms);
    }

    fn hear(&mut self, n: u16, now_ms: u64, sample: &EngineSample) {
        let address = &addresses(2)[usize::from(n)];
        let own = Own::default();
        let before = self.snapshot.entry(Slot(n), address).map(|entry| entry.polled).unwrap_or_default();
        let polled = before.after(sample, &own, &own, 0, now_ms);
        self.snapshot.heard((Slot(n), address), sample, &polled, &self.config);
        self.snapshot.put(Slot(n), address, polled);
    }

    /// A worker finds out that the first host stands still.
    fn stands_still(&mut self, now_ms: u64) {
        (0..3).for_each(|_| self.router.failed(Slot(0), Why::Silent, now_ms, now_ms));
        self.snapshot.doubt_still(self.router.fleet(), now_ms);
    }

    fn readiness(&self) -> Readiness {
        self.snapshot.entry(Slot(0), HOST).expect("known").readiness
    }
}

fn sample(prompt: f64, generated: f64, started_s: f64) -> EngineSample {
    EngineSample {
        running: Some(0.0),
        waiting: Some(0.0),
        prompt_tokens: Some(prompt),
        generation_tokens: Some(generated),
        start_time_seconds: Some(started_s),
        ..EngineSample::default()
    }
}

#[test]
fn who_has_generated_is_ready_and_who_has_not_is_to_be_asked() {
    let mut leader = Leader::new();
    assert_eq!(leader.readiness(), Readiness::Presumed, "nobody knows yet");
    leader.hear(0, 1_100, &sample(0.0, 0.0, 100.0));
    assert_eq!(leader.readiness(), Readiness::Unproven(Doubt::NotAsked));
    leader.hear(0, 1_200, &sample(10.0, 1.0, 100.0));
    assert!(matches!(leader.readiness(), Readiness::Proven { since_ms: 1_200, .. }));
    let mut leader = Leader::new();
    leader.hear(0, 1_100, &sample(0.0, 3.0, 100.0));
    let since_then = Readiness::Proven { since_ms: 1_100, warming_from: None };
    assert_eq!(leader.readiness(), since_then, "it had generated before this gateway began");
}

#[test]
fn an_engine_that_counts_nothing_gives_no_reason_for_doubt_until_it_restarts() {
    let mut leader = Leader::new();
    let silent = |started_s| EngineSample { generation_tokens: None, ..sample(0.0, 0.0, started_s) };
    leader.hear(0, 1_100, &silent(100.0));
    assert_eq!(leader.readiness().doubt(), None);
    leader.hear(0, 1_600, &silent(200.0));
    assert_eq!(leader.readiness(), Readiness::Unproven(Doubt::NotAsked));
}

#[test]
fn a_poll_that_is_refused_is_a_verdict_only_on_a_host_that_was_never_ready() {
    let mut leader = Leader::new();
    leader.snapshot.refused((Slot(0), HOST));
    assert_eq!(leader.readiness(), Readiness::Unproven(Doubt::Loading));
    leader.hear(0, 1_100, &sample(0.0, 0.0, 100.0));
    assert_eq!(leader.readiness(), Readiness::Unproven(Doubt::NotAsked));
    leader.snapshot.asked((Slot(0), HOST), Ok(()), &leader.config.warm_up, 1_200);
    let ready = leader.readiness();
    leader.snapshot.refused((Slot(0), HOST));
    assert_eq!(leader.readiness(), ready);
}

#[test]
fn a_host_that_stood_still_is_asked_before_it_gets_another_request_and_has_its_cache_still() {
    let mut leader = Leader::new();
    leader.hear(0, 1_000, &sample(10.0, 1.0, 100.0));
    let place = (Slot(0), HOST);
    leader.stands_still(5_000);
    assert_eq!(leader.readiness(), Readiness::Unproven(Doubt::StoodStill));
    // Nothing that it says of itself counts, nor another generation that fails.
    leader.hear(0, 5_500, &sample(10.0, 1.0, 100.0));
    leader.snapshot.asked(place, Err(Doubt::Failed), &leader.config.warm_up, 5_600);
    assert_eq!(leader.readiness(), Readiness::Unproven(Doubt::StoodStill));
    leader.snapshot.asked(place, Ok(()), &leader.config.warm_up, 6_000);
    let warm = |since_ms| Readiness::Proven { since_ms, warming_from: None };
    assert_eq!(leader.readiness(), warm(6_000));
    leader.snapshot.doubt_still(leader.router.fleet(), 6_050);
    assert_eq!(leader.readiness(), warm(6_000), "found out once, doubted once");
    // Or it goes on by itself.
    leader.stands_still(9_000);
    leader.hear(0, 9_500, &sample(20.0, 2.0, 100.0));
    leader.snapshot.doubt_still(leader.router.fleet(), 9_550);
    assert_eq!(leader.readiness(), warm(9_500));
}

#[test]
fn once_a_generation_has_failed_only_one_that_succeeds_counts() {
    let mut leader = Leader::new();
    leader.hear(0, 1_100, &sample(0.0, 0.0, 100.0));
    leader.snapshot.asked((Slot(0), HOST), Err(Doubt::Failed), &leader.config.warm_up, 1_200);
    // What it was asked for came after the time was up.
    leader.hear(0, 1_600, &sample(1.0, 1.0, 100.0));
    assert_eq!(leader.readiness(), Readiness::Unproven(Doubt::Failed));
    // A new process is another matter.
    leader.hear(0, 2_100, &sample(1.0, 1.0, 200.0));
    assert!(matches!(leader.readiness(), Readiness::Proven { .. }));
}

#[test]
fn it_warms_up_only_where_others_have_been_warm_for_as_long_as_that_takes() {
    let warm_up = WarmUp { seconds: 30, tokens: 0, share: 0.1 };
    for (others_since_ms, warms_up) in [(0, true), (70_000, true), (70_001, false), (99_900, false)] {
        let mut leader = Leader::new();
        leader.hear(0, 1_100, &sample(0.0, 0.0, 100.0));
        let other = leader.snapshot.entry_mut(Slot(1), &addresses(2)[1]).expect("known");
        other.readiness = Readiness::Proven { since_ms: others_since_ms, warming_from: None };
        leader.snapshot.asked((Slot(0), HOST), Ok(()), &warm_up, 100_000);
        assert_eq!(leader.readiness().warming_since_ms().is_some(), warms_up, "{others_since_ms}");
    }
}

#[test]
fn of_hosts_that_begin_together_with_the_gateway_none_is_a_newcomer() {
    // The second had its first request before it was polled first, the other had none yet.
    let mut leader = Leader::new();
    leader.hear(0, 1_100, &sample(0.0, 0.0, 100.0));
    leader.snapshot.asked((Slot(0), HOST), Ok(()), &leader.config.warm_up, 1_200);
    assert_eq!(leader.readiness().warming_since_ms(), None);
}

#[test]
fn a_warm_up_ends_by_time_or_by_tokens_and_not_later_when_the_clock_is_set_back() {
    let mut leader = Leader::new();
    leader.config.warm_up = WarmUp { seconds: 30, tokens: 10_000, share: 0.1 };
    let begins = Readiness::Proven { since_ms: 100_000, warming_from: Some(5_000) };
    for (now_ms, clock_tokens, ends) in
        [(129_000, 5_000, false), (130_000, 5_000, true), (101_000, 15_000, true), (50_000, 5_000, true)]
    {
        let entry = leader.snapshot.entry_mut(Slot(0), HOST).expect("known");
        (entry.readiness, entry.polled.clock_tokens) = (begins, clock_tokens);
        leader.settle(now_ms);
        assert_eq!(leader.readiness().warming_since_ms().is_none(), ends, "{now_ms} {clock_tokens}");
    }
}

#[test]
fn what_a_host_may_take_grows_from_the_stated_share_of_its_own_to_all() {
    let warm_up = WarmUp { seconds: 30, tokens: 0, share: 0.1 };
    let begins = Readiness::Proven { since_ms: 100_000, warming_from: Some(0) };
    for hosts in [2, 8, 200] {
        let admits = |s: u64| warm_up.admits(begins, 0, hosts, 100_000 + 1_000 * s);
        let first = admits(0) * hosts as f64;
        assert!((first - 0.1).abs() < 0.001, "{first} of a fair share");
        let growing: Vec<f64> = (0..=30).map(admits).collect();
        assert!(growing.is_sorted() && growing[30] == 1.0, "{growing:?}");
    }
    assert_eq!(warm_up.admits(WARM, 0, 8, 100_000), 1.0);
}

#[test]
fn a_host_that_joins_a_fleet_that_is_known_is_not_ready_and_with_nobody_else_it_is_used() {
    let mut router = router(3);
    let mut snapshot = Snapshot::default();
    for (n, address) in addresses(3).iter().enumerate() {
        snapshot.put(Slot(n as u16), address, Polled { at_ms: 1, ..Polled::default() });
    }
    router.apply(&snapshot);
    let hosts: Vec<(String, Slot)> = addresses(4).into_iter().zip((0..4).map(Slot)).collect();
    router.configure(&config(4), &hosts);
    let named = |router: &Router| router.decide_unread(Unread::Path, true, 5_000).hosts.len();
    assert_eq!(named(&router), 3);
    let life = Life::of(router.fleet().host(Slot(3)).expect("there"), 5_000);
    assert_eq!((life, life.resort()), (Life::Unready(Doubt::NotAsked), Some(4)));
    for entry in &mut snapshot.hosts {
        entry.readiness = Readiness::Unproven(Doubt::Failed);
    }
    router.apply(&snapshot);
    assert_eq!(named(&router), 3, "the best three of four");
}

#[test]
fn readiness_outlives_a_change_of_leader() {
    let mut snapshot = Snapshot::default();
    let all = [
        Readiness::Presumed,
        Readiness::Unproven(Doubt::NotAsked),
        Readiness::Unproven(Doubt::Loading),
        Readiness::Unproven(Doubt::Failed),
        Readiness::Unproven(Doubt::OtherModel),
        WARM,
        Readiness::Proven { since_ms: 77, warming_from: Some(88) },
    ];
    for (n, readiness) in all.into_iter().enumerate() {
        snapshot.put(Slot(n as u16), &addresses(8)[n], Polled::default());
        snapshot.hosts[n].readiness = readiness;
    }
    let read = Snapshot::decode(&snapshot.encode()).expect("whole");
    assert!(read.hosts.iter().map(|entry| entry.readiness).eq(all));
}

#[test]
fn answers_are_told_apart() {
    let vllm = br#"{"choices":[{"text":" a","finish_reason":"length"}],"usage":{"completion_tokens":1}}"#;
    let draining = br#"{"choices":[{"text":"","finish_reason":"abort"}],"usage":{"completion_tokens":0}}"#;
    let uncounted = br#"{"choices":[{"text":"","finish_reason":"abort"}]}"#;
    let no_model = br#"{"error":{"message":"The model `x` does not exist."}}"#;
    let answers: [(u32, &[u8], Result<(), Failure>); 16] = [
        (200, vllm, Ok(())),
        (200, br#"{"choices":[{"finish_reason":"stop"}]}"#, Ok(())),
        (200, br#"{"generated_text":"there"}"#, Ok(())),
        (200, br#"[{"generated_text":"there"}]"#, Ok(())),
        (200, br#"{"usage":{"output_tokens":1}}"#, Ok(())),
        (200, draining, Err(Failure::Nothing)),
        (200, uncounted, Err(Failure::Nothing)),
        (200, br#"{"choices":[]}"#, Err(Failure::Nothing)),
        (200, br#"{"error":{"message":"EngineCore encountered an issue"}}"#, Err(Failure::Nothing)),
        (200, b"<html>", Err(Failure::Nothing)),
        (200, b"", Err(Failure::Nothing)),
        (404, no_model, Err(Failure::Model)),
        (404, br#"{"detail":"Not Found"}"#, Err(Failure::Status(404))),
        (401, b"", Err(Failure::Key)),
        (504, b"upstream request timeout", Err(Failure::Status(504))),
        (0, b"", Err(Failure::Status(0))),
    ];
    for (status, body, outcome) in answers {
        assert_eq!(judge(status, body), outcome, "{status} {}", String::from_utf8_lossy(body));
    }
}

#[test]
fn the_body_has_the_model_that_it_names_or_the_engine_does() {
    let read = |text: String| serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    let default = config_with(r#""ready":{}"#).ready;
    assert_eq!(read(body(&default, Some("a \"b\"")))["model"], "a \"b\"");
    assert_eq!(read(body(&default, None)).get("model"), None);
    let named = config_with(r#""ready":{"body":{"model":"x"},"model":"y"}"#).ready;
    assert_eq!(read(body(&named, Some("z")))["model"], "x");
    let odd = r#"{"a":"\"\\\n\u0001é","b":[1,-2,0.5,null,true,{"c":[]}],"d":{}}"#;
    let odd = serde_json::from_str::<serde_json::Value>(odd).expect("JSON");
    let ready = config_with(&format!(r#""ready":{{"body":{odd}}}"#)).ready;
    assert_eq!(read(body(&ready, None)), odd, "as it was configured");
    let wanted = config_with(r#""ready":{"model":"y"}"#).ready;
    assert_eq!(read(body(&wanted, Some("z")))["model"], "y");
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name_and_keys_are_not_shown() {
    for (keys, refused) in [
        (r#""ready":{"prob":true}"#, "ready.prob"),
        (r#""ready":{"path":"v1"}"#, "ready.path"),
        (r#""ready":{"body":[]}"#, "ready.body"),
        (r#""ready":{"successes":0}"#, "ready.successes"),
        (r#""ready":{"headers":{"Authorization":"x"}}"#, "ready.headers.Authorization"),
        (r#""ready":{"headers":{"host":"x"}}"#, "ready.headers.host"),
        (r#""ready":{"headers":{"a":"line\nbreak"}}"#, "ready.headers.a"),
        (r#""warm_up":{"share":0}"#, "warm_up.share"),
        (r#""warm_up":{"seconds":-1}"#, "warm_up.seconds"),
    ] {
        let text = format!(r#"{{"cluster":"vllm","hosts":["10.0.0.1:8000"],{keys}}}"#);
        let refusal = Config::parse(text.as_bytes()).expect_err(keys).to_string();
        assert!(refusal.starts_with(&format!("{refused}: ")) && !refusal.contains('\n'), "{refusal}");
    }
    let config = config_with(r#""ready":{"headers":{"authorization":"Bearer sesame"}}"#);
    assert!(!format!("{config:?}").contains("sesame"));
}

#[test]
fn newcomers_are_spared_while_the_others_can_carry_it_and_help_at_once_when_they_are_the_greater_part() {
    // Of thirty prompts that nobody knows, how many go to hosts that warm up, at the beginning of that?
    let taken = |warming: u16, waiting: f64| {
        let mut router = router(4);
        let mut snapshot = Snapshot::default();
        for (n, address) in addresses(4).iter().enumerate() {
            let (slot, warms_up) = (Slot(n as u16), (n as u16) < warming);
            let queue = if warms_up { 0.0 } else { waiting };
            snapshot.put(
                slot,
                address,
                Polled { at_ms: 99_000, running: queue, waiting: queue, ..Polled::default() },
            );
            let entry = snapshot.hosts.iter_mut().find(|entry| entry.slot == slot).expect("put");
            let warming_from = warms_up.then_some(0);
            entry.readiness = Readiness::Proven { since_ms: 99_000, warming_from };
        }
        router.apply(&snapshot);
        let goes_to_a_newcomer = |n: &u32| {
            let prompt = read(Api::Chat, chat("", &format!("{n} of thirty. ").repeat(200)).as_bytes());
            let mut walk = Walk::default();
            router.advance(&mut walk, &prompt, true);
            let decision = router.decide(&walk, &prompt, prompt.bytes(), 99_500);
            decision.hosts.first().is_some_and(|slot| slot.0 < warming)
        };
        (0..30).filter(goes_to_a_newcomer).count()
    };
    let few = taken(1, 40.0);
    assert!(few < 12, "{few}: the other three are crowded, and one newcomer cannot carry what they have");
    let some = taken(3, 0.0);
    assert!(some < 25, "{some}: the old one has room, and its new neighbours are spared");
    assert_eq!(taken(3, 40.0), 30, "the old one is crowded, and three can help");
}

/// It crashed amid its answers, and another engine has loaded on its address.
#[test]
fn what_failed_before_an_engine_was_proven_anew_counts_no_more() {
    for why in [Why::Connect, Why::Broken, Why::Silent] {
        let mut leader = Leader::new();
        leader.hear(0, 1_000, &sample(500.0, 7.0, 100.0));
        leader.router.apply(&leader.snapshot);
        (0..3).for_each(|_| leader.router.failed(Slot(0), why, 2_000, 2_000));
        let life = |leader: &Leader| Life::of(leader.router.fleet().host(Slot(0)).expect("there"), 2_100);
        leader.router.apply(&leader.snapshot);
        assert!(matches!(life(&leader), Life::Suspect { .. }), "{why:?}");
        leader.hear(0, 2_050, &sample(0.0, 0.0, 2_000.0));
        leader.router.apply(&leader.snapshot);
        assert!(matches!(life(&leader), Life::Unready(_)), "{why:?}: {:?}", life(&leader));
        leader.snapshot.asked((Slot(0), HOST), Ok(()), &leader.config.warm_up, 2_090);
        leader.router.apply(&leader.snapshot);
        assert!(!leader.router.is_doubted(Slot(0)) && life(&leader).resort() == Some(0), "{why:?}");
    }
}
