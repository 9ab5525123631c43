//! Where does this text stand in the prompt? In a section of one of its parts: a message, a tool, a text.
//!
//! Text goes into the open [`Section`] as it comes, whose part may be known or not. Everything else that tells
//! messages apart enters where the section ends, so that neither the order of keys nor the way a value is written
//! matters. Where engines render alike, the hashes are alike: content as a string or as parts of type text; `null`,
//! `""`, `[]` and absent; instructions as a key of their own or as the first message.
//!
//! A section's part is told as soon as it is known: a message's by its role. What turns out not to be so is taken
//! back.

use super::chain::Section;
use super::leave_out::Gathered;
use super::message::{ContentPart, Message};
use super::parts::{Parts, Which};
use super::value::Digest;
use super::{Api, View};
use crate::core::blocks::BlockHash;
use crate::core::config;

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

/// What is no token id stands behind this.
const NO_ID: u32 = u32::MAX;

/// The section that is being read, and the parts that the others stand in.
#[derive(Debug)]
pub(super) struct Sections {
    parts: Parts,
    section: Section,
    /// Where the open section stands; `None` if that is not known yet, or not to be told yet.
    open: Option<Which>,
    message: Message,
    /// The open parts of the message's content, outermost first.
    content_parts: Vec<ContentPart>,
    gathered: Gathered,
    /// A key of a tool, held until its value shows that it is not null.
    tool_key: Vec<u8>,
}

impl Sections {
    pub(super) fn new(api: Api, settings: &config::Prompt) -> Self {
        Self {
            parts: Parts::new(api, settings),
            section: Section::new(settings),
            open: None,
            message: Message::default(),
            content_parts: Vec::new(),
            gathered: Gathered::new(&settings.leave_out),
            tool_key: Vec::new(),
        }
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.bytes() + self.section.bytes()
    }

    /// See [`Parts::view`].
    pub(super) fn view(&self, seed: u64, whole: bool) -> View<'_> {
        self.parts.view(seed, whole)
    }

    /// Where the message that is being read would begin if it had another role than is assumed, in a prompt of this
    /// `seed`; nothing where its role is known.
    pub(super) fn elsewhere(&self, seed: u64) -> Vec<BlockHash> {
        if !self.message.is_open || self.message.has_role {
            return Vec::new();
        }
        self.parts.elsewhere(&self.section, self.message.role(), seed)
    }

    /// The body has ended, or will be read no further; the engine adds `ending` behind the prompt.
    pub(super) fn finish(&mut self, ending: u64) {
        if self.message.is_open {
            self.end_message();
        } else {
            self.end_prompts();
        }
        self.parts.finish(ending);
    }

    /// Whether text has begun, before which it is to be told under which seed.
    #[inline]
    pub(super) fn has_text_begun(&self) -> bool {
        self.parts.has_text_begun()
    }

    /// See [`Parts::begin_text`].
    pub(super) fn begin_text(&mut self, seed: u64) {
        self.parts.begin_text(seed);
    }

    /// The key of a part comes again: what it said before does not count. Not inlined: it is rare.
    #[inline(never)]
    pub(super) fn take_back(&mut self, which: Which) {
        self.parts.take_back(which);
        self.section.clear();
    }

    /// As if no text had come yet.
    pub(super) fn begin_anew(&mut self) {
        self.take_back(Which::Text);
        self.parts.forget_early();
    }
}

/// Messages.
impl Sections {
    #[inline]
    pub(super) fn begin_message(&mut self) {
        if self.section.bytes() > 0 {
            self.section.clear();
        }
        self.message.begin();
        self.open = None;
    }

    /// Instructions that are a key of the request.
    pub(super) fn begin_instructions(&mut self) {
        self.begin_message_of(b"system", Which::System);
    }

    /// Input that is a text: what a user says.
    pub(super) fn begin_input(&mut self) {
        self.begin_message_of(b"user", Which::Text);
    }

