//! The host functions: the symbols that the SDK and the filter import from Envoy.
//!
//! Each acts on the VM of the thread it is called on. On any other thread, such as that of a failing
//! test, only `proxy_log` does something: the SDK's panic hook logs through it.

mod process_data;
#[cfg(feature = "dns")]
mod resolver;
mod stream_data;

use std::slice;

use proxy_wasm::types::Status;

use crate::callbacks::allocate;
use crate::headers::HeaderMap;
use crate::proxy::{HttpCall, LogLine};
use crate::state::{Here, Interruption, State};

/// Functions that the SDK itself relies on, and that Envoy does not fail for a context that exists.
const SDKS_OWN: [&str; 2] = ["proxy_log", "proxy_set_effective_context"];

type Outcome = Result<(), Status>;

/// Counts the call, fails it if the test wants that, and otherwise runs it under the state's lock.
fn host(function: &'static str, run: impl FnOnce(&mut State, usize) -> Outcome) -> u32 {
    let Some(here) = Here::current() else {
        return Status::InternalFailure as u32;
    };
    interrupt(&here, function);
    let mut state = here.lock();
    state.traffic.count_call(function);
    if let Some(status) = fault(&mut state, function) {
        return status as u32;
    }
    match run(&mut state, here.vm) {
        Ok(()) => Status::Ok as u32,
        Err(status) => status as u32,
    }
}

/// The status with which this call fails, if a test wants that.
fn fault(state: &mut State, function: &str) -> Option<Status> {
    if let Some(status) = state.faults.get(function) {
        return Some(*status);
    }
    if SDKS_OWN.contains(&function) {
        return None;
    }
    let (before, status) = state.fault_after?;
    state.fault_after = before.checked_sub(1).map(|before| (before, status));
    state.fault_after.is_none().then_some(status)
}

/// Runs what a test wants to happen just before this call, with the lock free for it.
fn interrupt(here: &Here, function: &str) {
    let interruption = {
        let mut state = here.lock();
        let due = |wanted: &mut Interruption| wanted.function == function;
        state.interruption.take_if(due)
    };
    if let Some(interruption) = interruption {
        (interruption.act)();
    }
}

/// What a pointer and a size from the filter stand for.
///
/// # Safety
///
/// `data` must be null or point to `size` readable bytes, as the SDK's pointers do.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if data.is_null() || size == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    }
}

unsafe fn text(data: *const u8, size: usize) -> String {
    String::from_utf8_lossy(bytes(data, size)).into_owned()
}

/// Hands `value` to the filter. Nothing is allocated for an empty value, as in Envoy.
unsafe fn give(value: &[u8], data: *mut *mut u8, size: *mut usize) {
    *data = if value.is_empty() { std::ptr::null_mut() } else { allocate(value) };
    *size = value.len();
}

