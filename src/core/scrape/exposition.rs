//! Which samples does a Prometheus text exposition hold?
//!
//! [`Exposition`] is an iterator over the samples whose name the caller wants. It borrows the body,
//! allocates nothing, and does its work in this order, because nearly every line is a histogram bucket
//! nobody asked for: find the line's end, split off the name, ask the caller, and only then parse.
//!
//! It reads what exporters write rather than what the format allows: CRLF and tabs, spaces around
//! labels, a trailing comma, no space before the value, timestamps, OpenMetrics exemplars and `# EOF`.
//! A line it cannot read is skipped and counted; it never ends the scrape.
//!
//! Cost: one pass over the body; a real page of 71 kB takes some 50 us in V8, and both layers
//! together are 19 kB of wasm.

use std::borrow::Cow;

use super::number::parse_number;

/// The samples of one exposition that the caller asked for, in the order they are written.
///
/// `choose` is asked once a line, with the metric's name. What it answers comes back as
/// [`Sample::key`]; `None` drops the line unparsed.
pub struct Exposition<'a, F> {
    rest: &'a [u8],
    choose: F,
    skipped: u32,
}

/// One line of an exposition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a, K> {
    /// What the caller's `choose` answered for this line's name.
    pub key: K,
    /// The metric's name as written, for histograms with its `_bucket`, `_sum` or `_count`.
    pub name: &'a [u8],
    /// The labels, not yet parsed.
    pub labels: Labels<'a>,
    /// The value as written: it may be NaN, infinite or negative.
    pub value: f64,
}

/// The labels of one sample, parsed when asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Labels<'a> {
    /// What follows `{`, up to and including `}`; empty where the line has no labels.
    raw: &'a [u8],
}

impl<'a, K, F> Exposition<'a, F>
where
    F: FnMut(&'a [u8]) -> Option<K>,
{
    /// Starts reading `body`.
    pub fn new(body: &'a [u8], choose: F) -> Self {
        Self { rest: body, choose, skipped: 0 }
    }

    /// How many lines so far were neither blank, nor a comment, nor a sample.
    ///
    /// Lines that `choose` dropped are judged by their shape only (a name in front, something like a
    /// number at the end), since parsing them all would cost more than the count is worth.
    pub fn skipped(&self) -> u32 {
        self.skipped
    }
}

impl<'a, K, F> Iterator for Exposition<'a, F>
where
    F: FnMut(&'a [u8]) -> Option<K>,
{
    type Item = Sample<'a, K>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = next_line(&mut self.rest)?.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (name, tail) = split_where(line, |b| b == b'{' || is_blank(b));
            let Some(key) = (self.choose)(name) else {
                if !has_sample_shape(name, tail) {
                    self.skipped = self.skipped.saturating_add(1);
                }
                continue;
            };
            match parse_tail(tail) {
                Some((labels, value)) if !name.is_empty() => {
                    return Some(Sample { key, name, labels, value })
                }
                _ => self.skipped = self.skipped.saturating_add(1),
            }
        }
    }
}

impl<'a> Labels<'a> {
    /// The value of the first label called `name`, with its escapes undone.
    ///
    /// Bytes, because exporters do write labels that are not UTF-8.
    #[inline(never)]
    pub fn get(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        self.iter().find(|(label, _)| *label == name.as_bytes()).map(|(_, value)| value)
    }

    /// The label's value as a finite number; `None` where it is absent or something else ("None").
    pub fn number(&self, name: &str) -> Option<f64> {
        let value = self.get(name)?;
        parse_number(&value).filter(|number| number.is_finite())
    }

    /// All labels in the order they are written; values with their escapes undone.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Cow<'a, [u8]>)> {
        let mut rest = self.raw;
        std::iter::from_fn(move || match next_label(&mut rest) {
            Label::Pair { name, value } => Some((name, unescape(value))),
            Label::End | Label::Malformed => None,
        })
    }
}

/// What stands next inside the braces.
enum Label<'a> {
    Pair {
        name: &'a [u8],
        /// As written between the quotes, escapes and all.
        value: &'a [u8],
    },
    End,
    Malformed,
}

/// Takes one label off the front of `rest`.
fn next_label<'a>(rest: &mut &'a [u8]) -> Label<'a> {
    let (_, at) = split_where(rest, |b| b != b',' && !is_blank(b));
    if let Some(after) = at.strip_prefix(b"}") {
        *rest = after;
        return Label::End;
    }
    // A brace or quote before the `=` means that the line is not what it seems.
    let (name, at) = split_where(at, |b| matches!(b, b'=' | b'}' | b'"'));
    let name = name.trim_ascii();
    let value =
        at.strip_prefix(b"=").and_then(|at| at.trim_ascii_start().strip_prefix(b"\"")).and_then(split_quoted);
    match value {
        Some((value, after)) if !name.is_empty() => {
            *rest = after;
            Label::Pair { name, value }
        }
        _ => Label::Malformed,
    }
}

