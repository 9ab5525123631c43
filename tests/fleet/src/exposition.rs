//! How does `/metrics` read? The numbers of `stats` as vLLM's prometheus_client writes them: its names, order,
//! sorted labels, `_created` series and float spelling.

use std::fmt::Write;

use crate::engine_core::Life;
use crate::metric_help::help;
use crate::options::{EngineOptions, MetricsNames};
use crate::stats::{Histogram, Stats};

/// What vLLM sends as `content-type`.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// The whole exposition.
pub(crate) fn render(options: &EngineOptions, stats: &Stats, life: Life) -> String {
    let text = String::with_capacity(32 << 10);
    let mut page = Page { text, model: label(&options.model), created: stats.started };
    page.head("process_start_time_seconds", "", "gauge");
    page.line("process_start_time_seconds", "", stats.started);
    queue(&mut page, options, stats, life);
    prefix_cache(&mut page, options, stats);
    tokens(&mut page, options, stats);
    requests(&mut page, options, stats);
    loras(&mut page, options, stats);
    cache_config(&mut page, options);
    page.text
}

fn queue(page: &mut Page, options: &EngineOptions, stats: &Stats, life: Life) {
    let (running, waiting) = (stats.gauges.running as f64, stats.gauges.waiting as f64);
    page.gauge("vllm:num_requests_running", running);
    page.gauge("vllm:num_requests_waiting", waiting);
    if options.metrics_names != MetricsNames::Current {
        return;
    }
    let by_reason = [("capacity", waiting), ("deferred", 0.0)];
    page.gauges("vllm:num_requests_waiting_by_reason", "reason", &by_reason);
    let (awake, offloaded, discarded) = match life {
        Life::Asleep { level: 0 | 1 } => (0.0, 1.0, 0.0),
        Life::Asleep { .. } => (0.0, 0.0, 1.0),
        _ => (1.0, 0.0, 0.0),
    };
    let states = [("awake", awake), ("weights_offloaded", offloaded), ("discard_all", discarded)];
    page.gauges("vllm:engine_sleep_state", "sleep_state", &states);
}

fn prefix_cache(page: &mut Page, options: &EngineOptions, stats: &Stats) {
    let usage = stats.gauges.kv_usage;
    let (queries, hits) = (stats.prefix_cache_queries, stats.prefix_cache_hits);
    if options.metrics_names != MetricsNames::Current {
        page.gauge("vllm:gpu_cache_usage_perc", usage);
        page.counter("vllm:gpu_prefix_cache_queries", queries);
        page.counter("vllm:gpu_prefix_cache_hits", hits);
    }
    if options.metrics_names != MetricsNames::Old {
        page.gauge("vllm:kv_cache_usage_perc", usage);
        page.counter("vllm:prefix_cache_queries", queries);
        page.counter("vllm:prefix_cache_hits", hits);
    }
    if options.metrics_names == MetricsNames::Current {
        page.counter("vllm:external_prefix_cache_queries", stats.external_queries);
        page.counter("vllm:external_prefix_cache_hits", stats.external_hits);
    }
    page.counter("vllm:num_preemptions", stats.preemptions);
}

fn tokens(page: &mut Page, options: &EngineOptions, stats: &Stats) {
    page.counter("vllm:prompt_tokens", stats.prompt_tokens);
    if options.metrics_names == MetricsNames::Current {
        let (cached, fetched) = (stats.cached_prompt_tokens, stats.fetched_prompt_tokens);
        let (computed, hits) = (stats.prompt_tokens - cached, cached - fetched);
        let sources =
            [("local_compute", computed), ("local_cache_hit", hits), ("external_kv_transfer", fetched)];
        page.counters("vllm:prompt_tokens_by_source", "source", &sources);
        page.counter("vllm:prompt_tokens_cached", cached);
    }
    page.counter("vllm:generation_tokens", stats.generation_tokens);
}

fn requests(page: &mut Page, options: &EngineOptions, stats: &Stats) {
    let (length, abort) = (stats.finished_length, stats.finished_abort);
    let mut reasons = vec![("stop", 0), ("length", length), ("abort", abort)];
    if options.metrics_names == MetricsNames::Current {
        reasons.extend([("error", stats.finished_error), ("repetition", 0)]);
    }
    page.counters("vllm:request_success", "finished_reason", &reasons);
    if options.metrics_names == MetricsNames::Current {
        page.rejections(stats.rejected);
    }
    page.histogram("vllm:request_prompt_tokens", &stats.request_prompt_tokens);
    page.histogram("vllm:request_generation_tokens", &stats.request_generation_tokens);
    page.histogram("vllm:iteration_tokens_total", &stats.iteration_tokens);
    page.histogram("vllm:time_to_first_token_seconds", &stats.time_to_first_token);
    page.histogram("vllm:e2e_request_latency_seconds", &stats.e2e_latency);
    page.histogram("vllm:request_queue_time_seconds", &stats.queue_time);
}

/// The one series without engine and model, and with a time as its value.
fn loras(page: &mut Page, options: &EngineOptions, stats: &Stats) {
    if options.loras.is_empty() {
        return;
    }
    page.head("vllm:lora_requests_info", "", "gauge");
    for series in &stats.lora_series {
        let (running, waiting) = (label(&series.running), label(&series.waiting));
        let labels = format!(
            "{{max_lora=\"{}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}}",
            options.loras.len()
        );
        page.line("vllm:lora_requests_info", &labels, series.seen);
    }
}

