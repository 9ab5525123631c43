//! Which LoRA adapters does a host have loaded, and what does it cost to load one?
//!
//! An engine names the adapters of the requests that it has right now, and none once they are done; but an adapter
//! stays loaded until others need its place. So those named last are kept, as many as the engine has places for, and
//! forgotten when it restarts. Nobody configures them: an adapter is a model name of which only the engines know.

use super::fleet::Host;
use super::load::Freshness;
use super::prompt::text_digest;

/// Adapters kept of a host. Engines have places for one to eight mostly (`--max-loras`); a host with more is taken to
/// have only those that were named last.
pub const MOST_ADAPTERS: usize = 16;

/// Digests of the adapters that a host has loaded, the one named last first; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Adapters([u64; MOST_ADAPTERS]);

impl Adapters {
    /// What is loaded once an engine with `places` for adapters has named these.
    pub fn named(mut self, names: &[String], places: Option<f64>) -> Self {
        for name in names.iter().take(MOST_ADAPTERS).rev() {
            self.put_first(text_digest(name.as_bytes()));
        }
        let places = places.map_or(MOST_ADAPTERS, |places| places as usize).max(names.len());
        self.0.iter_mut().skip(places).for_each(|adapter| *adapter = 0);
        self
    }

    /// Those that [`Adapters::iter`] named.
    pub fn from_digests(digests: impl Iterator<Item = u64>) -> Self {
        let mut adapters = Self::default();
        adapters.0.iter_mut().zip(digests).for_each(|(place, adapter)| *place = adapter);
        adapters
    }

    /// The digests, as [`text_digest`] makes them.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().copied().take_while(|adapter| *adapter != 0)
    }

    /// Whether the adapter with this digest is loaded.
    pub fn has(&self, model: u64) -> bool {
        self.iter().any(|adapter| adapter == model)
    }

    fn put_first(&mut self, adapter: u64) {
        let mut carried = adapter;
        for place in &mut self.0 {
            std::mem::swap(place, &mut carried);
            if carried == adapter || carried == 0 {
                break;
            }
        }
    }
}

/// What loading a request's adapter costs on each host. Nothing anywhere while no host is known to have it: then its
/// name is the base model's, or an adapter's that everyone has to load.
#[derive(Debug, Clone, Copy)]
pub struct Loading {
    model: u64,
    freshness: Freshness,
    /// Where the adapter is not.
    absent_s: f64,
    /// On a host that has not answered lately: what it costs on one that has, on average.
    unknown_s: f64,
}

impl Loading {
    /// The cost for a model, where loading takes `load_ms` and these hosts may take the request.
    pub fn of<'a>(
        model: u64,
        hosts: impl Iterator<Item = &'a Host>,
        freshness: Freshness,
        load_ms: f64,
    ) -> Self {
        let (mut known, mut having) = (0_u32, 0_u32);
        for host in hosts.filter(|host| freshness.is_fresh(host)) {
            known += 1;
            having += u32::from(model != 0 && host.polled.adapters.has(model));
        }
        let absent_s = if having > 0 { load_ms / 1_000.0 } else { 0.0 };
        let absent_share = f64::from(known - having) / f64::from(known.max(1));
        Self { model, freshness, absent_s, unknown_s: absent_s * absent_share }
    }

    /// Seconds on `host`.
    pub fn seconds(&self, host: &Host) -> f64 {
        if !self.freshness.is_fresh(host) {
            self.unknown_s
        } else if host.polled.adapters.has(self.model) {
            0.0
        } else {
            self.absent_s
        }
    }
}
