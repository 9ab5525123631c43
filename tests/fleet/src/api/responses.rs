//! OpenAI's Responses API: how is `/v1/responses` read and answered, and what does an engine remember of it? A
//! `previous_response_id` names a conversation that only the engine that answered it has.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{list, quote, quote_or_null, Answer, ApiError, Choice, Delta};
use crate::api::Asked;
use crate::chat_template::{render, Content, Message, ToolCall};
use crate::prompt::Prompt;
use crate::report::Usage;
use crate::request::{missing, parse, Generation, Wish, DEFAULT_MAX_TOKENS};
use crate::sequence::Finish;
use crate::stats::unix_seconds;

/// Responses an engine remembers: more than a test has, and bounded.
const MAX_STORED: usize = 1_024;

/// The conversations that a `previous_response_id` can go on from, the oldest forgotten first.
#[derive(Default)]
pub(crate) struct StoredResponses(Mutex<Stored>);

#[derive(Default)]
struct Stored {
    conversations: HashMap<String, Vec<Message<'static>>>,
    ids: VecDeque<String>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    model: Option<String>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    #[serde(borrow)]
    tools: Option<Vec<&'a RawValue>>,
    max_output_tokens: Option<usize>,
    cache_salt: Option<String>,
    stream: Option<bool>,
    store: Option<bool>,
}

/// One item of an `input`: a message, a call of a function or what the function returned.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
    #[serde(borrow, default)]
    output: Content<'a>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow, rename = "type")]
    kind: &'a str,
    name: Option<String>,
    description: Option<String>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

/// One response as it grows.
struct InWords {
    id: String,
    message_id: String,
    created: u64,
    /// JSON of what is told as it was asked.
    model: String,
    instructions: String,
    previous: String,
    tools: String,
    has_tools: bool,
    max_output_tokens: usize,
    /// Where to remember it, and all that was said before it.
    stored: Option<Arc<StoredResponses>>,
    conversation: Vec<Message<'static>>,
    /// Of the stream.
    events: usize,
    text: String,
    finish: Finish,
}

/// `/v1/responses`
pub(crate) fn responses(asked: &Asked<'_>) -> Result<Generation, ApiError> {
    let (body, options) = (asked.json()?, asked.options());
    let fields: Fields<'_> = parse(body)?;
    let input = fields.input.ok_or_else(|| missing("input", body))?;
    let mut conversation = match &fields.previous_response_id {
        Some(id) => asked.engine.responses().conversation(id).ok_or_else(|| ApiError::no_response(id))?,
        None => Vec::new(),
    };
    conversation.extend(messages(input)?);
    // Instructions hold for one response, so they are not part of what is remembered.
    let instructions = fields.instructions.as_deref().filter(|text| !text.is_empty());
    let system = instructions.map(|text| Message::new("system", text.to_owned()));
    let all: Vec<_> = system.into_iter().chain(conversation.iter().cloned()).collect();
    let tools = fields.tools.as_deref().unwrap_or_default();
    let max_output_tokens = fields.max_output_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let prompt = Prompt::from_text(render(&all, Some(&in_chat(tools))), options.bytes_per_token);
    let wish = Wish::checked(
        vec![prompt],
        1,
        max_output_tokens,
        fields.model.as_deref(),
        fields.cache_salt,
        options,
    )?;
    let id = asked.engine.next_request_id();
    let answer = InWords {
        message_id: format!("msg_{id}"),
        id: format!("resp_{id}"),
        created: unix_seconds() as u64,
        model: quote(&wish.model),
        instructions: quote_or_null(fields.instructions.as_deref()),
        previous: quote_or_null(fields.previous_response_id.as_deref()),
        tools: list(tools.iter().map(|tool| tool.get().to_owned())),
        has_tools: !tools.is_empty(),
        max_output_tokens,
        stored: fields.store.unwrap_or(true).then(|| asked.engine.responses().clone()),
        conversation,
        events: 0,
        text: String::new(),
        finish: Finish::Length,
    };
    Ok(Generation { wish, stream: fields.stream.unwrap_or(false), answer: Box::new(answer) })
}

/// The messages that an `input` stands for.
fn messages(input: &RawValue) -> Result<Vec<Message<'static>>, ApiError> {
    let body = input.get().as_bytes();
    if input.get().starts_with('"') {
        return Ok(vec![Message::new("user", parse::<String>(body)?)]);
    }
    Ok(parse::<Vec<Item<'_>>>(body)?.into_iter().filter_map(message).collect())
}

