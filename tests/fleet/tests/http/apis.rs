//! Does each API answer as its clients expect, and find what the others left in the cache?

use fleet::{EngineOptions, Fault, Fleet};
use reqwest::Method;
use serde_json::{json, Value};

use crate::client::{cached_tokens, one_engine, prompt_tokens, text, until, whole, Client};

async fn ask(client: &Client, path: &str, body: Value) -> Value {
    whole(client.post(path, body).await).await
}

async fn ask_in_text(client: &Client, path: &str, body: &str) -> Value {
    let request = client.request(Method::POST, path).header("content-type", "application/json");
    whole(request.body(body.to_owned()).send().await.expect("an answer")).await
}

/// The `data:` of a stream's events of one kind.
fn events(stream: &str, kind: &str) -> Vec<Value> {
    let of_kind = stream.split("\n\n").filter_map(|event| {
        let (name, data) = event.split_once('\n')?;
        (name == format!("event: {kind}")).then(|| data.strip_prefix("data: ").expect("data").to_owned())
    });
    of_kind.map(|data| serde_json::from_str(&data).expect("JSON")).collect()
}

/// One conversation with tools, as a client of each API sends it.
fn one_conversation() -> [(&'static str, String); 3] {
    let long = text("x", 200);
    // As text: the order of keys is part of what is rendered.
    let function = |schema: &str| format!(r#""name":"f","description":"d","{schema}":{{"type":"object"}}"#);
    let in_chat = format!(r#"[{{"type":"function","function":{{{}}}}}]"#, function("parameters"));
    let in_responses = format!(r#"[{{"type":"function",{}}}]"#, function("parameters"));
    let in_messages = format!("[{{{}}}]", function("input_schema"));
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } });
    let bodies = [
        (
            "/v1/chat/completions",
            in_chat,
            json!({ "max_tokens": 1, "tools": "TOOLS", "messages": [
                { "role": "system", "content": "terse" },
                { "role": "user", "content": long },
                { "role": "assistant", "content": "", "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "c", "content": "result" },
                { "role": "user", "content": "go on" },
            ] }),
        ),
        (
            "/v1/responses",
            in_responses,
            json!({ "max_output_tokens": 1, "tools": "TOOLS", "instructions": "terse", "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": long }] },
                { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":1}" },
                { "type": "function_call_output", "call_id": "c", "output": "result" },
                { "type": "reasoning", "summary": [] },
                { "type": "message", "role": "user", "content": "go on" },
            ] }),
        ),
        (
            "/v1/messages",
            in_messages,
            json!({ "max_tokens": 1, "tools": "TOOLS", "system": [{ "type": "text", "text": "terse" }], "messages": [
                { "role": "user", "content": long },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "s" },
                    { "type": "tool_use", "id": "c", "name": "f", "input": { "a": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "c", "content": [{ "type": "text", "text": "result" }] },
                    { "type": "text", "text": "go on" },
                ] },
            ] }),
        ),
    ];
    bodies.map(|(path, tools, body)| (path, body.to_string().replace(r#""TOOLS""#, &tools)))
}

#[tokio::test]
async fn a_conversation_shares_the_cache_whatever_api_it_comes_by() {
    let bodies = one_conversation();
    let counts = |answer: &Value| {
        let usage = &answer["usage"];
        let details = ["prompt_tokens_details", "input_tokens_details"]
            .map(|name| usage[name]["cached_tokens"].as_u64());
        let read = usage["cache_read_input_tokens"].as_u64();
        let cached = details.into_iter().flatten().chain(read).next().expect("details");
        let input =
            ["prompt_tokens", "input_tokens"].iter().find_map(|name| usage[name].as_u64()).expect("usage");
        (input + read.unwrap_or(0), cached)
    };
    for (first, warm) in &bodies {
        let (_fleet, client) = one_engine(EngineOptions::default()).await;
        let (tokens, cached) = counts(&ask_in_text(&client, first, warm).await);
        assert_eq!(cached, 0, "{first}");
        for (path, body) in &bodies {
            let (again, cached) = counts(&ask_in_text(&client, path, body).await);
            assert_eq!((again, cached), (tokens, (tokens - 1) / 16 * 16), "{path} after {first}");
        }
    }
}

#[tokio::test]
async fn an_image_is_the_same_whatever_api_it_comes_by() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let caption = text("x", 64);
    let url = "data:image/png;base64,QUJD";
    let image =
        |part: Value| json!([{ "role": "user", "content": [part, { "type": "text", "text": caption }] }]);
    let chat = image(json!({ "type": "image_url", "image_url": { "url": url } }));
    let source = json!({ "type": "base64", "media_type": "image/png", "data": "QUJD" });
    let messages = image(json!({ "type": "image", "source": source }));
    let other = image(json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,QUJE" } }));
    ask(&client, "/v1/chat/completions", json!({ "messages": chat, "max_tokens": 1 })).await;
    let answer = ask(&client, "/v1/messages", json!({ "messages": messages, "max_tokens": 1 })).await;
    assert!(answer["usage"]["cache_read_input_tokens"].as_u64() >= Some(64), "{answer}");
    let answer = ask(&client, "/v1/chat/completions", json!({ "messages": other, "max_tokens": 1 })).await;
    assert_eq!(cached_tokens(&answer), 0, "another image");
}

#[tokio::test]
async fn a_response_goes_on_from_the_one_before_where_that_was_answered() {
    let fleet = Fleet::start(2, EngineOptions::default()).await.expect("a fleet");
    let [home, other] = [0, 1].map(|n| Client::of(fleet.engine(n)));
    let first = json!({ "input": text("q", 100), "max_output_tokens": 32, "instructions": "terse" });
    let first = ask(&home, "/v1/responses", first).await;
    let id = first["id"].as_str().expect("an id");
    let next = json!({ "input": "go on", "previous_response_id": id, "instructions": "terse", "max_output_tokens": 1 });
    let answer = ask(&home, "/v1/responses", next.clone()).await;
    let tokens = |answer: &Value, name: &str| answer["usage"][name].as_u64().expect("usage");
    assert_eq!(answer["previous_response_id"], id);
    assert!(tokens(&answer, "input_tokens") > tokens(&first, "total_tokens"));
    let cached = answer["usage"]["input_tokens_details"]["cached_tokens"].as_u64().expect("details");
    assert!(cached + 32 > tokens(&first, "total_tokens"), "the answer is found too: {cached}");

    let refused = other.post("/v1/responses", next.clone()).await;
    assert_eq!(refused.status(), 404);
    let error: Value = refused.json().await.expect("JSON");
    assert_eq!(error["error"]["message"], format!("Response with id '{id}' not found."));
    assert_eq!(error["error"]["param"], "response_id");

    fleet.engine(0).fault(Fault::Restart { down_seconds: 0.0 }).await;
    assert_eq!(home.post("/v1/responses", next).await.status(), 404, "a new process has none");
}

#[tokio::test]
async fn a_response_that_is_not_to_be_stored_is_not() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let first = ask(&client, "/v1/responses", json!({ "input": "hi", "store": false })).await;
    let next = json!({ "input": "go on", "previous_response_id": first["id"] });
    assert_eq!(client.post("/v1/responses", next).await.status(), 404);
}

#[tokio::test]
async fn a_streamed_response_tells_its_id_first_and_can_be_gone_on_from() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    fleet.engine(0).fault(Fault::Stall).await;
    let body = json!({ "input": text("q", 100), "max_output_tokens": 8, "stream": true });
    let mut response = client.post("/v1/responses", body.clone()).await;
    let greeting = response.chunk().await.expect("a chunk").expect("events");
    let greeting = String::from_utf8(greeting.to_vec()).expect("text");
    let created = &events(&greeting, "response.created")[0];
    assert!(greeting.starts_with("event: response.created\n"), "before anything is computed: {greeting}");
    fleet.engine(0).fault(Fault::Wake).await;
    response.text().await.expect("the rest");

    let stream = client.post("/v1/responses", body).await.text().await.expect("a stream");
    let completed = &events(&stream, "response.completed")[0]["response"];
    let usage = &completed["usage"];
    assert!(usage["input_tokens_details"]["cached_tokens"].as_u64() >= Some(96), "{usage}");
    let said: String =
        events(&stream, "response.output_text.delta").iter().filter_map(|e| e["delta"].as_str()).collect();
    assert_eq!(completed["output"][0]["content"][0]["text"], said);
    for id in [&created["response"]["id"], &completed["id"]] {
        let next = json!({ "input": "go on", "previous_response_id": id });
        assert_eq!(client.post("/v1/responses", next).await.status(), 200);
    }
}

