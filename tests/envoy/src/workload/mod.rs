//! What clients of an LLM service send: conversations that grow, over system prompts of skewed popularity.
//!
//! [`plan`] says what is sent and when, the same for the same seed; [`replay`] sends it and records what came
//! back; [`summary`] makes figures of the records, and [`trace`] a file that a simulator can replay.

pub mod plan;
pub mod replay;
pub mod summary;
pub mod text;
pub mod trace;
