//! Reading of prompts: which requests, how much of them, and what of it counts.

use super::{Pattern, Refusal, Section};
use crate::core::prompt::{text_digest, Api};
use std::rc::Rc;

/// The most paths that can be added, and headers and cookies that can name a session.
const MOST_PATHS: usize = 32;
const MOST_SESSION_KEYS: usize = 8;

/// Reading of prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Bytes of prompt text in one hash block.
    pub block_bytes: usize,
    /// The most body bytes that are held back before the decision. Must stay below the connection
    /// buffer limit of the listener (Envoy Gateway: 32 KiB), or Envoy stops reading before there are so many.
    pub hold_bytes: usize,
    /// The most prompt bytes that are hashed; what follows is length only.
    pub max_bytes: usize,
    /// Where the model's chat template renders the tools.
    pub tools: ToolsPlace,
    /// Ends of paths that are read, beyond those that are known, and as what.
    pub paths: Vec<(String, Api)>,
    /// Text at the head of a prompt that is not hashed.
    pub leave_out: Rc<[Pattern]>,
}

/// Where a chat template renders the tools. It decides what two prompts share whose tools differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolsPlace {
    /// Before everything else, as Llama 3's does.
    First,
    /// Behind the instructions, as Qwen's and Hermes' do.
    AfterSystem,
}

/// What names a conversation when its prompt is not in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Request headers, the first that is there.
    pub headers: Vec<String>,
    /// Cookies.
    pub cookies: Vec<String>,
}

impl Prompt {
    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let prompt = Self {
            block_bytes: section.whole("block_bytes", 256, 32, 4_096)?,
            // 32 KiB less a margin: what one more read may add before the filter is called.
            hold_bytes: section.whole("hold_bytes", 30_720, 0, 64 << 20)?,
            max_bytes: section.whole("max_bytes", 1 << 20, 4_096, 64 << 20)?,
            tools: ToolsPlace::take(&mut section)?,
            paths: paths(section.section("paths")?)?,
            leave_out: Pattern::take_list(&mut section, "leave_out")?.into(),
        };
        section.finish()?;
        Ok(prompt)
    }
}

impl ToolsPlace {
    fn take(section: &mut Section) -> Result<Self, Refusal> {
        match section.text("tools")?.as_deref() {
            None | Some("first") => Ok(Self::First),
            Some("after_system") => Ok(Self::AfterSystem),
            Some(_) => Err(section.refuse("tools", "must be \"first\" or \"after_system\"")),
        }
    }
}

impl Session {
    /// A digest of the conversation's name, if this header has it.
    pub fn in_header(&self, name: &[u8], value: &[u8]) -> Option<u64> {
        let value = if name == b"cookie" {
            value.split(|&byte| byte == b';').find_map(|pair| self.in_cookie(pair.trim_ascii()))?
        } else {
            self.headers.iter().any(|header| header.as_bytes() == name).then_some(value)?
        };
        Some(text_digest(value)).filter(|&digest| digest != 0)
    }

    fn in_cookie<'a>(&self, pair: &'a [u8]) -> Option<&'a [u8]> {
        let value_of = |name: &String| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        self.cookies.iter().find_map(value_of)
    }

    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let headers = section.header_names("headers", &["x-session-id"], MOST_SESSION_KEYS)?;
        let cookies = section.texts("cookies", MOST_SESSION_KEYS)?;
        section.finish()?;
        Ok(Self { headers, cookies })
    }
}

/// `{"/path": "chat"}`
fn paths(mut section: Section) -> Result<Vec<(String, Api)>, Refusal> {
    let names: Vec<String> = section.names();
    if names.len() > MOST_PATHS {
        return Err(section.refuse("", "must name at most 32 paths"));
    }
    let mut paths = Vec::new();
    for name in names {
        if !name.starts_with('/') {
            return Err(section.refuse(&name, "a path must start with '/'"));
        }
        let api = section.text(&name)?;
        let api = api.and_then(|api| Api::ALL.into_iter().find(|known| known.as_str() == api));
        let Some(api) = api else {
            let known = Api::ALL.map(Api::as_str).join(", ");
            return Err(section.refuse(&name, &format!("must be one of {known}")));
        };
        paths.push((name, api));
    }
    section.finish()?;
    Ok(paths)
}
