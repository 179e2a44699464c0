//! CLIENT TRACKING, as clients see it. The messages were compared with Redis 7.0 and 8.

use crate::support::{Client, Server, foreign};
use crate::waits::until;

/// A client that tracks in RESP3.
fn tracker(server: &Server, options: &str) -> Client {
    let mut client = server.client3();
    client.expect(&format!("CLIENT TRACKING ON {options}"), "+OK");
    client
}

/// The bytes of a message in RESP3.
fn message(key: &str) -> String {
    format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n", key.len())
}

#[track_caller]
fn hears(client: &mut Client, bytes: &str) {
    let got = client.raw(bytes.len());
    assert_eq!(String::from_utf8_lossy(&got), bytes);
}

#[test]
fn a_reader_is_told_of_a_write_and_no_more() {
    let server = Server::start();
    let (mut reader, mut writer) = (tracker(&server, ""), server.client());
    writer.expect("MSET k 1 l 1", "+OK");
    reader.expect("GET k", "\"1\"");
    writer.expect("MSET l 2 k 2", "+OK");
    hears(&mut reader, &message("k"));
    writer.expect("SET k 3", "+OK");
    reader.expect("PING", "+PONG");
    // A name counts in all databases.
    reader.expect("GET k", "\"3\"");
    writer.expect("SELECT 3", "+OK");
    writer.expect("SET k x", "+OK");
    hears(&mut reader, &message("k"));
    reader.expect("GET nothing", "(null)");
    writer.expect("SET nothing x", "+OK");
    hears(&mut reader, &message("nothing"));
}

#[test]
fn the_message_of_an_own_write_stands_behind_its_reply() {
    let server = Server::start();
    let mut client = tracker(&server, "");
    client.expect("SET k 1", "+OK");
    client.expect("GET k", "\"1\"");
    client.send("SET k 2\r\nGET k\r\n");
    hears(&mut client, &format!("+OK\r\n{}$1\r\n2\r\n", message("k")));
    client.send("MULTI\r\nGET k\r\nSET k 3\r\nGET k\r\nEXEC\r\n");
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n$1\r\n2\r\n+OK\r\n$1\r\n3\r\n";
    hears(&mut client, &format!("{queued}{}", message("k")));
}

/// The write of a blocked command is its client's own, though another client's write wakes it.
#[test]
fn the_message_of_a_blocked_clients_own_write_stands_behind_its_reply() {
    let server = Server::start();
    let (mut pusher, mut control) = (tracker(&server, "NOLOOP"), server.client());
    for (options, told) in [("", message("to")), ("NOLOOP", String::new())] {
        let mut client = tracker(&server, options);
        client.expect("LRANGE to 0 -1", "[]");
        pusher.expect("LLEN to", ":0");
        client.send("BLMOVE from to LEFT RIGHT 0\r\n");
        until("it is blocked", || control.call("INFO clients").contains("\\nblocked_clients:1\\r"));
        pusher.send("RPUSH from v\r\n");
        hears(&mut client, &format!("$1\r\nv\r\n{told}"));
        // The pusher did not write that key itself.
        hears(&mut pusher, ":1\r\n");
        hears(&mut pusher, &message("to"));
        client.send("PING\r\n");
        hears(&mut client, "+PONG\r\n");
        control.expect("DEL to", ":1");
    }
    // Another client's write is told before the reply.
    let mut client = tracker(&server, "");
    client.expect("LLEN from", ":0");
    client.expect("LLEN to", ":0");
    client.send("BRPOPLPUSH from to 0\r\n");
    until("it is blocked", || control.call("INFO clients").contains("\\nblocked_clients:1\\r"));
    control.expect("RPUSH from v", ":1");
    hears(&mut client, &format!("{}$1\r\nv\r\n{}", message("from"), message("to")));
}

/// An eviction for a command is told before its reply.
#[test]
fn the_message_of_an_eviction_stands_before_the_reply_that_caused_it() {
    let server = Server::start();
    let mut control = server.client();
    control.expect("CONFIG SET maxmemory-policy allkeys-lru", "+OK");
    control.expect("SET k v", "+OK");
    let mut client = tracker(&server, "");
    client.expect("GET k", "\"v\"");
    client.send("CONFIG SET maxmemory 1000\r\nSET l v\r\nGET k\r\n");
    hears(&mut client, "+OK\r\n");
    hears(&mut client, &message("k"));
    let reply = client.reply();
    assert!(reply == "+OK" || reply.starts_with("-OOM"), "{reply}");
    client.expect_reply("(null)");
    control.expect("CONFIG SET maxmemory 0", "+OK");
}

