//! Streams: who waits is served in Redis's order, long commands are nobody else's business, and entries, groups
//! and what is pending come back from files.

use crate::held::{Hold, MANY, eval, held, held_while, others_are_served};
use crate::snapshots::{ready, start_in};
use crate::support::{Client, Server, encode_line, foreign};
use crate::waits::until;
use std::time::Duration;

fn await_blocked(control: &mut Client, count: usize) {
    until("they are blocked", || {
        control.call("INFO clients").contains(&format!("blocked_clients:{count}\\r"))
    });
}

/// A client that waits with this command, as the so many-th.
fn waiter(server: &Server, control: &mut Client, count: usize, line: &str) -> Client {
    let mut client = server.client();
    client.send(encode_line(line));
    await_blocked(control, count);
    client
}

const READ: &str = "XREAD BLOCK 0 STREAMS s $";

fn consume(consumer: &str) -> String {
    format!("XREADGROUP GROUP g {consumer} BLOCK 0 STREAMS s >")
}

fn one(id: &str, value: &str) -> String {
    format!("[[\"s\", [[\"{id}\", [\"f\", \"{value}\"]]]]]")
}

#[test]
fn an_entry_serves_all_who_read() {
    let server = Server::start();
    let mut control = server.client();
    control.expect("XADD s 1-1 f old", "\"1-1\"");
    let mut readers: Vec<Client> = (1..=70).map(|i| waiter(&server, &mut control, i, READ)).collect();
    let mut other = waiter(&server, &mut control, 71, "XREAD BLOCK 0 STREAMS other s 0 5-1");
    control.expect("XADD s 2-1 f v", "\"2-1\"");
    readers.iter_mut().for_each(|reader| reader.expect_reply(&one("2-1", "v")));
    await_blocked(&mut control, 1);
    control.expect("XADD s 6-1 f w", "\"6-1\"");
    other.expect_reply(&one("6-1", "w"));
    await_blocked(&mut control, 0);
}

#[test]
fn consumers_are_served_one_after_the_other() {
    let server = Server::start();
    let mut control = server.client();
    control.expect("XGROUP CREATE s g $ MKSTREAM", "+OK");
    let mut consumers: Vec<Client> =
        (0..5).map(|i| waiter(&server, &mut control, i + 1, &consume(&format!("c{i}")))).collect();
    // A client that only reads takes nothing from them.
    let mut reader = waiter(&server, &mut control, 6, READ);
    for (i, consumer) in consumers.iter_mut().enumerate() {
        control.expect(&format!("XADD s {}-1 f v{i}", i + 1), &format!("\"{}-1\"", i + 1));
        consumer.expect_reply(&one(&format!("{}-1", i + 1), &format!("v{i}")));
        if i == 0 {
            reader.expect_reply(&one("1-1", "v0"));
        }
        await_blocked(&mut control, 4 - i);
    }
    control.expect(
        "XPENDING s g",
        "[:5, \"1-1\", \"5-1\", [[\"c0\", \"1\"], [\"c1\", \"1\"], [\"c2\", \"1\"], [\"c3\", \"1\"], [\"c4\", \"1\"]]]",
    );
}

