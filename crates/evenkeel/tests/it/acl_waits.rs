//! A limited user waits for keys, listens to channels, keeps a cache, and asks over HTTP. What it may not read
//! or hear does not show, and what it may not write stays as it is.
//!
//! ```text
//! two servers, the same but for what happens to keys and channels that the user has no right to
//!   └─ the same calls of the user, then the same events, and others of which it may not learn
//!        ─► the same replies and messages
//! ```
//!
//! Names end in a digit, and the rights of a random user to each digit are drawn. Some rights are taken away
//! while it waits. What happens there afterwards happens on both servers, with other values: as in Redis, a
//! client that waits is told that it may not wait any more when there is something to be had.

use crate::http::{Http, shown};
use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use ::support::rng::Rng;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const DIGITS: std::ops::Range<usize> = 0..5;
const COMMANDS: &str = "+@all -@admin -@dangerous";
/// A part of each value that the user may not learn.
const SECRET: &str = "secret";

/// The seed of all that is drawn; EVENKEEL_SEED names another.
fn seed() -> u64 {
    std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[derive(Clone, Copy, PartialEq)]
enum Right {
    Nothing,
    Read,
    Write,
    Both,
}

/// The rights of a user to the digits, and those it had to begin with.
#[derive(Clone)]
struct Drawn {
    first: Vec<Right>,
    now: Vec<Right>,
}

impl Drawn {
    /// The last digit belongs to nobody.
    fn draw(rng: &mut Rng) -> Drawn {
        let rights =
            [Right::Nothing, Right::Read, Right::Write, Right::Both, Right::Both, Right::Both, Right::Both];
        let mut first: Vec<Right> = DIGITS.map(|_| *rng.pick(&rights)).collect();
        first[DIGITS.end - 1] = Right::Nothing;
        Drawn { now: first.clone(), first }
    }

    /// A user that has a digit or has not.
    fn draw_whole(rng: &mut Rng) -> Drawn {
        let mut drawn = Drawn::draw(rng);
        for right in &mut drawn.first {
            *right = if *right == Right::Nothing { Right::Nothing } else { Right::Both };
        }
        Drawn { now: drawn.first.clone(), first: drawn.first }
    }

    fn keys(&self) -> String {
        let pattern = |(digit, right): (usize, &Right)| match right {
            Right::Nothing => String::new(),
            Right::Read => format!(" %R~*{digit}"),
            Right::Write => format!(" %W~*{digit}"),
            Right::Both => format!(" ~*{digit}"),
        };
        self.now.iter().enumerate().map(pattern).collect()
    }

    fn channels(&self) -> String {
        let pattern = |(digit, right): (usize, &Right)| match right {
            Right::Nothing => String::new(),
            _ => format!(" &c{digit} &c{digit}* &__keyspace@0__:k{digit}"),
        };
        self.now.iter().enumerate().map(pattern).collect()
    }

    /// Takes the rights to a digit away. False: there were none.
    fn narrow(&mut self, digit: usize) -> bool {
        std::mem::replace(&mut self.now[digit], Right::Nothing) != Right::Nothing
    }

    fn was_hidden(&self, digit: usize) -> bool {
        self.first[digit] == Right::Nothing
    }

    fn is_hidden(&self, digit: usize) -> bool {
        self.now[digit] == Right::Nothing
    }

    /// The value of an event, for each server. None: it does not happen there.
    fn values(&self, digit: usize, number: usize) -> [Option<String>; 2] {
        match (self.was_hidden(digit), self.is_hidden(digit)) {
            (true, _) => [None, Some(format!("{SECRET}{number}"))],
            (false, true) => [0, 1].map(|salt| Some(format!("{SECRET}{salt}{number}"))),
            (false, false) => [0, 1].map(|_| Some(format!("v{number}"))),
        }
    }
}

/// One of these lines, with each `#` replaced by a digit.
fn drawn_line(lines: &[&str], rng: &mut Rng) -> String {
    let line = *rng.pick(lines);
    line.chars().map(|c| if c == '#' { char::from(b'0' + rng.below(DIGITS.end) as u8) } else { c }).collect()
}

/// Both servers, and a client of each that may do everything.
struct Pair {
    servers: [Server; 2],
    admins: [Client; 2],
}

impl Pair {
    fn start() -> Pair {
        let servers = [Server::start(), Server::start()];
        let admins = servers.each_ref().map(Server::client);
        Pair { servers, admins }
    }

    fn on_both(&mut self, line: &str) {
        for admin in &mut self.admins {
            let reply = admin.call(line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        }
    }

    fn set_user(&mut self, reset: &str, rules: &str) {
        self.on_both(&format!("ACL SETUSER u {reset} on nopass {COMMANDS} {rules}"));
    }

    /// Clients of the user, with their numbers.
    fn users(&self, hello: bool) -> [(Client, String); 2] {
        self.servers.each_ref().map(|server| {
            let mut client = if hello { server.client3() } else { server.client() };
            let id = client.call("CLIENT ID");
            client.expect("AUTH u x", "+OK");
            (client, id.trim_start_matches(':').to_owned())
        })
    }
}

/// Waits until a call is answered, which is told, or blocks.
fn settle(admin: &mut Client, (client, id): &mut (Client, String)) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(reply) = client.reply_within(Duration::from_millis(1)) {
            return Some(reply);
        }
        if admin.call(&format!("CLIENT LIST ID {id}")).contains(" flags=b ") {
            return None;
        }
        assert!(Instant::now() < deadline, "neither answered nor blocked");
    }
}

