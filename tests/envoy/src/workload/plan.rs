//! Which conversations there are, when each starts, and what its user says: drawn once from a seed, so that
//! two runs send the same.

use super::text::text;
use crate::chat::Chat;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, Zipf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What the workload looks like.
#[derive(Debug, Clone)]
pub struct Shape {
    /// What all random draws come from.
    pub seed: u64,
    /// How many conversations there are.
    pub conversations: usize,
    /// Conversations that start in a second, on average (Poisson arrivals).
    pub starts_per_s: f64,
    /// How many system prompts they share.
    pub systems: usize,
    /// Exponent of their popularity (Zipf): 0 is even, 1 gives the second half of the first's share.
    pub skew: f64,
    /// Bytes of a system prompt.
    pub system_bytes: usize,
    /// Turns of a conversation: from 1 to this, evenly.
    pub turns: usize,
    /// Bytes of what the user says in a turn.
    pub question_bytes: usize,
    /// Tokens of an answer.
    pub answer_tokens: u32,
    /// Seconds between an answer and the next question, on average (exponential).
    pub think_s: f64,
    /// Whether answers are streamed. Without it there is no time to the first token.
    pub stream: bool,
}

/// All that will be said.
#[derive(Debug)]
pub struct Plan {
    /// The shared system prompts, most popular first.
    pub systems: Vec<String>,
    /// The conversations, in the order they start.
    pub conversations: Vec<Conversation>,
    /// Tokens of an answer.
    pub answer_tokens: u32,
    /// Whether answers are streamed.
    pub stream: bool,
}

/// One conversation.
#[derive(Debug)]
pub struct Conversation {
    /// When it starts, from the start of the run.
    pub start: Duration,
    /// Which of the system prompts it has.
    pub system: usize,
    /// What the user says, turn by turn; once at least.
    pub turns: Vec<Turn>,
}

/// One question.
#[derive(Debug)]
pub struct Turn {
    /// How long the user thinks before asking it, after the last answer. Zero for the first.
    pub think: Duration,
    /// The question.
    pub question: String,
}

impl Plan {
    /// Draws a plan.
    pub fn new(shape: &Shape) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(shape.seed);
        let systems = (0..shape.systems).map(|_| text(&mut random, shape.system_bytes)).collect();
        let mut start = Duration::ZERO;
        let conversations = (0..shape.conversations)
            .map(|_| {
                start += exponential(&mut random, 1.0 / shape.starts_per_s);
                Conversation { start, system: popular(&mut random, shape), turns: turns(&mut random, shape) }
            })
            .collect();
        Self { systems, conversations, answer_tokens: shape.answer_tokens, stream: shape.stream }
    }

    /// A conversation before its first question.
    pub fn chat(&self, conversation: &Conversation) -> Chat {
        let mut chat = Chat::new(&self.systems[conversation.system]).max_tokens(self.answer_tokens);
        chat.stream = self.stream;
        chat
    }

    /// Names what the prompts of a conversation have in common: its system prompt and its first question.
    pub fn anchor(&self, conversation: &Conversation) -> u64 {
        let texts = [&self.systems[conversation.system], &conversation.turns[0].question];
        texts.into_iter().fold(0, |hash, text| xxh3_64_with_seed(text.as_bytes(), hash))
    }

    /// How many requests that makes.
    pub fn requests(&self) -> usize {
        self.conversations.iter().map(|conversation| conversation.turns.len()).sum()
    }
}

fn turns(random: &mut impl Rng, shape: &Shape) -> Vec<Turn> {
    let turns = random.random_range(1..=shape.turns);
    (0..turns)
        .map(|turn| Turn {
            think: if turn == 0 { Duration::ZERO } else { exponential(random, shape.think_s) },
            question: text(random, shape.question_bytes),
        })
        .collect()
}

/// Draws the rank of a system prompt, from 0.
fn popular(random: &mut impl Rng, shape: &Shape) -> usize {
    let rank = Zipf::new(shape.systems as f64, shape.skew).map_or(1.0, |zipf| zipf.sample(random));
    rank as usize - 1
}

fn exponential(random: &mut impl Rng, mean_s: f64) -> Duration {
    Duration::from_secs_f64(Exp::new(1.0 / mean_s).map_or(0.0, |exp| exp.sample(random)))
}
