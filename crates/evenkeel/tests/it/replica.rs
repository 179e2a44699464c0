//! A replica of real servers: what it holds after copies, cuts and promotions is what its primary holds.

use crate::support::*;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::proxy::Proxy;
use support::rng::Rng;

/// The value of a line of INFO.
fn info(client: &mut Client, section: &str, name: &str) -> String {
    let text = client.call(&format!("INFO {section}"));
    let found = text.split("\\r\\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

/// Lets a server follow another one.
fn follow(replica: &mut Client, primary: SocketAddr) {
    replica.expect(&format!("REPLICAOF {} {}", primary.ip(), primary.port()), "+OK");
}

/// Waits until something holds.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a replica has all that its primary wrote.
#[track_caller]
fn in_step(primary: &mut Client, replica: &mut Client) {
    until("the replica does not catch up", || {
        let up = info(replica, "replication", "master_link_status") == "up";
        let wrote = info(primary, "replication", "master_repl_offset");
        up && info(replica, "replication", "slave_repl_offset") == wrote
    });
}

/// The elements of a reply that is a list of bulks, in some order.
fn sorted(reply: &str) -> Vec<String> {
    let inner = reply.trim_start_matches('[').trim_end_matches(']');
    let mut all: Vec<String> = inner.split(", ").map(str::to_owned).collect();
    all.sort();
    all
}

/// The elements of a flat reply of pairs, as pairs in some order.
fn pairs(reply: &str) -> Vec<String> {
    let inner = reply.trim_start_matches('[').trim_end_matches(']');
    let all: Vec<&str> = inner.split(", ").collect();
    let mut all: Vec<String> = all.chunks(2).map(|pair| pair.join("=")).collect();
    all.sort();
    all
}

/// All that a server's database holds, key by key.
fn contents(client: &mut Client, db: usize) -> Vec<String> {
    client.expect(&format!("SELECT {db}"), "+OK");
    let keys = client.call("KEYS *");
    let mut all = Vec::new();
    for key in sorted(&keys).iter().filter(|key| !key.is_empty()) {
        let kind = client.call(&format!("TYPE {key}"));
        let value = match kind.as_str() {
            "+string" => client.call(&format!("GET {key}")),
            "+list" => client.call(&format!("LRANGE {key} 0 -1")),
            "+hash" => format!("{:?}", pairs(&client.call(&format!("HGETALL {key}")))),
            "+set" => format!("{:?}", sorted(&client.call(&format!("SMEMBERS {key}")))),
            "+zset" => client.call(&format!("ZRANGE {key} 0 -1 WITHSCORES")),
            "+stream" => {
                let entries = client.call(&format!("XRANGE {key} - +"));
                let groups = client.call(&format!("XINFO GROUPS {key}"));
                let id = groups.split("last-delivered-id").nth(1).unwrap_or("").to_owned();
                format!("{entries} {}", id.split(',').nth(1).unwrap_or(""))
            }
            // It expired between the two.
            "+none" => continue,
            kind => panic!("{key} is {kind}"),
        };
        let until_ms = client.call(&format!("PEXPIRETIME {key}"));
        all.push(format!("{key} {kind} {until_ms} {value}"));
    }
    client.expect("SELECT 0", "+OK");
    all
}

const DBS: usize = 4;

/// Compares all databases of both.
#[track_caller]
fn same(primary: &mut Client, replica: &mut Client) {
    for db in 0..DBS {
        let (theirs, ours) = (contents(primary, db), contents(replica, db));
        for (theirs, ours) in theirs.iter().zip(&ours) {
            assert_eq!(ours, theirs, "database {db}");
        }
        assert_eq!(ours.len(), theirs.len(), "database {db}: {ours:?}\n{theirs:?}");
    }
}

/// Scripts and long commands that are told otherwise than they were sent.
const TOLD_OTHERWISE: &[&str] = &[
    "EVAL \"redis.call('INCR', KEYS[1]) redis.call('RPUSH', KEYS[2], ARGV[1]) return 1\" 2 s1 l1 x",
    "EVAL \"for i = 1, 3000 do redis.call('HSET', KEYS[1], i, i) end\" 1 h9",
    "SPOP set1",
    "INCRBYFLOAT f1 0.1",
    "GETEX s2 EX 1000",
    "SET s3 v EX 1000",
    "SET s4 v PX 30",
    "PEXPIRE l2 20",
    "EXPIRE h1 2000",
    "XADD st1 * a b",
    "XADD st2 MAXLEN 3 * c d",
    "XGROUP CREATE st1 g $ MKSTREAM",
    "XREADGROUP GROUP g me COUNT 2 STREAMS st1 >",
    "HINCRBYFLOAT h2 a 1.5",
    "SORT l1 ALPHA STORE l3",
    "SDIFFSTORE set3 set1 set2",
    "ZUNIONSTORE z3 2 z1 z2",
    "BITOP NOT b2 s1",
    "LMOVE l1 l2 LEFT RIGHT",
    "COPY s1 s9 REPLACE",
    "MOVE s2 1",
    "RENAME s3 s5",
    "SETRANGE s6 100 end",
    "GEOADD geo 13.3 38.1 Palermo 15.0 37.5 Catania",
    "PFADD hll a b c d",
];

/// One random write, or several in a transaction.
fn write(rng: &mut Rng, client: &mut Client, n: usize) {
    let key = |rng: &mut Rng, kind: &str| format!("{kind}{}", rng.below(3) + 1);
    let one = |rng: &mut Rng| match rng.below(12) {
        0 => format!("SET {} {n}", key(rng, "s")),
        1 => format!("INCR {}", key(rng, "n")),
        2 => format!("RPUSH {} {n} {n}", key(rng, "l")),
        3 => format!("LPOP {}", key(rng, "l")),
        4 => format!("HSET {} f{} {n}", key(rng, "h"), rng.below(9)),
        5 => format!("SADD {} {} {}", key(rng, "set"), rng.below(50), rng.below(50)),
        6 => format!("SREM {} {}", key(rng, "set"), rng.below(50)),
        7 => format!("ZADD {} {} m{}", key(rng, "z"), rng.below(100), rng.below(20)),
        8 => format!("DEL {}", key(rng, "s")),
        9 => format!("APPEND {} {}", key(rng, "a"), "x".repeat(rng.below(200))),
        10 => (*rng.pick(TOLD_OTHERWISE)).to_owned(),
        _ => format!("SETBIT {} {} 1", key(rng, "b"), rng.below(1000)),
    };
    match rng.below(20) {
        0 => {
            let count = if rng.percent(10) { 2000 } else { rng.below(20) + 1 };
            client.call("MULTI");
            (0..count).for_each(|_| client.send(format!("{}\r\n", one(rng))));
            (0..count).for_each(|_| drop(client.reply()));
            client.call("EXEC");
        }
        1 => drop(client.call(&format!("SELECT {}", rng.below(DBS)))),
        2 if rng.percent(5) => drop(client.call("FLUSHALL")),
        3 if rng.percent(10) => drop(client.call("FLUSHDB")),
        4 if rng.percent(10) => drop(client.call("SWAPDB 1 2")),
        5 if rng.percent(20) => {
            let words: Vec<String> = (0..2000).map(|i| format!("many{i} {n}")).collect();
            client.call(&format!("MSET {}", words.join(" ")));
            let words: Vec<String> = (0..1990).map(|i| format!("many{i}")).collect();
            client.call(&format!("DEL {}", words.join(" ")));
        }
        _ => {
            let words = one(rng);
            client.call(&words);
        }
    }
}

fn write_some(rng: &mut Rng, client: &mut Client, count: usize) {
    for n in 0..count {
        write(rng, client, n);
    }
}

/// Keys whose time is short are gone on both sides.
fn rest() {
    std::thread::sleep(Duration::from_millis(150));
}

fn copies_and_goes_on(primary: &Server, seed: u64) {
    let replica = Server::start();
    let (mut from, mut to) = (primary.client(), replica.client());
    let mut rng = Rng::new(seed, 1);
    write_some(&mut rng, &mut from, 600);
    follow(&mut to, primary.addr);
    // Some of it is written while the copy is on its way.
    write_some(&mut rng, &mut from, 600);
    rest();
    in_step(&mut from, &mut to);
    same(&mut from, &mut to);
    // FLUSHALL ends the process of Redis that writes the copy, whatever it has sent.
    assert_ne!(info(&mut to, "replication", "master_full_syncs"), "0");
}

#[test]
fn a_copy_of_redis_is_made_without_a_disk_and_goes_on() {
    let args = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];
    let Some(primary) = Server::redis(&args) else { return };
    copies_and_goes_on(&primary, 1);
}

#[test]
fn a_copy_of_redis_is_made_from_a_file_and_goes_on() {
    let Some(primary) = Server::redis(&["--repl-diskless-sync", "no"]) else { return };
    copies_and_goes_on(&primary, 2);
}

#[test]
fn a_copy_of_redis_8_is_made_and_goes_on() {
    let Some(primary) = Server::peer("redis8-server", &["--repl-diskless-sync-delay", "0"]) else { return };
    copies_and_goes_on(&primary, 3);
}

#[test]
fn a_copy_of_valkey_9_is_made_and_goes_on_with_times_of_fields() {
    let Some(primary) = Server::peer("valkey-server", &["--repl-diskless-sync-delay", "0"]) else { return };
    let mut from = primary.client();
    from.expect("HSET timed a 1 b 2", ":2");
    from.expect("HPEXPIRE timed 1000000 FIELDS 1 a", "[:1]");
    copies_and_goes_on(&primary, 4);
}

/// The connection is cut anywhere: in the handshake, in the file, in transactions. What is there in the end is
/// what the primary has, and most of it came without another copy.
#[test]
fn cut_links_go_on_where_they_were() {
    let args = ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "64mb"];
    let Some(primary) = Server::redis(&args) else { return };
    let mut rng = Rng::new(5, 1);
    let place = |rng: &mut Rng, n| if n < 4 { rng.below(600) + 1 } else { rng.below(30_000) + 600 };
    let cuts: Vec<u64> = (0..29).map(|n| place(&mut rng, n) as u64).collect();
    let proxy = Proxy::to(primary.addr, &cuts);
    let replica = Server::start();
    let (mut from, mut to) = (primary.client(), replica.client());
    write_some(&mut rng, &mut from, 100);
    follow(&mut to, proxy.addr);
    until("not all cuts came", || {
        write_some(&mut rng, &mut from, 50);
        proxy.cuts_left() == 0
    });
    rest();
    in_step(&mut from, &mut to);
    same(&mut from, &mut to);
    let partial: u64 = info(&mut to, "replication", "master_partial_syncs").parse().unwrap();
    assert!(partial >= 10, "{partial} of {} connections", proxy.connections());
}

