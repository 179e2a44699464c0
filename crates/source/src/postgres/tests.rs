use super::*;
use crate::Since;
use crate::testing::{Told, *};
use rustix::process::Signal;
use support::postgres::{Server, shared};

/// A table for one test on a server, and a connection to change it with.
struct Shop {
    server: Arc<Server>,
    table: String,
    client: Arc<Client>,
}

async fn client(server: &Server) -> Client {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Shop {
    /// Makes the table with these columns.
    async fn new(server: Arc<Server>, table: &str, columns: &str) -> Shop {
        let client = Arc::new(client(&server).await);
        client.batch_execute(&format!("CREATE TABLE {table} ({columns})")).await.unwrap();
        Shop { server, table: table.into(), client }
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(&sql.replace('@', &self.table)).await.unwrap();
    }

    fn spec(&self, options: &str) -> Spec {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", self.server.port);
        let options = if options.contains("timeout") {
            options.into()
        } else {
            format!("timeout 60s connect-timeout 60s {options}")
        };
        let text = format!("{0} {0}:{{id}} {url} {options}", self.table);
        Spec::parse(text.split_whitespace()).unwrap()
    }

    fn open(&self, options: &str) -> Arc<dyn Database> {
        crate::open(&self.spec(options)).unwrap()
    }

    async fn refusal(&self, options: &str) -> String {
        match self.open(options).follow(&Recorder::default()).await {
            Failure::Refused(why) => why,
            other => panic!("{other}"),
        }
    }
}

async fn follow(database: &Arc<dyn Database>) -> (Arc<Recorder>, Following) {
    let feed = Arc::new(Recorder::default());
    let following = Following::start(database, &feed);
    feed.until_opened().await;
    (feed, following)
}

const ITEMS: &str =
    "id int PRIMARY KEY, v int DEFAULT 0, price numeric, name text, at timestamptz, tags text[], doc jsonb";

#[tokio::test]
async fn rows_are_what_the_database_makes_of_them() {
    let shop = Shop::new(shared(), "forms", ITEMS).await;
    shop.run("INSERT INTO @ VALUES (42, 1, 1.10, 'a \"b\" ü', '2024-02-03 04:05:06.789+00', '{a,b}', '{\"x\": [1]}')").await;
    shop.run("INSERT INTO @ (id) VALUES (7)").await;
    let rows = load(&shop.open(""), &["42", "7", "8"]).await;
    let json = r#"{"id":42,"v":1,"price":1.10,"name":"a \"b\" ü","at":"2024-02-03T04:05:06.789+00:00","tags":["a","b"],"doc":{"x": [1]}}"#;
    assert_eq!(rows[0], ("42".into(), json.into()));
    assert_eq!((rows.len(), rows[1].0.as_str()), (2, "7"));
    assert!(rows[1].1.contains("\"price\":null"), "{}", rows[1].1);
    let hash = shop.open("as hash columns name,price,tags,v modified at");
    assert_eq!(load(&hash, &["42"]).await[0].1, "name=a \"b\" ü price=1.10 tags=[\"a\",\"b\"] v=1");
    assert_eq!(load(&hash, &["7"]).await[0].1, "v=0");
    let rows = hash.load(&ids(&["42"])).await.unwrap();
    assert_eq!(rows[0].modified_ms, Some(1_706_933_106_789));
    shop.run("UPDATE @ SET at = 'infinity'").await;
    assert_eq!(hash.load(&ids(&["42"])).await.unwrap()[0].modified_ms, None);
    // The statement stays right when the table changes.
    let database = shop.open("");
    load(&database, &["42"]).await;
    shop.run("ALTER TABLE @ ADD COLUMN colour text DEFAULT 'red', DROP COLUMN doc").await;
    assert!(load(&database, &["42"]).await[0].1.ends_with(r#""colour":"red"}"#));
}

#[tokio::test]
async fn an_id_names_a_row_by_one_spelling() {
    let shop =
        Shop::new(shared(), "spelt", "id bigint PRIMARY KEY, u uuid UNIQUE NOT NULL, t text UNIQUE NOT NULL")
            .await;
    let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
    shop.run(&format!("INSERT INTO @ VALUES (42, '{uuid}', 'Abc')")).await;
    for (options, right, wrong) in [
        ("", "42", ["042", "+42", " 42", "42.0"]),
        (
            "id u",
            uuid,
            ["0F8FAD5B-D9CB-469F-A165-70867728950E", "0f8fad5bd9cb469fa16570867728950e", "{x}", "42"],
        ),
        ("id t", "Abc", ["abc", "Abc ", "ABC", "a\0bc"]),
    ] {
        let database = shop.open(options);
        let rows = load(&database, &[&[right], &wrong[..]].concat()).await;
        assert_eq!((rows.len(), rows[0].0.as_str()), (1, right));
        assert!(database.accepts(right.as_bytes()));
        if options != "id t" {
            assert!(wrong.iter().all(|id| !database.accepts(id.as_bytes())));
        }
    }
    shop.run("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        .await;
    shop.run("ALTER TABLE @ ALTER COLUMN t TYPE text COLLATE loose").await;
    let loose = shop.open("id t");
    assert_eq!(load(&loose, &["abc"]).await, []);
    assert_eq!(load(&loose, &["Abc"]).await.len(), 1);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let shop =
        Shop::new(shared(), "lacking", "id int PRIMARY KEY, t text, r real UNIQUE, n int UNIQUE NOT NULL")
            .await;
    shop.run(
        "CREATE VIEW lacking_view AS SELECT * FROM @; CREATE UNLOGGED TABLE lacking_log (id int PRIMARY KEY)",
    )
    .await;
    for (options, text) in [
        ("table nothing", "there is no table 'nothing'"),
        ("table lacking_view", "is no table"),
        ("columns id,size", "has no column 'size' (it has id, t, r, n)"),
        ("id t", "has no unique index: CREATE UNIQUE INDEX ON \"public\".\"lacking\" (\"t\")"),
        ("id r", "ids are integers, text, varchar or uuid"),
        ("id-type text", "leave that out"),
        ("modified t", "tells no time"),
    ] {
        let why = shop.refusal(options).await;
        assert!(why.contains(text), "{options}: {why}");
        let loading = shop.open(options).load(&ids(&["1"])).await;
        assert!(matches!(&loading, Err(Failure::Refused(why)) if why.contains(text)), "{loading:?}");
    }
    assert!(shop.refusal("table lacking_log").await.contains("is not logged"));
    assert!(shop.refusal("id n").await.contains("REPLICA IDENTITY USING INDEX"));
    shop.run(
        "CREATE PUBLICATION lacking_some FOR TABLE @ WITH (publish = 'insert'); \
              CREATE PUBLICATION lacking_rows FOR TABLE @ WHERE (id > 5)",
    )
    .await;
    assert!(shop.refusal("publication lacking_some").await.contains("SET (publish = "));
    assert!(shop.refusal("publication lacking_rows").await.contains("leaves out rows"));
    for (url, text) in [
        ("postgres://a@h/d?sslmode=allow", "sslmode 'allow' is none of"),
        ("postgres://a@h1,h2/d", "several hosts"),
        // Its name may be part of a password, so it is not shown.
        ("postgres://a@h/d?what=1", "unknown option `***`"),
    ] {
        let why = crate::open(&Spec::parse(["items", "item:{id}", url]).unwrap()).err().unwrap();
        assert!(why.contains(text), "{why}");
    }
}

#[tokio::test]
async fn rights_and_passwords_are_asked_for() {
    let shop = Shop::new(shared(), "guarded", "id int PRIMARY KEY, v int").await;
    shop.run(
        "INSERT INTO @ VALUES (1, 1); CREATE ROLE app LOGIN PASSWORD 'secret'; GRANT SELECT ON @ TO app",
    )
    .await;
    shop.run("SET password_encryption = md5; CREATE ROLE old LOGIN REPLICATION SUPERUSER PASSWORD 'older'; RESET password_encryption").await;
    shop.run("CREATE ROLE plain LOGIN REPLICATION SUPERUSER PASSWORD 'clear'").await;
    let open = |user: &str, options: &str| {
        let url = format!("postgres://{user}@127.0.0.1:{}/postgres", shop.server.port);
        let text = format!("guarded g:{{id}} {url} connect-timeout 60s timeout 60s {options}");
        crate::open(&Spec::parse(text.split_whitespace()).unwrap()).unwrap()
    };
    for user in ["app:wrong", "app", "old:wrong", "plain:wrong"] {
        let failure = open(user, "").follow(&Recorder::default()).await;
        assert!(matches!(failure, Failure::Refused(_)), "{user}: {failure}");
        assert!(matches!(open(user, "").load(&ids(&["1"])).await, Err(Failure::Refused(_))), "{user}");
    }
    let refusal = async || match open("app:secret", "").follow(&Recorder::default()).await {
        Failure::Refused(why) => why,
        other => panic!("{other}"),
    };
    let why = refusal().await;
    assert!(why.contains("ALTER ROLE \"app\" REPLICATION"), "{why}");
    shop.run("ALTER ROLE app REPLICATION").await;
    let why = refusal().await;
    assert!(
        why.contains("run: CREATE PUBLICATION \"evenkeel_guarded\" FOR TABLE \"public\".\"guarded\""),
        "{why}"
    );
    shop.run("CREATE PUBLICATION evenkeel_guarded FOR TABLE @").await;
    for user in ["app:secret", "old:older", "plain:clear"] {
        let database = open(user, "");
        let (feed, _following) = follow(&database).await;
        shop.run("UPDATE @ SET v = v + 1").await;
        feed.until_changed(&["1"]).await;
        assert_eq!(load(&database, &["1"]).await.len(), 1);
    }
    shop.run("REVOKE SELECT ON @ FROM app").await;
    assert!(matches!(open("app:secret", "").load(&ids(&["1"])).await, Err(Failure::Refused(_))));
}

#[tokio::test]
async fn every_change_is_told() {
    let shop = Shop::new(shared(), "told", ITEMS).await;
    shop.run("INSERT INTO @ (id) SELECT generate_series(1, 3); CREATE TABLE told_other (id int PRIMARY KEY)")
        .await;
    let database = shop.open("");
    let (feed, _following) = follow(&database).await;
    assert_eq!(feed.all(), [Told::Opened(Since::Unknown)]);
    shop.run("INSERT INTO @ (id) VALUES (9)").await;
    feed.until_changed(&["9"]).await;
    shop.run("UPDATE @ SET v = 5 WHERE id = 1").await;
    feed.until_changed(&["1"]).await;
    assert!(load(&database, &["1"]).await[0].1.contains("\"v\":5"));
    shop.run("UPDATE @ SET id = 10 WHERE id = 2").await;
    feed.until_changed(&["2", "10"]).await;
    feed.forget();
    shop.run("INSERT INTO told_other VALUES (77); BEGIN; UPDATE @ SET v = 6; ROLLBACK").await;
    shop.run("DELETE FROM @").await;
    feed.until_changed(&["1", "3", "9", "10"]).await;
    assert_eq!(feed.all().len(), 4);
    assert_eq!(load(&database, &["1", "3", "9", "10"]).await, []);
    feed.until_heartbeat().await;
    assert!(feed.times().iter().all(|ms| *ms > 1_700_000_000_000));
    // More changes than are reported at once, and more ids than are remembered of a transaction.
    shop.run("INSERT INTO @ (id) SELECT generate_series(101, 3100)").await;
    feed.until("3000 changes", |told| told.len() == 3004).await;
    feed.forget();
    shop.run("TRUNCATE TABLE @").await;
    feed.until_lost().await;
    assert_eq!(load(&database, &["101"]).await, []);
    feed.forget();
    shop.run("INSERT INTO @ (id) VALUES (5)").await;
    feed.until_changed(&["5"]).await;
}

#[tokio::test]
async fn another_table_is_not_the_same() {
    let shop = Shop::new(shared(), "altered", "id int PRIMARY KEY").await;
    shop.run("INSERT INTO @ VALUES (1)").await;
    let database = shop.open("");
    let (feed, following) = follow(&database).await;
    for ddl in [
        "ALTER TABLE @ ADD COLUMN v int DEFAULT 0",
        "DROP TABLE @; CREATE TABLE @ (id int PRIMARY KEY); INSERT INTO @ VALUES (1)",
        "DROP PUBLICATION evenkeel_altered; CREATE PUBLICATION evenkeel_altered",
    ] {
        let following = Following::start(&database, &feed);
        feed.forget();
        feed.until_opened().await;
        shop.run(ddl).await;
        let failure = following.failure().await;
        assert!(matches!(failure, Failure::Lost(_) | Failure::Refused(_)), "{ddl}: {failure}");
    }
    drop(following);
    let _again = Following::start(&database, &feed);
    feed.forget();
    feed.until_opened().await;
    shop.run("UPDATE @ SET id = 2").await;
    feed.until_changed(&["1", "2"]).await;
    assert_eq!(load(&database, &["2"]).await.len(), 1);
}

/// Some changes take a table out of a publication FOR ALL TABLES, or change which rows are visible, without a
/// message in the stream.
#[tokio::test]
async fn a_table_that_is_not_followed_any_more_ends_what_is_cached() {
    let shop = Shop::new(shared(), "silent", "id int PRIMARY KEY, other int NOT NULL UNIQUE").await;
    shop.run(
        "INSERT INTO @ VALUES (1, 1); CREATE PUBLICATION of_all FOR ALL TABLES WITH (publish_via_partition_root = true); \
         CREATE SCHEMA elsewhere",
    )
    .await;
    let database = shop.open("publication of_all");
    let (feed, mut following) = follow(&database).await;
    for (ddl, undo, refused) in [
        ("ALTER TABLE @ SET UNLOGGED", "ALTER TABLE @ SET LOGGED", "is not logged"),
        (
            "ALTER TABLE @ SET SCHEMA elsewhere",
            "ALTER TABLE elsewhere.@ SET SCHEMA public",
            "there is no table",
        ),
        ("ALTER TABLE @ RENAME TO silenced", "ALTER TABLE silenced RENAME TO @", "there is no table"),
        (
            "ALTER TABLE @ REPLICA IDENTITY USING INDEX silent_other_key",
            "ALTER TABLE @ REPLICA IDENTITY DEFAULT",
            "do not name column 'id'",
        ),
        ("ALTER TABLE @ ENABLE ROW LEVEL SECURITY", "ALTER TABLE @ DISABLE ROW LEVEL SECURITY", ""),
    ] {
        feed.forget();
        shop.run(ddl).await;
        let why = following.failure().await;
        assert!(matches!(why, Failure::Lost(_)), "{ddl}: {why}");
        if !refused.is_empty() {
            let why = shop.refusal("publication of_all").await;
            assert!(why.contains(refused), "{ddl}: {why}");
        }
        shop.run(undo).await;
        following = Following::start(&database, &feed);
        feed.until_opened().await;
    }
    shop.run("DROP PUBLICATION of_all; DROP SCHEMA elsewhere").await;
}

/// Within one transaction no heartbeat can see that the replica identity was another one.
#[tokio::test]
async fn a_replica_identity_that_changes_and_changes_back_ends_what_is_cached() {
    let shop = Shop::new(shared(), "identity", "id int PRIMARY KEY, other int NOT NULL UNIQUE").await;
    shop.run("INSERT INTO @ SELECT n, n FROM generate_series(1, 9) n").await;
    let database = shop.open("");
    let (feed, mut following) = follow(&database).await;
    for change in ["UPDATE @ SET id = id + 100 WHERE other = 1", "DELETE FROM @ WHERE other = 2"] {
        feed.forget();
        let other = "ALTER TABLE @ REPLICA IDENTITY USING INDEX identity_other_key";
        shop.run(&format!("BEGIN; {other}; {change}; ALTER TABLE @ REPLICA IDENTITY DEFAULT; COMMIT")).await;
        let why = following.failure().await;
        assert!(matches!(&why, Failure::Lost(why) if why.contains("replica identity")), "{change}: {why}");
        following = Following::start(&database, &feed);
        feed.until_opened().await;
    }
    // One that names the id too is another one, and all the same followed.
    feed.forget();
    shop.run("UPDATE @ SET id = 103 WHERE id = 3").await;
    feed.until_changed(&["3", "103"]).await;
    shop.run("BEGIN; ALTER TABLE @ REPLICA IDENTITY FULL; UPDATE @ SET id = 104 WHERE id = 4; ALTER TABLE @ REPLICA IDENTITY DEFAULT; COMMIT")
        .await;
    feed.until_changed(&["4", "104"]).await;
}

/// The log has what the partition's own replica identity names.
#[tokio::test]
async fn a_partition_whose_replica_identity_is_another_is_noticed() {
    let shop = Shop::new(shared(), "leaf", "id int PRIMARY KEY, other int NOT NULL").await;
    shop.run(
        "DROP TABLE @; CREATE TABLE @ (id int PRIMARY KEY, other int NOT NULL) PARTITION BY RANGE (id); \
         CREATE TABLE leaf_one PARTITION OF @ FOR VALUES FROM (0) TO (1000); \
         CREATE UNIQUE INDEX leaf_other ON leaf_one (other); INSERT INTO @ VALUES (1, 1), (2, 2)",
    )
    .await;
    let database = shop.open("");
    let (feed, following) = follow(&database).await;
    let other = "ALTER TABLE leaf_one REPLICA IDENTITY USING INDEX leaf_other";
    let back = "ALTER TABLE leaf_one REPLICA IDENTITY DEFAULT";
    shop.run(&format!("BEGIN; {other}; UPDATE @ SET id = 101 WHERE id = 1; {back}; COMMIT")).await;
    let why = following.failure().await;
    assert!(matches!(&why, Failure::Lost(why) if why.contains("replica identity")), "{why}");
    let following = Following::start(&database, &feed);
    feed.forget();
    feed.until_opened().await;
    shop.run(other).await;
    assert!(matches!(following.failure().await, Failure::Lost(_)));
    assert!(shop.refusal("").await.contains("partition leaf_one"));
    shop.run(back).await;
    let _again = Following::start(&database, &feed);
    feed.forget();
    feed.until_opened().await;
    shop.run("UPDATE @ SET id = 102 WHERE id = 2").await;
    feed.until_changed(&["2", "102"]).await;
}

/// A partition that is not logged, or belongs to another server, reports nothing of its rows.
#[tokio::test]
async fn a_partition_that_is_not_logged_is_named() {
    let shop = Shop::new(shared(), "halflogged", "id int PRIMARY KEY) PARTITION BY RANGE (id").await;
    shop.run("CREATE UNLOGGED TABLE halflogged_1 PARTITION OF @ FOR VALUES FROM (0) TO (100)").await;
    let why = shop.refusal("").await;
    assert!(why.contains("partition halflogged_1 of ") && why.contains("not logged"), "{why}");
    shop.run("ALTER TABLE halflogged_1 SET LOGGED").await;
    let database = shop.open("");
    let (feed, following) = follow(&database).await;
    feed.forget();
    shop.run("ALTER TABLE halflogged_1 SET UNLOGGED").await;
    let why = following.failure().await;
    assert!(matches!(why, Failure::Lost(_)), "{why}");
}

#[tokio::test]
async fn partitions_are_told_as_their_table() {
    let shop =
        Shop::new(shared(), "parted", "id int PRIMARY KEY, v int DEFAULT 0) PARTITION BY RANGE (id").await;
    shop.run("CREATE TABLE parted_1 PARTITION OF @ FOR VALUES FROM (0) TO (100); INSERT INTO @ VALUES (1)")
        .await;
    let database = shop.open("");
    let (feed, _following) = follow(&database).await;
    shop.run("UPDATE @ SET v = 1").await;
    feed.until_changed(&["1"]).await;
    assert_eq!(load(&database, &["1"]).await[0].1, r#"{"id":1,"v":1}"#);
}

/// Changes to partitions as such are not in the stream; the next heartbeat reports that all rows may differ.
#[tokio::test]
async fn partitions_that_come_go_or_are_emptied_end_what_is_cached() {
    let shop =
        Shop::new(shared(), "parts", "id int PRIMARY KEY, v int DEFAULT 0) PARTITION BY RANGE (id").await;
    shop.run(
        "CREATE TABLE parts_1 PARTITION OF @ FOR VALUES FROM (0) TO (100); \
         CREATE TABLE parts_2 PARTITION OF @ FOR VALUES FROM (100) TO (200); \
         CREATE TABLE parts_3 (id int PRIMARY KEY, v int); INSERT INTO parts_3 VALUES (250, 1)",
    )
    .await;
    let database = shop.open("");
    let (feed, mut following) = follow(&database).await;
    for change in [
        "TRUNCATE parts_1",
        "ALTER TABLE @ DETACH PARTITION parts_2",
        "ALTER TABLE @ ATTACH PARTITION parts_3 FOR VALUES FROM (200) TO (300)",
        "DROP TABLE parts_1",
    ] {
        feed.forget();
        shop.run(change).await;
        let why = following.failure().await;
        assert!(matches!(why, Failure::Lost(_)), "{change}: {why}");
        following = Following::start(&database, &feed);
        feed.until_opened().await;
    }
    assert_eq!(load(&database, &["250"]).await.len(), 1);
}

/// A publication of whole schemas falls silent when it loses the table's schema.
#[tokio::test]
async fn a_publication_that_loses_its_schema_is_noticed() {
    let shop = Shop::new(shared(), "inschema", "id int PRIMARY KEY").await;
    let version: i32 =
        shop.client.query_one("SELECT current_setting('server_version_num')::int", &[]).await.unwrap().get(0);
    if version < 150_000 {
        return;
    }
    shop.run("CREATE PUBLICATION whole_schemas FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)")
        .await;
    let database = shop.open("publication whole_schemas");
    let (feed, following) = follow(&database).await;
    shop.run("INSERT INTO @ VALUES (1)").await;
    feed.until_changed(&["1"]).await;
    feed.forget();
    shop.run("ALTER PUBLICATION whole_schemas DROP TABLES IN SCHEMA public").await;
    let why = following.failure().await;
    assert!(matches!(why, Failure::Lost(_)), "{why}");
    shop.run("DROP PUBLICATION whole_schemas").await;
}

#[tokio::test]
async fn a_named_slot_is_resumed() {
    let shop = Shop::new(shared(), "resumed", "id int PRIMARY KEY").await;
    let database = shop.open("slot resumed_slot");
    let (feed, following) = follow(&database).await;
    assert_eq!(feed.all(), [Told::Opened(Since::Unknown)]);
    shop.run("INSERT INTO @ VALUES (1)").await;
    feed.until_changed(&["1"]).await;
    let why = shop.refusal("slot resumed_slot").await;
    assert!(why.contains("each server needs one of its own"), "{why}");
    let end = async |following: Following| {
        drop(following);
        until_free(&shop, "resumed_slot").await;
        feed.forget();
    };
    end(following).await;
    shop.run("INSERT INTO @ VALUES (2)").await;
    let following = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Resumed);
    feed.until_changed(&["2"]).await;
    assert!(!feed.all().contains(&Told::Changed("1".into())));
    end(following).await;
    // Another process keeps nothing, so it need not hear of earlier changes.
    shop.run("INSERT INTO @ VALUES (3)").await;
    let other = shop.open("slot resumed_slot");
    let (other_feed, following) = follow(&other).await;
    shop.run("INSERT INTO @ VALUES (4)").await;
    other_feed.until_changed(&["4"]).await;
    assert_eq!(other_feed.all(), [Told::Opened(Since::Unknown), Told::Changed("4".into())]);
    end(following).await;
    // A slot that was dropped, or made anew, has missed something.
    shop.run("SELECT pg_drop_replication_slot('resumed_slot')").await;
    shop.run("INSERT INTO @ VALUES (5)").await;
    shop.run("SELECT pg_create_logical_replication_slot('resumed_slot', 'pgoutput')").await;
    let following = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Unknown);
    end(following).await;
    shop.run("SELECT pg_drop_replication_slot('resumed_slot')").await;
    let following = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Unknown);
    end(following).await;
    shop.run("SELECT pg_drop_replication_slot('resumed_slot')").await;
}

#[tokio::test]
async fn a_slot_that_was_invalidated_is_made_anew() {
    let shop = Shop::new(Arc::new(Server::start()), "late", "id int PRIMARY KEY").await;
    let database = shop.open("slot late_slot");
    let (feed, following) = follow(&database).await;
    shop.run("INSERT INTO @ VALUES (1)").await;
    feed.until_changed(&["1"]).await;
    drop(following);
    shop.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'").await;
    shop.run("SELECT pg_reload_conf()").await;
    let lost = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = 'late_slot'";
    while !shop.client.query_one(lost, &[]).await.unwrap().get::<_, bool>(0) {
        shop.run("INSERT INTO @ SELECT coalesce(max(id), 0) + 1 FROM @").await;
        shop.run("SELECT pg_switch_wal()").await;
        shop.run("CHECKPOINT").await;
    }
    feed.forget();
    let _following = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Unknown);
    shop.run("UPDATE @ SET id = -1 WHERE id = 1").await;
    feed.until_changed(&["1", "-1"]).await;
}

/// Any answer under the address leads to an error, and not to a panic.
#[tokio::test]
async fn what_speaks_another_language_is_no_database() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://a:b@{}/d", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for seed in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut dice = Dice::new(seed);
            let mut answer = Vec::new();
            for _ in 0..dice.below(20) {
                let body: Vec<u8> = (0..dice.below(40)).map(|_| dice.below(256) as u8).collect();
                answer.push(b"RRRRRSKZDWdEvNAC"[dice.below(16) as usize]);
                answer.extend((body.len() as u32 + 4).to_be_bytes());
                let code = [0, 3, 5, 10, 11, 12][dice.below(6) as usize];
                let at = answer.len();
                answer.extend(body);
                if dice.below(4) > 0 && answer.len() >= at + 4 {
                    answer[at..at + 4].copy_from_slice(&[0, 0, 0, code]);
                }
            }
            answer.extend((0..dice.below(20)).map(|_| dice.below(256) as u8));
            let _ = stream.read(&mut [0; 1000]).await;
            let _ = stream.write_all(&answer).await;
        }
    });
    let options = ["x", "x:{id}", &url, "timeout", "10s", "connect-timeout", "10s"];
    let driver = Postgres::new(&Spec::parse(options).unwrap()).unwrap();
    for _ in 0..500 {
        if let Ok(mut link) = link::Link::connect(&driver.config, &driver.tls).await
            && link.query("IDENTIFY_SYSTEM").await.is_ok()
            && link.stream("START").await.is_ok()
        {
            while link.next().await.is_ok() {}
        }
        assert!(driver.load(&ids(&["1"])).await.is_err());
    }
}

