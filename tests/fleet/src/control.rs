//! How is a fleet told to fail and asked what it saw? Over HTTP: a control path on each engine, and one port for the
//! whole fleet that also reaches engines whose own port is closed.

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::body::{json, Body};
use crate::engine::Engine;
use crate::fault::Fault;
use crate::fleet::report;
use crate::port::Serve;
use crate::routes::not_found;

/// Largest fault taken, in bytes.
const MAX_FAULT_BYTES: usize = 64 << 10;

/// What can be done to one engine.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Fault,
    Report,
    Requests,
    Reset,
}

/// The control port's server.
#[derive(Clone)]
pub(crate) struct Control {
    pub(crate) engines: Vec<Engine>,
}

impl Serve for Control {
    type Connection = ();

    fn connected(&self) {}

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let segments: Vec<_> = path.trim_matches('/').split('/').collect();
        match (request.method(), segments.as_slice()) {
            (&Method::GET, ["report"]) => show(&report(&self.engines)),
            (&Method::DELETE, ["report"]) => {
                self.engines.iter().for_each(Engine::reset_report);
                done()
            }
            (method, ["engines", number, what]) => {
                let engine = number.parse().ok().and_then(|number: usize| self.engines.get(number));
                match (engine, action(method, what)) {
                    (Some(engine), Some(action)) => act(engine, action, request).await,
                    _ => not_found(),
                }
            }
            _ => not_found(),
        }
    }
}

/// What a method and a path's last segment ask for.
pub(crate) fn action(method: &Method, what: &str) -> Option<Action> {
    match (method, what) {
        (&Method::POST, "fault") => Some(Action::Fault),
        (&Method::GET, "report") => Some(Action::Report),
        (&Method::DELETE, "report") => Some(Action::Reset),
        (&Method::GET, "requests") => Some(Action::Requests),
        _ => None,
    }
}

/// Does what was asked to one engine.
pub(crate) async fn act(engine: &Engine, action: Action, request: Request<Incoming>) -> Response<Body> {
    match action {
        Action::Fault => inject(engine, request).await,
        Action::Report => show(&engine.report()),
        Action::Requests => show(&engine.requests()),
        Action::Reset => {
            engine.reset_report();
            done()
        }
    }
}

async fn inject(engine: &Engine, request: Request<Incoming>) -> Response<Body> {
    let fault = match Limited::new(request, MAX_FAULT_BYTES).collect().await {
        Ok(body) => serde_json::from_slice::<Fault>(&body.to_bytes()).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match fault {
        Ok(fault) => {
            // On its own task: a fault that cuts the connection it came on must still take effect as a whole.
            let engine = engine.clone();
            let injected = tokio::spawn(async move { engine.fault(fault).await }).await;
            injected.map_or_else(|error| refused(&error.to_string()), |()| done())
        }
        Err(error) => refused(&error),
    }
}

fn show(report: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(report) {
        Ok(text) => json(StatusCode::OK, text),
        Err(error) => refused(&error.to_string()),
    }
}

fn done() -> Response<Body> {
    json(StatusCode::OK, r#"{"done":true}"#.to_owned())
}

fn refused(why: &str) -> Response<Body> {
    json(StatusCode::BAD_REQUEST, serde_json::json!({ "error": why }).to_string())
}
