//! Reading what a replica says about itself: its Prometheus exposition, whichever engine it runs.
//!
//! Two layers, each without a clock, a log or I/O:
//!
//! * [`exposition`] reads Prometheus text: lines in, samples out, without copying. It knows no metric.
//! * [`engine`] knows the engines' names for the same few things (queue, cache use, token counters,
//!   capacity) and folds a whole exposition into one [`EngineSample`].
//!
//! Beside them, what others say about it, read with the scanner that reads prompts: [`clusters`], Envoy's own list of
//! hosts with their health, and [`orca`], the load that an engine reports in an answer's header.
//!
//! A real vLLM page is 70 kB and 868 lines, of which about fifteen matter, and one worker reads every
//! host's page twice a second. So a line is dropped by its name before anything else in it is looked
//! at, and only the labels of the lines that remain are parsed.
//!
//! The rule of all is that *unknown is not zero*: whatever is missing or makes no sense is
//! `None`, never a number that a balancer could mistake for an idle host.

pub mod clusters;
pub mod engine;
pub mod exposition;
mod number;
pub mod orca;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use engine::{read_engine, EngineSample, ScrapeError};
pub use exposition::{Exposition, Labels, Sample};
