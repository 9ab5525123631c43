//! What is a fleet? Engines on loopback ports, started and stopped together.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::control::Control;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::kv_tier::KvTier;
use crate::options::EngineOptions;
use crate::port::Port;
use crate::report::{Counts, FleetReport};

/// Mock vLLM engines on 127.0.0.1. Dropping it stops them and closes their ports.
///
/// They run on the tokio runtime they were started on. A test that blocks its thread (on a child process, say) needs
/// `#[tokio::test(flavor = "multi_thread")]`, or the engines stand still as well.
pub struct Fleet {
    engines: Vec<Engine>,
    /// What those engines share that have a tier.
    tier: Option<KvTier>,
    control: Option<Port>,
}

impl Fleet {
    /// Starts engines on free ports. They listen when this returns.
    pub async fn start(engines: usize, options: EngineOptions) -> io::Result<Self> {
        Self::start_on(&vec![0; engines], options).await
    }

    /// Starts one engine on each port. They listen when this returns.
    pub async fn start_on(ports: &[u16], options: EngineOptions) -> io::Result<Self> {
        let mut fleet = Self { engines: Vec::with_capacity(ports.len()), tier: None, control: None };
        for port in ports {
            fleet.launch(*port, options.clone(), Duration::ZERO)?;
        }
        Ok(fleet)
    }

    /// Starts engines that have one port, at loopback addresses of their own, as the pods of one service have.
    pub async fn start_beside(engines: u8, options: EngineOptions) -> io::Result<Self> {
        let mut fleet = Self { engines: Vec::new(), tier: None, control: None };
        let first = fleet.launch(0, options.clone(), Duration::ZERO)?.address();
        for n in 1..engines {
            let address = Ipv4Addr::new(127, 0, 0, 1 + n);
            fleet.launch_at((address, first.port()), options.clone(), Duration::ZERO)?;
        }
        Ok(fleet)
    }

    /// Adds an engine on `port`, 0 lets the system choose, which refuses connections while it loads its model for so
    /// long. It may be another model than that of the others, and the port of an engine that was removed.
    pub fn launch(&mut self, port: u16, options: EngineOptions, loading: Duration) -> io::Result<Engine> {
        self.launch_at((Ipv4Addr::LOCALHOST, port), options, loading)
    }

    fn launch_at(
        &mut self,
        address: (Ipv4Addr, u16),
        options: EngineOptions,
        loading: Duration,
    ) -> io::Result<Engine> {
        options.check().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let tier = self.tier_for(&options);
        let engine = Engine::start(address, options, tier, loading)?;
        self.engines.push(engine.clone());
        Ok(engine)
    }

    fn tier_for(&mut self, options: &EngineOptions) -> Option<KvTier> {
        let tokens = options.kv_tier_tokens;
        (tokens > 0).then(|| self.tier.get_or_insert_with(|| KvTier::new(tokens)).clone())
    }

    /// Ends the engine at this address: streams are cut, and its port is free for another. False if there is none.
    /// Those after it are then one number lower.
    pub async fn remove(&mut self, address: SocketAddr) -> bool {
        let Some(at) = self.engines.iter().position(|engine| engine.address() == address) else {
            return false;
        };
        let engine = self.engines.remove(at);
        engine.fault(Fault::Crash).await;
        engine.stop();
        true
    }

    /// Opens the control port, which reaches the engines of this moment whatever state they are in; 0 lets the system
    /// choose.
    pub fn serve_control(&mut self, port: u16) -> io::Result<SocketAddr> {
        let port = Port::reserve((Ipv4Addr::LOCALHOST, port))?;
        port.open(Control { engines: self.engines.clone() })?;
        Ok(self.control.insert(port).address())
    }

    /// Where the engines listen, in order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.engines.iter().map(Engine::address).collect()
    }

    /// The `n`th engine, from 0.
    ///
    /// # Panics
    ///
    /// If there is no such engine.
    pub fn engine(&self, n: usize) -> &Engine {
        &self.engines[n]
    }

    /// All engines, in order.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// What the engines saw since their start or the last reset.
    pub fn report(&self) -> FleetReport {
        report(&self.engines)
    }

    /// Starts all reports anew. vLLM's own metrics go on.
    pub fn reset_report(&self) {
        self.engines.iter().for_each(Engine::reset_report);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.engines.iter().for_each(Engine::stop);
        if let Some(control) = &self.control {
            control.abandon();
        }
    }
}

/// The engines' reports and their sum.
pub(crate) fn report(engines: &[Engine]) -> FleetReport {
    let engines: Vec<_> = engines.iter().map(Engine::report).collect();
    let mut total = Counts::default();
    engines.iter().for_each(|engine| total += engine.counts);
    FleetReport { total, engines }
}
