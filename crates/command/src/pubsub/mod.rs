//! Channels. `exec` performs all of it.

use crate::facts;
use crate::table::{Command, FAST, KeySpec, LOADING, NOSCRIPT, PUBSUB, Run, STALE, Use};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("subscribe", -2, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::WHILE_SUBSCRIBED)
        .doc("pubsub", "2.0.0", "O(N) for N channels.", "Starts to receive the messages of channels."),
    Command::new("unsubscribe", -1, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::WHILE_SUBSCRIBED)
        .doc("pubsub", "2.0.0", "O(N) for N channels.", "Stops receiving from channels."),
    Command::new("psubscribe", -2, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::WHILE_SUBSCRIBED)
        .doc(
            "pubsub",
            "2.0.0",
            "O(N) for N patterns.",
            "Starts to receive from all channels whose names match patterns.",
        ),
    Command::new("punsubscribe", -1, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::WHILE_SUBSCRIBED)
        .doc("pubsub", "2.0.0", "O(N) for N patterns.", "Stops receiving for patterns."),
    Command::new("ssubscribe", -2, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::WHILE_SUBSCRIBED)
        .keys(&[KeySpec::range(1, -1, 1, Use(&["not_key"]))])
        .doc("pubsub", "7.0.0", "O(N) for N channels.", "Starts to receive the messages of shard channels."),
    Command::new("sunsubscribe", -1, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::WHILE_SUBSCRIBED)
        .keys(&[KeySpec::range(1, -1, 1, Use(&["not_key"]))])
        .doc("pubsub", "7.0.0", "O(N) for N channels.", "Stops receiving from shard channels."),
    Command::new("publish", 3, Run::Exec, PUBSUB | LOADING | STALE | FAST, 0)
        .facts(
            facts::PUBLISHES
                | facts::PASSES_PATTERNS
                | facts::REPLICATES
                | facts::CHANGES
                | facts::LONG_WORDS,
        )
        .doc(
            "pubsub",
            "2.0.0",
            "O(M) for M patterns in all; the N subscribers are served by their own loops.",
            "Sends a message to all subscribers of a channel.",
        ),
    Command::new("spublish", 3, Run::Exec, PUBSUB | LOADING | STALE | FAST, 0)
        .facts(facts::PUBLISHES | facts::REPLICATES | facts::CHANGES | facts::LONG_WORDS)
        .keys(&[KeySpec::one(1, Use(&["not_key"]))])
        .doc(
            "pubsub",
            "7.0.0",
            "O(1); the N subscribers are served by their own loops.",
            "Sends a message to all subscribers of a shard channel.",
        ),
    Command::new("pubsub", -2, Run::Container, 0, 0)
        .doc("pubsub", "2.8.0", "Depends on subcommand.", "Subcommands about channels and subscribers.")
        .subs(&[
            Command::new("pubsub|channels", -2, Run::Exec, PUBSUB | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc(
                    "pubsub",
                    "2.8.0",
                    "O(N) for N channels with subscribers.",
                    "Lists the channels with subscribers.",
                ),
            Command::new("pubsub|numpat", 2, Run::Exec, PUBSUB | LOADING | STALE, 0).doc(
                "pubsub",
                "2.8.0",
                "O(1)",
                "Counts the different patterns with subscribers.",
            ),
            Command::new("pubsub|numsub", -2, Run::Exec, PUBSUB | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc(
                    "pubsub",
                    "2.8.0",
                    "O(N) for N channels named.",
                    "Counts the subscribers of each channel.",
                ),
            Command::new("pubsub|shardchannels", -2, Run::Exec, PUBSUB | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc(
                    "pubsub",
                    "7.0.0",
                    "O(N) for N channels with subscribers.",
                    "Lists the shard channels with subscribers.",
                ),
            Command::new("pubsub|shardnumsub", -2, Run::Exec, PUBSUB | LOADING | STALE, 0)
                .facts(facts::SLOW_ACTION)
                .doc(
                    "pubsub",
                    "7.0.0",
                    "O(N) for N channels named.",
                    "Counts the subscribers of each shard channel.",
                ),
            Command::new("pubsub|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "pubsub",
                "6.2.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
];
