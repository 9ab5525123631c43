//! Which strings of the body are prompt, and where do they stand in it? Follows the scanner through the document.
//!
//! Text goes into the open [`Section`] as it comes. Everything else that tells prompts apart (roles, tool calls,
//! images, options) becomes a digest and enters where its section ends, so that neither the order of keys nor the way
//! a value is written matters. Where engines render alike, the hashes are alike: content as a string or as parts of
//! type text; `null`, `""`, `[]` and absent; instructions as a key of their own or as the first message.
//!
//! A key that stands twice counts as it does in the engine's parser: the last one wins.

use super::chain::{Chain, Section};
use super::json::{Container, Sink};
use super::keys::{self, MessageKey, PartKey, Use};
use super::leave_out::Gathered;
use super::value::{Digest, Value};
use super::{Api, Part, View};
use crate::core::blocks::{digest, BlockHash};
use crate::core::bytes::{copy, Short};
use crate::core::config::{self, ToolsPlace};

/// Framing bytes of tools. 0xF8 to 0xFF occur in no UTF-8 text, so that no text can look like framing.
mod frame {
    /// A key begins.
    pub const KEY: u8 = 0xFC;
    /// A key, string or number ends.
    pub const END: u8 = 0xFB;
    /// An object or array begins.
    pub const OPEN: u8 = 0xFA;
    /// An object or array ends.
    pub const CLOSE: u8 = 0xF9;
}

/// What a message's framing in the template counts as: a role and two marks, two or three tokens.
const FRAME_BYTES: u64 = 8;

/// What an image, sound or film counts as, whatever its file's size: some 1,000 tokens, as vision models make of a
/// picture of a megapixel.
const MEDIA_BYTES: u64 = 4 << 10;

/// The longest role that is told apart; real ones are under 16 bytes.
const ROLE: usize = 30;

/// The roles that a message may turn out to have.
const ROLES: [&str; 5] = ["system", "user", "developer", "tool", "assistant"];

/// Open containers where a tool's own keys stand: the request, the list, the tool.
const TOOL_DEPTH: usize = 3;

/// Where those stand that the API declares: in the tool, and in its `function`. What is deeper is the client's own
/// schema, in which `null` is a value.
const DECLARED_DEPTH: usize = TOOL_DEPTH + 1;

/// What is no token id stands behind this.
const NO_ID: u32 = u32::MAX;

/// What a value of the document is, from where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The whole request.
    Root,
    /// A list of messages, or of conversations.
    Messages,
    Message,
    Role,
    /// Text of a message, or a list of parts.
    Content,
    Parts,
    Part,
    /// The instructions: text, or a list of parts.
    System,
    SystemParts,
    /// A text, or a list of messages.
    Input,
    /// `prompt`, or an element of it.
    Prompt,
    /// A list of prompts, or of token ids.
    Prompts,
    /// The list of tools, and what stands in it: hashed as it is written, whitespace aside.
    Tools,
    Tool,
    /// Becomes a digest.
    Value(Target),
    TemplateOptions,
    Parameters,
    Stream,
    /// Not part of the prompt.
    Ignored,
}

/// Where a digest goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Model,
    /// Of the request's key at this place in the table.
    Seed(usize),
    Option,
    Ending,
    Session,
    PreviousResponse,
    Before,
    Behind,
    Field,
    Media,
    Uuid,
}

/// The shape of the prompt; part of the seed, since the same bytes mean different tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Chat,
    Text,
    TokenIds,
}

/// Where the open section stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Open {
    /// Not known yet, or not to be told yet.
    #[default]
    Withheld,
    Tools,
    System,
    Text,
}

/// The message of the open section.
#[derive(Debug, Default)]
struct Message {
    is_open: bool,
    /// The role, or the one that is assumed until it comes.
    role: Short<ROLE>,
    has_role: bool,
    /// Digests of what stands before and behind the content.
    before: u64,
    behind: u64,
    /// Bytes of both.
    bytes: u64,
    has_content: bool,
    /// Whether there is text already: parts are joined.
    joined: bool,
    /// Whether a text has begun of which nothing has come yet: if nothing does, it is not joined.
    begins: bool,
}

