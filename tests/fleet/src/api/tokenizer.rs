//! The tokenizer's APIs: how are `/tokenize` and `/detokenize` answered? Nothing is computed.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{list, quote, ApiError};
use crate::api::Asked;
use crate::chat_template::{render, Message};
use crate::prompt::{text_of, Prompt};
use crate::request::{missing, parse};

#[derive(Deserialize)]
struct Text<'a> {
    prompt: Option<String>,
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(default)]
    return_token_strs: bool,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Option<Vec<u64>>,
}

/// `/tokenize`
pub(crate) fn tokenize(asked: &Asked<'_>) -> Result<String, ApiError> {
    let (body, options) = (asked.json()?, asked.options());
    let Text { prompt, messages, tools, return_token_strs } = parse(body)?;
    let rendered = messages.map(|messages| render(&messages, tools.map(RawValue::get)));
    let text = rendered.or(prompt).ok_or_else(|| missing("prompt", body))?;
    let ids = Prompt::from_text(text, options.bytes_per_token).ids();
    let strings = match return_token_strs {
        true => list(ids.iter().map(|id| quote(&text_of(&[*id])))),
        false => "null".to_owned(),
    };
    let (count, limit) = (ids.len(), options.longest_sequence());
    let ids = list(ids.iter().map(u64::to_string));
    Ok(format!(r#"{{"count":{count},"max_model_len":{limit},"tokens":{ids},"token_strs":{strings}}}"#))
}

/// `/detokenize`
pub(crate) fn detokenize(asked: &Asked<'_>) -> Result<String, ApiError> {
    let body = asked.json()?;
    let tokens = parse::<Tokens>(body)?.tokens.ok_or_else(|| missing("tokens", body))?;
    Ok(format!(r#"{{"prompt":{}}}"#, quote(&text_of(&tokens))))
}
