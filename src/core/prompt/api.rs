//! Is this request one whose body holds a prompt? Told from the headers alone.

use super::Unread;

/// The shape of a body that the filter reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `POST /v1/chat/completions`: `messages`, `tools`.
    Chat,
    /// `POST /v1/completions`: `prompt` as text, texts, token ids or lists of them.
    Completions,
}

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

/// Which body to expect, or why none is read.
pub fn classify(request: &Method) -> Result<Api, Unread> {
    if request.upgrade || request.method == b"CONNECT" {
        return Err(Unread::Upgrade);
    }
    if request.method != b"POST" {
        return Err(Unread::Path);
    }
    let api = api_of(request.path).ok_or(Unread::Path)?;
    if request.end_of_stream {
        return Err(Unread::NoBody);
    }
    if !request.content_type.is_none_or(is_json) || !request.content_encoding.is_none_or(is_identity) {
        return Err(Unread::Encoding);
    }
    Ok(api)
}

/// By the end of the path, so that a gateway's own prefix does not matter.
fn api_of(path: &[u8]) -> Option<Api> {
    let path = path.split(|&byte| byte == b'?').next().unwrap_or(path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    if path.ends_with(b"/v1/chat/completions") {
        Some(Api::Chat)
    } else if path.ends_with(b"/v1/completions") {
        Some(Api::Completions)
    } else {
        None
    }
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
