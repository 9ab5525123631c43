//! Which hosts are believed to hold how much of a prompt? What was sent where, least recently sent forgotten first.
//!
//! A block that anyone holds has a row of bits, one for each host. A look-up walks down the prompt and keeps the hosts
//! whose bit is set in every row so far: one hash look-up for each block, however many hosts there are.

use crate::trace::Request;
use rustc_hash::FxHashMap;

const NONE: u32 = u32::MAX;

/// Which of a prompt's blocks is forgotten first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgets {
    /// Its first: a plain LRU that is written in reading order.
    Head,
    /// Its last: a tree that is cut back from its leaves.
    Tail,
}

/// One gateway's memory of what it sent where.
#[derive(Debug)]
pub struct PrefixIndex {
    forgets: Forgets,
    row_of: FxHashMap<u64, u32>,
    rows: Vec<Row>,
    vacant_rows: Vec<u32>,
    /// `words` words of bits for each row; a bit is a slot.
    bits: Vec<u64>,
    words: usize,
    entries: Vec<Entry>,
    vacant_entries: Vec<u32>,
    slots: Vec<Slot>,
    slot_of: FxHashMap<usize, usize>,
    vacant_slots: Vec<usize>,
    /// The last look-up: hosts that still match, blocks that matched by slot, and the prompt's size.
    live: Vec<u64>,
    matched: Vec<u32>,
    block_tokens: u32,
    prompt_tokens: u32,
}

/// A block that somebody holds.
#[derive(Debug, Clone, Copy)]
struct Row {
    id: u64,
    /// The first of its holders' entries.
    first: u32,
}

/// A host: the ends of the list of what it holds, by age.
#[derive(Debug, Clone, Copy)]
struct Slot {
    oldest: u32,
    newest: u32,
    tokens: u64,
}

/// A block that a host holds.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at_us: u64,
    row: u32,
    slot: u32,
    tokens: u32,
    older: u32,
    newer: u32,
    /// The next entry of the row.
    next: u32,
}

impl PrefixIndex {
    /// An empty one.
    pub fn new(forgets: Forgets) -> Self {
        Self {
            forgets,
            row_of: FxHashMap::default(),
            rows: Vec::new(),
            vacant_rows: Vec::new(),
            bits: Vec::new(),
            words: 1,
            entries: Vec::new(),
            vacant_entries: Vec::new(),
            slots: Vec::new(),
            slot_of: FxHashMap::default(),
            vacant_slots: Vec::new(),
            live: Vec::new(),
            matched: Vec::new(),
            block_tokens: 1,
            prompt_tokens: 0,
        }
    }

    /// Looks up a prompt: [`PrefixIndex::matched`] answers for it from now on.
    pub fn look_up(&mut self, request: &Request, block_tokens: u32) {
        self.block_tokens = block_tokens;
        self.prompt_tokens = request.prompt_tokens;
        self.matched.clear();
        self.matched.resize(self.slots.len(), 0);
        self.live.clear();
        self.live.resize(self.words, !0);
        for (depth, id) in request.ids.iter().enumerate() {
            let Some(&row) = self.row_of.get(id) else { break };
            let begin = row as usize * self.words;
            let mut any = 0;
            for (word, (live, bits)) in self.live.iter_mut().zip(&self.bits[begin..]).enumerate() {
                *live &= bits;
                any |= *live;
                let mut rest = *live;
                while rest != 0 {
                    let slot = word * 64 + rest.trailing_zeros() as usize;
                    self.matched[slot] = depth as u32 + 1;
                    rest &= rest - 1;
                }
            }
            if any == 0 {
                break;
            }
        }
    }

    /// Tokens at the front of the prompt that was looked up last that a host is believed to hold.
    pub fn matched(&self, host: usize) -> u32 {
        let blocks = self.slot_of.get(&host).and_then(|slot| self.matched.get(*slot)).copied().unwrap_or(0);
        blocks.saturating_mul(self.block_tokens).min(self.prompt_tokens)
    }

    /// Tokens that a host is believed to hold in all.
    pub fn held(&self, host: usize) -> u64 {
        self.slot_of.get(&host).map_or(0, |slot| self.slots[*slot].tokens)
    }

    /// Remembers that a prompt was sent to a host, which holds `capacity` tokens.
    pub fn sent(&mut self, host: usize, request: &Request, block_tokens: u32, capacity: u64, now_us: u64) {
        let slot = self.slot(host);
        let blocks = request.ids.len();
        for n in 0..blocks {
            let depth = if self.forgets == Forgets::Head { n } else { blocks - 1 - n };
            let begin = (depth as u32).saturating_mul(block_tokens);
            let tokens = request.prompt_tokens.saturating_sub(begin).min(block_tokens);
            self.touch(slot, request.ids[depth], tokens, now_us);
        }
        while self.slots[slot].tokens > capacity {
            self.forget_oldest(slot);
        }
    }

