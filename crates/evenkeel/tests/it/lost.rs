//! Writes that a server took and its new primary does not have: they are listed, and can be run again.

use crate::replicas::{follow, info, settle_at, until};
use crate::support::{Server, run, said};

/// A primary whose replica was promoted while the link was down, and what both wrote meanwhile.
fn apart(args: &[&str]) -> (Server, Server) {
    let (old, new) = (Server::start_with(args), Server::start());
    follow(&new, &old);
    let mut client = old.client();
    client.expect("SET shared 1", "+OK");
    client.expect("SELECT 2", "+OK");
    client.expect("SET shared 2", "+OK");
    settle_at(&old, &new);
    new.client().expect("REPLICAOF NO ONE", "+OK");
    until("it leads", || info(&mut new.client(), "replication", "role") == "master");
    client.expect("SET lost 1", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("LPUSH list a b", "+QUEUED");
    client.expect("INCR count", "+QUEUED");
    client.expect("EXEC", "[:2, :1]");
    client.expect("SELECT 0", "+OK");
    client.expect("SET shared lost", "+OK");
    new.client().expect("SET newer 1", "+OK");
    (old, new)
}

fn commands(old: &Server) -> Vec<String> {
    let reply = old.client().call("EVENKEEL LOST lost-1.aof 100");
    let commands = reply.split("\"command\", [").skip(1);
    commands.map(|rest| rest.split(']').next().unwrap().replace(['"', ','], "")).collect()
}

#[test]
fn what_the_new_primary_lacks_is_listed_and_can_be_run_there() {
    let (old, new) = apart(&[]);
    assert_eq!(old.client().call("EVENKEEL LOST"), "[]");
    follow(&old, &new);
    settle_at(&new, &old);
    let mut client = old.client();
    assert_eq!(client.call("GET shared"), "\"1\"");
    assert_eq!(info(&mut client, "replication", "lost_writes"), "4");
    let files = client.call("EVENKEEL LOST");
    for part in ["\"file\", \"lost-1.aof\"", "\"certain\", :1", "\"whole\", :1", "\"commands\", :4"] {
        assert!(files.contains(part), "{part}: {files}");
    }
    assert_eq!(commands(&old), ["set lost 1", "lpush list a b", "incr count", "set shared lost"]);
    let first = client.call("EVENKEEL LOST lost-1.aof 1");
    assert!(first.contains("\"db\", :2, \"keys\", [\"lost\"]"), "{first}");
    assert!(!first.contains("\"time-ms\", :0,"), "{first}");
    client.expect("EVENKEEL LOST lost-2.aof", "-ERR there is no such file of lost writes");
    client.expect("EVENKEEL LOST ../lost-1.aof", "-ERR there is no such file of lost writes");
    // A person reads the file, and runs it at the new primary.
    let path = old.dir.path().join("lost-1.aof");
    let path = path.to_str().unwrap();
    let text = said(&run(&["doctor", path]));
    assert!(text.contains("4 writes of history") && text.contains("lpush list a b"), "{text}");
    let text = said(&run(&["doctor", path, "--replay", &new.addr.to_string()]));
    assert!(text.contains("4 writes were run") && text.contains("0 of them were refused"), "{text}");
    let mut leader = new.client();
    assert_eq!(leader.call("GET shared"), "\"lost\"");
    leader.expect("SELECT 2", "+OK");
    assert_eq!(leader.call("LRANGE list 0 -1"), "[\"b\", \"a\"]");
}

/// The old primary crashed, and starts again: what it lost is in its log alone.
#[test]
fn a_log_tells_what_a_crashed_primary_lost() {
    let (mut old, new) = apart(&["--appendonly", "yes", "--appendfsync", "always"]);
    old.signal("KILL");
    old.exit_code();
    let folder = old.dir.path().to_str().unwrap().to_owned();
    let args = ["--dir", &folder, "--appendonly", "yes", "--appendfsync", "always"];
    let again = Server::start_with(&args);
    until("it has its data", || again.client().call("GET shared") == "\"lost\"");
    again.client().expect("SET later 1", "+OK");
    follow(&again, &new);
    settle_at(&new, &again);
    assert_eq!(again.client().call("GET shared"), "\"1\"");
    let names = commands(&again);
    for lost in ["set lost 1", "lpush list a b", "incr count", "set shared lost", "set later 1"] {
        assert!(names.contains(&lost.to_owned()), "{lost}: {names:?}");
    }
    assert!(!names.contains(&"set shared 1".to_owned()), "{names:?}");
}

/// A primary that returns with less than its replica has: the replica's surplus is listed.
#[test]
fn a_replica_lists_what_its_primary_has_lost() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--dir", folder.path().to_str().unwrap(), "--save", "3600 1000000"];
    let mut primary = Server::start_with(&args);
    let replica = Server::start();
    follow(&replica, &primary);
    let mut client = primary.client();
    client.expect("SET kept 1", "+OK");
    // The copy for the replica may still be under way.
    until("it is saved", || client.call("SAVE") == "+OK");
    client.expect("SET surplus 1", "+OK");
    settle_at(&primary, &replica);
    primary.signal("KILL");
    primary.exit_code();
    let primary = Server::start_on_with(primary.addr.port(), &args).expect("it starts again");
    until("the data are loaded", || !primary.client().call("DBSIZE").starts_with("-LOADING"));
    settle_at(&primary, &replica);
    assert_eq!(replica.client().call("EXISTS surplus"), ":0");
    assert_eq!(commands(&replica), ["set surplus 1"]);
}

