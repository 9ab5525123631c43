//! Prompt text on its way into blocks, and the positions on the ladder of depths.

use super::Position;
use crate::core::blocks::{BlockHash, Blocks};
use crate::core::config;

/// The prompt's text on its way into blocks, and the positions on the ladder of depths.
#[derive(Debug)]
pub(super) struct Text {
    blocks: Blocks,
    block_bytes: u64,
    max_bytes: u64,
    /// All text, including what lies beyond `max_bytes` and is not hashed.
    bytes: u64,
    depth: u64,
    next_depth: u64,
    positions: Vec<Position>,
}

impl Text {
    pub(super) fn new(settings: &config::Prompt) -> Self {
        Self {
            blocks: Blocks::new(settings.block_bytes),
            block_bytes: settings.block_bytes as u64,
            max_bytes: settings.max_bytes as u64,
            bytes: 0,
            depth: 0,
            next_depth: 1,
            positions: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, text: &[u8]) {
        let room = usize::try_from(self.max_bytes.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        self.bytes += text.len() as u64;
        let Self { blocks, block_bytes, depth, next_depth, positions, .. } = self;
        blocks.push(text.get(..room).unwrap_or(text), |hash| {
            *depth += 1;
            if *depth == *next_depth {
                *next_depth = deeper(*depth);
                positions.push(Position { bytes: *depth * *block_bytes, hash });
            }
        });
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn positions(&self) -> &[Position] {
        &self.positions
    }

    pub(super) fn finish(&mut self) {
        let bytes = self.blocks.bytes();
        let reached = self.positions.last().map_or(0, |position| position.bytes);
        if let Some(hash) = self.blocks.tail().filter(|_| bytes > reached) {
            self.positions.push(Position { bytes, hash: tail_mark(hash) });
        }
    }
}

/// The next depth on the ladder of positions, in blocks.
pub fn deeper(depth: u64) -> u64 {
    (depth + 1).max(depth + depth / 4)
}

/// A tail is met only by an equal prompt, never by a block in the middle of a longer one.
fn tail_mark(hash: BlockHash) -> BlockHash {
    hash.under(0x7461_696C)
}