/// Calls that wait.
const WAITS: &[&str] = &[
    "BLPOP w# 0",
    "BLPOP w# w# 0",
    "BRPOP w# w# w# 0",
    "BLMOVE w# w# LEFT RIGHT 0",
    "BRPOPLPUSH w# w# 0",
    "BLMPOP 0 1 w# LEFT",
    "BLMPOP 0 2 w# w# RIGHT COUNT 2",
    "BZPOPMIN y# 0",
    "BZPOPMAX y# y# 0",
    "BZMPOP 0 2 y# y# MIN",
    "XREAD BLOCK 0 STREAMS x# $",
    "XREAD BLOCK 0 STREAMS x# x# $ $",
    "XREADGROUP GROUP g c BLOCK 0 STREAMS x# >",
    "XREADGROUP GROUP g c BLOCK 0 STREAMS x# x# > >",
];
const KINDS: &[char] = &['w', 'y', 'x'];

/// Adds `value` to a key.
fn add(admin: &mut Client, kind: char, digit: usize, value: &str) {
    let line = match kind {
        'w' => format!("RPUSH w{digit} {value}"),
        'y' => format!("ZADD y{digit} 1 {value}"),
        _ => format!("XADD x{digit} * f {value}"),
    };
    let reply = admin.call(&line);
    // The ID of an entry is of its time.
    assert!(!reply.starts_with('-'), "{line}: {reply}");
}

/// A reply without the IDs of entries, which are of their time.
fn timeless(reply: &str) -> String {
    let is_id =
        |word: &str| word.split_once('-').is_some_and(|(ms, _)| ms.len() == 13 && ms.parse::<u64>().is_ok());
    let words: Vec<&str> = reply.split('"').map(|word| if is_id(word) { "id" } else { word }).collect();
    words.join("\"")
}

/// The values of secret events on one server, by kind and digit, in their order.
type Secrets = Vec<(char, usize, String)>;

/// Values that were added to what is forbidden are all there still, and nobody has read on for the group.
fn check_kept(admin: &mut Client, user: &Drawn, secrets: &Secrets) {
    for &kind in KINDS {
        for digit in DIGITS {
            let of_key = secrets.iter().filter(|(k, d, _)| (*k, *d) == (kind, digit));
            let listed = match kind {
                'w' => admin.call(&format!("LRANGE w{digit} 0 -1")),
                'y' => admin.call(&format!("ZRANGE y{digit} 0 -1")),
                _ => admin.call(&format!("XRANGE x{digit} - +")),
            };
            for (_, _, value) in of_key {
                assert!(listed.contains(&format!("\"{value}\"")), "{kind}{digit} lost {value}: {listed}");
            }
            if kind == 'x' && user.was_hidden(digit) {
                let pending = admin.call(&format!("XPENDING x{digit} g"));
                assert!(pending.starts_with("[:0,"), "x{digit}: {pending}");
            }
        }
    }
}

