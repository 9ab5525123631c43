//! Does a request ever wait for the filter for ever? With and without the option that lets it see a body before it lets
//! the headers go.

use fleet::EngineOptions;
use gateway::chat::{self, post, Chat};
use gateway::client::{self, Connection};
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use hyper::Request;
use serde_json::{json, Value};
use std::future::Future;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far longer than any of these takes: what is not there by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

async fn in_time<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS_AFTER, answer).await.expect("it hangs")
}

fn set_option(manager: &mut Value, option: Option<bool>) {
    let filters = manager["http_filters"].as_array_mut().unwrap();
    let filter = filters.iter_mut().find(|filter| filter["name"] == "kvroute").unwrap();
    let config = filter["typed_config"]["config"].as_object_mut().unwrap();
    config.remove("allow_on_headers_stop_iteration").unwrap();
    if let Some(option) = option {
        config.insert("allow_on_headers_stop_iteration".to_owned(), json!(option));
    }
}

fn head_of(body: &[u8]) -> String {
    format!(
        "POST {} HTTP/1.1\r\nhost: llm\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        chat::PATH,
        body.len()
    )
}

/// Sends the headers, the body three seconds later; returns the whole answer.
async fn late_body(testbed: &Testbed, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(testbed.address).await.unwrap();
    stream.write_all(head_of(body).as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    stream.write_all(body).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn every_step_is_answered(option: Option<bool>) {
    let testbed = Testbed::start_with(4, EngineOptions::default(), Options::workers(1), |config, _| {
        config.edit_manager(|manager| set_option(manager, option))
    })
    .await
    .unwrap();
    let chat = Chat::new(&"A prompt that has a home. ".repeat(200)).user("Hello").unstreamed();
    let home = in_time(chat.post(testbed.address)).await.unwrap();
    assert!(home.is_complete(), "{}", home.status);

    for (method, path) in [("GET", "/v1/models"), ("HEAD", "/v1/models"), ("OPTIONS", chat::PATH)] {
        let request =
            Request::builder().method(method).uri(path).header("host", "llm").body(client::empty()).unwrap();
        let mut connection = Connection::open(testbed.address).await.unwrap();
        let reply = in_time(chat::send(&mut connection, request)).await.unwrap();
        assert!(reply.status.as_u16() < 500, "{method}: {}", reply.status);
    }

    // The engine's own answer to a body of nothing.
    let head = head_of(b"");
    let nothing = client::raw(testbed.address, head.as_bytes(), |_| false);
    assert!(in_time(nothing).await.unwrap().starts_with("HTTP/1.1 400"));
    let mut http2 = Connection::open_http2(testbed.address).await.unwrap();
    let mut request = post(chat::PATH, client::empty());
    *request.uri_mut() = format!("http://llm{}", chat::PATH).parse().unwrap();
    request.headers_mut().remove("host");
    assert_eq!(in_time(chat::send(&mut http2, request)).await.unwrap().status, 400);

    let answer = in_time(late_body(&testbed, &chat.body())).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let body = chat.body();
    let half = [head_of(&body).as_bytes(), &body[..body.len() / 2]].concat();
    client::raw(testbed.address, &half, |_| true).await.unwrap();

    for _ in 0..6 {
        let reply = in_time(chat.post(testbed.address)).await.unwrap();
        assert!(reply.is_complete(), "{}", reply.status);
        if option == Some(true) {
            assert_eq!((reply.decided(), reply.header("x-kvroute-reason")), (home.engine(), "prefix"));
        }
    }
    testbed.released().await.unwrap();
    if option == Some(true) {
        assert!(answer.contains(&format!("x-kvroute-host: {}\r\n", home.engine())), "{answer}");
    } else {
        let log = testbed.envoy.log();
        assert!(log.contains("allow_on_headers_stop_iteration"), "nobody is told what to set");
        let reply = in_time(chat.post(testbed.address)).await.unwrap();
        assert_eq!(reply.header("x-kvroute-reason"), "not_held");
    }
}

/// C31
#[tokio::test(flavor = "multi_thread")]
async fn with_the_option_no_request_hangs_and_the_body_decides() {
    every_step_is_answered(Some(true)).await;
}

/// C31
#[tokio::test(flavor = "multi_thread")]
async fn with_the_option_off_requests_go_on_by_load() {
    every_step_is_answered(Some(false)).await;
}

/// C31
#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_requests_go_on_by_load() {
    every_step_is_answered(None).await;
}
