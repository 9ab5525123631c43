//! The signals as a shared value: all that the next leader needs to go on.

use super::desired::{Ground, Terms};
use super::{Signals, Smooth};
use crate::core::config;
use crate::core::fleet::Slot;
use crate::core::wire::{Reader, Writer};

/// Layout of the value.
const VERSION: u8 = 2;

/// The numbers of a part, in the order in which they are written and read.
pub type Fields<'a, const N: usize> = [&'a mut f64; N];

/// How many numbers there are in all.
const NUMBERS: usize = 28;

impl Signals {
    /// The value for shared data.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(VERSION);
        let mut copy = self.clone();
        for number in copy.numbers() {
            value.f64(*number);
        }
        value.u64(self.computed_ms);
        value.u64(self.whole_ms);
        for whole in copy.wholes() {
            value.u32(*whole);
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
        for number in signals.numbers() {
            *number = rest.f64().filter(|read| read.is_finite() && *read >= 0.0)?;
        }
        signals.computed_ms = rest.u64()?;
        signals.whole_ms = rest.u64()?;
        for whole in signals.wholes() {
            *whole = rest.u32()?;
        }
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

    /// All numbers. A list, and not inlined: each read and written by itself would be kilobytes of wasm.
    #[inline(never)]
    fn numbers(&mut self) -> Vec<&mut f64> {
        let Self { settings, knee, terms, smooth, .. } = self;
        let config::Signals { waiting_per_replica, backlog_s, knee_share, .. } = settings;
        let Terms { queue, shed: turned, rising, backlog, carry } = terms;
        let Smooth { fast, slow, even, shown, running, backlog: tokens, rate, shed, own, all } = smooth;
        let [done, seconds, at_least, calm_running, calm_s] = knee.fields();
        let numbers: [&mut f64; NUMBERS] = [
            &mut self.waiting,
            &mut self.running,
            &mut self.backlog_tokens,
            &mut self.prefill_rate,
            &mut self.saturation,
            waiting_per_replica,
            backlog_s,
            knee_share,
            queue,
            turned,
            rising,
            backlog,
            carry,
            fast,
            slow,
            even,
            shown,
            running,
            tokens,
            rate,
            shed,
            own,
            all,
            done,
            seconds,
            at_least,
            calm_running,
            calm_s,
        ];
        Vec::from(numbers)
    }

    /// All whole numbers.
    #[inline(never)]
    fn wholes(&mut self) -> Vec<&mut u32> {
        let config::Signals { min_replicas, max_replicas, window_s, .. } = &mut self.settings;
        Vec::from([
            &mut self.ready,
            &mut self.desired,
            &mut self.recommended,
            min_replicas,
            max_replicas,
            window_s,
        ])
    }
}
