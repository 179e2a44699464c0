//! Transactions with something of unknown length in them: scripts, KEYS, many messages. They run over an
//! overlay, on the loop while they are short. Held on their thread they delay no client, and can be killed.

use crate::held::{Hold, MANY, PURE, await_figure, eval, eventually, held_while, laden, others_are_served};
use crate::support::{Client, Server, encode_line, foreign};

const ENDLESS: &str = "while true do redis.call('INCR', 'counted') end";

/// Queues commands, but not EXEC.
#[track_caller]
fn queue(client: &mut Client, lines: &[&str]) {
    client.expect("MULTI", "+OK");
    lines.iter().for_each(|line| client.expect(line, "+QUEUED"));
}

#[track_caller]
fn listener(server: &Server) -> Client {
    let mut listener = server.client();
    listener.expect("SUBSCRIBE news", "[\"subscribe\", \"news\", :1]");
    listener
}

#[test]
fn a_transaction_with_a_script_answers_alike_on_its_loop_and_on_a_thread() {
    let Some(server) = laden() else { return };
    let (mut listener, mut other) = (listener(&server), server.client());
    let mut before = None;
    for long in [false, true] {
        let mut client = server.client();
        let pure = eval(PURE);
        let first = if long { &*pure } else { "EVAL \"return 3000000\" 0" };
        queue(
            &mut client,
            &[
                "SET some 1",
                first,
                "EVAL \"redis.call('SELECT', 5) return redis.call('INCR', KEYS[1])\" 1 some",
                "EVAL \"return redis.call('INCR', KEYS[1])\" 1 some",
                "PUBLISH news here",
                "EVAL \"return redis.call('PUBLISH', 'news', ARGV[1])\" 0 there",
                "KEYS som*",
                "LPUSH some x",
                "EVAL \"return redis.call('LPUSH', KEYS[1], 'x')\" 1 some",
                "EVAL \"return\" x",
                "EVAL \"no script\" 0",
                "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0",
                "EVAL_RO \"return redis.call('GET', KEYS[1])\" 1 some",
                "SCRIPT LOAD \"return 8\"",
                "EVALSHA c2db959528781f82a78b455e9842f46a02a43b61 0",
                "FCALL nosuch 0",
                "ECHO hello",
                "PING",
                "SELECT 99",
                "SELECT 3",
                "DBSIZE",
                "SET far 1",
                "DBSIZE",
                "GET some",
            ],
        );
        let replies = if long {
            held_while(&server, "script-start", client, &encode_line("EXEC"), || others_are_served(&server))
        } else {
            let replies = client.call("EXEC");
            client.expect("GET far", "\"1\"");
            replies
        };
        assert!(replies.starts_with("[+OK, :3000000, :1, :2, :1, :1, [\"some\"], -WRONGTYPE"), "{replies}");
        let end = "-NOSCRIPT No matching script. Please use EVAL., \"2\", \"c2db959528781f82a78b455e9842f46a02a43b61\", :8, \
                   -ERR Function not found, \"hello\", +PONG, -ERR DB index is out of range, +OK, :0, +OK, :1, (nil)]";
        assert!(replies.ends_with(end), "{replies}");
        assert_eq!(*before.get_or_insert(replies.clone()), replies);
        for message in ["here", "there"] {
            listener.expect_reply(&format!("[\"message\", \"news\", \"{message}\"]"));
        }
        other.expect("GET some", "\"2\"");
        other.expect("EVAL \"redis.call('SELECT', 5) return redis.call('DEL', 'some')\" 0", ":1");
        other.expect("EVAL \"redis.call('SELECT', 3) return redis.call('DEL', 'far')\" 0", ":1");
    }
}

#[test]
fn a_client_stays_in_the_database_a_long_transaction_selected() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    queue(&mut client, &["SELECT 3", &eval(PURE), "SET far 1"]);
    client.expect("EXEC", "[+OK, :3000000, +OK]");
    client.expect("GET far", "\"1\"");
    client.expect("SELECT 0", "+OK");
    client.expect("EXISTS far", ":0");
}