#[no_mangle]
unsafe extern "C" fn proxy_log(level: u32, data: *const u8, size: usize) -> u32 {
    let text = text(data, size);
    if level >= 5 {
        eprintln!("{text}");
    }
    if Here::current().is_none() {
        // The SDK's panic hook would panic if it could not log.
        return Status::Ok as u32;
    }
    host("proxy_log", |state, vm| {
        state.log.push(LogLine { vm, level, text });
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_get_log_level(level: *mut u32) -> u32 {
    host("proxy_get_log_level", |state, _| {
        *level = state.options.log_level as u32;
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32 {
    host("proxy_get_current_time_nanoseconds", |state, _| {
        *time = state.clock_ns;
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_set_tick_period_milliseconds(period: u32) -> u32 {
    host("proxy_set_tick_period_milliseconds", |state, vm| {
        let vm = &mut state.vms[vm];
        let effective = vm.effective;
        let root = vm.root_mut(effective).ok_or(Status::BadArgument)?;
        root.tick_period_ms = period;
        Ok(())
    })
}

#[no_mangle]
extern "C" fn proxy_continue_stream(_kind: u32) -> u32 {
    host("proxy_continue_stream", |state, vm| {
        let exchange = state.vms[vm].exchange().ok_or(Status::BadArgument)?;
        exchange.resume = true;
        Ok(())
    })
}

#[no_mangle]
extern "C" fn proxy_close_stream(_kind: u32) -> u32 {
    host("proxy_close_stream", |_, _| Err(Status::BadArgument))
}

#[no_mangle]
unsafe extern "C" fn proxy_send_local_response(
    status: u32,
    details_data: *const u8,
    details_size: usize,
    body_data: *const u8,
    body_size: usize,
    headers_data: *const u8,
    headers_size: usize,
    _grpc_status: i32,
) -> u32 {
    host("proxy_send_local_response", |state, vm| {
        let exchange = state.vms[vm].exchange().ok_or(Status::BadArgument)?;
        let headers = HeaderMap::deserialized(bytes(headers_data, headers_size));
        exchange.local_reply = Some(crate::LocalReply {
            status,
            details: text(details_data, details_size),
            headers: headers.ok_or(Status::ParseFailure)?,
            body: bytes(body_data, body_size).to_vec(),
        });
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_http_call(
    upstream_data: *const u8,
    upstream_size: usize,
    headers_data: *const u8,
    headers_size: usize,
    body_data: *const u8,
    body_size: usize,
    _trailers_data: *const u8,
    _trailers_size: usize,
    timeout_ms: u32,
    token: *mut u32,
) -> u32 {
    host("proxy_http_call", |state, vm| {
        let cluster = text(upstream_data, upstream_size);
        let headers = HeaderMap::deserialized(bytes(headers_data, headers_size));
        let headers = headers.ok_or(Status::BadArgument)?;
        let needed = [":method", ":path", ":authority"];
        let complete = needed.iter().all(|name| headers.get(name).is_some());
        let known = state.options.clusters.contains(&cluster);
        if !complete || !known {
            return Err(Status::BadArgument);
        }
        *token = state.next_id();
        state.calls.push(HttpCall {
            vm,
            context: state.vms[vm].effective,
            token: *token,
            cluster,
            headers,
            body: bytes(body_data, body_size).to_vec(),
            timeout_ms,
            at_ms: state.clock_ns / 1_000_000,
        });
        Ok(())
    })
}

#[no_mangle]
extern "C" fn proxy_set_effective_context(context: u32) -> u32 {
    host("proxy_set_effective_context", |state, vm| {
        let vm = &mut state.vms[vm];
        if !vm.streams.contains_key(&context) && vm.root_mut(context).is_none() {
            return Err(Status::BadArgument);
        }
        vm.effective = context;
        Ok(())
    })
}

#[no_mangle]
extern "C" fn proxy_call_foreign_function(
    _name_data: *const u8,
    _name_size: usize,
    _arguments_data: *const u8,
    _arguments_size: usize,
    _results_data: *mut *mut u8,
    _results_size: *mut usize,
) -> u32 {
    host("proxy_call_foreign_function", |_, _| Err(Status::NotFound))
}

#[no_mangle]
extern "C" fn proxy_done() -> u32 {
    host("proxy_done", |_, _| Ok(()))
}

// What no test here needs: the symbols exist so that the SDK links.

macro_rules! absent {
    ($($function:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[no_mangle]
        extern "C" fn $function($($argument: $kind),*) -> u32 {
            host(stringify!($function), |_, _| Err(Status::InternalFailure))
        }
    )*};
}

absent! {
    proxy_register_shared_queue(_name: *const u8, _size: usize, _id: *mut u32);
    proxy_resolve_shared_queue(_vm: *const u8, _vm_size: usize, _name: *const u8, _size: usize, _id: *mut u32);
    proxy_dequeue_shared_queue(_id: u32, _data: *mut *mut u8, _size: *mut usize);
    proxy_enqueue_shared_queue(_id: u32, _data: *const u8, _size: usize);
    proxy_grpc_call(
        _upstream: *const u8, _upstream_size: usize, _service: *const u8, _service_size: usize,
        _method: *const u8, _method_size: usize, _metadata: *const u8, _metadata_size: usize,
        _message: *const u8, _message_size: usize, _timeout_ms: u32, _id: *mut u32
    );
    proxy_grpc_stream(
        _upstream: *const u8, _upstream_size: usize, _service: *const u8, _service_size: usize,
        _method: *const u8, _method_size: usize, _metadata: *const u8, _metadata_size: usize, _id: *mut u32
    );
    proxy_grpc_send(_id: u32, _message: *const u8, _size: usize, _end: bool);
    proxy_grpc_cancel(_id: u32);
    proxy_grpc_close(_id: u32);
    proxy_get_status(_code: *mut u32, _message: *mut *mut u8, _size: *mut usize);
}
