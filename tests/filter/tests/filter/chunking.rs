//! How a body is cut does not change where it goes.

use fake_proxy::Stream;
use serde_json::json;

use crate::gateway::{chat_body, chat_headers, config, destination, destinations, serve, text, Gateway};

/// What decides: the named hosts, and how much the first was believed to hold of how much.
type Outcome = (Vec<String>, Option<String>);

fn outcome(stream: &Stream) -> Outcome {
    let hosts = destinations(stream);
    stream.respond(&hosts[0], 200, &[]);
    (hosts, stream.response_headers().get("x-kvroute-matched"))
}

/// A gateway that has seen `seen`, and a chat with a body of `length` bytes on it.
fn request(seen: &str, length: usize) -> (Gateway, Stream) {
    let gateway = Gateway::new(4);
    gateway.route_chat(seen);
    let stream = gateway.worker().request(chat_headers(length), false);
    (gateway, stream)
}

/// What becomes of `body` in pieces of `piece` bytes, on a gateway that has seen `seen`.
fn in_pieces(seen: &str, body: &str, piece: usize) -> Outcome {
    let (_gateway, stream) = request(seen, body.len());
    let pieces = body.len().div_ceil(piece);
    for (n, piece) in body.as_bytes().chunks(piece).enumerate() {
        stream.body(piece, n + 1 == pieces);
    }
    assert!(stream.upstream_body() == body.as_bytes(), "the body passes unchanged");
    outcome(&stream)
}

/// About the first half of a text, up to between two characters.
fn half(text: &str) -> &str {
    let cut = (0..=text.len() / 2).rev().find(|&at| text.is_char_boundary(at));
    &text[..cut.unwrap_or(0)]
}

/// The same JSON with every character beyond ASCII written as `\uXXXX`, in pairs where it takes two.
fn escaped(json: &str) -> String {
    let mut out = String::new();
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let units = c.encode_utf16(&mut [0; 2]).to_vec();
            out.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    out
}

#[test]
fn one_byte_at_a_time_decides_as_one_piece_does() {
    // Characters of two to four bytes, escapes, surrogate pairs: every one is cut somewhere.
    let prompt = format!("{} {}", "grüße 😀 \" \\ \n\t漢字 ".repeat(60), text(1, 1500));
    let plain = chat_body(&prompt);
    for body in [plain.clone(), escaped(&plain)] {
        let whole = in_pieces(half(&prompt), &body, body.len());
        assert!(whole.1.as_deref().is_some_and(|matched| !matched.starts_with("0/")), "{whole:?}");
        for piece in [1, 2, 3, 7, 255, 256, 257, 1000] {
            assert_eq!(in_pieces(half(&prompt), &body, piece), whole, "pieces of {piece}");
        }
    }
}

#[test]
fn an_escaped_character_is_the_character() {
    let prompt = "grüße 😀 漢字 ".repeat(30);
    let plain = chat_body(&prompt);
    let escaped = escaped(&plain);
    assert_eq!(in_pieces(&prompt, &escaped, escaped.len()), in_pieces(&prompt, &plain, plain.len()));
}

#[test]
fn an_empty_last_piece_and_trailers_end_a_body_like_any_other() {
    let prompt = text(2, 4000);
    let body = chat_body(&prompt);
    let expected = in_pieces(half(&prompt), &body, body.len());

    let (_gateway, stream) = request(half(&prompt), body.len());
    stream.body(body.as_bytes(), false);
    stream.body(b"", true);
    assert_eq!(outcome(&stream), expected);

    let (_gateway, stream) = request(half(&prompt), body.len());
    stream.body(body.as_bytes(), false);
    stream.trailers(&[("x-checksum", "1")]);
    assert!(!stream.is_held());
    assert!(stream.upstream_body() == body.as_bytes(), "the body passes unchanged");
    assert_eq!(outcome(&stream), expected);
}

#[test]
fn without_a_content_length_the_same_host_is_found() {
    let prompt = text(3, 4000);
    let body = chat_body(&prompt);
    let expected = in_pieces(half(&prompt), &body, body.len());
    let gateway = Gateway::new(4);
    gateway.route_chat(half(&prompt));
    let mut headers = chat_headers(0);
    headers.retain(|(name, _)| name != "content-length");
    let stream = gateway.worker().request(headers, false);
    for piece in body.as_bytes().chunks(500) {
        stream.body(piece, false);
    }
    stream.body(b"", true);
    assert_eq!(outcome(&stream), expected);
}

#[test]
fn a_long_body_goes_to_the_same_host_in_any_pieces() {
    let prompt = text(4, 150_000);
    let body = chat_body(&prompt);
    let expected = in_pieces(half(&prompt), &body, body.len());
    for piece in [65_536, 30_720, 16_384, 1_000] {
        assert_eq!(in_pieces(half(&prompt), &body, piece), expected, "pieces of {piece}");
    }
}

#[test]
fn what_streams_by_after_the_decision_is_remembered_too() {
    let more = json!({ "prompt": { "hold_bytes": 1 << 20 } });
    let gateway = Gateway::with_config(1, 4, &config(4, more));
    let prompt = text(4, 150_000);
    let body = chat_body(&prompt);
    let stream = gateway.worker().request(chat_headers(body.len()), false);
    let mut pieces = body.as_bytes().chunks(16_384);
    stream.body(pieces.next().unwrap_or_default(), false);
    assert!(!stream.is_held(), "nobody has seen this, so there is nothing to wait for");
    for piece in pieces {
        stream.body(piece, false);
    }
    stream.body(b"", true);
    let first = destination(&stream);
    serve(&stream);

    let (hosts, matched) = outcome(&gateway.chat(&prompt));
    assert_eq!(hosts[0], first);
    let held = matched.as_deref().and_then(|matched| matched.split('/').next());
    let held: u64 = held.and_then(|held| held.parse().ok()).unwrap_or_default();
    assert!(held > 110_000, "{matched:?}");
}

#[test]
fn bodies_just_under_and_over_the_hold_with_one_lead_go_to_one_host() {
    let prompt = text(5, 40_000);
    let shell = chat_body("").len();
    let mut hosts = Vec::new();
    for size in [30_719, 30_720, 30_721, 32_767, 32_769] {
        let body = chat_body(&prompt[..size - shell]);
        assert_eq!(body.len(), size);
        hosts.push(in_pieces(half(&prompt), &body, 8_192).0[0].clone());
    }
    hosts.dedup();
    assert_eq!(hosts.len(), 1, "{hosts:?}");
}
