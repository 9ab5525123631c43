//! Which strings of the body are prompt, and who gets them? Follows the scanner through the document.
//!
//! A token comes; where it stands says what it is (its [`Place`]), and that says whose it is: text and tools go to
//! [`Sections`], what is no text becomes a digest first, and what sets whole prompts apart goes to [`Identity`].
//!
//! A key that stands twice counts as it does in the engine's parser: the last one wins.

use super::identity::{Identity, Shape};
use super::json::{Container, Sink};
use super::keys::{self, MessageKey, PartKey, Use};
use super::parts::Which;
use super::sections::Sections;
use super::value::{Digest, Value};
use super::{Api, View};
use crate::core::blocks::{digest, BlockHash};
use crate::core::config;

/// Open containers where a tool's own keys stand: the request, the list, the tool.
const TOOL_DEPTH: usize = 3;

/// Where those stand that the API declares: in the tool, and in its `function`. What is deeper is the client's own
/// schema, in which `null` is a value.
const DECLARED_DEPTH: usize = TOOL_DEPTH + 1;

/// What a value of the document is, from where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The whole request.
    Root,
    /// A list of messages, or of conversations.
    Messages,
    Message,
    Role,
    /// Content of a message: text, or a list of parts.
    Content,
    Parts,
    /// A part of content: a text, or an object.
    Part,
    /// Content of such an object: text, or, in the result of a tool, a list of parts.
    PartContent,
    /// The instructions: text, or a list of parts.
    System,
    SystemParts,
    /// A text, or a list of messages.
    Input,
    /// `prompt`, or an element of it.
    Prompt,
    /// A list of prompts, or of token ids.
    Prompts,
    /// The list of tools.
    Tools,
    /// A tool, and what stands in it.
    Tool,
    /// Becomes a digest.
    Value(Target),
    /// The template's options, with their key's place in the table.
    TemplateOptions(usize),
    Parameters,
    Stream,
    /// Not part of the prompt.
    Ignored,
}

/// Where a digest goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Model,
    /// Of the request's key at this place in the table, as is the next.
    Seed(usize),
    Ending(usize),
    Session,
    PreviousResponse,
    /// Of a message.
    Before,
    Behind,
    /// Of a part of its content.
    Field,
    Media,
    Uuid,
}

/// Receives the scanner's tokens, and hands them on.
#[derive(Debug)]
pub(super) struct Fields {
    api: Api,
    /// The open containers, outermost first. The scanner bounds its length.
    places: Vec<Place>,
    /// What the next value is: set by a key, or by the array it stands in.
    next: Place,
    /// The request's keys that have been met, by their place in the table.
    met: u64,
    sections: Sections,
    identity: Identity,
    /// The value that becomes a digest, and the digest of its key.
    value: Value,
    value_key: u64,
    wants_stream: bool,
}

/// What is asked of a prompt.
impl Fields {
    pub(super) fn new(api: Api, settings: &config::Prompt) -> Self {
        let is_text = matches!(api, Api::Completions | Api::Generate);
        Self {
            api,
            places: Vec::new(),
            next: Place::Root,
            met: 0,
            sections: Sections::new(api, settings),
            identity: Identity::new(if is_text { Shape::Text } else { Shape::Chat }),
            value: Value::new(),
            value_key: 0,
            wants_stream: false,
        }
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn bytes(&self) -> u64 {
        match self.sections.bytes() {
            0 => 0,
            read => read + self.identity.ending().bytes,
        }
    }

    pub(super) fn view(&self, whole: bool) -> View<'_> {
        self.sections.view(self.identity.seed(), whole)
    }

    pub(super) fn elsewhere(&self) -> Vec<BlockHash> {
        self.sections.elsewhere(self.identity.seed())
    }

    pub(super) fn wants_stream(&self) -> bool {
        self.wants_stream
    }

    /// The body has ended, or will be read no further.
    pub(super) fn finish(&mut self) {
        self.sections.finish(self.identity.ending().digest);
    }
}

impl Sink for Fields {
    fn open(&mut self, container: Container) {
        let place = self.enter(container);
        match place {
            Place::Message => {
                self.begin_text(Shape::Chat);
                self.sections.begin_message();
            }
            Place::Parts if self.next == Place::Content => self.sections.begin_content(),
            Place::SystemParts => self.sections.begin_instructions(),
            Place::Part => self.sections.begin_content_part(),
            Place::Tool => self.sections.open_tool(container as u8),
            Place::Value(_) => self.value.open(container),
            _ => {}
        }
        self.places.push(place);
        self.next = self.element_place();
    }

