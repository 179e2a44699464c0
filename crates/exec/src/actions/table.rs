//! The table of actions: names and functions of all topics. The server gets it when it starts.

use super::{
    acl, client, cluster, commands, config, connection, debug, evenkeel, libraries, migrate, monitor,
    observe, persistence, pubsub, replicas, replication, scripting, server, tracking, transaction,
};
use crate::act::{Actions, Begin, Row};
use crate::hand_on;
use std::sync::LazyLock;

static TOPICS: &[&[Row]] = &[
    acl::ACTIONS,
    client::ACTIONS,
    cluster::ACTIONS,
    commands::ACTIONS,
    replicas::ACTIONS,
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
    replication::ACTIONS,
    scripting::ACTIONS,
    server::ACTIONS,
    tracking::ACTIONS,
    transaction::ACTIONS,
];

/// Functions of the keyspace that run in slices for a client outside transactions and scripts.
static BEGINS: &[(&str, Begin)] = &[
    ("keys", |act, args| Some(hand_on::start_keys(act, args))),
    ("scan", |act, args| hand_on::start_scan(act, args)),
];

/// Builds the server's table of actions.
pub(crate) fn table() -> &'static Actions {
    static TABLE: LazyLock<Actions> = LazyLock::new(|| Actions::of(TOPICS, BEGINS));
    &TABLE
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
