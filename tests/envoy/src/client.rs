//! A client that decides what goes on which connection: HTTP/1.1 or HTTP/2, and a body in the given pieces.

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::{stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// A request body: one of [`empty`], [`whole`] and [`pieces`].
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Between two pieces of a body. Long enough for a proxy that is not busy to see them apart.
const PIECE_INTERVAL: Duration = Duration::from_millis(1);

/// No body: `content-length` is not sent.
pub fn empty() -> Body {
    Empty::new().boxed_unsync()
}

/// A body in one piece, with its `content-length`.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body of unknown length, written piece by piece (over HTTP/1.1: one chunk each), then the trailers.
pub fn pieces(pieces: Vec<Bytes>, trailers: Option<HeaderMap>) -> Body {
    let data = stream::iter(pieces).then(|piece| async {
        tokio::time::sleep(PIECE_INTERVAL).await;
        Ok(Frame::data(piece))
    });
    let end = stream::iter(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
    StreamBody::new(data.chain(end)).boxed_unsync()
}

/// One TCP connection. Dropping it closes it, whatever is under way.
#[derive(Debug)]
pub struct Connection {
    requests: Requests,
    /// Moves the bytes. Ended on drop, which closes the socket.
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[derive(Debug)]
enum Requests {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Connection {
    /// Connects for HTTP/1.1.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let (requests, connection) = http1::handshake(connect(address).await?).await?;
        let driver = tokio::spawn(connection).abort_handle();
        Ok(Self { requests: Requests::Http1(requests), driver })
    }

    /// Connects for HTTP/2 with prior knowledge.
    pub async fn open_http2(address: SocketAddr) -> Result<Self> {
        let (requests, connection) = http2::handshake(TokioExecutor::new(), connect(address).await?).await?;
        let driver = tokio::spawn(connection).abort_handle();
        Ok(Self { requests: Requests::Http2(requests), driver })
    }

    /// Sends a request; the response's body is still to be read. With HTTP/1.1 the one before must be.
    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>> {
        let response = match &mut self.requests {
            Requests::Http1(requests) => {
                requests.ready().await?;
                requests.send_request(request).await
            }
            Requests::Http2(requests) => requests.send_request(request).await,
        };
        response.context("sending a request")
    }

    fn is_open(&self) -> bool {
        match &self.requests {
            Requests::Http1(requests) => !requests.is_closed(),
            Requests::Http2(requests) => !requests.is_closed(),
        }
    }
}

async fn connect(address: SocketAddr) -> Result<TokioIo<TcpStream>> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

/// Kept-alive HTTP/1.1 connections to one address, as many as there are requests at the same time.
#[derive(Debug)]
pub struct Pool {
    address: SocketAddr,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    /// A pool without connections yet.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, idle: Mutex::default() }
    }

    /// An idle connection, or a new one.
    pub async fn take(&self) -> Result<Connection> {
        let idle = self.lock().pop();
        match idle.filter(Connection::is_open) {
            Some(connection) => Ok(connection),
            None => Connection::open(self.address).await,
        }
    }

    /// Keeps a connection whose response has been read to the end.
    pub fn put_back(&self, connection: Connection) {
        self.lock().push(connection);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes `request` as it stands and returns what comes back until `enough` is satisfied or the other side
/// closes: for requests that a well-behaved client cannot make.
pub async fn raw(address: SocketAddr, request: &[u8], enough: impl Fn(&str) -> bool) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer);
        if enough(&text) || stream.read_buf(&mut answer).await? == 0 {
            return Ok(String::from_utf8_lossy(&answer).into_owned());
        }
    }
}
