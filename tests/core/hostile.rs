//! What always holds, of bytes that proptest makes: any, words that the reader knows in any order, and captured ones that
//! were damaged. `tests/fuzz` looks for more, where there is a nightly toolchain.

use super::properties::{
    clusters, configuration, exposition, journal, memory, orca, peers, prompt, scanner, usage,
};
use super::support::settings;
use kvroute::core::prompt::{Api, Outline, Prompt};
use proptest::prelude::*;

/// What JSON is made of.
const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\n",
    "\\u0041",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\u12",
    "\\x",
    "0",
    "-1.5e3",
    "true",
    "null",
    "NaN",
    " ",
    "\n",
    "\u{FEFF}",
    "é",
    "\u{1}",
    "\"a\"",
    "\"key\":",
    "[1,2,3]",
    "[[",
    "{\"a\":1}",
    "0123456789012345678901234567890123456789",
    "abcdefghijklmnopqrstuvwxyz",
];

/// What is between them in bodies.
const BODY: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    "\"",
    "null",
    "7,",
    "12345",
    "\\ud800",
    "\\x",
    "\\n",
    "{\"messages\":[",
    "{\"role\":\"user\",\"content\":",
    "\"text of some length, with words in it \"",
    "]}",
    "\"}",
    "\"tools\":[",
    "\"model\":\"m\",",
    "\"stream\":true,",
    "{\"prompt\":",
    "{\"type\":\"text\",\"text\":\"",
    "\"cache_salt\":\"s\",",
    "\"tool_calls\":",
    "\"system\":",
    "\"input\":",
    "\"instructions\":",
];

const CLUSTERS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    "{\"cluster_statuses\":[",
    "{\"name\":\"vllm\",",
    "\"name\":\"v\",",
    "\"host_statuses\":[",
    "{\"address\":{\"socket_address\":{",
    "\"address\":\"::1\",",
    "\"port_value\":80",
    "}}}",
    "}},",
    "\"health_status\":{",
    "\"failed_outlier_check\":true",
    "\"eds_health_status\":\"DRAINING\"",
    "\"weight\":2",
    "\"added_via_api\":true",
    "null",
];

const ORCA: &[&str] = &[
    "TEXT ",
    "JSON ",
    "named_metrics.",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "=",
    ",",
    ", ",
    "{",
    "}",
    "\"",
    "\"named_metrics\":{",
    "\"num_requests_waiting\":",
    "\"kv_cache_usage_perc\":",
    "0.5",
    "3",
    "1e308",
    "NaN",
    "-1",
    "num_requests_waiting=7",
    "named_metrics.kv_cache_usage_perc=0.25",
];

const EXPOSITION: &[&str] = &[
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:lora_requests_info",
    "llamacpp:prompt_tokens_total",
    "trtllm_kv_cache_max_blocks",
    "{",
    "}",
    "engine=\"0\"",
    "block_size=\"16\"",
    "num_gpu_blocks=\"1e308\"",
    "model_name=\"a\\\"b\"",
    ",",
    " ",
    "\n",
    "\r\n",
    "1.0",
    "1e308",
    "NaN",
    "-3",
    "+Inf",
    "# HELP",
    "\"",
    "\\",
    "0.5\n",
    " 3\n",
];

const CONFIGURATION: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    "{\"cluster\":\"c\",\"hosts\":[\"10.0.0.1:80\"]",
    ",\"poll\":{",
    "\"interval_ms\":",
    "50",
    "1e3",
    "-1",
    "0.5",
    "null",
    "true",
    ",\"mode\":",
    "\"shadow\"",
    "{\"on\":10",
    ",\"routing\":{",
    "\"tie_ms\":",
    ",\"peers\":{\"secret\":\"0123456789abcdef\"",
    ",\"control\":true",
    "\"a\\nb\":1",
    ",\"candidates\":",
    "\u{7f}",
];

const USAGE: &[&str] = &[
    "data: ",
    "\n\n",
    "\"usage\"",
    ":",
    " ",
    "{",
    "}",
    "\"prompt_tokens\":",
    "\"cached_tokens\":",
    "12",
    "null",
    ",",
    "18446744073709551616",
    "\"input_tokens\":",
    "some of the text that was generated ",
];

