//! A server started right after another's end, at its addresses.

use crate::snapshots::{ready, start_in};
use crate::support::{Client, Server, foreign, free_port};

/// A ring that polls a listener keeps it for some time after the end of its process.
#[test]
fn a_server_finds_the_places_of_one_that_has_just_ended() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s.sock");
    for backend in ["io_uring", "epoll"] {
        let (port, http) = (free_port(), free_port().to_string());
        let words =
            ["--io-backend", backend, "--unixsocket", path.to_str().expect("UTF-8"), "--http-port", &http];
        for round in 0..16 {
            let server = Server::start_on_with(port, &words);
            let mut server = server.unwrap_or_else(|| panic!("{backend}, start {round}: a place is in use"));
            let mut near = Client::unix(&path);
            near.expect("PING", "+PONG");
            let mut client = server.client();
            client.expect("SET k v", "+OK");
            match round % 3 {
                0 => client.send("SHUTDOWN\r\n"),
                1 => server.signal("TERM"),
                _ => server.signal("INT"),
            }
            assert_eq!(server.exit_code(), Some(0), "{backend}, end {round}");
            assert!(!path.exists(), "{backend}, end {round}: the path is left");
        }
    }
}

/// A key that a script or a transaction wrote with a time that has passed is gone for its later commands. A
/// start sees the same.
#[test]
fn times_that_have_passed_leave_a_log_that_loads() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = start_in(folder.path(), &args);
    let mut client = ready(&server);
    let past = |key: &str| format!("redis.call('SET', '{key}', 10, 'PXAT', 1)");
    for (key, then) in [
        ("list", "'LPUSH', 'list', 'a'"),
        ("number", "'INCR', 'number'"),
        ("text", "'APPEND', 'text', 'x'"),
        ("absent", "'SETNX', 'absent', 'v'"),
        ("kept", "'SET', 'kept', 'v', 'KEEPTTL'"),
        ("source", "'COPY', 'source', 'copy'"),
        ("member", "'SUNIONSTORE', 'union', 'member', 'others'"),
    ] {
        let line = format!("EVAL \"{} return redis.pcall({then}) and 1\" 0", past(key));
        client.call(&line);
        let long =
            format!("EVAL \"for i = 1, 3e6 do end {} redis.pcall({then})\" 0", past(&format!("long{key}")));
        client.call(&long.replace(&format!("'{key}'"), &format!("'long{key}'")));
    }
    // The same view meets a key that comes and goes again.
    for line in [
        "MULTI",
        "SET twice v PXAT 1",
        "GET twice",
        "SET other 1",
        "SET twice v PXAT 1",
        "LPUSH twice a",
        "EXEC",
        "MULTI",
        "EVAL \"return 1\" 0",
        "SET script v PXAT 1",
        "SADD script m",
        "MSETEX 2 m1 a m2 b PXAT 1",
        "LPUSH m1 a",
        "EXEC",
    ] {
        client.call(line);
    }
    let all = |client: &mut Client| {
        let names =
            ["list", "number", "text", "absent", "kept", "copy", "union", "twice", "script", "m1", "m2"];
        let keys = names.iter().flat_map(|key| [(*key).to_owned(), format!("long{key}")]);
        let mut all = Vec::new();
        for key in keys {
            let facts = ["TYPE", "PTTL"].map(|fact| client.call(&format!("{fact} {key}")));
            all.push(format!("{key} {}", facts.join(" ")));
        }
        all.extend(["GET number", "GET longnumber"].map(|line| client.call(line)));
        all
    };
    let before = all(&mut client);
    assert!(before[0].starts_with("list +list") && before[14].starts_with("twice +list"), "{before:?}");
    client.send("SHUTDOWN\r\n");
    assert_eq!(server.exit_code(), Some(0));
    let server = start_in(folder.path(), &args);
    assert_eq!(all(&mut ready(&server)), before);
}
