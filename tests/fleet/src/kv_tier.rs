//! Which blocks can engines have of each other? A KV tier that a fleet shares, as LMCache or another of vLLM's connectors
//! keeps one in a host's memory: what any engine has computed is put there, and what is used least goes when room is
//! needed. Engines come and go, and their own caches with them; the tier stays. Every operation is O(log n) a block.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::prompt::BlockHash;

/// The tier of a fleet. Clones are the same tier.
#[derive(Clone)]
pub(crate) struct KvTier(Arc<Mutex<Store>>);

struct Store {
    capacity_tokens: usize,
    tokens: usize,
    blocks: HashMap<BlockHash, Block>,
    /// The blocks by when they were used, the next to go first.
    by_use: BTreeMap<u64, BlockHash>,
    uses: u64,
}

#[derive(Clone, Copy)]
struct Block {
    /// Engines may differ in the size of their blocks.
    tokens: usize,
    used: u64,
}

impl KvTier {
    pub(crate) fn new(capacity_tokens: usize) -> Self {
        let (blocks, by_use) = Default::default();
        Self(Arc::new(Mutex::new(Store { capacity_tokens, tokens: 0, blocks, by_use, uses: 0 })))
    }

    /// How many of these blocks are there, up to the first that is not.
    pub(crate) fn run(&self, blocks: &[BlockHash]) -> usize {
        let store = self.lock();
        blocks.iter().take_while(|hash| store.blocks.contains_key(hash)).count()
    }

    /// Puts a sequence's blocks in, its last block first: a prefix outlives what followed it. Those that are there have been
    /// used once more.
    pub(crate) fn put(&self, blocks: &[BlockHash], block_tokens: usize) {
        let mut store = self.lock();
        blocks.iter().rev().for_each(|hash| store.put(*hash, block_tokens));
        store.make_room();
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    fn put(&mut self, hash: BlockHash, tokens: usize) {
        self.uses += 1;
        let used = self.uses;
        match self.blocks.insert(hash, Block { tokens, used }) {
            Some(before) => drop(self.by_use.remove(&before.used)),
            None => self.tokens += tokens,
        }
        self.by_use.insert(used, hash);
    }

    fn make_room(&mut self) {
        while self.tokens > self.capacity_tokens {
            let Some((_, hash)) = self.by_use.pop_first() else { return };
            let gone = self.blocks.remove(&hash);
            self.tokens -= gone.map_or(0, |block| block.tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Prompt;

    fn hashes(text: &str) -> Vec<BlockHash> {
        Prompt::from_text(text.to_owned(), 1).blocks(1, "mock", None).hashes().to_vec()
    }

    #[test]
    fn blocks_are_there_up_to_where_a_prompt_parts_from_what_was_put_in() {
        let tier = KvTier::new(8);
        tier.put(&hashes("abcd"), 1);
        let found = ["abcd", "abxy", "bcd"].map(|text| tier.clone().run(&hashes(text)));
        assert_eq!(found, [4, 2, 0]);
    }

    #[test]
    fn the_tail_of_the_least_recently_used_goes_first_by_tokens() {
        let tier = KvTier::new(16);
        tier.put(&hashes("abc"), 4);
        tier.put(&hashes("x"), 4);
        tier.put(&hashes("abc"), 4);
        tier.put(&hashes("yz"), 4);
        let found = ["abc", "x", "yz"].map(|text| tier.run(&hashes(text)));
        assert_eq!(found, [2, 0, 2], "four blocks of four tokens");
    }

    #[test]
    fn what_is_larger_than_the_tier_keeps_its_beginning() {
        let tier = KvTier::new(3);
        tier.put(&hashes("abcdef"), 1);
        assert_eq!(tier.run(&hashes("abcdef")), 3);
    }
}
