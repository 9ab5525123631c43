//! Copying a few bytes without a call.
//!
//! A copy of unknown length becomes `memory.copy` in wasm, for which V8 leaves the compiled code: some 10 ns
//! whether it moves one byte or sixty. Prompts come in small pieces (escapes, short messages), so those are
//! copied in steps of known length, which become plain loads and stores.

/// Up to this length, steps beat the call.
const FEW: usize = 64;

/// Copies `from` to the beginning of `to`; what does not fit is left out.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    let len = from.len().min(to.len());
    let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) else { return };
    if len > FEW {
        to.copy_from_slice(from);
        return;
    }
    let mut at = 0;
    while step::<8>(to, from, &mut at) {}
    step::<4>(to, from, &mut at);
    step::<2>(to, from, &mut at);
    step::<1>(to, from, &mut at);
}

/// Copies `N` bytes at `at`, if there are as many, and moves on behind them.
#[inline]
fn step<const N: usize>(to: &mut [u8], from: &[u8], at: &mut usize) -> bool {
    let to = to.get_mut(*at..).and_then(|to| to.first_chunk_mut::<N>());
    let from = from.get(*at..).and_then(|from| from.first_chunk::<N>());
    let (Some(to), Some(from)) = (to, from) else { return false };
    *to = *from;
    *at += N;
    true
}

/// Bytes that are copied at once where few are to be copied.
pub const WIDE: usize = 16;

/// A few bytes kept in place; what does not fit is cut.
#[derive(Debug)]
pub struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Short<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Short<N> {
    /// Forgets them.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// How many more fit.
    #[inline]
    pub fn room(&self) -> usize {
        N - self.len
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Appends the first `len` bytes of `more`, if sixteen can be copied.
    #[inline]
    pub fn push_wide(&mut self, more: &[u8], len: usize) -> bool {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.first_chunk_mut::<WIDE>());
        let (Some(room), Some(more)) = (room, more.first_chunk::<WIDE>()) else { return false };
        *room = *more;
        self.len += len;
        true
    }

    /// Appends bytes; what does not fit is cut.
    #[inline]
    pub fn push(&mut self, more: &[u8]) {
        let fits = more.len().min(self.room());
        copy(self.bytes.get_mut(self.len..).unwrap_or(&mut []), more);
        self.len += fits;
    }
}
