//! A recorded workload, against the engine that served it.

use flate2::read::GzDecoder;
use fleet::{EngineOptions, Fleet};
use gateway::workload::plan::{Plan, Shape};
use gateway::workload::replay::Replay;
use gateway::workload::summary::Summary;
use gateway::workload::trace::Trace;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

fn shape() -> Shape {
    Shape {
        seed: 1,
        conversations: 12,
        starts_per_s: 100.0,
        systems: 3,
        skew: 0.7,
        system_bytes: 1_000,
        turns: 4,
        question_bytes: 300,
        answer_tokens: 20,
        think_s: 0.01,
        stream: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_has_the_blocks_that_the_engine_had() {
    let engine = EngineOptions::default();
    let fleet = Fleet::start(1, engine.clone()).await.unwrap();
    let plan = Arc::new(Plan::new(&shape()));
    // One request at a time, to one engine that never evicts: it finds all that there is to find.
    let records = Replay::new(&plan, fleet.addresses()[0], 1).run().await;
    let summary = Summary::new(&records);
    assert_eq!(summary.failures, []);
    let trace = Trace::new(&plan, &records, &engine).unwrap();
    assert!(summary.cached_ratio > 0.5, "{}", summary.cached_ratio);
    assert_eq!(trace.reusable(), summary.cached_ratio);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.vt1.jsonl.gz");
    trace.write(&path, "small").unwrap();
    let lines = BufReader::new(GzDecoder::new(File::open(&path).unwrap())).lines();
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(lines[0]["block_tokens"], engine.block_size);
    assert_eq!(lines.len(), 1 + plan.requests());
    let times: Vec<u64> = lines[1..].iter().map(|line| line[0].as_u64().unwrap()).collect();
    assert!(times.is_sorted());
    let tokens: u64 = lines[1..].iter().map(|line| line[1].as_u64().unwrap()).sum();
    assert_eq!(tokens, records.iter().map(|record| record.usage.prompt).sum::<u64>());
}
