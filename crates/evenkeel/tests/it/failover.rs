//! FAILOVER: a replica leads in place of its primary, and nothing is lost.

use crate::replicas::{differences, follow, info, settle_at, until, write_much};
use crate::support::{Client, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Servers that can be told to lead, as far as they are there.
fn targets() -> Vec<(&'static str, Server)> {
    let mut all = vec![("evenkeel", Some(Server::start()))];
    all.push(("redis 7.0", Server::redis(&[])));
    all.push(("valkey 9", Server::peer("valkey-server", &[])));
    all.into_iter().filter_map(|(name, server)| Some((name, server?))).collect()
}

fn state(server: &Server) -> String {
    info(&mut server.client(), "replication", "master_failover_state")
}

fn role(server: &Server) -> String {
    info(&mut server.client(), "replication", "role")
}

fn call_to(server: &Server, words: &str) -> String {
    format!("FAILOVER TO 127.0.0.1 {} {words}", server.addr.port())
}

#[test]
fn a_replica_leads_and_the_old_primary_follows_it_without_a_full_copy() {
    for (name, target) in targets() {
        let primary = Server::start();
        let mut client = primary.client();
        follow(&target, &primary);
        (0..20).for_each(|salt| write_much(&mut client, salt));
        client.expect(&call_to(&target, "TIMEOUT 60000"), "+OK");
        until("the replica leads", || role(&target) == "master" && role(&primary) == "slave");
        until("it is over", || state(&primary) == "no-failover");
        assert_eq!(info(&mut target.client(), "stats", "sync_full"), "0", "{name}: a partial sync is enough");
        assert!(client.call("SET k v").starts_with("-READONLY"), "{name}");
        let mut leader = target.client();
        (20..30).for_each(|salt| write_much(&mut leader, salt));
        settle_at(&target, &primary);
        assert_eq!(differences(&target, &primary), [""; 0], "{name}");
    }
}

/// Redis and Valkey hand over to Evenkeel with the same words.
#[test]
fn it_leads_in_place_of_others() {
    for (name, primary) in targets() {
        let target = Server::start();
        let mut client = primary.client();
        follow(&target, &primary);
        (0..20).for_each(|salt| write_much(&mut client, salt));
        client.expect(&call_to(&target, "TIMEOUT 60000"), "+OK");
        until("the replica leads", || role(&target) == "master" && role(&primary) == "slave");
        until("it is over", || state(&primary) == "no-failover");
        assert_eq!(info(&mut target.client(), "stats", "sync_full"), "0", "{name}");
        write_much(&mut target.client(), 20);
        settle_at(&target, &primary);
        assert_eq!(differences(&target, &primary), [""; 0], "{name}");
    }
}

/// All that was answered before the change is there after it, whatever was under way: counts, transactions, scripts.
#[test]
fn nothing_that_was_answered_is_lost() {
    let servers = [Server::start(), Server::start()];
    follow(&servers[1], &servers[0]);
    let addrs = [servers[0].addr, servers[1].addr];
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut clients = addrs.map(Client::to);
                let (mut at, mut acknowledged) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let said = match n {
                        0 => clients[at].call("INCR w0"),
                        1 => clients[at].call("EVAL \"return redis.call('INCR',KEYS[1])\" 1 w1"),
                        2 => clients[at]
                            .call("EVAL \"for i=1,2000 do redis.call('INCR',KEYS[1]) end return 1\" 1 w2"),
                        _ => {
                            clients[at].call("MULTI");
                            clients[at].call("INCR w3");
                            clients[at].call("INCR w3too");
                            clients[at].call("EXEC")
                        }
                    };
                    match said.contains("READONLY") || said.contains("EXECABORT") {
                        true => at = 1 - at,
                        false => {
                            assert!(!said.starts_with('-'), "{said}");
                            acknowledged += 1;
                        }
                    }
                }
                acknowledged
            })
        })
        .collect();
    for n in 0..6 {
        let (leader, other) = (&servers[n % 2], &servers[(n + 1) % 2]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        leader.client().expect(&call_to(other, ""), "+OK");
        until("it is over", || {
            role(other) == "master" && role(leader) == "slave" && state(leader) == "no-failover"
        });
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged: Vec<i64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    settle_at(&servers[0], &servers[1]);
    let mut client = servers[0].client();
    for (key, count) in [
        ("w0", acknowledged[0]),
        ("w1", acknowledged[1]),
        ("w2", acknowledged[2] * 2000),
        ("w3", acknowledged[3]),
    ] {
        assert_eq!(client.call(&format!("GET {key}")), format!("\"{count}\""), "{key}");
    }
    assert_eq!(client.call("GET w3"), client.call("GET w3too"));
    assert_eq!(differences(&servers[0], &servers[1]), [""; 0]);
    for server in &servers {
        assert_eq!(info(&mut server.client(), "replication", "master_failover_state"), "no-failover");
    }
}

#[test]
fn a_replica_that_is_behind_is_waited_for_and_given_up() {
    let (primary, target) = (Server::start(), Server::start());
    follow(&target, &primary);
    let mut client = primary.client();
    target.signal("STOP");
    client.expect("SET behind 1", "+OK");
    client.expect("FAILOVER TIMEOUT 300", "+OK");
    let mut held = primary.client();
    held.send("SET held 1\r\n");
    until("it is given up", || state(&primary) == "no-failover");
    assert_eq!(held.reply(), "+OK");
    client.expect("FAILOVER", "+OK");
    until("it waits", || state(&primary) == "waiting-for-sync");
    client.expect("FAILOVER", "-ERR FAILOVER already in progress.");
    client.expect("REPLICAOF NO ONE", "-ERR REPLICAOF not allowed while failing over.");
    client.expect("REPLICAOF 127.0.0.1 1", "-ERR REPLICAOF not allowed while failing over.");
    client.expect("FAILOVER ABORT", "+OK");
    until("it is given up", || state(&primary) == "no-failover");
    client.expect("FAILOVER ABORT", "-ERR No failover in progress.");
    client.expect("SET after 1", "+OK");
    target.signal("CONT");
    settle_at(&primary, &target);
    assert_eq!(role(&primary), "master");
}

/// FORCE does not wait for ever. One who does not answer leads as soon as it does.
#[test]
fn a_forced_one_leads_when_it_can() {
    let (primary, target) = (Server::start(), Server::start());
    follow(&target, &primary);
    target.signal("STOP");
    primary.client().expect("SET behind 1", "+OK");
    primary.client().expect(&call_to(&target, "FORCE TIMEOUT 100"), "+OK");
    until("it is told", || state(&primary) == "failover-in-progress");
    target.signal("CONT");
    until("it leads", || role(&target) == "master" && state(&primary) == "no-failover");
    settle_at(&target, &primary);
    assert_eq!(differences(&target, &primary), [""; 0]);
}

#[test]
fn wrong_words_are_refused_as_redis_refuses_them() {
    let (primary, replica) = (Server::start(), Server::start());
    let mut client = primary.client();
    client.expect("FAILOVER", "-ERR FAILOVER requires connected replicas.");
    follow(&replica, &primary);
    for (words, error) in [
        ("ABORT", "-ERR No failover in progress."),
        ("TO", "-ERR syntax error"),
        ("FORCE", "-ERR FAILOVER with force option requires both a timeout and target HOST and IP."),
        (
            "TO 127.0.0.1 1 FORCE",
            "-ERR FAILOVER with force option requires both a timeout and target HOST and IP.",
        ),
        ("TIMEOUT 0", "-ERR FAILOVER timeout must be greater than 0"),
        ("TIMEOUT -1", "-ERR FAILOVER timeout must be greater than 0"),
        ("TIMEOUT x", "-ERR value is not an integer or out of range"),
        ("TO 127.0.0.1 x", "-ERR value is not an integer or out of range"),
        ("TO 127.0.0.1 1", "-ERR FAILOVER target HOST and PORT is not a replica."),
        ("TO 127.0.0.1 1 FORCE TIMEOUT 10", "-ERR FAILOVER target HOST and PORT is not a replica."),
        ("TIMEOUT 1 TIMEOUT 2", "-ERR syntax error"),
        ("ABORT TIMEOUT 1", "-ERR syntax error"),
        ("BAH", "-ERR syntax error"),
    ] {
        client.expect(&format!("FAILOVER {words}"), error);
    }
    replica.client().expect("FAILOVER", "-ERR FAILOVER is not valid when server is a replica.");
    let id = "0".repeat(40);
    client.expect(&format!("PSYNC {id} 1 FAILOVER"), "-ERR PSYNC FAILOVER can't be sent to a master.");
    let mut other = replica.client();
    other.expect(&format!("PSYNC {id} 1 FAILOVER"), "-ERR PSYNC FAILOVER replid must match my replid.");
}

/// A client that can be sent elsewhere is sent to the primary, as by Valkey; one that says READONLY reads here.
#[test]
fn clients_that_can_be_sent_to_the_primary_are() {
    let (primary, replica) = (Server::start(), Server::start());
    follow(&replica, &primary);
    let mut client = replica.client();
    let away = format!("-REDIRECT 127.0.0.1:{}", primary.addr.port());
    client.expect("READONLY", "-ERR This instance has cluster support disabled");
    client.expect("CLIENT CAPA redirect", "+OK");
    for (words, reply) in [
        ("GET k", &*away),
        ("SET k v", &away),
        ("PING", "+PONG"),
        ("MULTI", "+OK"),
        ("GET k", &away),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("EVAL \"return 1\" 0", ":1"),
        ("DBSIZE", &away),
        ("READONLY", "+OK"),
        ("GET k", "(nil)"),
        ("SET k v", &away),
        ("READWRITE", "+OK"),
        ("GET k", &away),
    ] {
        client.expect(words, reply);
    }
    primary.client().expect("CLIENT CAPA redirect", "+OK");
    primary.client().expect("SET k v", "+OK");
    // A transaction that was queued before the change is discarded, and its client is told where to go.
    let mut waiting = primary.client();
    waiting.expect("CLIENT CAPA redirect", "+OK");
    waiting.expect("MULTI", "+OK");
    waiting.expect("SET k w", "+QUEUED");
    primary.client().expect(&call_to(&replica, "TIMEOUT 60000"), "+OK");
    until("the replica leads", || role(&replica) == "master" && state(&primary) == "no-failover");
    waiting.expect("EXEC", &format!("-REDIRECT 127.0.0.1:{}", replica.addr.port()));
    client.expect("SET k x", "+OK");
}

#[test]
fn health_says_the_role_and_the_link() {
    let (primary, at) = Server::start_http(&[]);
    let (replica, beside) = Server::start_http(&[]);
    let health = |at| crate::http::Http::to(at).get("/healthz").text().to_owned();
    assert_eq!(health(at), "{\"status\":\"ok\",\"role\":\"primary\"}");
    follow(&replica, &primary);
    let text = health(beside);
    assert!(text.starts_with("{\"status\":\"ok\",\"role\":\"replica\",\"link\":\"up\""), "{text}");
    drop(primary);
    until("the link is down", || health(beside).contains("\"link\":\"down\""));
}

/// A client that asked for it hears where the data are led now. Its write that waited has not run, and is not
/// refused: the connection ends without an answer, so that a library repeats the write there.
#[test]
fn clients_that_want_to_know_hear_where_to_go_on() {
    let (primary, target) = (Server::start(), Server::start());
    follow(&target, &primary);
    let (mut plain, mut writer, mut reader) = (primary.client(), primary.client3(), primary.client3());
    plain.expect(
        "CLIENT MAINT_NOTIFICATIONS ON",
        "-ERR CLIENT MAINT_NOTIFICATIONS needs RESP3: say HELLO 3 first",
    );
    for words in ["ON", "OFF", "ON moving-endpoint-type EXTERNAL-FQDN", "on moving-endpoint-type none"] {
        reader.expect(&format!("CLIENT MAINT_NOTIFICATIONS {words}"), "+OK");
    }
    for words in ["x", "ON moving-endpoint-type", "ON moving-endpoint-type x", "ON other none"] {
        writer.expect(&format!("CLIENT MAINT_NOTIFICATIONS {words}"), "-ERR syntax error");
    }
    writer.expect("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip", "+OK");
    // Clients that wait for a key hear it as well, and first.
    let (mut blocked, mut deaf) = (primary.client3(), primary.client());
    blocked.expect("CLIENT MAINT_NOTIFICATIONS ON", "+OK");
    blocked.send("BLPOP list 0\r\nSET after 1\r\n");
    deaf.send("BLPOP list 0\r\n");
    let mut sent = primary.client();
    sent.expect("CLIENT CAPA redirect", "+OK");
    sent.send("BLPOP list 0\r\n");
    until("all wait for a key", || info(&mut plain, "clients", "blocked_clients") == "3");
    // The replica does not answer, so writes wait.
    target.signal("STOP");
    plain.expect("SET before 1", "+OK");
    plain.expect(&call_to(&target, "TIMEOUT 60000"), "+OK");
    until("writes wait", || state(&primary) == "waiting-for-sync");
    writer.send("SET k writer\r\nSET k again\r\n");
    let mut late = primary.client();
    late.send("SET k late\r\n");
    until("all wait", || info(&mut plain, "clients", "blocked_clients") == "5");
    target.signal("CONT");
    until("the replica leads", || role(&target) == "master" && role(&primary) == "slave");
    let moving = |place: &str| format!(">[\"MOVING\", :1, :60, {place}]");
    writer.expect_reply(&moving(&format!("\"127.0.0.1:{}\"", target.addr.port())));
    writer.expect_reply("(closed)");
    blocked.expect_reply(&moving(&format!("\"127.0.0.1:{}\"", target.addr.port())));
    blocked.expect_reply("(closed)");
    assert!(deaf.reply().starts_with("-UNBLOCKED"));
    sent.expect_reply(&format!("-REDIRECT 127.0.0.1:{}", target.addr.port()));
    sent.expect("PING", "+PONG");
    target.client().expect("EXISTS after", ":0");
    assert!(late.reply().starts_with("-READONLY"));
    reader.expect_reply(&moving("(null)"));
    // It reads here as long as it likes, and its next write is not refused either.
    reader.expect("GET before", "\"1\"");
    reader.expect("SET k reader", "(closed)");
    target.client().expect("EXISTS k", ":0");
    plain.expect("GET before", "\"1\"");
    assert!(plain.call("SET k plain").starts_with("-READONLY"));
}

/// Waits until writes wait. Gives the client of one that does, and its key, which begins with a name.
fn held_write(server: &Server, name: &str) -> (Client, String) {
    let (mut n, mut found) = (0, None);
    until("writes wait", || {
        n += 1;
        let (mut writer, key) = (server.client(), format!("{name}{n}"));
        writer.send(format!("SET {key} 1\r\n"));
        std::thread::sleep(std::time::Duration::from_millis(20));
        let waits = info(&mut server.client(), "clients", "blocked_clients") != "0";
        found = waits.then_some((writer, key));
        waits
    });
    found.unwrap()
}

/// A primary that is ended waits until its replicas have all that it answered; NOW does not, and ABORT gives it
/// up.
#[test]
fn an_end_in_order_waits_for_replicas() {
    for now in [false, true] {
        let (mut primary, replica) = (Server::start_with(&["--shutdown-timeout", "600"]), Server::start());
        follow(&replica, &primary);
        let mut client = primary.client();
        client.expect("SET first 1", "+OK");
        settle_at(&primary, &replica);
        replica.signal("STOP");
        client.expect("SET k v", "+OK");
        let mut ends = primary.client();
        if now {
            ends.send("SHUTDOWN NOSAVE NOW\r\n");
            assert_eq!(primary.exit_code(), Some(0));
            replica.signal("CONT");
            continue;
        }
        ends.send("SHUTDOWN NOSAVE\r\n");
        let (mut writer, _) = held_write(&primary, "first");
        client.expect("GET k", "\"v\"");
        client.expect("SHUTDOWN ABORT", "+OK");
        writer.expect_reply("+OK");
        ends.expect_reply("-ERR Errors trying to SHUTDOWN. Check logs.");
        ends.send("SHUTDOWN NOSAVE\r\n");
        let (_waits, last) = held_write(&primary, "last");
        replica.signal("CONT");
        assert_eq!(primary.exit_code(), Some(0));
        let mut found = replica.client();
        until("all has come", || found.call("EXISTS k") == ":1");
        found.expect(&format!("EXISTS {last}"), ":0");
    }
}

/// A library is loaded on a thread. One that was ready while the server waited for its replicas went to these
/// and to its client, and no longer to the log.
#[test]
fn a_library_that_is_loaded_at_the_end_is_in_the_log_or_not_answered() {
    let args = ["--shutdown-timeout", "600", "--appendonly", "yes", "--appendfsync", "always"];
    let (mut primary, replica) = (Server::start_with(&args), Server::start());
    follow(&replica, &primary);
    let (mut client, mut loader) = (primary.client(), primary.client());
    client.expect("SET first 1", "+OK");
    settle_at(&primary, &replica);
    replica.signal("STOP");
    client.expect("SET k v", "+OK");
    let code = "for i = 1, 4000000 do end redis.register_function('f', function() return 1 end)";
    loader.send(format!("FUNCTION LOAD \"#!lua name=late\\n{code}\"\r\n"));
    primary.client().send("SHUTDOWN NOSAVE\r\n");
    let _waits = held_write(&primary, "held");
    // Long enough for the library in most runs; what is asserted holds in any.
    std::thread::sleep(std::time::Duration::from_millis(300));
    replica.signal("CONT");
    assert_eq!(primary.exit_code(), Some(0));
    let is_answered = loader.reply() == "\"late\"";
    let folder = primary.dir.path().to_str().unwrap().to_owned();
    let again = Server::start_with(&[&["--dir", folder.as_str()], &args[..]].concat());
    until("it has its data", || again.client().call("EXISTS k") == ":1");
    let list = again.client().call("FUNCTION LIST");
    assert!(list.contains("late") || !is_answered, "{list}");
    assert_eq!(replica.client().call("FUNCTION LIST"), list);
}

/// The replica was told to lead and has not answered: to lead again here would make two of them.
#[test]
fn a_failover_cannot_be_aborted_while_an_answer_is_awaited() {
    let primary = Server::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut client = primary.client();
    let mut fake = std::net::TcpStream::connect(primary.addr).unwrap();
    let mut sink = fake.try_clone().unwrap();
    let say = |fake: &mut std::net::TcpStream, words: &str| {
        std::io::Write::write_all(fake, format!("{words}\r\n").as_bytes()).unwrap();
    };
    say(&mut fake, &format!("REPLCONF listening-port {port}"));
    std::io::Read::read_exact(&mut sink, &mut [0; 5]).unwrap();
    std::thread::spawn(move || std::io::copy(&mut sink, &mut std::io::sink()));
    say(&mut fake, "PSYNC ? -1");
    until("it is online", || client.call("INFO replication").contains("state=online"));
    client.expect(&format!("FAILOVER TO 127.0.0.1 {port}"), "+OK");
    client.expect("FAILOVER ABORT", "+OK");
    until("it was given up", || state(&primary) == "no-failover");
    client.expect("SET k v", "+OK");
    say(&mut fake, "REPLCONF ACK 1000000");
    client.expect(&format!("FAILOVER TO 127.0.0.1 {port}"), "+OK");
    let _told = listener.accept().unwrap();
    until("it is in progress", || state(&primary) == "failover-in-progress");
    let refused = client.call("FAILOVER ABORT");
    assert!(refused.starts_with("-ERR FAILOVER can't be aborted now"), "{refused}");
}

/// The replica refuses to lead: a client that waited to hear of it is told that its wait has ended.
#[test]
fn a_wait_for_a_key_ends_when_the_replica_refuses_to_lead() {
    use std::io::{Read, Write};
    let primary = Server::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut client, mut blocked) = (primary.client(), primary.client3());
    let mut fake = std::net::TcpStream::connect(primary.addr).unwrap();
    let mut sink = fake.try_clone().unwrap();
    fake.write_all(format!("REPLCONF listening-port {port}\r\n").as_bytes()).unwrap();
    sink.read_exact(&mut [0; 5]).unwrap();
    std::thread::spawn(move || std::io::copy(&mut sink, &mut std::io::sink()));
    fake.write_all(b"PSYNC ? -1\r\n").unwrap();
    until("it is online", || client.call("INFO replication").contains("state=online"));
    blocked.expect("CLIENT MAINT_NOTIFICATIONS ON", "+OK");
    blocked.send("BLPOP list 0\r\n");
    until("it waits", || info(&mut client, "clients", "blocked_clients") == "1");
    fake.write_all(b"REPLCONF ACK 1000000\r\n").unwrap();
    client.expect(&format!("FAILOVER TO 127.0.0.1 {port}"), "+OK");
    let (mut told, _) = listener.accept().unwrap();
    let (mut asked, mut piece, mut answered) = (String::new(), [0; 4096], 0);
    // Each command is an array; PSYNC is the last of them.
    while let Ok(n) = told.read(&mut piece) {
        asked.push_str(&String::from_utf8_lossy(&piece[..n]));
        let commands: Vec<_> = asked.split('*').skip(1).collect();
        for command in &commands[answered..] {
            let reply = match *command {
                ping if ping.contains("PING") => "+PONG\r\n",
                psync if psync.contains("PSYNC") => "-ERR it does not lead\r\n",
                _ => "+OK\r\n",
            };
            told.write_all(reply.as_bytes()).unwrap();
        }
        answered = commands.len();
        if n == 0 || asked.contains("PSYNC") {
            break;
        }
    }
    drop(told);
    until("it was given up", || state(&primary) == "no-failover");
    let reply = blocked.reply();
    assert!(reply.starts_with("-UNBLOCKED force unblock from blocking operation"), "{reply}");
    blocked.expect_reply("(closed)");
    client.expect("SET k v", "+OK");
}

