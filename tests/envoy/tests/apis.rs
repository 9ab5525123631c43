//! Does each API's request go where its prefix is, and is it really there? The engine's own count of cached tokens
//! confirms every match.

use fleet::{EngineOptions, Outcome, RequestRecord};
use gateway::chat::{self, post, Reply};
use gateway::client::{empty, whole, Connection};
use gateway::config::Config;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::workload::text::text;
use hyper::Request;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One way to say a conversation. What is said is a list: the first's lead, what the user says, what was answered, what
/// the user says.
struct Api {
    name: &'static str,
    path: &'static str,
    body: fn(&[String]) -> Value,
    /// Whether its answers can stream.
    streams: bool,
}

const fn api(name: &'static str, path: &'static str, body: fn(&[String]) -> Value) -> Api {
    Api { name, path, body, streams: true }
}

const APIS: [Api; 18] = [
    api("chat", chat::PATH, |said| json!({"model": "mock", "messages": messages(said), "max_tokens": 4})),
    api("chat in parts", chat::PATH, |said| {
        let messages = said
            .iter()
            .enumerate()
            .map(|(n, text)| json!({"content": [{"type": "text", "text": text}], "role": role(n)}));
        json!({"messages": messages.collect::<Vec<_>>(), "model": "mock", "max_completion_tokens": 4})
    }),
    Api {
        streams: false,
        ..api(
            "chats in a batch",
            "/v1/chat/completions/batch",
            |said| json!({"model": "mock", "messages": [messages(said)], "max_tokens": 4}),
        )
    },
    api(
        "completion",
        "/v1/completions",
        |said| json!({"model": "mock", "prompt": said.concat(), "max_tokens": 4}),
    ),
    api(
        "completion of a list",
        "/v1/completions",
        |said| json!({"prompt": [said.concat()], "model": "mock", "max_tokens": 4}),
    ),
    api(
        "completion of token ids",
        "/v1/completions",
        |said| json!({"model": "mock", "prompt": token_ids(said), "max_tokens": 4}),
    ),
    api(
        "response to a text",
        "/v1/responses",
        |said| json!({"model": "mock", "input": said.concat(), "max_output_tokens": 4}),
    ),
    api(
        "response to items",
        "/v1/responses",
        |said| json!({"model": "mock", "input": items(said), "max_output_tokens": 4}),
    ),
    api(
        "response with instructions",
        "/v1/responses",
        |said| json!({"input": items(&said[1..]), "instructions": said[0], "model": "mock", "max_output_tokens": 4}),
    ),
    api(
        "message",
        "/v1/messages",
        |said| json!({"model": "mock", "max_tokens": 4, "system": said[0], "messages": turns(said)}),
    ),
    api("message in blocks", "/v1/messages", |said| {
        let system = json!([{"type": "text", "text": said[0], "cache_control": {"type": "ephemeral"}}]);
        json!({"model": "mock", "messages": turns(said), "system": system, "max_tokens": 4})
    }),
    api(
        "SGLang's text",
        "/generate",
        |said| json!({"text": said.concat(), "sampling_params": {"max_new_tokens": 4}}),
    ),
    api(
        "SGLang's input_ids",
        "/generate",
        |said| json!({"input_ids": token_ids(said), "sampling_params": {"max_new_tokens": 4}}),
    ),
    Api {
        streams: false,
        ..api(
            "TGI's inputs",
            "/generate",
            |said| json!({"inputs": said.concat(), "parameters": {"max_new_tokens": 4}}),
        )
    },
    api(
        "vLLM's token_ids",
        "/inference/v1/generate",
        |said| json!({"model": "mock", "token_ids": token_ids(said), "sampling_params": {"max_tokens": 4}}),
    ),
    api(
        "SageMaker's chat",
        "/invocations",
        |said| json!({"model": "mock", "messages": messages(said), "max_tokens": 4}),
    ),
    api(
        "SageMaker's completion",
        "/invocations",
        |said| json!({"model": "mock", "prompt": said.concat(), "max_tokens": 4}),
    ),
    api(
        "SageMaker's token ids",
        "/invocations",
        |said| json!({"prompt": token_ids(said), "model": "mock", "max_tokens": 4}),
    ),
];

