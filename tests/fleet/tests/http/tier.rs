//! What do engines have of each other, where they share a KV tier?

use fleet::{EngineOptions, Fault, Fleet};
use reqwest::Method;

use crate::client::{cached_tokens, prompt_tokens, text, value, Client, Streamed};

/// A tier that holds all that a test puts in.
fn with_tier() -> EngineOptions {
    EngineOptions { kv_tier_tokens: 1 << 16, ..EngineOptions::default() }
}

async fn engines(options: &[EngineOptions]) -> (Fleet, Vec<Client>) {
    let mut fleet = Fleet::start(0, EngineOptions::default()).await.expect("a fleet");
    for options in options {
        fleet.launch(0, options.clone(), std::time::Duration::ZERO).expect("an engine");
    }
    let clients = fleet.engines().iter().map(Client::of).collect();
    (fleet, clients)
}

async fn two_engines(options: EngineOptions) -> (Fleet, Client, Client) {
    let (fleet, clients) = engines(&[options.clone(), options]).await;
    let [first, second] = clients.try_into().ok().expect("two");
    (fleet, first, second)
}

/// Tokens that it looked up in the tier, and found there.
async fn external(client: &Client) -> (f64, f64) {
    let of = async |what: &str| client.metric(&format!("vllm:external_prefix_cache_{what}_total")).await;
    (of("queries").await.expect("a counter"), of("hits").await.expect("a counter"))
}