    /// A message that is no object of its own begins, so that its role is known.
    fn begin_message_of(&mut self, role: &[u8], which: Which) {
        self.begin_message();
        self.begin_role();
        self.role(role);
        self.open = Some(which);
    }

    /// The role begins. One that came before does not count.
    #[inline]
    pub(super) fn begin_role(&mut self) {
        if self.message.assumed.is_none() {
            self.take_back_content(false);
            self.open = None;
        }
        self.message.clear_role();
        self.message.has_role = true;
    }

    #[inline]
    pub(super) fn role(&mut self, piece: &[u8]) {
        self.message.push_role(piece);
    }

    /// The role is known: what has come of the content has its place. Not so an answer's: how it was thought out is
    /// rendered before it and may stand behind it in the body.
    #[inline]
    pub(super) fn end_role(&mut self) {
        if let Some(assumed) = self.message.assumed.take() {
            if self.message.role() == assumed {
                return;
            }
            self.take_back_content(true);
        }
        self.open =
            if self.message.is_answer() { None } else { Some(self.parts.of_role(self.message.role())) };
        self.tell();
    }

    /// Content comes before its role, as clients write that sort their keys. A long one must not wait: a role is
    /// assumed, and what was told under it is taken back if it is another.
    fn assume_role(&mut self) {
        self.message.assumed = Some(if self.parts.may_lead() { b"system" } else { b"user" });
        self.open = Some(self.parts.of_role(self.message.role()));
    }

    /// The message's content begins. One that came before does not count.
    #[inline]
    pub(super) fn begin_content(&mut self) {
        if self.section.bytes() > 0 {
            self.take_back_content(false);
            self.section.clear();
            self.message.is_joined = false;
        }
    }

    /// What has been told of the message's content was not so: it stands elsewhere than was `assumed`, or does not
    /// count.
    fn take_back_content(&mut self, assumed: bool) {
        if let Some(which) = self.open {
            self.parts.take_back_section(which, &mut self.section, assumed);
        }
    }

    pub(super) fn begin_content_part(&mut self) {
        self.content_parts.push(ContentPart::default());
    }

    pub(super) fn end_content_part(&mut self) {
        let Some(part) = self.content_parts.pop() else { return };
        let Digest { digest, bytes } = part.sum();
        if digest != 0 {
            self.section.push_digest(digest, bytes);
            self.tell();
        }
    }

    /// The open message, for what is not its text.
    pub(super) fn message(&mut self) -> &mut Message {
        &mut self.message
    }

    /// The innermost open part of the content, for what is not its text.
    pub(super) fn content_part(&mut self) -> Option<&mut ContentPart> {
        self.content_parts.last_mut()
    }

    #[inline]
    pub(super) fn end_message(&mut self) {
        if self.message.assumed.take().is_some() {
            self.take_back_content(true);
            self.open = None;
        }
        if self.open.is_none() {
            self.open = Some(self.parts.of_role(self.message.role()));
        }
        self.section.weigh(self.message.frame_bytes());
        self.end_section(self.message.head(), self.message.behind());
        self.message.is_open = false;
    }
}

/// Text.
impl Sections {
    /// A text or a token id begins that is a prompt by itself, or part of one.
    #[inline]
    pub(super) fn begin_prompt(&mut self) {
        self.open = Some(Which::Text);
    }

    /// A prompt has ended that is a text.
    pub(super) fn end_prompt(&mut self) {
        self.end_section(0, 0);
    }

    /// A list of prompts has ended, which is a prompt itself if it is one of token ids.
    pub(super) fn end_prompts(&mut self) {
        if self.section.bytes() > 0 {
            self.end_prompt();
        }
    }

    /// A text begins. One at the head of its part is gathered, if something may be left out of it.
    #[inline]
    pub(super) fn begin_piece(&mut self) {
        let depth = self.parts.bytes_before(self.is_inside_system()) + self.section.bytes();
        self.message.text_begins = !self.gathered.begin(depth);
    }

