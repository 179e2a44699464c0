//! Keys that are rows of a real PostgreSQL, which is changed, stopped, killed and restarted beside the
//! server.

use crate::race_tables::{Engine, Table};
use crate::races::{self, ROWS};
use crate::sources::{LONG_ID, LONG_IDS, figure, floods, race_options, random, row, until, until_figure};
use crate::support::*;
use ::support::postgres;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A server in front of a table `items (id, name, n)` with the rows 1 to 100.
pub struct Shop {
    pub server: Server,
    pub database: postgres::Server,
}

pub fn shop(options: &str) -> Shop {
    let database = postgres::Server::start();
    database
        .sql(
            "CREATE TABLE items (id bigint PRIMARY KEY, name text, n int);
             INSERT INTO items SELECT i, 'item ' || i, 0 FROM generate_series(1, 100) i",
        )
        .unwrap();
    let server = Server::start_with(&[]);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", database.port);
    // A starved machine connects late.
    let patient = if options.contains("connect-timeout") { "" } else { "connect-timeout 20s " };
    let options = format!("{patient}{options}");
    server
        .client()
        .expect(format!("EVENKEEL SOURCE ADD items item:{{id}} {url} {options}").trim_end(), "+OK");
    Shop { server, database }
}

#[test]
fn rows_and_their_changes_are_read_through() {
    let shop = shop("negative-ttl 1h timeout 60s");
    let mut client = shop.server.client();
    client.expect("GET item:1", &row(1, 0));
    client.expect(
        "MGET item:2 item:200 item:3 item:x item:03",
        &format!("[{}, (nil), {}, (nil), (nil)]", row(2, 0), row(3, 0)),
    );
    shop.database.sql("UPDATE items SET n = 7 WHERE id = 1").unwrap();
    until(&mut client, "GET item:1", &row(1, 7));
    shop.database.sql("INSERT INTO items VALUES (200, 'item 200', 1)").unwrap();
    until(&mut client, "GET item:200", &row(200, 1));
    shop.database.sql("DELETE FROM items WHERE id = 1").unwrap();
    until(&mut client, "GET item:1", "(nil)");
    shop.database.sql("BEGIN; UPDATE items SET n = 9 WHERE id = 2; ROLLBACK").unwrap();
    client.expect("GET item:2", &row(2, 0));
    shop.database.sql("TRUNCATE items").unwrap();
    until(&mut client, "GET item:2", "(nil)");
}

/// Several servers in front of one database each follow its changes; one that ends takes nothing from the
/// others.
#[test]
fn two_servers_in_front_of_one_database_both_follow_it() {
    let shop = shop("timeout 60s");
    let other = Server::start_with(&[]);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", shop.database.port);
    let (mut first, mut second) = (shop.server.client(), other.client());
    second.expect(
        &format!("EVENKEEL SOURCE ADD items item:{{id}} {url} timeout 60s connect-timeout 20s"),
        "+OK",
    );
    for client in [&mut first, &mut second] {
        until(client, "GET item:1", &row(1, 0));
    }
    for n in 1..20 {
        shop.database.sql(&format!("UPDATE items SET n = {n} WHERE id = 1")).unwrap();
        for client in [&mut first, &mut second] {
            until(client, "GET item:1", &row(1, n));
        }
    }
    second.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    second.expect("GET item:1", "(nil)");
    for n in 20..30 {
        shop.database.sql(&format!("UPDATE items SET n = {n} WHERE id = 1")).unwrap();
        until(&mut first, "GET item:1", &row(1, n));
    }
    assert_eq!(figure(&mut first, "flushes"), "0");
}

#[test]
fn a_database_that_is_killed_leaves_what_is_cached_and_nothing_stale_after_it() {
    let shop = shop("timeout 2s connect-timeout 2s");
    let mut client = shop.server.client();
    until(&mut client, "GET item:1", &row(1, 0));
    until(&mut client, "GET item:2", &row(2, 0));
    shop.database.stop(Signal::QUIT);
    client.expect("GET item:1", &row(1, 0));
    let error = client.call("GET item:50");
    assert!(error.starts_with("-SOURCEDOWN ") || error.starts_with("-SOURCESLOW "), "{error}");
    until_figure(&mut client, "feed", "\"broken\"");
    client.expect("GET item:1", &row(1, 0));
    client.expect("SET own 1", "+OK");
    shop.database.run();
    shop.database.sql("UPDATE items SET n = 1 WHERE id = 1").unwrap();
    until(&mut client, "GET item:1", &row(1, 1));
    until(&mut client, "GET item:50", &row(50, 0));
    shop.database.sql("UPDATE items SET n = 2 WHERE id = 2").unwrap();
    until(&mut client, "GET item:2", &row(2, 2));
    assert_ne!(figure(&mut client, "flushes"), "0");
}

#[test]
fn a_database_that_hangs_holds_up_only_those_who_need_it() {
    let shop = shop("timeout 500ms connect-timeout 500ms");
    let mut client = shop.server.client();
    until(&mut client, "GET item:1", &row(1, 0));
    shop.database.signal(Signal::STOP);
    let mut waiter = shop.server.client();
    waiter.request(&[b"GET", b"item:50"]);
    client.expect("GET item:1", &row(1, 0));
    client.expect("SET own 1", "+OK");
    let error = waiter.reply();
    assert!(
        error.starts_with("-SOURCESLOW source 'items': ") || error.starts_with("-SOURCEDOWN "),
        "{error}"
    );
    shop.database.signal(Signal::CONT);
    until(&mut client, "GET item:50", &row(50, 0));
}

