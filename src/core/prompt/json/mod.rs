//! What tokens does this JSON have, as far as it has come? A resumable scanner.
//!
//! It may be fed in pieces cut anywhere, inside an escape, a number or a UTF-8 sequence, and tells its
//! [`Sink`] the same for every way of cutting, except that a string's text comes in more pieces. Text
//! is handed out as it arrives, before the closing quote; nothing is kept but the current key, the
//! current number and one bit for each open container.
//!
//! It is lenient where leniency is harmless: text is not checked for UTF-8 (the engine will), control
//! characters inside strings pass, and any run of number-like characters is a scalar. What makes the
//! *structure* uncertain breaks the scan, which then ignores the rest.
//!
//! Cost: one pass; plain text is skipped 16 bytes at a time, with `simd128` in one instruction each.

mod plain;
mod string;

use crate::core::bytes::Short;

/// The deepest nesting that is followed. Real requests stay below 20 (JSON schemas of tools); what
/// goes deeper is somebody's experiment.
pub const MAX_DEPTH: u32 = 128;

/// Bytes kept of a key. Longer keys are no key that matters; they are cut.
const MAX_KEY: usize = 64;

/// Bytes kept of a number or literal. Longer ones are cut.
const MAX_SCALAR: usize = 32;

/// Bytes of decoded escapes gathered before they are handed out, so that text full of escapes does
/// not come one character at a time.
const GATHERED: usize = 256;

/// Who is told.
pub trait Sink {
    /// An object or array begins.
    fn open(&mut self, container: Container);
    /// The innermost object or array ends.
    fn close(&mut self);
    /// A key of the innermost object, decoded, cut at 64 bytes. Its value follows.
    fn key(&mut self, key: &[u8]);
    /// A string value begins.
    fn text_begin(&mut self);
    /// The next piece of the string value, decoded. Never empty.
    fn text(&mut self, piece: &[u8]);
    /// The string value ends.
    fn text_end(&mut self);
    /// A number, `true`, `false` or `null`, as written, cut at 32 bytes.
    fn scalar(&mut self, raw: &[u8]);
}

/// The two containers of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// `{}`
    Object,
    /// `[]`
    Array,
}

/// Why the scan stopped understanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A character where it cannot stand.
    Syntax,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
}

/// The scanner.
#[derive(Debug)]
pub struct Scanner {
    state: State,
    /// Open containers, one bit each from the lowest: 1 is an object.
    containers: u128,
    depth: u32,
    /// Whether the string being read is a key.
    in_key: bool,
    /// A high surrogate that waits for its low half.
    high: Option<u16>,
    key: Short<MAX_KEY>,
    scalar: Short<MAX_SCALAR>,
    gathered: Short<GATHERED>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first value; a byte order mark may stand here.
    Start,
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    Scalar,
    Text,
    Escape,
    Hex {
        digits: u8,
        value: u16,
    },
    Done,
    Broken(Broken),
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            state: State::Start,
            containers: 0,
            depth: 0,
            in_key: false,
            high: None,
            key: Short::default(),
            scalar: Short::default(),
            gathered: Short::default(),
        }
    }
}

