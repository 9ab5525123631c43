//! An Envoy in front of a fleet of mock engines, ready to take requests.

use crate::admin::Stats;
use crate::chat::{self, Reply};
use crate::client::{Body, Connection};
use crate::config::{Config, KVROUTE};
use crate::envoy::{Envoy, Options};
use crate::wait::until;
use anyhow::{ensure, Result};
use fleet::{Counts, EngineOptions, EngineReport, Fleet, RequestRecord};
use hyper::Request;
use std::net::SocketAddr;
use std::time::Duration;

/// Within this the filter has polled every engine some times: a few poll intervals, and room for a busy machine.
const POLLED_WITHIN: Duration = Duration::from_secs(10);

/// Far longer than any answer takes: what is not there by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// Within this the filter has released what an ended request held. It does so when the request ends; the rest is
/// Envoy's own delay in publishing statistics, and a busy machine.
const RELEASED_WITHIN: Duration = Duration::from_secs(1);

/// A fleet and the Envoy before it.
pub struct Testbed {
    /// The engines.
    pub fleet: Fleet,
    /// The Envoy, with the filter.
    pub envoy: Envoy,
    /// Where its listener with the filter listens.
    pub address: SocketAddr,
}

impl Testbed {
    /// Starts `engines` of them and an Envoy with the quick start; returns once every engine has been polled.
    pub async fn start(engines: usize, engine: EngineOptions, options: Options) -> Result<Self> {
        Self::start_with(engines, engine, options, |config, _| config).await
    }

    /// The same with an edited configuration; `edit` is given the engines' addresses too.
    pub async fn start_with(
        engines: usize,
        engine: EngineOptions,
        options: Options,
        edit: impl FnOnce(Config, &[SocketAddr]) -> Config,
    ) -> Result<Self> {
        let fleet = Fleet::start(engines, engine).await?;
        let hosts = fleet.addresses();
        let config = edit(Config::quick_start()?.hosts(&hosts), &hosts);
        let envoy = Envoy::start(&config, &options).await?;
        let address = envoy.listener(KVROUTE).await?;
        polled(&fleet).await?;
        Ok(Self { fleet, envoy, address })
    }

    /// Sends a request, the only one with a body at this time; returns the answer, and what its engine has on record.
    pub async fn ask(
        &self,
        connection: &mut Connection,
        request: Request<Body>,
    ) -> Result<(Reply, RequestRecord)> {
        self.fleet.reset_report();
        let reply = tokio::time::timeout(HANGS_AFTER, chat::send(connection, request)).await??;
        let last = || self.fleet.engines().iter().find_map(|engine| Some((engine, engine.report().last?)));
        // The end of a stream may be here before its record is.
        let (engine, record) = until("it is on record", HANGS_AFTER, async || last()).await?;
        ensure!(reply.engine() == engine.address().to_string(), "another engine answered");
        Ok((reply, record))
    }

    /// Waits until nothing is in flight by the filter's own books.
    pub async fn released(&self) -> Result<()> {
        released(&self.envoy).await
    }

    /// Envoy's statistics now.
    pub async fn stats(&self) -> Result<Stats> {
        self.envoy.admin().stats().await
    }
}

/// Waits until every engine of the fleet has shown that it generates, and every worker knows it.
pub async fn polled(fleet: &Fleet) -> Result<()> {
    generated(fleet).await?;
    polled_again(fleet).await
}

/// Waits until every engine of the fleet has shown that it generates; workers may learn it a moment later.
pub async fn generated(fleet: &Fleet) -> Result<()> {
    all_have(fleet, "every engine has generated", |_, counts| counts.proofs > 0).await
}

/// Waits until every worker knows what the engines say now. The leader tells the others at its next tick, and they look at
/// theirs: ticks are many times as frequent as polls, so that before an engine's second poll from now they have.
pub async fn polled_again(fleet: &Fleet) -> Result<()> {
    let before: Vec<u64> = fleet.report().engines.iter().map(|engine| engine.counts.scrapes).collect();
    let more = |engine: usize, counts: Counts| counts.scrapes >= before[engine] + 2;
    all_have(fleet, "every engine has been polled twice", more).await
}

async fn all_have(fleet: &Fleet, what: &str, is_so: impl Fn(usize, Counts) -> bool) -> Result<()> {
    let is_true = |(n, engine): (usize, &EngineReport)| is_so(n, engine.counts);
    let all = || fleet.report().engines.iter().enumerate().all(is_true).then_some(());
    until(what, POLLED_WITHIN, async || all()).await
}

/// Waits until all in-flight gauges of the filter are 0; an error names those that are not.
pub async fn released(envoy: &Envoy) -> Result<()> {
    let mut held = String::new();
    until("in-flight is 0", RELEASED_WITHIN, async || {
        let stats = envoy.admin().stats().await.ok()?;
        held = format!("{:?}", stats.in_flight());
        // No gauge at all is no proof that they are 0.
        let known = stats.kvroute().any(|(name, _)| name.contains("_inflight_"));
        (known && stats.in_flight().is_empty()).then_some(())
    })
    .await
    .map_err(|late| late.context(held))
}
