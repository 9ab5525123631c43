//! What several tests need: prompts from bodies, fleets, and a small deterministic generator.

use kvroute::core::blocks::BlockHash;
use kvroute::core::config::{self, Config};
use kvroute::core::fleet::Slot;
use kvroute::core::prompt::{Api, Method, Outline, Prompt};
use kvroute::core::router::Router;

/// Settings with every default.
pub fn settings() -> config::Prompt {
    config(4).prompt
}

/// A configuration for `hosts` hosts.
pub fn config(hosts: usize) -> Config {
    let hosts = addresses(hosts).iter().map(|host| format!("{host:?}")).collect::<Vec<_>>().join(",");
    Config::parse(format!(r#"{{"cluster":"vllm","hosts":[{hosts}]}}"#).as_bytes()).expect("valid")
}

/// `10.0.0.1:8000` and so on.
pub fn addresses(hosts: usize) -> Vec<String> {
    (1..=hosts).map(|n| format!("10.0.{}.{}:8000", n / 250, n % 250)).collect()
}

/// A router that knows `hosts` hosts, in slots from 0 on.
pub fn router(hosts: usize) -> Router {
    let config = config(hosts);
    let mut router = Router::new(&config);
    let slots: Vec<(String, Slot)> =
        addresses(hosts).into_iter().enumerate().map(|(n, address)| (address, Slot(n as u16))).collect();
    router.configure(&config, &slots);
    router
}

/// A configuration with more in it.
pub fn config_with(more: &str) -> Config {
    let text = format!(r#"{{"cluster":"vllm","hosts":["10.0.0.1:8000"],{more}}}"#);
    Config::parse(text.as_bytes()).expect("valid")
}

/// A body read under other settings than the default, to its end.
pub fn read_with(api: Api, settings: &config::Prompt, body: &[u8]) -> Prompt {
    let mut prompt = Prompt::new(api, settings);
    prompt.feed(body);
    prompt.finish();
    prompt
}

/// A body read in one piece, to its end.
pub fn read(api: Api, body: &[u8]) -> Prompt {
    read_in_pieces(api, [body])
}

/// A body read in the given pieces, to its end.
pub fn read_in_pieces<'a>(api: Api, pieces: impl IntoIterator<Item = &'a [u8]>) -> Prompt {
    let mut prompt = Prompt::new(api, &settings());
    for piece in pieces {
        prompt.feed(piece);
    }
    prompt.finish();
    prompt
}

/// The hashes under which a prompt is known at its end.
pub fn keys(prompt: &Prompt) -> Vec<BlockHash> {
    prompt.view(true).keys().map(|(block, _)| block).collect()
}

/// Prompt bytes up to the deepest position that both prompts have in common.
pub fn common_bytes(a: &Prompt, b: &Prompt) -> u64 {
    let (a, b) = (a.view(true), b.view(true));
    let common = a.keys().zip(b.keys()).take_while(|(a, b)| a == b);
    common.last().map_or(0, |((_, bytes), _)| bytes)
}

/// Positions of a prompt at its end.
pub fn depth(prompt: &Prompt) -> usize {
    prompt.view(true).depth()
}

/// The head of a JSON request to a path.
pub fn post(path: &str) -> Method<'_> {
    Method {
        method: b"POST",
        path: path.as_bytes(),
        content_type: Some(b"application/json"),
        content_encoding: None,
        upgrade: false,
        end_of_stream: false,
    }
}

/// A chat with one system and one user message.
pub fn chat(system: &str, user: &str) -> String {
    let message = |role: &str, text: &str| serde_json::json!({"role": role, "content": text}).to_string();
    format!(r#"{{"model":"m","messages":[{},{}]}}"#, message("system", system), message("user", user))
}

/// Deterministic numbers, for tests that run on every target.
pub struct Numbers(pub u64);

impl Numbers {
    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
