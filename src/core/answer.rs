//! What is this answer called? Reads the head of a response: its id, by which the next turn may refer to it.
//!
//! A client of the Responses API sends `previous_response_id` in place of the conversation so far, which only the engine
//! that answered has. The id stands first: in an answer in one piece as the body's own `id`, in a stream in the first
//! event, `response.created`, as that of `response`. Only the first kilobyte is kept, and of the id only a digest.

use super::prompt::text_digest;
use super::usage::{last_usage, Usage};

/// Bytes of the response's beginning that are kept. vLLM's id stands within the first 70, and where `usage` stands in
/// front it ends within 400. Other engines put what the client sent in front of the id, such as `instructions`: then it
/// is not found.
const KEPT: usize = 1_024;

/// The beginning of a response, as it streams by.
#[derive(Debug, Default)]
pub struct Head {
    bytes: Vec<u8>,
}

impl Head {
    /// Bytes of the response's beginning that are worth handing to [`Head::push`].
    pub const WANTED: usize = KEPT;

    /// Takes the next bytes; what comes behind the first [`Head::WANTED`] is left out.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = KEPT.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// Whether nothing more is wanted.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= KEPT
    }

    /// A digest of the response's id, as [`text_digest`] makes it of the `previous_response_id` that refers to it; `None` if it has not come.
    pub fn response_id(&self) -> Option<u64> {
        own_id(&self.bytes).map(text_digest)
    }

    /// The usage, where it stands in front of what was generated.
    pub fn usage(&self) -> Option<Usage> {
        last_usage(&self.bytes)
    }
}

/// Whether this piece of a streamed answer of the Responses API has any of what was generated. Its first events say
/// only that the request has been taken, before anything is computed.
pub fn has_output(piece: &[u8]) -> bool {
    let is_there = |text: &[u8]| piece.windows(text.len()).any(|window| window == text);
    is_there(b"response.output") || is_there(b".delta") || is_there(b"response.completed")
}

/// The `id` of the first document that has one: at its root, or in the `response` at its root. Ids of what stands
/// deeper, such as messages, are others'.
fn own_id(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    let mut depth = 0_usize;
    let mut in_response = false;
    // The last string, until it has turned out to be a key or not.
    let mut last: &[u8] = &[];
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            // Outside of documents stand the names of events.
            b'"' if depth > 0 => (last, rest) = string(rest)?,
            b':' if last == b"id" && (depth == 1 || in_response && depth == 2) => {
                let id = rest.trim_ascii_start().strip_prefix(b"\"")?;
                return string(id).map(|(id, _)| id);
            }
            b':' if depth == 1 => in_response = last == b"response",
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// A string behind its opening quote, as it is written, and what follows it.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut escaped = false;
    let end = bytes.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}
