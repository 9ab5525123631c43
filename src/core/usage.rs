//! What did the engine say about the prompt? Reads `usage` from an answer as it streams by.
//!
//! | API | where | prompt tokens | of these cached |
//! | --- | --- | --- | --- |
//! | chat, completions | `usage`, at the end | `prompt_tokens` | `prompt_tokens_details.cached_tokens` |
//! | Responses | `usage`, near the end | `input_tokens` | `input_tokens_details.cached_tokens` |
//! | Messages | `usage`, at the end | the sum of the three | `cache_read_input_tokens` |
//! | vLLM's generate | `usage`, at the beginning | as chat | as chat |
//! | SGLang's generate | `meta_info`, at the end | `prompt_tokens` | `cached_tokens` |
//!
//! Streams say it in their last event, chat only if the client asked for it. Only the last kilobyte is kept, and the
//! first ([`super::answer`]): no response is parsed, held or changed. What the engine does not say is `None`: an
//! engine that does not tell cached tokens did not say that there were none.
//!
//! # Why Messages are a sum
//!
//! In that API `input_tokens` are those that were neither read from the cache nor written into it, and vLLM keeps to it
//! since it tells the other two; before that, and at the beginning of a stream, it tells only `input_tokens`, and they
//! are all.

/// Bytes of the response's end that are kept. The longest is the end of a stream of Responses: `usage` with all its
/// details, and what stands behind it, are under 600.
const KEPT: usize = 1_024;

/// What `usage` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of these, tokens that were in the cache.
    pub cached_tokens: Option<u64>,
}

/// The end of a response, as it streams by.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    /// Whether something stood before them.
    cut: bool,
}

impl Tail {
    /// How much of a chunk's end is worth handing to [`Tail::push`].
    pub const WANTED: usize = KEPT;

    /// Takes the end of the next chunk.
    pub fn push(&mut self, chunk_end: &[u8]) {
        if chunk_end.len() >= KEPT {
            self.cut = true;
            self.bytes.clear();
        }
        let from = chunk_end.len().saturating_sub(KEPT);
        self.bytes.extend_from_slice(chunk_end.get(from..).unwrap_or(&[]));
        let surplus = self.bytes.len().saturating_sub(KEPT);
        // Moving the kept kilobyte for every small chunk would cost more than keeping two.
        if surplus > KEPT {
            self.bytes.drain(..surplus);
            self.cut = true;
        }
    }

    /// Whether the engine gave the request up before it generated anything, as vLLM does with all that comes while it
    /// shuts down: `finish_reason` "abort" and, where they are told, no completion tokens. Such an answer is short.
    pub fn is_aborted(&self) -> bool {
        // Inside a string the quotes would be escaped.
        const KEY: &[u8] = b"\"finish_reason\"";
        if self.cut || number_after(&self.bytes, b"\"completion_tokens\"").is_some_and(|tokens| tokens > 0) {
            return false;
        }
        let places = 0..self.bytes.len();
        let mut reasons = places.filter_map(|at| Some(value(self.bytes.get(at..)?.strip_prefix(KEY)?)));
        reasons.any(|reason| reason.starts_with(b"\"abort\""))
    }

    /// The usage, if it was there.
    pub fn usage(&self) -> Option<Usage> {
        last_usage(&self.bytes)
    }
}

/// The last usage in a part of an answer. Streams say `"usage":null` in every chunk but one, and Messages begin with one
/// that is not final.
pub(super) fn last_usage(bytes: &[u8]) -> Option<Usage> {
    (0..bytes.len()).rev().find_map(|at| {
        let rest = bytes.get(at..)?;
        let named = rest.strip_prefix(b"\"usage\"").or_else(|| rest.strip_prefix(b"\"meta_info\""))?;
        usage(object(value(named))?)
    })
}

fn usage(object: &[u8]) -> Option<Usage> {
    let number = |key: &[u8]| number_after(object, key);
    let cached = number(b"\"cached_tokens\"");
    if let Some(prompt_tokens) = number(b"\"prompt_tokens\"") {
        return Some(Usage { prompt_tokens, cached_tokens: cached });
    }
    let input = number(b"\"input_tokens\"")?;
    let read = number(b"\"cache_read_input_tokens\"");
    let created = number(b"\"cache_creation_input_tokens\"").unwrap_or(0);
    let beside = read.unwrap_or(0).saturating_add(created);
    Some(Usage { prompt_tokens: input.saturating_add(beside), cached_tokens: cached.or(read) })
}

/// The object that a value is, with its braces, or as far as it is there.
fn object(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"{")?;
    let (mut open, mut in_string, mut escaped) = (0_usize, false, false);
    let end = value.iter().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => open += 1,
            b'}' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
        open == 0
    });
    value.get(..end.map_or(value.len(), |end| end + 1))
}

/// The whole number behind the first place of `key`.
fn number_after(bytes: &[u8], key: &[u8]) -> Option<u64> {
    let at = bytes.windows(key.len()).position(|window| window == key)?;
    let rest = value(bytes.get(at + key.len()..)?);
    // A number that is cut off is another number.
    let len = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(rest.get(..len)?).ok()?.parse().ok()
}

/// What stands behind a key's colon.
fn value(rest: &[u8]) -> &[u8] {
    let rest = rest.trim_ascii_start();
    rest.strip_prefix(b":").unwrap_or(rest).trim_ascii_start()
}
