//! What does this body say? The prompt's blocks, and the facts that tell prompts apart.
//!
//! A [`Prompt`] is fed the body as it streams in, in pieces of any size, and can be asked at any time
//! what is known so far: the hashes at a few depths ([`Position`]), what seeds them ([`Seeds`]), and how
//! long the prompt is. It never looks back, keeps no text, and never fails: a body that cannot be
//! understood leaves an [`Unread`] reason, and what was understood before stays.
//!
//! # Why the seed is not in the chain
//!
//! The engine keys its blocks by model, LoRA adapter and `cache_salt`, and renders tools before the
//! messages. Clients write these keys in any order; the most common one writes `messages` first, `model`
//! second and `tools` near the end. So the chain covers the text alone, and the seed comes in when a hash
//! is looked up ([`BlockHash::under`]). There are two seeds: `early`, of what stood before the prompt, is
//! known when a long body must be decided by its head; `full` is known at the end. A prompt is remembered
//! under both where they differ.

mod api;
mod fields;
pub mod json;
mod role;
mod text;

pub use api::{classify, Api, Method};
pub use text::deeper;

use super::blocks::{digest, BlockHash};
use super::config;
use fields::Fields;
use json::Scanner;

/// A hash of the prompt at a depth that is looked up and remembered.
///
/// Depths grow geometrically (1 to 8 one by one, then by a quarter), so that 36 of them span a
/// mebibyte: a match is understated by a fifth at most, and a request costs few lookups whatever its
/// length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Prompt bytes from the start up to here, tools not counted.
    pub bytes: u64,
    /// The chained hash, not yet under a seed.
    pub hash: BlockHash,
}

/// What routing sees of a prompt, as far as it is known. The replay has prompts without a body.
pub trait Outline {
    /// The positions reached so far, shallowest first.
    fn positions(&self) -> &[Position];
    /// The seeds as known so far.
    fn seeds(&self) -> Seeds;
    /// Bytes of prompt so far: text, framing and tools.
    fn bytes(&self) -> u64;
    /// Bytes of the tools that were read: part of every match, since they are part of the seed.
    fn tools_bytes(&self) -> u64;
    /// Whether the bytes of the prompt are token ids, 4 bytes each.
    fn is_token_ids(&self) -> bool;
    /// A digest of the model's name; 0 if none was named.
    fn model(&self) -> u64;
}

/// The digest of a model's name, as [`Outline::model`] has it of the name in a request.
pub fn model_digest(name: &[u8]) -> u64 {
    digest(name)
}

/// What tells equal prompt text apart: API shape, model, salt, tools. See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seeds {
    /// Of what stood before the prompt in the body.
    pub early: u64,
    /// Of everything that has been read.
    pub full: u64,
}

/// Why a request is not read as a prompt, and goes by load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// Not a path or method that generates from a prompt the filter knows.
    Path,
    /// A generation path without a body.
    NoBody,
    /// A body in an encoding or type that is not JSON text.
    Encoding,
    /// An upgrade or CONNECT: there is no body to wait for.
    Upgrade,
    /// Headers cannot be held here, so the body cannot be read before the host is chosen.
    NotHeld,
    /// JSON that breaks off or goes wrong before any prompt text.
    BadJson,
    /// JSON without a prompt in it.
    NoPrompt,
}

impl Unread {
    /// Every reason, for defining one metric each.
    pub const ALL: [Unread; 7] = [
        Unread::Path,
        Unread::NoBody,
        Unread::Encoding,
        Unread::Upgrade,
        Unread::NotHeld,
        Unread::BadJson,
        Unread::NoPrompt,
    ];

    /// The reason as it appears in metrics, headers and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Unread::Path => "path",
            Unread::NoBody => "no_body",
            Unread::Encoding => "encoding",
            Unread::Upgrade => "upgrade",
            Unread::NotHeld => "not_held",
            Unread::BadJson => "bad_json",
            Unread::NoPrompt => "no_prompt",
        }
    }
}

impl Outline for Prompt {
    fn positions(&self) -> &[Position] {
        self.fields.positions()
    }

    fn seeds(&self) -> Seeds {
        self.fields.seeds()
    }

    fn bytes(&self) -> u64 {
        self.fields.text_bytes() + self.fields.tools_bytes()
    }

    fn tools_bytes(&self) -> u64 {
        self.fields.tools_bytes()
    }

    fn is_token_ids(&self) -> bool {
        self.fields.is_token_ids()
    }

    fn model(&self) -> u64 {
        self.fields.model()
    }
}

/// A body on its way through the scanner.
#[derive(Debug)]
pub struct Prompt {
    scanner: Scanner,
    fields: Fields,
}

impl Prompt {
    /// The reader for one body of `api`.
    pub fn new(api: Api, settings: &config::Prompt) -> Self {
        Self { scanner: Scanner::default(), fields: Fields::new(api, settings) }
    }

    /// Reads the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.scanner.feed(bytes, &mut self.fields);
    }

    /// The body has ended: the last, unfilled block becomes a position too.
    pub fn finish(&mut self) {
        self.fields.finish();
    }

    /// Whether the client asked for a stream, as far as has been read.
    pub fn wants_stream(&self) -> bool {
        self.fields.wants_stream()
    }

    /// Whether nothing more can be learned: the document has ended or broken off.
    pub fn is_read(&self) -> bool {
        self.scanner.is_done() || self.scanner.broken().is_some()
    }

    /// Whether the JSON was wrong. What stood before the fault still counts.
    pub fn is_broken(&self) -> bool {
        self.scanner.broken().is_some()
    }

    /// Why there is no prompt, once the body has ended; `None` if there is one.
    pub fn unread(&self) -> Option<Unread> {
        if self.bytes() > 0 {
            None
        } else if self.scanner.is_done() {
            Some(Unread::NoPrompt)
        } else {
            Some(Unread::BadJson)
        }
    }
}
