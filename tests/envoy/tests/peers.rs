//! Several gateways before one fleet: what one has placed and has in flight, the others know. Each is an Envoy process
//! of its own.

use fleet::{EngineOptions, Fleet};
use gateway::chat::{Chat, Reply};
use gateway::client::{self, Connection};
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::testbed::{generated, released};
use gateway::wait::until;
use gateway::workload::text::text;
use http_body_util::BodyExt;
use hyper::Request;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{json, Value};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const SECRET: &str = "correct-horse-battery-staple";
const PROMPTS: usize = 24;

/// Two intervals of any length here, and room for a busy machine.
const HEARD_WITHIN: Duration = Duration::from_secs(20);

/// Gateways of two workers each, before one fleet.
struct Gateways {
    fleet: Fleet,
    /// What differs from the quick start: JSON pointers into the plugin's configuration.
    settings: Vec<(&'static str, Value)>,
    addresses: Vec<SocketAddr>,
    envoys: Vec<Option<Envoy>>,
}

impl Gateways {
    /// Starts one for each secret.
    async fn start(secrets: &[&str]) -> Self {
        Self::start_with(engine(), vec![], secrets).await
    }

    /// The same, with these engines and settings.
    async fn start_with(
        engine: EngineOptions,
        settings: Vec<(&'static str, Value)>,
        secrets: &[&str],
    ) -> Self {
        let fleet = Fleet::start(4, engine).await.unwrap();
        let addresses = secrets.iter().map(|_| control_address()).collect();
        let mut gateways = Self { fleet, settings, addresses, envoys: Vec::new() };
        for (n, secret) in secrets.iter().enumerate() {
            let envoy = gateways.start_one(n, secret).await;
            gateways.envoys.push(Some(envoy));
        }
        generated(&gateways.fleet).await.unwrap();
        for n in 0..secrets.len() {
            gateways.settled(n).await;
        }
        gateways
    }

    async fn start_one(&self, n: usize, secret: &str) -> Envoy {
        let config = Config::quick_start().unwrap().hosts(&self.fleet.addresses());
        // All gateways list all, so each finds itself among its peers.
        let config = config.with_peers(&self.addresses, n, secret).unwrap();
        let set = |config: Config, (key, value): &(&str, Value)| config.plugin(key, value.clone());
        let config = self.settings.iter().fold(config, set);
        Envoy::start(&config, &Options::workers(2)).await.unwrap()
    }

    fn envoy(&self, n: usize) -> &Envoy {
        self.envoys[n].as_ref().expect("it runs")
    }

    async fn ask(&self, n: usize, chat: &Chat) -> Reply {
        // Each request has a connection of its own, which the kernel gives to any worker.
        let reply = chat.post(self.envoy(n).listener(KVROUTE).await.unwrap()).await.unwrap();
        assert!(reply.is_complete(), "{} from gateway {n}", reply.status);
        reply
    }

    /// Places prompts through a gateway; answers where each is.
    async fn place(&self, n: usize, prompts: &[Chat]) -> Vec<String> {
        let mut placed = Vec::new();
        for chat in prompts {
            placed.push(self.ask(n, chat).await.engine().to_owned());
        }
        placed
    }

    /// Of the prompts that were placed elsewhere: how many a gateway that sees them for the first time sends to the
    /// same engine, because it knows that they are there.
    async fn known(&self, n: usize, prompts: &[Chat], placed: &[String]) -> usize {
        let mut known = 0;
        for (chat, engine) in prompts.iter().zip(placed) {
            let reply = self.ask(n, chat).await;
            let matched = reply.matched().map_or(0, |(matched, _)| matched);
            known += usize::from(matched > 0 && reply.engine() == engine);
        }
        known
    }

    /// What a gateway's gauges say that others have in flight, host by host: requests.
    async fn told(&self, n: usize) -> Vec<u64> {
        let stats = self.envoy(n).admin().stats().await.unwrap();
        let gauge = |slot| stats.value(&format!("wasmcustom.kvroute_slot_{slot}_peer_requests"));
        (0..4).map(gauge).collect()
    }

    async fn counter(&self, n: usize, what: &str) -> u64 {
        let stats = self.envoy(n).admin().stats().await.unwrap();
        stats.value(&format!("wasmcustom.kvroute_peers_{what}_total"))
    }

    /// Waits until a counter of a gateway has reached a value.
    async fn reaches(&self, n: usize, what: &str, value: u64) {
        let name = format!("{what} of gateway {n} is {value}");
        let reached = async || (self.counter(n, what).await >= value).then_some(());
        until(&name, HEARD_WITHIN, reached).await.unwrap();
    }

    /// Waits until all workers of a gateway have had their ticks since it heard: it hears, tells its other worker in
    /// the same tick, and that one reads in its next. Two more exchanges, whatever comes of them, are many ticks later.
    async fn settled(&self, n: usize) {
        let exchanges = async || {
            let stats = self.envoy(n).admin().stats().await.unwrap();
            let ended = |how| stats.value(&format!("wasmcustom.kvroute_peers_{how}_total"));
            ["pulled", "failed", "refused"].map(ended).iter().sum::<u64>()
        };
        let more = exchanges().await + 2 * self.addresses.len() as u64;
        let reached = async || (exchanges().await >= more).then_some(());
        until("two more exchanges", HEARD_WITHIN, reached).await.unwrap();
    }
}

/// Every engine could hold all prompts: nothing is evicted.
fn engine() -> EngineOptions {
    EngineOptions { prefill_tokens_per_s: 1e7, num_blocks: 100_000, ..EngineOptions::default() }
}

/// An address that no other test has: loopback has many. A port that the kernel gives to nobody.
fn control_address() -> SocketAddr {
    static LAST: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let n = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    SocketAddr::new(Ipv4Addr::new(127, high.max(1), low, n).into(), 9091)
}

/// Prompts that share nothing, of some 3,000 bytes.
fn prompts(seed: u64) -> Vec<Chat> {
    many_prompts(seed, PROMPTS)
}

fn many_prompts(seed: u64, count: usize) -> Vec<Chat> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| Chat::new(&text(&mut random, 3_000)).user("Go on.")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_gateway_placed_the_others_know() {
    let gateways = Gateways::start(&[SECRET; 3]).await;
    let prompts = prompts(1);
    // What they know is not in the prompt: a gateway that nobody tells finds nothing.
    let placed = gateways.place(0, &prompts[..PROMPTS / 2]).await;
    for n in [1, 2] {
        gateways.reaches(n, "placements", (PROMPTS / 2) as u64).await;
        gateways.settled(n).await;
    }
    assert_eq!(gateways.known(1, &prompts[..PROMPTS / 2], &placed).await, PROMPTS / 2);
    assert_eq!(gateways.known(2, &prompts[..PROMPTS / 2], &placed).await, PROMPTS / 2);
    // And the other way round, from one that heard before.
    let placed = gateways.place(2, &prompts[PROMPTS / 2..]).await;
    gateways.reaches(0, "placements", (PROMPTS / 2) as u64).await;
    gateways.settled(0).await;
    assert_eq!(gateways.known(0, &prompts[PROMPTS / 2..], &placed).await, PROMPTS / 2);
    for n in 0..3 {
        assert_eq!(gateways.counter(n, "refused").await, 0, "gateway {n}: {}", gateways.envoy(n).log());
        released(gateways.envoy(n)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_another_secret_learns_nothing_and_serves() {
    let gateways = Gateways::start(&[SECRET, SECRET, "another-secret-altogether"]).await;
    let prompts = prompts(2);
    let placed = gateways.place(0, &prompts).await;
    gateways.reaches(1, "placements", PROMPTS as u64).await;
    gateways.reaches(2, "refused", 4).await;
    assert_eq!(gateways.counter(2, "placements").await, 0);
    assert_eq!(gateways.known(2, &prompts, &placed).await, 0);
    let log = gateways.envoy(2).log();
    assert!(log.contains("peers.secret") && !log.contains("another-secret-altogether"));

    // Nor does anybody else who does not know it.
    let control = gateways.addresses[0];
    for (path, authorization, status) in [
        ("/kvroute/journal", "", 401),
        ("/kvroute/journal", "Bearer another-secret-altogether", 401),
        ("/", "", 401),
        ("/", &format!("Bearer {SECRET}"), 404),
        ("/kvroute/journal", &format!("Bearer {SECRET}"), 200),
    ] {
        let request = Request::get(path).header("host", "control").header("authorization", authorization);
        let mut connection = Connection::open(control).await.unwrap();
        let response = connection.send(request.body(client::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{path} {authorization}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        // At least a gateway's number and that of its last publication.
        assert_eq!(body.len() >= 19, status == 200, "{path} {authorization}: {body:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_dies_leaves_the_others_serving_and_learns_again_when_it_returns() {
    let mut gateways = Gateways::start(&[SECRET; 3]).await;
    let before = prompts(3);
    gateways.place(0, &before).await;
    gateways.reaches(1, "placements", PROMPTS as u64).await;

    gateways.envoys[1] = None;
    gateways.reaches(0, "failed", 2).await;
    let without = prompts(4);
    let placed = gateways.place(2, &without).await;
    gateways.reaches(0, "placements", PROMPTS as u64).await;
    gateways.settled(0).await;
    assert_eq!(gateways.known(0, &without, &placed).await, PROMPTS);

    gateways.envoys[1] = Some(gateways.start_one(1, SECRET).await);
    gateways.reaches(1, "pulled", 6).await;
    // It forgot everything, and told nobody yet: all of this is news both ways.
    let (heard, theirs, ours) = (gateways.counter(1, "placements").await, prompts(5), prompts(6));
    let (from_others, from_it) = (gateways.place(0, &theirs).await, gateways.place(1, &ours).await);
    gateways.reaches(1, "placements", heard + PROMPTS as u64).await;
    gateways.settled(1).await;
    gateways.settled(2).await;
    assert_eq!(gateways.known(1, &theirs, &from_others).await, PROMPTS);
    assert_eq!(gateways.known(2, &ours, &from_it).await, PROMPTS);
    for n in 0..3 {
        released(gateways.envoy(n)).await.unwrap();
    }
}

/// No engine is polled meanwhile: what the others know of the load, they were told.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_one_gateway_has_loaded_the_others_avoid_within_a_second() {
    const STREAMS: u64 = 12;
    let slow = EngineOptions { decode_step_ms: 20.0, ..engine() };
    // Nor may it be for another gateway's part of the hosts that they are avoided.
    let told_only = vec![("/poll/interval_ms", json!(60_000)), ("/routing/peer_spread", json!(0))];
    let gateways = Gateways::start_with(slow, told_only, &[SECRET; 2]).await;
    gateways.reaches(0, "pulled", 4).await;
    gateways.reaches(1, "pulled", 4).await;

    // So long a prompt that all who share it stay together.
    let long = Chat::new(&text(&mut ChaCha8Rng::seed_from_u64(8), 200_000)).max_tokens(1_000);
    let address = gateways.envoy(0).listener(KVROUTE).await.unwrap();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let chat = long.clone().user("Go on.");
        streams.spawn(async move { chat.post(address).await });
    }
    let told = async || {
        let told = gateways.told(1).await;
        (told.iter().sum::<u64>() == STREAMS).then_some(told)
    };
    let begun = async || {
        let stats = gateways.envoy(0).admin().stats().await.unwrap();
        (stats.in_flight().iter().map(|(_, value)| value).sum::<u64>() >= STREAMS).then_some(())
    };
    until("all are in flight", HEARD_WITHIN, begun).await.unwrap();
    let told = until("the other gateway was told", Duration::from_secs(1), told).await.unwrap();
    let most = (0..4).max_by_key(|slot| told[*slot]).unwrap();
    assert!(told[most] >= STREAMS / 2, "{told:?}");

    let loaded = gateways.fleet.addresses()[most].to_string();
    for chat in prompts(9) {
        let reply = gateways.ask(1, &chat).await;
        assert_ne!(reply.decided(), loaded, "{told:?}");
    }
    streams.shutdown().await;
    until("nothing is in flight", HEARD_WITHIN, async || {
        (gateways.told(1).await.iter().sum::<u64>() == 0).then_some(())
    })
    .await
    .unwrap();
}

/// What is told at once is more than Envoy moves at a time.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_journal_is_told_whole() {
    const MANY: usize = 200;
    let rarely = vec![("/peers/interval_ms", json!(3_000))];
    let gateways = Gateways::start_with(engine(), rarely, &[SECRET; 2]).await;
    let prompts = many_prompts(7, MANY);
    let placed = gateways.place(0, &prompts).await;
    gateways.reaches(1, "placements", MANY as u64).await;
    gateways.settled(1).await;
    assert_eq!(gateways.known(1, &prompts, &placed).await, MANY);
    assert_eq!(gateways.counter(1, "refused").await + gateways.counter(0, "untold").await, 0);
}

#[test]
fn envoy_merges_the_file_into_the_quick_start_as_it_says() {
    let read = |path: &str| std::fs::read_to_string(gateway::repository().join(path)).unwrap();
    let output = std::process::Command::new(gateway::envoy::binary().unwrap())
        .current_dir(gateway::repository())
        .args(["--mode", "validate", "-c", "envoy/envoy.yaml", "--config-yaml", &read("envoy/peers.yaml")])
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(log.contains("loading 2 cluster(s)") && log.contains("loading 2 listener(s)"), "{log}");
}
