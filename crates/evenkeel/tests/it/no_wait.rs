//! The promise, without a clock: a heavy command is held where it is, and all others are served nevertheless.
//!
//! ```text
//! DEBUG POINT job-end HOLD 1 ─▶ attacker: SUNIONSTORE … ─▶ held ─▶ bystanders: served ─▶ OFF ─▶ its reply
//! ```
//!
//! No time is measured: a bystander that has to wait for a held command waits for ever, and its test fails.

use crate::held::{
    Hold, MANY, PURE, READS, WRITES, await_figure, eval, eventually, figure, held, laden, others_are_served,
};
use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use crate::waits;
use std::time::{Duration, Instant};

#[test]
fn a_long_read_on_a_worker_is_nobodys_business() {
    let Some(server) = laden() else { return };
    for point in ["job-start", "job-end"] {
        assert!(held(&server, point, "SDIFF big other").contains("\"m1\""));
        assert!(held(&server, point, "SINTER big other").contains("\"m2\""));
        assert!(held(&server, point, "SORT big ALPHA LIMIT 0 3").starts_with("[\"m0\", \"m1\""));
        assert!(held(&server, point, "ZUNION 2 zset zother").contains("\"m1\""));
    }
}

/// The loop reads sets and sorted sets without the locks of their keys. Another loop's clients write them
/// meanwhile, and the reply shows their state at the start.
#[test]
fn who_reads_sets_against_each_other_holds_no_key() {
    if foreign() {
        return;
    }
    let (server, mut control) = waits::server();
    let (mut reader, _) = waits::astray(&server, &mut control, "reader");
    let members: Vec<String> = (0..300).map(|i| format!("m{i}")).collect();
    control.expect(&format!("SADD left {}", members.join(" ")), ":300");
    control.expect(&format!("SADD right {}", members[..299].join(" ")), ":299");
    control.expect("SADD right x", ":1");
    let scored: Vec<String> = members.iter().map(|m| format!("1 {m}")).collect();
    control.expect(&format!("ZADD zleft {}", scored.join(" ")), ":300");
    control.expect(&format!("ZADD zright {}", scored[..299].join(" ")), ":299");
    for (line, write, reply) in [
        ("SDIFF left right", "SREM left m299", "[\"m299\"]"),
        ("SINTERCARD 2 left right", "SREM right m1", ":299"),
        ("ZDIFF 2 zleft zright", "DEL zleft", "[\"m299\"]"),
        ("ZINTERCARD 2 zright zright", "ZADD zright 1 y", ":299"),
    ] {
        control.expect("DEBUG POINT apart HOLD 1", "+OK");
        reader.send(encode_line(line));
        waits::until(line, || control.call("DEBUG POINT apart") == ":1");
        control.expect(write, ":1");
        control.expect("DEBUG POINT apart OFF", "+OK");
        reader.expect_reply(reply);
    }
}

#[test]
fn a_long_write_on_a_worker_is_nobodys_business() {
    let Some(server) = laden() else { return };
    let union = format!(":{}", MANY + MANY / 2);
    for point in ["job-start", "job-end"] {
        assert_eq!(held(&server, point, "SUNIONSTORE into big other"), union);
        assert_eq!(held(&server, point, "SDIFFSTORE into big other"), format!(":{}", MANY / 2));
        assert!(held(&server, point, "ZUNIONSTORE into 2 zset zother").starts_with(':'));
        assert_eq!(held(&server, point, "SORT list BY nosort STORE into"), format!(":{MANY}"));
    }
}

#[test]
fn a_long_write_that_lost_a_race_still_happens_once() {
    let Some(server) = laden() else { return };
    let mut hold = Hold::first_at(&server, "job-end");
    let (mut attacker, mut other) = (server.client(), server.client());
    attacker.send("SUNIONSTORE into big other\r\n");
    hold.await_victim();
    // Its input is outdated.
    other.expect("SADD big late", ":1");
    other.expect("SADD into something", ":1");
    hold.release();
    attacker.expect_reply(&format!(":{}", MANY + MANY / 2 + 1));
    other.expect("SISMEMBER into late", ":1");
    other.expect("SISMEMBER into something", ":0");
}

