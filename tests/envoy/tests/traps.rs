//! What do clients notice when the filter traps, or is not there? The artifact is changed for it: one of its callbacks
//! traps, that for the trailers of a request, so that a request with trailers is the end of its VM.

use bytes::Bytes;
use fleet::{EngineOptions, Fleet};
use gateway::chat::{self, post, Chat, Reply};
use gateway::client::{pieces, Connection};
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{artifact, Envoy, Options};
use gateway::testbed::polled;
use hyper::header::HeaderValue;
use hyper::HeaderMap;
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two requests: fifty a second.
const PAUSE: Duration = Duration::from_millis(20);

/// Within this after a trap every request must be answered again.
const WINDOW: Duration = Duration::from_secs(5);

// ---- a module that traps ------------------------------------------------------------------------

/// A LEB128 number at `at`, which is moved behind it.
fn number(wasm: &[u8], at: &mut usize) -> usize {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = wasm[*at];
        *at += 1;
        value |= usize::from(byte & 0x7F) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

/// The start of a section's content, behind its length.
fn section(wasm: &[u8], id: u8) -> usize {
    let mut at = 8;
    loop {
        let found = wasm[at] == id;
        at += 1;
        let length = number(wasm, &mut at);
        if found {
            return at;
        }
        at += length;
    }
}

/// How many functions a module imports: theirs are the first numbers.
fn imported_functions(wasm: &[u8]) -> usize {
    let mut at = section(wasm, 2);
    let imports = number(wasm, &mut at);
    for _ in 0..imports {
        for _module_and_name in 0..2 {
            let length = number(wasm, &mut at);
            at += length;
        }
        assert_eq!(wasm[at], 0, "only functions are imported");
        at += 1;
        number(wasm, &mut at);
    }
    imports
}

/// The number of an exported function.
fn exported_function(wasm: &[u8], wanted: &str) -> usize {
    let mut at = section(wasm, 7);
    for _ in 0..number(wasm, &mut at) {
        let length = number(wasm, &mut at);
        let name = &wasm[at..at + length];
        let kind = wasm[at + length];
        at += length + 1;
        let index = number(wasm, &mut at);
        if kind == 0 && name == wanted.as_bytes() {
            return index;
        }
    }
    panic!("{wanted} is not exported");
}

/// Replaces the body of an exported function by a trap, in as many bytes.
fn let_trap(wasm: &mut [u8], function: &str) {
    const UNREACHABLE: u8 = 0x00;
    const NOP: u8 = 0x01;
    const END: u8 = 0x0B;
    let index = exported_function(wasm, function) - imported_functions(wasm);
    let mut at = section(wasm, 10);
    number(wasm, &mut at);
    for _ in 0..index {
        let length = number(wasm, &mut at);
        at += length;
    }
    let length = number(wasm, &mut at);
    let body = &mut wasm[at..at + length];
    body.fill(NOP);
    // No locals, then the trap.
    body[0] = 0;
    body[1] = UNREACHABLE;
    body[length - 1] = END;
}

// ---- an Envoy with it ---------------------------------------------------------------------------

fn wasm_config(manager: &mut Value) -> &mut Value {
    let filters = manager["http_filters"].as_array_mut().unwrap();
    let filter = filters.iter_mut().find(|filter| filter["name"] == "kvroute").unwrap();
    &mut filter["typed_config"]["config"]
}

async fn start(fleet: &Fleet, module: &Path, policy: &str) -> (Envoy, SocketAddr) {
    let config = Config::quick_start().unwrap().hosts(&fleet.addresses()).edit_manager(|manager| {
        let wasm = wasm_config(manager);
        wasm["failure_policy"] = json!(policy);
        wasm["vm_config"]["code"]["local"]["filename"] = json!(module);
    });
    // One worker: the VM that traps is the one that all requests meet.
    let envoy = Envoy::start(&config, &Options::workers(1)).await.unwrap();
    polled(fleet).await.unwrap();
    let address = envoy.listener(KVROUTE).await.unwrap();
    (envoy, address)
}

/// A request that makes the module trap: one with trailers.
async fn trap(address: SocketAddr) -> Option<Reply> {
    let trailers = HeaderMap::from_iter([("x-check".parse().unwrap(), HeaderValue::from_static("1"))]);
    let body = Chat::new("You are brief.").user("Goodbye").body();
    let mut request = post(chat::PATH, pieces(vec![body, Bytes::new()], Some(trailers)));
    *request.uri_mut() = format!("http://llm{}", chat::PATH).parse().unwrap();
    request.headers_mut().remove("host");
    let mut connection = Connection::open_http2(address).await.unwrap();
    chat::send(&mut connection, request).await.ok()
}

/// Sends fifty requests a second until `end`; returns when each was sent, and whether it was answered well.
async fn ask(address: SocketAddr, end: Instant) -> Vec<(Instant, Option<Reply>)> {
    let mut asked = Vec::new();
    let mut pace = tokio::time::interval(PAUSE);
    for number in 0.. {
        pace.tick().await;
        let sent = Instant::now();
        if sent > end {
            break;
        }
        asked.push(tokio::spawn(async move {
            let chat = Chat::new("You are brief.").user(&format!("Question {number}?")).unstreamed();
            (sent, chat.post(address).await.ok().filter(Reply::is_complete))
        }));
    }
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await.unwrap());
    }
    answers
}