#[tokio::test]
async fn a_streamed_message_tells_what_was_cached_at_its_end() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let body = json!({
        "messages": [{ "role": "user", "content": text("q", 100) }], "max_tokens": 8, "stream": true
    });
    let counted = ask(&client, "/v1/messages/count_tokens", body.clone()).await["input_tokens"].as_u64();
    let mut usages = Vec::new();
    for _ in 0..2 {
        let stream = client.post("/v1/messages", body.clone()).await.text().await.expect("a stream");
        assert!(stream.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
        let start = &events(&stream, "message_start")[0]["message"];
        assert_eq!(start["usage"]["input_tokens"].as_u64(), counted);
        let usage = events(&stream, "message_delta")[0]["usage"].clone();
        assert_eq!(usage["output_tokens"], 8);
        usages.push((usage["input_tokens"].as_u64(), usage["cache_read_input_tokens"].as_u64()));
    }
    let counted = counted.expect("a count");
    let found = (counted - 1) / 16 * 16;
    assert_eq!(usages, [(Some(counted), Some(0)), (Some(counted - found), Some(found))]);
}

#[tokio::test]
async fn a_message_to_a_busy_engine_is_refused_in_anthropics_words() {
    let options = EngineOptions { max_num_queued_reqs: Some(0), ..EngineOptions::default() };
    let (_fleet, client) = one_engine(options).await;
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
    let refused = client.post("/v1/messages", body).await;
    assert_eq!(refused.status(), 503);
    let error: Value = refused.json().await.expect("JSON");
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("Service Unavailable")));
}