#[test]
fn an_endless_script_in_a_transaction_holds_nobody_up_and_can_be_killed() {
    let Some(server) = laden() else { return };
    let mut listener = listener(&server);
    for point in ["script-start", "script-step"] {
        let mut hold = Hold::first_at(&server, point);
        let (mut attacker, mut other) = (server.client(), server.client());
        other.expect("SET before 0", "+OK");
        let lines =
            ["SET before 1", "SELECT 2", "PUBLISH news never", &eval(ENDLESS), "SET after 1", "GET key:1"];
        queue(&mut attacker, &lines);
        attacker.send("EXEC\r\n");
        hold.await_victim();
        others_are_served(&server);
        // Its own keys, too.
        other.expect("GET before", "\"0\"");
        other.expect("SET before 2", "+OK");
        other.expect("INCR counted", ":1");
        other.expect("FUNCTION KILL", "-NOTBUSY No scripts in execution right now.");
        other.expect("SCRIPT KILL", "+OK");
        hold.release();
        let killed = "EXECABORT Transaction discarded because of: Error running script: Script killed by user with \
                      SCRIPT KILL.";
        attacker.expect_reply(&format!("-{killed}"));
        attacker.expect("MGET before counted after", "[\"2\", \"1\", (nil)]");
        other.expect("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.");
        other.expect("DEL before counted", ":2");
    }
    server.client().expect("PUBLISH news last", ":1");
    listener.expect_reply("[\"message\", \"news\", \"last\"]");
}

#[test]
fn a_script_in_a_transaction_that_is_not_held_can_be_killed_as_well() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut attacker, mut other) = (server.client(), server.client());
    // Other commands come first, so that all of these look at the clock.
    queue(&mut attacker, &["INCR mine", &eval("while true do end")]);
    attacker.send("EXEC\r\n");
    eventually(&mut other, "SCRIPT KILL", "+OK");
    assert!(attacker.reply().starts_with("-EXECABORT"));
    other.expect("EXISTS mine", ":0");
}

#[test]
fn a_transaction_on_a_thread_is_one_with_what_it_watched() {
    let Some(server) = laden() else { return };
    let mut other = server.client();
    for touched in [false, true] {
        for point in ["script-start", "script-end"] {
            let mut client = server.client();
            client.expect("WATCH seen key:3", "+OK");
            queue(&mut client, &[&eval(PURE), "INCR n", "SELECT 3"]);
            let replies = held_while(&server, point, client, &encode_line("EXEC"), || {
                if touched {
                    other.expect("SET seen 1", "+OK");
                }
            });
            assert_eq!(replies, if touched { "(nil array)" } else { "[:3000000, :1, +OK]" }, "at {point}");
            other.expect("DEL n seen", ":1");
        }
    }
    // Touched before.
    let mut client = server.client();
    client.expect("WATCH seen", "+OK");
    other.expect("SET seen 1", "+OK");
    queue(&mut client, &["EVAL \"return 1\" 0", "INCR n", "SELECT 3"]);
    client.expect("EXEC", "(nil array)");
    client.expect("EXISTS n seen", ":1");
}

#[test]
fn a_transaction_on_a_thread_that_lost_a_race_happens_once_and_on_what_is_true() {
    let Some(server) = laden() else { return };
    let (mut listener, mut other) = (listener(&server), server.client());
    let mut client = server.client();
    other.expect("SET n 1", "+OK");
    queue(&mut client, &["INCR n", &eval(PURE), "PUBLISH news once", "INCR n"]);
    let replies = held_while(&server, "script-end", client, &encode_line("EXEC"), || {
        other.expect("SET n 10", "+OK");
    });
    assert_eq!(replies, "[:11, :3000000, :1, :12]");
    other.expect("GET n", "\"12\"");
    other.expect("PUBLISH news twice", ":1");
    for message in ["once", "twice"] {
        listener.expect_reply(&format!("[\"message\", \"news\", \"{message}\"]"));
    }
}

#[test]
fn a_transaction_that_looks_at_everything_holds_nobody_up() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    queue(&mut client, &["SET key:new 1", "KEYS key:*", "DEL key:new"]);
    let replies = held_while(&server, "script-start", client, &encode_line("EXEC"), || {
        others_are_served(&server);
    });
    assert_eq!(replies.matches("\"key:").count(), MANY + 1);
    assert!(replies.contains("\"key:new\""));
}

