//! Transactions in which a command acts on its connection or on the server (SUBSCRIBE, CONFIG SET, CLIENT …).
//! Short ones run under locks; those with a script run over an overlay, on their loop or on a thread. All
//! answer alike. Acts without locks happen with the commit, once or not at all.

use crate::held::{Hold, PURE, eval, eventually, held_while, laden, others_are_served};
use crate::support::{Client, PATIENCE, Server, encode_line, foreign};

const ENDLESS: &str = "while true do end";

/// Queues commands, but not EXEC.
#[track_caller]
fn queue(client: &mut Client, lines: &[&str]) {
    client.expect("MULTI", "+OK");
    lines.iter().for_each(|line| client.expect(line, "+QUEUED"));
}

/// The ways a transaction runs.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Locked,
    Inline,
    Thread,
}

/// Runs commands in every way, on a new connection each. Returns the replies, without a script's answer, and
/// the connection.
#[track_caller]
fn in_every_way(
    server: &Server,
    resp3: bool,
    lines: &[&str],
    mut check: impl FnMut(Way, String, &mut Client),
) {
    for way in [Way::Locked, Way::Inline, Way::Thread] {
        let mut client = if resp3 { server.client3() } else { server.client() };
        client.expect("SET some 1", "+OK");
        client.expect("MULTI", "+OK");
        match way {
            Way::Locked => {}
            Way::Inline => client.expect("EVAL \"return 3000000\" 0", "+QUEUED"),
            Way::Thread => client.expect(&eval(PURE), "+QUEUED"),
        }
        lines.iter().for_each(|line| client.expect(line, "+QUEUED"));
        let replies = client.call("EXEC");
        check(way, replies.replacen("[:3000000, ", "[", 1), &mut client);
    }
}

#[test]
fn every_way_answers_alike_and_leaves_the_same_behind() {
    let server = Server::start();
    let lines = [
        "CONFIG SET slowlog-max-len 77",
        "INCR some",
        "CONFIG GET slowlog-max-len",
        "CLIENT SETNAME me",
        "CLIENT GETNAME",
        "SUBSCRIBE news",
        "PUBSUB NUMSUB news",
        "GET some",
        "PUBLISH other x",
        "CONFIG SET nosuch 1",
        "LPUSH some x",
        "PING",
        "ECHO hello",
        "CONFIG SET slowlog-max-len 128",
        "SELECT 3",
        "INCR far",
        "DEL far",
    ];
    in_every_way(&server, false, &lines, |way, replies, client| {
        let before = "[+OK, :2, [\"slowlog-max-len\", \"77\"], +OK, \"me\", [\"subscribe\", \"news\", :1], \
                      [\"news\", :1], \"2\", :0, -ERR Unknown option";
        assert!(replies.starts_with(before), "{way:?}: {replies}");
        let end = "[\"pong\", \"\"], \"hello\", +OK, +OK, :1, :1]";
        assert!(replies.ends_with(end), "{way:?}: {replies}");
        client.expect("UNSUBSCRIBE", "[\"unsubscribe\", \"news\", :0]");
        let info = client.call("CLIENT INFO");
        assert!(info.contains(" db=3 ") && info.contains(" name=me "), "{way:?}: {info}");
        client.expect("CONFIG GET slowlog-max-len", "[\"slowlog-max-len\", \"128\"]");
    });
}

#[test]
fn a_transaction_publishes_to_its_own_client_after_its_reply() {
    if foreign() {
        return;
    }
    let server = Server::start();
    for resp3 in [false, true] {
        let lines = ["SUBSCRIBE news", "PUBLISH news first", "PUBLISH news second", "INCR some"];
        in_every_way(&server, resp3, &lines, |way, replies, client| {
            let subscribed =
                if resp3 { ">[\"subscribe\", \"news\", :1]" } else { "[\"subscribe\", \"news\", :1]" };
            assert_eq!(replies, format!("[{subscribed}, :1, :1, :2]"), "{way:?}");
            for message in ["first", "second"] {
                let pushed = client.reply();
                assert!(
                    pushed.ends_with(&format!("[\"message\", \"news\", \"{message}\"]")),
                    "{way:?}: {pushed}"
                );
            }
            client.call("UNSUBSCRIBE news");
        });
    }
}

#[test]
fn a_transaction_may_change_the_protocol() {
    let server = Server::start();
    server.client().expect("HSET hash f v", ":1");
    let lines = ["HGETALL hash", "HELLO 3", "HGETALL hash", "HELLO 9", "CLIENT INFO", "HGETALL hash"];
    in_every_way(&server, false, &lines, |way, replies, client| {
        assert!(replies.starts_with("[[\"f\", \"v\"], {"), "{way:?}: {replies}");
        assert_eq!(replies.matches("{\"f\": \"v\"}").count(), 2, "{way:?}: {replies}");
        assert!(replies.contains("-NOPROTO unsupported protocol version"), "{replies}");
        client.expect("HGETALL hash", "{\"f\": \"v\"}");
    });
}