/// The keys that a call names, by kind and digit.
fn keys_of(line: &str) -> Vec<(char, usize)> {
    let key = |word: &str| {
        let digit = word.get(1..)?.parse().ok()?;
        word.chars().next().filter(|kind| KINDS.contains(kind)).map(|kind| (kind, digit))
    };
    line.split(' ').filter_map(key).collect()
}

/// One call that waits, and what happens meanwhile. Returns its reply, the same on both servers, and whether it
/// waited.
fn wait_once(pair: &mut Pair, users: &mut [(Client, String); 2], rng: &mut Rng) -> (String, bool) {
    let mut user = Drawn::draw(rng);
    let mut secrets: [Secrets; 2] = Default::default();
    pair.on_both("FLUSHALL");
    DIGITS.for_each(|digit| pair.on_both(&format!("XGROUP CREATE x{digit} g $ MKSTREAM")));
    pair.set_user("reset", &user.keys());
    let mut number = 0;
    let mut happen = |pair: &mut Pair, user: &Drawn, secrets: &mut [Secrets; 2], kind: char, digit: usize| {
        number += 1;
        let values = user.values(digit, number);
        for ((admin, secrets), value) in pair.admins.iter_mut().zip(secrets).zip(values) {
            let Some(value) = value else { continue };
            add(admin, kind, digit, &value);
            if value.starts_with(SECRET) {
                secrets.push((kind, digit, value));
            }
        }
    };
    // Some of what is hidden is there already.
    for digit in DIGITS.filter(|digit| user.was_hidden(*digit)) {
        if rng.percent(40) {
            let kind = *rng.pick(KINDS);
            happen(pair, &user, &mut secrets, kind, digit);
        }
    }
    let line = drawn_line(WAITS, rng);
    users.iter_mut().for_each(|(client, _)| client.send(encode_line(&line)));
    let mut replies: Vec<Option<String>> =
        pair.admins.iter_mut().zip(users.iter_mut()).map(|(admin, user)| settle(admin, user)).collect();
    let waited = replies.iter().all(Option::is_none);
    for _ in 0..rng.between(1, 4) {
        // Most events are about keys that are waited for.
        let (kind, digit) = match rng.percent(70) {
            true => *rng.pick(&keys_of(&line)),
            false => (*rng.pick(KINDS), rng.below(DIGITS.end)),
        };
        if rng.percent(25) && user.narrow(digit) {
            pair.set_user("resetkeys", &user.keys());
        }
        happen(pair, &user, &mut secrets, kind, digit);
    }
    for ((admin, (client, id)), reply) in pair.admins.iter_mut().zip(users).zip(&mut replies) {
        if reply.is_none() {
            admin.call(&format!("CLIENT UNBLOCK {id}"));
            *reply = Some(client.reply());
        }
    }
    let replies: Vec<String> = replies.iter().map(|reply| timeless(reply.as_deref().unwrap_or(""))).collect();
    assert_eq!(replies[0], replies[1], "{line} with {}, then {}", user_text(&user.first), user.keys());
    assert!(!replies[0].contains(SECRET), "{line}: {}", replies[0]);
    for (admin, secrets) in pair.admins.iter_mut().zip(&secrets) {
        check_kept(admin, &user, secrets);
    }
    let [_, reply] = <[String; 2]>::try_from(replies).unwrap_or_default();
    (reply, waited)
}

fn user_text(rights: &[Right]) -> String {
    Drawn { first: rights.to_vec(), now: rights.to_vec() }.keys()
}

