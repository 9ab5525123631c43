//! What does the way through Envoy add to a small request?

use anyhow::{ensure, Result};
use gateway::chat::{self, Chat};
use gateway::client::Connection;
use gateway::progress::Progress;
use gateway::quantiles::Quantiles;
use std::net::SocketAddr;
use std::time::Duration;

/// Requests each way. Their median is good to some hundredths of a millisecond on a quiet machine.
const REQUESTS: usize = 300;

/// What the engine is told to answer: a status that is the client's fault, and so counts against no host.
const ANSWER: u16 = 418;

/// The median latency of small requests through each listener, less that of the same requests sent directly to an
/// engine of its fleet, in milliseconds. The four take turns.
pub async fn added(
    progress: &Progress,
    direct: [SocketAddr; 2],
    through: [SocketAddr; 2],
) -> Result<[f64; 2]> {
    let mut ways = Vec::new();
    for address in [direct[0], through[0], direct[1], through[1]] {
        ways.push((Connection::open(address).await?, Vec::with_capacity(REQUESTS)));
    }
    let chat = Chat::new("You are brief.").user("Ready?").unstreamed();
    for round in 0..REQUESTS {
        progress.update(&format!("added latency: {round} of {REQUESTS} requests each way"));
        for (connection, latencies) in &mut ways {
            let mut request = chat.request();
            // The engine answers at once, without computing: its steps would blur the difference.
            request.headers_mut().insert("x-mock-status", ANSWER.into());
            let reply = chat::send(connection, request).await?;
            ensure!(reply.status == ANSWER, "a small request was answered {}", reply.status);
            latencies.push(reply.elapsed);
        }
    }
    let medians: Vec<Duration> =
        ways.into_iter().map(|(_, latencies)| Quantiles::new(latencies).at(0.5)).collect();
    progress.say(&format!("added latency: {REQUESTS} requests each way"));
    let added = |way: usize| (medians[2 * way + 1].as_secs_f64() - medians[2 * way].as_secs_f64()) * 1e3;
    Ok([added(0), added(1)])
}
