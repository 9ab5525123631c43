//! What does a body ask the engine to compute? What the APIs share of reading it: it is parsed and checked as vLLM does,
//! and becomes prompts.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde::Deserialize;

use crate::answer::{Answer, ApiError};
use crate::options::EngineOptions;
use crate::prompt::Prompt;

/// `max_tokens` when a request names none.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 16;

/// Most answers to one request, over its prompts and `n`.
const MAX_CHOICES: usize = 256;

/// A request that can be answered.
pub(crate) struct Generation {
    pub(crate) wish: Wish,
    pub(crate) stream: bool,
    pub(crate) answer: Box<dyn Answer>,
}

/// What is to be computed.
pub(crate) struct Wish {
    pub(crate) prompts: Vec<Arc<Prompt>>,
    /// Answers to each prompt.
    pub(crate) n: usize,
    /// 0 for a pooling model.
    pub(crate) max_tokens: usize,
    /// The model or adapter as the client named it.
    pub(crate) model: String,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
}

/// A `prompt`: a string, token ids, or a list of either.
pub(crate) struct Prompts {
    items: Vec<PromptItem>,
    /// Whether it came as a list of prompts, of however many.
    pub(crate) is_batch: bool,
}

enum PromptItem {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl Wish {
    /// What vLLM would compute, or its reason not to.
    pub(crate) fn checked(
        prompts: Vec<Prompt>,
        n: usize,
        max_tokens: usize,
        model: Option<&str>,
        salt: Option<String>,
        options: &EngineOptions,
    ) -> Result<Self, ApiError> {
        if salt.as_deref() == Some("") {
            return Err(ApiError::parameter(
                "cache_salt",
                "Parameter 'cache_salt' must be a non-empty string if provided.",
            ));
        }
        let (model, lora) = served(model, options)?;
        if max_tokens == 0 {
            return Err(ApiError::value("max_tokens", "max_tokens must be at least 1, got 0.", 0));
        }
        check(&prompts, n, max_tokens, options)?;
        Ok(Self::new(prompts, n, max_tokens, model, lora, salt))
    }

    /// What a pooling model would compute.
    pub(crate) fn pooled(
        prompts: Vec<Prompt>,
        model: Option<&str>,
        options: &EngineOptions,
    ) -> Result<Self, ApiError> {
        let (model, lora) = served(model, options)?;
        check(&prompts, 1, 0, options)?;
        Ok(Self::new(prompts, 1, 0, model, lora, None))
    }

    fn new(
        prompts: Vec<Prompt>,
        n: usize,
        max_tokens: usize,
        model: &str,
        lora: Option<Arc<str>>,
        salt: Option<String>,
    ) -> Self {
        let prompts = prompts.into_iter().map(Arc::new).collect();
        Self { prompts, n, max_tokens, model: model.to_owned(), lora, salt: salt.map(Arc::from) }
    }
}

/// The fields of a JSON body.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    if body.is_empty() {
        return Err(ApiError::validation("missing", "body", "Field required", "None"));
    }
    let text = std::str::from_utf8(body).map_err(|_| ApiError::no_text())?;
    serde_json::from_str(text).map_err(|error| unreadable(&error, body))
}

/// A field that must be there is not.
pub(crate) fn missing(field: &str, body: &[u8]) -> ApiError {
    let keys = serde_json::from_slice::<HashMap<String, IgnoredAny>>(body).map_or(0, |keys| keys.len());
    let input = format!("<dict of {keys} items>");
    ApiError::validation("missing", &format!("body.{field}"), "Field required", &input)
}

/// The model a request means, and the adapter if it is one. No model means the base model.
fn served<'a>(
    model: Option<&'a str>,
    options: &'a EngineOptions,
) -> Result<(&'a str, Option<Arc<str>>), ApiError> {
    match model {
        None => Ok((&options.model, None)),
        Some(model) if model == options.model => Ok((model, None)),
        Some(model) if options.loras.iter().any(|lora| lora == model) => Ok((model, Some(Arc::from(model)))),
        Some(model) => Err(ApiError::no_model(model, &options.model)),
    }
}

fn check(prompts: &[Prompt], n: usize, max_tokens: usize, options: &EngineOptions) -> Result<(), ApiError> {
    if prompts.is_empty() || prompts.iter().any(|prompt| prompt.tokens() == 0) {
        return Err(ApiError::parameter(
            "prompt",
            "Either prompt or prompt_embeds must be provided and non-empty.",
        ));
    }
    if n == 0 || prompts.len().saturating_mul(n) > MAX_CHOICES {
        return Err(ApiError::value(
            "n",
            &format!("n must be at least 1 and at most {MAX_CHOICES} in all, got {n}."),
            n,
        ));
    }
    let limit = options.longest_sequence();
    if max_tokens > limit {
        let message = format!(
            "max_tokens={max_tokens} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
        );
        return Err(ApiError::value("max_tokens", &message, max_tokens));
    }
    let longest = prompts.iter().map(Prompt::tokens).max().unwrap_or(0);
    let why = if longest > limit {
        format!(
            "your prompt contains {longest} input tokens, which exceeds this limit even without any output tokens. \
             Please reduce the length of the input prompt."
        )
    } else if longest + max_tokens > limit {
        format!(
            "you requested {max_tokens} output tokens and your prompt contains {longest} input tokens. \
             Please reduce the length of the input prompt or the number of requested output tokens."
        )
    } else {
        return Ok(());
    };
    let message = format!("This model's maximum context length is {limit} tokens. However, {why}");
    Err(ApiError::value("input_tokens", &message, longest))
}

/// Why a body is no request: no JSON at all, or a field of the wrong type.
fn unreadable(error: &serde_json::Error, body: &[u8]) -> ApiError {
    if error.is_data() {
        return ApiError::validation("value_error", "body", &error.to_string(), "<dict>");
    }
    let lines = body.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    let offset = lines.map(<[u8]>::len).sum::<usize>() + error.column();
    ApiError::validation("json_invalid", &format!("body.{offset}"), "JSON decode error", "<dict of 0 items>")
}

impl Prompts {
    pub(crate) fn into_prompts(self, options: &EngineOptions) -> Vec<Prompt> {
        let mut prompts = Vec::new();
        let mut ids = Vec::new();
        for item in self.items {
            match item {
                PromptItem::Text(text) => prompts.push(Prompt::from_text(text, options.bytes_per_token)),
                PromptItem::Ids(ids) => prompts.push(Prompt::from_ids(&ids)),
                PromptItem::Id(id) => ids.push(id),
            }
        }
        if !ids.is_empty() {
            prompts.push(Prompt::from_ids(&ids));
        }
        prompts
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptItemVisitor)
    }
}

struct PromptsVisitor;
struct PromptItemVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, token ids or a list of either")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts { items: vec![PromptItem::Text(text.to_owned())], is_batch: false })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        let is_batch = !matches!(items.first(), Some(PromptItem::Id(_)));
        Ok(Prompts { items, is_batch })
    }
}

impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a token id or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<PromptItem, E> {
        u32::try_from(id)
            .map(PromptItem::Id)
            .map_err(|_| E::custom(format!("Token id {id} is out of vocabulary")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptItem, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(PromptItem::Ids(ids))
    }
}
