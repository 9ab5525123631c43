//! Does `/metrics` read as vLLM's does?

use fleet::{EngineOptions, MetricsNames};

use crate::client::{one_engine, value, Client};

const V0_32: &str = include_str!("../data/metrics_v0.32.txt");
const V0_10_2: &str = include_str!("../data/metrics_v0.10.2.txt");

/// The options of a captured engine, as far as they show.
fn as_captured(metrics_names: MetricsNames, max_model_len: usize) -> EngineOptions {
    EngineOptions { model: "tiny".to_owned(), max_model_len, metrics_names, ..EngineOptions::default() }
}

async fn exposition(client: &Client) -> String {
    client.get("/metrics").await.text().await.expect("text")
}

/// Every line without its value; an info series, whose labels are its value, without these too.
fn series(exposition: &str) -> Vec<&str> {
    let without_value = |line| match line {
        line if str::starts_with(line, '#') => line,
        line if str::starts_with(line, "vllm:cache_config_info") => "vllm:cache_config_info",
        line => line.rsplit_once(' ').map_or(line, |(series, _)| series),
    };
    exposition.lines().map(without_value).collect()
}

/// Names of the labels of `cache_config_info`.
fn config_labels(exposition: &str) -> Vec<&str> {
    let line = exposition.lines().find(|line| line.starts_with("vllm:cache_config_info"));
    let labels = line.expect("the series").split(['{', ',']).skip(1);
    labels.filter_map(|label| Some(label.split_once('=')?.0)).collect()
}

/// vLLM has many more labels there: ours are some of them.
fn assert_config_labels(ours: &str, real: &str) {
    let (ours, real) = (config_labels(ours), config_labels(real));
    assert!(ours.is_sorted() && ours.iter().all(|label| real.contains(label)), "{ours:?}");
}

#[tokio::test]
async fn series_help_types_labels_and_order_are_those_of_vllm_0_32() {
    let (_fleet, client) = one_engine(as_captured(MetricsNames::Current, 8_192)).await;
    let ours = exposition(&client).await;
    assert_eq!(series(&ours), series(V0_32));
    assert_config_labels(&ours, V0_32);
}

#[tokio::test]
async fn both_spellings_are_there_as_in_vllm_0_10() {
    let (_fleet, client) = one_engine(as_captured(MetricsNames::Both, 4_096)).await;
    let ours = exposition(&client).await;
    assert_eq!(series(&ours), series(V0_10_2));
    assert_config_labels(&ours, V0_10_2);
}

#[tokio::test]
async fn the_old_spelling_stands_alone() {
    let (_fleet, client) = one_engine(as_captured(MetricsNames::Old, 4_096)).await;
    let ours = exposition(&client).await;
    assert_eq!(value(&ours, "vllm:gpu_cache_usage_perc"), Some(0.0));
    assert_eq!(value(&ours, "vllm:gpu_prefix_cache_hits_total"), Some(0.0));
    assert_eq!(value(&ours, "vllm:kv_cache_usage_perc"), None);
    assert_eq!(value(&ours, "vllm:prefix_cache_hits_total"), None);
}

#[tokio::test]
async fn histograms_and_counters_add_up() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    for n in 0..3 {
        client.complete(&n.to_string(), 4).await;
    }
    let ours = exposition(&client).await;
    assert_eq!(value(&ours, "vllm:request_generation_tokens_sum"), Some(12.0));
    assert_eq!(value(&ours, "vllm:iteration_tokens_total_count"), Some(12.0));
    let buckets: Vec<_> = ours
        .lines()
        .filter(|line| line.starts_with("vllm:time_to_first_token_seconds_bucket"))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .collect();
    assert!(buckets.is_sorted());
    assert_eq!(buckets.last(), Some(&3.0));
    let finished = r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="mock"} 3.0"#;
    assert!(ours.contains(finished));
}

#[tokio::test]
async fn adapters_are_listed_and_old_lists_stay() {
    let loras = vec!["lora0".to_owned(), "lora1".to_owned()];
    let (_fleet, client) = one_engine(EngineOptions { loras, ..EngineOptions::default() }).await;
    for model in ["lora0", "lora1"] {
        let body = serde_json::json!({ "model": model, "prompt": "x", "max_tokens": 2 });
        client.post("/v1/completions", body).await;
    }
    let ours = exposition(&client).await;
    let lists: Vec<_> = ours
        .lines()
        .filter(|line| line.starts_with("vllm:lora_requests_info"))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(labels, seen)| (labels, seen.parse::<f64>().expect("a time")))
        .collect();
    let of =
        |running: &str| format!("running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{running}\"}}");
    assert_eq!(lists.len(), 3);
    let newest = lists.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("a series");
    assert!(newest.0.ends_with(&of("")), "{newest:?}");
    assert!(lists.iter().any(|(labels, _)| labels.ends_with(&of("lora0"))));
}
