//! What those who scale the fleet are told.

mod replicas;

use super::test;
use crate::support::{addresses, router, Numbers};
use kvroute::core::config;
use kvroute::core::fleet::{Own, Polled, Slot};
use kvroute::core::load::Freshness;
use kvroute::core::signals::{Ground, Meter, Reading, Seen, Signals};
use kvroute::core::snapshot::{Entry, Snapshot};
use replicas::{Model, KNEE};
use serde_json::{json, Value};

const START_MS: u64 = 1_000_000;

/// A ready host that answers.
fn seen(slot: u16, running: f64, waiting: f64) -> Seen {
    Seen {
        slot: Slot(slot),
        is_ready: true,
        is_fresh: true,
        running,
        waiting,
        kv_usage: 0.0,
        in_flight: (running + waiting) as u32,
        begun: 0,
        backlog_tokens: 0.0,
        prefill_rate: 18_000.0,
    }
}

/// A fleet over which requests are spread evenly.
fn fleet(hosts: u16, running: f64, waiting: f64) -> Reading {
    let each = |slot| seen(slot, running / f64::from(hosts), waiting / f64::from(hosts));
    Reading { hosts: (0..hosts).map(each).collect(), shed: Some(0) }
}

fn settings() -> config::Signals {
    config::Signals::default()
}

/// A leader's meter, and its clock.
struct Leader {
    meter: Meter,
    settings: config::Signals,
    now_ms: u64,
}

impl Leader {
    fn new(hosts: usize, settings: config::Signals) -> Self {
        let meter = Meter::from(Signals::begin(settings, hosts, START_MS));
        Self { meter, settings, now_ms: START_MS }
    }

    /// The same reading, second after second.
    fn sees(&mut self, reading: &Reading, seconds: u32) -> &Signals {
        for _ in 0..seconds {
            self.now_ms += 1_000;
            self.meter.step(reading, &self.settings, self.now_ms);
        }
        self.meter.signals()
    }

    fn json(&self) -> Value {
        json_of(self.meter.signals(), self.now_ms)
    }
}

fn json_of(signals: &Signals, now_ms: u64) -> Value {
    let freshness = Freshness { now_ms, stale_after_ms: 3_000 };
    let polled = Polled { at_ms: now_ms, waiting: 3.0, running: 1.0, ..Polled::default() };
    let hosts = [Entry { polled, ..Entry::gone("10.0.0.1:8000") }, Entry::gone("[fd00::1]:8000")];
    serde_json::from_str(&signals.to_json(&hosts, freshness)).expect("JSON")
}

/// Silence from some hosts.
fn silent(mut reading: Reading, hosts: usize) -> Reading {
    reading.hosts.iter_mut().take(hosts).for_each(|host| host.is_fresh = false);
    reading
}

#[test]
fn before_anything_is_known_as_many_replicas_are_wanted_as_there_are_and_everything_has_a_value() {
    let leader = Leader::new(4, settings());
    let said = leader.json();
    assert_eq!(said["desired_replicas"], 4);
    for zero in [
        "ready_replicas",
        "waiting",
        "waiting_smoothed",
        "running",
        "backlog_tokens",
        "backlog_seconds",
        "saturation",
    ] {
        assert_eq!(said[zero], 0, "{zero}");
    }
    for unknown in [
        "requests_per_second",
        "knee_requests_per_second_per_replica",
        "knee_at_least_requests_per_second_per_replica",
        "age_ms",
    ] {
        assert!(said.get(unknown).is_some_and(Value::is_null), "{unknown}");
    }
    assert_eq!(
        (&said["stale"], &said["rising"], &said["decided_by"]),
        (&json!(true), &json!(false), &json!("start"))
    );
    assert_eq!(said["hosts"][0], json!({ "host": "10.0.0.1:8000", "waiting": 3, "running": 1, "age_ms": 0 }));
    assert_eq!(
        said["hosts"][1],
        json!({ "host": "[fd00::1]:8000", "waiting": null, "running": null, "age_ms": null })
    );
    assert_eq!(Signals::begin(config::Signals { max_replicas: 2, ..settings() }, 4, START_MS).desired, 2);
    assert_eq!(Signals::begin(config::Signals { min_replicas: 6, ..settings() }, 4, START_MS).desired, 6);
}

