//! How often are engines polled? Once a period each, whatever the number of workers.

use fleet::EngineOptions;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use serde_json::json;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(250);

/// What is counted over: twenty periods.
const WINDOW: Duration = Duration::from_secs(5);

async fn engines_see_one_scrape_a_period(workers: u32) {
    let testbed = Testbed::start_with(4, EngineOptions::default(), Options::workers(workers), |config, _| {
        config.plugin("/poll/interval_ms", json!(PERIOD.as_millis() as u64))
    })
    .await
    .unwrap();
    testbed.fleet.reset_report();
    let start = Instant::now();
    tokio::time::sleep(WINDOW).await;
    let report = testbed.fleet.report();
    let periods = start.elapsed().as_secs_f64() / PERIOD.as_secs_f64();
    for engine in report.engines {
        let scrapes = engine.counts.scrapes as f64 / periods;
        assert!((0.5..=1.5).contains(&scrapes), "{} was polled {scrapes:.2} times a period", engine.address);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_see_one_scrape_a_period_from_one_worker() {
    engines_see_one_scrape_a_period(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_see_one_scrape_a_period_from_four_workers() {
    engines_see_one_scrape_a_period(4).await;
}
