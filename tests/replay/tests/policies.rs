//! Do the peers' policies decide as their authors' do? Each by its essential behaviour, on arrivals made by hand.

use kvroute::core::scrape::EngineSample;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use replay::policy::prefix_index::{Forgets, PrefixIndex};
use replay::policy::registry::peers;
use replay::policy::{Arrival, Place, Policy, View};
use replay::trace::Request;
use std::collections::BTreeMap;

const BLOCK_TOKENS: u32 = 512;
const SECOND_US: u64 = 1_000_000;

/// A policy and what happens around it.
struct Bench {
    policy: Box<dyn Policy>,
    hosts: Vec<usize>,
    now_us: u64,
    sent: usize,
}

impl Bench {
    fn new(name: &str, gateways: usize, hosts: usize) -> Self {
        let place = Place { gateways, seed: 7, hosts, block_tokens: BLOCK_TOKENS };
        let named = peers().into_iter().find(|named| named.name == name).expect(name);
        Self { policy: (named.make)(&place), hosts: (0..hosts).collect(), now_us: 0, sent: 0 }
    }

    /// Sends a request through a gateway. Answers its number and its host.
    fn send(&mut self, gateway: usize, request: &Request) -> (usize, usize) {
        let number = self.sent;
        self.sent += 1;
        let view = View { now_us: self.now_us, engines: &[], hosts: &self.hosts, block_tokens: BLOCK_TOKENS };
        let host = self.policy.route(&Arrival { number, gateway, request }, &view);
        assert!(self.hosts.contains(&host), "host {host} is not one of {:?}", self.hosts);
        (number, host)
    }

    /// The same through the first gateway, and only the host.
    fn host(&mut self, request: &Request) -> usize {
        self.send(0, request).1
    }

    /// The same, and it ends at once.
    fn served(&mut self, request: &Request) -> usize {
        let (number, host) = self.send(0, request);
        self.policy.first_token(number, self.now_us);
        self.policy.done(number, Some(0), self.now_us);
        host
    }

    fn hosts(&mut self, hosts: &[usize]) {
        self.hosts = hosts.to_vec();
        self.policy.hosts(hosts, self.now_us);
    }

    fn poll(&mut self, gateway: usize, host: usize, running: f64, waiting: f64) {
        let sample = EngineSample {
            running: Some(running),
            waiting: Some(waiting),
            capacity_tokens: Some(400_000.0),
            ..EngineSample::default()
        };
        self.policy.asked(gateway, host, self.now_us);
        self.policy.polled(gateway, host, Some(&sample), self.now_us);
    }
}

/// A prompt of `shared` blocks that all of a family have, and `own` blocks of its own.
fn prompt(family: u64, shared: u32, number: u64, own: u32) -> Request {
    let family_ids = (0..shared).map(|n| family * 1_000_000 + u64::from(n));
    let own_ids = (0..own).map(|n| 1_000_000_000_000 + (family * 10_000 + number) * 1_000 + u64::from(n));
    Request {
        at_us: 0,
        prompt_tokens: (shared + own) * BLOCK_TOKENS,
        output_tokens: 100,
        session: family,
        anchor: family,
        ids: family_ids.chain(own_ids).collect(),
        answer_ids: Vec::new(),
    }
}

#[test]
fn the_names_are_those_of_the_tables() {
    let names: Vec<_> = peers().iter().map(|named| named.name).collect();
    assert_eq!(
        names,
        [
            "round robin",
            "least request",
            "least loaded",
            "prefix hash",
            "CHWBL 1.25",
            "SGLang cache_aware",
            "llm-d affinity",
            "Higress prefix_cache",
            "Dynamo approximate",
            "LMETRIC"
        ]
    );
}

#[test]
fn every_policy_chooses_routable_hosts_while_they_come_and_go_and_again_the_same() {
    for named in peers() {
        let play = || {
            let mut random = ChaCha8Rng::seed_from_u64(1);
            let mut bench = Bench::new(named.name, 3, 4);
            let mut open = Vec::new();
            let mut chosen = Vec::new();
            for step in 0..3_000 {
                bench.now_us += 50_000;
                let request = prompt(random.random_range(0..60), 5, step, random.random_range(0..4));
                let (number, host) = bench.send(random.random_range(0..3), &request);
                chosen.push(host);
                open.push(number);
                if open.len() > 20 {
                    let number = open.swap_remove(random.random_range(0..open.len()));
                    bench.policy.first_token(number, bench.now_us);
                    bench.policy.done(number, random.random::<bool>().then_some(0), bench.now_us);
                }
                if step % 100 == 99 {
                    let mut hosts = bench.hosts.clone();
                    hosts.remove(random.random_range(0..hosts.len()));
                    hosts.push(4 + step as usize / 100);
                    bench.hosts(&hosts);
                }
            }
            chosen
        };
        assert_eq!(play(), play(), "{}", named.name);
    }
}

