//! MIGRATE between two servers.

use crate::support::{Server, foreign, free_port};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn migrate(to: &Server, rest: &str) -> String {
    format!("MIGRATE 127.0.0.1 {} {rest}", to.addr.port())
}

#[test]
fn a_key_moves_with_its_time_to_live() {
    let (here, there) = (Server::start(), Server::start());
    let (mut a, mut b) = (here.client(), there.client());
    a.expect("RPUSH list a 1 b", ":3");
    a.expect("PEXPIRE list 1000000", ":1");
    a.expect(&migrate(&there, "list 0 60000"), "+OK");
    a.expect("EXISTS list", ":0");
    b.expect("LRANGE list 0 -1", r#"["a", "1", "b"]"#);
    assert_ne!(b.call("PTTL list"), ":-1");
    a.expect(&migrate(&there, "list 0 60000"), "+NOKEY");
    b.expect(&migrate(&here, "list 3 60000 COPY"), "+OK");
    b.expect("LLEN list", ":3");
    a.expect("SELECT 3", "+OK");
    a.expect("LLEN list", ":3");
}

#[test]
fn many_keys_move_and_those_that_are_taken_stay() {
    let (here, there) = (Server::start(), Server::start());
    let (mut a, mut b) = (here.client(), there.client());
    a.expect("MSET a 1 b 2 c 3", "+OK");
    b.expect("SET b 9", "+OK");
    let busy = "-ERR Target instance replied with error: BUSYKEY Target key name already exists.";
    a.request(&[
        b"MIGRATE",
        b"127.0.0.1",
        there.addr.port().to_string().as_bytes(),
        b"",
        b"0",
        b"60000",
        b"KEYS",
        b"a",
        b"b",
        b"c",
        b"none",
    ]);
    assert_eq!(a.reply(), busy);
    a.expect("EXISTS a b c", ":1");
    b.expect("MGET a b c", r#"["1", "9", "3"]"#);
    a.expect(&migrate(&there, "b 0 60000 REPLACE"), "+OK");
    b.expect("GET b", "\"2\"");
    a.expect("DBSIZE", ":0");
}

#[test]
fn passwords_are_given() {
    let (here, there) = (Server::start(), Server::start_with(&["--requirepass", "secret"]));
    let mut a = here.client();
    a.expect("SET k v", "+OK");
    let error = |text: &str| format!("-ERR Target instance replied with error: {text}");
    a.expect(&migrate(&there, "k 0 60000"), &error("NOAUTH Authentication required."));
    let wrong = error("WRONGPASS invalid username-password pair or user is disabled.");
    a.expect(&migrate(&there, "k 0 60000 AUTH wrong"), &wrong);
    a.expect(&migrate(&there, "k 99 60000 AUTH secret"), &error("ERR DB index is out of range"));
    a.expect(&migrate(&there, "k 0 60000 COPY AUTH secret"), "+OK");
    a.expect(&migrate(&there, "k 0 60000 REPLACE AUTH2 default secret"), "+OK");
    a.expect("EXISTS k", ":0");
}

#[test]
fn nobody_waits_for_a_server_that_does_not_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("its address").port();
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.expect("SET k v", "+OK");
    client.request(&[b"MIGRATE", b"127.0.0.1", port.to_string().as_bytes(), b"k", b"0", b"500"]);
    // The other server has been asked by now, and is silent.
    let (mut asked, _) = silent.accept().expect("a connection");
    let mut first = [0; 1];
    asked.read_exact(&mut first).expect("a request");
    for i in 0..100 {
        other.expect(&format!("SET other {i}"), "+OK");
    }
    other.expect("GET k", "\"v\"");
    assert_eq!(client.reply(), "-IOERR error or timeout reading to target instance");
    client.expect("GET k", "\"v\"");
}

/// A server that answers with these lines, one after the other, and then closes. Returns what it was sent.
fn scripted(lines: &'static [&'static str]) -> (u16, std::thread::JoinHandle<String>) {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = target.local_addr().expect("its address").port();
    let told = std::thread::spawn(move || {
        let (mut asked, _) = target.accept().expect("a connection");
        let (mut told, mut bytes, mut answered) = (Vec::new(), [0; 4096], 0);
        while answered < lines.len() {
            let len = asked.read(&mut bytes).expect("a command");
            told.extend_from_slice(&bytes[..len]);
            let commands = told.windows(2).filter(|two| two[0] == b'*' && two[1].is_ascii_digit()).count();
            for line in lines.iter().take(commands).skip(answered) {
                asked.write_all(format!("{line}\r\n").as_bytes()).expect("an answer");
                answered += 1;
            }
            assert!(len > 0, "it went after {commands} commands");
        }
        String::from_utf8_lossy(&told).into_owned()
    });
    (port, told)
}