impl Scanner {
    /// Reads the next bytes of the document.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut impl Sink) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            rest = match self.state {
                State::Text => self.string(rest, sink),
                State::Scalar => self.number(rest, sink),
                State::Broken(_) => break,
                State::Escape => {
                    self.escape(byte, sink);
                    after
                }
                State::Hex { digits, value } => {
                    self.hex(byte, digits, value, sink);
                    after
                }
                _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => after,
                State::Start => {
                    // U+FEFF in UTF-8; Python's json.loads takes it.
                    if matches!(byte, 0xEF | 0xBB | 0xBF) {
                        after
                    } else {
                        self.value(byte, rest, after, sink)
                    }
                }
                State::ValueOrEnd if byte == b']' => self.end(Container::Array, after, sink),
                State::Value | State::ValueOrEnd => self.value(byte, rest, after, sink),
                State::KeyOrEnd if byte == b'}' => self.end(Container::Object, after, sink),
                State::Key | State::KeyOrEnd => {
                    self.in_key = true;
                    self.key.clear();
                    self.expect(byte == b'"', State::Text);
                    after
                }
                State::Colon => {
                    self.expect(byte == b':', State::Value);
                    after
                }
                State::CommaOrEnd => self.separator(byte, after, sink),
                State::Done => {
                    self.state = State::Broken(Broken::Syntax);
                    after
                }
            };
        }
        // What was gathered belongs to the bytes that were fed: a decision may be due now.
        self.flush(sink);
    }

    /// Whether a whole document has been read.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Why the scan stopped, if it did.
    pub fn broken(&self) -> Option<Broken> {
        match self.state {
            State::Broken(why) => Some(why),
            _ => None,
        }
    }
    #[inline]
    fn expect(&mut self, met: bool, next: State) {
        self.state = if met { next } else { State::Broken(Broken::Syntax) };
    }
    #[inline(always)]
    fn value<'a>(&mut self, byte: u8, rest: &'a [u8], after: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        match byte {
            b'"' => {
                self.in_key = false;
                self.state = State::Text;
                sink.text_begin();
                after
            }
            b'{' => self.begin(Container::Object, after, sink),
            b'[' => self.begin(Container::Array, after, sink),
            _ if is_scalar(byte) => {
                self.scalar.clear();
                self.state = State::Scalar;
                rest
            }
            _ => {
                self.state = State::Broken(Broken::Syntax);
                after
            }
        }
    }
    #[inline]
    fn begin<'a>(&mut self, container: Container, after: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        if self.depth == MAX_DEPTH {
            self.state = State::Broken(Broken::TooDeep);
            return after;
        }
        self.depth += 1;
        self.containers = self.containers << 1 | u128::from(container == Container::Object);
        self.state = match container {
            Container::Object => State::KeyOrEnd,
            Container::Array => State::ValueOrEnd,
        };
        sink.open(container);
        after
    }
    #[inline]
    fn end<'a>(&mut self, container: Container, after: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        if !self.is_inside(container) {
            self.state = State::Broken(Broken::Syntax);
            return after;
        }
        self.depth -= 1;
        self.containers >>= 1;
        sink.close();
        self.after_value();
        after
    }
    #[inline]
    fn is_inside(&self, container: Container) -> bool {
        self.depth > 0 && self.inside() == container
    }
    #[inline]
    fn inside(&self) -> Container {
        if self.containers & 1 == 1 {
            Container::Object
        } else {
            Container::Array
        }
    }
    #[inline]
    fn after_value(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::CommaOrEnd };
    }
    #[inline]
    fn separator<'a>(&mut self, byte: u8, after: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        match byte {
            b',' => {
                self.state = match self.inside() {
                    Container::Object => State::Key,
                    Container::Array => State::Value,
                };
                after
            }
            b'}' => self.end(Container::Object, after, sink),
            b']' => self.end(Container::Array, after, sink),
            _ => {
                self.state = State::Broken(Broken::Syntax);
                after
            }
        }
    }

    /// Inside a number or literal. Goes on through a list of them: token ids come by the thousand.
    fn number<'a>(&mut self, rest: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        let mut rest = rest;
        loop {
            let len = rest.iter().position(|&byte| !is_scalar(byte)).unwrap_or(rest.len());
            let (run, after) = rest.split_at(len);
            if after.is_empty() {
                self.scalar.push(run);
                return after;
            }
            if self.scalar.bytes().is_empty() {
                sink.scalar(run.get(..MAX_SCALAR).unwrap_or(run));
            } else {
                self.scalar.push(run);
                sink.scalar(self.scalar.bytes());
                self.scalar.clear();
            }
            match after {
                [b',', digit, ..] if digit.is_ascii_digit() && self.is_inside(Container::Array) => {
                    rest = after.get(1..).unwrap_or(&[]);
                }
                _ => {
                    self.after_value();
                    return after;
                }
            }
        }
    }
}
#[inline]
fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}
