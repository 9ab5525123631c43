//! What sets whole prompts apart, and what names the conversation? Model, salt and options, not text.
//!
//! What changes a prompt's beginning is summed up into one seed, under which all its hashes are looked up; what the
//! engine adds behind everything is summed up for the prompt's last position. Sums, since the order of keys does not
//! matter; one for each of the request's keys, since a key that comes twice takes back what it said before.

use super::value::Digest;
use crate::core::blocks::BlockHash;

/// The shape of the prompt; part of the seed, since the same bytes mean different tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Chat,
    Text,
    TokenIds,
}

/// What is known of a prompt beside its text.
#[derive(Debug)]
pub(super) struct Identity {
    shape: Shape,
    model: u64,
    seeds: Sums,
    endings: Sums,
    session: u64,
    previous_response: u64,
}

/// The sum of the digests of each of the request's keys, by the key's place in the table.
#[derive(Debug, Default)]
struct Sums(Vec<(usize, Digest)>);

impl Identity {
    pub(super) fn new(shape: Shape) -> Self {
        let (seeds, endings) = (Sums::default(), Sums::default());
        Self { shape, model: 0, seeds, endings, session: 0, previous_response: 0 }
    }

    /// The prompt turns out to have this shape.
    pub(super) fn set_shape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// The last key that names a model or an adapter wins.
    pub(super) fn set_model(&mut self, value: Digest) {
        self.model = value.digest;
    }

    /// The last name of the conversation wins, if it is one.
    pub(super) fn set_session(&mut self, value: Digest) {
        if value.digest != 0 {
            self.session = value.digest;
        }
    }

    pub(super) fn set_previous_response(&mut self, value: Digest) {
        self.previous_response = value.digest;
    }

    /// Something that changes the prompt's beginning, from the key at `place`.
    pub(super) fn add_seed(&mut self, place: usize, value: Digest) {
        self.seeds.add(place, value);
    }

    /// Something that the engine adds behind everything, from the key at `place`.
    pub(super) fn add_ending(&mut self, place: usize, value: Digest) {
        self.endings.add(place, value);
    }

    /// The key at `place` comes again: what it said before does not count.
    pub(super) fn take_back(&mut self, place: usize) {
        self.seeds.take_back(place);
        self.endings.take_back(place);
    }

    /// What sets this prompt apart from the first byte on.
    pub(super) fn seed(&self) -> u64 {
        BlockHash(self.model).under(self.seeds.total().digest).under(self.shape as u64).0
    }

    /// What comes behind the text.
    pub(super) fn ending(&self) -> Digest {
        self.endings.total()
    }

    /// A digest of the model's name; 0 if none was named.
    pub(super) fn model(&self) -> u64 {
        self.model
    }

    pub(super) fn is_token_ids(&self) -> bool {
        self.shape == Shape::TokenIds
    }

    pub(super) fn session(&self) -> Option<u64> {
        Some(self.session).filter(|&session| session != 0)
    }

    pub(super) fn previous_response(&self) -> Option<u64> {
        Some(self.previous_response).filter(|&response| response != 0)
    }
}

impl Sums {
    fn add(&mut self, place: usize, value: Digest) {
        match self.0.iter_mut().find(|(of, _)| *of == place) {
            Some((_, sum)) => sum.add(value),
            None => self.0.push((place, value)),
        }
    }

    fn take_back(&mut self, place: usize) {
        let of_place = self.0.iter_mut().filter(|(of, _)| *of == place);
        of_place.for_each(|(_, sum)| *sum = Digest::default());
    }

    /// Not inlined: it is asked for in many places, and of few values.
    #[inline(never)]
    fn total(&self) -> Digest {
        let mut total = Digest::default();
        self.0.iter().for_each(|(_, sum)| total.add(*sum));
        total
    }
}
