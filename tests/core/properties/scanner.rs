//! The scanner tells the same however the bytes are cut, and what serde_json would.

use super::json::{strict, Document};
use super::ways_of_cutting;
use kvroute::core::prompt::json::{Broken, Container, Scanner, Sink};
use serde::de::IgnoredAny;

pub fn holds(bytes: &[u8]) {
    // A number at the top ends only where something follows it.
    let text = [bytes, b" "].concat();
    let ways = ways_of_cutting(&text);
    let whole = scan(&ways[0]);
    for way in &ways[1..] {
        assert_eq!(scan(way), whole, "{way:?}");
    }
    if whole.broken == Some(Broken::TooDeep) {
        assert!(bytes.iter().filter(|byte| b"[{".contains(byte)).count() > 128);
        return;
    }
    let (strict, scalars) = strict(&text);
    let is_json = serde_json::from_slice::<IgnoredAny>(&strict).is_ok();
    assert_eq!(whole.is_done, is_json, "{}", String::from_utf8_lossy(&strict));
    assert!(is_json || serde_json::from_slice::<IgnoredAny>(&text).is_err());
    if let Some(document) = Document::read(&text) {
        let mut expected = Vec::new();
        tokens_of(&document, &mut scalars.into_iter(), &mut expected);
        assert_eq!(whole.told.tokens, expected);
    }
}

/// What the scanner told.
#[derive(Debug, Default, PartialEq)]
struct Told {
    tokens: Vec<Token>,
    /// Of the string that has not ended.
    text: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq)]
enum Token {
    Open(Container),
    Close,
    Key(Vec<u8>),
    Text(Vec<u8>),
    Scalar(Vec<u8>),
}

impl Sink for Told {
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
        assert_eq!(self.text.replace(Vec::new()), None);
    }
    fn text(&mut self, piece: &[u8]) {
        assert!(!piece.is_empty());
        self.text.as_mut().expect("begun").extend_from_slice(piece);
    }
    fn text_end(&mut self) {
        self.tokens.push(Token::Text(self.text.take().expect("begun")));
    }
    fn scalar(&mut self, raw: &[u8]) {
        self.tokens.push(Token::Scalar(raw.to_vec()));
    }
}

#[derive(Debug, PartialEq)]
struct Scanned {
    told: Told,
    is_done: bool,
    broken: Option<Broken>,
}

fn scan(pieces: &[&[u8]]) -> Scanned {
    let (mut scanner, mut told) = (Scanner::default(), Told::default());
    pieces.iter().for_each(|piece| scanner.feed(piece, &mut told));
    Scanned { told, is_done: scanner.is_done(), broken: scanner.broken() }
}

/// What it shall tell: keys cut at 64 bytes, numbers as written and cut at 32.
fn tokens_of(document: &Document, scalars: &mut impl Iterator<Item = Vec<u8>>, tokens: &mut Vec<Token>) {
    match document {
        Document::Scalar => {
            let mut raw = scalars.next().expect("as many as there are");
            raw.truncate(32);
            tokens.push(Token::Scalar(raw));
        }
        Document::Text(text) => tokens.push(Token::Text(text.as_bytes().to_vec())),
        Document::List(list) => {
            tokens.push(Token::Open(Container::Array));
            list.iter().for_each(|inner| tokens_of(inner, scalars, tokens));
            tokens.push(Token::Close);
        }
        Document::Object(fields) => {
            tokens.push(Token::Open(Container::Object));
            for (key, inner) in fields {
                tokens.push(Token::Key(key.as_bytes()[..key.len().min(64)].to_vec()));
                tokens_of(inner, scalars, tokens);
            }
            tokens.push(Token::Close);
        }
    }
}
