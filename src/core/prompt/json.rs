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

use crate::core::bytes::copy;

/// The deepest nesting that is followed. Real requests stay below 20 (JSON schemas of tools); what
/// goes deeper is somebody's experiment.
pub const MAX_DEPTH: u32 = 128;

/// Bytes kept of a key. Longer keys are no key that matters; they are cut.
const MAX_KEY: usize = 64;

/// Bytes kept of a number or literal. Longer ones are cut.
const MAX_SCALAR: usize = 32;

/// Bytes that are copied at once where few are to be copied.
const WIDE: usize = 16;

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
                State::Broken(_) => return,
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

    fn expect(&mut self, met: bool, next: State) {
        self.state = if met { next } else { State::Broken(Broken::Syntax) };
    }

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

    fn is_inside(&self, container: Container) -> bool {
        self.depth > 0 && self.inside() == container
    }

    fn inside(&self) -> Container {
        if self.containers & 1 == 1 {
            Container::Object
        } else {
            Container::Array
        }
    }

    fn after_value(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::CommaOrEnd };
    }

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

    /// Inside a string: everything up to the next quote or backslash is text. Goes on behind escapes that
    /// are wholly there; one that is cut is left to [`Scanner::escape`] and [`Scanner::hex`].
    fn string<'a>(&mut self, rest: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
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
    fn escape(&mut self, byte: u8, sink: &mut impl Sink) {
        if byte == b'u' {
            self.state = State::Hex { digits: 0, value: 0 };
            return;
        }
        self.lone_surrogate(sink);
        match simple_escape(byte) {
            Some(decoded) => {
                self.state = State::Text;
                self.emit(&[decoded], sink);
            }
            None => self.state = State::Broken(Broken::Syntax),
        }
    }

    fn hex(&mut self, byte: u8, digits: u8, value: u16, sink: &mut impl Sink) {
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

    fn flush(&mut self, sink: &mut impl Sink) {
        if !self.gathered.bytes().is_empty() {
            sink.text(self.gathered.bytes());
            self.gathered.clear();
        }
    }
}

/// A few bytes kept in place; what does not fit is cut.
#[derive(Debug)]
struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Short<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Short<N> {
    fn clear(&mut self) {
        self.len = 0;
    }

    fn room(&self) -> usize {
        N - self.len
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Appends the first `len` bytes of `more`, if sixteen can be copied.
    #[inline]
    fn push_wide(&mut self, more: &[u8], len: usize) -> bool {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.first_chunk_mut::<WIDE>());
        let (Some(room), Some(more)) = (room, more.first_chunk::<WIDE>()) else { return false };
        *room = *more;
        self.len += len;
        true
    }

    fn push(&mut self, more: &[u8]) {
        let fits = more.len().min(self.room());
        copy(self.bytes.get_mut(self.len..).unwrap_or(&mut []), more);
        self.len += fits;
    }
}

/// What a backslash and this character stand for; not `u`, which takes four more.
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

fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

/// UTF-8 of a character of one code unit, with room behind it. Half a surrogate pair gets the three bytes that
/// it would have, were it allowed to.
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

/// How many bytes come before the first quote or backslash.
fn plain_run(bytes: &[u8]) -> usize {
    let mut skipped = 0;
    for lane in bytes.chunks_exact(LANE) {
        if let Some(first) = first_special(lane) {
            return skipped + first;
        }
        skipped += LANE;
    }
    let rest = bytes.get(skipped..).unwrap_or(&[]);
    skipped + rest.iter().position(|&byte| byte == b'"' || byte == b'\\').unwrap_or(rest.len())
}

/// Bytes looked at together.
const LANE: usize = 16;

/// Where the first quote or backslash of sixteen bytes is.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
fn first_special(lane: &[u8]) -> Option<usize> {
    use core::arch::wasm32::{i8x16_bitmask, u64x2, u8x16_eq, u8x16_splat, v128_or};
    let (low, high) = lane.split_at(LANE / 2);
    let word = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
    let lane = u64x2(word(low), word(high));
    let special = v128_or(u8x16_eq(lane, u8x16_splat(b'"')), u8x16_eq(lane, u8x16_splat(b'\\')));
    let mask = i8x16_bitmask(special);
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

/// Where the first quote or backslash of sixteen bytes is.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
fn first_special(lane: &[u8]) -> Option<usize> {
    let (low, high) = lane.split_at(LANE / 2);
    let (low, high) = (special_bytes(low), special_bytes(high));
    match (low, high) {
        (0, 0) => None,
        (0, _) => Some(LANE / 2 + high.trailing_zeros() as usize / 8),
        _ => Some(low.trailing_zeros() as usize / 8),
    }
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
/// Of eight bytes, a high bit at the first that is a quote or backslash, and none if there is none.
fn special_bytes(word: &[u8]) -> u64 {
    let word = word.try_into().map_or(0, u64::from_le_bytes);
    zero_bytes(word ^ u64::from_le_bytes([b'"'; 8])) | zero_bytes(word ^ u64::from_le_bytes([b'\\'; 8]))
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
/// A high bit at the first byte that is zero, and none if there is none. (Above the first one it may be
/// wrong: a borrow runs up.)
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(u64::from_le_bytes([0x01; 8])) & !word & u64::from_le_bytes([0x80; 8])
}