#[test]
fn round_robin_takes_each_host_once_in_a_turn() {
    let mut bench = Bench::new("round robin", 1, 5);
    let mut turn: Vec<_> = (0..5).map(|n| bench.host(&prompt(1, 3, n, 0))).collect();
    turn.sort_unstable();
    assert_eq!(turn, [0, 1, 2, 3, 4]);
}

#[test]
fn least_request_takes_the_busy_one_of_two_hosts_only_when_it_draws_it_twice() {
    let mut bench = Bench::new("least request", 1, 2);
    let busy = bench.host(&prompt(0, 1, 0, 0));
    let twice = (0..2_000).filter(|n| bench.served(&prompt(1, 1, *n, 0)) == busy).count();
    assert!((400..600).contains(&twice), "{twice} of 2000 went to the busy host");
}

#[test]
fn least_loaded_spreads_own_requests_evenly() {
    let mut bench = Bench::new("least loaded", 1, 4);
    let mut count = [0; 4];
    for n in 0..40 {
        count[bench.host(&prompt(1, 3, n, 0))] += 1;
    }
    assert_eq!(count, [10; 4]);
}

#[test]
fn least_loaded_counts_what_polls_show_of_others_but_its_own_only_once() {
    let mut bench = Bench::new("least loaded", 1, 2);
    bench.poll(0, 0, 2.0, 1.0);
    // Three of others on host 0: three own ones even it out.
    assert_eq!([0, 1, 2].map(|n| bench.host(&prompt(1, 3, n, 0))), [1; 3]);
    // The poll shows them, and they are known already.
    bench.poll(0, 1, 3.0, 0.0);
    bench.poll(0, 0, 4.0, 0.0);
    assert_eq!(bench.host(&prompt(1, 3, 3, 0)), 1);
}

#[test]
fn prefix_hash_agrees_at_all_gateways_and_moves_only_what_was_on_a_lost_host() {
    let mut bench = Bench::new("prefix hash", 2, 8);
    let requests: Vec<_> = (0..200).map(|family| prompt(family, 3, 0, 1)).collect();
    let before: Vec<_> = requests.iter().map(|request| bench.host(request)).collect();
    let other: Vec<_> = requests.iter().map(|request| bench.send(1, request).1).collect();
    assert_eq!(before, other);
    assert!((0..8).all(|host| before.contains(&host)), "all hosts are used");
    bench.hosts(&[0, 1, 2, 4, 5, 6, 7]);
    for (request, before) in requests.iter().zip(before) {
        let after = bench.host(request);
        assert_eq!(after == before, before != 3);
    }
}

#[test]
fn chwbl_honours_its_bound_on_one_hot_key_wherever_a_host_is_within_it() {
    let mut bench = Bench::new("CHWBL 1.25", 1, 4);
    let home = bench.served(&prompt(1, 3, 0, 0));
    let mut count = [0_u32; 4];
    for n in 0..400_u32 {
        let bound = 1.25 * f64::from(n + 1) / 4.0;
        let within = |load: u32| n == 0 || f64::from(load + 1) <= bound;
        let any = count.iter().any(|load| within(*load));
        let host = bench.host(&prompt(1, 3, u64::from(n), 0));
        assert!(
            if any { within(count[host]) } else { host == home },
            "request {n}: {count:?} and then {host}"
        );
        count[host] += 1;
    }
    assert_eq!(count.iter().max(), Some(&125), "{count:?}: the bound is also used up");
    assert_eq!(count[home], 125);
}

#[test]
fn chwbl_sends_an_idle_fleets_keys_home_from_every_gateway() {
    let mut bench = Bench::new("CHWBL 1.25", 2, 8);
    let mut used = [false; 8];
    for family in 0..100 {
        let first = bench.served(&prompt(family, 3, 0, 0));
        let (number, second) = bench.send(1, &prompt(family, 3, 1, 0));
        bench.policy.done(number, Some(0), 0);
        assert_eq!(first, second);
        used[first] = true;
    }
    assert_eq!(used, [true; 8]);
}

