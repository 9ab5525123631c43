//! What one gateway tells the others: which prefixes it placed on which host, and what it has in flight.
//!
//! A gateway is one Envoy process with all its workers. Each keeps its last few batches of placements under rising
//! numbers, and whoever asks is answered those it has not heard yet. Hosts are named by address, for slots are each
//! gateway's own; stamps are not told at all, for so are the hosts' virtual clocks: who hears stamps with its own.
//! Nothing here knows the time, so skewed clocks change nothing, and whatever is lost, cut short or told twice costs
//! a hit and nothing else.
//!
//! A gateway tells only what its own workers placed, never what it heard: a placement told on would come back and
//! be stamped anew for ever.

use super::blocks::BlockHash;
use super::config::MAX_HOSTS;
use super::fleet::{Fleet, Own, Slot};
use super::journal::Holding;
use super::wire::{Reader, Writer};

/// Layout of a gateway's value.
const VERSION: u8 = 1;

/// Bytes of placements in one batch: 8,000 blocks, some 300 prompts that nobody has seen before.
const MAX_BATCH: usize = 64 << 10;

/// Bytes of placements that are kept for those who have not asked yet.
const MAX_KEPT: usize = 4 * MAX_BATCH;

/// For how long a batch is kept, in milliseconds, where there is room: a peer may miss a few askings. Not longer, for who
/// hears it then takes it for new.
const KEPT_MS: u64 = 4_000;

/// For how many publications at least: with rare exchanges, a peer that misses two still finds it.
const KEPT_BATCHES: u64 = 4;

/// The longest value there is: the kept batches, and a thousand hosts with their addresses and counts.
pub const MAX_VALUE: usize = 2 * MAX_KEPT;

/// Path under which a gateway answers.
const PATH: &str = "/kvroute/journal";

/// What this gateway has to tell. One worker collects for all.
#[derive(Debug)]
pub struct Outgoing {
    gateway: u64,
    /// For how many publications a batch is kept.
    kept: u64,
    open: Writer,
    open_len: usize,
    batches: Vec<(u64, Vec<u8>)>,
    /// Number of the last publication, and of the batch in it if there was anything to tell.
    last: u64,
    untold: u64,
}

impl Outgoing {
    /// A gateway, known by a number drawn anew by each process, that publishes every `interval_ms`. Goes on where
    /// `published` ends, if that is a value of the same gateway: another of its workers collected before.
    pub fn new(gateway: u64, interval_ms: u64, published: &[u8]) -> Self {
        let mut outgoing = Self {
            gateway,
            kept: (KEPT_MS / interval_ms.max(1)).max(KEPT_BATCHES),
            open: Writer::default(),
            open_len: 0,
            batches: Vec::new(),
            last: 0,
            untold: 0,
        };
        if let Some(value) = Value::decode(published).filter(|value| value.gateway == gateway) {
            outgoing.last = value.last;
            outgoing.batches =
                value.batches.into_iter().map(|(number, batch)| (number, batch.to_vec())).collect();
        }
        outgoing
    }

    /// Notes that a worker of this gateway placed a prompt.
    pub fn note(&mut self, slot: Slot, blocks: &[BlockHash]) {
        let count = blocks.len().min(usize::from(u8::MAX));
        let len = 3 + 8 * count;
        if count == 0 || self.open_len + len > MAX_BATCH {
            self.untold += u64::from(count > 0);
            return;
        }
        self.open_len += len;
        self.open.u16(slot.0);
        self.open.u8(count as u8);
        for block in blocks.iter().take(count) {
            self.open.u64(block.0);
        }
    }

