//! The door of a server that runs in production: who may stay without a login, how many may come from one
//! address, what the server says of itself when it starts, and what it tells nobody.

use crate::held::await_figure;
use crate::support::{Client, PATIENCE, Server, foreign, run, said};
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn a_client_that_does_not_log_in_in_time_is_closed() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--requirepass", "secret"]);
    let mut known = server.client();
    known.expect("AUTH secret", "+OK");
    let mut silent = server.client();
    let mut asking = server.client();
    asking.expect("PING", "-NOAUTH Authentication required.");
    asking.send("PING\r\n");
    known.expect("CONFIG SET auth-timeout 1", "+OK");
    assert!(silent.is_closed_within(PATIENCE));
    // Asking does not buy time.
    let deadline = Instant::now() + PATIENCE;
    while asking.reply_within(PATIENCE).as_deref() != Some("(closed)") {
        assert!(Instant::now() < deadline);
        asking.send_if_open("PING\r\n");
    }
    known.expect("PING", "+PONG");
    known.expect("CONFIG SET auth-timeout 0", "+OK");
    known.expect("RESET", "+RESET");
    assert!(!known.is_closed_within(Duration::from_secs(3)), "0 is no limit");
}

#[test]
fn clients_that_need_no_password_have_all_the_time() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--auth-timeout", "1", "--unixsocket", "{dir}/s"]);
    let mut client = server.client();
    assert!(!client.is_closed_within(Duration::from_secs(3)));
    client.expect("PING", "+PONG");
}

#[test]
fn one_address_has_so_many_connections() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--maxclients-per-address", "2", "--unixsocket", "{dir}/s"]);
    let (mut a, mut b) = (server.client(), server.client());
    a.expect("PING", "+PONG");
    b.expect("PING", "+PONG");
    let mut third = server.client();
    third.expect_reply("-ERR max number of clients of one address reached");
    assert!(third.is_closed_within(PATIENCE));
    // A unix socket has no address.
    let mut near = [0; 3].map(|_| Client::unix(&server.dir.path().join("s")));
    near.iter_mut().for_each(|client| client.expect("PING", "+PONG"));
    a.expect("CONFIG SET maxclients-per-address 0", "+OK");
    let mut third = server.client();
    third.expect("PING", "+PONG");
    a.expect("CONFIG SET maxclients-per-address 3", "+OK");
    server.client().expect_reply("-ERR max number of clients of one address reached");
    drop(third);
    await_figure(&mut a, "connected_clients", |count| count == 5);
    server.client().expect("PING", "+PONG");
}

#[test]
fn requests_before_a_login_are_small() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    for (bytes, reply) in [
        ("*11\r\n".to_owned(), "-ERR Protocol error: unauthenticated multibulk length"),
        ("*2\r\n$4\r\nPING\r\n$16385\r\n".to_owned(), "-ERR Protocol error: unauthenticated bulk length"),
        ("x".repeat(70_000), "-ERR Protocol error: too big inline request"),
    ] {
        let mut client = server.client();
        client.send_if_open(&bytes);
        client.expect_reply(reply);
        assert!(client.is_closed_within(PATIENCE), "{reply}");
    }
    let mut client = server.client();
    client.expect("AUTH secret", "+OK");
    let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain([&b"k"[..]; 20]).collect();
    assert_eq!(client.call_bytes(&words), ":0");
}

#[test]
fn replies_that_nobody_reads_before_a_login_take_no_memory() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let mut control = server.client();
    control.expect("AUTH secret", "+OK");
    let before = server.resident_bytes();
    let mut stream = TcpStream::connect(server.addr).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let requests = b"PING\r\n".repeat(10_000);
    let (mut sent, most) = (0, 256 << 20);
    while sent < most {
        match stream.write(&requests) {
            Ok(count) => sent += count,
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{e}");
                break;
            }
        }
    }
    assert!(sent < most, "the server reads on although nobody reads its replies");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes for {sent} bytes of requests");
    control.expect("PING", "+PONG");
}

#[test]
fn empty_requests_between_inline_ones_change_nothing_before_a_login() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let mut client = server.client();
    client.send("*0\r\n\r\nPING\r\n*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n\r\n*0\r\nPING\r\n");
    (0..3).for_each(|_| client.expect_reply("-NOAUTH Authentication required."));
    client.send("*0\r\nAUTH secret\r\n*0\r\nPING\r\n");
    client.expect_reply("+OK");
    client.expect_reply("+PONG");
}

#[test]
fn a_warning_looks_at_users() {
    if foreign() {
        return;
    }
    let open = "the user 'default' needs no password";
    let started = |options: &[&str]| {
        let options = [&["--bind", "0.0.0.0"][..], options].concat();
        let mut server = Server::start_with(&options);
        server.signal("TERM");
        server.exit_code();
        server.output()
    };
    let text = started(&[]);
    assert!(text.contains(&format!("{open}: only clients on this machine are answered")), "{text}");
    let text = started(&["--protected-mode", "no"]);
    assert!(text.contains(&format!("{open}, and protected-mode is off")), "{text}");
    let users: [&[&str]; 3] = [
        &["--requirepass", "x"],
        &["--user", "default", "off"],
        &["--user", "default", "on", ">x", "~*", "+@all"],
    ];
    for options in users {
        let text = started(options);
        assert!(text.contains("bye") && !text.contains(open), "{options:?}: {text}");
    }
}

