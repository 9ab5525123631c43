//! The load that vLLM reports in an answer's header, in both of its spellings.

use super::test;
use kvroute::core::scrape::orca::{read_report, LoadReport};

fn read(value: &str) -> (Option<f64>, Option<f64>) {
    let LoadReport { waiting, kv_usage } = read_report(value.as_bytes());
    (waiting, kv_usage)
}

#[test]
fn both_spellings_of_vllm_are_read() {
    for value in [
        "TEXT named_metrics.num_requests_waiting=6.0, named_metrics.kv_cache_usage_perc=0.25",
        "text named_metrics.kv_cache_usage_perc=2.5e-1,named_metrics.num_requests_waiting=6",
        "TEXT cpu_utilization=0.9, named_metrics.num_requests_waiting=6.0, named_metrics.kv_cache_usage_perc=.25 ",
        r#"JSON {"named_metrics": {"num_requests_waiting": 6.0, "kv_cache_usage_perc": 0.25}}"#,
        r#"json {"cpu":1,"named_metrics":{"list":[{"a":1}],"num_requests_waiting":6,"kv_cache_usage_perc":25e-2}}"#,
        r#"JSON {"named_metrics":{"num_requests_waiting":9},"named_metrics":{"num_requests_waiting":1,
            "kv_cache_usage_perc":0.25,"num_requests_waiting":6}}"#,
    ] {
        assert_eq!(read(value), (Some(6.0), Some(0.25)), "{value}");
    }
    assert_eq!(read("TEXT named_metrics.num_requests_waiting=0.0"), (Some(0.0), None));
}

#[test]
fn the_engines_of_a_replica_are_one_host() {
    let value = "TEXT named_metrics.num_requests_waiting=2.0, named_metrics.kv_cache_usage_perc=0.5, \
                 named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25";
    assert_eq!(read(value), (Some(5.0), Some(0.375)));
}

#[test]
fn what_no_engine_can_mean_is_unknown_and_not_zero() {
    for number in ["NaN", "Infinity", "-Infinity", "-1", "1e400", "null", "\"7\"", "[7]", "x", ""] {
        let text = format!(
            "TEXT named_metrics.num_requests_waiting={number}, named_metrics.kv_cache_usage_perc={number}"
        );
        let json = format!(
            r#"JSON {{"named_metrics":{{"num_requests_waiting":{number},"kv_cache_usage_perc":{number}}}}}"#
        );
        assert_eq!((read(&text), read(&json)), ((None, None), (None, None)), "{number}");
    }
    // A percentage is no share; a sum that nothing holds is no queue; of several, those that make sense count.
    assert_eq!(read("TEXT named_metrics.kv_cache_usage_perc=37.5"), (None, None));
    let twice = "named_metrics.num_requests_waiting=1e308";
    assert_eq!(read(&format!("TEXT {twice}, {twice}")), (None, None));
    let one = "named_metrics.num_requests_waiting=NaN, named_metrics.num_requests_waiting=4";
    assert_eq!(read(&format!("TEXT {one}")), (Some(4.0), None));
}

#[test]
fn other_headers_say_nothing() {
    for value in [
        "",
        "TEXT",
        "JSON",
        "JSON {}",
        "JSON []",
        "BIN CgQIARAB",
        "TEXTnamed_metrics.num_requests_waiting=1",
        "named_metrics.num_requests_waiting=1",
        "TEXT num_requests_waiting=1, named_metrics.num_requests_waiting, named_metrics.=1",
        r#"JSON {"num_requests_waiting":1,"other":{"num_requests_waiting":1}}"#,
        r#"JSON {"named_metrics":[{"num_requests_waiting":1}],"x":{"num_requests_waiting":1}}"#,
        r#"JSON [{"named_metrics":{"num_requests_waiting":1}}]"#,
        r#"JSON {"named_metrics":{"num_requests_waiting":1}"#,
        r#"JSON {"named_metrics":{"num_requests_waiting":100000000000000000000000000000000000000000}}"#,
    ] {
        assert_eq!(read(value), (None, None), "{value}");
    }
}
