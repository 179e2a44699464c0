//! Keys that are rows of a database, here an SQLite file.

use crate::race_tables::{Engine, Table};
use crate::races::{self, ROWS};
use crate::support::*;
use rusqlite::Connection;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A server in front of a table `items (id, name, n)` with the rows 1 to 100.
pub struct Shop {
    pub server: Server,
    database: Connection,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

pub fn shop(options: &str) -> Shop {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shop.db");
    let database = Connection::open(&path).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database
        .execute_batch(
            "PRAGMA journal_mode = WAL; CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, n INTEGER);
             WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 100)
             INSERT INTO items SELECT i, 'item ' || i, 0 FROM c;",
        )
        .unwrap();
    let server = Server::start_with(&["--databases", "4"]);
    let shop = Shop { server, database, path, _dir: dir };
    // No load takes too long on a busy machine, but where that is the matter.
    let patient = if options.contains("timeout") { "" } else { "timeout 60s" };
    shop.server.client().expect(&shop.add(format!("{patient} {options}").trim()), "+OK");
    shop
}

impl Shop {
    pub fn add(&self, options: &str) -> String {
        let url = format!("sqlite:{}", self.path.display());
        format!("EVENKEEL SOURCE ADD items item:{{id}} {url} {options}").trim_end().to_owned()
    }

    pub fn sql(&self, text: &str) {
        self.database.execute_batch(text).unwrap();
    }

    fn figure(&self, client: &mut Client, name: &str) -> String {
        figure(client, name)
    }
}

/// A figure of EVENKEEL SOURCE STATS.
pub fn figure(client: &mut Client, name: &str) -> String {
    figure_of(client, "items", name)
}

pub fn figure_of(client: &mut Client, source: &str, name: &str) -> String {
    let stats = client.call(&format!("EVENKEEL SOURCE STATS {source}"));
    let at = stats.find(&format!("\"{name}\", ")).unwrap_or_else(|| panic!("no {name} in {stats}"));
    let rest = &stats[at + name.len() + 4..];
    rest[..rest.find([',', ']']).unwrap()].trim_start_matches(':').to_owned()
}

