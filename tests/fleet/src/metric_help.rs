//! What does vLLM say each metric means? The HELP texts of 0.32, and of 0.10.2 for the names that are gone.

/// The HELP text of a metric, by its name without `_total` or `_created`; empty for a name vLLM does not have.
pub(crate) fn help(name: &str) -> &'static str {
    match name {
        "process_start_time_seconds" => "Start time of the process since unix epoch in seconds.",
        "vllm:num_requests_running" => "Number of requests in model execution batches.",
        "vllm:num_requests_waiting" => "Number of requests waiting to be processed.",
        "vllm:num_requests_waiting_by_reason" => {
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for \
             scheduling capacity; 'deferred' = deferred by transient constraints (LoRA \
             budget, KV transfer, blocked status). Sum of all reasons equals \
             vllm:num_requests_waiting."
        }
        "vllm:engine_sleep_state" => {
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine \
             is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means \
             sleep level 2."
        }
        "vllm:gpu_cache_usage_perc" => {
            "GPU KV-cache usage. 1 means 100 percent usage.DEPRECATED: Use \
             vllm:kv_cache_usage_perc instead."
        }
        "vllm:gpu_prefix_cache_queries" => {
            "GPU prefix cache queries, in terms of number of queriedtokens. DEPRECATED: Use \
             vllm:prefix_cache_queries instead."
        }
        "vllm:gpu_prefix_cache_hits" => {
            "GPU prefix cache hits, in terms of number of cached tokens. DEPRECATED: Use \
             vllm:prefix_cache_hits instead."
        }
        "vllm:kv_cache_usage_perc" => "KV-cache usage. 1 means 100 percent usage.",
        "vllm:prefix_cache_queries" => "Prefix cache queries, in terms of number of queried tokens.",
        "vllm:prefix_cache_hits" => "Prefix cache hits, in terms of number of cached tokens.",
        "vllm:external_prefix_cache_queries" => {
            "External prefix cache queries from KV connector cross-instance cache sharing, \
             in terms of number of queried tokens."
        }
        "vllm:external_prefix_cache_hits" => {
            "External prefix cache hits from KV connector cross-instance cache sharing, in \
             terms of number of cached tokens."
        }
        "vllm:num_preemptions" => "Cumulative number of preemption from the engine.",
        "vllm:prompt_tokens" => "Number of prefill tokens processed.",
        "vllm:prompt_tokens_by_source" => "Number of prompt tokens by source.",
        "vllm:prompt_tokens_cached" => "Number of cached prompt tokens (local + external).",
        "vllm:generation_tokens" => "Number of generation tokens processed.",
        "vllm:request_success" => "Count of successfully processed requests.",
        "vllm:admission_rejections" => "Number of admission attempts rejected by a queue limit, by reason.",
        "vllm:request_prompt_tokens" => "Number of prefill tokens processed.",
        "vllm:request_generation_tokens" => "Number of generation tokens processed.",
        "vllm:iteration_tokens_total" => "Histogram of number of tokens per engine_step.",
        "vllm:time_to_first_token_seconds" => "Histogram of time to first token in seconds.",
        "vllm:e2e_request_latency_seconds" => "Histogram of e2e request latency in seconds.",
        "vllm:request_queue_time_seconds" => "Histogram of time spent in WAITING phase for request.",
        "vllm:lora_requests_info" => "Running stats on lora requests.",
        "vllm:cache_config_info" => "Information of the LLMEngine CacheConfig",
        _ => "",
    }
}
