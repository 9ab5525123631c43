//! Conversations, the ways in which one differs from another, and the ways to write one down.

use super::super::support::Numbers;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

#[derive(Debug, Clone)]
pub enum Piece {
    Text(String),
    Image(String),
}

#[derive(Debug, Clone)]
pub struct Tool {
    pub name: String,
    pub about: String,
    pub about_first: bool,
    /// Whether its schema has `null` for a default.
    pub null_default: bool,
}

#[derive(Debug, Clone)]
pub struct Call {
    pub name: String,
    /// A JSON object's only value.
    pub argument: String,
}

#[derive(Debug, Clone, Default)]
pub struct Message {
    pub role: &'static str,
    pub content: Vec<Piece>,
    pub reasoning: String,
    pub calls: Vec<Call>,
}

#[derive(Debug, Clone, Default)]
pub struct Request {
    pub model: String,
    pub salt: String,
    pub tools: Vec<Tool>,
    pub messages: Vec<Message>,
}

/// How a request is written down: nothing of it matters to the engine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Writing {
    /// Texts as lists of parts, with an empty one among them.
    pub parts: bool,
    /// Keys of messages and of the request the other way round.
    pub reversed: bool,
    /// `null` for what is absent.
    pub nulls: bool,
}

impl Message {
    pub fn new(role: &'static str, text: impl Into<String>) -> Self {
        Self { role, content: vec![Piece::Text(text.into())], ..Self::default() }
    }

