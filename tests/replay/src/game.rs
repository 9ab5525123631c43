//! One game: these requests, this fleet, and whoever plays it.

use crate::engine::EngineSpec;
use crate::figures::Figures;
use crate::policy::account::Regret;
use crate::policy::kvroute::{Kvroute, Setup};
use crate::policy::oracle::VARIANTS;
use crate::policy::registry::Named;
use crate::policy::{Place, Policy};
use crate::simulation::{simulate, Event, Polling, Run, Served};
use crate::trace::Request;

/// Makes a policy for a run.
pub type Make = Box<dyn Fn(&Place) -> Box<dyn Policy> + Sync>;

/// A policy that takes part.
pub struct Contender {
    /// As the tables name it.
    pub name: String,
    /// Makes it.
    pub make: Make,
}

impl Contender {
    /// kvroute, set up like this but for gateways and seed, which the game gives.
    pub fn kvroute(name: &str, setup: Setup) -> Self {
        let make = move |place: &Place| -> Box<dyn Policy> {
            let setup = Setup { gateways: place.gateways, seed: place.seed, ..setup.clone() };
            Box::new(Kvroute::new(&setup, place.hosts))
        };
        Self { name: name.to_owned(), make: Box::new(make) }
    }

    /// Somebody else's policy.
    pub fn peer(named: &Named) -> Self {
        Self { name: named.name.to_owned(), make: Box::new(named.make) }
    }
}

/// Everything about a run but the policy.
#[derive(Debug, Clone)]
pub struct Game {
    /// The requests, by time of arrival.
    pub requests: Vec<Request>,
    /// Tokens of a block of the trace.
    pub block_tokens: u32,
    /// The hosts at the start.
    pub hosts: Vec<EngineSpec>,
    /// Gateways that requests come to.
    pub gateways: usize,
    /// How they poll.
    pub polling: Polling,
    /// What happens to the fleet.
    pub events: Vec<(u64, Event)>,
    /// Draws whatever is random.
    pub seed: u64,
}

/// How a game went.
#[derive(Debug, Clone)]
pub struct Played {
    /// What became of each request.
    pub served: Vec<Served>,
    /// What affinity earned and cost, if the policy keeps an account.
    pub regret: Option<Regret>,
}

impl Game {
    /// Plays it with a policy made for it.
    pub fn play(&self, contender: &Contender) -> Played {
        let mut policy = (contender.make)(&self.place());
        let served = self.serve(&mut *policy);
        Played { served, regret: policy.account().map(|account| account.regret()) }
    }

    /// Plays it with every variant of the oracle.
    pub fn oracles(&self) -> Vec<Vec<Served>> {
        VARIANTS.map(|mut variant| self.serve(&mut variant)).into()
    }

    /// The best that any variant of the oracle reaches, figure by figure.
    pub fn envelope(&self) -> Figures {
        let hosts = self.hosts.len();
        Figures::envelope(self.oracles().iter().map(|served| Figures::of(served, hosts)))
    }

    fn place(&self) -> Place {
        Place {
            gateways: self.gateways,
            hosts: self.hosts.len(),
            block_tokens: self.block_tokens,
            seed: self.seed,
        }
    }

    fn serve(&self, policy: &mut dyn Policy) -> Vec<Served> {
        let run = Run {
            requests: &self.requests,
            block_tokens: self.block_tokens,
            hosts: self.hosts.clone(),
            gateways: self.gateways,
            polling: self.polling,
            events: self.events.clone(),
            seed: self.seed,
        };
        simulate(&run, policy)
    }
}