    /// Closes the batch, and answers the value for all that will ask from now on. The fleet says which host a slot
    /// is, and what this gateway has in flight on it.
    pub fn publish(&mut self, fleet: &Fleet) -> Vec<u8> {
        self.last = self.last.saturating_add(1);
        if self.open_len > 0 {
            self.open_len = 0;
            self.batches.push((self.last, std::mem::take(&mut self.open).finish()));
        }
        let oldest = self.last.saturating_sub(self.kept);
        let bytes: usize = self.batches.iter().map(|(_, batch)| batch.len()).sum();
        let mut excess = bytes.saturating_sub(MAX_KEPT);
        self.batches.retain(|(number, batch)| {
            let is_kept = *number > oldest && excess == 0;
            excess = if is_kept { 0 } else { excess.saturating_sub(batch.len()) };
            is_kept
        });
        let hosts = fleet.hosts().get(..MAX_HOSTS).unwrap_or(fleet.hosts()).iter().map(|host| {
            let Own { requests, prefill_tokens, .. } = host.own;
            (host.address.as_str(), Holding { slot: host.slot, requests, prefill_tokens })
        });
        let batches = self.batches.iter().map(|(number, batch)| (*number, batch.as_slice()));
        Value { gateway: self.gateway, last: self.last, hosts: hosts.collect(), batches: batches.collect() }
            .encode()
    }

    /// Placements that no batch had room for, since the last call.
    pub fn take_untold(&mut self) -> u64 {
        std::mem::take(&mut self.untold)
    }
}

/// What a gateway tells, with its hosts as they are called here. Nothing of it has been heard yet.
#[derive(Debug)]
pub struct Told<'a> {
    /// Who tells. One that lists all gateways as its peers finds itself among them.
    pub gateway: u64,
    /// What it has in flight on the hosts that are known here.
    pub in_flight: Vec<Holding>,
    /// Number of its last publication.
    last: u64,
    /// By its slots: which slot the host has here.
    slots: Vec<Option<Slot>>,
    batches: Vec<(u64, &'a [u8])>,
}

impl<'a> Told<'a> {
    /// Reads a value, if it is one; `slot_of` answers the slot that an address has here, if it has one.
    pub fn read(value: &'a [u8], slot_of: &dyn Fn(&str) -> Option<Slot>) -> Option<Self> {
        let Value { gateway, last, hosts, batches } = Value::decode(value)?;
        let (mut slots, mut in_flight) = (Vec::new(), Vec::new());
        for (address, holding) in hosts {
            let (theirs, ours) = (usize::from(holding.slot.0), slot_of(address));
            if slots.len() <= theirs {
                slots.resize(theirs + 1, None);
            }
            *slots.get_mut(theirs)? = ours;
            in_flight.extend(ours.map(|slot| Holding { slot, ..holding }));
        }
        Some(Self { gateway, in_flight, last, slots, batches })
    }
}

/// How far one peer has been heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Incoming {
    /// The process that was heard; another one numbers its batches anew.
    gateway: u64,
    /// The newest publication that was heard.
    after: u64,
}

impl Incoming {
    /// What to ask the peer for: what [`Incoming::hear`] has not heard yet.
    pub fn path(&self) -> String {
        format!("{PATH}?gateway={}&after={}", self.gateway, self.after)
    }

