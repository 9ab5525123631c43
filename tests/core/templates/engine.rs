//! What does the engine make of a body? Its rendered prompt, as vLLM's front end and a chat template make it, with a
//! note of where each tool's and message's own text stands in it.
//!
//! The body itself is parsed, in the order of its keys. Each value enters the template between marks that no text
//! holds; these are taken out of what was rendered, and say which bytes came from the request and which from the
//! template.

use kvroute::core::blocks::digest;
use minijinja::value::ValueKind;
use minijinja::{context, AutoEscape, Environment, Value};
use std::ops::Range;

const BEGIN: char = '\u{E000}';
const END: char = '\u{E001}';

/// A chat template.
#[derive(Debug, Clone, Copy)]
pub struct Template {
    pub name: &'static str,
    pub source: &'static str,
    /// `prompt.tools` for models with it.
    pub tools: &'static str,
    pub renders_tools: bool,
    pub renders_reasoning: bool,
}

pub const CHATML: Template = Template {
    name: "chatml",
    source: include_str!("chatml.jinja"),
    tools: "after_system",
    renders_tools: true,
    renders_reasoning: true,
};

pub const LLAMA3: Template = Template {
    name: "llama3",
    source: include_str!("llama3.jinja"),
    tools: "first",
    renders_tools: true,
    renders_reasoning: false,
};

pub const GEMMA: Template = Template {
    name: "gemma",
    source: include_str!("gemma.jinja"),
    tools: "first",
    renders_tools: false,
    renders_reasoning: false,
};

/// What a stretch of the rendered prompt was in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Tool,
    Reasoning,
    Text,
    Image,
    Call,
}

const KINDS: [Kind; 5] = [Kind::Tool, Kind::Reasoning, Kind::Text, Kind::Image, Kind::Call];

/// The tool or message that a stretch is of, by its place in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Tool(usize),
    Message(usize),
}

/// A stretch of the rendered prompt that came from the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub owner: Owner,
    pub kind: Kind,
    pub range: Range<usize>,
}

/// A rendered prompt.
#[derive(Debug)]
pub struct Rendered {
    pub text: String,
    /// In rendered order.
    pub stretches: Vec<Stretch>,
    pub roles: Vec<String>,
    /// What sets caches apart: the model and the salt.
    pub cache: (String, String),
}

/// The prompt that the engine makes of a chat request.
pub fn render(template: &Template, body: &str) -> Rendered {
    let request: Value = serde_json::from_str(body).expect("JSON");
    let messages: Vec<Value> = list(&request, "messages");
    let roles = messages.iter().map(|message| text(message, "role")).collect();
    let cache = (text(&request, "model"), text(&request, "cache_salt"));
    let tool = |(n, tool)| Value::from(marked(Owner::Tool(n), Kind::Tool, &dumps(&without_nulls(tool, 2))));
    let context = context! {
        tools => list(&request, "tools").into_iter().enumerate().map(tool).collect::<Vec<_>>(),
        messages => messages.iter().enumerate().map(|(n, it)| message(n, it)).collect::<Vec<_>>(),
        add_generation_prompt => true,
    };
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    // Tools and arguments are JSON already.
    environment.add_filter("tojson", |json: String| json);
    let rendered = environment.render_str(template.source, context).expect("renders");
    let (text, stretches) = unmarked(&rendered);
    Rendered { text, stretches, roles, cache }
}

/// A message as vLLM hands it to a template: texts joined by line ends, arguments parsed, nulls absent.
fn message(n: usize, message: &Value) -> Value {
    let owner = Owner::Message(n);
    let is_answer = text(message, "role") == "assistant";
    let of_answer = |list: Vec<Value>| if is_answer { list } else { Vec::new() };
    let call = |call: Value| {
        let function = call.get_attr("function").expect("a function");
        let arguments: Value = serde_json::from_str(&text(&function, "arguments")).expect("JSON");
        context! { function => context! {
            name => marked(owner, Kind::Call, &text(&function, "name")),
            arguments => marked(owner, Kind::Call, &dumps(&arguments)),
        }}
    };
    context! {
        role => text(message, "role"),
        reasoning => if is_answer { marked(owner, Kind::Reasoning, &text(message, "reasoning")) } else { String::new() },
        content => content(owner, &message.get_attr("content").unwrap_or_default()),
        tool_calls => of_answer(list(message, "tool_calls")).into_iter().map(call).collect::<Vec<_>>(),
    }
}

