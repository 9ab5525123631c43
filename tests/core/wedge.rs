//! Who stands still, and who is only slow.

use super::support::{addresses, chat, read, router};
use super::test;
use kvroute::core::fleet::{Own, Polled, Slot};
use kvroute::core::health::Why;
use kvroute::core::life::Life;
use kvroute::core::prompt::{Api, Outline, Unread};
use kvroute::core::route::Walk;
use kvroute::core::router::Router;
use kvroute::core::scrape::EngineSample;
use kvroute::core::snapshot::Snapshot;

const START_MS: u64 = 1_000_000;

/// A page of vLLM's: what runs, and how many steps and tokens it has counted.
fn vllm(running: u32, steps: u32) -> EngineSample {
    EngineSample {
        running: Some(f64::from(running)),
        waiting: Some(0.0),
        iterations: Some(f64::from(steps)),
        prompt_tokens: Some(0.0),
        generation_tokens: Some(f64::from(steps)),
        ..EngineSample::default()
    }
}

/// A page with its load and nothing else.
fn bare(running: u32) -> EngineSample {
    EngineSample { running: Some(f64::from(running)), waiting: Some(0.0), ..EngineSample::default() }
}

/// Two hosts, polled twice a second. The first has what the test sends, the second is what `other` says.
struct Scene {
    router: Router,
    snapshot: Snapshot,
    now_ms: u64,
}

impl Scene {
    fn new() -> Self {
        Self { router: router(2), snapshot: Snapshot::default(), now_ms: START_MS }
    }

    /// A request for the first host: a prompt of so many tokens, streamed or in one piece.
    fn send(&mut self, stream: u32, tokens: usize, streams: bool) {
        let prompt = read(Api::Chat, chat("s", &"four ".repeat(tokens * 4 / 5)).as_bytes());
        let mut walk = Walk::default();
        self.router.advance(&mut walk, &prompt, true);
        let mut decision = self.router.decide(&walk, &prompt, prompt.bytes(), self.now_ms);
        decision.hosts = vec![Slot(0)];
        self.router.commit(stream, &decision, self.now_ms);
        self.router.asked(stream, self.now_ms);
        if !streams {
            self.router.will_not_stream(stream, self.now_ms);
        }
    }

    /// A request for the first host that cannot be read.
    fn send_unread(&mut self, stream: u32, why: Unread) {
        let mut decision = self.router.decide_unread(why, true, self.now_ms);
        decision.hosts = vec![Slot(0)];
        self.router.commit(stream, &decision, self.now_ms);
        self.router.asked(stream, self.now_ms);
    }

    /// Half a second. Answers who was found to stand still.
    fn half_a_second(&mut self, pages: [Option<&EngineSample>; 2]) -> Vec<Slot> {
        let mut still = Vec::new();
        for tick in 0..10 {
            self.now_ms += 50;
            for (n, page) in pages.iter().enumerate().filter(|_| tick == 0) {
                let (slot, address) = (Slot(n as u16), &addresses(2)[n]);
                let known = self.snapshot.entry(slot, address).map(|entry| entry.polled).unwrap_or_default();
                let own = Own::default();
                let polled = page.map_or_else(
                    || known.after_failure(),
                    |page| known.after(page, &own, &own, 0, self.now_ms),
                );
                self.snapshot.put(slot, address, polled);
            }
            self.router.prefills_over(self.now_ms);
            self.router.apply(&self.snapshot);
            still.extend(self.router.find_still(self.now_ms));
        }
        still
    }

    /// How long it takes until the first host is found to stand still, within a minute and a half.
    fn seconds_until_found(&mut self, mut page: impl FnMut(u32) -> Option<EngineSample>) -> Option<f64> {
        let from_ms = self.now_ms;
        let idle = vllm(0, 5);
        (0..180).find_map(|half| {
            let page = page(half);
            let still = self.half_a_second([page.as_ref(), Some(&idle)]);
            assert!(!still.contains(&Slot(1)), "it has nothing to do");
            (!still.is_empty()).then(|| (self.now_ms - from_ms) as f64 / 1_000.0)
        })
    }

