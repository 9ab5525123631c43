//! Anthropic's Messages API: how are `/v1/messages` and `/v1/messages/count_tokens` read and answered? As vLLM does,
//! the conversation becomes a chat, so that it shares the cache with one.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{list, quote, Answer, ApiError, Choice, Delta};
use crate::api::Asked;
use crate::chat_template::{medium, render, Message, ToolCall};
use crate::prompt::Prompt;
use crate::report::Usage;
use crate::request::{missing, parse, Generation, Wish};
use crate::sequence::Finish;

#[derive(Deserialize)]
struct Fields<'a> {
    model: Option<String>,
    max_tokens: Option<usize>,
    #[serde(borrow)]
    messages: Option<Vec<Turn<'a>>>,
    #[serde(borrow)]
    system: Option<Blocks<'a>>,
    #[serde(borrow)]
    tools: Option<Vec<Tool<'a>>>,
    stream: Option<bool>,
}

#[derive(Deserialize)]
struct Turn<'a> {
    role: String,
    #[serde(borrow)]
    content: Blocks<'a>,
}

/// A content: a string or blocks.
#[derive(Deserialize)]
#[serde(transparent)]
struct Blocks<'a>(#[serde(borrow)] &'a RawValue);

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    name: String,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<Blocks<'a>>,
    source: Option<Source>,
}

/// Where an image is.
#[derive(Deserialize)]
struct Source {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    data: String,
    url: Option<String>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    name: String,
    description: Option<String>,
    #[serde(borrow)]
    input_schema: Option<&'a RawValue>,
}

/// One message as it grows.
struct InWords {
    id: String,
    model: String,
    finish: Finish,
}

/// `/v1/messages`
pub(crate) fn messages(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let body = asked.json()?;
    let fields: Fields<'_> = parse(body)?;
    let prompt = prompt(&fields, body, asked)?;
    let max_tokens = fields.max_tokens.ok_or_else(|| missing("max_tokens", body))?;
    let wish = Wish::checked(vec![prompt], 1, max_tokens, fields.model.as_deref(), None, asked.options())
        .map_err(ApiError::into_anthropic)?;
    let id = quote(&format!("chatcmpl-{}", asked.id()));
    let answer = InWords { id, model: quote(&wish.model), finish: Finish::Length };
    Ok(Generation { wish, stream: fields.stream.unwrap_or(false), answer: Box::new(answer) })
}

/// `/v1/messages/count_tokens`
pub(crate) fn count_tokens(asked: &Asked<'_>) -> Result<String, ApiError> {
    let body = asked.json()?;
    let tokens = prompt(&parse(body)?, body, asked)?.tokens();
    Ok(format!(r#"{{"input_tokens":{tokens},"context_management":{{"original_input_tokens":{tokens}}}}}"#))
}

fn prompt(fields: &Fields<'_>, body: &[u8], asked: &Asked<'_>) -> Result<Prompt, ApiError> {
    let turns = fields.messages.as_ref().ok_or_else(|| missing("messages", body))?;
    let mut chat = Vec::with_capacity(turns.len() + 1);
    if let Some(system) = &fields.system {
        let texts = system.read()?.into_iter().map(|block| block.text);
        chat.push(Message::new("system", texts.collect::<String>()));
    }
    for turn in turns {
        turn.add_to(&mut chat)?;
    }
    let tools = list(fields.tools.iter().flatten().map(Tool::in_chat));
    Ok(Prompt::from_text(render(&chat, Some(&tools)), asked.options().bytes_per_token))
}

impl<'a> Blocks<'a> {
    fn read(&self) -> Result<Vec<Block<'a>>, ApiError> {
        let body = self.0.get().as_bytes();
        if self.0.get().starts_with('"') {
            return Ok(vec![Block::of_text(parse(body)?)]);
        }
        parse(body)
    }
}

impl Block<'_> {
    fn of_text(text: String) -> Self {
        let kind = "text".to_owned();
        Self { kind, text, name: String::new(), input: None, content: None, source: None }
    }

    /// What a content prints of it; `None` for what is no content.
    fn print(self) -> Option<String> {
        match (self.kind.as_str(), self.source) {
            ("text", _) => Some(self.text),
            ("image", Some(source)) => Some(medium("image_url", &quote(&source.url()))),
            _ => None,
        }
    }
}

impl Source {
    fn url(self) -> String {
        let Self { media_type, data, url } = self;
        url.unwrap_or_else(|| format!("data:{media_type};base64,{data}"))
    }
}

