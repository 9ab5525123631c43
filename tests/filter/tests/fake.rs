//! The fake against a stub filter: what the tests of the real one take for granted.

use std::cell::RefCell;

use fake_proxy::{Action, Options, Proxy, Status};
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{BufferType, ContextType, MapType, MetricType};

// The symbols themselves: the SDK's wrappers panic on the statuses these tests are about.
extern "C" {
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
        cas: u32,
    ) -> u32;
}

fn set_header(name: &str, value: &str) -> u32 {
    unsafe {
        proxy_replace_header_map_value(
            MapType::HttpRequestHeaders as u32,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    }
}

fn set_shared(key: &str, value: &[u8], cas: u32) -> u32 {
    unsafe { proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) }
}

fn boot() {
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Trace);
    proxy_wasm::set_root_context(|_| Box::new(StubRoot));
}

thread_local! {
    /// Streams that the stub holds on this VM, to be resumed at its tick.
    static HELD: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

struct StubRoot;

impl Context for StubRoot {
    fn on_http_call_response(&mut self, _: u32, headers: usize, size: usize, _: usize) {
        let body = hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, size);
        let body = body.ok().flatten().unwrap_or_default();
        // The map of a call that broke off is out of reach: to ask the SDK for it is to panic.
        let status =
            (headers > 0).then(|| hostcalls::get_map_value(MapType::HttpCallResponseHeaders, ":status"));
        log::info!("{headers} headers, {status:?}, {}", String::from_utf8_lossy(&body));
    }
}

impl RootContext for StubRoot {
    fn on_configure(&mut self, size: usize) -> bool {
        let config = hostcalls::get_buffer(BufferType::PluginConfiguration, 0, size);
        let config = config.ok().flatten().unwrap_or_default();
        let period = std::time::Duration::from_millis(50);
        hostcalls::set_tick_period(period).is_ok() && {
            log::info!("configured with {}", String::from_utf8_lossy(&config));
            config != b"bad"
        }
    }

    /// Resumes what is held, and shows the clock and shared data.
    fn on_tick(&mut self) {
        for id in HELD.take() {
            hostcalls::set_effective_context(id).unwrap();
            log::info!("set in tick: {}", set_header("x-late", "yes"));
            hostcalls::resume_http_request().unwrap();
        }
        let gauge = hostcalls::define_metric(MetricType::Gauge, "stub_ticks").unwrap();
        hostcalls::increment_metric(gauge, 1).unwrap();
        let (value, cas) = hostcalls::get_shared_data("key").unwrap();
        log::info!("read {value:?}");
        log::info!("cas {}", set_shared("key", b"mine", cas.unwrap_or_default()));
        log::info!("stale cas {}", set_shared("key", b"other", u32::MAX));
        for cluster in ["vllm", "elsewhere"] {
            let headers = vec![(":method", "GET"), (":path", "/metrics"), (":authority", "h")];
            let timeout = std::time::Duration::from_secs(1);
            let call = hostcalls::dispatch_http_call(cluster, headers, None, vec![], timeout);
            log::info!("call to {cluster}: {:?}", call.map(|_| ()));
        }
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stub { id, held: false }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// Holds a POST until it is complete, then sets a header; answers `/local` itself.
struct Stub {
    id: u32,
    held: bool,
}

impl Context for Stub {}

impl HttpContext for Stub {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        let path = hostcalls::get_map_value(MapType::HttpRequestHeaders, ":path").unwrap();
        if path.as_deref() == Some("/local") {
            hostcalls::send_http_response(429, vec![("retry-after", "1")], Some(b"busy")).unwrap();
            return Action::Pause;
        }
        self.held = !end_of_stream && path.as_deref() != Some("/pass");
        if self.held {
            HELD.with(|held| held.borrow_mut().push(self.id));
            return Action::Pause;
        }
        Action::Continue
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let body = hostcalls::get_buffer(BufferType::HttpRequestBody, 0, usize::MAX >> 1).unwrap();
        let read = body.unwrap_or_default().len();
        log::info!("{size} bytes, read {read}, end {end_of_stream}");
        log::info!("set in body: {}", set_header("x-seen", &size.to_string()));
        self.held &= !end_of_stream;
        if self.held {
            Action::Pause
        } else {
            Action::Continue
        }
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        log::info!("set in trailers: {}", set_header("x-trailers", "yes"));
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        hostcalls::set_map_value(MapType::HttpResponseHeaders, "x-passed", Some("yes")).unwrap();
        let upstream = hostcalls::get_property(vec!["upstream", "address"]).unwrap();
        hostcalls::set_property(vec!["stub.host"], upstream.as_deref()).unwrap();
        Action::Continue
    }

    fn on_log(&mut self) {
        let code = hostcalls::get_property(vec!["response", "code"]).unwrap();
        log::info!("logged {code:?}");
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        log::info!("dropped");
    }
}

const POST: [(&str, &str); 2] = [(":method", "POST"), (":path", "/")];

fn lines(proxy: &Proxy) -> Vec<String> {
    proxy.log().into_iter().map(|line| line.text).collect()
}

/// The lines logged since the last one that was looked at.
fn last(proxy: &Proxy, count: usize) -> Vec<String> {
    let lines = lines(proxy);
    lines[lines.len() - count..].to_vec()
}

#[test]
fn a_held_request_shows_all_of_its_body_and_takes_headers_until_it_goes() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    let stream = worker.request(POST, false);
    assert!(stream.is_held());
    assert_eq!(stream.body(b"abc", false), Action::Pause);
    assert_eq!(last(&proxy, 2)[0], "3 bytes, read 3, end false");
    assert_eq!(stream.body(b"de", false), Action::Pause);
    assert_eq!(last(&proxy, 2)[0], "5 bytes, read 5, end false");
    assert_eq!(stream.held_bytes(), 5);
    assert_eq!(stream.body(b"", true), Action::Continue);
    assert_eq!(last(&proxy, 2), ["5 bytes, read 5, end true", "set in body: 0"]);
    assert!(!stream.is_held());
    assert_eq!(stream.headers().get("x-seen").as_deref(), Some("5"));
    assert_eq!(stream.upstream_body(), b"abcde");
}

