//! A page is the sum of its lines, none of which becomes a load that no engine can have.

use super::{nearly, Source};
use kvroute::core::scrape::engine::MAX_NAMES;
use kvroute::core::scrape::{read_engine, EngineSample, Exposition};

pub fn holds(bytes: &[u8]) {
    any_page(bytes);
    let page = Page::of(&mut Source(bytes));
    any_page(page.text.as_bytes());
    page.is_read();
}

fn any_page(page: &[u8]) {
    if let Ok(sample) = read_engine(page) {
        makes_sense(&sample);
    }
    let (samples, skipped) = samples(page);
    let mut by_line = (Vec::new(), 0);
    for line in page.split(|&byte| byte == b'\n') {
        let (more, skipped) = self::samples(line);
        by_line.0.extend(more);
        by_line.1 += skipped;
    }
    assert_eq!((samples, skipped), by_line);
}

fn makes_sense(sample: &EngineSample) {
    let EngineSample {
        running, waiting, kv_usage, capacity_tokens, prompt_tokens, generation_tokens, ..
    } = sample;
    let EngineSample { prefix_queries, prefix_hits, external_prefix_queries, external_prefix_hits, .. } =
        sample;
    let counts = [running, waiting, kv_usage, capacity_tokens, prompt_tokens, generation_tokens];
    let more = [prefix_queries, prefix_hits, external_prefix_queries, external_prefix_hits];
    let rest = [&sample.iterations, &sample.start_time_seconds];
    for value in counts.into_iter().chain(more).chain(rest).flatten() {
        assert!(value.is_finite() && *value >= 0.0, "{sample:?}");
    }
    assert!(kv_usage.is_none_or(|usage| usage <= 1.0) && capacity_tokens.is_none_or(|tokens| tokens > 0.0));
    assert!(sample.models.len() <= MAX_NAMES && sample.lora_adapters.len() <= MAX_NAMES);
}

type Line = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>, u64);

/// What the lines say, values by their bits, and how many cannot be read.
fn samples(page: &[u8]) -> (Vec<Line>, u32) {
    let mut exposition = Exposition::new(page, Some);
    let lines = exposition.by_ref().map(|sample| {
        assert!(!sample.name.is_empty());
        let labels = sample.labels.iter().map(|(name, value)| (name.to_vec(), value.into_owned()));
        (sample.name.to_vec(), labels.collect(), sample.value.to_bits())
    });
    (lines.collect(), exposition.skipped())
}

/// A well-formed page, in whose labels there is no space, so that a line can be split at them.
struct Page {
    text: String,
}

impl Page {
    fn of(source: &mut Source) -> Self {
        let mut text = String::new();
        for line in source.list(40, Self::line) {
            text += &line;
        }
        Self { text }
    }

    fn line(source: &mut Source) -> String {
        const NAMES: [&str; 6] = [
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:prompt_tokens_total",
            "vllm:num_requests_waiting_by_reason",
            "go_goroutines",
        ];
        let name = source.of(&NAMES);
        let labels = source.of(&["", "{}", "{engine=\"0\"}", "{engine=\"1\",model_name=\"a{}=,b\"}"]);
        let value = match source.u8() % 8 {
            0 => source.of(&["NaN", "+Inf", "-Inf", "-1", "-0.5", "1.5e308"]).to_owned(),
            1 => format!("{:e}", f64::from_bits(source.u64())),
            2 => format!("0.{}", source.u16()),
            _ => format!("{}.0", source.u16()),
        };
        let stamp = source.of(&["", "", " 1796039076540"]);
        let before = source.of(&["", "", "# HELP x y\n", "\n"]);
        format!("{before}{name}{labels} {value}{stamp}{}", source.of(&["\n", "\r\n"]))
    }

    /// The sums, as plainly as they can be said.
    fn sum(&self, name: &str, most: f64) -> Option<Vec<f64>> {
        let lines = self.text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let values = lines.map(|line| line.split_whitespace().nth(1).expect("a value").parse().expect("one"));
        let usable: Vec<f64> = values.filter(|value| (0.0..=most).contains(value)).collect();
        (!usable.is_empty()).then_some(usable)
    }

    fn is_read(&self) {
        let Ok(sample) = read_engine(self.text.as_bytes()) else { return };
        assert_eq!(sample.skipped_lines, 0, "{}", self.text);
        for (read, name, most) in [
            (sample.running, "vllm:num_requests_running", f64::MAX),
            (sample.waiting, "vllm:num_requests_waiting", f64::MAX),
            (sample.prompt_tokens, "vllm:prompt_tokens_total", f64::MAX),
            (sample.kv_usage, "vllm:kv_cache_usage_perc", 1.0),
        ] {
            let values = self.sum(name, most);
            let count = if most == 1.0 { values.as_ref().map_or(1, Vec::len) } else { 1 };
            let sum = values.map(|values| values.iter().sum::<f64>());
            let expected = sum.filter(|sum| sum.is_finite()).map(|sum| sum / count as f64);
            // Where the last bits decide whether there is a number at all, either is right.
            let is_edge = sum.is_some_and(|sum| sum > 1e307);
            let is_same = match (read, expected) {
                (Some(read), Some(expected)) => nearly(read, expected),
                (read, expected) => read == expected,
            };
            assert!(is_same || is_edge, "{name}: {read:?}, not {expected:?}\n{}", self.text);
        }
    }
}
