//! What holds of every reader of bytes from outside, whatever the bytes are.
//!
//! Each module has one function, `holds`, that takes any bytes and panics where the reader does something it must not:
//! panic, tell something else when the same bytes come in other pieces, grow without bound, or differ from an oracle.
//! `hostile` feeds them from proptest, on stable; `tests/fuzz` from libFuzzer.

pub mod clusters;
pub mod configuration;
pub mod exposition;
pub mod journal;
pub mod json;
pub mod memory;
pub mod orca;
pub mod peers;
pub mod prompt;
pub mod scanner;
pub mod usage;

/// The same bytes in pieces, in many ways; the first is in one.
pub fn ways_of_cutting(bytes: &[u8]) -> Vec<Vec<&[u8]>> {
    const LENGTHS: [&[usize]; 6] = [&[usize::MAX], &[1], &[2, 7], &[16], &[17, 1, 64], &[100, 3]];
    let mut ways: Vec<_> = LENGTHS.iter().map(|lengths| cut(bytes, lengths)).collect();
    // In two, at every place: where there are few.
    let few = if bytes.len() <= 160 { bytes.len() } else { 0 };
    ways.extend((1..few).map(|at| vec![&bytes[..at], &bytes[at..]]));
    ways
}

/// Pieces of the lengths given, over and over.
pub fn cut<'a>(mut bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut lengths = lengths.iter().cycle();
    while let (false, Some(length)) = (bytes.is_empty(), lengths.next()) {
        let (piece, rest) = bytes.split_at((*length).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// Bytes as a source of choices; zeros behind their end.
pub struct Source<'a>(pub &'a [u8]);

impl<'a> Source<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().map_or((0, self.0), |(byte, rest)| (*byte, rest));
        self.0 = rest;
        byte
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub fn u64(&mut self) -> u64 {
        // Small, large and middling ones alike.
        let word = u64::from_le_bytes([0; 8].map(|_: u8| self.u8()));
        word >> (self.u8() % 64)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u16()) % bound.max(1)
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn list<T>(&mut self, most: usize, mut each: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = self.below(most + 1);
        let mut list = Vec::new();
        while list.len() < len && !self.is_empty() {
            list.push(each(self));
        }
        list
    }
}

/// Whether two numbers are the same but for the last bits.
pub fn nearly(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= a.abs().max(b.abs()) * 1e-12 + f64::MIN_POSITIVE
}