fn role(n: usize) -> &'static str {
    match n {
        0 => "system",
        n if n % 2 == 1 => "user",
        _ => "assistant",
    }
}

fn messages(said: &[String]) -> Value {
    said.iter().enumerate().map(|(n, text)| json!({"role": role(n), "content": text})).collect()
}

/// What stands behind the system prompt.
fn turns(said: &[String]) -> Value {
    let turns = said.iter().enumerate().skip(1);
    turns.map(|(n, text)| json!({"role": role(n), "content": text})).collect()
}

fn items(said: &[String]) -> Value {
    let role = |n: usize| if n.is_multiple_of(2) { "user" } else { "assistant" };
    let item = |(n, text)| json!({"type": "message", "role": role(n), "content": text});
    said.iter().enumerate().map(item).collect()
}

/// As many ids as the same prompt would have as text, and no two texts the same ones.
fn token_ids(said: &[String]) -> Vec<u32> {
    let id = |bytes: &[u8]| bytes.iter().fold(0, |id, byte| id << 8 | u32::from(*byte));
    said.iter().flat_map(|text| text.as_bytes().chunks(4).map(id)).collect()
}

/// A conversation that nobody else has, up to the user's second turn.
fn conversation(seed: u64) -> Vec<String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut say = |bytes| text(&mut random, bytes);
    vec![say(2_500), say(500), "So it is.".to_owned(), say(200)]
}

impl Api {
    /// Posts what was said, on a connection of its own.
    async fn ask(&self, testbed: &Testbed, said: &[String], stream: bool) -> (Reply, RequestRecord) {
        let mut body = (self.body)(said);
        if stream && self.streams {
            body["stream"] = json!(true);
        }
        ask(testbed, self.path, &body).await
    }
}

async fn ask(testbed: &Testbed, path: &str, body: &Value) -> (Reply, RequestRecord) {
    let mut connection = Connection::open(testbed.address).await.unwrap();
    let (reply, record) = testbed.ask(&mut connection, post(path, whole(body.to_string()))).await.unwrap();
    assert!(reply.status == 200, "{path}: {} {:?} for {body}", reply.status, reply.body);
    assert_eq!(record.outcome, Outcome::Completed, "{path}");
    (reply, record)
}

/// Sees that a prompt went to the host that had what `first` computed, and that all of it but the end was there.
fn assert_at_home(what: &str, first: &(Reply, RequestRecord), (reply, record): &(Reply, RequestRecord)) {
    assert_eq!(reply.engine(), first.0.engine(), "{what}: {}", reply.header("x-kvroute-reason"));
    assert_eq!(reply.header("x-kvroute-reason"), "prefix", "{what}");
    let (had, cached) = (first.1.usage.prompt_tokens, record.usage.cached_tokens);
    assert!(cached * 10 >= had * 9, "{what}: {cached} cached of {had} tokens");
    assert!(reply.matched().unwrap().0 > 0, "{what}");
}

/// Four engines that could hold everything, and two workers.
async fn gateway() -> Testbed {
    Testbed::start(4, EngineOptions::default(), Options::workers(2)).await.unwrap()
}

