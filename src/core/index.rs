//! Block hash -> hosts that were sent it: who may still hold a prefix?
//!
//! A set-associative table of fixed size: four entries a set, four holders an entry. What cannot be
//! remembered costs a hit, never memory.
//!
//! # Who makes room
//!
//! In a full set a newcomer takes the place of the entry untouched the longest, but entries that were met
//! again, by a second prompt, outlive a few newcomers: `LIVES` for each time they were met, up to
//! `MOST_LIVES`. Each newcomer takes a life off every entry of its set. So prompts that never come again push out
//! each other, not the prefixes that are used now and then; and prefixes that were popular once make room for what is
//! used now.
//!
//! A prompt's own blocks are recorded once each, however its body comes; when Envoy has sent it to another host, they
//! are withdrawn before they are recorded for that one. So a block that has a holder when it is recorded was met again.
//!
//! # Why stamps are tokens, not seconds
//!
//! Engines evict by use, not by age: what pushes a block out is the tokens that entered the cache after
//! it. So a holder is stamped with its host's *virtual clock*, the count of tokens that have entered its
//! cache, and is believed while fewer tokens than the cache's capacity have come since. Idle hosts forget
//! nothing; busy ones forget at their own pace.
//!
//! Cost: a lookup touches one cache line or two; nothing allocates after the first record.

use super::blocks::BlockHash;
use super::fleet::Slot;

/// Entries in a set: enough that a set rarely overflows, few enough for two cache lines.
const WAYS: usize = 4;

/// Entries in a page: 40 KiB.
const PAGE: usize = 1_024;

/// Holders an entry lists. Three or more are indispensable (replay: 1 or 2 cost 40 % and more of mean
/// TTFT at load 0.9); eight bring nothing over four.
pub const HOLDERS: usize = 4;

/// Newcomers to its set that an entry outlives for each time it was met again: as many as a set has, so that it stays
/// for a table's worth of other blocks longer. Replay at load 0.9: with 8, a table of 4,096 entries is 6 % better and
/// one of 16,384 8 % worse, full of conversations that have ended; by age alone they are 36 % and 10 % worse.
const LIVES: u8 = 4;

/// The most newcomers that an entry outlives: what has been met eight times lasts for eight tables' worth. More would
/// keep the popular of yesterday.
const MOST_LIVES: u8 = 32;

/// Clock ticks are this many tokens, so that 32 bits last for years of traffic.
const TOKENS_PER_TICK: u64 = 64;

/// A host's virtual clock at some moment, in ticks of 64 tokens, wrapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u32);

impl Stamp {
    /// The stamp at a clock of `tokens`.
    pub fn at(tokens: u64) -> Self {
        Self((tokens / TOKENS_PER_TICK) as u32)
    }

    /// Tokens that have entered the cache since, when the clock shows `now` tokens. A stamp from a
    /// worker whose clock is ahead is new, not ancient.
    pub fn age(self, now: u64) -> u64 {
        let ticks = Stamp::at(now).0.wrapping_sub(self.0) as i32;
        u64::from(ticks.max(0) as u32) * TOKENS_PER_TICK
    }

    /// The stamp that a journal says.
    pub fn from_ticks(ticks: u32) -> Self {
        Self(ticks)
    }

    /// The stamp as it is written into a journal.
    pub fn ticks(self) -> u32 {
        self.0
    }
}

/// What the index asks of a host when it meets it in an entry.
pub trait Liveness {
    /// Whether `slot` may still hold what it was sent at `stamp`.
    fn holds(&self, slot: Slot, stamp: Stamp) -> bool;

    /// Whether it still holds that and may have requests again later, though none now.
    fn may_return(&self, _slot: Slot, _stamp: Stamp) -> bool {
        false
    }
}

