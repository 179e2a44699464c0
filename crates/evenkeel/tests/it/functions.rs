//! Libraries of functions: how they are transferred.

use crate::support::{Client, Server, foreign};

const ONE: &str = "#!lua name=one\\nredis.register_function('f', function() return 1 end)";
const TWO: &str = "#!lua name=two\\nredis.register_function('g', function() return 2 end)";
const OTHER: &str = "#!lua name=other\\nredis.register_function('f', function() return 3 end)";

/// FUNCTION DUMP of real servers, the second library compressed: Redis 8.0, Redis 8.6 (with another order),
/// and Valkey 9.1.
const SMALL: &str = "\\xf5@J#!lua name=mylib\\nredis.register_function('f1', function(k,a) return 1 end)";
const LARGE: &str = "\\xf5\\xc3@P@\\xb3\\x15#!lua name=biglib\\n-- a\\xe0Z\\x00\\x1e\\nredis.register_function('f2', \
    \\xe0\\x00\\x0e\\x11k,a) return 1 end)";
const REDIS_8: &str = "\\x0c\\x00\\xf1.r\\xfd\\x02D\\x95<";
const REDIS_8_6: &str = "\\r\\x00\\xdd}\\x0e\\xb1\\xbf\\xe8\\x8ed";
const VALKEY_9: &str = "P\\x00\\xf5r\\x8f\\xacf<l\\x81";

const WRONG: &str = "-ERR DUMP payload version or checksum are wrong";

fn load(client: &mut Client, code: &str, name: &str) {
    client.expect(&format!("FUNCTION LOAD REPLACE \"{code}\""), &format!("\"{name}\""));
}

/// FUNCTION DUMP in the form [`Client::call`] takes.
fn dump(client: &mut Client) -> String {
    let dump = client.call("FUNCTION DUMP");
    assert!(dump.starts_with('"'), "{dump}");
    dump
}

#[test]
fn a_dump_restores_all_libraries_elsewhere() {
    let (from, to) = (Server::start(), Server::start());
    let (mut from, mut to) = (from.client(), to.client());
    load(&mut from, ONE, "one");
    load(&mut from, TWO, "two");
    to.expect(&format!("FUNCTION RESTORE {}", dump(&mut from)), "+OK");
    to.expect("FCALL f 0", ":1");
    to.expect("FCALL g 0", ":2");
    let listed = to.call("FUNCTION LIST LIBRARYNAME one WITHCODE");
    assert_eq!(listed, from.call("FUNCTION LIST LIBRARYNAME one WITHCODE"));
}

#[test]
fn restore_keeps_replaces_or_flushes_what_is_there() {
    let server = Server::start();
    let mut client = server.client();
    load(&mut client, ONE, "one");
    let one = dump(&mut client);
    client.expect(&format!("FUNCTION RESTORE {one}"), "-ERR Library one already exists");
    client.expect(&format!("FUNCTION RESTORE {one} append"), "-ERR Library one already exists");
    client.expect(&format!("FUNCTION RESTORE {one} replace"), "+OK");
    client.expect("FUNCTION FLUSH", "+OK");
    load(&mut client, OTHER, "other");
    client.expect(&format!("FUNCTION RESTORE {one} REPLACE"), "-ERR Function f already exists");
    client.expect("FCALL f 0", ":3");
    client.expect(&format!("FUNCTION RESTORE {one} FLUSH"), "+OK");
    client.expect("FCALL f 0", ":1");
    client.expect("FUNCTION LIST LIBRARYNAME other", "[]");
}

#[test]
fn nothing_of_a_dump_is_kept_if_one_library_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    load(&mut client, ONE, "one");
    load(&mut client, TWO, "two");
    let both = dump(&mut client);
    client.expect("FUNCTION DELETE one", "+OK");
    client.expect(&format!("FUNCTION RESTORE {both} APPEND"), "-ERR Library two already exists");
    client.expect("FCALL f 0", "-ERR Function not found");
}

#[test]
fn dumps_of_other_servers_are_restored() {
    let server = Server::start();
    let mut client = server.client();
    for body in [[SMALL, LARGE, REDIS_8], [LARGE, SMALL, REDIS_8_6], [SMALL, LARGE, VALKEY_9]] {
        let payload = format!("\"{}\"", body.concat());
        if foreign() && client.call(&format!("FUNCTION RESTORE {payload} FLUSH")) == WRONG {
            continue;
        }
        client.expect(&format!("FUNCTION RESTORE {payload} FLUSH"), "+OK");
        client.expect("FCALL f1 0", ":1");
        client.expect("FCALL f2 0", ":1");
    }
}

#[test]
fn payloads_that_are_none_are_refused() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("FUNCTION RESTORE nonsense", WRONG);
    client.expect("FUNCTION RESTORE \"\"", WRONG);
    let policy = "-ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.";
    client.expect("FUNCTION RESTORE nonsense maybe", policy);
    let arity = "-ERR unknown subcommand or wrong number of arguments for 'RESTORE'. Try FUNCTION HELP.";
    client.expect("FUNCTION RESTORE nonsense APPEND more", arity);
    let mut payload = dump(&mut client);
    payload.insert(1, 'x');
    client.expect(&format!("FUNCTION RESTORE {payload}"), WRONG);
}

#[test]
fn a_transaction_may_dump_and_restore() {
    let server = Server::start();
    let mut client = server.client();
    load(&mut client, ONE, "one");
    let one = dump(&mut client);
    client.expect("MULTI", "+OK");
    client.expect("FUNCTION DUMP", "+QUEUED");
    client.expect(&format!("FUNCTION RESTORE {one} REPLACE"), "+QUEUED");
    client.expect("FCALL f 0", "+QUEUED");
    client.expect("EXEC", &format!("[{one}, +OK, :1]"));
}

/// A function is found in any case, and its name is taken in any case.
#[test]
fn fcall_finds_a_function_in_any_case() {
    let server = Server::start();
    let mut client = server.client();
    let library = |name: &str, function: &str| {
        format!("#!lua name={name}\nredis.register_function('{function}', function() return 1 end)")
    };
    client.request(&[b"FUNCTION", b"LOAD", library("one", "MyFunction").as_bytes()]);
    client.expect_reply("\"one\"");
    for name in ["MyFunction", "myfunction", "MYFUNCTION"] {
        client.expect(&format!("FCALL {name} 0"), ":1");
    }
    client.expect("FCALL yourfunction 0", "-ERR Function not found");
    client.request(&[b"FUNCTION", b"LOAD", library("two", "myfunction").as_bytes()]);
    client.expect_reply("-ERR Function myfunction already exists");
    client.expect("FUNCTION DELETE one", "+OK");
    client.expect("FCALL MyFunction 0", "-ERR Function not found");
    client.request(&[b"FUNCTION", b"LOAD", library("two", "myfunction").as_bytes()]);
    client.expect_reply("\"two\"");
    client.expect("FCALL MYFunction 0", ":1");
}