#[test]
fn a_transaction_may_close_its_connection() {
    if foreign() {
        return;
    }
    let server = Server::start();
    for way in [eval(PURE), "EVAL \"return 1\" 0".into(), "PING".into()] {
        let mut client = server.client();
        let id = client.call("CLIENT ID").replace(':', "");
        queue(&mut client, &[&way, &format!("CLIENT KILL ID {id} SKIPME no"), "INCR after"]);
        let replies = client.call("EXEC");
        assert!(replies.ends_with(", :1, :1]"), "{replies}");
        assert!(client.is_closed_within(PATIENCE));
        server.client().expect("DEL after", ":1");
    }
}

#[test]
fn a_transaction_on_a_thread_acts_only_with_its_commit() {
    let Some(server) = laden() else { return };
    let lines =
        ["SUBSCRIBE news", "CONFIG SET slowlog-max-len 77", "CLIENT SETNAME me", "INCR n", &eval(PURE)];
    for point in ["script-start", "script-step", "script-end"] {
        let (mut client, mut other) = (server.client(), server.client());
        queue(&mut client, &lines);
        let mut hold = Hold::first_at(&server, point);
        client.send("EXEC\r\n");
        hold.await_victim();
        others_are_served(&server);
        other.expect("PUBSUB NUMSUB news", "[\"news\", :0]");
        other.expect("CONFIG GET slowlog-max-len", "[\"slowlog-max-len\", \"128\"]");
        assert!(!other.call("CLIENT LIST").contains("name=me"));
        hold.release();
        client.expect_reply("[[\"subscribe\", \"news\", :1], +OK, +OK, :1, :3000000]");
        other.expect("PUBSUB NUMSUB news", "[\"news\", :1]");
        other.expect("CONFIG GET slowlog-max-len", "[\"slowlog-max-len\", \"77\"]");
        assert!(other.call("CLIENT LIST").contains("name=me"));
        other.expect("CONFIG SET slowlog-max-len 128", "+OK");
        other.expect("DEL n", ":1");
        drop(client);
        eventually(&mut other, "PUBSUB NUMSUB news", "[\"news\", :0]");
    }
}

/// Changes of scripts and functions behind the last script are no reason to run it under locks.
#[test]
fn a_transaction_that_forgets_its_scripts_behind_them_holds_nobody_up() {
    let Some(server) = laden() else { return };
    let code = "#!lua name=lib\\nredis.register_function('f', function() return 7 end)";
    let load = format!("FUNCTION LOAD REPLACE \"{code}\"");
    let sha = server.client().call("SCRIPT LOAD \"return 5\"");
    for point in ["script-start", "script-step", "script-end"] {
        let (mut client, mut other) = (server.client(), server.client());
        other.expect("SCRIPT LOAD \"return 5\"", &sha);
        other.expect("FUNCTION FLUSH", "+OK");
        let known = format!("EVALSHA {sha} 0").replace('"', "");
        queue(&mut client, &[&known, &eval(PURE), "SCRIPT FLUSH", &load, "SET done 1"]);
        let reply = held_while(&server, point, client, &encode_line("EXEC"), || {
            others_are_served(&server);
            other.expect("FUNCTION LIST", "[]");
            other.expect(&known, ":5");
            other.expect("EXISTS done", ":0");
        });
        assert_eq!(reply, "[:5, :3000000, +OK, \"lib\", +OK]");
        assert!(other.call(&known).starts_with("-NOSCRIPT"));
        other.expect("FCALL f 0", ":7");
        other.expect("DEL done", ":1");
    }
}

