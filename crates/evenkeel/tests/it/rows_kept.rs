//! Cached rows: which of them stay when there is little room, how long each is kept, and what the statistics
//! say.

use crate::eviction::{MIB, await_below, limit};
use crate::sources::{figure, random, until_figure};
use crate::support::*;
use rusqlite::Connection;
use std::time::{Duration, Instant};

/// A server, and a file with the rows 1 to `rows`, of a given size each.
struct Shop {
    server: Server,
    client: Client,
    database: Connection,
    url: String,
    _dir: tempfile::TempDir,
}

fn shop(rows: u32, bytes: u32) -> Shop {
    shop_of(Server::start(), rows, bytes)
}

fn shop_of(server: Server, rows: u32, bytes: u32) -> Shop {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shop.db");
    let database = Connection::open(&path).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL; CREATE TABLE items (id INTEGER PRIMARY KEY, text TEXT);
             WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {rows})
             INSERT INTO items SELECT i, printf('%.{bytes}c', 'x') FROM c;"
        ))
        .unwrap();
    let client = server.client();
    Shop { server, client, database, url: format!("sqlite:{}", path.display()), _dir: dir }
}

impl Shop {
    fn add(&mut self, options: &str) {
        let line = format!("EVENKEEL SOURCE ADD items item:{{id}} {} timeout 20s {options}", self.url);
        self.client.expect(line.trim_end(), "+OK");
    }

    fn figure(&mut self, name: &str) -> u64 {
        figure(&mut self.client, name).parse().unwrap()
    }

    /// A figure that is not always known.
    fn ratio(&mut self, name: &str) -> Option<f64> {
        let text = figure(&mut self.client, name);
        (text != "(nil)").then(|| text.trim_matches('"').parse().unwrap())
    }

    /// Reads many rows at once.
    fn read(&mut self, ids: impl Iterator<Item = u32>) {
        let keys: String = ids.map(|id| format!(" item:{id}")).collect();
        let reply = self.client.call(&format!("MGET{keys}"));
        assert!(reply.starts_with('['), "{reply}");
    }

    fn ttl_s(&mut self, id: u32) -> i64 {
        self.client.call(&format!("TTL item:{id}")).trim_start_matches(':').parse().unwrap()
    }

    #[track_caller]
    fn expect_ttl_s(&mut self, id: u32, most: i64) {
        let ttl_s = self.ttl_s(id);
        assert!((most - 900..=most).contains(&ttl_s), "{ttl_s}, not {most}");
    }
}

/// Limits to try: the source's own, the whole server's, and both, of which one is reached.
const LIMITS: [(&str, bool); 3] = [("budget 4mb", false), ("", true), ("budget 1gb", true)];

/// A shop with rows of 1,000 bytes and little room for them. Also the limit of the whole server, if there is
/// one, which leaves at least `more`.
fn limited(rows: u32, (options, whole): (&str, bool), more: u64) -> (Shop, Option<u64>) {
    let mut shop = shop(rows, 1000);
    shop.add(&format!("jitter 0 negative-ttl 1h {options}"));
    let whole = whole.then(|| limit(&mut shop.client, "noeviction", more));
    (shop, whole)
}

const HOT: u32 = 200;

/// Without a budget of the source's own, rows in use stay too.
#[test]
fn rows_in_use_stay_whatever_limits_them() {
    if foreign() {
        return;
    }
    for limits in LIMITS {
        let (mut shop, whole) = limited(13_000, limits, 3 * MIB);
        shop.read(1..=HOT);
        // Each is used every 200 rows that come, of which there is room for thousands.
        for step in 0..600 {
            shop.read((0..20).map(|i| 1000 + step * 20 + i));
            shop.read((0..20).map(|i| 1 + (step * 20 + i) % HOT));
        }
        match whole {
            Some(limit) => await_below(&mut shop.client, limit),
            None => assert!(shop.figure("bytes") <= 4 * MIB + MIB / 8, "{}", shop.figure("bytes")),
        }
        let items = shop.figure("items");
        assert!((1000..9000).contains(&items) && shop.figure("evicted") > 3000, "{limits:?}: {items} items");
        let again = shop.figure("loaded-rows") - 12_000 - u64::from(HOT);
        assert!(again < 100, "{limits:?}: {again} rows in use were loaded again");
    }
}

