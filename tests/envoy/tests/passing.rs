//! Is the filter harmless to everything that is not a prompt? It passes, is spread by load, and what names a session
//! stays together though its body is not read.

use bytes::Bytes;
use flate2::write::GzEncoder;
use flate2::Compression;
use fleet::EngineOptions;
use gateway::chat::{self, absolute, post, Chat, Reply};
use gateway::client::{empty, pieces, whole, Body, Connection};
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::workload::text::text;
use hyper::header::{HeaderValue, CONTENT_ENCODING, CONTENT_TYPE};
use hyper::Request;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use xxhash_rust::xxh3::xxh3_64;

/// Far longer than any of these takes: what is not there by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

const ENGINES: usize = 4;

async fn gateway() -> Testbed {
    Testbed::start(ENGINES, EngineOptions::default(), Options::workers(2)).await.unwrap()
}

fn digest(body: &[u8]) -> String {
    format!("{:016x}", xxh3_64(body))
}

/// APIs whose prompts leave nothing in a cache that another request could use, with a body that begins like all others.
fn without_reuse(lead: &str, n: usize) -> [(&'static str, Value); 9] {
    let document = format!("{lead} Document {n}.");
    [
        ("/v1/embeddings", json!({"model": "mock", "input": [lead, document]})),
        ("/pooling", json!({"model": "mock", "input": document})),
        ("/classify", json!({"model": "mock", "input": [document]})),
        ("/v1/score", json!({"model": "mock", "text_1": lead, "text_2": [document]})),
        ("/v1/rerank", json!({"model": "mock", "query": lead, "documents": [document, "Other."]})),
        ("/tokenize", json!({"model": "mock", "prompt": document})),
        ("/detokenize", json!({"model": "mock", "tokens": [1_000 + n, 2, 3]})),
        ("/v1/chat/completions/render", json!({"messages": [{"role": "user", "content": document}]})),
        (
            "/v1/messages/count_tokens",
            json!({"model": "mock", "messages": [{"role": "user", "content": document}]}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_cache_helps_is_spread_by_load_and_counted() {
    const ROUNDS: usize = 8;
    let testbed = gateway().await;
    let lead = text(&mut ChaCha8Rng::seed_from_u64(90), 4_000);
    let mut placed: BTreeMap<&'static str, BTreeMap<String, usize>> = BTreeMap::new();
    let mut sent = 0;
    for round in 0..ROUNDS {
        // All of a round at once: what is in flight decides.
        let requests = without_reuse(&lead, round).into_iter().flat_map(|request| [request.clone(), request]);
        let asked = requests.map(|(path, body)| {
            let address = testbed.address;
            tokio::spawn(async move {
                let body = Bytes::from(body.to_string());
                let mut request = post(path, whole(body.clone()));
                request.headers_mut().insert("x-mock-delay-ms", HeaderValue::from_static("50"));
                let mut connection = Connection::open(address).await.unwrap();
                (path, body, chat::send(&mut connection, request).await.unwrap())
            })
        });
        for reply in asked.collect::<Vec<_>>() {
            let (path, body, reply) =
                tokio::time::timeout(HANGS_AFTER, reply).await.expect("it hangs").unwrap();
            // The mock engines render no chats.
            let expected = if path.ends_with("/render") { 404 } else { 200 };
            assert_eq!(reply.status, expected, "{path}: {:?}", reply.body);
            assert_eq!(reply.header("x-mock-body-digest"), digest(&body), "{path}");
            assert_eq!(reply.header("x-kvroute-reason"), "no_reuse", "{path}");
            *placed.entry(path).or_default().entry(reply.engine().to_owned()).or_default() += 1;
            sent += 1;
        }
    }
    let mut total: BTreeMap<&String, usize> = BTreeMap::new();
    for (path, hosts) in &placed {
        assert!(hosts.len() > 1, "all of {path} went to {hosts:?}");
        hosts.iter().for_each(|(host, count)| *total.entry(host).or_default() += count);
    }
    for (host, count) in &total {
        let percent = count * 100 / sent;
        assert!((15..=35).contains(&percent), "{host} has {percent} % of {total:?}");
    }
    testbed.released().await.unwrap();
    let stats = testbed.stats().await.unwrap();
    assert_eq!(stats.value("wasmcustom.kvroute_requests_no_reuse_total"), sent as u64);
    assert_eq!(stats.value("wasmcustom.kvroute_requests_prefix_total"), 0);
}

fn gzip(plain: &[u8]) -> Bytes {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(plain).unwrap();
    packed.finish().unwrap().into()
}

/// A chat, packed. The mock engines cannot read it: they are asked for a 200 all the same.
fn packed_chat(seed: u64) -> (Bytes, Request<Body>) {
    let chat = Chat::new(&text(&mut ChaCha8Rng::seed_from_u64(seed), 3_000)).user("Hello");
    let body = gzip(&chat.body());
    let mut request = post(chat::PATH, whole(body.clone()));
    request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    request.headers_mut().insert("x-mock-status", HeaderValue::from_static("200"));
    (body, request)
}

#[tokio::test(flavor = "multi_thread")]
async fn packed_bodies_of_a_session_stay_together() {
    const SESSIONS: u64 = 24;
    let testbed = gateway().await;
    let mut homes: BTreeMap<u64, String> = BTreeMap::new();
    for turn in 0..4 {
        for session in 0..SESSIONS {
            let (body, mut request) = packed_chat(1_000 * turn + session);
            let name = HeaderValue::try_from(format!("session-{session}")).unwrap();
            request.headers_mut().insert("x-session-id", name);
            let mut connection = Connection::open(testbed.address).await.unwrap();
            let (reply, record) = testbed.ask(&mut connection, request).await.unwrap();
            assert_eq!(reply.status, 200);
            assert_eq!(record.body_digest, digest(&body));
            assert_eq!(record.content_encoding.as_deref(), Some("gzip"));
            let home = homes.entry(session).or_insert_with(|| reply.engine().to_owned());
            assert_eq!(reply.engine(), home, "turn {turn} of session {session}");
            let expected = if turn == 0 { "encoding" } else { "session" };
            assert_eq!(reply.header("x-kvroute-reason"), expected, "turn {turn} of session {session}");
        }
        // Nobody types faster than one worker learns what another has placed: two ticks.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let hosts: BTreeSet<&String> = homes.values().collect();
    assert!(hosts.len() > 1, "all sessions are on {hosts:?}");
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn any_method_passes_over_both_protocols() {
    let testbed = gateway().await;
    let expected = [
        ("GET", "/v1/models", 200),
        ("GET", "/health", 200),
        ("GET", "/v1/models/mock/nothing", 404),
        ("GET", chat::PATH, 405),
        ("HEAD", "/v1/models", 405),
        ("OPTIONS", chat::PATH, 405),
        ("DELETE", "/v1/files/file-1", 404),
        ("PUT", "/v1/files/file-1", 404),
        ("PATCH", chat::PATH, 405),
        ("POST", "/ping", 200),
    ];
    for (method, path, status) in expected {
        for body in
            [Bytes::new(), Bytes::from_static(b"{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}")]
        {
            if !body.is_empty() && ["GET", "HEAD"].contains(&method) {
                continue;
            }
            let request = || {
                let sent = if body.is_empty() { empty() } else { pieces(vec![body.clone()], None) };
                Request::builder().method(method).uri(path).header("host", "llm").body(sent).unwrap()
            };
            let mut http1 = Connection::open(testbed.address).await.unwrap();
            let mut http2 = Connection::open_http2(testbed.address).await.unwrap();
            for answer in [chat::send(&mut http1, request()), chat::send(&mut http2, absolute(request()))] {
                let reply = tokio::time::timeout(HANGS_AFTER, answer).await.expect("it hangs").unwrap();
                assert_eq!(reply.status, status, "{method} {path}");
                assert!(!reply.engine().is_empty(), "{method} {path}: not the engine's own answer");
                assert_eq!(reply.decided(), reply.engine(), "{method} {path}");
                assert_eq!(reply.header("x-kvroute-reason"), "path", "{method} {path}");
                if !body.is_empty() {
                    assert_eq!(reply.header("x-mock-body-digest"), digest(&body), "{method} {path}");
                }
            }
        }
    }
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_for_leave_to_send_a_long_body_gets_it() {
    let testbed = gateway().await;
    let body =
        Chat::new(&text(&mut ChaCha8Rng::seed_from_u64(91), 500_000)).user("Hello").unstreamed().body();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: llm\r\nconnection: close\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        chat::PATH,
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(testbed.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut leave = Vec::new();
        while !leave.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut leave).await.unwrap(), 0, "{leave:?}");
        }
        assert!(leave.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&leave));
        stream.write_all(&body).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = tokio::time::timeout(HANGS_AFTER, exchange).await.expect("it hangs");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains(&digest(&body)), "{answer}");
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_upload_passes_and_is_not_held() {
    let testbed = gateway().await;
    let sound: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let head = b"--edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
    let body = Bytes::from([head.as_slice(), &sound, b"\r\n--edge--\r\n"].concat());
    let ways: [fn(Bytes) -> Body; 2] =
        [|body| whole(body), |body| pieces(body.chunks(99_991).map(Bytes::copy_from_slice).collect(), None)];
    // A form is none of a chat, whatever its path.
    for (path, status, reason) in
        [("/v1/audio/transcriptions", 200, "no_reuse"), (chat::PATH, 400, "encoding")]
    {
        for way in ways {
            let mut request = post(path, way(body.clone()));
            let form = HeaderValue::from_static("multipart/form-data; boundary=edge");
            request.headers_mut().insert(CONTENT_TYPE, form);
            let mut connection = Connection::open(testbed.address).await.unwrap();
            let (reply, record): (Reply, _) = testbed.ask(&mut connection, request).await.unwrap();
            assert_eq!(reply.status, status, "{path}");
            assert_eq!(record.body_digest, digest(&body), "{path}");
            assert_eq!(record.content_type.as_deref(), Some("multipart/form-data; boundary=edge"));
            assert_eq!(reply.header("x-kvroute-reason"), reason, "{path}");
        }
    }
    testbed.released().await.unwrap();
}