/// Numbers that an engine, a gauge or a clock may come up with.
fn odd(numbers: &mut Numbers) -> f64 {
    match numbers.below(12) {
        0 => 0.0,
        1 => 1e300,
        2 => f64::INFINITY,
        3 => 1e9,
        4 => f64::MIN_POSITIVE,
        _ => numbers.below(100) as f64 / 4.0,
    }
}

fn any_reading(numbers: &mut Numbers) -> Reading {
    let hosts = numbers.below(6) as u16;
    let host = |slot| Seen {
        is_ready: numbers.below(4) > 0,
        is_fresh: numbers.below(5) > 0,
        kv_usage: numbers.below(101) as f64 / 100.0,
        in_flight: if numbers.below(9) == 0 { u32::MAX } else { numbers.below(50) as u32 },
        begun: if numbers.below(9) == 0 { u64::MAX } else { numbers.below(10_000) },
        backlog_tokens: odd(numbers),
        prefill_rate: 1.0 + numbers.below(20_000) as f64,
        ..seen(slot, odd(numbers), odd(numbers))
    };
    let hosts = (0..hosts).map(host).collect::<Vec<_>>();
    let shed = match numbers.below(9) {
        0 => Some(u64::MAX),
        1 => None,
        _ => Some(numbers.below(10_000)),
    };
    Reading { hosts, shed }
}

fn any_settings(numbers: &mut Numbers) -> config::Signals {
    let min_replicas = 1 + numbers.below(5) as u32;
    config::Signals {
        waiting_per_replica: 0.1 + numbers.below(100) as f64,
        backlog_s: 0.01 + numbers.below(10) as f64,
        knee_share: 0.1 + numbers.below(90) as f64 / 100.0,
        min_replicas,
        max_replicas: if numbers.below(2) == 0 { 0 } else { min_replicas + numbers.below(20) as u32 },
        window_s: 1 + numbers.below(400) as u32,
    }
}

#[test]
fn whatever_engines_say_every_number_is_finite_the_bounds_hold_and_the_next_leader_goes_on() {
    let mut numbers = Numbers(1);
    for _ in 0..200 {
        let mut leader = Leader::new(numbers.below(8) as usize, any_settings(&mut numbers));
        for _ in 0..60 {
            let reading = any_reading(&mut numbers);
            // Clocks stand still, jump, and are set back.
            leader.now_ms = match numbers.below(20) {
                0 => leader.now_ms.saturating_sub(500_000),
                1 => leader.now_ms + 10_000_000,
                2 => leader.now_ms,
                _ => leader.now_ms + numbers.below(3_000),
            };
            leader.meter.step(&reading, &leader.settings, leader.now_ms);
            let signals = leader.meter.signals();
            let (least, most) = (leader.settings.min_replicas, leader.settings.most());
            assert!((least..=most).contains(&signals.desired), "{signals:?}");
            assert!((least..=most).contains(&signals.recommended), "{signals:?}");
            assert!((0.0..=1.0).contains(&signals.saturation), "{signals:?}");
            let value = signals.encode();
            assert!(value.len() < 2_000);
            // A number that is not finite would be refused.
            assert_eq!(Signals::decode(&value).as_ref(), Some(signals));
            let said = leader.json();
            assert!(said["desired_replicas"].is_u64() && said["terms"]["carry_replicas"].is_number());
            assert!(!said.to_string().contains("beyond"), "{said}");
            signals.gauges(leader.now_ms);
        }
    }
}

#[test]
fn a_value_that_is_cut_short_or_of_another_layout_is_none() {
    let mut leader = Leader::new(2, settings());
    let value = leader.sees(&fleet(2, 4.0, 30.0), 20).encode();
    let slots = 2 * 2;
    for len in (0..value.len() - slots).chain([value.len() - 1]) {
        assert_eq!(Signals::decode(&value[..len]), None, "{len} of {}", value.len());
    }
    assert_eq!(Signals::decode(&[&[0], &value[1..]].concat()), None);
    let mut nan = value.clone();
    nan[1..9].copy_from_slice(&f64::NAN.to_le_bytes());
    assert_eq!(Signals::decode(&nan), None);
}

