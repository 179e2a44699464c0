//! Actions: commands that are no function of the keyspace, such as those about connections, scripts and
//! pub/sub.
//!
//! One file per topic, each with a table of names and functions. The rows in crate `command` hold the facts.

mod acl;
mod client;
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
mod pubsub;
pub(crate) mod scripting;
mod server;
pub mod sources;
mod tracking;
mod transaction;

use crate::Flow;
pub(crate) use crate::act::{Act, Actions, Begin, KEYSPACE, PLAIN, Row};
pub(crate) use crate::aside::{aside, elsewhere, report};
use command::Error;
pub(crate) use persistence::CopyWish;
use resp::{Args, OwnedArgs};
use std::sync::{Arc, LazyLock};

static TOPICS: &[&[Row]] = &[
    acl::ACTIONS,
    client::ACTIONS,
    commands::ACTIONS,
    config::ACTIONS,
    connection::ACTIONS,
    debug::ACTIONS,
    evenkeel::ACTIONS,
    libraries::ACTIONS,
    migrate::ACTIONS,
    monitor::ACTIONS,
    observe::ACTIONS,
    persistence::ACTIONS,
    pubsub::ACTIONS,
    scripting::ACTIONS,
    server::ACTIONS,
    tracking::ACTIONS,
    transaction::ACTIONS,
];

/// Functions of the keyspace that run in slices for a client outside transactions and scripts.
static BEGINS: &[(&str, Begin)] = &[
    ("keys", |act, args| Some(crate::hand_on::start_keys(act.server, act.local, act.session, args))),
    ("scan", |act, args| crate::hand_on::start_scan(act.server, act.session, args)),
];

/// Builds the server's table of actions.
pub(crate) fn table() -> &'static Actions {
    static TABLE: LazyLock<Actions> = LazyLock::new(|| Actions::of(TOPICS, BEGINS));
    &TABLE
}

pub(crate) use pubsub::{leave_all, leave_next, leave_some};

/// The words of the command, to keep. O(1) if they are many, else O(words).
pub(crate) fn kept(act: &Act<'_, '_>, args: Args<'_>) -> Arc<OwnedArgs> {
    match &act.local.incoming {
        Some(words) if !act.is_pressed() && words.args().len() == args.len() => words.clone(),
        _ => Arc::new(args.to_owned()),
    }
}

/// Answers HELP of a container: its subcommands, with descriptions.
pub(crate) fn help(act: &mut Act<'_, '_>, container: &str, lines: &[&str]) -> Result<Flow, Error> {
    act.out.array(lines.len() + 3);
    act.out.simple(&format!("{container} <subcommand> [<arg> ...]. Subcommands are:"));
    lines.iter().for_each(|line| act.out.simple(line));
    act.out.simple("HELP");
    act.out.simple("    Print this text.");
    Ok(Flow::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::{Command, Run};

    #[test]
    fn every_row_that_exec_performs_has_an_action_and_every_action_a_row() {
        let exec = |command: &&&Command| matches!(command.run, Run::Exec);
        let rows: Vec<&str> = command::places::all().iter().filter(exec).map(|c| c.name).collect();
        let actions: Vec<&str> = TOPICS.iter().flat_map(|topic| topic.iter()).map(|row| row.0).collect();
        let without: Vec<_> = rows.iter().filter(|name| !actions.contains(name)).collect();
        assert!(without.is_empty(), "{without:?}");
        let strangers: Vec<_> = actions.iter().filter(|name| !rows.contains(name)).collect();
        assert!(strangers.is_empty(), "{strangers:?}");
    }
}
