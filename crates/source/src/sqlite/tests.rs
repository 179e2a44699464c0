use super::*;
use crate::Since;
use crate::testing::*;
use std::path::Path;

const ITEMS: &str =
    "CREATE TABLE items (id INTEGER PRIMARY KEY, v INTEGER, price REAL, name TEXT, picture BLOB, at TEXT)";

struct Fixture {
    folder: tempfile::TempDir,
    writer: Connection,
}

fn write(path: &Path, sql: &str) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection.execute_batch(sql).unwrap();
    connection
}

impl Fixture {
    fn new(sql: &str) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let writer = write(&folder.path().join("shop.db"), sql);
        Fixture { folder, writer }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    fn spec(&self, options: &str) -> Spec {
        let text = format!("items item:{{id}} sqlite:{} {options}", self.path().display());
        Spec::parse(text.split_whitespace()).unwrap()
    }

    fn open(&self, options: &str) -> Arc<dyn Database> {
        crate::open(&self.spec(options)).unwrap()
    }

    fn run(&self, sql: &str) {
        self.writer.execute_batch(sql).unwrap();
    }

    async fn follow(&self, database: &Arc<dyn Database>) -> (Arc<Recorder>, Following) {
        let feed = Arc::new(Recorder::default());
        let following = Following::start(database, &feed);
        feed.until_opened().await;
        (feed, following)
    }
}