#[test]
fn sglang_sticks_to_a_match_until_the_fleet_is_out_of_balance_and_then_ignores_all_matches() {
    let mut bench = Bench::new("SGLang cache_aware", 1, 3);
    let elsewhere = bench.served(&prompt(2, 4, 0, 0));
    let hot = bench.host(&prompt(1, 4, 0, 0));
    assert_ne!(hot, elsewhere, "the second prompt goes to a smaller tree");
    for _ in 1..65 {
        assert_eq!(bench.host(&prompt(1, 4, 0, 0)), hot);
    }
    // 65 to 0: out of balance, and not only for this prompt.
    assert_eq!(bench.host(&prompt(1, 4, 0, 0)), elsewhere);
    assert_ne!(bench.host(&prompt(2, 4, 0, 0)), elsewhere);
}

#[test]
fn sglang_follows_a_match_over_the_threshold_only() {
    let mut bench = Bench::new("SGLang cache_aware", 1, 2);
    let holder = bench.served(&prompt(1, 20, 0, 0));
    // 4 of 10 blocks match.
    assert_eq!(bench.served(&prompt(1, 4, 1, 6)), holder);
    // 3 of 10 are not more than 0.3: the smaller tree.
    assert_ne!(bench.served(&prompt(1, 3, 2, 7)), holder);
}

#[test]
fn gateways_do_not_know_each_others_matches() {
    let mut bench = Bench::new("SGLang cache_aware", 2, 2);
    let first = bench.served(&prompt(2, 4, 0, 0));
    let second = bench.served(&prompt(1, 4, 0, 0));
    assert_ne!(first, second);
    // With nothing known, the second gateway begins where the first began.
    assert_eq!(bench.send(1, &prompt(1, 4, 0, 0)).1, first);
    assert_eq!(bench.host(&prompt(1, 4, 0, 0)), second);
}

#[test]
fn llmd_is_sticky_from_four_fifths_of_the_prompt_on() {
    let mut bench = Bench::new("llm-d affinity", 1, 2);
    let holder = bench.served(&prompt(1, 80, 0, 0));
    // 1,024 tokens under way on the holder, without a first token.
    assert_eq!(bench.host(&prompt(1, 80, 1, 2)), holder);
    assert_eq!(bench.served(&prompt(1, 80, 2, 20)), holder, "0.8 is enough");
    // 3 of 4 blocks are not; then least tokens: 512 + 1024 against 2048 keep it, 1024 + 1024 more do not.
    assert_eq!(bench.served(&prompt(1, 3, 3, 1)), holder);
    assert_eq!(bench.host(&prompt(1, 80, 4, 2)), holder);
    assert_ne!(bench.served(&prompt(1, 3, 5, 1)), holder);
}

#[test]
fn llmd_lets_go_when_the_warm_host_is_eighteen_seconds_behind_and_counts_prefill_only() {
    let mut bench = Bench::new("llm-d affinity", 1, 3);
    let holder = bench.served(&prompt(1, 80, 0, 0));
    let mut open = Vec::new();
    // Each leaves 10,240 tokens to compute: 28 of them are 286,720, and 18 s are 286,704.
    for n in 1..=28 {
        let (number, host) = bench.send(0, &prompt(1, 80, n, 20));
        assert_eq!(host, holder, "request {n}");
        open.push(number);
    }
    let (number, host) = bench.send(0, &prompt(1, 80, 29, 20));
    assert_ne!(host, holder);
    bench.policy.done(number, None, 0);
    bench.policy.first_token(open[0], 0);
    // The one that was let go left a copy, and two hosts are warm now: the idle one takes it.
    assert_eq!(bench.served(&prompt(1, 80, 30, 20)), host);
    bench.hosts(&[holder, 9]);
    assert_eq!(bench.host(&prompt(1, 80, 31, 20)), holder, "sticky again, with 27 without a first token");
    assert_eq!(bench.host(&prompt(1, 80, 32, 20)), 9);
}

#[test]
fn higress_sends_a_known_conversation_back_through_any_gateway_whatever_the_load() {
    let mut bench = Bench::new("Higress prefix_cache", 2, 4);
    let home = bench.host(&prompt(1, 3, 0, 0));
    for n in 1..100 {
        assert_eq!(bench.send(n as usize % 2, &prompt(1, 3, n, 2)).1, home);
    }
    // New ones avoid it, from any gateway, once each host has been counted.
    let new: Vec<_> = (0..60).map(|n| bench.send(n as usize % 2, &prompt(10 + n, 3, 0, 0)).1).collect();
    assert!(new[20..].iter().all(|host| *host != home), "{new:?}");
}

