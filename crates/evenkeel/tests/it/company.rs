//! Heavy clients in company: on one CPU, with each other, without replies, without their client, out of
//! memory.
//!
//! Nothing is timed: a client that has to wait for something held, or for a script that never ends, waits for
//! ever.

use crate::held::{
    Hold, MANY, PURE, READS, WRITES, eval, eventually, held, held_while, lade, laden, others_are_served,
};
use crate::support::{Client, Server, encode, encode_line, foreign};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A laden server that has one CPU and one loop.
fn on_one_cpu() -> Option<Server> {
    if foreign() {
        return None;
    }
    // Threads and processes inherit it from the thread that starts them.
    let all = sched_getaffinity(None).expect("the CPUs of this thread");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a CPU");
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).expect("one CPU");
    let server = Server::start_with(&["--event-loops", "1"]);
    sched_setaffinity(None, &all).expect("all CPUs");
    Some(lade(server))
}

#[test]
fn on_one_cpu_a_held_script_keeps_nobody_from_anything() {
    let Some(server) = on_one_cpu() else { return };
    let mut hold = Hold::first_at(&server, "script-step");
    let (mut first, mut second) = (server.client(), server.client());
    first.send(encode_line(&eval(READS)));
    hold.await_victim();
    assert!(second.call("SDIFF big other").contains("\"m1\""));
    second.expect("SUNIONSTORE into big other", &format!(":{}", MANY + MANY / 2));
    second.expect(&eval(READS), ":20000");
    others_are_served(&server);
    hold.release();
    first.expect_reply(":20000");
}

#[test]
fn on_one_cpu_a_script_that_never_ends_leaves_others_the_processor() {
    let Some(server) = on_one_cpu() else { return };
    let (mut first, mut second) = (server.client(), server.client());
    first.send(encode_line(&eval("while true do end")));
    eventually(&mut second, "EVAL \"return 1\" 0", ":1");
    assert!(second.call("SDIFF big other").contains("\"m1\""));
    second.expect(&eval(PURE), ":3000000");
    second.expect("SUNIONSTORE into big other", &format!(":{}", MANY + MANY / 2));
    others_are_served(&server);
    // It may still be on its way to a thread.
    eventually(&mut second, "SCRIPT KILL", "+OK");
    assert!(first.reply().contains("killed by user"));
    second.expect("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.");
}

#[test]
fn two_heavy_clients_and_a_third_are_held_nowhere_but_where_they_are() {
    let Some(server) = laden() else { return };
    for (point, count) in [("job-start", 2), ("job-end", 2)] {
        let mut hold = Hold::some_at(&server, point, count);
        let (mut reader, mut writer, mut third) = (server.client(), server.client(), server.client());
        reader.send("SDIFF big other\r\n");
        writer.send("ZUNIONSTORE into 2 zset zother\r\n");
        hold.await_victims(count);
        others_are_served(&server);
        assert!(third.call("SINTER big other").contains("\"m2\""));
        third.expect("SUNIONSTORE third big other", &format!(":{}", MANY + MANY / 2));
        third.expect(&eval(READS), ":20000");
        third.expect("EXISTS into", ":0");
        hold.release();
        assert!(reader.reply().contains("\"m1\""));
        assert!(writer.reply().starts_with(':'));
        third.expect("DEL third into", ":2");
    }
}

/// Long writes of every plan, one after the other: the expected reply of each, and a later look at its
/// effect.
fn long_writes() -> Vec<(Vec<u8>, String, &'static str, String)> {
    let pairs: Vec<String> = (0..2000).flat_map(|i| [format!("p{i}"), i.to_string()]).collect();
    let set: Vec<&[u8]> =
        std::iter::once(&b"MSET"[..]).chain(pairs.iter().map(|word| word.as_bytes())).collect();
    let keys: Vec<String> = (1000..3000).map(|i| format!("key:{i}")).collect();
    let gone: Vec<&[u8]> =
        std::iter::once(&b"DEL"[..]).chain(keys.iter().map(|key| key.as_bytes())).collect();
    let union = format!(":{}", MANY + MANY / 2);
    let line = |line: &str| encode_line(line);
    vec![
        (line("SUNIONSTORE into big other"), union.clone(), "SCARD into", union),
        (encode(&set), "+OK".into(), "GET p1999", "\"1999\"".into()),
        (line(&eval(WRITES)), "\"20000\"".into(), "GET counted", "\"20000\"".into()),
        (line("SORT list BY nosort STORE sorted"), format!(":{MANY}"), "LLEN sorted", format!(":{MANY}")),
        (encode(&gone), ":2000".into(), "EXISTS key:1000 key:2999", ":0".into()),
        (line("SET last 1"), "+OK".into(), "GET last", "\"1\"".into()),
    ]
}

fn all_is_done(client: &mut Client) {
    for (_, _, look, shows) in long_writes() {
        eventually(client, look, &shows);
    }
}

#[test]
fn a_load_as_of_redis_cli_pipe_is_done_in_order() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    let mut load: Vec<u8> = long_writes().into_iter().flat_map(|(request, ..)| request).collect();
    load.extend(encode(&[b"ECHO", b"the end of the load"]));
    client.send(&load);
    long_writes().iter().for_each(|(_, reply, ..)| client.expect_reply(reply));
    client.expect_reply("\"the end of the load\"");
    all_is_done(&mut client);
}