#[test]
fn a_reply_that_streams_is_nobodys_business() {
    let Some(server) = laden() else { return };
    for line in
        ["SMEMBERS other", "LRANGE list 0 -1", "HGETALL hash", "ZRANGE zset 0 -1 WITHSCORES", "KEYS *"]
    {
        let reply = held(&server, "stream", line);
        assert!(reply.matches(", ").count() >= MANY - 1, "{line}: {} bytes", reply.len());
    }
}

#[test]
fn a_stream_shows_the_value_as_it_was() {
    let Some(server) = laden() else { return };
    let mut hold = Hold::first_at(&server, "stream");
    let (mut attacker, mut other) = (server.client(), server.client());
    attacker.send("LRANGE list 0 -1\r\n");
    hold.await_victim();
    other.expect("DEL list", ":1");
    other.expect("FLUSHALL", "+OK");
    hold.release();
    assert_eq!(attacker.reply().matches(", ").count(), MANY - 1);
}

#[test]
fn a_long_script_is_nobodys_business() {
    let Some(server) = laden() else { return };
    for point in ["script-start", "script-step", "script-end"] {
        assert_eq!(held(&server, point, &eval(PURE)), ":3000000");
        assert_eq!(held(&server, point, &eval(READS)), ":20000");
        assert_eq!(held(&server, point, &eval(WRITES)), "\"20000\"");
        server.client().expect("DEL counted", ":1");
    }
}

/// The number of runs on threads so far.
fn on_threads(client: &mut Client) -> usize {
    let told = client.call("EVENKEEL PHASES");
    let count = told.split("\"ran-on-thread\", [\"count\", :").nth(1).and_then(|rest| rest.split(',').next());
    count.and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn a_script_that_is_short_again_is_run_by_the_loop_again() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let script = "EVAL \"local n = 0 for i = 1, ARGV[1] do n = n + 1 end return n\" 0";
    let before = on_threads(&mut other);
    client.expect(&format!("{script} 3000000"), ":3000000");
    assert_eq!(on_threads(&mut other), before + 1);
    // The first run proves on a thread that it is short; the machine may delay some of the others.
    (0..200).for_each(|_| client.expect(&format!("{script} 1"), ":1"));
    let after = on_threads(&mut other);
    assert!((before + 2..before + 200).contains(&after), "{before} and then {after} runs on threads");
}

#[test]
fn a_script_that_is_held_for_ever_can_be_killed() {
    let Some(server) = laden() else { return };
    let mut hold = Hold::first_at(&server, "script-step");
    let (mut attacker, mut other) = (server.client(), server.client());
    attacker.send(crate::support::encode_line(&eval("while true do redis.call('INCR', 'counted') end")));
    hold.await_victim();
    others_are_served(&server);
    other.expect("SCRIPT KILL", "+OK");
    hold.release();
    assert!(attacker.reply().contains("killed by user"));
    other.expect("EXISTS counted", ":0");
}

#[test]
fn a_script_can_be_killed_wherever_it_is() {
    let Some(server) = laden() else { return };
    for point in ["script-start", "script-step", "script-end"] {
        let mut hold = Hold::first_at(&server, point);
        let (mut attacker, mut other) = (server.client(), server.client());
        attacker.send(crate::support::encode_line(&eval(WRITES)));
        hold.await_victim();
        other.expect("SCRIPT KILL", "+OK");
        hold.release();
        assert!(attacker.reply().contains("killed by user"), "at {point}");
        other.expect("EXISTS counted", ":0");
        other.expect("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.");
    }
}

