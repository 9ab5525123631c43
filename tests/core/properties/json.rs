//! JSON as serde_json reads it, with the order of keys and keys that come twice; and what it is written with.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// A document in its order.
#[derive(Debug, Clone, PartialEq)]
pub enum Document {
    /// A number, `true`, `false` or `null`.
    Scalar,
    Text(String),
    List(Vec<Document>),
    Object(Vec<(String, Document)>),
}

impl Document {
    pub fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// Whether some object has a key twice.
    pub fn has_twins(&self) -> bool {
        match self {
            Document::Object(fields) => {
                let mut keys = HashSet::new();
                fields.iter().any(|(key, inner)| !keys.insert(key) || inner.has_twins())
            }
            Document::List(list) => list.iter().any(Document::has_twins),
            _ => false,
        }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(InOrder)
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<Document, E> {
        Ok(Document::Scalar)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Document, E> {
        Ok(Document::Scalar)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Document, E> {
        Ok(Document::Scalar)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Document, E> {
        Ok(Document::Scalar)
    }
    fn visit_unit<E>(self) -> Result<Document, E> {
        Ok(Document::Scalar)
    }
    fn visit_str<E>(self, text: &str) -> Result<Document, E> {
        Ok(Document::Text(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Document, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Document::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Document, A::Error> {
        let mut list = Vec::new();
        while let Some(field) = fields.next_entry()? {
            list.push(field);
        }
        Ok(Document::Object(list))
    }
}

/// The document without what the scanner takes and serde_json does not, and its numbers and literals as written.
///
/// A byte order mark is left out; a control character or what is not ASCII becomes an `x` inside a string, and any run
/// of number-like characters a `0` outside. So the two must be of one opinion about it.
pub fn strict(text: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let start = text.iter().position(|byte| !b" \n\r\t\xEF\xBB\xBF".contains(byte)).unwrap_or(text.len());
    let (mut strict, mut scalars) = (Vec::new(), Vec::<Vec<u8>>::new());
    let (mut in_string, mut is_escaped, mut in_scalar) = (false, false, false);
    for &byte in &text[start..] {
        let is_scalar = !in_string && (byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        if is_scalar {
            if !in_scalar {
                strict.push(b'0');
                scalars.push(Vec::new());
            }
            scalars.last_mut().expect("one").push(byte);
        } else if in_string {
            strict.push(if matches!(byte, 0x20..=0x7F) { byte } else { b'x' });
            in_string = byte != b'"' || is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
        } else {
            strict.push(byte);
            in_string = byte == b'"';
        }
        in_scalar = is_scalar;
    }
    (strict, scalars)
}
