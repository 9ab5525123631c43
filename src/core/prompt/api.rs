//! Is this request one whose body holds a prompt, and of which shape? Told from the headers alone.

use super::value::text_digest;
use super::Unread;

/// The shape of a body that the filter reads. What of it is prompt, [`super::keys`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`: `messages`.
    Chat,
    /// `/v1/completions`: `prompt` as text, texts, token ids or lists of them.
    Completions,
    /// `/v1/responses`: `instructions` and `input`.
    Responses,
    /// Anthropic's `/v1/messages`: `system` and `messages`.
    Messages,
    /// `/generate` of SGLang, of TGI and of vLLM: `text`, `inputs`, `input_ids` or `token_ids`.
    Generate,
    /// SageMaker's `/invocations`: a chat or a completion.
    Invocations,
}

impl Api {
    /// Every shape.
    pub const ALL: [Api; 6] =
        [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Generate, Api::Invocations];

    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Api::Chat => "chat",
            Api::Completions => "completions",
            Api::Responses => "responses",
            Api::Messages => "messages",
            Api::Generate => "generate",
            Api::Invocations => "invocations",
        }
    }

    /// Ends of the paths whose bodies have this shape.
    pub fn paths(self) -> impl Iterator<Item = &'static str> {
        PATHS.iter().filter(move |(_, api)| *api == Ok(self)).map(|(path, _)| *path)
    }
}

/// Ends of paths that leave nothing in a KV cache that another request could use.
pub fn paths_without_reuse() -> impl Iterator<Item = &'static str> {
    PATHS.iter().filter(|(_, api)| *api == Err(Unread::NoReuse)).map(|(path, _)| *path)
}

/// Ends of the paths that are known. A gateway's own prefix before them does not matter. The second half leaves
/// nothing in a KV cache that another request could use.
const PATHS: [(&str, Result<Api, Unread>); 20] = [
    ("/v1/chat/completions", Ok(Api::Chat)),
    ("/v1/chat/completions/batch", Ok(Api::Chat)),
    ("/v1/completions", Ok(Api::Completions)),
    ("/v1/responses", Ok(Api::Responses)),
    ("/v1/messages", Ok(Api::Messages)),
    ("/generate", Ok(Api::Generate)),
    ("/generate_stream", Ok(Api::Generate)),
    ("/invocations", Ok(Api::Invocations)),
    ("/embeddings", Err(Unread::NoReuse)),
    ("/embed", Err(Unread::NoReuse)),
    ("/encode", Err(Unread::NoReuse)),
    ("/pooling", Err(Unread::NoReuse)),
    ("/classify", Err(Unread::NoReuse)),
    ("/score", Err(Unread::NoReuse)),
    ("/rerank", Err(Unread::NoReuse)),
    ("/tokenize", Err(Unread::NoReuse)),
    ("/detokenize", Err(Unread::NoReuse)),
    ("/count_tokens", Err(Unread::NoReuse)),
    ("/render", Err(Unread::NoReuse)),
    ("/transcriptions", Err(Unread::NoReuse)),
];

/// What of the request line and headers matters.
#[derive(Debug, Clone, Copy)]
pub struct Method<'a> {
    /// `:method`
    pub method: &'a [u8],
    /// `:path`, with its query
    pub path: &'a [u8],
    /// `content-type`
    pub content_type: Option<&'a [u8]>,
    /// `content-encoding`
    pub content_encoding: Option<&'a [u8]>,
    /// Whether there is an `upgrade` header.
    pub upgrade: bool,
    /// Whether the headers end the request.
    pub end_of_stream: bool,
}

/// Which body to expect, or why none is read. `more` are ends of paths beyond those that are known.
pub fn classify(request: &Method, more: &[(String, Api)]) -> Result<Api, Unread> {
    if request.upgrade || request.method == b"CONNECT" {
        return Err(Unread::Upgrade);
    }
    if request.method != b"POST" {
        return Err(Unread::Path);
    }
    let api = api_of(request.path, more)?;
    if request.end_of_stream {
        return Err(Unread::NoBody);
    }
    if !request.content_type.is_none_or(is_json) || !request.content_encoding.is_none_or(is_identity) {
        return Err(Unread::Encoding);
    }
    Ok(api)
}

/// The stored response that a path names: `/v1/responses/<id>`, and what hangs below it. Only the host that made it
/// has it.
pub fn response_in_path(path: &[u8]) -> Option<u64> {
    const BEFORE: &[u8] = b"/v1/responses/";
    let path = without_query(path);
    let at = path.windows(BEFORE.len()).position(|window| window == BEFORE)?;
    let id = path.get(at + BEFORE.len()..)?.split(|&byte| byte == b'/').next()?;
    (!id.is_empty()).then(|| text_digest(id))
}

/// Which body to expect at a path, which may have a query, or why none is read. `more` as in [`classify`].
pub fn api_of(path: &[u8], more: &[(String, Api)]) -> Result<Api, Unread> {
    let path = without_query(path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    if let Some((_, api)) = more.iter().find(|(end, _)| path.ends_with(end.as_bytes())) {
        return Ok(*api);
    }
    let known = PATHS.iter().find(|(end, _)| path.ends_with(end.as_bytes()));
    known.map_or(Err(Unread::Path), |(_, api)| *api)
}

fn without_query(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'?').next().unwrap_or(path)
}

/// JSON by name, or a type that says nothing: curl's default for `-d` is a form.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or(content_type).trim_ascii();
    let is = |name: &str| essence.eq_ignore_ascii_case(name.as_bytes());
    is("")
        || is("application/json")
        || is("text/plain")
        || is("application/x-www-form-urlencoded")
        || essence.ends_with(b"+json")
}

fn is_identity(encoding: &[u8]) -> bool {
    let encoding = encoding.trim_ascii();
    encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity")
}
