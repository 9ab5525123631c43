//! What are those told who scale the fleet? The leader computes it, about once a second, for shared data and Envoy's gauges.

use super::stats::SignalGauges;
use super::worker::Worker;
use crate::core::config::Config;
use crate::core::fleet::Slot;
use crate::core::signals::{Meter, Signals};

/// Milliseconds between two computations. Followers ask every 15 s or so; rises are to be seen sooner.
const EVERY_MS: u64 = 1_000;

/// One root's part in it.
#[derive(Debug)]
pub struct Publisher {
    gauges: SignalGauges,
    /// While leading.
    meter: Option<Meter>,
}

impl Publisher {
    /// The part of a new root. All series are there from now on, with what was published before, or with as many replicas
    /// as there are hosts: a follower must never read a zero that nobody meant.
    pub fn new(worker: &mut Worker, config: &Config, now_ms: u64) -> Self {
        let gauges = SignalGauges::new();
        let slots: Vec<Slot> = worker.router.fleet().hosts().iter().map(|host| host.slot).collect();
        let published = worker.shared.signals();
        let is_first = published.is_none();
        let signals = published.unwrap_or_else(|| Signals::begin(config.signals, slots.len(), now_ms));
        if is_first {
            worker.shared.publish_signals(&signals);
        }
        gauges.set(&signals, now_ms);
        slots.into_iter().for_each(|slot| worker.gauges.define_load(slot));
        Self { gauges, meter: None }
    }

    /// Computes what is due, if this root `leads`.
    pub fn tick(&mut self, worker: &mut Worker, config: &Config, leads: bool, now_ms: u64) {
        if !leads {
            self.meter = None;
            return;
        }
        let hosts = worker.router.fleet().hosts().len();
        let meter = self.meter.get_or_insert_with(|| {
            // Goes on where the last leader stopped.
            let published = worker.shared.signals();
            Meter::from(published.unwrap_or_else(|| Signals::begin(config.signals, hosts, now_ms)))
        });
        // A clock that was set back makes it due, too.
        if now_ms.abs_diff(meter.signals().computed_ms) < EVERY_MS {
            return;
        }
        let before = meter.signals().slots.clone();
        let reading = worker.router.reading(worker.stats.shed.told(), now_ms);
        meter.step(&reading, &config.signals, now_ms);
        worker.shared.publish_signals(meter.signals());
        self.gauges.set(meter.signals(), now_ms);
        for host in reading.hosts.iter().filter(|host| host.is_fresh) {
            worker.gauges.set_load(host.slot, host.waiting, host.running);
        }
        for gone in before.iter().filter(|slot| !meter.signals().slots.contains(slot)) {
            worker.gauges.set_load(*gone, 0.0, 0.0);
        }
    }
}
