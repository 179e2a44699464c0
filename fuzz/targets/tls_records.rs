#![no_main]

#[path = "../../crates/net/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::records(data));
