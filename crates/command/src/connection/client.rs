//! CLIENT: the connections and their settings. `exec` performs all of it.

use crate::facts;
use crate::table::{ADMIN, ALLOW_BUSY, Command, LOADING, NO_MULTI, NOSCRIPT, Run, STALE, acl};

pub(crate) static COMMANDS: &[Command] = &[Command::new("client", -2, Run::Container, 0, 0)
    .doc("connection", "2.4.0", "Depends on subcommand.", "Subcommands about connections.")
    .subs(&[
        Command::new("client|id", 2, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "5.0.0",
            "O(1)",
            "The number that identifies this connection.",
        ),
        Command::new("client|info", 2, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .tips(&["nondeterministic_output"])
            .doc("connection", "6.2.0", "O(1)", "Describes this connection."),
        Command::new("client|list", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .facts(facts::SLOW_ACTION)
            .tips(&["nondeterministic_output"])
            .doc("connection", "2.4.0", "O(N) for N connections.", "One line for each connection."),
        Command::new("client|getname", 2, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "2.6.9",
            "O(1)",
            "The name this connection gave itself.",
        ),
        Command::new("client|setname", 3, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
            .doc("connection", "2.6.9", "O(1)", "Gives this connection a name."),
        Command::new("client|setinfo", 4, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
            .doc("connection", "7.2.0", "O(1)", "Stores the name or version of the client library."),
        Command::new("client|capa", -3, Run::Exec, NOSCRIPT | LOADING | STALE | ALLOW_BUSY, acl::CONNECTION)
            .doc(
                "connection",
                "8.0.0",
                "O(N) for N options.",
                "Tells the server what this connection can do.",
            ),
        Command::new("client|import-source", 3, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "8.1.0",
            "O(1)",
            "Marks this connection as one that fills a server in import mode.",
        ),
        Command::new(
            "client|maint_notifications",
            -3,
            Run::Exec,
            NOSCRIPT | LOADING | STALE,
            acl::CONNECTION,
        )
        .doc(
            "connection",
            "8.2.0",
            "O(1)",
            "Tells this connection by a push message when another server leads in place of this one.",
        ),
        Command::new("client|kill", -3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .facts(facts::SLOW_ACTION | facts::CHANGES)
            .doc("connection", "2.4.0", "O(N) for N connections.", "Closes connections that match."),
        Command::new("client|pause", -3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .facts(facts::CHANGES | facts::PAUSES)
            .doc("connection", "3.0.0", "O(1)", "Holds commands of all clients for a time."),
        Command::new("client|unpause", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .facts(facts::CHANGES | facts::PAUSES)
            .doc("connection", "6.2.0", "O(N) for N held clients.", "Ends a pause of the clients at once."),
        Command::new("client|reply", 3, Run::Exec, NOSCRIPT | LOADING | STALE | NO_MULTI, acl::CONNECTION)
            .doc("connection", "3.2.0", "O(1)", "Turns replies to this connection off or on."),
        Command::new("client|no-evict", 3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .doc("connection", "7.0.0", "O(1)", "Spares this connection when client buffers must be freed."),
        Command::new("client|no-touch", 3, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "7.2.0",
            "O(1)",
            "Makes reads of this connection leave access times alone.",
        ),
        Command::new("client|unblock", -3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, acl::CONNECTION)
            .facts(facts::CHANGES)
            .doc(
                "connection",
                "5.0.0",
                "O(log(N)) for N connections.",
                "Ends the waiting of a client in a blocking command.",
            ),
        Command::new("client|getredir", 2, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "6.0.0",
            "O(1)",
            "Tells where invalidation messages of this connection go.",
        ),
        Command::new("client|tracking", -3, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "6.0.0",
            "O(1)",
            "Turns invalidation messages for client-side caching on or off.",
        ),
        Command::new("client|trackinginfo", 2, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "6.2.0",
            "O(1)",
            "How client-side caching is set up for this connection.",
        ),
        Command::new("client|caching", 3, Run::Exec, NOSCRIPT | LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "6.0.0",
            "O(1)",
            "Sets whether the keys of the next command are tracked.",
        ),
        Command::new("client|help", 2, Run::Exec, LOADING | STALE, acl::CONNECTION).doc(
            "connection",
            "5.0.0",
            "O(1)",
            "Lists the subcommands.",
        ),
    ])];
