//! How are answers and errors spelled? The JSON of vLLM 0.32, field by field in its order, as captured from it.

use std::fmt::Write;

use hyper::{Response, StatusCode};

use crate::body::{json, Body};
use crate::report::Usage;
use crate::request::Api;
use crate::sequence::Finish;

/// An error a client gets, in OpenAI's form.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

/// What all parts of one answer share.
pub(crate) struct Envelope {
    pub(crate) api: Api,
    /// The whole id, such as `chatcmpl-..`, as a JSON string.
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) created: u64,
    /// The model's name as a JSON string.
    pub(crate) model: String,
    pub(crate) fingerprint: String,
    /// Whether usage has `prompt_tokens_details`.
    pub(crate) details: bool,
}

/// One choice of a whole answer.
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) finish: Finish,
}

/// What one chunk of a stream adds.
pub(crate) struct Delta<'a> {
    /// Which choice.
    pub(crate) index: usize,
    pub(crate) text: &'a str,
    pub(crate) finish: Option<Finish>,
    /// Usage so far, if every chunk carries it.
    pub(crate) usage: Option<Usage>,
    /// Whether the stream ends with this chunk.
    pub(crate) last: bool,
}

impl ApiError {
    /// A body that is no valid request.
    pub(crate) fn validation(kind: &str, location: &str, message: &str, input: &str) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': '{location}', 'msg': '{message}', 'input': '{input}'}}"
        );
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "Bad Request",
            message,
            param: Some(location.to_owned()),
        }
    }

    pub(crate) fn content_type() -> Self {
        let message =
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed".to_owned();
        Self { status: StatusCode::BAD_REQUEST, kind: "Bad Request", message, param: None }
    }

    /// A parameter that cannot be used.
    pub(crate) fn parameter(name: &str, message: &str) -> Self {
        Self::bad_request(name, format!("{message} (parameter={name})"))
    }

    /// A parameter whose value is out of range.
    pub(crate) fn value(name: &str, message: &str, value: usize) -> Self {
        Self::bad_request(name, format!("{message} (parameter={name}, value={value})"))
    }

    pub(crate) fn no_model(model: &str, base: &str) -> Self {
        let message = format!("The model `{model}` does not exist. Valid aliases: {base}.");
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message,
            param: Some("model".to_owned()),
        }
    }

    pub(crate) fn busy() -> Self {
        let message = "The engine is currently busy and cannot accept new requests. \
                       Please try again later or on a different instance.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable", message)
    }

    pub(crate) fn engine_dead() -> Self {
        let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        Self::server(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message)
    }

    /// An error that a fault or a request's header asked for.
    pub(crate) fn injected(status: StatusCode) -> Self {
        Self::server(status, "MockFault", "This error was asked for.")
    }

    pub(crate) fn too_large() -> Self {
        Self::server(
            StatusCode::PAYLOAD_TOO_LARGE,
            "PayloadTooLarge",
            "The body is larger than the mock takes.",
        )
    }

    /// `{"error":{..}}`, as the body of a response or as an event of a stream.
    pub(crate) fn to_json(&self) -> String {
        let param = self.param.as_deref().map_or_else(|| "null".to_owned(), quote);
        let (message, kind, code) = (quote(&self.message), quote(self.kind), self.status.as_u16());
        format!(r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{code}}}}}"#)
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        json(self.status, self.to_json())
    }

    fn bad_request(name: &str, message: String) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message,
            param: Some(name.to_owned()),
        }
    }

    fn server(status: StatusCode, kind: &'static str, message: &str) -> Self {
        Self { status, kind, message: message.to_owned(), param: None }
    }
}

impl Envelope {
    /// The answer to a request that does not stream.
    pub(crate) fn whole(&self, choices: &[Choice], usage: Usage) -> String {
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

    /// The first chunk of a choice of a chat: the role.
    pub(crate) fn role_chunk(&self, index: usize, usage: Option<Usage>) -> String {
        let usage = usage.map_or_else(String::new, |usage| running_usage(usage, 0));
        format!(
            r#"{{{},"choices":[{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]{usage},"prompt_token_ids":null,"prompt_text":null}}"#,
            self.head("chat.completion.chunk"),
        )
    }

    /// A chunk with new text.
    pub(crate) fn write_chunk(&self, out: &mut String, delta: &Delta<'_>) {
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
        let usage = usage.map_or_else(String::new, |usage| running_usage(usage, usage.generated_tokens));
        let _ = write!(out, r#"{{{},"choices":[{choice}]{usage}"#, self.head(self.chunk_object()));
        if *last {
            let _ = write!(out, r#","system_fingerprint":"{}""#, self.fingerprint);
        }
        out.push('}');
    }

    /// The chunk after the last choice's end that tells the usage.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> String {
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
}

/// Text as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The usage member of a chunk, with `continuous_usage_stats`.
fn running_usage(usage: Usage, generated: usize) -> String {
    let prompt = usage.prompt_tokens;
    format!(
        r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{generated},"completion_tokens_details":null}}"#,
        prompt + generated,
    )
}
