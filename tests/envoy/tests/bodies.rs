//! Bodies of every size, in every way that they can come. With one worker: workers tell each other what they placed,
//! but not within a millisecond.

use bytes::Bytes;
use fleet::EngineOptions;
use gateway::chat::{self, post, Chat, Reply};
use gateway::client::{self, pieces, whole, Connection};
use gateway::config::set;
use gateway::envoy::Options;
use gateway::testbed::Testbed;
use gateway::workload::text::text;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{json, Value};
use std::future::Future;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Far longer than any of these takes: what is not there by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

async fn in_time<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS_AFTER, answer).await.expect("it hangs")
}

/// An engine whose cache takes a prompt of 20 MB.
fn roomy() -> EngineOptions {
    EngineOptions { num_blocks: 400_000, prefill_tokens_per_s: 1e9, ..EngineOptions::default() }
}

fn long_chat(seed: u64, bytes: usize) -> Chat {
    Chat::new(&text(&mut ChaCha8Rng::seed_from_u64(seed), bytes)).user("Summarise.").unstreamed()
}

async fn send(testbed: &Testbed, body: client::Body) -> Reply {
    let mut connection = Connection::open(testbed.address).await.unwrap();
    in_time(chat::send(&mut connection, post(chat::PATH, body))).await.unwrap()
}