#[tokio::test]
async fn tokens_in_find_what_text_left_and_come_out_as_tokens() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let prompt = text("a", 64);
    client.complete(&prompt, 1).await;
    let tokens = ask(&client, "/tokenize", json!({ "prompt": prompt })).await;
    assert_eq!(tokens["count"], 64);
    let back = ask(&client, "/detokenize", json!({ "tokens": tokens["tokens"] })).await;
    assert_eq!(back["prompt"], prompt);
    let body = json!({ "token_ids": tokens["tokens"], "sampling_params": { "max_tokens": 3 } });
    let answer = ask(&client, "/inference/v1/generate", body).await;
    assert_eq!((prompt_tokens(&answer), cached_tokens(&answer)), (64, 48));
    assert_eq!(answer["choices"][0]["token_ids"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn a_chat_is_tokenized_as_it_is_computed() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let messages = json!([{ "role": "system", "content": "terse" }, { "role": "user", "content": "hello" }]);
    let tokens = ask(&client, "/tokenize", json!({ "messages": messages, "return_token_strs": true })).await;
    let answer = ask(&client, "/v1/chat/completions", json!({ "messages": messages })).await;
    assert_eq!(tokens["count"], answer["usage"]["prompt_tokens"]);
    assert_eq!(tokens["token_strs"][0], "<|im");
}

#[tokio::test]
async fn sglang_and_tgi_share_a_path_and_are_told_apart_by_their_keys() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let [one, two] = ["one", "two"].map(|name| text(name, 64));
    let sampling = json!({ "max_new_tokens": 4 });
    let sglang = json!({ "text": one, "sampling_params": sampling });
    for cached in [0, 48] {
        let meta = &ask(&client, "/generate", sglang.clone()).await["meta_info"];
        assert_eq!((&meta["prompt_tokens"], &meta["completion_tokens"]), (&json!(64), &json!(4)));
        assert_eq!(meta["cached_tokens"], cached);
    }
    let batch = ask(&client, "/generate", json!({ "text": [one, two], "sampling_params": sampling })).await;
    let cached: Vec<_> =
        batch.as_array().expect("a list").iter().map(|one| &one["meta_info"]["cached_tokens"]).collect();
    assert_eq!(cached, [48, 0]);
    let ids: Vec<u32> = (0..40).collect();
    let answer = ask(&client, "/generate", json!({ "input_ids": ids, "sampling_params": sampling })).await;
    assert_eq!(
        (&answer["meta_info"]["prompt_tokens"], answer["output_ids"].as_array().map(Vec::len)),
        (&json!(40), Some(4))
    );

    let tgi = ask(&client, "/generate", json!({ "inputs": two, "parameters": sampling })).await;
    assert_eq!(tgi, json!({ "generated_text": batch[1]["text"] }));
}