/// A commit that waits for a synchronous standby is decoded and reported, but no other session sees it.
#[tokio::test]
async fn what_was_told_is_loaded_although_it_is_not_visible_yet() {
    let shop = Shop::new(Arc::new(Server::start()), "early", "id int PRIMARY KEY, v int").await;
    shop.run("INSERT INTO @ VALUES (1, 1), (2, 1)").await;
    let database = shop.open("");
    let (feed, _following) = follow(&database).await;
    shop.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    shop.run("SELECT pg_reload_conf()").await;
    let waits = |sql: String| {
        let client = shop.client.clone();
        tokio::spawn(async move { client.batch_execute(&sql).await.unwrap() })
    };
    let other = client(&shop.server).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    // The setting reaches the sessions a little later.
    let mut v = 1;
    let writing = 'until_it_waits: loop {
        v += 1;
        let writing = waits(format!("UPDATE early SET v = {v} WHERE id = 1"));
        while !writing.is_finished() {
            if other.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                break 'until_it_waits writing;
            }
        }
    };
    feed.until("the commit that waits", |_| feed.count(b"1") == v - 1).await;
    // Another row is not concerned.
    assert!(load(&database, &["2"]).await[0].1.contains("\"v\":1"));
    let (of_load, told) = (database.clone(), format!("\"v\":{v}"));
    let loading = tokio::spawn(async move { load(&of_load, &["1"]).await.remove(0).1 });
    let impatient = shop.open("feed off");
    assert!(!load(&impatient, &["1"]).await[0].1.contains(&told), "no session sees it yet");
    assert!(!loading.is_finished());
    other.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    other.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    writing.await.unwrap();
    assert!(loading.await.unwrap().contains(&told));
}