#[test]
fn noloop_optin_and_prefixes_choose() {
    let server = Server::start();
    let mut writer = server.client();
    writer.expect("MSET a 1 b 1", "+OK");
    let mut quiet = tracker(&server, "NOLOOP");
    quiet.expect("GET a", "\"1\"");
    quiet.expect("SET a 2", "+OK");
    quiet.expect("GET b", "\"1\"");
    writer.expect("MSET a 3 b 3", "+OK");
    hears(&mut quiet, &message("b"));
    let mut asked = tracker(&server, "OPTIN");
    asked.expect("GET a", "\"3\"");
    asked.expect("CLIENT CACHING YES", "+OK");
    asked.expect("GET b", "\"3\"");
    writer.expect("MSET a 4 b 4", "+OK");
    hears(&mut asked, &message("b"));
    let mut all = tracker(&server, "BCAST PREFIX p:");
    writer.expect("MSET p:1 1 q:1 1", "+OK");
    hears(&mut all, &message("p:1"));
    all.expect(
        "CLIENT TRACKING ON BCAST PREFIX p:1",
        "-ERR Prefix 'p:1' overlaps with an existing prefix 'p:'. Prefixes for a single client must not overlap.",
    );
}

#[test]
fn a_flush_tells_all_and_so_does_an_exchange() {
    let server = Server::start();
    let (mut one, mut two, mut writer) = (tracker(&server, ""), tracker(&server, "BCAST"), server.client());
    writer.expect("FLUSHALL", "+OK");
    for client in [&mut one, &mut two] {
        hears(client, ">2\r\n$10\r\ninvalidate\r\n_\r\n");
    }
    if !foreign() {
        writer.expect("SWAPDB 0 1", "+OK");
        hears(&mut one, ">2\r\n$10\r\ninvalidate\r\n_\r\n");
    }
}

#[test]
fn a_script_registers_what_it_reads() {
    let server = Server::start();
    let (mut reader, mut writer) = (tracker(&server, ""), server.client());
    writer.expect("SET k 1", "+OK");
    reader.expect("EVAL \"return redis.call('get', KEYS[1])\" 1 k", "\"1\"");
    writer.expect("SET k 2", "+OK");
    hears(&mut reader, &message("k"));
}

#[test]
fn another_client_gets_the_messages() {
    let server = Server::start();
    let (mut source, mut target, mut writer) = (server.client3(), server.client(), server.client());
    let id = target.call("CLIENT ID").trim_start_matches(':').to_string();
    target.expect("SUBSCRIBE __redis__:invalidate", "[\"subscribe\", \"__redis__:invalidate\", :1]");
    source.expect(&format!("CLIENT TRACKING ON REDIRECT {id}"), "+OK");
    source.expect("CLIENT GETREDIR", &format!(":{id}"));
    source.expect("GET k", "(null)");
    writer.expect("SET k 1", "+OK");
    hears(&mut target, "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\nk\r\n");
    assert!(source.call("CLIENT INFO").contains(&format!(" redir={id} ")));
    source.expect("GET k", "\"1\"");
    source.expect("GET j", "(null)");
    drop(target);
    while writer.call("CLIENT LIST").contains(&format!("id={id} ")) {}
    // Each message that cannot be sent is told of, those of keys read later, too.
    let broken = format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{id}\r\n");
    writer.expect("SET k 2", "+OK");
    hears(&mut source, &broken);
    writer.expect("SET j 1", "+OK");
    hears(&mut source, &broken);
    source.expect("GET k", "\"2\"");
    writer.expect("SET k 3", "+OK");
    hears(&mut source, &broken);
}

/// As in Redis: prefixes are not held against a user's keys, and what was read is told although it may not be
/// read now.
#[test]
fn users_hear_of_what_they_read_and_of_prefixes() {
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("ACL SETUSER u on >p ~a* +@all", "+OK");
    let user = || {
        let mut client = server.client3();
        client.expect("AUTH u p", "+OK");
        client
    };
    let (mut reads, mut listens) = (user(), user());
    reads.expect("CLIENT TRACKING ON", "+OK");
    reads.expect("GET a", "(null)");
    reads.expect("GET b", "-NOPERM No permissions to access a key");
    listens.expect("CLIENT TRACKING ON BCAST PREFIX b", "+OK");
    admin.expect("SET b 1", "+OK");
    hears(&mut listens, &message("b"));
    // A refused read is not followed.
    reads.expect("PING", "+PONG");
    admin.expect("ACL SETUSER u resetkeys ~c*", "+OK");
    admin.expect("SET a 1", "+OK");
    hears(&mut reads, &message("a"));
    admin.expect("SET b 2", "+OK");
    hears(&mut listens, &message("b"));
}

/// Each write looks for the prefixes of its key, so that a client has few of them, and short ones.
#[test]
fn prefixes_are_few_and_short() {
    let server = Server::start();
    let mut client = server.client();
    let words = |range: std::ops::Range<u32>| {
        range.fold("CLIENT TRACKING ON BCAST".to_owned(), |line, i| format!("{line} PREFIX {i}:"))
    };
    client.expect(&words(0..1001), "-ERR a client may have at most 1000 prefixes");
    client.expect(&words(0..1000), "+OK");
    client.expect(&words(1000..1001), "-ERR a client may have at most 1000 prefixes");
    let mut other = server.client();
    let long = "x".repeat(257);
    other.expect(
        &format!("CLIENT TRACKING ON BCAST PREFIX {long}"),
        "-ERR a prefix may have at most 256 bytes",
    );
    other.expect(&format!("CLIENT TRACKING ON BCAST PREFIX {}", &long[1..]), "+OK");
}
