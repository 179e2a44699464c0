//! MULTI, EXEC, DISCARD, WATCH, UNWATCH. `exec` performs them.

use crate::facts;
use crate::table::{
    ALLOW_BUSY, Command, FAST, KeySpec, LOADING, NOSCRIPT, RO, Run, SKIP_SLOWLOG, STALE, acl,
};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("multi", 1, Run::Exec, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, acl::TRANSACTION)
        .facts(facts::INSIDE_MULTI)
        .doc("transactions", "1.2.0", "O(1)", "Begins a transaction: the next commands are queued."),
    Command::new("exec", 1, Run::Exec, NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG, acl::TRANSACTION)
        .facts(facts::INSIDE_MULTI | facts::RUNS_QUEUE | facts::TELLS_LIBRARIES)
        .doc(
            "transactions",
            "1.2.0",
            "That of the queued commands.",
            "Runs everything queued since MULTI at once.",
        ),
    Command::new("discard", 1, Run::Exec, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, acl::TRANSACTION)
        .facts(facts::INSIDE_MULTI)
        .doc("transactions", "2.0.0", "O(N) for N queued commands.", "Drops everything queued since MULTI."),
    Command::new("watch", -2, Run::Exec, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, acl::TRANSACTION)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::KEY_WORDS | facts::INSIDE_MULTI | facts::WATCHES)
        .keys(&[KeySpec::range(1, -1, 1, RO)])
        .doc(
            "transactions",
            "2.2.0",
            "O(1) for every key.",
            "Makes the next EXEC fail if one of the keys changes before it.",
        ),
    Command::new("unwatch", 1, Run::Exec, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, acl::TRANSACTION)
        .facts(facts::AT_PLACE | facts::CHANGES)
        .doc("transactions", "2.2.0", "O(1)", "Forgets all watched keys."),
];