#[test]
fn a_load_that_was_received_is_done_though_its_client_went() {
    let Some(server) = laden() else { return };
    let mut other = server.client();
    // The results of some reads among it are not needed any more.
    let mut load = Vec::new();
    for (request, ..) in long_writes() {
        load.extend(request);
        load.extend(encode_line("SDIFF big other"));
    }
    for muted in [true, false] {
        let mut client = server.client();
        let mut hold = Hold::first_at(&server, "job-start");
        if muted {
            client.send(encode_line("CLIENT REPLY OFF"));
        }
        client.send(&load);
        hold.await_victim();
        drop(client);
        others_are_served(&server);
        hold.release();
        all_is_done(&mut other);
        other.expect("DEL into counted sorted last", ":4");
    }
}

#[test]
fn what_is_not_answered_is_done_all_the_same_however_long() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    for (request, _, look, shows) in long_writes() {
        client.send(encode_line("CLIENT REPLY SKIP"));
        client.send(request);
        client.expect("PING", "+PONG");
        other.expect(look, &shows);
    }
    other.expect("DEL into counted sorted last", ":4");
    client.send(encode_line("CLIENT REPLY OFF"));
    for (request, ..) in long_writes() {
        client.send(request);
        client.send(encode_line("SDIFF big other"));
        client.send(encode_line("SMEMBERS big"));
        client.send(encode_line(&eval(READS)));
    }
    client.expect("CLIENT REPLY ON", "+OK");
    all_is_done(&mut other);
    client.expect("PING", "+PONG");
}

#[test]
fn a_script_out_of_memory_ends_and_no_other_notices() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    other.expect("CONFIG SET lua-memory-limit 4194304", "+OK");
    // At once on the loop, and little by little on a thread.
    for script in [
        "return #string.rep('x', 100000000)",
        "local t = {} for i = 1, 100000000 do t[i] = 'element ' .. i end return #t",
        "local t = {} while true do pcall(function() while true do t[#t + 1] = 'element ' .. #t end end) end",
        "redis.call('SET', 'half', 1) local t = {} while true do t[#t + 1] = {#t} end",
    ] {
        let mut hold = Hold::first_at(&server, "script-step");
        client.send(encode_line(&eval(script)));
        if !script.contains("rep") {
            hold.await_victim();
            others_are_served(&server);
        }
        hold.release();
        if script.contains("pcall") {
            // An error that the script catches is caught; the script can be killed.
            other.expect(&eval("return 1"), ":1");
            other.expect("SCRIPT KILL", "+OK");
            assert!(client.reply().contains("killed by user"));
        } else {
            let reply = client.reply();
            assert!(reply.starts_with('-') && reply.contains("not enough memory"), "{script}: {reply}");
        }
        client.expect(&eval(READS), ":20000");
        other.expect(&eval("return #string.rep('x', 1000000)"), ":1000000");
    }
    assert!(server.resident_bytes() < 512 << 20);
}

#[test]
fn who_is_being_served_is_unblocked_as_soon_as_that_came_to_nothing() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--event-loops", "2"]);
    let mut control = server.client();
    let mut placed = |stays: bool| {
        control.expect(&format!("DEBUG POINT accept HOLD {}", u8::from(stays)), "+OK");
        let mut client = server.client();
        client.expect("PING", "+PONG");
        control.expect("DEBUG POINT accept OFF", "+OK");
        client
    };
    let (mut writer, mut blocked, mut asker, mut control) =
        (placed(true), placed(false), placed(false), placed(false));
    let id = blocked.call("CLIENT ID");
    for (is_taken_away, unblocked, gets) in [(true, ":1", "(nil array)"), (false, ":0", "[\"list\", \"a\"]")]
    {
        blocked.send(encode_line("BLPOP list 0"));
        until_blocked(&mut control);
        control.expect("DEBUG POINT serve HOLD 1", "+OK");
        writer.send(encode_line("RPUSH list a"));
        eventually(&mut control, "DEBUG POINT serve", ":1");
        asker.send(encode_line(&format!("CLIENT UNBLOCK {}", &id[1..])));
        // Whether it still waits is not known yet.
        control.expect("PING", "+PONG");
        if is_taken_away {
            control.expect("LPOP list", "\"a\"");
        }
        assert_eq!(asker.reply_within(std::time::Duration::from_millis(20)), None);
        control.expect("DEBUG POINT serve OFF", "+OK");
        asker.expect_reply(unblocked);
        blocked.expect_reply(gets);
        writer.expect_reply(":1");
        control.expect("EXISTS list", ":0");
    }
}

fn until_blocked(control: &mut Client) {
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while !control.call("INFO clients").contains("blocked_clients:1") {
        assert!(std::time::Instant::now() < deadline, "nobody blocks");
    }
}

