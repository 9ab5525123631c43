//! Who is asked which hosts there are? Envoy itself, by its admin interface, or its resolver; by one worker, the leader,
//! for all.
//!
//! What it is told it puts where every worker looks at its tick ([`Worker::follow_members`]). When it is told nothing, the
//! last list stays in force: hosts that may have left cost a retry, hosts that are forgotten cost everybody's cache.
//! Before the first answer there are no hosts, and requests go by Envoy's own policy.
//!
//! Envoy answers on its main thread, and before 1.38 about all of its clusters, whatever `filter=` says: 7 MB and a second
//! where there are thousands. Such an answer is read in slices, and the next is asked for later.

use super::host::{self, Buffer, Headers};
use super::stats::OrCount;
use super::worker::Worker;
use crate::core::config::{Config, Discover, Source};
use crate::core::members::{self, Failure, Member, Members};
use crate::core::scrape::clusters::{Clusters, ClustersError};

/// Bytes of an answer that are copied at once.
const SLICE: usize = 64 << 10;

/// So many times as long as an answer took nothing is asked: Envoy's main thread has other things to do.
const REST: u64 = 4;

/// Milliseconds between two askings at most, while nothing is known.
const FIRST_INTERVAL_MS: u64 = 1_000;

/// One root's part in finding the hosts.
#[derive(Debug, Default)]
pub struct Discovery {
    asking: Option<Box<Asking>>,
}

/// What is known while leading.
#[derive(Debug)]
struct Asking {
    members: Members,
    /// The call that has not been answered.
    under_way: Option<u32>,
    /// When the last one was made, in milliseconds of the wall clock; 0 if none was.
    asked_ms: u64,
    /// For how long none is made after that.
    pause_ms: u64,
    /// How many hosts were left out of the last list.
    left_out: u32,
}

impl Discovery {
    /// Asks, if this root leads and it is time.
    pub fn tick(&mut self, worker: &mut Worker, config: &Config, leads: bool, now_ms: u64) {
        if !leads {
            self.asking = None;
            return;
        }
        let asking = self.asking.get_or_insert_with(|| Box::new(Asking::new(worker, config)));
        if let Some(discover) = &config.discover {
            asking.tick(worker, config, discover, now_ms);
        }
    }

    /// An answer to a call that this root made.
    pub fn answered(
        &mut self,
        worker: &mut Worker,
        config: &Config,
        token: u32,
        body_size: usize,
        now_ms: u64,
    ) {
        let asking = self.asking.as_mut().filter(|asking| asking.under_way == Some(token));
        if let Some((asking, discover)) = asking.zip(config.discover.as_ref()) {
            let told = read_clusters(&config.cluster, body_size).map(|cluster| {
                asking.tell_left_out(cluster.left_out);
                members::told(cluster, now_ms)
            });
            asking.learn(worker, discover, told, now_ms);
        }
    }
}

impl Asking {
    fn new(worker: &Worker, config: &Config) -> Self {
        // Go on where the last leader stopped.
        let known = worker.shared.members();
        let source = match &config.discover {
            Some(Discover { source: Source::Dns { .. }, .. }) => members::Source::Dns,
            Some(_) => members::Source::Admin,
            None => {
                // An earlier configuration's list is nobody's any more.
                known.iter().for_each(|_| worker.shared.publish_members(None));
                members::Source::Admin
            }
        };
        Self {
            members: Members { source, ..known.unwrap_or_default() },
            under_way: None,
            asked_ms: 0,
            pause_ms: 0,
            left_out: 0,
        }
    }

    fn tick(&mut self, worker: &mut Worker, config: &Config, discover: &Discover, now_ms: u64) {
        #[cfg(feature = "dns")]
        self.take_resolved(worker, discover, now_ms);
        // A clock that was set back must not make it wait.
        let since_ms = now_ms.abs_diff(self.asked_ms);
        if self.under_way.is_some() {
            // Envoy ends its calls in time; a resolver may take its own.
            if since_ms > 2 * discover.timeout_ms {
                self.learn(worker, discover, Err(Failure::Timeout), now_ms);
            }
        } else if since_ms >= self.pause_ms {
            self.asked_ms = now_ms;
            match ask(config, discover) {
                Some(token) => self.under_way = Some(token),
                None => self.learn(worker, discover, Err(Failure::Refused), now_ms),
            }
        }
    }

