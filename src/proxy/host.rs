//! How Envoy is called: every import the filter uses, with nothing that can panic.
//!
//! A call answers what it brought, or that Envoy [`Refused`] it; callers count that and go on without
//! ([`super::stats::OrCount`]). What may well be missing (a header, a property, a shared value) is not refused, but
//! `None`. Buffers that Envoy fills are allocated through the SDK's exported allocator and owned by the `Vec` that is
//! returned.

use std::ptr::null_mut;
use std::time::Duration;

/// Envoy's status for success.
const OK: u32 = 0;

/// Envoy's status for what is not there.
const NOT_FOUND: u32 = 1;

/// Envoy's status for a map or a stream that is out of reach, among others.
const BAD_ARGUMENT: u32 = 2;

/// Envoy's status for a shared value that somebody else has written since.
const CAS_MISMATCH: u32 = 8;

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
    #[cfg(feature = "dns")]
    fn envoy_resolve_dns(name: *const u8, name_size: usize, token: *mut u32) -> u32;
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
    /// What a callback that only Envoy has is told.
    #[cfg(feature = "dns")]
    CallData = 8,
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

/// The calls there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// [`now_ns`]
    Time,
    /// [`set_tick_period`]
    TickPeriod,
    /// [`buffer`]
    Buffer,
    /// [`headers`]
    Headers,
    /// [`header`]
    Header,
    /// [`set_header`]
    SetHeader,
    /// [`remove_header`]
    RemoveHeader,
    /// [`property`]
    Property,
    /// [`set_property`]
    SetProperty,
    /// [`shared`]
    Shared,
    /// [`set_shared`]
    SetShared,
    /// [`define_metric`]
    DefineMetric,
    /// [`add_metric`]
    AddMetric,
    /// [`record_metric`]
    RecordMetric,
    /// [`metric`]
    Metric,
    /// [`act_for`]
    ActFor,
    /// [`send_local_response`]
    LocalResponse,
    /// [`resume_request`]
    Resume,
    /// [`get`]
    Get,
    /// [`resolve`]
    #[cfg(feature = "dns")]
    Resolve,
}

impl Call {
    const NAMES: [&'static str; 20] = [
        "time",
        "tick_period",
        "buffer",
        "headers",
        "header",
        "set_header",
        "remove_header",
        "property",
        "set_property",
        "shared_data",
        "set_shared_data",
        "define_metric",
        "increment_metric",
        "record_metric",
        "metric",
        "effective_context",
        "local_response",
        "continue_stream",
        "http_call",
        "resolve_dns",
    ];

    /// What logs call it.
    pub fn name(self) -> &'static str {
        Call::NAMES.get(self as usize).copied().unwrap_or_default()
    }
}

/// Envoy did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// What it was asked.
    pub call: Call,
    /// What it said: a status of the ABI.
    pub status: u32,
}

/// The wall clock, in nanoseconds since 1970.
pub fn now_ns() -> Result<u64, Refused> {
    let mut time = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    let status = unsafe { proxy_get_current_time_nanoseconds(&mut time) };
    done(Call::Time, status).map(|()| time)
}

/// Asks for `on_tick` every `period`.
pub fn set_tick_period(period: Duration) -> Result<(), Refused> {
    let millis = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
    // SAFETY: no pointers.
    done(Call::TickPeriod, unsafe { proxy_set_tick_period_milliseconds(millis) })
}

/// Copies `len` bytes from `start` on out of a buffer; fewer where it ends.
// Five callers share one copy of it.
#[inline(never)]
pub fn buffer(kind: Buffer, start: usize, len: usize) -> Result<Vec<u8>, Refused> {
    // SAFETY: `filled` passes pointers to its own locals.
    let value = filled(Call::Buffer, |data, size| unsafe {
        proxy_get_buffer_bytes(kind as u32, start, len, data, size)
    })?;
    there(Call::Buffer, value)
}

