//! Tools of tests that hold something heavy where it is, and check that all others are served.

use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use std::time::{Duration, Instant};

/// Elements of a large value: far more than a loop does by itself.
pub const MANY: usize = 20_000;

/// A server with large values of every type; none if the server under test has no points to hold at.
pub fn laden() -> Option<Server> {
    if foreign() { None } else { Some(lade(Server::start())) }
}

/// Fills a server with large values of every type.
pub fn lade(server: Server) -> Server {
    let mut client = server.client();
    let mut fill = |command: &str, element: &dyn Fn(usize) -> String| {
        let words: String = (0..MANY).map(|i| format!(" {}", element(i))).collect();
        client.call(&format!("{command}{words}"));
    };
    fill("SADD big", &|i| format!("m{i}"));
    fill("SADD other", &|i| format!("m{}", 2 * i));
    fill("RPUSH list", &|i| format!("e{i}"));
    fill("HSET hash", &|i| format!("f{i} v{i}"));
    fill("ZADD zset", &|i| format!("{i} m{i}"));
    fill("ZADD zother", &|i| format!("{i} m{}", 3 * i));
    fill("MSET", &|i| format!("key:{i} {i}"));
    server
}

/// Holds the first to come to a point. `OFF` on drop is not needed: servers end with their tests.
pub struct Hold {
    control: Client,
    point: &'static str,
}

impl Hold {
    pub fn first_at(server: &Server, point: &'static str) -> Hold {
        Hold::some_at(server, point, 1)
    }

    /// Holds this many.
    pub fn some_at(server: &Server, point: &'static str, count: usize) -> Hold {
        let mut control = server.client();
        control.expect(&format!("DEBUG POINT {point} HOLD {count}"), "+OK");
        Hold { control, point }
    }

    /// Returns when one is held.
    #[track_caller]
    pub fn await_victim(&mut self) {
        self.await_victims(1);
    }

    #[track_caller]
    pub fn await_victims(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.control.call(&format!("DEBUG POINT {}", self.point)) != format!(":{count}") {
            assert!(Instant::now() < deadline, "nobody came to {}", self.point);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn release(mut self) {
        self.control.expect(&format!("DEBUG POINT {} OFF", self.point), "+OK");
    }
}

/// Repeats a command until its reply is this one: for effects after a client has left.
#[track_caller]
pub fn eventually(client: &mut Client, line: &str, reply: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let got = client.call(line);
        if got == reply {
            return;
        }
        assert!(Instant::now() < deadline, "{line} still answers {got}, not {reply}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A figure of INFO.
pub fn figure(client: &mut Client, name: &str) -> u64 {
    let info = client.call("INFO everything");
    let at = info.find(&format!("{name}:")).unwrap_or_else(|| panic!("no {name} in INFO"));
    let digits = info[at + name.len() + 1..].bytes().take_while(u8::is_ascii_digit).count();
    info[at + name.len() + 1..][..digits].parse().expect("a number")
}

/// Waits until a figure of INFO fits.
#[track_caller]
pub fn await_figure(client: &mut Client, name: &str, fits: impl Fn(u64) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let value = figure(client, name);
        if fits(value) {
            return;
        }
        assert!(Instant::now() < deadline, "{name} stays {value}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Other clients read and write, on keys of their own and on those of the attacker.
pub fn others_are_served(server: &Server) {
    let mut a = server.client();
    let mut b = server.client();
    a.expect("SET mine 1", "+OK");
    b.expect("INCR mine", ":2");
    a.expect("GET mine", "\"2\"");
    a.expect("DEL mine", ":1");
    b.expect("EVAL \"return redis.call('INCR', KEYS[1])\" 1 ticks", ":1");
    b.expect("DEL ticks", ":1");
    a.send("MULTI\r\nINCR n\r\nINCR n\r\nDEL n\r\nEXEC\r\n");
    (0..4).for_each(|_| {
        a.reply();
    });
    a.expect_reply("[:1, :2, :1]");
    // Reads of the attacker's keys, short and long.
    for line in ["SISMEMBER big m1", "SISMEMBER other m2", "HEXISTS hash f1"] {
        a.expect(line, ":1");
    }
    a.expect("GET key:7", "\"7\"");
    a.expect("LINDEX list 0", "\"e0\"");
    a.expect("ZSCORE zset m5", "\"5\"");
    let all = b.call("SMEMBERS big");
    assert!(all.len() > MANY, "{} bytes", all.len());
    assert!(b.call("LRANGE list 0 -1").len() > MANY);
    // Writes to them.
    b.expect("SADD big new", ":1");
    b.expect("SREM big new", ":1");
    b.expect("RPUSH list new", &format!(":{}", MANY + 1));
    b.expect("RPOP list", "\"new\"");
    b.expect("HSET hash f0 v0", ":0");
    b.expect("ZADD zset 0 m0", ":0");
    b.expect("SET key:7 7", "+OK");
}

/// Holds a command at a point; returns its reply after the others were served.
#[track_caller]
pub fn held(server: &Server, point: &'static str, line: &str) -> String {
    held_while(server, point, server.client(), &encode_line(line), || others_are_served(server))
}

/// Holds an attacker's request at a point; returns its reply after `others` ran.
#[track_caller]
pub fn held_while(
    server: &Server,
    point: &'static str,
    mut attacker: Client,
    request: &[u8],
    others: impl FnOnce(),
) -> String {
    let mut hold = Hold::first_at(server, point);
    attacker.send(request);
    hold.await_victim();
    others();
    let early = attacker.reply_within(Duration::ZERO);
    assert_eq!(early, None, "answered though held at {point}");
    hold.release();
    attacker.reply()
}

pub const PURE: &str = "local n = 0 for i = 1, 3000000 do n = n + 1 end return n";
pub const READS: &str =
    "local n = 0 for i = 1, 20000 do n = n + redis.call('SISMEMBER', 'big', 'm' .. i % 100) end return n";
pub const WRITES: &str =
    "for i = 1, 20000 do redis.call('INCR', 'counted') end return redis.call('GET', 'counted')";

pub fn eval(script: &str) -> String {
    format!("EVAL \"{script}\" 0")
}