#[test]
fn a_check_names_each_line_without_effect() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, more) = (folder.path().join("a.conf"), folder.path().join("more.conf"));
    fs::write(&more, "maxclients 7\n").unwrap();
    let text = format!(
        "hz 20\nmaxclients 5\nrequirepass hushone\nrequirepass hushtwo\nrename-command CLUSTERSCAN x\n\ninclude {}\nsave 60 1\nsave 30 1\n\
         client-output-buffer-limit normal 1 1 1\nclient-output-buffer-limit pubsub 2 2 2\n\
         latency-tracking-info-percentiles 50\nlatency-tracking-info-percentiles 90 99\n",
        more.display()
    );
    fs::write(&file, text).unwrap();
    let path = file.display();
    let output = run(&["--check-config", &path.to_string(), "--timeout", "5", "--timeout", "6"]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    for line in [
        format!("{path}:1: 'hz 20' has no effect: "),
        format!("{path}:2: 'maxclients 5' has no effect: it is set again: {}:1", more.display()),
        format!("{path}:3: 'requirepass ...' has no effect: it is set again: {path}:4"),
        format!(
            "{path}:5: 'rename-command CLUSTERSCAN x' has no effect: there is no such command in Evenkeel"
        ),
        format!(
            "{path}:12: 'latency-tracking-info-percentiles 50' has no effect: it is set again: {path}:13"
        ),
        "command line: '--timeout 5' has no effect: it is set again: command line".to_owned(),
        "The configuration is correct.".to_owned(),
    ] {
        assert!(said.contains(&line), "{line} is missing in {said}");
    }
    assert!(!said.contains("'save") && !said.contains("'client-output") && !said.contains("hush"), "{said}");
    // Users that cannot be are a mistake, not only at the start.
    fs::write(&file, "user a on\naclfile x\n").unwrap();
    let output = run(&["--check-config", &path.to_string()]);
    assert!(!output.status.success());
}

#[test]
fn a_secret_is_shown_nowhere() {
    if foreign() {
        return;
    }
    let options = ["--slowlog-log-slower-than", "0", "--loglevel", "debug", "--enable-debug-command", "yes"];
    let server = Server::start_with(&options);
    let (mut client, mut monitor) = (server.client(), server.client());
    monitor.expect("MONITOR", "+OK");
    for line in [
        "CONFIG SET requirepass hushhush",
        "AUTH hushhush",
        "AUTH default hushhush",
        "AUTH default hushhush more",
        "HELLO 2 AUTH default hushhush SETNAME me",
        "HELLO 2 SETNAME me AUTH default hushhush",
        "ACL SETUSER u on >hushhush ~* +@all",
        "ACL SETUSER u <hushhush <hushhush",
        "ACL SETUSER u >hushhush",
        "AUTH u hushhush",
        "AUTH u hushhushwrong",
        "AUTH default hushhush",
        "CONFIG SET timeout 500 requirepass hushhush masterauth hushhush",
        "CONFIG SET masterauth hushhush bogus hushhush",
        "MIGRATE 127.0.0.1 1 k 0 10 AUTH hushhush",
        "MIGRATE 127.0.0.1 1 k 0 10 AUTH2 u hushhush",
        "MULTI",
        "CONFIG SET requirepass hushhush",
        "AUTH default hushhush",
        "EXEC",
    ] {
        client.call(line);
    }
    client.expect("ECHO end", "\"end\"");
    let mut shown = String::new();
    for line in [
        "SLOWLOG GET -1",
        "ACL LOG",
        "ACL LIST",
        "INFO everything",
        "CLIENT LIST",
        "LATENCY LATEST",
        "EVENKEEL WAITS",
        "EVENKEEL STALLS",
        "COMMANDLOG GET -1 slow",
    ] {
        shown += &client.call(line);
    }
    assert!(shown.contains("(redacted)"), "{shown}");
    while !shown.contains("\"ECHO\" \"end\"") {
        shown += &monitor.reply();
    }
    shown += &server.output();
    assert!(
        !shown.contains("hushhush"),
        "{}",
        &shown[shown.find("hushhush").unwrap_or(0).saturating_sub(300)..]
    );
}

#[test]
fn mistakes_of_the_protocol_by_the_thousand_leave_nothing() {
    let server = Server::start();
    let mut control = server.client();
    for round in 0..3 {
        for _ in 0..1000 {
            let mut stream = TcpStream::connect(server.addr).unwrap();
            // The client reads no reply, and may find the connection closed.
            let _ = stream.write_all(b"*x\r\n*1\r\n$-5\r\n");
        }
        control.expect(&format!("ECHO {round}"), &format!("\"{round}\""));
    }
    await_figure(&mut control, "connected_clients", |count| count == 1);
    assert_eq!(control.call_bytes(&[b"SET", b"k", b"v"]), "+OK");
}