/// All headers of a map. Names are lower case; values are bytes as they came.
pub fn headers(map: Headers) -> Result<HeaderList, Refused> {
    // SAFETY: as above.
    let value =
        filled(Call::Headers, |data, size| unsafe { proxy_get_header_map_pairs(map as u32, data, size) })?;
    there(Call::Headers, value).map(|bytes| HeaderList { bytes })
}

/// The first value of a header, if there is one.
pub fn header(map: Headers, name: &str) -> Result<Option<Vec<u8>>, Refused> {
    // SAFETY: as above; the name's bytes outlive the call.
    filled(Call::Header, |data, size| unsafe {
        proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), data, size)
    })
}

/// The status of a response; 0 if there is none.
// Polls and peers share one copy of it.
#[inline(never)]
pub fn status(map: Headers) -> Result<u32, Refused> {
    let digits = match header(map, ":status") {
        // A call that broke off has no map at all. That says how the call went, not how this one did.
        Err(Refused { status: BAD_ARGUMENT, .. }) => Vec::new(),
        digits => digits?.unwrap_or_default(),
    };
    // Envoy's own: three digits.
    Ok(digits.iter().take(3).fold(0, |status, digit| 10 * status + u32::from(digit & 15)))
}

/// Replaces all values of a header by one.
pub fn set_header(map: Headers, name: &str, value: &str) -> Result<(), Refused> {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    // SAFETY: both slices outlive the call.
    done(Call::SetHeader, unsafe {
        proxy_replace_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}

/// Removes all values of a header.
pub fn remove_header(map: Headers, name: &str) -> Result<(), Refused> {
    // SAFETY: the name's bytes outlive the call.
    done(Call::RemoveHeader, unsafe { proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) })
}

/// A property of the stream, of a path of one or two names, if there is one.
pub fn property(path: &[&str]) -> Result<Option<Vec<u8>>, Refused> {
    let path = path.join("\0");
    // SAFETY: as above.
    filled(Call::Property, |data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

/// Sets filter state `wasm.<name>`, for access logs and later filters.
pub fn set_property(name: &str, value: &str) -> Result<(), Refused> {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    // SAFETY: both slices outlive the call.
    done(Call::SetProperty, unsafe {
        proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}

/// A shared value if there is one, with the number that [`set_shared`] wants to replace just this one.
pub fn shared(key: &str) -> Result<Option<(Vec<u8>, u32)>, Refused> {
    let mut cas = 0;
    // SAFETY: as above; `cas` outlives the call.
    let value = filled(Call::Shared, |data, size| unsafe {
        proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas)
    })?;
    // No value has number 0; to write with it would be to write whatever is there.
    Ok(value.map(|value| (value, cas)).filter(|(_, cas)| *cas != 0))
}

/// Writes a shared value; with `cas`, only if nobody wrote it since it was read with that number. Answers whether it was
/// written.
pub fn set_shared(key: &str, value: &[u8], cas: Option<u32>) -> Result<bool, Refused> {
    // SAFETY: both slices outlive the call.
    let status = unsafe {
        proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas.unwrap_or(0))
    };
    if status == CAS_MISMATCH {
        return Ok(false);
    }
    done(Call::SetShared, status).map(|()| true)
}

/// Defines a metric, or finds the one of that name that another VM defined.
pub fn define_metric(kind: MetricKind, name: &str) -> Result<u32, Refused> {
    let mut id = 0;
    // SAFETY: the name's bytes and `id` outlive the call.
    let status = unsafe { proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &mut id) };
    done(Call::DefineMetric, status).map(|()| id)
}

/// Adds to a metric.
pub fn add_metric(id: u32, offset: i64) -> Result<(), Refused> {
    // SAFETY: no pointers.
    done(Call::AddMetric, unsafe { proxy_increment_metric(id, offset) })
}

/// Sets a gauge, or records a value in a histogram.
pub fn record_metric(id: u32, value: u64) -> Result<(), Refused> {
    // SAFETY: no pointers.
    done(Call::RecordMetric, unsafe { proxy_record_metric(id, value) })
}

/// Reads a metric.
pub fn metric(id: u32) -> Result<u64, Refused> {
    let mut value = 0;
    // SAFETY: `value` outlives the call.
    let status = unsafe { proxy_get_metric(id, &mut value) };
    done(Call::Metric, status).map(|()| value)
}

/// Makes the calls that follow act for another stream, until the current callback ends.
pub fn act_for(stream: u32) -> Result<(), Refused> {
    // SAFETY: no pointers.
    done(Call::ActFor, unsafe { proxy_set_effective_context(stream) })
}

/// Answers a request in the upstream's place. Nothing more of it will be seen.
pub fn send_local_response(status: u32, headers: &[(&str, &str)], body: &[u8]) -> Result<(), Refused> {
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
    done(Call::LocalResponse, unsafe {
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
    })
}

/// Sends on a request whose headers are held.
pub fn resume_request() -> Result<(), Refused> {
    const REQUEST: u32 = 0;
    // SAFETY: no pointers.
    done(Call::Resume, unsafe { proxy_continue_stream(REQUEST) })
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
) -> Result<u32, Refused> {
    let headers = vec![
        (":method", "GET"),
        (":path", path),
        (":authority", destination.1),
        destination,
        more,
        ("user-agent", "kvroute"),
    ];
    let timeout = Duration::from_millis(timeout_ms);
    #[allow(
        clippy::disallowed_methods,
        reason = "The SDK's dispatcher must know the token, and learns it only here. It panics on statuses that Envoy \
                  does not give for a call: these are BadArgument (no such cluster) and InternalFailure (circuit breaker)"
    )]
    let token = proxy_wasm::hostcalls::dispatch_http_call(cluster, headers, None, Vec::new(), timeout);
    token.map_err(|status| Refused { call: Call::Get, status: status as u32 })
}

