//! Envoy's own call that resolves names.

use proxy_wasm::types::Status;

use super::{host, text};
use crate::callbacks;
use crate::state::{Here, Lookup};

#[no_mangle]
unsafe extern "C" fn envoy_resolve_dns(name_data: *const u8, name_size: usize, token: *mut u32) -> u32 {
    let name = text(name_data, name_size);
    let mut at_once = None;
    let status = host("envoy_resolve_dns", |state, vm| {
        *token = state.next_id();
        let context = state.vms[vm].effective;
        match state.names.get(&name) {
            Some((answer, true)) => at_once = Some((context, *token, answer.clone())),
            _ => state.lookups.push(Lookup { vm, context, token: *token, name }),
        }
        Ok(())
    });
    // The caller does not know its token yet.
    if let (Some((context, token, answer)), Some(here)) = (at_once, Here::current()) {
        callbacks::resolved(&here, context, token, answer);
    }
    if status == Status::Ok as u32 {
        status
    } else {
        Status::InternalFailure as u32
    }
}
