//! A bug in the program: long work that panics fails alone. Any other panic ends the process rather than
//! leave clients without an answer.

use crate::held::figure;
use crate::support::{Client, Server, foreign};

const BROKEN: &str = "-ERR internal error, nothing was changed; the server's log says more";

#[test]
fn long_work_that_panics_fails_alone() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    for (key, step) in [("big", 1), ("other", 2)] {
        let words: String = (0..2000).map(|i| format!(" m{}", i * step)).collect();
        client.call(&format!("SADD {key}{words}"));
    }
    let script = "for i = 1, 3e6 do end return redis.call('SET', 'by-script', 1)";
    let lines = [
        ("job-start", "SDIFF big other".to_owned(), "[\"m"),
        ("job-end", "SDIFFSTORE result big other".to_owned(), ":1000"),
        ("script-start", format!("EVAL \"{script}\" 1 by-script"), "+OK"),
        ("script-step", format!("EVAL \"{script}\" 1 by-script"), "+OK"),
    ];
    for (n, (point, line, right)) in lines.iter().enumerate() {
        other.expect(&format!("DEBUG POINT {point} PANIC 1"), "+OK");
        client.expect(line, BROKEN);
        assert_eq!(figure(&mut other, "panics_contained"), n as u64 + 1);
        other.expect("EXISTS result by-script", ":0");
        // The next one works, on the same connection and thread.
        let reply = client.call(line);
        assert!(reply.starts_with(right), "{line}: {reply}");
        other.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
        other.call("DEL result by-script");
    }
    // A transaction with long work in it is discarded whole.
    other.expect("DEBUG POINT job-start PANIC 1", "+OK");
    other.expect("DEBUG POINT script-start PANIC 1", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("SET by-exec 1", "+QUEUED");
    client.expect("SDIFFSTORE result big other", "+QUEUED");
    client.expect("EXEC", BROKEN);
    other.expect("EXISTS result by-exec", ":0");
    client.expect("GET by-exec", "(nil)");
    for point in ["job-start", "script-start"] {
        other.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
    }
    assert_eq!(figure(&mut other, "snapshots_open"), 0);
    assert_eq!(figure(&mut other, "scripts_running"), 0);
    server.await_words("DEBUG POINT asked for it at ScriptStep");
}

#[test]
fn a_panic_elsewhere_ends_the_process() {
    if foreign() {
        return;
    }
    let mut server = Server::start();
    let mut client = server.client();
    client.send("DEBUG PANIC\r\n");
    // By a signal: no exit code.
    assert_eq!(server.exit_code(), None);
    let said = server.output();
    assert!(said.contains("DEBUG PANIC") && said.contains("panicked: the server ends"), "{said}");
}

/// A command that panics before it has changed anything fails alone. Its connection and all others go on, its
/// locks are free, and it is counted.
#[test]
fn a_command_that_only_reads_fails_alone() {
    if foreign() {
        return;
    }
    for backend in ["epoll", "io_uring"] {
        let server = Server::start_with(&["--io-backend", backend]);
        let (mut client, mut other) = (server.client(), server.client());
        client.expect("SET k v", "+OK");
        let mut count = 0;
        let arm = |other: &mut Client, point: &str| {
            other.expect(&format!("DEBUG POINT {point} PANIC 1"), "+OK");
        };
        let mut goes_on = |client: &mut Client, other: &mut Client| {
            count += 1;
            assert_eq!(figure(other, "panics_contained"), count);
            // The locks are free, and both go on.
            other.expect("SET k v", "+OK");
            client.expect("GET k", "\"v\"");
        };
        arm(&mut other, "read");
        client.expect("MEMORY USAGE k", BROKEN);
        goes_on(&mut client, &mut other);

        // In the midst of a pipeline: earlier commands are answered, and so are later ones.
        arm(&mut other, "read");
        client.send("SET a 1\r\nGET a\r\nDUMP k\r\nINCR a\r\nPING\r\n");
        for reply in ["+OK", "\"1\"", BROKEN, ":2", "+PONG"] {
            client.expect_reply(reply);
        }
        goes_on(&mut client, &mut other);

        arm(&mut other, "report");
        client.expect("INFO server", BROKEN);
        goes_on(&mut client, &mut other);

        // EXEC: an estimate, and a queue that only reads.
        for point in ["estimate", "read"] {
            client.expect("WATCH k", "+OK");
            client.expect("MULTI", "+OK");
            client.expect("GET k", "+QUEUED");
            client.expect("DUMP none", "+QUEUED");
            arm(&mut other, point);
            client.expect("EXEC", BROKEN);
            client.expect("EXEC", "-ERR EXEC without MULTI");
            goes_on(&mut client, &mut other);
        }
        client.expect("MULTI", "+OK");
        client.expect("GET k", "+QUEUED");
        client.expect("EXEC", "[\"v\"]");

        // A script on its loop.
        client.send("PING\r\n");
        arm(&mut other, "read");
        client.send("EVAL \"redis.call('SET', 'by-script', 1) return redis.pcall('DUMP', KEYS[1])\" 1 k\r\n");
        client.expect_reply("+PONG");
        client.expect_reply(BROKEN);
        client.expect("EXISTS by-script", ":0");
        goes_on(&mut client, &mut other);
        client.expect("EVAL \"return 1\" 0", ":1");

        // Muted replies stay so.
        client.send("CLIENT REPLY OFF\r\n");
        arm(&mut other, "read");
        client.send("DUMP k\r\nCLIENT REPLY ON\r\n");
        client.expect_reply("+OK");
        goes_on(&mut client, &mut other);

        // A loop reads the keys of long work.
        let many: String = (0..1200).map(|i| format!(" m{i}")).collect();
        let far = "for i = 1, 3e6 do end return redis.call('GET', 'far' .. #KEYS)";
        for line in [format!("SUNIONSTORE result{many}"), format!("EVAL \"{far}\" 0")] {
            arm(&mut other, "load");
            client.expect(&line, BROKEN);
            other.expect("EXISTS result", ":0");
            goes_on(&mut client, &mut other);
        }
        assert_eq!(figure(&mut other, "snapshots_open"), 0);

        // The begin of the next command is unknown: the connection is closed after an error.
        arm(&mut other, "parse");
        client.send("PING\r\n*1\r\n$4\r\nPI");
        client.expect_reply("+PONG");
        client.expect_reply(BROKEN);
        assert!(client.is_closed_within(crate::support::PATIENCE));
        client = server.client();
        goes_on(&mut client, &mut other);
        server.await_words("DEBUG POINT asked for it at Read");
    }
}

