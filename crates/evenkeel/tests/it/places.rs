//! Places for long work: no client keeps them for ever, however many scripts never end. A client that waited
//! learns for which other.

use crate::held::{await_figure, figure};
use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use crate::waits::until;
use std::time::Instant;

/// It has read, so it needs a snapshot, and never ends.
const ENDLESS: &str = "EVAL \"redis.call('GET', 'k') while true do end\" 0";
/// More of them than there are places.
const MANY: usize = 70;
const PLACES: u64 = 64;

fn begin(server: &Server, line: &str, count: usize) -> Vec<Client> {
    (0..count)
        .map(|_| {
            let mut client = server.client();
            client.send(encode_line(line));
            client
        })
        .collect()
}

/// Long commands of all kinds, each of which needs a place, or a thread.
fn long_work_is_done(client: &mut Client) {
    let members: String = (0..30_000).map(|i| format!(" m{i}")).collect();
    client.expect(&format!("SADD s{members}"), ":30000");
    client.expect("SORT s ALPHA LIMIT 0 1", "[\"m0\"]");
    assert!(client.call("KEYS *").contains("\"s\""));
    client.expect("MULTI", "+OK");
    client.expect("SADD s more", "+QUEUED");
    client.expect("SORT s ALPHA LIMIT 0 1", "+QUEUED");
    client.expect("EVAL \"for i = 1, 100000 do end return redis.call('SCARD', 's')\" 0", "+QUEUED");
    client.expect("EXEC", "[:1, [\"m0\"], :30001]");
    let library =
        "#!lua name=l\nredis.register_function('f', function() for i = 1, 100000 do end return 7 end)";
    client.request(&[b"FUNCTION", b"LOAD", b"REPLACE", library.as_bytes()]);
    client.expect_reply("\"l\"");
    client.expect("FCALL f 0", ":7");
    client.expect("DEL s", ":1");
}

#[test]
fn scripts_that_never_end_keep_nobody_from_a_place() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut other) = (server.client(), server.client());
    let endless = begin(&server, ENDLESS, MANY);
    await_figure(&mut control, "places_of_scripts", |held| held == PLACES);
    await_figure(&mut control, "scripts_waiting", |waiting| waiting == MANY as u64 - PLACES);
    long_work_is_done(&mut other);
    // One that takes long, and ends.
    let line = "EVAL \"local n = redis.call('EXISTS', 'k') for i = 1, 1000000 do n = n + 1 end return n\" 0";
    other.expect(line, ":1000000");
    // None of the others has ended: they began anew.
    let info = control.call("INFO evenkeel");
    let figure_of = |name: &str| {
        let (_, figure) = info.split_once(&format!("{name}:")).expect("a figure");
        let digits = figure.bytes().take_while(u8::is_ascii_digit).count();
        figure[..digits].parse::<usize>().expect("a number")
    };
    assert_eq!(figure_of("scripts_running") + figure_of("scripts_waiting"), MANY, "{info}");
    assert!(figure_of("places_given_up") > 0);
    other.expect("PING", "+PONG");
    let mut ids: Vec<String> = Vec::new();
    for line in control.call("CLIENT LIST").split("id=").filter(|line| line.contains("cmd=eval")) {
        ids.extend(line.split(' ').next().map(str::to_owned));
    }
    assert_eq!(ids.len(), MANY);
    for id in ids {
        control.expect(&format!("CLIENT KILL ID {id}"), ":1");
    }
    for name in ["scripts_running", "scripts_waiting", "places_of_scripts", "snapshots_open"] {
        await_figure(&mut control, name, |left| left == 0);
    }
    assert!(endless.into_iter().all(|mut client| client.is_closed_within(PATIENCE)));
}

