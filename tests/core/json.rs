//! The scanner against documents whose tokens are known, cut anywhere, and against serde_json's verdict.

use super::properties::cut;
use kvroute::core::prompt::json::{Container, Scanner, Sink};
use proptest::prelude::*;

/// A document that is known from the start.
#[derive(Debug, Clone)]
enum Document {
    Scalar(&'static str),
    Text(String),
    List(Vec<Document>),
    Object(Vec<(String, Document)>),
}

/// What the scanner shall tell.
#[derive(Debug, Clone, PartialEq)]
enum Token {
    Open(Container),
    Close,
    Key(Vec<u8>),
    Text(Vec<u8>),
    Scalar(Vec<u8>),
}

/// Gathers tokens; pieces of one text are joined.
#[derive(Default)]
struct Tokens {
    tokens: Vec<Token>,
    text: Vec<u8>,
}

impl Sink for Tokens {
    fn open(&mut self, container: Container) {
        self.tokens.push(Token::Open(container));
    }
    fn close(&mut self) {
        self.tokens.push(Token::Close);
    }
    fn key(&mut self, key: &[u8]) {
        self.tokens.push(Token::Key(key.to_vec()));
    }
    fn text_begin(&mut self) {
        self.text.clear();
    }
    fn text(&mut self, piece: &[u8]) {
        assert!(!piece.is_empty());
        self.text.extend_from_slice(piece);
    }
    fn text_end(&mut self) {
        self.tokens.push(Token::Text(self.text.clone()));
    }
    fn scalar(&mut self, raw: &[u8]) {
        self.tokens.push(Token::Scalar(raw.to_vec()));
    }
}

fn documents() -> impl Strategy<Value = Document> {
    let scalars = ["0", "-1", "1.5e10", "true", "false", "null", "12345678901234567890"];
    let text = prop_oneof![".{0,12}", "[a-z \"\\\\\\n\\t/]{0,90}", "\\PC{0,200}", "[é海🦜]{0,9}"];
    let leaf = prop_oneof![
        proptest::sample::select(scalars.to_vec()).prop_map(Document::Scalar),
        text.prop_map(Document::Text)
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Document::List),
            proptest::collection::vec(("[a-z\"é]{0,9}", inner), 0..6).prop_map(Document::Object),
        ]
    })
}

fn tokens_of(document: &Document, tokens: &mut Vec<Token>) {
    match document {
        Document::Scalar(raw) => tokens.push(Token::Scalar(raw.as_bytes().to_vec())),
        Document::Text(text) => tokens.push(Token::Text(text.as_bytes().to_vec())),
        Document::List(list) => {
            tokens.push(Token::Open(Container::Array));
            list.iter().for_each(|inner| tokens_of(inner, tokens));
            tokens.push(Token::Close);
        }
        Document::Object(fields) => {
            tokens.push(Token::Open(Container::Object));
            for (key, inner) in fields {
                tokens.push(Token::Key(key.as_bytes().to_vec()));
                tokens_of(inner, tokens);
            }
            tokens.push(Token::Close);
        }
    }
}

/// How strings are written: as serde_json does, or with every character escaped.
#[derive(Debug, Clone, Copy)]
struct Spelling {
    escaped: bool,
    space: &'static str,
}

fn write(document: &Document, spelling: Spelling, out: &mut String) {
    let space = spelling.space;
    match document {
        Document::Scalar(raw) => out.push_str(raw),
        Document::Text(text) => write_text(text, spelling, out),
        Document::List(list) => {
            out.push('[');
            for (n, inner) in list.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                out.push_str(space);
                write(inner, spelling, out);
            }
            out.push_str(space);
            out.push(']');
        }
        Document::Object(fields) => {
            out.push('{');
            for (n, (key, inner)) in fields.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                out.push_str(space);
                write_text(key, spelling, out);
                out.push_str(space);
                out.push(':');
                write(inner, spelling, out);
                out.push_str(space);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, spelling: Spelling, out: &mut String) {
    if spelling.escaped {
        let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<String>();
        out.push_str(&format!("\"{units}\""));
    } else {
        out.push_str(&serde_json::to_string(text).expect("text"));
    }
}

fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Token>, Scanner) {
    let mut scanner = Scanner::default();
    let mut tokens = Tokens::default();
    pieces.into_iter().for_each(|piece| scanner.feed(piece, &mut tokens));
    (tokens.tokens, scanner)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_document_is_told_alike_however_it_is_cut_and_spelled(
        document in documents(),
        escaped: bool,
        space in proptest::sample::select(vec!["", " ", "\n\t "]),
        lengths in proptest::collection::vec(1_usize..40, 1..5),
    ) {
        let mut expected = Vec::new();
        tokens_of(&document, &mut expected);
        let mut text = String::new();
        write(&document, Spelling { escaped, space }, &mut text);
        // A scalar at the top ends only where something follows it.
        text.push(' ');
        for pieces in [vec![text.as_bytes()], cut(text.as_bytes(), &lengths), cut(text.as_bytes(), &[1])] {
            let (tokens, scanner) = scan(pieces);
            prop_assert_eq!(&tokens, &expected);
            prop_assert!(scanner.is_done());
        }
    }

    #[test]
    fn what_serde_json_accepts_is_read_to_its_end(
        document in documents(),
        at: proptest::sample::Index,
        byte in proptest::sample::select(b"{}[]\",:\\u0n \xFFe-".to_vec()),
    ) {
        let mut text = String::new();
        write(&document, Spelling { escaped: false, space: "" }, &mut text);
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.push(b' ');
        let (_, scanner) = scan([bytes.as_slice()]);
        if serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok() {
            prop_assert!(scanner.is_done() && scanner.broken().is_none());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        scan(cut(&bytes, &[1, 3, 64]));
    }
}

#[test]
fn nesting_is_followed_to_its_bound_and_no_further() {
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(scan([deep(128).as_bytes()]).1.is_done());
    assert!(scan([deep(129).as_bytes()]).1.broken().is_some());
    assert!(scan([deep(1_000_000).as_bytes()]).1.broken().is_some());
}

#[test]
fn a_broken_document_is_told_up_to_the_fault() {
    for text in [
        "{1}",
        "{\"a\" 1}",
        "[1 2]",
        "[1}",
        "{\"a\":}",
        "\"\\x\"",
        "\"\\u12G4\"",
        "[]]",
        "{} {}",
        "'a'",
        "[,1]",
        "{,}",
    ] {
        assert!(scan([text.as_bytes()]).1.broken().is_some(), "{text}");
    }
}

#[test]
fn the_text_in_front_of_a_bad_escape_is_told_wherever_the_piece_ends() {
    for text in [r#""a\nb\x""#, r#""a\nb\u12G4""#, r#""a\ud800\x""#] {
        let text_of = |pieces: Vec<&[u8]>| {
            let (mut scanner, mut tokens) = (Scanner::default(), Tokens::default());
            pieces.into_iter().for_each(|piece| scanner.feed(piece, &mut tokens));
            tokens.text
        };
        let whole = text_of(vec![text.as_bytes()]);
        assert!(whole.starts_with(b"a"));
        assert_eq!(text_of(cut(text.as_bytes(), &[1])), whole, "{text}");
    }
}
