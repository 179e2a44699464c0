#![no_main]

#[path = "../../crates/command/tests/checks/mod.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::restore(data));
