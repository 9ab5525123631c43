//! A fleet of mock vLLM engines: real HTTP, a real queue, a real prefix cache, and no model.
//!
//! What a router can see of vLLM behaves as in vLLM 0.32: its API and errors, its metrics, queueing, chunked prefill,
//! batched decode, prefix cache hits and eviction, a KV tier that engines share, and the ways it fails. What a prompt
//! means does not matter here: a few bytes are a token, and answers are letters.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! let mut fleet = fleet::Fleet::start(2, fleet::EngineOptions::default()).await?;
//! println!("{:?}", fleet.addresses());
//! fleet.engine(1).fault(fleet::Fault::Crash).await;
//! let loading = std::time::Duration::from_secs(20);
//! let third = fleet.launch(0, fleet::EngineOptions::default(), loading)?;
//! println!("{} {:?}", third.is_listening(), fleet.report().total);
//! # Ok(())
//! # }
//! ```
//!
//! | question | module |
//! | --- | --- |
//! | what is a fleet, an engine, what can be set | `fleet`, `engine`, `options` |
//! | who can connect, which path answers what | `port`, `routes`, `body` |
//! | what came in, and what does it ask for | `received`, `request`, `chat_template`, `prompt` |
//! | how does each API say it | `api` with a file for each family, `answer` |
//! | when is it computed, what is cached | `engine_core`, `scheduler`, `sequence`, `kv_cache` |
//! | what can engines have of each other | `kv_tier` |
//! | what does a request leave in a cache, for who records a workload | `footprint` |
//! | how is it answered | `generate`, `event_stream`, `orca` |
//! | what is measured | `stats`, `exposition`, `metric_help`, `utilisation` |
//! | how to break it, what it saw | `fault`, `control`, `report` |

mod answer;
mod api;
mod body;
mod chat_template;
mod control;
mod engine;
mod engine_core;
mod event_stream;
mod exposition;
mod fault;
mod fleet;
mod footprint;
mod generate;
mod kv_cache;
mod kv_tier;
mod metric_help;
mod options;
mod orca;
mod port;
mod prompt;
mod received;
mod report;
mod request;
mod routes;
mod scheduler;
mod sequence;
mod stats;
mod utilisation;

pub use engine::Engine;
pub use fault::{Fault, MetricsFault};
pub use fleet::Fleet;
pub use footprint::Footprint;
pub use options::{EngineOptions, MetricsNames};
pub use report::{Counts, EngineReport, FleetReport, Outcome, RequestRecord, Usage};
