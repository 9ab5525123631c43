//! Sections of prompt -> positions: how deep does this prompt go, and what is its identity at each depth?
//!
//! A prompt is a few [`Chain`]s, one for each of its parts (tools, instructions, text), and a chain is a row of
//! *sections*: one message, one tool, one text. A section's text is hashed from its own beginning, and everything
//! before it enters as one number when the section's place is known. So the order in which a client writes the keys
//! of a message or of the request does not matter, and a key that comes twice can be taken back.
//!
//! Positions stand at the ends of blocks and of sections, on a ladder of depths (256 bytes apart up to 2 KiB, then a
//! quarter apart), so that some 36 of them span a mebibyte: a match is understated by a quarter at most, and a
//! request costs few lookups whatever its length.

use super::Position;
use crate::core::blocks::{BlockHash, Blocks};
use crate::core::config;

/// Tells a section that has ended from one that goes on.
const CLOSED: u64 = 0x636C_6F73_6564;

/// Tells the end of the whole prompt: it is met only by an equal prompt, never in the middle of a longer one.
const TAIL: u64 = 0x7461_696C;

/// The most positions that are remembered where a prompt only seemed to stand: more than a long message has.
const MOST_ASSUMED: usize = 64;

/// Messages shorter than this are read to their role before anything is decided.
const LONG_BYTES: u64 = 4 << 10;

/// The text of one section on its way into blocks.
#[derive(Debug)]
pub(super) struct Section {
    blocks: Blocks,
    block_bytes: u64,
    max_bytes: u64,
    /// Text so far, including what lies beyond `max_bytes` and is not hashed.
    text_bytes: u64,
    /// Bytes that stand for what is no text, such as an image.
    other_bytes: u64,
    depth: u64,
    next_depth: u64,
    /// Ends of blocks, and how many of them a chain has taken.
    marks: Vec<Mark>,
    taken: usize,
}

/// The end of a block of a section.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Bytes of the section up to here.
    bytes: u64,
    hash: BlockHash,
}

impl Section {
    pub(super) fn new(settings: &config::Prompt) -> Self {
        Self {
            blocks: Blocks::new(settings.block_bytes),
            block_bytes: settings.block_bytes as u64,
            max_bytes: settings.max_bytes as u64,
            text_bytes: 0,
            other_bytes: 0,
            depth: 0,
            next_depth: 1,
            marks: Vec::new(),
            taken: 0,
        }
    }

    /// Begins anew, with nothing in it.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.text_bytes = 0;
        self.other_bytes = 0;
        self.depth = 0;
        self.next_depth = 1;
        self.marks.clear();
        self.taken = 0;
    }

    /// Appends text.
    #[inline]
    pub(super) fn push(&mut self, text: &[u8]) {
        let room = usize::try_from(self.max_bytes.saturating_sub(self.text_bytes)).unwrap_or(usize::MAX);
        self.text_bytes += text.len() as u64;
        let Self { blocks, block_bytes, depth, next_depth, marks, other_bytes, .. } = self;
        blocks.push(text.get(..room).unwrap_or(text), |hash| {
            *depth += 1;
            if *depth == *next_depth {
                *next_depth = finer(*depth);
                marks.push(Mark { bytes: *depth * *block_bytes + *other_bytes, hash });
            }
        });
    }

    /// Appends something that is no text, by its digest; it is as much work as `bytes` of text.
    pub(super) fn push_digest(&mut self, digest: u64, bytes: u64) {
        // 0xFF: no UTF-8 text can look like it.
        self.push(&[0xFF]);
        self.push(&digest.to_le_bytes());
        self.weigh(bytes);
    }

    /// Something that is no text is as much work as `bytes` of it.
    pub(super) fn weigh(&mut self, bytes: u64) {
        self.other_bytes += bytes;
    }

    /// Whether there are ends of blocks that no chain has taken.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.taken < self.marks.len()
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.text_bytes + self.other_bytes
    }
}

/// One part of a prompt.
#[derive(Debug)]
pub(super) struct Chain {
    /// The digest of all sections that have ended; 0 if there are none.
    digest: u64,
    /// Their bytes.
    bytes: u64,
    positions: Vec<Position>,
    /// Positions of sections that were assumed to stand elsewhere.
    assumed: Vec<Position>,
    /// The depth in bytes from which on the next position is wanted.
    target: u64,
    /// What there was when the open section began: to be gone back to.
    began: (usize, u64),
    block_bytes: u64,
    max_bytes: u64,
    long_bytes: u64,
}