/// Rows and ids without a row share the room. Very many requests for missing ids do not drive out rows in
/// use.
#[test]
fn ids_that_do_not_exist_drive_out_no_row_in_use() {
    if foreign() {
        return;
    }
    for limits in [("budget 1mb", false), ("", true)] {
        let (mut shop, whole) = limited(HOT, limits, 0);
        shop.read(1..=HOT);
        // Many more than there is room for.
        let mut asked = 0;
        while asked < if limits.1 { 72_000 } else { 30_000 } {
            for _ in 0..20 {
                shop.read((0..300).map(|i| 10_000 + asked + i));
                shop.read(1..=HOT);
                asked += 300;
            }
        }
        if let Some(limit) = whole {
            await_below(&mut shop.client, limit);
        }
        let absent = shop.figure("negative-items");
        assert!(
            absent > 1000 && absent < u64::from(asked) - 10_000,
            "{limits:?}: {absent} of {asked} ids are known not to exist"
        );
        assert_eq!(shop.figure("items"), u64::from(HOT), "{limits:?}");
        let again = shop.figure("loaded-rows") - u64::from(HOT);
        assert!(again < 50, "{limits:?}: {again} rows in use were loaded again");
    }
}

/// Ids are asked for evenly. A cache of a part of them hits that part; one of half or twice the size hits
/// half or twice of that.
#[test]
fn what_other_sizes_would_hit_is_told_when_it_is_known() {
    if foreign() {
        return;
    }
    const IDS: u32 = 8000;
    for limits in [("budget 2mb", false), ("", true)] {
        let (mut shop, _) = limited(IDS, limits, MIB);
        let names = ["hit-ratio", "hit-ratio-at-half-budget", "hit-ratio-at-twice-budget"];
        assert_eq!(names.map(|name| shop.ratio(name)), [None; 3]);
        let (mut state, mut asked) = (7, 0);
        let mut read_some = |shop: &mut Shop| {
            shop.read((0..100).map(|_| 1 + random(&mut state, IDS.into()) as u32));
            asked += 100;
        };
        read_some(&mut shop);
        let little = names.map(|name| shop.ratio(name));
        assert!(little[0].is_some() && little[1..] == [None; 2], "{little:?}");
        let deadline = Instant::now() + 6 * PATIENCE;
        let mut known = 0;
        // Some more once it is known, because the figure is a mean of all requests. It begins anew if the
        // room changes.
        while known < 300 {
            read_some(&mut shop);
            known = if shop.ratio(names[1]).is_some() { known + 1 } else { 0 };
            assert!(Instant::now() < deadline, "nothing is known");
        }
        let [ratio, half, twice] = names.map(|name| shop.ratio(name).unwrap());
        let told = format!("{limits:?}: {half} {ratio} {twice}, {} items", shop.figure("items"));
        assert!((half - ratio / 2.0).abs() < 0.1, "{told}");
        assert!((twice - (2.0 * ratio).min(1.0)).abs() < 0.15, "{told}");
        let part = shop.figure("items") as f64 / f64::from(IDS);
        assert!((ratio - part).abs() < 0.15, "{told}");
        assert_eq!(shop.figure("hits") + shop.figure("misses"), asked);
        let distinct = shop.figure("distinct-ids-today");
        assert!(distinct.abs_diff(IDS.into()) < u64::from(IDS) / 12, "{distinct} distinct ids");
    }
}

