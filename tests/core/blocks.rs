//! The chain against a naive one, whatever the pieces.

use super::support::Numbers;
use super::test;
use kvroute::core::blocks::{BlockHash, Blocks};
use xxhash_rust::xxh3::xxh3_64;

/// The specification: block by block over the whole text.
fn naive(text: &[u8], block_bytes: usize) -> Vec<BlockHash> {
    let mut previous = 0;
    let blocks = text.chunks_exact(block_bytes).map(|block| {
        previous = BlockHash(xxh3_64(block)).under(previous).0;
        BlockHash(previous)
    });
    blocks.collect()
}

#[test]
fn any_cutting_gives_the_naive_chain() {
    let mut numbers = Numbers(1);
    for block_bytes in [1, 32, 256, 300] {
        for len in [0, 1, 31, 256, 257, 4096, 5000] {
            let text: Vec<u8> = (0..len).map(|_| numbers.next() as u8).collect();
            let mut blocks = Blocks::new(block_bytes);
            let mut found = Vec::new();
            let mut rest = text.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(1 + numbers.below(rest.len().min(700) as u64) as usize);
                blocks.push(piece, |hash| found.push(hash));
                rest = after;
            }
            assert_eq!(found, naive(&text, block_bytes));
            assert_eq!(blocks.bytes(), len as u64);
        }
    }
}

#[test]
fn the_unfilled_block_counts() {
    let tail = |text: &[u8]| {
        let mut blocks = Blocks::new(64);
        blocks.push(text, |_| {});
        blocks.tail()
    };
    assert_eq!(tail(b""), None);
    assert_ne!(tail(b"a"), tail(b"b"));
    assert_ne!(tail(&[b'a'; 64]), tail(&[b'a'; 63]));
    assert_eq!(tail(&[b'a'; 70]), tail(&[b'a'; 70]));
}

#[test]
fn a_seed_keeps_equal_text_apart() {
    let mut seen = std::collections::HashSet::new();
    for seed in 0..1000 {
        assert!(seen.insert(BlockHash(7).under(seed)));
    }
    assert_eq!(BlockHash(7).under(3), BlockHash(7).under(3));
}