/// A silent primary is left after `repl-timeout`, and the link comes back.
#[test]
fn a_silent_primary_is_left() {
    let Some(primary) = Server::redis(&["--repl-diskless-sync-delay", "0"]) else { return };
    let proxy = Proxy::to(primary.addr, &[]);
    let replica = Server::start_with(&["--repl-timeout", "2"]);
    let (mut from, mut to) = (primary.client(), replica.client());
    from.expect("CONFIG SET repl-ping-replica-period 1", "+OK");
    follow(&mut to, proxy.addr);
    in_step(&mut from, &mut to);
    proxy.stop(true);
    until("the link stays up", || info(&mut to, "replication", "master_link_status") == "down");
    proxy.stop(false);
    from.expect("SET k v", "+OK");
    in_step(&mut from, &mut to);
    to.expect("GET k", "\"v\"");
}

/// A client of a replica is refused writes of each kind, and reads go on.
#[test]
fn a_replica_refuses_writes_and_says_why() {
    const READONLY: &str = "-READONLY You can't write against a read only replica.";
    let Some(primary) = Server::redis(&["--repl-diskless-sync-delay", "0"]) else { return };
    let replica = Server::start();
    let (mut from, mut to) = (primary.client(), replica.client());
    from.expect("SET k v", "+OK");
    let mut blocked = replica.client();
    blocked.send("BLPOP nothing 0\r\n");
    let mut queued = replica.client();
    queued.expect("MULTI", "+OK");
    queued.expect("SET k other", "+QUEUED");
    until("it is not blocked", || info(&mut to, "clients", "blocked_clients") == "1");
    follow(&mut to, primary.addr);
    in_step(&mut from, &mut to);
    blocked.expect_reply(
        "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    );
    assert!(blocked.is_closed_within(PATIENCE));
    queued.expect(
        "EXEC",
        "-EXECABORT Transaction discarded because of: READONLY You can't write against a read only replica.",
    );
    for line in ["SET k x", "DEL k", "BLPOP l 1", "FLUSHALL", "SORT k STORE d", "GETDEL k"] {
        to.expect(line, READONLY);
    }
    let script = to.call("EVAL \"return redis.call('SET', KEYS[1], 'x')\" 1 k");
    assert!(script.contains("READONLY You can't write against a read only replica."), "{script}");
    to.expect("EVAL \"return redis.call('GET', KEYS[1])\" 1 k", "\"v\"");
    to.expect("MULTI", "+OK");
    to.expect("SET k x", READONLY);
    let aborted = to.call("EXEC");
    assert!(aborted.starts_with("-EXECABORT"), "{aborted}");
    to.expect("GET k", "\"v\"");
    to.expect("CONFIG SET replica-read-only no", "+OK");
    to.expect("SET own x", "+OK");
    to.expect("CONFIG SET replica-read-only yes", "+OK");
    to.expect("SET own x", READONLY);
    let role = to.call("ROLE");
    assert!(role.starts_with("[\"slave\", \"127.0.0.1\", :") && role.contains("\"connected\""), "{role}");
}

/// After a promotion the server has what the last whole group left, takes writes, and lets keys expire.
#[test]
fn a_promoted_replica_leads() {
    let Some(primary) = Server::redis(&["--repl-diskless-sync-delay", "0"]) else { return };
    let replica = Server::start();
    let (mut from, mut to) = (primary.client(), replica.client());
    from.expect("SET k v", "+OK");
    from.expect("SET short v PX 400", "+OK");
    from.expect("DEBUG SET-ACTIVE-EXPIRE 0", "+OK");
    follow(&mut to, primary.addr);
    in_step(&mut from, &mut to);
    until("it does not expire", || to.call("GET short") == "(nil)");
    // It is absent to readers, and there until the primary says otherwise.
    to.expect("DBSIZE", ":2");
    to.expect("REPLICAOF NO ONE", "+OK");
    to.expect("SET k w", "+OK");
    to.expect("GET k", "\"w\"");
    assert_eq!(info(&mut to, "replication", "role"), "master");
    until("the expired key stays", || to.call("DBSIZE") == ":1");
    from.expect("SET k later", "+OK");
    to.expect("GET k", "\"w\"");
    to.expect("REPLICAOF NO ONE", "+OK");
    // Another copy throws away what was written here.
    follow(&mut to, primary.addr);
    in_step(&mut from, &mut to);
    to.expect("GET k", "\"later\"");
}

/// With `replica-serve-stale-data no` a replica without its primary answers only what needs no data.
#[test]
fn stale_data_are_served_only_if_they_may_be() {
    let replica = Server::start_with(&["--replica-serve-stale-data", "no"]);
    let mut to = replica.client();
    to.expect("SET k v", "+OK");
    // No port that is free: another test's server might take it, and be a primary.
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = refusing.local_addr().expect("its port");
    std::thread::spawn(move || refusing.incoming().for_each(drop));
    follow(&mut to, place);
    to.expect("GET k", "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");
    to.expect("PING", "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");
    assert_eq!(info(&mut to, "replication", "master_link_status"), "down");
    // Scripts read the data as well. Their own flags say whether they need them.
    let masterdown = "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
    for call in [
        "EVAL \"return redis.call('get',KEYS[1])\" 1 k",
        "EVAL_RO \"return redis.call('get',KEYS[1])\" 1 k",
        "EVAL \"return 1\" 0",
        "EVAL \"#!lua flags=no-writes\nreturn redis.call('get',KEYS[1])\" 1 k",
    ] {
        to.expect(call, masterdown);
    }
    to.expect("EVAL \"#!lua flags=allow-stale,no-writes\nreturn 1\" 0", ":1");
    // So do its calls: as in Redis, those that need no data alone.
    let answers = "return {redis.call('ECHO', 'a'), redis.pcall('GET', 'k').err, redis.pcall('SET', 'k', 'v').err, \
                   redis.pcall('PING').err}";
    let stale = "\"ERR Can not execute the command on a stale replica\"";
    to.expect(
        &format!("EVAL \"#!lua flags=allow-stale,no-writes\n{answers}\" 0"),
        &format!("[\"a\", {stale}, {stale}, {stale}]"),
    );
    to.expect("CONFIG SET replica-serve-stale-data yes", "+OK");
    to.expect("GET k", "\"v\"");
    until("no error is shown", || !info(&mut to, "replication", "master_link_error").is_empty());
}

/// INFO names the new primary at once; the link to the one before is none to it.
#[test]
fn a_link_is_down_from_the_wish_for_another_primary_on() {
    let (primary, replica) = (Server::start(), Server::start());
    let mut to = replica.client();
    let nowhere = free_port();
    for _ in 0..10 {
        follow(&mut to, primary.addr);
        until("the link is up", || info(&mut to, "replication", "master_link_status") == "up");
        to.send(format!("REPLICAOF 127.0.0.1 {nowhere}\r\nINFO replication\r\n"));
        to.expect_reply("+OK");
        let text = to.reply();
        assert!(text.contains("master_link_status:down"), "{text}");
        // Nor has it no primary before it leads.
        to.send("REPLICAOF NO ONE\r\nINFO replication\r\n");
        to.expect_reply("+OK");
        let text = to.reply();
        assert!(text.contains("role:master") || text.contains(&format!("master_port:{nowhere}")), "{text}");
        until("it leads", || info(&mut to, "replication", "role") == "master");
    }
}

/// A script that may write by its header is refused before it runs, as in Redis; one without a header at its
/// first write.
#[test]
fn scripts_that_declare_writes_are_refused_at_once() {
    const READONLY: &str = "-READONLY You can't write against a read only replica.";
    let replica = Server::start();
    let mut to = replica.client();
    let library = "#!lua name=l\nredis.register_function('writes', function() return 1 end) \
                   redis.register_function{function_name='reads', callback=function() return 1 end, flags={'no-writes'}}";
    to.expect(&format!("FUNCTION LOAD \"{library}\""), "\"l\"");
    to.expect("CONFIG SET min-replicas-to-write 1", "+OK");
    let few = "-NOREPLICAS Not enough good replicas to write.";
    to.expect("SET k v", few);
    for (refusal, follows) in [(few, false), (READONLY, true)] {
        if follows {
            follow(&mut to, SocketAddr::from(([127, 0, 0, 1], free_port())));
        }
        for call in [
            "EVAL \"#!lua\nreturn 1\" 0",
            "EVAL_RO \"#!lua\nreturn 1\" 0",
            "FCALL writes 0",
            "FCALL_RO writes 0",
        ] {
            to.expect(call, refusal);
        }
        for call in ["EVAL \"return 1\" 0", "EVAL \"#!lua flags=no-writes\nreturn 1\" 0", "FCALL reads 0"] {
            to.expect(call, ":1");
        }
    }
}

/// The password of the primary is sent, and a wrong one stands in INFO.
#[test]
fn a_replica_logs_in() {
    let args = ["--requirepass", "secret", "--repl-diskless-sync-delay", "0"];
    let Some(primary) = Server::redis(&args) else { return };
    let replica = Server::start_with(&["--masterauth", "wrong"]);
    let (mut from, mut to) = (primary.client(), replica.client());
    from.expect("AUTH secret", "+OK");
    from.expect("ACL SETUSER copy on >pass +@all ~* &*", "+OK");
    from.expect("SET k v", "+OK");
    follow(&mut to, primary.addr);
    until("no error is shown", || {
        info(&mut to, "replication", "master_link_status") == "down"
            && info(&mut to, "replication", "master_link_error").contains("WRONGPASS")
    });
    to.expect("CONFIG SET masteruser copy masterauth pass", "+OK");
    in_step(&mut from, &mut to);
    to.expect("GET k", "\"v\"");
}

/// A replica starts as one, CONFIG REWRITE keeps it one, and its log holds what it copied.
#[test]
fn a_replica_with_a_log_starts_again() {
    let Some(primary) = Server::redis(&["--repl-diskless-sync-delay", "0"]) else { return };
    let mut from = primary.client();
    let mut rng = Rng::new(7, 1);
    write_some(&mut rng, &mut from, 300);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evenkeel.conf");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(&file, "# mine\n").unwrap();
    let data = data.to_str().unwrap();
    let args = ["--dir", data, "--appendonly", "yes"];
    {
        let mut replica = Server::start_file_with(&file, &args);
        let mut to = replica.client();
        to.expect("SET before v", "+OK");
        follow(&mut to, primary.addr);
        in_step(&mut from, &mut to);
        to.expect("CONFIG REWRITE", "+OK");
        write_some(&mut rng, &mut from, 300);
        rest();
        in_step(&mut from, &mut to);
        same(&mut from, &mut to);
        until("the log has no base", || info(&mut to, "persistence", "aof_rewrite_in_progress") == "0");
        // The log of what was there before goes when the new one has its base.
        until("the old log stays", || {
            let names = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_str().unwrap().starts_with("appendonlydir")).count() == 1
        });
        replica.signal("TERM");
        replica.exit_code();
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(&format!("replicaof 127.0.0.1 {}", primary.addr.port())), "{text}");
    // Without its primary it has what the log holds.
    let alone = Server::start_with(&[&args[..], &["--replicaof", "no one"]].concat());
    until("it does not load", || !alone.client().call("DBSIZE").starts_with('-'));
    same(&mut from, &mut alone.client());
    drop(alone);
    let again = Server::start_file_with(&file, &args);
    let mut to = again.client();
    in_step(&mut from, &mut to);
    same(&mut from, &mut to);
}