#[test]
fn who_waits_for_keys_learns_nothing_of_forbidden_ones() {
    if foreign() {
        return;
    }
    let mut pair = Pair::start();
    pair.set_user("reset", "");
    let mut users = pair.users(false);
    let mut rng = Rng::new(seed(), 11);
    let (mut denied, mut late, mut served, mut nothing) = (0, 0, 0, 0);
    for _ in 0..400 {
        match wait_once(&mut pair, &mut users, &mut rng) {
            (reply, waited) if reply.contains("permissions") => {
                *(if waited { &mut late } else { &mut denied }) += 1;
            }
            (reply, _) if reply.starts_with("(nil") => nothing += 1,
            (reply, waited) => {
                assert!(waited && !reply.starts_with('-'), "{reply}");
                served += 1;
            }
        }
    }
    assert!(
        denied > 50 && late > 5 && served > 50 && nothing > 5,
        "{denied} denied, {late} denied later, {served} served, {nothing} not"
    );
}

/// Calls of a listener that keeps a cache; it speaks RESP3.
const LISTENS: &[&str] = &[
    "SUBSCRIBE c#",
    "SUBSCRIBE c# c#",
    "PSUBSCRIBE c#*",
    "PSUBSCRIBE *",
    "SSUBSCRIBE c#",
    "UNSUBSCRIBE c#",
    "SUBSCRIBE __keyspace@0__:k#",
    "PSUBSCRIBE __key*",
    "SUBSCRIBE __keyevent@0__:set",
    "GET k#",
    "MGET k# k#",
    "EVAL \"return redis.pcall('GET', ARGV[1])\" 0 k#",
    "EXISTS k#",
];
/// Calls of another client of the user.
const SPEAKS: &[&str] = &[
    "PUBLISH c# spoken",
    "SPUBLISH c# spoken",
    "EVAL \"return redis.pcall('PUBLISH', ARGV[1], 'spoken')\" 0 c#",
];
/// Calls of an administrator; the digit and the value are put behind.
const TELLS: &[&str] = &["PUBLISH c", "SPUBLISH c", "SET k"];

/// Appends what comes, until all `ends` have come or the connection is closed.
fn hear(client: &mut Client, ends: &[&str], heard: &mut Vec<String>) -> bool {
    let mut missing: Vec<&str> = ends.to_vec();
    while !missing.is_empty() {
        let reply = client.reply();
        let closed = reply == "(closed)";
        missing.retain(|end| !reply.contains(end));
        heard.push(reply);
        if closed {
            return false;
        }
    }
    true
}

/// Waits until all that was told so far is heard, and nothing of it is under way. False: the client was closed.
fn hear_all(client: &mut Client, admin: &mut Client, mark: &str, heard: &mut Vec<String>) -> bool {
    admin.call(&format!("SET k9 {mark}"));
    admin.call(&format!("PUBLISH open {mark}"));
    if !hear(client, &[&format!("\"{mark}\""), "[\"k9\"]"], heard) {
        return false;
    }
    client.send(format!("GET k9\r\nPING {mark}.\r\n"));
    hear(client, &[&format!("\"{mark}.\"")], heard)
}

/// Waits until nobody but an ear listens.
fn await_silence(pair: &mut Pair) {
    let alone: Vec<String> = DIGITS.map(|digit| format!("\"c{digit}\", :1")).collect();
    let alone = format!("[{}]", alone.join(", "));
    let all: String = DIGITS.map(|digit| format!(" c{digit}")).collect();
    let deadline = Instant::now() + PATIENCE;
    for admin in &mut pair.admins {
        while admin.call(&format!("PUBSUB NUMSUB{all}")) != alone
            || admin.call(&format!("PUBSUB SHARDNUMSUB{all}")) != alone
            || admin.call("PUBSUB NUMPAT") != ":0"
        {
            assert!(Instant::now() < deadline, "somebody listens still");
        }
    }
}