/// Splits after the quote that ends a label value; `text` starts behind the one that opens it.
fn split_quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut escaped = false;
    let end = text.iter().position(|&b| {
        let ends = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        ends
    })?;
    let (value, quote) = text.split_at_checked(end)?;
    Some((value, quote.strip_prefix(b"\"")?))
}

/// Undoes `\\`, `\"` and `\n`. Any other backslash stays, as Prometheus itself keeps it.
fn unescape(raw: &[u8]) -> Cow<'_, [u8]> {
    if !raw.contains(&b'\\') {
        return Cow::Borrowed(raw);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.clone().next()) {
            (b'\\', Some(next @ (b'\\' | b'"' | b'n'))) => {
                bytes.next();
                out.push(if next == b'n' { b'\n' } else { next });
            }
            _ => out.push(byte),
        }
    }
    Cow::Owned(out)
}

/// Parses what follows the name: labels if any, the value, and a timestamp or exemplar to ignore.
fn parse_tail(tail: &[u8]) -> Option<(Labels<'_>, f64)> {
    let tail = tail.trim_ascii_start();
    let (labels, tail) = match tail.strip_prefix(b"{") {
        Some(inside) => split_labels(inside)?,
        None => (Labels::default(), tail),
    };
    let (value, tail) = split_where(tail.trim_ascii_start(), is_blank);
    let value = parse_number(value)?;
    let tail = tail.trim_ascii_start();
    let (timestamp, rest) = split_where(tail, is_blank);
    let readable = tail.is_empty()
        || tail.starts_with(b"#")
        || (parse_number(timestamp).is_some()
            && matches!(rest.trim_ascii_start().first(), None | Some(b'#')));
    readable.then_some((labels, value))
}

/// Splits behind the `}` that ends the labels, having checked every label before it.
fn split_labels(inside: &[u8]) -> Option<(Labels<'_>, &[u8])> {
    let mut rest = inside;
    loop {
        match next_label(&mut rest) {
            Label::Pair { .. } => {}
            Label::Malformed => return None,
            Label::End => {
                let raw = inside.get(..inside.len() - rest.len())?;
                return Some((Labels { raw }, rest));
            }
        }
    }
}

/// Could this be a sample? Judged by its first byte and the token it ends with.
///
/// A plain loop from the end, since this runs for nearly every line: `rsplit` took twice the time of
/// all the rest.
fn has_sample_shape(name: &[u8], tail: &[u8]) -> bool {
    let named = name.first().is_some_and(|&b| b.is_ascii_alphabetic() || matches!(b, b'_' | b':'));
    let mut first_of_last = None;
    for &byte in tail.iter().rev() {
        if is_blank(byte) || byte == b'}' {
            break;
        }
        first_of_last = Some(byte);
    }
    named && matches!(first_of_last, Some(b'0'..=b'9' | b'+' | b'-' | b'.' | b'n' | b'N' | b'i' | b'I'))
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Splits before the first byte for which `ends` holds; all of `text` and nothing if none does.
pub(super) fn split_where(text: &[u8], ends: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let at = text.iter().position(|&b| ends(b)).unwrap_or(text.len());
    text.split_at_checked(at).unwrap_or((text, &[]))
}

/// Takes one line, without its newline, off the front of `rest`; `None` at the end.
fn next_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    if rest.is_empty() {
        return None;
    }
    let (line, after) = rest.split_at_checked(newline_at(rest))?;
    *rest = after.strip_prefix(b"\n").unwrap_or(after);
    Some(line)
}

/// The offset of the first newline, or the length where there is none.
///
/// Eight bytes a step: looking for line ends is most of the work of a scrape.
fn newline_at(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 128;
    let (words, _) = text.as_chunks::<8>();
    let without = words
        .iter()
        .take_while(|word| {
            // The classic test for a zero byte, after turning newlines into zeros.
            let zeros = u64::from_le_bytes(**word) ^ (ONES * u64::from(b'\n'));
            zeros.wrapping_sub(ONES) & !zeros & HIGHS == 0
        })
        .count()
        * 8;
    let tail = text.get(without..).unwrap_or_default();
    without + tail.iter().position(|&b| b == b'\n').unwrap_or(tail.len())
}