/// The same with a transaction that is merely claimed to have been reported.
#[tokio::test]
async fn a_transaction_that_stays_invisible_makes_a_load_slow() {
    let shop = Shop::new(Arc::new(Server::start()), "unseen", "id int PRIMARY KEY, v int").await;
    shop.run("INSERT INTO @ VALUES (1, 1), (2, 1)").await;
    let driver = Arc::new(Postgres::new(&shop.spec("timeout 500ms connect-timeout 60s")).unwrap());
    let database: Arc<dyn Database> = driver.clone();
    load_at_last(&database, &["1"]).await;
    shop.run("BEGIN; UPDATE @ SET v = 2 WHERE id = 1").await;
    let xid: i64 = shop.client.query_one("SELECT txid_current()", &[]).await.unwrap().get(0);
    driver.told.add(xid as u32, &[crate::Change { id: (*b"1").into(), committed_ms: None }]);
    assert_eq!(driver.load(&ids(&["1"])).await, Err(Failure::Slow));
    assert_eq!(load_at_last(&database, &["2"]).await.len(), 1);
    shop.run("COMMIT").await;
    assert!(load_at_last(&database, &["1"]).await[0].1.contains("\"v\":2"));
    assert!(driver.told.now().is_empty());
}

/// A transaction in progress when the feed opened, and not reported, may have committed earlier.
#[tokio::test]
async fn what_was_in_progress_at_the_beginning_is_settled() {
    let shop = Shop::new(Arc::new(Server::start()), "begun", "id int PRIMARY KEY, v int").await;
    shop.run("CREATE TABLE begun_other (id int)").await;
    let database = shop.open("slot begun_slot");
    drop(follow(&database).await);
    until_free(&shop, "begun_slot").await;
    shop.run("BEGIN; INSERT INTO begun_other VALUES (1)").await;
    let other = shop.open("slot begun_slot");
    let (feed, _following) = follow(&other).await;
    assert_eq!(feed.all(), [Told::Opened(Since::Unknown)]);
    shop.run("ROLLBACK").await;
    feed.until_lost().await;
}

