//! What text does a chat become? The shape of ChatML: a header per role, tools before the system text. Equal
//! conversations render alike, whether a content is a string or a list of text parts, and a longer one starts with
//! the shorter one's text. The other APIs' conversations become these messages, as vLLM makes chats of them, so that
//! what renders alike shares a cache whatever API it came by.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

/// One message of a chat. Fields that no template prints are not read.
#[derive(Clone, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
}

/// The text of a content: a string, null, or a list of parts joined by newlines.
#[derive(Clone, Default)]
pub(crate) struct Content<'a>(Cow<'a, str>);

/// A function that the model called. Ids are not printed.
#[derive(Clone, Deserialize)]
#[serde(from = "Called")]
pub(crate) struct ToolCall {
    name: String,
    /// JSON.
    arguments: String,
}

#[derive(Deserialize)]
struct Called {
    function: CalledFunction,
}

#[derive(Deserialize)]
struct CalledFunction {
    name: String,
    #[serde(default)]
    arguments: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Content<'a>,
    #[serde(borrow, default, alias = "audio_url", alias = "video_url", alias = "input_audio")]
    image_url: Option<&'a RawValue>,
}

impl<'a> Message<'a> {
    pub(crate) fn new(role: impl Into<Cow<'a, str>>, content: impl Into<Cow<'a, str>>) -> Self {
        Self { role: role.into(), content: Content(content.into()), tool_calls: None }
    }

    pub(crate) fn calling(self, calls: Vec<ToolCall>) -> Self {
        Self { tool_calls: Some(calls), ..self }
    }

    pub(crate) fn is_system(&self) -> bool {
        self.role == "system"
    }
}

impl Content<'_> {
    pub(crate) fn into_text(self) -> String {
        self.0.into_owned()
    }
}

impl ToolCall {
    pub(crate) fn new(name: String, arguments: String) -> Self {
        Self { name, arguments }
    }
}

impl From<Called> for ToolCall {
    fn from(Called { function: CalledFunction { name, arguments } }: Called) -> Self {
        let arguments = arguments.map_or_else(String::new, |json| {
            // Clients send the arguments' JSON as a string, and templates print what is in it.
            serde_json::from_str(json.get()).unwrap_or_else(|_| json.get().to_owned())
        });
        Self { name, arguments }
    }
}

/// The prompt of a chat.
pub(crate) fn render(messages: &[Message<'_>], tools: Option<&str>) -> String {
    let contents: usize = messages.iter().map(|message| message.content.0.len() + 64).sum();
    let mut prompt = String::with_capacity(contents + tools.map_or(0, str::len) + 64);
    let mut tools = tools.map(compact).filter(|tools| tools != "[]");
    if tools.is_some() && !messages.first().is_some_and(Message::is_system) {
        open(&mut prompt, "system", &mut tools);
        close(&mut prompt);
    }
    for message in messages {
        open(&mut prompt, &message.role, &mut tools);
        prompt.push_str(&message.content.0);
        for ToolCall { name, arguments } in message.tool_calls.iter().flatten() {
            let arguments = compact(arguments);
            prompt.push_str(&format!(
                "\n<tool_call>\n{{\"name\":\"{name}\",\"arguments\":{arguments}}}\n</tool_call>"
            ));
        }
        close(&mut prompt);
    }
    prompt.push_str("<|im_start|>assistant\n");
    prompt
}

fn open(prompt: &mut String, role: &str, tools: &mut Option<String>) {
    prompt.push_str("<|im_start|>");
    prompt.push_str(role);
    prompt.push('\n');
    if let Some(tools) = tools.take() {
        prompt.push_str("# Tools\n");
        prompt.push_str(&tools);
        prompt.push_str("\n\n");
    }
}

fn close(prompt: &mut String) {
    prompt.push_str("<|im_end|>\n");
}

/// What stands for a medium in a prompt. It counts by its content, as in vLLM's block hashes; `json` is that of the
/// chat API, or a URL as a JSON string.
pub(crate) fn medium(kind: &str, json: &str) -> String {
    let digest = match json.starts_with('"') {
        true => xxh3_64(format!(r#"{{"url":{json}}}"#).as_bytes()),
        false => xxh3_64(compact(json).as_bytes()),
    };
    let kind = if kind == "input_image" { "image_url" } else { kind };
    format!("<|{kind} {digest:016x}|>")
}

/// JSON without the space between its tokens, as a template's `tojson` is blind to it. Key order stays.
fn compact(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    json.chars()
        .filter(|&c| {
            let keep = in_string || !c.is_ascii_whitespace();
            if c == '"' && !escaped {
                in_string = !in_string;
            }
            escaped = in_string && c == '\\' && !escaped;
            keep
        })
        .collect()
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, null or a list of content parts")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Content(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Content(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Content::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
        let mut text = String::new();
        let mut first = true;
        while let Some(part) = parts.next_element::<Part<'de>>()? {
            if !std::mem::take(&mut first) {
                text.push('\n');
            }
            text.push_str(&part.text.0);
            if let Some(media) = part.image_url {
                text.push_str(&medium(&part.kind, media.get()));
            }
        }
        Ok(Content(Cow::Owned(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(messages: &str, tools: Option<&str>) -> String {
        let messages: Vec<Message<'_>> = serde_json::from_str(messages).expect("messages");
        render(&messages, tools)
    }

    #[test]
    fn text_parts_render_as_the_string_they_join_to() {
        let parts =
            r#"[{"role":"user","content":[{"type":"text","text":"a\n"},{"type":"text","text":"b"}]}]"#;
        assert_eq!(prompt(parts, None), prompt(r#"[{"role":"user","content":"a\n\nb"}]"#, None));
    }

    #[test]
    fn a_longer_conversation_starts_with_the_shorter_one() {
        let turn = prompt(r#"[{"role":"user","content":"hi"}]"#, None);
        let next = r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"},{"role":"user","content":"?"}]"#;
        assert!(prompt(next, None).starts_with(&turn));
    }

    #[test]
    fn a_call_renders_by_its_name_and_arguments_alone() {
        let call = |id: &str, arguments: &str| {
            let call = format!(
                r#"{{"id":"{id}","type":"function","function":{{"name":"f","arguments":{arguments}}}}}"#
            );
            prompt(&format!(r#"[{{"role":"assistant","content":null,"tool_calls":[{call}]}}]"#), None)
        };
        assert_eq!(call("a", r#""{\"x\": 1}""#), call("b", r#"{"x":1}"#));
        assert_ne!(call("a", r#""{\"x\": 1}""#), call("a", r#""{\"x\": 2}""#));
    }

    #[test]
    fn tools_come_first_and_their_spacing_does_not_matter() {
        let messages = r#"[{"role":"system","content":"terse"},{"role":"user","content":null}]"#;
        let spaced = prompt(messages, Some(r#"[ {"type" : "function", "name": "a \" b"} ]"#));
        assert_eq!(spaced, prompt(messages, Some(r#"[{"type":"function","name":"a \" b"}]"#)));
        assert!(spaced.starts_with("<|im_start|>system\n# Tools\n[{"));
        assert!(spaced.contains(r#""a \" b""#) && spaced.contains("terse<|im_end|>"));
    }
}
