//! Does everything arrive as it was sent? Every body of `tests/cases`, over HTTP/1.1 and HTTP/2, in one piece and in odd
//! ones, with trailers; and calls of gRPC.

use bytes::{BufMut, Bytes, BytesMut};
use fleet::EngineOptions;
use gateway::chat::{self, absolute, post};
use gateway::client::{self, pieces, whole, Connection};
use gateway::config::{set, Config};
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::upstream::{envoy_before, upstream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, CONTENT_ENCODING, CONTENT_TYPE, TRAILER};
use hyper::{HeaderMap, Request, Response};
use serde_json::json;
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_64;

/// Sizes of the pieces in which a body is cut, over and over: around the filter's steps and Envoy's reads, and odd ones.
const PIECES: [usize; 8] = [1, 4_095, 7, 16_385, 1_021, 65_537, 4_097, 130_003];

/// Where a cluster says which protocol its hosts speak.
const PROTOCOL: &str = "/typed_extension_protocol_options/\
                        envoy.extensions.upstreams.http.v3.HttpProtocolOptions/explicit_http_config";

/// One body, and what it is sent as.
#[derive(Debug)]
struct Case {
    name: &'static str,
    path: &'static str,
    content_type: &'static str,
    content_encoding: Option<&'static str>,
    /// What the engine makes of it.
    status: u16,
}

/// Every file that is a body, with where its case sends it.
fn every_case() -> Vec<Case> {
    let case_of = |name: &'static str| {
        let path = match name.get(..3)? {
            _ if name.ends_with(".yaml") || name.ends_with(".prom") => return None,
            "C05" => "/v1/completions",
            "C08" => "/generate",
            "C13" => "/v1/messages",
            "C17" if name == "C17-c.json" => "/v1/completions",
            "C27" => "/v1/audio/transcriptions",
            "C30" => "/v1/embeddings",
            _ => chat::PATH,
        };
        let status = match name {
            // Half a surrogate pair, bytes that are no text, packed, or too many inputs and an empty one.
            "C17-a.json" | "C17-b.json" | "C17-c.json" | "C17-d.bin" | "C20-body.json.gz"
            | "C30-a.json.tmpl" | "C30-c.json" => 400,
            _ => 200,
        };
        let is_form = name.ends_with(".multipart");
        let content_type =
            if is_form { "multipart/form-data; boundary=----boxedge7" } else { "application/json" };
        let content_encoding = name.ends_with(".gz").then_some("gzip");
        Some(Case { name, path, content_type, content_encoding, status })
    };
    cases::FILES.iter().filter_map(|(name, _)| case_of(name)).collect()
}

impl Case {
    fn request(&self, body: client::Body) -> Request<client::Body> {
        let mut request = post(self.path, body);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.extend(self.content_encoding.map(|is| (CONTENT_ENCODING, HeaderValue::from_static(is))));
        request
    }
}

/// One way to send a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    WithLength,
    Chunked,
    ChunkedWithTrailer,
    Http2WithTrailer,
}

impl Way {
    const ALL: [Way; 4] = [Way::WithLength, Way::Chunked, Way::ChunkedWithTrailer, Way::Http2WithTrailer];

    fn has_trailer(self) -> bool {
        matches!(self, Way::ChunkedWithTrailer | Way::Http2WithTrailer)
    }

    async fn connection(self, address: SocketAddr) -> Connection {
        match self {
            Way::Http2WithTrailer => Connection::open_http2(address).await.unwrap(),
            _ => Connection::open(address).await.unwrap(),
        }
    }

    fn request(self, case: &Case, body: &Bytes) -> Request<client::Body> {
        let cut = || pieces(cut(body), self.has_trailer().then(a_trailer));
        match self {
            Way::WithLength => case.request(whole(body.clone())),
            Way::Chunked => case.request(cut()),
            Way::ChunkedWithTrailer => {
                let mut request = case.request(cut());
                request.headers_mut().insert(TRAILER, HeaderValue::from_static("x-check"));
                request
            }
            Way::Http2WithTrailer => absolute(case.request(cut())),
        }
    }
}

fn cut(body: &Bytes) -> Vec<Bytes> {
    let mut rest = body.clone();
    let mut sizes = PIECES.iter().cycle();
    let piece = || {
        let size = *sizes.next()?;
        (!rest.is_empty()).then(|| rest.split_to(size.min(rest.len())))
    };
    std::iter::from_fn(piece).collect()
}

fn a_trailer() -> HeaderMap {
    HeaderMap::from_iter([("x-check".parse().unwrap(), HeaderValue::from_static("1"))])
}

/// Lets trailers of HTTP/1.1 through, to Envoy and from it: by default they are dropped.
fn with_trailers(config: Config) -> Config {
    config
        .edit_manager(|manager| set(manager, "/http_protocol_options/enable_trailers", json!(true)))
        .edit_cluster(|cluster| {
            set(cluster, &format!("{PROTOCOL}/http_protocol_options/enable_trailers"), json!(true));
        })
}

