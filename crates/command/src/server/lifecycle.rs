//! The server's life, data on disk and other servers. `exec` performs these, and refuses what a server in
//! memory alone cannot do.

use crate::facts;
use crate::table::{
    ADMIN, ALLOW_BUSY, BLOCKING, Command, FAST, LOADING, NO_ASYNC_LOADING, NO_MULTI, NOSCRIPT, Run, STALE,
    acl,
};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("shutdown", -1, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY, 0)
        .facts(facts::CHANGES)
        .doc("server", "1.0.0", "O(1)", "Ends the server."),
    Command::new("save", 1, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, 0).doc(
        "server",
        "1.0.0",
        "O(1) per database; what was there is freed elsewhere.",
        "Writes the data to disk while all clients wait.",
    ),
    Command::new("bgsave", -1, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, 0).doc(
        "server",
        "1.0.0",
        "O(1)",
        "Writes the data to disk in the background.",
    ),
    Command::new("bgrewriteaof", 1, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, 0).doc(
        "server",
        "1.0.0",
        "O(1)",
        "Writes the append-only file anew in the background.",
    ),
    Command::new("monitor", 1, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0).facts(facts::CHANGES).doc(
        "server",
        "1.0.0",
        "O(1), and a line for each command of all clients.",
        "Shows the commands of all clients as they run.",
    ),
    Command::new("lastsave", 1, Run::Exec, LOADING | STALE | FAST, acl::ADMIN | acl::DANGEROUS)
        .tips(&["nondeterministic_output"])
        .doc("server", "1.0.0", "O(1)", "Tells when the data was last written to disk."),
    Command::new("sync", 1, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, 0)
        .facts(facts::CHANGES)
        .doc("server", "1.0.0", "O(n) for n keys", "Sends a snapshot, and what happens behind it."),
    Command::new("psync", -3, Run::Exec, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, 0)
        .facts(facts::CHANGES)
        .doc(
            "server",
            "2.8.0",
            "O(1); O(n) in slices for n keys, if the replica lacks too much",
            "Sends a replica what it lacks, and what happens behind it.",
        ),
    Command::new("replconf", -1, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE | ALLOW_BUSY, 0)
        .facts(facts::CHANGES)
        .doc("server", "3.0.0", "O(n) for n options", "Says what a replica can, wants and has."),
    Command::new("replicaof", 3, Run::Exec, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING, 0).doc(
        "server",
        "5.0.0",
        "O(1)",
        "Makes this server a replica, or a primary again.",
    ),
    Command::new("slaveof", 3, Run::Exec, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING, 0).doc(
        "server",
        "1.0.0",
        "O(1)",
        "Older name of REPLICAOF.",
    ),
    Command::new("failover", -1, Run::Exec, ADMIN | NOSCRIPT | STALE, 0).doc(
        "server",
        "6.2.0",
        "O(n) for n replicas, and some milliseconds in the background",
        "Lets a replica lead in place of this server.",
    ),
    Command::new("role", 1, Run::Exec, NOSCRIPT | LOADING | STALE | FAST, acl::ADMIN | acl::DANGEROUS).doc(
        "server",
        "2.8.12",
        "O(1)",
        "Tells the role of this server in replication.",
    ),
    Command::new("wait", 3, Run::Exec, BLOCKING, acl::CONNECTION)
        .tips(&["request_policy:all_shards", "response_policy:agg_min"])
        .doc("generic", "3.0.0", "O(1)", "Waits until replicas have this connection's writes."),
    Command::new("waitaof", 4, Run::Exec, BLOCKING, acl::CONNECTION)
        .tips(&["request_policy:all_shards", "response_policy:agg_min"])
        .doc(
            "generic",
            "7.2.0",
            "O(1)",
            "Waits until this connection's writes are on disk, here or at replicas.",
        ),
];
