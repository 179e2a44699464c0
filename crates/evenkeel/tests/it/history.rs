//! The history through its commands: who is named, who may read words, and what a restart leaves.
//!
//! Rings, files and damage are tested in crate `history` on a clock of its own.

use crate::snapshots::{ready, start_in};
use crate::support::{Client, Server, encode_line, foreign};
use crate::waits::{astray, server, stall, until};
use std::path::Path;

/// Long for a loop, short for a test.
const SCRIPT: &str = "EVAL \"local n = 0 for i = 1, 3000000 do n = n + i % 7 end return n\" 1 blacklist:ids";

fn figure(client: &mut Client, name: &str) -> u64 {
    let text = client.call("INFO evenkeel");
    let line = text.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The numbers of the series `ops` of the last minutes, without gaps.
fn ops(client: &mut Client) -> Vec<u64> {
    let reply = client.call("EVENKEEL HISTORY -300000 0 300");
    let (_, series) = reply.split_once("\"ops\", [").unwrap_or_else(|| panic!("{reply}"));
    let (series, _) = series.split_once(']').expect("the end of a list");
    series.split(", ").filter_map(|one| one.strip_prefix(':')?.parse().ok()).collect()
}

#[test]
fn the_blacklist_script_is_named_even_if_nobody_waits() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut filter = server.client();
    filter.expect("CLIENT SETNAME filter-service", "+OK");
    let mut control = server.client();
    control.expect("CONFIG SET slowlog-log-slower-than 1000", "+OK");
    let mut now = String::new();
    until("the script is among the heaviest", || {
        filter.call(SCRIPT);
        now = control.call("EVENKEEL NOW");
        let heaviest = now.split("\"heaviest\"").nth(1).unwrap_or_default();
        heaviest.contains("\"filter-service\"") && heaviest.contains("\"eval\"")
    });
    assert!(now.contains("\"EVAL\"") && now.contains("local n = 0"), "{now}");
    let flows = control.call("EVENKEEL FLOWS -60000 0");
    assert!(flows.contains("\"heaviest\"") && flows.contains("\"filter-service\""), "{flows}");
    let mut records = String::new();
    until("it is among the records", || {
        records = control.call("EVENKEEL RECORDS -60000 0 FOR slow WAITER filter-service COUNT 1");
        records.contains("\"time_ms\"")
    });
    assert!(records.contains("\"ran-on-thread\"") && records.contains("\"EVAL\""), "{records}");
    assert!(records.contains("\"all\", :") && records.matches("\"time_ms\"").count() == 1, "{records}");
    assert!(ops(&mut control).iter().sum::<u64>() > 0);
    control.expect("CONFIG SET maxmemory 1gb", "+OK");
    until("the setting is marked", || {
        let marks = control.call("EVENKEEL HISTORY -300000 0 5");
        marks.contains("CONFIG SET maxmemory 1073741824") && marks.contains("started")
    });
}

#[test]
fn who_made_whom_wait_stands_in_now_and_flows_and_among_the_records() {
    if foreign() {
        return;
    }
    let (server, mut control) = server();
    let (mut culprit, _) = astray(&server, &mut control, "the-culprit");
    let (mut victim, _) = astray(&server, &mut control, "the-victim");
    let edge = "\"culprit\", [\"kind\", \"client\", \"name\", \"the-culprit\"";
    let waiter = "\"waiter\", [\"kind\", \"client\", \"name\", \"the-victim\"";
    // On a busy machine the loop may have waited longer for the system than for the stall.
    until("the wait is noted", || {
        stall(&mut control, &mut culprit, &mut victim);
        let waits = control.call("EVENKEEL WAITS");
        let mut latest = waits.split("\"id\", ").skip(1);
        latest.any(|one| {
            one.contains("\"the-victim\"")
                && one.contains("\"for\", \"loop\"")
                && one.contains("\"the-culprit\"")
        })
    });
    until("the edge is shown", || {
        let now = control.call("EVENKEEL NOW");
        let flows = control.call("EVENKEEL FLOWS -60000 0");
        now.contains(edge) && flows.contains(edge) && flows.contains(waiter)
    });
    let mut records = String::new();
    until("the wait is a record", || {
        records =
            control.call("EVENKEEL RECORDS -60000 0 FOR loop CULPRIT the-culprit WAITER the-victim MIN 1000");
        records.contains("\"waited-for-loop\"")
    });
    assert!(records.contains("\"DEBUG\", \"STALL\""), "{records}");
    assert_eq!(
        control.call("EVENKEEL RECORDS -60000 0 CULPRIT nobody"),
        "[\"records\", [], \"all\", :0, \"next\", (nil)]"
    );
    // A wait of ten milliseconds makes an incident.
    let incidents = control.call("EVENKEEL INCIDENTS -60000 0");
    assert!(incidents.starts_with("[\"incidents\", ["), "{incidents}");
}

