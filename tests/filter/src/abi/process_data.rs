//! What a host function can reach of the whole process: shared data and metrics.

use proxy_wasm::types::{MetricType, Status};

use super::{bytes, give, host, text};

#[no_mangle]
unsafe extern "C" fn proxy_get_shared_data(
    key_data: *const u8,
    key_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
    cas: *mut u32,
) -> u32 {
    host("proxy_get_shared_data", |state, _| {
        let key = text(key_data, key_size);
        let (value, number) = state.shared_data.get(&key).ok_or(Status::NotFound)?;
        let length = value.len();
        give(value, data, size);
        *cas = number;
        state.traffic.count_copied("shared_data", length);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_set_shared_data(
    key_data: *const u8,
    key_size: usize,
    value_data: *const u8,
    value_size: usize,
    cas: u32,
) -> u32 {
    host("proxy_set_shared_data", |state, _| {
        let value = bytes(value_data, value_size);
        let key = text(key_data, key_size);
        state.shared_data.set(&key, value, cas)
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_define_metric(
    kind: u32,
    name_data: *const u8,
    name_size: usize,
    id: *mut u32,
) -> u32 {
    host("proxy_define_metric", |state, _| {
        let kinds = [MetricType::Counter, MetricType::Gauge, MetricType::Histogram];
        let kind = kinds.into_iter().find(|known| *known as u32 == kind);
        let name = text(name_data, name_size);
        *id = state.metrics.define(kind.ok_or(Status::BadArgument)?, &name);
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn proxy_get_metric(id: u32, value: *mut u64) -> u32 {
    host("proxy_get_metric", |state, _| {
        *value = state.metrics.get(id)?;
        Ok(())
    })
}

#[no_mangle]
extern "C" fn proxy_record_metric(id: u32, value: u64) -> u32 {
    host("proxy_record_metric", |state, _| state.metrics.record(id, value))
}

#[no_mangle]
extern "C" fn proxy_increment_metric(id: u32, offset: i64) -> u32 {
    host("proxy_increment_metric", |state, _| state.metrics.increment(id, offset))
}
