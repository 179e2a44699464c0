//! CLIENT PAUSE: after its answer nothing changes, not even by commands already on their way.

use crate::held::{Hold, MANY, WRITES, await_figure, eval, eventually, figure, laden};
use crate::support::{Client, Server, encode_line, foreign};
use std::time::{Duration, Instant};

/// Long enough for a write to be seen if it were done.
const A_WHILE: Duration = Duration::from_millis(150);

fn many(command: &str, element: impl Fn(usize) -> String) -> String {
    let words: String = (0..MANY).map(|i| format!(" {}", element(i))).collect();
    format!("{command}{words}")
}

/// Long writes on their way: the point that holds them, the command, the command that shows their effect, and
/// the replies.
fn writes() -> Vec<(&'static str, String, &'static str, String)> {
    let union = format!(":{}", MANY + MANY / 2);
    vec![
        ("job-end", "SUNIONSTORE into big other".into(), "EXISTS into", union),
        ("script-end", eval(WRITES), "EXISTS counted", format!("\"{MANY}\"")),
        ("commit-place", many("MSET", |i| format!("new:{i} {i}")), "EXISTS new:0 new:1 new:2", "+OK".into()),
        (
            "commit-place",
            eval("for i = 1, 20000 do redis.call('SET', 'made:' .. i, i) end return 1"),
            "EXISTS made:1 made:2 made:3",
            ":1".into(),
        ),
    ]
}

/// Holds a write at a point until there is a pause, and no longer.
#[track_caller]
fn overtaken_by_a_pause(server: &Server, point: &'static str, line: &str, pause: &str) -> Client {
    let (mut admin, mut writer) = (server.client(), server.client());
    let mut hold = Hold::first_at(server, point);
    writer.send(encode_line(line));
    hold.await_victim();
    admin.expect(pause, "+OK");
    hold.release();
    assert_eq!(writer.reply_within(A_WHILE), None, "{point}: answered during a pause");
    writer
}

#[test]
fn long_writes_on_their_way_wait_for_the_end_of_a_pause() {
    let Some(server) = laden() else { return };
    let mut admin = server.client();
    for (point, line, question, reply) in writes() {
        let mut writer = overtaken_by_a_pause(&server, point, &line, "CLIENT PAUSE 100000 WRITE");
        admin.expect(question, ":0");
        // Reads are served, long ones too.
        admin.expect("SINTERCARD 2 big other", &format!(":{}", MANY / 2));
        await_figure(&mut admin, "writes_paused", |paused| paused == 1);
        admin.expect("CLIENT UNPAUSE", "+OK");
        writer.expect_reply(&reply);
        let id = writer.call("CLIENT ID");
        let why = admin.call(&format!("EVENKEEL WHY {}", id.trim_start_matches(':')));
        assert!(why.contains("waited-for-pause"), "{point}: {why}");
        assert_ne!(admin.call(question), ":0", "{point}");
    }
    await_figure(&mut admin, "snapshots_open", |open| open == 0);
    assert_eq!(figure(&mut admin, "writes_paused"), 0);
}

/// A short write waits for a pause as well, and its client can see why.
#[test]
fn who_waited_for_a_pause_is_told_so() {
    let Some(server) = laden() else { return };
    let (mut admin, mut writer) = (server.client(), server.client());
    admin.expect("CONFIG SET slowlog-log-slower-than 100000", "+OK");
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    writer.send("SET k v\r\n");
    await_figure(&mut admin, "blocked_clients", |blocked| blocked == 1);
    assert_eq!(writer.reply_within(A_WHILE), None);
    admin.expect("CLIENT UNPAUSE", "+OK");
    writer.expect_reply("+OK");
    let log = admin.call("SLOWLOG WHY -1");
    assert!(log.contains("for the end of CLIENT PAUSE") && log.contains("\"SET\""), "{log}");
    assert!(admin.call("EVENKEEL WAITS").contains("\"pause\""));
}

/// The decision of a write counts for all, and its reply comes.
#[test]
fn a_write_that_is_decided_ends_during_a_pause() {
    let Some(server) = laden() else { return };
    let (mut admin, mut writer) = (server.client(), server.client());
    let mut hold = Hold::first_at(&server, "commit-fold");
    writer.send(encode_line(&many("MSET", |i| format!("new:{i} {i}"))));
    hold.await_victim();
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    hold.release();
    writer.expect_reply("+OK");
    admin.expect("EXISTS new:0 new:1 new:2", ":3");
}