/// One listener of each server. Returns what it heard, the same on both, and whether it was closed.
fn listen_once(pair: &mut Pair, ears: &mut [Client; 2], rng: &mut Rng) -> (Vec<String>, bool) {
    let mut user = Drawn::draw_whole(rng);
    pair.on_both("FLUSHALL");
    pair.set_user("reset", &listening(&user));
    let (mut listeners, mut speakers) = (pair.users(true), pair.users(false));
    let mut calls = vec!["CLIENT TRACKING ON".to_owned(), "SUBSCRIBE open".to_owned(), "GET k9".to_owned()];
    calls.extend((0..rng.between(2, 8)).map(|_| drawn_line(LISTENS, rng)));
    let mut heard: [Vec<String>; 2] = Default::default();
    for ((client, _), heard) in listeners.iter_mut().zip(&mut heard) {
        calls.iter().for_each(|line| client.send(encode_line(line)));
        client.send("PING barrier\r\n");
        assert!(hear(client, &["\"barrier\""], heard), "{heard:?}");
    }
    for number in 0..rng.between(1, 6) {
        let digit = rng.below(DIGITS.end);
        if rng.percent(20) && user.narrow(digit) {
            for ((client, admin), heard) in listeners.iter_mut().zip(&mut pair.admins).zip(&mut heard) {
                hear_all(&mut client.0, admin, &format!("mark{number}"), heard);
            }
            pair.set_user("resetkeys resetchannels", &listening(&user));
        }
        let tell = rng.pick(TELLS);
        for (admin, value) in pair.admins.iter_mut().zip(user.values(digit, number)) {
            value.into_iter().for_each(|value| drop(admin.call(&format!("{tell}{digit} {value}"))));
        }
        let line = drawn_line(SPEAKS, rng);
        // The count of receivers is the same, an ear among them, which hears all.
        let [here, there] = speakers.each_mut().map(|(speaker, _)| speaker.call(&line));
        assert_eq!(here, there, "{line} with {}", user.channels());
    }
    let mut closed = false;
    for ((client, admin), heard) in listeners.iter_mut().zip(&mut pair.admins).zip(&mut heard) {
        closed = !hear_all(&mut client.0, admin, "end", heard);
        heard.sort();
    }
    drop(listeners);
    await_silence(pair);
    let context = format!("{calls:?} with {}, then {}", user_text(&user.first), user.keys());
    assert_eq!(heard[0], heard[1], "{context}");
    assert!(!heard[0].iter().any(|line| line.contains(SECRET)), "{context}: {:?}", heard[0]);
    check_ears(pair, ears, &user);
    let [heard, _] = heard;
    (heard, closed)
}

/// The rights of a listener. One channel and one key are always its own.
fn listening(user: &Drawn) -> String {
    format!("&open ~k9 {} {}", user.keys(), user.channels())
}

/// An ear hears what is spoken on channels that the user had a right to, and nothing that it had not.
fn check_ears(pair: &mut Pair, ears: &mut [Client; 2], user: &Drawn) {
    for (ear, admin) in ears.iter_mut().zip(&mut pair.admins) {
        let mut heard = Vec::new();
        admin.call("PUBLISH ear end");
        hear(ear, &["\"end\""], &mut heard);
        for line in heard.iter().filter(|line| line.contains("spoken")) {
            let digit = DIGITS.into_iter().find(|digit| line.contains(&format!("\"c{digit}\"")));
            assert!(digit.is_some_and(|digit| !user.was_hidden(digit)), "{line} with {}", user.channels());
        }
    }
}

