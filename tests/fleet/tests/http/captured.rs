//! Does the mock answer captured requests as real vLLM answered them?

use fleet::EngineOptions;
use reqwest::Method;

use crate::client::{one_engine, Client};

/// One captured request and its answer.
struct Exchange {
    name: &'static str,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    status: u16,
    content_type: Option<String>,
    answer: String,
}

macro_rules! exchanges {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../data/", $name, ".txt")))),*]
            .map(|(name, text)| Exchange::parse(name, text))
    };
}

impl Exchange {
    fn parse(name: &'static str, text: &str) -> Self {
        let (head, answer) = text.split_once("\n\n").expect("a head and a body");
        let request: Vec<_> = head.lines().filter_map(|line| line.strip_prefix("> ")).collect();
        let response: Vec<_> = head.lines().filter_map(|line| line.strip_prefix("< ")).collect();
        let (method, path) = request[0].split_once(' ').expect("a request line");
        let header = |line: &&str| {
            let (name, value) = line.split_once(": ")?;
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            is_name.then(|| (name.to_owned(), value.to_owned()))
        };
        let headers: Vec<_> = request[1..].iter().filter_map(header).collect();
        let body = request.get(1 + headers.len()).map(|&body| body.to_owned());
        let mut response_headers = response[1..].iter().filter_map(header);
        Self {
            name,
            method: method.parse().expect("a method"),
            path: path.to_owned(),
            headers,
            body,
            status: response[0].split(' ').nth(1).expect("a status").parse().expect("a number"),
            content_type: response_headers.find(|(name, _)| name == "content-type").map(|(_, value)| value),
            answer: answer.to_owned(),
        }
    }

    /// Sends the request to the mock and compares status and content type; the two bodies are the caller's to compare.
    async fn replay(&self, client: &Client) -> (String, String) {
        let mut request = client.request(self.method.clone(), &self.path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = request.body(self.body.clone().unwrap_or_default()).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), self.status, "{}", self.name);
        let content_type = response.headers().get("content-type");
        let content_type = content_type.map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(content_type, self.content_type, "{}", self.name);
        (response.text().await.expect("a body").trim_end().to_owned(), self.answer.trim_end().to_owned())
    }
}

/// An engine with the captured one's model, block size and limit.
fn as_captured() -> EngineOptions {
    let model = "tiny".to_owned();
    EngineOptions { model, block_size: 32, max_model_len: 8_192, ..EngineOptions::default() }
}

/// JSON with its keys, order and nulls, but `S` for every string that is a value and `0` for every number. Two
/// answers of one skeleton differ only in what was generated, and when.
fn skeleton(json: &str) -> String {
    let mut out = String::new();
    let mut rest = json;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '0'..='9' => rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        out.push_str(match first {
            '"' if !after.starts_with(':') => "S",
            '0'..='9' => "0",
            _ => token,
        });
        rest = after;
    }
    out
}

fn string_length(json: &str) -> usize {
    let mut escaped = true;
    let closing = json.char_indices().find(|(_, c)| {
        let closes = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        closes
    });
    closing.map_or(json.len(), |(at, _)| at + 1)
}

#[tokio::test]
async fn errors_are_byte_for_byte_those_of_vllm() {
    let (_fleet, client) = one_engine(as_captured()).await;
    for exchange in exchanges![
        "err_ctype",
        "err_empty_body",
        "err_empty_prompt",
        "err_max_tokens",
        "err_method",
        "err_model_404",
        "err_model_404_stream",
        "err_msgs_400",
        "err_msgs_404",
        "err_no_messages",
        "err_path",
        "err_resp_404",
        "err_salt_empty",
        "health",
        "health_head",
        "load",
        "ping",
        "responses_prev",
        "version",
    ] {
        let (ours, real) = exchange.replay(&client).await;
        assert_eq!(ours, real, "{}", exchange.name);
    }
}

#[tokio::test]
async fn whole_answers_have_the_fields_of_vllms_in_the_same_order() {
    let (_fleet, client) = one_engine(as_captured()).await;
    for exchange in exchanges![
        "chat",
        "chat_batch",
        "chat_n2",
        "chat_parts",
        "completions_ids",
        "completions_list",
        "completions_list_ids",
        "completions_str",
        "inference_generate",
        "invocations",
        "messages",
        "messages_count_tokens",
        "models",
        "no_model_field",
        "orca_json",
        "orca_text",
        "responses",
        "responses_instructions",
    ] {
        let (ours, real) = exchange.replay(&client).await;
        assert_eq!(skeleton(&ours), skeleton(&real), "{}", exchange.name);
    }
}

#[tokio::test]
async fn streams_have_the_events_of_vllms_in_the_same_order() {
    let (_fleet, client) = one_engine(as_captured()).await;
    for exchange in exchanges!["chat_stream", "chat_stream_usage", "chat_stream_usage_continuous"] {
        let (ours, real) = exchange.replay(&client).await;
        assert_eq!(skeleton(&ours), skeleton(&real), "{}", exchange.name);
        assert!(ours.ends_with("data: [DONE]"));
    }
    // Here vLLM merged tokens into fewer chunks than there were: the kinds of events are compared.
    for exchange in exchanges!["completions_stream", "messages_stream", "responses_stream"] {
        let (ours, real) = exchange.replay(&client).await;
        assert_eq!(kinds(&ours), kinds(&real), "{}", exchange.name);
    }
}

/// The events of a stream, without repetitions.
fn kinds(stream: &str) -> Vec<String> {
    let mut kinds: Vec<_> = stream.split("\n\n").map(skeleton).collect();
    kinds.dedup();
    kinds
}

#[tokio::test]
async fn tools_make_the_prompt_longer_by_about_as_much_as_in_vllm() {
    let (_fleet, client) = one_engine(as_captured()).await;
    let mut tokens = Vec::new();
    for exchange in exchanges!["chat", "chat_tools"] {
        let (ours, real) = exchange.replay(&client).await;
        let prompt_tokens = |answer: &str| {
            let answer: serde_json::Value = serde_json::from_str(answer).expect("JSON");
            answer["usage"]["prompt_tokens"].as_f64().expect("usage")
        };
        tokens.push((prompt_tokens(&ours), prompt_tokens(&real)));
    }
    let grown = (tokens[1].0 - tokens[0].0) / (tokens[1].1 - tokens[0].1);
    assert!((0.4..1.6).contains(&grown), "{tokens:?}");
}