#[tokio::test]
async fn rows_keep_their_types() {
    let shop = Fixture::new(ITEMS);
    shop.run(
        "INSERT INTO items VALUES (42, 1, 1.0, 'a \"b\" \\ \n ü', x'00ff', '2024-02-03 04:05:06.789'), (7, NULL, 9e999, '', x'', NULL)",
    );
    let database = shop.open("");
    let rows = load(&database, &["42", "7", "8"]).await;
    let json = r#"{"id":42,"v":1,"price":1.0,"name":"a \"b\" \\ \n ü","picture":"00ff","at":"2024-02-03 04:05:06.789"}"#;
    assert_eq!(rows[0], ("42".into(), json.into()));
    assert_eq!(rows[1].1, r#"{"id":7,"v":null,"price":null,"name":"","picture":"","at":null}"#);
    assert_eq!(rows.len(), 2);
    let fields = shop.open("as hash columns name,price,v modified at");
    assert_eq!(load(&fields, &["7"]).await, [("7".into(), "name= price=inf".into())]);
    let row = fields.load(&ids(&["42"])).await.unwrap().remove(0);
    assert_eq!(row.modified_ms, Some(1_706_933_106_789));
}

#[tokio::test]
async fn an_id_names_a_row_by_one_spelling() {
    let shop = Fixture::new(ITEMS);
    shop.run("INSERT INTO items (id) VALUES (42)");
    let database = shop.open("");
    assert_eq!(load(&database, &["42", "042", "+42", " 42", "42.0"]).await.len(), 1);
    assert!(database.accepts(b"42") && !database.accepts(b"042") && !database.accepts(b"abc"));
    let names = Fixture::new(
        "CREATE TABLE items (id TEXT UNIQUE COLLATE NOCASE, v); INSERT INTO items VALUES ('Abc', 1)",
    );
    let database = names.open("");
    assert_eq!(load(&database, &["abc", "ABC"]).await, []);
    assert_eq!(load(&database, &["Abc"]).await.len(), 1);
    let number = Fixture::new("CREATE TABLE items (id UNIQUE, v); INSERT INTO items VALUES (1.0, 1)");
    assert_eq!(load(&number.open("id-type integer"), &["1"]).await, []);
    let why = number.open("").load(&ids(&["1"])).await.unwrap_err();
    assert!(why.to_string().contains("set id-type to integer, text or uuid"), "{why}");
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let shop = Fixture::new(ITEMS);
    shop.run("CREATE VIEW seen AS SELECT * FROM items; CREATE TABLE \"odd \"\"name\" (k TEXT, v)");
    // An index of some rows lets others have the same id.
    shop.run("CREATE UNIQUE INDEX some ON items (price) WHERE price > 0");
    let asked = ids(&["1"]);
    for (options, text) in [
        ("table nothing", "there is no table 'nothing'"),
        ("table seen", "is a view"),
        ("columns id,size", "has no column 'size' (it has id, v, price"),
        ("modified changed", "has no column 'changed'"),
        ("id v", "has no unique index"),
        ("id price", "has no unique index"),
    ] {
        let database = shop.open(options);
        for why in [database.load(&asked).await.unwrap_err(), database.follow(&Recorder::default()).await] {
            assert!(matches!(&why, Failure::Refused(why) if why.contains(text)), "{options}: {why}");
        }
    }
    let gone = crate::open(&Spec::parse(["items", "item:{id}", "sqlite:/nowhere/shop.db"]).unwrap()).unwrap();
    assert!(matches!(gone.load(&asked).await, Err(Failure::Down(_))));
    assert!(matches!(gone.follow(&Recorder::default()).await, Failure::Down(_)));
    for url in ["sqlite:", "sqlite:///", "sqlite://shop.db", "sqlite::memory:"] {
        let spec = Spec::parse(["items", "item:{id}", url]).unwrap();
        assert!(url == "sqlite:///" || crate::open(&spec).is_err(), "{url}");
    }
    std::fs::write(shop.path(), [7; 8192]).unwrap();
    assert!(matches!(shop.open("").load(&asked).await, Err(Failure::Refused(_))));
}

#[tokio::test]
async fn every_change_is_told() {
    for mode in ["WAL", "DELETE"] {
        let shop = Fixture::new(ITEMS);
        shop.run(&format!(
            "PRAGMA journal_mode = {mode}; INSERT INTO items (id, v) VALUES (1, 1), (2, 2), (3, 3)"
        ));
        let database = shop.open("");
        let (feed, _following) = shop.follow(&database).await;
        shop.run("INSERT INTO items (id) VALUES (9)");
        feed.until_changed(&["9"]).await;
        shop.run("UPDATE items SET v = 5 WHERE id = 1");
        feed.until_changed(&["1"]).await;
        assert!(load(&database, &["1"]).await[0].1.contains("\"v\":5"));
        shop.run("UPDATE items SET id = 10 WHERE id = 2");
        feed.until_changed(&["2", "10"]).await;
        feed.forget();
        shop.run("BEGIN; UPDATE items SET v = 6; ROLLBACK; DELETE FROM items");
        feed.until_changed(&["1", "3", "9", "10"]).await;
        assert_eq!(feed.all().len(), 4);
        assert_eq!(load(&database, &["1", "3", "9", "10"]).await, []);
        feed.until_heartbeat().await;
        assert!(feed.times().iter().all(|ms| *ms > 1_700_000_000_000));
    }
}

#[tokio::test]
async fn what_replace_removes_is_told() {
    let shop =
        Fixture::new("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT UNIQUE, a, b, UNIQUE (a, b))");
    shop.run(
        "INSERT INTO items VALUES (1, 'one', 1, 1), (2, 'two', 2, 2), (3, 'three', 3, 3), (4, 'four', 4, 4)",
    );
    let database = shop.open("");
    let (feed, _following) = shop.follow(&database).await;
    shop.run("REPLACE INTO items VALUES (5, 'one', 2, 2)");
    feed.until_changed(&["1", "2", "5"]).await;
    shop.run("UPDATE OR REPLACE items SET name = 'four' WHERE id = 3");
    feed.until_changed(&["3", "4"]).await;
    assert_eq!(load(&database, &["1", "2", "4"]).await, []);
}

/// An index may compare otherwise than its column does.
#[tokio::test]
async fn what_replace_removes_by_an_index_of_another_collation_is_told() {
    let shop = Fixture::new(
        "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, code TEXT COLLATE NOCASE); \
         CREATE UNIQUE INDEX loose ON items (name COLLATE NOCASE); \
         CREATE UNIQUE INDEX strict ON items (code COLLATE BINARY)",
    );
    shop.run("INSERT INTO items VALUES (1, 'one', 'a'), (2, 'two', 'b')");
    let database = shop.open("");
    let (feed, _following) = shop.follow(&database).await;
    shop.run("REPLACE INTO items VALUES (5, 'ONE', 'c')");
    feed.until_changed(&["1", "5"]).await;
    assert_eq!(load(&database, &["1"]).await, []);
    feed.forget();
    // No conflict: only the column would compare them as equal.
    shop.run("REPLACE INTO items VALUES (6, 'six', 'B')");
    feed.until_changed(&["6"]).await;
    assert_eq!(load(&database, &["2"]).await.len(), 1);
}

/// Indexes of some rows, of expressions and of both.
#[tokio::test]
async fn what_replace_removes_by_a_partial_index_or_an_expression_is_told() {
    for rowid in ["", "WITHOUT ROWID"] {
        let shop = Fixture::new(&format!(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, a, b, \"sum, all\" AS (a + b)) {rowid}; \
             CREATE UNIQUE INDEX partial ON items (a) WHERE b > 0 AND name <> 'WHERE ('; \
             CREATE UNIQUE INDEX lowered ON items (lower(name) DESC, b); \
             CREATE UNIQUE INDEX loose ON items (substr(name, 1, 3) COLLATE NOCASE) WHERE items.b < -5; \
             CREATE UNIQUE INDEX summed ON items (\"sum, all\" * 10) WHERE b = -1"
        ));
        shop.run("INSERT INTO items VALUES (1, 'one', 1, 1), (2, 'two', 2, 2), (3, 'three', 3, -9), (4, 'four', 9, -1)");
        let database = shop.open("");
        let (feed, _following) = shop.follow(&database).await;
        for (sql, gone) in [
            ("REPLACE INTO items (id, name, a, b) VALUES (11, 'x', 1, 5)", "1"),
            ("INSERT OR REPLACE INTO items (id, name, a, b) VALUES (12, 'TWO', 7, 2)", "2"),
            ("UPDATE OR REPLACE items SET name = 'THRone', b = -7 WHERE id = 11", "3"),
            ("REPLACE INTO items (id, name, a, b) VALUES (14, 'y', 9, -1)", "4"),
        ] {
            feed.forget();
            shop.run(sql);
            feed.until_changed(&[gone]).await;
            assert_eq!(load(&database, &[gone]).await, [], "{sql}");
        }
        feed.forget();
        shop.run(
            "INSERT INTO items (id, name, a, b) VALUES (20, 'Two', 8, 2) ON CONFLICT DO UPDATE SET a = 100",
        );
        feed.until_changed(&["12"]).await;
    }
}

/// Numbers are equal whose spellings differ.
#[tokio::test]
async fn what_replace_removes_by_an_equal_id_is_told() {
    let shop = Fixture::new("CREATE TABLE items (id UNIQUE, v); INSERT INTO items VALUES (1, 1)");
    let database = shop.open("id-type integer");
    let (feed, _following) = shop.follow(&database).await;
    shop.run("REPLACE INTO items VALUES (1.0, 2)");
    feed.until_changed(&["1"]).await;
    assert_eq!(load(&database, &["1"]).await, []);
}

/// The triggers are made although those of the application need functions that it alone has.
#[tokio::test]
async fn triggers_of_the_application_are_no_obstacle() {
    let shop = Fixture::new(
        "CREATE TABLE items (id INTEGER PRIMARY KEY, v); CREATE UNIQUE INDEX i ON items (abs(v)); \
         CREATE TRIGGER own AFTER INSERT ON items BEGIN SELECT only_there(NEW.v); END",
    );
    let database = shop.open("");
    let (feed, _following) = shop.follow(&database).await;
    shop.run("DROP TRIGGER own; INSERT INTO items VALUES (1, 5); REPLACE INTO items VALUES (2, -5)");
    feed.until_changed(&["1", "2"]).await;
    assert_eq!(load(&database, &["1"]).await, []);
}

#[tokio::test]
async fn a_feed_is_resumed() {
    let shop = Fixture::new(ITEMS);
    let database = shop.open("");
    let (feed, following) = shop.follow(&database).await;
    assert_eq!(feed.all(), [Told::Opened(Since::Unknown)]);
    shop.run("INSERT INTO items (id) VALUES (1)");
    feed.until_changed(&["1"]).await;
    drop(following);
    feed.forget();
    shop.run("INSERT INTO items (id) VALUES (2)");
    let again = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Resumed);
    feed.until_changed(&["2"]).await;
    drop(again);
    feed.forget();
    // Entries that another server removed before they were read here are missed.
    shop.run("INSERT INTO items (id) VALUES (3), (4), (5); DELETE FROM \"evenkeel_changes_items.id\" WHERE coalesce(id, 0) < 5");
    let again = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Unknown);
    // The same while the feed follows.
    shop.run("BEGIN; INSERT INTO items (id) VALUES (6), (7); DELETE FROM \"evenkeel_changes_items.id\" WHERE id = 6; COMMIT");
    feed.until_lost().await;
    feed.forget();
    shop.run("DELETE FROM \"evenkeel_changes_items.id\"");
    feed.until_lost().await;
    drop(again);
}

