//! A configuration's JSON: text in, values out, strictly.
//!
//! Not a JSON library, since that would be a tenth of the module for one small document at start-up: it reads what
//! RFC 8259 allows, refuses everything else and says where, and keeps numbers as they were written, to be printed so.

use crate::core::scrape::number::parse_number;
use std::fmt;

/// The deepest nesting that is read; the configuration's own is three.
const MAX_DEPTH: usize = 16;

/// Any JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, and how it was written.
    Number(f64, String),
    /// A string.
    String(String),
    /// A list.
    Array(Vec<Value>),
    /// An object.
    Object(Map),
}

/// An object's keys with their values. A handful: looked up one by one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Map(Vec<(String, Value)>);

impl Map {
    /// The value of a key.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Takes a key out.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let place = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.swap_remove(place).1)
    }

    /// Puts a key in; a second one of its name replaces the first.
    pub fn insert(&mut self, name: String, value: Value) {
        self.remove(&name);
        self.0.push((name, value));
    }

    /// The keys, in any order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }
}

impl Value {
    /// The number, if it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Number(number, _) => Some(*number),
            _ => None,
        }
    }

    /// What it is, for a message.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(..) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        }
    }
}

/// A number as it was written, of anything else the kind.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(_, written) => f.write_str(written),
            other => f.write_str(other.kind()),
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::Number(number, decimal(number))
    }
}

/// A number in few digits: the standard library's way to print a float exactly is 20 KiB of wasm.
fn decimal(number: f64) -> String {
    let (mut size, mut exponent) = (number.abs(), 0);
    while size >= 1e12 && size.is_finite() {
        size /= 10.0;
        exponent += 1;
    }
    let millionths = (size * 1e6).round() as u64;
    let (whole, fraction) = (millionths / 1_000_000, millionths % 1_000_000);
    let sign = if number < 0.0 { "-" } else { "" };
    let mut text = format!("{sign}{whole}");
    if fraction > 0 && exponent == 0 {
        text += format!(".{fraction:06}").trim_end_matches('0');
    }
    if exponent > 0 {
        text += &format!("e{exponent}");
    }
    text
}

/// Why a text is no JSON, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    problem: &'static str,
    line: usize,
    column: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at line {} column {}", self.problem, self.line, self.column)
    }
}

/// The value that a text is.
pub fn parse(bytes: &[u8]) -> Result<Value, Fault> {
    let mut reader = Reader { bytes, at: 0 };
    let read = reader.document();
    read.map_err(|problem| {
        let before = bytes.get(..reader.at).unwrap_or(bytes);
        let line = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        Fault {
            problem,
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + before.len() - line,
        }
    })
}

type Read<T> = Result<T, &'static str>;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn document(&mut self) -> Read<Value> {
        let value = self.value(MAX_DEPTH)?;
        match self.next_token() {
            None => Ok(value),
            Some(_) => Err("something behind the end"),
        }
    }

    /// The byte that stands here.
    fn here(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The first byte that is no white space.
    fn next_token(&mut self) -> Option<u8> {
        while matches!(self.here(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        self.here()
    }

    /// Goes past a byte, if it is the next one but for white space.
    fn skip(&mut self, byte: u8) -> bool {
        let is_next = self.next_token() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self, depth: usize) -> Read<Value> {
        let depth = depth.checked_sub(1).ok_or("too deep a nesting")?;
        match self.next_token() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Value::String),
            _ => self.scalar(),
        }
    }

    fn object(&mut self, depth: usize) -> Read<Value> {
        let mut map = Map::default();
        self.at += 1;
        let mut is_done = self.skip(b'}');
        while !is_done {
            if self.next_token() != Some(b'"') {
                return Err("expected a key");
            }
            let start = self.at;
            let key = self.string()?;
            if map.get(&key).is_some() {
                self.at = start;
                return Err("a key that was there before");
            }
            if !self.skip(b':') {
                return Err("expected a colon");
            }
            let value = self.value(depth)?;
            map.insert(key, value);
            is_done = self.skip(b'}');
            if !is_done && !self.skip(b',') {
                return Err("expected a comma or the object's end");
            }
        }
        Ok(Value::Object(map))
    }

    fn array(&mut self, depth: usize) -> Read<Value> {
        let mut list = Vec::new();
        self.at += 1;
        let mut is_done = self.skip(b']');
        while !is_done {
            list.push(self.value(depth)?);
            is_done = self.skip(b']');
            if !is_done && !self.skip(b',') {
                return Err("expected a comma or the list's end");
            }
        }
        Ok(Value::Array(list))
    }

    fn string(&mut self) -> Read<String> {
        let mut text = Vec::new();
        self.at += 1;
        loop {
            let byte = self.here().ok_or("a string without an end")?;
            match byte {
                b'"' => break,
                b'\\' => {
                    self.at += 1;
                    let character = self.escape()?;
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                0..=31 => return Err("a control character in a string"),
                _ => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        let text = String::from_utf8(text).map_err(|_| "a string that is not UTF-8")?;
        self.at += 1;
        Ok(text)
    }

    /// What stands behind a backslash.
    fn escape(&mut self) -> Read<char> {
        const WRONG: &str = "a wrong escape";
        let plain = match self.here().ok_or(WRONG)? {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.unit().ok_or(WRONG)?;
                let low = if self.bytes.get(self.at..self.at + 2) == Some(b"\\u") && high >> 10 == 0x36 {
                    self.at += 1;
                    Some(self.unit().ok_or(WRONG)?)
                } else {
                    None
                };
                let mut read = char::decode_utf16([high].into_iter().chain(low));
                return read.next().and_then(Result::ok).ok_or(WRONG);
            }
            _ => return Err(WRONG),
        };
        self.at += 1;
        Ok(plain)
    }

    /// The code unit of a `u` and four digits.
    fn unit(&mut self) -> Option<u16> {
        let digits = self.bytes.get(self.at + 1..self.at + 5)?;
        let mut unit = 0;
        for digit in digits {
            unit = unit << 4 | char::from(*digit).to_digit(16)? as u16;
        }
        self.at += 5;
        Some(unit)
    }

    fn scalar(&mut self) -> Read<Value> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_end = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte);
        let word = rest.split(is_end).next().unwrap_or_default();
        let value = match word {
            b"null" => Value::Null,
            b"true" => Value::Bool(true),
            b"false" => Value::Bool(false),
            _ => number(word).ok_or("expected a value")?,
        };
        self.at += word.len();
        Ok(value)
    }
}

/// A number, which JSON writes with a digit before and behind the point, and without zeros in front.
fn number(word: &[u8]) -> Option<Value> {
    let size = word.strip_prefix(b"-").unwrap_or(word);
    let digits = size.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let behind_point = size.iter().skip_while(|byte| **byte != b'.').nth(1);
    let is_json = digits > 0
        && (digits == 1 || size.first() != Some(&b'0'))
        && behind_point.is_none_or(u8::is_ascii_digit)
        && size.last().is_some_and(u8::is_ascii_digit);
    let number = parse_number(word).filter(|number| is_json && number.is_finite())?;
    Some(Value::Number(number, String::from_utf8_lossy(word).into_owned()))
}
