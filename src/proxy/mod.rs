//! The shell: proxy-wasm contexts that move bytes between Envoy and the core.
//!
//! | question | module |
//! | --- | --- |
//! | how is a configuration loaded, and what happens at a tick? | `root` |
//! | what kinds of streams are there? | `stream` |
//! | what happens to one request? | `filter` |
//! | how far has a body been read? | `reading` |
//! | how is a decision carried out? | `decided` |
//! | what is learned of a request that Envoy's own policy sends on? | `shadow` |
//! | who is asked which hosts there are? | `discovery` |
//! | how are the engines polled? | `poller` |
//! | how do gateways learn of each other's placements and load? | `peers` |
//! | what are those told who scale the fleet? | `signals` |
//! | what does a gateway answer on its control listener? | `control` |
//! | what does this VM know of a cluster? | `worker` |
//! | what lies in shared data, under which keys? | `shared` |
//! | which metrics are there? | `stats` |
//! | how is Envoy's resolver asked? | `resolver`, with the feature `dns` |
//! | how is Envoy called? | `host` |
//!
//! # Why no SDK call is made on a request's path
//!
//! The SDK's functions panic on a status they do not expect, and a panic in wasm cuts every stream on
//! that worker. `host` declares the same imports with plain status codes and answers `Result`s; nothing outside it
//! talks to Envoy, and `.clippy.toml` keeps it so. A call that is refused is counted, and the caller goes on without.

mod control;
mod decided;
mod discovery;
mod filter;
mod host;
mod peers;
mod poller;
mod reading;
#[cfg(feature = "dns")]
mod resolver;
mod root;
mod shadow;
mod shared;
mod shed;
mod signals;
mod stats;
mod stream;
mod worker;

use proxy_wasm::traits::RootContext;
use proxy_wasm::types::LogLevel;

/// Called once in each VM, before anything else: names what makes root contexts.
#[allow(missing_docs)]
mod entry {
    use super::*;

    proxy_wasm::main! {{
        proxy_wasm::set_log_level(LogLevel::Info);
        proxy_wasm::set_root_context(|_| -> Box<dyn RootContext> { Box::<root::Root>::default() });
    }}
}