/// Clients do not ask on at once. Far longer than it takes until one worker knows what another has placed: two ticks.
async fn think() {
    tokio::time::sleep(Duration::from_millis(250)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_turn_goes_where_the_first_was_in_every_api() {
    const CONVERSATIONS: usize = 12;
    let testbed = gateway().await;
    let mut placed: BTreeMap<String, usize> = BTreeMap::new();
    let mut first_turns = Vec::new();
    // All APIs at once, so that each prompt comes back after much other traffic.
    for n in 0..CONVERSATIONS {
        for (a, api) in APIS.iter().enumerate() {
            let said = conversation((1_000 * a + n) as u64);
            let first = api.ask(&testbed, &said[..2], n % 2 == 1).await;
            assert_eq!(first.0.header("x-kvroute-reason"), "cold", "{} {n}", api.name);
            assert_eq!(first.1.usage.cached_tokens, 0, "{} {n}", api.name);
            *placed.entry(first.0.engine().to_owned()).or_default() += 1;
            first_turns.push((api, n, said, first));
        }
    }
    think().await;
    for (api, n, said, first) in &first_turns {
        let streams = n % 2 == 0;
        let what = format!("{} {n}", api.name);
        assert_at_home(&what, first, &api.ask(&testbed, said, streams).await);
        assert_at_home(&format!("{what} again"), first, &api.ask(&testbed, &said[..2], streams).await);
    }
    for (engine, count) in &placed {
        let percent = count * 100 / (CONVERSATIONS * APIS.len());
        assert!((15..=35).contains(&percent), "{engine} has {percent} % of {placed:?}");
    }
    for api in &APIS {
        let of_api = first_turns.iter().filter(|(other, ..)| other.name == api.name);
        let hosts: BTreeSet<&str> = of_api.map(|(_, _, _, first)| first.0.engine()).collect();
        assert!(hosts.len() > 1, "all prompts of {} are on {hosts:?}", api.name);
    }
    let stats = testbed.stats().await.unwrap();
    assert!((0..2).all(|worker| stats.worker_connections(worker) > 0), "one worker took all");
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_by_another_api_on_the_same_host() {
    const CONVERSATIONS: usize = 12;
    let testbed = gateway().await;
    let by_name = |name: &str| APIS.iter().find(|api| api.name == name).unwrap();
    let apis = ["chat", "message", "response with instructions"].map(by_name);
    let mut hosts = BTreeSet::new();
    let mut conversations = Vec::new();
    for n in 0..CONVERSATIONS {
        let said = conversation(50_000 + n as u64);
        let first = apis[n % 3].ask(&testbed, &said[..2], false).await;
        assert_eq!(first.0.header("x-kvroute-reason"), "cold");
        hosts.insert(first.0.engine().to_owned());
        conversations.push((said, first));
    }
    think().await;
    for step in 1..=2 {
        for (n, (said, first)) in conversations.iter().enumerate() {
            let api = apis[(n + step) % 3];
            let what = format!("{} after {}", api.name, apis[n % 3].name);
            assert_at_home(&what, first, &api.ask(&testbed, &said[..2 * step], step == 1).await);
        }
    }
    assert!(hosts.len() > 1, "all on {hosts:?}");
    testbed.released().await.unwrap();
}

/// Routes `prefix` to the engines with `rewritten` in its place, as a gateway does that serves them under names of its
/// own.
fn with_route(config: Config, prefix: &str, rewritten: &str) -> Config {
    config.edit_manager(|manager| {
        let routes = manager["route_config"]["virtual_hosts"][0]["routes"].as_array_mut().unwrap();
        let mut route = routes[0].clone();
        route["match"]["prefix"] = json!(prefix);
        route["route"]["prefix_rewrite"] = json!(rewritten);
        routes.insert(0, route);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_with_a_prefix_a_query_or_a_name_of_its_own_is_known() {
    const PATHS: [&str; 6] = [
        "/v1/chat/completions?api-version=2024-10-21&user=a%2Fb",
        "/team-7/openai/v1/chat/completions",
        "/team-7/openai/v1/chat/completions?x=/v1/embeddings",
        "/ask",
        "/ask?x=1",
        "/invocations?x",
    ];
    let testbed = Testbed::start_with(4, EngineOptions::default(), Options::workers(2), |config, _| {
        let config = with_route(config, "/team-7/openai/", "/");
        with_route(config, "/ask", chat::PATH).plugin("/prompt/paths", json!({"/ask": "chat"}))
    })
    .await
    .unwrap();
    let mut homes = BTreeSet::new();
    for (n, path) in PATHS.into_iter().enumerate() {
        let said = conversation(60_000 + n as u64);
        let chat = |said: &[String]| json!({"model": "mock", "messages": messages(said), "max_tokens": 4});
        let first = ask(&testbed, path, &chat(&said[..2])).await;
        assert_eq!(first.0.header("x-kvroute-reason"), "cold", "{path}");
        homes.insert(first.0.engine().to_owned());
        think().await;
        for next in PATHS {
            assert_at_home(&format!("{next} after {path}"), &first, &ask(&testbed, next, &chat(&said)).await);
        }
    }
    testbed.released().await.unwrap();
}

/// The id that the next turn refers to, as a client reads it: of the answer, or of the first event of a stream.
fn id_of(reply: &Reply) -> String {
    let body = String::from_utf8_lossy(&reply.body);
    let document = body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&body);
    let document: Value = serde_json::from_str(document).unwrap();
    let id = document["id"].as_str().or(document["response"]["id"].as_str());
    id.unwrap_or_else(|| panic!("no id: {document}")).to_owned()
}

/// The user's next words, and the id of what they follow.
fn next_turn(previous: Option<&str>, seed: u64, stream: bool) -> Value {
    let input = text(&mut ChaCha8Rng::seed_from_u64(seed), if previous.is_some() { 100 } else { 2_000 });
    let mut body = json!({"model": "mock", "input": input, "max_output_tokens": 4});
    if let Some(previous) = previous {
        body["previous_response_id"] = json!(previous);
    }
    if stream {
        body["stream"] = json!(true);
    }
    body
}

/// Only the engine that gave an answer has it: every other one says 404 (in tests/fleet: as vLLM does).
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_only_names_the_answer_before_it_goes_to_the_engine_that_has_it() {
    const CONVERSATIONS: usize = 24;
    const TURNS: usize = 5;
    let testbed = Testbed::start(3, EngineOptions::default(), Options::workers(2)).await.unwrap();
    // Of each conversation its first host, and every id.
    let mut conversations: Vec<(String, Vec<String>)> = Vec::new();
    for turn in 0..TURNS {
        for n in 0..CONVERSATIONS {
            let seed = (70_000 + 100 * n + turn) as u64;
            let stream = (n + turn) % 2 == 1;
            let Some((home, ids)) = conversations.get_mut(n).filter(|_| turn > 0) else {
                let (reply, _) = ask(&testbed, "/v1/responses", &next_turn(None, seed, stream)).await;
                conversations.push((reply.engine().to_owned(), vec![id_of(&reply)]));
                continue;
            };
            let next = next_turn(ids.last().map(String::as_str), seed, stream);
            let (reply, record) = ask(&testbed, "/v1/responses", &next).await;
            assert_eq!(reply.engine(), home, "turn {turn} of {n}");
            assert_eq!(reply.header("x-kvroute-reason"), "pinned", "turn {turn} of {n}");
            assert!(record.usage.cached_tokens * 10 > record.usage.prompt_tokens * 8, "{:?}", record.usage);
            ids.push(id_of(&reply));
        }
        think().await;
    }
    let homes: BTreeSet<&String> = conversations.iter().map(|(home, _)| home).collect();
    assert!(homes.len() > 1, "all on {homes:?}");

    // The mock engines keep no route for these; what counts is who is asked.
    for (home, ids) in &conversations {
        for id in ids {
            for (method, path) in [
                ("GET", format!("/v1/responses/{id}")),
                ("GET", format!("/v1/responses/{id}?include[]=usage")),
                ("DELETE", format!("/v1/responses/{id}")),
                ("POST", format!("/v1/responses/{id}/cancel")),
            ] {
                let request = Request::builder().method(method).uri(&path).header("host", "llm");
                let mut connection = Connection::open(testbed.address).await.unwrap();
                let reply = chat::send(&mut connection, request.body(empty()).unwrap()).await.unwrap();
                assert_eq!(reply.engine(), home, "{method} {path}");
                assert_eq!(reply.header("x-kvroute-reason"), "pinned", "{method} {path}");
            }
        }
    }
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_on_at_once_on_its_connection_finds_its_answer() {
    let testbed = Testbed::start(3, EngineOptions::default(), Options::workers(2)).await.unwrap();
    for n in 0..12 {
        let mut connection = Connection::open(testbed.address).await.unwrap();
        let mut previous: Option<(String, String)> = None;
        for turn in 0..5 {
            let id = previous.as_ref().map(|(id, _)| id.as_str());
            let body = next_turn(id, 80_000 + 100 * n + turn, (n + turn) % 2 == 1);
            let request = post("/v1/responses", whole(body.to_string()));
            let (reply, _) = testbed.ask(&mut connection, request).await.unwrap();
            assert_eq!(reply.status, 200, "turn {turn} of {n}");
            let home = previous.map_or(reply.engine().to_owned(), |(_, home)| home);
            assert_eq!(reply.engine(), home, "turn {turn} of {n}");
            previous = Some((id_of(&reply), home));
        }
    }
    testbed.released().await.unwrap();
}
