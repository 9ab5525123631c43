//! Replays traces of requests through a simulated fleet of vLLM engines, under several routing policies.
//!
//! What the project decides by: the policy `kvroute` is the project's own core, the same code that is in the wasm,
//! with the shell's delays around it.

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
