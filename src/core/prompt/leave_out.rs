//! Which text at the head of a prompt is not hashed? Nonces that clients put there, a new one for each request, and
//! that the engine leaves out (or that an operator wants to look past).
//!
//! Only the head of the prompt is searched: texts are gathered up to [`HEAD`] bytes, the patterns are taken out, and
//! the rest goes on. Whoever configures no pattern pays nothing.

use crate::core::config::Pattern;
use std::rc::Rc;

/// Bytes of the prompt's head that are searched; of instructions that are a key of their own, as many.
const HEAD: usize = 4 << 10;

/// A text that is being gathered, because it may hold what is to be left out.
#[derive(Debug)]
pub(super) struct Gathered {
    patterns: Rc<[Pattern]>,
    head: Vec<u8>,
    gathering: bool,
    /// Whether the rest of the text is left out.
    skipping: bool,
    /// Bytes of the last piece that lie behind the head.
    rest: usize,
}

impl Gathered {
    pub(super) fn new(patterns: &Rc<[Pattern]>) -> Self {
        Self { patterns: Rc::clone(patterns), head: Vec::new(), gathering: false, skipping: false, rest: 0 }
    }

    /// A text begins, so many bytes into its part. Answers whether it is gathered.
    #[inline]
    pub(super) fn begin(&mut self, depth: u64) -> bool {
        self.skipping = false;
        self.gathering = !self.patterns.is_empty() && depth < HEAD as u64;
        self.gathering
    }

    /// Whether the pieces of this text must come through here.
    #[inline]
    pub(super) fn is_at_work(&self) -> bool {
        self.gathering || self.skipping
    }

    /// Takes the next piece. Answers whether the head is complete by it: then what is left of the head is to be
    /// taken, and [`Gathered::rest`] of the piece follows it.
    pub(super) fn push(&mut self, piece: &[u8]) -> bool {
        if !self.gathering {
            return false;
        }
        self.rest = piece.len().saturating_sub(HEAD.saturating_sub(self.head.len()));
        let fits = piece.len() - self.rest;
        self.head.extend_from_slice(piece.get(..fits).unwrap_or(piece));
        self.head.len() >= HEAD && self.end()
    }

    /// What of the piece lies behind the head.
    pub(super) fn rest<'a>(&self, piece: &'a [u8]) -> &'a [u8] {
        let from = if self.skipping { piece.len() } else { piece.len().saturating_sub(self.rest) };
        piece.get(from..).unwrap_or(&[])
    }

    /// The text or its head has ended. Answers whether it was being gathered, and is to be taken.
    #[inline]
    pub(super) fn end(&mut self) -> bool {
        if !std::mem::take(&mut self.gathering) {
            return false;
        }
        for pattern in self.patterns.iter() {
            self.skipping |= pattern.leave_out(&mut self.head);
        }
        true
    }

    /// What is left of the head.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }
}
