//! What does this body say? The prompt's blocks, and the facts that tell prompts apart.
//!
//! A [`Prompt`] is fed the body as it streams in, in pieces of any size, and can be asked at any time
//! what is known so far: the hashes at a few depths ([`Position`]), in the order in which the engine renders
//! ([`View`]), and how long the prompt is. It never looks back, keeps no text, and never fails: a body that cannot
//! be understood leaves an [`Unread`] reason, and what was understood before stays.
//!
//! | question | module |
//! | --- | --- |
//! | is there a prompt in this request? | `api` |
//! | which keys matter, and as what? | [`keys`] |
//! | which strings are prompt, and who gets them? | `fields` |
//! | what sets whole prompts apart, and names the conversation? | `identity` |
//! | where does this text stand? | `sections` |
//! | what of a message is not its text? | `message` |
//! | in which order do the parts stand, and which are known? | `parts` |
//! | what is left out? | `leave_out` |
//! | how deep, and what identity there? | `chain` |
//! | are two values the same? | `value` |
//! | which tokens does this JSON have? | [`json`] |
//!
//! # Why there are parts and seeds
//!
//! The engine keys its blocks by model, LoRA adapter and `cache_salt`, and renders tools and instructions before the
//! messages. Clients write these keys in any order; the most common one writes `messages` first, `model`
//! second and `tools` near the end. So each part is hashed by itself, and what stands before it comes in as a seed
//! when a hash is looked up ([`BlockHash::under`]). There are two views: the early one, of what stood before the text
//! in the body, is there when a long body must be decided by its head; the whole one at the end. A prompt is
//! remembered under both where they differ.

mod api;
mod chain;
mod fields;
mod identity;
pub mod json;
pub mod keys;
mod leave_out;
mod message;
mod parts;
mod sections;
mod value;

pub use api::{api_of, classify, paths_without_reuse, response_in_path, Api, Method};
pub use chain::deeper;
pub use value::text_digest;

use super::blocks::BlockHash;
use super::config;
use fields::Fields;
use json::Scanner;

/// A hash of one part of the prompt at a depth that is looked up and remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Bytes from the part's start up to here.
    pub bytes: u64,
    /// The chained hash, not yet under the seed of its part.
    pub hash: BlockHash,
}

/// A part of the prompt where it stands.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The identity of all that stands before it.
    pub seed: u64,
    /// Bytes that stand before it.
    pub before: u64,
    /// Its positions, shallowest first.
    pub positions: &'a [Position],
    /// Where a prompt like this one will be looked for while the role of a long message has not come yet.
    pub assumed: &'a [Position],
}

/// A prompt's parts in the order in which the engine renders them: tools and instructions, then the text.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Equal as long as what was seen before stays as it was: only text has been added.
    pub id: u64,
    /// The parts.
    pub parts: [Part<'a>; 3],
}

impl<'a> Part<'a> {
    /// A part that is known from the start.
    pub fn new(seed: u64, positions: &'a [Position]) -> Self {
        Self { seed, before: 0, positions, assumed: &[] }
    }

    fn keys(&self) -> impl Iterator<Item = (BlockHash, u64)> + 'a {
        let (seed, before) = (self.seed, self.before);
        self.positions.iter().map(move |position| (position.hash.under(seed), position.bytes + before))
    }

    fn assumed(&self) -> impl Iterator<Item = BlockHash> + 'a {
        let seed = self.seed;
        self.assumed.iter().map(move |position| position.hash.under(seed))
    }
}

impl View<'_> {
    /// The hashes under which the prompt is known, shallowest first, with the prompt bytes up to each.
    pub fn keys(&self) -> impl Iterator<Item = (BlockHash, u64)> + '_ {
        self.parts.iter().flat_map(Part::keys)
    }

    /// Hashes under which the prompt is to be remembered too.
    pub fn assumed(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.parts.iter().flat_map(Part::assumed)
    }

    /// How many there are.
    pub fn depth(&self) -> usize {
        self.parts.iter().map(|part| part.positions.len()).sum()
    }
}

/// What routing sees of a prompt, as far as it is known. The replay has prompts without a body.
pub trait Outline {
    /// The parts: with `whole` all, otherwise those that stood before the text in the body too.
    fn view(&self, whole: bool) -> View<'_>;
    /// Bytes of prompt so far.
    fn bytes(&self) -> u64;
    /// Whether the bytes of the prompt are token ids, 4 bytes each.
    fn is_token_ids(&self) -> bool;
    /// A digest of the model's name; 0 if none was named.
    fn model(&self) -> u64;
    /// A digest of the id of the answer that the request goes on from: only the host that gave it has it.
    fn previous_response(&self) -> Option<u64> {
        None
    }
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
    /// An API that leaves nothing in the KV cache that another request could use, such as embeddings.
    NoReuse,
}

impl Unread {
    /// Every reason, for defining one metric each.
    pub const ALL: [Unread; 8] = [
        Unread::Path,
        Unread::NoBody,
        Unread::Encoding,
        Unread::Upgrade,
        Unread::NotHeld,
        Unread::BadJson,
        Unread::NoPrompt,
        Unread::NoReuse,
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
            Unread::NoReuse => "no_reuse",
        }
    }
}

impl Outline for Prompt {
    fn view(&self, whole: bool) -> View<'_> {
        self.fields.view(whole)
    }

    fn bytes(&self) -> u64 {
        self.fields.bytes()
    }

    fn is_token_ids(&self) -> bool {
        self.fields.identity().is_token_ids()
    }

    fn model(&self) -> u64 {
        self.fields.identity().model()
    }

    fn previous_response(&self) -> Option<u64> {
        self.fields.identity().previous_response()
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

    /// Where else the message that is being read may turn out to stand, because its role comes behind its content.
    pub fn elsewhere(&self) -> Vec<BlockHash> {
        self.fields.elsewhere()
    }

    /// A digest of what names the conversation beside its prompt.
    pub fn session(&self) -> Option<u64> {
        self.fields.identity().session()
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
