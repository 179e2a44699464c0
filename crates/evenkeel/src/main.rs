//! The server binary: configuration, wiring, signals.
fn main() {}