#[test]
fn when_engines_fall_silent_everything_is_held_and_says_so() {
    let mut leader = Leader::new(3, settings());
    let before = leader.sees(&fleet(3, 24.0, 30.0), 60).clone();
    assert_eq!((before.stale, before.desired), (false, 6), "{before:?}");
    let after = leader.sees(&silent(fleet(3, 0.0, 0.0), 3), 3_600).clone();
    let numbers = |signals: &Signals| {
        let Value::Object(said) = json_of(signals, 0) else { panic!("an object") };
        let held = said
            .into_iter()
            .filter(|(key, _)| !["stale", "age_ms", "decided_by", "reason", "hosts"].contains(&key.as_str()));
        held.collect::<Vec<_>>()
    };
    assert_eq!(numbers(&after), numbers(&before));
    let said = leader.json();
    assert_eq!(
        (&said["stale"], &said["age_ms"], &said["decided_by"]),
        (&json!(true), &json!(3_600_000), &json!("stale"))
    );
    // They are back, and idle: nothing falls at once.
    assert_eq!(leader.sees(&fleet(3, 0.0, 0.0), 200).desired, 6);
    let idle = leader.sees(&fleet(3, 0.0, 0.0), 600).clone();
    assert_eq!((idle.desired, idle.stale, idle.ground), (1, false, Ground::Least), "{idle:?}");
}

#[test]
fn while_one_host_is_silent_nothing_falls_but_what_the_others_say_still_raises_it() {
    let mut leader = Leader::new(4, settings());
    let before = leader.sees(&fleet(4, 16.0, 24.0), 120).clone();
    let quiet = leader.sees(&silent(fleet(4, 0.0, 0.0), 1), 900).clone();
    assert!(quiet.stale);
    assert_eq!(
        (quiet.waiting, quiet.running, quiet.desired),
        (before.waiting, before.running, before.desired)
    );
    assert_eq!(quiet.waiting_smoothed(), before.waiting_smoothed());
    let loud = leader.sees(&silent(fleet(4, 32.0, 60.0), 1), 30).clone();
    assert!(loud.stale && loud.desired >= 8 && loud.waiting == 60.0, "{loud:?}");
    // A host that takes no requests may be silent.
    let mut gone = silent(fleet(4, 16.0, 24.0), 1);
    gone.hosts[0].is_ready = false;
    assert!(!leader.sees(&gone, 1).stale);
}

#[test]
fn when_the_leader_is_gone_the_readers_say_so() {
    let mut leader = Leader::new(2, settings());
    let signals = leader.sees(&fleet(2, 1.0, 0.0), 5).clone();
    assert_eq!(json_of(&signals, leader.now_ms + 2_000)["stale"], false);
    let late = json_of(&signals, leader.now_ms + 4_000);
    assert_eq!((&late["stale"], &late["age_ms"]), (&json!(true), &json!(4_000)));
}

#[test]
fn more_waiting_never_gives_fewer_replicas() {
    let mut numbers = Numbers(7);
    for _ in 0..400 {
        let settings = any_settings(&mut numbers);
        let hosts = 1 + numbers.below(6) as u16;
        let mut history = Leader::new(usize::from(hosts), settings);
        let load = numbers.below(30) as f64;
        for _ in 0..numbers.below(50) {
            let waiting = numbers.below(1 + load as u64) as f64;
            history.sees(&fleet(hosts, load, waiting), 1 + numbers.below(20) as u32);
        }
        let after = |waiting: f64, seconds: u32| {
            let signals = history.meter.signals().clone();
            let mut leader = Leader { meter: Meter::from(signals), settings, now_ms: history.now_ms };
            leader.sees(&fleet(hosts, load, waiting), seconds).desired
        };
        for seconds in [1, 10, 100] {
            let desired: Vec<u32> =
                [0.0, 1.0, 3.0, 10.0, 40.0, 200.0].map(|waiting| after(waiting, seconds)).to_vec();
            assert!(desired.is_sorted(), "{desired:?} after {seconds} s of {settings:?}");
        }
    }
}

