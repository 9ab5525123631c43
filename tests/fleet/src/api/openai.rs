//! OpenAI's generation APIs: how are `/v1/chat/completions` with its batches, `/v1/completions` and SageMaker's
//! `/invocations`, which is either by its keys, read and answered?

use std::fmt::Write;

use serde::de::IgnoredAny;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{quote, Answer, ApiError, Choice, Delta};
use crate::api::Asked;
use crate::chat_template::{render, Message};
use crate::event_stream::event;
use crate::options::EngineOptions;
use crate::prompt::Prompt;
use crate::report::Usage;
use crate::request::{missing, parse, Generation, Prompts, Wish, DEFAULT_MAX_TOKENS};
use crate::stats::unix_seconds;

/// Which of the two an answer is worded for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Api {
    Chat,
    Completions,
}

/// What all parts of one answer share.
struct Envelope {
    api: Api,
    /// The whole id, such as `chatcmpl-..`, as a JSON string.
    id: String,
    /// Unix seconds.
    created: u64,
    /// The model's name as a JSON string.
    model: String,
    fingerprint: String,
    /// Whether usage has `prompt_tokens_details`.
    details: bool,
    /// Usage in a chunk of its own at the end of a stream.
    include_usage: bool,
    /// Usage in every chunk of a stream.
    continuous_usage: bool,
}

/// A body of any of these paths; `M` is what `messages` are there.
#[derive(Deserialize)]
#[serde(bound(deserialize = "M: Deserialize<'de>"))]
struct Fields<'a, M> {
    messages: Option<M>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    prompt: Option<Prompts>,
    model: Option<String>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    n: Option<usize>,
    cache_salt: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(rename = "priority")]
    _priority: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// Which keys tell a chat from a completion.
#[derive(Deserialize)]
struct Keys<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

/// `/v1/chat/completions`
pub(crate) fn chat(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let (wish, stream) = read_chat(asked.json()?, asked.options())?;
    Ok(generation(asked, Api::Chat, wish, stream))
}

/// `/v1/chat/completions/batch`
pub(crate) fn batch(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let body = asked.json()?;
    let fields: Fields<'_, Vec<Vec<Message<'_>>>> = parse(body)?;
    let conversations = fields.messages.as_ref().ok_or_else(|| missing("messages", body))?;
    let prompts = conversations.iter().map(|messages| chat_prompt(messages, fields.tools, asked.options()));
    let wish = fields.wish(prompts.collect(), asked.options())?;
    // It does not stream.
    Ok(generation(asked, Api::Chat, wish, None))
}

/// `/v1/completions`
pub(crate) fn completions(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let mut fields: Fields<'_, IgnoredAny> = parse(asked.json()?)?;
    let prompts = fields.prompt.take().map_or_else(Vec::new, |prompt| prompt.into_prompts(asked.options()));
    let wish = fields.wish(prompts, asked.options())?;
    Ok(generation(asked, Api::Completions, wish, fields.streamed()))
}

/// `/invocations`
pub(crate) fn invocations(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    match parse::<Keys<'_>>(asked.json()?)?.messages {
        Some(_) => chat(asked),
        None => completions(asked),
    }
}

/// What a chat's body asks an engine with these options to compute.
pub(crate) fn chat_wish(body: &[u8], options: &EngineOptions) -> Result<Wish, ApiError> {
    read_chat(body, options).map(|(wish, _)| wish)
}

fn read_chat(body: &[u8], options: &EngineOptions) -> Result<(Wish, Option<StreamOptions>), ApiError> {
    let fields: Fields<'_, Vec<Message<'_>>> = parse(body)?;
    let messages = fields.messages.as_ref().ok_or_else(|| missing("messages", body))?;
    let prompt = chat_prompt(messages, fields.tools, options);
    let wish = fields.wish(vec![prompt], options)?;
    Ok((wish, fields.streamed()))
}

fn chat_prompt(messages: &[Message<'_>], tools: Option<&RawValue>, options: &EngineOptions) -> Prompt {
    Prompt::from_text(render(messages, tools.map(RawValue::get)), options.bytes_per_token)
}

impl<M> Fields<'_, M> {
    fn wish(&self, prompts: Vec<Prompt>, options: &EngineOptions) -> Result<Wish, ApiError> {
        let max_tokens = self.max_completion_tokens.or(self.max_tokens).unwrap_or(DEFAULT_MAX_TOKENS);
        let n = self.n.unwrap_or(1);
        Wish::checked(prompts, n, max_tokens, self.model.as_deref(), self.cache_salt.clone(), options)
    }

    /// How it is to be streamed, if it is.
    fn streamed(self) -> Option<StreamOptions> {
        self.stream.unwrap_or(false).then(|| self.stream_options.unwrap_or_default())
    }
}

fn generation(asked: &Asked<'_>, api: Api, wish: Wish, streamed: Option<StreamOptions>) -> Generation {
    let options = asked.options();
    let prefix = match api {
        Api::Chat => "chatcmpl",
        Api::Completions => "cmpl",
    };
    let stream = streamed.is_some();
    let stream_options = streamed.unwrap_or_default();
    let envelope = Envelope {
        api,
        id: quote(&format!("{prefix}-{}", asked.id())),
        created: unix_seconds() as u64,
        model: quote(&wish.model),
        fingerprint: format!("vllm-{}-mock", options.version),
        // Of a batch, vLLM tells none.
        details: options.prompt_tokens_details && (api == Api::Completions || wish.prompts.len() == 1),
        include_usage: stream_options.include_usage.unwrap_or(false),
        continuous_usage: stream_options.continuous_usage_stats.unwrap_or(false),
    };
    Generation { wish, stream, answer: Box::new(envelope) }
}

