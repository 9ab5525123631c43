//! One request on its way through the filter: what Envoy does with it between two callbacks.

use proxy_wasm::types::{Action, MapType};

use crate::callbacks;
use crate::exchange::{Exchange, LocalReply};
use crate::headers::HeaderMap;
use crate::state::Here;
use crate::worker::Worker;

/// A request and its response. Dropped without [`finish`](Self::finish) it stays open for ever.
pub struct Stream {
    worker: Worker,
    id: u32,
}

impl Stream {
    pub(crate) fn new(worker: Worker, id: u32) -> Self {
        Self { worker, id }
    }

    // ---- the request ----

    /// A piece of the body arrives.
    pub fn body(&self, piece: &[u8], end_of_stream: bool) -> Action {
        let piece = piece.to_vec();
        self.run(move |here, id| request_body(here, id, &piece, end_of_stream))
    }

    /// Trailers arrive, and end the request.
    pub fn trailers(&self, trailers: &[(&str, &str)]) -> Action {
        let trailers: HeaderMap = trailers.iter().copied().collect();
        self.run(move |here, id| request_trailers(here, id, trailers))
    }

    /// Whether the filter still keeps the request from the upstream.
    pub fn is_held(&self) -> bool {
        self.look(|exchange| !exchange.released)
    }

    /// How many bytes of body Envoy buffers because the filter paused.
    pub fn held_bytes(&self) -> usize {
        self.look(|exchange| {
            let stopped = exchange.stopped.as_ref().map_or(0, Vec::len);
            exchange.watermarked_body.len() + exchange.request_body.len() + stopped
        })
    }

    /// The request's headers as they are now: once it is not held, what the upstream gets.
    pub fn headers(&self) -> HeaderMap {
        self.look(|exchange| exchange.request_headers.clone())
    }

    /// The body that has reached the upstream.
    pub fn upstream_body(&self) -> Vec<u8> {
        self.look(|exchange| exchange.upstream_body.clone())
    }

    // ---- the response ----

    /// The upstream at `address` begins to answer, at the first attempt.
    pub fn respond(&self, address: &str, status: u32, headers: &[(&str, &str)]) -> Action {
        self.respond_after(1, address, status, headers)
    }

    /// The upstream at `address` begins to answer, and is the one that attempt number `attempts`
    /// reached: those before it failed, and Envoy's retry policy walked on.
    pub fn respond_after(
        &self,
        attempts: u64,
        address: &str,
        status: u32,
        headers: &[(&str, &str)],
    ) -> Action {
        self.set_property(&["upstream", "address"], address.as_bytes());
        self.set_property(&["upstream", "request_attempt_count"], &attempts.to_le_bytes());
        self.respond_from_nowhere(status, headers.iter().copied())
    }

