//! Starting the server: command line, configuration files, ports, signals.

use crate::support::{PATIENCE, Server, encode_line, foreign, run, said};
use std::fs;

/// Writes a configuration file and starts the server with it, which must fail; returns the output.
fn refused_with(config: &str) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("evenkeel.conf");
    fs::write(&file, config).expect("a file");
    let output = run(&[&file.display().to_string()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    said(&output)
}

#[test]
fn a_port_in_use_is_named_together_with_a_command_that_works() {
    let server = Server::start();
    let port = server.addr.port().to_string();
    let output = run(&["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains(&port), "{text}");
    if foreign() {
        return;
    }
    assert!(text.contains("is already in use"), "{text}");
    assert!(
        text.contains(&server.pid().to_string()),
        "the owner is our own process and can be named: {text}"
    );
    let hint = text.lines().find(|line| line.contains("--port ")).expect("a command with another port");
    assert!(hint.contains("--bind 127.0.0.1") && !hint.contains(&format!("--port {port}")), "{hint}");
}

#[test]
fn a_configuration_file_is_read_and_the_command_line_overrides_it() {
    let server = Server::start_with(&["--client-query-buffer-limit", "100mb"]);
    server
        .client()
        .expect("CONFIG GET client-query-buffer-limit", r#"["client-query-buffer-limit", "104857600"]"#);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("a.conf");
    fs::write(&file, "# comment\n\nclient-query-buffer-limit 1gb\r\ndatabases 4\nloglevel \"warning\"\n")
        .expect("a file");
    // Redis takes the file only as its first word.
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--include", &file.display().to_string()]);
    let mut client = server.client();
    client.expect("CONFIG GET client-query-buffer-limit", r#"["client-query-buffer-limit", "1073741824"]"#);
    client.expect("SELECT 4", "-ERR DB index is out of range");
    client.expect("CONFIG GET loglevel", r#"["loglevel", "warning"]"#);
}

/// Debian's redis.conf: its service starts the server with these words behind it, and makes the folder of the
/// pidfile.
#[test]
fn a_redis_conf_for_the_background_is_served_in_the_foreground() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redis.conf");
    let pidfile = dir.path().join("nowhere/redis.pid");
    fs::write(&file, format!("daemonize yes\nsave 3600 1\npidfile {}\n", pidfile.display())).unwrap();
    // Redis takes the file only as its first word.
    if foreign() {
        return;
    }
    let file = file.to_str().unwrap();
    let server = Server::start_with(&[
        "--include",
        file,
        "--supervised",
        "systemd",
        "--daemonize",
        "no",
        "--save",
        "",
    ]);
    server.client().expect("CONFIG GET daemonize", "[\"daemonize\", \"no\"]");
    server.await_words("cannot write the pidfile");
}

#[test]
fn mistakes_in_the_configuration_name_file_line_and_text() {
    let text = refused_with("port 0\n# fine\nnosuchdirective 5\n");
    assert!(text.contains("at line 3"), "{text}");
    assert!(text.contains(">>> 'nosuchdirective 5'"), "{text}");
    if !foreign() {
        assert!(text.contains("evenkeel.conf"), "{text}");
    }
    let text = refused_with("timeout -5\n");
    assert!(text.contains("at line 1") && text.contains("'timeout -5'"), "{text}");
    let text = refused_with("maxmemory 1mb extra\n");
    assert!(text.contains("at line 1"), "{text}");
    let text = refused_with("requirepass \"open\n");
    assert!(text.contains("at line 1") && text.contains("Unbalanced quotes"), "{text}");
}

#[test]
fn what_does_not_exist_yet_is_refused_rather_than_ignored() {
    if foreign() {
        return;
    }
    let text = refused_with("port 0\nloadmodule /x.so\n");
    assert!(text.contains("at line 2") && text.contains("loadmodule /x.so"), "{text}");
    let server = Server::start();
    let mut client = server.client();
    let reply = client.call("BGREWRITEAOF");
    assert!(reply.starts_with("-ERR"), "{reply}");
    client.expect("CONFIG SET appendonly no", "+OK");
    client.expect("CONFIG SET save \"\"", "+OK");
}

#[test]
fn a_missing_configuration_file_is_an_error() {
    let output = run(&["/nosuch/evenkeel.conf"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("/nosuch/evenkeel.conf"), "{}", said(&output));
}

#[test]
fn version_and_help_answer_without_starting() {
    for word in ["--version", "-v", "--help", "-h"] {
        let output = run(&[word]);
        assert!(!said(&output).is_empty());
        if !foreign() {
            assert_eq!(output.status.code(), Some(0), "{word}");
            assert!(said(&output).to_lowercase().contains("evenkeel"), "{}", said(&output));
        }
    }
}

#[test]
fn sigterm_and_sigint_end_the_server_in_order() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start_with(&["--unixsocket", "{dir}/socket"]);
        let mut client = server.client();
        client.expect("SET k v", "+OK");
        client.send(encode_line("BLPOP nosuch 0"));
        server.signal(signal);
        assert_eq!(server.exit_code(), Some(0), "{signal}: {}", server.output());
        assert!(client.is_closed_within(PATIENCE), "the client is closed");
        assert!(!server.dir.path().join("socket").exists(), "the socket is removed");
    }
}

#[test]
fn shutdown_ends_the_server_without_an_answer() {
    let mut server = Server::start();
    let mut client = server.client();
    client.expect("SHUTDOWN NOSUCH", "-ERR syntax error");
    client.send(encode_line("SHUTDOWN NOSAVE"));
    client.expect_reply("(closed)");
    assert_eq!(server.exit_code(), Some(0), "{}", server.output());
}

#[test]
fn the_port_is_free_again_right_after_the_end() {
    let mut server = Server::start();
    let mut client = server.client();
    client.expect("PING", "+PONG");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    let again = Server::start_on(server.addr.port());
    again.client().expect("PING", "+PONG");
}