#[test]
fn scripts_whose_clients_have_gone_end_when_others_wait_and_after_a_time() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut other) = (server.client(), server.client());
    control.expect("CONFIG SET script-orphan-time 0", "+OK");
    let endless = begin(&server, ENDLESS, MANY);
    // A request whose client leaves before it is read does not run.
    await_figure(&mut control, "scripts_waiting", |waiting| waiting == MANY as u64 - PLACES);
    drop(endless);
    // About as many end as others wait for. Scripts that end at one moment free more places than are wanted.
    await_figure(&mut control, "scripts_orphans_ended", |ended| ended >= MANY as u64 - PLACES);
    await_figure(&mut control, "scripts_running", |running| running > 0 && running <= PLACES);
    await_figure(&mut control, "scripts_waiting", |waiting| waiting == 0);
    long_work_is_done(&mut other);
    assert!(figure(&mut control, "scripts_running") < PLACES);
    control.expect("CONFIG SET script-orphan-time 1", "+OK");
    await_figure(&mut control, "scripts_running", |running| running == 0);
    // A script that ends before its orphan time is up has its effect.
    control.expect("CONFIG SET script-orphan-time 60000", "+OK");
    let one = begin(&server, "EVAL \"for i = 1, 100000 do redis.call('INCR', 'done') end\" 0", 1);
    until("the script runs", || {
        figure(&mut control, "scripts_running") == 1 || other.call("GET done") == "\"100000\""
    });
    drop(one);
    let deadline = Instant::now() + PATIENCE;
    while other.call("GET done") != "\"100000\"" {
        assert!(Instant::now() < deadline, "what a client left behind is not done");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// No work under way of a killed client is done, be it a script, a command or an EXEC.
#[test]
fn work_of_a_client_that_is_killed_ends() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    for key in ["a", "b"] {
        let members: String = (0..2_000).map(|i| format!(" {key}{i}")).collect();
        control.call(&format!("SADD {key}{members}"));
    }
    let long: String = (0..2_000).map(|i| format!("SETNX into:{i} 1\r\n")).collect();
    let requests = [
        ("job-start", "SUNIONSTORE into a b\r\n".to_owned()),
        ("job-end", "SUNIONSTORE into a b\r\n".to_owned()),
        ("job-end", "SDIFF a b\r\n".to_owned()),
        ("job-end", format!("MULTI\r\n{long}SET into 1\r\nEXEC\r\n")),
        (
            "script-end",
            encode_line("EVAL \"for i = 1, 30000 do redis.call('INCR', 'into') end\" 0")
                .iter()
                .map(|byte| *byte as char)
                .collect(),
        ),
    ];
    for (point, request) in requests {
        control.expect(&format!("DEBUG POINT {point} HOLD 1"), "+OK");
        let mut victim = server.client();
        let id = victim.call("CLIENT ID");
        victim.send(request.as_bytes());
        let deadline = Instant::now() + PATIENCE;
        while control.call(&format!("DEBUG POINT {point}")) != ":1" {
            assert!(Instant::now() < deadline, "nobody comes to {point}");
        }
        control.expect(&format!("CLIENT KILL ID {}", id.trim_start_matches(':')), ":1");
        assert!(victim.is_closed_within(PATIENCE));
        let deadline = Instant::now() + PATIENCE;
        while control.call("CLIENT LIST").contains(&format!("id={} ", id.trim_start_matches(':'))) {
            assert!(Instant::now() < deadline, "the client does not go");
        }
        control.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
        for name in ["snapshots_open", "scripts_running", "worker_jobs_running", "places_of_jobs"] {
            await_figure(&mut control, name, |left| left == 0);
        }
        control.expect("EXISTS into into:0", ":0");
    }
}

/// A client that waited for a place learns for which other, even if that one has left.
#[test]
fn who_waited_for_a_place_learns_for_which_script() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut other) = (server.client(), server.client());
    control.expect("CONFIG SET script-orphan-time 0", "+OK");
    control.expect(&format!("DEBUG POINT script-step HOLD {PLACES}"), "+OK");
    let mut endless: Vec<Client> = (0..PLACES).map(|_| server.client()).collect();
    for client in &mut endless {
        client.expect("CLIENT SETNAME culprit", "+OK");
        client.send(encode_line(ENDLESS));
    }
    await_figure(&mut control, "places_of_scripts", |held| held == PLACES);
    drop(endless);
    let id = other.call("CLIENT ID");
    let members: String = (0..3_000).map(|i| format!(" m{i}")).collect();
    other.send(format!("SADD s{members}\r\n"));
    await_figure(&mut control, "snapshots_waiting", |waiting| waiting == 1);
    assert_eq!(figure(&mut control, "worker_jobs_waiting"), 1);
    await_figure(&mut control, "places_given_up", |asked| asked > 0);
    control.expect("DEBUG POINT script-step OFF", "+OK");
    other.expect_reply(":3000");
    let why = control.call(&format!("EVENKEEL WHY {}", id.trim_start_matches(':')));
    let sha = control.call("SCRIPT LOAD \"redis.call('GET', 'k') while true do end\"");
    assert!(why.contains("waited-for-snapshot") && why.contains("culprit"), "{why}");
    let waits = control.call("EVENKEEL WAITS");
    assert!(waits.contains("culprit") && waits.contains(sha.trim_matches('"')), "{waits}");
    control.expect("SCRIPT KILL", "+OK");
    await_figure(&mut control, "scripts_running", |running| running == 0);
}
