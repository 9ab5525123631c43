//! Text as it is found in prompts: words, sentences, lines, quotes and a little beyond ASCII.

use rand::seq::IndexedRandom;
use rand::Rng;

const WORDS: &[&str] = &[
    "a",
    "the",
    "of",
    "to",
    "in",
    "is",
    "and",
    "for",
    "with",
    "that",
    "answer",
    "article",
    "between",
    "briefly",
    "cache",
    "caller",
    "change",
    "customer",
    "deliver",
    "document",
    "engine",
    "every",
    "example",
    "explain",
    "follow",
    "format",
    "function",
    "given",
    "invoice",
    "language",
    "list",
    "model",
    "never",
    "number",
    "order",
    "policy",
    "prefer",
    "question",
    "reason",
    "receipt",
    "refund",
    "reply",
    "request",
    "return",
    "section",
    "short",
    "source",
    "step",
    "summary",
    "table",
    "then",
    "ticket",
    "tool",
    "translate",
    "user",
    "value",
    "whether",
    "write",
    "\"quoted\"",
    "naïve",
    "café",
    "C:\\temp",
    "über",
];

/// About `bytes` bytes of text (never less, a few more).
pub fn text(random: &mut impl Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(WORDS.choose(random).copied().unwrap_or_default());
        text.push_str(match random.random_range(0..40) {
            0..=2 => ". ",
            3 => ".\n",
            4..=5 => ", ",
            _ => " ",
        });
    }
    text
}
