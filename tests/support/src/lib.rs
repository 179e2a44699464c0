//! What the programs that test a running server share: random numbers from a seed, and servers to test.

pub mod rng;
pub mod server;
