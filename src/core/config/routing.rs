//! The constants of the decision, each with its why.
//!
//! The defaults were chosen by replay (`scripts/replay`); an operator overrides them under `routing`.

use super::{Refusal, Section};
use crate::core::tier::Tier;
use serde_json::Value;

/// What a request's cost on a host is made of. See [`crate::core::route`] for the formula.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Weight of a request's own uncached tokens while nothing queues.
    pub prefill_weight: f64,
    /// What is added to it for each second of prefill that hosts have queued on average: the fuller the fleet, the
    /// more it is worth not to compute anything twice.
    pub congestion_weight: f64,
    /// The most that is added: nobody shall cross the fleet for one block.
    pub most_congestion: f64,
    /// A request waits for a prefix that a host is computing while no more tokens stand before it than this many
    /// times its prompt ..
    pub burst_prompts: f64,
    /// .. and than these, a sixth of a second's worth: for more, a second copy that is computed at the same time serves
    /// everybody better (agents: 1.03 against 1.76 with 9,000, at load 0.9) ..
    pub burst_tokens: f64,
    /// .. and while the host has no more than this many requests over the mean: a batch of its own.
    pub burst_requests: f64,
    /// How much each request in the batch is slowed by a prefill, as a share of it.
    pub batch_slowdown: f64,
    /// Milliseconds that one more sequence in the batch costs.
    pub decode_ms: f64,
    /// How many sequences more one counts for that waits for a place in the batch: it waits until another has ended.
    pub waiting_weight: f64,
    /// Tokens a second that a host prefills, before any was observed: an 8B model on one large GPU. A common
    /// factor hardly matters, differences between hosts do.
    pub prefill_tokens_per_s: f64,
    /// Milliseconds that a host takes to load a LoRA adapter, where another has it loaded. From its files: 84 MB at rank
    /// 16 and 336 MB at rank 64 for all layers of an 8B model, at about 1 GB/s through parsing, pinning and copying.
    /// Users report 0.5 to 2 s (predibase/lorax 433, vllm-project/vllm 11092); one that waits in the host's memory comes
    /// in some tens. Counts as much as 15 requests more in the batch: an adapter stays where it is until that host is
    /// loaded.
    pub adapter_load_ms: f64,
    /// Tokens that a KV cache is taken to hold while its engine has not said: about what an 8B model leaves free on an
    /// 80 GB GPU. Rather too large than too small: believing too little costs more than believing too much.
    pub capacity_tokens: u64,
    /// Hosts within this share of the least cost, and [`Routing::tie_ms`], are as good as the best.
    pub tie_share: f64,
    /// See [`Routing::tie_share`]. Milliseconds.
    pub tie_ms: f64,
    /// How much of the uncached tokens a prompt's rendezvous home is forgiven when all load is foreign.
    pub home_credit: f64,
    /// By how much a queue that is known only in part counts for less, where all load is foreign: gateways that share
    /// nothing would otherwise avoid what they know of, and meet where they know of nothing.
    pub foreign_discount: f64,
    /// With peers: what a host counts for that another gateway fills first, in mean prefills of a request. Gateways
    /// hear of each other's requests a tenth of a second late, and would all choose the same idle host until then.
    pub peer_spread: f64,
    /// A host that holds all of a prompt that has been read is taken to hold this share of what has not: it
    /// mostly is a conversation's next turn. Without it, a long prompt that is decided by its head looks nearly
    /// as cold on the host that has it as anywhere else. The books are corrected once the rest has been read.
    pub unread_share: f64,
    /// What a prefix is worth that only another host has, where hosts share a KV tier. `tier` says how much of it is found
    /// there: measured (`"auto"`), nothing (`"off"`), all (`"on"`) or a share.
    ///
    /// `fetch_share` is what a token costs that is fetched, against one that is computed at 18,000 a second. LMCache's own
    /// logs of 7B and 8B models, at 128 to 160 KB a token: 1,792 tokens from the host's memory in 14 ms and 1,024 in 9.5 ms,
    /// 110,000 to 125,000 a second or a sixth of computing them; 65,024 from a Valkey over the network in 2.6 s, 25,000 a
    /// second or seven tenths. In between, on the cheap side: a fetch takes none of the batch's time. Set 0.15 for memory
    /// next to the GPU or RDMA, 0.7 for a store behind ordinary TCP.
    pub tier: Tier,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            prefill_weight: 1.0,
            congestion_weight: 3.0,
            most_congestion: 10.0,
            burst_prompts: 2.5,
            burst_tokens: 3_000.0,
            burst_requests: 16.0,
            batch_slowdown: 0.12,
            decode_ms: 20.0,
            waiting_weight: 3.0,
            prefill_tokens_per_s: 18_000.0,
            adapter_load_ms: 300.0,
            capacity_tokens: 400_000,
            tie_share: 0.08,
            tie_ms: 2.0,
            home_credit: 0.9,
            foreign_discount: 0.7,
            peer_spread: 2.0,
            unread_share: 0.75,
            tier: Tier { hit_ratio: None, fetch_share: 0.3 },
        }
    }
}

