//! MODULE, ACL and CLUSTER, as far as client libraries ask before they start to work.

use crate::facts;
use crate::table::{ADMIN, Command, FAST, LOADING, NO_ASYNC_LOADING, NOSCRIPT, Run, STALE, acl};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("module", -2, Run::Container, 0, 0)
        .doc("server", "4.0.0", "Depends on subcommand.", "Subcommands about modules.")
        .subs(&[
            Command::new("module|list", 2, Run::Exec, ADMIN | NOSCRIPT, 0)
                .tips(&["nondeterministic_output_order"])
                .doc("server", "4.0.0", "O(N) for N modules.", "The modules in use."),
            Command::new("module|load", -3, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, 0).doc(
                "server",
                "4.0.0",
                "O(1)",
                "Refused: this server loads no modules.",
            ),
            Command::new("module|loadex", -3, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, 0).doc(
                "server",
                "7.0.0",
                "O(1)",
                "Refused: this server loads no modules.",
            ),
            Command::new("module|unload", 3, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, 0).doc(
                "server",
                "4.0.0",
                "O(1)",
                "Refused: this server loads no modules.",
            ),
            Command::new("module|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "5.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("acl", -2, Run::Container, 0, 0)
        .doc("server", "6.0.0", "Depends on subcommand.", "Subcommands about users and what they may do.")
        .subs(&[
            Command::new("acl|whoami", 2, Run::Exec, NOSCRIPT | LOADING | STALE, 0).doc(
                "server",
                "6.0.0",
                "O(1)",
                "The user this connection acts as.",
            ),
            Command::new("acl|cat", -2, Run::Exec, NOSCRIPT | LOADING | STALE, 0).doc(
                "server",
                "6.0.0",
                "O(1): there are only so many categories and commands.",
                "Categories of commands, or the commands of one.",
            ),
            Command::new("acl|setuser", -3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION | facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("server", "6.0.0", "O(N) for N rules.", "Makes or changes a user."),
            Command::new("acl|deluser", -3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("server", "6.0.0", "O(N) for N clients.", "Removes users and closes their connections."),
            Command::new("acl|getuser", 3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc("server", "6.0.0", "O(N) for N rules of the user.", "The rules of a user."),
            Command::new("acl|list", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc("server", "6.0.0", "O(N) for N users.", "A line of rules for every user."),
            Command::new("acl|users", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc("server", "6.0.0", "O(N) for N users.", "The names of all users."),
            Command::new("acl|load", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION | facts::CHANGES)
                .doc("server", "6.0.0", "O(N) for N users.", "Takes the users of the ACL file."),
            Command::new("acl|save", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION | facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("server", "6.0.0", "O(N) for N users.", "Writes all users into the ACL file."),
            Command::new("acl|log", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .doc("server", "6.0.0", "O(N) for N entries.", "What was denied lately."),
            Command::new("acl|dryrun", -4, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc(
                    "server",
                    "7.0.0",
                    "O(N) for N keys, times the patterns of the user.",
                    "Whether a user may run a command, without running it.",
                ),
            Command::new("acl|genpass", -2, Run::Exec, NOSCRIPT | LOADING | STALE, 0).doc(
                "server",
                "6.0.0",
                "O(1)",
                "A password that nobody can guess.",
            ),
            Command::new("acl|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "6.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("cluster", -2, Run::Container, 0, 0)
        .doc("cluster", "3.0.0", "Depends on subcommand.", "Subcommands about a cluster of servers.")
        .subs(&[
            Command::new("cluster|addslots", -3, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(N) for N slots named.", "Gives hash slots to a node."),
            Command::new("cluster|addslotsrange", -4, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc(
                    "cluster",
                    "7.0.0",
                    "O(N) for N slots in the ranges.",
                    "Gives ranges of hash slots to a node.",
                ),
            Command::new("cluster|bumpepoch", 2, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .tips(&["nondeterministic_output"])
                .doc("cluster", "3.0.0", "O(1)", "Raises the configuration epoch."),
            Command::new("cluster|count-failure-reports", 3, Run::Exec, ADMIN | STALE, 0)
                .tips(&["nondeterministic_output"])
                .doc("cluster", "3.0.0", "O(N) for N reports.", "How many nodes report that a node failed."),
            Command::new("cluster|countkeysinslot", 3, Run::Exec, STALE, 0).facts(facts::SLOW_ACTION).doc(
                "cluster",
                "3.0.0",
                "O(1)",
                "How many keys a hash slot holds.",
            ),
            Command::new("cluster|delslots", -3, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(N) for N slots named.", "Takes hash slots from a node."),
            Command::new("cluster|delslotsrange", -4, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc(
                    "cluster",
                    "7.0.0",
                    "O(N) for N slots in the ranges.",
                    "Takes ranges of hash slots from a node.",
                ),
            Command::new("cluster|failover", -2, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(1)", "Lets a replica take its primary's place."),
            Command::new("cluster|flushslots", 2, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(1)", "Takes all hash slots from a node."),
            Command::new("cluster|forget", 3, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(1)", "Removes a node from the list of nodes."),
            Command::new("cluster|getkeysinslot", 4, Run::Exec, STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc("cluster", "3.0.0", "O(N) for N keys asked for.", "Some keys of a hash slot."),
            Command::new("cluster|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "cluster",
                "5.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
            Command::new("cluster|info", 2, Run::Exec, STALE, 0).tips(&["nondeterministic_output"]).doc(
                "cluster",
                "3.0.0",
                "O(1)",
                "The state of the cluster as seen here.",
            ),
            Command::new("cluster|keyslot", 3, Run::Exec, STALE, 0).doc(
                "cluster",
                "3.0.0",
                "O(N) for a key of N bytes.",
                "The hash slot of a key.",
            ),
            Command::new("cluster|links", 2, Run::Exec, STALE, 0).tips(&["nondeterministic_output"]).doc(
                "cluster",
                "7.0.0",
                "O(N) for N nodes.",
                "Connections between this node and others.",
            ),
            Command::new("cluster|meet", -4, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(1)", "Makes two nodes know each other."),
            Command::new("cluster|myid", 2, Run::Exec, STALE, 0).doc(
                "cluster",
                "3.0.0",
                "O(1)",
                "This node's identifier.",
            ),
            Command::new("cluster|myshardid", 2, Run::Exec, STALE, 0).tips(&["nondeterministic_output"]).doc(
                "cluster",
                "7.2.0",
                "O(1)",
                "Identifier of this node's shard.",
            ),
            Command::new("cluster|nodes", 2, Run::Exec, STALE, 0).tips(&["nondeterministic_output"]).doc(
                "cluster",
                "3.0.0",
                "O(N) for N nodes.",
                "The cluster's layout as this node sees it.",
            ),
            Command::new("cluster|replicas", 3, Run::Exec, ADMIN | STALE, 0)
                .tips(&["nondeterministic_output"])
                .doc("cluster", "5.0.0", "O(N) for N replicas.", "Replicas of a primary."),
            Command::new("cluster|replicate", 3, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(1)", "Makes a node a replica of a primary."),
            Command::new("cluster|reset", -2, Run::Exec, ADMIN | NOSCRIPT | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc("cluster", "3.0.0", "O(N) for N nodes; may empty the databases.", "Sets a node back."),
            Command::new("cluster|saveconfig", 2, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0).doc(
                "cluster",
                "3.0.0",
                "O(1)",
                "Writes the cluster's layout to disk.",
            ),
            Command::new("cluster|set-config-epoch", 3, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0).doc(
                "cluster",
                "3.0.0",
                "O(1)",
                "Sets the configuration epoch of a new node.",
            ),
            Command::new("cluster|setslot", -4, Run::Exec, ADMIN | STALE | NO_ASYNC_LOADING, 0).doc(
                "cluster",
                "3.0.0",
                "O(1)",
                "Ties a hash slot to a node.",
            ),
            Command::new("cluster|shards", 2, Run::Exec, LOADING | STALE, 0)
                .tips(&["nondeterministic_output"])
                .doc("cluster", "7.0.0", "O(N) for N nodes.", "Slots and nodes of each shard."),
            Command::new("cluster|slaves", 3, Run::Exec, ADMIN | STALE, 0)
                .tips(&["nondeterministic_output"])
                .doc("cluster", "3.0.0", "O(N) for N replicas.", "Older name of CLUSTER REPLICAS."),
            Command::new("cluster|slots", 2, Run::Exec, LOADING | STALE, 0)
                .tips(&["nondeterministic_output"])
                .doc("cluster", "3.0.0", "O(N) for N nodes.", "Which nodes serve which slots."),
        ]),
    Command::new("asking", 1, Run::Exec, FAST, acl::CONNECTION).doc(
        "cluster",
        "3.0.0",
        "O(1)",
        "Lets the next command use a slot that is being imported.",
    ),
    Command::new("readonly", 1, Run::Exec, LOADING | STALE | FAST, acl::CONNECTION).doc(
        "cluster",
        "3.0.0",
        "O(1)",
        "Allows reads at a replica of a cluster.",
    ),
    Command::new("readwrite", 1, Run::Exec, LOADING | STALE | FAST, acl::CONNECTION).doc(
        "cluster",
        "3.0.0",
        "O(1)",
        "Ends READONLY.",
    ),
];
