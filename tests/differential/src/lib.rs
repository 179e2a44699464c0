//! Random streams of commands, drawn from tables: for the differential tester, and for tests in a process.

pub mod corpus;
pub mod grammar;
pub mod identity;
pub mod scenes;
pub mod step;
pub mod words;

use support::wire;
