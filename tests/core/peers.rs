//! What one gateway tells is what another hears: once, by its own slots, whatever is lost or damaged between.

use super::support::{addresses, chat, read, router, Numbers};
use super::test;
use kvroute::core::blocks::BlockHash;
use kvroute::core::fleet::{Fleet, Slot};
use kvroute::core::journal::{Holding, Inbox, Outbox};
use kvroute::core::peers::{Incoming, Outgoing, Told, MAX_VALUE};
use kvroute::core::prompt::{Api, Outline};
use kvroute::core::route::{Reason, Walk};
use kvroute::core::router::Router;

type Heard = Vec<(u16, Vec<u64>)>;

/// Hosts 0 to 3 under the given slots.
fn fleet(slots: [u16; 4]) -> Fleet {
    let mut fleet = Fleet::default();
    fleet.assign(&addresses(4).into_iter().zip(slots.map(Slot)).collect::<Vec<_>>(), 400_000);
    fleet
}

fn here() -> Fleet {
    fleet([0, 1, 2, 3])
}

fn outgoing(gateway: u64) -> Outgoing {
    Outgoing::new(gateway, 1_000, &[])
}

fn blocks(n: u64) -> Vec<BlockHash> {
    (0..5).map(|block| BlockHash(100 * n + block)).collect()
}

fn placed(n: u64) -> (u16, Vec<u64>) {
    ((n % 4) as u16, blocks(n).into_iter().map(|block| block.0).collect())
}

fn note(outgoing: &mut Outgoing, n: u64) {
    outgoing.note(Slot((n % 4) as u16), &blocks(n));
}

fn told<'a>(value: &'a [u8], fleet: &Fleet) -> Option<Told<'a>> {
    Told::read(value, &|address| fleet.by_address(address).map(|host| host.slot))
}

fn hear_by(incoming: &mut Incoming, value: &[u8], fleet: &Fleet) -> Heard {
    let mut heard = Heard::new();
    if let Some(told) = told(value, fleet) {
        incoming
            .hear(&told, |slot, blocks| heard.push((slot.0, blocks.iter().map(|block| block.0).collect())));
    }
    heard
}

fn hear(incoming: &mut Incoming, value: &[u8]) -> Heard {
    hear_by(incoming, value, &here())
}

/// Nothing is in flight.
fn idle(slot: Slot) -> Holding {
    Holding { slot, ..Holding::default() }
}

/// What a peer that asks is answered.
fn answer(incoming: &Incoming, value: &[u8]) -> Vec<u8> {
    let path = incoming.path();
    let asked = Incoming::asked(path.as_bytes()).expect("the path");
    assert_eq!(asked, *incoming);
    asked.select(value, idle).expect("a value")
}

#[test]
fn a_placement_is_heard_once_by_each_peer() {
    let mut outgoing = outgoing(1);
    let (mut prompt_peer, mut late_peer) = (Incoming::default(), Incoming::default());
    let mut late = Heard::new();
    for n in 0..12 {
        note(&mut outgoing, n);
        let value = outgoing.publish(&here());
        assert_eq!(hear(&mut prompt_peer, &value), [placed(n)]);
        assert_eq!(hear(&mut prompt_peer, &value), []);
        if n % 3 == 2 {
            late.extend(hear(&mut late_peer, &value));
        }
    }
    assert_eq!(late, (0..12).map(placed).collect::<Heard>());
}

#[test]
fn a_peer_that_asks_is_sent_only_what_it_has_not_heard() {
    let mut outgoing = outgoing(1);
    let mut peer = Incoming::default();
    for n in 0..8 {
        note(&mut outgoing, n);
        let value = outgoing.publish(&here());
        if n % 2 == 0 {
            continue;
        }
        let sent = answer(&peer, &value);
        assert!(n == 1 || sent.len() < value.len());
        assert_eq!(hear(&mut peer, &sent), [placed(n - 1), placed(n)]);
    }
    let value = outgoing.publish(&here());
    let sent = answer(&peer, &value);
    assert_eq!(hear(&mut peer, &sent), []);
    // Whoever heard another process, or nothing, is sent all there is.
    let mut stranger = Incoming::default();
    let sent = answer(&stranger, &value);
    assert_eq!(hear(&mut stranger, &sent), (5..8).map(placed).collect::<Heard>());
}

