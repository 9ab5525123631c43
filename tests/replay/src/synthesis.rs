//! Traces for who has none: seeded generators of the usual kinds of traffic.
//!
//! | kind | requests | shared |
//! | --- | --- | --- |
//! | `chat` | conversations of a few turns | 60 system prompts, Zipf; the conversation so far |
//! | `agents` | long sessions that grow by tool outputs, with short think times | 4 system prompts with tools; the session so far |
//! | `rag` | one system prompt, a document, a question | 2,000 documents, Zipf |
//! | `unique` | bursts | nothing |
//!
//! Rates are about what 16 hosts bear, so that think times are lifelike there.

use crate::trace::{Request, Trace};
use kvroute::core::blocks::BlockHash;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, LogNormal, Zipf};

/// Tokens of a block: finer than most recorded traces', and few enough for a simulation to be quick.
const BLOCK_TOKENS: u32 = 256;

/// Tokens of a prompt at most: what a model's context leaves.
const MOST_TOKENS: u32 = 60_000;

/// A kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Conversations.
    Chat,
    /// Sessions of an agent.
    Agents,
    /// Questions about documents.
    Rag,
    /// Nothing shared.
    Unique,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Chat, Kind::Agents, Kind::Rag, Kind::Unique];

    /// The trace's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Chat => "chat",
            Kind::Agents => "agents",
            Kind::Rag => "rag",
            Kind::Unique => "unique",
        }
    }

    /// About as many requests as asked for; the same seed gives the same ones.
    pub fn trace(self, requests: usize, seed: u64) -> Trace {
        let mut maker = Maker {
            random: ChaCha8Rng::seed_from_u64(seed),
            requests: Vec::with_capacity(requests),
            sessions: 0,
            now_s: 0.0,
        };
        while maker.requests.len() < requests {
            match self {
                Kind::Chat => maker.conversation(),
                Kind::Agents => maker.agent(),
                Kind::Rag => maker.question(),
                Kind::Unique => maker.burst(),
            }
        }
        let mut requests = maker.requests;
        requests.sort_by_key(|request| request.at_us);
        Trace { name: self.name().into(), block_tokens: BLOCK_TOKENS, requests }
    }
}

struct Maker {
    random: ChaCha8Rng,
    requests: Vec<Request>,
    sessions: u64,
    now_s: f64,
}

impl Maker {
    fn conversation(&mut self) {
        let session = self.begin(10.0);
        let system = self.zipf(60, 1.1);
        let mut text = Text::default();
        text.add(system, 200 + (mixed(1, system) % 1_800) as u32);
        let mut at_s = self.now_s;
        for turn in 0.. {
            let asked = self.tokens(200.0, 1.2, 8..8_000);
            text.add(mixed(session, turn), asked);
            let answer = self.tokens(150.0, 0.8, 8..1_500);
            if !self.ask(at_s, answer, session, &text) || self.random.random_range(0.0..1.0) < 0.25 {
                break;
            }
            text.answer(answer);
            at_s += 0.02 * f64::from(answer) + self.wait(15.0);
        }
    }

    fn agent(&mut self) {
        let session = self.begin(8.0);
        let kind = self.zipf(4, 0.7);
        let mut text = Text::default();
        text.add(kind, 1_500 + (mixed(2, kind) % 3_500) as u32);
        text.add(mixed(session, 1 << 32), self.tokens(900.0, 0.8, 50..8_000));
        let mut at_s = self.now_s;
        for step in 0.. {
            let answer = self.tokens(110.0, 0.7, 10..1_000);
            if !self.ask(at_s, answer, session, &text) || self.random.random_range(0.0..1.0) < 0.08 {
                break;
            }
            text.answer(answer);
            text.add(mixed(session, step), self.tokens(350.0, 1.0, 20..8_000));
            at_s += 0.02 * f64::from(answer) + self.wait(2.0);
        }
    }

