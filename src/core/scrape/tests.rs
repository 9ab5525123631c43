//! What the readers are held to: pages people met (more of them in `tests/core/cases.rs`), captured pages,
//! and a naive reader that says the same of random pages in thirty lines.

use super::engine::{MAX_BODY_BYTES, MAX_NAMES};
use super::*;

fn read(body: &str) -> EngineSample {
    read_engine(body.as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Everything `body` says: name, labels, value; and the number of lines that could not be read.
fn all(body: &[u8]) -> (Vec<Row>, u32) {
    let mut exposition = Exposition::new(body, Some);
    let rows = exposition
        .by_ref()
        .map(|sample| {
            assert_eq!(sample.key, sample.name);
            let labels = sample.labels.iter().map(|(name, value)| (text(name), text(&value)));
            (text(sample.name), labels.collect(), Value(sample.value))
        })
        .collect();
    (rows, exposition.skipped())
}

type Row = (String, Vec<(String, String)>, Value);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A number that compares as a reader means it: NaN equals NaN, and the last bits do not count.
#[derive(Debug)]
struct Value(f64);

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.0, other.0);
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= a.abs().max(b.abs()) * 1e-14
    }
}

// ---- cases: bodies people met -------------------------------------------------------------------

const QUEUE: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"org/guide-7b\"} 3.0\n\
                     vllm:num_requests_waiting{engine=\"0\",model_name=\"org/guide-7b\"} 1.0\n";

fn with_queue(lines: &str) -> EngineSample {
    let sample = read(&format!("{QUEUE}{lines}"));
    assert_eq!((sample.running, sample.waiting), (Some(3.0), Some(1.0)));
    sample
}

#[test]
fn numbers_that_are_infinite_only_together_are_unknown() {
    let twice = |name: &str| format!("{name}{{engine=\"0\"}} 1e308\n{name}{{engine=\"1\"}} 1e308\n");
    let sample = read(&(twice("vllm:num_requests_waiting") + &twice("process_start_time_seconds")));
    assert_eq!(sample, EngineSample::default());
    let capacity = "trtllm_kv_cache_max_blocks 1e200\ntrtllm_kv_cache_tokens_per_block 1e200\n";
    let cached = "llamacpp:prompt_tokens_total 1e308\nllamacpp:prompt_tokens_cached_total 1e308\n";
    assert_eq!((read(capacity).capacity_tokens, read(cached).prefix_queries), (None, None));
}

#[test]
fn crlf_tabs_and_trailing_blanks_read_the_same() {
    let sample = read(
        "vllm:num_requests_running{engine=\"0\"} 4\r\n\
         vllm:num_requests_waiting{engine=\"0\"} 12\r\n\
         \r\n\
         \tvllm:kv_cache_usage_perc{engine=\"0\"}\t0.25 \r\n",
    );
    assert_eq!((sample.running, sample.waiting), (Some(4.0), Some(12.0)));
    assert_eq!((sample.kv_usage, sample.skipped_lines), (Some(0.25), 0));
}

#[test]
fn odd_label_values_neither_hide_a_sample_nor_become_one() {
    let sample = read(concat!(
        "vllm:num_requests_running{engine=\"0\",model_name=\"a=b,c\"} 1\n",
        "vllm:num_requests_running{engine=\"0\",model_name=\"x{y}\\\"z\",} 2\n",
        "vllm:num_requests_running{ engine = \"0\" , model_name = \"back\\\\slash\\nline\" } 3 1760000000000\n",
        "vllm:num_requests_waiting{model_name=\"org/guide-7b # not a comment\",engine=\"0\"}7\n",
        "vllm:kv_cache_usage_perc{engine=\"0\",note=\"vllm:num_requests_waiting{} 999\"} 0.5\n",
    ));
    assert_eq!((sample.running, sample.waiting), (Some(6.0), Some(7.0)));
    assert_eq!((sample.kv_usage, sample.skipped_lines), (Some(0.5), 0));
    assert_eq!(sample.models, ["a=b,c", "x{y}\"z", "back\\slash\nline"]);
}

