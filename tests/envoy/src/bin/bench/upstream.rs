//! An upstream that does no work: it reads the request and answers at once, so that what is measured is Envoy.

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use tokio::net::TcpListener;

const ANSWER: &[u8] = br#"{"id":"chatcmpl-1","object":"chat.completion","model":"mock","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":2,"total_tokens":102,"prompt_tokens_details":{"cached_tokens":0}}}"#;

/// What an idle vLLM says of itself, in the lines that kvroute reads: so that the filter knows its hosts,
/// as it does in real life.
const METRICS: &[u8] = b"\
vllm:num_requests_running{engine=\"0\",model_name=\"mock\"} 0.0
vllm:num_requests_waiting{engine=\"0\",model_name=\"mock\"} 0.0
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock\"} 0.0
vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"mock\"} 0.0
vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"mock\"} 0.0
vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"65536\"} 1.0
";

/// One such upstream.
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    routed: Arc<AtomicU64>,
}

impl Upstream {
    /// Starts it on a free port; it runs until the process ends.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = Self { address: listener.local_addr()?, routed: Arc::default() };
        let routed = Arc::clone(&upstream.routed);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let routed = Arc::clone(&routed);
                let service = service_fn(move |request| answer(request, Arc::clone(&routed)));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(upstream)
    }

    /// How many POSTs came with a destination header: those that kvroute decided.
    pub fn routed(&self) -> u64 {
        self.routed.load(Ordering::Relaxed)
    }
}

async fn answer(
    request: Request<Incoming>,
    routed: Arc<AtomicU64>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let post = request.method() == "POST";
    if post && request.headers().contains_key("x-upstream-host") {
        routed.fetch_add(1, Ordering::Relaxed);
    }
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    let answer = if post { ANSWER } else { METRICS };
    let mut response = Response::new(Full::new(Bytes::from_static(answer)));
    if post {
        let json = hyper::header::HeaderValue::from_static("application/json");
        response.headers_mut().insert("content-type", json);
    }
    Ok(response)
}