/// A change beside the entries neither wakes who waits for entries nor ends a transaction that watches the
/// stream.
#[test]
fn changes_of_groups_wake_nobody() {
    let server = Server::start();
    let (mut control, mut watcher) = (server.client(), server.client());
    for i in 1..=3 {
        control.expect(&format!("XADD s {i}-0 f v{i}"), &format!("\"{i}-0\""));
    }
    control.expect("XGROUP CREATE s g $", "+OK");
    let mut consumer = waiter(&server, &mut control, 1, &consume("c"));
    watcher.expect("WATCH s", "+OK");
    for (line, reply) in [
        ("XGROUP SETID s g 2-0", "+OK"),
        ("XGROUP CREATE s other 0", "+OK"),
        ("XGROUP CREATECONSUMER s other c", ":1"),
        ("XREADGROUP GROUP other new STREAMS s 0", "[[\"s\", []]]"),
        ("XGROUP DELCONSUMER s other c", ":0"),
        ("XSETID s 5-0", "+OK"),
    ] {
        control.expect(line, reply);
    }
    assert_eq!(consumer.reply_within(Duration::from_millis(100)), None);
    watcher.expect("MULTI", "+OK");
    watcher.expect("EXEC", "[]");
    control.expect("XADD s 6-0 f v6", "\"6-0\"");
    consumer.expect_reply("[[\"s\", [[\"3-0\", [\"f\", \"v3\"]], [\"6-0\", [\"f\", \"v6\"]]]]]");
    // The end of a group wakes, and ends no transaction either.
    watcher.expect("WATCH s", "+OK");
    control.expect("XGROUP DESTROY s other", ":1");
    control.expect("EVAL \"return redis.call('XGROUP', 'DESTROY', 's', 'g')\" 0", ":1");
    watcher.expect("MULTI", "+OK");
    watcher.expect("EXEC", "[]");
    // A key that is new is another matter.
    watcher.expect("WATCH none", "+OK");
    control.expect("XGROUP CREATE none g $ MKSTREAM", "+OK");
    watcher.expect("MULTI", "+OK");
    watcher.expect("EXEC", "(nil array)");
}

#[test]
fn consumers_that_wait_are_told_that_their_group_is_gone() {
    let server = Server::start();
    let mut control = server.client();
    let gone = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option";
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    for (line, reply) in [
        ("XGROUP DESTROY s g", gone),
        ("EVAL \"return redis.call('XGROUP', 'DESTROY', 's', 'g')\" 0", gone),
        ("DEL s", gone),
        ("RENAME s t", gone),
        ("FLUSHALL", gone),
        ("FLUSHDB", gone),
        ("EVAL \"return redis.call('flushdb')\" 0", gone),
        ("SET s x", wrong),
        ("LPUSH l x", ""),
    ] {
        control.call("FLUSHALL");
        control.expect("XGROUP CREATE s g $ MKSTREAM", "+OK");
        let mut consumer = waiter(&server, &mut control, 1, &consume("c"));
        let done = control.call(line);
        assert!(!done.starts_with('-'), "{line}: {done}");
        if reply.is_empty() {
            control.expect("XADD s 1-1 f v", "\"1-1\"");
            consumer.expect_reply(&one("1-1", "v"));
        } else {
            assert_eq!(consumer.reply(), reply, "{line}");
        }
    }
    // A client that only reads waits for the next stream of this name.
    control.call("FLUSHALL");
    control.expect("XADD s 1-1 f v", "\"1-1\"");
    let mut reader = waiter(&server, &mut control, 1, READ);
    control.expect("SET s x", "+OK");
    control.expect("DEL s", ":1");
    control.expect("XADD s 1-2 f v", "\"1-2\"");
    reader.expect_reply(&one("1-2", "v"));
}

#[test]
fn a_wait_ends_after_its_time_or_by_another_client() {
    let server = Server::start();
    let mut control = server.client();
    control.expect("XREAD BLOCK 1 STREAMS s $", "(nil array)");
    control.expect("XGROUP CREATE s g $ MKSTREAM", "+OK");
    control.expect("XREADGROUP GROUP g c BLOCK 1 STREAMS s >", "(nil array)");
    control.expect("XREAD BLOCK -1 STREAMS s $", "-ERR timeout is negative");
    control.expect("XREAD BLOCK x STREAMS s $", "-ERR timeout is not an integer or out of range");
    let error = "-UNBLOCKED client unblocked via CLIENT UNBLOCK";
    for (how, reply) in [("", "(nil array)"), (" TIMEOUT", "(nil array)"), (" ERROR", error)] {
        for line in [READ, &consume("c")] {
            let mut client = server.client();
            let id = client.call("CLIENT ID");
            client.send(encode_line(line));
            await_blocked(&mut control, 1);
            control.expect(&format!("CLIENT UNBLOCK {}{how}", &id[1..]), ":1");
            client.expect_reply(reply);
        }
    }
}

