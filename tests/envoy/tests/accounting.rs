//! Is nothing in flight when nothing is? However requests end, what they held is released.

use fleet::{EngineOptions, Fault};
use gateway::chat::{self, Chat};
use gateway::client::{self, Connection};
use gateway::envoy::Options;
use gateway::testbed::{polled_again, Testbed};
use gateway::wait::until;
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn prompt(number: usize) -> Chat {
    Chat::new(&format!("Prompt number {number}. ").repeat(100)).user("Hello")
}

/// The client leaves once the first piece of the answer is there.
async fn abort_in_mid_stream(testbed: &Testbed, number: usize) {
    let mut connection = Connection::open(testbed.address).await.unwrap();
    let request = prompt(number).max_tokens(1_000).request();
    let mut response = connection.send(request).await.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
}

/// The client leaves while an engine works on its prompt.
async fn abort_before_the_first_byte(testbed: &Testbed, number: usize) {
    let address = testbed.address;
    // The engine learns a little later that the client before this one has left.
    until("engines are idle", Duration::from_secs(5), async || (in_flight(testbed) == 0).then_some(()))
        .await
        .unwrap();
    let request = prompt(number).unstreamed().max_tokens(1_000);
    let task = tokio::spawn(async move { request.post(address).await });
    until("an engine has the request", Duration::from_secs(5), async || {
        (in_flight(testbed) > 0).then_some(())
    })
    .await
    .unwrap();
    task.abort();
}

/// The client leaves in the middle of its request's body, so early that nothing is decided yet.
async fn abort_in_the_body(testbed: &Testbed, number: usize) {
    let body = prompt(number).body();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        chat::PATH,
        body.len()
    );
    let half = [head.as_bytes(), &body[..body.len() / 2]].concat();
    // Enough at once: written, and gone.
    client::raw(testbed.address, &half, |_| true).await.unwrap();
}

fn in_flight(testbed: &Testbed) -> usize {
    testbed.fleet.report().engines.iter().map(|engine| engine.in_flight).sum()
}

async fn answer_with(testbed: &Testbed, fault: Fault) {
    for engine in testbed.fleet.engines() {
        engine.fault(fault.clone()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_flight_returns_to_zero_however_requests_end() {
    let engine = EngineOptions { decode_step_ms: 3.0, ..EngineOptions::default() };
    let testbed = Testbed::start(4, engine, Options::default()).await.unwrap();
    for number in 0..8 {
        assert!(prompt(number).post(testbed.address).await.unwrap().is_complete());
        assert!(prompt(number).unstreamed().post(testbed.address).await.unwrap().is_complete());
        abort_in_mid_stream(&testbed, number).await;
        abort_before_the_first_byte(&testbed, number).await;
        abort_in_the_body(&testbed, number).await;
    }

    // One of four is busy, then refuses: requests are retried elsewhere.
    for fault in [Fault::Status { code: 503 }, Fault::Refuse] {
        testbed.fleet.engine(0).fault(fault).await;
        for number in 8..16 {
            assert!(prompt(number).post(testbed.address).await.unwrap().is_complete());
        }
        testbed.fleet.engine(0).fault(Fault::Clear).await;
    }

    // All fail: an error of the engine's, then one of Envoy's.
    for (fault, status) in [(Fault::Status { code: 500 }, 500), (Fault::Refuse, 503)] {
        answer_with(&testbed, fault).await;
        for number in 16..20 {
            assert_eq!(prompt(number).post(testbed.address).await.unwrap().status, status);
        }
        answer_with(&testbed, Fault::Clear).await;
    }
    testbed.released().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_while_they_are_in_flight() {
    let engine = EngineOptions { decode_step_ms: 20.0, ..EngineOptions::default() };
    let testbed = Testbed::start(2, engine, Options::default()).await.unwrap();
    let mut open = Vec::new();
    for number in 0..6 {
        let mut connection = Connection::open(testbed.address).await.unwrap();
        let response = connection.send(prompt(number).max_tokens(5_000).request()).await.unwrap();
        open.push((connection, response));
    }
    let stats = testbed.stats().await.unwrap();
    let requests: u64 = stats
        .in_flight()
        .iter()
        .filter(|(name, _)| name.ends_with("_requests"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(requests, 6, "{:?}", stats.in_flight());
    drop(open);
    testbed.released().await.unwrap();
}

/// C54
#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_clients_that_leave_before_an_answer_leave_nothing_behind() {
    let testbed = Testbed::start(4, EngineOptions::default(), Options::default()).await.unwrap();
    answer_with(&testbed, Fault::Stall).await;
    // Of each three: one has sent all, one is decided and still sends its body, one is held by the filter.
    let mut clients = Vec::new();
    for number in 0..300 {
        let body = prompt(number).user(&"x".repeat(20_000)).body();
        let sent = match number % 3 {
            0 => &body[..],
            1 => &body[..body.len() - 1_000],
            _ => &body[..60],
        };
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            chat::PATH,
            body.len()
        );
        let mut client = TcpStream::connect(testbed.address).await.unwrap();
        client.write_all(&[head.as_bytes(), sent].concat()).await.unwrap();
        clients.push(client);
    }
    until("two of three are on their way", Duration::from_secs(10), async || {
        let stats = testbed.stats().await.ok()?;
        let requests = stats.in_flight().into_iter().filter(|(name, _)| name.ends_with("_requests"));
        (requests.map(|(_, count)| count).sum::<u64>() == 200).then_some(())
    })
    .await
    .unwrap();
    until("the engines have those that are whole", Duration::from_secs(10), async || {
        (in_flight(&testbed) >= 100).then_some(())
    })
    .await
    .unwrap();
    drop(clients);
    testbed.released().await.unwrap();
    until("the engines are rid of them", Duration::from_secs(5), async || {
        (in_flight(&testbed) == 0).then_some(())
    })
    .await
    .unwrap();

    answer_with(&testbed, Fault::Clear).await;
    // While they stood still, so did their gauges.
    polled_again(&testbed.fleet).await.unwrap();
    let mut placed: BTreeMap<String, usize> = BTreeMap::new();
    for number in 1_000..1_100 {
        let reply = prompt(number).post(testbed.address).await.unwrap();
        assert!(reply.is_complete(), "{}", reply.status);
        *placed.entry(reply.engine().to_owned()).or_default() += 1;
    }
    assert!(placed.len() == 4 && placed.values().all(|count| (15..=35).contains(count)), "{placed:?}");
}
