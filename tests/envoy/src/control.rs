//! What does kvroute say on its control listener?

use crate::client::{self, Connection};
use anyhow::{ensure, Context, Result};
use http_body_util::BodyExt;
use hyper::Request;
use serde_json::Value;
use std::net::SocketAddr;

/// A control listener that asks for no secret.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    address: SocketAddr,
}

impl Control {
    /// The one at this address.
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `GET /kvroute/status`.
    pub async fn status(&self) -> Result<Value> {
        self.ask("GET", "/kvroute/status").await
    }

    /// `GET /kvroute/signals`.
    pub async fn signals(&self) -> Result<Value> {
        self.ask("GET", "/kvroute/signals").await
    }

    /// Asks for anything that answers in JSON; an error for every status but 200.
    pub async fn ask(&self, method: &str, target: &str) -> Result<Value> {
        let request = Request::builder().method(method).uri(target).header("host", "control");
        let mut connection = Connection::open(self.address).await?;
        let response = connection.send(request.body(client::empty())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status == 200, "{target} answers {status}: {}", String::from_utf8_lossy(&body).trim());
        serde_json::from_slice(&body).with_context(|| format!("{target} answers no JSON"))
    }
}
