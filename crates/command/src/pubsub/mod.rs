//! Channels. `exec` performs all of it.

use crate::table::{Command, FAST, KeySpec, LOADING, NOSCRIPT, PUBSUB, Run, STALE, Use};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("subscribe", -2, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0).doc(
        "pubsub",
        "2.0.0",
        "O(N) where N is the number of channels to subscribe to.",
        "Starts to receive what is published on channels.",
    ),
    Command::new("unsubscribe", -1, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0).doc(
        "pubsub",
        "2.0.0",
        "O(N) where N is the number of channels to unsubscribe.",
        "Stops receiving from channels.",
    ),
    Command::new("psubscribe", -2, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0).doc(
        "pubsub",
        "2.0.0",
        "O(N) where N is the number of patterns to subscribe to.",
        "Starts to receive from all channels whose names match patterns.",
    ),
    Command::new("punsubscribe", -1, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0).doc(
        "pubsub",
        "2.0.0",
        "O(N) where N is the number of patterns to unsubscribe.",
        "Stops receiving for patterns.",
    ),
    Command::new("ssubscribe", -2, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .keys(&[KeySpec::range(1, -1, 1, Use(&["not_key"]))])
        .doc(
            "pubsub",
            "7.0.0",
            "O(N) where N is the number of shard channels to subscribe to.",
            "Starts to receive what is published on shard channels.",
        ),
    Command::new("sunsubscribe", -1, Run::Exec, PUBSUB | NOSCRIPT | LOADING | STALE, 0)
        .keys(&[KeySpec::range(1, -1, 1, Use(&["not_key"]))])
        .doc(
            "pubsub",
            "7.0.0",
            "O(N) where N is the number of shard channels to unsubscribe.",
            "Stops receiving from shard channels.",
        ),
    Command::new("publish", 3, Run::Exec, PUBSUB | LOADING | STALE | FAST, 0).doc(
        "pubsub",
        "2.0.0",
        "O(N+M) where N is the number of clients subscribed to the receiving \
channel and M is the total number of subscribed patterns (by any \
client).",
        "Sends a message to everybody who listens on a channel.",
    ),
    Command::new("spublish", 3, Run::Exec, PUBSUB | LOADING | STALE | FAST, 0)
        .keys(&[KeySpec::one(1, Use(&["not_key"]))])
        .doc(
            "pubsub",
            "7.0.0",
            "O(N) where N is the number of clients subscribed to the receiving shard \
channel.",
            "Sends a message to everybody who listens on a shard channel.",
        ),
    Command::new("pubsub", -2, Run::Container, 0, 0)
        .doc("pubsub", "2.8.0", "Depends on subcommand.", "Subcommands about channels and subscribers.")
        .subs(&[
            Command::new("pubsub|channels", -2, Run::Exec, PUBSUB | LOADING | STALE, 0).doc(
                "pubsub",
                "2.8.0",
                "O(N) where N is the number of active channels, and assuming constant \
time pattern matching (relatively short channels and patterns)",
                "Channels somebody listens on.",
            ),
            Command::new("pubsub|numpat", 2, Run::Exec, PUBSUB | LOADING | STALE, 0).doc(
                "pubsub",
                "2.8.0",
                "O(1)",
                "How many different patterns are subscribed to.",
            ),
            Command::new("pubsub|numsub", -2, Run::Exec, PUBSUB | LOADING | STALE, 0).doc(
                "pubsub",
                "2.8.0",
                "O(N) for the NUMSUB subcommand, where N is the number of requested \
channels",
                "How many listen on each channel.",
            ),
            Command::new("pubsub|shardchannels", -2, Run::Exec, PUBSUB | LOADING | STALE, 0).doc(
                "pubsub",
                "7.0.0",
                "O(N) where N is the number of active shard channels, and assuming \
constant time pattern matching (relatively short shard channels).",
                "Shard channels somebody listens on.",
            ),
            Command::new("pubsub|shardnumsub", -2, Run::Exec, PUBSUB | LOADING | STALE, 0).doc(
                "pubsub",
                "7.0.0",
                "O(N) for the SHARDNUMSUB subcommand, where N is the number of requested \
shard channels",
                "How many listen on each shard channel.",
            ),
            Command::new("pubsub|help", 2, Run::Exec, LOADING | STALE, 0).doc(
                "pubsub",
                "6.2.0",
                "O(1)",
                "Lists the subcommands.",
            ),
        ]),
];