#[test]
fn a_long_transaction_with_messages_holds_nobody_up() {
    let Some(server) = laden() else { return };
    let (mut listener, mut client) = (listener(&server), server.client());
    client.expect("MULTI", "+OK");
    for i in 0..1_000 {
        client.expect(&format!("SET many{} {i}", i % 500), "+QUEUED");
        client.expect(&format!("PUBLISH news {i}"), "+QUEUED");
    }
    let replies =
        held_while(&server, "script-step", client, &encode_line("EXEC"), || others_are_served(&server));
    assert_eq!(replies.matches("+OK, :1").count(), 1_000);
    for i in 0..1_000 {
        listener.expect_reply(&format!("[\"message\", \"news\", \"{i}\"]"));
    }
    server.client().expect("MGET many0 many499", "[\"500\", \"999\"]");
}

#[test]
fn a_script_and_a_transaction_with_one_move_and_copy_keys_to_other_databases() {
    let server = Server::start();
    let mut client = server.client();
    for (i, within) in [false, true].into_iter().enumerate() {
        let (moved, copied) = (format!("moved{i}"), format!("copied{i}"));
        client.expect(&format!("MSET {moved} 1 {copied} 2"), "+OK");
        if within {
            client.expect("MULTI", "+OK");
            client.expect(&format!("MOVE {moved} 1"), "+QUEUED");
            client.expect("EVAL \"return 1\" 0", "+QUEUED");
            client.expect(&format!("COPY {copied} {copied} DB 1"), "+QUEUED");
            client.expect("EXEC", "[:1, :1, :1]");
        } else {
            let call = |words: &str| format!("EVAL \"return redis.call({words})\" 0");
            client.expect(&call(&format!("'MOVE', '{moved}', 1")), ":1");
            client.expect(&call(&format!("'COPY', '{copied}', '{copied}', 'DB', 1")), ":1");
            client.expect(&call(&format!("'COPY', '{copied}', '{copied}', 'DB', 1")), ":0");
        }
        client.expect(&format!("EXISTS {moved} {copied}"), ":1");
        client.expect("SELECT 1", "+OK");
        client.expect(&format!("MGET {moved} {copied}"), "[\"1\", \"2\"]");
        client.expect("SELECT 0", "+OK");
    }
}

