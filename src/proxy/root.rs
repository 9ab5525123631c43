//! How is a configuration loaded, and what happens at a tick?
//!
//! Envoy makes one root for each configuration in each VM: one VM for each worker and one for the main
//! thread. Roots of an old configuration go on ticking while their streams end; they share the VM's
//! [`Worker`] and leave polling to newer ones.

use super::control::{Control, Listener};
use super::decided::rescue;
use super::discovery::Discovery;
use super::filter::Filter;
use super::host::{self, Buffer};
use super::peers::Peers;
use super::poller::Poller;
use super::signals::Publisher;
use super::stats::OrCount;
use super::stream::Stream;
use super::worker::{now_ms, Worker};
use crate::core::config::Config;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How often workers tell each other what they placed, and look who is due for a poll.
const TICK_MS: u64 = 50;

/// The longest configuration that is read, in bytes: a thousand hosts and every key.
const MAX_CONFIGURATION: usize = 1 << 20;

/// One configuration in one VM.
#[derive(Default)]
pub struct Root {
    loaded: Option<Loaded>,
}

/// What a configuration makes of a root.
enum Loaded {
    /// It routes requests.
    Routing(Box<Routing>),
    /// It answers on a control listener. It knows no hosts and never ticks.
    Control(Rc<Listener>),
}

/// A root that routes, and has its part in what one does for all.
struct Routing {
    config: Rc<Config>,
    worker: Rc<RefCell<Worker>>,
    poller: Poller,
    peers: Peers,
    discovery: Discovery,
    signals: Publisher,
}

impl Routing {
    fn new(config: Config, bytes: &[u8]) -> Self {
        let worker = Worker::of(&config);
        let signals = Publisher::new(&mut worker.borrow_mut(), &config, now_ms());
        Self {
            config: Rc::new(config),
            worker,
            poller: Poller::new(bytes),
            peers: Peers::default(),
            discovery: Discovery::default(),
            signals,
        }
    }

    /// Does what is to be done every so often. Answers the streams that wait for what does not come.
    fn tick(&mut self, now_ms: u64) -> Vec<u32> {
        let Self { config, worker, poller, peers, discovery, signals } = self;
        let worker = &mut worker.borrow_mut();
        worker.tick(now_ms, TICK_MS);
        poller.tick(worker, config, peers.part(config), now_ms);
        let leads = poller.leads();
        peers.tick(worker, config, leads, now_ms);
        discovery.tick(worker, config, leads, now_ms);
        signals.tick(worker, config, leads, now_ms);
        let mut stuck = worker.stuck(now_ms);
        stuck.append(&mut worker.stalled(now_ms));
        stuck
    }

    fn answered(&mut self, token: u32, body_size: usize, now_ms: u64) {
        let Self { config, worker, poller, peers, discovery, .. } = self;
        let worker = &mut worker.borrow_mut();
        poller.answered(worker, config, token, body_size, now_ms);
        peers.answered(worker, token, body_size, now_ms);
        discovery.answered(worker, config, token, body_size, now_ms);
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        let bytes = host::buffer(Buffer::Configuration, 0, MAX_CONFIGURATION).or_count().unwrap_or_default();
        match Config::parse(&bytes) {
            Ok(config) if config.control => {
                self.loaded = Some(Loaded::Control(Rc::new(Listener::new(config))));
                true
            }
            Ok(config) => {
                self.loaded = Some(Loaded::Routing(Box::new(Routing::new(config, &bytes))));
                host::set_tick_period(Duration::from_millis(TICK_MS)).or_count().is_some()
            }
            Err(refusal) => {
                log::error!("kvroute: configuration refused: {refusal}");
                false
            }
        }
    }

    fn on_tick(&mut self) {
        let Some(Loaded::Routing(routing)) = &mut self.loaded else { return };
        for stream in routing.tick(now_ms()) {
            rescue(stream, &routing.config, &routing.worker);
        }
    }

    fn create_http_context(&self, stream: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(match self.loaded.as_ref()? {
            Loaded::Routing(routing) => {
                Stream::Routed(Filter::new(stream, Rc::clone(&routing.config), Rc::clone(&routing.worker)))
            }
            Loaded::Control(listener) => Stream::Control(Control::new(Rc::clone(listener))),
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, _headers: usize, body_size: usize, _trailers: usize) {
        if let Some(Loaded::Routing(routing)) = &mut self.loaded {
            routing.answered(token, body_size, now_ms());
        }
    }
}