fn message(item: Item<'_>) -> Option<Message<'static>> {
    let Item { kind, role, content, name, arguments, output } = item;
    match kind.as_deref() {
        Some("function_call") => {
            Some(Message::new("assistant", "").calling(vec![ToolCall::new(name, arguments)]))
        }
        Some("function_call_output") => Some(Message::new("tool", output.into_text())),
        // Templates print no reasoning of turns before.
        Some("reasoning") => None,
        _ => Some(Message::new(role.unwrap_or_else(|| "user".to_owned()), content.into_text())),
    }
}

/// The tools as a chat has them.
fn in_chat(tools: &[&RawValue]) -> String {
    list(tools.iter().map(|raw| match parse::<Tool<'_>>(raw.get().as_bytes()) {
        Ok(tool) if tool.kind == "function" => {
            let description = tool.description.map(|text| format!(r#","description":{}"#, quote(&text)));
            let parameters = tool.parameters.map(|json| format!(r#","parameters":{}"#, json.get()));
            format!(
                r#"{{"type":"function","function":{{"name":{}{}{}}}}}"#,
                quote_or_null(tool.name.as_deref()),
                description.unwrap_or_default(),
                parameters.unwrap_or_default()
            )
        }
        _ => raw.get().to_owned(),
    }))
}

impl StoredResponses {
    pub(crate) fn clear(&self) {
        *self.stored() = Stored::default();
    }

    /// All that was said up to the end of a response.
    fn conversation(&self, id: &str) -> Option<Vec<Message<'static>>> {
        self.stored().conversations.get(id).cloned()
    }

    fn remember(&self, id: &str, conversation: Vec<Message<'static>>) {
        let mut stored = self.stored();
        if stored.ids.len() == MAX_STORED {
            if let Some(oldest) = stored.ids.pop_front() {
                stored.conversations.remove(&oldest);
            }
        }
        stored.ids.push_back(id.to_owned());
        stored.conversations.insert(id.to_owned(), conversation);
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer for InWords {
    fn whole(&mut self, choices: &[Choice], usage: Usage) -> String {
        for choice in choices {
            self.text.push_str(&choice.text);
            self.finish = choice.finish;
        }
        self.remember();
        self.done(usage)
    }

    fn greet(&mut self, out: &mut String) {
        let response = self.response("in_progress", "null", "[]", "null");
        self.event(out, "response.created", &format!(r#""response":{response}"#), "");
        self.event(out, "response.in_progress", &format!(r#""response":{response}"#), "");
    }

    fn begin(&mut self, out: &mut String, _index: usize, _usage: Usage) {
        let item = self.item("in_progress", "[]");
        self.event(out, "response.output_item.added", &format!(r#""item":{item},"output_index":0"#), "");
        let place = self.place();
        let part = r#""part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}"#;
        self.event(out, "response.content_part.added", &format!(r#""content_index":0,{place},{part}"#), "");
    }

    fn chunk(&mut self, out: &mut String, delta: &Delta<'_>) {
        self.text.push_str(delta.text);
        self.finish = delta.finish.unwrap_or(self.finish);
        let (text, id) = (delta.text, &self.message_id);
        let fields =
            format!(r#""content_index":0,"delta":"{text}","item_id":"{id}","logprobs":[],"output_index":0"#);
        self.event(out, "response.output_text.delta", &fields, "");
    }

    fn end(&mut self, out: &mut String, usage: Usage) {
        self.remember();
        let (id, place) = (&self.message_id, self.place());
        let fields = format!(r#""content_index":0,"item_id":"{id}","logprobs":[],"output_index":0"#);
        let text = format!(r#","text":"{}""#, self.text);
        self.event(out, "response.output_text.done", &fields, &text);
        let part = self.part();
        let fields = format!(r#""content_index":0,{place},"part":{part}"#);
        self.event(out, "response.content_part.done", &fields, "");
        let item = self.item("completed", &format!("[{part}]"));
        self.event(out, "response.output_item.done", &format!(r#""item":{item},"output_index":0"#), "");
        let response = self.done(usage);
        self.event(out, "response.completed", &format!(r#""response":{response}"#), "");
    }
}

impl InWords {
    fn remember(&mut self) {
        if let Some(stored) = &self.stored {
            let mut conversation = std::mem::take(&mut self.conversation);
            // The instructions of a request do not outlive it, whichever way they came.
            conversation.retain(|message| !message.is_system());
            conversation.push(Message::new("assistant", self.text.clone()));
            stored.remember(&self.id, conversation);
        }
    }

    fn event(&mut self, out: &mut String, kind: &str, before: &str, after: &str) {
        let number = self.events;
        self.events += 1;
        out.push_str(&format!(
            "event: {kind}\ndata: {{{before},\"sequence_number\":{number}{after},\"type\":\"{kind}\"}}\n\n"
        ));
    }

    /// Where in the response the text is.
    fn place(&self) -> String {
        format!(r#""item_id":"{}","output_index":0"#, self.message_id)
    }

    fn part(&self) -> String {
        format!(r#"{{"annotations":[],"text":"{}","type":"output_text","logprobs":null}}"#, self.text)
    }

    fn item(&self, status: &str, content: &str) -> String {
        let id = &self.message_id;
        format!(
            r#"{{"id":"{id}","content":{content},"role":"assistant","status":"{status}","type":"message","phase":null}}"#
        )
    }

    /// The finished response.
    fn done(&self, usage: Usage) -> String {
        let (status, why) = match self.finish {
            Finish::Length => ("incomplete", r#"{"reason":"max_output_tokens"}"#),
            Finish::Abort | Finish::Error => ("cancelled", "null"),
        };
        let output = format!("[{}]", self.item("completed", &format!("[{}]", self.part())));
        let Usage { prompt_tokens, generated_tokens, cached_tokens, .. } = usage;
        let total = prompt_tokens + generated_tokens;
        let usage = format!(
            r#"{{"input_tokens":{prompt_tokens},"input_tokens_details":{{"cached_tokens":{cached_tokens},"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]}},"output_tokens":{generated_tokens},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}},"total_tokens":{total}}}"#
        );
        self.response(status, why, &output, &usage)
    }

    fn response(&self, status: &str, incomplete: &str, output: &str, usage: &str) -> String {
        let Self { id, created, model, instructions, previous, tools, max_output_tokens, .. } = self;
        let tool_choice = if self.has_tools { "auto" } else { "none" };
        format!(
            r#"{{"id":"{id}","created_at":{created},"incomplete_details":{incomplete},"instructions":{instructions},"metadata":null,"model":{model},"object":"response","output":{output},"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"{tool_choice}","tools":{tools},"top_p":1.0,"background":false,"max_output_tokens":{max_output_tokens},"max_tool_calls":null,"previous_response_id":{previous},"prompt":null,"reasoning":null,"service_tier":"auto","status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{usage},"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}}"#
        )
    }
}
