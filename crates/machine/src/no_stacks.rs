//! `stacks.rs` for systems where unwinding is not supported: there are no samples.

/// See `stacks.rs`.
pub struct Sample {
    pub at_ns: u64,
}

impl Sample {
    pub fn frames(&self) -> Vec<u64> {
        Vec::new()
    }
}

pub fn observable() {}

pub fn install() -> bool {
    false
}

pub fn ask(_: i32) -> bool {
    false
}

pub fn withdraw() {}

pub fn take() -> Option<Sample> {
    None
}

pub fn name(address: u64) -> String {
    format!("{address:#x}")
}