#[test]
fn a_body_without_an_engine_is_a_failed_scrape() {
    for (body, error) in [
        ("", ScrapeError::Empty),
        (" \r\n\t\n", ScrapeError::Empty),
        ("# nothing here\n", ScrapeError::NoEngineMetrics),
        ("python_info{version=\"3\"} 1\n", ScrapeError::NoEngineMetrics),
        ("process_start_time_seconds 1.7e+09\n", ScrapeError::NoEngineMetrics),
        ("vllm:num_requests_running{engine=\"0\"}\n", ScrapeError::NoEngineMetrics),
        ("<html>not found</html>", ScrapeError::NoEngineMetrics),
        ("{\"detail\":\"Not Found\"}", ScrapeError::NoEngineMetrics),
    ] {
        assert_eq!(read_engine(body.as_bytes()), Err(error), "{body:?}");
    }
    assert_eq!(ScrapeError::NoEngineMetrics.to_string(), "no_engine_metrics");
}

#[test]
fn a_body_over_the_bound_is_refused_rather_than_read_in_part() {
    let mut body = QUEUE.repeat(MAX_BODY_BYTES / QUEUE.len()).into_bytes();
    assert!(read_engine(&body).is_ok());
    body.resize(MAX_BODY_BYTES + 1, b'\n');
    assert_eq!(read_engine(&body), Err(ScrapeError::TooLarge));
}

#[test]
fn a_replica_is_awake_only_if_all_its_engines_are() {
    let engines = |states: [&str; 2]| {
        let line = |engine, state| {
            format!("vllm:engine_sleep_state{{engine=\"{engine}\",sleep_state=\"awake\"}} {state}\n")
        };
        read(&(line(0, states[0]) + &line(1, states[1]))).awake
    };
    assert_eq!(engines(["1.0", "1.0"]), Some(true));
    assert_eq!(engines(["1.0", "0.0"]), Some(false));
    assert_eq!(engines(["NaN", "NaN"]), None);
    assert_eq!(with_queue("").awake, None);
}

#[test]
fn names_are_bounded_however_many_a_page_lists() {
    let mut body = String::new();
    for n in 0..5 * MAX_NAMES {
        body += &format!("vllm:num_requests_running{{model_name=\"m{n}\"}} 1\n");
    }
    let sample = read(&body);
    assert_eq!(sample.models.len(), MAX_NAMES);
    assert_eq!(sample.running, Some(5.0 * MAX_NAMES as f64));
}

// ---- other engines ------------------------------------------------------------------------------

#[test]
fn sglang_is_read_with_colons_and_with_underscores() {
    let page = "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 5\n\
                sglang:num_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 2\n\
                sglang:num_grammar_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 1\n\
                sglang:token_usage{model_name=\"m\",tp_rank=\"0\"} 0.28\n\
                sglang:max_total_num_tokens{model_name=\"m\"} 161721.0\n\
                sglang:prompt_tokens_total{model_name=\"m\"} 1000\n\
                sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 300\n\
                sglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 100\n";
    for page in [page.to_string(), page.replace("sglang:", "sglang_")] {
        let sample = read(&page);
        assert_eq!((sample.running, sample.waiting), (Some(5.0), Some(3.0)));
        assert_eq!((sample.kv_usage, sample.capacity_tokens), (Some(0.28), Some(161_721.0)));
        assert_eq!((sample.prefix_queries, sample.prefix_hits), (Some(1000.0), Some(400.0)));
    }
}

#[test]
fn triton_series_are_told_apart_by_their_label() {
    let sample = read(
        "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 2\n\
         nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\",version=\"1\"} 6\n\
         nv_trt_llm_request_metrics{model=\"m\",request_type=\"max\",version=\"1\"} 512\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"m\"} 0.5\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",model=\"m\"} 64\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"m\"} 100\n",
    );
    assert_eq!((sample.running, sample.waiting), (Some(6.0), Some(2.0)));
    assert_eq!((sample.kv_usage, sample.capacity_tokens), (Some(0.5), Some(6400.0)));
}

#[test]
fn the_smaller_vocabularies_give_a_queue() {
    for page in [
        "trtllm_num_requests_running 1\ntrtllm_num_requests_waiting 2\n",
        "tgi_batch_current_size 1\ntgi_queue_size 2\n",
        "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n",
    ] {
        let sample = read(page);
        assert_eq!((sample.running, sample.waiting), (Some(1.0), Some(2.0)), "{page}");
    }
}

#[test]
fn llama_cpp_counts_cached_tokens_beside_the_computed_ones() {
    let sample = read("llamacpp:prompt_tokens_total 70\nllamacpp:prompt_tokens_cached_total 30\n");
    assert_eq!((sample.prefix_queries, sample.prefix_hits), (Some(100.0), Some(30.0)));
}

// ---- captured pages -----------------------------------------------------------------------------