/// Prompt tokens that it computed, had, and fetched.
async fn by_source(client: &Client) -> [f64; 3] {
    let page = client.get("/metrics").await.text().await.expect("text");
    ["local_compute", "local_cache_hit", "external_kv_transfer"].map(|source| {
        let labels = format!(r#"{{engine="0",model_name="mock",source="{source}"}}"#);
        value(&page, &format!("vllm:prompt_tokens_by_source_total{labels}")).expect("a counter")
    })
}

#[tokio::test]
async fn what_one_engine_computed_another_fetches_and_has_from_then_on() {
    let (_fleet, first, second) = two_engines(with_tier()).await;
    let prompt = text("a", 70);
    assert_eq!(cached_tokens(&first.complete(&prompt, 1).await), 0);
    assert_eq!(external(&first).await, (70.0, 0.0), "looked for, and found nowhere");

    let fetched = second.complete(&prompt, 1).await;
    assert_eq!((prompt_tokens(&fetched), cached_tokens(&fetched)), (70, 64), "four full blocks");
    assert_eq!(external(&second).await, (70.0, 64.0));
    assert_eq!(second.metric("vllm:prefix_cache_hits_total").await, Some(0.0));
    assert_eq!(by_source(&second).await, [6.0, 0.0, 64.0]);

    assert_eq!(cached_tokens(&second.complete(&prompt, 1).await), 64);
    assert_eq!(external(&second).await, (76.0, 64.0), "only what it did not have itself is looked up");
    assert_eq!(by_source(&second).await, [12.0, 64.0, 64.0]);
}

#[tokio::test]
async fn a_prompt_of_full_blocks_is_fetched_up_to_its_last_token() {
    let (_fleet, first, second) = two_engines(with_tier()).await;
    let prompt = text("a", 64);
    first.complete(&prompt, 1).await;
    assert_eq!(cached_tokens(&second.complete(&prompt, 1).await), 63);
    assert_eq!(external(&second).await, (64.0, 63.0));
    // Its own cache gives whole blocks, as ever; the tier has the one that is left out.
    assert_eq!(cached_tokens(&second.complete(&prompt, 1).await), 63);
    assert_eq!(external(&second).await, (80.0, 78.0));
    assert_eq!(by_source(&second).await, [2.0, 48.0, 78.0]);
}

#[tokio::test]
async fn part_comes_from_the_own_cache_part_from_the_tier_and_the_rest_is_computed() {
    let (fleet, first, second) = two_engines(with_tier()).await;
    let (short, long, longest) = (text("a", 160), text("a", 320), text("a", 500));
    second.complete(&short, 1).await;
    first.complete(&long, 1).await;
    let before = by_source(&second).await;
    let answer = second.complete(&longest, 1).await;
    assert_eq!((prompt_tokens(&answer), cached_tokens(&answer)), (500, 320));
    let after = by_source(&second).await;
    let grown: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(grown, [180.0, 160.0, 160.0]);
    assert_eq!(external(&second).await, (160.0 + 340.0, 160.0));
    let cached = second.metric("vllm:prompt_tokens_cached_total").await;
    assert_eq!(cached, Some(320.0), "local and external together");
    let counts = fleet.engine(1).report().counts;
    assert_eq!((counts.prompt_tokens, counts.cached_tokens), (660, 320));
}

#[tokio::test]
async fn the_next_turn_of_a_chat_fetches_the_answer_too() {
    let (_fleet, first, second) = two_engines(with_tier()).await;
    let prompt = text("a", 64);
    let answer = first.complete(&prompt, 100).await;
    let said = answer["choices"][0]["text"].as_str().expect("text");
    let next = second.complete(&format!("{prompt}{said}and?"), 1).await;
    assert_eq!(
        cached_tokens(&next),
        160,
        "ten full blocks of 164 tokens, of which the last was never computed"
    );
}

#[tokio::test]
async fn what_was_evicted_or_forgotten_is_fetched_again_and_outlives_the_process() {
    let options = EngineOptions { num_blocks: 64, ..with_tier() };
    let (fleet, first, second) = two_engines(options).await;
    let [a, b] = ["a", "b"].map(|name| text(name, 900));
    first.complete(&a, 1).await;
    first.complete(&b, 1).await;
    assert_eq!(cached_tokens(&first.complete(&a, 1).await), 896);
    first.request(Method::POST, "/reset_prefix_cache").send().await.expect("an answer");
    assert_eq!(cached_tokens(&first.complete(&a, 1).await), 896);
    fleet.engine(0).fault(Fault::Restart { down_seconds: 0.0 }).await;
    let first = Client::of(fleet.engine(0));
    assert_eq!(cached_tokens(&first.complete(&b, 1).await), 896);
    assert_eq!(external(&first).await, (900.0, 896.0), "a new process counts from zero");
    assert_eq!(cached_tokens(&second.complete(&b, 1).await), 896);
}

#[tokio::test]
async fn a_full_tier_forgets_the_least_recently_used() {
    // Two prompts fit, and each engine's own cache holds one.
    let options = EngineOptions { num_blocks: 64, kv_tier_tokens: 2_000, ..EngineOptions::default() };
    let (_fleet, first, second) = two_engines(options).await;
    let [a, b, c] = ["a", "b", "c"].map(|name| text(name, 900));
    first.complete(&a, 1).await;
    first.complete(&b, 1).await;
    first.complete(&a, 1).await;
    first.complete(&c, 1).await;
    assert_eq!(cached_tokens(&second.complete(&a, 1).await), 896, "used after b");
    let b_again = cached_tokens(&second.complete(&b, 1).await);
    assert!(b_again < 300, "c took its room: {b_again}");
}

#[tokio::test]
async fn salt_and_adapter_separate_what_is_shared_too() {
    let options = EngineOptions { loras: vec!["lora0".to_owned()], ..with_tier() };
    let (_fleet, first, second) = two_engines(options).await;
    let prompt = text("a", 70);
    first.complete(&prompt, 1).await;
    for (other, cached) in [("cache_salt", 0), ("model", 0), ("user", 64)] {
        let body = serde_json::json!({ "prompt": prompt, other: "lora0" });
        let answer = crate::client::whole(second.post("/v1/completions", body).await).await;
        assert_eq!(cached_tokens(&answer), cached, "{other}");
    }
}

#[tokio::test]
async fn fetching_takes_its_share_of_the_time_that_computing_takes() {
    let ttft_of = async |share: f64| {
        let options =
            EngineOptions { prefill_tokens_per_s: 10_000.0, kv_tier_fetch_share: share, ..with_tier() };
        let (fleet, first, second) = two_engines(options).await;
        for client in [&first, &second] {
            Streamed::read(client.start_stream(&text("a", 4_000), 1).await).await;
        }
        let ttft = |n: usize| fleet.engine(n).requests()[0].ttft_ms.expect("streamed");
        (ttft(0), ttft(1))
    };
    let (computed, fetched) = ttft_of(0.25).await;
    assert!(computed >= 400.0, "4,000 tokens at 10,000 a second: {computed}");
    assert!(fetched >= 100.0 && fetched < 0.75 * computed, "a quarter of it: {fetched}, {computed}");
    let (_, slow) = ttft_of(1.0).await;
    assert!(slow >= 390.0, "as slow as computing: {slow}");
}

#[tokio::test]
async fn an_engine_without_a_connector_shares_nothing_and_looks_nothing_up() {
    let (_fleet, clients) = engines(&[with_tier(), EngineOptions::default(), with_tier()]).await;
    let prompt = text("a", 70);
    let mut cached = Vec::new();
    for client in &clients {
        cached.push(cached_tokens(&client.complete(&prompt, 1).await));
    }
    assert_eq!(cached, [0, 0, 64]);
    assert_eq!(external(&clients[1]).await, (0.0, 0.0));
    assert_eq!(by_source(&clients[1]).await, [70.0, 0.0, 0.0]);
}
