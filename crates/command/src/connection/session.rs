//! The connection itself: greeting, identity, database, end. `exec` performs all of it.

use crate::facts;
use crate::table::{ALLOW_BUSY, Command, FAST, LOADING, NO_AUTH, NOSCRIPT, Run, STALE, acl};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("ping", -1, Run::Exec, FAST, acl::CONNECTION)
        .facts(facts::LONG_WORDS | facts::WHILE_SUBSCRIBED)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .doc("connection", "1.0.0", "O(1)", "Answers PONG, or the text given: is the server there?"),
    Command::new("echo", 2, Run::Exec, LOADING | STALE | FAST, acl::CONNECTION).facts(facts::LONG_WORDS).doc(
        "connection",
        "1.0.0",
        "O(1)",
        "Answers the text given.",
    ),
    Command::new(
        "auth",
        -2,
        Run::Exec,
        NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY,
        acl::CONNECTION,
    )
    .facts(facts::CHANGES)
    .doc(
        "connection",
        "1.0.0",
        "O(N) for N passwords of the user.",
        "Logs the connection in with a password.",
    ),
    Command::new(
        "hello",
        -1,
        Run::Exec,
        NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY,
        acl::CONNECTION,
    )
    .facts(facts::SPEAKS)
    .doc("connection", "6.0.0", "O(1)", "Tells about the server and chooses protocol version 2 or 3."),
    Command::new("select", 2, Run::Exec, LOADING | STALE | FAST, acl::CONNECTION)
        .facts(facts::AT_PLACE | facts::SELECTS)
        .doc("connection", "1.0.0", "O(1)", "Chooses the database of this connection."),
    Command::new(
        "quit",
        -1,
        Run::Exec,
        NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY,
        acl::CONNECTION,
    )
    .facts(facts::WHILE_SUBSCRIBED | facts::INSIDE_MULTI)
    .doc("connection", "1.0.0", "O(1)", "Ends the connection after the reply."),
    Command::new(
        "reset",
        1,
        Run::Exec,
        NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY,
        acl::CONNECTION,
    )
    .facts(facts::CHANGES | facts::WHILE_SUBSCRIBED | facts::INSIDE_MULTI)
    .doc(
        "connection",
        "6.2.0",
        "O(1)",
        "Puts the connection back into the state it had when it was opened.",
    ),
];
