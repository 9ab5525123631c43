//! Replays traces of requests through a simulated fleet of vLLM engines, under several routing policies.
//!
//! What the project decides by: the policy `kvroute` is the project's own core, the same code that is in the wasm,
//! with the shell's delays around it. `scripts/replay` is the tool; `--help` describes its figures and its JSON.
//!
//! | question | module |
//! | --- | --- |
//! | what is asked, and when; where nobody recorded anything | `trace`, `synthesis` |
//! | how much is a load of 0.9 | `load` |
//! | how long does an engine take, what is in its cache | `engine`, `kv_cache` |
//! | what happens in a run | `simulation`, `game` |
//! | who decides, and what does the filter see of a prompt | `policy`, `outline` |
//! | what was it worth, against an oracle | `figures`, `experiment` |
//! | what if things go wrong | `adversity` |
//!
//! The engine's cache is checked against the mock fleet (`tests/fleet.rs`), its times against a naive model
//! (`tests/engine.rs`), and the order of policies against a real Envoy (`scripts/replay compare`).

pub mod adversity;
pub mod engine;
pub mod experiment;
pub mod figures;
pub mod game;
pub mod kv_cache;
pub mod load;
pub mod outline;
pub mod policy;
pub mod simulation;
pub mod synthesis;
pub mod trace;