#[test]
fn very_many_names_are_listened_to_and_left_in_slices() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let names: Vec<String> = (0..2_500).map(|i| format!("channel:{i}")).collect();
    let with = |command: &'static str| {
        encode(
            &std::iter::once(command.as_bytes())
                .chain(names.iter().map(|n| n.as_bytes()))
                .collect::<Vec<_>>(),
        )
    };
    for leaves in ["UNSUBSCRIBE", "all by name", "gone"] {
        client.send(with("SUBSCRIBE"));
        for (i, name) in names.iter().enumerate() {
            client.expect_reply(&format!("[\"subscribe\", \"{name}\", :{}]", i + 1));
        }
        other.expect(
            "PUBSUB NUMSUB channel:0 channel:2499 x",
            "[\"channel:0\", :1, \"channel:2499\", :1, \"x\", :0]",
        );
        assert_eq!(other.call("PUBSUB CHANNELS channel:*").matches("channel:").count(), 2_500);
        assert_eq!(other.call("PUBSUB CHANNELS *:249?").matches("channel:").count(), 10);
        other.expect("PUBLISH channel:1234 hello", ":1");
        client.expect_reply("[\"message\", \"channel:1234\", \"hello\"]");
        match leaves {
            "UNSUBSCRIBE" => client.send("UNSUBSCRIBE\r\n"),
            "all by name" => client.send(with("UNSUBSCRIBE")),
            _ => break,
        }
        for i in (0..2_500).rev() {
            let reply = client.reply();
            assert!(reply.starts_with("[\"unsubscribe\", \"channel:"), "{reply}");
            assert!(reply.ends_with(&format!(":{i}]")), "{reply}");
        }
        client.expect("UNSUBSCRIBE", "[\"unsubscribe\", (nil), :0]");
        client.expect("PING", "+PONG");
    }
    drop(client);
    eventually(&mut other, "PUBSUB CHANNELS", "[]");
    // A message is no reply, so CLIENT REPLY OFF does not leave it out.
    let mut muted = server.client();
    muted.send("CLIENT REPLY OFF\r\n");
    muted.send(with("PSUBSCRIBE"));
    muted.send("PUNSUBSCRIBE\r\nCLIENT REPLY ON\r\n");
    for word in ["psubscribe", "punsubscribe"] {
        for _ in 0..2_500 {
            let reply = muted.reply();
            assert!(reply.starts_with(&format!("[\"{word}\", \"channel:")), "{reply}");
        }
    }
    muted.expect_reply("+OK");
    other.expect("PUBSUB NUMPAT", ":0");
}

#[test]
fn very_many_keys_are_watched_and_forgotten_in_slices() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let watch = {
        let names: Vec<String> = (0..3_000).map(|i| format!("k{}", i % 1_500)).collect();
        encode(&std::iter::once(&b"WATCH"[..]).chain(names.iter().map(|n| n.as_bytes())).collect::<Vec<_>>())
    };
    for (touches, answer) in [("PING", "[+OK]"), ("SET k1499 x", "(nil array)"), ("SET k0 x", "(nil array)")]
    {
        client.send(&watch);
        client.expect_reply("+OK");
        assert!(other.call("CLIENT LIST").contains("watch=1500"));
        other.call(touches);
        client.expect("MULTI", "+OK");
        client.expect("SET done 1", "+QUEUED");
        client.expect("EXEC", answer);
    }
    // UNWATCH and DISCARD leave nothing.
    for leaves in ["UNWATCH", "MULTI\r\nDISCARD", "RESET"] {
        client.send(&watch);
        client.expect_reply("+OK");
        client.send(format!("{leaves}\r\n"));
        leaves.lines().for_each(|_| assert!(client.reply().starts_with('+')));
        other.expect("SET k7 y", "+OK");
        client.expect("MULTI", "+OK");
        client.expect("PING", "+QUEUED");
        client.expect("EXEC", "[+PONG]");
    }
}

#[test]
fn long_replies_inside_transactions_and_scripts_hold_nobody_up() {
    let Some(server) = laden() else { return };
    for line in
        ["SMEMBERS big", "HGETALL hash", "LRANGE list 0 -1", "ZRANGE zset 0 -1", "SRANDMEMBER big -20000"]
    {
        let mut attacker = server.client();
        attacker.expect("MULTI", "+OK");
        attacker.expect(line, "+QUEUED");
        let reply = held_while(&server, "job-start", attacker, b"EXEC\r\n", || others_are_served(&server));
        assert!(reply.matches(", ").count() >= MANY - 1, "{line}");
        let words = line.replace(' ', "', '");
        let script = format!("return #redis.call('{words}')");
        let reply = held(&server, "script-start", &eval(&script));
        assert!(reply[1..].parse::<usize>().is_ok_and(|n| n >= MANY), "{line}: {reply}");
    }
    // Nor does a client that was blocked.
    let (mut waiter, mut client) = (server.client(), server.client());
    waiter.send("BLMPOP 0 1 awaited LEFT COUNT 100000\r\n");
    until_blocked(&mut client);
    let mut hold = Hold::first_at(&server, "stream");
    client.expect("COPY list awaited", ":1");
    hold.await_victim();
    others_are_served(&server);
    hold.release();
    assert_eq!(waiter.reply().matches(", ").count(), MANY);
}