/// The table.
#[derive(Debug)]
pub struct Index {
    entries: usize,
    /// Pages of sets, made when first recorded into: a VM that routes nothing (Envoy's main thread has one)
    /// pays nothing, and no request pays for the whole table.
    pages: Vec<Option<Box<[Entry]>>>,
    /// Counts records; orders entries by when they were last touched.
    touches: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// The block, or 0 for an empty entry.
    hash: u64,
    touched: u32,
    stamps: [u32; HOLDERS],
    /// Slot + 1, or 0 for a free place.
    slots: [u16; HOLDERS],
    /// Whether more hosts were sent the block than are listed.
    overflow: bool,
    /// How often it was met again.
    met: u8,
    /// Newcomers to its set that it outlives.
    lives: u8,
}

// The padding behind `overflow` has room for both: 40 bytes an entry are what the README says.
const _: () = assert!(size_of::<Entry>() == 40);

impl Index {
    /// A table of `entries` entries of 40 bytes, a power of two.
    pub fn new(entries: usize) -> Self {
        let entries = entries.next_power_of_two().max(PAGE);
        Self { entries, pages: vec![None; entries / PAGE], touches: 0 }
    }

    /// Whether the table has this many entries.
    pub fn has_entries(&self, entries: usize) -> bool {
        self.entries == entries
    }

    /// Who may hold the block, or `None` if the block is unknown.
    pub fn holders(&self, block: BlockHash) -> Option<Holders<'_>> {
        let hash = nonzero(block);
        self.set(hash).iter().find(|entry| entry.hash == hash).map(|entry| Holders { entry })
    }

    /// Remembers that `slot` was sent the block at `stamp`. Answers whether that was news to the table:
    /// a holder whose stamp is hardly older needs no telling again.
    pub fn record(&mut self, block: BlockHash, slot: Slot, stamp: Stamp, hosts: &impl Liveness) -> bool {
        self.touches = self.touches.wrapping_add(1);
        let now = self.touches;
        let hash = nonzero(block);
        self.make_page(hash);
        let Some(entry) = place_in(self.set_mut(hash), hash, now) else {
            return false;
        };
        let known = entry.hash == hash;
        if !known {
            let lives = if block.is_lasting() { MOST_LIVES } else { 0 };
            *entry = Entry { hash, lives, ..Entry::default() };
        } else if entry.is_held() {
            entry.meet_again();
        }
        entry.touched = now;
        entry.add(slot, stamp, hosts) || !known
    }

    /// Takes back that `slot` was sent the block: the request was served elsewhere.
    pub fn withdraw(&mut self, block: BlockHash, slot: Slot) {
        let hash = nonzero(block);
        if let Some(entry) = self.set_mut(hash).iter_mut().find(|entry| entry.hash == hash) {
            for place in &mut entry.slots {
                if *place == slot.0 + 1 {
                    *place = 0;
                }
            }
        }
    }

    /// Forgets everything about `slots`: their numbers will be other hosts'. Goes through the whole table once, which takes
    /// a millisecond where it is full.
    pub fn forget(&mut self, slots: &[Slot]) {
        let Some(last) = slots.iter().max() else { return };
        let mut is_forgotten = vec![false; usize::from(last.0) + 2];
        for slot in slots {
            is_forgotten.get_mut(usize::from(slot.0) + 1).into_iter().for_each(|is| *is = true);
        }
        for place in
            self.pages.iter_mut().flatten().flat_map(|page| page.iter_mut()).flat_map(|e| e.slots.iter_mut())
        {
            if is_forgotten.get(usize::from(*place)) == Some(&true) {
                *place = 0;
            }
        }
    }

    /// The page of a hash, and the first entry of its set there.
    fn place(&self, hash: u64) -> (usize, usize) {
        let start = (hash as usize & (self.entries - 1)) & !(WAYS - 1);
        (start / PAGE, start % PAGE)
    }

    fn set(&self, hash: u64) -> &[Entry] {
        let (page, start) = self.place(hash);
        let page = self.pages.get(page).and_then(Option::as_ref);
        page.and_then(|page| page.get(start..start + WAYS)).unwrap_or(&[])
    }

    fn set_mut(&mut self, hash: u64) -> &mut [Entry] {
        let (page, start) = self.place(hash);
        let page = self.pages.get_mut(page).and_then(Option::as_mut);
        page.and_then(|page| page.get_mut(start..start + WAYS)).unwrap_or(&mut [])
    }

    fn make_page(&mut self, hash: u64) {
        let (page, _) = self.place(hash);
        if let Some(page) = self.pages.get_mut(page) {
            page.get_or_insert_with(|| vec![Entry::default(); PAGE].into_boxed_slice());
        }
    }
}

