//! Which requests are read, and what seeds a prompt.

use super::support::{common_bytes, keys, post, read, settings};
use super::test;
use kvroute::core::prompt::{classify, Api, Method, Outline, Prompt, Unread};

fn known(request: &Method) -> Result<Api, Unread> {
    classify(request, &[])
}

#[test]
fn the_request_line_and_headers_tell_whether_there_is_a_prompt() {
    for path in
        ["/v1/chat/completions", "/tenant/v1/chat/completions?x=/v1/completions", "/v1/chat/completions/"]
    {
        assert_eq!(known(&post(path)), Ok(Api::Chat), "{path}");
    }
    assert_eq!(known(&post("/v1/completions")), Ok(Api::Completions));
    for (path, api) in [
        ("/v1/chat/completions/batch", Api::Chat),
        ("/v1/responses", Api::Responses),
        ("/gateway/v1/messages?beta=true", Api::Messages),
        ("/generate", Api::Generate),
        ("/inference/v1/generate", Api::Generate),
        ("/generate_stream", Api::Generate),
        ("/invocations", Api::Invocations),
    ] {
        assert_eq!(known(&post(path)), Ok(api), "{path}");
    }
    for path in ["/v1/models", "/", "", "/v1/responses/resp_1/cancel", "?/v1/completions"] {
        assert_eq!(known(&post(path)), Err(Unread::Path), "{path}");
    }
    for path in
        ["/v1/embeddings", "/pooling", "/v2/rerank", "/v1/score", "/tokenize", "/v1/completions/render"]
    {
        assert_eq!(known(&post(path)), Err(Unread::NoReuse), "{path}");
    }
    let more = [("/ask".to_owned(), Api::Messages), ("/v1/embeddings".to_owned(), Api::Completions)];
    assert_eq!(classify(&post("/tenant/ask?x"), &more), Ok(Api::Messages));
    assert_eq!(
        classify(&post("/v1/embeddings"), &more),
        Ok(Api::Completions),
        "the operator's word goes first"
    );
    let chat = post("/v1/chat/completions");
    assert_eq!(known(&Method { method: b"GET", ..chat }), Err(Unread::Path));
    assert_eq!(known(&Method { method: b"CONNECT", ..chat }), Err(Unread::Upgrade));
    assert_eq!(known(&Method { upgrade: true, ..chat }), Err(Unread::Upgrade));
    assert_eq!(known(&Method { end_of_stream: true, ..chat }), Err(Unread::NoBody));
    let typed = |content_type| Method { content_type: Some(content_type), ..chat };
    for json in [b"Application/JSON; charset=utf-8".as_slice(), b"text/plain", b"application/ld+json", b""] {
        assert_eq!(known(&typed(json)), Ok(Api::Chat));
    }
    for other in [b"multipart/form-data; boundary=x".as_slice(), b"application/grpc", b"\xFF\xFE"] {
        assert_eq!(known(&typed(other)), Err(Unread::Encoding));
    }
    let encoded = |encoding| Method { content_encoding: Some(encoding), ..chat };
    assert_eq!(known(&encoded(b"identity".as_slice())), Ok(Api::Chat));
    for encoding in [b"gzip".as_slice(), b"GZIP", b"zstd", b"br"] {
        assert_eq!(known(&encoded(encoding)), Err(Unread::Encoding));
    }
}