/// C78
#[test]
fn a_queue_that_wobbles_gives_followers_a_smooth_signal() {
    let scenario = cases::text("C78-scenario.yaml");
    let series = scenario.split(['[', ']']).nth(1).expect("a list");
    let series: Vec<f64> = series.split(',').map(|number| number.trim().parse().expect("a number")).collect();
    assert_eq!(series.len(), 40);
    let mut leader = Leader::new(5, settings());
    let (mut wanted, mut changes, mut desired, mut shown) = (5, 0, Vec::new(), Vec::new());
    for (n, waiting) in series.into_iter().enumerate() {
        let signals = leader.sees(&fleet(5, 40.0, waiting), 15);
        let next = (signals.waiting_smoothed() / 10.0).ceil() as u32;
        if std::mem::replace(&mut wanted, next) != next && n >= 8 {
            changes += 1;
        }
        desired.push(signals.desired);
        shown.push(signals.waiting_smoothed());
    }
    assert!(changes <= 2 && wanted == 7, "{changes} changes to {wanted}: {shown:?}");
    let slopes: Vec<bool> =
        shown.windows(2).filter(|two| two[0] != two[1]).map(|two| two[1] > two[0]).collect();
    let turns = slopes.windows(2).filter(|two| two[0] != two[1]).count();
    assert!(turns <= 2 && shown.iter().all(|shown| (45.0..75.0).contains(shown)), "{turns} turns: {shown:?}");
    desired.dedup();
    assert!(desired.is_sorted() && desired.len() <= 3, "{desired:?}");
}

#[test]
fn a_queue_scales_up_within_seconds_and_down_only_when_the_window_is_over() {
    let mut leader = Leader::new(2, settings());
    leader.sees(&fleet(2, 8.0, 0.0), 60);
    let up = leader.sees(&fleet(2, 16.0, 40.0), 8).clone();
    assert!(up.desired >= 4 && up.rising, "{up:?}");
    let said = leader.json();
    assert_eq!(said["rising"], true);
    assert!(said["reason"].as_str().is_some_and(|reason| reason.contains("replica")), "{said}");
    // As many as asked for are there, and nothing waits any more.
    let hosts = up.desired as u16;
    let held = leader.sees(&fleet(hosts, 8.0, 0.0), 250).clone();
    assert_eq!((held.desired, held.ground), (up.desired, Ground::Window));
    let down = leader.sees(&fleet(hosts, 8.0, 0.0), 100).clone();
    assert!(down.desired < up.desired && down.desired >= 2, "{down:?}");
}

#[test]
fn prefill_that_stands_scales_up_before_requests_wait_at_the_engines() {
    let mut leader = Leader::new(2, settings());
    let mut reading = fleet(2, 8.0, 0.0);
    leader.sees(&reading, 30);
    // 100,000 tokens a host at 18,000 a second.
    reading.hosts.iter_mut().for_each(|host| host.backlog_tokens = 100_000.0);
    let signals = leader.sees(&reading, 15).clone();
    assert_eq!(leader.json()["backlog_seconds"], 5.556);
    assert!(signals.desired >= 4 && signals.ground == Ground::Backlog, "{signals:?}");
}

#[test]
fn without_a_queue_no_fewer_replicas_are_wanted_than_were_seen_to_carry_it() {
    let mut leader = Leader::new(4, settings());
    // Ten sequences each, and nobody waits: nothing says that three could do it.
    assert_eq!(leader.sees(&fleet(4, 40.0, 0.0), 1_200).desired, 4);
    // A quarter of that: one was seen to run ten.
    assert_eq!(leader.sees(&fleet(4, 10.0, 0.0), 250).desired, 4);
    assert!(leader.sees(&fleet(4, 10.0, 0.0), 400).desired <= 2);
    // Where one waits at each all the time, fewer would not carry it.
    let mut busy = Leader::new(4, settings());
    assert_eq!(busy.sees(&fleet(4, 40.0, 4.0), 1_200).desired, 4);
    assert_eq!(busy.meter.signals().ground, Ground::Standing);
}

/// Bounds so tight that hardly anything waits: without this, shedding would hide the load from whoever scales.
#[test]
fn those_who_are_turned_away_count_as_much_as_those_who_are_served() {
    let mut leader = Leader::new(4, settings());
    let mut reading = fleet(4, 32.0, 1.0);
    for _ in 0..120 {
        reading.hosts.iter_mut().for_each(|host| host.begun += 2);
        leader.sees(&reading, 1);
    }
    assert_eq!(leader.meter.signals().desired, 4);
    // Half as many again.
    for ever in 1..=180 {
        reading.hosts.iter_mut().for_each(|host| host.begun += 2);
        reading.shed = Some(4 * ever);
        leader.sees(&reading, 1);
    }
    let signals = leader.meter.signals();
    assert_eq!((signals.desired, signals.ground), (6, Ground::Shed));
    assert!((11.5..12.5).contains(&signals.rate().expect("seen")), "{:?}", signals.rate());
    let terms = &leader.json()["terms"];
    assert_eq!(terms["shed_per_second_mean_30s"].as_f64().map(f64::round), Some(4.0), "{terms}");
    // However many come again and again: no more than twice as many at once.
    for ever in 1..=60 {
        reading.shed = Some(1_000 * ever);
        leader.sees(&reading, 1);
    }
    assert_eq!(leader.meter.signals().desired, 8);
    // That it is not known for a moment is neither that nobody ever was nor, then, that all were at once.
    let told = std::mem::take(&mut reading.shed);
    leader.sees(&reading, 1);
    reading.shed = told;
    // Nobody is turned away any more.
    assert!(leader.sees(&reading, 900).desired < 6);
}

