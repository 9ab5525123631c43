//! What is there, and what can be done to it? A fleet with a fixed number of places, each with an address of its own; an
//! Envoy whose endpoints come from a file; and the operator, who starts engines, and drains them before they go.

use crate::config::{Config, CLUSTER, CONTROL, KVROUTE};
use crate::control::Control;
use crate::endpoints::{Endpoints, Health};
use crate::envoy::{Envoy, Options};
use crate::repository;
use anyhow::{Context, Result};
use fleet::{Engine, EngineOptions, Fault, Fleet};
use serde_json::{json, Value};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::process::Command;

/// Name of the cluster that leads to Envoy's own admin interface.
const ADMIN: &str = "admin";

/// What a site is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Places for engines: the most that there can ever be.
    pub places: usize,
    /// How many of them, from the first, have an engine at the start.
    pub serving: usize,
    /// The engines.
    pub engine: EngineOptions,
    /// How long an engine loads its model.
    pub loading: Duration,
    /// What differs from the quick start: JSON pointers into the plugin's configuration.
    pub settings: Vec<(&'static str, Value)>,
}

/// How a place really is, whatever anybody thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// Nobody is there, nor expected.
    Empty,
    /// A process that does not listen yet.
    Loading,
    /// An engine at work.
    Up,
    /// An engine that takes requests and answers none.
    Hung,
    /// An engine that is to go.
    Leaving,
    /// A process that ended by itself.
    Crashed,
}

/// A fleet, the Envoy before it, and the operator's hands.
pub struct Site {
    fleet: Fleet,
    truths: Mutex<Vec<Truth>>,
    endpoints: Endpoints,
    loading: Duration,
    /// The Envoy.
    pub envoy: Envoy,
    /// Where clients send their requests.
    pub address: SocketAddr,
    /// The control listener.
    pub control: Control,
}

impl Site {
    /// Starts all of it; the first engines have loaded.
    pub async fn start(setup: &Setup) -> Result<Self> {
        let fleet = Fleet::start(setup.places, setup.engine.clone()).await?;
        for engine in &fleet.engines()[setup.serving..] {
            // It keeps its port, so that the address is known and nobody else's.
            engine.fault(Fault::Crash).await;
        }
        let addresses = fleet.addresses();
        let endpoints = Endpoints::new(CLUSTER, &addresses[..setup.serving])?;
        let config = configuration(setup, &endpoints)?.with_control(None)?;
        let envoy = Envoy::start(&config, &Options::default()).await?;
        let (address, control) = (envoy.listener(KVROUTE).await?, envoy.listener(CONTROL).await?);
        let truth = |place| if place < setup.serving { Truth::Up } else { Truth::Empty };
        Ok(Self {
            truths: Mutex::new((0..setup.places).map(truth).collect()),
            fleet,
            endpoints,
            loading: setup.loading,
            envoy,
            address,
            control: Control::new(control),
        })
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.fleet.engines().len()
    }

    /// The engine of a place, whether it is up or not.
    pub fn engine(&self, place: usize) -> &Engine {
        self.fleet.engine(place)
    }

    /// How a place really is.
    pub fn truth(&self, place: usize) -> Truth {
        let mut truths = self.truths();
        if truths[place] == Truth::Loading && self.engine(place).is_listening() {
            truths[place] = Truth::Up;
        }
        truths[place]
    }

    /// Starts a process at a place. It is an endpoint at once, and refuses connections until it has loaded.
    pub async fn launch(&self, place: usize) -> Result<()> {
        self.restart(place).await;
        let host = self.engine(place).address();
        // Its predecessor was drained.
        self.control.ask("POST", &format!("/kvroute/undrain?host={host}")).await?;
        self.endpoints.set(host, Health::Healthy)
    }

    /// Ends the process of a place, whatever it has in flight, and starts another there, which has to load.
    pub async fn restart(&self, place: usize) {
        self.tell(place, Truth::Loading);
        self.engine(place).fault(Fault::Restart { down_seconds: self.loading.as_secs_f64() }).await;
    }

    /// The process of a place is gone. It stays an endpoint until somebody [removes](Self::remove) it.
    pub async fn crash(&self, place: usize) {
        self.tell(place, Truth::Crashed);
        self.engine(place).fault(Fault::Crash).await;
    }

    /// The engine of a place accepts requests and looks well, and answers nothing any more.
    pub async fn hang(&self, place: usize) {
        self.tell(place, Truth::Hung);
        self.engine(place).fault(Fault::Stall).await;
    }

    /// A place is no endpoint any more.
    pub fn remove(&self, place: usize) -> Result<()> {
        self.tell(place, Truth::Empty);
        self.endpoints.remove(self.engine(place).address())
    }

    /// The engine of a place is to go: from now on it does not count.
    pub fn leave(&self, place: usize) {
        self.tell(place, Truth::Leaving);
    }

    /// Takes an engine out as a pod would go: `scripts/prestop`, SIGTERM, and then it is no endpoint any more. Returns
    /// whether it was empty by then.
    pub async fn drain(&self, place: usize, within: Duration) -> Result<bool> {
        self.leave(place);
        let engine = self.engine(place);
        let mut prestop = Command::new(repository().join("scripts/prestop"));
        let gateway = format!("http://{}", self.control.address());
        prestop.args([gateway, engine.address().to_string(), within.as_secs().to_string()]);
        prestop.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let drained = prestop.status().await.context("scripts/prestop needs sh and curl")?.success();
        let ended = engine.shut_down(Duration::ZERO).await;
        self.remove(place)?;
        Ok(drained && ended)
    }

    fn tell(&self, place: usize, truth: Truth) {
        self.truths()[place] = truth;
    }

    fn truths(&self) -> MutexGuard<'_, Vec<Truth>> {
        self.truths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn configuration(setup: &Setup, endpoints: &Endpoints) -> Result<Config> {
    let config = Config::quick_start()?.discovering(ADMIN).endpoints_from(endpoints);
    let config = config.plugin("/routing/prefill_tokens_per_s", json!(setup.engine.prefill_tokens_per_s));
    let set = |config: Config, (key, value): &(&str, Value)| config.plugin(key, value.clone());
    Ok(setup.settings.iter().fold(config, set))
}
