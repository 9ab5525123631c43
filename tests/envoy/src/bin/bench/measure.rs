//! Sends the same kind of requests through both listeners in turn, and measures CPU and latency of each batch.

use crate::bodies::Bodies;
use anyhow::{ensure, Result};
use gateway::admin::cpu_time;
use gateway::chat;
use gateway::client::{self, Connection};
use gateway::quantiles::Quantiles;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How many pairs of batches are taken of each size. Their median tells, their spread says how well.
const ROUNDS: usize = 30;

/// Bytes that one batch sends at most, and requests: a batch takes 50 to 100 ms, so that both of a pair
/// meet the same weather on a shared machine.
const BATCH_BYTES: usize = 16 << 20;
const BATCH_REQUESTS: usize = 200;

/// One of the two ways through Envoy.
pub struct Way {
    connection: Connection,
    envoy: u32,
}

/// What a batch cost.
struct Batch {
    /// CPU of the Envoy process for one request.
    cpu: Duration,
    latencies: Vec<Duration>,
}

/// The figures of one body size.
pub struct Figures {
    /// Bytes of a body.
    pub size: usize,
    /// Microseconds of CPU a request, with the filter and without.
    pub cpu_us: [f64; 2],
    /// CPU with the filter over CPU without, of each pair of batches, in order.
    pub ratios: Vec<f64>,
    /// Milliseconds that the filter adds to the median and to the 99th percentile of the latency.
    pub added_ms: [f64; 2],
    /// Milliseconds that it adds to the median, of each pair of batches, in order.
    pub added_median_ms: Vec<f64>,
}

impl Way {
    /// One keep-alive connection to a listener of the Envoy with this process id.
    pub async fn open(listener: SocketAddr, envoy: u32) -> Result<Self> {
        Ok(Self { connection: Connection::open(listener).await?, envoy })
    }

    async fn batch(&mut self, bodies: &mut Bodies, requests: usize) -> Result<Batch> {
        let bodies: Vec<_> = (0..requests).map(|_| bodies.next()).collect();
        let mut latencies = Vec::with_capacity(requests);
        let before = cpu_time(self.envoy)?;
        for body in bodies {
            let sent = Instant::now();
            let reply = chat::send(&mut self.connection, chat::post(chat::PATH, client::whole(body))).await?;
            latencies.push(sent.elapsed());
            ensure!(reply.is_complete(), "a request was answered {}", reply.status);
        }
        Ok(Batch { cpu: (cpu_time(self.envoy)? - before) / requests as u32, latencies })
    }
}

/// Measures one body size; `progress` is told the share that is done.
pub async fn measure(size: usize, ways: &mut [Way; 2], progress: impl Fn(f64)) -> Result<Figures> {
    let mut bodies = Bodies::new(size);
    let requests = (BATCH_BYTES / size).clamp(20, BATCH_REQUESTS);
    for way in ways.iter_mut() {
        way.batch(&mut bodies, requests).await?;
    }
    let mut batches: [Vec<Batch>; 2] = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        // Which of the two goes first changes, so that neither always follows the other.
        for way in [round % 2, 1 - round % 2] {
            batches[way].push(ways[way].batch(&mut bodies, requests).await?);
        }
        progress((round + 1) as f64 / ROUNDS as f64);
    }
    Ok(figures(size, batches))
}

fn figures(size: usize, [with, without]: [Vec<Batch>; 2]) -> Figures {
    let pairs = || with.iter().zip(&without);
    let median = |batch: &Batch| Quantiles::new(batch.latencies.clone()).at(0.5);
    let [all_with, all_without] = [&with, &without]
        .map(|batches| Quantiles::new(batches.iter().flat_map(|batch| batch.latencies.clone()).collect()));
    Figures {
        size,
        cpu_us: [&with, &without].map(|batches| {
            Quantiles::new(batches.iter().map(|batch| batch.cpu).collect()).at(0.5).as_secs_f64() * 1e6
        }),
        ratios: ordered(pairs().map(|(with, without)| with.cpu.as_secs_f64() / without.cpu.as_secs_f64())),
        added_ms: [0.5, 0.99].map(|share| milliseconds_between(all_without.at(share), all_with.at(share))),
        added_median_ms: ordered(
            pairs().map(|(with, without)| milliseconds_between(median(without), median(with))),
        ),
    }
}

fn ordered(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn milliseconds_between(from: Duration, to: Duration) -> f64 {
    (to.as_secs_f64() - from.as_secs_f64()) * 1e3
}