#[test]
fn never_more_than_twice_as_many_at_once_and_never_beyond_the_bounds() {
    let mut leader = Leader::new(4, settings());
    let signals = leader.sees(&fleet(4, 32.0, 400.0), 60);
    assert_eq!((signals.desired, signals.ground), (8, Ground::Growth));
    let bounded = config::Signals { min_replicas: 3, max_replicas: 6, ..settings() };
    let mut leader = Leader::new(4, bounded);
    let signals = leader.sees(&fleet(4, 32.0, 400.0), 60);
    assert_eq!((signals.desired, signals.ground), (6, Ground::Most));
    let signals = leader.sees(&fleet(4, 0.0, 0.0), 900);
    assert_eq!((signals.desired, signals.ground), (3, Ground::Least));
}

#[test]
fn saturation_is_the_mean_over_hosts_of_queue_or_cache_use() {
    let mut leader = Leader::new(4, settings());
    let mut reading = fleet(4, 0.0, 0.0);
    reading.hosts[0].waiting = 50.0;
    reading.hosts[1].kv_usage = 0.5;
    reading.hosts[2].waiting = 2.5;
    assert_eq!(leader.sees(&reading, 1).saturation, 0.5);
    // Not those that take no requests.
    reading.hosts[3].is_ready = false;
    assert_eq!(leader.sees(&reading, 1).saturation, 2.0 / 3.0);
}

/// A compressed day: twenty minutes from night over the peak to night.
fn day(second: u32, night: f64, peak: f64) -> f64 {
    let turn = f64::from(second) / 1_200.0 * std::f64::consts::TAU;
    night + (peak - night) * 0.5 * (1.0 - turn.cos())
}

#[test]
fn a_fleet_that_follows_a_day_keeps_its_waits_short_with_fewer_replicas_and_does_not_flap() {
    let settings = config::Signals { window_s: 60, ..settings() };
    for (night, peak, seed) in
        [(4.0, 40.0, 1), (2.0, 20.0, 2), (4.0, 60.0, 3), (10.0, 30.0, 4), (4.0, 40.0, 5)]
    {
        let mut model = Model::new((night / KNEE).ceil() as usize + 1, settings, seed);
        (0..1_200).for_each(|second| model.second(day(second, night, peak), true));
        let case = format!("from {night} to {peak} requests/s, seed {seed}");
        assert!(model.p95_waited_s() < 1.0, "{case}: {} s", model.p95_waited_s());
        let fixed = (peak / KNEE).ceil() * 1_200.0;
        assert!(model.replica_seconds < 0.95 * fixed, "{case}: {} of {fixed}", model.replica_seconds);
        assert!(model.turns() <= 3, "{case}: {:?}", model.desired);
        let knee = model.meter.signals().knee.rate().expect("seen on the way up");
        assert!((0.85..1.15).contains(&(knee / KNEE)), "{case}: {knee}");
    }
}

#[test]
fn the_knee_is_learned_where_a_queue_stands_and_until_then_only_that_it_is_not_below() {
    for seed in 1..6 {
        let mut model = Model::new(3, settings(), seed);
        (0..300).for_each(|_| model.second(1.5 * KNEE, false));
        let signals = model.meter.signals();
        assert_eq!(signals.knee.rate(), None, "nothing waited for long");
        let at_least = signals.knee.at_least().expect("three were seen to carry it");
        assert!((0.4 * KNEE..0.8 * KNEE).contains(&at_least), "{at_least}");
        (0..120).for_each(|_| model.second(3.6 * KNEE, false));
        let knee = model.meter.signals().knee.rate().expect("seen");
        assert!((0.85..1.15).contains(&(knee / KNEE)), "seed {seed}: {knee} instead of {KNEE}");
        // And stays when the crowd has gone.
        (0..300).for_each(|_| model.second(KNEE, false));
        let later = model.meter.signals().knee.rate().expect("not forgotten");
        assert!((0.95..1.05).contains(&(later / knee)), "{later} after {knee}");
    }
}