/// A part of a message's content.
#[derive(Debug, Default)]
struct Piece {
    fields: u64,
    media: u64,
    uuid: u64,
    bytes: u64,
}

/// What was known when the text began.
#[derive(Debug, Clone, Copy)]
struct Early {
    base: u64,
    tools: bool,
    system: bool,
}

/// Receives the scanner's tokens and turns them into chains and seeds.
#[derive(Debug)]
pub(super) struct Fields {
    api: Api,
    tools_place: ToolsPlace,
    /// The open containers, outermost first. The scanner bounds its length.
    places: Vec<Place>,
    /// What the next value is: set by a key, or by the array it stands in.
    next: Place,
    tools: Chain,
    system: Chain,
    text: Chain,
    section: Section,
    open: Open,
    message: Message,
    pieces: Vec<Piece>,
    gathered: Gathered,
    value: Value,
    /// The digest of the key of the value that is being digested.
    value_key: u64,
    /// A key of a tool, held until its value shows that it is not null.
    tool_key: Vec<u8>,
    shape: Shape,
    model: u64,
    /// Digests of what seeds, by the key's place in the table, and the sum of those of the template's options.
    seeds: Vec<(usize, u64)>,
    options: u64,
    ending: u64,
    ending_bytes: u64,
    session: u64,
    previous_response: u64,
    stream: bool,
    early: Option<Early>,
    /// The request's keys that have been met, by their place in the table.
    met: u64,
    /// Counts what was taken back.
    generation: u64,
}

impl Fields {
    pub(super) fn new(api: Api, settings: &config::Prompt) -> Self {
        Self {
            api,
            tools_place: settings.tools,
            places: Vec::new(),
            next: Place::Root,
            tools: Chain::new(settings),
            system: Chain::new(settings),
            text: Chain::new(settings),
            section: Section::new(settings),
            open: Open::Withheld,
            message: Message::default(),
            pieces: Vec::new(),
            gathered: Gathered::new(&settings.leave_out),
            value: Value::new(),
            value_key: 0,
            tool_key: Vec::new(),
            shape: if matches!(api, Api::Completions | Api::Generate) { Shape::Text } else { Shape::Chat },
            model: 0,
            seeds: Vec::new(),
            options: 0,
            ending: 0,
            ending_bytes: 0,
            session: 0,
            previous_response: 0,
            stream: false,
            early: None,
            met: 0,
            generation: 0,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let ended = self.tools.bytes() + self.system.bytes() + self.text.bytes();
        let read = ended + self.section.bytes();
        read + if read > 0 { self.ending_bytes } else { 0 }
    }

    pub(super) fn wants_stream(&self) -> bool {
        self.stream
    }

    pub(super) fn is_token_ids(&self) -> bool {
        self.shape == Shape::TokenIds
    }

    pub(super) fn model(&self) -> u64 {
        self.model
    }

    /// Where the message that is being read would begin if it had another role than is assumed; nothing where its role
    /// is known.
    pub(super) fn elsewhere(&self) -> Vec<BlockHash> {
        if !self.message.is_open || self.message.has_role || !self.message.has_content {
            return Vec::new();
        }
        let seeds = self.view(false).parts.map(|part| part.seed);
        let [first, second, text] = seeds;
        let system = if self.tools_place == ToolsPlace::First { second } else { first };
        let assumed = self.message.role.bytes();
        let others = ROLES.iter().filter(|role| role.as_bytes() != assumed);
        let begins = |role: &&str| {
            let (chain, seed) = match self.place_of(role.as_bytes()) {
                Open::System => (&self.system, system),
                _ => (&self.text, text),
            };
            Some(chain.first_of(&self.section, head_of(role.as_bytes(), 0))?.under(seed))
        };
        others.filter_map(begins).collect()
    }

    pub(super) fn session(&self) -> Option<u64> {
        Some(self.session).filter(|&session| session != 0)
    }

    pub(super) fn previous_response(&self) -> Option<u64> {
        Some(self.previous_response).filter(|&response| response != 0)
    }

    /// The parts of the prompt in the order in which the engine renders them: with `whole` all of them, otherwise
    /// those that stood before the text in the body too.
    pub(super) fn view(&self, whole: bool) -> View<'_> {
        let live = Early { base: self.base(), tools: true, system: true };
        let known = self.early.filter(|_| !whole).unwrap_or(live);
        let (tools, system) = ((known.tools, &self.tools), (known.system, &self.system));
        let (first, second) = match self.tools_place {
            ToolsPlace::First => (tools, system),
            ToolsPlace::AfterSystem => (system, tools),
        };
        let (mut seed, mut before) = (known.base, 0);
        let parts = [first, second, (true, &self.text)].map(|(is_known, chain)| {
            let (positions, assumed) =
                if is_known { (chain.positions(), chain.assumed()) } else { (&[][..], &[][..]) };
            let part = Part { seed, before, positions, assumed };
            if is_known && !chain.is_empty() {
                seed = BlockHash(seed).under(chain.digest()).0;
                before += chain.bytes();
            }
            part
        });
        let text_seed = parts.last().map_or(0, |part| part.seed);
        View { id: BlockHash(text_seed).under(self.generation).0, parts }
    }

