//! How does a router run at several gateways? Each has a state of its own and shares nothing.

use super::books::Books;
use super::{Arrival, Policy, View};
use ::kvroute::core::scrape::EngineSample;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

/// Where a router sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The host.
    pub host: usize,
    /// Tokens of its prompt that are believed not to be cached there.
    pub uncached_tokens: u32,
}

impl Placement {
    /// By a router that knows nothing of caches.
    pub fn unknown(host: usize, arrival: &Arrival) -> Self {
        Self { host, uncached_tokens: arrival.request.prompt_tokens }
    }
}

/// The router of one gateway.
pub trait Router {
    /// Chooses one of `view.hosts` and learns from its own choice. `books` do not yet know this request.
    fn route(&mut self, arrival: &Arrival, view: &View, books: &Books) -> Placement;

    /// One of its requests has ended.
    fn done(&mut self, number: usize, host: usize) {
        let _ = (number, host);
    }

    /// The hosts have changed.
    fn hosts(&mut self, hosts: &[usize]) {
        let _ = hosts;
    }
}

/// A policy of gateways that share nothing.
#[derive(Debug)]
pub struct Gateways<R> {
    gateways: Vec<(R, Books)>,
    flights: FxHashMap<usize, Flight>,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    gateway: usize,
    placement: Placement,
    prefilling: bool,
}

impl<R> Gateways<R> {
    /// As many gateways, each with a source of randomness of its own.
    pub fn new(gateways: usize, seed: u64, make: impl Fn(ChaCha8Rng) -> R) -> Self {
        let gateway = |number: usize| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(number as u64 + 1);
            (make(random), Books::default())
        };
        Self { gateways: (0..gateways.max(1)).map(gateway).collect(), flights: FxHashMap::default() }
    }
}

impl<R: Router> Policy for Gateways<R> {
    fn route(&mut self, arrival: &Arrival, view: &View) -> usize {
        let (router, books) = &mut self.gateways[arrival.gateway];
        let placement = router.route(arrival, view, books);
        books.sent(placement.host, placement.uncached_tokens);
        let flight = Flight { gateway: arrival.gateway, placement, prefilling: true };
        self.flights.insert(arrival.number, flight);
        placement.host
    }

    fn first_token(&mut self, number: usize, _now_us: u64) {
        let Some(flight) = self.flights.get_mut(&number) else { return };
        if std::mem::take(&mut flight.prefilling) {
            let Placement { host, uncached_tokens } = flight.placement;
            self.gateways[flight.gateway].1.prefilled(host, uncached_tokens);
        }
    }

    fn done(&mut self, number: usize, _cached_tokens: Option<u32>, now_us: u64) {
        self.first_token(number, now_us);
        let Some(flight) = self.flights.remove(&number) else { return };
        let (router, books) = &mut self.gateways[flight.gateway];
        books.ended(flight.placement.host);
        router.done(number, flight.placement.host);
    }

    fn asked(&mut self, gateway: usize, host: usize, _now_us: u64) {
        self.gateways[gateway].1.asked(host);
    }

    fn polled(&mut self, gateway: usize, host: usize, sample: Option<&EngineSample>, _now_us: u64) {
        if let Some(sample) = sample {
            self.gateways[gateway].1.polled(host, sample);
        }
    }

    fn hosts(&mut self, hosts: &[usize], _now_us: u64) {
        for (router, _) in &mut self.gateways {
            router.hosts(hosts);
        }
    }
}