/// The link is encrypted with `tls-replication`, and large values pass it.
#[test]
fn a_link_may_be_encrypted() {
    let papers = crate::tls::Papers::new();
    let port = free_port().to_string();
    let words = papers.words();
    let mut args = vec!["--tls-port", &port, "--repl-diskless-sync-delay", "0"];
    args.extend(words.iter().map(String::as_str));
    let Some(primary) = Server::redis(&args) else { return };
    let own = papers.words_for("second");
    let mut args = vec!["--tls-replication", "yes"];
    args.extend(own.iter().map(String::as_str));
    let replica = Server::start_with(&args);
    let (mut from, mut to) = (primary.client(), replica.client());
    let mut rng = Rng::new(8, 1);
    write_some(&mut rng, &mut from, 200);
    from.expect("SETRANGE long 5000000 y", ":5000001");
    // The plain port does not speak it.
    follow(&mut to, primary.addr);
    until("no error is shown", || {
        info(&mut to, "replication", "master_link_status") == "down"
            && !info(&mut to, "replication", "master_link_error").is_empty()
    });
    follow(&mut to, SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap())));
    in_step(&mut from, &mut to);
    from.expect("SETRANGE longer 3000000 y", ":3000001");
    write_some(&mut rng, &mut from, 200);
    rest();
    in_step(&mut from, &mut to);
    same(&mut from, &mut to);
}

