//! Replies for tests, as RESP2 has them.

use crate::model::Model;
use crate::poll::{Ask, News, Replies};
use dial::Frame;

/// A map.
pub fn flat(pairs: &[(&str, Frame)]) -> Frame {
    Frame::Array(pairs.iter().flat_map(|(name, value)| [bulk(name), value.clone()]).collect())
}

pub fn bulk(text: &str) -> Frame {
    Frame::Bulk(text.as_bytes().to_vec())
}

pub fn ints(list: &[i64]) -> Frame {
    Frame::Array(list.iter().map(|n| Frame::Int(*n)).collect())
}

pub fn refused() -> Frame {
    Frame::Error(b"NOPERM this user has no permissions".to_vec())
}

fn party(name: &[u8], client: i64, addr: &str, words: &[&str], clients: i64) -> Frame {
    flat(&[
        ("kind", bulk("client")),
        ("name", Frame::Bulk(name.to_vec())),
        ("client", Frame::Int(client)),
        ("addr", bulk(addr)),
        ("user", bulk("default")),
        ("command", bulk(words[0])),
        ("words", Frame::Array(words.iter().map(|word| bulk(word)).collect())),
        ("clients", Frame::Int(clients)),
    ])
}

/// EVENKEEL NOW: 990 requests of 32 to 64 us, 10 of 4 to 8 ms; one edge, whose culprit has this name.
pub fn now(name: &[u8]) -> Frame {
    let mut heat = [0; 24];
    (heat[6], heat[13]) = (990, 10);
    let series = flat(&[
        ("busy", ints(&[450, 120])),
        ("replica_lag_ms", Frame::Int(12)),
        ("log_pending_bytes", Frame::Int(4096)),
    ]);
    let commit =
        flat(&[("n", Frame::Int(1071)), ("us", Frame::Int(19_810_000)), ("longest_us", Frame::Int(48_213))]);
    let row = flat(&[("heat", ints(&heat)), ("waits", flat(&[("commit", commit)])), ("series", series)]);
    let culprit = party(name, 912, "10.0.0.7:5122", &["EVAL", "local out = {} for i = 2, #KEYS do"], 0);
    let edge = flat(&[
        ("for", bulk("commit")),
        ("culprit", culprit.clone()),
        ("waiter", party(b"checkout-api", 3, "10.0.0.9:1", &["hset"], 38)),
        ("waits", Frame::Int(1071)),
        ("us", Frame::Int(19_810_000)),
        ("longest_us", Frame::Int(48_213)),
    ]);
    let heavy = flat(&[("client", culprit), ("us", Frame::Int(21_000_000)), ("pieces", Frame::Int(70))]);
    flat(&[
        ("second", row.clone()),
        ("minute", row),
        ("edges", Frame::Array(vec![edge])),
        ("heaviest", Frame::Array(vec![heavy])),
    ])
}

/// EVENKEEL HISTORY of five minutes: a gap, then 900 requests of 32 to 64 us a column; the 40th has slow ones.
pub fn history() -> Frame {
    let octave = |at: usize| {
        let n = |column: usize| match (at, column) {
            (_, ..10) => Frame::Null,
            (6, _) => Frame::Int(900),
            (13, 40..44) => Frame::Int(25),
            (16, 42) => Frame::Int(3),
            _ => Frame::Int(0),
        };
        Frame::Array((0..61).map(n).collect())
    };
    let us = |column: usize| match column {
        ..10 => Frame::Null,
        40..44 => Frame::Int(20_000),
        _ => Frame::Int(0),
    };
    let commit = flat(&[("us", Frame::Array((0..61).map(us).collect()))]);
    flat(&[
        ("n", Frame::Int(61)),
        ("heat", Frame::Array((0..24).map(octave).collect())),
        ("waits", flat(&[("commit", commit)])),
    ])
}

/// INFO after so many commands.
pub fn info(program: &str, commands: u64) -> Frame {
    bulk(&format!(
        "# Server\r\n{program}\r\nrun_id:a\r\nuptime_in_seconds:302400\r\nrole:master\r\nconnected_slaves:1\r\n\
         slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=2\r\ntotal_commands_processed:{commands}\r\n\
         keyspace_hits:{commands}\r\nkeyspace_misses:7\r\ntotal_net_input_bytes:{commands}\r\n\
         total_net_output_bytes:{commands}\r\nexpired_keys:0\r\nevicted_keys:0\r\nconnected_clients:2\r\n\
         blocked_clients:0\r\nused_memory:1610612736\r\nused_memory_rss:2147483648\r\nused_memory_peak:1610612736\r\n\
         maxmemory:4294967296\r\naof_enabled:1\r\nrdb_last_bgsave_status:err\r\nrdb_last_save_time:1795938963\r\n\
         rdb_changes_since_last_save:12345\r\ndb0:keys=40000000,expires=1,avg_ttl=0\r\n"
    ))
}