#[test]
fn hosts_are_known_by_address_whatever_their_slots() {
    let mut outgoing = outgoing(1);
    (0..4).for_each(|n| note(&mut outgoing, n));
    let value = outgoing.publish(&here());
    let mut elsewhere = fleet([7, 3, 900, 0]);
    let heard = hear_by(&mut Incoming::default(), &value, &elsewhere);
    assert_eq!(heard.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [7, 3, 900, 0]);
    // A host that is not known here is none of this gateway's business.
    elsewhere.assign(&[(addresses(4)[2].clone(), Slot(5))], 400_000);
    assert_eq!(hear_by(&mut Incoming::default(), &value, &elsewhere), [(5, placed(2).1)]);
}

#[test]
fn a_peer_tells_what_it_has_in_flight() {
    let mut theirs = here();
    let host = theirs.host_mut(Slot(2)).expect("four hosts");
    (host.own.requests, host.own.prefill_tokens) = (7, 9_000);
    let value = outgoing(1).publish(&theirs);
    let ours = fleet([9, 8, 7, 6]);
    let in_flight = told(&value, &ours).expect("a value").in_flight;
    assert_eq!(in_flight.len(), 4);
    assert!(in_flight.contains(&Holding { slot: Slot(7), requests: 7, prefill_tokens: 9_000 }));
}

#[test]
fn an_answer_tells_what_is_in_flight_now_and_names_no_host_without_need() {
    let mut outgoing = outgoing(1);
    note(&mut outgoing, 3);
    let value = outgoing.publish(&here());
    let mut peer = Incoming::default();
    let now = |slot| Holding { slot, requests: u32::from(slot == Slot(1)), prefill_tokens: 0 };
    let fleet = here();
    // One has something in flight, the other was placed on.
    let answer = peer.select(&value, now).expect("a value");
    let busy = |slot, requests| Holding { slot: Slot(slot), requests, prefill_tokens: 0 };
    assert_eq!(told(&answer, &fleet).expect("a value").in_flight, [busy(1, 1), busy(3, 0)]);
    assert_eq!(hear(&mut peer, &answer), [placed(3)]);
    let answer = peer.select(&value, now).expect("a value");
    assert_eq!(told(&answer, &fleet).expect("a value").in_flight, [busy(1, 1)]);
    let answer = peer.select(&value, idle).expect("a value");
    assert!(answer.len() < 20, "{}", answer.len());
    assert_eq!(told(&answer, &fleet).expect("a value").in_flight, []);
}

#[test]
fn a_restarted_peer_is_heard_from_its_start() {
    let mut peer = Incoming::default();
    let mut old = outgoing(1);
    (0..9).for_each(|n| {
        note(&mut old, n);
        hear(&mut peer, &old.publish(&here()));
    });
    let mut new = outgoing(2);
    note(&mut new, 50);
    let value = new.publish(&here());
    let sent = answer(&peer, &value);
    assert_eq!(hear(&mut peer, &sent), [placed(50)]);
}

#[test]
fn what_another_worker_told_before_is_gone_on_with() {
    let mut peer = Incoming::default();
    let mut first = outgoing(1);
    note(&mut first, 0);
    hear(&mut peer, &first.publish(&here()));
    note(&mut first, 1);
    let published = first.publish(&here());
    let mut second = Outgoing::new(1, 1_000, &published);
    note(&mut second, 2);
    assert_eq!(hear(&mut peer, &second.publish(&here())), [placed(1), placed(2)]);
    // Another process's value, or none at all, is nothing to go on with.
    for published in [published.as_slice(), b"", b"\x01\x02"] {
        let mut other = Outgoing::new(3, 1_000, published);
        note(&mut other, 3);
        assert_eq!(hear(&mut Incoming::default(), &other.publish(&here())), [placed(3)]);
    }
}