    /// A response begins, and Envoy does not tell which upstream it is from.
    pub fn respond_from_nowhere<N: AsRef<str>, V: AsRef<[u8]>>(
        &self,
        status: u32,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Action {
        assert!(!self.is_held(), "a held request cannot be answered");
        let headers = response_head(status, headers);
        self.run(move |here, id| response_headers(here, id, status, headers, false))
    }

    /// A piece of the response's body arrives.
    pub fn response_body(&self, piece: &[u8], end_of_stream: bool) -> Action {
        let piece = piece.to_vec();
        self.run(move |here, id| response_body(here, id, &piece, end_of_stream))
    }

    /// Trailers arrive, and end the response.
    pub fn response_trailers(&self, trailers: &[(&str, &str)]) -> Action {
        let trailers: HeaderMap = trailers.iter().copied().collect();
        self.run(move |here, id| response_trailers(here, id, trailers))
    }

    /// Envoy answers itself: a connect failure (`address` is the host it tried), no healthy host (no
    /// address), a timeout. `flags` are Envoy's response flags.
    pub fn fail(&self, address: Option<&str>, status: u32, flags: u64) -> Action {
        let address = address.map(str::to_owned);
        self.run(move |here, id| {
            look(here, id, |exchange| {
                if let Some(address) = address {
                    exchange.set_property(&["upstream", "address"], address.as_bytes());
                }
                exchange.set_property(&["response", "flags"], &flags.to_le_bytes());
            });
            let reply = LocalReply {
                status,
                details: String::new(),
                headers: HeaderMap::default(),
                body: b"upstream connect error or disconnect/reset before headers".to_vec(),
            };
            send_local_reply(here, id, reply)
        })
    }

    /// The response's headers as the client gets them.
    pub fn response_headers(&self) -> HeaderMap {
        self.look(|exchange| exchange.response_headers.clone())
    }

    /// The body that has reached the client.
    pub fn client_body(&self) -> Vec<u8> {
        self.look(|exchange| exchange.client_body.clone())
    }

    /// The answer, if it came from the filter or from Envoy rather than from an upstream.
    pub fn local_reply(&self) -> Option<LocalReply> {
        self.look(|exchange| exchange.local_reply.clone())
    }

    /// What the filter set as filter state, which access logs show as `wasm.<name>`.
    pub fn filter_state(&self, name: &str) -> Option<String> {
        self.look(|exchange| {
            let value = exchange.filter_state.get(name)?;
            Some(String::from_utf8_lossy(value).into_owned())
        })
    }

    /// Sets a property that the filter can read, such as `["xds", "cluster_name"]`.
    pub fn set_property(&self, path: &[&str], value: &[u8]) {
        self.look(|exchange| exchange.set_property(path, value));
    }

    // ---- the end ----

    /// The stream is over: it is logged, done and deleted. The returned value still tells of it.
    pub fn finish(&self) {
        self.run(|here, id| {
            look(here, id, |exchange| {
                exchange.in_access_log = true;
                exchange.open_maps.clear();
            });
            callbacks::log_done_delete(here, id);
        });
    }

    /// The client goes away, and the stream is over.
    pub fn abort(&self) {
        self.end_with(0x4000);
    }

    /// The upstream breaks off in the middle of its response, and the stream is over.
    pub fn reset_by_upstream(&self) {
        self.end_with(0x80_0000);
    }

    fn end_with(&self, flags: u64) {
        self.look(|exchange| exchange.set_property(&["response", "flags"], &flags.to_le_bytes()));
        self.finish();
    }

    fn look<R>(&self, act: impl FnOnce(&mut Exchange) -> R) -> R {
        look(&self.worker.here, self.id, act)
    }

    fn run<R: Send + 'static>(&self, act: impl FnOnce(&Here, u32) -> R + Send + 'static) -> R {
        let id = self.id;
        self.worker.run(move |here| act(here, id))
    }
}

fn look<R>(here: &Here, id: u32, act: impl FnOnce(&mut Exchange) -> R) -> R {
    here.with(|vm| act(vm.streams.entry(id).or_default()))
}

pub(crate) fn response_head<N: AsRef<str>, V: AsRef<[u8]>>(
    status: u32,
    headers: impl IntoIterator<Item = (N, V)>,
) -> HeaderMap {
    let mut head = HeaderMap::default();
    head.add(":status", status.to_string().as_bytes());
    for (name, value) in headers {
        head.add(name.as_ref(), value.as_ref());
    }
    head
}

// ---- on the VM's thread -------------------------------------------------------------------------

pub(crate) fn request_headers(here: &Here, id: u32, end_of_stream: bool) -> Action {
    let count = look(here, id, |exchange| {
        exchange.open_maps = vec![MapType::HttpRequestHeaders];
        exchange.end_of_request = end_of_stream;
        exchange.request_headers.len()
    });
    let action = callbacks::request_headers(here, id, count, end_of_stream);
    let stops_all = !here.lock().options.allow_on_headers_stop_iteration;
    if action == Action::Pause && stops_all {
        look(here, id, |exchange| exchange.stopped = Some(Vec::new()));
    }
    settle_request(here, id, action)
}

fn request_body(here: &Here, id: u32, piece: &[u8], end_of_stream: bool) -> Action {
    let limit = here.lock().options.buffer_limit;
    let size = look(here, id, |exchange| {
        exchange.end_of_request = end_of_stream;
        if let Some(stopped) = &mut exchange.stopped {
            stopped.extend_from_slice(piece);
            return None;
        }
        if exchange.local_reply_sent {
            return None;
        }
        if !exchange.buffering {
            exchange.request_body.clear();
        }
        let was_buffered = !exchange.request_body.is_empty();
        exchange.request_body.extend_from_slice(piece);
        // What joins a buffer is in it before the filter is asked.
        let overflows = was_buffered && exchange.request_body.len() > limit;
        Some((exchange.request_body.len(), overflows))
    });
    let action = match size {
        None => return Action::Pause,
        Some((_, true)) => Action::Pause,
        Some((size, false)) => {
            let action = callbacks::request_body(here, id, size, end_of_stream);
            settle_request(here, id, action)
        }
    };
    let overflows = look(here, id, |exchange| exchange.buffering && exchange.request_body.len() > limit);
    if overflows {
        let reply = LocalReply {
            status: 413,
            details: "request_payload_too_large".to_owned(),
            headers: HeaderMap::default(),
            body: b"Payload Too Large".to_vec(),
        };
        send_local_reply(here, id, reply);
    }
    action
}

