//! Replication as users of other servers have complained of it: one test for each complaint that no other file
//! tells of.

use crate::replicas::{differences, follow, info, settle_at, until};
use crate::support::{PATIENCE, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

fn full_syncs(server: &Server) -> String {
    info(&mut server.client(), "stats", "sync_full")
}

/// A replica that has asked for a full sync, and reads nothing of it yet.
fn asks_for_all(server: &Server, port: u16) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(server.addr)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    for words in [&*format!("listening-port {port}"), "capa eof"] {
        socket.write_all(format!("REPLCONF {words}\r\n").as_bytes())?;
        socket.read_exact(&mut [0; 5])?;
    }
    socket.write_all(b"PSYNC ? -1\r\n")?;
    Ok(socket)
}

/// A pipeline of many megabytes is nearly as large as the limit for replicas that fall behind. The feed goes on
/// between the commands, so the replica is never cut off.
#[test]
fn a_busy_primary_feeds_its_replicas() {
    let limit = ["--client-output-buffer-limit", "replica 16mb 16mb 1", "--repl-backlog-size", "1mb"];
    let (primary, replica) = (Server::start_with(&limit), Server::start());
    follow(&replica, &primary);
    let full = full_syncs(&primary);
    let mut client = primary.client();
    let value = "v".repeat(1000);
    for round in 0..5 {
        let lines: String = (0..10_000).map(|n| format!("SET key{n} {value}{round}\r\n")).collect();
        let mut sender = primary.client();
        sender.send(lines);
        (0..10_000).for_each(|_| sender.expect_reply("+OK"));
        client.expect("PING", "+PONG");
        settle_at(&primary, &replica);
    }
    assert_eq!(full_syncs(&primary), full, "the replica was cut off");
}

/// One that loads a snapshot is not behind: what it lacks waits for it, and it says so when it is done.
#[test]
fn a_replica_that_loads_has_no_lag() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POPULATE 20000 key 1000", "+OK");
    let _slow = asks_for_all(&server, 7777).unwrap();
    let line = |client: &mut _| info(client, "replication", "slave0");
    until("the snapshot is sent", || {
        let text = client.call("INFO replication");
        text.contains("slave0:") && line(&mut client).contains("state=send_bulk")
    });
    for n in 0..25 {
        client.expect(&format!("SET fresh{n} x"), "+OK");
        std::thread::sleep(Duration::from_millis(100));
    }
    let shown = line(&mut client);
    assert!(shown.contains("port=7777,state=send_bulk") && shown.contains("lag=0"), "{shown}");
    assert_eq!(info(&mut client, "replication", "replicas_repl_buffer_size"), "0");
}