#[test]
fn a_pause_that_ends_by_itself_lets_writes_go_on() {
    let Some(server) = laden() else { return };
    let (mut admin, mut writer) = (server.client(), server.client());
    let mut hold = Hold::first_at(&server, "job-end");
    writer.send(encode_line("SUNIONSTORE into big other"));
    hold.await_victim();
    let began = Instant::now();
    admin.expect("CLIENT PAUSE 600 WRITE", "+OK");
    hold.release();
    writer.expect_reply(&format!(":{}", MANY + MANY / 2));
    assert!(began.elapsed() >= Duration::from_millis(600));
}

#[test]
fn a_script_held_by_a_pause_can_be_killed() {
    let Some(server) = laden() else { return };
    let mut admin = server.client();
    for point in ["script-end", "commit-place"] {
        let line = eval("for i = 1, 20000 do redis.call('SET', 'made:' .. i, i) end return 1");
        let mut writer = overtaken_by_a_pause(&server, point, &line, "CLIENT PAUSE 100000 WRITE");
        admin.expect("SCRIPT KILL", "+OK");
        let told = writer.reply();
        assert!(told.contains("Script killed by user"), "{point}: {told}");
        admin.expect("EXISTS made:1", ":0");
        admin.expect("CLIENT UNPAUSE", "+OK");
    }
}

/// Expired keys are gone for clients, but are removed only after the pause.
#[test]
fn nothing_is_swept_or_evicted_during_a_pause() {
    let Some(server) = laden() else { return };
    let (mut admin, mut client) = (server.client(), server.client());
    let before = loop {
        client.expect("SET brief 1 PX 500", "+OK");
        admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
        let before = figure(&mut admin, "expired_keys");
        // On a slow machine it was swept before the pause.
        if client.call("EXISTS brief") == ":1" {
            break before;
        }
        admin.expect("CLIENT UNPAUSE", "+OK");
    };
    eventually(&mut client, "EXISTS brief", ":0");
    admin.expect("CONFIG SET maxmemory-policy allkeys-lru", "+OK");
    admin.expect("CONFIG SET maxmemory 1mb", "+OK");
    std::thread::sleep(2 * A_WHILE);
    assert_eq!(figure(&mut admin, "expired_keys"), before);
    assert_eq!(figure(&mut admin, "evicted_keys"), 0);
    admin.expect("CLIENT UNPAUSE", "+OK");
    await_figure(&mut admin, "expired_keys", |expired| expired == before + 1);
    await_figure(&mut admin, "evicted_keys", |evicted| evicted > 0);
}

/// No end of another reason lets reads remove expired keys, or writes go on.
#[test]
fn a_load_does_not_end_a_pause() {
    let Some(server) = laden() else { return };
    let (mut admin, mut client) = (server.client(), server.client());
    client.expect("SET brief 1 PX 3000", "+OK");
    admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
    let before = figure(&mut admin, "expired_keys");
    admin.expect("DEBUG RELOAD", "+OK");
    eventually(&mut client, "EXISTS brief", ":0");
    assert_eq!(client.call("GET brief"), "(nil)");
    std::thread::sleep(A_WHILE);
    // A key that had expired before the reload is not in the file, and is not counted either.
    assert_eq!(figure(&mut admin, "expired_keys"), before);
    client.send("SET k v\r\n");
    assert_eq!(client.reply_within(A_WHILE), None);
    admin.expect("CLIENT UNPAUSE", "+OK");
    client.expect_reply("+OK");
}

/// Scripts and functions that say `no-writes`, as a real server runs them during a pause of writes.
const READS: [&str; 3] = [
    "EVAL \"#!lua flags=no-writes\nreturn redis.call('GET', KEYS[1])\" 1 k",
    "EVAL_RO \"return redis.call('GET', KEYS[1])\" 1 k",
    "FCALL reads 1 k",
];