impl Chain {
    pub(super) fn new(settings: &config::Prompt) -> Self {
        let block_bytes = settings.block_bytes as u64;
        Self {
            digest: 0,
            bytes: 0,
            positions: Vec::new(),
            assumed: Vec::new(),
            target: block_bytes,
            began: (0, block_bytes),
            block_bytes,
            max_bytes: settings.max_bytes as u64,
            long_bytes: LONG_BYTES.min(settings.hold_bytes as u64),
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.digest = 0;
        self.bytes = 0;
        self.positions.clear();
        self.assumed.clear();
        self.target = self.block_bytes;
        self.began = (0, self.block_bytes);
    }

    /// Whether no section has ended here.
    pub(super) fn is_empty(&self) -> bool {
        self.digest == 0
    }

    /// The digest of all sections that have ended.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Bytes of the sections that have ended.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn positions(&self) -> &[Position] {
        &self.positions
    }

    /// Where a prompt like this one will be looked for while its body is on its way, though it does not stand there.
    pub(super) fn assumed(&self) -> &[Position] {
        &self.assumed
    }

    /// Takes what the open section, which stands here under `head`, has come to.
    pub(super) fn take(&mut self, section: &mut Section, head: u64) {
        for mark in section.marks.iter().skip(section.taken) {
            let hash = mark.hash.under(head).under(self.digest);
            self.reach(self.bytes + mark.bytes, hash);
        }
        section.taken = section.marks.len();
    }

    /// The first position that the open section would have here under `head`, if it has come so far.
    pub(super) fn first_of(&self, section: &Section, head: u64) -> Option<BlockHash> {
        let (_, target) = self.began;
        let mark = section.marks.iter().find(|mark| self.bytes + mark.bytes >= target)?;
        Some(mark.hash.under(head).under(self.digest))
    }

    /// The section has ended, with a digest of what belongs to it and stands behind its text.
    #[inline]
    pub(super) fn close(&mut self, section: &mut Section, head: u64, behind: u64) {
        if section.has_news() {
            self.take(section, head);
        }
        let text = section.blocks.tail().unwrap_or(BlockHash(0));
        let hash = text.under(head ^ CLOSED.wrapping_add(behind)).under(self.digest);
        // 0 is an empty chain's.
        self.digest = hash.0.max(1);
        self.bytes += section.bytes();
        self.reach(self.bytes, hash);
        self.began = (self.positions.len(), self.target);
        section.clear();
    }

    /// Takes back what the open section has come to, which may stand elsewhere. Answers whether there was anything.
    /// With `assumed`, that is where the next such section will be looked for.
    pub(super) fn take_back(&mut self, section: &mut Section, assumed: bool) -> bool {
        section.taken = 0;
        let (positions, target) = self.began;
        let back = self.positions.get(positions..).unwrap_or(&[]);
        let any = !back.is_empty();
        if assumed && section.bytes() >= self.long_bytes && self.assumed.len() < MOST_ASSUMED {
            self.assumed.extend_from_slice(back);
        }
        self.positions.truncate(positions);
        self.target = target;
        any
    }

    /// The prompt has ended here: its end becomes a position, with a digest of what the engine adds behind it.
    pub(super) fn finish(&mut self, ending: u64) {
        let reached = self.positions.last().map_or(0, |position| position.bytes);
        if self.bytes > 0 && (self.bytes > reached || ending != 0) && self.bytes <= self.max_bytes {
            let hash = BlockHash(self.digest).under(TAIL.wrapping_add(ending));
            self.positions.push(Position { bytes: self.bytes, hash });
        }
    }

    #[inline]
    fn reach(&mut self, bytes: u64, hash: BlockHash) {
        if bytes >= self.target && bytes <= self.max_bytes {
            self.target = deeper(bytes / self.block_bytes) * self.block_bytes;
            self.positions.push(Position { bytes, hash });
        }
    }
}

/// The next depth on the ladder of positions, in blocks.
pub fn deeper(depth: u64) -> u64 {
    (depth + 1).max(depth + depth / 4)
}

/// The next depth in a section that may become a position, in blocks: which of them do, only the section's place in
/// its chain tells.
fn finer(depth: u64) -> u64 {
    (depth + 1).max(depth + depth / 16)
}
