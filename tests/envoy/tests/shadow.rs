//! Can routing be tried without routing, and be introduced a share at a time?

use fleet::EngineOptions;
use gateway::chat::{self, Chat, Reply};
use gateway::client::Connection;
use gateway::config::Config;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::wait::until;
use gateway::workload::text::text;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// Counters come at the filter's next tick; histograms at Envoy's next merge, 5 s apart.
const COUNTED_WITHIN: Duration = Duration::from_secs(20);

/// Four engines behind round robin, and the filter in this mode.
async fn start(mode: Value, workers: u32) -> Testbed {
    let behind_round_robin = |config: Config| {
        let name = "envoy.load_balancing_policies.round_robin";
        let kind = "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin";
        config.edit_cluster(|cluster| {
            let policy = &mut cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"];
            let fallback = &mut policy["typed_config"]["fallback_policy"];
            assert!(fallback.is_object(), "envoy/envoy.yaml has no fallback policy");
            *fallback =
                json!({"policies": [{"typed_extension_config": {"name": name, "typed_config": {"@type": kind}}}]});
        })
    };
    let edit = |config: Config, _: &_| behind_round_robin(config).plugin("/mode", mode);
    Testbed::start_with(4, EngineOptions::default(), Options::workers(workers), edit).await.unwrap()
}

async fn post(testbed: &Testbed, chat: &Chat) -> Reply {
    let reply = chat.post(testbed.address).await.unwrap();
    assert!(reply.is_complete(), "{}", reply.status);
    reply
}

/// Conversations of two turns: first all first turns, then all second ones.
async fn converse(testbed: &Testbed, conversations: usize) -> Vec<(Reply, Reply)> {
    let mut random = ChaCha8Rng::seed_from_u64(conversations as u64);
    let mut first_turns = Vec::new();
    for _ in 0..conversations {
        let chat = Chat::new("You are helpful.").user(&text(&mut random, 4_000));
        let reply = post(testbed, &chat).await;
        first_turns.push((chat, reply));
    }
    let mut replies = Vec::new();
    for (chat, first) in first_turns {
        let second = post(testbed, &chat.assistant(&first.text).user("And then?")).await;
        replies.push((first, second));
    }
    replies
}

/// Whether the engine was sent a destination: what the filter sets on a routed request.
fn is_routed(reply: &Reply) -> bool {
    reply.headers.contains_key("x-mock-upstream-host")
}