    fn written(&self, writing: Writing, id: usize) -> String {
        let calls = self.calls.iter().enumerate().map(|(n, call)| {
            let arguments = json!({ "value": call.argument }).to_string();
            json!({"id": format!("{id}-{n}"), "type": "function", "function": {"name": call.name, "arguments": arguments}})
        });
        let calls = calls.collect::<Vec<_>>();
        let mut fields = vec![field("role", json!(self.role))];
        fields.extend(self.written_content(writing).map(|content| format!(r#""content":{content}"#)));
        fields.extend(optional("reasoning", json!(self.reasoning), self.reasoning.is_empty(), writing));
        fields.extend(optional("tool_calls", json!(calls), calls.is_empty(), writing));
        fields.extend(optional("name", json!(null), true, writing));
        object(fields, writing)
    }

    fn written_content(&self, writing: Writing) -> Option<String> {
        if self.content.is_empty() {
            return writing.nulls.then(|| "null".to_owned());
        }
        let texts: Vec<&str> = self.content.iter().filter_map(Piece::text).collect();
        if !writing.parts && texts.len() == self.content.len() {
            return Some(json!(texts.join("\n")).to_string());
        }
        let part = |piece: &Piece| match piece {
            Piece::Text(text) => json!({"type": "text", "text": text}),
            Piece::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
        };
        let mut parts: Vec<_> = self.content.iter().map(part).collect();
        if writing.parts {
            parts.insert(0, json!({"type": "text", "text": ""}));
        }
        Some(json!(parts).to_string())
    }
}

impl Piece {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }
}

impl Tool {
    pub fn new(name: &str, about: impl Into<String>) -> Self {
        Self { name: name.to_owned(), about: about.into(), about_first: false, null_default: false }
    }

    fn written(&self, writing: Writing) -> String {
        let mut fields = vec![field("name", json!(self.name)), field("description", json!(self.about))];
        if self.about_first {
            fields.reverse();
        }
        let mut value = json!({"type": ["string", "null"], "maxLength": 40});
        if self.null_default {
            value["default"] = json!(null);
        }
        let properties = json!({"type": "object", "properties": {"value": value}, "required": []});
        fields.push(field("parameters", properties));
        fields.extend(optional("strict", json!(null), true, writing));
        format!(r#"{{"type":"function","function":{{{}}}}}"#, fields.join(","))
    }
}

impl Request {
    /// The body.
    pub fn written(&self, writing: Writing) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let tools = list(self.tools.iter().map(|tool| tool.written(writing)).collect());
        let messages =
            list(self.messages.iter().enumerate().map(|(n, message)| message.written(writing, n)).collect());
        let mut fields = vec![field("model", json!(self.model)), format!(r#""messages":{messages}"#)];
        fields.extend(match self.tools.is_empty() {
            true => optional("tools", json!(null), true, writing),
            false => Some(format!(r#""tools":{tools}"#)),
        });
        fields.extend(optional("cache_salt", json!(self.salt), self.salt.is_empty(), writing));
        object(fields, writing)
    }

    /// As it is for a model whose template knows neither.
    pub fn without(mut self, tools: bool, reasoning: bool) -> Self {
        if tools {
            self.tools.clear();
            self.messages.retain(|message| message.role != "tool" && !message.content.is_empty());
            self.messages.iter_mut().for_each(|message| message.calls.clear());
        }
        if reasoning {
            self.messages.iter_mut().for_each(|message| message.reasoning.clear());
        }
        self
    }
}

fn field(key: &str, value: serde_json::Value) -> String {
    format!("{}:{value}", json!(key))
}

fn optional(key: &str, value: serde_json::Value, is_absent: bool, writing: Writing) -> Option<String> {
    match is_absent {
        true => writing.nulls.then(|| field(key, json!(null))),
        false => Some(field(key, value)),
    }
}

fn object(mut fields: Vec<String>, writing: Writing) -> String {
    if writing.reversed {
        fields.reverse();
    }
    format!("{{{}}}", fields.join(","))
}

/// A way in which one request differs from another.
#[derive(Debug, Clone)]
pub enum Change {
    Model,
    Salt,
    /// A byte of a text, here.
    Text(Index, Index),
    /// The end of a text is cut off, from here.
    Cut(Index, Index),
    Role(Index),
    Image(Index),
    Reasoning(Index, Index),
    NoReasoning(Index),
    Argument(Index, Index),
    /// Another call at the end of an answer.
    MoreCalls(Index),
    NoSystem,
    ToolText(Index, Index),
    ToolOrder(Index),
    NoTool(Index),
    MoreTools(String),
    ToolKeys(Index),
    ToolDefault(Index),
    /// The conversation goes on.
    Next(Vec<Message>),
    /// It ends sooner, but not before there is a question.
    Shorter(Index),
}

impl Change {
    pub fn apply(&self, request: &mut Request) {
        match self {
            Self::Model => request.model += "-adapter",
            Self::Salt => request.salt += "x",
            Self::Text(which, at) => with(request.texts(), which, |text| replace(text, at)),
            Self::Cut(which, at) => with(request.texts(), which, |text| cut(text, at)),
            Self::Role(which) => {
                // Not of the message behind the instructions: Gemma renders its role before them.
                let (head, rest) = request.messages.split_at_mut(1);
                with(head.iter_mut().chain(rest.iter_mut().skip(1)).collect(), which, |message| {
                    message.role = if message.role == "user" { "assistant" } else { "user" };
                });
            }
            Self::Image(which) => with(request.images(), which, |url| url.push('x')),
            Self::Reasoning(which, at) => with(request.reasonings(), which, |text| replace(text, at)),
            Self::NoReasoning(which) => with(request.reasonings(), which, |text| text.clear()),
            Self::Argument(which, at) => {
                with(request.calls(), which, |call| replace(&mut call.argument, at));
            }
            Self::MoreCalls(which) => {
                let answers = request.messages.iter_mut().filter(|message| message.role == "assistant");
                with(answers.collect(), which, |message| {
                    message.calls.push(Call { name: "look".to_owned(), argument: "again".to_owned() });
                });
            }
            Self::NoSystem => request.messages.retain(|message| message.role != "system"),
            Self::ToolText(which, at) => {
                with(request.tools.iter_mut().collect(), which, |tool| replace(&mut tool.about, at));
            }
            Self::ToolOrder(which) if request.tools.len() > 1 => {
                let place = which.index(request.tools.len() - 1);
                request.tools.swap(place, place + 1);
            }
            Self::ToolOrder(_) => {}
            Self::NoTool(which) if !request.tools.is_empty() => {
                request.tools.remove(which.index(request.tools.len()));
            }
            Self::NoTool(_) => {}
            Self::MoreTools(about) => request.tools.push(Tool::new("more", about.as_str())),
            Self::ToolKeys(which) => {
                with(request.tools.iter_mut().collect(), which, |tool| tool.about_first ^= true);
            }
            Self::ToolDefault(which) => {
                with(request.tools.iter_mut().collect(), which, |tool| tool.null_default ^= true);
            }
            Self::Next(turn) => request.messages.extend(turn.iter().cloned()),
            Self::Shorter(which) => {
                let instructions =
                    request.messages.iter().take_while(|message| message.role == "system").count();
                let rest = request.messages.len() - instructions;
                request.messages.truncate(instructions + which.index(rest) + 1);
            }
        }
    }
}

impl Request {
    fn pieces(&mut self) -> impl Iterator<Item = &mut Piece> {
        self.messages.iter_mut().flat_map(|message| &mut message.content)
    }

    fn texts(&mut self) -> Vec<&mut String> {
        let text = |piece| match piece {
            &mut Piece::Text(ref mut text) => Some(text),
            Piece::Image(_) => None,
        };
        self.pieces().filter_map(text).collect()
    }

    fn images(&mut self) -> Vec<&mut String> {
        let url = |piece| match piece {
            &mut Piece::Image(ref mut url) => Some(url),
            Piece::Text(_) => None,
        };
        self.pieces().filter_map(url).collect()
    }

    fn reasonings(&mut self) -> Vec<&mut String> {
        let all = self.messages.iter_mut().map(|message| &mut message.reasoning);
        all.filter(|reasoning| !reasoning.is_empty()).collect()
    }

    fn calls(&mut self) -> Vec<&mut Call> {
        self.messages.iter_mut().flat_map(|message| &mut message.calls).collect()
    }
}

fn with<T>(mut items: Vec<&mut T>, which: &Index, change: impl FnOnce(&mut T)) {
    if !items.is_empty() {
        let place = which.index(items.len());
        change(items[place]);
    }
}

/// Texts are ASCII here, so that any byte can be another; no text has an X of its own.
fn replace(text: &mut String, at: &Index) {
    let at = at.index(text.len());
    text.replace_range(at..=at, "X");
}

fn cut(text: &mut String, at: &Index) {
    let at = at.index(text.len());
    text.replace_range(at.., "X");
}

/// Text of a few words or a few kilobytes, with what JSON must escape, and no blank at either end.
fn texts() -> impl Strategy<Value = String> {
    let lengths = prop_oneof![1_usize..40, 40_usize..600, 600_usize..9_000];
    (any::<u64>(), lengths).prop_map(|(seed, length)| {
        let mut numbers = Numbers(seed);
        let letter = |n| char::from(b"abcdefghijklmnopqrstuvwxyz \n\"\\  "[n as usize & 31]);
        let mut text = "a".to_owned();
        while text.len() < length {
            let number = numbers.next();
            text.extend((0..12).map(|n| letter(number >> (5 * n))));
        }
        text + "z"
    })
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        4 => texts().prop_map(Piece::Text),
        1 => "[a-z]{1,9}".prop_map(|name| Piece::Image(format!("https://a/{name}.png"))),
    ];
    prop_oneof![texts().prop_map(|text| vec![Piece::Text(text)]), proptest::collection::vec(piece, 1..4)]
}

/// A question, and the answers and results of tools that follow it.
fn turns() -> impl Strategy<Value = Vec<Message>> {
    let reasoning = prop_oneof![Just(String::new()), texts()];
    let text = proptest::option::of(texts());
    let calls = proptest::collection::vec(("[a-z]{1,9}", texts()), 0..3);
    (pieces(), reasoning, text, calls, texts()).prop_map(|(question, reasoning, text, calls, last)| {
        let calls: Vec<Call> = calls.into_iter().map(|(name, argument)| Call { name, argument }).collect();
        let text = text.or_else(|| calls.is_empty().then(|| last.clone()));
        let mut turn = vec![Message { content: question, ..Message::new("user", "") }];
        let results: Vec<Message> =
            calls.iter().map(|call| Message::new("tool", format!("{}: {last}", call.name))).collect();
        turn.push(Message {
            role: "assistant",
            content: text.into_iter().map(Piece::Text).collect(),
            reasoning,
            calls,
        });
        if !results.is_empty() {
            turn.extend(results);
            turn.push(Message::new("assistant", last));
        }
        turn
    })
}

pub fn requests() -> impl Strategy<Value = Request> {
    let tools = proptest::collection::vec(("[a-z]{1,9}", texts()), 0..4);
    let system = proptest::collection::vec(texts(), 0..3);
    (tools, system, proptest::collection::vec(turns(), 0..4), pieces()).prop_map(
        |(tools, system, turns, question)| {
            let mut messages: Vec<Message> =
                system.into_iter().map(|text| Message::new("system", text)).collect();
            messages.extend(turns.into_iter().flatten());
            messages.push(Message { content: question, ..Message::new("user", "") });
            let tools = tools.into_iter().map(|(name, about)| Tool::new(&name, about)).collect();
            Request { model: "org/guide-7b".to_owned(), salt: String::new(), tools, messages }
        },
    )
}

pub fn changes() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        1 => Just(Change::Model),
        1 => Just(Change::Salt),
        6 => (index(), index()).prop_map(|(which, at)| Change::Text(which, at)),
        3 => (index(), index()).prop_map(|(which, at)| Change::Cut(which, at)),
        3 => index().prop_map(Change::Role),
        4 => index().prop_map(Change::Image),
        3 => (index(), index()).prop_map(|(which, at)| Change::Reasoning(which, at)),
        3 => index().prop_map(Change::NoReasoning),
        4 => (index(), index()).prop_map(|(which, at)| Change::Argument(which, at)),
        3 => index().prop_map(Change::MoreCalls),
        2 => Just(Change::NoSystem),
        4 => (index(), index()).prop_map(|(which, at)| Change::ToolText(which, at)),
        2 => index().prop_map(Change::ToolOrder),
        2 => index().prop_map(Change::NoTool),
        2 => texts().prop_map(Change::MoreTools),
        2 => index().prop_map(Change::ToolKeys),
        2 => index().prop_map(Change::ToolDefault),
        4 => turns().prop_map(Change::Next),
        4 => index().prop_map(Change::Shorter),
    ]
}

pub fn writings() -> impl Strategy<Value = Writing> {
    any::<[bool; 3]>().prop_map(|[parts, reversed, nulls]| Writing { parts, reversed, nulls })
}
