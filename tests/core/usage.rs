//! Usage in answers as engines write them. Those in `testdata` were captured from vLLM 0.32.

use super::test;
use kvroute::core::answer::Head;
use kvroute::core::usage::{Tail, Usage};

const RESPONSES: &str = include_str!("testdata/vllm_0_32_responses.json");
const RESPONSES_STREAM: &str = include_str!("testdata/vllm_0_32_responses_stream.sse");
const MESSAGES: &str = include_str!("testdata/vllm_0_32_messages.json");
const MESSAGES_STREAM: &str = include_str!("testdata/vllm_0_32_messages_stream.sse");
const GENERATE: &str = include_str!("testdata/vllm_0_32_inference_generate.json");

const SGLANG_GENERATE: &str = r#"{"text":" {}","output_ids":[4792],"meta_info":{"id":"5a34","finish_reason":
    {"type":"stop","matched":"\"}"},"prompt_tokens":412,"weight_version":"default","total_retractions":0,
    "completion_tokens":1,"cached_tokens":384,"e2e_latency":0.04}}"#;

fn is_aborted(pieces: &[&str]) -> bool {
    let mut tail = Tail::default();
    pieces.iter().for_each(|piece| {
        let from = piece.len().saturating_sub(Tail::WANTED);
        tail.push(&piece.as_bytes()[from..]);
    });
    tail.is_aborted()
}

