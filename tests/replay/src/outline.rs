//! What the filter would see of a trace's prompt: positions on its ladder of depths, without any text.
//!
//! A trace says which of its blocks are equal. Two prompts share a position if they share the trace's block that the
//! position lies in: where they differ inside it is not known, so they are taken to differ from its start.

use crate::trace::Request;
use kvroute::core::blocks::BlockHash;
use kvroute::core::prompt::{deeper, Outline, Part, Position, View};

/// Sets a prompt's unfilled end apart from a block in the middle of a longer one.
const TAIL: u64 = 0x7461_696C;

/// The positions of one prompt.
#[derive(Debug, Clone)]
pub struct TracePrompt {
    positions: Vec<Position>,
    bytes: u64,
}

/// A prompt as far as it has been read.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    positions: &'a [Position],
    bytes: u64,
}

impl TracePrompt {
    /// The prompt of a request, whose tokens have `bytes_per_token` bytes and which the filter cuts into blocks of
    /// `block_bytes`.
    pub fn new(request: &Request, block_tokens: u32, bytes_per_token: f64, block_bytes: u64) -> Self {
        let bytes = (f64::from(request.prompt_tokens) * bytes_per_token) as u64;
        let mut positions = Vec::new();
        let mut depth = 1;
        while depth * block_bytes <= bytes {
            let end = depth * block_bytes;
            let tokens = (end as f64 / bytes_per_token).ceil() as u32;
            let block = (tokens.saturating_sub(1) / block_tokens) as usize;
            let id = request.ids.get(block).or(request.ids.last()).copied().unwrap_or_default();
            positions.push(Position { bytes: end, hash: BlockHash(id).under(depth) });
            depth = deeper(depth);
        }
        if positions.last().is_none_or(|last| last.bytes < bytes) {
            let id = request.ids.last().copied().unwrap_or_default();
            positions.push(Position { bytes, hash: BlockHash(id).under(TAIL) });
        }
        Self { positions, bytes }
    }

    /// Bytes of the whole prompt.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All of it.
    pub fn whole(&self) -> Seen<'_> {
        Seen { positions: &self.positions, bytes: self.bytes }
    }

    /// Its head, if it is longer than `bytes`.
    pub fn head(&self, bytes: u64) -> Option<Seen<'_>> {
        (self.bytes > bytes).then(|| {
            let read = self.positions.partition_point(|position| position.bytes <= bytes);
            Seen { positions: &self.positions[..read], bytes }
        })
    }
}

impl Seen<'_> {
    /// A prompt of which only the length matters.
    pub fn of_length(bytes: u64) -> Self {
        Self { positions: &[], bytes }
    }
}

impl Outline for Seen<'_> {
    fn view(&self, _whole: bool) -> View<'_> {
        let part = |positions| Part::new(1, positions);
        View { id: 1, parts: [part(&[]), part(&[]), part(self.positions)] }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_token_ids(&self) -> bool {
        false
    }

    fn model(&self) -> u64 {
        0
    }
}