    /// The body has ended, or will be read no further.
    pub(super) fn finish(&mut self) {
        if self.message.is_open {
            self.end_message();
        } else if self.section.bytes() > 0 {
            self.end_text();
        }
        let last = if self.text.is_empty() { &mut self.system } else { &mut self.text };
        last.finish(self.ending);
    }

    /// What sets whole prompts apart.
    fn base(&self) -> u64 {
        let seed = self.seeds.iter().fold(self.options, |sum, (_, seed)| sum.wrapping_add(*seed));
        BlockHash(self.model).under(seed).under(self.shape as u64).0
    }

    /// The text begins: what has been read by now is known early.
    fn begin_text(&mut self, shape: Shape) {
        if self.early.is_none() {
            self.shape = shape;
            let system = !self.system.is_empty() || self.leads_with_system();
            self.early = Some(Early { base: self.base(), tools: !self.tools.is_empty(), system });
        }
    }

    /// Whether the instructions are the first message.
    fn leads_with_system(&self) -> bool {
        matches!(self.api, Api::Chat | Api::Invocations)
    }

    /// Takes back all text.
    fn clear_text(&mut self) {
        self.generation += 1;
        self.text.clear();
        self.section.clear();
        if self.leads_with_system() {
            self.system.clear();
        }
    }

    /// A key of the request. One that comes twice takes back what it said before.
    fn request_place(&mut self, key: &[u8]) -> Place {
        let Some((place, used)) = keys::request(self.api, key) else { return Place::Ignored };
        let again = self.met >> place & 1 == 1;
        self.met |= 1 << place;
        match used {
            Use::Tools if again => {
                self.generation += 1;
                self.tools.clear();
            }
            Use::System if again => {
                self.generation += 1;
                self.system.clear();
            }
            Use::Messages | Use::Input | Use::Prompt | Use::TokenIds if again => self.clear_text(),
            Use::TemplateOptions => self.options = 0,
            Use::Seed => self.seeds.retain(|(seed, _)| *seed != place),
            _ => {}
        }
        self.value_key = digest(key);
        match used {
            Use::Model => Place::Value(Target::Model),
            Use::Seed => Place::Value(Target::Seed(place)),
            Use::TemplateOptions => Place::TemplateOptions,
            Use::Parameters => Place::Parameters,
            Use::Tools => Place::Tools,
            Use::System => Place::System,
            Use::Messages => Place::Messages,
            Use::Input => Place::Input,
            Use::Prompt if self.api == Api::Generate && self.is_token_ids() => Place::Ignored,
            Use::TokenIds if self.early.is_some() => {
                self.early = None;
                self.clear_text();
                Place::Prompt
            }
            Use::Prompt | Use::TokenIds => Place::Prompt,
            Use::Ending => Place::Value(Target::Ending),
            Use::Session => Place::Value(Target::Session),
            Use::PreviousResponse => Place::Value(Target::PreviousResponse),
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
            PartKey::Content => Place::Content,
            PartKey::Media => self.value_place(key, Target::Media),
            PartKey::Uuid => self.value_place(key, Target::Uuid),
            PartKey::Field => self.value_place(key, Target::Field),
            PartKey::Ignored => Place::Ignored,
        }
    }

