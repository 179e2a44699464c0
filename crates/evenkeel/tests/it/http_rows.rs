//! Rows of a database over HTTP.

use crate::http::{Http, on_both};
use crate::sources::{figure, until_figure};
use crate::support::{PATIENCE, Server, foreign};

/// An SQLite file with some rows.
fn database(dir: &std::path::Path) -> rusqlite::Connection {
    let file = rusqlite::Connection::open(dir.join("shop.db")).expect("a file");
    file.busy_timeout(PATIENCE).expect("patience");
    let table = "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)";
    let rows = "INSERT INTO things SELECT value, 'thing ' || value FROM json_each('[1,2,3,4,5,6,7,8,9,10]')";
    file.execute_batch(&format!("PRAGMA journal_mode = WAL; {table}; {rows}")).expect("a table");
    file
}

/// The words of a source that name that file, with patience for a slow machine.
fn source_url(server: &Server) -> String {
    format!("sqlite:{} timeout 60s", server.dir.path().join("shop.db").display())
}

#[test]
fn rows_of_a_database_are_read_through() {
    on_both(|server, mut client, at| {
        let file = database(server.dir.path());
        let url = source_url(server);
        client.expect(
            &format!("EVENKEEL SOURCE ADD t t:{{id}} {url} table things path /things ttl 1000s jitter 0"),
            "+OK",
        );
        client.expect(
            &format!(
                "EVENKEEL SOURCE ADD h h:{{id}} {url} table things path /hashes as hash stale-if-error 1h max-age 5m"
            ),
            "+OK",
        );
        let mut http = Http::to(at);
        let item = http.get("/things/3");
        item.expect(200, "{\"id\":3,\"name\":\"thing 3\"}");
        // The item may be kept here, because its changes are reported here.
        assert_eq!((item.header("cache-control"), item.header("age")), ("no-cache", ""));
        http.get("/hashes/3").expect(200, "{\"id\":\"3\",\"name\":\"thing 3\"}");
        assert_eq!(http.get("/hashes/3").header("cache-control"), "max-age=300");
        assert_eq!(http.get("/things/11").status, 404);
        assert_eq!(http.get("/things/nonumber").status, 404);
        http.get("/things?ids=2,77,x,1")
            .expect(200, "[{\"id\":2,\"name\":\"thing 2\"},null,null,{\"id\":1,\"name\":\"thing 1\"}]");
        // An id that its type excludes is the client's mistake; an id without a row is not.
        client.expect(
            &format!("EVENKEEL SOURCE ADD n n:{{id}} {url} table things path /numbers id-type integer"),
            "+OK",
        );
        http.get("/numbers/3").expect(200, "{\"id\":3,\"name\":\"thing 3\"}");
        assert_eq!(http.get("/numbers/-3").status, 404);
        for bad in ["/numbers/x", "/numbers/03", "/numbers/1.0", "/numbers?ids=1,x", "/numbers?ids=1,2,%2B3"]
        {
            let refused = http.get(bad);
            assert_eq!(refused.status, 400, "{bad}");
            assert!(refused.text().contains("an id is a 64-bit integer"), "{}", refused.text());
        }
        http.get("/hashes?ids=2,77").expect(200, "[{\"id\":\"2\",\"name\":\"thing 2\"},null]");
        let ids = |ids: std::ops::Range<u32>| ids.map(|id| id.to_string()).collect::<Vec<_>>().join(",");
        let all = http.get(&format!("/things?ids={}", ids(1..1001)));
        assert_eq!(all.status, 200, "{}", all.text());
        let parsed: Vec<serde_json::Value> = serde_json::from_slice(&all.body).expect("a list");
        assert_eq!(parsed.iter().filter(|item| item.is_object()).count(), 10);
        assert_eq!((parsed.len(), &parsed[9]["name"]), (1000, &"thing 10".into()));

        // Requests behind one that waits for its row are answered after it.
        client.expect("EVENKEEL SOURCE FLUSH t", "+OK");
        http.send(
            "GET /things/1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(20),
        );
        for _ in 0..20 {
            http.response().expect(200, "{\"id\":1,\"name\":\"thing 1\"}");
            http.response().expect(200, "{\"status\":\"ok\",\"role\":\"primary\"}");
        }
        // A changed row is loaded again.
        file.execute("UPDATE things SET name = 'new' WHERE id = 3", []).expect("an update");
        file.execute("INSERT INTO things VALUES (11, 'eleven')", []).expect("a row");
        for (path, body) in [
            ("/things/3", "{\"id\":3,\"name\":\"new\"}"),
            ("/hashes/11", "{\"id\":\"11\",\"name\":\"eleven\"}"),
        ] {
            let started = std::time::Instant::now();
            while http.get(path).body != body.as_bytes() {
                assert!(started.elapsed() < PATIENCE, "{path} stays old");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        let page = http.get("/metrics");
        assert!(page.text().contains("\nevenkeel_source_ready{source=\"t\"} 1\n"), "{}", page.text());
        assert!(page.text().contains("\nevenkeel_source_items{source=\"h\"} "), "{}", page.text());
        assert!(page.text().contains("\n# TYPE evenkeel_source_hits_total counter\n"), "{}", page.text());
        assert!(page.text().contains("\nevenkeel_source_hit_ratio{source=\"h\"} 0."), "{}", page.text());
        client.expect("EVENKEEL SOURCE REMOVE t", "+OK");
        assert!(http.get("/things/3").text().contains("nothing is shown"));
    });
}

#[test]
fn rows_tell_when_they_were_changed() {
    on_both(|server, mut client, at| {
        let file = database(server.dir.path());
        file.execute_batch(
            "ALTER TABLE things ADD at INTEGER; UPDATE things SET at = 784111777 + id WHERE id < 9",
        )
        .expect("times");
        file.execute("UPDATE things SET at = 4000000000 WHERE id = 8", []).expect("a time to come");
        let url = source_url(server);
        for (name, form) in [("t", "json"), ("h", "hash")] {
            let options = format!("modified at columns id,name as {form} write local");
            client.expect(
                &format!(
                    "EVENKEEL SOURCE ADD {name} {name}:{{id}} {url} table things path /{name} {options}"
                ),
                "+OK",
            );
        }
        let mut http = Http::to(at);
        let second = "Sun, 06 Nov 1994 08:49:39 GMT";
        let since = |date: &str| format!("If-Modified-Since: {date}\r\n");
        for path in ["/t/2", "/h/2"] {
            let item = http.get(path);
            assert_eq!((item.status, item.header("last-modified")), (200, second), "{path}");
            assert!(!item.text().contains("at\""), "{}", item.text());
            for (lines, status) in [
                (since(second), 304),
                (since("Sunday, 06-Nov-94 08:49:39 GMT"), 304),
                // Any date but the reported one says nothing: rows may be changed back.
                (since("Sun, 06 Nov 1994 08:49:40 GMT"), 200),
                (since("Sun, 06 Nov 1994 08:49:38 GMT"), 200),
                (format!("If-Unmodified-Since: {second}\r\n"), 200),
                (format!("If-Unmodified-Since: {second}\r\n{}", since(second)), 304),
                (since("yesterday"), 200),
                // A tag says more than a time.
                (since(second) + "If-None-Match: \"other\"\r\n", 200),
                (
                    since("Sun, 06 Nov 1994 08:49:38 GMT")
                        + &format!("If-None-Match: {}\r\n", item.header("etag")),
                    304,
                ),
            ] {
                for method in ["GET", "HEAD"] {
                    let answer = http.ask(method, path, &lines);
                    assert_eq!(
                        (answer.status, answer.header("last-modified")),
                        (status, second),
                        "{method} {lines}"
                    );
                    assert_eq!(answer.header("etag"), item.header("etag"));
                }
            }
            let before = "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:38 GMT\r\n";
            assert_eq!(http.ask("GET", path, before).status, 412);
        }
        let mut long =
            file.prepare("UPDATE things SET name = printf('%.*c', 300000, 'x') WHERE id = 1").unwrap();
        long.execute([]).expect("a long row");
        for (lines, status) in [(String::new(), 200), (since("Sun, 06 Nov 1994 08:49:38 GMT"), 304)] {
            let answer = http.ask("GET", "/t/1", &lines);
            assert_eq!((answer.status, answer.header("etag")), (status, ""));
            assert_eq!(answer.header("last-modified"), "Sun, 06 Nov 1994 08:49:38 GMT");
            assert_eq!(answer.body.len() > 300_000, status == 200);
        }
        // An unknown time is not reported, and neither is one in the future.
        for path in ["/t/9", "/t/8"] {
            let unknown = http.ask("GET", path, &since(second));
            assert_eq!((unknown.status, unknown.header("last-modified")), (200, ""), "{path}");
        }
        // It goes with the row.
        file.execute("UPDATE things SET name = 'new', at = at + 1 WHERE id = 2", []).expect("an update");
        let started = std::time::Instant::now();
        while http.ask("GET", "/t/2", &since(second)).status == 304 {
            assert!(started.elapsed() < PATIENCE, "the change is not seen");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(http.get("/t/2").header("last-modified"), "Sun, 06 Nov 1994 08:49:40 GMT");
        // A value that a client wrote is not the row as of that time.
        client.expect("APPEND t:3 x", ":26");
        client.expect("HSET h:3 name other", ":0");
        client.expect("EXPIRE t:4 1000", ":1");
        client.expect("GETEX t:5 EX 1000", "\"{\\\"id\\\":5,\\\"name\\\":\\\"thing 5\\\"}\"");
        for (path, date) in
            [("/t/3", ""), ("/h/3", ""), ("/t/4", ""), ("/t/5", "Sun, 06 Nov 1994 08:49:42 GMT")]
        {
            assert_eq!(http.get(path).header("last-modified"), date, "{path}");
        }
    });
}

/// A time in the form of HTTP.
fn date_of(unix_s: u64) -> String {
    let mut date = std::process::Command::new("date");
    date.env("LC_ALL", "C").args(["-u", "-d", &format!("@{unix_s}"), "+%a, %d %b %Y %H:%M:%S GMT"]);
    let told = date.output().expect("a date").stdout;
    String::from_utf8(told).expect("a text").trim().to_owned()
}

/// A client that fetched a row between two changes of one second gets the second change, not 304.
#[test]
fn a_row_may_change_twice_within_a_second() {
    on_both(|server, mut client, at| {
        let file = database(server.dir.path());
        file.execute_batch("ALTER TABLE things ADD at INTEGER").expect("times");
        let url = format!("sqlite:{}", server.dir.path().join("shop.db").display());
        for (name, feed, timeout) in [("t", "on", "60s"), ("o", "off", "10s")] {
            let options = format!(
                "table things path /{name} modified at columns id,name feed {feed} timeout {timeout}"
            );
            client.expect(&format!("EVENKEEL SOURCE ADD {name} {name}:{{id}} {url} {options}"), "+OK");
        }
        let change = |name: &str, at: u64| {
            file.execute("UPDATE things SET name = ?1, at = ?2 WHERE id = 1", (name, at as i64))
                .expect("a change");
        };
        let now_s = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.expect("after 1970").as_secs()
        };
        let mut http = Http::to(at);
        let until_named = |http: &mut Http, path: &str, name: &str| {
            let started = std::time::Instant::now();
            while !http.get(path).text().contains(name) {
                assert!(started.elapsed() < PATIENCE, "{path} is never {name}");
            }
        };
        let second = now_s();
        change("first", second);
        until_named(&mut http, "/t/1", "first");
        // Later, its second is over.
        let is_early = http.get("/o/1").status == 200 && now_s() < second + 2;
        // Both rows changed so recently that their second may not be over.
        let first = http.get("/t/1");
        let since = |date: &str| format!("If-Modified-Since: {date}\r\n");
        let date = date_of(second);
        if first.header("last-modified").is_empty() {
            let told = http.ask("GET", "/t/1", &since(&date)).status;
            // The feed may have reported that second in between.
            assert!(told == 200 || now_s() >= second + 2, "{told}");
        } else {
            assert!(now_s() >= second + 2, "{:?}", first.headers);
        }
        change("second", second);
        until_named(&mut http, "/t/1", "second");
        // Once the feed has reported that second, the time tells this state from others.
        let started = std::time::Instant::now();
        while http.get("/t/1").header("last-modified").is_empty() {
            assert!(started.elapsed() < PATIENCE, "the date is never told");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(now_s() >= second + 2);
        assert_eq!(http.ask("GET", "/t/1", &since(&date)).status, 304);
        // Without a feed this is unknown until the row is loaded again.
        if is_early {
            let other = http.ask("GET", "/o/1", &since(&date));
            assert_eq!((other.status, other.header("last-modified")), (200, ""));
        }
        let started = std::time::Instant::now();
        while http.ask("GET", "/o/1", &since(&date)).status != 304 {
            assert!(started.elapsed() < PATIENCE, "the date is never told");
            client.expect("EVENKEEL SOURCE FLUSH o", "+OK");
        }
        http.get("/o/1").expect(200, "{\"id\":1,\"name\":\"second\"}");
    });
}

#[test]
fn rows_of_pipelined_requests_are_loaded_together() {
    if foreign() {
        return;
    }
    for backend in ["epoll", "io_uring"] {
        let (server, at) = Server::start_http(&["--io-backend", backend, "--requirepass", "secret"]);
        let client = || {
            let mut client = server.client();
            client.expect("AUTH secret", "+OK");
            client
        };
        let (mut client, mut other) = (client(), client());
        drop(database(server.dir.path()));
        let url = source_url(&server);
        client.expect(
            &format!("EVENKEEL SOURCE ADD items t:{{id}} {url} table things path /things pool 1"),
            "+OK",
        );
        // The one connection is busy: rows requested meanwhile come with the next load.
        client.expect("DEBUG POINT source-ask HOLD 1", "+OK");
        other.request(&[b"GET", b"t:1"]);
        until_figure(&mut client, "loading", "1");
        let token = "Authorization: Bearer secret\r\n";
        let request =
            |id: usize, lines: &str| format!("GET /things/{id} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
        let mut http = Http::to(at);
        http.send(
            (1..=7).map(|id| request(id, token)).collect::<String>()
                + &request(8, "")
                + &format!(
                    "\r\nHEAD /things/9 HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: 3\r\n\r\nabc"
                )
                + &format!("GET /things?ids=10,11,2 HTTP/1.1\r\nHost: localhost\r\n{token}\r\n"),
        );
        // 2 to 7, 9, 10 and 11; not 8, since its request shows no password.
        until_figure(&mut client, "queued-ids", "9");
        client.expect("DEBUG POINT source-ask OFF", "+OK");
        for id in 1..=7 {
            http.response().expect(200, &format!("{{\"id\":{id},\"name\":\"thing {id}\"}}"));
        }
        assert_eq!(http.response().status, 401);
        assert_eq!(http.response_to("HEAD").status, 200);
        assert_eq!(http.response().status, 200);
        // Two, and another if a row was requested at the moment it arrived.
        assert!(["2", "3"].contains(&&*figure(&mut client, "loads")));
        assert!(["9", "10"].contains(&&*figure(&mut client, "loaded-rows")));
    }
}

#[test]
fn a_database_that_is_not_there_is_told_and_what_is_kept_is_answered() {
    on_both(|server, mut client, at| {
        drop(database(server.dir.path()));
        let url = source_url(server);
        client.expect(&format!("EVENKEEL SOURCE ADD t t:{{id}} {url} table things path /things"), "+OK");
        client.expect("EVENKEEL SOURCE ADD n n:{id} sqlite:/nosuch/file path /none", "+OK");
        let mut http = Http::to(at);
        http.get("/things/3").expect(200, "{\"id\":3,\"name\":\"thing 3\"}");
        let down = http.get("/none/1");
        assert_eq!((down.status, down.header("retry-after")), (503, "1"), "{}", down.text());
        assert!(down.text().contains("source 'n'"), "{}", down.text());
        assert_eq!(http.get("/none?ids=1,2").status, 503);
        assert_eq!(http.ask("HEAD", "/none/1", "").status, 503);
        let unready = http.get("/readyz");
        assert_eq!(unready.status, 503);
        assert!(
            unready.text().contains("source 'n': ") && !unready.text().contains("source 't'"),
            "{}",
            unready.text()
        );
        assert_eq!(http.get("/healthz").status, 200);
        client.expect("EVENKEEL SOURCE REMOVE n", "+OK");
        assert_eq!(http.get("/readyz").status, 200);
        client.expect("EVENKEEL SOURCE PAUSE t", "+OK");
        http.get("/things/3").expect(200, "{\"id\":3,\"name\":\"thing 3\"}");
        assert_eq!(http.get("/things/4").status, 503);
        // Cached rows are answered, so this server stays in service.
        http.get("/readyz").expect(200, "{\"status\":\"ready\",\"trouble\":[\"source 't': paused\"]}");
    });
}

/// After a failed miss the database's return is noticed although no client asks.
#[test]
fn a_database_that_comes_back_is_noticed_without_traffic() {
    for options in ["feed off", ""] {
        let (server, at) = Server::start_http(&[]);
        let mut client = server.client();
        let file = database(server.dir.path());
        let url = source_url(&server);
        client.expect(&format!("EVENKEEL SOURCE ADD t t:{{id}} {url} table things path /t {options}"), "+OK");
        let mut http = Http::to(at);
        http.get("/t/3").expect(200, "{\"id\":3,\"name\":\"thing 3\"}");
        file.execute_batch("ALTER TABLE things RENAME TO gone").expect("another name");
        let started = std::time::Instant::now();
        while http.get("/t/4").status != 503 {
            assert!(started.elapsed() < PATIENCE, "its table is not missed");
            client.expect("EVENKEEL SOURCE FLUSH t", "+OK");
        }
        let is_ready = |http: &mut Http| {
            http.get("/metrics").text().contains("\nevenkeel_source_ready{source=\"t\"} 1\n")
        };
        for _ in 0..25 {
            assert!(!is_ready(&mut http), "{options}");
            let state = http.get("/readyz");
            assert!(state.status == 200 && state.text().contains("\"trouble\":[\"source 't': "), "{options}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        file.execute_batch("ALTER TABLE gone RENAME TO things").expect("its name");
        let started = std::time::Instant::now();
        while !is_ready(&mut http) {
            assert!(started.elapsed() < PATIENCE, "{options}: {}", http.get("/readyz").text());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        http.get("/readyz").expect(200, "{\"status\":\"ready\"}");
    }
}
