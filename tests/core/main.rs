//! The core, on three targets: native, wasm32-wasip1 (in V8, through Node), and wasm32-unknown-unknown
//! (under wasm-bindgen-test), where only the examples run.
//!
//! Helpers stand in `support`, and in `properties` what holds of any bytes; each other module is named after the core module it tests. `cases` are
//! situations from the field.

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub(crate) use core::prelude::v1::test;
/// `#[test]` on every target.
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
pub(crate) use wasm_bindgen_test::wasm_bindgen_test as test;

mod adapters;
mod answer;
mod apis;
mod audit;
mod blocks;
mod cases;
mod clusters;
mod config;
mod drains;
mod fleet;
mod gateways;
mod health;
mod index;
mod journal;
mod learning;
mod life;
mod members;
mod orca;
mod peers;
mod prompt;
mod readme;
mod rehoming;
mod removal;
mod roster;
mod route;
mod router;
mod shed;
mod signals;
mod status;
mod support;
mod tier;
mod usage;
mod wedge;

#[cfg(not(target_arch = "wasm32"))]
mod case_table;
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
mod hostile;
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
mod json;
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
mod properties;
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
mod templates;