#[test]
fn a_script_cannot_catch_its_end() {
    let Some(server) = laden() else { return };
    for body in [
        "while true do pcall(function() while true do end end) end",
        "while true do pcall(redis.call, 'GET', 'key:1') end",
        "while true do redis.pcall('NOSUCH') pcall(error, {}) end",
        "local function f() pcall(f) while true do end end f()",
    ] {
        let mut hold = Hold::first_at(&server, "script-step");
        let (mut attacker, mut other) = (server.client(), server.client());
        attacker.send(crate::support::encode_line(&eval(body)));
        hold.await_victim();
        other.expect("SCRIPT KILL", "+OK");
        hold.release();
        assert!(attacker.reply().contains("killed by user"), "{body}");
    }
}

#[test]
fn ten_endless_scripts_make_nobody_wait_and_nobody_busy() {
    let Some(server) = laden() else { return };
    let mut other = server.client();
    other.expect("CONFIG SET busy-reply-threshold 1", "+OK");
    let mut attackers: Vec<Client> = (0..10).map(|_| server.client()).collect();
    for attacker in &mut attackers {
        attacker.send(crate::support::encode_line(&eval(
            "while true do redis.call('INCR', 'counted') redis.call('GET', 'key:' .. math.random(1, 20000)) end",
        )));
    }
    std::thread::sleep(Duration::from_millis(20));
    others_are_served(&server);
    assert!(other.call("SDIFF big other").contains("\"m1\""));
    other.expect(&eval(PURE), ":3000000");
    for attacker in &mut attackers {
        // Some may have come after a kill.
        while attacker.reply_within(Duration::from_millis(1)).is_none() {
            let killed = other.call("SCRIPT KILL");
            assert!(killed == "+OK" || killed.starts_with("-NOTBUSY"), "{killed}");
        }
    }
    other.expect("EXISTS counted", ":0");
}

#[test]
fn a_script_that_exchanges_databases_or_asks_the_server_is_nobodys_business() {
    let Some(server) = laden() else { return };
    let swaps = "for i = 1, 2000 do redis.call('SWAPDB', 3, 4) redis.call('SELECT', i % 2 + 3) redis.call('INCR', 'n') end \
                 redis.call('SELECT', 3) return redis.call('GET', 'n')";
    let asks = "local n = 0 for i = 1, 300 do n = n + #redis.call('ECHO', 'ab') redis.call('SLOWLOG', 'LEN') \
                for j = 1, 1000 do end end return n";
    for point in ["script-start", "script-step", "script-end"] {
        assert_eq!(held(&server, point, &eval(swaps)), "\"2000\"");
        server.client().expect("EVAL \"redis.call('SELECT', 3) return redis.call('DEL', 'n')\" 0", ":1");
        assert_eq!(held(&server, point, &eval(asks)), ":600");
    }
}

#[test]
fn two_long_scripts_and_a_long_read_do_not_wait_for_each_other() {
    let Some(server) = laden() else { return };
    let mut hold = Hold::first_at(&server, "script-step");
    let (mut first, mut second) = (server.client(), server.client());
    first.send(crate::support::encode_line(&eval(READS)));
    hold.await_victim();
    second.expect(&eval(PURE), ":3000000");
    second.expect(&eval(READS), ":20000");
    assert!(second.call("SDIFF big other").contains("\"m1\""));
    others_are_served(&server);
    hold.release();
    first.expect_reply(":20000");
}

#[test]
fn a_long_script_does_not_wait_for_a_long_read() {
    let Some(server) = laden() else { return };
    let mut hold = Hold::first_at(&server, "job-start");
    let (mut first, mut second) = (server.client(), server.client());
    first.send("SDIFF big other\r\n");
    hold.await_victim();
    second.expect(&eval(READS), ":20000");
    hold.release();
    assert!(first.reply().contains("\"m1\""));
}

