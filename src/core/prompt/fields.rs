//! Which strings of the body are prompt? Follows the scanner through the document.
//!
//! The text handed to the blocks is framed by bytes that UTF-8 never contains, so that no prompt text
//! can look like framing: a message is `header, role, body, text, fields..`. Where engines render alike,
//! the framed text is alike: content as a string, or as parts of type text; `null`, `""` and absent.

use super::json::{Container, Sink};
use super::role::Role;
use super::text::Text;
use super::{Api, Position, Seeds};
use crate::core::blocks::Blocks;
use crate::core::config;
use xxhash_rust::xxh3::xxh3_64;

/// Framing bytes. 0xF8 to 0xFF occur in no UTF-8 text.
mod frame {
    /// A message begins; its role follows.
    pub const MESSAGE: u8 = 0xFF;
    /// The role ends, the content begins.
    pub const CONTENT: u8 = 0xFE;
    /// A role that came behind the content.
    pub const LATE_ROLE: u8 = 0xFD;
    /// A key begins.
    pub const KEY: u8 = 0xFC;
    /// A key, string or number ends; also stands between two prompts of one request.
    pub const END: u8 = 0xFB;
    /// An object or array begins.
    pub const OPEN: u8 = 0xFA;
    /// An object or array ends.
    pub const CLOSE: u8 = 0xF9;
}

/// Block size of the digests (model, salt, tools): only their identity matters, not where they differ.
const DIGEST_BLOCK: usize = 256;

/// What a value of the document is, from where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The whole request.
    Root,
    Messages,
    Message,
    Role,
    /// Text of the prompt, or a list of parts.
    Content,
    Parts,
    Part,
    /// `prompt`, or an element of it.
    Prompt,
    /// A list of prompts, or of token ids.
    Prompts,
    /// A field of a message or part: hashed as it is written, whitespace aside.
    Field,
    Model,
    Salt,
    /// Hashed into the seed.
    Tools,
    Stream,
    /// Not part of the prompt.
    Ignored,
}

/// The shape of the prompt; part of the seed, since the same bytes mean different tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Shape {
    #[default]
    Unknown,
    Chat,
    Text,
    TokenIds,
}

/// Receives the scanner's tokens and turns them into blocks and seeds.
#[derive(Debug)]
pub(super) struct Fields {
    api: Api,
    /// The open containers, outermost first. The scanner bounds its length.
    places: Vec<Place>,
    /// What the next value is: set by a key, or by the array it stands in.
    next: Place,
    text: Text,
    model: Option<Blocks>,
    salt: Option<Blocks>,
    tools: Option<Blocks>,
    shape: Shape,
    early: Option<u64>,
    stream: bool,
    role: Role,
    header_sent: bool,
    /// A key of a field, held until its value shows that it is not null.
    key: Vec<u8>,
    /// Whether the message has text already: parts are joined by a line end.
    joined: bool,
    /// Whether a prompt of a list has ended: the next begins behind a mark.
    separate: bool,
}

impl Fields {
    pub(super) fn new(api: Api, settings: &config::Prompt) -> Self {
        Self {
            api,
            places: Vec::new(),
            next: Place::Root,
            text: Text::new(settings),
            model: None,
            salt: None,
            tools: None,
            shape: Shape::Unknown,
            early: None,
            stream: false,
            role: Role::default(),
            header_sent: false,
            key: Vec::new(),
            joined: false,
            separate: false,
        }
    }

    pub(super) fn positions(&self) -> &[Position] {
        self.text.positions()
    }

    pub(super) fn text_bytes(&self) -> u64 {
        self.text.bytes()
    }

    pub(super) fn tools_bytes(&self) -> u64 {
        self.tools.as_ref().map_or(0, Blocks::bytes)
    }

    pub(super) fn wants_stream(&self) -> bool {
        self.stream
    }

    pub(super) fn is_token_ids(&self) -> bool {
        self.shape == Shape::TokenIds
    }

    pub(super) fn model(&self) -> u64 {
        self.model.as_ref().and_then(Blocks::tail).map_or(0, |digest| digest.0)
    }

