//! Keys of a source and all other commands that name, watch or show keys. Every use but reading a row by its
//! key is refused, and KEYS shows nothing that GET does not find.

use crate::sources::{figure, row, shop, until, until_figure};
use crate::support::*;

/// Watches, acts, and returns whether EXEC ran.
fn ran(client: &mut Client, watched: &str, queued: &str, then: impl FnOnce(&mut Client)) -> bool {
    client.expect(&format!("WATCH {watched}"), "+OK");
    then(client);
    client.expect("MULTI", "+OK");
    client.expect(queued, "+QUEUED");
    match &*client.call("EXEC") {
        "(nil array)" => false,
        reply => {
            assert!(reply.starts_with('['), "{reply}");
            true
        }
    }
}

/// Changes a row, and waits until that is reported.
fn told(shop: &crate::sources::Shop, sql: &str) {
    let mut client = shop.server.client();
    let before: u64 = figure(&mut client, "changes").parse().unwrap();
    shop.sql(sql);
    until_figure(&mut client, "changes", &(before + 1).to_string());
    until_figure(&mut client, "waiting-removals", "0");
}

#[test]
fn watch_of_a_row_notices_that_it_changes_comes_and_goes() {
    let shop = shop("timeout 60s");
    let mut client = shop.server.client();
    until(&mut client, "GET item:1", &row(1, 0));
    let many: String = (0..1000).map(|i| format!(" w{i}")).collect();
    for queued in ["SET own 1", "EVAL \"return 1\" 0", "GET item:1"] {
        for watched in ["item:1", "own item:1", &format!("item:1{many}")] {
            client.expect("GET item:1", &row(1, 0));
            assert!(ran(&mut client, watched, queued, |_| ()), "{queued}");
            let changes = |_: &mut Client| told(&shop, "UPDATE items SET n = 1 WHERE id = 1");
            assert!(!ran(&mut client, watched, queued, changes), "{queued}");
            told(&shop, "UPDATE items SET n = 0 WHERE id = 1");
        }
    }
    // A row that was not loaded before.
    assert!(!ran(&mut client, "item:2", "SET own 1", |_| told(&shop, "UPDATE items SET n = 1 WHERE id = 2")));
    // It goes, and comes.
    client.expect("GET item:2", &row(2, 1));
    assert!(!ran(&mut client, "item:2", "SET own 1", |_| told(&shop, "DELETE FROM items WHERE id = 2")));
    client.expect("GET item:2", "(nil)");
    let comes = "INSERT INTO items VALUES (2, 'item 2', 0)";
    assert!(!ran(&mut client, "item:2", "SET own 1", |_| told(&shop, comes)));
    // Another row changes, and the watched one is evicted.
    assert!(ran(&mut client, "item:2", "SET own 1", |_| told(&shop, "UPDATE items SET n = 1 WHERE id = 3")));
    client.expect("WATCH item:2", "+OK");
    client.expect("UNWATCH", "+OK");
    told(&shop, "UPDATE items SET n = 5 WHERE id = 2");
    assert!(ran(&mut client, "own", "SET other 1", |_| ()));
    // The source goes.
    let goes = |client: &mut Client| client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    assert!(!ran(&mut client, "item:1", "SET own 1", goes));
}

/// A client that watches when the change is reported but the older row is still there has seen the older row.
#[test]
fn watch_between_the_news_and_the_removal_notices_the_removal() {
    let shop = shop("timeout 60s");
    let (mut client, mut other) = (shop.server.client(), shop.server.client());
    client.expect("GET item:1", &row(1, 0));
    other.expect("DEBUG POINT source-drop HOLD 1", "+OK");
    shop.sql("UPDATE items SET n = 1 WHERE id = 1");
    until_figure(&mut other, "waiting-removals", "1");
    let removed = |client: &mut Client| {
        client.expect("GET item:1", &row(1, 0));
        other.expect("DEBUG POINT source-drop OFF", "+OK");
        until_figure(&mut other, "waiting-removals", "0");
    };
    assert!(!ran(&mut client, "item:1", "SET own 1", removed));
    client.expect("GET item:1", &row(1, 1));
    assert!(ran(&mut client, "item:1", "SET own 1", |_| ()));
}

