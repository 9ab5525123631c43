//! Bodies that are not read, or hold no prompt: they pass as they are, and nobody is answered with an error.

use bytes::Bytes;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use flate2::Compression;
use gateway::chat::{self, Reply};
use gateway::client::{whole, Connection};
use gateway::config::{Config, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::wait::until;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// A request as it came to the upstream.
struct Seen {
    headers: HeaderMap,
    body: Bytes,
}

/// An Envoy before an upstream that answers 200 to everything, and keeps the last POST.
struct Echo {
    envoy: Envoy,
    address: SocketAddr,
    last: Arc<Mutex<Option<Seen>>>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = listener.local_addr().unwrap();
        let last = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&last);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let service = service_fn(move |request: Request<Incoming>| {
                    let kept = Arc::clone(&kept);
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                        if head.method == "POST" {
                            *kept.lock().unwrap() = Some(Seen { headers: head.headers, body });
                        }
                        Ok::<_, Infallible>(Response::new(whole("{}")))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let config = Config::quick_start().unwrap().hosts(&[upstream]);
        let envoy = Envoy::start(&config, &Options::workers(1)).await.unwrap();
        let address = envoy.listener(KVROUTE).await.unwrap();
        Self { envoy, address, last }
    }

    /// Posts this body with these headers, and sees that both arrive as they were sent. Returns the answer.
    async fn post(&self, path: &str, headers: &[(&'static str, &str)], body: &[u8]) -> Reply {
        let mut request = Request::post(path).header("host", "llm");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(whole(Bytes::copy_from_slice(body))).unwrap();
        let mut connection = Connection::open(self.address).await.unwrap();
        let reply = chat::send(&mut connection, request).await.unwrap();
        assert_eq!(reply.status, 200, "{path} {headers:?}");
        let seen = self.last.lock().unwrap().take().expect("it arrived");
        assert!(seen.body == body, "{path} {headers:?}: the body arrived changed");
        for name in ["content-type", "content-encoding"] {
            let sent = headers.iter().find(|(header, _)| *header == name).map(|(_, value)| *value);
            let arrived = seen.headers.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(arrived, sent, "{path} {headers:?}");
        }
        reply
    }

    async fn counter(&self, name: &str) -> u64 {
        self.envoy.admin().stats().await.unwrap().value(&format!("wasmcustom.kvroute_requests_{name}_total"))
    }

    /// Bytes of memory that Envoy has taken.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.envoy.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

fn gzip(mut plain: impl Read) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::copy(&mut plain, &mut packed).unwrap();
    packed.finish().unwrap()
}

/// C20
#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_body_passes_as_it_is() {
    const UNPACKED: u64 = 200 << 20;
    let echo = Echo::start().await;
    let packed = cases::file("C20-body.json.gz");
    let mut plain = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut plain).unwrap();
    let bomb = gzip(std::io::repeat(0).take(UNPACKED));
    assert!(bomb.len() > 100_000);
    let json = ("content-type", "application/json");
    let before = echo.resident();
    let bodies = [("gzip", packed), ("GZIP", packed), ("x-gzip", packed), ("gzip", &plain), ("gzip", &bomb)];
    for (encoding, body) in bodies {
        let headers = [json, ("content-encoding", encoding)];
        let reply = echo.post(chat::PATH, &headers, body).await;
        assert_eq!(reply.header("x-kvroute-reason"), "encoding");
        let reply = echo.post("/v1/messages", &headers, body).await;
        assert!(["encoding", "path"].contains(&reply.header("x-kvroute-reason")));
    }
    until("they are counted", Duration::from_secs(5), async || {
        let (encoded, elsewhere) = (echo.counter("encoding").await, echo.counter("path").await);
        (encoded >= 5 && encoded + elsewhere == 10).then_some(())
    })
    .await
    .unwrap();
    let grown = echo.resident().saturating_sub(before);
    assert!(grown < UNPACKED / 4, "{grown} bytes more memory");
    // The same, and not packed, is read.
    let reply = echo.post(chat::PATH, &[json], &plain).await;
    assert_eq!(reply.header("x-kvroute-reason"), "cold");
}

/// C27
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_read_as_what_it_is_and_passes_whatever_it_is() {
    let echo = Echo::start().await;
    let form = ("content-type", "multipart/form-data; boundary=----boxedge7");
    let audio = cases::file("C27-body.multipart");
    for path in ["/v1/audio/transcriptions", chat::PATH] {
        let reply = echo.post(path, &[form], audio).await;
        assert!(["no_reuse", "encoding"].contains(&reply.header("x-kvroute-reason")), "{path}");
    }
    let prompt = cases::body("C01-a.json.tmpl");
    let marked = [b"\xEF\xBB\xBF", prompt.as_slice()].concat();
    let json = [("content-type", "application/json")];
    let charset = [("content-type", "application/json; charset=utf-8")];
    let plain = [("content-type", "text/plain")];
    let read: [(&[_], &[u8]); 4] = [(&charset, &prompt), (&[], &prompt), (&plain, &prompt), (&json, &marked)];
    for (n, (headers, body)) in read.into_iter().enumerate() {
        let reply = echo.post(chat::PATH, headers, body).await;
        assert_eq!(reply.header("x-kvroute-reason"), if n == 0 { "cold" } else { "prefix" }, "{headers:?}");
    }
    for body in ["", "[]", "[1,2]", "17", "\"messages\"", "null", "true"] {
        let reply = echo.post(chat::PATH, &json, body.as_bytes()).await;
        let reason = reply.header("x-kvroute-reason");
        assert!(["no_body", "bad_json", "no_prompt"].contains(&reason), "{body}: {reason}");
    }
    let log = echo.envoy.log();
    assert!(!log.contains("panicked") && !log.contains("[critical]"), "{log}");
}
