//! The console and its API over real sockets: who may ask, what runs, and how replies become JSON.

use crate::http::{Http, Response};
use crate::support::{Client, Server, foreign};
use crate::waits::{astray, stall_for};
use std::net::SocketAddr;
use std::time::Duration;

const CONSOLE: &str = "Evenkeel-Console: 1\r\n";

/// Posts JSON, with these further lines.
fn post(http: &mut Http, path: &str, lines: &str, body: &str) -> Response {
    let length = body.len();
    http.send(format!(
        "POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         {lines}\r\n{body}"
    ));
    http.response()
}

/// Runs commands as the console does.
#[track_caller]
fn run(http: &mut Http, lines: &str, body: &str) -> String {
    let response = post(http, "commands", &format!("{CONSOLE}{lines}"), body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.text().to_owned()
}

/// Logs in; gives the line of the cookie.
#[track_caller]
fn log_in(http: &mut Http, user: &str, password: &str) -> String {
    let body = format!("{{\"user\":\"{user}\",\"password\":\"{password}\"}}");
    let response = post(http, "login", CONSOLE, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let cookie = response.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    format!("Cookie: {cookie}\r\n")
}

/// A server with HTTP on each back end.
fn on_both(args: &[&str], test: impl Fn(&Server, Client, SocketAddr)) {
    if foreign() {
        return;
    }
    for backend in ["epoll", "io_uring"] {
        let all: Vec<&str> = ["--io-backend", backend].iter().chain(args).copied().collect();
        let (server, at) = Server::start_http(&all);
        let client = server.client();
        test(&server, client, at);
    }
}

#[test]
fn a_browser_gets_the_console_and_a_program_the_description() {
    on_both(&[], |_, _, at| {
        let mut http = Http::to(at);
        let page = http.ask("GET", "/", "Accept: text/html,*/*;q=0.8\r\n");
        assert!(page.status == 200 && page.text().contains("<script type=\"module\""));
        let policy = page.header("content-security-policy").to_owned();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "require-trusted-types-for 'script'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{part}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'));
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("referrer-policy"), "no-referrer");
        assert_eq!(page.header("cross-origin-opener-policy"), "same-origin");
        assert!(http.get("/").text().starts_with("{\"name\":\"Evenkeel\""));
        for path in ["/console/app.js", "/console/app.css", "/console/icon.svg", "/console/licences.txt"] {
            let plain = http.get(path);
            let packed = http.ask("GET", path, "Accept-Encoding: br, gzip\r\n");
            assert_eq!(
                (plain.status, packed.status, packed.header("content-encoding")),
                (200, 200, "gzip"),
                "{path}"
            );
            assert!(packed.body.len() < plain.body.len() && packed.body.starts_with(&[0x1f, 0x8b]));
            let tag = format!("If-None-Match: {}\r\n", plain.header("etag"));
            assert_eq!(http.ask("GET", path, &tag).status, 304, "{path}");
            assert_eq!(http.ask("HEAD", path, "").header("content-length"), plain.body.len().to_string());
            assert_eq!(post(&mut http, "x", "", "").status, 404);
        }
        assert_eq!(http.get("/console/none.js").status, 404);
    });
}

#[test]
fn replies_of_all_kinds_are_json() {
    on_both(&[], |_, mut client, at| {
        client.expect("SET n 7", "+OK");
        client.expect("HSET h f v", ":1");
        client.expect("ZADD z 1.5 m", ":1");
        client.request(&[b"SET", b"bin", b"\xff\x00"]);
        client.expect_reply("+OK");
        client.expect("SETBIT big 0 1", ":0");
        let mut http = Http::to(at);
        let all = run(
            &mut http,
            "",
            r#"[["GET","n"],["GET","none"],["HGETALL","h"],["ZSCORE","z","m"],["GET","bin"],["GET",{"b64":"Ymlu"}],["STRLEN","n"],["PING"],["NOPE"],["GET"],["LRANGE","l",0,-1]]"#,
        );
        let expected = concat!(
            r#"["7",null,{"map":[["f","v"]]},1.5,{"b64":"/wA="},{"b64":"/wA="},1,"PONG","#,
            r#"{"error":"ERR unknown command 'NOPE', with args beginning with: "},"#,
            r#"{"error":"ERR wrong number of arguments for 'get' command"},[]]"#
        );
        assert_eq!(all, expected);
        assert_eq!(run(&mut http, "", "[]"), "[]");
        // The database is a parameter, and the next request begins at 0 again.
        client.expect("SELECT 3", "+OK");
        client.expect("SET only there", "+OK");
        assert_eq!(post(&mut http, "commands?db=3", CONSOLE, r#"[["GET","only"]]"#).text(), r#"["there"]"#);
        assert_eq!(run(&mut http, "", r#"[["GET","only"]]"#), "[null]");
        assert_eq!(post(&mut http, "commands?db=99", CONSOLE, r#"[["GET","only"]]"#).status, 400);
    });
}

#[test]
fn names_and_values_cannot_pass_for_anything_else() {
    on_both(&[], |_, mut client, at| {
        let hostile = [
            "</script><script>alert(1)</script>",
            "\u{202e}gpj.exe",
            "a\r\nb\u{1b}[2J",
            "\"],[\"FLUSHALL\"",
            "\u{0}",
        ];
        for name in hostile {
            client.request(&[b"RPUSH", b"names", name.as_bytes()]);
            client.reply();
        }
        let long = "x".repeat(1 << 18);
        client.request(&[b"SET", long.as_bytes(), long.as_bytes()]);
        client.expect_reply("+OK");
        let mut http = Http::to(at);
        let names = run(&mut http, "", r#"[["LRANGE","names","0","-1"]]"#);
        assert!(
            names.bytes().all(|byte| byte >= 0x20)
                && !names.contains('\u{202e}')
                && names.contains("\\u202egpj")
        );
        assert!(names.contains("\\\"],[\\\"FLUSHALL\\\"") && names.contains("\\u001b[2J"));
        let keys = run(&mut http, "", r#"[["KEYS","x*"]]"#);
        assert!(
            keys.len() < 70_000 && keys.ends_with(&format!("\"bytes\":{}}}]]", 1 << 18)),
            "{} bytes",
            keys.len()
        );
    });
}

#[test]
fn a_long_reply_comes_in_pieces() {
    on_both(&[], |_, mut client, at| {
        let words: Vec<String> = (0..60_000).map(|n| format!("element-{n:08}")).collect();
        for some in words.chunks(1000) {
            let args: Vec<&[u8]> =
                [&b"RPUSH"[..], b"l"].into_iter().chain(some.iter().map(String::as_bytes)).collect();
            client.request(&args);
            client.reply();
        }
        let expected = format!("[[\"{}\"],\"PONG\"]", words.join("\",\""));
        let mut http = Http::to(at);
        let body = r#"[["LRANGE","l","0","-1"],["PING"]]"#;
        let response = post(&mut http, "commands", CONSOLE, body);
        assert_eq!(response.header("transfer-encoding"), "chunked");
        assert!(response.text() == expected, "{} bytes", response.body.len());
        assert_eq!(run(&mut http, "", r#"[["PING"]]"#), r#"["PONG"]"#);
        let mut old = Http::to(at);
        old.send(format!(
            "POST /api/v1/commands HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{CONSOLE}\r\n{body}",
            body.len()
        ));
        assert!(old.response().text() == expected);
    });
}

#[test]
fn a_body_may_come_in_any_pieces_and_is_limited() {
    on_both(&[], |_, _, at| {
        let body = r#"[["ECHO","a"]]"#;
        let head = |more: &str, length: usize| {
            format!(
                "POST /api/v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{CONSOLE}{more}\
                 Content-Length: {length}\r\n\r\n"
            )
        };
        let mut http = Http::to(at);
        for byte in format!("{}{body}", head("", body.len())).bytes() {
            http.send([byte]);
        }
        http.response().expect(200, r#"["a"]"#);
        // Two at once are answered in order.
        http.send(format!("{}{body}{}{body}", head("", body.len()), head("", body.len())));
        http.response().expect(200, r#"["a"]"#);
        http.response().expect(200, r#"["a"]"#);
        // A client that waits is told to go on.
        http.send(head("Expect: 100-continue\r\n", body.len()));
        assert_eq!(http.line(), "HTTP/1.1 100 Continue");
        assert_eq!(http.line(), "");
        http.send(body);
        http.response().expect(200, r#"["a"]"#);
        let word = "a".repeat(60_000);
        let response =
            post(&mut http, "commands", CONSOLE, &format!(r#"[["STRLEN","x"],["ECHO","{word}"]]"#));
        assert!(response.text() == format!("[0,\"{word}\"]"));
        for (body, status) in [
            ("", 400),
            ("{}", 400),
            (r#"[["GET","a"]"#, 400),
            (r#"[[]]"#, 400),
            (&format!("[{}]", vec![r#"["PING"]"#; 65].join(",")), 400),
        ] {
            assert_eq!(post(&mut http, "commands", CONSOLE, body).status, status, "{body}");
        }
        http.send(head("", 64 * 1024 + 1));
        assert_eq!(http.response().status, 413);
    });
}

#[test]
fn no_page_of_another_site_gets_an_answer() {
    on_both(&[], |_, mut client, at| {
        client.expect("SET secret x", "+OK");
        let mut http = Http::to(at);
        let get = r#"[["GET","secret"]]"#;
        for lines in [
            "Origin: http://evil.example\r\n",
            "Origin: null\r\n",
            "Origin: http://localhost.evil.example\r\n",
            "Sec-Fetch-Site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
        ] {
            assert_eq!(post(&mut http, "commands", &format!("{CONSOLE}{lines}"), get).status, 403, "{lines}");
            assert_eq!(http.ask("GET", "/api/v1/login", lines).status, 403, "{lines}");
        }
        let own = "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n";
        assert_eq!(run(&mut http, own, get), r#"["x"]"#);
        // A form, or a script of another site, can send these unasked.
        assert_eq!(post(&mut http, "commands", "", get).status, 403);
        http.send(format!(
            "POST /api/v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n{CONSOLE}Content-Length: {}\r\n\r\n{get}",
            get.len()
        ));
        assert_eq!(http.response().status, 415);
        for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
            let response = http.ask(method, "/api/v1/commands", "");
            assert_eq!((response.status, response.header("allow")), (405, "POST"), "{method}");
            assert!(!response.headers.keys().any(|name| name.starts_with("access-control")));
        }
        // A name of another site that points here.
        for host in ["evil.example", "localhost.evil.example:80"] {
            for path in ["/", "/api/v1/login", "/console/app.js", "/api/v1/now"] {
                http.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\n\r\n"));
                assert_eq!(http.response().status, 421, "{host}{path}");
            }
        }
        client.expect("CONFIG SET http-hosts evil.example", "+OK");
        http.send("GET /api/v1/login HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert_eq!(http.response().status, 200);
    });
}

#[test]
fn a_cookie_is_a_session_of_its_user() {
    on_both(&["--requirepass", "secret"], |_, mut client, at| {
        client.expect("AUTH secret", "+OK");
        client.expect("ACL SETUSER ann on >pass ~app:* +@all", "+OK");
        let mut http = Http::to(at);
        let who = |http: &mut Http, lines: &str| http.ask("GET", "/api/v1/login", lines);
        assert_eq!(who(&mut http, "").status, 401);
        assert_eq!(post(&mut http, "commands", CONSOLE, r#"[["PING"]]"#).status, 401);
        for (user, password) in [("ann", "wrong"), ("none", "pass"), ("", "pass"), ("ann", "")] {
            let body = format!("{{\"user\":\"{user}\",\"password\":\"{password}\"}}");
            let status = post(&mut http, "login", CONSOLE, &body).status;
            assert!(matches!(status, 401 | 429), "{user} {password}: {status}");
        }
        assert!(client.call("ACL LOG").contains("ann"), "a login that failed is logged");
        let cookie = retried(|| {
            let response = post(&mut http, "login", CONSOLE, r#"{"user":"ann","password":"pass"}"#);
            (response.status == 200).then(|| response.header("set-cookie").to_owned())
        });
        for part in ["evenkeel=", "; Path=/", "; HttpOnly", "; SameSite=Strict"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        assert!(!cookie.contains("Secure"), "without TLS a browser would not keep it");
        let line = format!("Cookie: other=1; {}\r\n", cookie.split(';').next().expect("a pair"));
        let mine = who(&mut http, &line);
        assert!(mine.text().contains(r#""user":"ann","by":"cookie","writes":"no""#), "{}", mine.text());
        // The same connection without the cookie is nobody again.
        assert_eq!(who(&mut http, "").status, 401);
        assert_eq!(http.get("/items/1").status, 401);
        for wrong in [
            "Cookie: evenkeel=\r\n",
            "Cookie: evenkeel=00000000000000000000000000000000\r\n",
            "Cookie: evenkeel=x\r\n",
        ] {
            assert_eq!(who(&mut http, wrong).status, 401, "{wrong}");
        }
        // Another user, or the same with other rights, is no longer the one who logged in.
        client.expect("ACL SETUSER bob on >x", "+OK");
        assert_eq!(who(&mut http, &line).status, 200);
        client.expect("ACL SETUSER ann +get", "+OK");
        assert_eq!(who(&mut http, &line).status, 401);
        let line = log_in(&mut http, "ann", "pass");
        assert_eq!(who(&mut http, &line).status, 200);
        let left = post(&mut http, "logout", &format!("{CONSOLE}{line}"), "{}");
        assert!(left.header("set-cookie").contains("Max-Age=0"), "{}", left.header("set-cookie"));
        assert_eq!(who(&mut http, &line).status, 401);
    });
}

/// Tries until it works; a second in which logins failed too often passes.
fn retried<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let started = std::time::Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(started.elapsed() < crate::support::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn who_guesses_passwords_is_not_asked_for_more() {
    on_both(&["--requirepass", "secret"], |_, _, at| {
        let mut http = Http::to(at);
        let body = r#"{"password":"guess"}"#;
        let one = format!(
            "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{CONSOLE}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        // Sixty at once take less than ten seconds, so in one second there are more than five.
        http.send(one.repeat(60));
        let statuses: Vec<u16> = (0..60).map(|_| http.response().status).collect();
        assert!(statuses.iter().all(|status| matches!(status, 401 | 429)), "{statuses:?}");
        assert!(statuses[..5].iter().all(|status| *status == 401) && statuses.contains(&429), "{statuses:?}");
    });
}

#[test]
fn the_console_only_reads_unless_writes_are_allowed() {
    on_both(&["--requirepass", "secret"], |_, mut client, at| {
        client.expect("AUTH secret", "+OK");
        let mut http = Http::to(at);
        let cookie = log_in(&mut http, "default", "secret");
        let set = r#"[["SET","k","v"],["EVAL","return redis.call('set','k','v')","0"],["CONFIG","SET","maxclients","99"],["PUBLISH","a","b"]]"#;
        let refused = run(&mut http, &cookie, set);
        assert_eq!(refused.matches("READONLY").count(), 4, "{refused}");
        assert_eq!(
            run(&mut http, &cookie, r#"[["GET","k"],["CONFIG","GET","maxclients"]]"#),
            r#"[null,{"map":[["maxclients","10000"]]}]"#
        );
        assert_eq!(
            run(&mut http, &cookie, r#"[["EVENKEEL","SOURCE","LIST"],["ACL","USERS"]]"#),
            r#"[[],["default"]]"#
        );
        assert!(run(&mut http, &cookie, r#"[["EVENKEEL","SOURCE","REMOVE","x"]]"#).contains("READONLY"));
        let allow = |http: &mut Http, body: &str| post(http, "writes", &format!("{CONSOLE}{cookie}"), body);
        assert_eq!(allow(&mut http, r#"{"allow":true}"#).status, 403);
        client.expect("CONFIG SET console-writes yes", "+OK");
        assert!(run(&mut http, &cookie, set).contains("READONLY"), "the user has not allowed it yet");
        assert!(allow(&mut http, r#"{"allow":true}"#).text().contains(r#""writes":"yes""#));
        assert_eq!(run(&mut http, &cookie, r#"[["SET","k","v"],["GET","k"]]"#), r#"["OK","v"]"#);
        assert!(allow(&mut http, r#"{"allow":false}"#).text().contains(r#""writes":"locked""#));
        assert!(run(&mut http, &cookie, r#"[["DEL","k"]]"#).contains("READONLY"));
        allow(&mut http, r#"{"allow":true}"#);
        client.expect("CONFIG SET console-writes no", "+OK");
        assert!(run(&mut http, &cookie, r#"[["DEL","k"]]"#).contains("READONLY"));
        // A program with a token does what its user may.
        let token = "Authorization: Bearer secret\r\n";
        assert_eq!(post(&mut http, "commands", token, r#"[["DEL","k"]]"#).text(), "[1]");
        assert_eq!(post(&mut http, "writes", token, r#"{"allow":true}"#).status, 403);
    });
}

#[test]
fn nothing_about_a_connection_runs() {
    on_both(&[], |_, mut client, at| {
        let mut http = Http::to(at);
        for command in [
            "SUBSCRIBE",
            "MONITOR",
            "MULTI",
            "SELECT",
            "AUTH",
            "HELLO",
            "CLIENT\",\"REPLY",
            "QUIT",
            "RESET",
            "PSYNC",
        ] {
            let words = format!("[[\"{command}\",\"1\"],[\"{command}\"],[\"{command}\",\"1\",\"1\"]]");
            let replies = run(&mut http, "", &words);
            assert_eq!(replies.matches("{\"error\":").count(), 3, "{command}: {replies}");
        }
        assert_eq!(run(&mut http, "", r#"[["PING"]]"#), r#"["PONG"]"#);
        client.expect("PUBSUB CHANNELS", "[]");
    });
}

#[test]
fn a_command_that_waits_is_served_or_given_up_and_holds_nobody() {
    on_both(&["--event-loops", "1"], |_, mut client, at| {
        client.expect("CONFIG SET console-writes yes", "+OK");
        let mut http = Http::to(at);
        let cookie = log_in(&mut http, "default", "");
        post(&mut http, "writes", &format!("{CONSOLE}{cookie}"), r#"{"allow":true}"#);
        let body = r#"[["BLPOP","queue","0"],["PING"],["BLPOP","empty","0"],["PING"]]"#;
        http.send(format!(
            "POST /api/v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{CONSOLE}{cookie}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        while !client.call("INFO clients").contains("blocked_clients:1\\r\\n") {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // On the same loop others are served meanwhile.
        client.expect("RPUSH queue job", ":1");
        http.response().expect(200, r#"[["queue","job"],"PONG",null,"PONG"]"#);
        client.expect("INFO nosuch", "\"\"");
        // One that cannot be taken back ends with its connection.
        let response =
            post(&mut http, "commands", &format!("{CONSOLE}{cookie}"), r#"[["WAIT","3","0"],["PING"]]"#);
        assert!(
            response.text().contains("error") || response.text().starts_with("[0,"),
            "{}",
            response.text()
        );
        client.expect("PING", "+PONG");
    });
}

/// The next event of a stream: its name and its data.
fn event(http: &mut Http) -> (String, String) {
    let (mut name, mut data) = (String::new(), String::new());
    loop {
        let length = usize::from_str_radix(&http.line(), 16).expect("the length of a chunk");
        let chunk = String::from_utf8(http.take(length)).expect("text");
        http.take(2);
        for line in chunk.lines() {
            match line.split_once(": ") {
                Some(("event", text)) => text.clone_into(&mut name),
                Some(("data", text)) => text.clone_into(&mut data),
                _ => {}
            }
        }
        let is_comment = chunk.starts_with(':');
        if chunk.ends_with("\n\n") && !is_comment || length == 0 {
            return (name, data);
        }
    }
}

/// The next event of a stream that is no news: on a busy machine clients wait.
fn second(http: &mut Http) -> (String, String) {
    loop {
        let (name, data) = event(http);
        if !["wait", "incident", "mark"].contains(&name.as_str()) {
            return (name, data);
        }
    }
}

/// The requests of the last minute that took a second or more, by the heat of EVENKEEL NOW.
fn stream_latencies(http: &mut Http, lines: &str) -> u64 {
    let now = http.ask("GET", "/api/v1/now", lines);
    let minute = now.text().split("\"minute\":{\"heat\":[").nth(1).expect("a minute").to_owned();
    let heat = minute.split(']').next().expect("its end");
    let counts: Vec<u64> = heat.split(',').map(|n| n.parse().expect("a number")).collect();
    assert!(counts.len() == 24 && counts.iter().sum::<u64>() > 0, "{heat}");
    counts[21..].iter().sum()
}

#[test]
fn a_stream_tells_each_second_until_its_session_ends() {
    on_both(&["--requirepass", "secret"], |_, mut client, at| {
        client.expect("AUTH secret", "+OK");
        client.expect("ACL SETUSER ann on >pass -@all +evenkeel|now", "+OK");
        client.expect("ACL SETUSER bob on >pass -@all +get ~*", "+OK");
        let mut http = Http::to(at);
        let (ann, bob) = (log_in(&mut http, "ann", "pass"), log_in(&mut http, "bob", "pass"));
        for path in [
            "stream",
            "now",
            "history?from=-1000&to=0",
            "flows?from=-1000&to=0",
            "records?from=-1000&to=0",
            "incidents",
        ] {
            assert_eq!(http.ask("GET", &format!("/api/v1/{path}"), &bob).status, 403, "{path}");
            assert_eq!(http.get(&format!("/api/v1/{path}")).status, 401, "{path}");
        }
        assert_eq!(
            http.ask("GET", "/api/v1/history?from=x&to=0", "Authorization: Bearer secret\r\n").status,
            400
        );
        let mut stream = Http::to(at);
        stream.send(format!("GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n{ann}\r\n"));
        assert!(stream.line().starts_with("HTTP/1.1 200"));
        while !stream.line().is_empty() {}
        assert_eq!(event(&mut stream).0, "hello");
        for _ in 0..6 {
            let (name, data) = second(&mut stream);
            assert!(
                name == "second" && data.starts_with("{\"time_ms\":") && data.contains("\"edges\":["),
                "{name} {data}"
            );
        }
        // Each second's figures are a request of their own, however long the stream is open.
        let slow = stream_latencies(&mut http, "Authorization: Bearer secret\r\n");
        assert!(slow < 3, "{slow} requests of a second and more, of six events");
        // Others on any loop are served beside it, and a session that ends ends its stream.
        client.expect("PING", "+PONG");
        client.expect("ACL SETUSER ann +get", "+OK");
        while event(&mut stream) != (String::new(), String::new()) {}
        stream.expect_end();
    });
}

#[test]
fn a_stream_tells_waits_incidents_and_marks_as_they_come() {
    if foreign() {
        return;
    }
    let (server, at) = Server::start_http(&["--event-loops", "2"]);
    server.client().expect("DEBUG POINT accept HOLD 0", "+OK");
    let mut control = server.client();
    control.expect("DEBUG POINT accept OFF", "+OK");
    let (mut culprit, _) = astray(&server, &mut control, "the-culprit");
    let (mut victim, _) = astray(&server, &mut control, "the-victim");
    let mut stream = Http::to(at);
    stream.send("GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while !stream.line().is_empty() {}
    let (mut told, mut waits) = (Vec::new(), Vec::new());
    for round in 0..40 {
        if round % 5 == 0 {
            control.expect("CONFIG SET maxmemory 1gb", "+OK");
            stall_for(Duration::from_millis(15), &mut control, &mut culprit, &mut victim);
        }
        let (name, data) = event(&mut stream);
        if name == "wait" && data.contains("\"name\":\"the-victim\"") {
            waits.push(data.clone());
        }
        if name == "mark" && data.contains("CONFIG SET maxmemory 1073741824")
            || name == "incident" && data.contains("\"longest_us\":")
            || name == "wait" && data.contains("the-culprit")
        {
            told.push(name);
        }
        if ["wait", "incident", "mark"].iter().all(|name| told.iter().any(|one| one == name)) {
            break;
        }
    }
    for name in ["wait", "incident", "mark"] {
        assert!(told.iter().any(|one| one == name), "no {name} in {told:?}, {waits:?}");
    }
    // Each wait is told once.
    let ids: Vec<&str> = waits.iter().filter_map(|wait| wait.split(',').next()).collect();
    assert!(ids.iter().all(|id| ids.iter().filter(|other| *other == id).count() == 1), "{ids:?}");
}

#[test]
fn there_are_at_most_64_streams() {
    on_both(&[], |_, mut client, at| {
        let ask = "GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut streams: Vec<Http> = (0..64).map(|_| Http::to(at)).collect();
        for stream in &mut streams {
            stream.send(ask);
            assert!(stream.line().starts_with("HTTP/1.1 200"));
        }
        let mut more = Http::to(at);
        assert_eq!(more.get("/api/v1/stream").status, 503);
        drop(streams.pop());
        retried(|| {
            let mut again = Http::to(at);
            again.send(ask);
            again.line().starts_with("HTTP/1.1 200").then_some(())
        });
        client.expect("PING", "+PONG");
    });
}

#[test]
fn a_reader_that_is_slow_holds_nobody_and_little_memory() {
    on_both(&["--event-loops", "1"], |_, mut client, at| {
        let element = "e".repeat(1000);
        for _ in 0..20 {
            let args: Vec<&[u8]> =
                [&b"RPUSH"[..], b"l"].into_iter().chain((0..1000).map(|_| element.as_bytes())).collect();
            client.request(&args);
            client.reply();
        }
        let body = r#"[["LRANGE","l","0","-1"]]"#;
        let mut slow: Vec<Http> = (0..4).map(|_| Http::to(at)).collect();
        for http in &mut slow {
            http.send(format!(
                "POST /api/v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{CONSOLE}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
        // Twenty megabytes each, of which nothing is read.
        let most = |list: &str| {
            let sizes =
                list.split("tot-mem=").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
            sizes.max().expect("a size")
        };
        for _ in 0..200 {
            client.expect("PING", "+PONG");
        }
        let list = client.call("CLIENT LIST");
        assert!(most(&list) < 2_000_000, "{list}");
        for http in &mut slow {
            let response = http.response();
            assert_eq!(response.body.len(), 20_000 * 1003 + 3);
        }
    });
}

#[test]
fn words_of_others_are_shown_to_those_who_may_read_all_keys() {
    on_both(&["--requirepass", "secret"], |_, mut client, at| {
        client.expect("AUTH secret", "+OK");
        client.expect("ACL SETUSER app on >pass ~app:* +@all", "+OK");
        client.expect("EVAL \"local n = 0 for i = 1, 3000000 do n = n + i end return 1\" 1 other:1", ":1");
        let mut http = Http::to(at);
        let (all, app) = (log_in(&mut http, "default", "secret"), log_in(&mut http, "app", "pass"));
        let records = "/api/v1/records?from=-60000&to=0";
        retried(|| http.ask("GET", records, &all).text().contains("other:1").then_some(()));
        let seen = http.ask("GET", records, &app);
        assert!(
            seen.text().contains("\"command\":\"eval\"") && !seen.text().contains("other:1"),
            "{}",
            seen.text()
        );
        for path in ["now", "history?from=-60000&to=0&columns=5", "flows?from=-60000&to=0", "incidents"] {
            let response = http.ask("GET", &format!("/api/v1/{path}"), &app);
            assert!(
                response.status == 200 && !response.text().contains("other:1"),
                "{path}: {}",
                response.text()
            );
        }
    });
}

#[test]
fn each_command_passes_the_rights_of_its_own_user() {
    on_both(&["--requirepass", "secret"], |_, mut client, at| {
        client.expect("AUTH secret", "+OK");
        client.expect("ACL SETUSER app on >pass ~app:* +@all", "+OK");
        client.expect("MSET app:1 mine other:1 hidden", "+OK");
        client.expect("CONFIG SET slowlog-log-slower-than 0", "+OK");
        client.expect("GET other:1", "\"hidden\"");
        let mut http = Http::to(at);
        let cookie = log_in(&mut http, "app", "pass");
        for words in [
            r#"["GET","other:1"]"#,
            r#"["SCAN","0"]"#,
            r#"["SCAN","0","MATCH","*"]"#,
            r#"["KEYS","*"]"#,
            r#"["RANDOMKEY"]"#,
            r#"["SLOWLOG","GET"]"#,
            r#"["MEMORY","USAGE","other:1"]"#,
            r#"["EVAL_RO","return redis.call('keys','*')","0"]"#,
            r#"["OBJECT","ENCODING","other:1"]"#,
            r#"["EVENKEEL","WAITS"]"#,
            r#"["DUMP","other:1"]"#,
            r#"["SORT_RO","app:1","BY","other:*"]"#,
            r#"["MGET","app:1","other:1"]"#,
            r#"["CLIENT","LIST"]"#,
            r#"["INFO"]"#,
        ] {
            let reply = run(&mut http, &cookie, &format!("[{words}]"));
            assert!(!reply.contains("hidden") && !reply.contains("other"), "{words}: {reply}");
        }
        let found =
            run(&mut http, &cookie, r#"[["SCAN","0","MATCH","app:*"],["GET","app:1"],["KEYS","app:*"]]"#);
        assert_eq!(found, r#"[["0",["app:1"]],"mine",["app:1"]]"#);
        for path in [
            "now",
            "history?from=-60000&to=0",
            "flows?from=-60000&to=0",
            "records?from=-60000&to=0",
            "incidents",
        ] {
            let response = http.ask("GET", &format!("/api/v1/{path}"), &cookie);
            assert!(!response.text().contains("other:1"), "{path}: {}", response.text());
        }
        client.expect("ACL SETUSER app -@all +get", "+OK");
        let cookie = log_in(&mut http, "app", "pass");
        let replies = run(&mut http, &cookie, r#"[["GET","app:1"],["INFO"],["STRLEN","app:1"]]"#);
        assert!(
            replies.starts_with("[\"mine\",{\"error\":\"NOPERM") && replies.matches("NOPERM").count() == 2,
            "{replies}"
        );
    });
}