/// A promotion ends a link whatever it is at: in a long transaction, in the copy, before any connection.
#[test]
fn a_promotion_comes_at_any_time() {
    let args = ["--repl-diskless-sync-delay", "0", "--rdb-key-save-delay", "500"];
    let Some(primary) = Server::redis(&args) else { return };
    let replica = Server::start();
    let (mut from, mut to) = (primary.client(), replica.client());
    from.expect("DEBUG POPULATE 3000", "+OK");
    // Half of the copy is there for more than a second.
    follow(&mut to, primary.addr);
    until("no copy begins", || info(&mut to, "replication", "master_sync_in_progress") == "1");
    // It is refused as soon as the data are loaded, as in Redis.
    if to.call("REPLICAOF NO ONE") == "+OK" {
        to.expect("SET mine 1", "+OK");
        follow(&mut to, primary.addr);
    }
    from.expect("CONFIG SET rdb-key-save-delay 0", "+OK");
    in_step(&mut from, &mut to);
    for round in 0..10 {
        from.send("MULTI\r\n");
        (0..5000).for_each(|i| from.send(format!("SET a{i} {round}\r\n")));
        from.send("EXEC\r\n");
        (0..5002).for_each(|_| drop(from.reply()));
        std::thread::sleep(Duration::from_millis(round * 3));
        to.expect("REPLICAOF NO ONE", "+OK");
        to.expect("SET mine 1", "+OK");
        // The transaction is there as a whole, or not at all.
        let first = to.call("GET a0");
        assert_eq!(first, to.call("GET a4999"), "round {round}");
        follow(&mut to, primary.addr);
        in_step(&mut from, &mut to);
        to.expect("GET a4999", &format!("\"{round}\""));
        to.expect("EXISTS mine", ":0");
    }
}

