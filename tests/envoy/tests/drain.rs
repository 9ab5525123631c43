//! A replica goes: `scripts/prestop` marks it, nothing new gets there, what is open ends, and only then it may go.

use fleet::{EngineOptions, Fleet};
use gateway::chat::{Chat, Reply};
use gateway::config::{Config, CONTROL, KVROUTE};
use gateway::envoy::{Envoy, Options};
use gateway::testbed::polled;
use gateway::wait::until;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

const SECRET: &str = "correct-horse-battery-staple";

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(20);

struct Site {
    fleet: Fleet,
    envoy: Envoy,
    address: SocketAddr,
    control: SocketAddr,
}

impl Site {
    async fn start() -> Self {
        let engine = EngineOptions { decode_step_ms: 50.0, ..EngineOptions::default() };
        let fleet = Fleet::start(3, engine).await.unwrap();
        let config =
            Config::quick_start().unwrap().hosts(&fleet.addresses()).with_control(Some(SECRET)).unwrap();
        let envoy = Envoy::start(&config, &Options::workers(2)).await.unwrap();
        polled(&fleet).await.unwrap();
        let address = envoy.listener(KVROUTE).await.unwrap();
        let control = envoy.listener(CONTROL).await.unwrap();
        Self { fleet, envoy, address, control }
    }

    async fn ask(&self, system: &str, tokens: u32) -> Reply {
        let reply = Chat::new(system).user("Go on.").max_tokens(tokens).post(self.address).await.unwrap();
        assert!(reply.is_complete(), "{}", reply.status);
        reply
    }

    /// The script, as a pod would run it for its own address.
    fn prestop(&self, host: &str, seconds: &str) -> Child {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/prestop");
        let mut command = Command::new(script);
        command.args([&format!("http://{}", self.control), host, seconds]).env("KVROUTE_SECRET", SECRET);
        command.stderr(Stdio::null()).kill_on_drop(true).spawn().expect("sh and curl")
    }

    fn is_told(&self, what: &str) -> bool {
        self.envoy.log().contains(what)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_goes_when_its_last_answer_has_ended_and_gets_none_after_its_mark() {
    let site = Site::start().await;
    let prompt = "A long conversation about lighthouses. ".repeat(200);
    let leaving = site.ask(&prompt, 2).await.engine().to_owned();
    // Eight seconds of an answer.
    let open = Chat::new(&prompt).user("Tell me all of it.").max_tokens(160);
    let address = site.address;
    let open = tokio::spawn(async move { open.post(address).await.unwrap() });
    let engine = site.fleet.engines().iter().find(|engine| engine.address().to_string() == leaving).unwrap();
    until("the answer has begun", SOON, async || (engine.running() > 0).then_some(())).await.unwrap();

    let mut prestop = site.prestop(&leaving, "60");
    let mark = format!("kvroute: {leaving} is to drain");
    until("the mark", SOON, async || site.is_told(&mark).then_some(())).await.unwrap();
    // All workers have had a tick when a request of each goes elsewhere; from then on none may come back.
    let elsewhere = async || (site.ask(&prompt, 1).await.engine() != leaving).then_some(());
    until("the mark is known", SOON, elsewhere).await.unwrap();
    tokio::time::timeout(SOON, async {
        for _ in 0..12 {
            assert_ne!(site.ask(&prompt, 1).await.engine(), leaving);
        }
    })
    .await
    .unwrap();
    assert!(engine.running() > 0, "the answer is still on its way");
    assert_eq!(prestop.try_wait().unwrap(), None, "and the script waits for it");

    assert!(open.await.unwrap().is_complete());
    let status = tokio::time::timeout(SOON, prestop.wait()).await.unwrap().unwrap();
    assert!(status.success() && engine.running() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_replica_that_the_gateway_no_longer_has_its_own_engine_says_when_it_is_empty() {
    let site = Site::start().await;
    let engine = EngineOptions { decode_step_ms: 50.0, ..EngineOptions::default() };
    let others = Fleet::start(1, engine).await.unwrap();
    let (gone, address) = (&others.engines()[0], others.addresses()[0]);
    let open = Chat::new("Somebody else's.").user("Tell me all of it.").max_tokens(60);
    let open = tokio::spawn(async move { open.post(address).await.unwrap() });
    until("the answer has begun", SOON, async || (gone.running() > 0).then_some(())).await.unwrap();
    let mut prestop = site.prestop(&address.to_string(), "60");
    let mark = format!("kvroute: {address} is to drain");
    until("the mark", SOON, async || site.is_told(&mark).then_some(())).await.unwrap();
    assert!(prestop.try_wait().unwrap().is_none());
    assert!(open.await.unwrap().is_complete());
    let status = tokio::time::timeout(SOON, prestop.wait()).await.unwrap().unwrap();
    assert!(status.success() && gone.running() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_does_not_get_empty_goes_when_the_time_is_over() {
    let site = Site::start().await;
    // Marked before it is there, and never empty: no engine says anything about it.
    let mut prestop = site.prestop("10.9.9.9:8000", "2");
    let status = tokio::time::timeout(SOON, prestop.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(1));
}