    pub(super) fn seeds(&self) -> Seeds {
        let full = self.seed();
        Seeds { early: self.early.unwrap_or(full), full }
    }

    pub(super) fn finish(&mut self) {
        self.text.finish();
    }

    fn seed(&self) -> u64 {
        let digest = |part: &Option<Blocks>| part.as_ref().and_then(Blocks::tail).map_or(0, |hash| hash.0);
        let mut bytes = [0; 32];
        let parts = [self.shape as u64, digest(&self.model), digest(&self.salt), digest(&self.tools)];
        for (to, part) in bytes.chunks_exact_mut(8).zip(parts) {
            to.copy_from_slice(&part.to_le_bytes());
        }
        xxh3_64(&bytes)
    }

    /// The prompt begins: what has been read by now is the early seed.
    fn begin_prompt(&mut self, shape: Shape) {
        if self.shape == Shape::Unknown {
            self.shape = shape;
        }
        if self.early.is_none() {
            self.early = Some(self.seed());
        }
    }

    /// The root's keys that matter, by API.
    fn root_place(&self, key: &[u8]) -> Place {
        match (self.api, key) {
            (_, b"model") => Place::Model,
            (_, b"cache_salt") => Place::Salt,
            (_, b"stream") => Place::Stream,
            (Api::Chat, b"messages") => Place::Messages,
            (Api::Chat, b"tools" | b"functions") => Place::Tools,
            (Api::Completions, b"prompt") => Place::Prompt,
            _ => Place::Ignored,
        }
    }

    fn message_place(key: &[u8]) -> Place {
        match key {
            b"role" => Place::Role,
            b"content" => Place::Content,
            b"cache_control" => Place::Ignored,
            _ => Place::Field,
        }
    }

    fn part_place(key: &[u8]) -> Place {
        match key {
            b"text" => Place::Content,
            // The part's other keys say what it is; cache_control is advice to another engine.
            b"type" | b"cache_control" => Place::Ignored,
            _ => Place::Field,
        }
    }

    /// What an opened container is, and what stands in it.
    fn enter(&self, container: Container) -> Place {
        match (self.next, container) {
            (Place::Root, Container::Object) => Place::Root,
            (Place::Messages, Container::Array) => Place::Messages,
            (Place::Message, Container::Object) => Place::Message,
            (Place::Content, Container::Array) => Place::Parts,
            (Place::Part, Container::Object) => Place::Part,
            (Place::Prompt, Container::Array) => Place::Prompts,
            (Place::Field | Place::Tools, _) => self.next,
            _ => Place::Ignored,
        }
    }

    /// What the next value in the innermost container is, when no key has said so.
    fn element_place(&self) -> Place {
        match self.places.last() {
            None => Place::Root,
            Some(Place::Messages) => Place::Message,
            Some(Place::Parts) => Place::Part,
            Some(Place::Prompts) => Place::Prompt,
            Some(&inner @ (Place::Field | Place::Tools)) => inner,
            Some(_) => Place::Ignored,
        }
    }

    fn begin_message(&mut self) {
        self.begin_prompt(Shape::Chat);
        self.role.clear();
        self.header_sent = false;
        self.joined = false;
    }

    /// Writes the message's header before the first of its content. A role that is not known yet comes
    /// later: the order of keys in a message is the client's.
    fn message_header(&mut self) {
        if !std::mem::replace(&mut self.header_sent, true) {
            self.push_role(frame::MESSAGE);
        }
    }

    fn end_of_role(&mut self) {
        if self.header_sent {
            self.push_role(frame::LATE_ROLE);
        }
    }

    fn push_role(&mut self, mark: u8) {
        self.text.push(self.role.framed(mark, frame::CONTENT));
    }

    /// Writes a piece of a field or of the tools.
    fn write(&mut self, place: Place, bytes: &[u8]) {
        match place {
            Place::Tools => self.tools.get_or_insert_with(|| Blocks::new(DIGEST_BLOCK)).push(bytes, |_| {}),
            _ => self.text.push(bytes),
        }
    }