#[tokio::test]
async fn another_table_is_not_the_same() {
    let shop = Fixture::new(ITEMS);
    let database = shop.open("");
    let (feed, following) = shop.follow(&database).await;
    let (other_feed, _other) = shop.follow(&shop.open("")).await;
    shop.run("ALTER TABLE items ADD COLUMN colour TEXT DEFAULT 'red'");
    feed.until_lost().await;
    feed.forget();
    shop.run(&format!("BEGIN; DROP TABLE items; {ITEMS}; INSERT INTO items (id) VALUES (1); COMMIT"));
    feed.until_lost().await;
    other_feed.until_lost().await;
    feed.until_heartbeat().await;
    other_feed.until_heartbeat().await;
    shop.run("INSERT INTO items (id) VALUES (8)");
    feed.until_changed(&["8"]).await;
    other_feed.until_changed(&["8"]).await;
    assert_eq!(load(&database, &["8"]).await.len(), 1);
    feed.forget();
    shop.run("DROP TRIGGER \"evenkeel_delete_items.id\"");
    feed.until_lost().await;
    feed.until_heartbeat().await;
    shop.run("DELETE FROM items WHERE id = 8");
    feed.until_changed(&["8"]).await;
    feed.forget();
    shop.run("DROP TABLE items");
    feed.until_lost().await;
    let why = following.failure().await;
    assert!(matches!(&why, Failure::Refused(text) if text.contains("no table 'items'")), "{why}");
    shop.run(ITEMS);
    let _again = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Unknown);
}

