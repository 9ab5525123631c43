//! A message's role between the two bytes that frame it.

use crate::core::bytes::copy;

/// A message's role, kept between the two bytes that frame it.
#[derive(Debug, Default)]
pub(super) struct Role {
    framed: [u8; 32],
    len: usize,
}

impl Role {
    /// The longest role that is told apart; real ones are under 16 bytes.
    const MAX: usize = 30;

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        copy(self.framed.get_mut(1 + self.len..=Self::MAX).unwrap_or(&mut []), piece);
        self.len = (self.len + piece.len()).min(Self::MAX);
    }

    /// The role behind `mark`, with the mark `content` behind it.
    pub(super) fn framed(&mut self, mark: u8, content: u8) -> &[u8] {
        let end = self.len + 1;
        if let Some(last) = self.framed.get_mut(end) {
            *last = content;
        }
        if let Some(first) = self.framed.first_mut() {
            *first = mark;
        }
        self.framed.get(..=end).unwrap_or(&[])
    }
}
