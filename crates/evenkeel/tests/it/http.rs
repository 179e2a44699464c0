//! HTTP over real sockets. No database is needed: DEBUG HTTP-SHOW shows plain keys.

use crate::support::{Client, PATIENCE, Server, foreign};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// A server that shows `item:{id}` at /items and lets caches keep items for half a minute; and a client to
/// fill it.
pub fn shown(args: &[&str]) -> (Server, Client, SocketAddr) {
    let (server, at) = Server::start_http(args);
    let mut client = server.client();
    if let Some(at) = args.iter().position(|arg| *arg == "--requirepass") {
        client.expect(&format!("AUTH {}", args[at + 1]), "+OK");
    }
    client.expect("DEBUG HTTP-SHOW items item:{id} sqlite:none path /items ttl 60s max-age 30s", "+OK");
    (server, client, at)
}

pub fn on_both(test: impl Fn(&Server, Client, SocketAddr)) {
    if foreign() {
        return;
    }
    for backend in ["epoll", "io_uring"] {
        let (server, client, at) = shown(&["--io-backend", backend]);
        test(&server, client, at);
    }
}

pub struct Response {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    #[track_caller]
    pub fn expect(&self, status: u16, body: &str) {
        assert_eq!((self.status, self.text()), (status, body));
    }
}

/// A connection that speaks HTTP.
pub struct Http {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Http {
    pub fn to(address: SocketAddr) -> Http {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream.set_nodelay(true).expect("no delay");
        Http { stream, input: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server reads");
    }

    /// Sends a request with these header lines (each with its line end).
    pub fn ask(&mut self, method: &str, target: &str, lines: &str) -> Response {
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"));
        self.response_to(method)
    }

    pub fn get(&mut self, target: &str) -> Response {
        self.ask("GET", target, "")
    }

    pub fn response(&mut self) -> Response {
        self.response_to("GET")
    }

    #[track_caller]
    pub fn response_to(&mut self, method: &str) -> Response {
        let end = loop {
            match self.input.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => {
                    assert!(self.fill(), "closed within a head: {:?}", String::from_utf8_lossy(&self.input))
                }
            }
        };
        let head = String::from_utf8(self.input.drain(..end).collect()).expect("a head");
        let mut lines = head.trim_end().split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .expect("a status")
            .parse()
            .expect("a number");
        let pair = |line: &str| {
            let (name, value) = line.split_once(": ").expect("a header");
            (name.to_lowercase(), value.to_owned())
        };
        let headers: HashMap<_, _> = lines.map(pair).collect();
        let mut response = Response { status, headers, body: Vec::new() };
        if method != "HEAD" && status != 304 {
            response.body = self.body(&response.headers);
        }
        response
    }

    pub fn body(&mut self, headers: &HashMap<String, String>) -> Vec<u8> {
        if headers.contains_key("transfer-encoding") {
            let mut body = Vec::new();
            loop {
                let line = self.line();
                let len = usize::from_str_radix(&line, 16).expect("the length of a chunk");
                body.extend(self.take(len));
                assert_eq!(self.take(2), b"\r\n");
                if len == 0 {
                    return body;
                }
            }
        }
        match headers.get("content-length") {
            Some(len) => self.take(len.parse().expect("a length")),
            None => self.rest(),
        }
    }

    pub fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.input.windows(2).position(|two| two == b"\r\n") {
                let line = self.input.drain(..at + 2).take(at).collect();
                return String::from_utf8(line).expect("a line");
            }
            assert!(self.fill(), "closed within a line");
        }
    }

    #[track_caller]
    pub fn take(&mut self, n: usize) -> Vec<u8> {
        while self.input.len() < n {
            assert!(self.fill(), "closed with {} of {n} bytes", self.input.len());
        }
        self.input.drain(..n).collect()
    }

    /// All bytes that come until the server ends the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.input)
    }

    /// Reads more; false at the end.
    pub fn fill(&mut self) -> bool {
        let mut piece = [0; 64 * 1024];
        let n = self.stream.read(&mut piece).expect("bytes, or an end, in time");
        self.input.extend_from_slice(&piece[..n]);
        n > 0
    }

    #[track_caller]
    pub fn expect_end(&mut self) {
        assert_eq!(String::from_utf8_lossy(&self.rest()), "");
    }
}