#[test]
fn higress_forgets_after_half_an_hour_without_use() {
    let mut bench = Bench::new("Higress prefix_cache", 1, 2);
    let home = bench.host(&prompt(1, 3, 0, 0));
    let other = (2..100).map(|family| bench.host(&prompt(family, 3, 0, 0))).find(|host| *host != home);
    assert!(other.is_some());
    for n in 0..200 {
        bench.send(0, &prompt(1, 3, n, 0));
    }
    bench.now_us += 1_799 * SECOND_US;
    assert_eq!(bench.host(&prompt(1, 3, 0, 0)), home);
    bench.now_us += 1_799 * SECOND_US;
    assert_eq!(bench.host(&prompt(1, 3, 0, 0)), home, "use renews it");
    bench.now_us += 1_800 * SECOND_US;
    assert_ne!(bench.host(&prompt(1, 3, 0, 0)), home);
}

#[test]
fn higress_does_not_repair_the_key_of_a_lost_host() {
    let mut bench = Bench::new("Higress prefix_cache", 1, 3);
    let home = bench.host(&prompt(1, 3, 0, 0));
    let left: Vec<_> = (0..3).filter(|host| *host != home).collect();
    bench.hosts(&left);
    let after: Vec<_> = (0..40).map(|n| bench.host(&prompt(1, 3, n, 0))).collect();
    assert!(left.iter().all(|host| after.contains(host)), "spread by least request: {after:?}");
}

#[test]
fn dynamo_forgets_what_was_not_sent_for_two_minutes() {
    let mut bench = Bench::new("Dynamo approximate", 1, 2);
    let long = prompt(1, 10, 0, 0);
    let (number, holder) = bench.send(0, &long);
    // A short one on each, the holder's stays: by load alone the other is better.
    let (short, other) = bench.send(0, &prompt(2, 1, 0, 0));
    assert_ne!(other, holder);
    bench.policy.done(number, Some(0), 0);
    assert_eq!(bench.host(&prompt(3, 1, 0, 0)), holder);
    bench.policy.done(short, Some(0), 0);
    bench.now_us = 119 * SECOND_US;
    assert_eq!(bench.served(&long), holder);
    bench.now_us = 238 * SECOND_US;
    assert_eq!(bench.served(&long), holder, "use renews it");
    bench.now_us = 359 * SECOND_US;
    assert_eq!(bench.served(&long), other);
}

#[test]
fn dynamo_counts_blocks_that_requests_share_once() {
    let mut bench = Bench::new("Dynamo approximate", 1, 2);
    let request = prompt(1, 10, 0, 0);
    let (number, holder) = bench.send(0, &request);
    bench.policy.first_token(number, 0);
    let mut open = vec![number];
    for _ in 0..8 {
        let (number, host) = bench.send(0, &request);
        assert_eq!(host, holder);
        open.push(number);
    }
    // Ten blocks under way on the holder, however many requests; none are left when all have ended.
    assert_ne!(bench.served(&prompt(2, 1, 0, 0)), holder);
    for number in open {
        bench.policy.done(number, Some(0), 0);
    }
    let both: Vec<_> = (3..40).map(|family| bench.served(&prompt(family, 1, 0, 0))).collect();
    assert!(both.contains(&0) && both.contains(&1), "two idle hosts are equal: {both:?}");
}

#[test]
fn dynamo_weighs_prefill_under_way_until_the_first_token() {
    let mut bench = Bench::new("Dynamo approximate", 1, 2);
    let (first, holder) = bench.send(0, &prompt(1, 10, 0, 0));
    // 10 + 10 blocks there against 14 + 14 here.
    assert_ne!(bench.host(&prompt(2, 14, 0, 0)), holder);
    bench.policy.first_token(first, 0);
    // 10 there against 28 here, then 10 + 2 x 8, then 10 + 2 x 8 + 2 x 2.
    assert_eq!(bench.host(&prompt(3, 8, 0, 0)), holder);
    assert_eq!(bench.host(&prompt(4, 2, 0, 0)), holder);
    assert_ne!(bench.host(&prompt(5, 1, 0, 0)), holder);
}

