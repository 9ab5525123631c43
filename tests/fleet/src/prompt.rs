//! How many tokens is a prompt, and which cache blocks does it fill? A stand-in for a tokenizer: a fixed number
//! of bytes is a token, so a block is a run of bytes, and equal prefixes give equal block hashes. Costs one pass
//! of xxh3 over the prompt.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of a token that came as an id.
pub(crate) const ID_BYTES: usize = 4;

/// A prompt as the engine sees it: bytes, of which `token_bytes` make one token.
pub(crate) struct Prompt {
    bytes: Vec<u8>,
    token_bytes: usize,
}

/// Names one cache block: the tokens in it and everything before them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockHash(u64);

/// The full blocks of a sequence in order, and the bytes of the one being filled.
#[derive(Clone)]
pub(crate) struct BlockChain {
    hashes: Vec<BlockHash>,
    open: Vec<u8>,
    block_bytes: usize,
    parent: u64,
}

impl Prompt {
    pub(crate) fn from_text(text: String, token_bytes: usize) -> Self {
        Self { bytes: text.into_bytes(), token_bytes }
    }

    pub(crate) fn from_ids(ids: &[u32]) -> Self {
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Self { bytes, token_bytes: ID_BYTES }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.bytes.len().div_ceil(self.token_bytes)
    }

    pub(crate) fn token_bytes(&self) -> usize {
        self.token_bytes
    }

    /// The blocks of this prompt. As in vLLM, what separates caches (`model` is the base model's or the LoRA
    /// adapter's name, `salt` the request's `cache_salt`) goes in before the first block and thereby into all.
    pub(crate) fn blocks(&self, block_size: usize, model: &str, salt: Option<&str>) -> BlockChain {
        let model = xxh3_64(model.as_bytes());
        let parent = salt.map_or(model, |salt| xxh3_64_with_seed(salt.as_bytes(), model));
        let block_bytes = block_size * self.token_bytes;
        let mut chain = BlockChain { hashes: Vec::new(), open: Vec::new(), block_bytes, parent };
        chain.extend(&self.bytes);
        chain
    }

    /// What no cache is to know: the prompt of a pooling model.
    pub(crate) fn no_blocks(&self, block_size: usize) -> BlockChain {
        let (hashes, open) = Default::default();
        BlockChain { hashes, open, block_bytes: block_size * self.token_bytes, parent: 0 }
    }

    /// The ids of its tokens. With tokens of four bytes, a prompt of these ids is the same prompt.
    pub(crate) fn ids(&self) -> Vec<u64> {
        token_ids(&self.bytes, self.token_bytes)
    }

    /// What the answer is derived from.
    pub(crate) fn seed(&self) -> u64 {
        xxh3_64(&self.bytes)
    }
}

impl BlockHash {
    /// The hash itself.
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

impl BlockChain {
    /// Adds what follows: a prompt's bytes or a generated token's.
    pub(crate) fn extend(&mut self, mut bytes: &[u8]) {
        if !self.open.is_empty() {
            let missing = self.block_bytes - self.open.len();
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            self.open.extend_from_slice(head);
            bytes = rest;
            if self.open.len() < self.block_bytes {
                return;
            }
            let full = std::mem::take(&mut self.open);
            self.close_block(&full);
        }
        let full_blocks = bytes.chunks_exact(self.block_bytes);
        self.open.extend_from_slice(full_blocks.remainder());
        full_blocks.for_each(|block| self.close_block(block));
    }

    pub(crate) fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Names the block being filled, as far as it is; `None` between two blocks. No cache knows it by this name.
    pub(crate) fn open_block(&self) -> Option<BlockHash> {
        (!self.open.is_empty()).then(|| BlockHash(xxh3_64_with_seed(&self.open, self.parent)))
    }

    fn close_block(&mut self, block: &[u8]) {
        self.parent = xxh3_64_with_seed(block, self.parent);
        self.hashes.push(BlockHash(self.parent));
    }
}

/// The ids of a text's tokens: their bytes, read as a number.
pub(crate) fn token_ids(text: &[u8], token_bytes: usize) -> Vec<u64> {
    let id = |token: &[u8]| token.iter().rev().fold(0, |id, byte| id << 8 | u64::from(*byte));
    text.chunks(token_bytes).map(id).collect()
}

/// The text of such ids.
pub(crate) fn text_of(ids: &[u64]) -> String {
    let bytes = |id: &u64| {
        let bytes = id.to_le_bytes();
        let length = bytes.len() - id.leading_zeros() as usize / 8;
        bytes.into_iter().take(length)
    };
    String::from_utf8_lossy(&ids.iter().flat_map(bytes).collect::<Vec<_>>()).into_owned()
}

/// The text of the `n`th generated token: a space and letters, drawn from `seed`. ASCII that needs no JSON escape.
pub(crate) fn push_generated(text: &mut impl Extend<u8>, seed: u64, n: usize, token_bytes: usize) {
    let mut letters = xxh3_64_with_seed(&(n as u64).to_le_bytes(), seed);
    text.extend((0..token_bytes).map(|at| {
        if at == 0 && token_bytes > 1 {
            return b' ';
        }
        let letter = (letters % 26) as u8;
        letters /= 26;
        b'a' + letter
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(text: &str) -> BlockChain {
        Prompt::from_text(text.to_owned(), 4).blocks(2, "mock", None)
    }

    #[test]
    fn only_full_blocks_are_hashed_and_each_names_all_before_it() {
        let text = "eight by|eight by|tail";
        let blocks = chain(text);
        assert_eq!(blocks.hashes().len(), 2);
        assert_ne!(blocks.hashes()[0], blocks.hashes()[1]);
        assert_eq!(blocks.hashes()[..1], chain("eight by|other").hashes()[..1]);
    }

    #[test]
    fn a_chain_grown_byte_by_byte_equals_one_made_at_once() {
        let text = "a prompt of some length, not a multiple of a block";
        let mut grown = chain("");
        text.bytes().for_each(|byte| grown.extend(&[byte]));
        assert_eq!(grown.hashes(), chain(text).hashes());
    }

    #[test]
    fn the_ids_of_a_text_are_the_text_again() {
        let text = "a text of some length";
        for token_bytes in 1..=8 {
            assert_eq!(text_of(&token_ids(text.as_bytes(), token_bytes)), text);
        }
    }

    #[test]
    fn a_part_of_a_token_counts_as_one() {
        assert_eq!(Prompt::from_text("12345".to_owned(), 4).tokens(), 2);
        assert_eq!(Prompt::from_ids(&[1, 2, 3]).tokens(), 3);
    }
}