#[test]
fn a_queue_at_one_of_many_hosts_says_what_that_one_completes() {
    let mut leader = Leader::new(10, settings());
    let mut reading = fleet(10, 10.0, 0.0);
    reading.hosts[3] = seen(3, 8.0, 4.0);
    for _ in 0..120 {
        // Four a second there, one in ten seconds at each other.
        reading.hosts[3].begun += 4;
        leader.sees(&reading, 1);
    }
    let knee = leader.meter.signals().knee.rate().expect("seen");
    assert!((3.9..4.1).contains(&knee), "{knee}");
}

#[test]
fn where_others_send_as_much_their_requests_count_in_the_knee_and_where_they_send_nearly_all_it_is_unknown() {
    for (own, scale) in [(6, Some(2.0)), (0, None)] {
        let mut leader = Leader::new(1, settings());
        let mut reading = Reading { hosts: vec![Seen { in_flight: own, ..seen(0, 8.0, 4.0) }], shed: None };
        for _ in 0..240 {
            reading.hosts[0].begun += u64::from(own) / 3;
            leader.sees(&reading, 1);
        }
        let signals = leader.meter.signals();
        let near = |rate: Option<f64>| rate.map(|rate| (rate * 10.0).round() / 10.0);
        assert_eq!(near(signals.rate()), scale.map(|scale| 2.0 * scale));
        assert_eq!(near(signals.knee.rate()), scale.map(|scale| 2.0 * scale));
    }
}

#[test]
fn the_next_leader_goes_on_from_what_was_published() {
    let mut stays = Model::new(2, config::Signals { window_s: 60, ..settings() }, 9);
    let mut changes = Model::new(2, config::Signals { window_s: 60, ..settings() }, 9);
    for second in 0..1_200 {
        let rate = day(second, 4.0, 40.0);
        stays.second(rate, true);
        changes.second(rate, true);
        if second % 100 == 99 {
            let published = changes.meter.signals().encode();
            changes.meter = Meter::from(Signals::decode(&published).expect("a value"));
        }
    }
    let (one, other) = (stays.replica_seconds, changes.replica_seconds);
    assert!((one - other).abs() < 0.05 * one, "{one} and {other}");
    assert!(changes.turns() <= 3, "{:?}", changes.desired);
}

#[test]
fn a_worker_reads_its_fleet_with_what_others_sent_and_what_is_only_known_here() {
    const NOW_MS: u64 = 50_000;
    let mut router = router(3);
    let mut snapshot = Snapshot::default();
    let said = |running, waiting, known_requests| Polled {
        at_ms: NOW_MS - 500,
        running,
        waiting,
        kv_usage: 0.25,
        known_requests,
        ..Polled::default()
    };
    let addresses = addresses(3);
    // Ten requests of which six are known here: the four others wait.
    snapshot.put(Slot(0), &addresses[0], said(5.0, 5.0, 6));
    snapshot.put(Slot(1), &addresses[1], Polled { asleep: true, kv_usage: f64::NAN, ..said(0.0, 0.0, 0) });
    snapshot.put(Slot(2), &addresses[2], Polled { at_ms: 1, ..said(3.0, 3.0, 6) });
    router.apply(&snapshot);
    router.refresh(|slot, own, _| {
        if slot == Slot(0) {
            *own = Own { requests: 6, begun: 60, prefill_tokens: 12_000, ..Own::default() };
        }
    });
    let reading = router.reading(Some(7), NOW_MS);
    let lives: Vec<(bool, bool)> = reading.hosts.iter().map(|host| (host.is_ready, host.is_fresh)).collect();
    assert_eq!(lives, [(true, true), (false, true), (true, false)]);
    assert_eq!(reading.hosts[0].backlog_tokens, 12_000.0 + 4.0 * 1_000.0);
    assert_eq!((reading.hosts[0].in_flight, reading.hosts[0].begun), (6, 60));
    assert_eq!((reading.hosts[0].kv_usage, reading.hosts[1].kv_usage), (0.25, 0.0));
    assert_eq!((reading.is_known(), reading.is_whole()), (true, false));
    let totals = reading.totals(5.0);
    assert_eq!((totals.ready, totals.waiting), (2, 8.0), "what a silent one said last stands");
}