#[test]
fn lmetric_follows_the_product_of_new_prefill_and_load() {
    let mut bench = Bench::new("LMETRIC", 1, 2);
    let holder = bench.served(&prompt(1, 10, 0, 0));
    let tail = |n| Request { prompt_tokens: 10 * BLOCK_TOKENS + 500, ..prompt(1, 10, n, 1) };
    // 500 x (load + 1) against 5620 x 1: up to a load of 10.
    for n in 1..=11 {
        assert_eq!(bench.host(&tail(n)), holder, "request {n}");
    }
    assert_ne!(bench.host(&tail(12)), holder);
}

#[test]
fn lmetric_sees_others_load_by_polls() {
    let mut bench = Bench::new("LMETRIC", 1, 2);
    let holder = bench.served(&prompt(1, 10, 0, 0));
    bench.poll(0, holder, 8.0, 2.0);
    // 512 x 11 against 5632 x 1 would be equal; one own request there decides.
    assert_eq!(bench.host(&prompt(1, 10, 1, 0)), holder);
    assert_ne!(bench.host(&prompt(1, 10, 2, 1)), holder);
}

/// The index without any cleverness: for each host a list of blocks, newest last.
struct Naive {
    forgets: Forgets,
    held: BTreeMap<usize, Vec<(u64, u32, u64)>>,
}

impl Naive {
    fn matched(&self, host: usize, request: &Request) -> u32 {
        let Some(held) = self.held.get(&host) else { return 0 };
        let blocks = request.ids.iter().take_while(|id| held.iter().any(|(held, ..)| held == *id)).count();
        (blocks as u32 * BLOCK_TOKENS).min(request.prompt_tokens)
    }

    fn sent(&mut self, host: usize, request: &Request, capacity: u64, now_us: u64) {
        let held = self.held.entry(host).or_default();
        let mut depths: Vec<_> = (0..request.ids.len()).collect();
        if self.forgets == Forgets::Tail {
            depths.reverse();
        }
        for depth in depths {
            let tokens = (request.prompt_tokens - depth as u32 * BLOCK_TOKENS).min(BLOCK_TOKENS);
            held.retain(|(id, ..)| *id != request.ids[depth]);
            held.push((request.ids[depth], tokens, now_us));
        }
        while held.iter().map(|(_, tokens, _)| u64::from(*tokens)).sum::<u64>() > capacity {
            held.remove(0);
        }
    }
}

#[test]
fn the_prefix_index_knows_what_a_naive_one_knows() {
    for (seed, forgets) in [(1, Forgets::Head), (2, Forgets::Tail), (3, Forgets::Head), (4, Forgets::Tail)] {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut index = PrefixIndex::new(forgets);
        let mut naive = Naive { forgets, held: BTreeMap::new() };
        let hosts = if seed > 2 { 150 } else { 6 };
        let (mut next, mut alive): (usize, Vec<usize>) = (hosts, (0..hosts).collect());
        let mut partial = 0;
        for step in 0..4_000_u64 {
            let now_us = step * 100;
            let family = random.random_range(0..12);
            let mut request = prompt(
                family,
                random.random_range(1..12),
                random.random_range(0..4),
                random.random_range(0..5),
            );
            // The last block of some is partial, and its id says so.
            if random.random_ratio(1, 3) {
                request.prompt_tokens -= 100;
                *request.ids.last_mut().expect("a block") += 1 << 50;
            }
            index.look_up(&request, BLOCK_TOKENS);
            for &host in &alive {
                let matched = naive.matched(host, &request);
                assert_eq!(index.matched(host), matched, "step {step}, host {host}");
                partial += usize::from(matched > 0 && matched < request.prompt_tokens);
            }
            let host = alive[random.random_range(0..alive.len())];
            let capacity = u64::from(BLOCK_TOKENS) * 30;
            index.sent(host, &request, BLOCK_TOKENS, capacity, now_us);
            naive.sent(host, &request, capacity, now_us);
            let tokens: u64 = naive.held[&host].iter().map(|(_, tokens, _)| u64::from(*tokens)).sum();
            assert_eq!(index.held(host), tokens);
            if step % 50 == 0 {
                let gone = alive.swap_remove(random.random_range(0..alive.len()));
                alive.push(next);
                next += 1;
                index.retain(&alive);
                naive.held.remove(&gone);
                assert_eq!(index.held(gone), 0);
            }
            if step % 70 == 0 {
                let before_us = now_us.saturating_sub(20_000);
                index.expire(before_us);
                naive.held.values_mut().for_each(|held| held.retain(|(.., at_us)| *at_us >= before_us));
            }
        }
        assert!(partial > 1_000, "{partial} partial matches");
    }
}