#[test]
fn words_of_commands_are_for_those_who_may_read_all_keys_and_the_slow_log() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut owner = server.client();
    owner.expect("CLIENT SETNAME filter-service", "+OK");
    owner.expect("CONFIG SET slowlog-log-slower-than 1000", "+OK");
    until("the script is among the records", || {
        owner.call(SCRIPT);
        owner.call("EVENKEEL RECORDS -60000 0").contains("blacklist:ids")
    });
    let mut asks = |name: &str, rules: &str| {
        owner.expect(&format!("ACL SETUSER {name} on >p +evenkeel {rules}"), "+OK");
        let mut client = server.client();
        client.expect(&format!("AUTH {name} p"), "+OK");
        let all = ["NOW", "FLOWS -60000 0", "RECORDS -60000 0"]
            .map(|what| client.call(&format!("EVENKEEL {what}")));
        assert!(
            all.iter().all(|reply| reply.contains("filter-service") && reply.contains("\"eval\"")),
            "{all:?}"
        );
        all.iter().any(|reply| reply.contains("blacklist:ids") || reply.contains("local n = 0"))
    };
    assert!(!asks("app", "~app:*"));
    assert!(!asks("reader", "~*"));
    assert!(!asks("slow", "~app:* +slowlog"));
    assert!(asks("oncall", "~* +slowlog"));
    let mut nobody = server.client();
    owner.expect("ACL SETUSER none on >p ~* +@all -evenkeel", "+OK");
    nobody.expect("AUTH none p", "+OK");
    for what in ["NOW", "HISTORY -5 0", "FLOWS -5 0", "RECORDS -5 0", "INCIDENTS"] {
        assert!(nobody.call(&format!("EVENKEEL {what}")).starts_with("-NOPERM"), "{what}");
    }
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("EVENKEEL HISTORY 5 1", "-ERR the end is before the begin");
    client.expect("EVENKEEL HISTORY 1 5 99999", "-ERR the number of columns must be from 1 to 2000");
    client.expect(
        "EVENKEEL FLOWS yesterday 0",
        "-ERR a time is a number of milliseconds: since 1970, or 0 and below from now",
    );
    client.expect("EVENKEEL INCIDENTS 5", "-ERR syntax error");
    client.expect("EVENKEEL RECORDS -5 0 BY us", "-ERR syntax error");
    client.expect("EVENKEEL NOW x", "-ERR syntax error");
    // Times at the ends of all numbers are empty spans, not work.
    for span in ["1 9223372036854775", "-9223372036854775807 0", "0 0"] {
        for what in ["HISTORY", "FLOWS", "RECORDS", "INCIDENTS"] {
            let reply = client.call(&format!("EVENKEEL {what} {span}"));
            assert!(reply.starts_with("[\""), "{what} {span}: {reply}");
        }
    }
}

#[test]
fn a_history_of_no_memory_is_none() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    until("seconds are kept", || figure(&mut client, "history_seconds") > 1);
    client.expect("CONFIG SET history-max-memory 0", "+OK");
    until("they are dropped", || figure(&mut client, "history_seconds") == 0);
    assert!(client.call("EVENKEEL NOW").starts_with("[\"time_ms\", :0, \"second\", (nil)"));
    client.expect("CONFIG SET history-max-memory 1mb", "+OK");
    until("seconds are kept again", || figure(&mut client, "history_seconds") > 1);
}

/// The history's files with something in them.
fn files(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir.join("history")) else { return 0 };
    let filled = |entry: &std::fs::DirEntry| entry.metadata().is_ok_and(|file| file.len() > 0);
    entries.flatten().filter(filled).count()
}

#[test]
fn an_orderly_end_keeps_all_of_the_history() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), &["--appendonly", "yes"]);
    let mut client = ready(&server);
    client.expect("SET k v", "+OK");
    until("the requests are in the history", || ops(&mut client).iter().sum::<u64>() > 1);
    let before = figure(&mut client, "history_seconds");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    assert_eq!(files(folder.path()), 2);
    let server = start_in(folder.path(), &["--appendonly", "yes"]);
    let mut client = ready(&server);
    until("the former process's seconds are there", || figure(&mut client, "history_seconds") >= before);
    until("both starts are marked", || {
        client.call("EVENKEEL HISTORY -300000 0 5").matches("started").count() == 2
    });
}

/// It lasts up to a minute: until a minute is over.
#[test]
fn a_kill_loses_the_running_minute_at_most() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), &["--appendonly", "yes"]);
    let mut client = ready(&server);
    until("requests are in the history", || ops(&mut client).iter().sum::<u64>() > 1);
    until("a minute is written", || files(folder.path()) == 2);
    let before = ops(&mut client).len();
    server.signal("KILL");
    server.exit_code();
    let server = start_in(folder.path(), &["--appendonly", "yes"]);
    let mut client = ready(&server);
    until("the former process's minute is there", || ops(&mut client).iter().sum::<u64>() > 1);
    assert!(before > 0);
    assert!(!server.output().contains("cut off"), "{}", server.output());
}

