//! How do gateways learn of each other? By one worker, the leader, for all.
//!
//! It collects what this gateway's workers placed and puts it where the control listener finds it
//! ([`super::control`]), asks each peer once in an interval for what that one has collected since, and passes on to the
//! other workers what of it is news. What peers have in flight it puts into gauges, which workers read with their own, and
//! who of them is alive says which hosts this gateway fills first. A request pays for the reading of two more gauges a
//! host: the leader collects what it reads at a tick anyway.
//!
//! A peer that cannot be reached, answers something else or knows another secret is asked again in the next interval.
//! What is missed meanwhile costs hits; what it had in flight counts for nothing once it has been silent for seconds.

use super::host::{self, Buffer, Headers};
use super::shared::Shared;
use super::stats::OrCount;
use super::worker::Worker;
use crate::core::config::{self, Config};
use crate::core::fleet::{self, Part, Slot};
use crate::core::gateways::Gateways;
use crate::core::journal::{Bulletin, Outbox, Placement};
use crate::core::peers::{Incoming, Outgoing, Told, MAX_VALUE};
use std::fmt;
use std::mem;

/// Blocks that wait to be passed on to the other workers: 256 KiB, as much as one peer's answer can bring.
const MAX_NEWS: usize = 32 << 10;

/// One root's part in the exchange.
#[derive(Debug, Default)]
pub struct Peers {
    exchanging: Option<Box<Exchanging>>,
}

/// The exchange, while leading.
#[derive(Debug)]
struct Exchanging {
    gateway: u64,
    peers: Vec<Peer>,
    gateways: Gateways,
    /// What the gauges say that others have in flight, by slot.
    shown: Vec<fleet::Peers>,
    /// The round in which was published last.
    round: u64,
    /// What the other workers have not been told yet, and how many blocks that is.
    news: Vec<Placement>,
    news_blocks: usize,
    outbox: Outbox,
    /// Tells this leader's outbox from any before it.
    term: u64,
}

/// Another gateway, or this one if it is on the list.
#[derive(Debug)]
struct Peer {
    address: String,
    heard: Incoming,
    /// The round in which it was asked last.
    round: u64,
    /// The call that has not been answered.
    under_way: Option<u32>,
    /// Whether the last answer was one; `None` before the first.
    answers: Option<bool>,
}

/// Why asking a peer brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// No connection, no answer in time, nothing to tell yet, or Envoy did not take the call (0).
    Status(u32),
    /// It answers, but not to this gateway: another secret, or no control listener.
    Refused(u32),
    /// What it answers is not what gateways tell each other.
    Content,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Status(0) => f.write_str("no answer"),
            Failure::Status(status) => write!(f, "status {status}"),
            Failure::Refused(401) => f.write_str("it has another peers.secret"),
            Failure::Refused(status) => write!(f, "status {status}: no control listener of kvroute"),
            Failure::Content => f.write_str("not a journal of this version"),
        }
    }
}

impl Peers {
    /// Publishes, asks whoever is due and passes on, if this root leads.
    pub fn tick(&mut self, worker: &mut Worker, config: &Config, leads: bool, now_ms: u64) {
        let Some(settings) = config.peers.as_ref().filter(|_| leads) else {
            if self.exchanging.take().is_some() {
                worker.outgoing = None;
            }
            return;
        };
        if self.exchanging.is_none() {
            self.exchanging = Shared::gateway(worker.id)
                .map(|gateway| Box::new(Exchanging::new(gateway, settings, worker.id ^ now_ms)));
            // What another leader heard last, it heard long ago.
            worker.gauges.clear_peers();
        }
        if let Some(exchanging) = &mut self.exchanging {
            exchanging.publish(worker, settings, now_ms);
            exchanging.ask_due(worker, config, settings, now_ms);
            exchanging.pass_on(worker, now_ms);
            exchanging.gateways.forget_silent(now_ms);
            exchanging.show(worker);
        }
    }

    /// Which hosts this gateway fills first, as far as is known.
    pub fn part(&self, config: &Config) -> Option<Part> {
        if config.peers.is_none() {
            return Some(Part::ALL);
        }
        // A new leader leaves what the last one found until it has heard everybody, or has not.
        let exchanging = self.exchanging.as_ref()?;
        let has_asked = exchanging.peers.iter().all(|peer| peer.answers.is_some());
        has_asked.then(|| exchanging.gateways.part())
    }

    /// An answer to a call that this root made.
    pub fn answered(&mut self, worker: &mut Worker, token: u32, body_size: usize, now_ms: u64) {
        let Some(exchanging) = &mut self.exchanging else { return };
        let Some(place) = exchanging.peers.iter().position(|peer| peer.under_way == Some(token)) else {
            return;
        };
        let heard = answer(body_size).and_then(|value| exchanging.hear(place, &value, worker, now_ms));
        let Some(peer) = exchanging.peers.get_mut(place) else { return };
        peer.under_way = None;
        match heard {
            Ok(()) => {
                worker.stats.peers_pulled.add(1);
                peer.answers = Some(true);
            }
            Err(why) => peer.failed(worker, why),
        }
    }
}

