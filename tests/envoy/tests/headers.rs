//! A client that names a destination does not get it.

use fleet::EngineOptions;
use gateway::chat::{self, Chat};
use gateway::client;
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::testbed::Testbed;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// An upstream that keeps the request heads it is sent, as text, and answers 200.
async fn recorder() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            let service = service_fn(move |request: Request<Incoming>| {
                let head = format!("{} {:?}", request.uri(), request.headers());
                seen.lock().unwrap().push(head);
                std::future::ready(Ok::<_, Infallible>(Response::new(client::empty())))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, heads)
}

/// A place outside the cluster that counts who comes by.
struct Stranger {
    address: SocketAddr,
    contacts: Arc<AtomicUsize>,
}

impl Stranger {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let contacts = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&contacts);
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { address, contacts }
    }
}

/// The ways to say it: header lines that all ask for `wanted`.
fn spellings(wanted: SocketAddr, stranger: SocketAddr) -> Vec<String> {
    vec![
        format!("x-upstream-host: {wanted}\r\n"),
        format!("X-UPSTREAM-HOST: {wanted}\r\n"),
        format!("x-upstream-host: {wanted}\r\nx-upstream-host: {wanted}\r\n"),
        format!("x-upstream-host: {stranger}, {wanted}\r\n"),
        format!("x-upstream-host:\r\nx-upstream-host: {wanted}\r\n"),
    ]
}

/// Sends a request with these header lines on a connection of its own; returns the engine that answered.
async fn engine_for(testbed: &Testbed, request_line: &str, lines: &str, body: &str) -> String {
    let request = format!(
        "{request_line} HTTP/1.1\r\nhost: llm\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{lines}\r\n{body}",
        body.len()
    );
    let answer = client::raw(testbed.address, request.as_bytes(), |_| false).await.unwrap();
    let engine = answer.lines().find_map(|line| line.strip_prefix("x-mock-engine: "));
    engine.unwrap_or_else(|| panic!("no engine answered {request_line}: {answer}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_goes_where_its_prefix_is_whatever_the_client_names() {
    let testbed = Testbed::start(4, EngineOptions::default(), Options::default()).await.unwrap();
    let stranger = Stranger::start().await;
    let chat = Chat::new(&"A long and popular prompt. ".repeat(200)).user("Hello").unstreamed();
    let home = chat.post(testbed.address).await.unwrap();
    let body = chat.body();
    let body = String::from_utf8_lossy(&body);
    let post = format!("POST {}", chat::PATH);
    for wanted in testbed.fleet.addresses() {
        for lines in spellings(wanted, stranger.address) {
            assert_eq!(engine_for(&testbed, &post, &lines, &body).await, home.engine(), "{lines:?}");
        }
    }
    // What the engines saw is kvroute's decision, and nothing of the client's.
    for record in testbed.fleet.engines().iter().flat_map(|engine| engine.requests()) {
        let named = record.upstream_host.unwrap_or_default();
        assert!(named.starts_with(home.engine()), "the engine saw {named:?}");
        assert!(!named.contains(&stranger.address.to_string()), "the engine saw {named:?}");
    }
    assert_eq!(stranger.contacts.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_prompt_do_not_follow_the_client_either() {
    let testbed = Testbed::start(4, EngineOptions::default(), Options::default()).await.unwrap();
    let stranger = Stranger::start().await;
    let post = format!("POST {}", chat::PATH);
    let kinds = [
        ("GET /v1/models", ""),
        ("GET /nowhere", ""),
        ("POST /nowhere", "{}"),
        (post.as_str(), "{\"messages\": ["),
    ];
    for (request_line, body) in kinds {
        let (mut sent, mut followed) = (0, 0);
        for wanted in testbed.fleet.addresses() {
            for lines in spellings(wanted, stranger.address) {
                let engine = engine_for(&testbed, request_line, &lines, body).await;
                sent += 1;
                followed += usize::from(engine == wanted.to_string());
            }
        }
        // A quarter is chance. All would be obedience.
        assert!(followed * 2 <= sent, "{request_line}: {followed} of {sent} went where the client said");
    }
    assert_eq!(stranger.contacts.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_sees_nothing_that_a_client_forged() {
    let (upstream, heads) = recorder().await;
    let config = Config::quick_start().unwrap().hosts(&[upstream]);
    let envoy = Envoy::start(&config, &Options::default()).await.unwrap();
    let listener = envoy.listener(KVROUTE).await.unwrap();
    let chat = Chat::new("You are careful.").user("Hello").body();
    for (request_line, body) in
        [("GET /v1/models", &b""[..]), ("POST /nowhere", b"{}"), ("POST /v1/chat/completions", &chat)]
    {
        let head = format!(
            "{request_line} HTTP/1.1\r\nhost: llm\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nx-upstream-host: forged\r\nX-Kvroute-Host: forged\r\nx-kvroute-matched: forged\r\n\r\n",
            body.len()
        );
        let answer = client::raw(listener, &[head.as_bytes(), body].concat(), |_| false).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{request_line}: {answer}");
        let path = request_line.split(' ').nth(1).unwrap();
        let heads = heads.lock().unwrap();
        let head = heads.iter().find(|head| head.starts_with(path)).unwrap();
        assert!(!head.contains("forged"), "{head}");
        assert!(head.contains(&upstream.to_string()), "kvroute did not decide: {head}");
    }
}

/// C41
#[tokio::test(flavor = "multi_thread")]
async fn however_a_destination_is_forged_an_engine_sees_one_that_is_configured_or_none() {
    const FORGED: &str = "192.0.2.66:8000";
    let (upstream, heads) = recorder().await;
    let config = Config::quick_start().unwrap().hosts(&[upstream]);
    let envoy = Envoy::start(&config, &Options::default()).await.unwrap();
    let listener = envoy.listener(KVROUTE).await.unwrap();
    let chat = Chat::new("You are careful.").user("Hello").body();
    let chat = String::from_utf8_lossy(&chat);
    let spellings = [
        format!("x-upstream-host: {FORGED}\r\n"),
        format!("x-upstream-host: {FORGED}\r\nx-upstream-host: {FORGED}\r\n"),
        format!("X-UPSTREAM-HOST: {FORGED}\r\n"),
        format!("x-upstream-host:   {FORGED}\t \r\n"),
        format!("x-upstream-host: {upstream}, {FORGED}\r\n"),
        "x-upstream-host:\r\n".to_owned(),
    ];
    let kinds = [
        ("POST /v1/chat/completions", &*chat),
        ("POST /v1/chat/completions", "{\"messages\": ["),
        ("GET /v1/models", ""),
        ("POST /nowhere", "{}"),
    ];
    for (request_line, body) in kinds {
        for lines in &spellings {
            heads.lock().unwrap().clear();
            let request = format!(
                "{request_line} HTTP/1.1\r\nhost: llm\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\nx-kvroute-reason: forged\r\n{lines}\r\n{body}",
                body.len()
            );
            let answer = client::raw(listener, request.as_bytes(), |_| false).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{request}: {answer}");
            let path = request_line.split(' ').nth(1).unwrap();
            let heads = heads.lock().unwrap();
            let head = heads.iter().find(|head| head.starts_with(path)).unwrap();
            let named: Vec<&str> = head.split("\"x-upstream-host\": ").skip(1).collect();
            assert!(named.len() <= 1, "{lines}: {head}");
            assert!(
                named.iter().all(|value| value.starts_with(&format!("\"{upstream}\""))),
                "{lines}: {head}"
            );
            assert!(!head.contains("192.0.2.66") && !head.contains("forged"), "{lines}: {head}");
        }
    }
}
