#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvroute_fuzz::properties::clusters::holds(bytes));
