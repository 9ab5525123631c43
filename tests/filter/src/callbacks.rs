//! The callbacks that the SDK exports, as safe functions.
//!
//! All of them may call back into `abi`, so none is called with the state's lock held.

use proxy_wasm::types::Action;

use crate::state::Here;

extern "C" {
    fn proxy_on_context_create(context: u32, root: u32);
    fn proxy_on_vm_start(context: u32, configuration_size: usize) -> bool;
    fn proxy_on_configure(context: u32, configuration_size: usize) -> bool;
    fn proxy_on_tick(context: u32);
    fn proxy_on_request_headers(context: u32, count: usize, end_of_stream: bool) -> u32;
    fn proxy_on_request_body(context: u32, size: usize, end_of_stream: bool) -> u32;
    fn proxy_on_request_trailers(context: u32, count: usize) -> u32;
    fn proxy_on_response_headers(context: u32, count: usize, end_of_stream: bool) -> u32;
    fn proxy_on_response_body(context: u32, size: usize, end_of_stream: bool) -> u32;
    fn proxy_on_response_trailers(context: u32, count: usize) -> u32;
    fn proxy_on_http_call_response(
        context: u32,
        token: u32,
        headers: usize,
        body_size: usize,
        trailers: usize,
    );
    fn proxy_on_log(context: u32);
    fn proxy_on_done(context: u32) -> bool;
    fn proxy_on_delete(context: u32);
    fn proxy_on_memory_allocate(size: usize) -> *mut u8;
    #[cfg(feature = "dns")]
    fn envoy_on_resolve_dns(context: u32, token: u32, size: usize);
}

fn action(code: u32) -> Action {
    let known = [Action::Continue, Action::StopIterationAndWatermark];
    known.into_iter().find(|action| *action as u32 == code).unwrap_or(Action::Pause)
}

/// Puts `context` into effect, as Envoy does around every callback.
fn enter(here: &Here, context: u32) {
    here.with(|vm| vm.effective = context);
}

// SAFETY, for every call below: these are plain Rust functions of the SDK, compiled into this
// binary, that take their arguments by value and expect to run on the thread whose dispatcher
// knows the context. `Here` is only ever used on its own VM's thread.

pub(crate) fn context_create(here: &Here, context: u32, root: u32) {
    enter(here, context);
    unsafe { proxy_on_context_create(context, root) }
}

pub(crate) fn vm_start(here: &Here, context: u32) -> bool {
    enter(here, context);
    unsafe { proxy_on_vm_start(context, 0) }
}

pub(crate) fn configure(here: &Here, context: u32, size: usize) -> bool {
    enter(here, context);
    unsafe { proxy_on_configure(context, size) }
}

pub(crate) fn tick(here: &Here, context: u32) {
    enter(here, context);
    unsafe { proxy_on_tick(context) }
}

pub(crate) fn request_headers(here: &Here, context: u32, count: usize, end: bool) -> Action {
    enter(here, context);
    action(unsafe { proxy_on_request_headers(context, count, end) })
}

pub(crate) fn request_body(here: &Here, context: u32, size: usize, end: bool) -> Action {
    enter(here, context);
    action(unsafe { proxy_on_request_body(context, size, end) })
}

pub(crate) fn request_trailers(here: &Here, context: u32, count: usize) -> Action {
    enter(here, context);
    action(unsafe { proxy_on_request_trailers(context, count) })
}

pub(crate) fn response_headers(here: &Here, context: u32, count: usize, end: bool) -> Action {
    enter(here, context);
    action(unsafe { proxy_on_response_headers(context, count, end) })
}

pub(crate) fn response_body(here: &Here, context: u32, size: usize, end: bool) -> Action {
    enter(here, context);
    action(unsafe { proxy_on_response_body(context, size, end) })
}

pub(crate) fn response_trailers(here: &Here, context: u32, count: usize) -> Action {
    enter(here, context);
    action(unsafe { proxy_on_response_trailers(context, count) })
}

pub(crate) fn http_call_response(here: &Here, context: u32, token: u32, headers: usize, body_size: usize) {
    enter(here, context);
    unsafe { proxy_on_http_call_response(context, token, headers, body_size, 0) }
}

/// A name has been resolved.
#[cfg(feature = "dns")]
pub(crate) fn resolved(here: &Here, context: u32, token: u32, answer: Vec<u8>) {
    enter(here, context);
    let size = answer.len();
    here.with(|vm| vm.call_data = Some(answer));
    unsafe { envoy_on_resolve_dns(context, token, size) }
    here.with(|vm| vm.call_data = None);
}

/// The end of a context, in Envoy's order.
pub(crate) fn log_done_delete(here: &Here, context: u32) {
    enter(here, context);
    unsafe {
        proxy_on_log(context);
        proxy_on_done(context);
        proxy_on_delete(context);
    }
}

/// The end of a root context, which has nothing to log.
pub(crate) fn done_delete(here: &Here, context: u32) {
    enter(here, context);
    unsafe {
        proxy_on_done(context);
        proxy_on_delete(context);
    }
}

/// Copies `bytes` into memory that the SDK may free as a `Vec<u8>`.
pub(crate) fn allocate(bytes: &[u8]) -> *mut u8 {
    unsafe {
        let memory = proxy_on_memory_allocate(bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len());
        memory
    }
}