#[test]
fn ones_own_value_is_recognised_and_not_asked_for_again() {
    let mut outgoing = outgoing(1);
    note(&mut outgoing, 0);
    let value = outgoing.publish(&here());
    let fleet = here();
    let own = told(&value, &fleet).expect("a value");
    assert_eq!(own.gateway, 1);
    let mut cursor = Incoming::default();
    cursor.skip(&own);
    assert!(answer(&cursor, &value).len() < value.len());
    assert_eq!(hear(&mut cursor, &value), []);
}

#[test]
fn what_has_no_room_is_counted_not_told() {
    for interval_ms in [100, 1_000, 60_000] {
        let mut outgoing = Outgoing::new(1, interval_ms, &[]);
        let mut peer = Incoming::default();
        let mut told = 0;
        for _ in 0..50 {
            (0..5_000).for_each(|n| note(&mut outgoing, n));
            let value = outgoing.publish(&here());
            assert!(value.len() <= MAX_VALUE, "{}", value.len());
            told += hear(&mut peer, &value).len() as u64;
        }
        assert_eq!(told + outgoing.take_untold(), 50 * 5_000);
    }
}

#[test]
fn the_largest_fleet_fits() {
    let hosts: Vec<(String, Slot)> =
        (0..1_024).map(|n| (format!("[2001:db8:1111:2222:3333:4444:5555:{n:04x}]:65535"), Slot(n))).collect();
    let mut fleet = Fleet::default();
    fleet.assign(&hosts, 400_000);
    let mut outgoing = outgoing(1);
    let mut value = Vec::new();
    for _ in 0..8 {
        (0..5_000).for_each(|n| note(&mut outgoing, n));
        value = outgoing.publish(&fleet);
    }
    assert!(value.len() <= MAX_VALUE, "{}", value.len());
    assert_eq!(told(&value, &fleet).expect("a value").in_flight.len(), 1_024);
}

#[test]
fn batches_last_for_seconds_however_often_they_are_made() {
    for (interval_ms, kept) in [(100, 40), (500, 8), (1_000, 4), (30_000, 4)] {
        let mut outgoing = Outgoing::new(1, interval_ms, &[]);
        let mut value = Vec::new();
        for n in 0..60 {
            note(&mut outgoing, n);
            value = outgoing.publish(&here());
        }
        assert_eq!(hear(&mut Incoming::default(), &value), (60 - kept..60).map(placed).collect::<Heard>());
        // And no longer: who heard it later would take it for new.
        (0..kept).for_each(|_| value = outgoing.publish(&here()));
        assert_eq!(hear(&mut Incoming::default(), &value), []);
    }
}

#[test]
fn a_value_cut_short_or_damaged_is_survived() {
    let mut outgoing = outgoing(1);
    for n in 0..6 {
        note(&mut outgoing, n);
        note(&mut outgoing, n + 50);
        outgoing.publish(&here());
    }
    let value = outgoing.publish(&here());
    let mut numbers = Numbers(9);
    for len in 0..value.len() {
        let heard = hear(&mut Incoming::default(), &value[..len]);
        assert!(heard.len() < 8, "{len}");
        for _ in 0..8 {
            let mut damaged = value[..len].to_vec();
            if let Some(byte) = damaged.get_mut(numbers.below(len.max(1) as u64) as usize) {
                *byte ^= 1 << numbers.below(8);
            }
            let mut peer = Incoming::default();
            hear(&mut peer, &damaged);
            let _ = peer.select(&damaged, idle);
            // And the undamaged one is still read.
            hear(&mut peer, &value);
            let _ = Outgoing::new(1, 1_000, &damaged).publish(&here());
        }
    }
}

