//! kvroute in a real Envoy: what the end-to-end tests, the demo and the benchmark share.
//!
//! | question | module |
//! | --- | --- |
//! | what does Envoy run with? | [`config`]: `envoy/envoy.yaml` itself, edited for a run; [`policy`]: Envoy's own policies, to compare with |
//! | which endpoints has it, while they come and go? | [`endpoints`]; [`name_server`], where they have a name |
//! | how does it run, and what does it say about itself? | [`envoy`], [`admin`], [`control`] |
//! | how does a client talk to it? | [`client`], [`chat`] |
//! | what is sent, and what came of it? | [`workload`], [`quantiles`] |
//! | what happens while the fleet changes? | [`life`] |
//! | an Envoy in front of a fleet of mock engines, or of another upstream, ready to take requests | [`testbed`], [`upstream`] |
//! | where may something listen whose address must be known beforehand? | [`loopback`] |
//! | has it happened yet, how far is it, did the machine keep up? | [`wait`], [`progress`], [`pace`] |
//!
//! Everything is real: Envoy is the binary that `scripts/envoy` finds, the filter is the artifact that
//! `scripts/build` leaves, and every byte goes over loopback sockets. Where one of them is missing,
//! starting fails and says which; nothing is skipped.

pub mod admin;
pub mod chat;
pub mod client;
pub mod config;
pub mod control;
pub mod endpoints;
pub mod envoy;
pub mod life;
pub mod loopback;
pub mod name_server;
pub mod pace;
pub mod policy;
pub mod progress;
pub mod quantiles;
pub mod testbed;
pub mod upstream;
pub mod wait;
pub mod workload;

use std::path::{Path, PathBuf};

/// The repository's root: where Envoy is started, so that the paths in `envoy/envoy.yaml` hold.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}