#[test]
fn a_disk_that_takes_no_history_changes_no_reply() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // The folder's name is taken, so nothing can be written there.
    std::fs::write(folder.path().join("history"), "").expect("a file");
    let mut server = start_in(folder.path(), &["--appendonly", "yes"]);
    let mut client = ready(&server);
    for n in 0..100 {
        client.expect(&format!("SET k{n} {n}"), "+OK");
    }
    until("seconds are kept", || figure(&mut client, "history_seconds") > 1);
    client.expect("GET k7", "\"7\"");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    assert_eq!(server.output().matches("minutes cannot be written to").count(), 1, "{}", server.output());
    let server = start_in(folder.path(), &["--appendonly", "yes"]);
    ready(&server).expect("GET k7", "\"7\"");
}

#[test]
fn nothing_is_written_without_persistence() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), &["--save", ""]);
    let mut client = ready(&server);
    until("seconds are kept", || figure(&mut client, "history_seconds") > 1);
    client.send(encode_line("SHUTDOWN NOSAVE"));
    server.exit_code();
    assert!(!folder.path().join("history").exists());
}

/// Counts prefixes, and waits until it is done.
fn count_prefixes(client: &mut Client) {
    client.expect("EVENKEEL PREFIXES RUN", "+OK");
    until("the count has ended", || client.call("EVENKEEL PREFIXES GET 0").contains("\"running\", (nil)"));
}

#[test]
fn prefixes_show_who_uses_the_memory_and_to_whom_they_may_be_shown() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut owner = server.client();
    let empty = owner.call("EVENKEEL PREFIXES");
    assert!(empty.starts_with("[\"running\", (nil), \"time_ms\", (nil), "), "{empty}");
    for n in 0..50 {
        owner.expect(&format!("SET app:user:{n} {}", "x".repeat(200)), "+OK");
        owner.expect(&format!("SET secret:note:{n} y EX 1000"), "+OK");
    }
    owner.expect("SET secretplain z", "+OK");
    owner.expect("RPUSH app:list 1 2 3", ":3");
    count_prefixes(&mut owner);
    let all = owner.call("EVENKEEL PREFIXES");
    let has = |reply: &str, prefix: &str, keys: usize, expiring: usize| {
        let found =
            reply.split("[\"prefix\", ").find(|one| one.starts_with(&format!("\"{prefix}\", \"db\", :0")));
        let one = found.unwrap_or_else(|| panic!("no {prefix} in {reply}"));
        assert!(one.contains(&format!("\"keys\", :{keys}, ")), "{one}");
        assert!(one.contains(&format!("\"expiring\", :{expiring}, \"used\", :{keys}, ")), "{one}");
    };
    has(&all, "app:", 51, 0);
    has(&all, "app:user:", 50, 0);
    has(&all, "secret:note:", 50, 50);
    has(&all, "", 1, 0);
    assert!(all.contains("\"whole\", :1, \"keys\", :102, "), "{all}");
    assert!(all.contains("\"list\", [[\"key\", \"app:list\", \"db\", :0, "), "{all}");
    // The next count knows how large it was.
    owner.expect("DEL secretplain", ":1");
    count_prefixes(&mut owner);
    let next = owner.call("EVENKEEL PREFIXES GET 1");
    assert!(next.contains("\"earlier_bytes\", [:") && next.matches("\"prefix\"").count() == 1, "{next}");
    // Others see what is theirs.
    owner.expect("ACL SETUSER app on >p +evenkeel ~app:*", "+OK");
    owner.expect("ACL SETUSER other on >p +evenkeel ~app:user:1* %W~secret:*", "+OK");
    let mut app = server.client();
    app.expect("AUTH app p", "+OK");
    let seen = app.call("EVENKEEL PREFIXES");
    has(&seen, "app:", 51, 0);
    assert!(!seen.contains("secret") && seen.contains("\"keys\", :0, \"bytes\", :0, "), "{seen}");
    app.expect("AUTH other p", "+OK");
    let seen = app.call("EVENKEEL PREFIXES");
    assert!(!seen.contains("secret") && !seen.contains("\"prefix\"") && !seen.contains("app:list"), "{seen}");
    for (words, error) in [
        ("X", "-ERR syntax error"),
        ("RUN 1", "-ERR syntax error"),
        ("GET x", "-ERR count must be a number of 0 or more"),
    ] {
        owner.expect(&format!("EVENKEEL PREFIXES {words}"), error);
    }
}

#[test]
fn news_are_what_happened_since() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("CONFIG SET maxmemory 1gb", "+OK");
    let mut news = String::new();
    until("the setting is told", || {
        news = client.call("EVENKEEL NOW SINCE -60000");
        news.contains("CONFIG SET maxmemory 1073741824")
    });
    assert!(news.starts_with("[\"next\", :"), "{news}");
    let next = news[10..].split(',').next().expect("a number").trim_start_matches(':').to_owned();
    let later = client.call(&format!("EVENKEEL NOW SINCE {next}"));
    assert!(!later.contains("maxmemory"), "{later}");
    client.expect(
        "EVENKEEL NOW SINCE x",
        "-ERR a time is a number of milliseconds: since 1970, or 0 and below from now",
    );
}
