//! A body says the same however it is cut, as every API, and reading it takes little memory.

use super::{memory, ways_of_cutting};
use kvroute::core::config;
use kvroute::core::prompt::{Api, Outline, Position, Prompt, Seeds, Unread};

/// Every shape of body.
const APIS: [Api; 2] = [Api::Chat, Api::Completions];

/// The most heap that reading a body takes: positions, open containers, a key, and the digests of what seeds it.
const MOST_HEAP: usize = 16 << 10;

pub fn holds(bytes: &[u8]) {
    let ways = ways_of_cutting(bytes);
    for api in APIS {
        for block_bytes in [32, 256] {
            let settings = config::Prompt { block_bytes, hold_bytes: 0, max_bytes: 1 << 20 };
            let whole = read(api, &settings, &ways[0]);
            assert!(whole.positions.len() < 64);
            assert!(whole.positions.is_sorted_by_key(|position| position.bytes));
            for way in &ways[1..] {
                assert_eq!(read(api, &settings, way), whole, "{api:?} {way:?}");
            }
        }
    }
}

/// All that is known of a body at its end.
#[derive(Debug, PartialEq)]
struct Read {
    positions: Vec<Position>,
    seeds: Seeds,
    bytes: u64,
    tools_bytes: u64,
    is_token_ids: bool,
    model: u64,
    unread: Option<Unread>,
    is_broken: bool,
    wants_stream: bool,
}

fn read(api: Api, settings: &config::Prompt, pieces: &[&[u8]]) -> Read {
    let (prompt, heap) = memory::most(|| {
        let mut prompt = Prompt::new(api, settings);
        pieces.iter().for_each(|piece| prompt.feed(piece));
        prompt.finish();
        prompt
    });
    assert!(heap < MOST_HEAP, "{heap} bytes");
    Read {
        positions: prompt.positions().to_vec(),
        seeds: prompt.seeds(),
        bytes: prompt.bytes(),
        tools_bytes: prompt.tools_bytes(),
        is_token_ids: prompt.is_token_ids(),
        model: prompt.model(),
        unread: prompt.unread(),
        is_broken: prompt.is_broken(),
        wants_stream: prompt.wants_stream(),
    }
}
