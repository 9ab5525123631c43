//! A fake Envoy: the host side of the proxy-wasm ABI, natively and in one process.
//!
//! The SDK's host calls are plain `extern "C"` symbols, and its callbacks are exported functions. This
//! crate defines the former and calls the latter, so a test binary that links a filter runs all of
//! it, SDK included, in milliseconds and with backtraces.
//!
//! The fake keeps *state*, not call scripts: shared data with compare-and-swap, metrics that several
//! VMs share, header maps, buffers that grow while a request is held, HTTP calls that a test answers,
//! a clock that a test moves. A test says what happens to a request and looks at what came of it.
//!
//! ```text
//! Proxy ── the process: clock, shared data, metrics, log, calls, faults
//!   └─ Worker ── one VM on its own thread (the SDK's dispatcher is thread-local)
//!        └─ Stream ── one request and its response
//! ```
//!
//! What is faithful to Envoy, and was measured on it: the serialisation of header maps; what can be
//! read and written in which phase (headers are out of reach after `Continue`); how much a body
//! callback sees before and after `Continue`; counters that refuse a zero, gauges that are shared; CAS
//! 0 as "unconditional"; local replies that pass through the filter; `on_log` once for every stream.
//! What it does not have: gRPC, shared queues, flow control, real time.

mod abi;
mod callbacks;
mod exchange;
mod headers;
mod metrics;
mod proxy;
mod shared_data;
mod state;
mod stream;
mod traffic;
mod worker;

pub use exchange::LocalReply;
pub use headers::HeaderMap;
pub use proxy::{HttpCall, LogLine, Options, Proxy};
pub use proxy_wasm::types::{Action, LogLevel, Status};
pub use stream::Stream;
pub use traffic::Traffic;
pub use worker::{ConfigRefused, Worker};
