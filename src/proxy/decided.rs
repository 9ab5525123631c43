//! A decision is carried out: the header is set, the books are opened, the logs are told.

use super::host::{self, Headers};
use super::worker::{now_ms, Worker};
use crate::core::config::Config;
use crate::core::fleet::Slot;
use crate::core::prompt::Unread;
use crate::core::route::{Decision, Reason};
use std::cell::RefCell;
use std::rc::Rc;

/// What was decided, once it was.
pub struct Decided {
    /// The host that has the request: the first named, or the one that served in its place.
    pub slot: Slot,
    /// All that were named, in order.
    pub named: Vec<Slot>,
    /// The address of `slot`.
    pub address: String,
    /// Why the first named was the first.
    pub reason: Reason,
    /// Prompt bytes that the first named was believed to hold.
    pub matched_bytes: u64,
    /// Prompt bytes, read or announced.
    pub prompt_bytes: u64,
}

/// Sets the destination header, tells access logs, and commits.
pub fn carry_out(
    stream: u32,
    decision: &Decision,
    prompt_bytes: u64,
    config: &Config,
    worker: &mut Worker,
    now_ms: u64,
) -> Decided {
    worker.stats.decided(decision.reason);
    let fleet = worker.router.fleet();
    let addresses: Vec<&str> =
        decision.hosts.iter().filter_map(|slot| Some(fleet.host(*slot)?.address.as_str())).collect();
    let address = addresses.first().map(|address| (*address).to_owned());
    let set = !addresses.is_empty()
        && host::set_header(Headers::Request, &config.destination_header, &addresses.join(","));
    let decided = Decided {
        slot: decision.hosts.first().copied().unwrap_or_default(),
        named: if set { decision.hosts.clone() } else { Vec::new() },
        address: address.unwrap_or_default(),
        reason: decision.reason,
        matched_bytes: decision.matched_bytes,
        prompt_bytes,
    };
    if set {
        let change = worker.router.commit(stream, decision, now_ms);
        worker.apply(change);
    }
    publish(&decided);
    decided
}

/// Puts the decision into filter state, for access logs.
fn publish(decided: &Decided) {
    host::set_property("kvroute.host", &decided.address);
    host::set_property("kvroute.reason", decided.reason.as_str());
    host::set_property("kvroute.matched", &decided.matched_bytes.to_string());
    host::set_property("kvroute.prompt_bytes", &decided.prompt_bytes.to_string());
}

/// Resumes a request whose headers are held and whose body does not come. Runs at a tick, outside the
/// stream's own callbacks.
pub fn rescue(stream: u32, config: &Config, worker: &Rc<RefCell<Worker>>) {
    if !host::act_for(stream) {
        return;
    }
    let now_ms = now_ms();
    {
        let mut worker = worker.borrow_mut();
        worker.stats.rescued.add(1);
        let decision = worker.router.decide_unread(Unread::NotHeld, true, now_ms);
        carry_out(stream, &decision, 0, config, &mut worker, now_ms);
    }
    host::resume_request();
}
