//! Servers that follow one that follows: the same bytes at the same offsets, whoever stands in the middle.

use crate::replicas::{differences, follow, info, settle_at, until, write_much};
use crate::support::{Client, Server};

/// Starts a server of a make, if it is there.
type Make = fn() -> Option<Server>;

/// Servers of each make, as far as they are there.
fn makes() -> Vec<(&'static str, Make)> {
    vec![
        ("evenkeel", || Some(Server::start())),
        ("redis 7.0", || Server::redis(&[])),
        ("valkey 9", || Server::peer("valkey-server", &[])),
    ]
}

fn id(server: &Server) -> String {
    info(&mut server.client(), "replication", "master_replid")
}

/// Waits until all have the primary's offset.
fn settle(primary: &Server, others: &[&Server]) {
    primary.client().expect("SET settled 1", "+OK");
    for other in others {
        settle_at(primary, other);
    }
}

/// Writes, and removes what would expire by itself: a DEL that came later, behind a promotion, would cost a full
/// copy. A DEL of what has expired leaves it to the sweep, so it is written once more before.
fn write(client: &mut Client, salts: std::ops::Range<usize>) {
    for salt in salts {
        write_much(client, salt);
        let db = salt % 4;
        for command in [
            &format!("SET gone{salt} x"),
            &format!("DEL gone{salt}"),
            &format!("SELECT {db}"),
            "SET past x",
            "DEL past",
            "SELECT 0",
        ] {
            client.call(command);
        }
    }
}

#[test]
fn what_stands_in_the_middle_passes_everything_on() {
    for (name, make) in makes() {
        let Some(first) = make() else { continue };
        let (middle, Some(last)) = (Server::start(), make()) else { continue };
        let mut client = first.client();
        write(&mut client, 0..20);
        follow(&middle, &first);
        follow(&last, &middle);
        write(&mut client, 20..60);
        settle(&first, &[&middle, &last]);
        assert_eq!(differences(&first, &middle), [""; 0], "{name}, the middle");
        assert_eq!(differences(&first, &last), [""; 0], "{name}, the last");
        assert_eq!((id(&middle), id(&last)), (id(&first), id(&first)), "{name}");
        // The link of the last is cut, then that of the middle: both go on where they were.
        let full = info(&mut middle.client(), "stats", "sync_full");
        for n in 0..5 {
            middle.client().call("CLIENT KILL TYPE replica");
            write(&mut client, 60 + n..61 + n);
            middle.client().call("CLIENT KILL TYPE master");
            write(&mut client, 70 + n..71 + n);
        }
        settle(&first, &[&middle, &last]);
        assert_eq!(differences(&first, &last), [""; 0], "{name}, behind cuts");
        assert_eq!(
            info(&mut middle.client(), "stats", "sync_full"),
            full,
            "{name}: a full sync was not needed"
        );
    }
}

/// The stream of one in the middle goes on in the database that its primary's has selected, without a SELECT.
#[test]
fn a_copy_of_the_middle_goes_on_in_the_database_of_the_stream() {
    for (name, make) in makes() {
        let Some(first) = make() else { continue };
        let (middle, Some(last)) = (Server::start(), make()) else { continue };
        follow(&middle, &first);
        let mut client = first.client();
        client.expect("SELECT 3", "+OK");
        client.expect("SET before 1", "+OK");
        settle_at(&first, &middle);
        follow(&last, &middle);
        client.expect("SET behind 1", "+OK");
        settle_at(&first, &last);
        assert_eq!(differences(&first, &last), [""; 0], "{name}");
    }
}

/// Signs of life that one of another make says between two steps of a test are of no history but its own: a
/// full copy would be right then.
fn says_no_ping(server: &Server) {
    server.client().expect("CONFIG SET repl-ping-replica-period 3600", "+OK");
}