#[test]
fn noise_is_survived() {
    let mut numbers = Numbers(10);
    for n in 0..20_000 {
        let len = numbers.below(200) as usize;
        let mut noise: Vec<u8> = (0..len).map(|_| numbers.next() as u8).collect();
        if let Some(version) = noise.first_mut().filter(|_| n % 2 == 0) {
            *version = 1;
        }
        if n % 4 == 0 {
            // No hosts: what follows is taken for batches.
            noise.get_mut(17..19).into_iter().for_each(|count| count.fill(0));
        }
        let mut peer = Incoming::default();
        hear(&mut peer, &noise);
        assert!(peer.select(&noise, idle).is_none_or(|selected| selected.len() <= noise.len()));
        let _ = Outgoing::new(1, 1_000, &noise);
    }
    assert!(told(b"", &here()).is_none());
    for query in ["", "?", "?after", "?gateway=x&after=-", "?after=99999999999999999999", "?gateway==&&after"]
    {
        let path = format!("/kvroute/journal{query}");
        assert_eq!(Incoming::asked(path.as_bytes()), Some(Incoming::default()), "{query}");
    }
    for path in ["", "/", "/kvroute", "/kvroute/journal/", "/kvroute/journals?after=1", "kvroute/journal"] {
        assert_eq!(Incoming::asked(path.as_bytes()), None, "{path}");
    }
}

/// One worker of a gateway that exchanges with others.
struct Gateway {
    router: Router,
    outbox: Inbox,
    outgoing: Outgoing,
}

impl Gateway {
    fn new(id: u64) -> Self {
        Self { router: router(4), outbox: Inbox::default(), outgoing: outgoing(id) }
    }

    fn publish(&mut self) -> Vec<u8> {
        let value = self.router.publish(1, 1_000);
        self.outbox.read(&value, |placement| self.outgoing.note(placement.slot, &placement.blocks));
        self.outgoing.publish(self.router.fleet())
    }

    fn hear(&mut self, peer: &mut Incoming, value: &[u8]) -> usize {
        let fleet = self.router.fleet();
        let told =
            Told::read(value, &|address| fleet.by_address(address).map(|host| host.slot)).expect("a value");
        let mut news = 0;
        peer.hear(&told, |slot, blocks| {
            news += usize::from(self.router.hear_from_peer(slot, blocks).is_some())
        });
        news
    }
}

#[test]
fn another_gateway_routes_by_what_it_heard_and_tells_nobody() {
    let (mut a, mut b) = (Gateway::new(1), Gateway::new(2));
    let prompt = read(Api::Chat, chat(&"system prompt ".repeat(300), "question").as_bytes());
    let decide = |router: &Router| {
        let mut walk = Walk::default();
        router.advance(&mut walk, &prompt, true);
        router.decide(&walk, &prompt, prompt.bytes(), 5_000)
    };
    // Where the other, knowing nothing, would not send it.
    let unexpected = (0..4).map(Slot).find(|slot| *slot != decide(&b.router).hosts[0]).expect("four hosts");
    a.router.remember(unexpected, &prompt, &mut Default::default(), true);
    let value = a.publish();
    assert_eq!(b.hear(&mut Incoming::default(), &value), 1);
    let decision = decide(&b.router);
    assert_eq!((decision.hosts[0], decision.reason), (unexpected, Reason::Prefix));
    // Hearing it again is no news, and what was heard is not told on.
    assert_eq!(b.hear(&mut Incoming::default(), &value), 0);
    assert_eq!(hear(&mut Incoming::default(), &b.publish()), []);
}

#[test]
fn what_was_news_reaches_the_other_workers_of_the_gateway() {
    let mut a = Gateway::new(1);
    let (mut leader, mut other) = (router(4), router(4));
    let prompt = read(Api::Chat, chat(&"system prompt ".repeat(300), "question").as_bytes());
    a.router.remember(Slot(3), &prompt, &mut Default::default(), true);
    let value = a.publish();
    let fleet = here();
    let mut passed_on = Outbox::default();
    Incoming::default().hear(&told(&value, &fleet).expect("a value"), |slot, blocks| {
        leader.hear_from_peer(slot, blocks).iter().for_each(|placement| passed_on.note(placement));
    });
    let bulletin = kvroute::core::journal::Bulletin { worker: 1, ..Default::default() };
    Inbox::default().read(&passed_on.publish(&bulletin), |placement| other.hear(&placement));
    let mut walk = Walk::default();
    other.advance(&mut walk, &prompt, true);
    assert!(walk.matched(Slot(3)) > 0);
}
