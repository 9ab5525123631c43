//! A configuration that is given as `google.protobuf.Struct`: Envoy hands its wire format over as it is, although
//! its documentation says JSON. Decoded into the JSON value that it stands for.
//!
//! `Struct` is `{1: repeated entry {1: key, 2: Value}}`, `Value` one of `{1: null, 2: double, 3: string, 4: bool,
//! 5: Struct, 6: {1: repeated Value}}`.

use serde_json::{Map, Number, Value};

/// The deepest nesting that is read; the configuration's own is three.
const MAX_DEPTH: usize = 16;

/// The object that a `Struct` stands for, or `None` if these bytes are none.
pub fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    read_struct(bytes, MAX_DEPTH)
}

/// One field of a message.
enum Field<'a> {
    Varint(u64),
    Double(f64),
    Bytes(&'a [u8]),
}

fn read_struct(bytes: &[u8], depth: usize) -> Option<Map<String, Value>> {
    let mut map = Map::new();
    for_each_field(bytes, |number, field| {
        let (1, Field::Bytes(entry)) = (number, field) else { return None };
        let (mut key, mut value) = (String::new(), Value::Null);
        for_each_field(entry, |number, field| {
            match (number, field) {
                (1, Field::Bytes(name)) => key = text(name)?,
                (2, Field::Bytes(inner)) => value = read_value(inner, depth.checked_sub(1)?)?,
                _ => return None,
            }
            Some(())
        })?;
        map.insert(key, value);
        Some(())
    })?;
    Some(map)
}

fn read_value(bytes: &[u8], depth: usize) -> Option<Value> {
    let mut value = Value::Null;
    for_each_field(bytes, |number, field| {
        value = match (number, field) {
            (1, Field::Varint(_)) => Value::Null,
            (2, Field::Double(number)) => Value::Number(Number::from_f64(number)?),
            (3, Field::Bytes(string)) => Value::String(text(string)?),
            (4, Field::Varint(flag)) => Value::Bool(flag != 0),
            (5, Field::Bytes(inner)) => Value::Object(read_struct(inner, depth)?),
            (6, Field::Bytes(inner)) => Value::Array(read_list(inner, depth)?),
            _ => return None,
        };
        Some(())
    })?;
    Some(value)
}

fn read_list(bytes: &[u8], depth: usize) -> Option<Vec<Value>> {
    let mut list = Vec::new();
    for_each_field(bytes, |number, field| {
        let (1, Field::Bytes(inner)) = (number, field) else { return None };
        list.push(read_value(inner, depth.checked_sub(1)?)?);
        Some(())
    })?;
    Some(list)
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// Hands over each field with its number; `None` if the bytes are no message.
fn for_each_field<'a>(bytes: &'a [u8], mut each: impl FnMut(u64, Field<'a>) -> Option<()>) -> Option<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut rest)?),
            1 => Field::Double(f64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?)),
            2 => {
                let len = usize::try_from(varint(&mut rest)?).ok()?;
                Field::Bytes(take(&mut rest, len)?)
            }
            _ => return None,
        };
        each(tag >> 3, field)?;
    }
    Some(())
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}