#[test]
fn after_continue_a_callback_sees_its_piece_only_and_headers_are_out_of_reach() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    let stream = worker.request([(":path", "/pass")], false);
    assert!(!stream.is_held());
    stream.body(b"abc", false);
    stream.body(b"de", true);
    let refused = format!("set in body: {}", Status::BadArgument as u32);
    assert_eq!(last(&proxy, 2), ["2 bytes, read 2, end true", &refused]);
    assert_eq!(stream.headers().get("x-seen"), None);
    assert_eq!(stream.upstream_body(), b"abcde");
}

#[test]
fn trailers_release_a_held_request() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    let stream = worker.request(POST, false);
    stream.body(b"abc", false);
    assert_eq!(stream.trailers(&[("x-t", "1")]), Action::Continue);
    assert_eq!(last(&proxy, 1), ["set in trailers: 0"]);
    assert_eq!(stream.upstream_body(), b"abc");
}

#[test]
fn without_the_flag_a_paused_request_sees_no_body_until_it_is_resumed() {
    let options = Options { allow_on_headers_stop_iteration: false, ..Options::default() };
    let proxy = Proxy::with_options(boot, options);
    let worker = proxy.worker("{}").unwrap();
    let stream = worker.request(POST, false);
    stream.body(b"abc", false);
    stream.body(b"de", true);
    assert!(stream.is_held() && stream.held_bytes() == 5);
    worker.tick();
    assert!(!stream.is_held());
    assert_eq!(stream.headers().get("x-late").as_deref(), Some("yes"));
    assert!(lines(&proxy).contains(&"5 bytes, read 5, end true".to_string()));
    assert_eq!(stream.upstream_body(), b"abcde");
}

#[test]
fn holding_more_than_the_buffer_is_a_413() {
    let options = Options { buffer_limit: 4, ..Options::default() };
    let proxy = Proxy::with_options(boot, options);
    let worker = proxy.worker("{}").unwrap();
    let stream = worker.request(POST, false);
    stream.body(b"abc", false);
    assert_eq!(stream.local_reply(), None);
    stream.body(b"de", false);
    assert_eq!(stream.local_reply().map(|reply| reply.status), Some(413));
}

#[test]
fn workers_share_data_and_metrics_and_a_stale_cas_is_refused() {
    let proxy = Proxy::new(boot);
    let (one, two) = (proxy.worker("{}").unwrap(), proxy.worker("{}").unwrap());
    assert_eq!(one.tick_period_ms(), 50);
    one.tick();
    let mismatch = format!("stale cas {}", Status::CasMismatch as u32);
    assert_eq!(last(&proxy, 5)[..3], ["read None", "cas 0", &mismatch]);
    two.tick();
    assert_eq!(last(&proxy, 5)[0], format!("read {:?}", Some(b"mine")));
    assert_eq!(proxy.shared_data("key").as_deref(), Some(&b"mine"[..]));
    assert_eq!(proxy.gauge("stub_ticks"), 2);
    assert_eq!(proxy.traffic().calls("proxy_get_shared_data"), 2);
}

