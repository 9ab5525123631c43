//! Hosts come and go, and kvroute learns it from Envoy itself: from clusters of every kind, under requests, without an
//! error.

use fleet::{EngineOptions, Fleet};
use gateway::chat::{Chat, Reply};
use gateway::config::{Config, CLUSTER, CONTROL, KVROUTE};
use gateway::control::Control;
use gateway::endpoints::{Endpoints, Health};
use gateway::envoy::{Envoy, Options};
use gateway::name_server::{Answer, NameServer};
use gateway::testbed::{polled, released};
use gateway::wait::until;
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Long enough for a busy machine; it passes as soon as it can.
const SOON: Duration = Duration::from_secs(20);

/// Name of the cluster that leads to Envoy's admin interface.
const ADMIN: &str = "prometheus_stats";

struct Site {
    fleet: Fleet,
    envoy: Envoy,
    address: SocketAddr,
    control: Control,
}

impl Site {
    /// Engines, and an Envoy whose cluster is what `edit` makes of it.
    async fn start(engines: usize, edit: impl FnOnce(Config, &[SocketAddr]) -> Config) -> Self {
        let engine = EngineOptions { decode_step_ms: 5.0, ..EngineOptions::default() };
        Self::before(Fleet::start(engines, engine).await.unwrap(), edit).await
    }

    /// An Envoy before these engines.
    async fn before(fleet: Fleet, edit: impl FnOnce(Config, &[SocketAddr]) -> Config) -> Self {
        let config = Config::quick_start().unwrap().hosts(&fleet.addresses()).with_admin_cluster(ADMIN);
        let config = config.with_control(None).unwrap().edit_plugin(|plugin| {
            plugin["hosts"] = Value::Null;
            plugin["discover"] = json!({"admin_cluster": ADMIN, "interval_ms": 200});
        });
        let config = edit(config, &fleet.addresses());
        let envoy = Envoy::start(&config, &Options::workers(2)).await.unwrap();
        let address = envoy.listener(KVROUTE).await.unwrap();
        let control = Control::new(envoy.listener(CONTROL).await.unwrap());
        Self { fleet, envoy, address, control }
    }

    /// Waits until kvroute knows these hosts as so many lives say: `ready`, `draining`.
    async fn becomes(&self, expected: &[(SocketAddr, &str)]) {
        let expected: BTreeSet<(String, String)> =
            expected.iter().map(|(host, life)| (host.to_string(), (*life).to_owned())).collect();
        let known = async || (lives(&self.control.status().await.ok()?) == expected).then_some(());
        until(&format!("{expected:?}"), SOON, known).await.unwrap();
    }

    /// Who answers a prompt that is new.
    async fn ask(&self, n: usize) -> Reply {
        let prompt = format!("Request {n} of many. ").repeat(100);
        let reply = Chat::new(&prompt).user("Hello").max_tokens(4).post(self.address).await.unwrap();
        assert!(reply.is_complete(), "{} {:?}", reply.status, reply.body);
        reply
    }

    /// Who answers so many new prompts.
    async fn spread(&self, seed: usize, count: usize) -> BTreeSet<String> {
        let mut engines = BTreeSet::new();
        for n in 0..count {
            engines.insert(self.ask(seed + n).await.engine().to_owned());
        }
        engines
    }
}

/// Clients that ask one thing after another until they are told to stop. Answers how many answers there were, and each
/// that was not whole.
struct Clients {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<(usize, Vec<String>)>>,
}

impl Clients {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |client: usize| {
            let stop = Arc::clone(&stop);
            tokio::spawn(async move {
                let (mut asked, mut failed) = (0, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let prompt = format!("Client {client}, conversation {}. ", asked / 4).repeat(60);
                    match Chat::new(&prompt).user("Go on.").max_tokens(8).post(address).await {
                        Ok(reply) if reply.is_complete() => {}
                        Ok(reply) => failed.push(format!("{} {:?}", reply.status, reply.body)),
                        Err(error) => failed.push(format!("{error:#}")),
                    }
                    asked += 1;
                }
                (asked, failed)
            })
        };
        Self { running: (0..6).map(client).collect(), stop }
    }

    async fn stop(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut asked, mut failed) = (0, Vec::new());
        for client in self.running {
            let (more, mut failures) = client.await.unwrap();
            asked += more;
            failed.append(&mut failures);
        }
        (asked, failed)
    }
}

fn lives(status: &Value) -> BTreeSet<(String, String)> {
    let text = |host: &Value, key: &str| host[key].as_str().unwrap_or_default().to_owned();
    let hosts = status["hosts"].as_array().into_iter().flatten();
    hosts.map(|host| (text(host, "host"), text(host, "life"))).collect()
}

/// These, and that they are ready.
fn ready(hosts: &[SocketAddr]) -> Vec<(SocketAddr, &'static str)> {
    hosts.iter().map(|host| (*host, "ready")).collect()
}

