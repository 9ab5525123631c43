//! Requests that are not plain POSTs of a chat: they pass, and none hangs.

use fleet::EngineOptions;
use gateway::chat::{self, Chat};
use gateway::client;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use serde_json::json;
use std::time::Duration;

/// Far longer than any of these takes: what is not there by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// Sends these bytes and returns the status of the final answer.
async fn status(testbed: &Testbed, request: &str) -> u16 {
    let whole = |answer: &str| status_of(answer).is_some();
    let answer = client::raw(testbed.address, request.as_bytes(), whole);
    let answer =
        tokio::time::timeout(HANGS_AFTER, answer).await.unwrap_or_else(|_| panic!("hangs: {request}"));
    status_of(&answer.unwrap()).unwrap()
}

/// The status of the first response that is final: 100 is not.
fn status_of(answer: &str) -> Option<u16> {
    let statuses = answer.split("HTTP/1.1 ").skip(1).filter_map(|response| response.get(..3)?.parse().ok());
    statuses.into_iter().find(|status| *status >= 200 || *status == 101)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_prompt_pass() {
    let testbed = Testbed::start(2, EngineOptions::default(), Options::default()).await.unwrap();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: llm\r\n\r\n");
    assert_eq!(status(&testbed, &get("/v1/models")).await, 200);
    assert_eq!(status(&testbed, &get("/nowhere")).await, 404);
    assert_eq!(status(&testbed, &get(chat::PATH)).await, 405);
    let head = "HEAD /v1/models HTTP/1.1\r\nhost: llm\r\n\r\n";
    assert!(status(&testbed, head).await < 500);
    let post = |length: &str, body: &str| {
        format!(
            "POST {} HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\n{length}\r\n\r\n{body}",
            chat::PATH
        )
    };
    assert_eq!(status(&testbed, &post("content-length: 0", "")).await, 400);
    assert_eq!(status(&testbed, &post("transfer-encoding: chunked", "0\r\n\r\n")).await, 400);
    assert_eq!(status(&testbed, &post("content-length: 9", "{\"model\":")).await, 400);
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn expect_continue_is_answered() {
    let testbed = Testbed::start(2, EngineOptions::default(), Options::default()).await.unwrap();
    let body = Chat::new("You are brief.").user("Hello").unstreamed().body();
    let request = format!(
        "POST {} HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n{}",
        chat::PATH,
        body.len(),
        String::from_utf8_lossy(&body)
    );
    assert_eq!(status(&testbed, &request).await, 200);
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_upgrade_does_not_hang() {
    let testbed = Testbed::start_with(2, EngineOptions::default(), Options::default(), |config, _| {
        config.edit_manager(|manager| manager["upgrade_configs"] = json!([{"upgrade_type": "websocket"}]))
    })
    .await
    .unwrap();
    for method in ["GET /v1/realtime", "GET /v1/chat/completions"] {
        let request = format!(
            "{method} HTTP/1.1\r\nhost: llm\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let status = status(&testbed, &request).await;
        assert!(status < 500, "{method}: {status}");
    }
}
