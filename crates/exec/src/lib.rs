//! Runs commands: plan, session, transactions, blocking, pub/sub, workers.

pub mod config;
