//! A decision is carried out: the header is set, the books are opened, the logs are told. In shadow mode only the logs.

use super::host::{self, Headers};
use super::shadow::Shadow;
use super::stats::OrCount;
use super::worker::{now_ms, Worker};
use crate::core::config::Config;
use crate::core::fleet::{Fleet, Slot};
use crate::core::prompt::Unread;
use crate::core::route::Decision;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// What was decided, once it was.
pub struct Decided {
    /// The host that has the request, as far as is known: the first named, or the one that served in its place.
    pub slot: Option<Slot>,
    /// All that were named, in order.
    pub named: Vec<Slot>,
    /// The address of the best host, or of the one that served in its place.
    pub address: String,
    /// Why the best host was the best, for headers and logs.
    pub reason: Cow<'static, str>,
    /// Prompt bytes that the best host was believed to hold.
    pub matched_bytes: u64,
    /// Prompt bytes, read or announced.
    pub prompt_bytes: u64,
    /// What is to be learned once it shows who got the request, in shadow mode.
    pub shadow: Option<Shadow>,
}

impl Decided {
    /// A decision before it is carried out, if it ever is.
    fn new(decision: &Decision, prompt_bytes: u64, fleet: &Fleet) -> Self {
        let best = decision.hosts.first().and_then(|slot| fleet.host(*slot));
        Self {
            slot: None,
            named: Vec::new(),
            address: best.map(|host| host.address.clone()).unwrap_or_default(),
            reason: Cow::Borrowed(decision.reason.as_str()),
            matched_bytes: decision.matched_bytes,
            prompt_bytes,
            shadow: None,
        }
    }
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
    worker.stats.decided(decision);
    let fleet = worker.router.fleet();
    let mut decided = Decided::new(decision, prompt_bytes, fleet);
    let addresses: Vec<&str> =
        decision.hosts.iter().filter_map(|slot| Some(fleet.host(*slot)?.address.as_str())).collect();
    let set = !addresses.is_empty()
        && host::set_header(Headers::Request, &config.destination_header, &addresses.join(","))
            .or_count()
            .is_some();
    if set {
        decided.slot = decision.hosts.first().copied();
        decided.named.clone_from(&decision.hosts);
        let change = worker.router.commit(stream, decision, now_ms);
        worker.apply(change);
    }
    publish(&decided);
    decided
}

/// Leaves the request to Envoy's own policy, and tells access logs what would have been.
pub fn shadow(decision: Decision, prompt_bytes: u64, worker: &Worker, now_ms: u64) -> Decided {
    let mut decided = Decided::new(&decision, prompt_bytes, worker.router.fleet());
    decided.reason = Cow::Owned(format!("shadow_{}", decision.reason.as_str()));
    decided.shadow = Some(Shadow::new(decision, worker, now_ms));
    publish(&decided);
    decided
}

/// Puts the decision into filter state, for access logs.
fn publish(decided: &Decided) {
    host::set_property("kvroute.host", &decided.address).or_count();
    host::set_property("kvroute.reason", &decided.reason).or_count();
    host::set_property("kvroute.matched", &decided.matched_bytes.to_string()).or_count();
    host::set_property("kvroute.prompt_bytes", &decided.prompt_bytes.to_string()).or_count();
}

/// Resumes a request whose headers are held and whose body does not come. Runs at a tick, outside the
/// stream's own callbacks.
pub fn rescue(stream: u32, config: &Config, worker: &Rc<RefCell<Worker>>) {
    let resumed = host::act_for(stream).or_count().and_then(|()| {
        decide_unread(stream, config, &mut worker.borrow_mut());
        host::resume_request().or_count()
    });
    if resumed.is_none() {
        // To be tried again: nothing else would ever send it on.
        worker.borrow_mut().waits_for_more(stream);
    }
}

fn decide_unread(stream: u32, config: &Config, worker: &mut Worker) {
    if worker.router.has(stream) {
        return;
    }
    let now_ms = now_ms();
    worker.stats.rescued.add(1);
    let decision = worker.router.decide_unread(Unread::NotHeld, true, now_ms);
    carry_out(stream, &decision, 0, config, worker, now_ms);
}