    /// Writes the key of a field once its value has turned out to be something.
    fn write_key(&mut self, place: Place) {
        if place == Place::Field {
            self.message_header();
        }
        if !self.key.is_empty() {
            let key = std::mem::take(&mut self.key);
            self.write(place, &[frame::KEY]);
            self.write(place, &key);
            self.write(place, &[frame::END]);
        }
    }

    fn begin_completion(&mut self, shape: Shape) {
        self.begin_prompt(shape);
        if std::mem::take(&mut self.separate) {
            self.text.push(&[frame::END; 4]);
        }
    }

    fn token_id(&mut self, raw: &[u8]) {
        self.begin_completion(Shape::TokenIds);
        match whole_number(raw) {
            Some(id) => self.text.push(&id.to_le_bytes()),
            // Not an id; the engine will say so.
            None => self.text.push(raw),
        }
    }
}

impl Sink for Fields {
    fn open(&mut self, container: Container) {
        let place = self.enter(container);
        match place {
            Place::Message => self.begin_message(),
            Place::Field | Place::Tools => {
                self.write_key(place);
                self.write(place, &[frame::OPEN, container as u8]);
            }
            _ => {}
        }
        self.key.clear();
        self.places.push(place);
        self.next = self.element_place();
    }

    fn close(&mut self) {
        match self.places.pop() {
            Some(Place::Message) => self.message_header(),
            // A list inside `prompt` is one prompt of token ids.
            Some(Place::Prompts) => self.separate = true,
            Some(place @ (Place::Field | Place::Tools)) => self.write(place, &[frame::CLOSE]),
            _ => {}
        }
        self.key.clear();
        self.next = self.element_place();
    }

    fn key(&mut self, key: &[u8]) {
        self.next = match self.places.last() {
            Some(Place::Root) => self.root_place(key),
            Some(Place::Message) => Self::message_place(key),
            Some(Place::Part) => Self::part_place(key),
            _ => self.element_place(),
        };
        self.key.clear();
        if matches!(self.next, Place::Field) || (self.next == Place::Tools && self.places.len() > 1) {
            self.key.extend_from_slice(key);
        }
    }

    fn text_begin(&mut self) {
        match self.next {
            Place::Role => self.role.clear(),
            Place::Content | Place::Part => {
                self.message_header();
                if std::mem::replace(&mut self.joined, true) {
                    self.text.push(b"\n");
                }
            }
            Place::Prompt => self.begin_completion(Shape::Text),
            Place::Field | Place::Tools => self.write_key(self.next),
            _ => {}
        }
    }

    fn text(&mut self, piece: &[u8]) {
        match self.next {
            Place::Role => self.role.push(piece),
            Place::Content | Place::Part | Place::Prompt => self.text.push(piece),
            Place::Field | Place::Tools => self.write(self.next, piece),
            Place::Model => self.model.get_or_insert_with(|| Blocks::new(DIGEST_BLOCK)).push(piece, |_| {}),
            Place::Salt => self.salt.get_or_insert_with(|| Blocks::new(DIGEST_BLOCK)).push(piece, |_| {}),
            _ => {}
        }
    }

    fn text_end(&mut self) {
        match self.next {
            Place::Role => self.end_of_role(),
            Place::Field | Place::Tools => self.write(self.next, &[frame::END]),
            Place::Prompt => self.separate = true,
            _ => {}
        }
        self.next = self.element_place();
    }

    fn scalar(&mut self, raw: &[u8]) {
        match self.next {
            Place::Prompt if raw != b"null" => self.token_id(raw),
            Place::Stream => self.stream = raw == b"true",
            Place::Field | Place::Tools if raw != b"null" => {
                self.write_key(self.next);
                self.write(self.next, raw);
                self.write(self.next, &[frame::END]);
            }
            _ => {}
        }
        self.next = self.element_place();
    }
}

/// The value of decimal digits, if they fit.
fn whole_number(digits: &[u8]) -> Option<u32> {
    let add = |value: u32, digit: &u8| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u32::from(digit - b'0')),
        _ => None,
    };
    digits.iter().try_fold(0, add)
}