/// Texts, joined by line ends, with a placeholder where an image stands. Parts without text are dropped.
fn content(owner: Owner, content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return marked(owner, Kind::Text, text);
    }
    let mut rendered = String::new();
    let mut texts = 0;
    for part in content.try_iter().into_iter().flatten() {
        let image = part.get_attr("image_url").unwrap_or_default();
        if !image.is_undefined() {
            let url = digest(text(&image, "url").as_bytes());
            rendered += &marked(owner, Kind::Image, &format!("<image:{url:016x}>"));
        } else if !text(&part, "text").is_empty() {
            let joint = if texts > 0 { "\n" } else { "" };
            rendered += &marked(owner, Kind::Text, &format!("{joint}{}", text(&part, "text")));
            texts += 1;
        }
    }
    rendered
}

fn text(object: &Value, key: &str) -> String {
    object.get_attr(key).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn list(object: &Value, key: &str) -> Vec<Value> {
    object.get_attr(key).ok().and_then(|value| value.try_iter().ok()).into_iter().flatten().collect()
}

/// An object without what its schema declares and the client left null, down to `depth` levels.
fn without_nulls(object: Value, depth: usize) -> Value {
    if depth == 0 || object.kind() != ValueKind::Map {
        return object;
    }
    let fields = object.try_iter().expect("a map").filter_map(|key| {
        let value = object.get_item(&key).ok()?;
        (!value.is_none()).then(|| (key, without_nulls(value, depth - 1)))
    });
    Value::from_pairs(fields)
}

/// JSON as Python writes it: the order kept, a blank behind colons and commas.
fn dumps(value: &Value) -> String {
    let items = || value.try_iter().expect("a container");
    match value.kind() {
        ValueKind::Map => {
            let field = |key: Value| {
                format!("{}: {}", dumps(&key), dumps(&value.get_item(&key).expect("its own key")))
            };
            format!("{{{}}}", items().map(field).collect::<Vec<_>>().join(", "))
        }
        ValueKind::Seq => format!("[{}]", items().map(|item| dumps(&item)).collect::<Vec<_>>().join(", ")),
        _ => serde_json::to_string(value).expect("a scalar"),
    }
}

/// The text between marks that say what it is. Nothing stays nothing: templates ask whether it is there.
fn marked(owner: Owner, kind: Kind, text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let (base, n) = match owner {
        Owner::Tool(n) => ('\u{E100}', n),
        Owner::Message(n) => ('\u{E800}', n),
    };
    let letter = |base: char, n: usize| char::from_u32(base as u32 + n as u32).expect("in the private area");
    let kind = KINDS.iter().position(|&other| other == kind).expect("listed");
    let (kind, n) = (letter('\u{E010}', kind), letter(base, n));
    format!("{BEGIN}{kind}{n}{text}{END}")
}

/// What was rendered without the marks, and where they stood.
fn unmarked(rendered: &str) -> (String, Vec<Stretch>) {
    let mut pieces = rendered.split(BEGIN);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    let mut stretches: Vec<Stretch> = Vec::new();
    for piece in pieces {
        let (marked, literal) = piece.split_once(END).expect("an end");
        let mut letters = marked.chars();
        let kind = KINDS[letters.next().expect("a kind") as usize - 0xE010];
        let owner = match letters.next().expect("an owner") as usize {
            n @ 0xE800.. => Owner::Message(n - 0xE800),
            n => Owner::Tool(n - 0xE100),
        };
        let start = text.len();
        text += letters.as_str();
        match stretches.last_mut() {
            // Texts that were joined are one, as if they had come as one.
            Some(last)
                if (last.owner, last.kind, last.range.end) == (owner, Kind::Text, start)
                    && kind == Kind::Text =>
            {
                last.range.end = text.len();
            }
            _ => stretches.push(Stretch { owner, kind, range: start..text.len() }),
        }
        text += literal;
    }
    (text, stretches)
}