/// Waits until the slot has no follower.
async fn until_free(shop: &Shop, slot: &str) {
    let free = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}' AND active");
    while shop.client.query_one(&free, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Ends the connection of the feed as the database sees it, and resumes it.
async fn cut(
    shop: &Shop,
    slot: &str,
    database: &Arc<dyn Database>,
    feed: &Arc<Recorder>,
    following: Following,
) -> Following {
    shop.run(&format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    ))
    .await;
    assert!(matches!(following.failure().await, Failure::Down(_)));
    until_free(shop, slot).await;
    feed.forget();
    let following = Following::start(database, feed);
    feed.until_opened().await;
    following
}

/// Transactions that are still unsettled stay so after a cut. They belong to the last opening, even if an
/// earlier one had as many.
#[tokio::test]
async fn what_was_in_progress_at_the_beginning_is_settled_after_a_cut() {
    let shop = Shop::new(Arc::new(Server::start()), "cutoff", "id int PRIMARY KEY, v int").await;
    shop.run("CREATE TABLE cutoff_other (id int); INSERT INTO @ VALUES (1, 0)").await;
    let (database, slot) = (shop.open("slot cutoff_slot"), "cutoff_slot");
    let (feed, mut following) = follow(&database).await;
    let mut open: Option<Client> = None;
    for column in ["a", "b"] {
        // An error that ends the feed for good makes it begin at the present. The earlier transactions in
        // progress end unseen.
        shop.run(&format!("ALTER TABLE @ ADD COLUMN {column} int")).await;
        assert!(matches!(following.failure().await, Failure::Lost(_)));
        until_free(&shop, slot).await;
        if let Some(last) = open.take() {
            last.batch_execute("ROLLBACK").await.unwrap();
        }
        let other = client(&shop.server).await;
        other.batch_execute("BEGIN; INSERT INTO cutoff_other VALUES (1)").await.unwrap();
        open = Some(other);
        feed.forget();
        following = Following::start(&database, &feed);
        assert_eq!(feed.until_opened().await, Since::Unknown);
        feed.until_heartbeat().await;
        following = cut(&shop, slot, &database, &feed, following).await;
        feed.until_heartbeat().await;
        assert_eq!(feed.all(), [Told::Opened(Since::Resumed)], "{column}");
    }
    open.unwrap().batch_execute("ROLLBACK").await.unwrap();
    feed.until_lost().await;
}

