//! The signals as a shared value: all that the next leader needs to go on.

use super::desired::{Ground, Terms};
use super::{Signals, Smooth};
use crate::core::config;
use crate::core::fleet::Slot;
use crate::core::wire::{Reader, Writer};

/// Layout of the value.
const VERSION: u8 = 1;

/// The numbers of a part, in the order in which they are written and read.
pub type Fields<'a, const N: usize> = [&'a mut f64; N];

impl Signals {
    /// The value for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(VERSION);
        let mut copy = self.clone();
        copy.numbers(|number| value.f64(*number));
        for number in [self.computed_ms, self.whole_ms] {
            value.u64(number);
        }
        let settings = &self.settings;
        for number in [
            self.ready,
            self.desired,
            self.recommended,
            settings.min_replicas,
            settings.max_replicas,
            settings.window_s,
        ] {
            value.u32(number);
        }
        value.u8(u8::from(self.stale) | u8::from(self.rising) << 1);
        value.u8(self.ground as u8);
        value.u16(self.highest.len() as u16);
        for (at_ms, replicas) in &self.highest {
            value.u64(*at_ms);
            value.u32(*replicas);
        }
        self.slots.iter().for_each(|slot| value.u16(slot.0));
        value.finish()
    }

    /// Reads the value; `None` if it is not one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = Reader::new(value, VERSION)?;
        let mut signals = Self::default();
        let mut all_numbers = true;
        signals.numbers(|number| match rest.f64() {
            Some(read) if read.is_finite() && read >= 0.0 => *number = read,
            _ => all_numbers = false,
        });
        if !all_numbers {
            return None;
        }
        (signals.computed_ms, signals.whole_ms) = (rest.u64()?, rest.u64()?);
        (signals.ready, signals.desired, signals.recommended) = (rest.u32()?, rest.u32()?, rest.u32()?);
        let settings = &mut signals.settings;
        (settings.min_replicas, settings.max_replicas, settings.window_s) =
            (rest.u32()?, rest.u32()?, rest.u32()?);
        let flags = rest.u8()?;
        (signals.stale, signals.rising) = (flags & 1 != 0, flags & 2 != 0);
        signals.ground = Ground::ALL.get(usize::from(rest.u8()?)).copied()?;
        for _ in 0..rest.u16()? {
            signals.highest.push((rest.u64()?, rest.u32()?));
        }
        while !rest.is_empty() {
            signals.slots.push(Slot(rest.u16()?));
        }
        Some(signals)
    }

    /// All numbers, one after another.
    fn numbers(&mut self, mut each: impl FnMut(&mut f64)) {
        let Self { settings, knee, terms, .. } = self;
        let config::Signals { waiting_per_replica, backlog_s, knee_share, .. } = settings;
        let Terms { queue, rising, backlog, carry } = terms;
        let Smooth { fast, slow, even, shown, running, backlog: tokens, rate, own, all } = &mut self.smooth;
        let now = [
            &mut self.waiting,
            &mut self.running,
            &mut self.backlog_tokens,
            &mut self.prefill_rate,
            &mut self.saturation,
        ];
        let smooth = [fast, slow, even, shown, running, tokens, rate, own, all];
        let asked = [waiting_per_replica, backlog_s, knee_share, queue, rising, backlog, carry];
        now.into_iter().chain(smooth).chain(asked).chain(knee.fields()).for_each(&mut each);
    }
}
