//! Servers that start again go on with the history of their data: nobody needs a full copy for that.

use crate::replicas::{differences, follow, info, settle_at, until, write_much};
use crate::support::{Client, Server};
use std::path::Path;

/// A server on a port, with its data in a folder.
fn start(port: u16, dir: &Path, more: &[&str]) -> Server {
    let args = [&["--dir", dir.to_str().unwrap()], more].concat();
    let server = (0..4).find_map(|_| Server::start_on_with(port, &args)).expect("it starts");
    until("the data are loaded", || !server.client().call("DBSIZE").starts_with("-LOADING"));
    server
}

fn port_of(server: &Server) -> u16 {
    server.addr.port()
}

fn kill(mut server: Server) {
    server.signal("KILL");
    server.exit_code();
}

fn end(mut server: Server) {
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

/// Whether a log names an offset as its place in the history.
fn has_place(dir: &Path, offset: &str) -> bool {
    let files = std::fs::read_dir(dir.join("appendonlydir")).unwrap();
    let texts = files.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok());
    let mut lines = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
    lines.any(|text| {
        text.lines().any(|line| line.starts_with("#ER ") && line.split(' ').nth(3) == Some(offset))
    })
}

fn full(server: &Server) -> String {
    info(&mut server.client(), "stats", "sync_full")
}

fn write(client: &mut Client, salts: std::ops::Range<usize>) {
    salts.for_each(|salt| write_much(client, salt));
}

/// A way to keep data, and one to end a server.
type Way = (&'static [&'static str], fn(Server));

/// The ways in which data are kept, and the way in which a server ends that keeps all of them.
const WAYS: [Way; 4] = [
    (&["--appendonly", "yes", "--appendfsync", "everysec"], end),
    (&["--appendonly", "yes", "--appendfsync", "always"], kill),
    (&["--appendonly", "yes", "--appendfsync", "always"], end),
    (&["--save", "3600 1"], end),
];

#[test]
fn a_replica_that_starts_again_goes_on_where_it_was() {
    for (ways, end) in WAYS {
        for primary in [Some(Server::start()), Server::redis(&[])].into_iter().flatten() {
            let folder = tempfile::tempdir().unwrap();
            let replica = start(crate::support::free_port(), folder.path(), ways);
            let port = port_of(&replica);
            let mut client = primary.client();
            client.expect("SET early x PX 300", "+OK");
            write(&mut client, 0..10);
            follow(&replica, &primary);
            if ways[0] == "--appendonly" {
                // It began anew behind the copy, and has its base.
                replica.await_words("the append-only log is written");
            }
            client.expect("SELECT 3", "+OK");
            client.expect("SET selected 1", "+OK");
            settle_at(&primary, &replica);
            if ways[0] == "--appendonly" {
                let offset = info(&mut replica.client(), "replication", "master_repl_offset");
                until("the log names the place", || has_place(folder.path(), &offset));
            }
            let before = full(&primary);
            end(replica);
            // Keys that expire meanwhile go at the word of the primary alone.
            std::thread::sleep(std::time::Duration::from_millis(350));
            client.expect("SET selected 2", "+OK");
            let of = format!("127.0.0.1 {}", primary.addr.port());
            let replica = start(port, folder.path(), &[ways, &["--replicaof", &of]].concat());
            write(&mut client, 10..20);
            settle_at(&primary, &replica);
            assert_eq!(differences(&primary, &replica), [""; 0], "{ways:?}");
            assert_eq!(full(&primary), before, "{ways:?}: a full copy was not needed");
        }
    }
}

#[test]
fn a_primary_that_starts_again_is_followed_without_a_full_copy() {
    for (ways, end) in WAYS {
        for replica in [Some(Server::start()), Server::redis(&[])].into_iter().flatten() {
            let folder = tempfile::tempdir().unwrap();
            let primary = start(crate::support::free_port(), folder.path(), ways);
            let port = port_of(&primary);
            let mut client = primary.client();
            follow(&replica, &primary);
            write(&mut client, 0..10);
            client.expect("PUBLISH nobody hears", ":0");
            settle_at(&primary, &replica);
            let id = info(&mut client, "replication", "master_replid");
            end(primary);
            let primary = start(port, folder.path(), ways);
            let mut client = primary.client();
            assert_ne!(info(&mut client, "replication", "master_replid"), id);
            assert_eq!(info(&mut client, "replication", "master_replid2"), id, "{ways:?}");
            write(&mut client, 10..20);
            settle_at(&primary, &replica);
            assert_eq!(differences(&primary, &replica), [""; 0], "{ways:?}");
            assert_eq!(full(&primary), "0", "{ways:?}: a full copy was not needed");
        }
    }
}

/// One who lost writes that its replica has must not go on with it.
#[test]
fn a_primary_that_lost_writes_gives_a_full_copy() {
    let folder = tempfile::tempdir().unwrap();
    let ways = ["--save", "3600 1000000"];
    let primary = start(crate::support::free_port(), folder.path(), &ways);
    let port = port_of(&primary);
    let replica = Server::start();
    follow(&replica, &primary);
    let mut client = primary.client();
    write(&mut client, 0..10);
    client.expect("SAVE", "+OK");
    write(&mut client, 10..20);
    settle_at(&primary, &replica);
    kill(primary);
    let primary = start(port, folder.path(), &ways);
    assert_ne!(info(&mut primary.client(), "replication", "master_replid2"), "0".repeat(40));
    settle_at(&primary, &replica);
    assert_eq!(differences(&primary, &replica), [""; 0]);
    assert_eq!(full(&primary), "1");
}

/// Under `always` a replica hears of nothing that is not durable; signs of life come all the same.
#[test]
fn signs_of_life_come_though_nothing_is_written() {
    let primary = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = primary.client();
    client.expect("CONFIG SET repl-ping-replica-period 1", "+OK");
    let replica = Server::start();
    follow(&replica, &primary);
    client.expect("SET k v", "+OK");
    settle_at(&primary, &replica);
    let offset = || info(&mut replica.client(), "replication", "master_repl_offset");
    let before = offset();
    until("a sign of life", || offset() != before);
    settle_at(&primary, &replica);
}
