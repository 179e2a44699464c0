//! Scripts that take long to compile: others are served, and the compilation ends as a script does.

use crate::held::{Hold, eventually, figure, others_are_served};
use crate::support::{Client, Server, encode, foreign};
use std::time::Duration;

/// A text that takes long to compile.
fn branches() -> Vec<u8> {
    format!("local a if a then {}end return 1", "elseif a then a = 1 ".repeat(60_000)).into_bytes()
}

/// A server with keys that others use.
fn server() -> Option<Server> {
    crate::held::laden()
}

/// The ways in which a thread comes to compile a text.
fn ways(text: &[u8]) -> Vec<(Vec<u8>, usize)> {
    let line = |words: &[&[u8]]| encode(words);
    let eval = line(&[b"EVAL", text, b"0"]);
    let load = line(&[b"SCRIPT", b"LOAD", text]);
    let within = line(&[b"EVAL", b"return loadstring(ARGV[1])()", b"0", text]);
    let multi = [line(&[b"MULTI"]), eval.clone(), line(&[b"EXEC"])].concat();
    // The number of replies that come before.
    vec![(eval, 0), (load, 0), (within, 0), (multi, 2)]
}

#[test]
fn a_script_that_is_being_compiled_can_be_killed() {
    let Some(server) = server() else { return };
    let mut other = server.client();
    for (bytes, before) in ways(&branches()) {
        let mut hold = Hold::first_at(&server, "script-step");
        let mut attacker = server.client();
        attacker.send(&bytes);
        (0..before).for_each(|_| drop(attacker.reply()));
        hold.await_victim();
        others_are_served(&server);
        other.expect("SCRIPT KILL", "+OK");
        hold.release();
        let told = attacker.reply();
        assert!(told.contains("Script killed by user with SCRIPT KILL."), "{told}");
        eventually(&mut other, "SCRIPT KILL", "-NOTBUSY No scripts in execution right now.");
    }
}

#[test]
fn a_script_that_takes_too_long_to_compile_is_ended() {
    let Some(server) = server() else { return };
    let mut other = server.client();
    other.expect("CONFIG SET script-max-time 1", "+OK");
    for (bytes, before) in ways(&branches()) {
        let mut hold = Hold::first_at(&server, "script-step");
        let mut attacker = server.client();
        attacker.send(&bytes);
        (0..before).for_each(|_| drop(attacker.reply()));
        hold.await_victim();
        // A command held this long has had its millisecond.
        std::thread::sleep(Duration::from_millis(5));
        hold.release();
        let told = attacker.reply();
        assert!(told.contains("script-max-time exceeded: 1 ms"), "{told}");
    }
}

#[test]
fn a_long_compilation_ends_when_its_client_goes() {
    let Some(server) = server() else { return };
    let mut other = server.client();
    let text = "a = 1 ".repeat(700_000).into_bytes();
    let sha = other.call_bytes(&[b"EVAL", b"return redis.sha1hex(ARGV[1])", b"0", &text]);
    let sha = sha.trim_matches('"').to_owned();
    for way in [&[b"EVAL".as_slice(), &text, b"0"][..], &[b"SCRIPT", b"LOAD", &text]] {
        let mut hold = Hold::first_at(&server, "script-step");
        let mut attacker = server.client();
        attacker.send(encode(way));
        hold.await_victim();
        let connected = figure(&mut other, "connected_clients");
        drop(attacker);
        crate::held::await_figure(&mut other, "connected_clients", |now| now < connected);
        hold.release();
        eventually(&mut other, "SCRIPT KILL", "-NOTBUSY No scripts in execution right now.");
        other.expect(&format!("SCRIPT EXISTS {sha}"), "[:0]");
    }
}

#[test]
fn minus_zero_reaches_commands_as_zero() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let stored = |client: &mut Client, what: &str| {
        client.call(&format!(
            "EVAL \"local x = 0 redis.call('SET', 'k', {what}) return redis.call('GET', 'k')\" 0"
        ))
    };
    for what in ["-0", "-x", "math.floor(-0.0)", "0 * -1", "tonumber('-0')"] {
        assert_eq!(stored(&mut client, what), "\"0\"", "{what}");
    }
    assert_eq!(stored(&mut client, "tostring(-x)"), "\"-0\"");
    client.expect("EVAL \"local x = 0 return -x\" 0", ":0");
}

#[test]
fn the_longest_time_that_can_be_set_is_no_limit() {
    let Some(server) = server() else { return };
    let mut client = server.client();
    client.expect("CONFIG SET script-max-time 9223372036854775807", "+OK");
    client.expect("EVAL \"local n = 0 for i = 1, 1000000 do n = n + 1 end return n\" 0", ":1000000");
}