/// Waits until only one client is connected.
fn expect_alone(client: &mut Client) {
    let started = std::time::Instant::now();
    while !client.call("INFO clients").contains("connected_clients:1\\r\\n") {
        assert!(started.elapsed() < PATIENCE, "clients that left are still counted");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn items_are_answered_with_what_caches_need() {
    on_both(|_, mut client, at| {
        client.expect(r#"SET item:42 "{\"name\":\"x\"}" EX 50"#, "+OK");
        client.expect("HSET item:row name x n 5", ":2");
        let mut http = Http::to(at);
        let item = http.get("/items/42");
        item.expect(200, "{\"name\":\"x\"}");
        assert_eq!(item.header("content-type"), "application/json");
        assert_eq!((item.header("cache-control"), item.header("age")), ("max-age=30", ""));
        assert!(item.header("date").ends_with(" GMT"));
        let tag = item.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.len() == 34, "{tag}");

        for list in [tag.as_str(), "*", &format!("\"other\", W/{tag}")] {
            let again = http.ask("GET", "/items/42", &format!("If-None-Match: {list}\r\n"));
            assert_eq!((again.status, again.header("etag")), (304, tag.as_str()));
            assert_eq!(again.header("cache-control"), "max-age=30");
        }
        http.ask("GET", "/items/42", "If-None-Match: \"other\"\r\n").expect(200, "{\"name\":\"x\"}");
        let head = http.ask("HEAD", "/items/42", "");
        assert_eq!(
            (head.status, head.header("content-length"), head.header("etag")),
            (200, "12", tag.as_str())
        );

        http.get("/items/row").expect(200, "{\"name\":\"x\",\"n\":\"5\"}");
        // No longer than the item lives here.
        client.expect("EXPIRE item:row 20", ":1");
        let line = http.get("/items/row").header("cache-control").to_owned();
        let max_age: u64 = line.strip_prefix("max-age=").and_then(|n| n.parse().ok()).expect("a number");
        assert!(max_age <= 20, "{max_age}");
        assert_eq!(http.get("/items?ids=42").header("cache-control"), "no-cache");
        client.expect(r#"SET item:42 "{}""#, "+OK");
        assert_ne!(http.get("/items/42").header("etag"), tag);
        let missing = http.get("/items/43");
        assert_eq!((missing.status, missing.header("content-type")), (404, "application/problem+json"));
        assert!(missing.text().contains("\"status\":404"));
        assert_eq!(missing.header("cache-control"), "no-cache");
        assert_eq!(http.ask("HEAD", "/items/43", "").status, 404);
        for path in ["//", "/items/", "/items/1/2", "/nosuch"] {
            assert_eq!(http.get(path).status, 404, "{path}");
        }
    });
}

#[test]
fn an_answer_is_what_the_request_says_it_must_be() {
    on_both(|_, mut client, at| {
        client.expect("SET item:1 {}", "+OK");
        let long = "7".repeat(300_000);
        client.request(&[b"SET", b"item:long", long.as_bytes()]);
        client.expect_reply("+OK");
        let mut http = Http::to(at);
        let tag = http.get("/items/1").header("etag").to_owned();
        for (path, lines, status) in [
            ("/items/1", format!("If-Match: {tag}\r\n"), 200),
            ("/items/1", "If-Match: *\r\n".into(), 200),
            ("/items/1", format!("If-Match: W/{tag}\r\n"), 412),
            ("/items/1", "If-Match: \"other\"\r\n".into(), 412),
            ("/items/1", format!("If-Match: \"other\"\r\nIf-Match: {tag}\r\n"), 200),
            ("/items/1", format!("If-None-Match: \"other\"\r\nIf-None-Match: {tag}\r\n"), 304),
            ("/items/1", format!("If-Match: \"other\"\r\nIf-None-Match: {tag}\r\n"), 412),
            ("/items?ids=1", format!("If-Match: {tag}\r\n"), 412),
            // Without a tag none fits.
            ("/items/long", format!("If-Match: {tag}\r\n"), 412),
            ("/items/long", "If-Match: *\r\n".into(), 200),
            ("/items/long", format!("If-None-Match: {tag}\r\n"), 200),
            ("/items/long", "If-None-Match: *\r\n".into(), 304),
            // A missing item is missing, whatever the condition.
            ("/items/none", format!("If-Match: {tag}\r\n"), 404),
            ("/items/none", "If-None-Match: *\r\n".into(), 404),
            ("/healthz", "If-None-Match: *\r\n".into(), 200),
        ] {
            for method in ["GET", "HEAD"] {
                assert_eq!(http.ask(method, path, &lines).status, status, "{method} {path} {lines}");
            }
        }
        assert_eq!(http.ask("GET", "/items/1", "If-Match: \"x\"\r\n").header("cache-control"), "no-store");
    });
}

#[test]
fn ids_may_be_escaped_and_bad_escapes_are_refused() {
    on_both(|_, mut client, at| {
        client.expect(r#"SET "item:a/b c\x00\xff" 1"#, "+OK");
        let mut http = Http::to(at);
        http.get("/items/a%2Fb%20c%00%fF").expect(200, "1");
        for bad in ["/items/%", "/items/%4", "/items/%zz", "/items?ids=%"] {
            assert_eq!(http.get(bad).status, 400, "{bad}");
        }
        http.get("/items/a%2Fb%20c%00%fF?unasked=1").expect(200, "1");
        http.get("http://elsewhere/items/a%2Fb%20c%00%fF").expect(200, "1");
    });
}

#[test]
fn many_items_are_answered_in_the_order_of_their_ids() {
    on_both(|_, mut client, at| {
        client.expect("MSET item:1 {} item:2 [2]", "+OK");
        client.expect("HSET item:3 a b", ":1");
        let mut http = Http::to(at);
        let all = http.get("/items?ids=2,nosuch,1,3,2");
        all.expect(200, "[[2],null,{},{\"a\":\"b\"},[2]]");
        let tag = all.header("etag").to_owned();
        assert_eq!(
            http.ask("GET", "/items?ids=2,nosuch,1,3,2", &format!("If-None-Match: {tag}\r\n")).status,
            304
        );
        http.get("/items?ids=1%2C2&ids=3").expect(200, "[{},[2],{\"a\":\"b\"}]");
        assert_eq!(http.ask("HEAD", "/items?ids=1", "").header("content-length"), "4");
        for bad in ["/items", "/items?", "/items?ids=", "/items?ids=1,,2", "/items?id=1"] {
            assert_eq!(http.get(bad).status, 400, "{bad}");
        }
        let ids =
            |n: usize| format!("/items?ids={}", (0..n).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        let all = http.get(&ids(1000));
        assert_eq!(all.status, 200);
        assert!(all.text().starts_with("[null,{},[2],{\"a\":\"b\"},null,"), "{}", all.text());
        assert_eq!(all.text().matches("null").count(), 997);
        assert_eq!(http.get(&ids(1001)).status, 400);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order_whatever_they_take() {
    on_both(|_, mut client, at| {
        let long = "7".repeat(300_000);
        client.request(&[b"SET", b"item:long", long.as_bytes()]);
        client.expect_reply("+OK");
        let mut hset: Vec<Vec<u8>> = vec![b"HSET".to_vec(), b"item:wide".to_vec()];
        hset.extend((0..5000).flat_map(|n| [format!("f{n}").into_bytes(), b"v".to_vec()]));
        let hset: Vec<&[u8]> = hset.iter().map(Vec::as_slice).collect();
        client.request(&hset);
        client.expect_reply(":5000");
        let wanted =
            ["/items/long", "/healthz", "/items/wide", "/metrics", "/nosuch", "/items/none", "/openapi.json"];
        let mut http = Http::to(at);
        let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        for round in 0..10 {
            let ids = "1,".repeat(500 + round) + "long";
            http.send(wanted.map(request).concat() + &request(&format!("/items?ids={ids}")));
        }
        for round in 0..10 {
            http.response().expect(200, &long);
            http.response().expect(200, "{\"status\":\"ok\",\"role\":\"primary\"}");
            let wide: serde_json::Value = serde_json::from_slice(&http.response().body).unwrap();
            assert_eq!((wide.as_object().unwrap().len(), &wide["f4999"]), (5000, &"v".into()));
            assert!(http.response().text().contains("redis_connected_clients 2\n"));
            assert_eq!(http.response().status, 404);
            assert_eq!(http.response().status, 404);
            let described: serde_json::Value = serde_json::from_slice(&http.response().body).unwrap();
            assert_eq!(described["openapi"], "3.1.0");
            http.response().expect(200, &format!("[{}{long}]", "null,".repeat(500 + round)));
        }
    });
}

#[test]
fn a_request_may_come_in_any_pieces() {
    on_both(|_, mut client, at| {
        client.expect("SET item:1 {}", "+OK");
        let request = "\r\nGET /items/1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12345";
        let mut http = Http::to(at);
        for size in 1..request.len() {
            for piece in request.repeat(2).as_bytes().chunks(size) {
                http.send(piece);
            }
            http.response().expect(200, "{}");
            http.response().expect(200, "{}");
        }
    });
}

#[test]
fn connections_are_kept_or_ended_as_asked() {
    on_both(|_, mut client, at| {
        client.expect("SET item:1 {}", "+OK");
        let mut http = Http::to(at);
        assert_eq!(http.ask("GET", "/items/1", "Connection: close\r\n").header("connection"), "close");
        http.expect_end();
        let mut http = Http::to(at);
        http.send("GET /items/1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /items/1 HTTP/1.0\r\n\r\n");
        assert_eq!(http.response().header("connection"), "keep-alive");
        http.response().expect(200, "{}");
        http.expect_end();
        // A client that ends sending still gets its answers; /metrics is collected elsewhere.
        let mut http = Http::to(at);
        http.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /items/1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /cut");
        http.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(http.response().status, 200);
        http.response().expect(200, "{}");
        http.expect_end();
        drop(http);
        expect_alone(&mut client);
    });
}

#[test]
fn what_is_too_long_to_be_framed_at_once_ends_as_the_client_understands() {
    on_both(|_, mut client, at| {
        let mut hset: Vec<Vec<u8>> = vec![b"HSET".to_vec(), b"item:wide".to_vec()];
        hset.extend((0..5000).flat_map(|n| [format!("f{n}").into_bytes(), vec![b'v'; 30]]));
        let hset: Vec<&[u8]> = hset.iter().map(Vec::as_slice).collect();
        client.request(&hset);
        client.expect_reply(":5000");
        let long = "[1]".repeat(1_000_000);
        client.request(&[b"SET", b"item:long", long.as_bytes()]);
        client.expect_reply("+OK");
        let mut http = Http::to(at);
        let wide = http.get("/items/wide");
        assert_eq!(wide.header("transfer-encoding"), "chunked");
        let head = http.ask("HEAD", "/items/wide", "");
        assert_eq!((head.status, head.header("transfer-encoding")), (200, "chunked"));
        let head = http.ask("HEAD", "/items/long", "");
        assert_eq!((head.status, head.header("content-length")), (200, "3000000"));
        assert!(http.get("/items/long").body == long.as_bytes());
        // HTTP/1.0 knows no chunks: the end of the connection is the end of the body.
        http.send("GET /items/wide HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let old = http.response();
        assert_eq!((old.header("connection"), old.header("transfer-encoding")), ("close", ""));
        assert!(old.body == wide.body);
        let parsed: serde_json::Value = serde_json::from_slice(&old.body).unwrap();
        assert_eq!(parsed.as_object().unwrap().len(), 5000);
    });
}

#[test]
fn bodies_are_dropped_or_refused_and_never_taken_for_requests() {
    on_both(|_, _, at| {
        let mut http = Http::to(at);
        let hidden = "GET /nosuch HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let post = |lines: &str, body: &str| {
            format!("POST /items/1 HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n{body}")
        };
        http.send(post(&format!("Content-Length: {}\r\n", hidden.len()), hidden));
        let refused = http.response();
        assert_eq!((refused.status, refused.header("allow")), (405, "GET, HEAD"));
        assert_eq!(http.get("/healthz").status, 200);
        for (lines, status) in [
            ("Content-Length: 1000000\r\n", 413),
            ("Transfer-Encoding: chunked\r\n", 411),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
            ("Expect: 100-continue\r\nContent-Length: 5\r\n", 405),
            ("Expect: more\r\n", 417),
        ] {
            let mut http = Http::to(at);
            http.send(post(lines, hidden));
            let refused = http.response();
            assert_eq!((refused.status, refused.header("connection")), (status, "close"), "{lines}");
            http.expect_end();
        }
        for method in ["OPTIONS", "DELETE", "TRACE", "BREW"] {
            assert_eq!(http.ask(method, "/healthz", "").status, 405, "{method}");
        }
    });
}

#[test]
fn hostile_heads_are_refused_and_their_senders_read_why() {
    on_both(|_, mut client, at| {
        let line = |n: usize| format!("X: {}\r\n", "x".repeat(n));
        for (request, status) in [
            (format!("GET /{} HTTP/1.1\r\n", "a".repeat(200_000)), 414),
            (format!("GET / HTTP/1.1\r\n{}", line(1_000_000)), 431),
            (format!("GET / HTTP/1.1\r\n{}\r\n", line(1).repeat(70)), 431),
            (format!("GET / HTTP/1.1\r\n{}", line(10).repeat(100_000)), 431),
            ("GET / HTTP/1.1\r\nHost: localhost\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\n\r\n".into(), 400),
            ("GET / HTTP/3.0\r\n\r\n".into(), 505),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nA\0: b\r\n\r\n".into(), 400),
            ("*1\r\n$4\r\nPING\r\n".into(), 400),
            ("\x16\x03\x01\x02\0\x01".into(), 400),
        ] {
            let mut http = Http::to(at);
            http.send(&request);
            let refused = http.response();
            assert_eq!(
                (refused.status, refused.header("connection")),
                (status, "close"),
                "{:?}",
                &request[..30.min(request.len())]
            );
            http.expect_end();
        }
        expect_alone(&mut client);
    });
}

#[test]
fn who_never_ends_a_request_or_asks_nothing_is_disconnected() {
    if foreign() {
        return;
    }
    for backend in ["epoll", "io_uring"] {
        let (_server, mut client, at) = shown(&["--io-backend", backend]);
        let mut silent = Http::to(at);
        let mut slow = Http::to(at);
        slow.send("GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
        let mut dripping = slow.stream.try_clone().unwrap();
        // A byte now and then does not keep it.
        let drips = std::thread::spawn(move || {
            while dripping.write_all(b"x").is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        let mut kept = Http::to(at);
        assert_eq!(kept.get("/healthz").status, 200);
        client.expect("CONFIG SET http-timeout 1", "+OK");
        silent.expect_end();
        kept.expect_end();
        let mut piece = [0; 100];
        assert!(matches!(slow.stream.read(&mut piece), Ok(0) | Err(_)));
        drop(slow);
        drips.join().unwrap();
        expect_alone(&mut client);
    }
}

#[test]
fn a_slow_reader_gets_all_and_others_are_served_meanwhile() {
    on_both(|_, mut client, at| {
        let long = "7".repeat(300_000);
        client.request(&[b"SET", b"item:long", long.as_bytes()]);
        client.expect_reply("+OK");
        let mut slow = Http::to(at);
        for n in 0..50 {
            slow.send("GET /items/long HTTP/1.1\r\nHost: localhost\r\n\r\n");
            slow.send(format!("GET /items/{n} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        }
        let mut other = Http::to(at);
        for _ in 0..50 {
            assert_eq!(other.get("/healthz").status, 200);
        }
        // The waiting output is bounded: the reply is not all written into a buffer.
        let list = client.call("CLIENT LIST");
        let waiting = |line: &str| {
            let (_, rest) = line.split_once(" omem=").expect("omem");
            rest.split(' ').next().and_then(|n| n.parse::<usize>().ok()).expect("a number")
        };
        let most = list.split("\\n").filter(|line| line.contains(" omem=")).map(waiting).max();
        assert!(most.is_some_and(|most| most < 2_000_000), "{list}");
        for _ in 0..50 {
            slow.response().expect(200, &long);
            assert_eq!(slow.response().status, 404);
        }
    });
}

#[test]
fn a_pause_holds_requests_and_its_end_releases_them() {
    on_both(|_, mut client, at| {
        client.expect("SET item:1 {}", "+OK");
        client.expect("CLIENT PAUSE 1000000 ALL", "+OK");
        let mut http = Http::to(at);
        http.send("GET /items/1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        http.stream.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        assert!(http.stream.read(&mut [0; 10]).is_err(), "answered in a pause");
        http.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        client.expect("CLIENT UNPAUSE", "+OK");
        http.response().expect(200, "{}");
        assert_eq!(http.response().status, 200);
    });
}

#[test]
fn a_password_is_asked_for_as_a_token() {
    if foreign() {
        return;
    }
    let (_server, mut client, at) = shown(&["--requirepass", "secret"]);
    client.expect("SET item:1 {}", "+OK");
    let mut http = Http::to(at);
    for target in ["/items/1", "/items?ids=1", "/metrics", "/readyz", "/openapi.json", "/nosuch", "/"] {
        let refused = http.get(target);
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, "Bearer realm=\"evenkeel\""),
            "{target}"
        );
        for wrong in ["secrets", "secre", "", "Secret"] {
            let refused = http.ask("GET", target, &format!("Authorization: Bearer {wrong}\r\n"));
            assert_eq!(refused.status, 401, "{target} {wrong}");
        }
        assert_eq!(http.ask("GET", target, "Authorization: Basic secret\r\n").status, 401);
    }
    assert_eq!(http.get("/healthz").status, 200);
    http.ask("GET", "/items/1", "Authorization: bearer secret\r\n").expect(200, "{}");
    // Each request brings its own password.
    assert_eq!(http.get("/items/1").status, 401);
    assert!(
        client.call("INFO stats").contains("acl_access_denied_auth:43\\r\\n"),
        "{}",
        client.call("INFO stats")
    );
}

#[test]
fn pages_tell_how_the_server_is() {
    on_both(|_, mut client, at| {
        let mut http = Http::to(at);
        http.get("/readyz").expect(200, "{\"status\":\"ready\"}");
        assert_eq!(http.get("/nosuch").status, 404);
        client.expect("SET k v", "+OK");
        let page = http.get("/metrics");
        assert!(page.header("content-type").starts_with("text/plain; version=0.0.4"));
        let text = page.text();
        for line in [
            "evenkeel_http_responses_total{class=\"2xx\"} 1",
            "evenkeel_http_responses_total{class=\"4xx\"} 1",
            "redis_commands_total{cmd=\"set\"} 1",
            "redis_db_keys{db=\"db0\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in {text}");
        }
        let described: serde_json::Value = serde_json::from_slice(&http.get("/openapi.json").body).unwrap();
        assert!(described["paths"]["/items/{id}"]["get"].is_object());
        let root = http.get("/");
        assert_eq!((root.status, root.header("content-type")), (200, "application/json"));
        let root: serde_json::Value = serde_json::from_slice(&root.body).unwrap();
        assert_eq!(root["name"], "Evenkeel");
        assert_eq!(root["sources"].as_object().unwrap().values().next().unwrap()["item"], "/items/{id}");
        // Every page that it names exists, and is described.
        for page in root["pages"].as_object().unwrap().values().map(|page| page.as_str().unwrap()) {
            assert_eq!(http.get(page).status, 200, "{page}");
            assert!(described["paths"][page]["get"].is_object(), "{page}");
        }
        assert_eq!(http.ask("HEAD", "/", "").status, 200);
        assert!(client.call("CLIENT LIST").contains("lib-name=http"));
    });
}

#[test]
fn an_access_log_is_written_if_asked_for() {
    if foreign() {
        return;
    }
    let (server, mut client, at) = shown(&["--http-access-log", "yes"]);
    let mut http = Http::to(at);
    http.get("/items/1?x=y");
    http.get("/metrics");
    http.send("nonsense\r\n\r\n");
    assert_eq!(http.response().status, 400);
    client.expect("CONFIG SET http-access-log no", "+OK");
    let mut http = Http::to(at);
    http.get("/unseen");
    let started = std::time::Instant::now();
    loop {
        let log = server.output();
        let seen = ["GET /items/1?x=y 404", "GET /metrics 200", "- (malformed) 400"]
            .iter()
            .all(|line| log.contains(line));
        if seen {
            assert!(!log.contains("/unseen"), "{log}");
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{log}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn one_client_too_many_is_told_so_in_its_own_words() {
    if foreign() {
        return;
    }
    let (_server, mut client, at) = shown(&["--maxclients", "1"]);
    let mut http = Http::to(at);
    let refused = http.response();
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    http.expect_end();
    client.expect("PING", "+PONG");
}

#[test]
fn clients_that_leave_in_the_middle_leave_nothing() {
    on_both(|_, mut client, at| {
        let long = "7".repeat(2_000_000);
        client.request(&[b"SET", b"item:long", long.as_bytes()]);
        client.expect_reply("+OK");
        for round in 0..60 {
            let mut http = Http::to(at);
            match round % 4 {
                0 => http.send("GET /items/long HTTP/1.1\r\n"),
                1 => http.send("GET /items/long HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(20)),
                2 => http.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                _ => http.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\nabc"),
            }
        }
        expect_alone(&mut client);
    });
}

/// A failed token is a failed login: ACL LOG names the user, and nothing that may be a password.
#[test]
fn a_wrong_token_stands_in_the_acl_log_without_its_secret() {
    let (server, at) = Server::start_http(&["--requirepass", "right"]);
    let mut client = server.client();
    client.expect("AUTH right", "+OK");
    client.expect("ACL SETUSER app on >apps +@all ~*", "+OK");
    for (token, name) in [("Zwrong", "default"), ("app:Zwrong", "app"), ("Znobody:Zwrong", "default")] {
        client.expect("ACL LOG RESET", "+OK");
        let mut http = Http::to(at);
        let response = http.ask("GET", "/metrics", &format!("Authorization: Bearer {token}\r\n"));
        assert_eq!(response.status, 401, "{token}");
        let log = client.call("ACL LOG");
        assert!(
            log.contains("\"reason\", \"auth\"") && log.contains(&format!("\"username\", \"{name}\"")),
            "{log}"
        );
        assert!(!log.contains("Zwrong") && !log.contains("Znobody"), "{log}");
    }
}

/// A page of another site cannot read what the server answers by letting its own name point here.
#[test]
fn a_host_that_is_none_of_the_servers_is_refused() {
    let (server, at) = Server::start_http(&[]);
    let status = |host: &str, lines: &str, path: &str| {
        let mut client = Client::to(at);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n"));
        let head = String::from_utf8(client.raw(12)).expect("a status line");
        head[9..].to_owned()
    };
    for host in ["localhost:8379", "127.0.0.1", "[::1]:1"] {
        assert_eq!(status(host, "", "/metrics"), "200", "{host}");
    }
    assert_eq!(status("evil.example", "", "/metrics"), "421");
    assert_eq!(status("evil.example", "", "/nosuch"), "421");
    assert_eq!(status("evil.example", "", "/healthz"), "200");
    server.client().expect("CONFIG SET http-hosts \"a.example evil.example\"", "+OK");
    assert_eq!(status("evil.example:80", "", "/metrics"), "200");
    server.client().expect("CONFIG SET http-hosts \"\" requirepass secret", "+OK");
    assert_eq!(status("evil.example", "Authorization: Bearer secret\r\n", "/metrics"), "200");
    assert_eq!(status("evil.example", "", "/metrics"), "401");
}