/// Long commands of the primary run in slices beside readers, and a cut link loses nothing of them.
#[test]
fn long_commands_are_not_lost_with_the_link() {
    let args = ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "256mb"];
    let Some(primary) = Server::redis(&args) else { return };
    let proxy = Proxy::to(primary.addr, &[]);
    let replica = Server::start();
    let (mut from, mut to) = (primary.client(), replica.client());
    for set in ["a", "b"] {
        let members: Vec<String> = (0..20_000).map(|i| format!("{set}{i}")).collect();
        from.expect(&format!("SADD {set} {}", members.join(" ")), ":20000");
    }
    follow(&mut to, proxy.addr);
    in_step(&mut from, &mut to);
    for round in 0..12 {
        from.expect("SUNIONSTORE both a b", ":40000");
        from.expect("INCR rounds", &format!(":{}", round + 1));
        assert!(from.call("SPOP both 20000").starts_with('['));
        from.expect("INCR after", &format!(":{}", round + 1));
        std::thread::sleep(Duration::from_millis(round * 4));
        proxy.cut();
    }
    in_step(&mut from, &mut to);
    same(&mut from, &mut to);
    assert_eq!(info(&mut to, "replication", "master_full_syncs"), "1");
}

/// The primary's commands run whatever this server's users may do, long transactions included.
#[test]
fn the_primary_needs_no_user_here() {
    let Some(primary) = Server::redis(&["--repl-diskless-sync-delay", "0"]) else { return };
    let replica = Server::start_with(&["--requirepass", "secret", "--maxmemory", "4mb"]);
    let (mut from, mut to) = (primary.client(), replica.client());
    to.expect("AUTH secret", "+OK");
    to.expect(
        "ACL SETUSER default -@all +auth +info +get +replicaof +subscribe resetkeys ~k* resetchannels &c*",
        "+OK",
    );
    follow(&mut to, primary.addr);
    in_step(&mut from, &mut to);
    let mut listener = replica.client();
    listener.expect("AUTH secret", "+OK");
    listener.expect("SUBSCRIBE c", "[\"subscribe\", \"c\", :1]");
    from.send("MULTI\r\n");
    (0..3000).for_each(|i| from.send(format!("SET k{i} {}\r\n", "x".repeat(2000))));
    from.send("EXEC\r\nMULTI\r\n");
    (0..3000).for_each(|i| from.send(format!("SET kk{i} x\r\n")));
    from.send("PUBLISH c hello\r\nEXEC\r\n");
    (0..6005).for_each(|_| drop(from.reply()));
    in_step(&mut from, &mut to);
    to.expect("GET k2999", &format!("\"{}\"", "x".repeat(2000)));
    to.expect("GET kk2999", "\"x\"");
    listener.expect_reply("[\"message\", \"c\", \"hello\"]");
}