#[test]
fn a_call_is_answered_to_the_root_that_made_it() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    worker.tick();
    assert_eq!(last(&proxy, 1), ["call to elsewhere: Err(BadArgument)"]);
    let calls = proxy.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].headers.get(":path").as_deref(), Some("/metrics"));
    assert_eq!(calls[0].timeout_ms, 1000);
    proxy.answer(&calls[0], 200, b"body");
    assert_eq!(last(&proxy, 1), ["2 headers, Some(Ok(Some(\"200\"))), body"]);
    worker.tick();
    proxy.break_off(&proxy.calls()[0]);
    assert_eq!(last(&proxy, 1), ["0 headers, None, "]);
    assert_eq!(proxy.calls(), []);
}

#[test]
fn a_response_passes_through_and_the_stream_ends_once() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    let stream = worker.request([(":path", "/pass")], true);
    stream.respond("10.0.0.1:8000", 200, &[]);
    stream.response_body(b"hello", true);
    stream.finish();
    assert_eq!(stream.filter_state("stub.host").as_deref(), Some("10.0.0.1:8000"));
    assert_eq!(stream.response_headers().get("x-passed").as_deref(), Some("yes"));
    assert_eq!(stream.client_body(), b"hello");
    let code = 200i64.to_le_bytes().to_vec();
    assert_eq!(last(&proxy, 2), [format!("logged {:?}", Some(code)), "dropped".to_string()]);
}

#[test]
fn a_local_reply_passes_through_the_filter_too() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    let stream = worker.request([(":path", "/local")], true);
    assert_eq!(stream.local_reply().map(|reply| reply.status), Some(429));
    let headers = stream.response_headers();
    assert_eq!(headers.get("retry-after").as_deref(), Some("1"));
    assert_eq!(headers.get("x-passed").as_deref(), Some("yes"));
    assert_eq!(stream.client_body(), b"busy");
    worker.refused_by_codec();
    assert_eq!(last(&proxy, 2), ["logged None", "dropped"]);
}

#[test]
fn a_bad_configuration_is_refused_with_what_was_logged_and_the_old_one_stays() {
    let proxy = Proxy::new(boot);
    let refused = proxy.worker("bad").err().map(|refused| refused.log);
    assert_eq!(refused, Some(vec!["configured with bad".to_string()]));
    let worker = proxy.worker("good").unwrap();
    assert!(worker.update("bad").is_err());
    worker.tick();
    assert_eq!(proxy.gauge("stub_ticks"), 1);
    assert!(worker.update("better").is_ok());
    worker.tick();
    assert_eq!(proxy.gauge("stub_ticks"), 3, "old and new root tick");
    worker.retire();
    worker.tick();
    assert_eq!(proxy.gauge("stub_ticks"), 4);
}

#[test]
fn a_killed_worker_runs_nothing_more_and_loses_its_calls() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    let _stream = worker.request(POST, false);
    worker.tick();
    assert_eq!(proxy.calls().len(), 1);
    worker.kill();
    assert_eq!(proxy.calls(), []);
    assert!(!lines(&proxy).contains(&"dropped".to_string()));
}

#[test]
fn counters_refuse_zero_and_faults_and_traffic_are_counted() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    proxy.fail("proxy_replace_header_map_value", Status::InternalFailure);
    let before = proxy.traffic();
    let stream = worker.request(POST, false);
    stream.body(b"abcde", true);
    let traffic = proxy.traffic().since(&before);
    assert_eq!(traffic.copied("request_body"), 5);
    assert_eq!(traffic.calls("proxy_get_buffer_bytes"), 1);
    assert_eq!(last(&proxy, 1), [format!("set in body: {}", Status::InternalFailure as u32)]);
    proxy.heal();
    // On a thread that is no VM every host function fails, rather than acting on some worker.
    assert_eq!(unsafe { proxy_increment_metric(0, 1) }, Status::InternalFailure as u32);
}

#[test]
fn header_values_may_be_any_bytes() {
    let proxy = Proxy::new(boot);
    let worker = proxy.worker("{}").unwrap();
    let agent: &[u8] = b"crawler/\xff\xfe";
    let headers: [(&str, &[u8]); 2] = [(":path", b"/pass"), ("User-Agent", agent)];
    let stream = worker.request(headers, true);
    let headers = stream.headers();
    assert!(headers.iter().any(|pair| pair == ("user-agent", agent)));
}