/// PFCOUNT is among them, as in a real server, which may write its estimate into the value.
const MAY_WRITE: [&str; 7] = [
    "PFCOUNT none",
    "EVAL \"#!lua\nreturn redis.call('GET', KEYS[1])\" 1 k",
    "EVAL \"return redis.call('GET', KEYS[1])\" 1 k",
    "EVAL \"#!lua flags=bogus,no-writes\nreturn 1\" 1 k",
    "EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 k",
    "FCALL writes 1 k",
    "FCALL_RO writes 1 k",
];

const LIBRARY: &str = "#!lua name=l\n\
    local function get(keys) return redis.call('GET', keys[1]) end\n\
    redis.register_function{function_name='reads', callback=get, flags={'no-writes'}}\n\
    redis.register_function{function_name='writes', callback=get}";

#[test]
fn a_pause_of_writes_lets_scripts_run_that_write_nothing() {
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("SET k v", "+OK");
    admin.call_bytes(&[b"FUNCTION", b"LOAD", LIBRARY.as_bytes()]);
    let sha =
        admin.call_bytes(&[b"SCRIPT", b"LOAD", b"#!lua flags=no-writes\nreturn redis.call('GET', KEYS[1])"]);
    let known = format!("EVALSHA {} 1 k", sha.trim_matches('"'));
    let calls = READS.into_iter().chain([known.as_str()]).map(|line| (line, false));
    for (line, waits) in calls.chain(MAY_WRITE.map(|line| (line, true))) {
        let (mut alone, mut queued) = (server.client(), server.client());
        queued.expect("MULTI", "+OK");
        queued.expect("GET k", "+QUEUED");
        queued.send(encode_line(line));
        queued.expect_reply("+QUEUED");
        admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
        alone.send(encode_line(line));
        queued.send("EXEC\r\n");
        if waits {
            assert_eq!(alone.reply_within(A_WHILE), None, "{line}");
            assert_eq!(queued.reply_within(A_WHILE), None, "{line}");
        } else {
            alone.expect_reply("\"v\"");
            queued.expect_reply("[\"v\", \"v\"]");
        }
        admin.expect("CLIENT UNPAUSE", "+OK");
        if waits {
            alone.reply();
            queued.reply();
        }
    }
}

/// A library was asked for before the pause, and is loaded behind it.
#[test]
fn the_wait_of_a_library_for_the_end_of_a_pause_has_a_name() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut admin, mut loader) = (server.client(), server.client());
    let id = loader.call("CLIENT ID");
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "library").count()
    };
    let code = "for i = 1, 4000000 do end redis.register_function('f', function() return 1 end)";
    let mut waits = String::new();
    crate::replicas::until("the wait has a name", || {
        loader.send(format!("FUNCTION LOAD REPLACE \"#!lua name=late\\n{code}\"\r\n"));
        let mut answer = None;
        crate::replicas::until("it is on its way", || {
            answer = loader.reply_within(Duration::from_millis(1));
            threads() == 1 || answer.is_some()
        });
        admin.expect("CLIENT PAUSE 100000 WRITE", "+OK");
        answer = answer.or_else(|| loader.reply_within(A_WHILE));
        admin.expect("CLIENT UNPAUSE", "+OK");
        assert_eq!(answer.unwrap_or_else(|| loader.reply()), "\"late\"");
        waits = admin.call("EVENKEEL WAITS");
        waits.contains("\"pause\"")
    });
    assert!(waits.contains(&id), "{waits}");
    let why = admin.call(&format!("EVENKEEL WHY {}", id.trim_start_matches(':')));
    assert!(why.contains("\"waited-for-pause\""), "{why}");
}

/// The stricter kind of two pauses of one transaction counts until the later end.
#[test]
fn a_transaction_may_begin_a_stricter_pause_and_a_longer_one() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    for line in ["MULTI", "CLIENT PAUSE 1 ALL", "CLIENT PAUSE 800 WRITE"] {
        admin.call(line);
    }
    let begun = Instant::now();
    client.send("GET k\r\n");
    admin.send("EXEC\r\n");
    admin.expect_reply("[+OK, +OK]");
    client.expect_reply("(nil)");
    client.expect("GET k", "(nil)");
    assert!(begun.elapsed() >= Duration::from_millis(700));
}
