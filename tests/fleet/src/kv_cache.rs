//! Which blocks does the engine hold, and which goes first when it needs room? vLLM's block pool: a block is
//! pinned while a running sequence uses it; afterwards it stays, found by its hash, until it is the least recently
//! used of the free ones and its room is needed. Every operation is O(1) a block.

use std::collections::HashMap;

use crate::prompt::BlockHash;

/// The blocks of one engine. Grows as blocks are first used, up to its capacity.
pub(crate) struct KvCache {
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, BlockId>,
    capacity: usize,
    pinned: usize,
    /// Ends of the list of free blocks that were used before: the next to go, and the last.
    oldest: Option<BlockId>,
    newest: Option<BlockId>,
}

/// A block's place in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockId(usize);

struct Block {
    hash: Option<BlockHash>,
    users: usize,
    older: Option<BlockId>,
    newer: Option<BlockId>,
}

impl KvCache {
    pub(crate) fn new(capacity: usize) -> Self {
        let (blocks, by_hash) = Default::default();
        Self { blocks, by_hash, capacity, pinned: 0, oldest: None, newest: None }
    }

    /// Share of the capacity that running sequences use, 0 to 1. Free blocks do not count, cached or not.
    pub(crate) fn usage(&self) -> f64 {
        self.pinned as f64 / self.capacity as f64
    }

    /// Pins the longest run of `prefix` that is cached and `total - run` more blocks. `None`, with nothing
    /// changed, when there are not that many.
    pub(crate) fn pin_sequence(
        &mut self,
        prefix: &[BlockHash],
        total: usize,
    ) -> Option<(Vec<BlockId>, usize)> {
        let mut blocks: Vec<_> = prefix.iter().map_while(|hash| self.by_hash.get(hash).copied()).collect();
        let hits = blocks.len();
        let free_hits = blocks.iter().filter(|id| self.blocks[id.0].users == 0).count();
        if self.capacity - self.pinned < total - hits + free_hits {
            return None;
        }
        blocks.iter().for_each(|id| self.pin(*id));
        blocks.extend((hits..total).map_while(|_| self.pin_new()));
        Some((blocks, hits))
    }

    /// Pins a block for new tokens, in place of the least recently used free one. `None` when all are pinned.
    pub(crate) fn pin_new(&mut self) -> Option<BlockId> {
        if self.blocks.len() < self.capacity {
            let id = BlockId(self.blocks.len());
            self.blocks.push(Block { hash: None, users: 1, older: None, newer: None });
            self.pinned += 1;
            return Some(id);
        }
        let id = self.oldest?;
        if let Some(hash) = self.blocks[id.0].hash.take() {
            self.by_hash.remove(&hash);
        }
        self.pin(id);
        Some(id)
    }

    /// Makes a full block findable. When another block already bears the hash, that one stays the known one.
    pub(crate) fn publish(&mut self, id: BlockId, hash: BlockHash) {
        if self.blocks[id.0].hash.is_none() && !self.by_hash.contains_key(&hash) {
            self.by_hash.insert(hash, id);
            self.blocks[id.0].hash = Some(hash);
        }
    }

    /// Gives a sequence's blocks back, its last block first: a prefix outlives what followed it.
    pub(crate) fn release(&mut self, blocks: &[BlockId]) {
        for id in blocks.iter().rev() {
            let block = &mut self.blocks[id.0];
            block.users -= 1;
            if block.users > 0 {
                continue;
            }
            (block.older, block.newer) = (self.newest, None);
            match self.newest.replace(*id) {
                Some(before) => self.blocks[before.0].newer = Some(*id),
                None => self.oldest = Some(*id),
            }
            self.pinned -= 1;
        }
    }

    /// Forgets what the free blocks hold. Blocks in use stay.
    pub(crate) fn forget(&mut self) {
        let Self { blocks, by_hash, .. } = self;
        by_hash.retain(|_, id| blocks[id.0].users > 0);
        blocks.iter_mut().filter(|block| block.users == 0).for_each(|block| block.hash = None);
    }

    fn pin(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0];
        block.users += 1;
        if block.users > 1 {
            return;
        }
        let (older, newer) = (block.older.take(), block.newer.take());
        match older {
            Some(older) => self.blocks[older.0].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.blocks[newer.0].older = older,
            None => self.newest = older,
        }
        self.pinned += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Prompt;

    fn hashes(text: &str) -> Vec<BlockHash> {
        Prompt::from_text(text.to_owned(), 1).blocks(1, "mock", None).hashes().to_vec()
    }

    /// Runs one sequence through the cache and gives its hits.
    fn run(cache: &mut KvCache, text: &str) -> usize {
        let hashes = hashes(text);
        let (blocks, hits) = cache.pin_sequence(&hashes, hashes.len()).expect("room");
        blocks.iter().zip(&hashes).for_each(|(id, hash)| cache.publish(*id, *hash));
        cache.release(&blocks);
        hits
    }

    #[test]
    fn a_second_run_hits_and_a_branch_hits_up_to_where_it_parts() {
        let mut cache = KvCache::new(8);
        assert_eq!(run(&mut cache, "abcd"), 0);
        assert_eq!(run(&mut cache, "abcd"), 4);
        assert_eq!(run(&mut cache, "abxy"), 2);
        assert_eq!(run(&mut cache, "bcd"), 0, "the same tokens after another prefix are another block");
    }

    #[test]
    fn the_tail_of_the_least_recently_used_goes_first() {
        let mut cache = KvCache::new(4);
        run(&mut cache, "abc");
        run(&mut cache, "xy");
        assert_eq!(run(&mut cache, "abc"), 2, "only the last block of abc made room");
    }

    #[test]
    fn pinned_blocks_are_never_taken() {
        let mut cache = KvCache::new(4);
        let pinned = hashes("abc");
        let (blocks, _) = cache.pin_sequence(&pinned, 3).expect("room");
        blocks.iter().zip(&pinned).for_each(|(id, hash)| cache.publish(*id, *hash));
        assert!(cache.pin_sequence(&hashes("xy"), 2).is_none());
        assert_eq!(cache.usage(), 0.75);
        let (shared, hits) = cache.pin_sequence(&pinned, 4).expect("shares three, takes one");
        assert_eq!(hits, 3);
        cache.release(&shared);
        assert_eq!(cache.usage(), 0.75);
        cache.release(&blocks);
        assert_eq!(cache.usage(), 0.0);
        cache.forget();
        assert_eq!(run(&mut cache, "abc"), 0);
    }
}
