//! What of a message is not its text? The role, what is rendered before and behind the content, images.
//!
//! All of it becomes digests, and each says how many bytes of text it is as much work as.

use super::value::Digest;
use crate::core::blocks::{digest, BlockHash};
use crate::core::bytes::{copy, Short};

/// What a message's framing in the template counts as: a role and two marks, two or three tokens.
const FRAME_BYTES: u64 = 8;

/// What an image, sound or film counts as, whatever its file's size: some 1,000 tokens, as vision models make of a
/// picture of a megapixel.
const MEDIA_BYTES: u64 = 4 << 10;

/// The longest role that is told apart; real ones are under 16 bytes.
const ROLE: usize = 30;

/// The roles that a message may turn out to have.
pub(super) const ROLES: [&[u8]; 5] = [b"system", b"user", b"developer", b"tool", b"assistant"];

/// The message of the open section.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// Whether there is one.
    pub is_open: bool,
    role: Short<ROLE>,
    /// Whether it has come, or begun to.
    pub has_role: bool,
    /// The role that is assumed until it has come.
    pub assumed: Option<&'static [u8]>,
    /// What stands before and behind the content.
    before: Digest,
    behind: Digest,
    /// Whether there is text already: parts are joined.
    pub is_joined: bool,
    /// Whether a text has begun of which nothing has come yet: if nothing does, it is not joined.
    pub text_begins: bool,
}

impl Message {
    /// Begins another, of which nothing is known.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.is_open = true;
        self.role.clear();
        self.has_role = false;
        self.assumed = None;
        self.before = Digest::default();
        self.behind = Digest::default();
        self.is_joined = false;
        self.text_begins = false;
    }

    /// The role, or the one that is assumed; empty if there is neither.
    #[inline]
    pub(super) fn role(&self) -> &[u8] {
        if self.has_role {
            self.role.bytes()
        } else {
            self.assumed.unwrap_or(b"")
        }
    }

    /// The next bytes of the role.
    #[inline]
    pub(super) fn push_role(&mut self, piece: &[u8]) {
        self.role.push(piece);
    }

    #[inline]
    pub(super) fn clear_role(&mut self) {
        self.role.clear();
    }

    /// Something that is rendered before the content.
    pub(super) fn add_before(&mut self, value: Digest) {
        self.before.add(value);
    }

    /// Something that is rendered behind the content.
    pub(super) fn add_behind(&mut self, value: Digest) {
        self.behind.add(value);
    }

    /// Whether it is an answer, in which something may stand before the content.
    #[inline]
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.role(), b"assistant" | b"")
    }

    /// The digest of what stands before the content.
    #[inline]
    pub(super) fn head(&self) -> u64 {
        head_of(self.role(), if self.is_answer() { self.before.digest } else { 0 })
    }

    /// The digest of what stands behind the content.
    #[inline]
    pub(super) fn behind(&self) -> u64 {
        match self.before.digest {
            0 => self.behind.digest,
            _ if self.is_answer() => self.behind.digest,
            before => self.behind.digest.wrapping_add(before),
        }
    }

    /// What all but the content counts as.
    #[inline]
    pub(super) fn frame_bytes(&self) -> u64 {
        FRAME_BYTES + self.before.bytes + self.behind.bytes
    }
}

/// What stands before the content of a message. A role mostly fits into two words, and is then their hash.
#[inline]
pub(super) fn head_of(role: &[u8], before: u64) -> u64 {
    let mut words = [0; 16];
    let Some(fits) = words.get_mut(..role.len()) else { return BlockHash(digest(role)).under(before).0 };
    copy(fits, role);
    let (first, second) = (u128::from_le_bytes(words) as u64, (u128::from_le_bytes(words) >> 64) as u64);
    BlockHash(first ^ role.len() as u64).under(second ^ before).0
}

/// What of a part of a message's content is not its text.
#[derive(Debug, Default)]
pub(super) struct ContentPart {
    fields: Digest,
    media: Digest,
    uuid: Digest,
}

impl ContentPart {
    /// An image, sound or film.
    pub(super) fn add_media(&mut self, value: Digest) {
        self.media.add(value);
    }

    /// The name that the client gives to it.
    pub(super) fn set_uuid(&mut self, value: Digest) {
        self.uuid = value;
    }

    /// Anything else that tells it from others.
    pub(super) fn add_field(&mut self, value: Digest) {
        self.fields.add(value);
    }

    /// All of it; nothing where there is only text.
    pub(super) fn sum(&self) -> Digest {
        let digest = match (self.media.digest, self.uuid.digest) {
            (0, _) => return self.fields,
            (media, 0) => self.fields.digest.wrapping_add(media),
            // The name stands for the bytes, which need not even be sent again.
            (_, uuid) => uuid,
        };
        Digest { digest, bytes: MEDIA_BYTES }
    }
}