#[test]
fn long_commands_do_not_wait_for_another_that_is_held() {
    let Some(server) = laden() else { return };
    let mut hold = Hold::first_at(&server, "job-start");
    let (mut first, mut second) = (server.client(), server.client());
    first.send("SDIFF big other\r\n");
    hold.await_victim();
    second.expect("RPUSH short c a b", ":3");
    // Short, but its keys are not known before it runs.
    second.expect("SORT short BY nosort", "[\"c\", \"a\", \"b\"]");
    assert!(second.call("SDIFF big other").contains("\"m1\""));
    hold.release();
    assert!(first.reply().contains("\"m1\""));
}

#[test]
fn freeing_large_values_is_nobodys_business() {
    let Some(server) = laden() else { return };
    for line in [
        "DEL big",
        "UNLINK other",
        "SET hash x",
        "LTRIM list 1 0",
        "RENAME zset zother",
        "FLUSHALL ASYNC",
        "FLUSHALL",
    ] {
        let server = if line == "DEL big" { &server } else { &laden().expect("a server") };
        let mut hold = Hold::first_at(server, "reclaim");
        let mut attacker = server.client();
        let reply = attacker.call(line);
        assert!(!reply.starts_with('-'), "{line} was answered {reply}");
        hold.await_victim();
        let mut other = server.client();
        other.expect("SET a 1", "+OK");
        other.expect("INCR a", ":2");
        other.expect("RPUSH l a b c", ":3");
        other.expect("DEL l a zother hash", ":4".replace('4', &(2 + left(line)).to_string()).as_str());
        hold.release();
        let pending = |client: &mut Client| client.call("INFO memory").contains("lazyfree_pending_objects:0");
        let deadline = Instant::now() + PATIENCE;
        while !pending(&mut other) {
            assert!(Instant::now() < deadline, "garbage stays after {line}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Replies are sent before the loop wakes the reclaimer, which may take its core. So a client that removed
/// something large does not wait for it, and neither do the others of that turn.
#[test]
fn who_is_answered_does_not_wait_for_the_reclaimer_to_be_woken() {
    if foreign() {
        return;
    }
    let (server, mut control) = waits::server();
    let (mut attacker, _) = waits::astray(&server, &mut control, "attacker");
    let members: String = (0..MANY).map(|i| format!(" m{i}")).collect();
    control.expect(&format!("SADD big{members}"), &format!(":{MANY}"));
    control.expect("DEBUG POINT leave HOLD 1", "+OK");
    attacker.expect("UNLINK big", ":1");
    waits::until("the loop is about to wake it", || control.call("DEBUG POINT leave") == ":1");
    control.expect("DEBUG POINT leave OFF", "+OK");
    attacker.expect("EXISTS big", ":0");
}

/// A write that loses repeatedly makes the writers of its keys wait until it is done. They do not wait until
/// its leftovers are freed, or what is to be freed before them.
#[test]
fn who_waits_for_a_commit_does_not_wait_for_what_it_leaves() {
    if foreign() {
        return;
    }
    let read = "local n = redis.call('GET', KEYS[1]) for i = 1, 3000000 do end redis.call('SET', KEYS[1], 'mine') return 0";
    let script: &[&[u8]] = &[b"EVAL", read.as_bytes(), b"1", b"hot"];
    let job: &[&[u8]] = &[b"SORT", b"numbers", b"STORE", b"sorted"];
    for (begins, ends, words, write) in [
        ("job-start", "job-end", job, "RPUSH numbers 1"),
        ("script-start", "script-end", script, "SET hot theirs"),
    ] {
        let Some(server) = laden() else { return };
        let (mut control, mut loser, mut winner) = (server.client(), server.client(), server.client());
        let numbers: Vec<String> = (0..MANY).map(|i| i.to_string()).collect();
        control.call(&format!("RPUSH numbers {}", numbers.join(" ")));
        let set = |control: &mut Client, point: &str, mode: &str| {
            control.expect(&format!("DEBUG POINT {point} {mode}"), "+OK");
        };
        let await_held = |control: &mut Client, point: &str| {
            waits::until(point, || control.call(&format!("DEBUG POINT {point}")) == ":1");
        };
        // Nothing is freed until the end.
        set(&mut control, "reclaim", "HOLD 1");
        control.expect("UNLINK big", ":1");
        await_held(&mut control, "reclaim");
        set(&mut control, begins, "HOLD 1");
        loser.request(words);
        let mut rounds = 0;
        loop {
            await_held(&mut control, begins);
            set(&mut control, ends, "HOLD 1");
            set(&mut control, begins, "OFF");
            await_held(&mut control, ends);
            winner.send(encode_line(write));
            // A write that has not lost so often is protected for 50 ms at most.
            if winner.reply_within(Duration::from_millis(500)).is_none() {
                break;
            }
            rounds += 1;
            assert!(rounds < 50, "it is never protected");
            set(&mut control, begins, "HOLD 1");
            set(&mut control, ends, "OFF");
        }
        set(&mut control, ends, "OFF");
        assert!(!loser.reply().starts_with('-'));
        assert!(!winner.reply().starts_with('-'));
        assert_eq!(control.call("DEBUG POINT reclaim"), ":1");
        set(&mut control, "reclaim", "OFF");
    }
}

/// How many of `zother` and `hash` exist after that command.
fn left(line: &str) -> usize {
    if line.starts_with("FLUSHALL") { 0 } else { 2 }
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up_and_little_memory() {
    let Some(server) = laden() else { return };
    let mut attacker = server.client();
    // A gigabyte of unread replies.
    attacker.expect("SETBIT wide 268435455 1", ":0");
    let before = server.resident_bytes();
    attacker.send("GET wide\r\n".repeat(32));
    others_are_served(&server);
    assert!(server.resident_bytes() < before + 64 * 1024 * 1024, "unread replies are kept in memory");
    for _ in 0..32 {
        attacker.skip("$33554432\r\n".len() + (32 << 20) + 2);
    }
    attacker.expect("PING", "+PONG");
}

#[test]
fn a_long_pipeline_holds_nobody_up() {
    let Some(server) = laden() else { return };
    let mut attacker = server.client();
    let (sent, ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        attacker.send("INCR piped\r\n".repeat(10_000));
        let _ = sent.send(());
        (0..9).for_each(|_| attacker.send("INCR piped\r\n".repeat(10_000)));
        attacker
    });
    // The rest is sent only as far as the server takes it: the server answers, and the answers are not read.
    ready.recv().expect("the first part is sent");
    others_are_served(&server);
    let mut attacker = thread.join().expect("all is sent");
    for n in 1..=100_000 {
        assert_eq!(attacker.reply(), format!(":{n}"));
    }
}

#[test]
fn a_large_transaction_holds_nobody_up_while_it_is_queued() {
    let Some(server) = laden() else { return };
    let mut attacker = server.client();
    attacker.expect("MULTI", "+OK");
    for part in 0..10 {
        attacker.send("INCR many\r\n".repeat(2000));
        attacker.skip("+QUEUED\r\n".len() * 2000);
        if part % 3 == 0 {
            others_are_served(&server);
        }
    }
    attacker.send("EXEC\r\n");
    others_are_served(&server);
    assert!(attacker.reply().ends_with(":19999, :20000]"));
}

#[test]
fn many_subscribers_and_many_clients_hold_nobody_up() {
    let Some(server) = laden() else { return };
    let mut subscribers: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = server.client();
            assert!(client.call("SUBSCRIBE news").starts_with('['));
            client
        })
        .collect();
    let mut attacker = server.client();
    let text = "x".repeat(10_000);
    for _ in 0..20 {
        attacker.send(format!("PUBLISH news {text}\r\nCLIENT LIST\r\n"));
    }
    others_are_served(&server);
    for _ in 0..20 {
        attacker.expect_reply(":200");
        assert!(attacker.reply().matches("cmd=subscribe").count() >= 200);
    }
    for client in &mut subscribers {
        for _ in 0..20 {
            assert!(client.reply().ends_with(&format!("\"{text}\"]")));
        }
    }
}

#[test]
fn a_read_whose_client_went_ends_with_it() {
    let Some(server) = laden() else { return };
    for (point, line) in [("job-start", "SDIFF big other\r\n"), ("stream", "SMEMBERS big\r\n")] {
        let mut hold = Hold::first_at(&server, point);
        let mut attacker = server.client();
        attacker.expect("CLIENT SETNAME attacker", "+OK");
        attacker.send(line);
        hold.await_victim();
        drop(attacker);
        let mut other = server.client();
        let deadline = Instant::now() + PATIENCE;
        while other.call("CLIENT LIST").contains("name=attacker") {
            assert!(Instant::now() < deadline, "the client of a held {line:?} does not go");
            std::thread::sleep(Duration::from_millis(2));
        }
        others_are_served(&server);
        hold.release();
        assert!(other.call("SDIFF big other").contains("\"m1\""));
    }
}

/// Scripts that claim only to read end with their clients, wherever they run.
#[test]
fn a_script_that_only_reads_ends_with_its_client() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut other = server.client();
    other.request(&[
        b"FUNCTION",
        b"LOAD",
        b"#!lua name=l\nredis.register_function{function_name='spin', flags={'no-writes'}, callback=function() while true do end end}",
    ]);
    other.expect_reply("\"l\"");
    let spin = "while true do end";
    let text = format!("{spin} --{}", "x".repeat(3_000));
    let lines = [format!("EVAL_RO \"{spin}\" 0"), format!("EVAL_RO \"{text}\" 0"), "FCALL spin 0".to_owned()];
    for line in &lines {
        let mut attacker = server.client();
        attacker.send(encode_line(line));
        await_figure(&mut other, "scripts_running", |running| running == 1);
        drop(attacker);
        await_figure(&mut other, "scripts_running", |running| running == 0);
    }
}

/// As many endless scripts as may run at once: none of them keeps another script waiting.
#[test]
fn endless_scripts_keep_no_other_script_waiting() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut other = server.client();
    let endless: Vec<Client> = (0..60)
        .map(|_| {
            let mut attacker = server.client();
            attacker.send(encode_line("EVAL \"while true do end\" 0"));
            attacker
        })
        .collect();
    await_figure(&mut other, "scripts_running", |running| running == 60);
    // A new text, which a thread compiles, and one that takes several turns of a thread. Each comes after a
    // turn of all others, and behind the other programs of a busy machine.
    other.expect(&format!("EVAL \"return 1 --{}\" 0", "x".repeat(3_000)), ":1");
    other.expect(&eval("local n = 0 for i = 1, 200000 do n = n + 1 end return n"), ":200000");
    assert_eq!(figure(&mut other, "scripts_waiting"), 0);
    other.expect("SCRIPT KILL", "+OK");
    for mut attacker in endless {
        assert!(attacker.reply().contains("Script killed by user"));
    }
}

#[test]
fn a_write_that_was_received_completes_without_its_client() {
    let Some(server) = laden() else { return };
    let mut other = server.client();
    for point in ["job-start", "job-end"] {
        let mut hold = Hold::first_at(&server, point);
        let mut attacker = server.client();
        attacker.send("SUNIONSTORE into big other\r\n");
        hold.await_victim();
        drop(attacker);
        other.expect("EXISTS into", ":0");
        hold.release();
        eventually(&mut other, "SCARD into", &format!(":{}", MANY + MANY / 2));
        other.expect("DEL into", ":1");
    }
    for point in ["script-start", "script-step", "script-end"] {
        let mut hold = Hold::first_at(&server, point);
        let mut attacker = server.client();
        attacker.send(crate::support::encode_line(&eval(WRITES)));
        hold.await_victim();
        drop(attacker);
        other.expect("EXISTS counted", ":0");
        hold.release();
        eventually(&mut other, "GET counted", "\"20000\"");
        other.expect("DEL counted", ":1");
    }
}
