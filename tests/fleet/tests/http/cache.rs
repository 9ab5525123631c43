//! What is found in the prefix cache, and what is not?

use fleet::EngineOptions;
use reqwest::Method;
use serde_json::{json, Value};

use crate::client::{cached_tokens, one_engine, prompt_tokens, text, whole, Client};

async fn chat(client: &Client, body: Value) -> Value {
    whole(client.post("/v1/chat/completions", body).await).await
}

#[tokio::test]
async fn a_second_identical_prompt_is_found_up_to_its_last_token() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let prompt = text("a", 64);
    let first = client.complete(&prompt, 1).await;
    assert_eq!((prompt_tokens(&first), cached_tokens(&first)), (64, 0));
    let second = client.complete(&prompt, 1).await;
    assert_eq!(cached_tokens(&second), 48, "a prompt of four full blocks recomputes the last");
    let longer = client.complete(&format!("{prompt}more"), 1).await;
    assert_eq!(cached_tokens(&longer), 64);
    assert_eq!(first["choices"], second["choices"], "the same prompt has the same answer");
}

#[tokio::test]
async fn usage_metrics_and_report_tell_the_same() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let mut told = (0, 0);
    for (name, tokens) in [("a", 100), ("b", 40), ("a", 100), ("a", 70), ("b", 200)] {
        let answer = client.complete(&text(name, tokens), 5).await;
        told = (told.0 + prompt_tokens(&answer), told.1 + cached_tokens(&answer));
    }
    assert!(told.1 > 0);
    let report = fleet.report().total;
    assert_eq!((report.prompt_tokens, report.cached_tokens), told);
    assert_eq!(report.generated_tokens, 25);
    for (name, tokens) in [
        ("vllm:prefix_cache_queries_total", told.0),
        ("vllm:prefix_cache_hits_total", told.1),
        ("vllm:prompt_tokens_total", told.0),
        ("vllm:prompt_tokens_cached_total", told.1),
        ("vllm:generation_tokens_total", 25),
    ] {
        assert_eq!(client.metric(name).await, Some(tokens as f64), "{name}");
    }
}

#[tokio::test]
async fn the_next_turn_of_a_chat_finds_the_answer_too() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let mut messages = vec![json!({ "role": "user", "content": text("hi", 40) })];
    let first = chat(&client, json!({ "messages": messages, "max_tokens": 64 })).await;
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({ "role": "user", "content": "go on" }));
    let second = chat(&client, json!({ "messages": messages, "max_tokens": 1 })).await;
    let before = first["usage"]["total_tokens"].as_u64().expect("usage");
    let found = cached_tokens(&second);
    assert!(found + 32 > before && found <= before, "{found} of {before}");
}

#[tokio::test]
async fn salt_and_adapter_separate_caches() {
    let loras = vec!["lora0".to_owned(), "lora1".to_owned()];
    let (_fleet, client) = one_engine(EngineOptions { loras, ..EngineOptions::default() }).await;
    let prompt = text("a", 64);
    let bodies = [
        json!({ "prompt": prompt }),
        json!({ "prompt": prompt, "cache_salt": "s1" }),
        json!({ "prompt": prompt, "cache_salt": "s2" }),
        json!({ "prompt": prompt, "model": "lora0" }),
        json!({ "prompt": prompt, "model": "lora1" }),
        json!({ "prompt": prompt, "model": "lora1", "cache_salt": "s1" }),
    ];
    for expected in [0, 48] {
        for body in &bodies {
            let answer = whole(client.post("/v1/completions", body.clone()).await).await;
            assert_eq!(cached_tokens(&answer), expected, "{body}");
        }
    }
}

#[tokio::test]
async fn a_small_cache_forgets_the_least_recently_used() {
    let options = EngineOptions { num_blocks: 64, ..EngineOptions::default() };
    let (_fleet, client) = one_engine(options).await;
    let [a, b, c] = ["a", "b", "c"].map(|name| text(name, 480));
    client.complete(&a, 1).await;
    client.complete(&b, 1).await;
    assert_eq!(cached_tokens(&client.complete(&a, 1).await), 464, "30 of 64 blocks each: both fit");
    client.complete(&c, 1).await;
    assert_eq!(cached_tokens(&client.complete(&a, 1).await), 464, "a was used after b");
    let b_again = cached_tokens(&client.complete(&b, 1).await);
    assert!(b_again < 100, "{b_again}");
    assert_eq!(client.metric("vllm:kv_cache_usage_perc").await, Some(0.0), "nothing runs");
}

#[tokio::test]
async fn tools_and_parts_belong_to_the_prefix_as_they_render() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let long = text("x", 200);
    let string = json!([{ "role": "user", "content": long }]);
    let part = json!([{ "role": "user", "content": [{ "type": "text", "text": long }] }]);
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let plain = chat(&client, json!({ "messages": string, "max_tokens": 1 })).await;
    let parts = chat(&client, json!({ "messages": part, "max_tokens": 1 })).await;
    assert_eq!(prompt_tokens(&plain), prompt_tokens(&parts));
    assert!(cached_tokens(&parts) >= 192);
    let with_tools = chat(&client, json!({ "messages": string, "tools": tools })).await;
    assert!(prompt_tokens(&with_tools) > prompt_tokens(&plain));
    assert_eq!(cached_tokens(&with_tools), 0);
}

#[tokio::test]
async fn every_kind_of_prompt_is_answered_and_found_again() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let ids: Vec<u32> = (0..40).collect();
    let more: Vec<u32> = (100..140).collect();
    for (prompt, choices, tokens, cached) in [
        (json!(text("one", 40)), 1, 40, 32),
        (json!([text("two", 40), text("six", 40)]), 2, 80, 64),
        (json!(ids), 1, 40, 32),
        (json!([ids, more]), 2, 80, 64),
    ] {
        let body = json!({ "prompt": prompt, "max_tokens": 2, "n": 2 });
        whole(client.post("/v1/completions", body.clone()).await).await;
        let answer = whole(client.post("/v1/completions", body).await).await;
        assert_eq!(answer["choices"].as_array().map(Vec::len), Some(choices * 2));
        assert_eq!(answer["usage"]["completion_tokens"], choices * 4);
        assert_eq!((prompt_tokens(&answer), cached_tokens(&answer)), (tokens, cached));
    }
}

#[tokio::test]
async fn the_cache_can_be_emptied() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let prompt = text("a", 64);
    client.complete(&prompt, 1).await;
    client.request(Method::POST, "/reset_prefix_cache").send().await.expect("an answer");
    assert_eq!(cached_tokens(&client.complete(&prompt, 1).await), 0);
}

#[tokio::test]
async fn details_can_be_withheld() {
    let options = EngineOptions { prompt_tokens_details: false, ..EngineOptions::default() };
    let (_fleet, client) = one_engine(options).await;
    let answer = client.complete("x", 1).await;
    assert!(answer["usage"]["prompt_tokens_details"].is_null());
}