/// The hosts that one entry names.
#[derive(Debug, Clone, Copy)]
pub struct Holders<'a> {
    entry: &'a Entry,
}

impl Holders<'_> {
    /// The listed hosts with the clock at which they were last sent the block.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, Stamp)> + '_ {
        let places = self.entry.slots.iter().zip(self.entry.stamps);
        places.filter(|(&place, _)| place != 0).map(|(&place, stamp)| (Slot(place - 1), Stamp(stamp)))
    }

    /// Whether more hosts hold the block than are listed; an unlisted host counts as a holder then.
    pub fn is_overflowing(&self) -> bool {
        self.entry.overflow
    }
}

impl Entry {
    /// Whether anybody was sent the block.
    fn is_held(&self) -> bool {
        self.slots.iter().any(|place| *place != 0)
    }

    fn meet_again(&mut self) {
        self.met = self.met.saturating_add(1);
        self.lives = self.met.saturating_mul(LIVES).min(MOST_LIVES);
    }

    fn add(&mut self, slot: Slot, stamp: Stamp, hosts: &impl Liveness) -> bool {
        let (mut free, mut unused) = (None, None);
        for (n, (place, old)) in self.slots.iter().zip(&mut self.stamps).enumerate() {
            if *place == slot.0 + 1 {
                // Worth a new stamp only when the old one would expire noticeably sooner: until then it tells when
                // the block first came.
                let is_news = stamp.0.wrapping_sub(*old) as i32 > NEWS_TICKS;
                if is_news {
                    *old = stamp.0;
                }
                return is_news;
            }
            if *place == 0 {
                free.get_or_insert(n);
            } else if !hosts.holds(Slot(*place - 1), Stamp(*old)) {
                // Who may return keeps its place as long as there is another.
                let place =
                    if hosts.may_return(Slot(*place - 1), Stamp(*old)) { &mut unused } else { &mut free };
                place.get_or_insert(n);
            }
        }
        let Some(n) = free.or(unused) else {
            self.overflow = true;
            return false;
        };
        if let (Some(place), Some(old)) = (self.slots.get_mut(n), self.stamps.get_mut(n)) {
            *place = slot.0 + 1;
            *old = stamp.0;
        }
        self.overflow = false;
        true
    }
}

/// How much newer a stamp must be to be worth telling the other workers: 4,096 tokens, a hundredth of
/// a small cache.
const NEWS_TICKS: i32 = 64;

/// The entry of `hash` in its set, else a free one, else the one with the fewest lives left, and of these the one
/// untouched the longest. In that case every entry of the set loses a life.
fn place_in(set: &mut [Entry], hash: u64, now: u32) -> Option<&mut Entry> {
    if !set.iter().any(|entry| entry.hash == hash || entry.hash == 0) {
        for entry in set.iter_mut() {
            entry.lives = entry.lives.saturating_sub(1);
        }
    }
    set.iter_mut().min_by_key(|entry| match entry.hash {
        found if found == hash => (0, 0, 0),
        0 => (1, 0, 0),
        _ => (2, entry.lives, u32::MAX - now.wrapping_sub(entry.touched)),
    })
}

/// 0 marks empty entries.
fn nonzero(block: BlockHash) -> u64 {
    block.0.max(1)
}