/// Replicas that throw each snapshot away and come again at once do not keep a save from being done.
#[test]
fn replicas_that_refuse_each_snapshot_keep_no_save_waiting() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POPULATE 20000 key 100", "+OK");
    let (stop, files, next_port) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU16::new(1));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // The same one would have to wait after some of them.
                    let port = next_port.fetch_add(1, Ordering::Relaxed);
                    let Ok(mut socket) = asks_for_all(&server, port) else { continue };
                    let (mut read, mut bytes) = (0, [0; 64 << 10]);
                    // Its version is too new, says such a replica.
                    while let Ok(n @ 1..) = socket.read(&mut bytes) {
                        read += n;
                        if read > 100 << 10 {
                            files.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        until("they have come often", || files.load(Ordering::Relaxed) > 6);
        client.expect("CONFIG SET save \"1 1\"", "+OK");
        for n in 0..3 {
            client.expect(&format!("SET saved {n}"), "+OK");
            until("the save is done", || {
                info(&mut client, "persistence", "rdb_changes_since_last_save") == "0"
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Two servers of one history lead, and write as many bytes of different things. Equal offsets do not make one of
/// them the other's replica.
#[test]
fn an_equal_offset_of_another_history_is_none() {
    let (one, other) = (Server::start(), Server::start());
    follow(&other, &one);
    one.client().expect("SET shared 1", "+OK");
    settle_at(&one, &other);
    other.client().expect("REPLICAOF NO ONE", "+OK");
    until("it leads", || info(&mut other.client(), "replication", "role") == "master");
    one.client().expect("SET mine a", "+OK");
    other.client().expect("SET mine b", "+OK");
    one.client().expect("SET only-here 1", "+OK");
    other.client().expect("SET only-her3 1", "+OK");
    let full = full_syncs(&one);
    follow(&other, &one);
    settle_at(&one, &other);
    assert_eq!(differences(&one, &other), [""; 0]);
    other.client().expect("GET mine", "\"a\"");
    assert_ne!(full_syncs(&one), full, "the histories differ");
}

/// A replica that takes whole files and loads none costs a walk of all keys each time. The fourth has to wait,
/// and is told for how long; others do not.
#[test]
fn a_replica_that_loads_no_copy_has_to_wait_for_the_next_one() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POPULATE 100 key 100", "+OK");
    let take = |port: u16, acks: bool| {
        let mut socket = TcpStream::connect(server.addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(format!("REPLCONF listening-port {port}\r\n").as_bytes()).unwrap();
        socket.read_exact(&mut [0; 5]).unwrap();
        socket.write_all(b"PSYNC ? -1\r\n").unwrap();
        let mut input = BufReader::new(socket.try_clone().unwrap());
        let mut line = || {
            let mut line = String::new();
            while line.trim().is_empty() {
                line.clear();
                input.read_line(&mut line).unwrap();
            }
            line.trim().to_owned()
        };
        let first = line();
        if first.starts_with('-') {
            return Err(first);
        }
        let offset = first.rsplit(' ').next().unwrap().to_owned();
        let len: usize = line()[1..].parse().unwrap();
        input.read_exact(&mut vec![0; len]).unwrap();
        if acks {
            socket.write_all(format!("REPLCONF ACK {offset}\r\n").as_bytes()).unwrap();
            let wanted = format!("port={port},state=online,offset={offset}");
            until("it is heard", || client.call("INFO replication").contains(&wanted));
        }
        drop((socket, input));
        until("it has gone", || info(&mut client, "replication", "connected_slaves") == "0");
        Ok(())
    };
    let mut take = take;
    for _ in 0..3 {
        take(7001, false).expect("three are free");
    }
    for _ in 0..2 {
        let refused = take(7001, false).unwrap_err();
        // Any other code has a replica say SYNC on the same connection.
        assert!(refused.starts_with("-NOMASTERLINK this replica took several full copies"), "{refused}");
        assert!(
            refused.ends_with("10 s at the earliest") || refused.ends_with("9 s at the earliest"),
            "{refused}"
        );
    }
    for _ in 0..5 {
        take(7002, true).expect("this one loads them");
    }
    assert_eq!(info(&mut server.client(), "stats", "sync_full_put_off"), "2");
    assert!(server.output().contains(":7001: this replica took several full copies"), "{}", server.output());
}

/// A replica that does not read is named, with what waits for it, before it is closed for that.
#[test]
fn a_slow_replica_is_named_before_it_is_closed() {
    let limit = ["--client-output-buffer-limit", "replica 64mb 8mb 2", "--repl-backlog-size", "1mb"];
    let server = Server::start_with(&limit);
    let mut client = server.client();
    let mut slow = asks_for_all(&server, 7777).unwrap();
    // All of the small file, and its first ACK: from here on it is fed.
    let mut head = [0; 4096];
    let _ = slow.read(&mut head).unwrap();
    slow.write_all(b"REPLCONF ACK 1\r\n").unwrap();
    until("it is online", || client.call("INFO replication").contains("port=7777,state=online"));
    let value = "v".repeat(1 << 20);
    until("it is closed", || {
        client.expect(&format!("SET large {value}"), "+OK");
        info(&mut client, "replication", "connected_slaves") == "0"
    });
    let log = server.output();
    let named = log.find("replica 127.0.0.1:7777 is slow: ").expect("it is named");
    let closed = log.find("the replica at 127.0.0.1:").expect("it is closed by name");
    assert!(named < closed && log.contains("more than client-output-buffer-limit allows"), "{log}");
}

/// One that gets there between two looks at how replicas keep up is named as well.
#[test]
fn a_replica_that_falls_behind_in_a_moment_is_named_too() {
    let limit = ["--client-output-buffer-limit", "replica 1mb 0 0", "--repl-backlog-size", "1mb"];
    let server = Server::start_with(&limit);
    let mut client = server.client();
    let mut slow = asks_for_all(&server, 7777).unwrap();
    let _ = slow.read(&mut [0; 4096]).unwrap();
    slow.write_all(b"REPLCONF ACK 1\r\n").unwrap();
    until("it is online", || client.call("INFO replication").contains("port=7777,state=online"));
    let value = "v".repeat(24 << 20);
    client.expect(&format!("SET large {value}"), "+OK");
    until("it is closed", || info(&mut client, "replication", "connected_slaves") == "0");
    let log = server.output();
    let named = log.find("replica 127.0.0.1:7777 is slow: ").expect("it is named");
    assert!(named < log.find("the replica at 127.0.0.1:").expect("it is closed by name"), "{log}");
}

/// WAIT names the replica that lacked the writes; and says so if there are not as many.
#[test]
fn a_wait_for_replicas_names_them() {
    let (primary, replica) = (Server::start(), Server::start());
    let mut client = primary.client();
    client.expect("CLIENT SETNAME waiter", "+OK");
    follow(&replica, &primary);
    client.expect("SET k 1", "+OK");
    client.expect("WAIT 1 0", ":1");
    client.expect("WAIT 2 20", ":1");
    let waits = client.call("EVENKEEL WAITS");
    assert!(waits.contains("\"replica\"") && waits.contains("fewer replicas than WAIT names"), "{waits}");
    // It does not answer while it is stopped.
    replica.signal("STOP");
    client.expect("SET k 2", "+OK");
    client.expect("WAIT 1 50", ":0");
    replica.signal("CONT");
    let id = client.call("CLIENT LIST TYPE replica");
    let id = id.trim_start_matches('"').split(' ').next().unwrap().trim_start_matches("id=").to_owned();
    let waits = client.call("EVENKEEL WAITS");
    assert!(waits.contains(&format!("\"client\", :{id}")), "replica {id}: {waits}");
    let own = client.call("CLIENT ID");
    let why = client.call(&format!("EVENKEEL WHY {}", own.trim_start_matches(':')));
    assert!(why.contains("waited-for-replica"), "{why}");
}

/// Keys expire while a failover waits for its replica. That would move the offset which the replica is to
/// reach; so they go when somebody leads.
#[test]
fn keys_that_expire_hold_up_no_failover() {
    let (primary, target) = (Server::start(), Server::start());
    follow(&target, &primary);
    let mut client = primary.client();
    client.send((0..5000).map(|n| format!("SET brief{n} v PX 2000\r\n")).collect::<String>());
    (0..5000).for_each(|_| client.expect_reply("+OK"));
    client.expect("SET kept v", "+OK");
    settle_at(&primary, &target);
    target.signal("STOP");
    client.expect(&format!("FAILOVER TO 127.0.0.1 {}", target.addr.port()), "+OK");
    std::thread::sleep(Duration::from_millis(2500));
    target.signal("CONT");
    until("it ends", || info(&mut client, "replication", "master_failover_state") == "no-failover");
    assert_eq!(info(&mut target.client(), "replication", "role"), "master");
    assert_eq!(info(&mut target.client(), "stats", "sync_full"), "0");
    until("all have expired", || {
        target.client().call("DBSIZE") == ":1" && primary.client().call("DBSIZE") == ":1"
    });
}

/// A client that listens for MOVING writes through planned failovers, and hears no error: a write without
/// an answer was not done, and is done once where it goes on.
#[test]
fn a_planned_failover_fails_no_write_of_a_client_that_listens() {
    let servers = [Server::start(), Server::start()];
    follow(&servers[1], &servers[0]);
    let stop = AtomicBool::new(false);
    let open = |at: usize| {
        let mut client = servers[at].client3();
        client.expect("CLIENT MAINT_NOTIFICATIONS ON", "+OK");
        client
    };
    let write = || {
        let (mut at, mut told, mut done) = (0, false, 0);
        let mut client = open(at);
        while !stop.load(Ordering::Relaxed) {
            client.send("INCR writes\r\n");
            loop {
                let reply = client.reply();
                if reply.contains("\"MOVING\"") {
                    (at, told) = (1 - at, true);
                } else if reply == "(closed)" {
                    assert!(told, "it was not told where to go on");
                    (client, told) = (open(at), false);
                    client.send("INCR writes\r\n");
                } else {
                    done += 1;
                    assert_eq!(reply, format!(":{done}"));
                    break;
                }
            }
        }
        done
    };
    let done = std::thread::scope(|scope| {
        let writer = scope.spawn(write);
        for n in 0..4 {
            let (from, to) = (&servers[n % 2], &servers[(n + 1) % 2]);
            from.client().expect(&format!("FAILOVER TO 127.0.0.1 {}", to.addr.port()), "+OK");
            let line = |server: &Server, name: &str| info(&mut server.client(), "replication", name);
            until("it ends", || line(from, "master_failover_state") == "no-failover");
            assert_eq!(line(to, "role"), "master");
            until("the old primary follows", || line(from, "master_link_status") == "up");
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(done > 0);
    servers[0].client().expect("GET writes", &format!("\"{done}\""));
}
