//! COMMAND, CONFIG, INFO and other facts about the server. `exec` performs all of them.

use crate::facts;
use crate::table::{ADMIN, Command, FAST, LOADING, NOSCRIPT, READONLY, Run, STALE, acl};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("command", -1, Run::Exec, LOADING | STALE, acl::CONNECTION)
        .facts(facts::SLOW_ACTION)
        .tips(&["nondeterministic_output_order"])
        .doc("server", "2.8.13", "O(N) for N commands.", "Facts about every command.")
        .subs(&[
            Command::new("command|count", 2, Run::Exec, LOADING | STALE, acl::CONNECTION).doc(
                "server",
                "2.8.13",
                "O(1)",
                "How many commands there are.",
            ),
            Command::new("command|docs", -2, Run::Exec, LOADING | STALE, acl::CONNECTION)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output_order"])
                .doc(
                    "server",
                    "7.0.0",
                    "O(N) for N names.",
                    "Descriptions of commands for people and tools.",
                ),
            Command::new("command|info", -2, Run::Exec, LOADING | STALE, acl::CONNECTION)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output_order"])
                .doc("server", "2.8.13", "O(N) for N names.", "Facts about some commands, or all."),
            Command::new("command|list", -2, Run::Exec, LOADING | STALE, acl::CONNECTION)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output_order"])
                .doc(
                    "server",
                    "7.0.0",
                    "O(N) for N commands.",
                    "Names of all commands, or of those that match a filter.",
                ),
            Command::new("command|getkeys", -3, Run::Exec, LOADING | STALE, acl::CONNECTION).doc(
                "server",
                "2.8.13",
                "O(N) for N arguments.",
                "Lists the key arguments of a full command.",
            ),
            Command::new("command|getkeysandflags", -3, Run::Exec, LOADING | STALE, acl::CONNECTION).doc(
                "server",
                "7.0.0",
                "O(N) for N arguments.",
                "Lists the key arguments of a full command, and how each is used.",
            ),
            Command::new("command|help", 2, Run::Exec, LOADING | STALE, acl::CONNECTION).doc(
                "server",
                "5.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("config", -2, Run::Container, 0, 0)
        .doc("server", "2.0.0", "Depends on subcommand.", "Subcommands about settings.")
        .subs(&[
            Command::new("config|get", -3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc("server", "2.0.0", "O(N) for N settings named.", "Settings whose names match."),
            Command::new("config|set", -4, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc(
                    "server",
                    "2.0.0",
                    "O(N) for N settings named.",
                    "Changes settings while the server runs.",
                ),
            Command::new("config|resetstat", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("server", "2.0.0", "O(1)", "Sets the counters shown by INFO back to zero."),
            Command::new("config|rewrite", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("server", "2.8.0", "O(1)", "Writes the settings in force into the configuration file."),
            Command::new("config|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "5.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("info", -1, Run::Exec, LOADING | STALE, acl::DANGEROUS)
        .facts(facts::SLOW_ACTION)
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
        .doc("server", "1.0.0", "O(1)", "The state of the server and its statistics as text."),
    Command::new("time", 1, Run::Exec, LOADING | STALE | FAST, 0).tips(&["nondeterministic_output"]).doc(
        "server",
        "2.6.0",
        "O(1)",
        "The server's clock.",
    ),
    Command::new("lolwut", -1, Run::Exec, READONLY | FAST, 0).doc(
        "server",
        "5.0.0",
        "O(1)",
        "A picture, and the version.",
    ),
    Command::new("debug", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0).doc(
        "server",
        "1.0.0",
        "Depends on subcommand.",
        "Subcommands for tests and for looking inside.",
    ),
    Command::new("memory", -2, Run::Container, 0, 0)
        .doc("server", "4.0.0", "Depends on subcommand.", "Subcommands about memory.")
        .subs(&[
            crate::generic::object::MEMORY_USAGE,
            Command::new("memory|stats", 2, Run::Exec, 0, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
                .doc("server", "4.0.0", "O(1)", "Lists the memory in use by purpose."),
            Command::new("memory|doctor", 2, Run::Exec, 0, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
                .doc("server", "4.0.0", "O(1)", "Names problems in the use of memory."),
            Command::new("memory|purge", 2, Run::Exec, 0, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
                .doc(
                    "server",
                    "4.0.0",
                    "Grows with the memory in use.",
                    "Gives unused memory back to the system.",
                ),
            Command::new("memory|malloc-stats", 2, Run::Exec, 0, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
                .doc(
                    "server",
                    "4.0.0",
                    "Grows with the memory in use.",
                    "Statistics of the memory allocator.",
                ),
            Command::new("memory|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "4.0.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("commandlog", -2, Run::Container, 0, 0)
        .doc(
            "server",
            "8.1.0",
            "Depends on subcommand.",
            "Subcommands about logs of slow and of large commands.",
        )
        .subs(&[
            Command::new("commandlog|get", 4, Run::Exec, ADMIN | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["request_policy:all_nodes", "nondeterministic_output"])
                .doc(
                    "server",
                    "8.1.0",
                    "O(N) for N entries answered.",
                    "Newest entries of a log of commands.",
                ),
            Command::new("commandlog|len", 3, Run::Exec, ADMIN | LOADING | STALE, 0)
                .tips(&["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"])
                .doc("server", "8.1.0", "O(1)", "How many entries a log of commands has."),
            Command::new("commandlog|reset", 3, Run::Exec, ADMIN | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("server", "8.1.0", "O(N) for N entries.", "Empties a log of commands."),
            Command::new("commandlog|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "8.1.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("hotkeys", -2, Run::Container, 0, 0)
        .doc("server", "8.6.0", "Depends on subcommand.", "Subcommands about the keys that take the most.")
        .subs(&[
            Command::new("hotkeys|start", -2, Run::Exec, ADMIN | NOSCRIPT, 0).facts(facts::CHANGES).doc(
                "server",
                "8.6.0",
                "O(1)",
                "Begins to watch which keys take the most.",
            ),
            Command::new("hotkeys|stop", 2, Run::Exec, ADMIN | NOSCRIPT, 0).facts(facts::CHANGES).doc(
                "server",
                "8.6.0",
                "O(1)",
                "Ends the watching; what was found stays.",
            ),
            Command::new("hotkeys|get", 2, Run::Exec, ADMIN | NOSCRIPT, 0).doc(
                "server",
                "8.6.0",
                "O(K) for K keys answered.",
                "The keys that took the most.",
            ),
            Command::new("hotkeys|reset", 2, Run::Exec, ADMIN | NOSCRIPT, 0).facts(facts::CHANGES).doc(
                "server",
                "8.6.0",
                "O(1)",
                "Forgets what was found.",
            ),
            Command::new("hotkeys|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "8.6.1",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("slowlog", -2, Run::Container, 0, 0)
        .doc("server", "2.2.12", "Depends on subcommand.", "Subcommands about the log of slow commands.")
        .subs(&[
            Command::new("slowlog|get", -2, Run::Exec, ADMIN | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["request_policy:all_nodes", "nondeterministic_output"])
                .doc("server", "2.2.12", "O(N) for N entries answered.", "Newest entries of the slow log."),
            Command::new("slowlog|len", 2, Run::Exec, ADMIN | LOADING | STALE, 0)
                .tips(&["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"])
                .doc("server", "2.2.12", "O(1)", "How many entries the slow log has."),
            Command::new("slowlog|reset", 2, Run::Exec, ADMIN | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
                .doc("server", "2.2.12", "O(N) for N entries.", "Empties the slow log."),
            Command::new("slowlog|why", -2, Run::Exec, ADMIN | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["request_policy:all_nodes", "nondeterministic_output"])
                .doc("server", "0.1.0", "O(N) for N entries answered.", "As GET, with where the time went."),
            Command::new("slowlog|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "6.2.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("evenkeel", -2, Run::Container, 0, 0)
        .doc("server", "0.1.0", "Depends on subcommand.", "Subcommands that only this server has.")
        .subs(&[
            crate::generic::items::ITEMS,
            Command::new("evenkeel|waits", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N log N) for N waits remembered.",
                    "Lists waits: the client, the cause, the resource and the time.",
                ),
            Command::new("evenkeel|prefixes", -2, Run::Exec, ADMIN | NOSCRIPT | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(1) to begin a count, which takes O(N) for N keys; O(P) to show P prefixes.",
                    "Shows who uses the keys and the memory, by the beginnings of names.",
                ),
            Command::new("evenkeel|now", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N) for N waits of the last minute.",
                    "Shows the last second and minute: waits, who made whom wait, and who works.",
                ),
            Command::new("evenkeel|history", -4, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N) for N minutes of the span, or seconds if columns are short.",
                    "Shows a span of time in columns: latencies, waits by cause, figures.",
                ),
            Command::new("evenkeel|flows", 4, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N) for N minutes of the span.",
                    "Shows who made whom wait in a span of time, and who worked most.",
                ),
            Command::new("evenkeel|records", -4, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N log N) for N records of the span.",
                    "Lists the longest waits and slow requests of a span of time.",
                ),
            Command::new("evenkeel|incidents", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N) for N minutes of the span and of a day.",
                    "Lists the worst times of a span, or of the last day.",
                ),
            Command::new("evenkeel|replicas", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0).doc(
                "server",
                "0.1.0",
                "O(n) for n replicas",
                "The servers that follow, and how far each is behind.",
            ),
            Command::new("evenkeel|lost", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N) for N writes in the files.",
                    "Lists writes that were lost to another primary.",
                ),
            Command::new("evenkeel|why", 3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N) for N waits remembered.",
                    "Shows where one client's slow requests spent their time.",
                ),
            Command::new("evenkeel|stalls", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N log N) for N stalls remembered.",
                    "Lists long turns of event loops and the clients that caused them.",
                ),
            Command::new("evenkeel|phases", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output"])
                .doc("server", "0.1.0", "O(1)", "Times of all requests by phase."),
            Command::new("evenkeel|source", -3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION | facts::CHANGES)
                .tips(&["nondeterministic_output"])
                .doc(
                    "server",
                    "0.1.0",
                    "O(N) for N sources, or for N ids given up.",
                    "Adds, lists, pauses, flushes and removes databases to read through.",
                ),
            Command::new("evenkeel|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "0.1.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
    Command::new("latency", -2, Run::Container, 0, 0)
        .doc("server", "2.8.13", "Depends on subcommand.", "Subcommands about events that took long.")
        .subs(&[
            Command::new("latency|latest", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"])
                .doc("server", "2.8.13", "O(1)", "The last recorded latency of every event."),
            Command::new("latency|history", 3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"])
                .doc("server", "2.8.13", "O(1)", "Recorded latencies of an event with their times."),
            Command::new("latency|reset", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::CHANGES)
                .tips(&["request_policy:all_nodes", "response_policy:agg_sum"])
                .doc("server", "2.8.13", "O(1)", "Clears the records of some events, or all."),
            Command::new("latency|graph", 3, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"])
                .doc("server", "2.8.13", "O(1)", "Draws the recorded latencies of an event."),
            Command::new("latency|doctor", 2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"])
                .doc("server", "2.8.13", "O(1)", "Explains the recorded latencies in words."),
            Command::new("latency|histogram", -2, Run::Exec, ADMIN | NOSCRIPT | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"])
                .doc(
                    "server",
                    "7.0.0",
                    "O(N) for N commands answered.",
                    "How long calls of commands took, as cumulative counts.",
                ),
            Command::new("latency|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "server",
                "2.8.13",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
];