#[test]
fn each_key_that_is_asked_for_is_counted_once() {
    let mut shop = shop(100, 10);
    shop.add("negative-ttl 1h");
    let expect = |shop: &mut Shop, line: &str, expected: [u64; 4]| {
        let reply = shop.client.call(line);
        assert!(!reply.contains('-') || line.contains("abc"), "{line}: {reply}");
        let names = ["hits", "misses", "negative-hits", "errors"];
        assert_eq!(names.map(|name| shop.figure(name)), expected, "after {line}");
    };
    expect(&mut shop, "MGET item:1 item:2 item:500 item:1 own", [0, 4, 0, 0]);
    expect(&mut shop, "MGET item:1 item:2 item:500 item:1 own", [3, 4, 1, 0]);
    expect(&mut shop, "EXISTS item:1 item:3 item:500", [4, 5, 2, 0]);
    expect(&mut shop, "EVENKEEL ITEMS item:3 item:1", [6, 5, 2, 0]);
    expect(&mut shop, "EVENKEEL ITEMS item:3", [7, 5, 2, 0]);
    // A text that spells no number is known to have no row.
    expect(&mut shop, "GET item:abc", [7, 5, 3, 0]);
    expect(&mut shop, "MGET item:abc item:1", [8, 5, 4, 0]);
    assert_eq!(shop.figure("distinct-ids-today"), 4);
    shop.client.expect("MULTI", "+OK");
    shop.client.expect("GET item:1", "+QUEUED");
    shop.client.expect("GET item:4", "+QUEUED");
    expect(&mut shop, "EXEC", [9, 6, 4, 0]);
    assert_eq!(shop.figure("distinct-ids-today"), 5);
    shop.client.expect("EVENKEEL SOURCE PAUSE items", "+OK");
    let paused = "-SOURCEDOWN source 'items' is paused";
    shop.client.expect("MGET item:50 item:51 item:1", paused);
    shop.client.expect("GET item:50", paused);
    shop.client.expect("MULTI", "+OK");
    shop.client.expect("GET item:50", "+QUEUED");
    assert!(shop.client.call("EXEC").contains("is paused"));
    let counted = ["hits", "misses", "errors"].map(|name| shop.figure(name));
    assert_eq!(counted, [10, 10, 3]);
}

#[test]
fn what_is_given_out_after_its_time_is_counted() {
    let mut shop = shop(100, 10);
    shop.add("feed off ttl 1s jitter 0 stale-if-error 1h");
    shop.read(1..=3);
    shop.database.execute_batch("ALTER TABLE items RENAME TO gone").unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(shop.ttl_s(1), 0);
    shop.read(1..=2);
    assert_eq!((shop.figure("stale"), shop.figure("errors")), (2 + 1, 0));
    shop.client.expect("MULTI", "+OK");
    shop.client.expect("STRLEN item:3", "+QUEUED");
    assert!(shop.client.call("EXEC").starts_with("[:"));
    assert_eq!((shop.figure("stale"), shop.figure("errors")), (4, 0));
    assert!(shop.client.call("MGET item:1 item:50").starts_with("-SOURCEDOWN"));
    assert_eq!((shop.figure("stale"), shop.figure("errors")), (4, 1));
}