fn assert_arrived(reply: &Reply, body: &[u8]) {
    assert!(reply.is_complete(), "{}: {:?}", reply.status, reply.body);
    assert_eq!(reply.header("x-mock-body-digest"), format!("{:016x}", xxh3_64(body)));
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_megabytes_stream_through_unchanged() {
    let testbed = Testbed::start(2, roomy(), Options::workers(1)).await.unwrap();
    let body = long_chat(1, 20_000_000).body();
    // Envoy's buffers hold 1 MiB: a 200 is proof that it was not held.
    let reply = send(&testbed, whole(body.clone())).await;
    assert_arrived(&reply, &body);
    let chunks = body.chunks(100_000).map(Bytes::copy_from_slice).collect();
    assert_arrived(&send(&testbed, pieces(chunks, None)).await, &body);
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_byte_at_a_time_gives_the_same_decision() {
    let testbed = Testbed::start(4, roomy(), Options::workers(1)).await.unwrap();
    for bytes in [2_000, 60_000] {
        let body = long_chat(bytes as u64, bytes).body();
        send(&testbed, whole(body.clone())).await;
        let in_one = send(&testbed, whole(body.clone())).await;
        let (start, rest) = body.split_at(300);
        let mut cut: Vec<Bytes> = start.iter().map(|byte| Bytes::copy_from_slice(&[*byte])).collect();
        cut.push(Bytes::copy_from_slice(rest));
        let cut = send(&testbed, pieces(cut, None)).await;

        assert_arrived(&in_one, &body);
        assert_arrived(&cut, &body);
        assert!(in_one.matched().unwrap().0 > 0, "{bytes} bytes: matched {:?}", in_one.matched());
        assert_eq!(cut.decided(), in_one.decided(), "{bytes} bytes");
        assert_eq!(cut.matched().unwrap().0, in_one.matched().unwrap().0, "{bytes} bytes");
    }
    testbed.released().await.unwrap();
}

/// A body of exactly `size` bytes: a chat with one message, which begins with `lead`.
fn padded(lead: &str, size: usize) -> Bytes {
    let body = |content: &str| {
        json!({"model": "mock", "messages": [{"role": "user", "content": content}], "max_tokens": 4})
            .to_string()
    };
    let pad = size - body(lead).len();
    body(&format!("{lead}{}", "x".repeat(pad))).into()
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// C22. Envoy Gateway's connection buffer, with the default `hold_bytes`, which is made for it; and the quick start's.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_any_size_passes_a_small_and_a_large_connection_buffer() {
    let scenario: Value = serde_yaml_ng::from_slice(cases::file("C22-scenario.yaml")).unwrap();
    let lead = text(&mut ChaCha8Rng::seed_from_u64(32), 20_000);
    for limit in numbers(&scenario["envoy"]["per_connection_buffer_limit_bytes"]) {
        let testbed = Testbed::start_with(4, roomy(), Options::workers(1), |config, _| {
            let config =
                config.edit_listener(|listener| listener["per_connection_buffer_limit_bytes"] = json!(limit));
            if limit > 262_144 {
                config
            } else {
                config.plugin("/prompt/hold_bytes", json!(null))
            }
        })
        .await
        .unwrap();
        let home = send(&testbed, whole(padded(&lead, 25_000))).await;
        for size in numbers(&scenario["sizes"]) {
            let body = padded(&lead, size as usize);
            assert_eq!(body.len() as u64, size);
            let reply = send(&testbed, whole(body.clone())).await;
            assert_arrived(&reply, &body);
            assert_eq!(reply.engine(), home.engine(), "{size} bytes with the same lead, a buffer of {limit}");
        }
        testbed.released().await.unwrap();
    }
}

/// C25
#[tokio::test(flavor = "multi_thread")]
async fn the_pieces_in_which_a_body_comes_do_not_matter() {
    let engine = EngineOptions { model: "org/guide-7b".to_owned(), ..roomy() };
    let testbed = Testbed::start_with(4, engine, Options::workers(1), |config, _| {
        config.edit_manager(|manager| set(manager, "/http_protocol_options/enable_trailers", json!(true)))
    })
    .await
    .unwrap();
    let body = Bytes::from(cases::body("C25-body.json.tmpl"));
    send(&testbed, whole(body.clone())).await;
    let expected = send(&testbed, whole(body.clone())).await;
    assert_arrived(&expected, &body);
    assert!(expected.matched().unwrap().0 > 100_000, "{:?}", expected.matched());

    let split = |at: usize| vec![body.slice(..at), body.slice(at..)];
    let one_by_one = (0..300).map(|at| body.slice(at..at + 1)).chain([body.slice(300..)]).collect();
    let inside = body.iter().position(|byte| *byte > 0x7F).unwrap() + 1;
    let escape = body.windows(2).position(|pair| pair == br"\u").unwrap() + 1;
    let cuts: [Vec<Bytes>; 6] = [
        vec![body.clone()],
        body.chunks(16_384).map(Bytes::copy_from_slice).collect(),
        one_by_one,
        split(inside),
        split(escape),
        vec![body.clone(), Bytes::new()],
    ];
    for (n, cut) in cuts.into_iter().enumerate() {
        for trailers in [None, Some(a_trailer())] {
            let request = || post(chat::PATH, pieces(cut.clone(), trailers.clone()));
            let mut http1 = Connection::open(testbed.address).await.unwrap();
            let mut http2 = Connection::open_http2(testbed.address).await.unwrap();
            let mut announced = request();
            announced.headers_mut().insert("trailer", HeaderValue::from_static("x-check"));
            for reply in [
                in_time(chat::send(&mut http1, announced)).await.unwrap(),
                in_time(chat::send(&mut http2, absolute(request()))).await.unwrap(),
            ] {
                assert_arrived(&reply, &body);
                assert_eq!(reply.decided(), expected.decided(), "cut {n}, {trailers:?}");
                assert_eq!(reply.matched(), expected.matched(), "cut {n}, {trailers:?}");
            }
        }
    }
    testbed.released().await.unwrap();
}

fn a_trailer() -> HeaderMap {
    HeaderMap::from_iter([("x-check".parse().unwrap(), HeaderValue::from_static("1"))])
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_and_trailers_are_read_as_well() {
    let testbed = Testbed::start_with(4, roomy(), Options::workers(1), |config, _| {
        config.edit_manager(|manager| set(manager, "/http_protocol_options/enable_trailers", json!(true)))
    })
    .await
    .unwrap();
    let body = long_chat(2, 50_000).body();
    let home = send(&testbed, whole(body.clone())).await;
    let mut http2 = Connection::open_http2(testbed.address).await.unwrap();
    let cut = || body.chunks(7_000).map(Bytes::copy_from_slice).collect::<Vec<_>>();
    let announced = |mut request: Request<client::Body>| {
        request.headers_mut().insert("trailer", HeaderValue::from_static("x-check"));
        request
    };

    let mut replies = Vec::new();
    for request in [post(chat::PATH, whole(body.clone())), post(chat::PATH, pieces(cut(), Some(a_trailer())))]
    {
        let request = absolute(request);
        replies.push(in_time(chat::send(&mut http2, request)).await.unwrap());
    }
    let mut http1 = Connection::open(testbed.address).await.unwrap();
    let request = announced(post(chat::PATH, pieces(cut(), Some(a_trailer()))));
    replies.push(in_time(chat::send(&mut http1, request)).await.unwrap());
    for reply in replies {
        assert_arrived(&reply, &body);
        assert_eq!(reply.decided(), home.engine());
        assert!(reply.matched().unwrap().0 > 0);
    }
    testbed.released().await.unwrap();
}

/// HTTP/2 requests name their scheme and authority.
fn absolute(mut request: Request<client::Body>) -> Request<client::Body> {
    *request.uri_mut() = format!("http://llm{}", request.uri()).parse().unwrap();
    request.headers_mut().remove("host");
    request
}