    fn option_place(&mut self, key: &[u8]) -> Place {
        let target = if keys::is_ending_option(key) { Target::Ending } else { Target::Option };
        self.value_place(key, target)
    }

    fn value_place(&mut self, key: &[u8], target: Target) -> Place {
        self.value_key = digest(key);
        Place::Value(target)
    }

    /// What an opened container is, and what stands in it.
    #[inline]
    fn enter(&self, container: Container) -> Place {
        match (self.next, container) {
            (Place::Root, Container::Object) => Place::Root,
            (Place::Messages | Place::Message | Place::Input, Container::Array) => Place::Messages,
            (Place::Message, Container::Object) => Place::Message,
            (Place::Content, Container::Array) => Place::Parts,
            (Place::System, Container::Array) => Place::SystemParts,
            (Place::Part, Container::Object) => Place::Part,
            (Place::Prompt, Container::Array) => Place::Prompts,
            (Place::Tools, Container::Array) => Place::Tools,
            (Place::TemplateOptions | Place::Parameters, Container::Object) => self.next,
            (Place::Tool | Place::Value(_), _) => self.next,
            _ => Place::Ignored,
        }
    }

    /// What the next value in the innermost container is, when no key has said so.
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

    #[inline]
    fn begin_message(&mut self) {
        self.section.clear();
        self.message = Message { is_open: true, ..Message::default() };
        self.open = Open::Withheld;
        self.begin_text(Shape::Chat);
    }

    /// Content comes before its role, as clients write that sort their keys. A long one must not wait: a role is
    /// assumed, and what was told under it is taken back if it is another.
    fn assume_role(&mut self) {
        let is_first = self.leads_with_system() && self.system.is_empty() && self.text.is_empty();
        self.message.role.push(if is_first { b"system" } else { b"user" });
        self.open = self.place_of_message();
    }

    /// A message that is no object of its own: instructions, or input as a text.
    fn begin_plain_message(&mut self, role: &[u8], open: Open) {
        self.section.clear();
        self.message = Message { is_open: true, has_content: true, ..Message::default() };
        self.message.role.push(role);
        self.message.has_role = true;
        self.open = open;
        if open == Open::Text {
            self.begin_text(Shape::Chat);
        }
    }

    /// The role is known: what has come of the content has its place. Not so an answer's: how it was thought out is
    /// rendered before it and may stand behind it in the body.
    #[inline]
    fn end_role(&mut self) {
        self.open = if self.is_answer() { Open::Withheld } else { self.place_of_message() };
        self.tell();
    }

    #[inline]
    fn is_answer(&self) -> bool {
        matches!(self.message.role.bytes(), b"assistant" | b"")
    }

    #[inline]
    fn place_of_message(&self) -> Open {
        self.place_of(self.message.role.bytes())
    }

    /// Only the first message can be the instructions: tools are rendered next to it, and before a second one.
    #[inline]
    fn place_of(&self, role: &[u8]) -> Open {
        let may_lead = self.text.is_empty() && self.system.is_empty() && self.leads_with_system();
        if may_lead && matches!(role, b"system" | b"developer") {
            Open::System
        } else {
            Open::Text
        }
    }

    /// What stands before the content.
    #[inline]
    fn head(&self) -> u64 {
        let before = match self.message.before {
            before if before != 0 && self.is_answer() => before,
            _ => 0,
        };
        head_of(self.message.role.bytes(), before)
    }

