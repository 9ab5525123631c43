//! How Envoy is called: every import the filter uses, with nothing that can panic.
//!
//! A call that fails answers `None` or `false`; the caller goes on without it. Buffers that Envoy fills
//! are allocated through the SDK's exported allocator and owned by the `Vec` that is returned.

use std::ptr::null_mut;
use std::time::Duration;

/// Envoy's status for success.
const OK: u32 = 0;

#[allow(clashing_extern_declarations)]
#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_get_buffer_bytes(
        kind: u32,
        start: usize,
        len: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
    fn proxy_get_property(path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, value_size: usize) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
        cas: u32,
    ) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_get_metric(id: u32, value: *mut u64) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_continue_stream(kind: u32) -> u32;
}

/// Envoy's header maps.
#[derive(Debug, Clone, Copy)]
pub enum Headers {
    /// Of the request.
    Request = 0,
    /// Of the response.
    Response = 2,
    /// Of the answer to a call that this filter made.
    CallResponse = 6,
}

/// Envoy's buffers.
#[derive(Debug, Clone, Copy)]
pub enum Buffer {
    /// The request's body, as far as it is buffered.
    RequestBody = 0,
    /// The response's body: the current chunk.
    ResponseBody = 1,
    /// The body of the answer to a call that this filter made.
    CallResponseBody = 4,
    /// The plugin's configuration.
    Configuration = 7,
}

/// Envoy's kinds of metrics.
#[derive(Debug, Clone, Copy)]
pub enum MetricKind {
    /// Only rises.
    Counter = 0,
    /// Rises and falls; one value for all workers.
    Gauge = 1,
    /// Counts values by their size.
    Histogram = 2,
}

/// The wall clock, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let mut time = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    unsafe { proxy_get_current_time_nanoseconds(&mut time) };
    time
}

/// Asks for `on_tick` every `period`.
pub fn set_tick_period(period: Duration) -> bool {
    let millis = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
    // SAFETY: no pointers.
    unsafe { proxy_set_tick_period_milliseconds(millis) == OK }
}

/// Copies `len` bytes from `start` on out of a buffer; fewer where it ends.
pub fn buffer(kind: Buffer, start: usize, len: usize) -> Option<Vec<u8>> {
    // SAFETY: `filled` passes pointers to its own locals.
    filled(|data, size| unsafe { proxy_get_buffer_bytes(kind as u32, start, len, data, size) })
}

/// All headers of a map. Names are lower case; values are bytes as they came.
pub fn headers(map: Headers) -> Option<HeaderList> {
    // SAFETY: as above.
    filled(|data, size| unsafe { proxy_get_header_map_pairs(map as u32, data, size) })
        .map(|bytes| HeaderList { bytes })
}

/// The first value of a header.
pub fn header(map: Headers, name: &str) -> Option<Vec<u8>> {
    // SAFETY: as above; the name's bytes outlive the call.
    filled(|data, size| unsafe {
        proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), data, size)
    })
}

/// The status of a response; 0 if there is none.
pub fn status(map: Headers) -> u32 {
    let digits = header(map, ":status").unwrap_or_default();
    // Envoy's own: three digits.
    digits.iter().take(3).fold(0, |status, digit| 10 * status + u32::from(digit & 15))
}

/// Replaces all values of a header by one.
pub fn set_header(map: Headers, name: &str, value: &str) -> bool {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    // SAFETY: both slices outlive the call.
    unsafe {
        proxy_replace_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len())
            == OK
    }
}

/// Removes all values of a header.
pub fn remove_header(map: Headers, name: &str) -> bool {
    // SAFETY: the name's bytes outlive the call.
    unsafe { proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) == OK }
}

/// A property of the stream, of a path of one or two names.
pub fn property(path: &[&str]) -> Option<Vec<u8>> {
    let path = path.join("\0");
    // SAFETY: as above.
    filled(|data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

/// Sets filter state `wasm.<name>`, for access logs and later filters.
pub fn set_property(name: &str, value: &str) -> bool {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    // SAFETY: both slices outlive the call.
    unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) == OK }
}

/// A shared value, with the number that [`set_shared`] wants to replace just this one.
pub fn shared(key: &str) -> Option<(Vec<u8>, u32)> {
    let mut cas = 0;
    // SAFETY: as above; `cas` outlives the call.
    let value =
        filled(|data, size| unsafe { proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas) })?;
    Some((value, cas))
}