/// Commits while the feed is cut are reported when it resumes, and then nothing is unsettled.
#[tokio::test]
async fn what_was_in_progress_when_the_feed_was_cut_is_told() {
    let shop = Shop::new(Arc::new(Server::start()), "across", "id int PRIMARY KEY, v int").await;
    shop.run("INSERT INTO @ VALUES (1, 0), (2, 0)").await;
    let (database, slot) = (shop.open("slot across_slot"), "across_slot");
    drop(follow(&database).await);
    until_free(&shop, slot).await;
    let (early, late) = (client(&shop.server).await, client(&shop.server).await);
    early.batch_execute("BEGIN; UPDATE across SET v = 1 WHERE id = 1").await.unwrap();
    let database = shop.open("slot across_slot");
    let (feed, following) = follow(&database).await;
    feed.until_heartbeat().await;
    late.batch_execute("BEGIN; UPDATE across SET v = 1 WHERE id = 2").await.unwrap();
    drop(following);
    until_free(&shop, slot).await;
    for open in [early, late] {
        open.batch_execute("COMMIT").await.unwrap();
    }
    feed.forget();
    let _following = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Resumed);
    feed.until_changed(&["1", "2"]).await;
    feed.until_heartbeat().await;
    assert!(!feed.all().contains(&Told::Lost), "{:?}", feed.all());
    assert!(load(&database, &["1", "2"]).await.iter().all(|(_, row)| row.contains("\"v\":1")));
}