    #[inline]
    fn end_message(&mut self) {
        if !self.message.has_role {
            self.take_back_content();
            self.message.role.clear();
            self.open = Open::Withheld;
        }
        if self.open == Open::Withheld {
            self.open = self.place_of_message();
        }
        self.section.weigh(FRAME_BYTES + self.message.bytes);
        let head = self.head();
        let mut behind = self.message.behind;
        if self.message.before != 0 && !self.is_answer() {
            behind = behind.wrapping_add(self.message.before);
        }
        let chain = if self.open == Open::System { &mut self.system } else { &mut self.text };
        chain.close(&mut self.section, head, behind);
        self.message.is_open = false;
        self.open = Open::Withheld;
    }

    /// A text or a list of token ids has ended that is a prompt by itself.
    fn end_text(&mut self) {
        self.text.close(&mut self.section, 0, 0);
        self.open = Open::Withheld;
    }

    /// What has been told of the message's content was not so.
    fn take_back_content(&mut self) {
        let assumed = !self.message.has_role;
        let told = match self.open {
            Open::System => self.system.take_back(&mut self.section, assumed),
            Open::Text => self.text.take_back(&mut self.section, assumed),
            _ => false,
        };
        self.generation += u64::from(told);
    }

    #[inline]
    fn begin_content(&mut self) {
        let is_again = matches!(self.places.last(), Some(Place::Message)) && self.message.has_content;
        if is_again {
            self.take_back_content();
            self.section.clear();
            self.message.joined = false;
        }
        self.message.has_content = true;
    }

    /// A text of the prompt begins. One at the head of its part is gathered, if something may be left out of it.
    #[inline]
    fn begin_prompt_text(&mut self) {
        let ended = if self.is_inside_system() { 0 } else { self.text.bytes() } + self.system.bytes();
        self.message.begins = !self.gathered.begin(ended + self.section.bytes());
    }

    fn is_inside_system(&self) -> bool {
        self.open == Open::System && !self.leads_with_system()
    }

    /// Engines join the parts of a message that have text by a line end; Anthropic's instructions by nothing.
    #[inline]
    fn join(&mut self) {
        if std::mem::replace(&mut self.message.joined, true) && !self.is_inside_system() {
            self.section.push(b"\n");
        }
    }

    #[inline]
    fn prompt_text(&mut self, piece: &[u8]) {
        if !self.gathered.is_at_work() {
            if std::mem::take(&mut self.message.begins) {
                self.join();
            }
            self.section.push(piece);
        } else if self.gathered.push(piece) {
            self.push_gathered();
            self.section.push(self.gathered.rest(piece));
        }
        self.tell();
    }

    fn end_prompt_text(&mut self) {
        if self.gathered.end() {
            self.push_gathered();
            self.tell();
        }
    }

    /// What is left of the gathered text; a text of which nothing is left was never there.
    fn push_gathered(&mut self) {
        let text = self.gathered.take();
        if !text.is_empty() {
            if self.message.is_open {
                self.join();
            }
            self.section.push(&text);
        }
    }

    /// Tells the chain in which the open section stands how far it has come.
    #[inline]
    fn tell(&mut self) {
        if self.section.has_news() {
            self.tell_news();
        }
    }

    fn tell_news(&mut self) {
        if self.message.is_open && !self.message.has_role && self.message.role.bytes().is_empty() {
            self.assume_role();
        }
        match self.open {
            Open::Withheld => {}
            Open::Tools => self.tools.take(&mut self.section, 0),
            Open::System => {
                let head = self.head();
                self.system.take(&mut self.section, head);
            }
            Open::Text if self.message.is_open => {
                let head = self.head();
                self.text.take(&mut self.section, head);
            }
            Open::Text => self.text.take(&mut self.section, 0),
        }
    }

    fn end_part(&mut self) {
        let Some(piece) = self.pieces.pop() else { return };
        let digest = match (piece.media, piece.uuid) {
            (0, _) => piece.fields,
            (media, 0) => piece.fields.wrapping_add(media),
            // The name stands for the bytes, which need not even be sent again.
            (_, uuid) => uuid,
        };
        if digest != 0 {
            let bytes = if piece.media == 0 { piece.bytes } else { MEDIA_BYTES };
            self.section.push_digest(digest, bytes);
            self.tell();
        }
    }