/// The slow commands of a transaction are in the slow log, each for itself, and EXEC is not, wherever the
/// transaction ran.
#[test]
fn the_slow_log_has_the_commands_of_transactions() {
    let own = Server::start();
    tells_commands_of_transactions(&own);
    let mut observer = own.client();
    // In threads, as the causes show.
    let log = observer.call("SLOWLOG WHY -1");
    let cause = |words: &str| log.split(words).nth(1).map(|rest| rest.split("us on").nth(1).unwrap_or(rest));
    assert!(cause(r#"["SORT", "l"]"#).is_some_and(|cause| cause.starts_with(" a thread")), "{log}");
    if let Some(redis) = Server::redis(&[]) {
        tells_commands_of_transactions(&redis);
    }
}

fn tells_commands_of_transactions(server: &Server) {
    let (mut client, mut observer) = (server.client(), server.client());
    for _ in 0..20 {
        client.call(&format!("RPUSH l{}", " 1".repeat(5000)));
    }
    client.expect("CLIENT SETNAME shop", "+OK");
    observer.expect("CONFIG SET slowlog-log-slower-than 0", "+OK");
    observer.expect("SLOWLOG RESET", "+OK");
    // On the loop; with a script; on a worker.
    for commands in
        [["SET k 1", "GET k"], ["EVAL return(redis.call('STRLEN','k')) 0", "TTL k"], ["SORT l", "LLEN l"]]
    {
        client.expect("MULTI", "+OK");
        commands.iter().for_each(|command| client.expect(command, "+QUEUED"));
        client.call("EXEC");
    }
    // Queues that were not executed, or failed, did not run.
    client.expect("MULTI", "+OK");
    client.expect("INCR unseen", "+QUEUED");
    client.expect("DISCARD", "+OK");
    client.expect("WATCH k", "+OK");
    observer.expect("SET k 2", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("INCR unseen", "+QUEUED");
    client.expect("EXEC", "(nil array)");
    observer.expect("CONFIG SET slowlog-log-slower-than -1", "+OK");
    let log = observer.call("SLOWLOG GET -1");
    let order = ["LLEN", "SORT", "TTL", "EVAL", "GET", "SET"];
    let mut places = Vec::new();
    for name in order {
        let at = log.find(&format!(r#"["{name}", "#)).unwrap_or_else(|| panic!("{name} is not in {log}"));
        let whose = log[at..].split(']').nth(1).unwrap_or_default();
        // The plain SET that changed the key is the newest one.
        assert!(whose.contains(r#""shop""#) || name == "SET", "{name}: {whose}");
        places.push(at);
    }
    assert!(places[..5].is_sorted(), "{log}");
    assert!(!log.contains("EXEC") && !log.contains("unseen"), "{log}");
}

/// Whatever way EXEC takes, a DEBUG SLEEP in it delays its reply alone. The commit comes at once.
#[test]
fn a_transaction_that_sleeps_commits_at_once_and_answers_later() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    for (way, word) in ["PING", "KEYS nosuch", "EVAL \"return 1\" 0", "CLIENT LIST"].iter().enumerate() {
        let mut sleeper = server.client();
        sleeper.expect("SELECT 0", "+OK");
        let id = sleeper.call("CLIENT ID");
        let key = format!("key{way}");
        queue(
            &mut sleeper,
            &[&format!("SET {key} 1"), "DEBUG SLEEP 500", word, "DEBUG SLEEP 500", "SELECT 3"],
        );
        sleeper.send("EXEC\r\n");
        eventually(&mut control, &format!("GET {key}"), "\"1\"");
        eventually(&mut control, &format!("CLIENT UNBLOCK {} ERROR", &id[1..]), ":1");
        let reply = sleeper.reply();
        if way == 3 {
            assert!(reply.starts_with("[+OK, +OK, \"id=") && reply.ends_with("+OK, +OK]"), "{reply}");
        } else {
            let middle = ["+PONG", "[]", ":1"][way];
            assert_eq!(reply, format!("[+OK, +OK, {middle}, +OK, +OK]"));
        }
        sleeper.expect("SET there 1", "+OK");
        control.expect("EXISTS there", ":0");
    }
    // The time of the sleeps is added up, and nothing follows it.
    let (began, mut sleeper) = (std::time::Instant::now(), server.client());
    queue(&mut sleeper, &["DEBUG SLEEP 0.1", "DEBUG SLEEP 0.1", "DEBUG SLEEP none"]);
    sleeper.expect("EXEC", "[+OK, +OK, +OK]");
    queue(&mut sleeper, &["DEBUG SLEEP 0.1", "CLIENT LIST", "DEBUG SLEEP 0.1"]);
    assert!(sleeper.call("EXEC").starts_with("[+OK, \"id="));
    // The clock of a loop is that of its turn, so each sleep may end a little early.
    assert!(began.elapsed() >= std::time::Duration::from_millis(350));
    sleeper.expect("PING", "+PONG");
    // One that left while it slept leaves nothing.
    queue(&mut sleeper, &["CLIENT LIST", "DEBUG SLEEP 500"]);
    sleeper.send("EXEC\r\n");
    await_figure(&mut control, "blocked_clients", |count| count == 1);
    drop(sleeper);
    await_figure(&mut control, "blocked_clients", |count| count == 0);
}

/// The keys of a script's calls are compared with very many patterns of its user on a thread.
#[test]
fn a_script_is_judged_by_very_many_patterns_on_its_thread() {
    let Some(server) = laden() else { return };
    let mut control = server.client();
    let patterns: Vec<String> = (0..5_000).map(|i| format!("~none:{i}:*")).collect();
    control.expect(&format!("ACL SETUSER many on nopass +@all {} ~key:*", patterns.join(" ")), "+OK");
    for script in ["redis.call('EXISTS', 'key:1')", "redis.acl_check_cmd('GET', 'key:1') and 1 or 0"] {
        let mut client = server.client();
        client.expect("AUTH many any", "+OK");
        let line = encode_line(&format!("EVAL \"return {script}\" 0"));
        let reply = held_while(&server, "script-start", client, &line, || others_are_served(&server));
        assert_eq!(reply, ":1", "{script}");
    }
}
