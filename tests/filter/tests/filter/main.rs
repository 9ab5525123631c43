//! The whole filter in the fake proxy: what a request looks like on its way out, and what the
//! counters say afterwards.
//!
//! Each test starts its own proxy, so tests do not see each other's shared data or metrics.

mod accounting;
mod affinity;
mod budgets;
mod cases;
mod chunking;
mod configuration;
mod discovery;
mod drain;
mod failures;
mod gateway;
mod hold;
mod leader;
mod outcomes;
mod peers;
mod polls;
mod regret;
mod sanitising;
mod sessions;
mod shadow;
mod shed;
mod signals;
mod suspects;
mod tier;