    fn life(&self) -> Life {
        Life::of(self.router.fleet().host(Slot(0)).expect("there"), self.now_ms)
    }
}

#[test]
fn an_engine_that_says_it_is_idle_and_gives_nothing_is_found_out() {
    let mut scene = Scene::new();
    scene.half_a_second([Some(&vllm(0, 7)), Some(&vllm(0, 5))]);
    scene.send(1, 500, true);
    let seconds = scene.seconds_until_found(|_| Some(vllm(0, 7))).expect("found");
    assert!((10.0..11.5).contains(&seconds), "{seconds}");
    assert!(matches!(scene.life(), Life::Suspect { why: Why::Silent, .. }));
}

#[test]
fn an_engine_that_stopped_amid_its_work_is_found_out_and_taken_back_when_it_moves() {
    let mut scene = Scene::new();
    scene.send(1, 500, true);
    scene.router.first_byte(1, scene.now_ms);
    scene.router.gave_byte(Slot(0));
    let seconds = scene.seconds_until_found(|half| Some(vllm(3, half.min(8)))).expect("found");
    assert!((13.5..15.5).contains(&seconds), "{seconds}: it made steps for four seconds");
    // The old requests stand there still: that is no news.
    assert_eq!(scene.half_a_second([Some(&vllm(3, 8)), Some(&vllm(0, 5))]), []);
    scene.half_a_second([Some(&vllm(3, 9)), Some(&vllm(0, 5))]);
    assert_eq!(scene.life(), Life::Ready);
}

#[test]
fn a_byte_of_any_answer_to_any_worker_shows_that_it_goes_on() {
    let mut scene = Scene::new();
    scene.send(1, 500, true);
    scene.send(2, 500, true);
    let idle = vllm(0, 5);
    for half in 0..100 {
        // Every eight seconds, alternately to this worker and to another.
        match half % 32 {
            0 => scene.router.gave_byte(Slot(0)),
            16 => scene.router.hear_bytes(&[(Slot(0), 10)], scene.now_ms),
            _ => {}
        }
        assert_eq!(scene.half_a_second([Some(&idle), Some(&idle)]), [], "{half}");
    }
}

#[test]
fn an_engine_that_is_hung_as_a_whole_is_found_out_by_its_polls_that_fail() {
    let mut scene = Scene::new();
    scene.half_a_second([Some(&vllm(0, 7)), Some(&vllm(0, 5))]);
    scene.send(1, 500, false);
    let seconds = scene.seconds_until_found(|_| None).expect("found");
    assert!((10.0..11.5).contains(&seconds), "{seconds}");
}

#[test]
fn a_very_long_prompt_and_a_very_long_answer_in_one_piece_are_no_standstill() {
    // 100,000 tokens at a third of the usual rate, and the engine counts a step now and then.
    let mut scene = Scene::new();
    scene.send(1, 100_000, true);
    assert_eq!(scene.seconds_until_found(|half| Some(vllm(1, half / 4))), None);
    // It counts only tokens of prompts that are done, and says that it is at work.
    let mut scene = Scene::new();
    scene.send(1, 100_000, true);
    let page = EngineSample { prompt_tokens: Some(5.0), ..bare(1) };
    assert_eq!(scene.seconds_until_found(|_| Some(page.clone())), None);
    // It tells nothing but steps, none in the first 40 seconds: patience grows with what was asked.
    let mut scene = Scene::new();
    scene.send(1, 100_000, true);
    assert_eq!(scene.seconds_until_found(|half| Some(vllm(1, half.saturating_sub(80)))), None);
    // Minutes of an answer in one piece: no byte, but its counters move.
    let mut scene = Scene::new();
    scene.send(1, 500, false);
    assert_eq!(scene.seconds_until_found(|half| Some(vllm(1, half))), None);
}