/// Any bytes; words of the reader's own, in any order; and what was captured, with some bytes changed.
fn hostile(
    words: &'static [&'static str],
    captured: &'static [&'static str],
) -> impl Strategy<Value = Vec<u8>> {
    let noise = proptest::collection::vec(any::<u8>(), 0..600);
    let soup = proptest::collection::vec(proptest::sample::select(words), 0..60)
        .prop_map(|words| words.concat().into_bytes());
    let damage = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4);
    let captured = (proptest::sample::select(captured), damage).prop_map(|(text, damage)| {
        let mut bytes = text.as_bytes().to_vec();
        damage.into_iter().for_each(|(at, byte)| {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        });
        bytes
    });
    prop_oneof![noise, soup, captured]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_scanner_agrees_with_serde_json_and_with_itself(bytes in hostile(JSON, &[r#"{"a":[1,"b\u00e9\ud83d\ude00",{"c":null}]}"#])) {
        scanner::holds(&bytes);
    }

    #[test]
    fn a_body_says_the_same_however_it_is_cut(bytes in hostile(BODY, &[
        r#"{"model":"m","messages":[{"role":"system","content":"be\nbrief"},{"role":"user","content":[{"type":"text","text":"hello"}]}]}"#,
        r#"{"prompt":[[1,2,3],[4]],"cache_salt":"s"}"#,
    ])) {
        prompt::holds(&bytes);
    }

    #[test]
    fn no_page_makes_a_load_that_no_engine_can_have(bytes in hostile(EXPOSITION, &[
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n",
    ])) {
        exposition::holds(&bytes);
    }

    #[test]
    fn envoys_hosts_are_those_that_serde_json_finds(bytes in hostile(CLUSTERS, &[
        r#"{"cluster_statuses":[{"name":"vllm","host_statuses":[{"address":{"socket_address":{"address":"10.0.0.1","port_value":80}},"weight":1}]}]}"#,
    ])) {
        clusters::holds(&bytes);
    }

    #[test]
    fn a_load_report_is_what_its_numbers_say(bytes in hostile(ORCA, &[
        "TEXT named_metrics.num_requests_waiting=6.0, named_metrics.kv_cache_usage_perc=0.00054",
        r#"JSON {"named_metrics": {"num_requests_waiting": 6.0, "kv_cache_usage_perc": 0.00054}}"#,
    ])) {
        orca::holds(&bytes);
    }

    #[test]
    fn what_a_worker_writes_is_read_and_what_else_there_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..3_000)) {
        journal::holds(&bytes);
        // A value that is cut or damaged is more likely to go far.
        journal::holds(&[[1].as_slice(), &bytes].concat());
        journal::holds(&[[2].as_slice(), &bytes].concat());
    }

    #[test]
    fn what_a_gateway_tells_is_heard_and_what_else_it_answers_survived(bytes in proptest::collection::vec(any::<u8>(), 0..3_000)) {
        peers::holds(&bytes);
        peers::holds(&[[1].as_slice(), &bytes].concat());
    }

    #[test]
    fn a_configuration_is_taken_or_refused_in_one_line(bytes in hostile(CONFIGURATION, &[
        r#"{"cluster":"c","hosts":["10.0.0.1:80","[::1]:80"],"poll":{"interval_ms":700},"routing":{"tie_share":0.1}}"#,
    ])) {
        configuration::holds(&bytes);
    }

    #[test]
    fn whatever_an_engine_answers_its_end_is_read(bytes in hostile(USAGE, &[
        r#"{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":8}}}"#,
    ])) {
        usage::holds(&bytes);
    }
}

/// Peak heap of reading a body that is `head`, and then `piece` so many times.
fn heap(api: Api, head: &str, piece: &str, times: usize) -> usize {
    let (prompt, heap) = memory::most(|| {
        let mut prompt = Prompt::new(api, &settings());
        prompt.feed(head.as_bytes());
        (0..times).for_each(|_| prompt.feed(piece.as_bytes()));
        prompt.finish();
        prompt
    });
    assert!(!prompt.is_broken(), "{head}");
    assert!(prompt.view(true).depth() < 128 && prompt.view(false).depth() < 128);
    heap
}

#[test]
fn a_body_of_200_mb_takes_no_more_memory_than_a_small_one() {
    const MB: usize = 1 << 20;
    let plain = "words of a text without end, ".repeat(MB / 29);
    let text = r#"{"messages":[{"role":"user","content":""#;
    assert_eq!(heap(Api::Chat, text, &plain, 200), heap(Api::Chat, text, &plain, 2));
    let image = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"#;
    assert!(heap(Api::Chat, image, &"iVBORw0KGgo=".repeat(MB / 12), 200) < 8 << 10);
}

#[test]
fn a_million_of_anything_takes_no_more_memory_than_a_few() {
    let repeated: [(Api, &str, &str); 11] = [
        (Api::Chat, r#"{"messages":["#, r#"{"content":"x","role":"user"},"#),
        (Api::Chat, r#"{"messages":["#, r#"{"role":"assistant","tool_calls":[{"id":"1"}],"name":"n"},"#),
        (Api::Chat, r#"{"messages":[{"role":"user","content":["#, r#"{"type":"text","text":"a"},"#),
        (
            Api::Chat,
            r#"{"messages":[{"role":"user","content":["#,
            r#"{"type":"image_url","image_url":"a","uuid":"u"},"#,
        ),
        (Api::Chat, r#"{"messages":[{"#, r#""content":"again and again","role":"user","role":"system","#),
        (Api::Chat, r#"{"tools":["#, r#"{"name":"f","parameters":{"a":[1,{}]}},"#),
        (Api::Chat, r#"{"chat_template_kwargs":{"#, r#""a\u0041":"b","#),
        (Api::Chat, "{", r#""cache_salt":"s","model":"m","documents":[1],"unknown":{"a":[]},"#),
        (Api::Completions, r#"{"prompt":["#, r#"17,4711,"#),
        (Api::Completions, r#"{"prompt":["#, r#"[17],"text","#),
        (
            Api::Messages,
            "{",
            r#""system":"twice","messages":[{"role":"user","content":[{"type":"tool_result","content":["x"]}]}],"#,
        ),
    ];
    for (api, head, piece) in repeated {
        let pieces = piece.repeat(1_000);
        let million = heap(api, head, &pieces, 1_000);
        assert!(million < 24 << 10, "{million} bytes for a million of {piece}");
    }
}
