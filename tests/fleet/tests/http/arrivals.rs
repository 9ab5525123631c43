//! What does a test learn of the bytes that arrived, whatever their path?

use std::io::Write;
use std::net::TcpStream;

use fleet::{EngineOptions, Outcome};
use reqwest::Method;
use serde_json::{json, Value};

use crate::client::{one_engine, Client};

/// Sends a body as it is.
async fn send(client: &Client, path: &str, headers: &[(&str, &str)], body: &[u8]) -> reqwest::Response {
    let request = client.request(Method::POST, path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(body.to_vec()).send().await.expect("an answer")
}

#[tokio::test]
async fn every_body_is_on_record_byte_by_byte() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let form = "multipart/form-data; boundary=x";
    let sent: [(&str, &str, &[u8], u16); 6] = [
        ("/v1/completions", "application/json", br#"{"prompt":"hi"}"#, 200),
        ("/v1/audio/transcriptions", form, b"--x\r\n\r\n\xff\x00\r\n--x--\r\n", 200),
        ("/inference.Grpc/Method", "application/grpc", b"\x00\x00\x00\x00\x01\xff", 404),
        ("/tokenize", "application/json", br#"{"prompt": "hi"}"#, 200),
        ("/v1/models", "application/json", b"{}", 405),
        ("/nowhere", "application/json", b"{ }", 404),
    ];
    let mut digests = Vec::new();
    for (path, content_type, body, status) in sent {
        let response = send(&client, path, &[("content-type", content_type)], body).await;
        assert_eq!(response.status(), status, "{path}");
        digests.push(response.headers()["x-mock-body-digest"].to_str().expect("text").to_owned());
    }
    client.get("/metrics").await;
    client.get("/nowhere").await;
    let records = fleet.engine(0).requests();
    assert_eq!(records.len(), sent.len(), "what brings no body is not recorded");
    for ((record, digest), (path, content_type, body, status)) in records.iter().zip(digests).zip(sent) {
        assert_eq!((record.path.as_str(), record.status, record.body_bytes), (path, status, body.len()));
        assert_eq!(record.content_type.as_deref(), Some(content_type));
        assert_eq!(record.body_digest, format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body)));
        assert_eq!(record.body_digest, digest);
        assert!(!record.trailers && record.content_encoding.is_none());
    }
    assert_eq!(fleet.report().total.requests, 1, "only what is computed counts");
}

#[tokio::test]
async fn trailers_after_a_body_are_told() {
    let (fleet, _client) = one_engine(EngineOptions::default()).await;
    let address = fleet.engine(0).address();
    let request = "POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\
                   connection: close\r\n\r\n2\r\n{}\r\n0\r\nx-sum: 1\r\n\r\n";
    let exchange = move || {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(request.as_bytes())?;
        std::io::read_to_string(stream)
    };
    let answer = tokio::task::spawn_blocking(exchange).await.expect("a task").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let record = fleet.engine(0).report().last.expect("a record");
    assert_eq!((record.body_bytes, record.trailers), (2, true));
}

#[tokio::test]
async fn a_compressed_body_cannot_be_read_and_is_on_record() {
    let (fleet, client) = one_engine(EngineOptions::default()).await;
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\x2a\x00";
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let response = send(&client, "/v1/chat/completions", &headers, gzip).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.expect("JSON");
    assert_eq!(error["error"]["code"], 400);
    let record = fleet.engine(0).report().last.expect("a record");
    assert_eq!(record.content_encoding.as_deref(), Some("gzip"));
    assert_eq!((record.body_bytes, record.outcome), (gzip.len(), Outcome::Failed));
}

#[tokio::test]
async fn the_record_can_be_asked_for_over_http() {
    let (_fleet, client) = one_engine(EngineOptions::default()).await;
    client.post("/nowhere", json!({})).await;
    let records: Value = client.get("/control/requests").await.json().await.expect("JSON");
    assert_eq!((&records[0]["path"], &records[0]["body_bytes"]), (&json!("/nowhere"), &json!(2)));
}
