//! Who decides where a request goes? One policy for all gateways of a run.
//!
//! A policy sees what such a router can see: the request's text identity, its own work, and polls. Only the oracle
//! looks into the engines.

pub mod account;
pub mod books;
pub mod chwbl;
pub mod dynamo;
pub mod gateways;
pub mod higress;
pub mod kvroute;
pub mod least;
pub mod least_loaded;
pub mod least_request;
pub mod llmd;
pub mod lmetric;
pub mod oracle;
pub mod prefix_hash;
pub mod prefix_index;
pub mod registry;
pub mod rendezvous;
pub mod round_robin;
pub mod sglang;

use self::account::Account;
use crate::engine::Engine;
use crate::trace::Request;
use ::kvroute::core::scrape::EngineSample;

/// What a policy is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Gateways of the run.
    pub gateways: usize,
    /// Hosts at the start.
    pub hosts: usize,
    /// Tokens of a block of the trace.
    pub block_tokens: u32,
    /// Draws whatever is random.
    pub seed: u64,
}

/// A request on its way, as a policy sees it.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Its number in the run: names it in later calls.
    pub number: usize,
    /// The gateway that it came to, from 0.
    pub gateway: usize,
    /// What it asks.
    pub request: &'a Request,
}

/// What a policy may look at besides its own memory.
#[derive(Debug)]
pub struct View<'a> {
    /// Microseconds since the run began.
    pub now_us: u64,
    /// All hosts that ever were, by number. For the oracle.
    pub engines: &'a [Engine],
    /// Numbers of the hosts that may take traffic, in rising order; never empty.
    pub hosts: &'a [usize],
    /// Tokens of a block of the trace.
    pub block_tokens: u32,
}

/// A router, or all the routers of a run.
pub trait Policy {
    /// Chooses one of `view.hosts`.
    fn route(&mut self, arrival: &Arrival, view: &View) -> usize;

    /// A request's first token has come to its gateway.
    fn first_token(&mut self, number: usize, now_us: u64) {
        let _ = (number, now_us);
    }

    /// A request has ended. `cached_tokens` of its prompt were cached, as `usage` says; `None` if it failed.
    fn done(&mut self, number: usize, cached_tokens: Option<u32>, now_us: u64) {
        let _ = (number, cached_tokens, now_us);
    }

    /// A gateway's poll of a host is sent.
    fn asked(&mut self, gateway: usize, host: usize, now_us: u64) {
        let _ = (gateway, host, now_us);
    }

    /// Its answer: `None` if it failed.
    fn polled(&mut self, gateway: usize, host: usize, sample: Option<&EngineSample>, now_us: u64) {
        let _ = (gateway, host, sample, now_us);
    }

    /// The hosts have changed: `hosts` may take traffic from now on.
    fn hosts(&mut self, hosts: &[usize], now_us: u64) {
        let _ = (hosts, now_us);
    }

    /// Whether it looks into the engines: only the oracle does.
    fn sees_engines(&self) -> bool {
        false
    }

    /// What was decided so far, if it keeps an account.
    fn account(&self) -> Option<Account> {
        None
    }

    /// How often [`Policy::tick`] is wanted, in microseconds.
    fn tick_us(&self) -> Option<u64> {
        None
    }

    /// What is to be done every so often.
    fn tick(&mut self, now_us: u64) {
        let _ = now_us;
    }
}