impl Turn<'_> {
    /// A chat's messages for this one: results of tools are messages of their own, before the rest.
    fn add_to(&self, chat: &mut Vec<Message<'static>>) -> Result<(), ApiError> {
        let (mut printed, mut calls, mut results) = (Vec::new(), Vec::new(), 0);
        for block in self.content.read()? {
            match block.kind.as_str() {
                "tool_use" => {
                    let arguments = block.input.map_or("{}", RawValue::get);
                    calls.push(ToolCall::new(block.name, arguments.to_owned()));
                }
                "tool_result" => {
                    let content = block.content.as_ref().map_or_else(|| Ok(Vec::new()), Blocks::read)?;
                    let content: Vec<_> = content.into_iter().filter_map(Block::print).collect();
                    chat.push(Message::new("tool", content.join("\n")));
                    results += 1;
                }
                // Thinking is none of what a template prints of turns before.
                _ => printed.extend(block.print()),
            }
        }
        if !printed.is_empty() || !calls.is_empty() || results == 0 {
            chat.push(Message::new(self.role.clone(), printed.join("\n")).calling(calls));
        }
        Ok(())
    }
}

impl Tool<'_> {
    /// The tool as a chat has it.
    fn in_chat(&self) -> String {
        let name = quote(&self.name);
        let description = self.description.as_deref();
        let description = description.map(|text| format!(r#","description":{}"#, quote(text)));
        let parameters = self.input_schema.map(|schema| format!(r#","parameters":{}"#, schema.get()));
        let (description, parameters) = (description.unwrap_or_default(), parameters.unwrap_or_default());
        format!(r#"{{"type":"function","function":{{"name":{name}{description}{parameters}}}}}"#)
    }
}

impl Answer for InWords {
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String {
        let Self { id, model, .. } = self;
        let content =
            list(choices.iter().map(|choice| format!(r#"{{"type":"text","text":"{}"}}"#, choice.text)));
        let reason = choices.first().map_or("end_turn", |choice| stop_reason(choice.finish));
        let usage = spent(usage);
        format!(
            r#"{{"id":{id},"type":"message","role":"assistant","content":{content},"model":{model},"stop_reason":"{reason}","usage":{usage}}}"#
        )
    }

    fn begin(&mut self, out: &mut String, _index: usize, usage: Usage) {
        let Self { id, model, .. } = self;
        let tokens = usage.prompt_tokens;
        let fields = format!(
            r#""message":{{"id":{id},"type":"message","role":"assistant","content":[],"model":{model},"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{tokens},"output_tokens":0}}}}"#
        );
        event(out, "message_start", &fields);
        event(out, "content_block_start", r#""content_block":{"type":"text","text":""},"index":0"#);
    }

    fn chunk(&mut self, out: &mut String, delta: &Delta<'_>) {
        self.finish = delta.finish.unwrap_or(self.finish);
        if !delta.text.is_empty() {
            let fields = format!(r#""delta":{{"type":"text_delta","text":"{}"}},"index":0"#, delta.text);
            event(out, "content_block_delta", &fields);
        }
    }

    fn end(&mut self, out: &mut String, usage: Usage) {
        event(out, "content_block_stop", r#""index":0"#);
        let (reason, usage) = (stop_reason(self.finish), spent(usage));
        let fields = format!(r#""delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{usage}"#);
        event(out, "message_delta", &fields);
        out.push_str("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }

    fn refuse(&self, error: ApiError) -> ApiError {
        error.into_anthropic()
    }

    fn break_off(&self, error: &ApiError) -> String {
        format!("event: error\ndata: {}\n\n", error.to_anthropic_json())
    }
}

fn event(out: &mut String, kind: &str, fields: &str) {
    out.push_str(&format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{fields}}}\n\n"));
}

fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "max_tokens",
        Finish::Abort | Finish::Error => "end_turn",
    }
}

/// What was not found in the cache is `input_tokens`: Anthropic counts the two apart.
fn spent(usage: Usage) -> String {
    let Usage { prompt_tokens, generated_tokens, cached_tokens, .. } = usage;
    let input = prompt_tokens - cached_tokens;
    format!(
        r#"{{"input_tokens":{input},"output_tokens":{generated_tokens},"cache_creation_input_tokens":0,"cache_read_input_tokens":{cached_tokens}}}"#
    )
}