    /// Forgets what was last sent before `before_us`.
    pub fn expire(&mut self, before_us: u64) {
        for slot in 0..self.slots.len() {
            while self.oldest(slot).is_some_and(|entry| entry.at_us < before_us) {
                self.forget_oldest(slot);
            }
        }
    }

    /// Forgets all hosts but these.
    pub fn retain(&mut self, hosts: &[usize]) {
        let gone: Vec<(usize, usize)> =
            self.slot_of.iter().filter(|(host, _)| !hosts.contains(host)).map(|(h, s)| (*h, *s)).collect();
        for (host, slot) in gone {
            while self.oldest(slot).is_some() {
                self.forget_oldest(slot);
            }
            self.slot_of.remove(&host);
            self.vacant_slots.push(slot);
        }
    }

    fn slot(&mut self, host: usize) -> usize {
        if let Some(&slot) = self.slot_of.get(&host) {
            return slot;
        }
        let slot = self.vacant_slots.pop().unwrap_or_else(|| {
            self.slots.push(Slot { oldest: NONE, newest: NONE, tokens: 0 });
            self.slots.len() - 1
        });
        self.slot_of.insert(host, slot);
        if slot >= self.words * 64 {
            self.widen();
        }
        slot
    }

    fn widen(&mut self) {
        let mut bits = Vec::with_capacity(self.bits.len() * 2);
        for row in self.bits.chunks(self.words) {
            bits.extend_from_slice(row);
            bits.resize(bits.len() + self.words, 0);
        }
        self.bits = bits;
        self.words *= 2;
    }

    fn touch(&mut self, slot: usize, id: u64, tokens: u32, now_us: u64) {
        let row = match self.row_of.get(&id) {
            Some(&row) => row,
            None => self.add_row(id),
        };
        let bits = &mut self.bits[row as usize * self.words + slot / 64];
        let bit = 1 << (slot % 64);
        if *bits & bit != 0 {
            let mut place = self.rows[row as usize].first;
            while self.entries[place as usize].slot as usize != slot {
                place = self.entries[place as usize].next;
            }
            self.unlink(place);
            self.entries[place as usize].at_us = now_us;
            self.link(place);
            return;
        }
        *bits |= bit;
        self.slots[slot].tokens += u64::from(tokens);
        let next = self.rows[row as usize].first;
        let entry = Entry { at_us: now_us, row, slot: slot as u32, tokens, older: NONE, newer: NONE, next };
        let place = put(&mut self.entries, &mut self.vacant_entries, entry);
        self.rows[row as usize].first = place;
        self.link(place);
    }

    fn add_row(&mut self, id: u64) -> u32 {
        let row = put(&mut self.rows, &mut self.vacant_rows, Row { id, first: NONE });
        self.bits.resize(self.rows.len() * self.words, 0);
        self.row_of.insert(id, row);
        row
    }

    fn oldest(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(self.slots[slot].oldest as usize)
    }

    fn forget_oldest(&mut self, slot: usize) {
        let Some(&entry) = self.oldest(slot) else { return };
        let place = self.slots[slot].oldest;
        self.unlink(place);
        self.vacant_entries.push(place);
        self.slots[slot].tokens -= u64::from(entry.tokens);
        self.bits[entry.row as usize * self.words + slot / 64] &= !(1 << (slot % 64));

        let row = &mut self.rows[entry.row as usize];
        if row.first == place {
            row.first = entry.next;
            if entry.next == NONE {
                self.row_of.remove(&row.id);
                self.vacant_rows.push(entry.row);
            }
            return;
        }
        let mut before = row.first;
        while self.entries[before as usize].next != place {
            before = self.entries[before as usize].next;
        }
        self.entries[before as usize].next = entry.next;
    }

    fn unlink(&mut self, place: u32) {
        let Entry { slot, older, newer, .. } = self.entries[place as usize];
        match older {
            NONE => self.slots[slot as usize].oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.slots[slot as usize].newest = older,
            newer => self.entries[newer as usize].older = older,
        }
    }

    fn link(&mut self, place: u32) {
        let slot = &mut self.slots[self.entries[place as usize].slot as usize];
        let older = std::mem::replace(&mut slot.newest, place);
        if older == NONE {
            slot.oldest = place;
        } else {
            self.entries[older as usize].newer = place;
        }
        let entry = &mut self.entries[place as usize];
        (entry.older, entry.newer) = (older, NONE);
    }
}

/// Puts a thing in a vacant place, or at the end.
fn put<T>(things: &mut Vec<T>, vacant: &mut Vec<u32>, thing: T) -> u32 {
    match vacant.pop() {
        Some(place) => {
            things[place as usize] = thing;
            place
        }
        None => {
            things.push(thing);
            (things.len() - 1) as u32
        }
    }
}