/// Writes a shared value; with `cas`, only if nobody wrote it since it was read with that number.
pub fn set_shared(key: &str, value: &[u8], cas: Option<u32>) -> bool {
    // SAFETY: both slices outlive the call.
    unsafe {
        proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas.unwrap_or(0)) == OK
    }
}

/// Defines a metric, or finds the one of that name that another VM defined.
pub fn define_metric(kind: MetricKind, name: &str) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the name's bytes and `id` outlive the call.
    let status = unsafe { proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &mut id) };
    (status == OK).then_some(id)
}

/// Adds to a metric.
pub fn add_metric(id: u32, offset: i64) {
    // SAFETY: no pointers.
    unsafe { proxy_increment_metric(id, offset) };
}

/// Sets a gauge, or records a value in a histogram.
pub fn record_metric(id: u32, value: u64) {
    // SAFETY: no pointers.
    unsafe { proxy_record_metric(id, value) };
}

/// Reads a metric.
pub fn metric(id: u32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: `value` outlives the call.
    let status = unsafe { proxy_get_metric(id, &mut value) };
    (status == OK).then_some(value)
}

/// Makes the calls that follow act for another stream, until the current callback ends.
pub fn act_for(stream: u32) -> bool {
    // SAFETY: no pointers.
    unsafe { proxy_set_effective_context(stream) == OK }
}

/// Answers a request in the upstream's place. Nothing more of it will be seen.
pub fn send_local_response(status: u32, headers: &[(&str, &str)], body: &[u8]) -> bool {
    const DETAILS: &[u8] = b"kvroute";
    const NO_GRPC_STATUS: i32 = -1;
    // As Envoy serialises maps: a count, the sizes of all names and values, then each of them with a NUL behind.
    let mut map = (headers.len() as u32).to_le_bytes().to_vec();
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        map.extend_from_slice(&(text.len() as u32).to_le_bytes());
    }
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        map.extend_from_slice(text.as_bytes());
        map.push(0);
    }
    // SAFETY: all slices outlive the call.
    let sent = unsafe {
        proxy_send_local_response(
            status,
            DETAILS.as_ptr(),
            DETAILS.len(),
            body.as_ptr(),
            body.len(),
            map.as_ptr(),
            map.len(),
            NO_GRPC_STATUS,
        )
    };
    sent == OK
}

/// Sends on a request whose headers are held.
pub fn resume_request() -> bool {
    const REQUEST: u32 = 0;
    // SAFETY: no pointers.
    unsafe { proxy_continue_stream(REQUEST) == OK }
}

/// Asks a host for something, through the cluster it belongs to: `destination` is the header that names it, and its
/// address. Answers the token under which the answer will come.
// Polls and peers share one copy of it.
#[inline(never)]
pub fn get(
    cluster: &str,
    destination: (&str, &str),
    path: &str,
    more: (&str, &str),
    timeout_ms: u64,
) -> Option<u32> {
    let headers = vec![
        (":method", "GET"),
        (":path", path),
        (":authority", destination.1),
        destination,
        more,
        ("user-agent", "kvroute"),
    ];
    // The one call that goes through the SDK: its dispatcher must know the token. It does not panic.
    let timeout = Duration::from_millis(timeout_ms);
    proxy_wasm::hostcalls::dispatch_http_call(cluster, headers, None, Vec::new(), timeout).ok()
}

/// Runs a call that fills a buffer. A call that succeeds without one filled nothing.
fn filled(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut data = null_mut();
    let mut size = 0;
    if call(&mut data, &mut size) != OK {
        return None;
    }
    if data.is_null() || size == 0 {
        return Some(Vec::new());
    }
    // SAFETY: Envoy got `data` from the SDK's proxy_on_memory_allocate with exactly `size` bytes, filled
    // them all, and keeps no pointer.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

/// A header map as Envoy serialises it: a count, the sizes of all names and values, then each of them
/// with a NUL behind.
#[derive(Debug)]
pub struct HeaderList {
    bytes: Vec<u8>,
}

impl HeaderList {
    /// Names and values in order. Ends early where the list is damaged.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let word = |at: usize| -> Option<usize> {
            let bytes = self.bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
        };
        let count = word(0).unwrap_or(0).min(self.bytes.len() / 8);
        let mut at = 4 + 8 * count;
        (0..count).map_while(move |n| {
            let (name_len, value_len) = (word(4 + 8 * n)?, word(8 + 8 * n)?);
            let name = self.bytes.get(at..at.checked_add(name_len)?)?;
            at += name_len + 1;
            let value = self.bytes.get(at..at.checked_add(value_len)?)?;
            at += value_len + 1;
            Some((name, value))
        })
    }
}