    /// Takes the resolver's answer over, if it has come.
    #[cfg(feature = "dns")]
    fn take_resolved(&mut self, worker: &mut Worker, discover: &Discover, now_ms: u64) {
        let Source::Dns { port, .. } = discover.source else { return };
        let answer = self.under_way.and_then(super::resolver::take);
        if let Some(answer) = answer {
            self.learn(worker, discover, members::resolved(&answer, port), now_ms);
        }
    }

    /// Takes over what was told, or that nothing was.
    fn learn(
        &mut self,
        worker: &mut Worker,
        discover: &Discover,
        told: Result<Vec<Member>, Failure>,
        now_ms: u64,
    ) {
        self.under_way = None;
        let took_ms = now_ms.abs_diff(self.asked_ms);
        match told {
            Ok(hosts) => {
                self.pause_ms = discover.interval_ms.max(REST * took_ms);
                self.told(worker, hosts, now_ms);
            }
            Err(why) => {
                let is_first = self.members.at_ms == 0;
                let most_ms = if is_first { FIRST_INTERVAL_MS } else { u64::MAX };
                self.pause_ms = discover.interval_ms.min(most_ms);
                self.failed(worker, why);
            }
        }
        worker.shared.publish_members(Some(&self.members));
        worker.follow_members();
    }

    fn told(&mut self, worker: &Worker, hosts: Vec<Member>, now_ms: u64) {
        worker.stats.discovery_ok.add(1);
        if self.members.failures > 0 {
            log::info!("kvroute: hosts are known again");
        }
        let (new, gone) = self.members.answered(hosts, now_ms);
        new.iter().for_each(|address| log::info!("kvroute: {address} has come"));
        gone.iter().for_each(|address| log::info!("kvroute: {address} has left"));
    }

    fn failed(&mut self, worker: &Worker, why: Failure) {
        worker.stats.discovery_failed(why);
        self.members.failed(why);
        // Once when it begins: a source that stays away must not fill the log.
        if self.members.failures == 1 {
            let (source, why) = (self.members.source.as_str(), why.as_str());
            let known = self.members.hosts.len();
            log::warn!("kvroute: which hosts there are is not told ({source}: {why}); the last {known} stay in force");
        }
    }

    /// Says once that there are more hosts than can be.
    fn tell_left_out(&mut self, left_out: u32) {
        if left_out > 0 && self.left_out == 0 {
            log::warn!(
                "kvroute: {left_out} hosts more than kvroute can tell apart are left to Envoy's own policy"
            );
        }
        self.left_out = left_out;
    }
}

/// Asks. Answers the token under which the answer will come, unless Envoy does not take the call.
fn ask(config: &Config, discover: &Discover) -> Option<u32> {
    match &discover.source {
        Source::Admin { cluster } => {
            let path = Clusters::path(&config.cluster);
            // The admin does not look at it, but a call has to name whom it asks.
            let destination = (config.destination_header.as_str(), cluster.as_str());
            let more = ("accept", "application/json");
            host::get(cluster, destination, &path, more, discover.timeout_ms).or_count()
        }
        #[cfg(feature = "dns")]
        Source::Dns { name, .. } => super::resolver::ask(name),
        // The configuration is refused.
        #[cfg(not(feature = "dns"))]
        Source::Dns { .. } => None,
    }
}

/// What the answer says of a cluster. To be called inside the answer's callback.
fn read_clusters(cluster: &str, body_size: usize) -> Result<crate::core::scrape::clusters::Cluster, Failure> {
    match host::status(Headers::CallResponse).or_count().unwrap_or(0) {
        200 => {}
        504 => return Err(Failure::Timeout),
        _ => return Err(Failure::Status),
    }
    let mut clusters = Clusters::new(cluster);
    for start in (0..body_size).step_by(SLICE) {
        let slice = host::buffer(Buffer::CallResponseBody, start, SLICE).or_count();
        clusters.feed(&slice.unwrap_or_default());
    }
    clusters.finish().map_err(|why| match why {
        ClustersError::Broken => Failure::Broken,
        ClustersError::NoCluster => Failure::Unknown,
    })
}