fn cache_config(page: &mut Page, options: &EngineOptions) {
    let (block_size, blocks) = (options.block_size.to_string(), options.num_blocks.to_string());
    let tokens = (options.block_size * options.num_blocks).to_string();
    let mut labels = vec![
        ("block_size", block_size.as_str()),
        ("cache_dtype", "auto"),
        ("enable_prefix_caching", "True"),
        ("engine", "0"),
        ("gpu_memory_utilization", "0.92"),
        ("is_attention_free", "False"),
        ("kv_cache_size_tokens", &tokens),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks", &blocks),
        ("num_gpu_blocks_override", &blocks),
        ("prefix_caching_hash_algo", "sha256"),
        ("sliding_window", "None"),
    ];
    if options.metrics_names != MetricsNames::Current {
        labels.retain(|(name, _)| *name != "kv_cache_size_tokens");
    }
    let labels: Vec<_> = labels.iter().map(|(name, of)| format!("{name}=\"{of}\"")).collect();
    page.head("vllm:cache_config_info", "", "gauge");
    page.line("vllm:cache_config_info", &format!("{{{}}}", labels.join(",")), 1.0);
}

struct Page {
    text: String,
    /// The model's name, escaped.
    model: String,
    /// What every `_created` series says, in Unix seconds.
    created: f64,
}

impl Page {
    fn gauge(&mut self, name: &str, value: f64) {
        self.head(name, "", "gauge");
        self.line(name, &self.labels(None), value);
    }

    fn gauges(&mut self, name: &str, label: &str, values: &[(&str, f64)]) {
        self.head(name, "", "gauge");
        for (of, value) in values {
            self.line(name, &self.labels(Some((label, of))), *value);
        }
    }

    fn counter(&mut self, name: &str, value: u64) {
        self.counter_lines(name, &[(self.labels(None), value)]);
    }

    fn counters(&mut self, name: &str, label: &str, values: &[(&str, u64)]) {
        let line = |(of, value): &(&str, u64)| (self.labels(Some((label, of))), *value);
        let lines: Vec<_> = values.iter().map(line).collect();
        self.counter_lines(name, &lines);
    }

    /// The one counter that names no engine.
    fn rejections(&mut self, queue_full: u64) {
        let model = &self.model;
        let labels = |reason: &str| format!("{{model_name=\"{model}\",reason=\"{reason}\"}}");
        let lines = [(labels("max_num_queued_reqs"), queue_full), (labels("max_num_queued_tokens"), 0)];
        self.counter_lines("vllm:admission_rejections", &lines);
    }

    fn counter_lines(&mut self, name: &str, lines: &[(String, u64)]) {
        self.head(name, "_total", "counter");
        let (total, created) = (format!("{name}_total"), format!("{name}_created"));
        lines.iter().for_each(|(labels, value)| self.line(&total, labels, *value as f64));
        self.head(name, "_created", "gauge");
        lines.iter().for_each(|(labels, _)| self.line(&created, labels, self.created));
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        self.head(name, "", "histogram");
        let bounds = histogram.bounds.iter().map(|bound| float(*bound));
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.buckets) {
            below += count;
            self.line(&bucket, &self.labels(Some(("le", &bound))), below as f64);
        }
        let labels = self.labels(None);
        self.line(&format!("{name}_count"), &labels, histogram.count as f64);
        self.line(&format!("{name}_sum"), &labels, histogram.sum);
        self.head(name, "_created", "gauge");
        self.line(&format!("{name}_created"), &labels, self.created);
    }

    /// Engine, model and at most one more label, sorted by name as vLLM's are.
    fn labels(&self, extra: Option<(&str, &str)>) -> String {
        let model = &self.model;
        match extra {
            None => format!("{{engine=\"0\",model_name=\"{model}\"}}"),
            Some((name, of)) if name < "model_name" => {
                format!("{{engine=\"0\",{name}=\"{of}\",model_name=\"{model}\"}}")
            }
            Some((name, of)) => format!("{{engine=\"0\",model_name=\"{model}\",{name}=\"{of}\"}}"),
        }
    }

    fn head(&mut self, name: &str, suffix: &str, kind: &str) {
        let text = help(name);
        let _ = writeln!(self.text, "# HELP {name}{suffix} {text}\n# TYPE {name}{suffix} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{labels} {}", float(value));
    }
}

/// A label's value with what Prometheus text must escape.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// As prometheus_client spells floats: `4.0`, and from a million on `1.234567e+06`.
fn float(value: f64) -> String {
    let plain = format!("{value:?}");
    match plain.split_once('.') {
        Some((whole, fraction)) if value > 0.0 && whole.len() > 6 => {
            let digits = format!("{}.{}{fraction}", &whole[..1], &whole[1..]);
            format!("{}e+{:02}", digits.trim_end_matches(['0', '.']), whole.len() - 1)
        }
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_spelled_as_prometheus_client_does() {
        let spelled = [0.0, 4.0, 0.25, 999_999.0, 1_234_567.0, 1_796_034_246.18, 4_920_922_112.0].map(float);
        let expected =
            ["0.0", "4.0", "0.25", "999999.0", "1.234567e+06", "1.79603424618e+09", "4.920922112e+09"];
        assert_eq!(spelled, expected);
    }
}
