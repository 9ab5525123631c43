//! The README says what the code does.

use super::test;
use kvroute::core::config::Signals as Config;
use kvroute::core::load::Freshness;
use kvroute::core::prompt::keys::{self, Use};
use kvroute::core::prompt::{paths_without_reuse, Api};
use kvroute::core::signals::{Signals, GAUGES};

const README: &str = include_str!("../../README.md");

/// The keys of a kind in a body of this API, in the table's order.
fn keys_of(api: Api, wanted: &[Use]) -> Vec<&'static str> {
    let of_kind =
        |kind: &Use| keys::of(api).filter(|(_, used)| used == kind).map(|(key, _)| key).collect::<Vec<_>>();
    wanted.iter().flat_map(of_kind).collect()
}

/// Whether a key means the same in every API, and stands below the table.
fn is_everywhere(key: &str) -> bool {
    Api::ALL.into_iter().all(|api| keys::of(api).any(|(other, _)| other == key))
}

fn cell(keys: Vec<&str>) -> String {
    let keys: Vec<String> =
        keys.iter().filter(|key| !is_everywhere(key)).map(|key| format!("`{key}`")).collect();
    keys.join(", ")
}

#[test]
fn the_table_of_apis_is_that_of_the_code() {
    let mut table = String::from("| paths that end in | hashed, in this order | seeds the hashes | only the prompt's end |\n| --- | --- | --- | --- |\n");
    for api in Api::ALL {
        let paths: Vec<String> = api.paths().map(|path| format!("`{path}`")).collect();
        let hashed = [Use::Tools, Use::System, Use::Messages, Use::Input, Use::TokenIds, Use::Prompt];
        let seeds = [Use::Model, Use::Seed, Use::TemplateOptions, Use::Parameters];
        let [hashed, seeds, end] =
            [&hashed[..], &seeds, &[Use::Ending]].map(|kinds| cell(keys_of(api, kinds)));
        table += &format!("| {} | {hashed} | {seeds} | {end} |\n", paths.join(", "));
    }
    assert!(README.contains(&table), "README.md must have this table:\n{table}");
    let without: Vec<String> = paths_without_reuse().map(|path| format!("`{path}`")).collect();
    let without = without.join(", ");
    assert!(README.contains(&without), "README.md must list {without}");
    let everywhere: Vec<&str> =
        keys::of(Api::Chat).map(|(key, _)| key).filter(|key| is_everywhere(key)).collect();
    assert_eq!(
        everywhere,
        ["model", "cache_salt", "prompt_cache_key", "session_id", "stream"],
        "explained below the table"
    );
}

#[test]
fn what_it_says_is_ignored_is_ignored() {
    let from = README.find("Everything else is\nignored, such as ").expect("the list");
    let list = README[from..].split(".\n").next().expect("its end");
    let ignored: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert!(ignored.len() > 15, "{ignored:?}");
    for api in Api::ALL {
        for key in &ignored {
            assert!(keys::of(api).all(|(known, _)| known != *key), "{key} in {api:?}");
        }
    }
}

#[test]
fn every_queue_signal_is_explained() {
    let from = README.find("## Scale by the queue").expect("the section");
    let section = README[from..].split("\n## ").next().expect("its text");
    for gauge in GAUGES {
        assert!(section.contains(&format!("`{gauge}`")), "{gauge} is not in the section");
        let named = [format!("`kvroute_signals_{gauge}`"), format!("`_{gauge}`")];
        assert!(named.iter().any(|name| README.contains(name)), "{gauge} is not in the table of metrics");
    }
    let said =
        Signals::begin(Config::default(), 1, 0).to_json(&[], Freshness { now_ms: 0, stale_after_ms: 1 });
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    for field in said.as_object().expect("an object").keys() {
        assert!(section.contains(&format!("`{field}")), "{field} is not in the section");
    }
}
