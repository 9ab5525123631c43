//! What did the engines see and do? Counts and the last requests, kept apart from vLLM's own metrics so that tests
//! and benchmarks can reset them, and so that no fault changes them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Requests whose records are kept: enough for a test, and under a megabyte.
const MAX_RECORDS: usize = 1_024;

/// What one engine saw since its start or the last reset.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Where it listens.
    pub address: SocketAddr,
    /// Sequences in the batch now.
    pub running: usize,
    /// Sequences in the queue now.
    pub waiting: usize,
    /// Generation requests being answered now.
    pub in_flight: usize,
    /// Connections open now.
    pub open_connections: usize,
    /// Everything counted.
    pub counts: Counts,
    /// The last request with a body that ended.
    pub last: Option<RequestRecord>,
}

/// What a whole fleet saw.
#[derive(Clone, Debug, Serialize)]
pub struct FleetReport {
    /// Sums over the engines.
    pub total: Counts,
    /// Each engine, in order.
    pub engines: Vec<EngineReport>,
}

/// Counts of requests, tokens and connections. A request counts when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Generation requests that ended, in whatever way.
    pub requests: u64,
    /// Of these, answered in full with 200.
    pub completed: u64,
    /// Of these, answered with an error.
    pub failed: u64,
    /// Of these, given up by the client or cut by a fault.
    pub aborted: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the prefix cache or in the KV tier.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// `GET /metrics` requests.
    pub scrapes: u64,
    /// `/health` and `/ping` requests.
    pub probes: u64,
    /// Generations that a gateway asked for to see whether the engine is ready, marked by the header `x-kvroute-probe`, and
    /// got. They are no traffic: they count as nothing else, and are not on record.
    pub proofs: u64,
    /// Connections accepted.
    pub connections: u64,
}

/// One request that brought a body, whatever its path, after its end.
#[derive(Clone, Debug, Serialize)]
pub struct RequestRecord {
    /// Path it came to.
    pub path: String,
    /// Status it was answered with; 0 if it ended before an answer.
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// Header `x-upstream-host` as it arrived here.
    pub upstream_host: Option<String>,
    /// Whether the header `x-kvroute-probe` arrived here.
    pub is_probe: bool,
    /// Header `x-request-id` as it arrived here.
    pub request_id: Option<String>,
    /// Header `content-type` as it arrived here.
    pub content_type: Option<String>,
    /// Header `content-encoding` as it arrived here.
    pub content_encoding: Option<String>,
    /// Whether trailers came after the body.
    pub trailers: bool,
    /// Body length in bytes.
    pub body_bytes: usize,
    /// xxh3 of the body's bytes, 16 hexadecimal digits.
    pub body_digest: String,
    /// Tokens in and out.
    pub usage: Usage,
    /// Milliseconds from the whole body to the first token, if it was streamed.
    pub ttft_ms: Option<f64>,
    /// Milliseconds from the whole body to the end.
    pub total_ms: f64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Answered in full.
    Completed,
    /// Answered with an error.
    Failed,
    /// Given up by the client or cut by a fault.
    Aborted,
}

/// Tokens of one request, over all its choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, found in the prefix cache or in the KV tier.
    pub cached_tokens: usize,
    /// Of these, in full blocks that this request added to the cache.
    pub created_cache_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
}

/// The book of one engine.
#[derive(Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    in_flight: AtomicUsize,
    open_connections: AtomicUsize,
}

#[derive(Default)]
struct Book {
    counts: Counts,
    records: VecDeque<RequestRecord>,
}

/// A request under way. Dropped before it is settled, it counts as aborted.
pub(crate) struct Entry {
    ledger: Arc<Ledger>,
    record: Option<RequestRecord>,
    arrived: Instant,
}

/// An open connection.
pub(crate) struct Connection(Arc<Ledger>);

impl Ledger {
    pub(crate) fn counts(&self) -> Counts {
        self.book().counts
    }

    pub(crate) fn records(&self) -> Vec<RequestRecord> {
        self.book().records.iter().cloned().collect()
    }

    pub(crate) fn last(&self) -> Option<RequestRecord> {
        self.book().records.back().cloned()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn open_connections(&self) -> usize {
        self.open_connections.load(Ordering::Relaxed)
    }

    pub(crate) fn reset(&self) {
        *self.book() = Book::default();
    }

    pub(crate) fn saw_scrape(&self) {
        self.book().counts.scrapes += 1;
    }

    pub(crate) fn saw_probe(&self) {
        self.book().counts.probes += 1;
    }

    pub(crate) fn connected(self: &Arc<Self>) -> Connection {
        self.book().counts.connections += 1;
        self.open_connections.fetch_add(1, Ordering::Relaxed);
        Connection(self.clone())
    }

    /// Books a request in; `record` says what is known so far.
    pub(crate) fn open(self: &Arc<Self>, record: RequestRecord) -> Entry {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Entry { ledger: self.clone(), record: Some(record), arrived: Instant::now() }
    }

    /// Keeps the record of a request that asked for no computing, and counts nothing.
    pub(crate) fn note(&self, record: RequestRecord) {
        self.book().keep(record);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn keep(&mut self, record: RequestRecord) {
        if self.records.len() == MAX_RECORDS {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }
}

impl Entry {
    pub(crate) fn answered(&mut self, status: u16) {
        if let Some(record) = &mut self.record {
            record.status = status;
        }
    }

    pub(crate) fn used(&mut self, usage: Usage) {
        if let Some(record) = &mut self.record {
            record.usage = usage;
        }
    }

    /// The stream's first event goes out.
    pub(crate) fn saw_first_token(&mut self) {
        let elapsed = self.elapsed_ms();
        if let Some(record) = &mut self.record {
            record.ttft_ms.get_or_insert(elapsed);
        }
    }

    /// Ends the request in the book. Only the first time counts.
    pub(crate) fn settle(&mut self, outcome: Outcome) {
        let total_ms = self.elapsed_ms();
        let Some(mut record) = self.record.take() else {
            return;
        };
        (record.outcome, record.total_ms) = (outcome, total_ms);
        let mut book = self.ledger.book();
        if record.is_probe {
            book.counts.proofs += u64::from(outcome == Outcome::Completed);
        } else {
            book.counts.add(&record);
            book.keep(record);
        }
        self.ledger.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    fn elapsed_ms(&self) -> f64 {
        self.arrived.elapsed().as_secs_f64() * 1e3
    }
}

impl Counts {
    fn add(&mut self, record: &RequestRecord) {
        self.requests += 1;
        match record.outcome {
            Outcome::Completed => self.completed += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Aborted => self.aborted += 1,
        }
        self.prompt_tokens += record.usage.prompt_tokens as u64;
        self.cached_tokens += record.usage.cached_tokens as u64;
        self.generated_tokens += record.usage.generated_tokens as u64;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.completed += other.completed;
        self.failed += other.failed;
        self.aborted += other.aborted;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.generated_tokens += other.generated_tokens;
        self.scrapes += other.scrapes;
        self.probes += other.probes;
        self.proofs += other.proofs;
        self.connections += other.connections;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.settle(Outcome::Aborted);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.open_connections.fetch_sub(1, Ordering::Relaxed);
    }
}