/// GETEX cannot keep an item beyond its time. It does not make an item outdated at once either, where such
/// items are kept for an outage.
#[test]
fn a_reader_may_end_an_item_sooner_but_not_later() {
    for stale in ["", "stale-if-error 1h"] {
        let mut shop = shop(100, 10);
        shop.add(&format!("ttl 10000s jitter 0 {stale}"));
        let text = |id: u32| format!(r#""{{\"id\":{id},\"text\":\"xxxxxxxxxx\"}}""#);
        for option in ["EX 100000000", "PERSIST", "PXAT 4000000000000", ""] {
            shop.client.expect(format!("GETEX item:1 {option}").trim_end(), &text(1));
            shop.expect_ttl_s(1, 10000);
        }
        let until_s: u64 = shop.client.call("EXPIRETIME item:1").trim_start_matches(':').parse().unwrap();
        let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!((9000..=10001).contains(&(until_s - now_s)), "{until_s}");
        shop.client.expect("GETEX item:1 EX 6000", &text(1));
        shop.expect_ttl_s(1, 6000);
        for option in ["EX 9000", "PERSIST"] {
            shop.client.expect(&format!("GETEX item:1 {option}"), &text(1));
            shop.expect_ttl_s(1, 6000);
        }
        shop.client.expect("MULTI", "+OK");
        shop.client.expect("GETEX item:1 EX 4000", "+QUEUED");
        shop.client.expect("GETEX item:1 EX 9500", "+QUEUED");
        shop.client.expect("EXEC", &format!("[{}, {}]", text(1), text(1)));
        shop.expect_ttl_s(1, 4000);
        shop.client.expect("GET item:1", &text(1));
        assert_eq!((shop.figure("misses"), shop.figure("loaded-rows")), (1, 1), "it is as good as it was");
        shop.client.expect("GETEX item:1 EX zero", "-ERR value is not an integer or out of range");
        shop.expect_ttl_s(1, 4000);
        shop.client.expect("GETEX item:1 PXAT 1", &text(1));
        shop.client.expect("GET item:1", &text(1));
        shop.expect_ttl_s(1, 10000);
        assert_eq!(shop.figure("loaded-rows"), 2);
    }
}

#[test]
fn what_a_client_writes_is_kept_as_long_as_an_item_at_most() {
    for stale in ["", "stale-if-error 1h"] {
        let mut shop = shop(100, 10);
        shop.add(&format!("write local ttl 10000s jitter 0 {stale}"));
        for (line, ttl_s) in [
            ("SET item:1 mine", 10000),
            ("SET item:1 mine EX 5000", 5000),
            ("APPEND item:1 s", 5000),
            ("EXPIRE item:1 8000", 8000),
            ("EXPIRE item:1 1000000", 10000),
            ("PERSIST item:1", 10000),
            ("SETEX item:1 1000000 mine", 10000),
            ("GETEX item:1 EX 7000", 7000),
            ("GETEX item:1 EX 9000", 9000),
            ("GETEX item:1 PERSIST", 10000),
        ] {
            let reply = shop.client.call(line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
            shop.expect_ttl_s(1, ttl_s);
        }
        // It is still what the client wrote, not past its time.
        shop.client.expect("GET item:1", r#""mine""#);
    }
}

/// Leftovers of an earlier source in the same place do not count for the next.
#[test]
fn a_source_begins_with_nothing_known() {
    let mut shop = shop(100, 10);
    shop.add("stale-if-error 1h ttl 10000s jitter 0");
    shop.read(1..=10);
    shop.client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    shop.add("ttl 10000s jitter 0");
    shop.read(1..=10);
    shop.expect_ttl_s(1, 10000);
    until_figure(&mut shop.client, "items", "10");
    drop(shop.server);
}

#[test]
fn the_log_tells_what_became_of_a_row_if_it_is_asked_to() {
    let server = Server::start_with(&["--loglevel", "debug", "--logfile", "{dir}/log"]);
    let mut shop = shop_of(server, 3, 8);
    shop.add("columns text");
    let mut until = |reply: &str| {
        let deadline = Instant::now() + PATIENCE;
        while shop.client.call("GET item:2") != reply {
            assert!(Instant::now() < deadline, "never {reply}");
        }
    };
    until(r#""{\"text\":\"xxxxxxxx\"}""#);
    shop.database.execute("UPDATE items SET text = 'new' WHERE id = 2", []).unwrap();
    until(r#""{\"text\":\"new\"}""#);
    shop.database.execute("DELETE FROM items WHERE id = 2", []).unwrap();
    until("(nil)");
    let told = [
        ("key item:2: kept at ", "xxxxxxxx"),
        ("source items: row 2 changed, told by ", ""),
        ("key item:2: removed, was an item: true", ""),
        ("key item:2: kept at ", "new"),
        ("source items: row 2 changed, told by ", ""),
        ("key item:2: kept at ", "there is none"),
    ];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = std::fs::read_to_string(shop.server.dir.path().join("log")).unwrap();
        let mut lines = log.lines();
        let is_there =
            |(begin, end): &(&str, &str)| lines.any(|line| line.contains(begin) && line.contains(end));
        if told.iter().all(is_there) {
            break;
        }
        assert!(Instant::now() < deadline, "{log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