/// C01 to C30, C82
#[tokio::test(flavor = "multi_thread")]
async fn every_body_arrives_as_it_was_sent_however_it_is_sent() {
    let loras = ["org/guide-vl-7b", "org/embed-1b", "museum-lora"].map(str::to_owned).to_vec();
    let engine = EngineOptions { model: "org/guide-7b".to_owned(), loras, ..EngineOptions::default() };
    let testbed =
        Testbed::start_with(3, engine, Options::default(), |config, _| with_trailers(config)).await.unwrap();
    let cases = every_case();
    assert!(cases.len() > 30);
    for case in &cases {
        let body = Bytes::from(cases::body(case.name));
        for way in Way::ALL {
            let mut connection = way.connection(testbed.address).await;
            let (reply, record) = testbed.ask(&mut connection, way.request(case, &body)).await.unwrap();
            let what = format!("{} {way:?}", case.name);
            assert_eq!((reply.status.as_u16(), record.status), (case.status, case.status), "{what}");
            assert_eq!(reply.header("x-mock-body-digest"), record.body_digest, "{what}");
            assert_eq!(record.body_digest, format!("{:016x}", xxh3_64(&body)), "{what}");
            assert_eq!(record.body_bytes, body.len(), "{what}");
            assert_eq!(record.path, case.path, "{what}");
            assert_eq!(record.content_type.as_deref(), Some(case.content_type), "{what}");
            assert_eq!(record.content_encoding.as_deref(), case.content_encoding, "{what}");
            assert_eq!(record.trailers, way.has_trailer(), "{what}");
            // It was kvroute that chose, and its first choice that answered.
            assert_eq!(reply.decided(), reply.engine(), "{what}");
        }
    }
    testbed.released().await.unwrap();
    let log = testbed.envoy.log();
    assert!(!log.contains("panicked") && !log.contains("[critical]"), "{log}");
}

/// A message of gRPC: not packed, its length, its bytes.
fn grpc_message(bytes: &[u8]) -> Bytes {
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(bytes.len() as u32);
    message.put_slice(bytes);
    message.freeze()
}

fn header(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

/// Says what arrived of a call, and ends it as gRPC does.
async fn grpc_answer(request: Request<Incoming>) -> Response<client::Body> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap();
    let trailer = body.trailers().map(|trailers| header(trailers, "x-check")).unwrap_or_default();
    let digest = format!("{:016x}", xxh3_64(&body.to_bytes()));
    let te = header(&head.headers, "te");
    let kind = header(&head.headers, "content-type");
    let seen = format!("{:?} {} {kind} {te} {digest} {trailer}", head.version, head.uri.path());
    let trailers = HeaderMap::from_iter([
        ("grpc-status".parse().unwrap(), HeaderValue::from_static("0")),
        ("grpc-message".parse().unwrap(), HeaderValue::from_static("fine")),
    ]);
    let answer = vec![grpc_message(b"\xFF\x00one"), grpc_message(seen.as_bytes())];
    let mut response = Response::new(pieces(answer, Some(trailers)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_grpc_passes_with_its_trailers_both_ways() {
    let (_envoy, address) = envoy_before(upstream(grpc_answer).await.unwrap(), |config| {
        config.edit_cluster(|cluster| set(cluster, PROTOCOL, json!({"http2_protocol_options": {}})))
    })
    .await
    .unwrap();
    let mut connection = Connection::open_http2(address).await.unwrap();
    let messages: Vec<Bytes> =
        (0..40_u8).map(|n| grpc_message(&vec![n.wrapping_mul(41); 10_000 * usize::from(n)])).collect();
    let digest = format!("{:016x}", xxh3_64(&messages.concat()));
    // The second is as a chat's path would be, and is none all the same.
    for path in ["/inference.GRPCInferenceService/ModelInfer", chat::PATH] {
        let mut request = absolute(post(path, pieces(messages.clone(), Some(a_trailer()))));
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        let (head, body) = connection.send(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        assert_eq!(head.status, 200);
        assert_eq!(header(&head.headers, "content-type"), "application/grpc");
        let trailers = body.trailers().expect("trailers").clone();
        assert_eq!(
            (header(&trailers, "grpc-status"), header(&trailers, "grpc-message")),
            ("0".into(), "fine".into())
        );
        let seen = format!("HTTP/2.0 {path} application/grpc trailers {digest} 1");
        let expected = [grpc_message(b"\xFF\x00one"), grpc_message(seen.as_bytes())].concat();
        assert!(body.to_bytes() == expected, "{path}: not {seen}");
        let reason = header(&head.headers, "x-kvroute-reason");
        assert_eq!(reason, if path == chat::PATH { "encoding" } else { "path" });
    }
}