    fn key(&mut self, key: &[u8]) {
        self.next = match self.places.last() {
            Some(Place::Root) => self.request_place(key),
            Some(Place::Message) => self.message_place(key),
            Some(Place::Part) => self.part_place(key),
            Some(&Place::TemplateOptions(place)) => self.option_place(key, place),
            Some(Place::Parameters) if key == b"adapter_id" => Place::Value(Target::Model),
            // Advice to another engine; not so a parameter of that name.
            Some(Place::Tool) if key == b"cache_control" && self.places.len() == TOOL_DEPTH => Place::Ignored,
            Some(Place::Tool) => {
                self.sections.tool_key(key);
                Place::Tool
            }
            Some(Place::Value(_)) => {
                self.value.key(key);
                self.element_place()
            }
            _ => Place::Ignored,
        };
    }

    #[inline]
    fn text_begin(&mut self) {
        match self.next {
            Place::Role => return self.sections.begin_role(),
            Place::Tool => return self.sections.begin_tool_value(),
            Place::Content => self.sections.begin_content(),
            Place::Part | Place::PartContent => {}
            Place::System => self.sections.begin_instructions(),
            Place::Input => {
                self.begin_text(Shape::Chat);
                self.sections.begin_input();
            }
            Place::Prompt => {
                self.begin_text(Shape::Text);
                self.sections.begin_prompt();
            }
            _ => return,
        }
        self.sections.begin_piece();
    }

    #[inline]
    fn text(&mut self, piece: &[u8]) {
        match self.next {
            Place::Role => self.sections.role(piece),
            Place::Content
            | Place::Part
            | Place::PartContent
            | Place::System
            | Place::Input
            | Place::Prompt => self.sections.piece(piece),
            Place::Tool => self.sections.tool_text(piece),
            Place::Value(_) => self.value.text(piece),
            _ => {}
        }
    }

    #[inline]
    fn text_end(&mut self) {
        match self.next {
            Place::Role => self.sections.end_role(),
            Place::Content | Place::Part | Place::PartContent => self.sections.end_piece(),
            Place::System | Place::Input => {
                self.sections.end_piece();
                self.sections.end_message();
            }
            Place::Prompt => {
                self.sections.end_piece();
                self.sections.end_prompt();
            }
            Place::Tool => {
                self.sections.end_tool_value();
                self.end_tool();
            }
            Place::Value(target) => {
                let digest = self.value.text_end();
                self.digested(target, digest);
            }
            _ => {}
        }
        self.next = self.element_place();
    }

    fn scalar(&mut self, raw: &[u8]) {
        let is_null = raw == b"null";
        match self.next {
            Place::Content => self.sections.begin_content(),
            Place::Prompt if !is_null => {
                self.begin_text(Shape::TokenIds);
                self.sections.begin_prompt();
                self.sections.token_id(raw);
            }
            Place::Tool if !is_null || self.places.len() > DECLARED_DEPTH => {
                self.sections.begin_tool_value();
                self.sections.tool_text(raw);
                self.sections.end_tool_value();
                self.end_tool();
            }
            Place::Value(target) => {
                let digest = self.value.scalar(raw);
                self.digested(target, digest);
            }
            Place::Stream => self.wants_stream = raw == b"true",
            _ => {}
        }
        self.next = self.element_place();
    }

    fn close(&mut self) {
        match self.places.pop() {
            Some(Place::Message | Place::SystemParts) => self.sections.end_message(),
            Some(Place::Part) => self.sections.end_content_part(),
            Some(Place::Prompts) => self.sections.end_prompts(),
            Some(Place::Tool) => {
                self.sections.close_tool();
                self.end_tool();
            }
            Some(Place::Value(target)) => {
                let digest = self.value.close();
                self.digested(target, digest);
            }
            _ => {}
        }
        self.next = self.element_place();
    }
}

/// What a value is, from where it stands.
impl Fields {
    /// A container has been opened.
    #[inline]
    fn enter(&self, container: Container) -> Place {
        match (self.next, container) {
            (Place::Root | Place::Message | Place::Part, Container::Object) => self.next,
            (Place::TemplateOptions(_) | Place::Parameters, Container::Object) => self.next,
            (Place::Messages | Place::Message | Place::Input, Container::Array) => Place::Messages,
            (Place::Content | Place::PartContent, Container::Array) => Place::Parts,
            (Place::System, Container::Array) => Place::SystemParts,
            (Place::Prompt, Container::Array) => Place::Prompts,
            (Place::Tools, Container::Array) => Place::Tools,
            (Place::Tool | Place::Value(_), _) => self.next,
            _ => Place::Ignored,
        }
    }