    /// A value has been digested.
    fn digested(&mut self, target: Target, value: Digest) {
        let Digest { digest, bytes } = value;
        // As a field of a sum, under its key; nothing if it is as good as absent.
        let field = if digest == 0 { 0 } else { BlockHash(digest).under(self.value_key).0 };
        match target {
            Target::Model => self.model = digest,
            Target::Seed(place) => self.seeds.push((place, field)),
            Target::Option => self.options = self.options.wrapping_add(field),
            Target::Ending => {
                self.ending = self.ending.wrapping_add(field);
                self.ending_bytes += bytes;
            }
            Target::Session if digest != 0 => self.session = digest,
            Target::Session => {}
            Target::PreviousResponse => self.previous_response = digest,
            Target::Before | Target::Behind if digest == 0 => {}
            Target::Before => {
                self.message.before = self.message.before.wrapping_add(field);
                self.message.bytes += bytes;
            }
            Target::Behind => {
                self.message.behind = self.message.behind.wrapping_add(field);
                self.message.bytes += bytes;
            }
            Target::Field | Target::Media | Target::Uuid => {
                let Some(piece) = self.pieces.last_mut() else { return };
                match target {
                    Target::Media => piece.media = piece.media.wrapping_add(field),
                    Target::Uuid => piece.uuid = field,
                    _ => piece.fields = piece.fields.wrapping_add(field),
                }
                piece.bytes += bytes;
            }
        }
    }

    /// Writes the key of a tool's field once its value has turned out to be something.
    fn write_tool_key(&mut self) {
        if !self.tool_key.is_empty() {
            self.section.push(&[frame::KEY]);
            self.section.push(&self.tool_key);
            self.section.push(&[frame::END]);
            self.tool_key.clear();
        }
    }

    /// A value of a tool has ended; a tool itself, where it stands in the list.
    fn end_tool_value(&mut self) {
        if self.places.last() == Some(&Place::Tools) {
            self.tools.close(&mut self.section, 0, 0);
        } else {
            self.tell();
        }
    }

    fn token_id(&mut self, raw: &[u8]) {
        self.begin_text(Shape::TokenIds);
        self.open = Open::Text;
        match whole_number(raw) {
            Some(id) => self.section.push(&id.to_le_bytes()),
            // Not an id; the engine will say so.
            None => {
                self.section.push(&NO_ID.to_le_bytes());
                self.section.push(&(raw.len() as u32).to_le_bytes());
                self.section.push(raw);
            }
        }
        self.tell();
    }
}

impl Sink for Fields {
    fn open(&mut self, container: Container) {
        let place = self.enter(container);
        match place {
            Place::Message => self.begin_message(),
            Place::Parts => self.begin_content(),
            Place::SystemParts => self.begin_plain_message(b"system", Open::System),
            Place::Part => self.pieces.push(Piece::default()),
            Place::Tool => {
                self.open = Open::Tools;
                self.write_tool_key();
                self.section.push(&[frame::OPEN, container as u8]);
            }
            Place::Value(_) => self.value.open(container),
            _ => {}
        }
        self.tool_key.clear();
        self.places.push(place);
        self.next = self.element_place();
    }

    fn close(&mut self) {
        let place = self.places.pop();
        match place {
            Some(Place::Message | Place::SystemParts) => self.end_message(),
            Some(Place::Part) => self.end_part(),
            // A list inside `prompt` is one prompt of token ids.
            Some(Place::Prompts) if self.section.bytes() > 0 => self.end_text(),
            Some(Place::Tool) => {
                self.section.push(&[frame::CLOSE]);
                self.end_tool_value();
            }
            Some(Place::Value(target)) => {
                if let Some(digest) = self.value.close() {
                    self.digested(target, digest);
                }
            }
            _ => {}
        }
        self.tool_key.clear();
        self.next = self.element_place();
    }

