//! Ids of answers, in the heads that vLLM 0.32 sends and others may.

use super::test;
use kvroute::core::answer::Head;
use kvroute::core::prompt::text_digest;

const RESPONSES: &str = include_str!("testdata/vllm_0_32_responses.json");
const RESPONSES_STREAM: &str = include_str!("testdata/vllm_0_32_responses_stream.sse");

/// The id of an answer that comes in pieces of any size.
fn id_in_any_pieces(answer: &str) -> Option<u64> {
    let id_of = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut head = Head::default();
        pieces.for_each(|piece| head.push(piece));
        head.response_id()
    };
    let answer = answer.as_bytes();
    let whole = id_of(&mut [answer].into_iter());
    for size in [1, 7, 100, 5_000] {
        assert_eq!(id_of(&mut answer.chunks(size)), whole, "in pieces of {size}");
    }
    for cut in 0..answer.len().min(Head::WANTED) {
        let (head, rest) = answer.split_at(cut);
        assert_eq!(id_of(&mut [head, rest].into_iter()), whole, "cut at {cut}");
    }
    whole
}

#[test]
fn the_id_of_an_answer_is_the_one_that_the_next_turn_names() {
    assert_eq!(id_in_any_pieces(RESPONSES), Some(text_digest(b"resp_be29d0453cc04d77")));
    assert_eq!(id_in_any_pieces(RESPONSES_STREAM), Some(text_digest(b"resp_b4c5c7f5d8ad05c1")));
    assert_ne!(text_digest(b"resp_be29d0453cc04d77"), text_digest(b"resp_b4c5c7f5d8ad05c1"));
}

#[test]
fn keys_may_stand_in_any_order_and_other_ids_before_it() {
    let wanted = Some(text_digest(b"resp_7"));
    for answer in [
        r#"{"object":"response","metadata":{"id":"mine"},"output":[{"id":"msg_1"}], "id" : "resp_7"}"#,
        r#"{"instructions":"say \"id\":\"x\" {\\","id":"resp_7"}"#,
        "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\
         \"response\":{\"object\":\"response\",\"output\":[{\"id\":\"msg_1\"}],\"id\":\"resp_7\"}}\n\n",
        ": keep-alive\n\nevent: \"ping\"\ndata: {\"type\":\"ping\"}\n\ndata: {\"response\":{\"id\":\"resp_7\"}}\n\n",
    ] {
        assert_eq!(id_in_any_pieces(answer), wanted, "{answer}");
    }
}

#[test]
fn an_answer_without_an_id_of_its_own_has_none() {
    for answer in [
        "",
        "id",
        r#"{"error":{"id":"e","message":"Response with id 'resp_none' not found."}}"#,
        r#"{"id":null}"#,
        r#"{"id":7}"#,
        r#"{"id":"resp_cut"#,
        r#"{"metadata":{"response":{"id":"x"}},"other":{"id":"y"}}"#,
        r#"{"response":[{"id":"x"}]}"#,
        r#"["id",":","x"]"#,
    ] {
        assert_eq!(id_in_any_pieces(answer), None, "{answer}");
    }
}

#[test]
fn what_stands_behind_a_kilobyte_is_not_kept() {
    let late = format!(r#"{{"instructions":"{}","id":"resp_7"}}"#, "x".repeat(Head::WANTED));
    assert_eq!(id_in_any_pieces(&late), None);
    let mut head = Head::default();
    assert!(!head.is_full());
    head.push(late.as_bytes());
    assert!(head.is_full());
}
