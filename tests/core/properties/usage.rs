//! Whatever an engine answers, its end is read in a few kilobytes.

use super::{memory, ways_of_cutting};
use kvroute::core::usage::{Tail, Usage};

pub fn holds(bytes: &[u8]) {
    let ways = ways_of_cutting(bytes);
    let whole = usage(&ways[0]);
    for way in &ways[1..] {
        let told = usage(way);
        // Of longer ones more is kept than must be, which depends on the pieces.
        assert!(told == whole || bytes.len() > Tail::WANTED, "{told:?} {whole:?} {way:?}");
    }
}

fn usage(pieces: &[&[u8]]) -> Option<Usage> {
    let (usage, heap) = memory::most(|| {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail.usage()
    });
    assert!(heap <= 8 * Tail::WANTED, "{heap} bytes");
    usage
}