#[test]
fn who_listens_hears_nothing_of_forbidden_channels_and_keys() {
    if foreign() {
        return;
    }
    let mut pair = Pair::start();
    pair.on_both("CONFIG SET notify-keyspace-events KEA");
    let mut ears = pair.servers.each_ref().map(Server::client3);
    for ear in &mut ears {
        let mut heard = Vec::new();
        let all: String = DIGITS.map(|digit| format!(" c{digit}")).collect();
        ear.send(format!("SUBSCRIBE ear{all}\r\nSSUBSCRIBE{all}\r\nPING ready\r\n"));
        hear(ear, &["\"ready\""], &mut heard);
    }
    let mut rng = Rng::new(seed(), 12);
    let (mut denied, mut told, mut stale, mut closed) = (0, 0, 0, 0);
    for _ in 0..150 {
        let (heard, was_closed) = listen_once(&mut pair, &mut ears, &mut rng);
        let count = |part: &str| heard.iter().filter(|line| line.contains(part)).count();
        denied += count("permissions");
        told += count("message\"");
        stale += count("invalidate");
        closed += usize::from(was_closed);
    }
    assert!(
        denied > 50 && told > 250 && stale > 100 && closed > 5,
        "{denied} denied, {told} messages, {stale} stale, {closed} closed"
    );
}

/// Requests about items; the user may read some of them.
const ASKS: &[&str] =
    &["/items/#", "/items/#", "/items?ids=#", "/items?ids=#,#", "/items?ids=#,#,#", "/items/%3#"];
const LINES: &[&str] =
    &["", "", "If-None-Match: *\r\n", "If-Match: *\r\n", "If-Match: \"x\"\r\n", "Range: bytes=0-1\r\n"];

/// The answer to a request, without what is of its time.
fn asked(http: &mut Http, method: &str, target: &str, lines: &str) -> String {
    let response = http.ask(method, target, &format!("Authorization: Bearer u:p\r\n{lines}"));
    let mut headers: Vec<(String, String)> = response.headers.into_iter().collect();
    headers.retain(|(name, _)| !["date", "age", "cache-control", "expires"].contains(&name.as_str()));
    headers.sort();
    format!("{} {headers:?} {}", response.status, String::from_utf8_lossy(&response.body))
}

#[test]
fn who_asks_over_http_learns_nothing_of_forbidden_items() {
    if foreign() {
        return;
    }
    let mut shows: Vec<(Server, Client, SocketAddr)> = (0..2).map(|_| shown(&[])).collect();
    let mut rng = Rng::new(seed(), 13);
    let (mut denied, mut answered) = (0, 0);
    for _ in 0..40 {
        let user = Drawn::draw(&mut rng);
        let mut tags = Vec::new();
        for (salt, (_, admin, at)) in shows.iter_mut().enumerate() {
            admin.expect("FLUSHALL", "+OK");
            for digit in DIGITS {
                let may_read = matches!(user.now[digit], Right::Read | Right::Both);
                if may_read {
                    admin.expect(&format!("SET item:{digit} \"{{\\\"open\\\":{digit}}}\""), "+OK");
                } else if salt == 1 {
                    admin.expect(&format!("SET item:{digit} \"{{\\\"{SECRET}\\\":{digit}}}\""), "+OK");
                    tags.extend(Http::to(*at).get(&format!("/items/{digit}")).headers.remove("etag"));
                }
            }
            admin.expect(&format!("ACL SETUSER u reset on >p +evenkeel|items {}", user.keys()), "+OK");
        }
        let mut https: Vec<Http> = shows.iter().map(|(_, _, at)| Http::to(*at)).collect();
        for _ in 0..20 {
            let target = drawn_line(ASKS, &mut rng);
            let method = *rng.pick(&["GET", "GET", "HEAD"]);
            // The tag of a value that the user may not know must not be confirmed.
            let mut lines = rng.pick(LINES).to_string();
            if rng.percent(30) && !tags.is_empty() {
                let name = rng.pick(&["If-None-Match", "If-Match"]);
                lines = format!("{name}: {}\r\n", rng.pick(&tags));
            }
            let answers: Vec<String> =
                https.iter_mut().map(|http| asked(http, method, &target, &lines)).collect();
            assert_eq!(answers[0], answers[1], "{method} {target} {lines:?} with {}", user.keys());
            assert!(!answers[0].contains(SECRET), "{}", answers[0]);
            denied += usize::from(answers[0].starts_with("403"));
            answered += usize::from(answers[0].starts_with("200"));
        }
    }
    assert!(denied > 100 && answered > 100, "{denied} denied, {answered} answered");
}
