//! Which traces, and what may they be used for?

use anyhow::Result;
use replay::synthesis::Kind;
use replay::trace::Trace;
use std::path::{Path, PathBuf};

/// Traces that constants were chosen on; all others are for reporting only.
const TUNED_ON: [&str; 4] = ["mooncake_conversation", "toolagent_like", "rag_zipf", "azure_conv_unique"];

/// Requests of a synthetic trace.
const REQUESTS: usize = 16_000;

/// Draws the synthetic traces.
const SEED: u64 = 1;

/// Whether constants may be, and were, chosen on a trace of this name.
pub fn is_tuned_on(name: &str) -> bool {
    TUNED_ON.contains(&name)
}

/// A folder's traces, or, without one, the project's: recorded ones where they are beside the repository, and
/// synthetic ones, all kinds if there are no recorded ones.
pub fn read(folder: Option<&Path>) -> Result<Vec<Trace>> {
    if let Some(folder) = folder {
        return Trace::read_all(folder);
    }
    let shared = shared();
    let (mut traces, kinds) = match &shared {
        Some(shared) => (Trace::read_all(shared)?, &[Kind::Chat, Kind::Agents][..]),
        None => (Vec::new(), &Kind::ALL[..]),
    };
    traces.extend(kinds.iter().map(|kind| kind.trace(REQUESTS, SEED)));
    Ok(traces)
}

/// The recorded traces beside the repository, if they are there.
fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    folder.is_dir().then_some(folder)
}

/// Says which are used.
pub fn print(traces: &[Trace]) {
    println!("Traces:");
    for trace in traces {
        let prompt: f64 = trace.requests.iter().map(|request| f64::from(request.prompt_tokens)).sum();
        println!(
            "  {:24} {:6} requests, {:6.0} prompt tokens on average, {}",
            trace.name,
            trace.requests.len(),
            prompt / trace.requests.len() as f64,
            if is_tuned_on(&trace.name) { "constants were chosen on it" } else { "for reporting only" }
        );
    }
}