#[test]
fn a_feed_that_is_cut_off_misses_nothing() {
    for slot in ["", "slot evenkeel_test"] {
        let shop = shop(&format!("timeout 60s {slot}"));
        let mut client = shop.server.client();
        client.expect("GET item:1", &row(1, 0));
        for n in 1..=5 {
            shop.database
                .sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")
                .unwrap();
            shop.database.sql(&format!("UPDATE items SET n = {n} WHERE id = 1")).unwrap();
            until(&mut client, "GET item:1", &row(1, n));
        }
    }
}

#[test]
fn what_the_database_lacks_is_explained() {
    let shop = shop("timeout 2s");
    let mut client = shop.server.client();
    until(&mut client, "GET item:1", &row(1, 0));
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    shop.database.stop(Signal::INT);
    shop.database.run_with(&["wal_level=replica"]);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", shop.database.port);
    client.expect(&format!("EVENKEEL SOURCE ADD items item:{{id}} {url}"), "+OK");
    until_figure(&mut client, "feed", "\"broken\"");
    // On a busy machine the first attempts may fail for want of time.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let error = client.call("GET item:1");
        assert!(error.starts_with("-SOURCEDOWN ") || error.starts_with("-SOURCESLOW "), "{error}");
        if error.contains("wal_level") {
            break;
        }
        assert!(Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    client.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    client.expect(&format!("EVENKEEL SOURCE ADD items item:{{id}} {url} feed off"), "+OK");
    until(&mut client, "GET item:1", &row(1, 0));
}

#[test]
fn a_transaction_of_more_rows_than_can_wait_gives_up_everything_over_postgres() {
    let database = postgres::Server::start();
    let sql = |text: &str| database.sql(text).unwrap();
    sql(&format!(
        "CREATE TABLE items (id text PRIMARY KEY, n int); INSERT INTO items VALUES ('a', 0), ('b', 0);
         INSERT INTO items SELECT repeat('x', {LONG_ID}) || i, 0 FROM generate_series(1, {LONG_IDS}) i"
    ));
    floods(
        &format!("postgres://postgres@127.0.0.1:{}/postgres", database.port),
        &|n| _ = sql(&format!("UPDATE items SET n = {n} WHERE id = 'b'")),
        &|| {
            _ = sql(
                "BEGIN; UPDATE items SET n = 5 WHERE id < 'x'; UPDATE items SET n = 5 WHERE id > 'x'; COMMIT",
            )
        },
    );
}

/// A table for a race.
struct Racing {
    session: postgres::Session,
    /// For transactions that stay open.
    second: postgres::Session,
    url: String,
    name: String,
    /// A slot of its own, which outlives a connection; None: a temporary one.
    slot: Option<String>,
    columns: u64,
}

impl Racing {
    fn make(database: &postgres::Server, seed: u64, state: &mut u64) -> Table<Racing> {
        let (mut session, name) = (database.session(), format!("t{seed}"));
        session.run(&format!("CREATE TABLE {name} (id int PRIMARY KEY, n int)"));
        session.run(&format!("INSERT INTO {name} SELECT i, 0 FROM generate_series(1, {ROWS}) i"));
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", database.port);
        let slot = (random(state, 2) == 0).then(|| format!("kept_{seed}"));
        let kept = slot.as_ref().map_or_else(String::new, |slot| format!(" slot {slot}"));
        let options = race_options(state) + &kept;
        let second = database.session();
        Table::new(Racing { session, second, url, name, slot, columns: 0 }, options)
    }

    /// Ends the connection of its feed.
    fn cut(&mut self) {
        let own = self.slot.clone().unwrap_or_else(|| format!("evenkeel_r{}_.*", &self.name[1..]));
        self.session.run(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
             WHERE active_pid IS NOT NULL AND slot_name ~ '^{own}$'"
        ));
    }
}

impl Engine for Racing {
    fn source(&self) -> String {
        self.url.clone()
    }

    fn table(&self) -> &str {
        &self.name
    }

    fn run(&mut self, sql: &str) {
        self.session.run(sql);
    }

    fn run_beside(&mut self, sql: &str) -> bool {
        self.second.run(sql);
        true
    }

    fn clear(&self) -> String {
        format!("TRUNCATE {}", self.name)
    }

    fn trouble(&mut self, alone: bool, state: &mut u64) {
        let name = &self.name;
        match random(state, 20) {
            0 => self.cut(),
            1 if alone => {
                self.columns += 1;
                self.session.run(&format!("ALTER TABLE {name} ADD COLUMN c{} int", self.columns));
            }
            // Readers wait.
            2 | 3 if alone => {
                let seconds = random(state, 10) as f64 / 1000.0;
                self.session.run(&format!("BEGIN; LOCK TABLE {name}; SELECT pg_sleep({seconds}); COMMIT"));
            }
            _ => {}
        }
    }

    fn rows(&mut self) -> Vec<(u64, u64)> {
        let all = self.session.run(&format!("SELECT id, n FROM {}", self.name));
        let row = |line: &str| {
            let (id, n) = line.split_once('|').expect("two columns");
            (id.parse().expect("an id"), n.parse().expect("a version"))
        };
        all.lines().map(row).collect()
    }
}

/// A slot that stayed would keep the database's log for ever, and their number is limited.
impl Drop for Racing {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take().filter(|_| !std::thread::panicking()) else { return };
        let of_it = format!("FROM pg_replication_slots WHERE slot_name = '{slot}'");
        let deadline = Instant::now() + PATIENCE;
        while !self.session.run(&format!("SELECT 1 {of_it}")).is_empty() {
            assert!(Instant::now() < deadline, "{slot} stays in use");
            self.session.run(&format!("SELECT pg_drop_replication_slot(slot_name) {of_it} AND NOT active"));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn no_read_goes_backwards_over_postgres() {
    let database = postgres::Server::start();
    races::run(16, 8, |_, seed, state| Racing::make(&database, seed, state));
}