    /// The next value in the innermost container, as long as no key has said more.
    #[inline]
    fn element_place(&self) -> Place {
        match self.places.last() {
            None => Place::Root,
            Some(Place::Messages) => Place::Message,
            Some(Place::Parts | Place::SystemParts) => Place::Part,
            Some(Place::Prompts) => Place::Prompt,
            Some(Place::Tools | Place::Tool) => Place::Tool,
            Some(&Place::Value(target)) => Place::Value(target),
            Some(_) => Place::Ignored,
        }
    }

    /// The value of a key of the request.
    fn request_place(&mut self, key: &[u8]) -> Place {
        let Some((place, used)) = keys::request(self.api, key) else { return Place::Ignored };
        if self.met >> place & 1 == 1 {
            self.take_back(place, used);
        }
        self.met |= 1 << place;
        match used {
            Use::Model => self.value_place(key, Target::Model),
            Use::Seed => self.value_place(key, Target::Seed(place)),
            Use::Ending => self.value_place(key, Target::Ending(place)),
            Use::Session => self.value_place(key, Target::Session),
            Use::PreviousResponse => self.value_place(key, Target::PreviousResponse),
            Use::TemplateOptions => Place::TemplateOptions(place),
            Use::Parameters => Place::Parameters,
            Use::Tools => Place::Tools,
            Use::System => Place::System,
            Use::Messages => Place::Messages,
            Use::Input => Place::Input,
            Use::Prompt if self.api == Api::Generate && self.identity.is_token_ids() => Place::Ignored,
            Use::Prompt => Place::Prompt,
            Use::TokenIds => {
                // They win over text.
                self.sections.begin_anew();
                Place::Prompt
            }
            Use::Stream => Place::Stream,
        }
    }

    fn message_place(&mut self, key: &[u8]) -> Place {
        match keys::message(self.api, key) {
            MessageKey::Role => Place::Role,
            MessageKey::Content => Place::Content,
            MessageKey::Before => self.value_place(key, Target::Before),
            MessageKey::Behind => self.value_place(key, Target::Behind),
            MessageKey::Ignored => Place::Ignored,
        }
    }

    fn part_place(&mut self, key: &[u8]) -> Place {
        match keys::part(key) {
            PartKey::Content => Place::PartContent,
            PartKey::Media => self.value_place(key, Target::Media),
            PartKey::Uuid => self.value_place(key, Target::Uuid),
            PartKey::Field => self.value_place(key, Target::Field),
            PartKey::Ignored => Place::Ignored,
        }
    }

    fn option_place(&mut self, key: &[u8], place: usize) -> Place {
        let is_ending = keys::is_ending_option(key);
        self.value_place(key, if is_ending { Target::Ending(place) } else { Target::Seed(place) })
    }

    fn value_place(&mut self, key: &[u8], target: Target) -> Place {
        self.value_key = digest(key);
        Place::Value(target)
    }
}

/// Who gets it.
impl Fields {
    /// A key of the request comes again: what it said before does not count.
    fn take_back(&mut self, place: usize, used: Use) {
        let which = match used {
            Use::Tools => Which::Tools,
            Use::System => Which::System,
            Use::Messages | Use::Input | Use::Prompt | Use::TokenIds => Which::Text,
            _ => return self.identity.take_back(place),
        };
        self.sections.take_back(which);
    }

    /// Text begins: with the first, the prompt's shape is known.
    #[inline]
    fn begin_text(&mut self, shape: Shape) {
        if !self.sections.has_text_begun() {
            self.identity.set_shape(shape);
            self.sections.begin_text(self.identity.seed());
        }
    }

    /// A value of a tool has ended, which is the whole tool where it stands in the list.
    fn end_tool(&mut self) {
        if self.places.last() == Some(&Place::Tools) {
            self.sections.end_tool();
        }
    }

    /// A value has ended; there is a digest if it is a whole one.
    fn digested(&mut self, target: Target, value: Option<Digest>) {
        let Some(value) = value else { return };
        let field = value.under(self.value_key);
        match target {
            Target::Model => self.identity.set_model(value),
            Target::Seed(place) => self.identity.add_seed(place, field),
            Target::Ending(place) => self.identity.add_ending(place, field),
            Target::Session => self.identity.set_session(value),
            Target::PreviousResponse => self.identity.set_previous_response(value),
            Target::Before => self.sections.message().add_before(field),
            Target::Behind => self.sections.message().add_behind(field),
            Target::Field | Target::Media | Target::Uuid => {
                let Some(part) = self.sections.content_part() else { return };
                match target {
                    Target::Media => part.add_media(field),
                    Target::Uuid => part.set_uuid(field),
                    _ => part.add_field(field),
                }
            }
        }
    }
}
