//! Engines that share a KV tier: the gateway notices, says so, and lets a hot prefix go where the queue is shorter.

use fleet::EngineOptions;
use gateway::chat::Chat;
use gateway::client::{self, Connection};
use gateway::config::CONTROL;
use gateway::control::Control;
use gateway::envoy::Options;
use gateway::testbed::{polled_again, Testbed};
use gateway::wait::until;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

const QUERIES: &str = "vllm:external_prefix_cache_queries_total";
const HITS: &str = "vllm:external_prefix_cache_hits_total";

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(30);

/// Prompts of some 3,000 tokens each, together more than twice what both engines hold ..
const PROMPTS: usize = 24;

/// .. and how often each is asked for. All but the first time it has to be fetched, where that can be done.
const ROUNDS: usize = 3;

/// Requests at the same time for a hot prefix of some 6,300 tokens. Each that runs costs the next one 20 ms
/// (`routing.decode_ms`): ten are about what the prefix costs to fetch elsewhere, 190 ms, and far from what it costs to compute
/// there, 350 ms.
const BURST: usize = 11;

/// An engine whose cache holds 16,384 tokens.
fn engine(kv_tier_tokens: usize) -> EngineOptions {
    EngineOptions { num_blocks: 1_024, kv_tier_tokens, decode_step_ms: 40.0, ..EngineOptions::default() }
}

struct Site {
    testbed: Testbed,
    control: Control,
}

impl Site {
    /// Two engines that share a tier of so many tokens, after traffic that none of them can hold.
    async fn after_traffic(kv_tier_tokens: usize) -> Self {
        let testbed = Testbed::start_with(2, engine(kv_tier_tokens), Options::workers(2), |config, _| {
            config.with_control(None).unwrap()
        });
        let testbed = testbed.await.unwrap();
        let control = Control::new(testbed.envoy.listener(CONTROL).await.unwrap());
        for n in (0..ROUNDS).flat_map(|_| 0..PROMPTS) {
            let chat = Chat::new(&prompt(n, 3_000)).user("Go on.").max_tokens(1);
            assert!(chat.post(testbed.address).await.unwrap().is_complete());
        }
        polled_again(&testbed.fleet).await.unwrap();
        Self { testbed, control }
    }

    /// What the gateway says of the tier.
    async fn tier(&self) -> Value {
        self.control.status().await.unwrap()["tier"].clone()
    }

    /// Tokens that the engines have looked up in a tier, and found there, by their own word.
    async fn lookups(&self) -> (f64, f64) {
        let (mut queries, mut hits) = (0.0, 0.0);
        for engine in self.testbed.fleet.addresses() {
            queries += counter(engine, QUERIES).await;
            hits += counter(engine, HITS).await;
        }
        (queries, hits)
    }

    /// Waits until the gateway has been told that so many requests run.
    async fn known_running(&self, requests: usize) {
        let is_known = async || (self.control.status().await.ok()?["running"] == requests).then_some(());
        until("what runs is known", SOON, is_known).await.unwrap();
    }

    /// Asks for a new prefix once, and then many times with answers that go on and on.
    async fn burst(&self) -> Burst {
        let hot = prompt(PROMPTS, 6_500);
        let first = Chat::new(&hot).user("Who are you?").post(self.testbed.address).await.unwrap();
        let holder: SocketAddr = first.engine().parse().unwrap();
        polled_again(&self.testbed.fleet).await.unwrap();
        let other = self.testbed.fleet.addresses().into_iter().find(|engine| *engine != holder).unwrap();
        let before = counter(other, HITS).await;
        let mut open = Vec::new();
        for n in 0..BURST {
            let chat = Chat::new(&hot).user(&format!("Question {n}?")).max_tokens(1_000);
            open.push(Open::start(self.testbed.address, &chat).await);
            // Requests that one worker has and another does not know of would count twice for a moment.
            self.known_running(n + 1).await;
        }
        let elsewhere = open.iter().filter(|answer| answer.engine() == other).count();
        Burst { elsewhere, fetched: counter(other, HITS).await - before }
    }
}

/// What became of requests for a hot prefix.
struct Burst {
    /// How many went to another engine than the one that had computed it.
    elsewhere: usize,
    /// Tokens that the other one fetched for them.
    fetched: f64,
}

/// An answer that has begun and goes on.
struct Open {
    response: Response<Incoming>,
    _connection: Connection,
}

impl Open {
    async fn start(address: SocketAddr, chat: &Chat) -> Self {
        let mut connection = Connection::open(address).await.unwrap();
        let mut response = connection.send(chat.request()).await.unwrap();
        // With the first token the prefix has been computed.
        tokio::time::timeout(SOON, response.body_mut().frame()).await.unwrap().unwrap().unwrap();
        Self { response, _connection: connection }
    }

    fn engine(&self) -> SocketAddr {
        self.response.headers()["x-mock-engine"].to_str().unwrap().parse().unwrap()
    }
}

/// A system prompt of about so many tokens, of four bytes each, that begins like no other.
fn prompt(n: usize, tokens: usize) -> String {
    let told = format!("What number {n} has been told to do. ");
    format!("Assistant {n}. {}", told.repeat(4 * tokens / told.len()))
}

/// What an engine itself has counted.
async fn counter(engine: SocketAddr, name: &str) -> f64 {
    let request = Request::get("/metrics").header("host", "engine").body(client::empty()).unwrap();
    let mut connection = Connection::open(engine).await.unwrap();
    let body = connection.send(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    let page = String::from_utf8_lossy(&body).into_owned();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_engines_share_a_tier_the_status_says_so_and_a_hot_prefix_goes_where_the_queue_is_shorter() {
    let site = Site::after_traffic(1 << 20).await;
    let (queries, hits) = site.lookups().await;
    let found = hits / queries;
    assert!(found > 0.6, "two of three rounds were fetched: {hits} of {queries}");
    let tier = site.tier().await;
    assert_eq!(tier["affinity"], "weaker: engines find misses in a shared tier", "{tier}");
    // By the default of `routing.fetch_share` a token that is fetched costs 30 % of one that is computed.
    for (percent, share) in
        [("measured_hit", found), ("hit", found), ("fetch_cost", 0.3), ("saved", found * (1.0 - 0.3))]
    {
        assert_eq!(tier[format!("{percent}_percent")], (100.0 * share).round() as u64, "{percent}: {tier}");
    }

    let burst = site.burst().await;
    assert!(burst.elsewhere > 0, "all {BURST} stayed");
    assert!(burst.fetched > 6_000.0, "the prefix was fetched there, not computed: {}", burst.fetched);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_tier_none_is_seen_and_the_same_burst_stays_where_its_prefix_is() {
    let site = Site::after_traffic(0).await;
    assert_eq!(site.lookups().await, (0.0, 0.0));
    let tier = site.tier().await;
    assert_eq!(tier["affinity"], "full: no engine has looked for much in a shared tier", "{tier}");
    assert_eq!((&tier["saved_percent"], &tier["hit_percent"]), (&0.into(), &0.into()), "{tier}");
    assert_eq!(tier["measured_hit_percent"], Value::Null, "{tier}");

    let burst = site.burst().await;
    assert_eq!((burst.elsewhere, burst.fetched), (0, 0.0));
}