/// While it stops, the database waits for answers of its followers.
async fn stop(server: &Arc<Server>, signal: Signal) {
    let server = server.clone();
    tokio::task::spawn_blocking(move || server.stop(signal)).await.unwrap();
}

#[tokio::test]
async fn a_database_that_dies_is_down_until_it_is_back() {
    let shop = Shop::new(Arc::new(Server::start()), "mortal", "id int PRIMARY KEY, v int").await;
    shop.run("INSERT INTO @ VALUES (1, 1)").await;
    for signal in [Signal::INT, Signal::QUIT] {
        let database = shop.open("pool 1");
        let (feed, following) = follow(&database).await;
        assert_eq!(load(&database, &["1"]).await.len(), 1);
        stop(&shop.server, signal).await;
        let failure = following.failure().await;
        assert!(matches!(failure, Failure::Down(_)), "{failure}");
        let loaded = database.load(&ids(&["1"])).await;
        assert!(matches!(loaded, Err(Failure::Down(_))), "{loaded:?}");
        assert!(matches!(database.follow(&Recorder::default()).await, Failure::Down(_)));
        shop.server.run();
        assert_eq!(load(&database, &["1"]).await.len(), 1);
        feed.forget();
        let _again = Following::start(&database, &feed);
        assert_eq!(feed.until_opened().await, Since::Unknown);
        let writer = client(&shop.server).await;
        writer.batch_execute("UPDATE mortal SET v = v + 1").await.unwrap();
        feed.until_changed(&["1"]).await;
        // A connection that lay idle through a restart is made anew without an error.
        stop(&shop.server, Signal::INT).await;
        shop.server.run();
        assert_eq!(load(&database, &["1"]).await.len(), 1);
    }
}