/// A client that waits for replicas hears that its server follows now, as one that waits for a key does.
#[test]
fn a_wait_ends_when_the_server_follows() {
    let (primary, target) = (Server::start(), Server::start());
    follow(&target, &primary);
    let mut waiter = primary.client();
    waiter.expect("SET k v", "+OK");
    waiter.send("WAIT 5 0\r\n");
    until("it waits", || info(&mut primary.client(), "clients", "blocked_clients") == "1");
    primary.client().expect(&call_to(&target, ""), "+OK");
    let reply = waiter.reply();
    assert!(reply.starts_with("-UNBLOCKED force unblock from blocking operation"), "{reply}");
}

/// A script had begun before CLIENT PAUSE, and waited for its end with what it had written. The pause ended right
/// behind REPLICAOF: the script wrote here, and no other server heard of it.
#[test]
fn a_script_that_a_pause_held_writes_nothing_behind_replicaof() {
    let (new, old) = (Server::start(), Server::start());
    follow(&new, &old);
    let (mut client, mut script) = (old.client(), old.client());
    script.send("EVAL \"for i = 1, 5e7 do end redis.call('SET', 'spin', 1) return 1\" 1 spin\r\n");
    until("it runs", || info(&mut client, "everything", "scripts_running") == "1");
    client.expect("CLIENT PAUSE 60000 WRITE", "+OK");
    until("it is held", || info(&mut client, "everything", "writes_paused") == "1");
    new.client().expect("REPLICAOF NO ONE", "+OK");
    until("the new one leads", || info(&mut new.client(), "replication", "role") == "master");
    client.send(format!("REPLICAOF 127.0.0.1 {}\r\nCLIENT UNPAUSE\r\n", new.addr.port()));
    let said = script.reply();
    assert!(said.starts_with("-READONLY"), "{said}");
    until("the link is up", || info(&mut old.client(), "replication", "master_link_status") == "up");
    assert_eq!(info(&mut old.client(), "replication", "lost_writes"), "0");
    assert_eq!(info(&mut new.client(), "stats", "sync_full"), "0");
}
