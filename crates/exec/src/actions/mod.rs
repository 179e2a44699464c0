//! What is no function of the keyspace: connection, server, transactions, scripts, pub/sub.
//!
//! One file per topic, each with a table of names and functions; rows in crate `command` carry the facts.

mod client;
pub(crate) mod connection;
pub(crate) mod keys;
mod pubsub;
mod scripting;
mod transaction;

use crate::call::Flow;
use crate::{Local, Server, Session};
use command::{Command, Error};
use keyspace::View;
use resp::{Args, Reply};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// What an action works with.
pub struct Act<'a, 'k> {
    pub server: &'a Arc<Server>,
    pub local: &'a mut Local,
    pub session: &'a mut Session,
    pub out: &'a mut Reply,
    /// The view EXEC or a script holds: its locks are held, so nothing may be locked besides.
    pub view: Option<&'a mut View<'k>>,
    pub in_script: bool,
    pub in_multi: bool,
}

/// Performs a command that is no function of the keyspace.
pub type Action = fn(&mut Act<'_, '_>, Args<'_>) -> Result<Flow, Error>;

/// Name and function; `KEYSPACE` marks those that look at keys themselves, for which EXEC locks everything.
pub(crate) struct Row(pub &'static str, pub Action, pub bool);

pub(crate) const PLAIN: bool = false;
pub(crate) const KEYSPACE: bool = true;

static TOPICS: &[&[Row]] =
    &[client::ACTIONS, connection::ACTIONS, pubsub::ACTIONS, scripting::ACTIONS, transaction::ACTIONS];

static BY_NAME: LazyLock<HashMap<&'static str, &'static Row>> =
    LazyLock::new(|| TOPICS.iter().flat_map(|topic| topic.iter()).map(|row| (row.0, row)).collect());

pub(crate) fn perform(
    act: &mut Act<'_, '_>,
    command: &'static Command,
    args: Args<'_>,
) -> Result<Flow, Error> {
    match BY_NAME.get(command.name) {
        Some(row) => row.1(act, args),
        None => Err(Error::from(format!("ERR '{}' does not exist in Evenkeel yet", command.name))),
    }
}

/// Whether an action looks at keys.
pub(crate) fn needs_keyspace(command: &Command) -> bool {
    BY_NAME.get(command.name).is_some_and(|row| row.2)
}

pub(crate) use pubsub::leave_all;

/// Answers a container's HELP: its subcommands and what they do.
pub(crate) fn help(act: &mut Act<'_, '_>, container: &str, lines: &[&str]) -> Result<Flow, Error> {
    act.out.array(lines.len() + 3);
    act.out.simple(&format!("{container} <subcommand> [<arg> ...]. Subcommands are:"));
    lines.iter().for_each(|line| act.out.simple(line));
    act.out.simple("HELP");
    act.out.simple("    Print this text.");
    Ok(Flow::Done)
}

/// Names of all actions, for the test that every row has one.
pub fn names() -> impl Iterator<Item = &'static str> {
    BY_NAME.keys().copied()
}
