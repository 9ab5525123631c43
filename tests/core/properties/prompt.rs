//! A body says the same however it is cut, as every API, and reading it takes little memory.

use super::{memory, ways_of_cutting};
use kvroute::core::blocks::BlockHash;
use kvroute::core::config::{self, Config};
use kvroute::core::prompt::{Api, Outline, Prompt, Unread};

/// The most heap that reading a body takes: positions, open containers, a key, and the digests of what seeds it.
const MOST_HEAP: usize = 16 << 10;

pub fn holds(bytes: &[u8]) {
    let ways = ways_of_cutting(bytes);
    for api in Api::ALL {
        for settings in [
            r#""block_bytes":32,"hold_bytes":0,"leave_out":["nonce:*", "Now*."]"#,
            r#""block_bytes":256,"tools":"after_system""#,
        ] {
            let settings = settings_with(settings);
            let whole = read(api, &settings, &ways[0]);
            assert!(whole.keys.len() < 128, "three parts of 40 at most");
            assert!(whole.keys.is_sorted_by_key(|(_, bytes)| *bytes));
            for way in &ways[1..] {
                assert_eq!(read(api, &settings, way), whole, "{api:?} {way:?}");
            }
        }
    }
}

fn settings_with(settings: &str) -> config::Prompt {
    let text = format!(r#"{{"cluster":"c","hosts":["10.0.0.1:80"],"prompt":{{{settings}}}}}"#);
    Config::parse(text.as_bytes()).expect("valid").prompt
}

/// All that is known of a body at its end.
#[derive(Debug, PartialEq)]
struct Read {
    keys: Vec<(BlockHash, u64)>,
    early: Vec<(BlockHash, u64)>,
    assumed: Vec<BlockHash>,
    bytes: u64,
    session: Option<u64>,
    previous_response: Option<u64>,
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
        keys: prompt.view(true).keys().collect(),
        early: prompt.view(false).keys().collect(),
        assumed: prompt.view(true).assumed().collect(),
        bytes: prompt.bytes(),
        session: prompt.session(),
        previous_response: prompt.previous_response(),
        is_token_ids: prompt.is_token_ids(),
        model: prompt.model(),
        unread: prompt.unread(),
        is_broken: prompt.is_broken(),
        wants_stream: prompt.wants_stream(),
    }
}
