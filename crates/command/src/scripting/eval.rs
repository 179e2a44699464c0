//! EVAL and its kin, SCRIPT. `exec` performs them.

use crate::facts;
use crate::table::{
    ALLOW_BUSY, Command, KeySpec, LOADING, MOVABLEKEYS, NO_MANDATORY_KEYS, NOSCRIPT, READONLY, RO_ACCESS,
    RW_ACCESS_UPDATE, Run, SKIP_MONITOR, STALE, acl,
};

const NOTES: &str = "What the script does with its keys is not known: anything must be expected.";

pub(crate) static COMMANDS: &[Command] = &[
    Command::new(
        "eval",
        -3,
        Run::Exec,
        NOSCRIPT | STALE | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS,
        acl::SCRIPTING,
    )
    .facts(facts::SCRIPT | facts::REPLICATES)
    .keys(&[KeySpec { notes: NOTES, ..KeySpec::numkeys(2, RW_ACCESS_UPDATE) }])
    .doc("scripting", "2.6.0", "That of the script.", "Runs a Lua script."),
    Command::new(
        "evalsha",
        -3,
        Run::Exec,
        NOSCRIPT | STALE | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS,
        acl::SCRIPTING,
    )
    .facts(facts::SCRIPT | facts::REPLICATES)
    .keys(&[KeySpec { notes: NOTES, ..KeySpec::numkeys(2, RW_ACCESS_UPDATE) }])
    .doc(
        "scripting",
        "2.6.0",
        "That of the script.",
        "Runs a Lua script that the server knows, named by its SHA1.",
    ),
    Command::new(
        "eval_ro",
        -3,
        Run::Exec,
        READONLY | NOSCRIPT | STALE | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS,
        acl::SCRIPTING,
    )
    .facts(facts::SCRIPT)
    .keys(&[KeySpec { notes: NOTES, ..KeySpec::numkeys(2, RO_ACCESS) }])
    .doc("scripting", "7.0.0", "That of the script.", "Runs a Lua script that may only read."),
    Command::new(
        "evalsha_ro",
        -3,
        Run::Exec,
        READONLY | NOSCRIPT | STALE | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS,
        acl::SCRIPTING,
    )
    .facts(facts::SCRIPT)
    .keys(&[KeySpec { notes: NOTES, ..KeySpec::numkeys(2, RO_ACCESS) }])
    .doc(
        "scripting",
        "7.0.0",
        "That of the script.",
        "Runs a known Lua script, named by its SHA1, that may only read.",
    ),
    Command::new("script", -2, Run::Container, 0, 0)
        .doc("scripting", "2.6.0", "Depends on subcommand.", "Subcommands about scripts.")
        .subs(&[
            Command::new("script|debug", 3, Run::Exec, NOSCRIPT, acl::SCRIPTING).doc(
                "scripting",
                "3.2.0",
                "O(1)",
                "Sets how EVAL works with a debugger.",
            ),
            Command::new("script|exists", -3, Run::Exec, NOSCRIPT, acl::SCRIPTING)
                .facts(facts::ENGINE | facts::MANY_WORDS)
                .tips(&["request_policy:all_shards", "response_policy:agg_logical_and"])
                .doc(
                    "scripting",
                    "2.6.0",
                    "O(N) for N scripts asked.",
                    "Tells for each script whether the server knows it.",
                ),
            Command::new("script|flush", -2, Run::Exec, NOSCRIPT, acl::SCRIPTING)
                .facts(facts::CHANGES | facts::CHANGES_CODE)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("scripting", "2.6.0", "O(N) for N known scripts.", "Forgets all scripts."),
            Command::new("script|help", 2, Run::Exec, LOADING | STALE, acl::SCRIPTING).doc(
                "scripting",
                "5.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
            Command::new("script|kill", 2, Run::Exec, NOSCRIPT | ALLOW_BUSY, acl::SCRIPTING)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_shards", "response_policy:one_succeeded"])
                .doc("scripting", "2.6.0", "O(1)", "Stops a script that has written nothing yet."),
            Command::new("script|load", 3, Run::Exec, NOSCRIPT | STALE, acl::SCRIPTING)
                .facts(facts::ENGINE | facts::CHANGES | facts::LONG_WORDS)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc(
                    "scripting",
                    "2.6.0",
                    "O(N) for a script of N bytes.",
                    "Makes a script known without running it.",
                ),
            Command::new("script|show", 3, Run::Exec, NOSCRIPT | STALE, acl::SCRIPTING)
                .facts(facts::ENGINE | facts::SHOWS_SCRIPT)
                .doc("scripting", "8.0.0", "O(1).", "The text of a known script."),
        ]),
];
