//! What one worker tells the others: where it placed which prefixes, and what it has in flight.
//!
//! Every Envoy worker has its own VM and its own index. Each publishes one value in shared data at its
//! tick: a heartbeat, its books, and its last few batches of placements under rising numbers, so that a
//! reader whose tick comes late still finds what it missed. Everything is bounded: what does not fit is
//! not told, which costs a hit and nothing else.

use super::blocks::BlockHash;
use super::fleet::Slot;
use super::health::{Seen, Why};
use super::index::Stamp;
use super::wire::{Reader, Writer};
use std::collections::VecDeque;

/// Layout of a worker's value.
const VERSION: u8 = 2;

/// Bytes of placements told in one tick: at 20 ticks a second, some 2,000 requests a second and worker.
const MAX_BATCH: usize = 16 << 10;

/// Batches kept in the value: a reader may miss three ticks without missing a placement.
const KEPT_BATCHES: usize = 4;

/// That a prompt was sent to a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The host.
    pub slot: Slot,
    /// Its virtual clock then.
    pub stamp: Stamp,
    /// The blocks, under their seeds.
    pub blocks: Vec<BlockHash>,
}

/// What a worker has in flight on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding {
    /// The host.
    pub slot: Slot,
    /// Requests.
    pub requests: u32,
    /// Uncached prompt tokens without a first byte.
    pub prefill_tokens: u64,
}

/// The head of a worker's value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bulletin {
    /// Who wrote it: drawn anew by each VM.
    pub worker: u64,
    /// When, in milliseconds of the wall clock.
    pub at_ms: u64,
    /// What the worker has in flight: to be taken back from the gauges should it die.
    pub holdings: Vec<Holding>,
    /// Hosts that gave it a byte lately, and how many milliseconds before.
    pub bytes: Vec<(Slot, u16)>,
    /// What it has against hosts, or for them; at most [`MOST_SEEN`].
    pub seen: Vec<(Slot, Seen)>,
}

/// Hosts that one worker says something for or against. Where more fail than that it is not the hosts.
pub const MOST_SEEN: usize = 64;

/// What this worker has to tell.
#[derive(Debug, Default)]
pub struct Outbox {
    open: Writer,
    open_len: usize,
    batches: VecDeque<(u64, Vec<u8>)>,
    next: u64,
    dropped: u64,
}

impl Outbox {
    /// Whether a placement still fits into the next publication.
    pub fn has_room(&self, placement: &Placement) -> bool {
        self.open_len + told_len(placement) <= MAX_BATCH
    }

    /// Notes a placement for the next publication.
    pub fn note(&mut self, placement: &Placement) {
        let blocks = told_blocks(placement);
        if blocks == 0 || !self.has_room(placement) {
            self.dropped += u64::from(blocks > 0);
            return;
        }
        self.open_len += told_len(placement);
        self.open.u16(placement.slot.0);
        self.open.u32(placement.stamp.ticks());
        self.open.u8(blocks as u8);
        for block in placement.blocks.iter().take(blocks) {
            self.open.u64(block.0);
        }
    }

    /// Placements that did not fit since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// The value to publish.
    pub fn publish(&mut self, bulletin: &Bulletin) -> Vec<u8> {
        if self.open_len > 0 {
            let batch = std::mem::take(&mut self.open).finish();
            self.open_len = 0;
            self.batches.push_back((self.next, batch));
            self.next += 1;
            if self.batches.len() > KEPT_BATCHES {
                self.batches.pop_front();
            }
        }
        let mut value = Writer::new(VERSION);
        value.u64(bulletin.worker);
        value.u64(bulletin.at_ms);
        value.u16(bulletin.holdings.len() as u16);
        for holding in &bulletin.holdings {
            value.u16(holding.slot.0);
            value.u32(holding.requests);
            value.u64(holding.prefill_tokens);
        }
        value.u16(bulletin.bytes.len() as u16);
        for (slot, ago_ms) in &bulletin.bytes {
            value.u16(slot.0);
            value.u16(*ago_ms);
        }
        value.u8(bulletin.seen.len().min(MOST_SEEN) as u8);
        for (slot, seen) in bulletin.seen.iter().take(MOST_SEEN) {
            value.u16(slot.0);
            value.u32(seen.failures);
            value.u64(seen.failed_ms);
            value.u64(seen.until_ms);
            value.u64(seen.good_ms);
            value.u8(seen.why.code());
        }
        for (number, batch) in &self.batches {
            value.u64(*number);
            value.u32(batch.len() as u32);
            value.raw(batch);
        }
        value.finish()
    }
}

