//! Request bodies of a given size: chats that share long prefixes, no two alike.

use bytes::Bytes;
use gateway::chat::Chat;
use gateway::workload::text::text;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// How many prefixes are shared.
const PREFIXES: usize = 8;

/// One request in so many begins with something new, and so matches nothing.
const MISS_EVERY: usize = 4;

/// What a number replaces in a template: as long as the number.
const MARK: &str = "################";

/// Bodies of one size.
pub struct Bodies {
    /// A body, and where its number goes: at the start of the prompt in a miss, else three quarters in.
    hits: Vec<(Vec<u8>, usize)>,
    misses: Vec<(Vec<u8>, usize)>,
    made: usize,
}

impl Bodies {
    /// Templates for bodies of about `size` bytes.
    pub fn new(size: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(size as u64);
        let mut template = |miss: bool| {
            // The envelope of a chat takes about 200 bytes, and escapes a few more.
            let text_bytes = size.saturating_sub(300 + size / 50).max(64);
            let (shared, own) = (text(&mut random, text_bytes * 3 / 4), text(&mut random, text_bytes / 4));
            let chat = match miss {
                true => Chat::new(&format!("{MARK} {shared}")).user(&own),
                false => Chat::new(&shared).user(&format!("{MARK} {own}")),
            };
            let body = chat.unstreamed().body().to_vec();
            let at = body.windows(MARK.len()).position(|window| window == MARK.as_bytes()).unwrap_or(0);
            (body, at)
        };
        Self {
            hits: (0..PREFIXES).map(|_| template(false)).collect(),
            misses: (0..PREFIXES).map(|_| template(true)).collect(),
            made: 0,
        }
    }

    /// A body that has not been sent before.
    pub fn next(&mut self) -> Bytes {
        self.made += 1;
        let templates = if self.made.is_multiple_of(MISS_EVERY) { &self.misses } else { &self.hits };
        let (body, at) = &templates[self.made % PREFIXES];
        let mut body = body.clone();
        let number = format!("{:0width$}", self.made, width = MARK.len());
        body[*at..*at + MARK.len()].copy_from_slice(number.as_bytes());
        body.into()
    }
}