#[test]
fn the_order_of_keys_does_not_matter_at_the_end() {
    let messages = format!(r#""messages":[{{"role":"user","content":"{}"}}]"#, "long text ".repeat(100));
    let tools = r#""tools":[{"type":"function","function":{"name":"f","parameters":{}}}]"#;
    let read = |keys: [&str; 3]| read(Api::Chat, format!("{{{}}}", keys.join(",")).as_bytes());
    let first = read([r#""model":"m""#, tools, &messages]);
    for order in [[messages.as_str(), r#""model":"m""#, tools], [tools, &messages, r#""model" : "m""#]] {
        assert_eq!(keys(&first), keys(&read(order)));
        assert_eq!(first.bytes(), read(order).bytes());
    }
    assert_eq!(first.view(false).id, first.view(true).id);
    assert_ne!(read([&messages, r#""model":"m""#, tools]).view(false).id, first.view(true).id);
}

#[test]
fn tools_and_fields_are_told_apart_by_what_they_say_not_by_how_they_are_spaced() {
    let chat = |tools: &str| {
        read(
            Api::Chat,
            format!(r#"{{"tools":{tools},"messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(999))
                .as_bytes(),
        )
    };
    let tight = chat(r#"[{"name":"a","n":[1,2],"o":{"k":true}}]"#);
    assert_eq!(
        keys(&tight),
        keys(&chat("[ {\"name\" : \"a\",\n\"n\":[ 1 , 2 ], \"o\": {\"\\u006b\": true} } ]"))
    );
    for other in
        [r#"[{"name":"b","n":[1,2],"o":{"k":true}}]"#, r#"[{"name":"a","n":[12],"o":{"k":true}}]"#, "null"]
    {
        assert_eq!(common_bytes(&tight, &chat(other)), 0, "{other}");
    }
}

#[test]
fn a_list_of_prompts_begins_like_its_first() {
    let completion = |prompt: &str| read(Api::Completions, format!(r#"{{"prompt":{prompt}}}"#).as_bytes());
    let text = format!("\"{}\"", "words and more ".repeat(60));
    let (one, list) = (completion(&text), completion(&format!("[{text},\"another\"]")));
    assert_eq!(keys(&one), keys(&completion(&format!("[{text}]"))));
    assert!(common_bytes(&one, &list) >= 768);
    assert!(list.bytes() > one.bytes());
    let ids = (0..300).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let (flat, nested) = (completion(&format!("[{ids}]")), completion(&format!("[[{ids}],[7]]")));
    assert_eq!(common_bytes(&flat, &nested), 1024);
    assert!(flat.is_token_ids() && nested.is_token_ids() && !one.is_token_ids());
    // The same numbers as text are another prompt.
    assert_eq!(common_bytes(&flat, &completion(&format!("\"{ids}\""))), 0);
}

#[test]
fn a_role_is_part_of_the_prompt() {
    let of = |role: &str| {
        read(
            Api::Chat,
            format!(r#"{{"messages":[{{"role":"{role}","content":"{}"}}]}}"#, "x".repeat(999)).as_bytes(),
        )
    };
    assert_eq!(common_bytes(&of("user"), &of("system")), 0);
}

#[test]
fn text_cannot_look_like_the_end_of_a_message() {
    let two = r#"{"role":"user","content":"a"},{"role":"user","content":"b"}"#;
    let one = "{\"role\":\"user\",\"content\":\"a\u{FFFF}user\u{FFFE}b\"}";
    let of = |list: &str| read(Api::Chat, format!(r#"{{"messages":[{list}]}}"#).as_bytes());
    assert_ne!(keys(&of(two)), keys(&of(one)));
}

#[test]
fn hashing_stops_at_the_bound_and_counting_does_not() {
    let body = format!(r#"{{"prompt":"{}"}}"#, "0123456789abcdef".repeat(1 << 17));
    let prompt = read(Api::Completions, body.as_bytes());
    assert_eq!(prompt.bytes(), 2 << 20);
    let settings = settings();
    assert!(prompt.view(true).keys().all(|(_, bytes)| bytes <= settings.max_bytes as u64));
    assert!(prompt.view(true).depth() < 50);
    let fixed = std::mem::size_of::<Prompt>();
    assert!(fixed < 1_408, "a stream's fixed memory: {fixed} bytes");
}

#[test]
fn the_stream_flag_is_read_wherever_it_stands() {
    let of = |body: &str| read(Api::Chat, body.as_bytes()).wants_stream();
    assert!(
        of(r#"{"stream":true,"messages":[]}"#) && of(r#"{"messages":[{"stream":false}],"stream": true}"#)
    );
    assert!(!of(r#"{"stream":false}"#) && !of("{}") && !of(r#"{"messages":[{"stream":true}]}"#));
}
