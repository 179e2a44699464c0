//! FUNCTION, FCALL, FCALL_RO. `exec` performs them.

use crate::facts;
use crate::table::{
    ALLOW_BUSY, Command, DENYOOM, KeySpec, LOADING, MOVABLEKEYS, NO_MANDATORY_KEYS, NOSCRIPT, READONLY,
    RO_ACCESS, RW_ACCESS_UPDATE, Run, SKIP_MONITOR, STALE, WRITE, acl,
};

const NOTES: &str = "What the script does with its keys is not known: anything must be expected.";

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("function", -2, Run::Container, 0, 0)
        .doc(
            "scripting",
            "7.0.0",
            "Depends on subcommand.",
            "Subcommands about functions and their libraries.",
        )
        .subs(&[
            Command::new("function|delete", 3, Run::Exec, WRITE | NOSCRIPT, acl::SCRIPTING)
                .facts(facts::SLOW_ACTION | facts::CHANGES | facts::CHANGES_CODE | facts::TELLS_LIBRARIES)
                .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
                .doc("scripting", "7.0.0", "O(1)", "Removes a library and its functions."),
            Command::new("function|dump", 2, Run::Exec, NOSCRIPT, acl::SCRIPTING)
                .facts(facts::SLOW_ACTION | facts::TELLS_LIBRARIES)
                .doc(
                    "scripting",
                    "7.0.0",
                    "O(N) for N functions.",
                    "All libraries in a form that RESTORE reads.",
                ),
            Command::new("function|flush", -2, Run::Exec, WRITE | NOSCRIPT, acl::SCRIPTING)
                .facts(facts::SLOW_ACTION | facts::CHANGES | facts::CHANGES_CODE | facts::TELLS_LIBRARIES)
                .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
                .doc("scripting", "7.0.0", "O(N) for N functions removed.", "Removes all libraries."),
            Command::new("function|help", 2, Run::Exec, LOADING | STALE, acl::SCRIPTING).doc(
                "scripting",
                "7.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
            Command::new("function|kill", 2, Run::Exec, NOSCRIPT | ALLOW_BUSY, acl::SCRIPTING)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_shards", "response_policy:one_succeeded"])
                .doc("scripting", "7.0.0", "O(1)", "Stops a function that has written nothing yet."),
            Command::new("function|list", -2, Run::Exec, NOSCRIPT, acl::SCRIPTING)
                .facts(facts::SLOW_ACTION | facts::TELLS_LIBRARIES)
                .tips(&["nondeterministic_output_order"])
                .doc("scripting", "7.0.0", "O(N) for N functions.", "Libraries and their functions."),
            Command::new("function|load", -3, Run::Exec, WRITE | DENYOOM | NOSCRIPT, acl::SCRIPTING)
                .facts(
                    facts::SLOW_ACTION
                        | facts::CHANGES
                        | facts::CHANGES_CODE
                        | facts::TELLS_LIBRARIES
                        | facts::LONG_WORDS,
                )
                .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
                .doc("scripting", "7.0.0", "O(1), besides compiling.", "Adds a library of functions."),
            Command::new("function|restore", -3, Run::Exec, WRITE | DENYOOM | NOSCRIPT, acl::SCRIPTING)
                .facts(
                    facts::SLOW_ACTION
                        | facts::CHANGES
                        | facts::CHANGES_CODE
                        | facts::TELLS_LIBRARIES
                        | facts::LONG_WORDS,
                )
                .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
                .doc(
                    "scripting",
                    "7.0.0",
                    "O(N) for N functions in the dump.",
                    "Adds the libraries of a dump.",
                ),
            Command::new("function|stats", 2, Run::Exec, NOSCRIPT | ALLOW_BUSY, acl::SCRIPTING)
                .facts(facts::TELLS_LIBRARIES)
                .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
                .doc(
                    "scripting",
                    "7.0.0",
                    "O(1)",
                    "Names the running function, and counts libraries and functions.",
                ),
        ]),
    Command::new(
        "fcall",
        -3,
        Run::Exec,
        NOSCRIPT | STALE | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS,
        acl::SCRIPTING,
    )
    .facts(facts::SCRIPT | facts::FUNCTION | facts::TELLS_LIBRARIES | facts::REPLICATES)
    .keys(&[KeySpec { notes: NOTES, ..KeySpec::numkeys(2, RW_ACCESS_UPDATE) }])
    .doc("scripting", "7.0.0", "That of the function.", "Calls a function of a library."),
    Command::new(
        "fcall_ro",
        -3,
        Run::Exec,
        READONLY | NOSCRIPT | STALE | SKIP_MONITOR | MOVABLEKEYS | NO_MANDATORY_KEYS,
        acl::SCRIPTING,
    )
    .facts(facts::SCRIPT | facts::FUNCTION | facts::TELLS_LIBRARIES)
    .keys(&[KeySpec { notes: NOTES, ..KeySpec::numkeys(2, RO_ACCESS) }])
    .doc(
        "scripting",
        "7.0.0",
        "That of the function.",
        "Calls a function of a library that may only read.",
    ),
];
