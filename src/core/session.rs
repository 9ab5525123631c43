//! What stands for a prompt that is not in the request? The name of its conversation, or the answer that it goes on
//! from.
//!
//! A client may send `previous_response_id` in place of the conversation so far: only the engine that answered has it,
//! and every other one says 404. Or the body cannot be read, but a header, a cookie or a key of the body names the
//! conversation: then the host that had it last is likely to hold its prefix, and it is taken as a prompt of which
//! nothing is known but its identity. Both are remembered as blocks are, in the same bounded index.

use super::blocks::BlockHash;
use super::prompt::{Outline, Part, Position, View};

/// Sets sessions apart from prompts.
const SEED: u64 = u64::from_be_bytes(*b" session");

/// Sets answers apart from both.
const RESPONSE: u64 = u64::from_be_bytes(*b"response");

/// A request without its prompt.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    position: Option<Position>,
    response: Option<u64>,
    bytes: u64,
}

impl Session {
    /// A request of the conversation that `name` is a digest of, if it has a name, that asks about the answer that
    /// `response` is a digest of. It is taken to be as much work as `bytes` of prompt.
    pub fn new(name: Option<u64>, response: Option<u64>, bytes: u64) -> Self {
        let position = name.map(|name| Position { bytes, hash: BlockHash(name) });
        Self { position, response, bytes }
    }
}

impl Outline for Session {
    fn view(&self, _whole: bool) -> View<'_> {
        let part = |positions| Part::new(SEED, positions);
        View { id: SEED, parts: [part(&[]), part(&[]), part(self.position.as_slice())] }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_token_ids(&self) -> bool {
        false
    }

    fn model(&self) -> u64 {
        0
    }

    fn previous_response(&self) -> Option<u64> {
        self.response
    }
}

/// The block under which the host that gave an answer is remembered. It outlasts blocks of prompts: a prompt that is
/// forgotten costs a prefill, an answer that is forgotten an error.
pub fn response_block(response: u64) -> BlockHash {
    BlockHash(response).under(RESPONSE).lasting()
}