async fn counted(testbed: &Testbed, name: &str, least: u64) -> u64 {
    let name = format!("wasmcustom.{name}");
    let what = format!("{name} reaches {least}");
    let reached = async || Some(testbed.stats().await.ok()?.value(&name)).filter(|value| *value >= least);
    until(&what, COUNTED_WITHIN, reached).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn in_shadow_envoy_decides_and_the_metrics_tell_what_routing_would_have_saved() {
    const CONVERSATIONS: usize = 24;
    let testbed = start(json!("shadow"), 2).await;
    let replies = converse(&testbed, CONVERSATIONS).await;

    let mut placed: BTreeMap<&str, usize> = BTreeMap::new();
    for reply in replies.iter().flat_map(|(first, second)| [first, second]) {
        assert!(!is_routed(reply), "an engine was sent a destination");
        assert!(reply.header("x-kvroute-reason").starts_with("shadow_"), "{:?}", reply.headers);
        *placed.entry(reply.engine()).or_default() += 1;
    }
    let (least, most) = (placed.values().min().unwrap(), placed.values().max().unwrap());
    assert!(placed.len() == 4 && most - least <= CONVERSATIONS / 2, "not round robin: {placed:?}");

    // It knows who got the first turns, and would have sent the second ones there.
    let known = replies.iter().filter(|(first, second)| second.decided() == first.engine()).count();
    assert!(known * 100 >= CONVERSATIONS * 95, "{known} of {CONVERSATIONS}");

    let requests = counted(&testbed, "kvroute_shadow_requests_total", 2 * CONVERSATIONS as u64).await;
    assert_eq!(requests, 2 * CONVERSATIONS as u64);
    let stats = testbed.stats().await.unwrap();
    let counter = |name: &str| stats.value(&format!("wasmcustom.kvroute_{name}_total"));
    let elsewhere =
        replies.iter().map(|(_, second)| second).filter(|reply| reply.decided() != reply.engine());
    let missed: u64 = elsewhere.map(|reply| reply.matched().unwrap().0 / 4).sum();
    let saved = counter("shadow_saved_tokens");
    assert!(missed > 0 && saved.abs_diff(missed) * 10 <= missed, "saved {saved}, missed {missed}");
    assert_eq!(counter("shadow_lost_tokens"), 0);
    let agreed = replies.iter().flat_map(|(first, second)| [first, second]);
    assert_eq!(
        counter("shadow_agreed"),
        agreed.filter(|reply| reply.decided() == reply.engine()).count() as u64
    );
    assert_eq!(counter("requests_prefix") + counter("requests_cold"), 0, "nothing was routed");
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn half_on_and_half_in_shadow_routes_half_by_where_all_went() {
    const CONVERSATIONS: usize = 100;
    let testbed = start(json!({"on": 50, "shadow": 50}), 2).await;
    let replies = converse(&testbed, CONVERSATIONS).await;
    let routed = replies.iter().flat_map(|(first, second)| [first, second]).filter(|reply| is_routed(reply));
    let routed = routed.inspect(|reply| assert_eq!(reply.decided(), reply.engine())).count();
    // Five standard deviations of 200 draws.
    assert!((65..=135).contains(&routed), "{routed} of 200 routed");

    let second_turns: Vec<_> = replies.iter().filter(|(_, second)| is_routed(second)).collect();
    let stayed = second_turns.iter().filter(|(first, second)| first.engine() == second.engine()).count();
    assert!(stayed * 100 >= second_turns.len() * 95, "{stayed} of {} stayed", second_turns.len());
    counted(&testbed, "kvroute_shadow_requests_total", 200 - routed as u64).await;
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn off_guards_the_destination_and_does_nothing_else() {
    const REQUESTS: usize = 16;
    let testbed = start(json!("off"), 2).await;
    let wanted = testbed.fleet.addresses()[0].to_string();
    let mut placed: BTreeMap<String, usize> = BTreeMap::new();
    // One connection, one worker: round robin is exact.
    let mut connection = Connection::open(testbed.address).await.unwrap();
    for _ in 0..REQUESTS {
        let mut request = Chat::new("You are brief.").user("Hello").request();
        request.headers_mut().insert("x-upstream-host", wanted.parse().unwrap());
        let reply = chat::send(&mut connection, request).await.unwrap();
        assert!(reply.is_complete() && !is_routed(&reply), "{:?}", reply.headers);
        assert!(!reply.headers.keys().any(|name| name.as_str().starts_with("x-kvroute")));
        *placed.entry(reply.engine().to_owned()).or_default() += 1;
    }
    assert!(placed.len() == 4 && placed.values().all(|count| *count < REQUESTS / 2), "{placed:?}");
    assert_eq!(counted(&testbed, "kvroute_requests_off_total", REQUESTS as u64).await, REQUESTS as u64);
    testbed.released().await.unwrap();
}

/// Histograms are not in `/stats` as counters are; what counts is what Prometheus scrapes.
#[tokio::test(flavor = "multi_thread")]
async fn prometheus_scrapes_the_match_predicted_and_actual() {
    const CONVERSATIONS: usize = 6;
    // Few and fast: second turns come sooner than workers tell each other.
    let testbed = start(json!("on"), 1).await;
    let replies = converse(&testbed, CONVERSATIONS).await;
    for name in ["kvroute_match_percent_predicted", "kvroute_match_percent_actual"] {
        let complete = async || {
            let text = testbed.envoy.admin().prometheus().await.ok()?;
            (number(&text, &format!("{name}_count")) == Some(2.0 * CONVERSATIONS as f64)).then_some(text)
        };
        let prometheus = until("all requests are recorded", COUNTED_WITHIN, complete).await.unwrap();
        assert!(prometheus.contains(&format!("# TYPE {name} histogram")), "{prometheus}");
        // First turns find next to nothing, second ones most of their prompt.
        let below = |bucket: &str| number(&prometheus, &format!("{name}_bucket{{le=\"{bucket}\"}}")).unwrap();
        assert_eq!(
            (below("10"), below("70"), below("100")),
            (CONVERSATIONS as f64, CONVERSATIONS as f64, 2.0 * CONVERSATIONS as f64),
            "{name}"
        );
    }
    assert!(replies.iter().all(|(first, second)| first.usage.is_some() && second.usage.unwrap().cached > 0));
}

/// The value of a sample in an exposition.
fn number(exposition: &str, sample: &str) -> Option<f64> {
    let line = exposition.lines().find_map(|line| line.strip_prefix(sample))?;
    // Envoy writes `{}` behind names without labels.
    line.trim_start_matches("{}").trim().parse().ok()
}