    #[inline]
    pub(super) fn piece(&mut self, piece: &[u8]) {
        if !self.gathered.is_at_work() {
            if std::mem::take(&mut self.message.text_begins) {
                self.join();
            }
            self.section.push(piece);
        } else if self.gathered.push(piece) {
            self.push_gathered();
            self.section.push(self.gathered.rest(piece));
        }
        self.tell();
    }

    pub(super) fn end_piece(&mut self) {
        if self.gathered.end() {
            self.push_gathered();
            self.tell();
        }
    }

    /// What is left of the gathered text; a text of which nothing is left was never there.
    fn push_gathered(&mut self) {
        let text = self.gathered.take();
        if !text.is_empty() {
            self.join();
            self.section.push(&text);
        }
    }

    /// Engines join the parts of a message that have text by a line end; Anthropic's instructions by nothing.
    #[inline]
    fn join(&mut self) {
        let is_joined = std::mem::replace(&mut self.message.is_joined, true);
        if is_joined && self.message.is_open && !self.is_inside_system() {
            self.section.push(b"\n");
        }
    }

    /// Whether the open section is of instructions that are a key of their own.
    #[inline]
    fn is_inside_system(&self) -> bool {
        self.open == Some(Which::System) && self.parts.has_system_key()
    }

    /// A token id, as written.
    pub(super) fn token_id(&mut self, raw: &[u8]) {
        match token_id(raw) {
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

/// Tools, hashed as they are written, whitespace aside.
impl Sections {
    /// A key whose value counts if it is not null.
    pub(super) fn tool_key(&mut self, key: &[u8]) {
        self.tool_key.clear();
        self.tool_key.extend_from_slice(key);
    }

    /// A value begins that is something, and so its key.
    pub(super) fn begin_tool_value(&mut self) {
        self.open = Some(Which::Tools);
        if !self.tool_key.is_empty() {
            self.section.push(&[frame::KEY]);
            self.section.push(&self.tool_key);
            self.section.push(&[frame::END]);
            self.tool_key.clear();
        }
    }

    pub(super) fn open_tool(&mut self, container: u8) {
        self.begin_tool_value();
        self.section.push(&[frame::OPEN, container]);
    }

    pub(super) fn close_tool(&mut self) {
        self.tool_key.clear();
        self.section.push(&[frame::CLOSE]);
        self.tell();
    }

    pub(super) fn tool_text(&mut self, piece: &[u8]) {
        self.section.push(piece);
        self.tell();
    }

    /// A string or a number has ended.
    pub(super) fn end_tool_value(&mut self) {
        self.tool_text(&[frame::END]);
    }

    /// One of the list has ended.
    pub(super) fn end_tool(&mut self) {
        self.end_section(0, 0);
    }
}

/// Telling the chains.
impl Sections {
    /// Tells the chain in which the open section stands how far it has come.
    #[inline]
    fn tell(&mut self) {
        if self.section.has_news() {
            self.tell_news();
        }
    }

    fn tell_news(&mut self) {
        if self.message.is_open && !self.message.has_role && self.message.assumed.is_none() {
            self.assume_role();
        }
        if let Some(which) = self.open {
            let head = if self.message.is_open { self.message.head() } else { 0 };
            self.parts.of_mut(which).take(&mut self.section, head);
        }
    }

    /// The section ends, with what stands before and behind its text.
    fn end_section(&mut self, head: u64, behind: u64) {
        if let Some(which) = self.open.take() {
            self.parts.of_mut(which).close(&mut self.section, head, behind);
        }
    }
}

/// The value of decimal digits, if they are a token id.
fn token_id(digits: &[u8]) -> Option<u32> {
    let add = |value: u32, digit: &u8| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u32::from(digit - b'0')),
        _ => None,
    };
    digits.iter().try_fold(0, add).filter(|&id| id != NO_ID)
}
