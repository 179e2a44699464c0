//! CLIENT REPLY, PAUSE, UNBLOCK, NO-TOUCH and NO-EVICT: their effect on the commands of clients.
//!
//! All of it is asked of a real server as well (`EVENKEEL_TEST_SERVER`): what only Valkey 9 or only this server
//! does says so.

use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use std::time::{Duration, Instant};

/// Long enough for a reply to come if it were sent.
const A_WHILE: Duration = Duration::from_millis(100);

const EVAL_SET: &str = "EVAL \"return redis.call('SET', KEYS[1], 'v')\" 1 k";

fn id(client: &mut Client) -> String {
    client.call("CLIENT ID").trim_start_matches(':').to_owned()
}

/// Waits until this many clients are blocked.
#[track_caller]
fn await_blocked(control: &mut Client, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while !control.call("INFO clients").contains(&format!("\\nblocked_clients:{count}\\r")) {
        assert!(Instant::now() < deadline, "not {count} clients are blocked");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends all lines at once. Exactly these replies come.
#[track_caller]
fn pipeline(client: &mut Client, lines: &[&str], replies: &[&str]) {
    let all: Vec<u8> = lines.iter().chain(&["ECHO end"]).flat_map(|line| encode_line(line)).collect();
    client.send(all);
    for reply in replies.iter().chain(&["\"end\""]) {
        let came = client.reply();
        assert_eq!(&came, reply, "{lines:?}");
    }
}

// ----- REPLY -------------------------------------------------------------------------------------------------

#[test]
fn replies_are_left_out_of_pipelines() {
    let server = Server::start();
    for mut client in [server.client(), server.client3()] {
        client.expect("SET k v", "+OK");
        for (lines, replies) in [
            (&["CLIENT REPLY OFF", "SET k w", "NOSUCH", "CLIENT REPLY ON"][..], &["+OK"][..]),
            (&["CLIENT REPLY SKIP", "SET k v", "GET k"], &["\"v\""]),
            (&["CLIENT REPLY SKIP", "NOSUCH", "GET k"], &["\"v\""]),
            (&["CLIENT REPLY SKIP", "CLIENT REPLY SKIP", "ECHO 1", "ECHO 2"], &["\"2\""]),
            (&["CLIENT REPLY SKIP", "CLIENT REPLY ON", "ECHO 2"], &["+OK", "\"2\""]),
            (&["CLIENT REPLY SKIP", "CLIENT REPLY OFF", "ECHO 2", "CLIENT REPLY ON"], &["+OK"]),
            (&["CLIENT REPLY OFF", "CLIENT REPLY SKIP", "ECHO 1", "ECHO 2", "CLIENT REPLY ON"], &["+OK"]),
            (&["CLIENT REPLY x", "ECHO 1"], &["-ERR syntax error", "\"1\""]),
            (&["CLIENT REPLY OFF", "CLIENT REPLY x", "CLIENT REPLY ON"], &["+OK"]),
            (&["CLIENT REPLY SKIP", "MULTI", "ECHO 1", "EXEC"], &["+QUEUED", "[\"1\"]"]),
            (&["MULTI", "ECHO 1", "DISCARD", "CLIENT REPLY SKIP", "EXEC"], &["+OK", "+QUEUED", "+OK"]),
            (
                &["CLIENT REPLY OFF", "MULTI", "SET m 1", "EXEC", "CLIENT REPLY ON", "GET m"],
                &["+OK", "\"1\""],
            ),
            (&["CLIENT REPLY SKIP", "EVAL \"return 1\" 0", "ECHO 1"], &["\"1\""]),
            (&["CLIENT REPLY SKIP", "BLPOP none 0.01", "ECHO 1"], &["\"1\""]),
            (&["CLIENT REPLY OFF", "BLPOP none 0.01", "CLIENT REPLY ON"], &["+OK"]),
            (&["CLIENT REPLY SKIP", "RESET", "PING"], &["+PONG"]),
            (&["CLIENT REPLY OFF", "RESET", "PING"], &["+RESET", "+PONG"]),
        ] {
            pipeline(&mut client, lines, replies);
        }
    }
}

/// Redis lets it be queued, and then sends the reply of EXEC in parts. Valkey 9 refuses it.
#[test]
fn replies_cannot_be_turned_off_within_a_transaction() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("MULTI", "+OK");
    let refused = client.call("CLIENT REPLY OFF");
    assert!(
        refused.starts_with("-ERR Command") && refused.contains("not allowed inside a transaction"),
        "{refused}"
    );
    client.expect("ECHO 1", "+QUEUED");
    client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    client.expect("PING", "+PONG");
}

#[test]
fn subscriptions_and_messages_are_told_even_so() {
    let server = Server::start();
    let mut publisher = server.client();
    let mut client = server.client3();
    client.send("CLIENT REPLY OFF\r\nSUBSCRIBE c\r\nPING\r\n");
    client.expect_reply(r#">["subscribe", "c", :1]"#);
    publisher.expect("PUBLISH c hello", ":1");
    client.expect_reply(r#">["message", "c", "hello"]"#);
    client.expect("CLIENT REPLY ON", "+OK");
    client.send("CLIENT REPLY SKIP\r\nSUBSCRIBE d e\r\nPING\r\n");
    client.expect_reply(r#">["subscribe", "d", :2]"#);
    client.expect_reply(r#">["subscribe", "e", :3]"#);
    client.expect_reply("+PONG");
    let mut client = server.client();
    client.send("CLIENT REPLY OFF\r\nSUBSCRIBE c\r\n");
    client.expect_reply(r#"["subscribe", "c", :1]"#);
    publisher.expect("PUBLISH c again", ":2");
    client.expect_reply(r#"["message", "c", "again"]"#);
}

#[test]
fn invalidations_are_told_even_so() {
    let server = Server::start();
    let (mut client, mut other) = (server.client3(), server.client());
    client.expect("CLIENT TRACKING ON", "+OK");
    client.expect("GET k", "(null)");
    client.send("CLIENT REPLY OFF\r\n");
    // A reply that is left out was read all the same.
    client.send("GET l\r\nECHO x\r\nCLIENT REPLY ON\r\n");
    client.expect_reply("+OK");
    other.expect("SET l v", "+OK");
    client.expect_reply(r#">["invalidate", ["l"]]"#);
    client.send("CLIENT REPLY SKIP\r\nSET k v\r\n");
    client.expect_reply(r#">["invalidate", ["k"]]"#);
    client.expect("PING", "+PONG");
}

#[test]
fn one_who_waits_without_a_reply_takes_what_comes() {
    let server = Server::start();
    let mut control = server.client();
    for (how, end) in [("SKIP", "PING"), ("OFF", "CLIENT REPLY ON")] {
        let reply = if end == "PING" { "+PONG" } else { "+OK" };
        let mut waiter = server.client();
        waiter.send(format!("CLIENT REPLY {how}\r\nBLPOP list 0\r\n"));
        await_blocked(&mut control, 1);
        control.expect("RPUSH list x", ":1");
        waiter.expect(end, reply);
        control.expect("LLEN list", ":0");
        let mut waiter = server.client();
        let name = id(&mut waiter);
        waiter.send(format!("CLIENT REPLY {how}\r\nBLPOP list 0\r\n"));
        await_blocked(&mut control, 1);
        control.expect(&format!("CLIENT UNBLOCK {name} ERROR"), ":1");
        waiter.expect(end, reply);
    }
}

// ----- PAUSE -------------------------------------------------------------------------------------------------

/// Begins a pause that holds everything. A real server holds its end too, so there it ends by itself.
fn pause_all(admin: &mut Client) {
    admin.expect(&format!("CLIENT PAUSE {} ALL", if foreign() { 1500 } else { 100_000 }), "+OK");
}

fn unpause(admin: &mut Client) {
    admin.expect("CLIENT UNPAUSE", "+OK");
}

#[test]
fn a_pause_of_writes_holds_writes_alone() {
    let server = Server::start();
    let mut admin = server.client();
    for line in ["SET k v", "SET n 1", "RPUSH list a"] {
        admin.call(line);
    }
    for (line, reply) in [
        ("SET k v", "+OK"),
        ("GETEX k", "\"v\""),
        ("EXPIRE none 100", ":0"),
        ("DEL none", ":0"),
        ("LPOP none", "(nil)"),
        ("SORT list ALPHA", "[\"a\"]"),
        ("BITFIELD n GET u8 0", "[:49]"),
        ("SINTERSTORE none a b", ":0"),
        ("PUBLISH c x", ":0"),
        ("SPUBLISH c x", ":0"),
        ("SWAPDB 1 2", "+OK"),
        ("FUNCTION FLUSH", "+OK"),
        ("EVAL \"return 1\" 0", ":1"),
        (EVAL_SET, "+OK"),
        ("BLPOP none 0.01", "(nil array)"),
        ("BLPOP list 0", "[\"list\", \"a\"]"),
        ("XREADGROUP GROUP g c STREAMS none >", "-NOGROUP"),
        ("RESTORE none 0 x", "-ERR DUMP payload version or checksum are wrong"),
    ] {
        let mut client = server.client();
        admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
        client.send(encode_line(line));
        assert_eq!(client.reply_within(A_WHILE), None, "{line}");
        unpause(&mut admin);
        let came = client.reply();
        assert!(came == reply || reply == "-NOGROUP" && came.starts_with(reply), "{line}: {came}");
    }
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    for (line, reply) in [
        ("GET k", "\"v\""),
        ("TOUCH k", ":1"),
        ("BITFIELD_RO n GET u8 0", "[:49]"),
        ("EVAL_RO \"return redis.call('GET', KEYS[1])\" 1 k", "\"v\""),
        (
            "EVALSHA_RO ffffffffffffffffffffffffffffffffffffffff 0",
            "-NOSCRIPT No matching script. Please use EVAL.",
        ),
        ("FCALL_RO none 0", "-ERR Function not found"),
        ("XREAD BLOCK 10 STREAMS none $", "(nil array)"),
        ("WATCH k", "+OK"),
        ("UNWATCH", "+OK"),
        ("SELECT 1", "+OK"),
        ("SCRIPT FLUSH", "+OK"),
        ("WAIT 0 10", ":0"),
        ("SET k", "-ERR wrong number of arguments for 'set' command"),
        ("MULTI", "+OK"),
        ("GET k", "+QUEUED"),
        ("EXEC", "[(nil)]"),
        ("SUBSCRIBE c", "[\"subscribe\", \"c\", :1]"),
    ] {
        admin.expect(line, reply);
    }
}

#[test]
fn a_pause_of_all_holds_all() {
    let server = Server::start();
    let mut admin = server.client();
    for line in
        ["GET k", "PING", "INFO server", "MULTI", "SUBSCRIBE c", "XREAD BLOCK 10 STREAMS none $", "QUIT"]
    {
        let mut client = server.client();
        pause_all(&mut admin);
        client.send(encode_line(line));
        assert_eq!(client.reply_within(A_WHILE), None, "{line}");
        // A wrong command is refused at once.
        let mut other = server.client();
        other.expect("SET k", "-ERR wrong number of arguments for 'set' command");
        unpause(&mut admin);
        let came = client.reply();
        assert!(!came.starts_with('-'), "{line}: {came}");
    }
}

#[test]
fn a_transaction_that_may_change_something_waits_for_the_end_of_a_pause() {
    let server = Server::start();
    let (mut admin, mut other) = (server.client(), server.client());
    for (line, reply) in [("SET k v", "[+OK]"), ("PUBLISH c x", "[:0]"), (EVAL_SET, "[+OK]")] {
        let mut client = server.client();
        client.expect("MULTI", "+OK");
        client.expect(line, "+QUEUED");
        admin.expect("FLUSHALL", "+OK");
        admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
        client.send("EXEC\r\n");
        assert_eq!(client.reply_within(A_WHILE), None, "{line}");
        other.expect("EXISTS k", ":0");
        unpause(&mut admin);
        client.expect_reply(reply);
        let mut client = server.client();
        client.expect("MULTI", "+OK");
        client.expect(line, "+QUEUED");
        admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
        client.expect("DISCARD", "+OK");
        unpause(&mut admin);
    }
}

#[test]
fn commands_behind_a_held_one_wait_in_their_order() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    client.send("GET k\r\nSET k w\r\nGET k\r\n");
    client.expect_reply("(nil)");
    assert_eq!(client.reply_within(A_WHILE), None);
    assert!(admin.call("INFO clients").contains("paused_actions:write") || !server_shows_pauses(&mut admin));
    unpause(&mut admin);
    client.expect_reply("+OK");
    client.expect_reply("\"w\"");
}

/// Redis 7.0 tells of no pause.
fn server_shows_pauses(client: &mut Client) -> bool {
    client.call("INFO clients").contains("paused_actions")
}

#[test]
fn blocked_clients_may_leave_during_a_pause_and_are_served_after_it() {
    let server = Server::start();
    let (mut admin, mut writer) = (server.client(), server.client());
    let mut waiter = server.client();
    // The time-out. The wait may be over before it is seen.
    loop {
        waiter.send("BLPOP list 2\r\n");
        let is_seen = loop {
            if admin.call("INFO clients").contains("\\nblocked_clients:1\\r") {
                break true;
            }
            if waiter.reply_within(Duration::from_millis(1)).is_some() {
                break false;
            }
        };
        if is_seen {
            break;
        }
    }
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    waiter.expect_reply("(nil array)");
    unpause(&mut admin);
    // UNBLOCK.
    let name = id(&mut waiter);
    waiter.send("BLPOP list 0\r\n");
    await_blocked(&mut admin, 1);
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    admin.expect(&format!("CLIENT UNBLOCK {name}"), ":1");
    waiter.expect_reply("(nil array)");
    unpause(&mut admin);
    // An element.
    waiter.send("BLPOP list 0\r\n");
    await_blocked(&mut admin, 1);
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    writer.send("RPUSH list x\r\n");
    assert_eq!((writer.reply_within(A_WHILE), waiter.reply_within(A_WHILE)), (None, None));
    unpause(&mut admin);
    writer.expect_reply(":1");
    waiter.expect_reply("[\"list\", \"x\"]");
}

#[test]
fn what_a_pause_does_not_understand_begins_none() {
    let server = Server::start();
    let mut client = server.client();
    for (line, error) in [
        ("CLIENT PAUSE x", "-ERR timeout is not an integer or out of range"),
        ("CLIENT PAUSE -1", "-ERR timeout is negative"),
        ("CLIENT PAUSE 9223372036854775807", "-ERR timeout is out of range"),
        ("CLIENT PAUSE 100000 x", "-ERR CLIENT PAUSE mode must be WRITE or ALL"),
        ("CLIENT PAUSE", "-ERR wrong number of arguments for 'client|pause' command"),
        ("CLIENT UNPAUSE x", "-ERR wrong number of arguments for 'client|unpause' command"),
    ] {
        client.expect(line, error);
        client.expect("SET k v", "+OK");
    }
}

// ----- UNBLOCK -----------------------------------------------------------------------------------------------

#[test]
fn every_wait_can_be_ended_as_by_its_time_or_with_an_error() {
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("XGROUP CREATE stream g $ MKSTREAM", "+OK");
    for three in [false, true] {
        let mut client = if three { server.client3() } else { server.client() };
        let name = id(&mut client);
        let null = if three { "(null)" } else { "(nil array)" };
        for (line, timed_out) in [
            ("BLPOP list 0", null),
            ("BRPOP list 0", null),
            ("BLMOVE list to LEFT LEFT 0", null),
            ("BRPOPLPUSH list to 0", null),
            ("BLMPOP 0 1 list LEFT", null),
            ("BZPOPMIN zset 0", null),
            ("BZPOPMAX zset 0", null),
            ("BZMPOP 0 1 zset MIN", null),
            ("XREAD BLOCK 0 STREAMS stream $", null),
            ("XREADGROUP GROUP g c BLOCK 0 STREAMS stream >", null),
            ("WAIT 1 0", ":0"),
        ] {
            for how in ["", " TIMEOUT", " ERROR", " error"] {
                client.send(encode_line(line));
                await_blocked(&mut admin, 1);
                admin.expect(&format!("CLIENT UNBLOCK {name}{how}"), ":1");
                let error = "-UNBLOCKED client unblocked via CLIENT UNBLOCK";
                client.expect_reply(if how.eq_ignore_ascii_case(" ERROR") { error } else { timed_out });
                // It is blocked no more, and takes nothing that comes.
                admin.expect(&format!("CLIENT UNBLOCK {name}{how}"), ":0");
            }
        }
        admin.expect("RPUSH list x", ":1");
        admin.expect("LPOP list", "\"x\"");
        client.expect("PING", "+PONG");
    }
}

#[test]
fn one_who_does_not_wait_cannot_be_unblocked() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    let (mine, name) = (id(&mut admin), id(&mut client));
    for (line, reply) in [
        (format!("CLIENT UNBLOCK {name}"), ":0"),
        (format!("CLIENT UNBLOCK {mine} ERROR"), ":0"),
        ("CLIENT UNBLOCK 999999".into(), ":0"),
        ("CLIENT UNBLOCK -1".into(), ":0"),
        ("CLIENT UNBLOCK x".into(), "-ERR value is not an integer or out of range"),
        (format!("CLIENT UNBLOCK {name} x"), "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        ("CLIENT UNBLOCK".into(), "-ERR wrong number of arguments for 'client|unblock' command"),
    ] {
        admin.expect(&line, reply);
    }
    // In a transaction nothing waits.
    client.expect("MULTI", "+OK");
    client.expect("BLPOP list 0", "+QUEUED");
    admin.expect(&format!("CLIENT UNBLOCK {name}"), ":0");
    client.expect("EXEC", "[(nil array)]");
    // A command sent behind a wait is done after it.
    client.send("BLPOP list 0\r\nPING\r\n");
    await_blocked(&mut admin, 1);
    admin.expect(&format!("CLIENT UNBLOCK {name}"), ":1");
    client.expect_reply("(nil array)");
    client.expect_reply("+PONG");
}

/// Redis 7.0 ends with such a client; Valkey 9 says that it is not blocked.
#[test]
fn one_who_waits_for_a_pause_is_not_unblocked() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    let name = id(&mut client);
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    client.send("SET k v\r\n");
    await_blocked(&mut admin, 1);
    admin.expect(&format!("CLIENT UNBLOCK {name}"), ":0");
    unpause(&mut admin);
    client.expect_reply("+OK");
}

// ----- NO-TOUCH, NO-EVICT ------------------------------------------------------------------------------------

#[test]
fn modes_are_shown_and_end_with_a_reset() {
    let server = Server::start();
    let mut client = server.client();
    for (command, letter) in [("NO-TOUCH", 'T'), ("NO-EVICT", 'e')] {
        let shows = |client: &mut Client| {
            let line = client.call("CLIENT INFO");
            let flags =
                line.split(" flags=").nth(1).expect("flags").split(' ').next().expect("flags").to_owned();
            flags.contains(letter)
        };
        client.expect(&format!("CLIENT {command} x"), "-ERR syntax error");
        client.expect(&format!("CLIENT {command} on"), "+OK");
        assert!(shows(&mut client), "{command}");
        client.expect(&format!("CLIENT {command} OFF"), "+OK");
        assert!(!shows(&mut client), "{command}");
        client.expect(&format!("CLIENT {command} ON"), "+OK");
        client.expect("RESET", "+RESET");
        assert!(!shows(&mut client), "{command}");
    }
}

/// A key that was idle stays so, whatever a client that does not touch does with it; TOUCH touches.
#[test]
fn a_key_stays_idle_for_a_client_that_does_not_touch() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    client.expect("CLIENT NO-TOUCH ON", "+OK");
    client.expect("SET k v", "+OK");
    let idle_s = |admin: &mut Client| -> u64 {
        admin.call("OBJECT IDLETIME k").trim_start_matches(':').parse().expect("a number")
    };
    // RESTORE makes it a key that nobody used for an hour.
    let script = "EVAL \"local p = redis.call('DUMP', KEYS[1]) return redis.call('RESTORE', KEYS[1], 0, p, 'REPLACE', 'IDLETIME', 3600)\" 1 k";
    for line in [
        "GET k",
        "MGET k k",
        "STRLEN k",
        "EXISTS k",
        "TYPE k",
        "DUMP k",
        "GETEX k",
        "COPY k l REPLACE",
        "EVAL \"return redis.call('GET', KEYS[1])\" 1 k",
    ] {
        admin.expect(script, "+OK");
        client.call(line);
        assert!(idle_s(&mut admin) > 3000, "{line}");
        client.expect("MULTI", "+OK");
        client.expect(line, "+QUEUED");
        client.call("EXEC");
        assert!(idle_s(&mut admin) > 3000, "{line} in a transaction");
    }
    client.expect("TOUCH k", ":1");
    assert!(idle_s(&mut admin) < 3000);
    admin.expect(script, "+OK");
    client.expect("CLIENT NO-TOUCH OFF", "+OK");
    client.expect("GET k", "\"v\"");
    assert!(idle_s(&mut admin) < 3000);
}

/// Sends commands one by one, and gives the last reply.
fn last_reply(client: &mut Client, lines: &[&str]) -> String {
    lines.iter().map(|line| client.call(line)).last().expect("a command")
}

/// TOUCH is a use of its keys wherever it stands: alone, in a script, in a transaction, among so many words
/// that it is long work. Other reads of such a client are none. Redis 8 and Valkey 9 do the same.
#[test]
fn touch_touches_wherever_it_stands() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    if client.call("CLIENT NO-TOUCH ON") != "+OK" {
        assert!(foreign(), "Redis 7.0 knows it not");
        return;
    }
    admin.expect("SET other v", "+OK");
    let forget = "EVAL \"redis.call('SET', KEYS[1], 'v') local p = redis.call('DUMP', KEYS[1]) \
                  return redis.call('RESTORE', KEYS[1], 0, p, 'REPLACE', 'IDLETIME', 3600)\" 1 k";
    let missing: String = (0..3000).map(|i| format!(" none{i}")).collect();
    let long_touch = format!("TOUCH{missing} k");
    let long_get = format!("MGET{missing} k");
    let touch = "EVAL \"return redis.call('TOUCH', KEYS[1])\" 1 k";
    let get = "EVAL \"return redis.call('GET', KEYS[1])\" 1 k";
    let touch_far = "EVAL \"for i = 1, 2000000 do end return redis.call('TOUCH', KEYS[1])\" 1 k";
    let get_far = "EVAL \"for i = 1, 2000000 do end return redis.call('GET', KEYS[1])\" 1 k";
    // The script knows the key already when it touches it.
    let both = "EVAL \"redis.call('GET', KEYS[1]) return redis.call('TOUCH', KEYS[1])\" 1 k";
    let both_far = "EVAL \"redis.call('GET', KEYS[1]) for i = 1, 2000000 do end \
                    return redis.call('TOUCH', KEYS[1])\" 1 k";
    let another = "EVAL \"redis.call('TOUCH', 'other') return redis.call('GET', KEYS[1])\" 1 k";
    let touch_last: Vec<&str> =
        [&["MULTI"][..], &["GET k"; 250], &["TOUCH k", "TOUCH other", "EXEC"]].concat();
    let touch_first: Vec<&str> = [&["MULTI", "TOUCH k"][..], &["GET k"; 250], &["EXEC"]].concat();
    let gets: Vec<&str> = [&["MULTI", "TOUCH other"][..], &["GET k"; 250], &["EXEC"]].concat();
    for (lines, touches) in [
        (&["TOUCH k"][..], true),
        (&["GET k"], false),
        (&[&long_touch], true),
        (&[&long_get], false),
        (&[touch], true),
        (&[get], false),
        (&[touch_far], true),
        (&[get_far], false),
        (&[both], true),
        (&[both_far], true),
        (&[another], false),
        (&["MULTI", "GET k", "TOUCH k", "EXEC"], true),
        (&["MULTI", "TOUCH other", "GET k", "EXEC"], false),
        (&["MULTI", touch, "EXEC"], true),
        (&["MULTI", get, "EXEC"], false),
        (&["MULTI", touch_far, "EXEC"], true),
        (&["MULTI", &long_touch, "EXEC"], true),
        (&["MULTI", &long_get, "EXEC"], false),
        (&touch_last, true),
        (&touch_first, true),
        (&gets, false),
    ] {
        admin.expect(forget, "+OK");
        let reply = last_reply(&mut client, lines);
        assert!(!reply.starts_with('-'), "{reply}");
        let idle_s: u64 = admin.call("OBJECT IDLETIME k").trim_start_matches(':').parse().expect("a number");
        let last: Vec<&str> = lines.iter().rev().take(3).map(|line| &line[..line.len().min(120)]).collect();
        assert_eq!(idle_s < 3000, touches, "idle for {idle_s} s after {last:?} and {} more", lines.len());
    }
}