fn spelled(hosts: &[SocketAddr]) -> BTreeSet<String> {
    hosts.iter().map(SocketAddr::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_a_static_cluster_are_found() {
    let site = Site::start(3, |config, _| config).await;
    polled(&site.fleet).await.unwrap();
    assert_eq!(site.spread(0, 30).await, spelled(&site.fleet.addresses()));
    let discovery = &site.control.status().await.unwrap()["discovery"];
    assert_eq!(
        (&discovery["source"], &discovery["hosts"], &discovery["failures"]),
        (&json!("admin"), &json!(3), &json!(0))
    );
    assert_eq!(site.ask(99).await.decided(), site.ask(99).await.engine(), "a prompt returns to where it was");
    released(&site.envoy).await.unwrap();
}

/// Engines at addresses of their own with one port and one name, as the pods of a headless service.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_come_and_go_with_the_records_of_their_name_and_stay_while_nobody_answers_for_it() {
    let engine = EngineOptions { decode_step_ms: 5.0, ..EngineOptions::default() };
    let fleet = Fleet::start_beside(4, engine).await.unwrap();
    let hosts = fleet.addresses();
    let names = NameServer::start(records(&hosts[..2])).await.unwrap();
    let port = hosts[0].port();
    let site = Site::before(fleet, |config, _| {
        config.names_from(names.address()).edit_cluster(|cluster| {
            let address = json!({"address": "engines.test", "port_value": port});
            let endpoint = json!({"endpoint": {"address": {"socket_address": address}}});
            cluster["type"] = json!("STRICT_DNS");
            cluster["dns_lookup_family"] = json!("V4_ONLY");
            cluster["dns_refresh_rate"] = json!("0.2s");
            cluster["load_assignment"]["endpoints"] = json!([{"lb_endpoints": [endpoint]}]);
        })
    })
    .await;
    site.becomes(&ready(&hosts[..2])).await;
    let clients = Clients::start(site.address);

    names.answers(records(&hosts));
    site.becomes(&ready(&hosts)).await;
    let serve = async |hosts: &[SocketAddr]| (site.spread(0, 30).await == spelled(hosts)).then_some(());
    until("all serve", SOON, async || serve(&hosts).await).await.unwrap();
    names.answers(records(&hosts[1..]));
    site.becomes(&ready(&hosts[1..])).await;
    until("the others serve on", SOON, async || serve(&hosts[1..]).await).await.unwrap();
    for silent in [Answer::Failure, Answer::Silence] {
        let asked = names.asked();
        names.answers(silent);
        let again = async || (names.asked() >= asked + 3).then_some(());
        until("it is asked in vain", SOON, again).await.unwrap();
        site.becomes(&ready(&hosts[1..])).await;
    }
    let (asked, failed) = clients.stop().await;
    assert!(failed.is_empty() && asked > 20, "{} of {asked}: {failed:?}", failed.len());
    released(&site.envoy).await.unwrap();
}

fn records(hosts: &[SocketAddr]) -> Answer {
    let ip = |host: &SocketAddr| if let IpAddr::V4(ip) = host.ip() { Some(ip) } else { None };
    Answer::Addresses(hosts.iter().filter_map(ip).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_a_cluster_by_name_are_found() {
    let site = Site::start(2, |config, hosts| {
        let endpoint = |host: &SocketAddr| {
            let address = json!({"address": "localhost", "port_value": host.port()});
            json!({"endpoint": {"address": {"socket_address": address}}})
        };
        let endpoints: Vec<Value> = hosts.iter().map(endpoint).collect();
        config.edit_cluster(|cluster| {
            cluster["type"] = json!("STRICT_DNS");
            cluster["dns_lookup_family"] = json!("V4_ONLY");
            cluster["load_assignment"]["endpoints"] = json!([{"lb_endpoints": endpoints}]);
        })
    })
    .await;
    polled(&site.fleet).await.unwrap();
    assert_eq!(site.spread(0, 20).await, spelled(&site.fleet.addresses()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_grows_and_shrinks_under_requests_without_an_error() {
    let mut file = None;
    let site = Site::start(6, |config, hosts| {
        let endpoints = Endpoints::new(CLUSTER, &hosts[..2]).unwrap();
        let config = config.endpoints_from(&endpoints);
        file = Some(endpoints);
        config
    })
    .await;
    let (endpoints, hosts) = (file.unwrap(), site.fleet.addresses());
    site.becomes(&ready(&hosts[..2])).await;
    let clients = Clients::start(site.address);
    for host in &hosts[2..] {
        endpoints.set(*host, Health::Healthy).unwrap();
    }
    site.becomes(&ready(&hosts)).await;
    let all_serve = async || {
        let engines = site.fleet.engines();
        engines.iter().all(|engine| engine.report().counts.completed > 3).then_some(())
    };
    until("the new ones serve", SOON, all_serve).await.unwrap();
    // Some are told to go first, some are just gone.
    endpoints.set(hosts[0], Health::Draining).unwrap();
    endpoints.remove(hosts[1]).unwrap();
    let rest = [vec![(hosts[0], "draining")], ready(&hosts[2..])].concat();
    site.becomes(&rest).await;
    endpoints.remove(hosts[0]).unwrap();
    endpoints.remove(hosts[2]).unwrap();
    site.becomes(&ready(&hosts[3..])).await;
    let gone = || {
        let counts = site.fleet.engines()[..3].iter().map(|engine| engine.report().counts);
        counts.map(|counts| (counts.completed, counts.scrapes)).collect::<Vec<_>>()
    };
    let idle =
        async || site.fleet.engines()[..3].iter().all(|engine| engine.report().in_flight == 0).then_some(());
    until("what was open there has ended", SOON, idle).await.unwrap();
    let before = gone();
    let served = || site.fleet.report().total.completed;
    let more = served() + 100;
    until("the others go on", SOON, async || (served() >= more).then_some(())).await.unwrap();
    assert_eq!(gone(), before, "neither requests nor polls");
    let (asked, failed) = clients.stop().await;
    assert!(failed.is_empty() && asked > 100, "{} of {asked}: {failed:?}", failed.len());
    released(&site.envoy).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_the_control_plane_drains_ends_what_it_has_and_gets_nothing_new() {
    let mut file = None;
    let site = Site::start(3, |config, hosts| {
        let endpoints = Endpoints::new(CLUSTER, hosts).unwrap();
        let config = config.endpoints_from(&endpoints);
        file = Some(endpoints);
        config
    })
    .await;
    let (endpoints, hosts) = (file.unwrap(), site.fleet.addresses());
    polled(&site.fleet).await.unwrap();
    let prompt = "A long conversation about lighthouses. ".repeat(200);
    let ask = async |tokens: u32| {
        let reply = Chat::new(&prompt).user("Go on.").max_tokens(tokens).post(site.address).await.unwrap();
        assert!(reply.is_complete(), "{}", reply.status);
        reply.engine().to_owned()
    };
    let home = ask(1).await;
    let leaving = *hosts.iter().find(|host| host.to_string() == home).unwrap();
    let engine = site.fleet.engines().iter().find(|engine| engine.address() == leaving).unwrap();
    // Ten seconds of an answer.
    let open = Chat::new(&prompt).user("Tell me all of it.").max_tokens(2_000);
    let address = site.address;
    let open = tokio::spawn(async move { open.post(address).await.unwrap() });
    until("the answer has begun", SOON, async || (engine.running() > 0).then_some(())).await.unwrap();

    endpoints.set(leaving, Health::Draining).unwrap();
    let lives: Vec<_> =
        hosts.iter().map(|host| (*host, if *host == leaving { "draining" } else { "ready" })).collect();
    site.becomes(&lives).await;
    let elsewhere = async || (ask(1).await != home).then_some(());
    until("all workers know", SOON, elsewhere).await.unwrap();
    // Then it is taken off the list, with the answer still on its way.
    endpoints.remove(leaving).unwrap();
    let path = format!("/kvroute/drain?host={leaving}");
    let status = until("it is gone", SOON, async || {
        let status = site.control.ask("GET", &path).await.ok()?;
        (status["life"] == "gone").then_some(status)
    });
    let status = status.await.unwrap();
    assert!(engine.running() > 0, "the answer is still on its way");
    assert_eq!(status["in_flight"], 1, "{status}");
    for _ in 0..6 {
        assert_ne!(ask(1).await, home);
    }
    assert!(open.await.unwrap().is_complete());
    released(&site.envoy).await.unwrap();
    assert_eq!(site.control.ask("GET", &path).await.unwrap()["in_flight"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_envoys_health_checks_find_ill_get_nothing() {
    let site = Site::start(3, |config, hosts| {
        // One of the three has no such path, as far as Envoy's checks can see.
        let ill = hosts[0].port();
        config.edit_cluster(|cluster| {
            cluster["health_checks"] = json!([{"timeout": "1s", "interval": "0.2s", "no_traffic_interval": "0.2s",
                "unhealthy_threshold": 1, "healthy_threshold": 1, "http_health_check": {"path": "/health"}}]);
            let endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array_mut().unwrap();
            let of_ill = |endpoint: &&mut Value| {
                endpoint["endpoint"]["address"]["socket_address"]["port_value"] == json!(ill)
            };
            let endpoint = endpoints.iter_mut().find(of_ill).unwrap();
            // A port where nobody listens.
            endpoint["endpoint"]["health_check_config"] = json!({"port_value": 1});
        })
    })
    .await;
    let hosts = site.fleet.addresses();
    site.becomes(&[(hosts[0], "unhealthy"), (hosts[1], "ready"), (hosts[2], "ready")]).await;
    // Every worker has had a tick by the time each has sent some elsewhere.
    assert_eq!(site.spread(0, 30).await, spelled(&hosts[1..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_way_to_the_admin_requests_go_by_envoys_own_policy() {
    let site = Site::start(2, |config, _| config.plugin("/discover/admin_cluster", json!("nowhere"))).await;
    let reply = site.ask(1).await;
    assert_eq!(reply.header("x-kvroute-reason"), "no_hosts");
    let refused = async || {
        (site.envoy.admin().stats().await.ok()?.value("wasmcustom.kvroute_discovery_refused_total") > 1)
            .then_some(())
    };
    until("it is counted", SOON, refused).await.unwrap();
    let told = site.envoy.log().matches("which hosts there are is not told").count();
    assert_eq!(told, 1, "once");
}
