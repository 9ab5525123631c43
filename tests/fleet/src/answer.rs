//! What is said in every API, and what does each say in its own words? The parts of an answer, and errors, which
//! are spelled as captured from vLLM 0.32.

use hyper::{Response, StatusCode};

use crate::body::{json, Body};
use crate::report::Usage;
use crate::sequence::Finish;

/// How one API words the answer to one request. A stream is `greet`, then for each choice `begin` and its chunks,
/// then `end`; all write whole server-sent events.
pub(crate) trait Answer: Send {
    /// The answer to a request that does not stream.
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String;

    /// Before anything is computed.
    fn greet(&mut self, _out: &mut String) {}

    /// Before the first text of a choice, whose usage is told so far as it is known.
    fn begin(&mut self, _out: &mut String, _index: usize, _usage: Usage) {}

    /// New text of a choice. An API that streams nothing needs neither this nor what follows.
    fn chunk(&mut self, _out: &mut String, _delta: &Delta<'_>) {}

    /// After the last choice's last text.
    fn end(&mut self, _out: &mut String, _usage: Usage) {}

    /// An error, in this API's form.
    fn refuse(&self, error: ApiError) -> ApiError {
        error
    }

    /// An error after the stream has begun, with status 200.
    fn break_off(&self, error: &ApiError) -> String {
        format!("data: {}\n\ndata: [DONE]\n\n", error.to_json())
    }
}

/// An error a client gets.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    form: ErrorForm,
}

/// Whose words an error has.
#[derive(Debug, Default)]
enum ErrorForm {
    #[default]
    OpenAi,
    Anthropic,
}

/// One choice of a whole answer.
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) finish: Finish,
    /// What the answer was drawn from.
    pub(crate) seed: u64,
    /// Of this choice alone, with all of its prompt.
    pub(crate) usage: Usage,
}

/// What one chunk of a stream adds.
pub(crate) struct Delta<'a> {
    /// Which choice.
    pub(crate) index: usize,
    pub(crate) text: &'a str,
    pub(crate) finish: Option<Finish>,
    /// Of this choice alone, so far.
    pub(crate) usage: Usage,
    /// Whether no text of any choice follows.
    pub(crate) last: bool,
}

impl ApiError {
    /// A body that is no valid request.
    pub(crate) fn validation(kind: &str, location: &str, message: &str, input: &str) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': '{location}', 'msg': '{message}', 'input': '{input}'}}"
        );
        Self::invalid(message, Some(location))
    }

    /// A body that is no text.
    pub(crate) fn no_text() -> Self {
        Self::invalid("There was an error parsing the body".to_owned(), None)
    }

    pub(crate) fn content_type() -> Self {
        let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self::invalid(message.to_owned(), None)
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
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message, Some("model"))
    }

    /// A stored response that is not stored here.
    pub(crate) fn no_response(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message, Some("response_id"))
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

    /// The same error in Anthropic's form.
    pub(crate) fn into_anthropic(self) -> Self {
        Self { form: ErrorForm::Anthropic, ..self }
    }

    /// The body of a response, or an event of a stream.
    pub(crate) fn to_json(&self) -> String {
        let (message, kind, code) = (quote(&self.message), quote(self.kind), self.status.as_u16());
        if matches!(self.form, ErrorForm::Anthropic) {
            return self.to_anthropic_json();
        }
        let param = quote_or_null(self.param.as_deref());
        format!(r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{code}}}}}"#)
    }

    /// The same in Anthropic's form.
    pub(crate) fn to_anthropic_json(&self) -> String {
        let (kind, message) = (quote(self.kind), quote(&self.message));
        format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#)
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        json(self.status, self.to_json())
    }

    fn bad_request(name: &str, message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message, Some(name))
    }

    fn invalid(message: String, location: Option<&str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", message, location)
    }

    fn server(status: StatusCode, kind: &'static str, message: &str) -> Self {
        Self::new(status, kind, message.to_owned(), None)
    }

    fn new(status: StatusCode, kind: &'static str, message: String, param: Option<&str>) -> Self {
        let param = param.map(str::to_owned);
        Self { status, kind, message, param, form: ErrorForm::default() }
    }
}

/// Text as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(crate) fn quote_or_null(text: Option<&str>) -> String {
    text.map_or_else(|| "null".to_owned(), quote)
}

/// The items of a JSON list.
pub(crate) fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}