/// A primary goes on saying PING when one of its replicas leads already. When it follows that one it takes the
/// PING back, and so do its own replicas. A full copy came of it.
#[test]
fn signs_of_life_alone_are_no_other_history() {
    let every_second = ["--repl-ping-replica-period", "1"];
    let (old, below) = (Server::start_with(&every_second), Server::start());
    let mut client = old.client();
    follow(&below, &old);
    for (name, new) in [
        ("evenkeel", Some(Server::start())),
        ("redis 7.0", Server::redis(&[])),
        ("valkey 9", Server::peer("valkey-server", &[])),
    ] {
        let Some(new) = new else { continue };
        write_plain(&mut client);
        follow(&new, &old);
        settle(&old, &[&new, &below]);
        new.client().expect("REPLICAOF NO ONE", "+OK");
        until("it leads", || info(&mut new.client(), "replication", "role") == "master");
        let offset = |server: &Server| info(&mut server.client(), "replication", "master_repl_offset");
        let led = offset(&new);
        until("PING was said", || offset(&old).parse::<u64>().unwrap() > led.parse().unwrap());
        let full = (info(&mut client, "stats", "sync_full"), info(&mut new.client(), "stats", "sync_full"));
        follow(&old, &new);
        write_plain(&mut new.client());
        settle(&new, &[&old]);
        until("the one below is there", || id(&below) == id(&new));
        settle(&new, &[&old, &below]);
        assert_eq!(differences(&new, &old), [""; 0], "{name}");
        assert_eq!(differences(&new, &below), [""; 0], "{name}, below");
        let now = (info(&mut client, "stats", "sync_full"), info(&mut new.client(), "stats", "sync_full"));
        assert_eq!(now, full, "{name}: a full copy was not needed\n{}", old.output());
        // It leads again.
        client.expect("REPLICAOF NO ONE", "+OK");
        until("it leads again", || info(&mut client, "replication", "role") == "master");
    }
}

/// Writes of which nothing expires.
fn write_plain(client: &mut Client) {
    for n in 0..50 {
        let reply = client.call(&format!("APPEND key{n} x"));
        assert!(reply.starts_with(':'), "{reply}");
    }
}

/// A server that follows, and gets a second full copy as its primary became another's replica, has lost
/// nothing: all that it had was its primary's. It listed all of it.
#[test]
fn what_a_replica_had_of_its_primary_is_not_lost() {
    let (first, middle, last) = (Server::start(), Server::start(), Server::start());
    first.client().expect("SET here 1", "+OK");
    follow(&last, &middle);
    let mut client = middle.client();
    (0..50).for_each(|n| client.expect(&format!("SET key{n} 1"), "+OK"));
    settle(&middle, &[&last]);
    follow(&middle, &first);
    settle(&first, &[&middle, &last]);
    assert_eq!(differences(&first, &last), [""; 0]);
    assert_eq!(info(&mut last.client(), "replication", "lost_writes"), "0");
}

/// The middle one leads from now on. The last goes on behind it, and the first follows it, without a full copy.
#[test]
fn one_that_is_promoted_is_followed_without_a_full_copy() {
    for (name, make) in makes() {
        let Some(first) = make() else { continue };
        let (middle, Some(last)) = (Server::start(), make()) else { continue };
        [&first, &middle, &last].into_iter().for_each(says_no_ping);
        let mut client = first.client();
        write(&mut client, 0..20);
        follow(&middle, &first);
        follow(&last, &middle);
        settle(&first, &[&middle, &last]);
        let (old, mut promoted) = (id(&first), middle.client());
        let full = info(&mut promoted, "stats", "sync_full");
        promoted.expect("REPLICAOF NO ONE", "+OK");
        until("it leads", || info(&mut promoted, "replication", "role") == "master");
        assert_ne!(id(&middle), old, "{name}");
        assert_eq!(info(&mut promoted, "replication", "master_replid2"), old, "{name}");
        follow(&first, &middle);
        write(&mut promoted, 100..120);
        until("the last is back", || info(&mut last.client(), "replication", "master_link_status") == "up");
        settle(&middle, &[&first, &last]);
        assert_eq!(differences(&middle, &first), [""; 0], "{name}, the first");
        assert_eq!(differences(&middle, &last), [""; 0], "{name}, the last");
        let now = info(&mut promoted, "stats", "sync_full");
        assert_eq!(now, full, "{name}: a full copy was not needed\n{}", middle.output());
        // And back: the first leads again.
        first.client().expect("REPLICAOF NO ONE", "+OK");
        until("the first leads", || info(&mut first.client(), "replication", "role") == "master");
        follow(&middle, &first);
        write(&mut client, 200..220);
        settle(&first, &[&middle, &last]);
        assert_eq!(differences(&first, &middle), [""; 0], "{name}, the middle again");
        assert_eq!(differences(&first, &last), [""; 0], "{name}, the last again");
    }
}

/// A primary follows one of its replicas from now on. The replica that stays below it was sent bytes of the new
/// history under the old id, and lost its place at its next connection.
#[test]
fn replicas_of_one_that_is_demoted_hear_of_the_new_id() {
    let (old, below, new) = (Server::start(), Server::start(), Server::start());
    let mut client = old.client();
    write(&mut client, 0..10);
    follow(&below, &old);
    follow(&new, &old);
    settle(&old, &[&below, &new]);
    let full = info(&mut client, "stats", "sync_full");
    new.client().expect("REPLICAOF NO ONE", "+OK");
    until("it leads", || info(&mut new.client(), "replication", "role") == "master");
    follow(&old, &new);
    let mut client = new.client();
    write(&mut client, 10..20);
    until("all have one id", || id(&below) == id(&new));
    settle(&new, &[&old, &below]);
    assert_eq!(info(&mut old.client(), "stats", "sync_full"), full, "a full copy was not needed");
    // It knows the place under the new id.
    let full = info(&mut client, "stats", "sync_full");
    follow(&below, &new);
    write(&mut client, 20..30);
    settle(&new, &[&old, &below]);
    assert_eq!(differences(&new, &below), [""; 0]);
    assert_eq!(info(&mut client, "stats", "sync_full"), full, "a full copy was not needed");
}