impl Routing {
    pub(super) fn take(mut section: Section) -> Result<Self, Refusal> {
        let default = Self::default();
        let routing = Self {
            prefill_weight: section.number("prefill_weight", default.prefill_weight, 0.0, 100.0)?,
            congestion_weight: section.number("congestion_weight", default.congestion_weight, 0.0, 100.0)?,
            most_congestion: section.number("most_congestion", default.most_congestion, 0.0, 1e6)?,
            burst_prompts: section.number("burst_prompts", default.burst_prompts, 0.0, 1e6)?,
            burst_tokens: section.number("burst_tokens", default.burst_tokens, 0.0, 1e9)?,
            burst_requests: section.number("burst_requests", default.burst_requests, 0.0, 1e6)?,
            batch_slowdown: section.number("batch_slowdown", default.batch_slowdown, 0.0, 100.0)?,
            decode_ms: section.number("decode_ms", default.decode_ms, 0.0, 60_000.0)?,
            waiting_weight: section.number("waiting_weight", default.waiting_weight, 0.0, 100.0)?,
            prefill_tokens_per_s: section.number(
                "prefill_tokens_per_s",
                default.prefill_tokens_per_s,
                1.0,
                1e9,
            )?,
            adapter_load_ms: section.number("adapter_load_ms", default.adapter_load_ms, 0.0, 60_000.0)?,
            capacity_tokens: section.whole(
                "capacity_tokens",
                default.capacity_tokens as usize,
                1_000,
                100_000_000,
            )? as u64,
            tie_share: section.number("tie_share", default.tie_share, 0.0, 10.0)?,
            tie_ms: section.number("tie_ms", default.tie_ms, 0.0, 60_000.0)?,
            home_credit: section.number("home_credit", default.home_credit, 0.0, 1.0)?,
            foreign_discount: section.number("foreign_discount", default.foreign_discount, 0.0, 100.0)?,
            peer_spread: section.number("peer_spread", default.peer_spread, 0.0, 100.0)?,
            unread_share: section.number("unread_share", default.unread_share, 0.0, 1.0)?,
            tier: Tier {
                hit_ratio: tier_hits(&mut section)?,
                fetch_share: section.number("fetch_share", default.tier.fetch_share, 0.0, 1.0)?,
            },
        };
        section.finish()?;
        Ok(routing)
    }
}

/// How much another host's prefixes are found in a shared tier, if that is not to be measured.
fn tier_hits(section: &mut Section) -> Result<Option<f64>, Refusal> {
    const WANTED: &str = "must be \"auto\", \"on\", \"off\", or a share from 0 to 1";
    let hits = match section.take("tier") {
        None => None,
        // To YAML, a bare `on` or `off` is a boolean.
        Some(Value::Bool(is_there)) => Some(f64::from(u8::from(is_there))),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => None,
            "on" => Some(1.0),
            "off" => Some(0.0),
            _ => return Err(section.refuse("tier", WANTED)),
        },
        Some(value) => match value.as_f64() {
            Some(share) if (0.0..=1.0).contains(&share) => Some(share),
            _ => return Err(section.refuse("tier", WANTED)),
        },
    };
    Ok(hits)
}