#[test]
fn nothing_waits_in_a_transaction_or_a_script() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("XGROUP CREATE s g $ MKSTREAM", "+OK");
    client.expect("MULTI", "+OK");
    client.expect(READ, "+QUEUED");
    client.expect(&consume("c"), "+QUEUED");
    client.expect("EXEC", "[(nil array), (nil array)]");
    let script = "return redis.call('XREAD', 'BLOCK', '0', 'STREAMS', 's', '$')";
    client.expect(&format!("EVAL \"{script}\" 1 s"), "(nil)");
}

#[test]
fn a_transaction_of_several_entries_serves_with_all_of_them() {
    let server = Server::start();
    let mut control = server.client();
    control.expect("XGROUP CREATE s g $ MKSTREAM", "+OK");
    let mut reader = waiter(&server, &mut control, 1, READ);
    let mut first = waiter(&server, &mut control, 2, "XREADGROUP GROUP g a COUNT 1 BLOCK 0 STREAMS s >");
    let mut second = waiter(&server, &mut control, 3, &consume("b"));
    control.expect("MULTI", "+OK");
    (1..=3).for_each(|i| control.expect(&format!("XADD s {i}-0 f v"), "+QUEUED"));
    control.expect("EXEC", "[\"1-0\", \"2-0\", \"3-0\"]");
    let entries = |ids: &[u32]| {
        let entries: Vec<String> = ids.iter().map(|i| format!("[\"{i}-0\", [\"f\", \"v\"]]")).collect();
        format!("[[\"s\", [{}]]]", entries.join(", "))
    };
    reader.expect_reply(&entries(&[1, 2, 3]));
    first.expect_reply(&entries(&[1]));
    second.expect_reply(&entries(&[2, 3]));
}

#[test]
fn a_consumer_reads_its_history_until_it_is_done() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("XGROUP CREATE s g 0 MKSTREAM", "+OK");
    (1..=3).for_each(|i| client.expect(&format!("XADD s {i}-0 f v{i}"), &format!("\"{i}-0\"")));
    client.expect("XREADGROUP GROUP g c COUNT 1 STREAMS s >", &one("1-0", "v1"));
    client.expect("XREADGROUP GROUP g c NOACK COUNT 1 STREAMS s >", &one("2-0", "v2"));
    client.expect("XREADGROUP GROUP g d STREAMS s >", &one("3-0", "v3"));
    client.expect("XREADGROUP GROUP g c STREAMS s 0", &one("1-0", "v1"));
    client.expect("XREADGROUP GROUP g c STREAMS s 1-0", "[[\"s\", []]]");
    // History never waits.
    client.expect("XREADGROUP GROUP g e BLOCK 0 STREAMS s 0", "[[\"s\", []]]");
    client.expect("XDEL s 1-0", ":1");
    client.expect("XREADGROUP GROUP g c STREAMS s 0", "[[\"s\", [[\"1-0\", (nil array)]]]]");
    client.expect("XACK s g 1-0 2-0 3-0", ":2");
    client.expect("XREADGROUP GROUP g c STREAMS s 0", "[[\"s\", []]]");
    client.expect("XREADGROUP GROUP g c STREAMS s >", "(nil array)");
}