/// Traps once under load. Returns what was sent after it, by how long after, and the Envoy.
async fn trap_once(policy: &str) -> (Vec<(Duration, Option<Reply>)>, Envoy) {
    let home = tempfile::tempdir().unwrap();
    let module = home.path().join("trapping.wasm");
    let mut wasm = std::fs::read(artifact().unwrap()).unwrap();
    let_trap(&mut wasm, "proxy_on_request_trailers");
    std::fs::write(&module, wasm).unwrap();
    let fleet = Fleet::start(3, EngineOptions::default()).await.unwrap();
    let (envoy, address) = start(&fleet, &module, policy).await;

    let begin = Instant::now();
    let asked = tokio::spawn(ask(address, begin + Duration::from_secs(2) + WINDOW));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let answer = trap(address).await;
    let trapped = Instant::now();
    assert!(envoy.log().contains("unreachable"), "it did not trap: {answer:?}");
    let (before, after): (Vec<_>, Vec<_>) =
        asked.await.unwrap().into_iter().partition(|(sent, _)| *sent < trapped);
    let well = before.iter().filter(|(_, reply)| reply.is_some()).count();
    assert!(before.len() > 20 && well + 10 >= before.len(), "{well} of {} before it", before.len());
    assert!(after.len() > 200);
    (after.into_iter().map(|(sent, reply)| (sent - trapped, reply)).collect(), envoy)
}

/// C35
#[tokio::test(flavor = "multi_thread")]
async fn after_a_trap_a_new_filter_routes_within_seconds() {
    let (after, envoy) = trap_once("FAIL_RELOAD").await;
    let failed: Vec<Duration> =
        after.iter().filter(|(_, reply)| reply.is_none()).map(|(since, _)| *since).collect();
    assert!(failed.iter().all(|since| *since <= WINDOW), "{failed:?}");
    let routed = after.iter().filter(|(since, _)| *since > WINDOW);
    assert!(routed.clone().count() > 20);
    for (since, reply) in routed {
        assert!(!reply.as_ref().unwrap().decided().is_empty(), "not routed {since:?} after the trap");
    }
    let stats = envoy.admin().stats().await.unwrap();
    assert!(stats.in_flight().iter().all(|(_, count)| *count < 1 << 32), "{:?}", stats.in_flight());
}

/// C35
#[tokio::test(flavor = "multi_thread")]
async fn failed_open_no_request_fails_after_the_trap() {
    let (after, _envoy) = trap_once("FAIL_OPEN").await;
    let failed = after.iter().filter(|(_, reply)| reply.is_none()).count();
    assert_eq!(failed, 0, "of {}", after.len());
    let engines: BTreeSet<&str> =
        after.iter().filter_map(|(_, reply)| Some(reply.as_ref()?.engine())).collect();
    assert_eq!(engines.len(), 3, "the fallback policy balances");
}

/// C35
#[tokio::test(flavor = "multi_thread")]
async fn without_the_filter_the_fallback_policy_balances_whatever_host_is_named() {
    let fleet = Fleet::start(3, EngineOptions::default()).await.unwrap();
    let config = Config::quick_start().unwrap().hosts(&fleet.addresses()).edit_manager(|manager| {
        manager["http_filters"].as_array_mut().unwrap().retain(|filter| filter["name"] != "kvroute");
    });
    let envoy = Envoy::start(&config, &Options::default()).await.unwrap();
    let address = envoy.listener(KVROUTE).await.unwrap();
    for named in [None, Some("192.0.2.66:8000"), Some("nonsense"), Some("")] {
        let mut engines = BTreeSet::new();
        for number in 0..40 {
            let mut request = Chat::new("You are brief.").user(&format!("Question {number}?")).request();
            if let Some(named) = named {
                request.headers_mut().insert("x-upstream-host", HeaderValue::from_static(named));
            }
            let mut connection = Connection::open(address).await.unwrap();
            let reply = chat::send(&mut connection, request).await.unwrap();
            assert!(reply.is_complete(), "{named:?}: {}", reply.status);
            engines.insert(reply.engine().to_owned());
        }
        assert_eq!(engines.len(), 3, "{named:?}");
    }
}