/// Blocks of a placement that are told: as many as one byte counts.
fn told_blocks(placement: &Placement) -> usize {
    placement.blocks.len().min(usize::from(u8::MAX))
}

/// Bytes of a placement in a batch.
fn told_len(placement: &Placement) -> usize {
    7 + 8 * told_blocks(placement)
}

/// What has been read of one other worker.
#[derive(Debug, Default, Clone)]
pub struct Inbox {
    worker: u64,
    next: u64,
}

impl Inbox {
    /// Reads a worker's value and hands over the placements that are new. `None` if it is not such a
    /// value; what was whole before the fault has been handed over.
    pub fn read(&mut self, value: &[u8], mut placed: impl FnMut(Placement)) -> Option<Bulletin> {
        let (bulletin, mut rest) = read_head(value)?;
        if bulletin.worker != self.worker {
            *self = Self { worker: bulletin.worker, next: 0 };
        }
        while !rest.is_empty() {
            let number = rest.u64()?;
            let len = rest.u32()? as usize;
            let batch = rest.raw(len)?;
            if number >= self.next {
                // The last number that there is was never told by anyone: there would be none behind it.
                self.next = number.checked_add(1)?;
                read_batch(batch, &mut placed)?;
            }
        }
        Some(bulletin)
    }
}

/// Reads who wrote a value, when, and what it has in flight.
pub fn read_bulletin(value: &[u8]) -> Option<Bulletin> {
    read_head(value).map(|(bulletin, _)| bulletin)
}

fn read_head(value: &[u8]) -> Option<(Bulletin, Reader<'_>)> {
    let mut rest = Reader::new(value, VERSION)?;
    let worker = rest.u64()?;
    let at_ms = rest.u64()?;
    let count = rest.u16()?;
    let mut holdings = Vec::new();
    for _ in 0..count {
        holdings.push(Holding {
            slot: Slot(rest.u16()?),
            requests: rest.u32()?,
            prefill_tokens: rest.u64()?,
        });
    }
    // Loops: to collect options would be two kilobytes of wasm.
    let mut bytes = Vec::new();
    for _ in 0..rest.u16()? {
        bytes.push((Slot(rest.u16()?), rest.u16()?));
    }
    let mut seen = Vec::new();
    for _ in 0..rest.u8()? {
        seen.push(read_seen(&mut rest)?);
    }
    Some((Bulletin { worker, at_ms, holdings, bytes, seen }, rest))
}

fn read_seen(rest: &mut Reader) -> Option<(Slot, Seen)> {
    let slot = Slot(rest.u16()?);
    let seen = Seen {
        failures: rest.u32()?,
        failed_ms: rest.u64()?,
        until_ms: rest.u64()?,
        good_ms: rest.u64()?,
        why: Why::from_code(rest.u8()?)?,
    };
    Some((slot, seen))
}

fn read_batch(batch: &[u8], placed: &mut impl FnMut(Placement)) -> Option<()> {
    let mut rest = Reader::whole(batch);
    while !rest.is_empty() {
        let slot = Slot(rest.u16()?);
        let stamp = Stamp::from_ticks(rest.u32()?);
        let count = rest.u8()?;
        let blocks = (0..count).map(|_| rest.u64().map(BlockHash)).collect::<Option<Vec<_>>>()?;
        placed(Placement { slot, stamp, blocks });
    }
    Some(())
}
