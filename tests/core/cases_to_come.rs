//! Cases of bodies that are about to be read: `/generate`, `/v1/messages`, and patterns of what a prompt leaves out.

use super::cases::{counts, homes};
use super::support::{addresses, common_bytes, keys, read};
use super::test;
use kvroute::core::config::Config;
use kvroute::core::prompt::{classify, Api, Method, Outline, Prompt};

/// Bytes of the text that the cases begin with, sixty times.
const MAPS: u64 = 60 * 67;

/// The `/generate` body in a case file.
fn generate_case(name: &str) -> Prompt {
    read(Api::Generate, &cases::body(name))
}

/// The same with `from`, which is there, replaced by `to`.
fn generate_case_but(name: &str, from: &str, to: &str) -> Prompt {
    let body = cases::expand(&cases::text(name).replace(from, to));
    assert_ne!(body, cases::expand(cases::text(name)), "{name} has no {from}");
    read(Api::Generate, body.as_bytes())
}

/// C08
#[test]
fn a_batch_of_token_ids_is_known_by_its_first_list() {
    let batch = generate_case("C08-a.json.tmpl");
    assert_eq!(batch.unread(), None);
    assert!(batch.is_token_ids() && batch.bytes() >= 4 * 256);
    let other = generate_case_but("C08-a.json.tmpl", "(40,22)", "(40,23)");
    assert!(common_bytes(&batch, &other) * 5 >= 4 * 256 * 4);
    assert_eq!(common_bytes(&batch, &generate_case_but("C08-a.json.tmpl", "(256,21)", "(256,24)")), 0);
}

/// C08
#[test]
fn token_ids_beside_a_text_are_the_prompt() {
    let both = generate_case("C08-b.json.tmpl");
    let text =
        "\"text\":\"@@REP(20,The reading room opens at nine and lends maps, atlases and globes. )@@\",";
    let ids = generate_case_but("C08-b.json.tmpl", text, "");
    assert_eq!(both.unread(), None);
    assert_eq!(keys(&both), keys(&ids));
    assert!(ids.is_token_ids());
}

/// C08
#[test]
fn inputs_are_a_text_and_a_list_of_texts_is_known_by_its_first() {
    let inputs = generate_case("C08-c.json.tmpl");
    let texts = generate_case("C08-d.json.tmpl");
    assert!([&inputs, &texts].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() >= 20 * 67));
    assert_eq!(common_bytes(&inputs, &generate_case_but("C08-c.json.tmpl", "The reading", "Our reading")), 0);
    assert!(
        common_bytes(&texts, &generate_case_but("C08-d.json.tmpl", "Boats leave", "Ships leave")) >= 1_000
    );
    assert_eq!(common_bytes(&texts, &generate_case_but("C08-d.json.tmpl", "The reading", "Our reading")), 0);
}

fn messages_case(name: &str, leave_out: &str) -> Prompt {
    let text = serde_json::json!({
        "cluster": "vllm", "hosts": ["10.0.0.1:8000"], "prompt": { "leave_out": [leave_out] },
    });
    let config = Config::parse(text.to_string().as_bytes()).expect("valid");
    let mut prompt = Prompt::new(Api::Messages, &config.prompt);
    prompt.feed(&cases::body(name));
    prompt.finish();
    prompt
}

/// C13
#[test]
fn a_code_of_each_request_in_the_system_prompt_hides_its_prefix_unless_it_is_left_out() {
    let [a, b] = ["C13-a.json.tmpl", "C13-b.json.tmpl"].map(|name| read(Api::Messages, &cases::body(name)));
    assert!([&a, &b].iter().all(|prompt| prompt.unread().is_none() && prompt.bytes() > MAPS));
    // The code stands in the first block.
    assert_eq!(common_bytes(&a, &b), 0);
    let [a, b] = ["C13-a.json.tmpl", "C13-b.json.tmpl"]
        .map(|name| messages_case(name, "x-anthropic-billing-header:*"));
    assert_eq!(keys(&a), keys(&b));
    assert!(common_bytes(&a, &b) >= MAPS * 4 / 5 && a.bytes() >= MAPS);
    // A pattern that fits nothing leaves out nothing.
    let [a, b] = ["C13-a.json.tmpl", "C13-b.json.tmpl"].map(|name| messages_case(name, "x-other:*"));
    assert_eq!(common_bytes(&a, &b), 0);
}

/// C13
#[test]
fn prompts_that_a_code_keeps_apart_are_spread() {
    let template = cases::text("C13-a.json.tmpl");
    assert!(template.contains("cch=0a1b2;"));
    let prompts = (0..200).map(|n| {
        let body = cases::expand(&template.replace("cch=0a1b2;", &format!("cch={:05x};", n * 7_919)));
        read(Api::Messages, body.as_bytes())
    });
    let homes = homes(&addresses(4), prompts);
    assert!(counts(&homes).values().all(|&count| (30..=70).contains(&count)), "{:?}", counts(&homes));
}

/// C08, C13, C30
#[test]
fn the_paths_of_other_apis_are_known() {
    let post = |path: &'static str| Method {
        method: b"POST",
        path: path.as_bytes(),
        content_type: Some(b"application/json"),
        content_encoding: None,
        upgrade: false,
        end_of_stream: false,
    };
    assert_eq!(classify(&post("/generate")), Ok(Api::Generate));
    assert_eq!(classify(&post("/v1/messages")), Ok(Api::Messages));
    assert_eq!(classify(&post("/v1/responses")), Ok(Api::Responses));
    // A batch of embeddings has no prefix worth a host: it goes by load.
    assert!(classify(&post("/v1/embeddings")).is_err());
}
