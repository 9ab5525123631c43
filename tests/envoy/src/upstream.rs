//! An upstream that is no engine: it does with each request what a test says.

use crate::client::{empty, Body};
use crate::config::{Config, KVROUTE};
use crate::envoy::{Envoy, Options};
use anyhow::Result;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// An upstream that does `answer` with each POST, and says nothing in particular to everything else. HTTP/1.1 and
/// HTTP/2.
pub async fn upstream<F>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) -> Result<SocketAddr>
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = (request.method() == "POST").then(|| answer(request));
                async {
                    Ok::<_, Infallible>(match answer {
                        Some(answer) => answer.await,
                        None => Response::new(empty()),
                    })
                }
            });
            tokio::spawn(async move {
                let http = auto::Builder::new(TokioExecutor::new());
                // A connection that breaks has nobody left to tell.
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok(address)
}

/// An Envoy of one worker before one upstream, and where it listens.
pub async fn envoy_before(
    upstream: SocketAddr,
    edit: impl FnOnce(Config) -> Config,
) -> Result<(Envoy, SocketAddr)> {
    let config = edit(Config::quick_start()?.hosts(&[upstream]));
    let envoy = Envoy::start(&config, &Options::workers(1)).await?;
    let address = envoy.listener(KVROUTE).await?;
    Ok((envoy, address))
}