#[test]
fn limits_of_a_node_are_those_of_the_next_entry() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let nodes = |client: &mut Client| {
        let info = client.call("XINFO STREAM s");
        let at = info.find("radix-tree-keys\", :").expect("the number of nodes") + 19;
        info[at..].split(',').next().and_then(|n| n.parse::<usize>().ok()).expect("a number")
    };
    let add = |client: &mut Client, count: usize| {
        (0..count).for_each(|_| drop(client.call("XADD s * field value")));
    };
    add(&mut client, 250);
    assert_eq!(nodes(&mut client), 3);
    client.expect("CONFIG SET stream-node-max-entries 10", "+OK");
    add(&mut client, 100);
    assert_eq!(nodes(&mut client), 13);
    client.expect("CONFIG SET stream-node-max-entries 0 stream-node-max-bytes 0", "+OK");
    add(&mut client, 1000);
    // Without limits only the form's own end a node.
    assert!(nodes(&mut client) < 23);
    client.expect("CONFIG SET stream-node-max-bytes 1", "+OK");
    let before = nodes(&mut client);
    add(&mut client, 20);
    assert_eq!(nodes(&mut client), before + 20);
    client.expect("CONFIG GET stream-node-max-entries", "[\"stream-node-max-entries\", \"0\"]");
}

/// Streams with all that they may have.
fn fill(client: &mut Client) {
    for line in [
        "XADD s 1-1 f v g w",
        "XADD s 2-1 f v g w",
        "XADD s 2-2 other \"a longer value than the others\" n 12345",
        "XADD s 3-0 f -7 g 9223372036854775807",
        "XDEL s 2-1",
        "XGROUP CREATE s g 0",
        "XGROUP CREATE s empty $ ENTRIESREAD 3",
        "XREADGROUP GROUP g a COUNT 1 STREAMS s >",
        "XREADGROUP GROUP g b STREAMS s >",
        "XCLAIM s g c 0 2-2 RETRYCOUNT 7",
        "XACK s g 3-0",
        "XGROUP CREATECONSUMER s g idle",
        "XGROUP CREATE made g 5-5 MKSTREAM",
        "XADD gone 1-1 a b",
        "XDEL gone 1-1",
        "XADD long MAXLEN = 2000 1-1 a b",
    ] {
        let reply = client.call(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    for i in 2..1500 {
        client.send(encode_line(&format!("XADD long {i}-0 field{} value{i}", i % 3)));
    }
    (2..1500).for_each(|i| client.expect_reply(&format!("\"{i}-0\"")));
}

/// All that a server tells of the streams.
fn told(client: &mut Client) -> Vec<String> {
    let keys = ["s", "made", "gone", "long"];
    let full = keys.map(|key| client.call(&format!("XINFO STREAM {key} FULL COUNT 0")));
    full.iter().map(|text| without_nodes(text)).collect()
}

/// Facts about the tree are the server's own.
fn without_nodes(full: &str) -> String {
    let mut words: Vec<&str> = full.split(", ").collect();
    for name in ["\"radix-tree-keys\"", "\"radix-tree-nodes\""] {
        if let Some(at) = words.iter().position(|word| *word == name) {
            words.drain(at..at + 2);
        }
    }
    words.join(", ")
}

#[test]
fn files_keep_streams_with_their_groups() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (digest, before) = {
        let mut server = start_in(folder.path(), &[]);
        let mut client = ready(&server);
        fill(&mut client);
        let digest = client.call("DEBUG DIGEST");
        let before = told(&mut client);
        client.expect("DEBUG RELOAD", "+OK");
        client.expect("DEBUG DIGEST", &digest);
        assert_eq!(told(&mut client), before);
        client.expect("SAVE", "+OK");
        client.send("SHUTDOWN NOSAVE\r\n");
        assert_eq!(server.exit_code(), Some(0));
        (digest, before)
    };
    let server = start_in(folder.path(), &[]);
    let mut client = ready(&server);
    client.expect("DEBUG DIGEST", &digest);
    assert_eq!(told(&mut client), before);
}

/// Without the times at which consumers were seen: the log does not tell them.
fn without_times(told: &[String]) -> Vec<String> {
    let plain = |full: &String| {
        let mut words: Vec<&str> = full.split(", ").collect();
        for name in ["\"seen-time\"", "\"active-time\""] {
            while let Some(at) = words.iter().position(|word| *word == name) {
                words.drain(at..at + 2);
            }
        }
        words.join(", ")
    };
    told.iter().map(plain).collect()
}

#[test]
fn the_log_keeps_streams_through_a_kill() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["--appendonly", "yes", "--appendfsync", "always"];
    let before = {
        let server = start_in(folder.path(), &words);
        let mut client = ready(&server);
        fill(&mut client);
        let before = told(&mut client);
        server.signal("KILL");
        before
    };
    let server = start_in(folder.path(), &words);
    let mut client = ready(&server);
    assert_eq!(without_times(&told(&mut client)), without_times(&before));
    client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
    until("it is rewritten", || client.call("INFO persistence").contains("aof_rewrite_in_progress:0\\r"));
    server.signal("KILL");
    drop(server);
    let server = start_in(folder.path(), &words);
    assert_eq!(without_times(&told(&mut ready(&server))), without_times(&before));
}