fn request_trailers(here: &Here, id: u32, trailers: HeaderMap) -> Action {
    let count = look(here, id, |exchange| {
        exchange.request_trailers = trailers;
        exchange.open_maps.push(MapType::HttpRequestTrailers);
        exchange.request_trailers.len()
    });
    let action = callbacks::request_trailers(here, id, count);
    settle_request(here, id, action)
}

/// What follows from the action a request callback returned, or from what it asked for meanwhile.
fn settle_request(here: &Here, id: u32, action: Action) -> Action {
    let reply = look(here, id, |exchange| {
        if let Some(reply) = exchange.local_reply.clone() {
            return (!exchange.local_reply_sent).then_some(reply);
        }
        match action {
            Action::Continue => exchange.release(),
            Action::StopIterationAndWatermark => {
                exchange.buffering = false;
                let Exchange { watermarked_body, request_body, .. } = exchange;
                watermarked_body.append(request_body);
            }
            _ => exchange.buffering = true,
        }
        None
    });
    if let Some(reply) = reply {
        send_local_reply(here, id, reply);
    }
    pump(here);
    action
}

/// Resumes every stream whose `proxy_continue_stream` was called, from whichever callback.
pub(crate) fn pump(here: &Here) {
    let resumed: Vec<u32> = here.with(|vm| {
        let resumed = vm.streams.iter_mut().filter(|(_, e)| e.resume);
        resumed
            .map(|(id, exchange)| {
                exchange.resume = false;
                *id
            })
            .collect()
    });
    for id in resumed {
        let (stopped, end_of_stream) = look(here, id, |exchange| {
            exchange.release();
            (exchange.stopped.take(), exchange.end_of_request)
        });
        // All that came meanwhile is delivered in one callback.
        if let Some(stopped) = stopped.filter(|body| !body.is_empty() || end_of_stream) {
            request_body(here, id, &stopped, end_of_stream);
        }
    }
}

/// A local reply passes through the filter like any response.
fn send_local_reply(here: &Here, id: u32, reply: LocalReply) -> Action {
    let headers = response_head(reply.status, reply.headers.iter());
    look(here, id, |exchange| {
        exchange.local_reply = Some(reply.clone());
        exchange.local_reply_sent = true;
        exchange.released = true;
        exchange.buffering = false;
        let details = reply.details.as_bytes();
        exchange.set_property(&["response", "code_details"], details);
    });
    let empty = reply.body.is_empty();
    let action = response_headers(here, id, reply.status, headers, empty);
    if !empty {
        response_body(here, id, &reply.body, true);
    }
    action
}

fn response_headers(here: &Here, id: u32, status: u32, headers: HeaderMap, end: bool) -> Action {
    let count = look(here, id, |exchange| {
        exchange.response_headers = headers;
        exchange.open_maps = vec![MapType::HttpResponseHeaders];
        let code = i64::from(status).to_le_bytes();
        exchange.set_property(&["response", "code"], &code);
        exchange.response_headers.len()
    });
    let action = callbacks::response_headers(here, id, count, end);
    look(here, id, |exchange| exchange.open_maps.clear());
    pump(here);
    action
}

fn response_body(here: &Here, id: u32, piece: &[u8], end_of_stream: bool) -> Action {
    look(here, id, |exchange| {
        exchange.response_body = piece.to_vec();
    });
    let action = callbacks::response_body(here, id, piece.len(), end_of_stream);
    look(here, id, |exchange| {
        if action == Action::Continue {
            exchange.client_body.append(&mut exchange.response_body);
        }
    });
    pump(here);
    action
}

fn response_trailers(here: &Here, id: u32, trailers: HeaderMap) -> Action {
    let count = look(here, id, |exchange| {
        exchange.response_trailers = trailers;
        exchange.open_maps = vec![MapType::HttpResponseTrailers];
        exchange.response_trailers.len()
    });
    let action = callbacks::response_trailers(here, id, count);
    look(here, id, |exchange| exchange.open_maps.clear());
    action
}