#[tokio::test]
async fn another_file_is_not_the_same() {
    let shop = Fixture::new(ITEMS);
    shop.run("INSERT INTO items (id, v) VALUES (1, 1)");
    let database = shop.open("");
    let (feed, following) = shop.follow(&database).await;
    assert!(load(&database, &["1"]).await[0].1.contains("\"v\":1"));
    let new = shop.folder.path().join("new.db");
    drop(write(&new, &format!("{ITEMS}; INSERT INTO items (id, v) VALUES (1, 2)")));
    std::fs::rename(&new, shop.path()).unwrap();
    assert!(matches!(following.failure().await, Failure::Lost(_)));
    assert!(load(&database, &["1"]).await[0].1.contains("\"v\":2"));
    feed.forget();
    let following = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Unknown);
    std::fs::remove_file(shop.path()).unwrap();
    assert!(matches!(following.failure().await, Failure::Down(_)));
}

#[tokio::test]
async fn a_held_file_is_waited_for_and_no_longer() {
    let shop = Fixture::new(ITEMS);
    shop.run("INSERT INTO items (id) VALUES (1)");
    let database = shop.open("timeout 50ms");
    assert_eq!(load_at_last(&database, &["1"]).await.len(), 1);
    let (feed, _following) = shop.follow(&database).await;
    shop.run("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; INSERT INTO items (id) VALUES (2)");
    assert_eq!(database.load(&ids(&["1"])).await, Err(Failure::Slow));
    shop.run("COMMIT; PRAGMA locking_mode = NORMAL; SELECT count(*) FROM items");
    feed.until_changed(&["2"]).await;
    assert_eq!(load_at_last(&database, &["1", "2"]).await.len(), 2);
}

#[test]
fn a_statement_that_takes_too_long_is_given_up() {
    let shop = Fixture::new(ITEMS);
    shop.run("INSERT INTO items (id) VALUES (1)");
    let shared = Shared::new(&shop.spec("")).unwrap();
    let mut reader = Reader::open(&shared, 0).unwrap();
    reader.select =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT ?1, NULL, max(i) FROM n"
            .into();
    let deadline = Instant::now() + Duration::from_millis(20);
    assert_eq!(reader.rows(&shared, &ids(&["1"]), deadline), Err(Failure::Slow));
    reader.select = select(&shared.plan);
    assert_eq!(reader.rows(&shared, &ids(&["1"]), Instant::now() + PATIENCE).unwrap().len(), 1);
}

