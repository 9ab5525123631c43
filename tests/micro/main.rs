//! How fast is the core? Scan and hash in MB/s, the decision in microseconds, memory in bytes.
//!
//! ```text
//! cargo bench --bench micro                            # native
//! cargo bench --bench micro --target wasm32-wasip1     # in V8, through Node: what Envoy runs
//! cargo bench --bench micro -- decision                # only what has `decision` in its name
//! ```
//!
//! Prints a table with DESIGN.md's budgets beside the figures; `scripts/bench` runs both. Each figure is the
//! median of many batches, with the 10th and 90th percentile behind it.

use kvroute::core::config::Config;
use kvroute::core::fleet::{Polled, Slot};
use kvroute::core::prompt::{Api, Outline, Prompt};
use kvroute::core::route::Walk;
use kvroute::core::router::Router;
use kvroute::core::scrape::read_engine;
use kvroute::core::snapshot::Snapshot;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long each figure is measured for.
const EFFORT: Duration = Duration::from_millis(400);

fn main() {
    println!("{:<46} {:>12} {:>22} {:>16}", "", "median", "p10 .. p90", "budget");
    // First: a module's memory never shrinks, and what else is measured needs some of its own.
    if wanted("memory") {
        memory();
    }
    for (name, body, budget) in bodies() {
        let settings = config(1).prompt;
        let api = if name == "token ids" { Api::Completions } else { Api::Chat };
        let rate = |s: f64| body.len() as f64 / s / 1e6;
        measure(&format!("scan + hash, {name}"), "MB/s", rate, budget, || {
            let mut prompt = Prompt::new(api, &settings);
            prompt.feed(black_box(&body));
            prompt.finish();
            black_box(prompt.view(true).depth());
        });
    }
    let micros = |s: f64| s * 1e6;
    for hosts in [4, 64, 256] {
        let (router, prompt) = (busy_router(hosts), long_prompt(0));
        let budget = if hosts == 256 { "under 100" } else { "" };
        measure(&format!("decision, {hosts} hosts, 64 KiB prompt"), "us", micros, budget, || {
            let mut walk = Walk::default();
            router.advance(&mut walk, black_box(&prompt), true);
            black_box(router.decide(&walk, &prompt, prompt.bytes(), NOW_MS));
        });
    }
    let (mut router, mut n) = (busy_router(64), 0);
    let prompts: Vec<Prompt> = (0..512).map(long_prompt).collect();
    measure("remember, 64 KiB prompt", "us", micros, "", || {
        n += 1;
        router.remember(Slot((n % 64) as u16), &prompts[n % 512], &mut Default::default(), true);
    });
    let page = exposition();
    measure(&format!("exposition, {} KB", page.len() / 1_000), "us", micros, "", || {
        black_box(read_engine(black_box(page.as_bytes()))).expect("an engine");
    });
}

/// What a worker's knowledge takes once its index is full, over many more prompts than it has entries.
#[cfg(target_arch = "wasm32")]
fn memory() {
    let pages = || core::arch::wasm32::memory_size(0) as f64 / 16.0;
    let mut router = busy_router(64);
    let mut filled = 0.0;
    for n in 0..200_000_u64 {
        let mut prompt = Prompt::new(Api::Completions, &config(1).prompt);
        prompt.feed(format!("{{\"prompt\":\"{n} {}\"}}", "x".repeat(4_000)).as_bytes());
        prompt.finish();
        router.remember(Slot((n % 64) as u16), &prompt, &mut Default::default(), true);
        router.publish(1, NOW_MS);
        if n == 100_000 {
            filled = pages();
        }
    }
    let grown = pages() - filled;
    let (name, note) = ("memory, 200,000 prompts of 4 KB", format!("{grown:.1} since the 100,000th"));
    println!("{name:<46} {:>7.1} MiB  {note:>22} {:>16}", pages(), "under 16");
}

/// Only a wasm module knows its memory.
#[cfg(not(target_arch = "wasm32"))]
fn memory() {}

const NOW_MS: u64 = 1_000_000;

/// Measures one figure and prints its row, if the command line asks for it.
fn measure(name: &str, unit: &str, figure: impl Fn(f64) -> f64, budget: &str, mut call: impl FnMut()) {
    if !wanted(name) {
        return;
    }
    let [median, low, high] = sample(&mut call).map(figure);
    let spread = format!("{:.1} .. {:.1}", low.min(high), low.max(high));
    println!("{name:<46} {median:>7.1} {unit:<4} {spread:>22} {budget:>16}");
}

