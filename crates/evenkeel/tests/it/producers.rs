//! Idempotent producers of streams, over a restart and on replicas.

use crate::replicas::{differences, follow, info, settle_at};
use crate::snapshots::{await_info, ready, start_in};
use crate::support::{Client, Server, foreign};

/// A message of a producer: the ID of its entry.
fn add(client: &mut Client, key: &str, iid: &str) -> String {
    client.call(&format!("XADD {key} IDMP p {iid} * f v"))
}

/// The log, its base, and a snapshot keep what is remembered.
#[test]
fn messages_are_known_after_a_restart() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let log = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = start_in(folder.path(), &log);
    let mut client = ready(&server);
    let first = add(&mut client, "s", "1");
    client.expect("XCFGSET t IDMP-MAXSIZE 7", "-ERR no such key");
    client.expect("XADD t 1-1 f v", r#""1-1""#);
    client.expect("XCFGSET t IDMP-MAXSIZE 7 IDMP-DURATION 3600", "+OK");
    let second = add(&mut client, "t", "1");
    for rewrites in [false, true] {
        if rewrites {
            client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
            await_info(&mut client, "aof_rewrite_in_progress:0");
        }
        let third = add(&mut client, "s", &format!("rewritten-{rewrites}"));
        let digest = client.call("DEBUG DIGEST");
        server.signal("KILL");
        server.exit_code();
        server = start_in(folder.path(), &log);
        client = ready(&server);
        client.expect("DEBUG DIGEST", &digest);
        assert_eq!(add(&mut client, "s", "1"), first);
        assert_eq!(add(&mut client, "t", "1"), second);
        assert_eq!(add(&mut client, "s", &format!("rewritten-{rewrites}")), third);
    }
    let facts = client.call("XINFO STREAM t");
    assert!(facts.contains(r#""idmp-duration", :3600, "idmp-maxsize", :7"#), "{facts}");
    // A snapshot has it, too, unless it is one for older servers.
    for (version, knows) in [("auto", true), ("11", false)] {
        client.expect(&format!("CONFIG SET rdb-version {version}"), "+OK");
        client.expect("DEBUG RELOAD", "+OK");
        assert_eq!(add(&mut client, "s", "1") == first, knows, "{version}");
        client.expect("XLEN t", ":2");
    }
}

/// A replica that takes over knows the messages of its primary. One of another make hears plain words.
#[test]
fn messages_are_known_to_replicas() {
    if foreign() {
        return;
    }
    let (primary, replica, redis) = (Server::start(), Server::start(), Server::redis(&[]));
    let mut client = primary.client();
    let first = add(&mut client, "s", "1");
    follow(&replica, &primary);
    redis.iter().for_each(|redis| follow(redis, &primary));
    let second = add(&mut client, "s", "2");
    let third = client.call("XADD s IDMPAUTO q * f v");
    client.expect("XADD t 1-1 f v", r#""1-1""#);
    client.expect("XCFGSET t IDMP-DURATION 9", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("XADD t IDMP p 1 * f v", "+QUEUED");
    client.expect("XADD t IDMP p 1 * f v", "+QUEUED");
    client.call("EXEC");
    client.expect("XLEN t", ":2");
    settle_at(&primary, &replica);
    assert_eq!(replica.client().call("DEBUG DIGEST"), client.call("DEBUG DIGEST"));
    if let Some(redis) = &redis {
        settle_at(&primary, redis);
        assert_eq!(differences(&primary, redis), [""; 0]);
        let errors = redis.client().call("INFO errorstats");
        assert!(!errors.contains("errorstat_"), "{errors}");
        assert_eq!(info(&mut redis.client(), "stats", "total_error_replies"), "0");
    }
    let mut heir = replica.client();
    heir.expect("REPLICAOF NO ONE", "+OK");
    assert_eq!((add(&mut heir, "s", "1"), add(&mut heir, "s", "2")), (first, second));
    assert_eq!(heir.call("XADD s IDMPAUTO q * f v"), third);
    heir.expect("XLEN s", ":3");
}
