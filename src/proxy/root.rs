//! How is a configuration loaded, and what happens at a tick?
//!
//! Envoy makes one root for each configuration in each VM: one VM for each worker and one for the main
//! thread. Roots of an old configuration go on ticking while their streams end; they share the VM's
//! [`Worker`] and leave polling to newer ones.

use super::decided::rescue;
use super::filter::Filter;
use super::host::{self, Buffer};
use super::poller::Poller;
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

struct Loaded {
    config: Rc<Config>,
    worker: Rc<RefCell<Worker>>,
    poller: Poller,
}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        let bytes = host::buffer(Buffer::Configuration, 0, MAX_CONFIGURATION).unwrap_or_default();
        match Config::parse(&bytes) {
            Ok(config) => {
                let worker = Worker::of(&config);
                self.loaded = Some(Loaded { config: Rc::new(config), worker, poller: Poller::new(&bytes) });
                host::set_tick_period(Duration::from_millis(TICK_MS))
            }
            Err(refusal) => {
                log::error!("kvroute: configuration refused: {refusal}");
                false
            }
        }
    }

    fn on_tick(&mut self) {
        let Some(Loaded { config, worker, poller }) = &mut self.loaded else {
            return;
        };
        let now_ms = now_ms();
        let stuck = {
            let mut worker = worker.borrow_mut();
            worker.tick(now_ms, TICK_MS);
            poller.tick(&mut worker, config, now_ms);
            worker.stuck(now_ms)
        };
        for stream in stuck {
            rescue(stream, config, worker);
        }
    }

    fn create_http_context(&self, stream: u32) -> Option<Box<dyn HttpContext>> {
        let loaded = self.loaded.as_ref()?;
        Some(Box::new(Filter::new(stream, Rc::clone(&loaded.config), Rc::clone(&loaded.worker))))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, _headers: usize, body_size: usize, _trailers: usize) {
        if let Some(Loaded { config, worker, poller }) = &mut self.loaded {
            poller.answered(&mut worker.borrow_mut(), config, token, body_size, now_ms());
        }
    }
}
