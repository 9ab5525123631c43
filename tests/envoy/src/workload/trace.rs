//! What of a run can a simulator replay? When each request was sent, and which cache blocks it fills, without any text.
//!
//! The file format is `vt1`: gzipped JSON lines. The first is a header; each further one is a request, in order of
//! time: `[t_ms, prompt_tokens, output_tokens, session, anchor, n_prompt_ids, [ids..]]`. Equal ids mean equal text up
//! to the end of that block. The first `n_prompt_ids` cover the prompt, the last of them perhaps a part of a block. The
//! others are the full blocks that prompt and answer fill after those that the prompt fills alone.

use super::plan::Plan;
use super::replay::Record;
use anyhow::{ensure, Context, Result};
use flate2::write::GzEncoder;
use flate2::Compression;
use fleet::{EngineOptions, Footprint};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, IntoInnerError, Write};
use std::path::Path;
use std::time::Duration;

/// The requests of one run, in the order they were sent.
#[derive(Debug)]
pub struct Trace {
    block_tokens: usize,
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    sent: Duration,
    session: usize,
    anchor: u64,
    footprint: Footprint,
}

impl Trace {
    /// Of all records of a run of `plan`, as the caches of engines with these options see it. An error if they
    /// counted other prompts than these.
    pub fn new(plan: &Plan, records: &[Record], engine: &EngineOptions) -> Result<Self> {
        let by_turn: HashMap<_, _> =
            records.iter().map(|record| ((record.conversation, record.turn), record)).collect();
        let mut requests = Vec::with_capacity(records.len());
        for (session, conversation) in plan.conversations.iter().enumerate() {
            let anchor = plan.anchor(conversation);
            let mut chat = plan.chat(conversation);
            for (turn, said) in conversation.turns.iter().enumerate() {
                let record = by_turn.get(&(session, turn)).context("a turn without a record")?;
                // Said again, with the answers that were given.
                chat = chat.user(&said.question);
                let footprint = Footprint::of_chat(&chat.body(), &record.answer, engine.block_size, engine)?;
                ensure!(
                    record.failure.is_some() || record.usage.prompt == footprint.prompt_tokens as u64,
                    "turn {turn} of conversation {session} has {} tokens, and the engine counted {}",
                    footprint.prompt_tokens,
                    record.usage.prompt,
                );
                requests.push(Request { sent: record.sent, session, anchor, footprint });
                chat = chat.assistant(&record.answer);
            }
        }
        requests.sort_by_key(|request| request.sent);
        Ok(Self { block_tokens: engine.block_size, requests })
    }

    /// Share of the prompt tokens that one endless cache would have had. No fleet can find more, and hardly as much.
    pub fn reusable(&self) -> f64 {
        let mut seen: HashSet<u64> = HashSet::new();
        let (mut prompt, mut cached) = (0, 0);
        for Request { footprint, .. } in &self.requests {
            // The last token of a prompt is always computed.
            let full = (footprint.prompt_tokens - 1) / self.block_tokens;
            let hits = footprint.prompt.iter().take(full).take_while(|block| seen.contains(block)).count();
            prompt += footprint.prompt_tokens;
            cached += hits * self.block_tokens;
            seen.extend(footprint.prompt.iter().chain(&footprint.answer));
        }
        cached as f64 / prompt.max(1) as f64
    }

    /// Writes the file.
    pub fn write(&self, path: &Path, name: &str) -> Result<()> {
        let file = File::create(path).with_context(|| format!("creating {path:?}"))?;
        let mut out = BufWriter::new(GzEncoder::new(file, Compression::default()));
        let header = json!({
            "name": name,
            "block_tokens": self.block_tokens,
            "source": "scripts/bench --quality",
            "license": "Apache-2.0",
            "note": "synthetic; times at which the requests were sent through kvroute",
        });
        writeln!(out, "{header}")?;
        let (mut blocks, mut anchors) = (Numbers::default(), Numbers::default());
        for Request { sent, session, anchor, footprint } in &self.requests {
            let ids = footprint.prompt.iter().chain(&footprint.answer);
            let line = json!([
                sent.as_millis() as u64,
                footprint.prompt_tokens,
                footprint.answer_tokens,
                session,
                anchors.of(*anchor),
                footprint.prompt.len(),
                ids.map(|hash| blocks.of(*hash)).collect::<Vec<_>>(),
            ]);
            writeln!(out, "{line}")?;
        }
        out.into_inner().map_err(IntoInnerError::into_error)?.finish()?;
        Ok(())
    }
}

/// Dense numbers in place of hashes, in the order they are first met.
#[derive(Default)]
struct Numbers(HashMap<u64, usize>);

impl Numbers {
    fn of(&mut self, hash: u64) -> usize {
        let next = self.0.len();
        *self.0.entry(hash).or_insert(next)
    }
}