    fn key(&mut self, key: &[u8]) {
        self.tool_key.clear();
        self.next = match self.places.last() {
            Some(Place::Root) => self.request_place(key),
            Some(Place::Message) => self.message_place(key),
            Some(Place::Part) => self.part_place(key),
            Some(Place::TemplateOptions) => self.option_place(key),
            Some(Place::Parameters) if key == b"adapter_id" => Place::Value(Target::Model),
            // Advice to another engine; not so a parameter of that name.
            Some(Place::Tool) if key == b"cache_control" && self.places.len() == TOOL_DEPTH => Place::Ignored,
            Some(Place::Tool) => {
                self.tool_key.extend_from_slice(key);
                Place::Tool
            }
            Some(Place::Value(_)) => {
                self.value.key(key);
                self.element_place()
            }
            _ => self.element_place(),
        };
    }

    #[inline]
    fn text_begin(&mut self) {
        match self.next {
            Place::Role => {
                if self.open != Open::Withheld {
                    self.take_back_content();
                }
                self.message.role.clear();
                self.message.has_role = true;
                self.open = Open::Withheld;
            }
            Place::Content | Place::Part => {
                if self.next == Place::Content {
                    self.begin_content();
                }
                self.begin_prompt_text();
            }
            Place::System => {
                self.begin_plain_message(b"system", Open::System);
                self.begin_prompt_text();
            }
            Place::Input => {
                self.begin_plain_message(b"user", Open::Text);
                self.begin_prompt_text();
            }
            Place::Prompt => {
                self.begin_text(Shape::Text);
                self.open = Open::Text;
                self.gathered.begin(self.text.bytes());
            }
            Place::Tool => {
                self.open = Open::Tools;
                self.write_tool_key();
            }
            _ => {}
        }
    }

    #[inline]
    fn text(&mut self, piece: &[u8]) {
        match self.next {
            Place::Role => self.message.role.push(piece),
            Place::Content | Place::Part | Place::System | Place::Input | Place::Prompt => {
                self.prompt_text(piece);
            }
            Place::Tool => {
                self.section.push(piece);
                self.tell();
            }
            Place::Value(_) => self.value.text(piece),
            _ => {}
        }
    }

    #[inline]
    fn text_end(&mut self) {
        match self.next {
            Place::Role => self.end_role(),
            Place::Content | Place::Part => self.end_prompt_text(),
            Place::System | Place::Input => {
                self.end_prompt_text();
                self.end_message();
            }
            Place::Prompt => {
                self.end_prompt_text();
                self.end_text();
            }
            Place::Tool => {
                self.section.push(&[frame::END]);
                self.end_tool_value();
            }
            Place::Value(target) => {
                if let Some(digest) = self.value.text_end() {
                    self.digested(target, digest);
                }
            }
            _ => {}
        }
        self.next = self.element_place();
    }

    fn scalar(&mut self, raw: &[u8]) {
        match self.next {
            Place::Prompt if raw != b"null" => self.token_id(raw),
            Place::Stream => self.stream = raw == b"true",
            Place::Content if self.message.has_content => self.begin_content(),
            Place::Tool if raw != b"null" || self.places.len() > DECLARED_DEPTH => {
                self.open = Open::Tools;
                self.write_tool_key();
                self.section.push(raw);
                self.section.push(&[frame::END]);
                self.end_tool_value();
            }
            Place::Value(target) => {
                if let Some(digest) = self.value.scalar(raw) {
                    self.digested(target, digest);
                }
            }
            _ => {}
        }
        self.next = self.element_place();
    }
}

/// What stands before the content of a message. A role mostly fits into two words, and is then their hash.
#[inline]
fn head_of(role: &[u8], before: u64) -> u64 {
    let mut words = [0; 16];
    let Some(fits) = words.get_mut(..role.len()) else { return BlockHash(digest(role)).under(before).0 };
    copy(fits, role);
    let (first, second) = (u128::from_le_bytes(words) as u64, (u128::from_le_bytes(words) >> 64) as u64);
    BlockHash(first ^ role.len() as u64).under(second ^ before).0
}

/// The value of decimal digits, if they are a token id.
fn whole_number(digits: &[u8]) -> Option<u32> {
    let add = |value: u32, digit: &u8| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u32::from(digit - b'0')),
        _ => None,
    };
    digits.iter().try_fold(0, add).filter(|&id| id != NO_ID)
}
