//! Prompt bytes -> chained block hashes.
//!
//! A prompt is cut into blocks of `block_bytes`; the hash of a block is mixed with the hash of the one
//! before it, so equal hashes mean equal text from the start up to that block's end: a block is found
//! only where its whole prefix was.
//!
//! xxh3 because it is the fastest good hash in V8. Not chained by its seed: with a seed it derives 192 bytes
//! of secret anew for every input over 240 bytes, nearly as many as a block has.

use super::bytes::copy;
use xxhash_rust::xxh3::xxh3_64;

/// The chained hash of a block: identity of the prompt up to the block's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// This block under another seed: the same text for another model, salt or set of tools. The
    /// prompt's text is hashed before these are known (clients write `model` behind `messages`), so
    /// they come in here.
    #[inline]
    pub fn under(self, seed: u64) -> Self {
        // The finaliser of MurmurHash3: every bit of both words reaches every bit of the result.
        let mut word = self.0 ^ seed.rotate_left(32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word = (word ^ word >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        word = (word ^ word >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        Self(word ^ word >> 33)
    }
}

/// What the upper bits of a lasting block are.
const LASTING: u64 = u64::from_be_bytes(*b"last\0\0\0\0");

impl BlockHash {
    /// This block as one that the index keeps for longer than others.
    pub fn lasting(self) -> Self {
        Self(LASTING | self.0 & u64::from(u32::MAX))
    }

    /// Whether the index keeps it for longer. One in four thousand million others is taken for such a one.
    pub fn is_lasting(self) -> bool {
        self.0 >> 32 == LASTING >> 32
    }
}

/// Hashes text as it comes.
#[derive(Debug)]
pub struct Blocks {
    block_bytes: usize,
    previous: u64,
    /// The unfinished block, and how much of it there is. Text that spans whole blocks is hashed where it
    /// lies, without a copy.
    partial: Vec<u8>,
    filled: usize,
    bytes: u64,
}

impl Blocks {
    /// A chain of blocks of `block_bytes` bytes.
    pub fn new(block_bytes: usize) -> Self {
        Self { block_bytes: block_bytes.max(1), previous: 0, partial: Vec::new(), filled: 0, bytes: 0 }
    }

    /// Appends text and names each block that it fills, in order.
    #[inline]
    pub fn push(&mut self, text: &[u8], named: impl FnMut(BlockHash)) {
        self.bytes += text.len() as u64;
        let end = self.filled + text.len();
        match self.partial.get_mut(self.filled..end) {
            Some(room) if end < self.block_bytes => {
                copy(room, text);
                self.filled = end;
            }
            _ => self.push_over(text, named),
        }
    }

    /// Appends text that fills a block, or comes first.
    fn push_over(&mut self, text: &[u8], mut named: impl FnMut(BlockHash)) {
        if self.partial.is_empty() {
            self.partial = vec![0; self.block_bytes];
        }
        let mut rest = text;
        if self.filled > 0 {
            let (head, tail) = rest.split_at(rest.len().min(self.block_bytes - self.filled));
            copy(self.partial.get_mut(self.filled..).unwrap_or(&mut []), head);
            self.filled += head.len();
            rest = tail;
            if self.filled < self.block_bytes {
                return;
            }
            self.previous = chained(&self.partial, self.previous);
            named(BlockHash(self.previous));
        }
        let mut whole = rest.chunks_exact(self.block_bytes);
        for block in &mut whole {
            self.previous = chained(block, self.previous);
            named(BlockHash(self.previous));
        }
        copy(&mut self.partial, whole.remainder());
        self.filled = whole.remainder().len();
    }

    /// Forgets all text; keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.previous = 0;
        self.filled = 0;
        self.bytes = 0;
    }

    /// Bytes appended so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The hash of everything so far: the last, unfilled block counts too. `None` if nothing has come.
    #[inline]
    pub fn tail(&self) -> Option<BlockHash> {
        let partial = self.partial.get(..self.filled).unwrap_or(&[]);
        match (self.bytes, partial.is_empty()) {
            (0, _) => None,
            (_, true) => Some(BlockHash(self.previous)),
            // The length keeps a short block apart from a full one that begins alike.
            (_, false) => {
                let hash = chained(partial, self.previous);
                Some(BlockHash(hash).under(partial.len() as u64))
            }
        }
    }
}

/// The hash of a block behind what came before it.
#[inline]
fn chained(block: &[u8], previous: u64) -> u64 {
    BlockHash(digest(block)).under(previous).0
}

/// A hash of a few bytes. The one place where it is made: inlined, it takes a kilobyte wherever it is used.
#[inline(never)]
pub fn digest(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}
