//! CLIENT REPLY: commands without a reply are done all the same.

use crate::support::{PATIENCE, Server, foreign};
use std::time::{Duration, Instant};

#[test]
fn what_takes_many_slices_is_done_though_nobody_is_answered() {
    let server = Server::start();
    let (mut muted, mut client) = (server.client(), server.client());
    muted.request(&[b"CLIENT", b"REPLY", b"OFF"]);
    muted.request(&[b"DEBUG", b"POPULATE", b"5000"]);
    muted.request(&[b"KEYS", b"*"]);
    muted.request(&[b"SET", b"last", b"v"]);
    let deadline = Instant::now() + PATIENCE;
    while client.call("DBSIZE") != ":5001" {
        assert!(Instant::now() < deadline, "{}", client.call("DBSIZE"));
        std::thread::sleep(Duration::from_millis(5));
    }
    muted.request(&[b"CLIENT", b"REPLY", b"ON"]);
    muted.expect_reply("+OK");
    muted.request(&[b"CLIENT", b"REPLY", b"SKIP"]);
    muted.request(&[b"DEBUG", b"POPULATE", b"5000", b"other"]);
    muted.expect("DBSIZE", ":10001");
}

#[test]
fn a_transaction_does_not_wait_for_the_disk() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("MULTI", "+OK");
    client.expect("CONFIG REWRITE", "+QUEUED");
    client.expect("EXEC", "[-ERR The server is running without a config file]");
    // As Sentinel sends it to a server that has one.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evenkeel.conf");
    std::fs::write(&file, "# mine\n").unwrap();
    let server = Server::start_file_with(&file, &[]);
    let mut client = server.client();
    client.expect("MULTI", "+OK");
    client.expect("SLAVEOF 127.0.0.1 1", "+QUEUED");
    client.expect("CONFIG REWRITE", "+QUEUED");
    client.expect("EXEC", "[+OK, +OK]");
    crate::replicas::until("the file names the primary", || {
        std::fs::read_to_string(&file).unwrap().contains("replicaof 127.0.0.1 1")
    });
}

#[test]
fn rewrites_of_transactions_take_one_thread_however_slow_the_disk() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evenkeel.conf");
    std::fs::write(&file, "# mine\n").unwrap();
    let server = Server::start_file_with(&file, &[]);
    let mut client = server.client();
    // Reading the old file lasts until somebody writes into the pipe.
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    for n in 1..=50 {
        client.expect("MULTI", "+OK");
        client.expect(&format!("CONFIG SET maxclients {}", 500 + n), "+QUEUED");
        client.expect("CONFIG REWRITE", "+QUEUED");
        client.expect("EXEC", "[+OK, +OK]");
    }
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let name =
        |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
    let writing = tasks.filter_map(|task| name(task).ok()).filter(|name| name.trim() == "rewrite").count();
    assert_eq!(writing, 1);
    std::fs::write(&file, "# mine\n").unwrap();
    crate::replicas::until("the file has the last value", || {
        file.metadata().unwrap().is_file()
            && std::fs::read_to_string(&file).unwrap().contains("maxclients 550")
    });
}

#[test]
fn a_trim_that_removes_nothing_is_a_change_of_a_watched_list() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    other.expect("RPUSH l a b", ":2");
    client.expect("WATCH l", "+OK");
    // Valkey 9 leaves it alone.
    other.expect("LTRIM l 0 -1", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("LLEN l", "+QUEUED");
    client.expect("EXEC", "(nil array)");
}

#[test]
fn an_empty_line_is_a_command_without_a_reply() {
    let server = Server::start();
    let mut client = server.client();
    for nothing in ["\n", "\r\n\r\n", "*0\r\n", "*-1\r\n"] {
        client.send(format!("CLIENT REPLY SKIP\r\n{nothing}ECHO one\r\nECHO two\r\n"));
        client.expect_reply("\"one\"");
        client.expect_reply("\"two\"");
    }
}