/// The messages that a broken line swallows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Swallows {
    Everything,
    /// The database's messages on replication connections; all others pass.
    Feeds,
}

/// Passes bytes on to a port. Bytes over connections made before the count was raised are swallowed.
async fn proxy(to: u16, swallows: Swallows) -> (u16, Arc<std::sync::atomic::AtomicUsize>) {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, broken) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = broken.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
            let (client, server) = (client.into_split(), server.into_split());
            let born = count.load(Ordering::SeqCst);
            let is_feed = Arc::new(AtomicBool::new(false));
            for (mut from, mut into, asks) in [(client.0, server.1, true), (server.0, client.1, false)] {
                let (count, is_feed) = (count.clone(), is_feed.clone());
                tokio::spawn(async move {
                    let mut bytes = vec![0; 16 << 10];
                    while let Ok(n) = from.read(&mut bytes).await {
                        if n == 0 {
                            return;
                        }
                        if asks && bytes[..n].windows(12).any(|some| some == b"replication\0") {
                            is_feed.store(true, Ordering::SeqCst);
                        }
                        let passes = swallows == Swallows::Feeds && (asks || !is_feed.load(Ordering::SeqCst));
                        let whole = passes || count.load(Ordering::SeqCst) == born;
                        if whole && into.write_all(&bytes[..n]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    (port, broken)
}

/// A line that swallows everything: its connection is given up after one load, not when the system notices.
#[tokio::test]
async fn a_connection_that_swallows_everything_is_given_up() {
    let shop = Shop::new(shared(), "swallowed", "id int PRIMARY KEY").await;
    shop.run("INSERT INTO @ VALUES (1)").await;
    let (port, broken) = proxy(shop.server.port, Swallows::Everything).await;
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    let text = format!("{0} {0}:{{id}} {url} timeout 500ms pool 1", shop.table);
    let database = crate::open(&Spec::parse(text.split_whitespace()).unwrap()).unwrap();
    assert_eq!(load_at_last(&database, &["1"]).await.len(), 1);
    broken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(database.load(&ids(&["1"])).await, Err(Failure::Slow));
    assert_eq!(load(&database, &["1"]).await.len(), 1);
}

/// The database goes on and hears everything; only its feed's messages do not arrive.
#[tokio::test]
async fn a_feed_that_says_nothing_is_given_up() {
    let shop = Shop::new(shared(), "mute", "id int PRIMARY KEY, v int").await;
    shop.run("INSERT INTO @ VALUES (1, 0)").await;
    let (port, broken) = proxy(shop.server.port, Swallows::Feeds).await;
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    let text = format!("{0} {0}:{{id}} {url} timeout 60s connect-timeout 2s", shop.table);
    let driver = Arc::new(Postgres::new(&Spec::parse(text.split_whitespace()).unwrap()).unwrap());
    let database: Arc<dyn Database> = driver.clone();
    let (feed, following) = follow(&database).await;
    feed.until_heartbeat().await;
    broken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    shop.run("UPDATE @ SET v = 1").await;
    assert_eq!(following.failure().await, Failure::Down("the change feed is silent".into()));
    assert!(!feed.all().contains(&Told::Changed("1".into())));
    assert_eq!(driver.place.lock().unwrap().silences, 1);
    feed.forget();
    let _again = Following::start(&database, &feed);
    assert_eq!(feed.until_opened().await, Since::Unknown);
    feed.until_heartbeat().await;
    assert_eq!(driver.place.lock().unwrap().silences, 0, "it was in vain no more");
    shop.run("UPDATE @ SET v = 2").await;
    feed.until_changed(&["1"]).await;
}

#[tokio::test]
async fn a_database_that_is_slow_or_silent_is_not_waited_for() {
    let shop = Shop::new(Arc::new(Server::start()), "slow", "id int PRIMARY KEY, v int").await;
    shop.run("INSERT INTO @ VALUES (1, 1)").await;
    let database = shop.open("timeout 500ms connect-timeout 3s pool 1");
    let (_feed, following) = follow(&database).await;
    assert_eq!(load_at_last(&database, &["1"]).await.len(), 1);
    shop.run("BEGIN; LOCK TABLE @").await;
    assert_eq!(database.load(&ids(&["1"])).await, Err(Failure::Slow));
    shop.run("ROLLBACK").await;
    assert_eq!(load_at_last(&database, &["1"]).await.len(), 1);
    shop.server.signal(Signal::STOP);
    assert_eq!(database.load(&ids(&["1"])).await, Err(Failure::Slow));
    let failure = following.failure().await;
    shop.server.signal(Signal::CONT);
    assert!(matches!(failure, Failure::Down(_)), "{failure}");
    let patient = shop.open("");
    assert_eq!(load(&patient, &["1"]).await.len(), 1);
}

#[tokio::test]
async fn without_logical_replication_only_loads_work() {
    let shop = Shop::new(Arc::new(Server::start()), "physical", "id int PRIMARY KEY").await;
    shop.server.stop(Signal::INT);
    shop.server.run_with(&["wal_level=replica"]);
    let why = shop.refusal("").await;
    assert!(why.contains("ALTER SYSTEM SET wal_level = logical"), "{why}");
    assert_eq!(load(&shop.open("feed off"), &["1"]).await, []);
}

#[tokio::test]
async fn a_load_after_the_news_sees_the_change() {
    let server = shared();
    for seed in races(4) {
        let shop = Shop::new(server.clone(), &format!("race{seed}"), "id int PRIMARY KEY, v int").await;
        shop.run(&format!("INSERT INTO @ SELECT i, 0 FROM generate_series(1, {RACERS}) i")).await;
        let database = shop.open("pool 3");
        let (feed, _following) = follow(&database).await;
        let mut writers = Vec::new();
        for nr in 0..3 {
            let client = Arc::new(client(&server).await);
            if nr == 2 {
                client.batch_execute("SET synchronous_commit = off").await.unwrap();
            }
            let sql = format!("UPDATE race{seed} SET v = v + 1 WHERE id = $1");
            writers.push(move |id: u64| {
                let (client, sql) = (client.clone(), sql.clone());
                async move {
                    client.execute(&sql, &[&(id as i32)]).await.unwrap();
                }
            });
        }
        race(&database, &feed, seed, writers, 100).await;
    }
}

#[tokio::test]
#[ignore = "prints figures"]
async fn figures() {
    let shop = Shop::new(Arc::new(Server::start()), "many", "id int PRIMARY KEY, v int, filler text").await;
    shop.run("INSERT INTO @ SELECT i, 0, repeat('x', 1000) FROM generate_series(1, 20000) i; ANALYZE @")
        .await;
    for (batch, at_once) in [(1, 1), (1, 4), (1, 32), (16, 4), (256, 4)] {
        let database = shop.open("");
        let (_feed, _following) = follow(&database).await;
        let began = std::time::Instant::now();
        let loads = (0..at_once).map(|seed| {
            let database = database.clone();
            tokio::spawn(async move {
                let (mut dice, mut rows, mut loads) = (Dice::new(seed + 1), 0, 0);
                while began.elapsed() < Duration::from_secs(3) {
                    let mut asked: Vec<Id> = (0..batch)
                        .map(|_| (1 + dice.below(20_000)).to_string().into_bytes().into())
                        .collect();
                    asked.sort();
                    asked.dedup();
                    rows += database.load(&asked).await.unwrap().len();
                    loads += 1;
                }
                (rows, loads)
            })
        });
        let (mut rows, mut count) = (0, 0);
        for load in loads.collect::<Vec<_>>() {
            let (more, loads) = load.await.unwrap();
            (rows, count) = (rows + more, count + loads);
        }
        let seconds = began.elapsed().as_secs_f64();
        let mean_us = seconds * 1e6 * at_once as f64 / count as f64;
        println!(
            "batches of {batch}, {at_once} at once: {:.0} rows/s, {mean_us:.0} µs each",
            rows as f64 / seconds
        );
    }
    let database = shop.open("");
    let (feed, _following) = follow(&database).await;
    let (mut lags, mut news) = (Vec::new(), Vec::new());
    for nr in 0..1000u64 {
        tokio::time::sleep(Duration::from_micros(300 + nr)).await;
        let writing = shop.client.execute("UPDATE many SET v = v + 1 WHERE id = 5", &[]);
        writing.await.unwrap();
        let began = std::time::Instant::now();
        feed.until("it", |_| feed.count(b"5") > nr).await;
        news.push(began.elapsed().as_micros());
        load(&database, &["5"]).await;
        lags.push(began.elapsed().as_micros());
    }
    for (what, mut times) in [("the news", news), ("a fresh row", lags)] {
        times.sort();
        println!("from the answer to COMMIT to {what}: p50 {} µs, p99 {} µs", times[500], times[990]);
    }
}