    /// Reads what [`Incoming::path`] asked for. `None` if it is another path; numbers that are missing or garbled ask for
    /// everything.
    pub fn asked(path: &[u8]) -> Option<Self> {
        let query = path.strip_prefix(PATH.as_bytes())?;
        if !query.is_empty() && !query.starts_with(b"?") {
            return None;
        }
        let runs = query.split(|byte| !byte.is_ascii_digit()).filter(|run| !run.is_empty());
        let mut numbers = runs.map(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let mut next = || numbers.next().flatten().unwrap_or(0);
        Some(Self { gateway: next(), after: next() })
    }

    /// What of a value who asked has not heard: all placements, if the gateway is another process by now. What is in
    /// flight comes from `in_flight`, for the value is as old as a tick or an exchange. Hosts of which there is nothing to
    /// say are left out. `None` if it is no such value.
    pub fn select(&self, value: &[u8], mut in_flight: impl FnMut(Slot) -> Holding) -> Option<Vec<u8>> {
        let mut value = Value::decode(value)?;
        let heard = if value.gateway == self.gateway { self.after } else { 0 };
        value.batches.retain(|(number, _)| *number > heard);
        let mut named = vec![false; MAX_HOSTS];
        for (_, batch) in &value.batches {
            // A damaged one is passed on as it is.
            let _ = each_placement(batch, |slot, _| {
                named.get_mut(usize::from(slot.0)).into_iter().for_each(|named| *named = true);
            });
        }
        value.hosts.retain_mut(|(_, holding)| {
            *holding = in_flight(holding.slot);
            holding.requests > 0
                || holding.prefill_tokens > 0
                || named.get(usize::from(holding.slot.0)) == Some(&true)
        });
        Some(value.encode())
    }

    /// Hands over what is new: where each prompt was placed, by the slots that hosts have here. `None` if a batch is
    /// damaged; what stood before the fault has been handed over, what stands behind it will not be.
    pub fn hear(&mut self, told: &Told, mut placed: impl FnMut(Slot, &[BlockHash])) -> Option<()> {
        let heard = if told.gateway == self.gateway { self.after } else { 0 };
        *self = Self { gateway: told.gateway, after: told.last.max(heard) };
        let news = told.batches.iter().filter(|(number, _)| *number > heard);
        let mut blocks = Vec::new();
        for (_, batch) in news {
            each_placement(batch, |theirs, mut rest| {
                blocks.clear();
                blocks.extend(std::iter::from_fn(|| rest.u64().map(BlockHash)));
                // A host that is not in this gateway's list, or has just left the peer's.
                if let Some(slot) = told.slots.get(usize::from(theirs.0)).copied().flatten() {
                    placed(slot, &blocks);
                }
            })?;
        }
        Some(())
    }

    /// Hears nothing of it, and need not be told it again: it is one's own.
    pub fn skip(&mut self, told: &Told) {
        *self = Self { gateway: told.gateway, after: told.last };
    }
}

/// A value as it is written.
struct Value<'a> {
    gateway: u64,
    last: u64,
    /// Addresses, with what is in flight there by the gateway's own slots.
    hosts: Vec<(&'a str, Holding)>,
    batches: Vec<(u64, &'a [u8])>,
}

impl<'a> Value<'a> {
    fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(VERSION);
        value.u64(self.gateway);
        value.u64(self.last);
        value.u16(self.hosts.len() as u16);
        for (address, holding) in &self.hosts {
            value.u16(holding.slot.0);
            value.short_str(address);
            value.u32(holding.requests);
            value.u64(holding.prefill_tokens);
        }
        for (number, batch) in &self.batches {
            value.u64(*number);
            value.u32(batch.len() as u32);
            value.raw(batch);
        }
        value.finish()
    }

    fn decode(value: &'a [u8]) -> Option<Self> {
        let mut rest = Reader::new(value, VERSION)?;
        let (gateway, last) = (rest.u64()?, rest.u64()?);
        let mut hosts = Vec::new();
        for _ in 0..rest.u16()? {
            let (slot, address) = (Slot(rest.u16()?), rest.short_str()?);
            let (requests, prefill_tokens) = (rest.u32()?, rest.u64()?);
            if usize::from(slot.0) >= MAX_HOSTS {
                return None;
            }
            hosts.push((address, Holding { slot, requests, prefill_tokens }));
        }
        let mut batches = Vec::new();
        while !rest.is_empty() {
            let (number, len) = (rest.u64()?, rest.u32()? as usize);
            batches.push((number, rest.raw(len)?));
        }
        Some(Self { gateway, last, hosts, batches })
    }
}

/// Hands over each placement in a batch: the slot of who tells, and the blocks.
fn each_placement(batch: &[u8], mut placed: impl FnMut(Slot, Reader)) -> Option<()> {
    let mut rest = Reader::whole(batch);
    while !rest.is_empty() {
        let (slot, count) = (Slot(rest.u16()?), usize::from(rest.u8()?));
        placed(slot, Reader::whole(rest.raw(8 * count)?));
    }
    Some(())
}
