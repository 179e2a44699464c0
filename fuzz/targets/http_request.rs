#![no_main]

#[path = "../../crates/http/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::stream(data));
