//! What is in an engine's KV cache? Blocks found by id, pinned while a sequence runs, evicted least recently
//! used first.
//!
//! Like vLLM's: a block is shared by all sequences with its prefix, a freed block stays until its place is needed,
//! and of one sequence's blocks the last goes first.

use rustc_hash::FxHashMap;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Block {
    id: u64,
    tokens: u32,
    pins: u32,
    older: u32,
    newer: u32,
}

/// A cache of bounded size.
#[derive(Debug)]
pub struct KvCache {
    capacity: u64,
    /// Tokens of cached blocks, pinned or not.
    cached: u64,
    /// Of these, tokens of blocks that nobody pins.
    free: u64,
    /// Tokens of running sequences that are not cached blocks.
    private: u64,
    places: FxHashMap<u64, u32>,
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl KvCache {
    /// A cache of `capacity` tokens.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            cached: 0,
            free: 0,
            private: 0,
            places: FxHashMap::default(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Tokens it can hold.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Share of it that running sequences use.
    pub fn usage(&self) -> f64 {
        (self.private + self.cached - self.free) as f64 / self.capacity as f64
    }

    /// Whether a block is there.
    pub fn has(&self, id: u64) -> bool {
        self.places.contains_key(&id)
    }

    /// Whether `tokens` more could be reserved, evicting what nobody pins.
    pub fn has_room(&self, tokens: u64) -> bool {
        self.private + self.cached - self.free + tokens <= self.capacity
    }

    /// Reserves `tokens` for a sequence, evicting what nobody pins.
    pub fn reserve(&mut self, tokens: u64) {
        self.private += tokens;
        while self.private + self.cached > self.capacity && self.oldest != NONE {
            self.evict();
        }
    }

    /// Gives reserved tokens back.
    pub fn release(&mut self, tokens: u64) {
        self.private -= tokens;
    }

    /// Pins a block that is there.
    pub fn pin(&mut self, id: u64) {
        let place = self.places[&id];
        let block = self.blocks[place as usize];
        if block.pins == 0 {
            self.unlink(place);
            self.free -= u64::from(block.tokens);
        }
        self.blocks[place as usize].pins += 1;
    }

    /// Gives a pinned block back; freed later means kept longer.
    pub fn unpin(&mut self, id: u64) {
        let place = self.places[&id];
        self.blocks[place as usize].pins -= 1;
        if self.blocks[place as usize].pins == 0 {
            self.free += u64::from(self.blocks[place as usize].tokens);
            self.link(place);
        }
    }

    /// Turns `tokens` reserved tokens into a pinned block, unless the block is there already: then the sequence keeps
    /// its own copy, and the answer is `false`.
    pub fn insert(&mut self, id: u64, tokens: u32) -> bool {
        if self.has(id) {
            return false;
        }
        self.private -= u64::from(tokens);
        self.cached += u64::from(tokens);
        let block = Block { id, tokens, pins: 1, older: NONE, newer: NONE };
        let place = match self.vacant.pop() {
            Some(place) => {
                self.blocks[place as usize] = block;
                place
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        };
        self.places.insert(id, place);
        true
    }

    fn evict(&mut self) {
        let place = self.oldest;
        self.unlink(place);
        let block = self.blocks[place as usize];
        self.places.remove(&block.id);
        self.vacant.push(place);
        self.cached -= u64::from(block.tokens);
        self.free -= u64::from(block.tokens);
    }

    fn unlink(&mut self, place: u32) {
        let Block { older, newer, .. } = self.blocks[place as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
    }

    fn link(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.newest, place);
        self.blocks[place as usize].older = older;
        self.blocks[place as usize].newer = NONE;
        match older {
            NONE => self.oldest = place,
            older => self.blocks[older as usize].newer = place,
        }
    }
}