/// Scripts see the changes of scripts and functions by earlier commands. Other clients do not see them, and
/// do not wait.
#[test]
fn a_transaction_whose_scripts_depend_on_its_changes_holds_nobody_up() {
    let Some(server) = laden() else { return };
    let load = |name: &str, n: u32| {
        let code =
            format!("#!lua name={name}\\nredis.register_function('{name}', function() return {n} end)");
        format!("FUNCTION LOAD REPLACE \"{code}\"")
    };
    let show = |client: &mut Client, script: &str| {
        let sha = client.call(&format!("SCRIPT LOAD \"{script}\"")).replace('"', "");
        (format!("EVALSHA {sha} 0"), format!("SCRIPT EXISTS {sha}"))
    };
    for point in ["script-start", "script-step", "script-end"] {
        let (mut client, mut other) = (server.client(), server.client());
        let (known, known_exists) = show(&mut other, "return 5");
        let (fresh, fresh_exists) = show(&mut other, "return 6");
        other.expect("SCRIPT FLUSH", "+OK");
        other.expect("FUNCTION FLUSH", "+OK");
        other.expect(&load("old", 7), "\"old\"");
        show(&mut other, "return 5");
        let lines = [
            &*known,
            &load("new", 8),
            "FCALL new 0",
            "SCRIPT FLUSH",
            &known,
            &known_exists,
            "SCRIPT LOAD \"return 6\"",
            &fresh,
            &eval(PURE),
            "FUNCTION DELETE old",
            "FUNCTION DELETE old",
            "FCALL old 0",
            "SET done 1",
        ];
        queue(&mut client, &lines);
        let reply = held_while(&server, point, client, &encode_line("EXEC"), || {
            others_are_served(&server);
            other.expect(&known, ":5");
            other.expect(&fresh_exists, "[:0]");
            other.expect("FCALL old 0", ":7");
            other.expect("FCALL new 0", "-ERR Function not found");
            other.expect("EXISTS done", ":0");
        });
        let sha = fresh.split(' ').nth(1).unwrap();
        let before = "[:5, \"new\", :8, +OK, -NOSCRIPT No matching script. Please use EVAL., [:0], ";
        let behind = ":6, :3000000, +OK, -ERR Library not found, -ERR Function not found, +OK]";
        assert_eq!(reply, format!("{before}\"{sha}\", {behind}"));
        other.expect(&known_exists, "[:0]");
        other.expect(&fresh, ":6");
        other.expect("FCALL new 0", ":8");
        other.expect("FCALL old 0", "-ERR Function not found");
        other.expect("DEL done", ":1");
    }
}

#[test]
fn a_transaction_that_would_change_functions_is_killed_without_having_changed_them() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    let code = "#!lua name=lib\\nredis.register_function('f', function() return 7 end)";
    other.expect(&format!("FUNCTION LOAD \"{code}\""), "\"lib\"");
    queue(&mut client, &["FUNCTION FLUSH", "INCR n", "EVAL \"while true do end\" 0"]);
    let mut hold = Hold::first_at(&server, "script-step");
    client.send("EXEC\r\n");
    hold.await_victim();
    others_are_served(&server);
    other.expect("SCRIPT KILL", "+OK");
    hold.release();
    assert!(client.reply().starts_with("-EXECABORT"));
    other.expect("FCALL f 0", ":7");
    other.expect("EXISTS n", ":0");
}

/// Libraries that others changed meanwhile make the transaction lose the race.
#[test]
fn a_transaction_sees_the_functions_of_one_moment() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    let load = |name: &str, n: u32| {
        let code =
            format!("#!lua name={name}\\nredis.register_function('{name}', function() return {n} end)");
        format!("FUNCTION LOAD \"{code}\"")
    };
    queue(&mut client, &[&load("a", 1), "FCALL a 0", "FCALL b 0", "INCR n"]);
    let reply = held_while(&server, "script-end", client, &encode_line("EXEC"), || {
        other.expect(&load("b", 2), "\"b\"");
    });
    assert_eq!(reply, "[\"a\", :1, :2, :1]");
}

#[test]
fn a_long_transaction_without_scripts_that_acts_holds_nobody_up() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    client.expect("MULTI", "+OK");
    for i in 0..500 {
        client.expect(&format!("INCR many{i}"), "+QUEUED");
        client.expect(&format!("SUBSCRIBE channel{i}"), "+QUEUED");
    }
    client.expect("SMEMBERS big", "+QUEUED");
    client.expect("CONFIG GET slowlog-max-len", "+QUEUED");
    let others = || others_are_served(&server);
    let replies = held_while(&server, "script-step", client, &encode_line("EXEC"), others);
    for i in 0..500 {
        assert!(replies.contains(&format!(":1, [\"subscribe\", \"channel{i}\", :{}], ", i + 1)), "{i}");
    }
    assert!(replies.ends_with("], [\"slowlog-max-len\", \"128\"]]"));
    assert_eq!(replies.matches("\"m1").count(), 11_111);
}

#[test]
fn a_transaction_that_lost_a_race_acts_once() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    other.expect("SET n 1", "+OK");
    client.expect("MULTI", "+OK");
    client.request(&[
        b"FUNCTION",
        b"LOAD",
        b"#!lua name=lib\nredis.register_function('f', function() return 7 end)",
    ]);
    client.expect_reply("+QUEUED");
    for _ in 0..400 {
        client.expect("INCR n", "+QUEUED");
    }
    let replies = held_while(&server, "script-end", client, &encode_line("EXEC"), || {
        other.expect("SET n 1000", "+OK");
    });
    // A second run would find it there already.
    assert!(replies.starts_with("[\"lib\", :1001, "), "{replies}");
    assert!(replies.ends_with(", :1400]"), "{replies}");
    other.expect("FCALL f 0", ":7");
}

