//! Does the fleet behave as vLLM does, seen over real HTTP?

#![allow(missing_docs)]

mod apis;
mod arrivals;
mod cache;
mod captured;
mod client;
mod faults;
mod life;
mod metrics;
mod queue;
mod tier;
