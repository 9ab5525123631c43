//! What was asked, and when? Traces in the `vt1` format: gzip'ed JSON lines.
//!
//! The first line is a header with `name` and `block_tokens`; each further line is one request,
//! `[t_ms, prompt_tokens, output_tokens, session, anchor, n_prompt_ids, [ids...]]`. Equal ids are equal text
//! up to the end of their block.

use anyhow::{ensure, Context, Result};
use flate2::read::GzDecoder;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// When it arrives, in microseconds from the trace's start.
    pub at_us: u64,
    /// Prompt tokens, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the answer, at least 1.
    pub output_tokens: u32,
    /// Conversation that it belongs to.
    pub session: u64,
    /// System prompt and first user message: the same over a conversation.
    pub anchor: u64,
    /// The prompt's blocks; the last may be partial.
    pub ids: Vec<u64>,
    /// Full blocks of prompt and answer that an engine also leaves in its cache, behind the prompt's full ones.
    pub answer_ids: Vec<u64>,
}

/// A sequence of requests, ordered by arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// As its header names it.
    pub name: String,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// The requests.
    pub requests: Vec<Request>,
}

#[derive(Deserialize)]
struct Header {
    name: String,
    block_tokens: u32,
}

#[derive(Deserialize)]
struct Line(f64, u32, u32, u64, u64, usize, Vec<u64>);

impl Trace {
    /// Reads a trace file.
    pub fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        Self::parse(BufReader::new(GzDecoder::new(file))).with_context(|| format!("in {}", path.display()))
    }

    /// Reads every `*.vt1.jsonl.gz` of a folder, by name.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>> {
        let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.retain(|path| path.to_string_lossy().ends_with(".vt1.jsonl.gz"));
        paths.sort();
        ensure!(!paths.is_empty(), "no *.vt1.jsonl.gz in {}", folder.display());
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn parse(lines: impl BufRead) -> Result<Self> {
        let mut lines = lines.lines();
        let header = lines.next().context("no header line")??;
        let header: Header = serde_json::from_str(&header).context("line 1")?;
        ensure!(header.block_tokens > 0, "line 1: block_tokens is 0");
        let mut requests = Vec::new();
        for (n, line) in lines.enumerate() {
            let request = request(&line?, header.block_tokens).with_context(|| format!("line {}", n + 2))?;
            requests.push(request);
        }
        ensure!(!requests.is_empty(), "no requests");
        requests.sort_by_key(|request| request.at_us);
        Ok(Self { name: header.name, block_tokens: header.block_tokens, requests })
    }

    /// Requests a second, on average.
    pub fn rate(&self) -> f64 {
        let first = self.requests.first().map_or(0, |request| request.at_us);
        let last = self.requests.last().map_or(0, |request| request.at_us);
        self.requests.len() as f64 / ((last - first).max(1) as f64 / 1e6)
    }
}

fn request(line: &str, block_tokens: u32) -> Result<Request> {
    let Line(at_ms, prompt_tokens, output_tokens, session, anchor, prompt_ids, mut ids) =
        serde_json::from_str(line)?;
    ensure!(prompt_tokens > 0, "no prompt tokens");
    ensure!(at_ms >= 0.0, "negative time");
    let blocks = prompt_tokens.div_ceil(block_tokens) as usize;
    ensure!(
        prompt_ids == blocks && prompt_ids <= ids.len(),
        "{prompt_tokens} tokens are {blocks} blocks, not {prompt_ids} of {}",
        ids.len()
    );
    let answer_ids = ids.split_off(prompt_ids);
    let output_tokens = output_tokens.max(1);
    Ok(Request {
        at_us: (at_ms * 1e3) as u64,
        prompt_tokens,
        output_tokens,
        session,
        anchor,
        ids,
        answer_ids,
    })
}