impl Answer for Envelope {
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String {
        let choices: Vec<_> =
            choices.iter().enumerate().map(|(index, choice)| self.choice(index, choice)).collect();
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Completions => "text_completion",
        };
        let prompt = match self.api {
            Api::Chat => r#""prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"#,
            Api::Completions => "",
        };
        format!(
            r#"{{{},"choices":[{}],"service_tier":null,"system_fingerprint":"{}","usage":{},{prompt}"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#,
            self.head(object),
            choices.join(","),
            self.fingerprint,
            self.usage(usage),
        )
    }

    fn begin(&mut self, out: &mut String, index: usize, usage: Usage) {
        if self.api == Api::Chat {
            event(out, |out| out.push_str(&self.role_chunk(index, usage)));
        }
    }

    fn chunk(&mut self, out: &mut String, delta: &Delta<'_>) {
        event(out, |out| self.write_chunk(out, delta));
    }

    fn end(&mut self, out: &mut String, usage: Usage) {
        if self.include_usage {
            event(out, |out| out.push_str(&self.usage_chunk(usage)));
        }
        out.push_str("data: [DONE]\n\n");
    }
}

impl Envelope {
    /// The first chunk of a choice of a chat: the role.
    fn role_chunk(&self, index: usize, usage: Usage) -> String {
        let usage = self.running_usage(Usage { generated_tokens: 0, ..usage });
        format!(
            r#"{{{},"choices":[{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]{usage},"prompt_token_ids":null,"prompt_text":null}}"#,
            self.head("chat.completion.chunk"),
        )
    }

    /// A chunk with new text.
    fn write_chunk(&self, out: &mut String, delta: &Delta<'_>) {
        let Delta { index, text, finish, usage, last } = delta;
        let finish_reason = finish.map_or_else(|| "null".to_owned(), |finish| quote(finish.as_str()));
        let choice = match (self.api, finish) {
            (Api::Chat, None) => format!(
                r#"{{"index":{index},"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}"#
            ),
            (Api::Chat, Some(_)) => format!(
                r#"{{"index":{index},"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{finish_reason},"stop_reason":null,"token_ids":null}}"#
            ),
            (Api::Completions, _) => format!(
                r#"{{"index":{index},"text":"{text}","logprobs":null,"finish_reason":{finish_reason},"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}"#
            ),
        };
        let usage = self.running_usage(*usage);
        let _ = write!(out, r#"{{{},"choices":[{choice}]{usage}"#, self.head(self.chunk_object()));
        if *last && !self.include_usage {
            let _ = write!(out, r#","system_fingerprint":"{}""#, self.fingerprint);
        }
        out.push('}');
    }

    /// The chunk after the last choice's end that tells the usage.
    fn usage_chunk(&self, usage: Usage) -> String {
        let Usage { prompt_tokens, generated_tokens, cached_tokens, created_cache_tokens } = usage;
        let details = match (self.details, self.api) {
            (false, _) => String::new(),
            (true, Api::Chat) => format!(
                r#","prompt_tokens_details":{{"cached_tokens":{cached_tokens},"created_cache_tokens":{created_cache_tokens}}}"#
            ),
            (true, Api::Completions) => {
                format!(r#","prompt_tokens_details":{{"cached_tokens":{cached_tokens}}}"#)
            }
        };
        format!(
            r#"{{{},"choices":[],"usage":{{"prompt_tokens":{prompt_tokens},"total_tokens":{},"completion_tokens":{generated_tokens}{details}}},"system_fingerprint":"{}"}}"#,
            self.head(self.chunk_object()),
            prompt_tokens + generated_tokens,
            self.fingerprint,
        )
    }

    fn head(&self, object: &str) -> String {
        let Self { id, created, model, .. } = self;
        format!(r#""id":{id},"object":"{object}","created":{created},"model":{model}"#)
    }

    fn chunk_object(&self) -> &'static str {
        match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completions => "text_completion",
        }
    }

    fn choice(&self, index: usize, choice: &Choice) -> String {
        let (text, finish) = (&choice.text, choice.finish.as_str());
        match self.api {
            Api::Chat => format!(
                r#"{{"index":{index},"message":{{"role":"assistant","content":"{text}","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null,"routed_experts":null}}"#
            ),
            Api::Completions => format!(
                r#"{{"index":{index},"text":"{text}","logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}"#
            ),
        }
    }

    fn usage(&self, usage: Usage) -> String {
        let Usage { prompt_tokens, generated_tokens, cached_tokens, created_cache_tokens } = usage;
        let details = match (self.details, self.api) {
            (false, _) => "null".to_owned(),
            (true, Api::Chat) => format!(
                r#"{{"cached_tokens":{cached_tokens},"created_cache_tokens":{created_cache_tokens},"multimodal_tokens":null}}"#
            ),
            (true, Api::Completions) => format!(
                r#"{{"cached_tokens":{cached_tokens},"created_cache_tokens":null,"multimodal_tokens":null}}"#
            ),
        };
        format!(
            r#"{{"prompt_tokens":{prompt_tokens},"total_tokens":{},"completion_tokens":{generated_tokens},"prompt_tokens_details":{details},"completion_tokens_details":null}}"#,
            prompt_tokens + generated_tokens,
        )
    }

    /// The usage member of a chunk, with `continuous_usage_stats`.
    fn running_usage(&self, usage: Usage) -> String {
        if !self.continuous_usage {
            return String::new();
        }
        let Usage { prompt_tokens: prompt, generated_tokens: generated, .. } = usage;
        format!(
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{generated},"completion_tokens_details":null}}"#,
            prompt + generated,
        )
    }
}
