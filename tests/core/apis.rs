//! What engines put into the prompt, by API, and what they do not.

use super::support::{common_bytes, config_with, keys, read, read_with};
use super::test;
use kvroute::core::prompt::{text_digest, Api, Outline, Prompt, Unread};
use serde_json::{json, Value};

const MAPS: &str = "The reading room opens at nine and lends maps, atlases and globes. ";
const BOATS: &str = "Boats leave the north pier each hour and carry grain, salt and rope. ";

fn of(api: Api, body: &Value) -> Prompt {
    read(api, body.to_string().as_bytes())
}

fn raw(api: Api, body: &str) -> Prompt {
    read(api, body.as_bytes())
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": format!("{name}: {}", MAPS.repeat(8)), "parameters": {"type": "object"}}})
}

/// All orders of a few things.
fn orders(things: &[String]) -> Vec<Vec<String>> {
    if things.len() < 2 {
        return vec![things.to_vec()];
    }
    let with_first = |n: usize| {
        let mut rest = things.to_vec();
        let first = rest.remove(n);
        orders(&rest).into_iter().map(move |order| [vec![first.clone()], order].concat())
    };
    (0..things.len()).flat_map(with_first).collect()
}

#[test]
fn the_order_of_a_messages_keys_does_not_matter() {
    let fields = [
        r#""role":"assistant""#.to_owned(),
        format!(r#""content":"{}""#, BOATS.repeat(30)),
        r#""reasoning":"By sea, then.""#.to_owned(),
        r#""tool_calls":[{"id":"1","function":{"name":"tides","arguments":"{}"}}]"#.to_owned(),
    ];
    for role in ["assistant", "user", "system", "tool"] {
        let of_order = |fields: &[String]| {
            let message = fields.join(",").replace("assistant", role);
            raw(Api::Chat, &format!(r#"{{"messages":[{{"role":"user","content":"{MAPS}"}},{{{message}}}]}}"#))
        };
        let first = of_order(&fields);
        assert!(first.bytes() > 2_000);
        for order in orders(&fields) {
            assert_eq!(keys(&of_order(&order)), keys(&first), "{role}: {order:?}");
        }
    }
}

#[test]
fn the_order_of_the_requests_keys_does_not_matter() {
    let messages = json!([{"role": "user", "content": MAPS.repeat(20)}]).to_string();
    let requests: [(Api, [String; 4]); 3] = [
        (
            Api::Chat,
            [
                r#""model":"m""#.to_owned(),
                format!(r#""messages":{messages}"#),
                format!(r#""tools":[{}]"#, tool("a")),
                r#""cache_salt":"s""#.to_owned(),
            ],
        ),
        (
            Api::Messages,
            [
                format!(r#""system":[{{"type":"text","text":"{}"}}]"#, BOATS.repeat(9)),
                format!(r#""messages":{messages}"#),
                r#""tools":[{"name":"a","input_schema":{}}]"#.to_owned(),
                r#""model":"m""#.to_owned(),
            ],
        ),
        (
            Api::Responses,
            [
                format!(r#""instructions":"{}""#, BOATS.repeat(9)),
                format!(r#""input":{messages}"#),
                r#""tools":[{"name":"a","input_schema":{}}]"#.to_owned(),
                r#""reasoning":{"effort":"high"}"#.to_owned(),
            ],
        ),
    ];
    for (api, fields) in requests {
        let of_order = |fields: &[String]| raw(api, &format!("{{{}}}", fields.join(",")));
        let first = of_order(&fields);
        for order in orders(&fields) {
            let prompt = of_order(&order);
            assert_eq!((keys(&prompt), prompt.bytes()), (keys(&first), first.bytes()), "{api:?}: {order:?}");
        }
    }
}

#[test]
fn a_key_that_stands_twice_counts_as_its_last() {
    let text = |text: &str| format!(r#""{}""#, text.repeat(30));
    let (maps, boats) = (text(MAPS), text(BOATS));
    let chat = |content: &str| format!(r#"[{{"role":"user","content":{content}}}]"#);
    for (api, twice, once) in [
        (
            Api::Chat,
            format!(r#""messages":{},"messages":{}"#, chat(&maps), chat(&boats)),
            format!(r#""messages":{}"#, chat(&boats)),
        ),
        (
            Api::Chat,
            format!(r#""messages":[{{"role":"user","content":{maps},"content":{boats}}}]"#),
            format!(r#""messages":{}"#, chat(&boats)),
        ),
        (
            Api::Chat,
            format!(r#""messages":[{{"content":{maps},"content":null,"role":"user"}}]"#),
            r#""messages":[{"role":"user"}]"#.to_owned(),
        ),
        (
            Api::Chat,
            format!(r#""model":"a","messages":{},"model":"b""#, chat(&maps)),
            format!(r#""model":"b","messages":{}"#, chat(&maps)),
        ),
        (
            Api::Chat,
            format!(r#""cache_salt":"a","messages":{},"cache_salt":"b""#, chat(&maps)),
            format!(r#""cache_salt":"b","messages":{}"#, chat(&maps)),
        ),
        (
            Api::Chat,
            format!(r#""tools":[{{"a":{maps}}}],"tools":[{{"b":1}}],"messages":{}"#, chat(&maps)),
            format!(r#""tools":[{{"b":1}}],"messages":{}"#, chat(&maps)),
        ),
        (Api::Completions, format!(r#""prompt":{maps},"prompt":{boats}"#), format!(r#""prompt":{boats}"#)),
        (
            Api::Messages,
            format!(r#""system":{maps},"messages":{},"system":{boats}"#, chat(&maps)),
            format!(r#""system":{boats},"messages":{}"#, chat(&maps)),
        ),
    ] {
        let of = |fields: &str| raw(api, &format!("{{{fields}}}"));
        assert_eq!(keys(&of(&twice)), keys(&of(&once)), "{once}");
    }
    // The last role is the message's; where text has been told under the first, its inner blocks are lost, not wrong.
    let twice = raw(
        Api::Chat,
        &format!(
            r#"{{"messages":[{{"role":"system","content":{maps},"role":"user"}},{{"role":"user","content":{boats}}}]}}"#
        ),
    );
    let system = raw(
        Api::Chat,
        &format!(
            r#"{{"messages":[{{"role":"system","content":{maps}}},{{"role":"user","content":{boats}}}]}}"#
        ),
    );
    assert_eq!(common_bytes(&twice, &system), 0);
}

#[test]
fn the_same_conversation_is_the_same_prompt_in_every_chat_api() {
    let (system, question) = (MAPS.repeat(20), BOATS.repeat(20));
    let chat = of(
        Api::Chat,
        &json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}),
    );
    let messages = |system: Value| {
        of(
            Api::Messages,
            &json!({"max_tokens": 9, "messages": [{"role": "user", "content": question}], "system": system}),
        )
    };
    let responses = |input: Value| of(Api::Responses, &json!({"input": input, "instructions": system}));
    let invocation = of(
        Api::Invocations,
        &json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}),
    );
    for same in [
        messages(json!(system)),
        messages(
            json!([{"type": "text", "text": MAPS.repeat(12), "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": MAPS.repeat(8)}]),
        ),
        responses(json!(question)),
        responses(
            json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]}]),
        ),
        invocation,
    ] {
        assert_eq!((keys(&same), same.bytes()), (keys(&chat), chat.bytes()));
    }
}

#[test]
fn tools_that_begin_alike_share_what_they_have_in_common() {
    let with = |tools: &[&str]| {
        let tools: Vec<Value> = tools.iter().map(|name| tool(name)).collect();
        of(Api::Chat, &json!({"messages": [{"role": "user", "content": MAPS.repeat(20)}], "tools": tools}))
    };
    let (both, one, other) = (with(&["a", "b"]), with(&["a"]), with(&["a", "c"]));
    let common = common_bytes(&both, &other);
    assert!((500..1_100).contains(&common), "{common}");
    assert!((500..700).contains(&common_bytes(&both, &one)));
    assert_eq!(common_bytes(&both, &with(&["b", "a"])), 0);
    let none =
        raw(Api::Chat, &json!({"messages": [{"role": "user", "content": MAPS.repeat(20)}]}).to_string());
    assert_eq!(keys(&with(&[])), keys(&none));
}

#[test]
fn null_is_absent_where_a_tool_declares_its_keys_and_a_value_in_its_schema() {
    let with = |function: Value| {
        let tools = json!([{"type": "function", "function": function}]);
        of(Api::Chat, &json!({"messages": [{"role": "user", "content": MAPS.repeat(20)}], "tools": tools}))
    };
    let schema = |schema: Value| with(json!({"name": "a", "parameters": {"properties": {"x": schema}}}));
    let absent = with(json!({"name": "a"}));
    assert_eq!(keys(&with(json!({"name": "a", "parameters": null, "strict": null}))), keys(&absent));
    assert_eq!(common_bytes(&schema(json!({"default": null})), &schema(json!({}))), 0);
    assert_eq!(common_bytes(&schema(json!({"enum": ["b", null]})), &schema(json!({"enum": ["b"]}))), 0);
}

#[test]
fn a_part_without_text_is_as_good_as_absent() {
    let of_content =
        |content: Value| of(Api::Chat, &json!({"messages": [{"role": "user", "content": content}]}));
    let part = |text: &str| json!({"type": "text", "text": text});
    let (maps, boats) = (MAPS.repeat(9), BOATS.repeat(9));
    let plain = of_content(json!([part(&maps), part(&boats)]));
    for more in [
        json!([part(""), part(&maps), part(&boats)]),
        json!([part(&maps), part(""), part(&boats)]),
        json!([part(&maps), part(&boats), part("")]),
        json!(format!("{maps}\n{boats}")),
    ] {
        assert_eq!(keys(&of_content(more.clone())), keys(&plain), "{more}");
    }
}

#[test]
fn where_the_template_renders_tools_behind_the_instructions_these_are_shared() {
    let settings = config_with(r#""prompt":{"tools":"after_system"}"#).prompt;
    let with = |name: &str, system: &str| {
        let body = json!({
            "messages": [{"role": "system", "content": system.repeat(20)}, {"role": "user", "content": MAPS.repeat(9)}],
            "tools": [tool(name)],
        });
        read_with(Api::Chat, &settings, body.to_string().as_bytes())
    };
    let common = common_bytes(&with("a", MAPS), &with("b", MAPS));
    assert!((1_024..=1_400).contains(&common), "{common}");
    assert_eq!(common_bytes(&with("a", MAPS), &with("a", BOATS)), 0);
    let same = with("a", MAPS);
    assert_eq!(keys(&same), keys(&with("a", MAPS)));
}

#[test]
fn tools_that_are_rendered_behind_the_instructions_stand_before_a_second_such_message() {
    let settings = config_with(r#""prompt":{"tools":"after_system"}"#).prompt;
    let with = |name: &str| {
        let message = |role: &str, text: &str| json!({"role": role, "content": text.repeat(20)});
        let messages = [message("system", MAPS), message("system", BOATS), message("user", MAPS)];
        let body = json!({"messages": messages, "tools": [tool(name)]});
        read_with(Api::Chat, &settings, body.to_string().as_bytes())
    };
    let common = common_bytes(&with("a"), &with("b"));
    assert!((1_024..=1_400).contains(&common), "{common}");
}

#[test]
fn an_image_counts_with_all_its_bytes_and_weighs_what_an_image_weighs() {
    let with = |end: &str, detail: Value| {
        let url = format!("data:image/png;base64,{}{end}", "iVBORw0KGgo".repeat(200_000));
        let image = json!({"type": "image_url", "image_url": {"url": url, "detail": detail}});
        let text = |text: &str| json!({"type": "text", "text": text});
        of(
            Api::Chat,
            &json!({"messages": [{"role": "user", "content": [text(&MAPS.repeat(9)), image, text(&BOATS.repeat(9))]}]}),
        )
    };
    let (one, two) = (with("AA==", Value::Null), with("AB==", Value::Null));
    assert!((5_000..6_500).contains(&one.bytes()), "{}", one.bytes());
    let common = common_bytes(&one, &two);
    assert!((512..=610).contains(&common), "{common}");
    assert_eq!(keys(&one), keys(&with("AA==", Value::Null)));
    assert_ne!(keys(&one), keys(&with("AA==", json!("high"))));
    // A client may name what it sends; then the name stands for it, with the bytes or without.
    let named = |url: Value| {
        let image = json!({"type": "image_url", "image_url": url, "uuid": "plate-1"});
        of(
            Api::Chat,
            &json!({"messages": [{"role": "user", "content": [image]}, {"role": "user", "content": MAPS.repeat(9)}]}),
        )
    };
    assert_eq!(
        keys(&named(json!({"url": "http://a/1.png"}))),
        keys(&named(json!({"url": "http://b/2.png"})))
    );
}

#[test]
fn results_of_tools_are_text_in_every_api() {
    let anthropic = |result: Value| {
        of(
            Api::Messages,
            &json!({"messages": [
                {"role": "user", "content": MAPS},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "x"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": result}]},
            ]}),
        )
    };
    let long = BOATS.repeat(40);
    let (one, two) = (anthropic(json!(long)), anthropic(json!(format!("{long}and more"))));
    assert!(common_bytes(&one, &two) > 2_000, "{}", common_bytes(&one, &two));
    assert_eq!(keys(&one), keys(&anthropic(json!([{"type": "text", "text": long}]))));
    let responses = |output: &str| {
        of(
            Api::Responses,
            &json!({"input": [
                {"role": "user", "content": MAPS},
                {"type": "function_call", "call_id": "t1", "name": "read", "arguments": "{}", "id": "fc_1", "status": "completed"},
                {"type": "function_call_output", "call_id": "t1", "output": output},
            ]}),
        )
    };
    assert!(common_bytes(&responses(&long), &responses(&format!("{long}and more"))) > 2_000);
}

#[test]
fn what_changes_the_prompts_beginning_sets_prompts_apart_and_what_changes_its_end_does_not() {
    let with = |more: &str| {
        let messages = json!([{"role": "user", "content": MAPS.repeat(20)}]);
        raw(Api::Chat, &format!(r#"{{"messages":{messages}{more}}}"#))
    };
    let plain = with("");
    for apart in [
        r#","chat_template":"{{ x }}""#,
        r#","chat_template_kwargs":{"date":"2026"}"#,
        r#","documents":[{"title":"a"}]"#,
        r#","reasoning_effort":"high""#,
        r#","mm_processor_kwargs":{"fps":2}"#,
    ] {
        assert_eq!(common_bytes(&plain, &with(apart)), 0, "{apart}");
    }
    for end in [
        r#","continue_final_message":true,"add_generation_prompt":false"#,
        r#","chat_template_kwargs":{"enable_thinking":false}"#,
    ] {
        assert!(common_bytes(&plain, &with(end)) >= 1_024, "{end}");
        assert_ne!(keys(&plain), keys(&with(end)), "{end}");
    }
    for nothing in [
        r#","temperature":0.2,"max_tokens":9,"user":"u","metadata":{"a":[1]},"stop":["x"],"logit_bias":{"1":2}"#,
        r#","chat_template_kwargs":{},"documents":[],"tools":[],"reasoning_effort":null"#,
        r#","prompt_cache_key":"k","session_id":"s""#,
    ] {
        assert_eq!(keys(&plain), keys(&with(nothing)), "{nothing}");
    }
    let completion =
        |more: &str| raw(Api::Completions, &format!(r#"{{"prompt":"{}"{more}}}"#, MAPS.repeat(20)));
    let (plain, suffix) = (completion(""), completion(r#","suffix":"return x""#));
    assert!(common_bytes(&plain, &suffix) >= 1_024 && keys(&plain) != keys(&suffix));
}

#[test]
fn token_ids_win_over_text_wherever_they_stand() {
    let ids = (0..400).map(|n| (n * 7).to_string()).collect::<Vec<_>>().join(",");
    let text = MAPS.repeat(20);
    let generate = |body: &str| raw(Api::Generate, body);
    let alone = generate(&format!(r#"{{"input_ids":[{ids}]}}"#));
    for both in [
        format!(r#"{{"text":"{text}","input_ids":[{ids}]}}"#),
        format!(r#"{{"input_ids":[{ids}],"text":"{text}"}}"#),
    ] {
        assert_eq!((keys(&generate(&both)), generate(&both).is_token_ids()), (keys(&alone), true));
    }
    assert_eq!(
        keys(&generate(&format!(r#"{{"token_ids":[{ids}],"sampling_params":{{"seed":1}}}}"#))),
        keys(&alone)
    );
    // The first of several is what the batch is known by.
    assert!(common_bytes(&alone, &generate(&format!(r#"{{"input_ids":[[{ids}],[1,2,3]]}}"#))) >= 1_280);
    assert!(
        common_bytes(
            &generate(&format!(r#"{{"inputs":"{text}","parameters":{{"seed":1}}}}"#)),
            &generate(&format!(r#"{{"text":["{text}","{BOATS}"]}}"#))
        ) >= 1_024
    );
    // Ids are framed: no other list reads the same.
    let lists = [
        "[1,23]",
        "[12,3]",
        "[123]",
        "[[1],[23]]",
        "[[1,23]]",
        "[1,-23]",
        "[1,23.0]",
        "[1,4294967295]",
        "[1,99999999999]",
    ];
    let known: Vec<_> =
        lists.iter().map(|list| (list, keys(&generate(&format!(r#"{{"input_ids":{list}}}"#))))).collect();
    for (n, (list, keys)) in known.iter().enumerate() {
        let same = known.iter().skip(n + 1).filter(|(_, other)| other == keys).count();
        assert_eq!(same, usize::from(**list == "[1,23]"), "{list} is as good as [[1,23]] only");
    }
}

#[test]
fn adapters_are_models_whatever_the_key_is_called() {
    let text = MAPS.repeat(20);
    let of = |more: &str| raw(Api::Generate, &format!(r#"{{"text":"{text}"{more}}}"#));
    let sglang = of(r#","lora_path":"museum""#);
    assert_eq!(common_bytes(&of(""), &sglang), 0);
    assert_eq!(sglang.model(), text_digest(b"museum"));
    assert_eq!(of(r#","parameters":{"adapter_id":"museum","seed":4}"#).model(), sglang.model());
}

#[test]
fn a_nonce_at_the_head_is_left_out_where_the_operator_says_so() {
    let settings = |patterns: &str| config_with(&format!(r#""prompt":{{"leave_out":{patterns}}}"#)).prompt;
    let (none, some) = (settings("[]"), settings(r#"["x-billing:*", "Now: *.\n", "SECRET"]"#));
    let system = |settings, text: &str| {
        let body = json!({"messages": [{"role": "user", "content": "Go on."}], "system": [{"type": "text", "text": text}, {"type": "text", "text": MAPS.repeat(40)}]});
        read_with(Api::Messages, settings, body.to_string().as_bytes())
    };
    let (a, b) = ("x-billing: v=1; code=0a1b2;", "x-billing: v=1; code=7f3d9;");
    assert_eq!(common_bytes(&system(&none, a), &system(&none, b)), 0);
    assert_eq!(keys(&system(&some, a)), keys(&system(&some, b)));
    assert_eq!(
        keys(&system(&some, "Today. Now: 12.30, cold.\n")),
        keys(&system(&some, "Today. Now: 3, warm.\n"))
    );
    assert_eq!(keys(&system(&some, "SECRETly")), keys(&system(&some, "ly")));
    assert_ne!(keys(&system(&some, "Now: 12.30")), keys(&system(&some, "Now: 12.31")), "without its end");
    // Cut anywhere, in a text that is longer than what is searched.
    let body = json!({"prompt": format!("{}Now: 7.\n{}", MAPS.repeat(50), BOATS.repeat(90))}).to_string();
    let whole = read_with(Api::Completions, &some, body.as_bytes());
    for piece in [1, 7, 1_000, 4_096] {
        let mut cut = Prompt::new(Api::Completions, &some);
        body.as_bytes().chunks(piece).for_each(|piece| cut.feed(piece));
        cut.finish();
        assert_eq!((keys(&cut), cut.bytes()), (keys(&whole), whole.bytes()));
    }
    let long = json!({"prompt": format!("x-billing:{}", MAPS.repeat(100))}).to_string();
    assert_eq!(read_with(Api::Completions, &some, long.as_bytes()).bytes(), 0, "to the end of the text");
}

#[test]
fn what_names_a_conversation_is_known_beside_its_prompt() {
    let body = |more: &str| raw(Api::Responses, &format!(r#"{{"input":"Go on."{more}}}"#));
    assert_eq!((body("").session(), body("").previous_response()), (None, None));
    assert_eq!(body(r#","prompt_cache_key":"k1""#).session(), Some(text_digest(b"k1")));
    assert_eq!(body(r#","previous_response_id":"resp_1""#).previous_response(), Some(text_digest(b"resp_1")));
    assert_eq!(body(r#","previous_response_id":null"#).previous_response(), None);
}

#[test]
fn a_body_of_the_wrong_shape_is_no_prompt_and_nothing_worse() {
    for (api, body) in [
        (Api::Chat, r#"{"prompt":"x"}"#),
        (Api::Chat, r#"{"messages":{"role":"user"},"tools":{"a":1},"chat_template_kwargs":"x"}"#),
        (Api::Completions, r#"{"messages":[{"role":"user","content":"x"}],"suffix":"x"}"#),
        (Api::Responses, r#"{"input":7,"instructions":{"a":1}}"#),
        (Api::Messages, r#"{"system":{"type":"text"},"messages":"x"}"#),
        (Api::Generate, r#"{"text":null,"input_ids":{},"parameters":[1]}"#),
    ] {
        assert_eq!(raw(api, body).unread(), Some(Unread::NoPrompt), "{body}");
    }
}