/// HOTKEYS GET: two keys, of which one is among the first by its bytes alone.
pub fn hot_keys() -> Frame {
    let by = |key: &str, n| Frame::Array(vec![bulk(key), Frame::Int(n)]);
    Frame::Array(vec![flat(&[
        ("tracking-active", Frame::Int(1)),
        ("collection-duration-ms", Frame::Int(61_000)),
        ("by-cpu-time-us", by("session:\x1b", 900)),
        ("by-net-bytes", by("user:7", 70_000)),
    ])])
}

pub fn slow(words: &[&str]) -> Frame {
    let words = words.iter().map(|word| bulk(word)).collect();
    let entry = [
        Frame::Int(7),
        Frame::Int(1_795_939_140),
        Frame::Int(48_213),
        Frame::Array(words),
        bulk("10.0.0.7:5122"),
        bulk(""),
    ];
    Frame::Array(vec![Frame::Array(entry.to_vec())])
}

pub fn clients(name: &str, commands: u64) -> Frame {
    bulk(&format!(
        "id=912 addr=10.0.0.7:5122 name={name} age=9 idle=0 cmd=eval user=default tot-mem=20480 tot-net-in=0 tot-net-out={commands} tot-cmds={commands}\n\
         id=3 addr=10.0.0.9:1 name=checkout-api age=9 idle=120 cmd=hset user=default tot-mem=2048 tot-net-in=0 tot-net-out=0 tot-cmds=5\n"
    ))
}

pub fn commands(calls: u64) -> Frame {
    bulk(&format!(
        "cmdstat_eval:calls={calls},usec={},usec_per_call=40000.00,rejected_calls=0,failed_calls=1\r\n\
         cmdstat_get:calls={},usec={},usec_per_call=2.00,rejected_calls=0,failed_calls=0\r\n",
        calls * 40_000,
        calls * 1000,
        calls * 2000
    ))
}

/// A model after these replies; the first of them one second before.
pub fn model(looks: [Vec<(Ask, Frame)>; 2], pings: &[u64]) -> Model {
    let mut model = Model::new("127.0.0.1:6379".to_owned());
    for (at, replies) in looks.into_iter().enumerate() {
        let (unix_ms, at_us) = (1_795_939_143_000, 1_000_000 * (at as u64 + 1));
        model.take(News::Replies(Replies {
            unix_ms,
            at_us,
            replies,
            pings: pings.to_vec(),
            ..Replies::default()
        }));
    }
    model
}

/// Evenkeel, with this name of the one that makes others wait.
pub fn evenkeel(name: &[u8], shown: &str) -> Model {
    let look = |n: u64| {
        vec![
            (Ask::Info, info("evenkeel_version:1.0.0", n * 12_345)),
            (Ask::Now, now(name)),
            (Ask::History, history()),
            (Ask::Clients, clients(shown, n * 25)),
            (Ask::Commands, commands(n * 20)),
            (Ask::Slow, slow(&["EVAL", "local out", "10"])),
            (Ask::Events, Frame::Array(vec![])),
            (Ask::HotKeys, hot_keys()),
        ]
    };
    model([look(0), look(1)], &[])
}

/// A Redis that knows no EVENKEEL.
pub fn redis() -> Model {
    let look = |n: u64| {
        vec![
            (Ask::Info, info("redis_version:7.0.15", n * 500)),
            (Ask::Now, Frame::Error(b"ERR unknown command 'EVENKEEL'".to_vec())),
            (Ask::Clients, clients("a", n)),
            (Ask::Commands, commands(n)),
            (Ask::Slow, slow(&["KEYS", "*"])),
            (
                Ask::Events,
                Frame::Array(vec![Frame::Array(vec![
                    bulk("command"),
                    Frame::Int(1_795_939_140),
                    Frame::Int(48),
                    Frame::Int(90),
                ])]),
            ),
        ]
    };
    model([look(0), look(1)], &[90, 130, 2100])
}
