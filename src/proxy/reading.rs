//! How far has a request's body been read, and what is known of its prompt?

use crate::core::config;
use crate::core::prompt::{Api, Outline, Prompt};
use crate::core::route::Walk;
use crate::core::router::{Remembered, Router};

/// The longest prompt that a `content-length` is believed to announce, as a multiple of what is hashed. It
/// bounds what a false one can add to a host's books.
const BELIEVED: u64 = 4;

/// A body on its way through the scanner.
pub struct Reading {
    /// Which API it is a body of.
    pub api: Api,
    /// What it says.
    pub prompt: Prompt,
    /// Who holds how much of it.
    pub walk: Walk,
    /// Body bytes that were fed.
    pub fed: usize,
    /// Whether the body has ended.
    pub ended: bool,
    /// Whether all parts of the prompt were known when it was decided.
    pub walked_whole: bool,
    /// How much of it the index knows.
    pub remembered: Remembered,
    length: Option<u64>,
    most_bytes: u64,
}

impl Reading {
    /// The beginning of a body, with its `content-length` if it is known.
    pub fn new(api: Api, length: Option<u64>, settings: &config::Prompt) -> Self {
        Self {
            api,
            prompt: Prompt::new(api, settings),
            walk: Walk::default(),
            fed: 0,
            ended: false,
            walked_whole: false,
            remembered: Remembered::default(),
            length,
            most_bytes: settings.max_bytes as u64 * BELIEVED,
        }
    }

    /// Whether all that tells this prompt from others has been read.
    pub fn is_whole(&self) -> bool {
        self.ended || self.prompt.is_read()
    }

    /// Whether nothing that may still come can change the decision: nobody holds the prompt any deeper, and its
    /// length is known.
    pub fn is_settled(&self, router: &Router) -> bool {
        self.length.is_some() && router.is_settled(&self.walk, &self.prompt)
    }

    /// The prompt's length in bytes: read, or announced. Announced is the whole of the rest, most of which
    /// is prompt in any body long enough to be decided early.
    pub fn prompt_bytes(&self) -> u64 {
        let read = self.prompt.bytes();
        if self.is_whole() {
            return read;
        }
        let rest = self.length.map_or(0, |length| length.saturating_sub(self.fed as u64));
        read.saturating_add(rest).min(self.most_bytes.max(read))
    }
}
