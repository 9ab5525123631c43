//! Who can connect? One TCP port that can be closed, with every connection on it, and opened again. HTTP/1.1 and
//! HTTP/2 without TLS, told apart by the first bytes.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::body::Body;

/// Connections that may wait to be accepted, and streams that may share one HTTP/2 connection.
const BACKLOG: u32 = 4_096;
const MAX_STREAMS: u32 = 4_096;

/// A port that stays ours whether it is open or closed.
pub(crate) struct Port {
    address: SocketAddr,
    /// Bound and never listening: while the port is closed the kernel refuses connections to it and gives the number
    /// to nobody else.
    _reservation: TcpSocket,
    listening: Mutex<Option<Listening>>,
}

/// What answers on a port.
pub(crate) trait Serve: Clone + Send + Sync + 'static {
    /// Held for as long as a connection is open.
    type Connection: Send;

    fn connected(&self) -> Self::Connection;
    fn answer(self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

struct Listening {
    /// Dropped to end the task, and with it the socket and all connections.
    close: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Port {
    /// Takes a port of a loopback address; 0 lets the system choose.
    pub(crate) fn reserve(address: (Ipv4Addr, u16)) -> io::Result<Self> {
        let reservation = bind(address.into())?;
        let address = reservation.local_addr()?;
        Ok(Self { address, _reservation: reservation, listening: Mutex::new(None) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn is_open(&self) -> bool {
        self.listening().is_some()
    }

    /// Listens, unless it does already.
    pub(crate) fn open(&self, server: impl Serve) -> io::Result<()> {
        let mut listening = self.listening();
        if listening.is_none() {
            let listener = bind(self.address)?.listen(BACKLOG)?;
            let (close, closing) = oneshot::channel();
            let task = tokio::spawn(accept(listener, server, closing));
            *listening = Some(Listening { close, task });
        }
        Ok(())
    }

    /// Stops listening and cuts every connection; both are done on return.
    pub(crate) async fn close(&self) {
        let listening = self.listening().take();
        if let Some(Listening { close, task }) = listening {
            drop(close);
            // The task can only have ended by itself: then the port is closed as well.
            let _ = task.await;
        }
    }

    /// As `close`, without waiting until it is done.
    pub(crate) fn abandon(&self) {
        self.listening().take();
    }

    fn listening(&self) -> MutexGuard<'_, Option<Listening>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept(listener: TcpListener, server: impl Serve, mut closing: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut closing => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(serve(stream, server.clone())); }
                // Out of file descriptors: nothing to do but let connections end.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn serve(stream: TcpStream, server: impl Serve) {
    let _connection = server.connected();
    // Only latency is lost without it.
    let _ = stream.set_nodelay(true);
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http2().max_concurrent_streams(MAX_STREAMS);
    let service = service_fn(|request| {
        let answer = server.clone().answer(request);
        async { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    // A connection that breaks has nobody left to tell.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
