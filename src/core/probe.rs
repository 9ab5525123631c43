//! What is a host asked to show that it generates, and is its answer a generation?

use super::config::Ready;
use super::decimal::shown;
use super::readiness::Doubt;
use serde_json::{Map, Value};
use std::fmt::{self, Write};

/// Why a probe failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection, no answer in time, or a status that is none of the following. 0: it broke off.
    Status(u32),
    /// The engine does not know the model.
    Model,
    /// The engine is up and wants a key.
    Key,
    /// 200, and yet nothing was generated, as vLLM answers while it drains.
    Nothing,
    /// Envoy did not take the call: circuit breaker, or no such cluster.
    Refused,
}

impl Failure {
    /// The middles of the metrics' names.
    pub const NAMES: [&'static str; 6] = ["status", "timeout", "model", "key", "nothing", "refused"];

    /// Its place among [`Failure::NAMES`].
    pub fn place(self) -> usize {
        match self {
            Failure::Status(504) => 1,
            Failure::Status(_) => 0,
            Failure::Model => 2,
            Failure::Key => 3,
            Failure::Nothing => 4,
            Failure::Refused => 5,
        }
    }

    /// What it makes of a host.
    pub fn doubt(self, ready: &Ready) -> Doubt {
        match self {
            // Where it is said which model hosts must serve, their metrics decide.
            Failure::Model if ready.model.is_none() => Doubt::OtherModel,
            // What Envoy answers for a host that does not listen.
            Failure::Status(503) => Doubt::Loading,
            _ => Doubt::Failed,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Status(0) => f.write_str("no answer"),
            Failure::Status(504) => f.write_str("no answer in time"),
            Failure::Status(status) => write!(f, "status {status}"),
            Failure::Model => f.write_str("it does not know the model"),
            Failure::Key => f.write_str("it wants a key"),
            Failure::Nothing => f.write_str("it answered without having generated anything"),
            Failure::Refused => f.write_str("Envoy did not take the call"),
        }
    }
}

/// The body: as configured, with the model that the engine names where it has none.
pub fn body(ready: &Ready, model: Option<&str>) -> String {
    let mut body = String::from("{");
    let model = ready.model.as_deref().or(model).filter(|_| !ready.names_model);
    if let Some(model) = model {
        body.push_str("\"model\":");
        write_text(model, &mut body);
    }
    if !ready.body.is_empty() {
        separate(&mut body);
        body.push_str(&ready.body);
    }
    body.push('}');
    body
}

/// Appends a value in JSON. The library's way to write one comes with its way to print a float: 15 KiB of wasm.
fn write_json(value: &Value, json: &mut String) {
    match value {
        Value::Null => json.push_str("null"),
        Value::Bool(true) => json.push_str("true"),
        Value::Bool(false) => json.push_str("false"),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => json.push_str(&whole.to_string()),
            (_, Some(whole)) => json.push_str(&whole.to_string()),
            // To thousandths: there are temperatures, and shares.
            _ => json.push_str(&shown(number.as_f64().unwrap_or(0.0).clamp(-1e9, 1e9))),
        },
        Value::String(text) => write_text(text, json),
        Value::Array(items) => {
            json.push('[');
            for item in items {
                separate(json);
                write_json(item, json);
            }
            json.push(']');
        }
        Value::Object(members) => {
            json.push('{');
            write_members(members, json);
            json.push('}');
        }
    }
}

/// Appends the members of an object in JSON, without its braces.
pub fn write_members(members: &Map<String, Value>, json: &mut String) {
    for (key, value) in members {
        separate(json);
        write_text(key, json);
        json.push(':');
        write_json(value, json);
    }
}

/// A comma, except at the beginning.
fn separate(json: &mut String) {
    if !json.is_empty() && !json.ends_with(['{', '[']) {
        json.push(',');
    }
}

fn write_text(text: &str, json: &mut String) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(json, "\\u{:04x}", c as u32);
            }
            c => json.push(c),
        }
    }
    json.push('"');
}

/// Whether an answer is a generation, and if not, why not.
///
/// # Errors
///
/// Why not.
pub fn judge(status: u32, body: &[u8]) -> Result<(), Failure> {
    match status {
        200 if is_generation(body) => Ok(()),
        200 => Err(Failure::Nothing),
        401 | 403 => Err(Failure::Key),
        // A path that is not there says nothing about models.
        404 if says_model(body) => Err(Failure::Model),
        status => Err(Failure::Status(status)),
    }
}

/// Whether a 404 is about the model. vLLM: ``The model `x` does not exist.``; a path that is not there: `Not Found`.
fn says_model(body: &[u8]) -> bool {
    body.windows(5).any(|word| word.eq_ignore_ascii_case(b"model"))
}

/// Whether an answer in JSON holds something generated. Where it counts tokens, these decide. OpenAI's APIs have `choices`,
/// others their own names: of those, any answer that is not an error will do.
fn is_generation(body: &[u8]) -> bool {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return false };
    let counted = ["completion_tokens", "output_tokens"]
        .iter()
        .find_map(|name| answer.get("usage")?.get(name)?.as_f64());
    if let Some(tokens) = counted {
        return tokens > 0.0;
    }
    match answer.get("choices").and_then(Value::as_array) {
        Some(choices) => choices.iter().any(|choice| {
            choice.get("finish_reason").is_some_and(|reason| reason.is_string() && reason != "abort")
        }),
        None => answer.get("error").is_none() && (answer.is_object() || answer.is_array()),
    }
}