/// The link of the middle one comes back within a millisecond, before what it said last is in the backlog. The
/// backlog was dropped then, and what came late was counted twice.
#[test]
fn a_link_that_returns_at_once_goes_on_behind_what_it_said() {
    let (first, middle, last) = (Server::start(), Server::start(), Server::start());
    follow(&middle, &first);
    follow(&last, &middle);
    let mut client = first.client();
    settle(&first, &[&middle, &last]);
    let full = info(&mut middle.client(), "stats", "sync_full");
    for round in 0..10 {
        for n in 0..4 {
            (0..40).for_each(|i| drop(client.call(&format!("SET key{i} {round}-{n}"))));
            middle.client().call("CLIENT KILL TYPE master");
        }
        settle(&first, &[&middle, &last]);
    }
    assert_eq!(differences(&first, &last), [""; 0]);
    assert_eq!(info(&mut middle.client(), "stats", "sync_full"), full, "a full copy was not needed");
}

/// A transaction that publishes runs as a script, if it is long. On a replica with little memory for work it was
/// refused, and its writes were missing there.
#[test]
fn no_transaction_of_the_primary_lacks_memory() {
    let (primary, replica) = (Server::start(), Server::start_with(&["--work-max-memory", "2mb"]));
    follow(&replica, &primary);
    let mut client = primary.client();
    client.expect("MULTI", "+OK");
    for n in 0..3000 {
        client.expect(&format!("SET key{n} {}", "x".repeat(2000)), "+QUEUED");
    }
    client.expect("PUBLISH news x", "+QUEUED");
    client.call("EXEC");
    settle(&primary, &[&replica]);
    assert_eq!(replica.client().call("EXISTS key0 key2999"), ":2");
    assert_eq!(primary.client().call("DBSIZE"), replica.client().call("DBSIZE"));
}

/// One that is promoted says its database first. Its old primary does not know in which one the stream was, and
/// took the first write for one to another database.
#[test]
fn the_stream_of_one_that_is_promoted_says_its_database() {
    let (old, new) = (Server::start(), Server::start());
    follow(&new, &old);
    let mut client = old.client();
    client.expect("SELECT 3", "+OK");
    client.expect("SET before 1", "+OK");
    settle_at(&old, &new);
    new.client().expect("REPLICAOF NO ONE", "+OK");
    until("it leads", || info(&mut new.client(), "replication", "role") == "master");
    follow(&old, &new);
    let mut client = new.client();
    client.expect("SELECT 3", "+OK");
    client.expect("SET behind 1", "+OK");
    settle_at(&new, &old);
    assert_eq!(differences(&new, &old), [""; 0]);
}

/// A snapshot that the middle one takes at any moment fits the offset at which its replica goes on: a counter
/// and transfers would show a command that was applied twice, or not at all.
#[test]
fn a_snapshot_in_the_middle_fits_its_offset() {
    let (first, middle) = (Server::start(), Server::start());
    follow(&middle, &first);
    let addr = first.addr;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|n| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut client = Client::to(addr);
                let mut round = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    round += 1;
                    client.call("INCR count");
                    client.call("MULTI");
                    client.call(&format!("DECRBY a{n} {round}"));
                    client.call(&format!("INCRBY b{n} {round}"));
                    client.call("EXEC");
                    client.call(&format!("SELECT {}", round % 3));
                    client.call("INCR elsewhere");
                    client.call("EVAL \"for i=1,300 do redis.call('INCR','script') end\" 0");
                    client.call("SELECT 0");
                }
            })
        })
        .collect();
    for round in 0..12 {
        let last = Server::start();
        follow(&last, &middle);
        std::thread::sleep(std::time::Duration::from_millis(50));
        if round % 4 == 3 {
            middle.client().call("CLIENT KILL TYPE master");
        }
        if round == 11 {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        } else {
            continue;
        }
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let last = Server::start();
    follow(&last, &middle);
    settle(&first, &[&middle, &last]);
    assert_eq!(differences(&first, &middle), [""; 0]);
    assert_eq!(differences(&first, &last), [""; 0]);
}
