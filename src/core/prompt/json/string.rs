//! What does a string say? Runs of plain text, escapes, and code units, decoded as they come.

use super::plain::plain_run;
use super::{Broken, Scanner, Sink, State, MAX_KEY};
use crate::core::bytes::WIDE;

impl Scanner {
    /// Inside a string: everything up to the next quote or backslash is text. Goes on behind escapes that
    /// are wholly there; one that is cut is left to [`Scanner::escape`] and [`Scanner::hex`].
    pub(super) fn string<'a>(&mut self, rest: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        let mut rest = rest;
        loop {
            let len = plain_run(rest);
            let (run, after) = rest.split_at(len);
            if !run.is_empty() || after.first() == Some(&b'"') {
                self.lone_surrogate(sink);
            }
            match after {
                [b'\\', b'u', a, b, c, d, after @ ..] => {
                    self.emit_run(rest, len, sink);
                    rest = after;
                    let Some(unit) = hex4([*a, *b, *c, *d]) else { break };
                    self.code_unit(unit, sink);
                }
                [b'\\', escaped, after @ ..] if *escaped != b'u' => {
                    self.emit_run(rest, len, sink);
                    rest = after;
                    let Some(decoded) = simple_escape(*escaped) else { break };
                    self.lone_surrogate(sink);
                    self.emit(&[decoded], sink);
                }
                [b'\\', after @ ..] => {
                    self.emit(run, sink);
                    self.state = State::Escape;
                    return after;
                }
                [_, after @ ..] => {
                    self.end_of_string(run, sink);
                    return after;
                }
                [] => {
                    self.emit(run, sink);
                    return after;
                }
            }
        }
        self.state = State::Broken(Broken::Syntax);
        rest
    }

    /// The closing quote, behind a last run of text.
    #[inline]
    fn end_of_string(&mut self, run: &[u8], sink: &mut impl Sink) {
        if self.in_key {
            if self.key.bytes().is_empty() {
                sink.key(run.get(..MAX_KEY).unwrap_or(run));
            } else {
                self.key.push(run);
                sink.key(self.key.bytes());
            }
            self.state = State::Colon;
            return;
        }
        self.flush(sink);
        if !run.is_empty() {
            sink.text(run);
        }
        sink.text_end();
        self.after_value();
    }

    /// The character behind a backslash that ended a piece.
    pub(super) fn escape(&mut self, byte: u8, sink: &mut impl Sink) {
        if byte == b'u' {
            self.state = State::Hex { digits: 0, value: 0 };
            return;
        }
        match simple_escape(byte) {
            Some(decoded) => {
                self.lone_surrogate(sink);
                self.state = State::Text;
                self.emit(&[decoded], sink);
            }
            None => self.state = State::Broken(Broken::Syntax),
        }
    }
    #[inline]
    pub(super) fn hex(&mut self, byte: u8, digits: u8, value: u16, sink: &mut impl Sink) {
        let Some(digit) = (byte as char).to_digit(16) else {
            self.state = State::Broken(Broken::Syntax);
            return;
        };
        let value = value << 4 | digit as u16;
        if digits < 3 {
            self.state = State::Hex { digits: digits + 1, value };
            return;
        }
        self.state = State::Text;
        self.code_unit(value, sink);
    }
    #[inline]
    fn code_unit(&mut self, unit: u16, sink: &mut impl Sink) {
        if let (Some(high), 0xDC00..=0xDFFF) = (self.high, unit) {
            self.high = None;
            let point = 0x10000 + ((u32::from(high) - 0xD800) << 10) + (u32::from(unit) - 0xDC00);
            let mut utf8 = [0; 4];
            let text = char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut utf8);
            self.emit(text.as_bytes(), sink);
            return;
        }
        self.lone_surrogate(sink);
        let (utf8, len) = utf8_unit(unit);
        match unit {
            0xD800..=0xDBFF => self.high = Some(unit),
            _ => self.emit_run(&utf8, len, sink),
        }
    }

    /// A high surrogate whose low half did not come is text of its own, so that two prompts that
    /// differ in it differ.
    #[inline]
    fn lone_surrogate(&mut self, sink: &mut impl Sink) {
        if let Some(high) = self.high.take() {
            let (utf8, len) = utf8_unit(high);
            self.emit_run(&utf8, len, sink);
        }
    }

    /// Emits the first `len` bytes of `rest`. Between two escapes there are mostly a few bytes, each time
    /// another few: sixteen are copied at once and those that count are kept, so that no branch depends on
    /// how many there are.
    #[inline]
    fn emit_run(&mut self, rest: &[u8], len: usize, sink: &mut impl Sink) {
        if len <= WIDE && !self.in_key {
            if self.gathered.room() < WIDE {
                self.flush(sink);
            }
            if self.gathered.push_wide(rest, len) {
                return;
            }
        }
        self.emit(rest.get(..len).unwrap_or(rest), sink);
    }
    #[inline]
    fn emit(&mut self, text: &[u8], sink: &mut impl Sink) {
        if text.is_empty() {
        } else if self.in_key {
            self.key.push(text);
        } else if text.len() <= self.gathered.room() {
            self.gathered.push(text);
        } else {
            self.flush(sink);
            if text.len() < 64 {
                self.gathered.push(text);
            } else {
                sink.text(text);
            }
        }
    }
    #[inline]
    pub(super) fn flush(&mut self, sink: &mut impl Sink) {
        if !self.gathered.bytes().is_empty() {
            sink.text(self.gathered.bytes());
            self.gathered.clear();
        }
    }
}

/// What a backslash and this character stand for; not `u`, which takes four more.
#[inline]
fn simple_escape(byte: u8) -> Option<u8> {
    match byte {
        b'n' => Some(b'\n'),
        b't' => Some(b'\t'),
        b'r' => Some(b'\r'),
        b'b' => Some(0x08),
        b'f' => Some(0x0C),
        b'"' | b'\\' | b'/' => Some(byte),
        _ => None,
    }
}

/// UTF-8 of a character of one code unit, with room behind it. Half a surrogate pair gets the three bytes that
/// it would have, were it allowed to.
#[inline]
fn utf8_unit(unit: u16) -> ([u8; WIDE], usize) {
    let mut utf8 = [0; WIDE];
    let low = 0x80 | (unit & 0x3F) as u8;
    let middle = 0x80 | (unit >> 6 & 0x3F) as u8;
    let (bytes, len) = match unit {
        0..=0x7F => ([unit as u8, 0, 0], 1),
        0x80..=0x7FF => ([0xC0 | (unit >> 6) as u8, low, 0], 2),
        _ => ([0xE0 | (unit >> 12) as u8, middle, low], 3),
    };
    [utf8[0], utf8[1], utf8[2]] = bytes;
    (utf8, len)
}

/// The value of four hexadecimal digits.
#[inline]
fn hex4(digits: [u8; 4]) -> Option<u16> {
    let [a, b, c, d] = digits.map(hex);
    let value = a << 12 | b << 8 | c << 4 | d;
    ((a | b | c | d) < NO_HEX).then_some(value)
}

/// The value of one hexadecimal digit, or [`NO_HEX`].
fn hex(digit: u8) -> u16 {
    match digit {
        b'0'..=b'9' => u16::from(digit - b'0'),
        b'a'..=b'f' => u16::from(digit - b'a' + 10),
        b'A'..=b'F' => u16::from(digit - b'A' + 10),
        _ => NO_HEX,
    }
}

/// A value with a bit that no digit's value has.
const NO_HEX: u16 = 0x10;
