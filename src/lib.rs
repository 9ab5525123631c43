//! kvroute: an Envoy filter that sends each LLM request to the replica whose KV cache already holds
//! its prefix, unless that replica is so loaded that another would answer sooner.
//!
//! Two halves, and a wall between them:
//!
//! * [`core`] decides. Bytes, numbers and `now` go in, values come out. It knows neither Envoy nor a
//!   clock, a log or I/O, and is built and tested for native, `wasm32-wasip1` and
//!   `wasm32-unknown-unknown`.
//! * `proxy` is the shell: proxy-wasm contexts that move bytes between Envoy and the core. It does
//!   not exist on `wasm32-unknown-unknown`, which keeps the wall honest.
//!
//! One request reads top to bottom: [`proxy::filter`](proxy) feeds the body to [`core::prompt`],
//! which hands prompt text to [`core::blocks`], whose hashes walk down [`core::index`]; [`core::route`]
//! weighs the match against [`core::load`] and names the hosts.

// A panic in wasm cuts every stream on that Envoy worker: nothing here may panic, and what could is an Option or a
// Result. The SDK's own calls to Envoy panic: .clippy.toml names them.
#![cfg_attr(
    not(test),
    deny(
        clippy::dbg_macro,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::print_stderr,
        clippy::print_stdout,
        clippy::string_slice,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_in_result,
        clippy::unwrap_used
    )
)]

pub mod core;

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub mod proxy;