/// One that follows somebody else loses nothing: all that it has is with its primary of before.
#[test]
fn who_follows_another_primary_by_request_loses_nothing() {
    let (first, second, replica) = (Server::start(), Server::start(), Server::start());
    first.client().expect("SET of first", "+OK");
    second.client().expect("SET of second", "+OK");
    follow(&replica, &first);
    first.client().expect("SET more first", "+OK");
    settle_at(&first, &replica);
    follow(&replica, &second);
    settle_at(&second, &replica);
    assert_eq!(replica.client().call("GET of"), "\"second\"");
    assert_eq!(replica.client().call("EVENKEEL LOST"), "[]");
}

/// Starts a server again that has ended, with its data.
fn start_again(old: &mut Server, args: &[&str]) -> Server {
    old.exit_code();
    let folder = old.dir.path().to_str().unwrap().to_owned();
    let again = Server::start_with(&[&["--dir", folder.as_str()], args].concat());
    until("it has its data", || again.client().call("GET shared") == "\"lost\"");
    again
}

/// The log was begun anew behind the place where both parted, so it has a part alone. The file said that it was
/// all.
#[test]
fn a_log_that_was_begun_anew_has_a_part_of_what_is_lost() {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let (mut old, new) = apart(&args);
    let mut client = old.client();
    until("no rewrite is under way", || info(&mut client, "persistence", "aof_rewrite_in_progress") == "0");
    let before = info(&mut client, "persistence", "aof_rewrites");
    client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
    until("it is rewritten", || {
        info(&mut client, "persistence", "aof_rewrites") != before
            && info(&mut client, "persistence", "aof_rewrite_in_progress") == "0"
    });
    client.expect("SET behind 1", "+OK");
    old.signal("KILL");
    let again = start_again(&mut old, &args);
    follow(&again, &new);
    settle_at(&new, &again);
    assert!(commands(&again).contains(&"set behind 1".to_owned()));
    let files = again.client().call("EVENKEEL LOST");
    assert!(files.contains("\"whole\", :0"), "{files}");
    again.await_words("it has a part, and more may be lost");
}

/// A snapshot says how far its data went, and nothing of single writes. They vanished without a word.
#[test]
fn without_a_log_it_is_said_that_something_may_be_lost() {
    let args = ["--save", "3600 1000000"];
    let (mut old, new) = apart(&args);
    old.client().send("SHUTDOWN SAVE\r\n");
    let again = start_again(&mut old, &args);
    // A file of before that was damaged hides no other.
    std::fs::write(old.dir.path().join("lost-1.aof"), "nonsense").unwrap();
    follow(&again, &new);
    settle_at(&new, &again);
    again.await_words("more may be lost");
    let files = again.client().call("EVENKEEL LOST");
    for part in [
        "\"file\", \"lost-1.aof\"",
        "\"error\", \"",
        "\"file\", \"lost-2.aof\"",
        "\"whole\", :0, \"commands\", :0",
    ] {
        assert!(files.contains(part), "{part}: {files}");
    }
}
