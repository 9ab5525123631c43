//! What text does a chat become? The shape of ChatML: a header per role, tools before the system text. Equal
//! conversations render alike, whether a content is a string or a list of text parts, and a longer one starts with
//! the shorter one's text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

/// One message of a chat. Fields that no template prints are not read.
#[derive(Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
}

/// The text of a content: a string, null, or a list of parts joined by newlines.
#[derive(Default)]
pub(crate) struct Content<'a>(Cow<'a, str>);

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Content<'a>,
    #[serde(borrow, default, alias = "audio_url", alias = "video_url", alias = "input_audio")]
    image_url: Option<&'a RawValue>,
}

/// The prompt of a chat.
pub(crate) fn render(messages: &[Message<'_>], tools: Option<&RawValue>) -> String {
    let contents: usize = messages.iter().map(|message| message.content.0.len() + 64).sum();
    let mut prompt = String::with_capacity(contents + tools.map_or(0, |tools| tools.get().len()) + 64);
    let mut tools = tools.map(|tools| compact(tools.get())).filter(|tools| tools != "[]");
    if tools.is_some() && messages.first().is_none_or(|first| first.role != "system") {
        open(&mut prompt, "system", &mut tools);
        close(&mut prompt);
    }
    for message in messages {
        open(&mut prompt, &message.role, &mut tools);
        prompt.push_str(&message.content.0);
        if let Some(calls) = message.tool_calls {
            prompt.push_str(&compact(calls.get()));
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
                // Media count by their content, as in vLLM's block hashes.
                let (kind, digest) = (&part.kind, xxh3_64(media.get().as_bytes()));
                text.push_str(&format!("<|{kind} {digest:016x}|>"));
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
        let tools: Option<&RawValue> = tools.map(|tools| serde_json::from_str(tools).expect("tools"));
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
    fn tools_come_first_and_their_spacing_does_not_matter() {
        let messages = r#"[{"role":"system","content":"terse"},{"role":"user","content":null}]"#;
        let spaced = prompt(messages, Some(r#"[ {"type" : "function", "name": "a \" b"} ]"#));
        assert_eq!(spaced, prompt(messages, Some(r#"[{"type":"function","name":"a \" b"}]"#)));
        assert!(spaced.starts_with("<|im_start|>system\n# Tools\n[{"));
        assert!(spaced.contains(r#""a \" b""#) && spaced.contains("terse<|im_end|>"));
    }
}
