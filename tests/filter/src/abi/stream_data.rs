//! What a host function can reach of one stream: buffers, header maps, properties.

use proxy_wasm::types::{BufferType, MapType, Status};

use super::{bytes, give, host, text};
use crate::headers::HeaderMap;
use crate::state::State;

/// Envoy's buffer for what its own callbacks are told.
const CALL_DATA: u32 = 8;

fn buffer(state: &mut State, vm: usize, kind: u32) -> Option<(&'static str, Vec<u8>)> {
    let vm = &mut state.vms[vm];
    if kind == BufferType::PluginConfiguration as u32 {
        let effective = vm.effective;
        let root = vm.root_mut(effective)?;
        return Some(("configuration", root.configuration.clone()));
    }
    if kind == BufferType::VmConfiguration as u32 {
        return Some(("configuration", Vec::new()));
    }
    if kind == BufferType::HttpCallResponseBody as u32 {
        return Some(("call_body", vm.answer.as_ref()?.body.clone()));
    }
    if kind == CALL_DATA {
        return Some(("call_data", vm.call_data.clone()?));
    }
    let (what, buffer) = vm.exchange()?.buffer(kind)?;
    Some((what, buffer.to_vec()))
}

#[no_mangle]
unsafe extern "C" fn proxy_get_buffer_bytes(
    kind: u32,
    start: usize,
    length: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    host("proxy_get_buffer_bytes", |state, vm| {
        let (what, buffer) = buffer(state, vm, kind).ok_or(Status::NotFound)?;
        let end = start.checked_add(length).ok_or(Status::BadArgument)?;
        let part = buffer.get(start..end.min(buffer.len()));
        let part = part.unwrap_or_default();
        state.traffic.count_copied(what, part.len());
        if !part.is_empty() {
            give(part, data, size);
        }
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_get_buffer_status(kind: u32, length: *mut usize, flags: *mut u32) -> u32 {
    host("proxy_get_buffer_status", |state, vm| {
        let (_, buffer) = buffer(state, vm, kind).ok_or(Status::NotFound)?;
        *length = buffer.len();
        *flags = 0;
        Ok(())
    })
}

/// Replacing a body is not something this filter may do; `Traffic` shows if it tries.
#[no_mangle]
extern "C" fn proxy_set_buffer_bytes(
    _kind: u32,
    _start: usize,
    _length: usize,
    _data: *const u8,
    _size: usize,
) -> u32 {
    host("proxy_set_buffer_bytes", |_, _| Err(Status::BadArgument))
}

fn map(state: &mut State, vm: usize, kind: u32) -> Option<&HeaderMap> {
    let vm = &mut state.vms[vm];
    if kind == MapType::HttpCallResponseHeaders as u32 {
        return vm.answer.as_ref()?.headers.as_ref();
    }
    vm.exchange().and_then(|exchange| exchange.map(kind))
}

fn map_mut(state: &mut State, vm: usize, kind: u32) -> Result<&mut HeaderMap, Status> {
    let exchange = state.vms[vm].exchange();
    let map = exchange.and_then(|exchange| exchange.map_mut(kind));
    map.ok_or(Status::BadArgument)
}

#[no_mangle]
unsafe extern "C" fn proxy_get_header_map_pairs(kind: u32, data: *mut *mut u8, size: *mut usize) -> u32 {
    host("proxy_get_header_map_pairs", |state, vm| {
        let pairs =
            map(state, vm, kind).filter(|map| !map.is_empty()).map(HeaderMap::serialized).unwrap_or_default();
        state.traffic.count_copied("headers", pairs.len());
        give(&pairs, data, size);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_set_header_map_pairs(kind: u32, data: *const u8, size: usize) -> u32 {
    host("proxy_set_header_map_pairs", |state, vm| {
        let pairs = HeaderMap::deserialized(bytes(data, size)).ok_or(Status::ParseFailure)?;
        *map_mut(state, vm, kind)? = pairs;
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_get_header_map_value(
    kind: u32,
    name_data: *const u8,
    name_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    host("proxy_get_header_map_value", |state, vm| {
        let name = text(name_data, name_size).to_ascii_lowercase();
        let map = map(state, vm, kind).ok_or(Status::BadArgument)?;
        let value = map.first(&name).ok_or(Status::NotFound)?.to_vec();
        state.traffic.count_copied("headers", value.len());
        give(&value, data, size);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_remove_header_map_value(kind: u32, name_data: *const u8, name_size: usize) -> u32 {
    host("proxy_remove_header_map_value", |state, vm| {
        map_mut(state, vm, kind)?.remove(&text(name_data, name_size));
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_replace_header_map_value(
    kind: u32,
    name_data: *const u8,
    name_size: usize,
    value_data: *const u8,
    value_size: usize,
) -> u32 {
    host("proxy_replace_header_map_value", |state, vm| {
        let value = bytes(value_data, value_size);
        map_mut(state, vm, kind)?.replace(&text(name_data, name_size), value);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_add_header_map_value(
    kind: u32,
    name_data: *const u8,
    name_size: usize,
    value_data: *const u8,
    value_size: usize,
) -> u32 {
    host("proxy_add_header_map_value", |state, vm| {
        let value = bytes(value_data, value_size);
        map_mut(state, vm, kind)?.add(&text(name_data, name_size), value);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_get_property(
    path_data: *const u8,
    path_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    host("proxy_get_property", |state, vm| {
        let exchange = state.vms[vm].exchange().ok_or(Status::NotFound)?;
        let path = bytes(path_data, path_size);
        let value = exchange.properties.get(path).ok_or(Status::NotFound)?;
        let value = value.clone();
        state.traffic.count_copied("property", value.len());
        give(&value, data, size);
        Ok(())
    })
}

/// Envoy lets a filter set filter state only: what is set here is read as `wasm.<path>`.
#[no_mangle]
unsafe extern "C" fn proxy_set_property(
    path_data: *const u8,
    path_size: usize,
    value_data: *const u8,
    value_size: usize,
) -> u32 {
    host("proxy_set_property", |state, vm| {
        let exchange = state.vms[vm].exchange().ok_or(Status::BadArgument)?;
        let value = bytes(value_data, value_size).to_vec();
        let path = text(path_data, path_size);
        exchange.filter_state.insert(path, value);
        Ok(())
    })
}