#[test]
fn a_page_of_vllm_0_32_under_load_reads_whole() {
    let sample = read(include_str!("testdata/vllm_0_32_load.prom"));
    let expected = EngineSample {
        running: Some(4.0),
        waiting: Some(8.0),
        kv_usage: sample.kv_usage,
        capacity_tokens: Some(4_194_304.0),
        prompt_tokens: Some(5830.0),
        generation_tokens: Some(1171.0),
        prefix_queries: Some(5830.0),
        prefix_hits: Some(896.0),
        external_prefix_queries: Some(0.0),
        external_prefix_hits: Some(0.0),
        iterations: Some(388.0),
        start_time_seconds: sample.start_time_seconds,
        awake: Some(true),
        models: vec!["tiny".to_string()],
        lora_adapters: vec![],
        max_lora: None,
        skipped_lines: 0,
    };
    assert_eq!(sample, expected);
    assert_eq!(sample.kv_usage.map(Value), Some(Value(0.000_488_284_975_318_720_2)));
    assert!(sample.start_time_seconds.is_some_and(|at| at > 1.79e9 && at < 1.8e9));
}

#[test]
fn a_page_of_vllm_0_10_has_both_spellings_and_counts_them_once() {
    let sample = read(include_str!("testdata/vllm_0_10_2_load.prom"));
    assert_eq!((sample.running, sample.waiting), (Some(4.0), Some(8.0)));
    assert_eq!(sample.kv_usage, Some(0.25));
    assert_eq!((sample.prefix_queries, sample.prefix_hits), (Some(1500.0), Some(1024.0)));
    assert_eq!(sample.capacity_tokens, Some(128.0 * 512.0));
    assert_eq!(sample.start_time_seconds.map(Value), Some(Value(1_796_039_076.54)));
    assert_eq!((sample.awake, sample.skipped_lines), (None, 0));
}

#[test]
fn two_data_parallel_engines_are_one_host() {
    let sample = read(include_str!("testdata/vllm_0_32_dp2.prom"));
    assert_eq!((sample.running, sample.waiting), (Some(4.0), Some(4.0)));
    assert_eq!(sample.kv_usage.map(Value), Some(Value(0.000_305_185_094_759_963_25)));
    assert_eq!((sample.prompt_tokens, sample.iterations), (Some(3000.0), Some(322.0)));
    assert_eq!((sample.awake, sample.start_time_seconds), (Some(true), None));
}

#[test]
fn of_the_adapter_series_that_stay_for_ever_the_newest_counts() {
    let sample = read(include_str!("testdata/vllm_0_32_lora.prom"));
    assert_eq!(
        (sample.lora_adapters, sample.max_lora),
        (vec!["lora1".to_owned(), "lora0".to_owned()], Some(2.0))
    );
}

// ---- against the naive reader -------------------------------------------------------------------

/// The format, as plainly as it can be said. Slow, and only for text this file generates: labels
/// are cut at quotes, so it works on characters.
fn naive(body: &str) -> (Vec<Row>, u32) {
    let (mut rows, mut skipped) = (vec![], 0);
    for line in body.split('\n').map(|line| line.trim_matches([' ', '\t', '\r'])) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match naive_line(line) {
            Some(row) => rows.push(row),
            None => skipped += 1,
        }
    }
    (rows, skipped)
}

fn naive_line(line: &str) -> Option<Row> {
    let (name, mut rest) = line.split_at(line.find(['{', ' ', '\t'])?);
    rest = rest.trim_start();
    let mut labels = vec![];
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start_matches([',', ' ', '\t']);
        while !rest.starts_with('}') {
            let (label, value) = rest.split_at(rest.find(['=', '}', '"'])?);
            let mut chars = value.strip_prefix('=')?.trim_start().strip_prefix('"')?.chars();
            let mut unescaped = String::new();
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => match chars.next()? {
                        'n' => unescaped.push('\n'),
                        c @ ('"' | '\\') => unescaped.push(c),
                        c => unescaped.extend(['\\', c]),
                    },
                    c => unescaped.push(c),
                }
            }
            labels.push((label.trim().to_string(), unescaped));
            rest = chars.as_str().trim_start_matches([',', ' ', '\t']);
        }
        rest = rest.get(1..)?;
    }
    let rest = rest.split('#').next()?;
    let numbers: Option<Vec<f64>> = rest.split_whitespace().map(|n| n.parse().ok()).collect();
    let value = match numbers?[..] {
        [value] | [value, _] => value,
        _ => return None,
    };
    let named = !name.is_empty() && labels.iter().all(|(label, _)| !label.is_empty());
    named.then(|| (name.to_string(), labels, Value(value)))
}

