//! What a worker writes into shared data is read, and whatever else stands there is survived.

use super::{memory, Source};
use kvroute::core::blocks::BlockHash;
use kvroute::core::fleet::Slot;
use kvroute::core::health::{Seen, Why};
use kvroute::core::index::Stamp;
use kvroute::core::journal::{read_bulletin, Bulletin, Holding, Inbox, Outbox, Placement};
use kvroute::core::roster::Roster;
use kvroute::core::snapshot::Snapshot;

pub fn holds(bytes: &[u8]) {
    any_value(bytes);
    what_is_written(&mut Source(bytes));
}

fn any_value(bytes: &[u8]) {
    let mut inbox = Inbox::default();
    let (told, heap) = memory::most(|| {
        let mut blocks = 0;
        let bulletin = inbox.read(bytes, |placement| blocks += placement.blocks.len());
        (blocks, bulletin)
    });
    assert!(8 * told.0 <= bytes.len());
    assert!(heap <= 16 * bytes.len() + 4_096, "{heap} bytes for {}", bytes.len());
    if told.1.is_some() {
        // Heard once is heard.
        inbox.read(bytes, |_| panic!("told twice"));
        assert_eq!(told.1, read_bulletin(bytes));
    }
    let (snapshot, heap) = memory::most(|| Snapshot::decode(bytes));
    assert!(heap <= 16 * bytes.len() + 4_096, "{heap} bytes for {}", bytes.len());
    if let Some(snapshot) = snapshot {
        // By its bytes: a NaN is no other NaN.
        let written = snapshot.encode();
        let again = Snapshot::decode(&written).expect("written");
        assert_eq!((again.encode(), again.hosts.len()), (written, snapshot.hosts.len()));
    }
    let (roster, heap) = memory::most(|| Roster::decode(bytes));
    // A host without a name is one byte there and a string here.
    assert!(heap <= 128 * bytes.len() + 4_096, "{heap} bytes for {}", bytes.len());
    if let Some(roster) = roster {
        assert_eq!(Roster::decode(&roster.encode()), Some(roster));
    }
}

fn what_is_written(source: &mut Source) {
    let mut outbox = Outbox::default();
    let mut inbox = Inbox::default();
    let worker = source.u64();
    for _ in 0..4 {
        let placements = source.list(30, placement);
        let told: Vec<&Placement> =
            placements.iter().filter(|placement| !placement.blocks.is_empty()).collect();
        placements.iter().for_each(|placement| outbox.note(placement));
        let holdings = source.list(20, |source| Holding {
            slot: Slot(source.u16()),
            requests: source.u64() as u32,
            prefill_tokens: source.u64(),
        });
        let bytes = source.list(20, |source| (Slot(source.u16()), source.u16()));
        let seen = source.list(20, |source| (Slot(source.u16()), seen(source)));
        let bulletin = Bulletin { worker, at_ms: source.u64(), holdings, bytes, seen };
        let value = outbox.publish(&bulletin);
        let mut heard = Vec::new();
        assert_eq!(inbox.read(&value, |placement| heard.push(placement)), Some(bulletin));
        assert_eq!(heard.iter().collect::<Vec<_>>(), told);
        assert_eq!(outbox.take_dropped(), 0);
    }
}

fn seen(source: &mut Source) -> Seen {
    Seen {
        failures: source.u64() as u32,
        failed_ms: source.u64(),
        until_ms: source.u64(),
        good_ms: source.u64(),
        why: Why::from_code((source.u64() % 7) as u8).expect("a code"),
    }
}

fn placement(source: &mut Source) -> Placement {
    Placement {
        slot: Slot(source.u16()),
        stamp: Stamp::from_ticks(source.u64() as u32),
        blocks: source.list(40, |source| BlockHash(source.u64())),
    }
}
