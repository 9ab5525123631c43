//! What can the engine reuse of one prompt for another? Counted as kvroute counts: only what came from the requests.

use super::engine::{Kind, Owner, Rendered, Stretch};
use serde_json::{json, Value};

/// What stands in a section's text for an image, and what an image weighs.
const IMAGE_MARK: u64 = 9;
const IMAGE_BYTES: u64 = 4_096;

/// The block size by default.
const BLOCK: u64 = 256;

/// What one part (tools, instructions, the rest) has in common with the other prompt's.
#[derive(Debug, Default)]
struct Part {
    /// Bytes of whole messages and tools.
    whole: u64,
    /// Bytes of text of the one behind them, from its beginning.
    begun: u64,
    /// Where in this text images stand.
    images: Vec<u64>,
}

/// What two rendered prompts have in common, in the order in which their template renders.
#[derive(Debug)]
pub struct Common {
    /// Bytes of the rendered prefix.
    pub rendered: usize,
    parts: Vec<Part>,
}

impl Common {
    /// Compares two prompts of one template. `weight` is what a whole message or tool of the first counts as.
    pub fn of(a: &Rendered, b: &Rendered, weight: impl Fn(Owner) -> u64) -> Self {
        let mut common = Self { rendered: 0, parts: Vec::new() };
        if a.cache != b.cache {
            return common;
        }
        common.rendered = a.text.bytes().zip(b.text.bytes()).take_while(|(a, b)| a == b).count();
        let mut last = None;
        for (one, other) in sections(a).into_iter().zip(sections(b)) {
            let (owner, place) = (one[0].owner, place(a, one[0].owner));
            if owner != other[0].owner || role(a, owner) != role(b, owner) {
                break;
            }
            if last.replace(place) != Some(place) {
                common.parts.push(Part::default());
            }
            let part = common.parts.last_mut().expect("pushed");
            if one != other || one.iter().any(|stretch| stretch.range.end > common.rendered) {
                part.begin(a, common.rendered, one.iter().zip(other));
                break;
            }
            let weight = weight(owner);
            if one[0].kind == Kind::Tool {
                assert_eq!(counted(&a.text.as_bytes()[one[0].range.clone()]), weight, "{}", a.text);
            }
            part.whole += weight;
        }
        common
    }

    /// Bytes that hashes may say are shared.
    pub fn most(&self) -> u64 {
        self.parts.iter().map(|part| part.whole + part.begun + part.images.len() as u64 * IMAGE_BYTES).sum()
    }

    /// Bytes that they must say are shared: down to the last position for certain, on the ladder of the last part
    /// that is long enough to have one.
    pub fn least(&self) -> u64 {
        let (mut before, mut least) = (0, 0);
        for part in &self.parts {
            // The deepest end of a block or section, and how far above it the last position stands at most.
            let candidate = part.whole.max(part.deepest_block());
            if candidate >= BLOCK {
                least = before + BLOCK.max((candidate - BLOCK).min(candidate * 4 / 5));
            }
            before += part.whole;
        }
        least
    }
}

impl Part {
    /// Takes what a section has in common with its counterpart that differs from it somewhere.
    fn begin<'a>(
        &mut self,
        rendered: &Rendered,
        common: usize,
        stretches: impl Iterator<Item = (&'a Stretch, &'a Stretch)>,
    ) {
        for (one, other) in stretches {
            let start = one.range.start;
            if one.kind != other.kind || start != other.range.start || start > common {
                return;
            }
            let end = one.range.end.min(other.range.end).min(common);
            let is_whole = end == one.range.end && end == other.range.end;
            match one.kind {
                Kind::Tool => self.begun += counted(&rendered.text.as_bytes()[start..end]),
                Kind::Text => self.begun += (end - start) as u64,
                Kind::Image if is_whole => {
                    self.begun += IMAGE_MARK;
                    self.images.push(self.begun);
                }
                // Counts where its message ends, and is shared wholly or not at all.
                Kind::Image | Kind::Reasoning | Kind::Call => {}
            }
            if !is_whole {
                return;
            }
        }
    }

    /// Bytes up to the end of the last block inside a section of which a position can be made: they are a sixteenth
    /// apart.
    fn deepest_block(&self) -> u64 {
        let blocks = self.begun / BLOCK;
        let bytes = (blocks - blocks / 16) * BLOCK;
        let images = self.images.iter().filter(|&&end| end < bytes).count() as u64;
        if blocks == 0 {
            0
        } else {
            self.whole + bytes + images * IMAGE_BYTES
        }
    }
}

/// What each message and tool of a body counts as by itself.
pub fn weights(body: &str, bytes: impl Fn(&Value) -> u64) -> impl Fn(Owner) -> u64 {
    let body: Value = serde_json::from_str(body).expect("JSON");
    let each = |key: &str| {
        let list = body[key].as_array().into_iter().flatten();
        list.map(|it| bytes(&json!({ key: [it] }))).collect::<Vec<_>>()
    };
    let (tools, messages) = (each("tools"), each("messages"));
    move |owner| match owner {
        Owner::Tool(n) => tools[n],
        Owner::Message(n) => messages[n],
    }
}

/// The stretches of each tool and message.
fn sections(rendered: &Rendered) -> Vec<&[Stretch]> {
    rendered.stretches.chunk_by(|a, b| a.owner == b.owner).collect()
}

fn role(rendered: &Rendered, owner: Owner) -> &str {
    match owner {
        Owner::Tool(_) => "",
        Owner::Message(n) => &rendered.roles[n],
    }
}

/// The part that a section is in.
fn place(rendered: &Rendered, owner: Owner) -> &'static str {
    match owner {
        Owner::Tool(_) => "tools",
        Owner::Message(0) if rendered.roles[0] == "system" => "system",
        Owner::Message(_) => "text",
    }
}

/// What the beginning of a tool's JSON counts as: keys, strings and numbers, and marks where they and containers
/// begin and end.
fn counted(json: &[u8]) -> u64 {
    let (mut count, mut containers) = (0, Vec::new());
    let (mut in_text, mut in_scalar, mut escaped, mut wants_key) = (false, false, false, false);
    for &byte in json {
        if in_text {
            count += u64::from(escaped || byte != b'\\');
            (in_text, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            continue;
        }
        if in_scalar && matches!(byte, b',' | b'}' | b']') {
            in_scalar = false;
            count += 1;
        }
        match byte {
            b'{' | b'[' => {
                containers.push(byte);
                wants_key = byte == b'{';
                count += 2;
            }
            b'}' | b']' => {
                containers.pop();
                count += 1;
            }
            b'"' => {
                in_text = true;
                count += u64::from(std::mem::take(&mut wants_key));
            }
            b',' => wants_key = containers.last() == Some(&b'{'),
            b':' | b' ' => {}
            _ => {
                in_scalar = true;
                count += 1;
            }
        }
    }
    count
}
