//! What do the APIs have in common? Each is a function that reads what was asked into a `Generation`: what to compute,
//! and how to word the answer. An API family is one file.

mod audio;
mod generate;
mod messages;
mod openai;
mod pooling;
mod responses;
mod tokenizer;
mod tokens;

use hyper::header::{HeaderMap, CONTENT_TYPE};

use crate::answer::ApiError;
use crate::engine::Engine;
use crate::options::EngineOptions;
use crate::received::header;
use crate::request::Generation;

pub(crate) use audio::transcribe;
pub(crate) use generate::generate as text_in_text_out;
pub(crate) use messages::{count_tokens, messages};
pub(crate) use openai::{batch, chat, chat_wish, completions, invocations};
pub(crate) use pooling::{classify, embeddings, pooling, rerank, score};
pub(crate) use responses::{responses, StoredResponses};
pub(crate) use tokenizer::{detokenize, tokenize};
pub(crate) use tokens::generate as tokens_in_tokens_out;

/// Reads a request that is to be computed.
pub(crate) type Read = fn(&Asked<'_>) -> Result<Generation, ApiError>;

/// Answers a request for which nothing is computed, in JSON.
pub(crate) type Tell = fn(&Asked<'_>) -> Result<String, ApiError>;

/// What came in, and where.
pub(crate) struct Asked<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
}

impl<'a> Asked<'a> {
    pub(crate) fn options(&self) -> &'a EngineOptions {
        self.engine.options()
    }

    /// The body, if it is said to be JSON.
    pub(crate) fn json(&self) -> Result<&'a [u8], ApiError> {
        match self.media_type() {
            Some(media_type) if media_type.eq_ignore_ascii_case("application/json") => Ok(self.body),
            _ => Err(ApiError::content_type()),
        }
    }

    /// The content type without its parameters.
    pub(crate) fn media_type(&self) -> Option<&'a str> {
        header(self.headers, CONTENT_TYPE.as_str())?.split(';').next().map(str::trim)
    }

    /// The request's id, or one made for it.
    pub(crate) fn id(&self) -> String {
        header(self.headers, "x-request-id").map_or_else(|| self.engine.next_request_id(), str::to_owned)
    }
}