/// A Redis 7.0 starts from our snapshot and from our log, and we from its.
#[test]
fn redis_reads_our_streams_and_we_its() {
    if foreign() {
        return;
    }
    for words in [&["--appendonly", "no"][..], &["--appendonly", "yes"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().display().to_string();
        let before = {
            let mut server = start_in(folder.path(), words);
            let mut client = ready(&server);
            fill(&mut client);
            let before = told(&mut client);
            client.send(if words[1] == "no" { "SHUTDOWN SAVE\r\n" } else { "SHUTDOWN\r\n" });
            assert_eq!(server.exit_code(), Some(0));
            without_times(&before)
        };
        let Some(mut redis) = Server::redis(&[&["--dir", &dir], words].concat()) else { return };
        let mut client = redis.client();
        // It has another idea of the lag.
        let no_lag = |told: Vec<String>| -> Vec<String> {
            let cut = |full: &String| {
                let mut words: Vec<&str> = full.split(", ").collect();
                while let Some(at) = words.iter().position(|word| *word == "\"lag\"") {
                    words.drain(at..at + 2);
                }
                words.join(", ")
            };
            told.iter().map(cut).collect()
        };
        assert_eq!(no_lag(without_times(&told(&mut client))), no_lag(before.clone()));
        client.expect("XADD s 9-9 by redis", "\"9-9\"");
        client.expect("XREADGROUP GROUP g b STREAMS s >", "[[\"s\", [[\"9-9\", [\"by\", \"redis\"]]]]]");
        let theirs = told(&mut client);
        client.send(if words[1] == "no" { "SHUTDOWN SAVE\r\n" } else { "SHUTDOWN\r\n" });
        assert_eq!(redis.exit_code(), Some(0));
        let server = start_in(folder.path(), words);
        let mut client = ready(&server);
        let ours = told(&mut client);
        // Its log does not tell how many entries a group has read, and it is asked here only about the others.
        let read = |told: Vec<String>| match words[1] {
            "no" => no_lag(without_times(&told)),
            _ => no_lag(without_times(&told))[1..].to_vec(),
        };
        assert_eq!(read(ours), read(theirs));
        client.expect("XRANGE s 9 9", "[[\"9-9\", [\"by\", \"redis\"]]]");
    }
}

/// A server with a long stream, of which a group has all pending for one consumer.
fn laden() -> Option<Server> {
    if foreign() {
        return None;
    }
    let server = crate::held::lade(Server::start());
    let mut client = server.client();
    let add = format!("for i = 1, {MANY} do redis.call('XADD', 'strm', i .. '-1', 'f', 'v', 'g', i) end");
    client.expect(&eval(&add), "(nil)");
    client.expect("XGROUP CREATE strm g 0", "+OK");
    client.expect("XGROUP CREATE strm fresh 0", "+OK");
    let read = "redis.call('XREADGROUP', 'GROUP', 'g', 'a', 'STREAMS', 'strm', '>') return 1";
    client.expect(&eval(read), ":1");
    client.expect("XPENDING strm g", &format!("[:{MANY}, \"1-1\", \"{MANY}-1\", [[\"a\", \"{MANY}\"]]]"));
    Some(server)
}

#[test]
fn a_long_answer_streams() {
    let Some(server) = laden() else { return };
    for line in [
        "XRANGE strm - +",
        "XREVRANGE strm + -",
        "XREAD STREAMS strm 0",
        "XREAD BLOCK 0 STREAMS strm 0",
        "XREADGROUP GROUP g a STREAMS strm 0",
    ] {
        let reply = held(&server, "stream", line);
        assert_eq!(reply.matches("\"g\"").count(), MANY, "{line}: {} bytes", reply.len());
    }
    // The entries are those of the moment it began.
    let mut hold = Hold::first_at(&server, "stream");
    let (mut reader, mut other) = (server.client(), server.client());
    reader.send(encode_line("XRANGE strm - +"));
    hold.await_victim();
    other.expect("XTRIM strm MAXLEN 1", &format!(":{}", MANY - 1));
    other.expect("DEL strm", ":1");
    hold.release();
    assert_eq!(reader.reply().matches("\"g\"").count(), MANY);
}

/// Ends in the middle of what takes long are the tests' of jobs; here each of these is one.
#[test]
fn a_long_command_is_nobodys_business() {
    let Some(server) = laden() else { return };
    let ids: Vec<String> = (1..=MANY).map(|i| format!("{i}-1")).collect();
    let ids = ids.join(" ");
    let all = format!(":{MANY}");
    for (line, reply) in [
        (format!("XPENDING strm g - + {MANY}"), ""),
        ("XPENDING strm g IDLE 100000000 - + 1".to_owned(), "[]"),
        ("XINFO STREAM strm FULL COUNT 500".to_owned(), ""),
        (format!("XCLAIM strm g b 0 {ids} JUSTID"), ""),
        (format!("XAUTOCLAIM strm g c 0 - COUNT {MANY} JUSTID"), ""),
        ("XREADGROUP GROUP fresh a STREAMS strm >".to_owned(), ""),
        (format!("XACK strm fresh {ids}"), &all),
        ("XGROUP DELCONSUMER strm g c".to_owned(), &all),
        (format!("XDEL strm {ids}"), &all),
    ] {
        let said = held(&server, "job-end", &line);
        let name: String = line.chars().take(40).collect();
        assert!(!said.starts_with('-') && said.len() > 1, "{name}: {said}");
        assert!(reply.is_empty() || said == reply, "{name}: {said}");
    }
}

#[test]
fn a_long_command_in_a_transaction_or_a_script_is_nobodys_business() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    client.expect("MULTI", "+OK");
    client.expect(&format!("XAUTOCLAIM strm g b 0 - COUNT {MANY} JUSTID"), "+QUEUED");
    client.expect("XGROUP DELCONSUMER strm g b", "+QUEUED");
    let reply = held_while(&server, "job-end", client, b"EXEC\r\n", || others_are_served(&server));
    assert!(reply.ends_with(&format!(", :{MANY}]")), "{}", &reply[reply.len() - 60..]);
    let read = "return #redis.call('XREADGROUP', 'GROUP', 'fresh', 'a', 'STREAMS', 'strm', '>')[1][2]";
    assert_eq!(held(&server, "script-end", &eval(read)), format!(":{MANY}"));
}