/// SplitMix64: the same pages in every run and on every target.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    fn number(&mut self) -> String {
        match self.below(8) {
            0 => self.of(&["NaN", "nan", "-nan", "+Inf", "-Inf", "inf", "INFINITY", "0"]).into(),
            1 => self.of(&["1e400", "1e-400", ".5", "5.", "1E3", "-0", "+7", "00012"]).into(),
            2 => self.of(&["", ".", "e5", "1e", "0x10", "1_0", "--1", "1.2.3"]).into(),
            3 => format!("{}e{}", self.below(1000), self.below(40) as i32 - 20),
            4 => format!("{}.{:09}", self.below(2_000_000_000), self.below(1_000_000_000)),
            _ => format!("{}.{}", self.below(100_000), self.below(100)),
        }
    }

    fn line(&mut self) -> String {
        let blank = |random: &mut Self| random.of(&["", "", "", " ", "\t", "  "]);
        let mut line = self.of(&["", "", " ", "#", "junk ", "\t", "{"]).to_string();
        line += self.of(&["a", "vllm:num_requests_running", "m_total", "a:b", "ü", "0x"]);
        if self.below(3) > 0 {
            line += self.of(&["{", "{", "{", " {", "{,"]);
            for _ in 0..self.below(4) {
                line += blank(self);
                line += self.of(&["le", "model_name", "engine", "l", "", "x}"]);
                line += self.of(&["=", "=", "=", "=", " = ", "=\t", ""]);
                line += self.of(&["\"", "\"", "\"", "\"", "\"", ""]);
                for _ in 0..self.below(5) {
                    line += self.of(&["v", "=", ",", "{", "}", "#", " ", "\\n", "\\\"", "\\\\", "\\x", "ß"]);
                }
                line += self.of(&["\"", "\"", "\"", "\"", "\"", ""]);
                line += self.of(&[",", ",", ",", " , ", "", ",,"]);
            }
            line += self.of(&["}", "}", "}", "}", " }", ""]);
        }
        line += self.of(&[" ", " ", " ", "\t", "  ", ""]);
        line += &self.number();
        line += self.of(&["", "", "", "", " ", " 1760000000000", " 1.5 ", " x", " 1 2", " # {a=\"b\"} 3"]);
        line + self.of(&["\n", "\n", "\n", "\r\n", "\n\n", "\n# EOF\n"])
    }
}

#[test]
fn random_pages_read_as_the_naive_reader_reads_them() {
    let mut random = Random(7);
    let (mut rows, mut skipped) = (0, 0);
    for _ in 0..4000 {
        let page: String = (0..random.below(12)).map(|_| random.line()).collect();
        let (expected, expected_skipped) = naive(&page);
        assert_eq!(all(page.as_bytes()), (expected, expected_skipped), "{page:?}");
        rows += naive(&page).0.len();
        skipped += expected_skipped;
    }
    // The generator earns its keep only if both outcomes are common.
    assert!(rows > 2000 && skipped > 2000, "{rows} rows, {skipped} skipped");
}

#[test]
fn a_captured_page_reads_as_the_naive_reader_reads_it() {
    for page in [
        include_str!("testdata/vllm_0_32_load.prom"),
        include_str!("testdata/vllm_0_10_2_load.prom"),
        include_str!("testdata/vllm_0_32_dp2.prom"),
    ] {
        assert_eq!(all(page.as_bytes()), naive(page));
    }
}

#[test]
fn cut_at_any_byte_or_with_any_byte_changed_nothing_panics() {
    let page = include_bytes!("testdata/vllm_0_32_lora.prom");
    for end in 0..page.len() {
        let _ = read_engine(&page[..end]);
        let _ = all(&page[..end]);
        for byte in [b'"', b'\\', b'{', b'}', b'\n', b'=', 0, 0xff] {
            let mut changed = page.to_vec();
            changed[end] = byte;
            let _ = all(&changed);
        }
    }
}

#[test]
fn numbers_agree_with_the_standard_library() {
    let mut random = Random(11);
    for _ in 0..20_000 {
        let number = random.number();
        let (rows, _) = all(format!("a {number}").as_bytes());
        let read = rows.into_iter().next().map(|(_, _, value)| value);
        assert_eq!(read, number.parse().ok().map(Value), "{number:?}");
    }
}