#[tokio::test]
async fn an_unwritable_file_is_followed_if_it_has_triggers() {
    let shop = Fixture::new(ITEMS);
    let shared = Shared::new(&shop.spec("")).unwrap();
    // The superuser may write to every file, so here the connection may not.
    let connection = || write(&shop.path(), "PRAGMA query_only = 1");
    let begin = || on_a_thread(&shared, connection(), |_| ());
    assert!(matches!(begin(), Err(Failure::Refused(why)) if why.contains("Let the server write to")));
    on_a_thread(&shared, write(&shop.path(), ""), |_| ()).unwrap();
    assert_eq!(begin(), Ok(()));
}

/// Begins to follow, and hands the follower to a function.
fn on_a_thread(
    shared: &Shared,
    connection: Connection,
    then: impl FnOnce(&changelog::Follower<'_>) + Send,
) -> Result<(), Failure> {
    let (events, _told) = tokio::sync::mpsc::channel(16);
    let begun = || {
        changelog::Follower::begin(shared, connection, (0, 0), events, None).map(|follower| then(&follower))
    };
    std::thread::scope(|scope| scope.spawn(begun).join().unwrap())
}

/// One trigger is gone, so a change is not recorded; a later change is recorded by another trigger.
/// Everything kept is dropped before the later change is reported (L6).
#[test]
fn what_nobody_recorded_is_given_up_before_anything_later_is_told() {
    let shop = Fixture::new(ITEMS);
    shop.run("INSERT INTO items (id) VALUES (1)");
    let shared = Shared::new(&shop.spec("")).unwrap();
    let (events, mut told) = tokio::sync::mpsc::channel(16);
    let connection = write(&shop.path(), "");
    let mut follower = changelog::Follower::begin(&shared, connection, (0, 0), events, None).unwrap();
    while told.try_recv().is_ok() {}
    shop.run("DROP TRIGGER \"evenkeel_update_items.id\"");
    shop.run("UPDATE items SET name = 'unseen' WHERE id = 1");
    shop.run("INSERT INTO items (id) VALUES (2)");
    // As if all of that had come just before the entries are read.
    follower.read().unwrap();
    let mut kinds = Vec::new();
    while let Ok((event, _)) = told.try_recv() {
        kinds.push(match event {
            changelog::Event::Lost(_) => "lost",
            changelog::Event::Changed(_) => "changed",
            _ => "other",
        });
    }
    assert_eq!(kinds.first(), Some(&"lost"), "{kinds:?}");
}

#[tokio::test]
async fn old_entries_are_removed_but_never_the_newest() {
    let shop = Fixture::new(ITEMS);
    let database = shop.open("");
    drop(shop.follow(&database).await);
    let log = "\"evenkeel_changes_items.id\"";
    shop.run("INSERT INTO items (id) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3500) SELECT i FROM n");
    let count = || {
        shop.writer.query_row(&format!("SELECT count(*) FROM {log}"), [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let shared = Shared::new(&shop.spec("")).unwrap();
    let tidy = || on_a_thread(&shared, write(&shop.path(), ""), |follower| follower.tidy()).unwrap();
    tidy();
    assert_eq!(count(), 3501, "entries are too young");
    shop.run(&format!("UPDATE {log} SET at = at - 3600000 WHERE seq < (SELECT max(seq) - 600 FROM {log})"));
    // Nothing is removed while another connection writes, as the dropped follower may still do.
    let tidy_until = |fits: &dyn Fn(i64) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !fits(count()) {
            assert!(Instant::now() < deadline, "{}", count());
            tidy();
        }
    };
    tidy_until(&|count| count < 1600);
    assert!(count() >= 600, "{}", count());
    shop.run(&format!("UPDATE {log} SET at = 0"));
    tidy_until(&|count| count == 1);
}

/// Triggers that vanish while the follower checks on others are made again too.
#[tokio::test]
async fn triggers_that_go_while_the_schema_is_looked_at_are_noticed() {
    let shop = Fixture::new(ITEMS);
    shop.run("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; INSERT INTO items (id, v) VALUES (1, 0)");
    let database = shop.open("");
    let (feed, _following) = shop.follow(&database).await;
    let mut dice = Dice::new(1);
    for _ in 0..200 {
        feed.forget();
        // Another change of the schema makes it check, for some time from some time on.
        shop.run("CREATE TABLE other (x); DROP TABLE other");
        let wait_us = dice.below(4000);
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(wait_us) {
            std::hint::spin_loop();
        }
        shop.run("DROP TRIGGER \"evenkeel_update_items.id\"; UPDATE items SET v = v + 1");
        feed.until_lost().await;
    }
}

#[tokio::test]
async fn a_load_after_the_news_sees_the_change() {
    for (seed, mode) in races(6).flat_map(|seed| [(seed, "WAL"), (seed, "DELETE")]) {
        let shop = Fixture::new(ITEMS);
        shop.run(&format!("PRAGMA journal_mode = {mode}; PRAGMA synchronous = OFF"));
        (1..=RACERS).for_each(|id| shop.run(&format!("INSERT INTO items (id, v) VALUES ({id}, 0)")));
        let database = shop.open("timeout 60s");
        let (feed, _following) = shop.follow(&database).await;
        let writer = |_| {
            let connection = write(&shop.path(), "PRAGMA synchronous = OFF");
            let connection = Arc::new(Mutex::new(connection));
            move |id: u64| {
                let connection = connection.clone();
                async move {
                    let update = move || {
                        let connection = connection.lock().unwrap();
                        connection.execute("UPDATE items SET v = v + 1 WHERE id = ?1", [id as i64]).unwrap();
                    };
                    tokio::task::spawn_blocking(update).await.unwrap();
                }
            }
        };
        race(&database, &feed, seed, (0..2).map(writer).collect(), 60).await;
    }
}

#[tokio::test]
#[ignore = "prints figures"]
async fn figures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo.db");
    crate::demo::create(&path).unwrap();
    for (batch, at_once) in [(1, 1), (1, 4), (16, 4), (256, 4)] {
        let text = format!("products p:{{id}} sqlite:{}", path.display());
        let database = crate::open(&Spec::parse(text.split(' ')).unwrap()).unwrap();
        let began = Instant::now();
        let tasks: Vec<_> = (0..at_once)
            .map(|seed| {
                let database = database.clone();
                tokio::spawn(async move {
                    let (mut dice, mut rows) = (Dice::new(seed + 1), 0);
                    while began.elapsed() < Duration::from_secs(2) {
                        let mut asked: Vec<Id> = (0..batch)
                            .map(|_| (1 + dice.below(5000)).to_string().into_bytes().into())
                            .collect();
                        asked.sort();
                        asked.dedup();
                        rows += database.load(&asked).await.unwrap().len();
                    }
                    rows
                })
            })
            .collect();
        let mut rows = 0;
        for task in tasks {
            rows += task.await.unwrap();
        }
        println!(
            "batches of {batch}, {at_once} at once: {:.0} rows/s",
            rows as f64 / began.elapsed().as_secs_f64()
        );
    }
    for mode in ["WAL", "DELETE"] {
        let path = folder.path().join(mode);
        crate::demo::create(&path).unwrap();
        let writer = write(&path, &format!("PRAGMA journal_mode = {mode}; PRAGMA synchronous = OFF"));
        let text = format!("products p:{{id}} sqlite:{}", path.display());
        let database = crate::open(&Spec::parse(text.split(' ')).unwrap()).unwrap();
        let feed = Arc::new(Recorder::default());
        let _following = Following::start(&database, &feed);
        feed.until_opened().await;
        let mut lags = Vec::new();
        for nr in 0..500u64 {
            tokio::time::sleep(Duration::from_micros(300 + nr * 7)).await;
            writer.execute("UPDATE products SET stock = stock + 1 WHERE id = 5", []).unwrap();
            let began = Instant::now();
            feed.until("it", |_| feed.count(b"5") > nr).await;
            lags.push(began.elapsed().as_micros());
        }
        lags.sort();
        println!("{mode}: lag p50 {} µs, p99 {} µs", lags[250], lags[495]);
        let ticks = || {
            let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
            let words: Vec<_> = stat.split(' ').collect();
            words[13].parse::<u64>().unwrap() + words[14].parse::<u64>().unwrap()
        };
        let before = ticks();
        tokio::time::sleep(Duration::from_secs(5)).await;
        println!("{mode}: idle, {} % of a core", (ticks() - before) as f64 / 5.0);
    }
}