/// Waits until a figure has this value.
fn await_figure(shop: &Shop, client: &mut Client, name: &str, value: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = shop.figure(client, name);
        if now == value {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {now}, not {value}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Repeats a command until its reply is this one.
pub fn until(client: &mut Client, line: &str, reply: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let got = client.call(line);
        if got == reply {
            return;
        }
        assert!(Instant::now() < deadline, "{line} answers {got}, never {reply}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn row(id: u32, n: u32) -> String {
    format!(r#""{{\"id\":{id},\"name\":\"item {id}\",\"n\":{n}}}""#)
}

#[test]
fn rows_are_read_through_by_every_command_that_reads_a_key() {
    let shop = shop("negative-ttl 1h");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    client.expect("GET item:1", &row(1, 0));
    client.expect("STRLEN item:2", &format!(":{}", r#"{"id":2,"name":"item 2","n":0}"#.len()));
    client.expect("GETRANGE item:3 0 6", r#""{\"id\":3""#);
    client.expect("EXISTS item:4", ":1");
    client.expect("TYPE item:5", "+string");
    client.expect("GETEX item:6", &row(6, 0));
    client.expect("OBJECT ENCODING item:7", r#""embstr""#);
    client.expect("EXISTS item:8 item:9 item:100 item:101 other", ":3");
    client.expect("SET other x", "+OK");
    client.expect(
        "MGET item:10 other item:500 item:11 none item:10",
        &format!(r#"[{}, "x", (nil), {}, (nil), {}]"#, row(10, 0), row(11, 0), row(10, 0)),
    );
    client.expect("HGETALL item:12", "-WRONGTYPE Operation against a key holding the wrong kind of value");
    for no_row in
        ["item:0", "item:101", "item:abc", "item:01", "item:+1", "item:1 ", "item:99999999999999999999"]
    {
        client.request(&[b"GET", no_row.as_bytes()]);
        client.expect_reply("(nil)");
    }
    // A text that spells no number names no row: the database is not asked.
    assert_eq!(shop.figure(&mut client, "negative-items"), "3");
    let ttl: i64 = client.call("TTL item:1").trim_start_matches(':').parse().unwrap();
    assert!((77_000..=86_400).contains(&ttl), "{ttl}");
}

#[test]
fn rows_can_be_hashes() {
    let shop = shop("as hash columns name,n");
    let mut client = shop.server.client();
    client.expect("HGET item:1 name", r#""item 1""#);
    client.expect("HMGET item:2 name n none", r#"["item 2", "0", (nil)]"#);
    client.expect_unordered("HGETALL item:3", &["name", "item 3", "n", "0"]);
    client.expect("HGETALL item:101", "[]");
    client.expect("HLEN item:4", ":2");
    client.expect("GET item:1", "-WRONGTYPE Operation against a key holding the wrong kind of value");
    client.expect("MGET item:1 item:2", "[(nil), (nil)]");
}

#[test]
fn changes_of_the_database_are_seen() {
    let shop = shop("negative-ttl 1h");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    client.expect("GET item:200", "(nil)");
    shop.sql("UPDATE items SET n = 7 WHERE id = 1");
    until(&mut client, "GET item:1", &row(1, 7));
    shop.sql("INSERT INTO items VALUES (200, 'item 200', 1)");
    until(&mut client, "GET item:200", &row(200, 1));
    shop.sql("UPDATE items SET id = 201, name = 'item 201' WHERE id = 200");
    until(&mut client, "GET item:200", "(nil)");
    client.expect("GET item:201", &row(201, 1));
    shop.sql("DELETE FROM items WHERE id = 1");
    until(&mut client, "GET item:1", "(nil)");
    assert_ne!(shop.figure(&mut client, "invalidated"), "0");
}

#[test]
fn a_row_in_use_that_changes_is_loaded_before_anybody_asks() {
    let shop = shop("");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    shop.sql("UPDATE items SET n = 7 WHERE id IN (1, 2)");
    await_figure(&shop, &mut client, "refreshed", "1");
    await_figure(&shop, &mut client, "items", "1");
    client.expect("GET item:1", &row(1, 7));
    assert_eq!(shop.figure(&mut client, "misses"), "1");
    assert_eq!(shop.figure(&mut client, "hits"), "1");
    // The absence of a removed row is known.
    shop.sql("DELETE FROM items WHERE id = 1");
    await_figure(&shop, &mut client, "negative-items", "1");
    client.expect("GET item:1", "(nil)");
    assert_eq!(shop.figure(&mut client, "misses"), "1");
}

#[test]
fn a_row_that_changes_is_not_loaded_again_if_that_is_off() {
    let shop = shop("refresh off");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    shop.sql("UPDATE items SET n = 7 WHERE id = 1");
    await_figure(&shop, &mut client, "invalidated", "1");
    assert_eq!(shop.figure(&mut client, "refreshed"), "0");
    assert_eq!(shop.figure(&mut client, "items"), "0");
    client.expect("GET item:1", &row(1, 7));
    assert_eq!(shop.figure(&mut client, "misses"), "2");
}

#[test]
fn rows_belong_to_the_source_and_not_to_database_0() {
    let shop = shop("");
    let mut client = shop.server.client();
    client.expect("SET own 1", "+OK");
    client.expect("GET item:1", &row(1, 0));
    client.expect("DBSIZE", ":1");
    client.expect("KEYS *", r#"["own"]"#);
    client.expect("SCAN 0 COUNT 1000", r#"["0", ["own"]]"#);
    client.expect("RANDOMKEY", r#""own""#);
    client.expect("SELECT 1", "+OK");
    client.expect("GET item:1", "(nil)");
    client.expect("SET item:1 mine", "+OK");
    client.expect("GET item:1", r#""mine""#);
    client.expect("SELECT 4", "-ERR DB index is out of range");
    client.expect("FLUSHALL", "+OK");
    client.expect("SELECT 0", "+OK");
    client.expect("GET item:1", &row(1, 0));
}

#[test]
fn writes_are_refused_unless_the_source_says_otherwise() {
    let shop = shop("");
    let mut client = shop.server.client();
    let refused = "-SOURCEREADONLY key 'item:1' is a row of source 'items': write to its database";
    for line in ["SET item:1 x", "DEL item:1", "EXPIRE item:1 10", "APPEND item:1 x", "RENAME item:1 item:2"]
    {
        client.expect(line, refused);
    }
    let together = "-ERR key 'item:1' is a row of source 'items' and cannot be used together with other keys, except by \
                    MGET and EXISTS";
    client.expect("RENAME item:1 x", together);
    client.expect("COPY own item:1", together);
    client.expect("MSET item:1 x own y", together);
    client.expect("LCS item:1 item:2", r#""{\"id\":,\"name\":\"item \",\"n\":0}""#);
    client.expect("MULTI", "+OK");
    client.expect("SET item:1 x", refused);
    client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    client.expect("GET item:1", &row(1, 0));
}

#[test]
fn the_sources_of_very_many_keys_are_looked_up_in_slices() {
    let shop = shop("");
    let mut client = shop.server.client();
    let together = |key: &str| {
        format!(
            "-ERR key '{key}' is a row of source 'items' and cannot be used together with other keys, except by MGET and EXISTS"
        )
    };
    let keys: Vec<String> = (0..30_000).map(|i| format!("own:{i}")).collect();
    let names = |last: &'static str| keys.iter().map(String::as_str).chain([last]);
    let words = |name: &str, last: &'static str| -> Vec<Vec<u8>> {
        [name].into_iter().chain(names(last)).map(|word| word.as_bytes().to_vec()).collect()
    };
    let pairs = |last: &'static str| -> Vec<Vec<u8>> {
        ["MSET"].into_iter().chain(names(last).flat_map(|key| [key, "v"])).map(|word| word.into()).collect()
    };
    let run = |client: &mut Client, words: &[Vec<u8>]| {
        client.request(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        client.reply()
    };
    assert_eq!(run(&mut client, &pairs("item:1")), together("item:1"));
    client.expect("DBSIZE", ":0");
    assert_eq!(run(&mut client, &pairs("last")), "+OK");
    assert_eq!(run(&mut client, &words("EXISTS", "last")), ":30001");
    assert_eq!(run(&mut client, &words("DEL", "item:2")), together("item:2"));
    let most = "-ERR at most 10000 keys can be named together with keys of sources";
    assert_eq!(run(&mut client, &words("EXISTS", "item:3")), most);
    client.expect("MULTI", "+OK");
    assert_eq!(run(&mut client, &words("TOUCH", "last")), "+QUEUED");
    assert_eq!(run(&mut client, &words("EXISTS", "item:3")), together("item:3"));
    client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    assert_eq!(run(&mut client, &words("UNLINK", "last")), ":30001");
    // As many keys as may be named together, all of them rows; then with a key of database 0 among them.
    let mut rows: Vec<Vec<u8>> = (0..9_999).map(|i| format!("item:{}", i % 100 + 1).into_bytes()).collect();
    rows.insert(0, b"EXISTS".to_vec());
    assert_eq!(run(&mut client, &rows), ":9999");
    rows[5000] = b"own".to_vec();
    assert_eq!(run(&mut client, &rows), ":9998");
}

#[test]
fn a_write_may_give_up_the_item() {
    let shop = shop("write evict feed off negative-ttl 1h");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    shop.sql("UPDATE items SET n = 5 WHERE id = 1");
    client.expect("GET item:1", &row(1, 0));
    client.expect("DEL item:1", ":1");
    client.expect("GET item:1", &row(1, 5));
    shop.sql("UPDATE items SET n = 6 WHERE id = 1");
    client.expect("SET item:1 anything EX 100", "+OK");
    client.expect("GET item:1", &row(1, 6));
    shop.sql("UPDATE items SET n = 7 WHERE id = 1");
    client.expect("MULTI", "+OK");
    client.expect("DEL item:1", "+QUEUED");
    client.expect("EXEC", "[:1]");
    client.expect("GET item:1", &row(1, 7));
    // A row that cannot be loaded in the midst of a transaction is not reported as missing.
    let busy = "-SOURCEBUSY source 'items': row 'item:1' was removed before it was read";
    let before = shop.figure(&mut client, "errors");
    client.expect("MULTI", "+OK");
    for command in
        ["GET item:1", "SET item:1 mine", "GET item:1", "MGET item:2 item:1", "DEL item:1", "GET item:2"]
    {
        client.expect(command, "+QUEUED");
    }
    let answers = [row(1, 7), "+OK".into(), busy.into(), busy.into(), ":0".into(), row(2, 0)];
    client.expect("EXEC", &format!("[{}]", answers.join(", ")));
    client.expect("GET item:1", &row(1, 7));
    assert_eq!(shop.figure(&mut client, "errors"), (before.parse::<u64>().unwrap() + 2).to_string());
    client.expect("GET item:300", "(nil)");
    shop.sql("INSERT INTO items VALUES (300, 'item 300', 1)");
    client.expect("GET item:300", "(nil)");
    client.expect("DEL item:300", ":0");
    client.expect("GET item:300", &row(300, 1));
}

#[test]
fn a_write_may_change_the_item_until_its_row_changes() {
    let shop = shop("write local as hash columns name,n");
    let mut client = shop.server.client();
    client.expect("HSET item:1 note mine", ":1");
    client.expect("HMGET item:1 name note", r#"["item 1", "mine"]"#);
    let ttl: i64 = client.call("TTL item:1").trim_start_matches(':').parse().unwrap();
    assert!(ttl > 0, "{ttl}");
    shop.sql("UPDATE items SET n = 1 WHERE id = 1");
    until(&mut client, "HMGET item:1 n note", r#"["1", (nil)]"#);
    client.expect("HSET item:500 n 9", ":1");
    client.expect("HGETALL item:500", r#"["n", "9"]"#);
    client.expect("DEL item:500", ":1");
    client.expect("HGETALL item:500", "[]");
}

#[test]
fn transactions_and_scripts_read_rows_they_name() {
    let shop = shop("");
    let mut client = shop.server.client();
    client.expect("MULTI", "+OK");
    client.expect("GET item:1", "+QUEUED");
    client.expect("SET own 1", "+QUEUED");
    client.expect("MGET item:2 item:300", "+QUEUED");
    client.expect(
        "MGET item:2 own",
        "-ERR key 'own' is a row of source 'items' and cannot be used together with other \
                                      keys, except by MGET and EXISTS"
            .replace("'own'", "'item:2'")
            .as_str(),
    );
    client.expect("DISCARD", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("GET item:1", "+QUEUED");
    client.expect("SET own 1", "+QUEUED");
    client.expect("MGET item:2 item:300", "+QUEUED");
    client.expect("EXEC", &format!("[{}, +OK, [{}, (nil)]]", row(1, 0), row(2, 0)));
    // A transaction that watches very many keys runs elsewhere.
    let watched: String = (0..1000).map(|i| format!(" w{i}")).collect();
    client.expect(&format!("WATCH{watched}"), "+OK");
    client.expect("MULTI", "+OK");
    client.expect("GET item:4", "+QUEUED");
    client.expect("MGET item:5 item:302", "+QUEUED");
    client.expect("EXEC", &format!("[{}, [{}, (nil)]]", row(4, 0), row(5, 0)));
    let eval = |client: &mut Client, script: &str, keys: &[&str]| {
        let count = keys.len().to_string();
        let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
        words.extend(keys.iter().map(|key| key.as_bytes()));
        client.call_bytes(&words)
    };
    let both =
        "redis.call('SET', KEYS[2], 'x'); return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[3])}";
    let got = eval(&mut client, both, &["item:3", "own", "item:301"]);
    assert_eq!(got, format!("[{}, (nil)]", row(3, 0)));
    let hidden = "return redis.call('GET', 'item:' .. ARGV[1])";
    client.request(&[b"EVAL", hidden.as_bytes(), b"0", b"3"]);
    client.expect_reply(&row(3, 0));
    client.request(&[b"EVAL", hidden.as_bytes(), b"0", b"50"]);
    let error = client.reply();
    assert!(
        error.contains("a row of source 'items' that is not cached must be among the script's KEYS"),
        "{error}"
    );
    let error = eval(&mut client, "return redis.call('SET', KEYS[1], 'x')", &["item:3"]);
    assert!(error.contains("rows of source 'items' cannot be written by scripts"), "{error}");
    let slow = "for i = 1, 3000000 do end; return redis.call('GET', KEYS[1])";
    assert_eq!(eval(&mut client, slow, &["item:60"]), row(60, 0));
}

#[test]
fn what_is_asked_for_in_one_go_is_loaded_together() {
    let shop = shop("pool 1 timeout 60s");
    let mut client = shop.server.client();
    client.expect("DEBUG POINT source-ask HOLD 1", "+OK");
    let mut others: Vec<Client> = (0..10).map(|_| shop.server.client()).collect();
    others.iter_mut().for_each(|other| other.request(&[b"GET", b"item:1"]));
    until_figure(&mut client, "loading", "1");
    let pipeline: Vec<u8> = (1..=20).flat_map(|i| encode_line(&format!("GET item:{i}"))).collect();
    let mut piped = shop.server.client();
    piped.send(&pipeline);
    // All of them are known to be wanted: the first is being loaded, the others wait.
    until_figure(&mut client, "queued-ids", "19");
    until_figure(&mut client, "misses", "11");
    client.expect("SET own 1", "+OK");
    client.expect("DEBUG POINT source-ask OFF", "+OK");
    others.iter_mut().for_each(|other| other.expect_reply(&row(1, 0)));
    (1..=20).for_each(|i| piped.expect_reply(&row(i, 0)));
    assert_eq!(shop.figure(&mut client, "loads"), "2");
}

pub fn until_figure(client: &mut Client, name: &str, value: &str) {
    let deadline = Instant::now() + PATIENCE;
    while figure(client, name) != value {
        assert!(
            Instant::now() < deadline,
            "{name} never becomes {value}: {}",
            client.call("EVENKEEL SOURCE STATS")
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn while_one_waits_for_the_database_nobody_else_does() {
    let shop = shop("timeout 60s");
    let (mut waiter, mut client) = (shop.server.client(), shop.server.client());
    client.expect("GET item:1", &row(1, 0));
    client.expect("DEBUG POINT source-ask HOLD 1", "+OK");
    waiter.request(&[b"GET", b"item:2"]);
    until_figure(&mut client, "loading", "1");
    client.expect("GET item:1", &row(1, 0));
    client.expect("SET own 1", "+OK");
    client.expect("GET own", r#""1""#);
    client.expect("DEBUG POINT source-ask OFF", "+OK");
    waiter.expect_reply(&row(2, 0));
}

#[test]
fn a_client_that_goes_or_is_killed_while_it_waits_leaves_nothing() {
    let shop = shop("timeout 60s");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    client.expect("DEBUG POINT source-ask HOLD 1", "+OK");
    let mut gone = shop.server.client();
    gone.request(&[b"GET", b"item:2"]);
    until_figure(&mut client, "loading", "1");
    drop(gone);
    let mut killed = shop.server.client();
    let id = killed.call("CLIENT ID");
    killed.request(&[b"GET", b"item:2"]);
    client.expect(&format!("CLIENT KILL ID {}", id.trim_start_matches(':')), ":1");
    assert!(killed.is_closed_within(PATIENCE));
    client.expect("DEBUG POINT source-ask OFF", "+OK");
    client.expect("GET item:2", &row(2, 0));
}

#[test]
fn a_row_that_changes_while_it_is_loaded_is_loaded_again() {
    let shop = shop("timeout 60s");
    let (mut waiter, mut client) = (shop.server.client(), shop.server.client());
    client.expect("DEBUG POINT source-fill HOLD 1", "+OK");
    waiter.request(&[b"GET", b"item:1"]);
    until_figure(&mut client, "loaded-rows", "1");
    shop.sql("UPDATE items SET n = 1 WHERE id = 1");
    until_figure(&mut client, "changes", "1");
    client.expect("DEBUG POINT source-fill OFF", "+OK");
    waiter.expect_reply(&row(1, 1));
    assert_eq!(shop.figure(&mut client, "refused-fills"), "1");
    client.expect("GET item:1", &row(1, 1));
}

/// Two servers read one file. When one of them ends, the other keeps its log of changes.
#[test]
fn two_servers_in_front_of_one_file_both_follow_it() {
    let shop = shop("");
    let other = Server::start_with(&["--databases", "4"]);
    let (mut first, mut second) = (shop.server.client(), other.client());
    second.expect(&shop.add(""), "+OK");
    let change = |n: u32, clients: &mut [&mut Client]| {
        shop.sql(&format!("UPDATE items SET n = {n} WHERE id = 1"));
        for client in clients {
            until(client, "GET item:1", &row(1, n));
        }
    };
    for n in 1..20 {
        change(n, &mut [&mut first, &mut second]);
    }
    second.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    for n in 20..40 {
        change(n, &mut [&mut first]);
    }
    second.expect(&shop.add(""), "+OK");
    for n in 40..60 {
        change(n, &mut [&mut first, &mut second]);
    }
}

/// Each loaded row is outdated before it can be kept. Its waiting clients get it nevertheless, and never an
/// older one later.
#[test]
fn a_row_that_changes_faster_than_it_is_loaded_is_answered() {
    let shop = shop("");
    let (mut control, mut client) = (shop.server.client(), shop.server.client());
    let (stop, path) = (std::sync::atomic::AtomicBool::new(false), shop.path.clone());
    std::thread::scope(|scope| {
        let _stops = races::Stop(&stop);
        scope.spawn(|| {
            let database = Connection::open(path).unwrap();
            database.busy_timeout(PATIENCE).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                database.execute("UPDATE items SET n = n + 1 WHERE id = 1", []).unwrap();
            }
        });
        // Each loaded row waits for a while before it is installed.
        let mut holder = shop.server.client();
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                holder.expect("DEBUG POINT source-fill HOLD 1000", "+OK");
                std::thread::sleep(Duration::from_millis(40));
                holder.expect("DEBUG POINT source-fill OFF", "+OK");
            }
        });
        while shop.figure(&mut control, "changes").parse::<u64>().expect("a number") < 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut newest, mut asked) = (0, 0);
        // A load may come while none is held: then the next one is to be outdated.
        for line in ["GET item:1", "STRLEN item:1"].iter().cycle() {
            if asked >= 6 && shop.figure(&mut control, "refused-fills") != "0" {
                break;
            }
            asked += 1;
            assert!(asked < 100_000, "no load is outdated");
            let reply = client.call(line);
            if let Some(n) = reply.split("\\\"n\\\":").nth(1) {
                let digits: String = n.chars().take_while(char::is_ascii_digit).collect();
                let n: u64 = digits.parse().expect("a number");
                assert!(n >= newest, "{n} after {newest}");
                newest = n;
            } else {
                assert!(reply.starts_with(':') && reply != ":0", "{line}: {reply}");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(newest > 0);
    });
    // Nothing outdated stayed.
    control.expect("DEBUG POINT source-fill OFF", "+OK");
    let n: u64 =
        shop.database.query_row("SELECT n FROM items WHERE id = 1", [], |row| row.get::<_, i64>(0)).unwrap()
            as u64;
    until(&mut client, "GET item:1", &row(1, n as u32));
}

/// The same, step by step, for commands of several keys, one of which changes during each load.
#[test]
fn one_of_several_rows_may_change_faster_than_it_is_loaded() {
    let shop = shop("timeout 60s");
    let (mut waiter, mut client) = (shop.server.client(), shop.server.client());
    client.expect("GET item:2", &row(2, 0));
    let point = |client: &mut Client, name: &str, mode: &str| {
        client.expect(&format!("DEBUG POINT {name} {mode}"), "+OK");
    };
    let number = |client: &mut Client, name: &str| shop.figure(client, name).parse::<u32>().unwrap();
    let mut n = 0;
    let lines = ["MGET item:1 item:2 item:1", "EXISTS item:1 item:2", "MGET item:1", "EXISTS item:1", "EXEC"];
    for line in lines {
        client.expect("EVENKEEL SOURCE FLUSH items 1", "+OK");
        until_figure(&mut client, "waiting-removals", "0");
        point(&mut client, "source-ask", "HOLD 1");
        if line == "EXEC" {
            waiter.expect("MULTI", "+OK");
            for line in ["SET own 1", "GET item:1", "MGET item:2 item:1", "GET item:1"] {
                waiter.expect(line, "+QUEUED");
            }
        }
        waiter.send(encode_line(line));
        for _ in 0..2 {
            // The load has begun, and its row changes before it is read.
            until_figure(&mut client, "loading", "1");
            let (changes, loaded) = (number(&mut client, "changes"), number(&mut client, "loaded-rows"));
            n += 1;
            shop.sql(&format!("UPDATE items SET n = {n} WHERE id = 1"));
            until_figure(&mut client, "changes", &(changes + 1).to_string());
            point(&mut client, "source-fill", "HOLD 1");
            point(&mut client, "source-ask", "OFF");
            until_figure(&mut client, "loaded-rows", &(loaded + 1).to_string());
            point(&mut client, "source-ask", "HOLD 1");
            point(&mut client, "source-fill", "OFF");
        }
        let (first, second) = (row(1, n), row(2, 0));
        waiter.expect_reply(&match line {
            "MGET item:1" => format!("[{first}]"),
            "EXISTS item:1" => ":1".to_owned(),
            "EXISTS item:1 item:2" => ":2".to_owned(),
            "EXEC" => format!("[+OK, {first}, [{second}, {first}], {first}]"),
            _ => format!("[{first}, {second}, {first}]"),
        });
        point(&mut client, "source-ask", "OFF");
        // It is not kept.
        assert_eq!(shop.figure(&mut client, "items"), "1", "{line}");
    }
}

/// An item past its time is older than a row that was handed over. No client gets it afterwards, although
/// nothing can be loaded.
#[test]
fn nothing_older_is_left_of_a_row_that_was_lent() {
    let shop = shop("timeout 60s ttl 1s jitter 0 stale-if-error 1h");
    let (mut waiter, mut client) = (shop.server.client(), shop.server.client());
    let point = |client: &mut Client, name: &str, mode: &str| {
        client.expect(&format!("DEBUG POINT {name} {mode}"), "+OK");
    };
    let number = |client: &mut Client, name: &str| shop.figure(client, name).parse::<u32>().unwrap();
    client.expect("GET item:1", &row(1, 0));
    client.expect("EVENKEEL SOURCE PAUSE items", "+OK");
    while shop.figure(&mut client, "stale") == "0" {
        client.expect("GET item:1", &row(1, 0));
        std::thread::sleep(Duration::from_millis(10));
    }
    client.expect("EVENKEEL SOURCE RESUME items", "+OK");
    // Changed items are not removed yet.
    point(&mut client, "source-drop", "HOLD 1000");
    point(&mut client, "source-ask", "HOLD 1");
    waiter.send(encode_line("GET item:1"));
    for n in 1..=2 {
        until_figure(&mut client, "loading", "1");
        let (changes, loaded) = (number(&mut client, "changes"), number(&mut client, "loaded-rows"));
        point(&mut client, "source-fill", "HOLD 1");
        point(&mut client, "source-ask", "OFF");
        until_figure(&mut client, "loaded-rows", &(loaded + 1).to_string());
        // The row was read, and changes before it is installed.
        shop.sql(&format!("UPDATE items SET n = {n} WHERE id = 1"));
        until_figure(&mut client, "changes", &(changes + 1).to_string());
        point(&mut client, "source-ask", "HOLD 1");
        point(&mut client, "source-fill", "OFF");
    }
    waiter.expect_reply(&row(1, 1));
    client.expect("EVENKEEL SOURCE PAUSE items", "+OK");
    client.expect("GET item:1", "-SOURCEDOWN source 'items' is paused");
    client.expect("EVENKEEL SOURCE RESUME items", "+OK");
    point(&mut client, "source-ask", "OFF");
    point(&mut client, "source-drop", "OFF");
    until(&mut client, "GET item:1", &row(1, 2));
}

/// A change feed that cannot be followed reports nothing: items cached earlier are loaded again when
/// requested.
#[test]
fn what_was_cached_before_the_feed_was_lost_is_past_its_time() {
    let shop = shop("blind 1s");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    client.expect("GET item:200", "(nil)");
    // Without its log nothing is reported, and making it anew is refused.
    let tables: Vec<String> = {
        let mut names = shop
            .database
            .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%evenkeel%'")
            .unwrap();
        names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let triggers: Vec<String> = {
        let mut names =
            shop.database.prepare("SELECT name FROM sqlite_master WHERE type = 'trigger'").unwrap();
        names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert!(!tables.is_empty() && !triggers.is_empty());
    let triggers = triggers.iter().map(|name| format!("DROP TRIGGER \"{name}\";"));
    let tables =
        tables.iter().map(|name| format!("DROP TABLE \"{name}\"; CREATE VIEW \"{name}\" AS SELECT 1 AS x;"));
    // In one go, or the source makes them anew in between.
    shop.sql(&format!("BEGIN IMMEDIATE; {} COMMIT", triggers.chain(tables).collect::<String>()));
    shop.sql("UPDATE items SET n = 5 WHERE id = 1");
    shop.sql("INSERT INTO items VALUES (200, 'item 200', 1)");
    until(&mut client, "GET item:1", &row(1, 5));
    until(&mut client, "GET item:200", &row(200, 1));
    shop.sql("UPDATE items SET n = 6 WHERE id = 1");
    until(&mut client, "GET item:1", &row(1, 6));
    shop.server.await_words("changes could not be followed");
}

#[test]
fn a_database_that_is_down_leaves_what_is_cached() {
    let shop = shop("stale-if-error 1h ttl 1s jitter 0 negative-ttl 1h");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    client.expect("GET item:101", "(nil)");
    shop.sql("ALTER TABLE items RENAME TO gone");
    // The item's time ends, and its database has no such table any more.
    let deadline = Instant::now() + PATIENCE;
    while shop.figure(&mut client, "stale") == "0" {
        let got = client.call("GET item:1");
        assert!(got == row(1, 0) || got.starts_with("-SOURCE"), "{got}");
        if got.starts_with('-') {
            break;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    let error = client.call("GET item:50");
    assert!(error.starts_with("-SOURCEDOWN source 'items': "), "{error}");
    let error = client.call("MGET item:50 item:51");
    assert!(error.starts_with("-SOURCEDOWN source 'items': "), "{error}");
    client.expect("SET own 1", "+OK");
    shop.sql("ALTER TABLE gone RENAME TO items");
    until(&mut client, "GET item:50", &row(50, 0));
}

#[test]
fn sources_are_listed_paused_flushed_and_removed() {
    let shop = shop("ttl 1h");
    let mut client = shop.server.client();
    let url = format!("sqlite:{}", shop.path.display());
    client.expect("EVENKEEL SOURCE LIST", &format!(r#"["items item:{{id}} {url} ttl 1h timeout 1m"]"#));
    client.expect("GET item:1", &row(1, 0));
    client.expect("EVENKEEL SOURCE PAUSE items", "+OK");
    client.expect("GET item:1", &row(1, 0));
    client.expect("GET item:2", "-SOURCEDOWN source 'items' is paused");
    client.expect("EVENKEEL SOURCE RESUME items", "+OK");
    client.expect("GET item:2", &row(2, 0));
    assert_eq!(shop.figure(&mut client, "items"), "2");
    client.expect("EVENKEEL SOURCE FLUSH items 1", "+OK");
    until_figure(&mut client, "items", "1");
    client.expect("EVENKEEL SOURCE FLUSH items", "+OK");
    until_figure(&mut client, "items", "0");
    client.expect("GET item:1", &row(1, 0));
    client.expect("EVENKEEL SOURCE FLUSH none", "-ERR no source 'none'");
    client.expect("EVENKEEL SOURCE REMOVE none", "-ERR no source 'none'");
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    client.expect("GET item:1", "(nil)");
    client.expect("EVENKEEL SOURCE LIST", "[]");
    client.expect(&shop.add("timeout 60s"), "+OK");
    client.expect("GET item:1", &row(1, 0));
    client.expect(&shop.add(""), "-ERR there is a source 'items' already");
    let overlapping = shop.add("").replace("ADD items item:", "ADD other item:");
    client.expect(&overlapping, "-ERR keys 'item:{id}' overlap with those of source 'items'");
    let unknown = shop.add("").replace("sqlite:", "oracle:").replace("items item:", "more more:");
    assert!(client.call(&unknown).starts_with("-ERR url 'oracle:"), "{unknown}");
    client.expect(&shop.add("colour red"), "-ERR option 'colour' of source 'items': no such option");
    client.expect("EVENKEEL SOURCE", "-ERR wrong number of arguments for 'evenkeel|source' command");
    client.expect("EVENKEEL SOURCE NONE", "-ERR syntax error");
}

/// Work in flight for a source that ends does not belong to another that takes its place.
#[test]
fn a_source_that_takes_anothers_place_shows_nothing_of_it() {
    let shop = shop("timeout 60s");
    let (mut waiter, mut client) = (shop.server.client(), shop.server.client());
    client.expect("GET item:2", &row(2, 0));
    client.expect("DEBUG POINT source-fill HOLD 1", "+OK");
    waiter.request(&[b"GET", b"item:1"]);
    until_figure(&mut client, "loaded-rows", "2");
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    shop.sql("UPDATE items SET n = 1");
    client.expect(&shop.add("feed off timeout 60s"), "+OK");
    client.expect("DEBUG POINT source-fill OFF", "+OK");
    waiter.expect_reply("-SOURCEDOWN the source was removed");
    client.expect("GET item:1", &row(1, 1));
    client.expect("GET item:2", &row(2, 1));
}

#[test]
fn sources_are_flushed_but_not_removed_in_transactions() {
    let shop = shop("feed off");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    shop.sql("UPDATE items SET n = 1");
    client.expect("MULTI", "+OK");
    client.expect("EVENKEEL SOURCE FLUSH items", "+QUEUED");
    client.expect("EVENKEEL SOURCE REMOVE items", "+QUEUED");
    client.expect("EXEC", "[+OK, -ERR a source cannot be removed in a transaction]");
    until(&mut client, "GET item:1", &row(1, 1));
}

#[test]
fn config_rewrite_writes_sources_that_were_added_and_leaves_out_those_removed() {
    let shop = shop("");
    let mut client = shop.server.client();
    let file = shop.path.with_extension("conf");
    let first =
        format!("# mine\nsource items item:{{id}} sqlite:{} timeout 60s\n# last\n", shop.path.display());
    std::fs::write(&file, &first).unwrap();
    let error = client.call("CONFIG REWRITE");
    assert!(error.contains("without a config file"), "{error}");
    let server = Server::start_file(&file);
    let mut client = server.client();
    client.expect("GET item:1", &row(1, 0));
    let secret = "postgres://me:secret@127.0.0.1:1/none";
    client.expect(&format!("EVENKEEL SOURCE ADD far far:{{id}} {secret} ttl 5m"), "+OK");
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    client.expect("CONFIG REWRITE", "+OK");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.starts_with("# mine\n# last\n")
            && text.contains(&format!("source far far:{{id}} {secret} ttl 5m\n")),
        "{text}"
    );
    let listed = client.call("EVENKEEL SOURCE LIST");
    assert!(listed.contains("me:***@") && !listed.contains("secret"), "{listed}");
    drop(server);
    let server = Server::start_file(&file);
    assert_eq!(server.client().call("EVENKEEL SOURCE LIST"), listed);
}

#[test]
fn sources_stand_in_the_configuration_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("evenkeel.conf");
    std::fs::write(&file, "port 0\nsource items item:42 sqlite:x\n").unwrap();
    let first = said(&run(&[file.to_str().unwrap()]));
    assert!(first.contains("evenkeel.conf, at line 2") && first.contains("has no {id}"), "{first}");
    std::fs::write(&file, "source items item:{id} postgres://me:secret@h/d colour red\n").unwrap();
    let second = said(&run(&[file.to_str().unwrap()]));
    assert!(second.contains("no such option") && !second.contains("secret"), "{second}");
}

/// A step of a linear congruential generator, and its upper bits.
pub fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    (*state >> 33) % below
}

/// More rows change at once than can wait to be removed: the whole source is dropped, and its feed goes on.
/// Ids are texts; `a` and `b` are rows with n 0. `one` writes `b`; `all` writes 5 to all rows: `a`, then
/// those with very long ids.
pub fn floods(add: &str, one: &dyn Fn(u32), all: &dyn Fn()) {
    let server = Server::start();
    let mut client = server.client();
    let row = |n: u32| format!(r#""{{\"n\":{n}}}""#);
    client.expect(
        &format!("EVENKEEL SOURCE ADD items item:{{id}} {add} id-type text columns n timeout 20s"),
        "+OK",
    );
    until(&mut client, "GET item:a", &row(0));
    client.expect("GET item:b", &row(0));
    client.expect("DEBUG POINT source-drop HOLD 1", "+OK");
    one(1);
    until_figure(&mut client, "waiting-removals", "1");
    assert!(!client.call("INFO memory").contains("mem_source_changes:0"));
    client.expect("GET item:b", &row(0));
    all();
    // Removals are held: the row went with everything.
    until(&mut client, "GET item:a", &row(5));
    assert_eq!(figure(&mut client, "flushes"), "1");
    assert!(figure(&mut client, "last-flush").contains("more rows change at once"));
    let waiting: u64 = figure(&mut client, "waiting-removals-bytes").parse().unwrap();
    assert!(waiting <= 8 << 20, "{waiting}");
    client.expect("DEBUG POINT source-drop OFF", "+OK");
    until_figure(&mut client, "waiting-removals", "0");
    assert!(client.call("INFO memory").contains("mem_source_changes:0"));
    one(6);
    until(&mut client, "GET item:b", &row(6));
    assert_eq!(
        (figure(&mut client, "flushes"), figure(&mut client, "feed-opened")),
        ("1".into(), "1".into())
    );
}

/// Number of rows with very long ids.
pub const LONG_IDS: usize = 100;
pub const LONG_ID: usize = 100_000;

#[test]
fn a_transaction_of_more_rows_than_can_wait_gives_up_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.db");
    let database = Connection::open(&path).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    let sql = |text: &str| database.execute_batch(text).unwrap();
    sql(&format!(
        "PRAGMA journal_mode = WAL; CREATE TABLE items (id TEXT PRIMARY KEY, n INTEGER); INSERT INTO items VALUES ('a', 0), ('b', 0);
         WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {LONG_IDS})
         INSERT INTO items SELECT printf('%.{LONG_ID}c', 'x') || i, 0 FROM c"
    ));
    floods(
        &format!("sqlite:{}", path.display()),
        &|n| sql(&format!("UPDATE items SET n = {n} WHERE id = 'b'")),
        &|| {
            sql("BEGIN; UPDATE items SET n = 5 WHERE id < 'x'; UPDATE items SET n = 5 WHERE id > 'x'; COMMIT")
        },
    );
}

/// A table of SQLite for a race.
struct Racing {
    database: Connection,
    path: PathBuf,
    name: String,
    columns: u64,
}

impl Racing {
    fn make(path: PathBuf, seed: u64, options: String) -> Table<Racing> {
        let database = Connection::open(&path).unwrap();
        database.busy_timeout(PATIENCE).unwrap();
        let mode = if seed.is_multiple_of(4) { "DELETE" } else { "WAL" };
        let name = format!("t{seed}");
        let sql = format!(
            "PRAGMA journal_mode = {mode}; PRAGMA synchronous = OFF; CREATE TABLE {name} (id INTEGER PRIMARY KEY, n INTEGER);
             WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {ROWS}) INSERT INTO {name} SELECT i, 0 FROM c"
        );
        database.execute_batch(&sql).unwrap();
        Table::new(Racing { database, path, name, columns: 0 }, options)
    }
}

impl Engine for Racing {
    fn source(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn table(&self) -> &str {
        &self.name
    }

    fn run(&mut self, sql: &str) {
        // A transaction that begins by reading cannot wait for other writers.
        self.database.execute_batch(&sql.replace("BEGIN;", "BEGIN IMMEDIATE;")).unwrap();
    }

    fn clear(&self) -> String {
        format!("DELETE FROM {}", self.name)
    }

    fn trouble(&mut self, _alone: bool, state: &mut u64) {
        let name = self.name.clone();
        let log = format!("\"evenkeel_changes_{name}.id\"");
        match random(state, 20) {
            // Changes made then are not reported.
            0 => {
                let kind = ["insert", "update", "delete"][random(state, 3) as usize];
                self.run(&format!("DROP TRIGGER IF EXISTS \"evenkeel_{kind}_{name}.id\""));
            }
            1 => self.run(&format!("DELETE FROM {log} WHERE seq < (SELECT max(seq) FROM {log})")),
            2 => {
                self.columns += 1;
                self.run(&format!("ALTER TABLE {name} ADD COLUMN c{}", self.columns));
            }
            // In rollback-journal mode there are no readers meanwhile.
            3 | 4 => {
                self.run("BEGIN EXCLUSIVE");
                std::thread::sleep(Duration::from_millis(random(state, 10)));
                self.run("COMMIT");
            }
            _ => {}
        }
    }

    fn rows(&mut self) -> Vec<(u64, u64)> {
        let mut all = self.database.prepare(&format!("SELECT id, n FROM {}", self.name)).unwrap();
        let rows = all.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64)));
        rows.unwrap().map(Result::unwrap).collect()
    }
}

/// Options of a source in a race.
pub fn race_options(state: &mut u64) -> String {
    let ttl = if random(state, 3) == 0 { "1s" } else { "1h" };
    let refresh = if random(state, 2) == 0 { "on" } else { "off" };
    format!("timeout 60s connect-timeout 20s pool {} ttl {ttl} refresh {refresh}", 1 + random(state, 4))
}

#[test]
fn no_read_goes_backwards_and_none_stays_behind() {
    let dir = tempfile::tempdir().unwrap();
    races::run(60, 8, |lane, seed, state| {
        // One file serves one table after the other.
        let path = dir.path().join(format!("{lane}-{}.db", seed.is_multiple_of(4)));
        Racing::make(path, seed, race_options(state))
    });
}

/// A file in another folder is refused in the words for one that does not exist. No log has passwords of urls.
#[test]
fn files_of_sources_are_in_the_folders_of_source_dirs() {
    let shop = shop("");
    let mut client = shop.server.client();
    let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The copies are whole without a log beside them.
    shop.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::copy(&shop.path, outside.path().join("shop.db")).unwrap();
    std::fs::copy(&shop.path, inside.path().join("shop.db")).unwrap();
    client.expect(&format!("CONFIG SET source-dirs {}", inside.path().display()), "+OK");
    let trouble = |client: &mut Client, name: &str, file: String| {
        let add = format!("EVENKEEL SOURCE ADD {name} {name}:{{id}} sqlite:{file} table items timeout 60s");
        client.expect(&add, "+OK");
        let refused = client.call(&format!("GET {name}:1"));
        refused.replace(&file, "FILE").replace(&format!("'{name}'"), "NAME")
    };
    let at = |name: &str| inside.path().join(name).display().to_string();
    let out = outside.path().display();
    let missing = trouble(&mut client, "a", at("none.db"));
    assert!(missing.contains("FILE: there is no such file in the folders of source-dirs"), "{missing}");
    assert_eq!(trouble(&mut client, "b", format!("{out}/shop.db")), missing);
    assert_eq!(trouble(&mut client, "c", format!("{}/..{out}/shop.db", at("."))), missing);
    let within = trouble(&mut client, "d", at("shop.db"));
    assert!(within.contains("item 1"), "{within}");
    client.expect("CONFIG SET slowlog-log-slower-than 0", "+OK");
    client.call("EVENKEEL SOURCE ADD e postgres://u:hush@127.0.0.1/d e:{id}");
    client.call("EVENKEEL SOURCE ADD e e:{id} sqlite:x postgres://u:hush@127.0.0.1/d 1");
    client
        .expect("EVENKEEL SOURCE ADD e e:{id} postgres://u:h/u?s#hush@127.0.0.1:1/d?p%61ssword=hush", "+OK");
    let lines = [
        "SLOWLOG GET 100",
        "EVENKEEL SOURCE LIST",
        "EVENKEEL SOURCE STATS",
        "COMMANDLOG GET 10 large-request",
    ];
    let told = lines.map(|line| client.call(line)).concat();
    assert!(told.contains("e e:{id} postgres://u:***\"") && !told.contains("hush"), "{told}");
}