#[tokio::test]
async fn a_stream_of_sglang_repeats_all_that_was_said() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let body = json!({ "text": text("a", 64), "sampling_params": { "max_new_tokens": 3 }, "stream": true });
    let stream = client.post("/generate", body).await.text().await.expect("a stream");
    let data: Vec<_> =
        stream.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!((data.len(), data[3]), (4, "[DONE]"));
    let chunks: Vec<Value> = data[..3].iter().map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let said = |at: usize| chunks[at]["text"].as_str().expect("text");
    assert!(said(1).starts_with(said(0)) && said(2).starts_with(said(1)) && said(2).len() == 12);
    assert_eq!(chunks[2]["meta_info"]["prompt_tokens"], 64);
    assert_eq!(chunks[2]["meta_info"]["finish_reason"], json!({ "type": "length", "length": 3 }));
}

#[tokio::test]
async fn a_batch_of_chats_is_answered_in_order_and_found_again() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let chat = |name: &str| json!([{ "role": "user", "content": text(name, 64) }]);
    ask(&client, "/v1/chat/completions", json!({ "messages": chat("b"), "max_tokens": 2 })).await;
    let batch = json!({ "messages": [chat("a"), chat("b")], "max_tokens": 2 });
    let answer = ask(&client, "/v1/chat/completions/batch", batch).await;
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
    let usage = fleet.engine(0).report().last.expect("a record").usage;
    assert!((64..80).contains(&usage.cached_tokens), "{usage:?}");
}

#[tokio::test]
async fn sagemakers_path_is_a_chat_or_a_completion_by_its_keys() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let chat =
        ask(&client, "/invocations", json!({ "messages": [{ "role": "user", "content": "hi" }] })).await;
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(ask(&client, "/invocations", json!({ "prompt": "hi" })).await["object"], "text_completion");
}

#[tokio::test]
async fn pooling_apis_answer_and_leave_nothing_in_the_cache() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    let (prompt, pair) = (text("a", 64), json!(["yes", "no"]));
    for (path, body, entries) in [
        ("/v1/embeddings", json!({ "input": prompt }), "/data/0/embedding"),
        ("/pooling", json!({ "input": [prompt] }), "/data/0/data"),
        ("/classify", json!({ "input": [prompt, "b"] }), "/data"),
        ("/score", json!({ "text_1": prompt, "text_2": pair }), "/data"),
        ("/v1/score", json!({ "queries": prompt, "documents": pair }), "/data"),
        ("/rerank", json!({ "query": prompt, "documents": pair }), "/results"),
        ("/v1/rerank", json!({ "query": prompt, "documents": pair }), "/results"),
        ("/v2/rerank", json!({ "query": prompt, "documents": pair }), "/results"),
    ] {
        let answer = ask(&client, path, body.clone()).await;
        let entries = answer.pointer(entries).and_then(Value::as_array).map(Vec::len);
        assert!(entries >= Some(2), "{path}: {answer}");
        assert!(prompt_tokens(&answer) >= 64, "{path}: {answer}");
        assert_eq!(answer, with_ids_of(&answer, ask(&client, path, body).await), "{path}: the same again");
    }
    let completion = client.complete(&prompt, 1).await;
    assert_eq!(cached_tokens(&completion), 0);
    assert_eq!(client.metric("vllm:generation_tokens_total").await, Some(1.0), "nothing else generates");
    assert_eq!(client.metric("vllm:kv_cache_usage_perc").await, Some(0.0));
}

/// `answer` with the id and the time of another.
fn with_ids_of(other: &Value, mut answer: Value) -> Value {
    for name in ["id", "created"] {
        if let Some(value) = other.get(name) {
            answer[name] = value.clone();
        }
    }
    answer
}

#[tokio::test]
async fn an_embedding_has_a_place_among_the_running_while_it_computes() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let engine = fleet.engine(0);
    engine.fault(Fault::Slow { factor: 1e6 }).await;
    let embedding =
        client.request(Method::POST, "/v1/embeddings").json(&json!({ "input": text("a", 64) })).send();
    let embedding = tokio::spawn(embedding);
    until("it runs", || engine.running() == 1).await;
    engine.fault(Fault::Clear).await;
    assert_eq!(embedding.await.expect("a task").expect("an answer").status(), 200);
    assert_eq!(engine.running(), 0);
}