/// A row that is loaded again before its change is reported differs all the same. A row that is merely loaded
/// again does not.
#[test]
fn watch_of_a_row_compares_what_is_cached() {
    let shop = shop("timeout 60s feed off");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    client.expect("GET item:2", &row(2, 0));
    let again = |client: &mut Client, n| {
        client.call("GETEX item:1 PX 1");
        client.call("GETEX item:2 PX 1");
        until_figure(client, "items", "0");
        client.expect("GET item:1", &row(1, n));
        client.expect("GET item:2", &row(2, 0));
    };
    assert!(ran(&mut client, "item:1 item:2", "SET own 1", |client| again(client, 0)));
    shop.sql("UPDATE items SET n = 1 WHERE id = 1");
    assert!(ran(&mut client, "item:2", "SET own 1", |client| again(client, 1)));
    shop.sql("UPDATE items SET n = 2 WHERE id = 1");
    assert!(!ran(&mut client, "item:1", "SET own 1", |client| again(client, 2)));
}

const TOGETHER: &str =
    "is a row of source 'items' and cannot be used together with other keys, except by MGET and EXISTS";

#[test]
fn sort_takes_no_row_for_an_absent_key() {
    let shop = shop("");
    let mut client = shop.server.client();
    client.expect("RPUSH ids 3 1 2", ":3");
    client.expect("MSET w:1 3 w:2 2 w:3 1", "+OK");
    client.expect("SORT ids BY w:* GET w:* GET #", r#"["1", "3", "2", "2", "3", "1"]"#);
    for line in [
        "SORT ids BY nosort GET item:*",
        "SORT ids BY item:*->m",
        "SORT ids BY w:* GET # GET item:*",
        "SORT_RO ids BY item:* ALPHA",
        "SORT ids LIMIT 0 1 GET item:*",
        "SORT ids STORE item:1",
        "SORT ids BY w:* GET w:* STORE item:7",
        "SORT item:1 BY w:*",
    ] {
        let error = client.call(line);
        assert!(error.starts_with("-ERR key 'item:") && error.contains(TOGETHER), "{line}: {error}");
        let words: Vec<&[u8]> = [&b"EVAL"[..], b"return redis.call(unpack(ARGV))", b"0"]
            .into_iter()
            .chain(line.split(' ').map(str::as_bytes))
            .collect();
        let error = client.call_bytes(&words);
        assert!(error.starts_with('-'), "{line} in a script: {error}");
        client.expect("MULTI", "+OK");
        client.call(line);
        let replies = client.call("EXEC");
        assert!(replies.contains(TOGETHER) || replies.starts_with("-EXECABORT"), "{line}: {replies}");
    }
    client.expect("SORT ids BY nosort GET other:*", "[(nil), (nil), (nil)]");
    client.expect("KEYS item:*", "[]");
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    client.expect("SORT ids BY nosort GET item:*", "[(nil), (nil), (nil)]");
}

/// Every command with a row at each place of its words: writes to it are refused, however the command is run,
/// and have no effect.
#[test]
fn no_command_writes_a_row() {
    let shop = shop("");
    let (mut client, mut other) = (shop.server.client(), shop.server.client());
    client.expect("SADD own 1 2", ":2");
    let names = client.call("COMMAND LIST");
    let names: Vec<&str> =
        names.trim_matches(['[', ']']).split(", ").map(|name| name.trim_matches('"')).collect();
    assert!(names.len() > 150, "{}", names.len());
    let mut written = 0;
    for name in names {
        // They write nothing by themselves; commands called by a script are checked below.
        if name.contains('|')
            || ["eval", "fcall"].iter().any(|word| name.starts_with(word))
            || name == "getex"
            // Redis says that it writes, and here it only reads.
            || name == "pfcount"
        {
            continue;
        }
        for count in 1..6 {
            for front in
                [&[][..], &["own"], &["1"], &["own", "1"], &["own", "own"], &["AND", "own"], &["AND"]]
            {
                let rows = std::iter::repeat_n("item:1", count);
                let words: Vec<&[u8]> = std::iter::once(name)
                    .chain(front.iter().copied())
                    .chain(rows)
                    .map(str::as_bytes)
                    .collect();
                let asked: Vec<&[u8]> =
                    [&b"COMMAND"[..], b"GETKEYSANDFLAGS"].into_iter().chain(words.iter().copied()).collect();
                let keys = client.call_bytes(&asked);
                let is_write = |flags: &str| ["OW", "RW", "RM"].iter().any(|flag| flags.contains(flag));
                let mut rows = keys.split("\"item:1\", ").skip(1);
                if keys.starts_with('-') || !rows.any(|rest| is_write(rest.split(']').next().unwrap_or(""))) {
                    continue;
                }
                let line = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
                let refused = |reply: &str| reply.contains("SOURCEREADONLY") || reply.contains(TOGETHER);
                let reply = other.call_bytes(&words);
                assert!(refused(&reply) || reply.contains("wrong number of arguments"), "{line}: {reply}");
                written += usize::from(refused(&reply));
                let script: Vec<&[u8]> = [&b"EVAL"[..], b"return redis.call(unpack(ARGV))", b"0"]
                    .into_iter()
                    .chain(words)
                    .collect();
                let reply = other.call_bytes(&script);
                assert!(reply.starts_with('-'), "{line} in a script: {reply}");
            }
        }
    }
    assert!(written > 100, "{written} of them write");
    client.expect("KEYS *", r#"["own"]"#);
    client.expect("DBSIZE", ":1");
    client.expect("GET item:1", &row(1, 0));
}

/// Keys of another database do not come where rows are, and a queue for one database does not run on rows of
/// another.
#[test]
fn other_databases_bring_no_keys_among_the_rows() {
    let shop = shop("");
    let (mut client, mut other) = (shop.server.client(), shop.server.client());
    client.expect("GET item:1", &row(1, 0));
    other.expect("SELECT 1", "+OK");
    other.expect("MSET item:5 x own y", "+OK");
    for line in ["MOVE item:5 0", "COPY own item:6 DB 0"] {
        let error = other.call(line);
        assert!(error.contains(TOGETHER), "{line}: {error}");
        let script = format!("EVAL \"return redis.call('{}')\" 0", line.replace(' ', "', '"));
        let error = other.call(&script);
        assert!(error.contains(TOGETHER), "{script}: {error}");
    }
    let whole = "-ERR database 0 has keys of sources: it cannot be exchanged";
    other.expect("SWAPDB 0 1", whole);
    assert!(other.call("EVAL \"return redis.call('SWAPDB', 1, 0)\" 0").contains(&whole[1..]));
    other.expect("SWAPDB 1 2", "+OK");
    other.expect("SWAPDB 2 1", "+OK");
    other.expect("COPY own item:6", ":1");
    // Within a transaction SELECT decides.
    other.expect("MULTI", "+OK");
    other.expect("SELECT 0", "+QUEUED");
    let error = other.call("SET item:1 x");
    assert!(error.starts_with("-SOURCEREADONLY"), "{error}");
    other.expect("DISCARD", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("SELECT 1", "+QUEUED");
    client.expect("GET item:5", "+QUEUED");
    client.expect("SET item:5 z", "+QUEUED");
    client.expect("SELECT 0", "+QUEUED");
    client.expect("EXEC", r#"[+OK, "x", +OK, +OK]"#);
    client.expect("GET item:1", &row(1, 0));
    client.expect("KEYS *", "[]");
    // A queue from before the source does not run on its rows.
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("SET item:1 x", "+QUEUED");
    client.expect("SET own 1", "+QUEUED");
    let mut third = shop.server.client();
    third.expect(&shop.add("timeout 60s"), "+OK");
    let replies = client.call("EXEC");
    assert!(
        replies.starts_with("[-SOURCEBUSY source 'items': key 'item:1' was not one of its rows")
            && replies.ends_with("+OK]"),
        "{replies}"
    );
    third.expect("GET item:1", &row(1, 0));
    third.expect("KEYS *", r#"["own"]"#);
}

/// Keys that existed before the source, which KEYS would show and GET not find, are reported.
#[test]
fn keys_that_a_new_source_would_hide_are_told() {
    let shop = shop("");
    let mut client = shop.server.client();
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    let names =
        |range: std::ops::Range<u32>| range.map(|i| format!(" item:{i} x own:{i} y")).collect::<String>();
    client.expect(&format!("MSET{}", names(0..700)), "+OK");
    client.expect(
        &shop.add(""),
        "-ERR 700 keys of database 0 are called 'item:{id}' and would be hidden: remove them, or add the source with the option \
         existing delete",
    );
    client.expect("EVENKEEL SOURCE LIST", "[]");
    client.expect("GET item:1", "\"x\"");
    client.expect("DBSIZE", ":1400");
    assert!(client.call(&shop.add("existing keep")).contains("must be refuse or delete"));
    client.expect(&shop.add("existing delete timeout 60s"), "+OK");
    client.expect("GET item:1", &row(1, 0));
    client.expect("DBSIZE", ":700");
    client.expect("KEYS item:*", "[]");
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    client.expect("SET item:1 x", "+OK");
    client.expect(
        &shop.add("existing refuse"),
        "-ERR 1 key of database 0 is called 'item:{id}' and would be hidden: remove them, or add the source with the option \
         existing delete",
    );
    client.expect("DEL item:1", ":1");
    client.expect(&shop.add(""), "+OK");
    client.expect("MULTI", "+OK");
    client.expect(&shop.add(""), "+QUEUED");
    client.expect("EXEC", "[-ERR a source cannot be added in a transaction]");
}