#[test]
fn a_transaction_whose_watched_keys_were_touched_has_not_acted() {
    let Some(server) = laden() else { return };
    let mut other = server.client();
    for point in ["script-start", "script-end"] {
        let mut client = server.client();
        client.expect("WATCH seen", "+OK");
        queue(&mut client, &[&eval(PURE), "SUBSCRIBE news", "CONFIG SET slowlog-max-len 77", "INCR n"]);
        let mut hold = Hold::first_at(&server, point);
        client.send("EXEC\r\n");
        hold.await_victim();
        other.expect("SET seen 1", "+OK");
        hold.release();
        client.expect_reply("(nil array)");
        // A subscriber may not ask that.
        client.expect("EXISTS n", ":0");
        other.expect("CONFIG GET slowlog-max-len", "[\"slowlog-max-len\", \"128\"]");
        other.expect("PUBSUB NUMSUB news", "[\"news\", :0]");
    }
}

#[test]
fn a_transaction_that_acts_can_be_killed_and_has_not_acted() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    queue(&mut client, &["CONFIG SET slowlog-max-len 77", "SUBSCRIBE news", "INCR n", &eval(ENDLESS)]);
    let mut hold = Hold::first_at(&server, "script-step");
    client.send("EXEC\r\n");
    hold.await_victim();
    others_are_served(&server);
    other.expect("SCRIPT KILL", "+OK");
    hold.release();
    assert!(client.reply().starts_with("-EXECABORT"));
    client.expect("EXISTS n", ":0");
    other.expect("CONFIG GET slowlog-max-len", "[\"slowlog-max-len\", \"128\"]");
}

#[test]
fn a_transaction_does_not_kill_itself() {
    let server = Server::start();
    let mut client = server.client();
    for script in ["EVAL \"return 3000000\" 0".to_string(), eval(PURE)] {
        queue(&mut client, &[&script, "SCRIPT KILL", "FUNCTION KILL"]);
        let none = "-NOTBUSY No scripts in execution right now.";
        client.expect("EXEC", &format!("[:3000000, {none}, {none}]"));
    }
}

#[test]
fn what_a_client_that_went_asked_for_is_done_and_nothing_of_it_stays() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    let lines = [
        &*eval(PURE),
        "CONFIG SET slowlog-max-len 77",
        "SUBSCRIBE news",
        "PUBSUB CHANNELS",
        "INCR n",
        "CONFIG SET slowlog-log-slower-than 4321",
    ];
    queue(&mut client, &lines);
    let mut hold = Hold::first_at(&server, "script-end");
    client.send("EXEC\r\n");
    hold.await_victim();
    drop(client);
    hold.release();
    eventually(&mut other, "CONFIG GET slowlog-log-slower-than", "[\"slowlog-log-slower-than\", \"4321\"]");
    other.expect("CONFIG GET slowlog-max-len", "[\"slowlog-max-len\", \"77\"]");
    other.expect("GET n", "\"1\"");
    eventually(&mut other, "PUBSUB NUMSUB news", "[\"news\", :0]");
}

/// An act may take long: messages published meanwhile come after the reply that confirms the subscription.
#[test]
fn messages_do_not_come_before_the_reply_that_announces_them() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    queue(&mut client, &["SUBSCRIBE news", "INCR n"]);
    client.request(&[b"FUNCTION", b"LOAD", b"#!lua name=lib\nwhile true do end"]);
    client.expect_reply("+QUEUED");
    client.send("EXEC\r\n");
    eventually(&mut other, "PUBLISH news here", ":1");
    let replies = client.reply();
    assert!(replies.starts_with("[[\"subscribe\", \"news\", :1], :1, -ERR"), "{replies}");
    client.expect_reply("[\"message\", \"news\", \"here\"]");
}

/// An answer that takes long by itself is collected in slices, and not under locks.
#[test]
fn long_answers_in_a_transaction_are_collected_elsewhere() {
    let server = Server::start();
    let mut client = server.client();
    let lines =
        ["INCR n", "COMMAND", "CONFIG GET *", "CLIENT LIST", "COMMAND COUNT", "INFO", "PUBSUB CHANNELS"];
    queue(&mut client, &lines);
    let replies = client.call("EXEC");
    assert!(replies.starts_with("[:1, [[\""), "{}", &replies[..100]);
    assert!(replies.contains("\"slowlog-max-len\", \"128\"") && replies.contains("laddr="));
    assert!(replies.contains("redis_version:") && replies.ends_with("]"));
    client.expect("GET n", "\"1\"");
}
