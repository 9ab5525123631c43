//! What if more of a body comes at once than a buffer holds? It passes, with the filter holding what came before, and
//! takes no more memory.

use bytes::{BufMut, Bytes, BytesMut};
use fleet::EngineOptions;
use futures_util::stream;
use gateway::chat::{self, post, Chat};
use gateway::client::{self, whole, Connection};
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::upstream::{envoy_before, upstream};
use gateway::wait::until;
use gateway::workload::text::text;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{json, Value};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use xxhash_rust::xxh3::{xxh3_64, Xxh3};

/// Far longer than any of these takes: what is not there by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// Two engines whose caches take prompts of megabytes, behind a connection buffer of this many bytes.
async fn gateway(buffer: u64, hold_bytes: Value) -> Testbed {
    let engine = EngineOptions { num_blocks: 400_000, prefill_tokens_per_s: 1e9, ..EngineOptions::default() };
    Testbed::start_with(2, engine, Options::workers(1), |config, _| {
        config
            .edit_listener(|listener| listener["per_connection_buffer_limit_bytes"] = json!(buffer))
            .plugin("/prompt/hold_bytes", hold_bytes)
    })
    .await
    .unwrap()
}

fn long_chat(bytes: usize) -> Chat {
    Chat::new(&text(&mut ChaCha8Rng::seed_from_u64(bytes as u64), bytes)).user("Go on.").unstreamed()
}

/// Posts a chat whose body comes in two bursts: the second once Envoy has read the first. Returns the whole answer.
async fn in_two_bursts(testbed: &Testbed, body: &[u8], first: usize) -> String {
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: llm\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        chat::PATH,
        body.len()
    );
    let received = async || {
        let stats = testbed.stats().await.unwrap();
        stats.value("http.llm.downstream_cx_rx_bytes_total")
    };
    let before = received().await;
    let (first, second) = body.split_at(first);
    let burst = [head.as_bytes(), first].concat();
    let exchange = async {
        let mut stream = TcpStream::connect(testbed.address).await.unwrap();
        stream.write_all(&burst).await.unwrap();
        let all = before + burst.len() as u64;
        until("it is read", HANGS_AFTER, async || (received().await >= all).then_some(())).await.unwrap();
        // An Envoy that refuses it may close the connection before it has all.
        let _ = stream.write_all(second).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(HANGS_AFTER, exchange).await.expect("it hangs")
}

/// The prompt has a home, so that the filter holds it as long as it may.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_passes_whose_rest_comes_at_once_while_its_beginning_is_held() {
    for (buffer, hold_bytes) in [(32_768, json!(null)), (1_048_576, json!(262_144))] {
        let testbed = gateway(buffer, hold_bytes).await;
        for bytes in [60_000, 3_000_000] {
            let chat = long_chat(bytes);
            let home = chat.post(testbed.address).await.unwrap();
            assert!(home.is_complete(), "{}", home.status);
            let body = chat.body();
            for first in [100, 10_000, 29_000] {
                let answer = in_two_bursts(&testbed, &body, first).await;
                let what = format!("{first} of {bytes} bytes, a buffer of {buffer}: {answer}");
                assert!(answer.starts_with("HTTP/1.1 200 "), "{what}");
                assert!(answer.contains(&format!("x-mock-body-digest: {:016x}", xxh3_64(&body))), "{what}");
                assert!(answer.contains(&format!("x-mock-engine: {}", home.engine())), "{what}");
                assert!(answer.contains("x-kvroute-reason: prefix"), "{what}");
            }
        }
        testbed.released().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_beyond_the_buffer_delays_a_request_and_does_not_hang() {
    let testbed = gateway(32_768, json!(262_144)).await;
    let chat = long_chat(200_000);
    let home = chat.post(testbed.address).await.unwrap();
    assert!(home.is_complete(), "{}", home.status);
    let body = chat.body();
    let answer = in_two_bursts(&testbed, &body, 10_000).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains(&format!("x-mock-body-digest: {:016x}", xxh3_64(&body))), "{answer}");
    let warning = "prompt.hold_bytes is not below per_connection_buffer_limit_bytes";
    assert!(testbed.envoy.log().contains(warning), "{}", testbed.envoy.log());
    testbed.released().await.unwrap();
}

/// Reads a body without keeping it; says its digest and length.
async fn swallow(request: Request<Incoming>) -> Response<client::Body> {
    let mut body = request.into_body();
    let (mut digest, mut bytes) = (Xxh3::new(), 0);
    while let Some(frame) = body.frame().await {
        let Some(data) = frame.ok().and_then(|frame| frame.into_data().ok()) else { continue };
        digest.update(&data);
        bytes += data.len();
    }
    Response::new(whole(format!("{:016x} {bytes}", digest.digest())))
}

/// A body of `size` bytes between a lead and an end, made as it is sent. What it was is in the second value, once it has
/// been sent.
fn streamed(lead: &'static str, size: usize, end: &'static str) -> (client::Body, Arc<Mutex<(Xxh3, usize)>>) {
    const PIECE: usize = 64 << 10;
    let filler: String =
        text(&mut ChaCha8Rng::seed_from_u64(200), PIECE).chars().filter(char::is_ascii_alphabetic).collect();
    let filler = filler.repeat(2);
    let sent = Arc::new(Mutex::new((Xxh3::new(), 0)));
    let noted = Arc::clone(&sent);
    let middle = (0..size.div_ceil(PIECE)).map(move |n| {
        let mut piece = BytesMut::with_capacity(PIECE);
        piece.put_slice(format!("{n:08x}").as_bytes());
        piece.put_slice(&filler.as_bytes()[..PIECE - 8]);
        piece.freeze()
    });
    let all = std::iter::once(Bytes::from(lead)).chain(middle).chain([Bytes::from(end)]);
    let frames = all.map(move |piece| {
        let mut noted = noted.lock().unwrap();
        noted.0.update(&piece);
        noted.1 += piece.len();
        Ok::<_, Infallible>(Frame::data(piece))
    });
    (StreamBody::new(stream::iter(frames)).boxed_unsync(), sent)
}

/// The most memory that a process has had so far, in bytes.
fn peak_resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_megabytes_pass_and_take_no_more_memory_than_two() {
    /// Beyond what Envoy has for two megabytes. Its buffers, and what the filter holds, are below one each.
    const MORE: u64 = 32 << 20;
    let (envoy, address) = envoy_before(upstream(swallow).await.unwrap(), |config| config).await.unwrap();
    let message = (r#"{"model":"mock","messages":[{"role":"user","content":""#, r#""}],"max_tokens":4}"#);
    let image = (
        r#"{"model":"mock","messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,"#,
        r#""}}]}],"max_tokens":4}"#,
    );
    let mut peaks = Vec::new();
    for size in [2_000_000, 200_000_000] {
        for (lead, end) in [message, image] {
            let (body, sent) = streamed(lead, size, end);
            let mut connection = Connection::open(address).await.unwrap();
            let answer = chat::send(&mut connection, post(chat::PATH, body));
            let reply = tokio::time::timeout(HANGS_AFTER, answer).await.expect("it hangs").unwrap();
            assert_eq!(reply.status, 200);
            let sent = sent.lock().unwrap();
            assert!(sent.1 >= size);
            assert_eq!(reply.body, format!("{:016x} {}", sent.0.digest(), sent.1));
            let peak = peak_resident(envoy.pid());
            peaks.push(peak);
        }
    }
    let grown = peaks[3] - peaks[1];
    assert!(grown < MORE, "{grown} bytes more memory: {peaks:?}");
}
