//! What did the engine say about the prompt? Reads `usage` from the tail of a response.
//!
//! vLLM ends a JSON answer with `usage`, and a stream with a last chunk that has it, if the client asked
//! for it. Only the last kilobyte is kept: no response is parsed, held or changed. What the engine does
//! not say is `None`: an engine that does not tell cached tokens did not say that there were none.

/// Bytes of the response's end that are kept: `usage` with all its details is under 400.
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
}

impl Tail {
    /// How much of a chunk's end is worth handing to [`Tail::push`].
    pub const WANTED: usize = KEPT;

    /// Takes the end of the next chunk.
    pub fn push(&mut self, chunk_end: &[u8]) {
        if chunk_end.len() >= KEPT {
            self.bytes.clear();
        }
        let from = chunk_end.len().saturating_sub(KEPT);
        self.bytes.extend_from_slice(chunk_end.get(from..).unwrap_or(&[]));
        let surplus = self.bytes.len().saturating_sub(KEPT);
        // Moving the kept kilobyte for every small chunk would cost more than keeping two.
        if surplus > KEPT {
            self.bytes.drain(..surplus);
        }
    }

    /// The usage, if it was there.
    pub fn usage(&self) -> Option<Usage> {
        let usage = after_last(&self.bytes, b"\"usage\"")?;
        Some(Usage {
            prompt_tokens: number_after(usage, b"\"prompt_tokens\"")?,
            cached_tokens: number_after(usage, b"\"cached_tokens\""),
        })
    }
}

/// What follows the last place of `key` that has an object behind it: streams say `"usage":null` in
/// every chunk but one.
fn after_last<'a>(bytes: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let starts = (0..bytes.len()).rev();
    starts.filter_map(|at| bytes.get(at..)?.strip_prefix(key)).find(|rest| value(rest).starts_with(b"{"))
}

/// The whole number behind the first place of `key`.
fn number_after(bytes: &[u8], key: &[u8]) -> Option<u64> {
    let at = bytes.windows(key.len()).position(|window| window == key)?;
    let rest = value(bytes.get(at + key.len()..)?);
    let len = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    std::str::from_utf8(rest.get(..len)?).ok()?.parse().ok()
}

/// What stands behind a key's colon.
fn value(rest: &[u8]) -> &[u8] {
    let rest = rest.trim_ascii_start();
    rest.strip_prefix(b":").unwrap_or(rest).trim_ascii_start()
}
