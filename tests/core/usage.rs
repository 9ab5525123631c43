//! Usage in answers as vLLM writes them.

use super::test;
use kvroute::core::usage::{Tail, Usage};

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
