//! Do two requests share hashes exactly when the engine's prompts share a beginning? Conversations are rendered by
//! chat templates as vLLM renders them, and what the renderings have in common bounds what the hashes say.
//!
//! | module | question |
//! | --- | --- |
//! | `requests` | which conversations are there, and how do they differ? |
//! | `engine` | what does the engine make of a body? |
//! | `common` | what can the engine reuse of one prompt for another? |

mod common;
mod engine;
mod requests;

use super::support::{common_bytes, config_with, read_with};
use common::{weights, Common};
use engine::{render, Owner, Template, CHATML, GEMMA, LLAMA3};
use kvroute::core::config;
use kvroute::core::prompt::{Api, Outline};
use proptest::prelude::*;
use requests::{changes, requests, writings, Call, Message, Piece, Request, Tool, Writing};

const TEMPLATES: [Template; 3] = [CHATML, LLAMA3, GEMMA];

fn settings(template: &Template) -> config::Prompt {
    config_with(&format!(r#""prompt":{{"tools":"{}"}}"#, template.tools)).prompt
}

/// What the engine can share of two bodies, and what kvroute says they share.
fn compare(template: &Template, a: &str, b: &str) -> (Common, u64) {
    let settings = settings(template);
    let weight = weights(a, |body| read_with(Api::Chat, &settings, body.to_string().as_bytes()).bytes());
    let common = Common::of(&render(template, a), &render(template, b), weight);
    let read = |body: &str| read_with(Api::Chat, &settings, body.as_bytes());
    (common, common_bytes(&read(a), &read(b)))
}

/// Bytes of prompt up to and with a named tool or message of the example, as a template renders them.
fn depth(template: &Template, body: &str, last: &str) -> u64 {
    let settings = settings(template);
    let weight = weights(body, |body| read_with(Api::Chat, &settings, body.to_string().as_bytes()).bytes());
    let tools = [("maps", Owner::Tool(0)), ("tides", Owner::Tool(1))];
    let system = ("system", Owner::Message(0));
    let head = match template.tools {
        "first" => [tools[0], tools[1], system],
        _ => [system, tools[0], tools[1]],
    };
    let messages = ["question", "answer", "result", "summary", "last question"];
    let messages = messages.iter().enumerate().map(|(n, name)| (*name, Owner::Message(n + 1)));
    let order: Vec<_> = head.into_iter().chain(messages).collect();
    let count = order.iter().position(|(name, _)| *name == last).map_or(0, |place| place + 1);
    order.iter().take(count).map(|(_, owner)| weight(*owner)).sum()
}

fn words(first: &str, count: usize) -> String {
    format!("{first}, {}.", vec!["by sea and by land"; count].join(", "))
}

/// A conversation with all there is in one: a question about an image, a call of a tool, its result.
fn example() -> Request {
    Request {
        model: "org/guide-7b".to_owned(),
        salt: String::new(),
        tools: vec![
            Tool::new("maps", words("Finds a map", 40)),
            Tool::new("tides", words("Tells the tides", 40)),
        ],
        messages: vec![
            Message::new("system", words("You guide travellers", 60)),
            Message {
                content: vec![
                    Piece::Image("https://a/harbour.png".to_owned()),
                    Piece::Text(words("Which harbour is this", 50)),
                ],
                ..Message::new("user", "")
            },
            Message {
                reasoning: words("A pier and a crane", 30),
                calls: vec![Call { name: "maps".to_owned(), argument: "harbours".to_owned() }],
                ..Message::new("assistant", words("Let me look", 40))
            },
            Message::new("tool", words("Three harbours", 90)),
            Message::new("assistant", words("It is the old harbour", 50)),
            Message::new("user", words("How do I get there", 30)),
        ],
    }
}

/// What is done to the example, what is then shared up to which tool or message, where tools stand behind the
/// instructions and where they stand first.
type Row = (&'static str, fn(&mut Request), &'static str, &'static str);

const ALL: &str = "last question";

static EXAMPLES: [Row; 14] = [
    ("the same once more", |_| {}, ALL, ALL),
    (
        "the next turn",
        |it| it.messages.extend([Message::new("assistant", "By boat."), Message::new("user", "Thanks.")]),
        ALL,
        ALL,
    ),
    (
        "the last question put otherwise",
        |it| it.messages[5] = Message::new("user", "And back?"),
        "summary",
        "summary",
    ),
    ("the last turn taken back", |it| it.messages.truncate(4), "result", "result"),
    (
        "another user",
        |it| it.messages.splice(1.., [Message::new("user", "Hello.")]).for_each(drop),
        "tides",
        "system",
    ),
    ("other instructions", |it| it.messages[0] = Message::new("system", "Be brief."), "", "tides"),
    ("another second tool", |it| it.tools[1] = Tool::new("trains", "Tells trains."), "maps", "maps"),
    ("the tools in another order", |it| it.tools.reverse(), "system", ""),
    (
        "another image",
        |it| it.messages[1].content[0] = Piece::Image("https://a/bridge.png".to_owned()),
        "tides",
        "system",
    ),
    ("another call", |it| it.messages[2].calls[0].argument = "bridges".to_owned(), "question", "question"),
    ("another result", |it| it.messages[3] = Message::new("tool", "None."), "answer", "answer"),
    ("the reasoning dropped", |it| it.messages[2].reasoning.clear(), "question", ALL),
    ("a salt", |it| it.salt = "tenant-2".to_owned(), "", ""),
    ("an adapter", |it| it.model = "guide-7b-sailing".to_owned(), "", ""),
];

#[test]
fn the_renderings_are_as_an_engine_makes_them() {
    let of = |template: &Template, writing| {
        let request = example().without(!template.renders_tools, !template.renders_reasoning);
        render(template, &request.written(writing)).text
    };
    let chatml = of(&CHATML, Writing::default());
    for (before, after) in [
        ("<|im_start|>system\nYou guide travellers, ", "\n\n# Functions"),
        (
            "\n{\"type\": \"function\", \"function\": {\"name\": \"maps\", \"description\": \"Finds",
            "\"maxLength\": 40",
        ),
        ("<|im_start|>user\n<image:", ">Which harbour is this, by sea"),
        ("<|im_start|>assistant\n<think>\nA pier and a crane, ", ".\n</think>\n\nLet me look, "),
        (
            "{\"name\": \"maps\", \"arguments\": {\"value\": \"harbours\"}}\n</tool_call>",
            "<tool_response>\nThree harbours",
        ),
    ] {
        let place = |text: &str| chatml.find(text).unwrap_or_else(|| panic!("{text:?} in {chatml}"));
        assert!(place(before) < place(after));
    }
    assert!(chatml.ends_with(".<|im_end|>\n<|im_start|>assistant\n"), "{chatml}");
    let gemma = of(&GEMMA, Writing::default());
    assert!(gemma.starts_with("<bos><start_of_turn>user\nYou guide travellers, "), "{gemma}");
    assert!(gemma.ends_with(".<end_of_turn>\n<start_of_turn>model\n"), "{gemma}");
    for template in &TEMPLATES {
        let other = Writing { parts: true, reversed: true, nulls: true };
        assert_eq!(of(template, other), of(template, Writing::default()));
    }
}

#[test]
fn examples_of_what_is_shared_when() {
    for (what, change, chatml, llama3) in EXAMPLES {
        for (template, last) in [(CHATML, chatml), (LLAMA3, llama3)] {
            let mut other = example();
            change(&mut other);
            let [example, other] =
                [example(), other].map(|it| it.without(false, !template.renders_reasoning));
            let body = example.written(Writing::default());
            let (common, hashed) = compare(&template, &body, &other.written(Writing::default()));
            let expected = depth(&template, &body, last);
            let name = template.name;
            // The answer's own text stands before its call, so that it is shared too.
            let begun = common.most() - expected.min(common.most());
            let text = if what == "another call" { 1_000 } else { 100 };
            assert!(common.most() >= expected && begun < text, "{what}, {name}: {common:?}, {expected}");
            let bounds = common.least()..=common.most();
            assert!(bounds.contains(&hashed), "{what}, {name}: {hashed} not in {bounds:?}");
        }
    }
}

/// Nobody but the template knows whether reasoning is rendered, so that it counts here: what is shared is then
/// understated, and never overstated.
#[test]
fn reasoning_that_a_template_leaves_out_sets_answers_apart_all_the_same() {
    let (with, mut without) = (example(), example());
    without.messages[2].reasoning.clear();
    let [with, without] = [with, without].map(|it| it.written(Writing::default()));
    let (common, hashed) = compare(&LLAMA3, &with, &without);
    assert_eq!(render(&LLAMA3, &with).text, render(&LLAMA3, &without).text);
    assert_eq!(common.most(), depth(&LLAMA3, &with, ALL));
    assert!((1..=depth(&LLAMA3, &with, "question")).contains(&hashed), "{hashed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn prompts_share_hashes_exactly_as_deep_as_their_renderings_are_alike(
        request in requests(),
        changes in proptest::collection::vec(changes(), 0..4),
        writing in [writings(), writings()],
    ) {
        let mut other = request.clone();
        changes.iter().for_each(|change| change.apply(&mut other));
        for template in &TEMPLATES {
            let body = |request: &Request, n: usize| {
                let request = request.clone().without(!template.renders_tools, !template.renders_reasoning);
                request.written(writing[n])
            };
            let (common, hashed) = compare(template, &body(&request, 0), &body(&other, 1));
            let bounds = common.least()..=common.most();
            prop_assert!(bounds.contains(&hashed), "{}: {hashed} not in {bounds:?}, {common:?}", template.name);
        }
    }
}
