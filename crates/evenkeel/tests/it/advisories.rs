//! Classes of public advisories about servers of this kind, each tried here or in a test that docs/security.md
//! names.

use crate::held::await_figure;
use crate::support::{Client, PATIENCE, Server, encode, foreign};
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of a hostile call. Within the limit of a request.
const MANY: usize = 1_000_000;

/// Every server is asked this after an attack, on the attacker's connection and on another one.
fn still_serves(server: &mut Server, attacker: &mut Client, what: &str) {
    attacker.expect("ECHO sync", "\"sync\"");
    assert!(server.is_running(), "{what}");
    server.client().expect("PING", "+PONG");
}

#[test]
fn patterns_of_a_hundred_kilobytes_go_no_deeper() {
    let mut server = Server::start();
    let mut client = server.client();
    let name = "a".repeat(60);
    client.expect(&format!("SET {name} 1"), "+OK");
    client.expect(&format!("HSET h {name} 1"), ":1");
    client.expect(&format!("SADD s {name}"), ":1");
    client.expect(&format!("ZADD z 1 {name}"), ":1");
    client.expect(&format!("RPUSH l {name}"), ":1");
    let patterns = ["*?", "*a", "**", "a*", "[", "[^", "\\", "[a-", "*[b]", "?*"];
    for pattern in patterns.map(|part| part.repeat(100_000 / part.len())) {
        let p = pattern.as_bytes();
        let rules = [[b"~", p].concat(), [b"&", p].concat()];
        let calls: [&[&[u8]]; 16] = [
            &[b"KEYS", p],
            &[b"SCAN", b"0", b"MATCH", p],
            &[b"HSCAN", b"h", b"0", b"MATCH", p],
            &[b"SSCAN", b"s", b"0", b"MATCH", p],
            &[b"ZSCAN", b"z", b"0", b"MATCH", p],
            &[b"SORT", b"l", b"BY", p, b"GET", p],
            &[b"ACL", b"SETUSER", b"u", b"on", b"nopass", b"+@all", &rules[0], &rules[1]],
            &[b"ACL", b"SETUSER", b"u", p],
            &[b"ACL", b"DRYRUN", b"u", b"GET", name.as_bytes()],
            &[b"ACL", b"DRYRUN", b"u", b"PUBLISH", name.as_bytes(), b"x"],
            &[b"ACL", b"SETUSER", b"u", b"reset"],
            &[b"FUNCTION", b"LIST", b"LIBRARYNAME", p],
            &[b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", p],
            &[b"PUBSUB", b"CHANNELS", p],
            &[b"CONFIG", b"GET", p],
            &[b"EVAL", b"return redis.call('KEYS', ARGV[1])", b"0", p],
        ];
        for call in calls {
            assert_ne!(client.call_bytes(call), "(closed)", "{:?}", &pattern[..4]);
        }
        let mut listener = server.client();
        listener.call_bytes(&[b"PSUBSCRIBE", p]);
        client.call_bytes(&[b"PUBLISH", name.as_bytes(), b"x"]);
        drop(listener);
        still_serves(&mut server, &mut client, &pattern[..4]);
    }
}

/// Names of the commands that take any number of words.
fn variadic(client: &mut Client) -> Vec<String> {
    let names = client.call("COMMAND LIST");
    let names: Vec<String> = names.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    let is_variadic = |name: &String| {
        let info = client.call(&format!("COMMAND INFO {name}"));
        info.split(", :").nth(1).is_some_and(|arity| arity.starts_with('-'))
    };
    let single = names.into_iter().filter(|name| !name.contains('|'));
    single.filter(is_variadic).collect()
}

#[test]
fn every_variadic_command_takes_very_many_words() {
    let mut server = Server::start();
    let mut control = server.client();
    let names = variadic(&mut control);
    assert!(names.len() > 100, "{names:?}");
    // These end the server or the connection, or answer without end.
    let names = names.iter().filter(|name| !["shutdown", "client"].contains(&name.as_str()));
    for name in names {
        // As many as the request may have for those of the advisory, and for others a tenth: it takes long.
        let count = match name.as_str() {
            "xackdel" | "xdelex" | "xdel" | "xack" | "sadd" | "del" | "pfadd" => MANY,
            _ => MANY / 10,
        };
        let words: Vec<&[u8]> =
            std::iter::once(name.as_bytes()).chain((1..count).map(|_| &b"1"[..])).collect();
        let mut attacker = server.client();
        attacker.send_if_open(encode(&words));
        assert_ne!(attacker.reply(), "(closed)", "{name}");
        control.expect("PING", "+PONG");
        control.expect("FLUSHALL", "+OK");
    }
    still_serves(&mut server, &mut control, "very many words");
}

#[test]
fn no_error_carries_another_reply() {
    let mut server = Server::start();
    let mut client = server.client();
    let hostile: [&[u8]; 3] = [b"x\r\n+OK\r\n:1", b"x\0y\r\n$3\r\nabc", b"\n-ERR\n\r\r\n\r\n"];
    for text in hostile {
        let calls: [&[&[u8]]; 16] = [
            &[text],
            &[b"GET", b"k", text],
            &[b"CONFIG", text],
            &[b"CONFIG", b"SET", text, b"1"],
            &[b"CONFIG", b"SET", b"maxclients", text],
            &[b"OBJECT", text, b"k"],
            &[b"ACL", b"SETUSER", b"u", text],
            &[b"ACL", b"CAT", text],
            &[b"ACL", b"DRYRUN", text, b"GET", b"k"],
            &[b"ACL", b"DRYRUN", b"default", text],
            &[b"CLIENT", b"LIST", b"USER", text],
            &[b"FCALL", text, b"0"],
            &[b"EVAL", b"return redis.error_reply(ARGV[1])", b"0", text],
            &[b"EVAL", b"return redis.status_reply(ARGV[1])", b"0", text],
            &[b"EVAL", b"error({err = ARGV[1]})", b"0", text],
            &[b"EVAL", b"error(ARGV[1])", b"0", text],
        ];
        for call in calls {
            let reply = client.call_bytes(call);
            assert!(reply.starts_with(['-', '+']), "{reply}");
            client.expect("ECHO sync", "\"sync\"");
        }
    }
    still_serves(&mut server, &mut client, "errors");
}

#[test]
fn errors_with_hostile_metamethods_are_errors() {
    let mut server = Server::start();
    let mut client = server.client();
    for script in [
        "error(setmetatable({}, {__index = function() error('x') end}))",
        "error(setmetatable({}, {__index = function(t, k) return t[k] end}))",
        "error(setmetatable({}, {__tostring = function() error('x') end}))",
        "error(setmetatable({}, {__tostring = function() return {} end, __concat = error}))",
        "return setmetatable({}, {__index = function(t) error(t) end, __len = error, __eq = error})",
        "return {err = setmetatable({}, {__tostring = error})}",
        "return {ok = setmetatable({}, {__index = error})}",
        "return {map = setmetatable({}, {__index = error, __pairs = error})}",
        "local t = {} t.err = t error(t)",
        "local t = setmetatable({}, {}) getmetatable(t).__index = t error(t)",
        "xpcall(error, function(e) error(e) end)",
        "return redis.call('SET', setmetatable({}, {__tostring = error}), 'v')",
        "return redis.pcall(setmetatable({}, {__index = error}))",
        "return redis.error_reply(setmetatable({}, {__tostring = error}))",
        "return redis.sha1hex(setmetatable({}, {__tostring = error}))",
        "return cjson.encode(setmetatable({}, {__index = error, __len = error}))",
        "return cmsgpack.pack(setmetatable({}, {__index = error, __len = error}))",
        "return select('#', unpack({}, 0, 2147483647))",
        "return select('#', unpack({}, -2147483648, 2147483647))",
    ] {
        let reply = client.call_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
        assert_ne!(reply, "(closed)", "{script}");
        still_serves(&mut server, &mut client, script);
    }
}

#[test]
fn the_debugger_of_scripts_is_refused() {
    if foreign() {
        return;
    }
    let mut server = Server::start();
    let mut client = server.client();
    for mode in ["YES", "SYNC", "yes"] {
        assert!(
            client
                .call(&format!("SCRIPT DEBUG {mode}"))
                .starts_with("-ERR the script debugger does not exist")
        );
        client.expect("EVAL \"return 1\" 0", ":1");
    }
    client.expect("SCRIPT DEBUG NO", "+OK");
    still_serves(&mut server, &mut client, "SCRIPT DEBUG");
}

/// A client that waits is filled, unblocked and killed in every order, alone and in one transaction.
#[test]
fn a_blocked_client_may_be_served_unblocked_and_killed_at_once() {
    let mut server = Server::start();
    let mut control = server.client();
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let waits =
        ["BLPOP l 0", "BLMOVE l l2 LEFT LEFT 0", "BLMPOP 0 1 l LEFT", "BRPOPLPUSH l l2 0", "BLPOP l x y 0"];
    for round in 0..120 {
        let mut waiter = server.client();
        let id = waiter.call("CLIENT ID");
        let id = id.trim_start_matches(':');
        waiter.send(format!("{}\r\n", waits[round % waits.len()]));
        await_figure(&mut control, "blocked_clients", |count| count == 1);
        let calls =
            ["RPUSH l e".to_owned(), format!("CLIENT UNBLOCK {id} ERROR"), format!("CLIENT KILL ID {id}")];
        let calls = orders[round % orders.len()].map(|at| calls[at].clone()).join("\r\n");
        let (head, tail, replies) =
            if round.is_multiple_of(2) { ("", "", 3) } else { ("MULTI\r\n", "EXEC\r\n", 5) };
        control.send(format!("{head}{calls}\r\n{tail}"));
        (0..replies).for_each(|_| assert_ne!(control.reply(), "(closed)"));
        assert!(waiter.is_closed_within(PATIENCE));
        await_figure(&mut control, "blocked_clients", |count| count == 0);
        // The element is in one place, or was handed to the client.
        let left = [control.call("LLEN l"), control.call("LLEN l2")];
        let left: usize = left.map(|count| count[1..].parse::<usize>().unwrap()).iter().sum();
        assert!(left <= 1, "{left}");
        control.call("DEL l l2");
    }
    still_serves(&mut server, &mut control, "blocked clients");
}

/// The last destination is the one that is written, and the one that is asked for.
#[test]
fn a_destination_that_is_named_twice_is_checked_twice() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("ACL SETUSER u on nopass ~mine* +@all db=0", "+OK");
    admin.expect("GEOADD mine 1 1 m", ":1");
    let mut user = server.client();
    user.expect("AUTH u x", "+OK");
    let (key, database) =
        ("-NOPERM No permissions to access a key", "-NOPERM No permissions to access database");
    for (call, reply) in [
        ("GEORADIUS mine 1 1 9 km STORE yours", key),
        ("GEORADIUS mine 1 1 9 km STORE mine2 STORE yours", key),
        ("GEORADIUS mine 1 1 9 km STORE yours STORE mine2", ":1"),
        ("GEORADIUS mine 1 1 9 km STORE mine2 STOREDIST yours", key),
        ("GEORADIUS mine 1 1 9 km STOREDIST yours STORE mine2", ":1"),
        ("GEORADIUSBYMEMBER mine m 9 km STORE mine2 STORE yours", key),
        ("GEORADIUSBYMEMBER mine m 9 km STORE yours STORE mine2", ":1"),
        ("SORT mine STORE mine2 STORE yours", key),
        ("COPY mine mine2 DB 1", database),
        ("COPY mine mine2 DB 0 DB 1", database),
        ("COPY mine mine2 DB 1 DB 0", database),
        ("COPY mine mine2 REPLACE DB 1 REPLACE", database),
        ("COPY mine yours DB 0", key),
    ] {
        user.expect(call, reply);
        admin.expect("EXISTS yours", ":0");
    }
    admin.expect("SELECT 1", "+OK");
    admin.expect("DBSIZE", ":0");
}

/// The last cell of each row of the table, where the tests stand.
fn named_tests(text: &str) -> Vec<(String, Vec<String>)> {
    let section = text
        .split("\n## ")
        .find(|section| section.starts_with("Classes of advisories"))
        .expect("the section");
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| class"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let names = cells.last().unwrap_or(&"").split('`').skip(1).step_by(2);
        (cells[0].trim().to_owned(), names.map(str::to_owned).collect())
    })
    .collect()
}

fn sources(folder: &Path, found: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            *found += &fs::read_to_string(&path).unwrap();
        }
    }
}

#[test]
fn each_class_of_advisories_has_a_test_that_exists() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = named_tests(&fs::read_to_string(root.join("docs/security.md")).unwrap());
    assert!(rows.len() >= 20, "{}", rows.len());
    let mut text = String::new();
    sources(&root.join("crates"), &mut text);
    let is_target = |name: &str| root.join(format!("fuzz/targets/{name}.rs")).exists();
    for (class, names) in rows {
        assert!(!names.is_empty(), "no test is named for: {class}");
        for name in names {
            let is_test = text.contains(&format!("fn {name}("));
            assert!(is_test || is_target(&name), "{class}: there is no test {name}");
        }
    }
}