    fn question(&mut self) {
        let session = self.begin(90.0);
        let document = self.zipf(2_000, 0.9);
        let mut text = Text::default();
        text.add(1, 450);
        text.add(mixed(3, document), 1_500 + (mixed(4, document) % 9_000) as u32);
        text.add(mixed(session, 0), self.tokens(60.0, 0.6, 8..500));
        let answer = self.tokens(150.0, 0.6, 8..800);
        self.ask(self.now_s, answer, session, &text);
    }

    /// Some seconds of many requests, then some of few.
    fn burst(&mut self) {
        for (rate, seconds) in [(250.0, 3.0), (60.0, 9.0)] {
            let end_s = self.now_s + self.wait(seconds);
            while self.now_s < end_s {
                let session = self.begin(rate);
                let mut text = Text::default();
                text.add(mixed(session, 0), self.tokens(900.0, 0.9, 20..12_000));
                let answer = self.tokens(120.0, 0.8, 4..1_000);
                self.ask(self.now_s, answer, session, &text);
            }
        }
    }

    /// A session begins, as the next of `rate` a second.
    fn begin(&mut self, rate: f64) -> u64 {
        self.now_s += self.wait(1.0 / rate);
        self.sessions += 1;
        mixed(5, self.sessions)
    }

    /// Asks with all of the text, unless it has become too long.
    fn ask(&mut self, at_s: f64, output_tokens: u32, session: u64, text: &Text) -> bool {
        let prompt_tokens = text.tokens();
        if prompt_tokens > MOST_TOKENS {
            return false;
        }
        let mut after = text.clone();
        after.answer(output_tokens);
        self.requests.push(Request {
            at_us: (at_s * 1e6) as u64,
            prompt_tokens,
            output_tokens,
            session,
            anchor: text.anchor(),
            ids: text.blocks(0, true),
            answer_ids: after.blocks((prompt_tokens / BLOCK_TOKENS) as usize, false),
        });
        true
    }

    fn wait(&mut self, mean_s: f64) -> f64 {
        Exp::new(1.0 / mean_s).map_or(mean_s, |exp| exp.sample(&mut self.random))
    }

    fn tokens(&mut self, median: f64, sigma: f64, within: std::ops::Range<u32>) -> u32 {
        let drawn = LogNormal::new(median.ln(), sigma).map_or(median, |log| log.sample(&mut self.random));
        (drawn as u32).clamp(within.start, within.end)
    }

    fn zipf(&mut self, count: u64, exponent: f64) -> u64 {
        Zipf::new(count as f64, exponent).map_or(1, |zipf| zipf.sample(&mut self.random) as u64)
    }
}

/// A prompt: segments of text, of which only the identity is known.
#[derive(Debug, Clone, Default)]
struct Text {
    /// Each with what identifies the text up to its end, and where that is.
    segments: Vec<(u64, u32)>,
    last: u64,
}

impl Text {
    fn add(&mut self, segment: u64, tokens: u32) {
        let before = self.segments.last().map_or(0, |(key, _)| *key);
        self.segments.push((mixed(before, segment), self.tokens() + tokens));
        self.last = segment;
    }

    fn tokens(&self) -> u32 {
        self.segments.last().map_or(0, |(_, end)| *end)
    }

    /// The same text is answered alike.
    fn answer(&mut self, tokens: u32) {
        self.add(self.last.wrapping_add(1), tokens);
    }

    /// System prompt and first message.
    fn anchor(&self) -> u64 {
        self.segments.get(1).or(self.segments.first()).map_or(0, |(key, _)| *key)
    }

    /// Ids of its blocks from `from` on. A block is identified by the text up to its end.
    fn blocks(&self, from: usize, partial: bool) -> Vec<u64> {
        let tokens = self.tokens();
        let count = if partial { tokens.div_ceil(BLOCK_TOKENS) } else { tokens / BLOCK_TOKENS };
        let block = |n: u32| {
            let end = ((n + 1) * BLOCK_TOKENS).min(tokens);
            let segment = self.segments.partition_point(|(_, segment_end)| *segment_end < end);
            let key = self.segments.get(segment).map_or(0, |(key, _)| *key);
            mixed(key, u64::from(end))
        };
        (from as u32..count).map(block).collect()
    }
}

fn mixed(a: u64, b: u64) -> u64 {
    BlockHash(a).under(b).0
}
