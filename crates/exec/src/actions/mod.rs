//! Actions: commands that are no function of the keyspace, such as those about connections, scripts and
//! pub/sub.
//!
//! One file per topic, each with a table of names and functions, which `table` collects. The rows in crate
//! `command` hold the facts. `answer` has the ways of an answer.

mod acl;
pub(crate) mod answer;
mod client;
mod cluster;
mod commands;
pub(crate) mod config;
pub(crate) mod connection;
mod debug;
mod evenkeel;
pub(crate) mod libraries;
mod migrate;
pub(crate) mod monitor;
pub(crate) mod observe;
mod persistence;
pub(crate) mod pubsub;
mod replicas;
mod replication;
pub(crate) mod scripting;
mod server;
pub mod sources;
pub(crate) mod table;
mod tracking;
mod transaction;
