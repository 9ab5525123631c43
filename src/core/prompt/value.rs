//! Are two JSON values the same? A digest that does not depend on how a value is written: whitespace, escapes and the
//! order of an object's keys do not count, and a key whose value is `null` is as good as absent.
//!
//! For what is part of a prompt's identity but not of its text: model, salt, options, tool calls, images. Memory is
//! bounded by the scanner's depth, whatever the value's length: all its bytes enter, none is kept.

use super::json::Container;
use crate::core::blocks::{digest, BlockHash, Blocks};

/// Block size inside the digest of a string; any would do.
const BLOCK: usize = 256;

/// Tell values of different kinds apart.
mod kind {
    pub const TEXT: u64 = 1;
    pub const SCALAR: u64 = 2;
    pub const ARRAY: u64 = 3;
    pub const OBJECT: u64 = 4;
}

/// The digest of nothing: `null`, `""`, `[]` and `{}` as a whole value are as good as absent.
const NOTHING: u64 = 0;

/// A value on its way into a digest.
#[derive(Debug)]
pub(super) struct Value {
    levels: Vec<Level>,
    text: Blocks,
    bytes: u64,
}

/// An open container.
#[derive(Debug)]
struct Level {
    container: Container,
    sum: u64,
    key: u64,
}

/// What a value came to, or several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Digest {
    /// Its identity; 0 for a value that is as good as absent.
    pub digest: u64,
    /// Bytes of its keys, strings and numbers.
    pub bytes: u64,
}

impl Digest {
    /// This value under its key, as one of several that are summed up: what is as good as absent adds nothing.
    pub(super) fn under(self, key: u64) -> Self {
        if self.digest == NOTHING {
            return Self::default();
        }
        Self { digest: BlockHash(self.digest).under(key).0, bytes: self.bytes }
    }

    /// One more value; in whatever order they come, their sum is the same.
    pub(super) fn add(&mut self, more: Self) {
        self.digest = self.digest.wrapping_add(more.digest);
        self.bytes += more.bytes;
    }
}

impl Value {
    pub(super) fn new() -> Self {
        Self { levels: Vec::new(), text: Blocks::new(BLOCK), bytes: 0 }
    }

    pub(super) fn open(&mut self, container: Container) {
        self.levels.push(Level { container, sum: NOTHING, key: 0 });
    }

    pub(super) fn close(&mut self) -> Option<Digest> {
        let level = self.levels.pop()?;
        let kind = if level.container == Container::Array { kind::ARRAY } else { kind::OBJECT };
        self.end(level.sum, kind)
    }

    pub(super) fn key(&mut self, key: &[u8]) {
        self.bytes += key.len() as u64;
        if let Some(level) = self.levels.last_mut() {
            level.key = digest(key);
        }
    }

    pub(super) fn text(&mut self, piece: &[u8]) {
        self.text.push(piece, |_| {});
    }

    pub(super) fn text_end(&mut self) -> Option<Digest> {
        self.bytes += self.text.bytes();
        let text = self.text.tail().map_or(NOTHING, |hash| hash.0);
        self.text.clear();
        self.end(text, kind::TEXT)
    }

    pub(super) fn scalar(&mut self, raw: &[u8]) -> Option<Digest> {
        self.bytes += raw.len() as u64;
        let scalar = if raw == b"null" { NOTHING } else { digest(raw).max(1) };
        self.end(scalar, kind::SCALAR)
    }

    /// A value has ended: it enters its container, or is the whole.
    fn end(&mut self, identity: u64, kind: u64) -> Option<Digest> {
        let Some(level) = self.levels.last_mut() else {
            let bytes = std::mem::take(&mut self.bytes);
            let digest = if identity == NOTHING { NOTHING } else { BlockHash(identity).under(kind).0.max(1) };
            return Some(Digest { digest, bytes });
        };
        let value = BlockHash(identity).under(kind);
        match level.container {
            Container::Array => level.sum = value.under(level.sum).0.max(1),
            Container::Object if value == BlockHash(NOTHING).under(kind::SCALAR) => {}
            Container::Object => level.sum = level.sum.wrapping_add(value.under(level.key).0),
        }
        None
    }
}

/// The digest that a string has as a whole value.
pub fn text_digest(text: &[u8]) -> u64 {
    let mut value = Value::new();
    value.text(text);
    value.text_end().map_or(NOTHING, |digest| digest.digest)
}