/// When something goes wrong in the middle of MIGRATE, its keys fare as on a real server.
#[test]
fn keys_that_were_taken_are_gone_whatever_becomes_of_the_others() {
    const READING: &str = "-IOERR error or timeout reading to target instance";
    const BUSY: &str = "-ERR Target instance replied with error: BUSYKEY there";
    let cases: [(&[&str], &str, &str); 5] = [
        (&["+OK", "+OK", "+OK", "+OK"], "+OK", "[(nil), (nil), (nil)]"),
        (&["+OK", "+OK", "-BUSYKEY there", "+OK"], BUSY, "[(nil), \"2\", (nil)]"),
        (&["+OK", "-BUSYKEY there", "+OK", "-OTHER"], BUSY, "[\"1\", (nil), \"3\"]"),
        (&["+OK", "+OK"], READING, "[(nil), \"2\", \"3\"]"),
        // Its objection counts more than its end.
        (&["+OK", "+OK", "-BUSYKEY there"], BUSY, "[(nil), \"2\", \"3\"]"),
    ];
    for server in [Some(Server::start()), Server::redis(&[])].into_iter().flatten() {
        let mut client = server.client();
        for (lines, reply, left) in cases {
            client.expect("MSET a 1 b 2 c 3", "+OK");
            let (port, told) = scripted(lines);
            client.expect(&format!("MIGRATE 127.0.0.1 {port} \"\" 0 60000 KEYS a none b c"), reply);
            client.expect("MGET a b c", left);
            let told = told.join().expect("it was asked");
            assert_eq!(
                told.matches("RESTORE").count(),
                3,
                "all keys are under way before the first is answered: {told}"
            );
        }
    }
}

/// The other server is asked what it is only if its kind matters for a value: once, and after the login.
#[test]
fn fields_that_expire_are_written_for_who_is_there() {
    if foreign() {
        return;
    }
    const VALKEY: &str = "*4\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n9.1.2";
    const REDIS: &str = "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n8.0.6";
    const READING: &str = "-IOERR error or timeout reading to target instance";
    const NO: &str = "-ERR Target instance replied with error: NO";
    const WRONGPASS: &str = "-ERR Target instance replied with error: WRONGPASS no";
    // The beginning of such a payload, by server.
    let (for_redis, for_valkey) = (Some("\r\n\u{18}"), Some("\r\n\u{16}"));
    let cases: [(&[&str], &str, Option<&str>); 8] = [
        (&["+OK", "+OK", VALKEY, "+OK", "+OK", "+OK"], "+OK", for_valkey),
        (&["+OK", "+OK", REDIS, "+OK", "+OK", "+OK"], "+OK", for_redis),
        (&["+OK", "+OK", REDIS, "+OK", "-NO", "+OK"], NO, for_redis),
        (&["+OK", "+OK", "-ERR unknown command", "+OK", "+OK", "+OK"], "+OK", for_redis),
        // Neither a reply nor a whole one.
        (&["+OK", "+OK", "hello"], READING, None),
        (&["+OK", "+OK", "*1000000000"], READING, None),
        (&["+OK", "+OK"], READING, None),
        (&["-WRONGPASS no", "-NOAUTH no", "-NOAUTH no"], WRONGPASS, None),
    ];
    let server = Server::start();
    let mut client = server.client();
    for (lines, reply, written) in cases {
        client.expect("DEL a h i", ":0");
        client.expect("SET a 1", "+OK");
        for key in ["h", "i"] {
            client.expect(&format!("HSET {key} f v g w"), ":2");
            client.expect(&format!("HPEXPIREAT {key} 1900000000000 FIELDS 1 f"), "[:1]");
        }
        let (port, told) = scripted(lines);
        client.expect(&format!("MIGRATE 127.0.0.1 {port} \"\" 0 60000 AUTH secret KEYS a h i"), reply);
        let told = told.join().expect("it was asked");
        let places = ["AUTH", "SELECT", "HELLO", "RESTORE"].map(|word| told.find(word));
        assert!(places[..3].is_sorted() && places[0].is_some(), "{told}");
        assert_eq!(told.matches("HELLO").count(), 1, "{told}");
        assert_eq!(written.is_some(), places[3].is_some_and(|at| Some(at) > places[2]), "{told}");
        if let Some(written) = written {
            assert_eq!(told.matches(written).count(), 2, "{told}");
        }
        let left = match (written, reply) {
            (None, _) => ":3",
            (_, NO) => ":1",
            _ => ":0",
        };
        client.expect("EXISTS a h i", left);
        client.expect("FLUSHALL", "+OK");
    }
    // It is not asked about a value that all read alike.
    client.expect("HSET h f v", ":1");
    let (port, told) = scripted(&["+OK", "+OK"]);
    client.expect(&format!("MIGRATE 127.0.0.1 {port} h 0 60000"), "+OK");
    let told = told.join().expect("it was asked");
    assert!(!told.contains("HELLO"), "{told}");
}