#[test]
fn a_request_over_http_that_panics_is_answered_and_the_next_one_is_served() {
    crate::http::on_both(|_, mut client, at| {
        client.expect("SET item:1 {}", "+OK");
        let mut http = crate::http::Http::to(at);
        for (n, (point, path)) in
            [("read", "/items/1"), ("read", "/items?ids=1"), ("report", "/metrics")].iter().enumerate()
        {
            http.get("/items/1").expect(200, "{}");
            client.expect(&format!("DEBUG POINT {point} PANIC 1"), "+OK");
            http.send(format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\nGET /items/1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            ));
            let response = http.response();
            assert!(response.status >= 500, "{path}: {}", response.status);
            http.response().expect(200, "{}");
            assert_eq!(figure(&mut client, "panics_contained"), n as u64 + 1);
            client.expect("SET item:1 {}", "+OK");
        }
    });
}

/// A command that has begun to change something leaves an unknown state.
#[test]
fn a_panic_in_the_midst_of_a_change_ends_the_process() {
    if foreign() {
        return;
    }
    for lines in ["COPY k l REPLACE\r\n", "MULTI\r\nCOPY k l\r\nEXEC\r\n"] {
        let mut server = Server::start();
        let mut client = server.client();
        client.expect("SET k v", "+OK");
        client.expect("DEBUG POINT change PANIC 1", "+OK");
        client.send(lines);
        assert_eq!(server.exit_code(), None);
        assert!(server.output().contains("panicked: the server ends"), "{}", server.output());
    }
    // A queue that has written, and then panics where it only reads.
    let mut server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POINT read PANIC 1", "+OK");
    client.send("MULTI\r\nSET k v\r\nDUMP k\r\nEXEC\r\n");
    assert_eq!(server.exit_code(), None);
    // Over an overlay nothing has happened yet.
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET k v", "+OK");
    client.expect("DEBUG POINT change PANIC 1", "+OK");
    client.expect("EVAL \"return redis.call('COPY', KEYS[1], KEYS[2])\" 2 k l", BROKEN);
    client.expect("EXISTS k l", ":1");
}

/// A long commit's keys are put in their places by commands that meet them. A read that did so, and then failed,
/// was taken for one that had changed something before its error.
#[test]
fn a_read_that_fails_has_not_changed_what_another_commit_left_to_it() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..5 {
        let script = "for i = 1, 8000 do redis.call('RPUSH', 'list' .. i, 'x') end";
        client.expect(&format!("EVAL \"{script}\" 0"), "(nil)");
        let lines: String = (1..=8000).rev().map(|i| format!("BITFIELD_RO list{i} GET u8 0\r\n")).collect();
        client.send(lines);
        for _ in 0..8000 {
            client.expect_reply("-WRONGTYPE Operation against a key holding the wrong kind of value");
        }
    }
}
