//! Which names do the engines give to the same few things?
//!
//! One row for each name. A new engine, or an old one's new name, is a row more.

/// What a series means, whoever exposes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Concept {
    Running,
    Waiting,
    KvUsage,
    /// Under a name that newer versions replaced and may still expose beside the new one.
    KvUsageOld,
    PromptTokens,
    GenerationTokens,
    PrefixQueries,
    PrefixHits,
    PrefixQueriesOld,
    PrefixHitsOld,
    /// Cached prompt tokens, which the prompt token counter includes.
    CachedInPrompt,
    /// Cached prompt tokens, which the prompt token counter leaves out.
    CachedBesidePrompt,
    ExternalQueries,
    ExternalHits,
    CapacityTokens,
    CapacityBlocks,
    BlockTokens,
    Iterations,
    StartTime,
    Awake,
    /// An info series whose labels hold the cache's size.
    CacheConfig,
    /// An info series whose labels hold adapter names, and whose value says when it was true.
    LoraInfo,
}

pub(super) const CONCEPTS: usize = Concept::LoraInfo as usize + 1;

/// One name of one engine.
pub(super) struct Row {
    /// The metric's name without the engine's prefix.
    name: &'static str,
    /// Only the series with this label mean the concept; any series if `None`.
    pub(super) only: Option<(&'static str, &'static str)>,
    pub(super) concept: Concept,
}

const fn row(name: &'static str, concept: Concept) -> Row {
    Row { name, only: None, concept }
}

const fn row_where(name: &'static str, label: &'static str, value: &'static str, concept: Concept) -> Row {
    Row { name, only: Some((label, value)), concept }
}

/// Each engine's prefix and its names. Between prefix and name stands `:`, or `_` where an exporter
/// or a relay has replaced it.
static VOCABULARIES: &[(&str, &[Row])] = &[
    (
        "vllm",
        &[
            row("num_requests_running", Concept::Running),
            // Not `.._by_reason`: the same requests once more, split up.
            row("num_requests_waiting", Concept::Waiting),
            row("kv_cache_usage_perc", Concept::KvUsage),
            row("gpu_cache_usage_perc", Concept::KvUsageOld),
            row("prompt_tokens_total", Concept::PromptTokens),
            row("generation_tokens_total", Concept::GenerationTokens),
            row("prefix_cache_queries_total", Concept::PrefixQueries),
            row("prefix_cache_hits_total", Concept::PrefixHits),
            row("gpu_prefix_cache_queries_total", Concept::PrefixQueriesOld),
            row("gpu_prefix_cache_hits_total", Concept::PrefixHitsOld),
            row("external_prefix_cache_queries_total", Concept::ExternalQueries),
            row("external_prefix_cache_hits_total", Concept::ExternalHits),
            row("cache_config_info", Concept::CacheConfig),
            row("iteration_tokens_total_count", Concept::Iterations),
            row_where("engine_sleep_state", "sleep_state", "awake", Concept::Awake),
            row("lora_requests_info", Concept::LoraInfo),
        ],
    ),
    (
        "sglang",
        &[
            row("num_running_reqs", Concept::Running),
            row("num_queue_reqs", Concept::Waiting),
            row("num_grammar_queue_reqs", Concept::Waiting),
            row("token_usage", Concept::KvUsage),
            row("max_total_num_tokens", Concept::CapacityTokens),
            row("prompt_tokens_total", Concept::PromptTokens),
            row("generation_tokens_total", Concept::GenerationTokens),
            row("cached_tokens_total", Concept::CachedInPrompt),
        ],
    ),
    (
        "trtllm",
        &[
            row("num_requests_running", Concept::Running),
            row("num_requests_waiting", Concept::Waiting),
            row("kv_cache_utilization", Concept::KvUsage),
            row("kv_cache_max_blocks", Concept::CapacityBlocks),
            row("kv_cache_tokens_per_block", Concept::BlockTokens),
        ],
    ),
    (
        "nv_trt_llm",
        &[
            row_where("request_metrics", "request_type", "scheduled", Concept::Running),
            row_where("request_metrics", "request_type", "waiting", Concept::Waiting),
            row_where("kv_cache_block_metrics", "kv_cache_block_type", "fraction", Concept::KvUsage),
            row_where("kv_cache_block_metrics", "kv_cache_block_type", "max", Concept::CapacityBlocks),
            row_where("kv_cache_block_metrics", "kv_cache_block_type", "tokens_per", Concept::BlockTokens),
        ],
    ),
    ("tgi", &[row("batch_current_size", Concept::Running), row("queue_size", Concept::Waiting)]),
    (
        "llamacpp",
        &[
            row("requests_processing", Concept::Running),
            row("requests_deferred", Concept::Waiting),
            row("prompt_tokens_total", Concept::PromptTokens),
            row("tokens_predicted_total", Concept::GenerationTokens),
            row("prompt_tokens_cached_total", Concept::CachedBesidePrompt),
        ],
    ),
    ("process", &[row("start_time_seconds", Concept::StartTime)]),
];

/// The rows that share the name `full`, prefix included; `None` if no engine has it.
pub(super) fn rows_for(full: &[u8]) -> Option<&'static [Row]> {
    VOCABULARIES.iter().find_map(|(prefix, rows)| {
        let (separator, name) = full.strip_prefix(prefix.as_bytes())?.split_first()?;
        if !matches!(separator, b':' | b'_') {
            return None;
        }
        let first = rows.iter().position(|row| row.name.as_bytes() == name)?;
        rows.get(first..)?.chunk_by(|a, b| a.name == b.name).next()
    })
}
