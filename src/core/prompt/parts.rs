//! In which order do the prompt's parts stand, and which of them are known? Tools and instructions, then the text.
//!
//! Each part is a chain of its own, since clients write the request's keys in any order. What stands before a part
//! comes in as its seed when it is looked at: in the early view only what stood before the text in the body too.

use super::chain::{Chain, Section};
use super::message::{head_of, ROLES};
use super::{Api, Part, View};
use crate::core::blocks::BlockHash;
use crate::core::config::{self, ToolsPlace};

/// One part of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Tools,
    System,
    Text,
}

/// What was known when the text began.
#[derive(Debug, Clone, Copy)]
struct Early {
    seed: u64,
    tools: bool,
    system: bool,
}

/// The chains of all parts.
#[derive(Debug)]
pub(super) struct Parts {
    /// As the engine renders them.
    order: [Which; 3],
    /// Whether the instructions are the first message.
    leads_with_system: bool,
    tools: Chain,
    system: Chain,
    text: Chain,
    early: Option<Early>,
    /// Counts what was taken back.
    generation: u64,
}

impl Parts {
    pub(super) fn new(api: Api, settings: &config::Prompt) -> Self {
        Self {
            order: match settings.tools {
                ToolsPlace::First => [Which::Tools, Which::System, Which::Text],
                ToolsPlace::AfterSystem => [Which::System, Which::Tools, Which::Text],
            },
            leads_with_system: matches!(api, Api::Chat | Api::Invocations),
            tools: Chain::new(settings),
            system: Chain::new(settings),
            text: Chain::new(settings),
            early: None,
            generation: 0,
        }
    }

    /// Bytes of all sections that have ended.
    pub(super) fn bytes(&self) -> u64 {
        self.tools.bytes() + self.system.bytes() + self.text.bytes()
    }

    /// Bytes that have ended of what is searched for text to leave out before the open section.
    #[inline]
    pub(super) fn bytes_before(&self, is_system_key: bool) -> u64 {
        self.system.bytes() + if is_system_key { 0 } else { self.text.bytes() }
    }

    /// The parts in the order in which the engine renders them, under the prompt's `seed`: with `whole` all of them,
    /// otherwise those that stood before the text in the body too.
    pub(super) fn view(&self, seed: u64, whole: bool) -> View<'_> {
        let live = Early { seed, tools: true, system: true };
        let known = self.early.filter(|_| !whole).unwrap_or(live);
        let (mut seed, mut before) = (known.seed, 0);
        let mut heads = 0;
        // What stands behind a first message that is still being read is not known yet.
        let mut is_hidden = false;
        let parts = self.order.map(|which| {
            let chain = self.of(which);
            if is_hidden || !known.has(which) {
                return Part::new(seed, &[]);
            }
            let part = Part { seed, before, positions: chain.positions(), assumed: chain.assumed() };
            if !chain.is_empty() {
                seed = BlockHash(seed).under(chain.digest()).0;
                before += chain.bytes();
            }
            is_hidden = which == Which::System && !whole && self.is_first_being_read();
            // The first message is there in every view.
            if which == Which::Tools || which == Which::System && !self.leads_with_system {
                heads = heads << 1 | u64::from(!chain.is_empty() || !chain.positions().is_empty());
            }
            part
        });
        View { id: BlockHash(known.seed).under(heads).under(self.generation).0, parts }
    }

    /// Whether text has begun: what is known early is settled then.
    #[inline]
    pub(super) fn has_text_begun(&self) -> bool {
        self.early.is_some()
    }

    /// The first text begins, in a prompt of this `seed`: what has been read by now is known early.
    pub(super) fn begin_text(&mut self, seed: u64) {
        let system = !self.system.is_empty() || self.leads_with_system;
        self.early = Some(Early { seed, tools: !self.tools.is_empty(), system });
    }

    /// As if no text had begun yet.
    pub(super) fn forget_early(&mut self) {
        self.early = None;
    }

    /// Takes back all of a part; with the text the instructions, if they were its first message.
    pub(super) fn take_back(&mut self, which: Which) {
        self.generation += 1;
        self.of_mut(which).clear();
        if which == Which::Text && self.leads_with_system {
            self.system.clear();
        }
    }

    /// Takes back what one section has come to. With `assumed`, others may still look for it there.
    pub(super) fn take_back_section(&mut self, which: Which, section: &mut Section, assumed: bool) {
        let told = self.of_mut(which).take_back(section, assumed);
        self.generation += u64::from(told);
    }

    /// Whether the instructions are a key of the request, not the first message.
    #[inline]
    pub(super) fn has_system_key(&self) -> bool {
        !self.leads_with_system
    }

    /// Where a message of this role stands.
    #[inline]
    pub(super) fn of_role(&self, role: &[u8]) -> Which {
        if self.may_lead() && matches!(role, b"system" | b"developer") {
            Which::System
        } else {
            Which::Text
        }
    }

    /// Only the first message can be the instructions: tools are rendered next to it, and before a second one.
    #[inline]
    pub(super) fn may_lead(&self) -> bool {
        self.leads_with_system && self.text.is_empty() && self.system.is_empty()
    }

    /// Whether the first message has not ended, and may be the instructions.
    fn is_first_being_read(&self) -> bool {
        self.may_lead() && self.text.positions().is_empty()
    }

    /// The body has ended; the engine adds `ending` behind the prompt.
    pub(super) fn finish(&mut self, ending: u64) {
        let last = if self.text.is_empty() { &mut self.system } else { &mut self.text };
        last.finish(ending);
    }

    /// Where the open section would begin if it were a message of another role than `role`, in a prompt of this `seed`.
    pub(super) fn elsewhere(&self, section: &Section, role: &[u8], seed: u64) -> Vec<BlockHash> {
        let parts = self.view(seed, false).parts;
        let begins = |role: &[u8]| {
            let which = self.of_role(role);
            let (_, part) = self.order.iter().zip(&parts).find(|(of, _)| **of == which)?;
            Some(self.of(which).first_of(section, head_of(role, 0))?.under(part.seed))
        };
        ROLES.into_iter().filter(|other| *other != role).filter_map(begins).collect()
    }

    pub(super) fn of(&self, which: Which) -> &Chain {
        match which {
            Which::Tools => &self.tools,
            Which::System => &self.system,
            Which::Text => &self.text,
        }
    }

    #[inline]
    pub(super) fn of_mut(&mut self, which: Which) -> &mut Chain {
        match which {
            Which::Tools => &mut self.tools,
            Which::System => &mut self.system,
            Which::Text => &mut self.text,
        }
    }
}

impl Early {
    fn has(&self, which: Which) -> bool {
        match which {
            Which::Tools => self.tools,
            Which::System => self.system,
            Which::Text => true,
        }
    }
}