#[test]
fn of_an_engine_that_counts_nothing_an_answer_in_one_piece_proves_nothing() {
    for running in [0, 1] {
        let mut scene = Scene::new();
        scene.send(1, 500, false);
        assert_eq!(scene.seconds_until_found(|_| Some(bare(running))), None, "{running}");
    }
    let mut scene = Scene::new();
    scene.send(1, 500, true);
    assert_eq!(scene.seconds_until_found(|_| Some(bare(1))), None, "it says that it is at work");
    // It says that it is idle, and a stream has not begun.
    assert!(scene.seconds_until_found(|_| Some(bare(0))).is_some());
    // One that never said anything.
    let mut scene = Scene::new();
    scene.send(1, 500, true);
    assert_eq!(scene.seconds_until_found(|_| None), None);
}

#[test]
fn where_all_that_have_work_stand_still_it_is_not_the_hosts() {
    let mut scene = Scene::new();
    scene.send(1, 500, true);
    scene.router.refresh(|slot, own, _| {
        if slot == Slot(1) {
            own.requests = 3;
        }
    });
    let (first, second) = (vllm(0, 7), vllm(0, 5));
    for _ in 0..60 {
        assert_eq!(scene.half_a_second([Some(&first), Some(&second)]), []);
    }
    // The other goes on.
    assert_eq!(scene.half_a_second([Some(&first), Some(&vllm(3, 6))]), [Slot(0)]);
}

#[test]
fn one_that_stays_stuck_is_tried_with_one_request_now_and_then() {
    let mut scene = Scene::new();
    let idle = vllm(0, 7);
    scene.send(1, 500, true);
    let mut tries = 0;
    for half in 0..120 {
        scene.half_a_second([Some(&idle), Some(&vllm(0, half))]);
        if !matches!(scene.life(), Life::Suspect { .. }) && half > 22 {
            tries += 1;
            scene.send(100 + half, 500, true);
        }
    }
    assert!((3..=6).contains(&tries), "{tries} in a minute");
}

#[test]
fn what_an_engine_counts_is_told_to_all_workers() {
    let own = Own::default();
    let first = Polled::default().after(&vllm(1, 7), &own, &own, 0, 10);
    let same = first.after(&vllm(1, 7), &own, &own, 0, 20);
    let moved = same.after(&vllm(1, 8), &own, &own, 0, 30);
    assert_eq!([first, same, moved].map(|polled| polled.moved_ms), [10, 10, 30]);
    assert!(moved.counts_steps && !moved.after(&bare(1), &own, &own, 0, 40).counts_steps);
    assert_eq!(Polled::default().after(&bare(1), &own, &own, 0, 10).moved_ms, 0, "it counts nothing");
}

#[test]
fn an_engine_that_makes_no_step_for_what_cannot_be_read_is_found_out_as_well() {
    // On other paths, a file may be uploaded, or an answer awaited that comes when it comes.
    for (why, found) in [
        (Unread::NoReuse, true),
        (Unread::Encoding, true),
        (Unread::NotHeld, true),
        (Unread::Path, false),
        (Unread::Upgrade, false),
    ] {
        let mut scene = Scene::new();
        scene.half_a_second([Some(&vllm(0, 7)), Some(&vllm(0, 5))]);
        scene.send_unread(1, why);
        let seconds = scene.seconds_until_found(|_| Some(vllm(0, 7)));
        assert_eq!(seconds.is_some(), found, "{why:?}: {seconds:?}");
    }
    // Whether such an answer would have begun long ago is not known.
    let mut scene = Scene::new();
    scene.half_a_second([Some(&bare(0)), Some(&vllm(0, 5))]);
    scene.send_unread(1, Unread::NoReuse);
    assert_eq!(scene.seconds_until_found(|_| Some(bare(0))), None);
}

#[test]
fn a_host_is_not_judged_by_a_request_that_its_client_still_sends() {
    let mut scene = Scene::new();
    scene.half_a_second([Some(&vllm(0, 7)), Some(&vllm(0, 5))]);
    let decision = scene.router.decide_unread(Unread::NotHeld, true, scene.now_ms);
    scene.router.commit(1, &decision, scene.now_ms);
    assert_eq!(scene.seconds_until_found(|_| Some(vllm(0, 7))), None);
    // From its end on it is the engine's.
    scene.router.asked(1, scene.now_ms);
    let seconds = scene.seconds_until_found(|_| Some(vllm(0, 7))).expect("found");
    assert!((10.0..11.5).contains(&seconds), "{seconds}");
}
