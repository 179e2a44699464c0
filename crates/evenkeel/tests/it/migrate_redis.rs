//! MIGRATE between Evenkeel and a real Redis, both ways, and between two real ones as the reference.

use crate::support::{Client, Server, free_port};

const PASSWORD: &[&str] = &["--requirepass", "secret"];

/// A pair of servers for each way, and two of the same kind.
fn pairs(to_options: &[&str]) -> Vec<(Server, Server)> {
    let (Some(redis), Some(other), Some(third)) =
        (Server::redis(&[]), Server::redis(to_options), Server::redis(to_options))
    else {
        return Vec::new();
    };
    let from_redis = (Server::redis(&[]).expect("another Redis"), Server::start_with(to_options));
    vec![(redis, third), (Server::start(), other), from_redis]
}

fn port(server: &Server) -> u16 {
    server.addr.port()
}

fn migrate(client: &mut Client, to: &Server, rest: &str) -> String {
    client.call(&format!("MIGRATE 127.0.0.1 {} {rest}", port(to)))
}

/// Bytes that do not repeat themselves.
fn scattered(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

fn set(client: &mut Client, key: &str, value: &[u8]) {
    client.request(&[b"SET", key.as_bytes(), value]);
    client.expect_reply("+OK");
}

/// Calls `command key word ...` with the words of `n` elements, many at a time.
fn add(client: &mut Client, command: &str, n: usize, words: impl Fn(usize) -> String) {
    for from in (0..n).step_by(500) {
        let words: Vec<String> = (from..n.min(from + 500)).map(&words).collect();
        let reply = client.call(&format!("{command} {}", words.join(" ")));
        assert!(reply.starts_with(':'), "{command}: {reply}");
    }
}

/// Makes keys of every type and encoding, some of which expire; returns their names.
fn fill(client: &mut Client) -> Vec<String> {
    client
        .expect("MSET int 12345 negative -7 most 9223372036854775807 less 007 embstr words none \"\"", "+OK");
    set(client, "raw", "all work and no play ".repeat(20).as_bytes());
    set(client, "large", "all work and no play ".repeat(50_000).as_bytes());
    set(client, "scattered", &scattered(200_000));
    client.expect("SETBIT bits 10000000 1", ":0");
    client.expect("RPUSH list a 1 \"\" -5000 9223372036854775807 007", ":6");
    add(client, "RPUSH list:large", 5_000, |i| format!("{}{i}", ["", "element"][i % 2]));
    add(client, "RPUSH list:long", 3, |i| format!("{i}").repeat(20_000));
    client.expect("SADD set:ints 3 1 -2", ":3");
    client.expect("SADD set:wide 3 1 -9223372036854775808", ":3");
    client.expect("SADD set 1 word \"\"", ":3");
    add(client, "SADD set:ints:large", 3_000, |i| format!("{}", i * 77));
    add(client, "SADD set:large", 3_000, |i| format!("{}{i}", ["", "member"][i % 2]));
    client.expect("HSET hash field value 1 2 \"\" \"\"", ":3");
    add(client, "HSET hash:large", 2_000, |i| format!("field{i} {}", i * i));
    add(client, "HSET hash:long", 3, |i| format!("{i} {}", "long".repeat(100 + i)));
    client.expect("ZADD zset -inf a 1.5 b 0 c inf d -0.1 e 3 1", ":6");
    add(client, "ZADD zset:large", 2_000, |i| format!("{} member{i}", (i as f64 - 1_000.0) / 7.0));
    let keys = client.call("KEYS *");
    let mut keys: Vec<String> =
        keys.trim_matches(['[', ']']).split(", ").map(|key| key.trim_matches('"').to_owned()).collect();
    keys.sort_unstable();
    assert_eq!(keys.len(), 23);
    for key in keys.iter().step_by(2) {
        client.expect(&format!("PEXPIRE {key} 100000000"), ":1");
    }
    keys
}

/// The elements of a reply, joined in groups of `size`.
fn elements(reply: &str, size: usize) -> Vec<String> {
    let inner = reply.strip_prefix('[').and_then(|reply| reply.strip_suffix(']')).expect("a list");
    let words: Vec<&str> = inner.split(", ").collect();
    words.chunks(size).map(|element| element.join(" ")).collect()
}

/// Members and scores as numbers, which versions of Redis write in different ways.
fn scored(reply: &str) -> Vec<String> {
    let number = |text: &str| text.trim_matches('"').parse::<f64>().expect("a score");
    let read = |pair: String| {
        let (member, score) = pair.rsplit_once(' ').expect("a member and its score");
        format!("{member} {}", number(score))
    };
    elements(reply, 2).into_iter().map(read).collect()
}

/// The contents of a key: encoding, whether it expires, and all elements, sorted if they have no order.
fn contents(client: &mut Client, key: &str) -> Vec<String> {
    let kind = client.call(&format!("TYPE {key}"));
    let mut contents = match &kind[1..] {
        "string" => vec![client.call(&format!("GET {key}"))],
        "list" => elements(&client.call(&format!("LRANGE {key} 0 -1")), 1),
        "set" => elements(&client.call(&format!("SMEMBERS {key}")), 1),
        "zset" => scored(&client.call(&format!("ZRANGE {key} 0 -1 WITHSCORES"))),
        "hash" => elements(&client.call(&format!("HGETALL {key}")), 2),
        other => panic!("{key} is {other}"),
    };
    if matches!(&kind[1..], "set" | "hash") {
        contents.sort_unstable();
    }
    let left_ms: i64 = client.call(&format!("PTTL {key}"))[1..].parse().expect("milliseconds");
    assert!(left_ms == -1 || (90_000_000..=100_000_000).contains(&left_ms), "{key}: {left_ms}");
    contents.extend([kind, format!("expires: {}", left_ms >= 0)]);
    contents
}

fn encodings(client: &mut Client, keys: &[String]) -> Vec<String> {
    keys.iter().map(|key| format!("{key}: {}", client.call(&format!("OBJECT ENCODING {key}")))).collect()
}

#[test]
fn values_of_every_type_arrive_as_they_were() {
    for (from, to) in pairs(&[]) {
        let (mut here, mut there) = (from.client(), to.client());
        let keys = fill(&mut here);
        let before: Vec<Vec<String>> = keys.iter().map(|key| contents(&mut here, key)).collect();
        // Half of them one by one, half together.
        let (single, together) = keys.split_at(keys.len() / 2);
        for key in single {
            assert_eq!(migrate(&mut here, &to, &format!("{key} 0 20000")), "+OK", "{key}");
        }
        let rest = format!("\"\" 0 20000 KEYS {}", together.join(" "));
        assert_eq!(migrate(&mut here, &to, &rest), "+OK");
        here.expect("DBSIZE", ":0");
        for (key, before) in keys.iter().zip(&before) {
            assert!(contents(&mut there, key) == *before, "{key} has changed");
        }
        // They have the encodings of keys made there; a string with a set bit has its own.
        let arrived = encodings(&mut there, &keys);
        there.expect("FLUSHALL", "+OK");
        fill(&mut there);
        assert_eq!(arrived, encodings(&mut there, &keys));
    }
}

#[test]
fn options_do_what_they_say() {
    for (from, to) in pairs(&[]) {
        let (mut here, mut there) = (from.client(), to.client());
        let busy = "-ERR Target instance replied with error: BUSYKEY Target key name already exists.";
        here.expect("MSET k v a 1 b 2 c 3", "+OK");
        assert_eq!(migrate(&mut here, &to, "k 3 60000 COPY"), "+OK");
        here.expect("GET k", "\"v\"");
        there.expect("DBSIZE", ":0");
        there.expect("SELECT 3", "+OK");
        there.expect("GET k", "\"v\"");
        assert_eq!(migrate(&mut here, &to, "k 3 60000"), busy);
        here.expect("SET k new", "+OK");
        assert_eq!(migrate(&mut here, &to, "k 3 60000 COPY REPLACE"), "+OK");
        there.expect("GET k", "\"new\"");
        assert_eq!(migrate(&mut here, &to, "k 3 60000 REPLACE"), "+OK");
        here.expect("EXISTS k", ":0");
        for none in ["k 3 60000", "\"\" 3 60000 KEYS k l", "\"\" 3 60000", "\"\" 3 60000 COPY KEYS k"] {
            assert_eq!(migrate(&mut here, &to, none), "+NOKEY", "{none}");
        }
        // The keys that can go do go.
        there.expect("SET b taken", "+OK");
        assert_eq!(migrate(&mut here, &to, "\"\" 3 60000 KEYS a none b c"), busy);
        here.expect("EXISTS a b c", ":1");
        there.expect("MGET a b c", r#"["1", "taken", "3"]"#);
        let index = "-ERR Target instance replied with error: ERR DB index is out of range";
        assert_eq!(migrate(&mut here, &to, "b 99 60000"), index);
        here.expect("GET b", "\"2\"");
        // Keys come from the chosen database, and may be named like an option.
        here.expect("SELECT 7", "+OK");
        here.expect("SET copy that", "+OK");
        assert_eq!(migrate(&mut here, &to, "\"\" 3 60000 KEYS copy"), "+OK");
        here.expect("DBSIZE", ":0");
        there.expect("GET copy", "\"that\"");
    }
}

#[test]
fn passwords_open_the_other_server() {
    for (from, to) in pairs(PASSWORD) {
        let (mut here, mut there) = (from.client(), to.client());
        there.expect("AUTH secret", "+OK");
        here.expect("MSET k v l w", "+OK");
        let error = |text: &str| format!("-ERR Target instance replied with error: {text}");
        let wrong = error("WRONGPASS invalid username-password pair or user is disabled.");
        assert_eq!(migrate(&mut here, &to, "k 0 60000"), error("NOAUTH Authentication required."));
        for rest in ["AUTH wrong", "AUTH2 default wrong", "AUTH2 nobody secret"] {
            assert_eq!(migrate(&mut here, &to, &format!("k 0 60000 {rest}")), wrong, "{rest}");
        }
        here.expect("EXISTS k", ":1");
        assert_eq!(migrate(&mut here, &to, "k 0 60000 COPY AUTH secret"), "+OK");
        let busy = error("BUSYKEY Target key name already exists.");
        assert_eq!(migrate(&mut here, &to, "k 0 60000 AUTH2 default secret"), busy);
        assert_eq!(migrate(&mut here, &to, "\"\" 0 60000 REPLACE AUTH2 default secret KEYS k l"), "+OK");
        here.expect("DBSIZE", ":0");
        there.expect("MGET k l", r#"["v", "w"]"#);
    }
}

#[test]
fn a_user_of_a_real_redis_may_be_named() {
    let Some(redis) = Server::redis(&[]) else { return };
    let (server, mut there) = (Server::start(), redis.client());
    let mut here = server.client();
    there.expect("ACL SETUSER mover on >pass ~moved* +restore +select", "+OK");
    here.expect("MSET moved 1 kept 2", "+OK");
    assert_eq!(migrate(&mut here, &redis, "moved 0 60000 AUTH2 mover pass"), "+OK");
    let reply = migrate(&mut here, &redis, "kept 0 60000 AUTH2 mover pass");
    assert!(reply.starts_with("-ERR Target instance replied with error: NOPERM "), "{reply}");
    there.expect("MGET moved kept", r#"["1", (nil)]"#);
    here.expect("MGET moved kept", r#"[(nil), "2"]"#);
}

#[test]
fn what_the_other_server_cannot_read_stays() {
    let Some(redis) = Server::redis(&[]) else { return };
    let server = Server::start();
    let mut here = server.client();
    here.expect("R.SETINTARRAY bits 1 2 3", "+OK");
    here.expect("SET k v", "+OK");
    let reply = migrate(&mut here, &redis, "\"\" 0 60000 KEYS bits k");
    assert_eq!(reply, "-ERR Target instance replied with error: ERR Bad data format");
    here.expect("EXISTS bits k", ":1");
    here.expect("R.BITCOUNT bits", ":3");
}

/// Redis and Valkey write fields that expire each in its own way, and neither reads the other's.
#[test]
fn fields_that_expire_arrive_whoever_the_other_server_is() {
    let cases: [(&str, &[&str], &str); 4] = [
        ("redis8-server", PASSWORD, "AUTH secret"),
        ("valkey-server", PASSWORD, "AUTH secret"),
        // A user without rights may still send HELLO.
        ("valkey-server", &[], "AUTH2 mover pass"),
        // Claims to be a Redis.
        ("valkey-server", &["--extended-redis-compatibility", "yes"], "REPLACE"),
    ];
    for (program, options, rest) in cases {
        let Some(other) = Server::peer(program, options) else { continue };
        let server = Server::start();
        let (mut here, mut there) = (server.client(), other.client());
        if options == PASSWORD {
            there.expect("AUTH secret", "+OK");
        }
        there.expect("ACL SETUSER mover on >pass ~* +restore +select", "+OK");
        here.expect("HSET hash a 1 b two c 3", ":3");
        here.expect("HPEXPIREAT hash 1900000000000 FIELDS 2 a b", "[:1, :1]");
        add(&mut here, "HSET hash:large", 2_000, |i| format!("field{i} {}", i * i));
        let fields = |each: &dyn Fn(usize) -> bool| {
            let names: Vec<String> = (0..2_000).filter(|i| each(*i)).map(|i| format!("field{i}")).collect();
            format!("FIELDS {} {}", names.len(), names.join(" "))
        };
        here.call(&format!("HPEXPIREAT hash:large 1900000000007 {}", fields(&|i| i % 3 > 0)));
        here.expect("HSET plain f v", ":1");
        here.expect("SET string s", "+OK");
        let keys = ["hash", "hash:large", "plain", "string"];
        let times = [
            "HPEXPIRETIME hash FIELDS 4 a b c none".to_owned(),
            format!("HPEXPIRETIME hash:large {}", fields(&|_| true)),
        ];
        let before: Vec<Vec<String>> = keys.iter().map(|key| contents(&mut here, key)).collect();
        let expiring = times.each_ref().map(|line| here.call(line));
        assert_eq!(expiring[0], "[:1900000000000, :1900000000000, :-1, :-2]");
        let all = format!("\"\" 0 20000 {rest} KEYS {}", keys.join(" "));
        assert_eq!(migrate(&mut here, &other, &all), "+OK", "{program} {rest}");
        here.expect("DBSIZE", ":0");
        let same = |client: &mut Client| {
            for (key, before) in keys.iter().zip(&before) {
                assert!(contents(client, key) == *before, "{program}: {key} has changed");
            }
            assert!(times.each_ref().map(|line| client.call(line)) == expiring, "{program}");
        };
        same(&mut there);
        let back = format!("\"\" 0 20000 KEYS {}", keys.join(" "));
        assert_eq!(migrate(&mut there, &server, &back), "+OK", "{program}");
        same(&mut here);
    }
}

/// Redis' answers to these are this server's answers too.
#[test]
fn mistakes_are_told_alike() {
    let Some(redis) = Server::redis(&[]) else { return };
    let server = Server::start();
    let closed = free_port();
    let [mut ours, mut theirs] = [&server, &redis].map(Server::client);
    for client in [&mut ours, &mut theirs] {
        client.expect("SET k v", "+OK");
    }
    let down = "-IOERR error or timeout writing to target instance";
    assert_eq!(theirs.call(&format!("MIGRATE 127.0.0.1 {closed} k 0 1000")), down);
    for rest in [
        &format!("127.0.0.1 {closed} k 0 1000"),
        &format!("127.0.0.1 {closed} k 0 1000 COPY REPLACE"),
        &format!("127.0.0.1 {closed} \"\" 0 1000 KEYS none k"),
        &format!("127.0.0.1 {closed} none 0 1000"),
        "127.0.0.1 0 k 0 1000",
        "127.0.0.1 port k 0 1000",
        "127.0.0.1 -1 k 0 1000",
        "127.0.0.1 1 k 0 x",
        "127.0.0.1 1 k x 1000",
        "127.0.0.1 1 k x y",
        "127.0.0.1 1 k x y BAD",
        "127.0.0.1 1 k 0 1000 KEYS a",
        "127.0.0.1 1 k 0 1000 KEYS",
        "127.0.0.1 1 \"\" 0 1000 KEYS",
        "127.0.0.1 1 none x 1000 KEYS",
        "127.0.0.1 1 k 0 1000 AUTH",
        "127.0.0.1 1 k 0 1000 AUTH2 a",
        "127.0.0.1 1 k 0 1000 COPY AUTH2",
        "127.0.0.1 1 k 0",
        "127.0.0.1 1 k 0 -1",
        "127.0.0.1 1 none 99 0",
    ] {
        let line = format!("MIGRATE {rest}");
        assert_eq!(ours.call(&line), theirs.call(&line), "{line}");
    }
    for client in [&mut ours, &mut theirs] {
        client.expect("GET k", "\"v\"");
    }
}

#[test]
fn passwords_are_in_no_log() {
    let servers = [Some(Server::start()), Server::redis(&[])];
    for server in servers.into_iter().flatten() {
        let mut client = server.client();
        client.expect("CONFIG SET slowlog-log-slower-than 0", "+OK");
        client.call("MIGRATE 127.0.0.1 1 none 0 1000 COPY AUTH secret");
        client.call("MIGRATE 127.0.0.1 1 none 0 1000 AUTH2 user secret KEYS");
        let log = client.call("SLOWLOG GET 10");
        assert!(log.contains("MIGRATE") && log.contains("(redacted)") && !log.contains("secret"), "{log}");
    }
}
