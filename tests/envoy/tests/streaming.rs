//! Is a streamed answer passed on as it comes?

use fleet::EngineOptions;
use gateway::chat::Chat;
use gateway::envoy::Options;
use gateway::testbed::Testbed;

#[tokio::test(flavor = "multi_thread")]
async fn tokens_arrive_one_by_one() {
    const TOKENS: u32 = 25;
    let engine = EngineOptions { decode_step_ms: 20.0, ..EngineOptions::default() };
    let testbed = Testbed::start(2, engine, Options::default()).await.unwrap();
    let reply =
        Chat::new("You are slow.").user("Count.").max_tokens(TOKENS).post(testbed.address).await.unwrap();
    assert!(reply.is_complete(), "{}", reply.status);

    let ttft = reply.ttft.unwrap();
    assert!(ttft < reply.elapsed / 3, "the first token came after {ttft:?} of {:?}", reply.elapsed);
    assert!(reply.arrivals.len() >= TOKENS as usize, "{} pieces for {TOKENS} tokens", reply.arrivals.len());
    // A step is 20 ms; two tokens in one piece, or a pause of many steps, would be a buffer at work.
    let longest = reply.arrivals.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest < reply.elapsed / 3, "nothing came for {longest:?} of {:?}", reply.elapsed);
}
