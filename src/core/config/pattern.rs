//! A piece of text that differs from request to request, and where it ends.

use super::{Refusal, Section};

/// The most patterns, and bytes of one.
const MOST: usize = 16;
const LONGEST: usize = 256;

/// Text to leave out: a literal, or all from one literal to another, or to the end of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    begin: Box<[u8]>,
    end: End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// With the literal itself.
    AtOnce,
    /// With the next place of this literal.
    At(Box<[u8]>),
    /// With the text.
    OfText,
}

impl Pattern {
    /// `literal`, `literal*literal` or `literal*`.
    fn parse(pattern: &str) -> Option<Self> {
        let (begin, end) = match pattern.split_once('*') {
            None => (pattern, End::AtOnce),
            Some((begin, "")) => (begin, End::OfText),
            Some((begin, end)) if !end.contains('*') => (begin, End::At(end.as_bytes().into())),
            Some(_) => return None,
        };
        (!begin.is_empty() && pattern.len() <= LONGEST).then(|| Self { begin: begin.as_bytes().into(), end })
    }

    pub(super) fn take_list(section: &mut Section, name: &str) -> Result<Vec<Self>, Refusal> {
        let what = "a literal, or two with a '*' between, at most 256 bytes";
        let patterns = section.texts(name, MOST)?;
        let parse = |(n, pattern): (usize, &String)| {
            Self::parse(pattern)
                .ok_or_else(|| section.refuse(&format!("{name}[{n}]"), &format!("must be {what}")))
        };
        patterns.iter().enumerate().map(parse).collect()
    }

    /// Takes all places of the pattern out of `text`. Answers whether what follows `text` is left out too.
    pub fn leave_out(&self, text: &mut Vec<u8>) -> bool {
        let mut from = 0;
        while let Some(begin) = find(text, from, &self.begin) {
            let after = begin + self.begin.len();
            let end = match &self.end {
                End::AtOnce => Some(after),
                End::At(literal) => find(text, after, literal).map(|at| at + literal.len()),
                End::OfText => {
                    text.truncate(begin);
                    return true;
                }
            };
            let Some(end) = end else { break };
            text.drain(begin..end);
            from = begin;
        }
        false
    }
}

/// Where `literal` stands next.
fn find(text: &[u8], from: usize, literal: &[u8]) -> Option<usize> {
    let rest = text.get(from..)?;
    rest.windows(literal.len()).position(|window| window == literal).map(|at| from + at)
}