impl Exchanging {
    fn new(gateway: u64, settings: &config::Peers, term: u64) -> Self {
        let peer = |address: &String| Peer {
            address: address.clone(),
            heard: Incoming::default(),
            round: 0,
            under_way: None,
            answers: None,
        };
        Self {
            gateway,
            peers: settings.hosts.iter().map(peer).collect(),
            gateways: Gateways::new(gateway, settings.silent_after_ms()),
            shown: Vec::new(),
            round: 0,
            news: Vec::new(),
            news_blocks: 0,
            outbox: Outbox::default(),
            term,
        }
    }

    /// Puts out, once in an interval, what has been collected.
    fn publish(&mut self, worker: &mut Worker, settings: &config::Peers, now_ms: u64) {
        let outgoing = worker.outgoing.get_or_insert_with(|| {
            // Go on where the last leader stopped.
            let published = worker.shared.journal().unwrap_or_default();
            Outgoing::new(self.gateway, settings.interval_ms, &published)
        });
        let round = now_ms / settings.interval_ms;
        if mem::replace(&mut self.round, round) != round {
            let value = outgoing.publish(worker.router.fleet());
            worker.stats.peers_untold.add(outgoing.take_untold());
            worker.shared.publish_journal(&value);
        }
    }

    fn ask_due(&mut self, worker: &Worker, config: &Config, settings: &config::Peers, now_ms: u64) {
        let (interval_ms, count) = (settings.interval_ms, self.peers.len() as u64);
        for (n, peer) in self.peers.iter_mut().enumerate() {
            // Each has its own moment in the interval.
            let round = (now_ms + interval_ms * n as u64 / count) / interval_ms;
            if peer.under_way.is_none() && mem::replace(&mut peer.round, round) != round {
                peer.ask(worker, config, settings);
            }
        }
    }

    /// Takes over what a peer tells.
    fn hear(&mut self, place: usize, value: &[u8], worker: &mut Worker, now_ms: u64) -> Result<(), Failure> {
        let router = &mut worker.router;
        let slot_of = |address: &str| router.fleet().by_address(address).map(|host| host.slot);
        let told = Told::read(value, &slot_of).ok_or(Failure::Content)?;
        let Some(peer) = self.peers.get_mut(place) else { return Ok(()) };
        if told.gateway == self.gateway {
            peer.heard.skip(&told);
            return Ok(());
        }
        let (mut placements, mut untold) = (0, 0);
        let heard = peer.heard.hear(&told, |slot, blocks| {
            placements += 1;
            let Some(news) = router.hear_from_peer(slot, blocks) else { return };
            if self.news_blocks + news.blocks.len() > MAX_NEWS {
                untold += 1;
                return;
            }
            self.news_blocks += news.blocks.len();
            self.news.push(news);
        });
        worker.stats.peers_placements.add(placements);
        worker.stats.peers_untold.add(untold);
        self.gateways.hear(told.gateway, told.in_flight, now_ms);
        self.show(worker);
        heard.ok_or(Failure::Content)
    }

    /// Sets the gauges of hosts on which others have something else in flight than before.
    fn show(&mut self, worker: &mut Worker) {
        let mut in_flight = self.gateways.in_flight();
        in_flight.resize(in_flight.len().max(self.shown.len()), fleet::Peers::default());
        for (place, now) in in_flight.iter().enumerate() {
            if self.shown.get(place).copied().unwrap_or_default() != *now {
                worker.gauges.set_peers(Slot(place as u16), *now);
            }
        }
        self.shown = in_flight;
    }

    /// Tells the other workers what is news, as much as fits into this tick.
    fn pass_on(&mut self, worker: &Worker, now_ms: u64) {
        let mut told = 0;
        for placement in &self.news {
            if !self.outbox.has_room(placement) {
                break;
            }
            self.outbox.note(placement);
            self.news_blocks -= placement.blocks.len();
            told += 1;
        }
        if told > 0 {
            self.news.drain(..told);
            let bulletin = Bulletin { worker: self.term, at_ms: now_ms, ..Bulletin::default() };
            worker.shared.publish_heard(&self.outbox.publish(&bulletin));
        }
    }
}

impl Peer {
    fn ask(&mut self, worker: &Worker, config: &Config, settings: &config::Peers) {
        let (path, bearer) = (self.heard.path(), settings.secret.bearer());
        let more = ("authorization", bearer.as_str());
        let destination = (config.destination_header.as_str(), self.address.as_str());
        self.under_way =
            host::get(&settings.cluster, destination, &path, more, settings.timeout_ms).or_count();
        if self.under_way.is_none() {
            self.failed(worker, Failure::Status(0));
        }
    }

    fn failed(&mut self, worker: &Worker, why: Failure) {
        match why {
            Failure::Status(_) => worker.stats.peers_failed.add(1),
            Failure::Refused(_) | Failure::Content => worker.stats.peers_refused.add(1),
        }
        // Once when it begins: a peer that stays away must not fill the log.
        if self.answers.replace(false) != Some(false) {
            log::warn!("kvroute: gateway {} tells nothing: {why}", self.address);
        }
    }
}

/// The value that was answered, or why there is none. To be called inside the answer's callback.
fn answer(body_size: usize) -> Result<Vec<u8>, Failure> {
    match host::status(Headers::CallResponse).or_count().unwrap_or(0) {
        200 if body_size > MAX_VALUE => Err(Failure::Content),
        200 => Ok(host::buffer(Buffer::CallResponseBody, 0, body_size).or_count().unwrap_or_default()),
        status if status / 100 == 4 => Err(Failure::Refused(status)),
        status => Err(Failure::Status(status)),
    }
}