/// Asks Envoy's resolver for all addresses of a name. Answers the token under which the answer will come, or has come.
#[cfg(feature = "dns")]
pub fn resolve(name: &str) -> Result<u32, Refused> {
    let mut token = 0;
    // SAFETY: the name's bytes and `token` outlive the call.
    let status = unsafe { envoy_resolve_dns(name.as_ptr(), name.len(), &mut token) };
    done(Call::Resolve, status).map(|()| token)
}

/// What a status says of a call.
fn done(call: Call, status: u32) -> Result<(), Refused> {
    if status == OK {
        Ok(())
    } else {
        Err(Refused { call, status })
    }
}

/// Runs a call that fills a buffer, if what it asks for is there.
fn filled(call: Call, run: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Option<Vec<u8>>, Refused> {
    let mut data = null_mut();
    let mut size = 0;
    let status = run(&mut data, &mut size);
    // SAFETY: Envoy got `data` from the SDK's proxy_on_memory_allocate with exactly `size` bytes, filled
    // them all, and keeps no pointer.
    unsafe { taken(call, status, data, size) }
}

/// What has been filled. A call that succeeds without a buffer filled nothing.
///
/// # Safety
///
/// `data` must be null, or what `Vec::from_raw_parts` takes with `size` for length and capacity.
// All that fills a buffer shares one copy of it.
#[inline(never)]
unsafe fn taken(call: Call, status: u32, data: *mut u8, size: usize) -> Result<Option<Vec<u8>>, Refused> {
    if status == NOT_FOUND {
        return Ok(None);
    }
    done(call, status)?;
    if data.is_null() || size == 0 {
        return Ok(Some(Vec::new()));
    }
    Ok(Some(Vec::from_raw_parts(data, size, size)))
}

/// What must be there.
fn there(call: Call, value: Option<Vec<u8>>) -> Result<Vec<u8>, Refused> {
    value.ok_or(Refused { call, status: NOT_FOUND })
}

/// A header map as Envoy serialises it: a count, the sizes of all names and values, then each of them
/// with a NUL behind.
#[derive(Debug)]
pub struct HeaderList {
    bytes: Vec<u8>,
}

impl HeaderList {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

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
