//! Which keys of a body matter, and as what? The whole knowledge of the APIs, as tables.
//!
//! What is in no table is ignored: sampling parameters, limits, metadata. What an engine puts into the prompt is
//! here, by where it ends up there: README.md's table is checked against this one.

use super::Api::{self, Chat, Completions, Generate, Invocations, Messages, Responses};

/// What a key's value is to the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Which model; part of the seed.
    Model,
    /// Part of the seed: what sets caches apart, or changes the prompt's beginning.
    Seed,
    /// An object whose keys are part of the seed, but for those that only change the prompt's end.
    TemplateOptions,
    /// An object of which only the name of an adapter matters.
    Parameters,
    /// The tools: before the text.
    Tools,
    /// The instructions: before the text.
    System,
    /// A list of messages.
    Messages,
    /// A text, or a list of messages.
    Input,
    /// Text, texts, token ids or lists of them.
    Prompt,
    /// Token ids or lists of them; they win over text.
    TokenIds,
    /// What the engine appends behind everything.
    Ending,
    /// Names a conversation, for requests without a prompt.
    Session,
    /// Names an answer that only the host has that gave it.
    PreviousResponse,
    /// Whether the answer streams.
    Stream,
}

const ALL: &[Api] = &Api::ALL;
const CHATS: &[Api] = &[Chat, Responses, Messages, Invocations];
const TEMPLATED: &[Api] = &[Chat, Responses, Invocations];

/// The request's keys.
static REQUEST: [(&str, &[Api], Use); 35] = [
    ("model", ALL, Use::Model),
    ("lora_path", &[Generate], Use::Model),
    ("parameters", &[Generate], Use::Parameters),
    ("cache_salt", ALL, Use::Seed),
    ("chat_template", TEMPLATED, Use::Seed),
    ("chat_template_kwargs", TEMPLATED, Use::TemplateOptions),
    ("documents", TEMPLATED, Use::Seed),
    ("reasoning_effort", TEMPLATED, Use::Seed),
    ("reasoning", &[Responses], Use::Seed),
    ("prompt", &[Responses], Use::Seed),
    ("add_special_tokens", &[Chat, Completions, Invocations], Use::Seed),
    ("truncate_prompt_tokens", &[Chat, Completions, Invocations], Use::Seed),
    ("mm_processor_kwargs", TEMPLATED, Use::Seed),
    ("prompt_embeds", &[Completions, Invocations], Use::Seed),
    ("features", &[Generate], Use::Seed),
    ("image_data", &[Generate], Use::Seed),
    ("tools", CHATS, Use::Tools),
    ("functions", &[Chat, Invocations], Use::Tools),
    ("instructions", &[Responses], Use::System),
    ("system", &[Messages], Use::System),
    ("messages", &[Chat, Messages, Invocations], Use::Messages),
    ("input", &[Responses], Use::Input),
    ("prompt", &[Completions, Invocations], Use::Prompt),
    ("text", &[Generate], Use::Prompt),
    ("inputs", &[Generate], Use::Prompt),
    ("input_ids", &[Generate], Use::TokenIds),
    ("token_ids", &[Generate], Use::TokenIds),
    ("suffix", &[Completions, Invocations], Use::Ending),
    ("add_generation_prompt", &[Chat, Invocations], Use::Ending),
    ("continue_final_message", &[Chat, Invocations], Use::Ending),
    ("thinking", &[Messages], Use::Ending),
    ("prompt_cache_key", ALL, Use::Session),
    ("session_id", ALL, Use::Session),
    ("previous_response_id", &[Responses], Use::PreviousResponse),
    ("stream", ALL, Use::Stream),
];

/// The keys that matter in a body of this API, with what they are: what the README's table shows.
pub fn of(api: Api) -> impl Iterator<Item = (&'static str, Use)> {
    REQUEST.iter().filter(move |(_, apis, _)| apis.contains(&api)).map(|(name, _, used)| (*name, *used))
}

/// What a key of the request is, with its place in the table.
#[inline(never)]
pub(super) fn request(api: Api, key: &[u8]) -> Option<(usize, Use)> {
    let of_key = |(name, apis, _): &(&str, &[Api], Use)| name.as_bytes() == key && apis.contains(&api);
    let place = REQUEST.iter().position(of_key)?;
    REQUEST.get(place).map(|(_, _, used)| (place, *used))
}

/// Template options that change only the prompt's end, in the templates that most engines serve (Qwen 3, GLM,
/// DeepSeek): the same conversation with and without thinking shares everything else.
pub(super) fn is_ending_option(key: &[u8]) -> bool {
    matches!(key, b"enable_thinking" | b"thinking")
}

/// What a key of a message, or of an item of `input`, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKey {
    Role,
    /// Text, or a list of parts.
    Content,
    /// Rendered before the content: how the answer was thought out.
    Before,
    /// Rendered behind the content, or nobody knows where: tool calls, names.
    Behind,
    Ignored,
}

pub(super) fn message(api: Api, key: &[u8]) -> MessageKey {
    match key {
        b"role" => MessageKey::Role,
        b"content" => MessageKey::Content,
        b"output" if api == Responses => MessageKey::Content,
        b"reasoning" | b"reasoning_content" => MessageKey::Before,
        // Advice to other engines, and what answers carry that no template renders.
        b"cache_control" | b"annotations" | b"status" | b"phase" | b"logprobs" => MessageKey::Ignored,
        b"id" | b"type" if api == Responses => MessageKey::Ignored,
        _ => MessageKey::Behind,
    }
}

/// What a key of a part of a message's content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKey {
    /// Text, or, in the result of a tool, more parts.
    Content,
    /// An image, sound or film, or where it is.
    Media,
    /// The name that a client gives to the same: it stands for all of it.
    Uuid,
    /// Anything else that tells this part from others.
    Field,
    Ignored,
}

pub(super) fn part(key: &[u8]) -> PartKey {
    match key {
        b"text" | b"content" => PartKey::Content,
        b"image_url" | b"image" | b"image_embeds" | b"input_audio" | b"audio_url" | b"audio"
        | b"video_url" | b"video" | b"source" | b"file" | b"file_data" => PartKey::Media,
        b"uuid" => PartKey::Uuid,
        // The other keys say what it is.
        b"type" | b"cache_control" | b"signature" | b"annotations" | b"citations" | b"logprobs" => {
            PartKey::Ignored
        }
        _ => PartKey::Field,
    }
}