/// Median, 10th and 90th percentile of seconds a call.
fn sample(call: &mut dyn FnMut()) -> [f64; 3] {
    let mut batch = 1;
    let mut time = |batch: u32| {
        let start = Instant::now();
        (0..batch).for_each(|_| call());
        start.elapsed()
    };
    // Batches long enough for the clock: V8's is coarse.
    while time(batch) < Duration::from_millis(2) {
        batch *= 2;
    }
    let begin = Instant::now();
    let mut seconds = Vec::new();
    while begin.elapsed() < EFFORT {
        seconds.push(time(batch).as_secs_f64() / f64::from(batch));
    }
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| seconds[((seconds.len() - 1) as f64 * share) as usize];
    [at(0.5), at(0.1), at(0.9)]
}

/// Whether the command line asks for this figure.
fn wanted(name: &str) -> bool {
    std::env::args().skip(1).filter(|word| !word.starts_with("--")).all(|word| name.contains(&word))
}

/// Bodies of about a mebibyte.
fn bodies() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let chat = |contents: Vec<String>| {
        let list =
            contents.iter().map(|text| serde_json::json!({"role": "user", "content": text}).to_string());
        format!(r#"{{"model":"m","messages":[{}]}}"#, list.collect::<Vec<_>>().join(",")).into_bytes()
    };
    let plain = "The reading room opens at nine and lends maps, atlases and globes. ";
    let code = "fn f(x: &str) -> String {\n\tprintln!(\"{x}\\n\");\n\tformat!(\"{}\", x)\n}\n";
    let chinese: String = "航海図と地球儀".encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let escaped =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, chinese.repeat(25_000));
    let ids = (0..150_000).map(|n| (n * 7919 % 120_000).to_string()).collect::<Vec<_>>().join(",");
    vec![
        ("long plain text", chat(vec![plain.repeat(15_000)]), "over 1000"),
        ("text full of escapes (code)", chat(vec![code.repeat(14_000)]), "over 250"),
        ("every character escaped (\\uXXXX)", escaped.into_bytes(), "over 250"),
        (
            "many small messages",
            chat((0..20_000).map(|n| format!("Message {n}, short.")).collect()),
            "over 250",
        ),
        ("token ids", format!(r#"{{"prompt":[{ids}]}}"#).into_bytes(), ""),
        ("8 KiB chat", chat(vec![plain.repeat(60), plain.repeat(60)]), ""),
    ]
}

fn config(hosts: usize) -> Config {
    let hosts =
        (0..hosts).map(|n| format!("\"10.0.{}.{}:80\"", n / 250, n % 250)).collect::<Vec<_>>().join(",");
    Config::parse(format!(r#"{{"cluster":"c","hosts":[{hosts}]}}"#).as_bytes()).expect("valid")
}

fn long_prompt(n: usize) -> Prompt {
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{n} {}"}}]}}"#,
        "words ".repeat(11_000)
    );
    let mut prompt = Prompt::new(Api::Chat, &config(1).prompt);
    prompt.feed(body.as_bytes());
    prompt.finish();
    prompt
}

/// A router whose hosts are all known and busy, and of which four hold the prompt.
fn busy_router(hosts: usize) -> Router {
    let config = config(hosts);
    let mut router = Router::new(&config);
    let slots: Vec<(String, Slot)> =
        config.hosts.iter().enumerate().map(|(n, host)| (host.clone(), Slot(n as u16))).collect();
    router.configure(&config, &slots);
    let mut snapshot = Snapshot { foreign_share: 0.5, ..Snapshot::default() };
    for (address, slot) in &slots {
        let running = f64::from(slot.0 % 7);
        snapshot.put(*slot, address, Polled { at_ms: NOW_MS, running, ..Polled::default() });
    }
    router.apply(&snapshot);
    for slot in 0..4 {
        router.remember(Slot(slot), &long_prompt(0), &mut Default::default(), true);
    }
    router
}

/// As long as vLLM's, and mostly of no interest, as vLLM's.
fn exposition() -> String {
    let mut page = String::new();
    for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total"]
    {
        page += &format!("# TYPE vllm:{name} gauge\nvllm:{name}{{engine=\"0\",model_name=\"m\"}} 0.5\n");
    }
    for n in 0..800 {
        page += &format!(
            "vllm:time_to_first_token_seconds_bucket{{engine=\"0\",le=\"{n}.0\",model_name=\"m\"}} {n}.0\n"
        );
    }
    page
}