#[test]
fn what_a_stream_leaves_is_freed_elsewhere() {
    for line in ["XTRIM strm MAXLEN 0", "XTRIM strm MINID 19999", "DEL strm", "XGROUP DESTROY strm g"] {
        let Some(server) = laden() else { return };
        let mut hold = Hold::first_at(&server, "reclaim");
        let mut client = server.client();
        let reply = client.call(line);
        assert!(reply.starts_with(':'), "{line} was answered {reply}");
        hold.await_victim();
        others_are_served(&server);
        hold.release();
    }
}

/// One entry for very many consumers serves one, and the others are not tried for ever.
#[test]
fn very_many_consumers_wait_on_when_one_is_served() {
    let server = Server::start();
    let mut control = server.client();
    control.expect("XGROUP CREATE s g $ MKSTREAM", "+OK");
    let mut consumers: Vec<Client> =
        (0..40).map(|i| waiter(&server, &mut control, i + 1, &consume(&format!("c{i}")))).collect();
    for (i, consumer) in consumers.iter_mut().enumerate().take(3) {
        control.expect(&format!("XADD s {}-1 f v", i + 1), &format!("\"{}-1\"", i + 1));
        consumer.expect_reply(&one(&format!("{}-1", i + 1), "v"));
        await_blocked(&mut control, 39 - i);
    }
}