#[test]
fn nobody_waits_for_who_does_not_end_to_say_who_he_is() {
    if foreign() {
        return;
    }
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = target.local_addr().expect("its address").port();
    let talking = std::thread::spawn(move || {
        let (mut asked, _) = target.accept().expect("a connection");
        asked.write_all(b"+OK\r\n*1000000\r\n").expect("an answer");
        // Each word comes in time.
        while asked.write_all(b":1\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let server = Server::start();
    let mut client = server.client();
    client.expect("HSET h f v", ":1");
    client.expect("HPEXPIREAT h 1900000000000 FIELDS 1 f", "[:1]");
    let began = Instant::now();
    let reading = "-IOERR error or timeout reading to target instance";
    client.expect(&format!("MIGRATE 127.0.0.1 {port} h 0 500"), reading);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    client.expect("EXISTS h", ":1");
    talking.join().expect("it went");
}

#[test]
fn fields_keep_their_times() {
    if foreign() {
        return;
    }
    let (here, there) = (Server::start(), Server::start());
    let (mut a, mut b) = (here.client(), there.client());
    a.expect("HSET h f v g 1 \"\" \"\"", ":3");
    a.expect("HPEXPIREAT h 1900000000000 FIELDS 2 f g", "[:1, :1]");
    a.expect(&migrate(&there, "h 0 60000"), "+OK");
    b.expect("HPEXPIRETIME h FIELDS 3 f g \"\"", "[:1900000000000, :1900000000000, :-1]");
    b.expect("HMGET h f g \"\"", r#"["v", "1", ""]"#);
}

#[test]
fn very_many_keys_move() {
    let (here, there) = (Server::start(), Server::start());
    let (mut a, mut b) = (here.client(), there.client());
    let keys: Vec<String> = (0..3000).map(|i| format!("key:{i}")).collect();
    let pairs: Vec<String> = keys.iter().map(|key| format!("{key} {}", key.repeat(30))).collect();
    a.expect(&format!("MSET {}", pairs.join(" ")), "+OK");
    b.expect("SET key:1234 taken", "+OK");
    let busy = "-ERR Target instance replied with error: BUSYKEY Target key name already exists.";
    a.expect(&migrate(&there, &format!("\"\" 0 60000 KEYS {}", keys.join(" "))), busy);
    a.expect("DBSIZE", ":1");
    b.expect("DBSIZE", ":3000");
    b.expect("STRLEN key:2999", &format!(":{}", 30 * "key:2999".len()));
}

#[test]
fn who_changes_a_key_while_it_moves_does_not_lose_the_change() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = target.local_addr().expect("its address").port();
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.expect("SET k old", "+OK");
    client.request(&[b"MIGRATE", b"127.0.0.1", port.to_string().as_bytes(), b"k", b"0", b"20000"]);
    let mut serve = |change: bool| {
        let (mut asked, _) = target.accept().expect("a connection");
        let mut bytes = [0; 4096];
        assert!(asked.read(&mut bytes).expect("SELECT") > 0);
        asked.write_all(b"+OK\r\n").expect("an answer");
        let len = asked.read(&mut bytes).expect("RESTORE");
        if change {
            other.expect("SET k new", "+OK");
        }
        asked.write_all(b"+OK\r\n").expect("an answer");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let first = serve(true);
    assert!(first.contains("old") && !first.contains("REPLACE"), "{first}");
    let second = serve(false);
    assert!(second.contains("new") && second.contains("REPLACE"), "{second}");
    client.expect_reply("+OK");
    client.expect("EXISTS k", ":0");
}

#[test]
fn mistakes_are_told_as_in_redis() {
    let server = Server::start();
    let mut client = server.client();
    let closed = free_port();
    client.expect("SET k v", "+OK");
    for (rest, reply) in [
        ("k 0 1000", "-IOERR error or timeout writing to target instance"),
        ("none 0 1000", "+NOKEY"),
        (
            "k 0 1000 KEYS a",
            "-ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
        ),
        ("k 0 x", "-ERR value is not an integer or out of range"),
        ("k x 1000", "-ERR value is not an integer or out of range"),
        ("k 0 1000 BAD", "-ERR syntax error"),
        ("k 0 1000 AUTH", "-ERR syntax error"),
        ("k 0 1000 AUTH2 a", "-ERR syntax error"),
    ] {
        client.expect(&format!("MIGRATE 127.0.0.1 {closed} {rest}"), reply);
    }
    client.expect("MULTI", "+OK");
    client.expect(&format!("MIGRATE 127.0.0.1 {closed} k 0 1000"), "+QUEUED");
    let refused = "-ERR MIGRATE waits for another server, which transactions and scripts cannot do";
    client.expect("EXEC", &format!("[{refused}]"));
}
