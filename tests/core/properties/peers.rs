//! What a gateway tells is heard by another, once and by address, and whatever else a peer answers is survived.

use super::{memory, Source};
use kvroute::core::blocks::BlockHash;
use kvroute::core::config::MAX_HOSTS;
use kvroute::core::fleet::{Fleet, Slot};
use kvroute::core::journal::Holding;
use kvroute::core::peers::{Incoming, Outgoing, Told, MAX_VALUE};

/// Hosts that both gateways know.
const HOSTS: u16 = 6;

pub fn holds(bytes: &[u8]) {
    any_value(bytes);
    any_path(bytes);
    what_is_told(&mut Source(bytes));
}

fn address(host: u16) -> String {
    format!("10.0.0.{host}:80")
}

/// The hosts, in slots from `first` on.
fn fleet(first: u16) -> Fleet {
    let mut fleet = Fleet::default();
    let slots: Vec<_> = (0..HOSTS).map(|host| (address(host), Slot(first + host))).collect();
    fleet.assign(&slots, 400_000);
    fleet
}

fn any_value(bytes: &[u8]) {
    let fleet = fleet(0);
    let slot_of = |address: &str| fleet.by_address(address).map(|host| host.slot);
    let (placed, heap) = memory::most(|| {
        let mut blocks = 0;
        let told = Told::read(bytes, &slot_of)?;
        Incoming::default().hear(&told, |_, placed| blocks += placed.len())?;
        Some(blocks)
    });
    assert!(8 * placed.unwrap_or(0) <= bytes.len());
    assert!(heap <= 16 * bytes.len() + 8 * MAX_HOSTS + 4_096, "{heap} bytes for {}", bytes.len());
    let idle = |slot| Holding { slot, ..Holding::default() };
    let (selected, heap) = memory::most(|| Incoming::default().select(bytes, idle));
    assert!(heap <= 16 * bytes.len() + 8 * MAX_HOSTS + 4_096, "{heap} bytes for {}", bytes.len());
    if let Some(selected) = selected {
        assert!(selected.len() <= bytes.len());
        assert!(Told::read(&selected, &slot_of).is_some());
    }
    // A collector that takes over goes on from it, whatever it is.
    let value = Outgoing::new(1, 100, bytes).publish(&fleet);
    assert!(Told::read(&value, &slot_of).is_some() && value.len() <= MAX_VALUE.max(2 * bytes.len()));
}

fn any_path(bytes: &[u8]) {
    for path in [bytes, &[b"/kvroute/journal".as_slice(), bytes].concat()] {
        if let Some(asked) = Incoming::asked(path) {
            assert_eq!(Incoming::asked(asked.path().as_bytes()), Some(asked));
        }
    }
}

fn what_is_told(source: &mut Source) {
    let (ours, theirs) = (fleet(0), fleet(source.u16() % 1_000));
    let first = theirs.hosts().first().map_or(0, |host| host.slot.0);
    let slot_of = |address: &str| ours.by_address(address).map(|host| host.slot);
    let mut outgoing = Outgoing::new(source.u64(), 1_000, &[]);
    let mut peer = Incoming::default();
    for _ in 0..4 {
        let placements = source
            .list(30, |source| (source.u16() % HOSTS, source.list(40, |source| BlockHash(source.u64()))));
        placements.iter().for_each(|(host, blocks)| outgoing.note(Slot(first + host), blocks));
        let value = outgoing.publish(&theirs);
        let asked = Incoming::asked(peer.path().as_bytes()).expect("a path");
        let answer = asked.select(&value, |slot| Holding { slot, ..Holding::default() }).expect("a value");
        let told = Told::read(&answer, &slot_of).expect("a value");
        let mut heard = Vec::new();
        assert_eq!(peer.hear(&told, |slot, blocks| heard.push((slot.0, blocks.to_vec()))), Some(()));
        let expected: Vec<_> = placements.into_iter().filter(|(_, blocks)| !blocks.is_empty()).collect();
        assert_eq!(heard, expected);
        assert_eq!(peer.hear(&told, |_, _| panic!("heard twice")), Some(()));
        assert_eq!(outgoing.take_untold(), 0);
    }
}
