//! Shared by the programs that test a running server: random numbers from a seed, servers to test, databases
//! for them, replies read from them.

pub mod postgres;
pub mod proxy;
pub mod rng;
pub mod server;
pub mod wire;