#[test]
fn an_engine_that_shuts_down_is_seen_by_answers_that_it_gives_up_at_once() {
    let stream = |text: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
        )
    };
    let end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n";
    assert!(is_aborted(&[&stream(""), end, "data: [DONE]\n\n"]));
    assert!(is_aborted(&[
        r#"{"choices":[{"text":"","finish_reason": "abort"}],"usage":{"completion_tokens":0}}"#
    ]));
    // Something was generated: it was given up later.
    assert!(!is_aborted(&[
        r#"{"choices":[{"text":"a","finish_reason":"abort"}],"usage":{"completion_tokens":1}}"#
    ]));
    assert!(!is_aborted(&[&stream(&"long ".repeat(500)), end]));
    let short: Vec<String> = (0..40).map(|_| stream("many pieces")).collect();
    let mut pieces: Vec<&str> = short.iter().map(String::as_str).collect();
    pieces.push(end);
    assert!(!is_aborted(&pieces));
    // It is said, not done.
    assert!(!is_aborted(&[r#"{"choices":[{"text":"\"finish_reason\":\"abort\"","finish_reason":"stop"}]}"#]));
    assert!(
        !is_aborted(&[r#"{"text":"","meta_info":{"finish_reason":{"type":"abort"}}}"#]),
        "SGLang: a bad request"
    );
}

fn told(prompt_tokens: u64, cached_tokens: u64) -> Option<Usage> {
    Some(Usage { prompt_tokens, cached_tokens: Some(cached_tokens) })
}

/// What is told by an answer that comes in pieces of any size.
fn usage_in_any_pieces(answer: &str) -> Option<Usage> {
    let answer = answer.as_bytes();
    let whole = usage_of([answer]);
    for size in [1, 7, 100, 1_000, 1_500] {
        assert_eq!(usage_of(answer.chunks(size)), whole, "in pieces of {size}");
    }
    for cut in 0..answer.len() {
        let (head, end) = answer.split_at(cut);
        assert_eq!(usage_of([head, end]), whole, "cut at {cut}");
    }
    whole
}

fn usage_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Usage> {
    let mut tail = Tail::default();
    pieces.into_iter().for_each(|piece| tail.push(piece));
    tail.usage()
}

#[test]
fn a_json_answer_tells_prompt_and_cached_tokens() {
    let answer = format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","choices":[{{"message":{{"content":"{}"}}}}],
        "usage":{{"prompt_tokens":1203,"total_tokens":1211,"completion_tokens":8,
        "prompt_tokens_details":{{"cached_tokens":1184,"created_cache_tokens":0}}}},"kv_transfer_params":null}}"#,
        "usage ".repeat(900)
    );
    let told = Some(Usage { prompt_tokens: 1203, cached_tokens: Some(1184) });
    assert_eq!(usage_of([answer.as_bytes()]), told);
    assert_eq!(usage_of(answer.as_bytes().chunks(7)), told);
}

#[test]
fn the_last_chunk_of_a_stream_tells_it() {
    let first = br#"data: {"choices":[{"delta":{"content":"Hi"}}],"usage":null}"#.as_slice();
    let last =
        br#"data: {"choices":[],"usage":{"prompt_tokens":40,"total_tokens":45,"completion_tokens":5}}"#;
    let pieces = [first, b"\n\n", first, b"\n\n", last, b"\n\ndata: [DONE]\n\n"];
    // Absent is not zero.
    assert_eq!(usage_of(pieces), Some(Usage { prompt_tokens: 40, cached_tokens: None }));
}

#[test]
fn what_is_not_told_is_not_made_up() {
    for answer in [
        "",
        "data: [DONE]",
        r#"{"usage":null}"#,
        r#"{"usage":{}}"#,
        r#"{"usage":{"prompt_tokens":-1}}"#,
        r#""usage""#,
    ] {
        assert_eq!(usage_of([answer.as_bytes()]), None, "{answer}");
    }
}

#[test]
fn responses_tell_it_though_more_stands_behind() {
    assert_eq!(usage_in_any_pieces(RESPONSES), told(18, 0));
    assert_eq!(usage_in_any_pieces(RESPONSES_STREAM), told(18, 0));
    let cached = RESPONSES.replace(r#""cached_tokens":0"#, r#""cached_tokens":16"#);
    assert_eq!(usage_in_any_pieces(&cached), told(18, 16));
    // Without --enable-prompt-tokens-details.
    let untold =
        r#"{"id":"resp_1","usage":{"input_tokens":18,"input_tokens_details":null,"output_tokens":5}}"#;
    assert_eq!(usage_in_any_pieces(untold), Some(Usage { prompt_tokens: 18, cached_tokens: None }));
}

#[test]
fn messages_tell_what_was_cached_beside_the_rest() {
    assert_eq!(usage_in_any_pieces(MESSAGES), told(26, 0));
    assert_eq!(usage_in_any_pieces(MESSAGES_STREAM), told(26, 0));
    let cached = |answer: &str| {
        let read = answer.replace(r#""cache_read_input_tokens":0"#, r#""cache_read_input_tokens":1184"#);
        read.replace(r#""cache_creation_input_tokens":0"#, r#""cache_creation_input_tokens":10"#)
    };
    assert_eq!(usage_in_any_pieces(&cached(MESSAGES)), told(26 + 1184 + 10, 1184));
    assert_eq!(usage_in_any_pieces(&cached(MESSAGES_STREAM)), told(26 + 1184 + 10, 1184));
}

#[test]
fn messages_that_do_not_tell_what_was_cached_tell_the_whole_prompt() {
    let old = r#"{"id":"chatcmpl-1","usage":{"input_tokens":1210,"output_tokens":5}}"#;
    assert_eq!(usage_in_any_pieces(old), Some(Usage { prompt_tokens: 1210, cached_tokens: None }));
    let unknown = r#"{"usage":{"input_tokens":1210,"output_tokens":5,"cache_creation_input_tokens":null,
        "cache_read_input_tokens":null}}"#;
    assert_eq!(usage_in_any_pieces(unknown), Some(Usage { prompt_tokens: 1210, cached_tokens: None }));
    // A short stream whose last event tells the output alone.
    let begun = r#"data: {"type":"message_start","message":{"usage":{"input_tokens":26,"output_tokens":0}}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}

"#;
    assert_eq!(usage_in_any_pieces(begun), Some(Usage { prompt_tokens: 26, cached_tokens: None }));
}

#[test]
fn sglang_tells_it_in_meta_info() {
    assert_eq!(usage_in_any_pieces(SGLANG_GENERATE), told(412, 384));
    let stream = format!("data: {}\n\ndata: [DONE]\n\n", SGLANG_GENERATE.replace('\n', ""));
    assert_eq!(usage_in_any_pieces(&stream), told(412, 384));
}

#[test]
fn an_answer_that_tells_it_in_front_is_read_at_its_head() {
    assert_eq!(usage_in_any_pieces(GENERATE), told(3, 0));
    let ids = vec!["151643"; 2_000].join(",");
    let long = GENERATE.replace("508,125,612", &ids);
    assert_eq!(usage_of([long.as_bytes()]), None, "not in the tail");
    for size in [1, 100, long.len()] {
        let mut head = Head::default();
        long.as_bytes().chunks(size).for_each(|piece| head.push(piece));
        assert_eq!(head.usage(), told(3, 0));
    }
}

#[test]
fn what_a_prompt_or_an_answer_says_is_not_taken_for_usage() {
    let quoted = r#"{"id":"resp_1","output":[{"text":"\"usage\":{\"prompt_tokens\":9}"}],
        "metadata":{"usage":"{\"input_tokens\":7}"}}"#;
    assert_eq!(usage_in_any_pieces(quoted), None);
    let behind = RESPONSES.replace(r#""user":null"#, r#""user":"\"usage\":{\"input_tokens\":9}""#);
    assert_eq!(usage_in_any_pieces(&behind), told(18, 0));
}

#[test]
fn a_number_that_is_cut_off_is_no_number() {
    let cut = GENERATE.find(r#":3,"total"#).expect("there") + 2;
    assert_eq!(usage_of([&GENERATE.as_bytes()[..cut]]), None);
}