/// A client that waits with CLAIM gets what has been pending for long enough, though nobody writes.
#[test]
fn a_consumer_waits_for_entries_to_be_due() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    control.expect("XGROUP CREATE s g $ MKSTREAM", "+OK");
    for i in 0..40 {
        control.expect(&format!("XGROUP CREATE k{i} g $ MKSTREAM"), "+OK");
    }
    let is_claimed = |reply: &str, key: &str, count: u64| {
        let head = format!("[[\"{key}\", [[\"1-1\", [\"f\", \"v\"], :");
        assert!(reply.starts_with(&head) && reply.ends_with(&format!(", :{count}]]]]")), "{reply}");
        let idle = reply[head.len()..].split(',').next().and_then(|ms| ms.parse::<u64>().ok());
        assert!(idle.is_some_and(|ms| ms >= 20), "{reply}");
    };
    // Nothing is pending as the first begins to wait. The second looks at more keys than one look visits.
    let claim = "XREADGROUP GROUP g other BLOCK 0 CLAIM 20 STREAMS s >";
    let mut first = waiter(&server, &mut control, 1, claim);
    let keys: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
    let wide = format!(
        "XREADGROUP GROUP g other BLOCK 0 CLAIM 20 STREAMS {} {}",
        keys.join(" "),
        ["> "; 40].concat()
    );
    let mut second = waiter(&server, &mut control, 2, wide.trim_end());
    for key in ["s", "k33"] {
        control.expect("MULTI", "+OK");
        control.expect(&format!("XADD {key} 1-1 f v"), "+QUEUED");
        control.expect(&format!("XREADGROUP GROUP g c STREAMS {key} >"), "+QUEUED");
        control.call("EXEC");
    }
    is_claimed(&first.reply(), "s", 1);
    is_claimed(&second.reply(), "k33", 1);
    // A time-out comes first, and what a client gave back is due for the next.
    first.expect("XREADGROUP GROUP g c BLOCK 5 CLAIM 1000000 STREAMS s >", "(nil array)");
    first.send(encode_line("XREADGROUP GROUP g c BLOCK 90000 CLAIM 20 STREAMS s >"));
    is_claimed(&first.reply(), "s", 2);
    // One of two that wait gets it, and the other the next.
    let mut waiters: Vec<Client> = (0..2)
        .map(|i| waiter(&server, &mut control, i + 1, "XREADGROUP GROUP g d BLOCK 0 CLAIM 300 STREAMS s >"))
        .collect();
    control.expect("XADD s 2-1 f v", "\"2-1\"");
    let replies = waiters.iter_mut().map(Client::reply).collect::<Vec<_>>();
    assert!(replies.iter().any(|reply| reply.contains("\"2-1\", [\"f\", \"v\"], :0, :0]")), "{replies:?}");
    await_blocked(&mut control, 0);
    // A client that goes while it waits is forgotten.
    drop(waiter(&server, &mut control, 1, "XREADGROUP GROUP g d BLOCK 0 CLAIM 50000 STREAMS s >"));
    await_blocked(&mut control, 0);
}
