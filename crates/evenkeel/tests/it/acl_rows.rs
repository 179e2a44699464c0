//! Whatever a limited user calls, what it may not read does not show in any reply, and what it may not write
//! stays as it is.
//!
//! ```text
//! two servers, the same but for keys that the user may not read
//!   └─ the same calls of the user: alone, in a transaction short or long, in a script, in a function
//!        ─► the same replies, the same data
//! ```
//!
//! Keys end in a digit, and the rights of each random user to a digit are drawn: none, to read, to write, or
//! both. As in Redis, the existence, type and length of a key that may only be written are told. The second
//! database is different on both servers, and belongs to no user. Calls that answer about all keys, or by
//! chance, are left out.

use crate::support::{Client, Server, foreign};
use ::support::rng::Rng;
use evenkeel_differential::grammar::{self, Body};
use evenkeel_differential::step::Check;

/// The commands of every user. Those that are left out answer about all keys, by chance, or about the server.
const COMMANDS: &str = "+@all -@admin -@dangerous -@connection -dbsize -scan -randomkey -function -script -lscan -keys -info \
                        +select +swapdb +flushall +sort +sort_ro";
/// Calls that reach for another database; every user is bound to the first.
const ELSEWHERE: &[&str] = &[
    "SELECT 1",
    "SELECT 0",
    "MOVE s0 1",
    "MOVE s1 1",
    "COPY s0 s2 DB 1",
    "COPY s2 s0 REPLACE DB 0 DB 1",
    "COPY s0 s0 DB 1",
    "SWAPDB 0 1",
    "SWAPDB 1 0",
    "FLUSHALL",
    "SORT l0 BY s4* GET s4*",
    "SORT l2 GET s* STORE l0",
    "GEORADIUS z0 1 1 1 m STORE z2 STORE z4",
];
const USERS: u64 = 12;
const CALLS: usize = 300;
const GROUPS: &[&str] = &[
    "strings",
    "bitmaps",
    "lists",
    "hashes",
    "field_ttl",
    "sets",
    "zsets",
    "keys",
    "sort",
    "additions",
    "streams",
    "serialized",
    "geo",
    "hyperloglog",
];
const KINDS: &str = "slhtzqn";

/// Fills the keys that end in these digits. `salt` makes other contents.
fn fill(admin: &mut Client, digits: &str, salt: usize) {
    for digit in digits.chars() {
        let calls = [
            format!("SET s{digit} value{salt}"),
            format!("RPUSH l{digit} a b{salt} c"),
            format!("HSET h{digit} f 1 g{salt} {salt}"),
            format!("SADD t{digit} a b m{salt}"),
            format!("ZADD z{digit} 1 a 2 b {salt} m{salt}"),
            format!("XADD q{digit} 1-{digit}{salt} f v{salt}"),
        ];
        // One kind is absent on one of the servers.
        for call in calls.iter().skip(salt) {
            assert!(!admin.call(call).starts_with('-'), "{call}");
        }
    }
}

/// The values of all keys that end in these digits. The times in them are left out: those at which fields
/// expire, and those at which consumers were seen.
fn contents(admin: &mut Client, digits: &str) -> Vec<String> {
    let keys =
        KINDS.chars().flat_map(|kind| digits.chars().map(move |digit| (kind, format!("{kind}{digit}"))));
    let value = |(kind, key): (char, String)| {
        let call = match kind {
            'h' => format!("HGETALL {key}"),
            'q' => format!("XRANGE {key} - +"),
            _ => format!("DUMP {key}"),
        };
        format!("{key} {}", admin.call(&call))
    };
    keys.map(value).collect()
}

/// The way of a call.
#[derive(Clone, Copy, Debug)]
enum Way {
    Alone,
    Queued,
    /// In a transaction that is too long for a loop.
    Aside,
    Script,
    Function,
}

/// Words that make a transaction a job.
const LONG: usize = 5000;
const LIBRARY: &[u8] =
    b"#!lua name=l\nredis.register_function('f', function(keys, args) return redis.pcall(unpack(args)) end)";

fn call(client: &mut Client, way: Way, words: &[Vec<u8>]) -> String {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let behind = |head: [&'static [u8]; 3]| [&head[..], &words].concat();
    match way {
        Way::Alone => client.call_bytes(&words),
        Way::Queued | Way::Aside => {
            client.expect("MULTI", "+OK");
            if matches!(way, Way::Aside) {
                let head: [&[u8]; 3] = [b"EVAL", b"return 1", b"0"];
                let long = [&head[..], &[&b"x"[..]; LONG]].concat();
                assert_eq!(client.call_bytes(&long), "+QUEUED");
            }
            let queued = client.call_bytes(&words);
            format!("{queued} {}", client.call("EXEC"))
        }
        Way::Script => client.call_bytes(&behind([b"EVAL", b"return redis.pcall(unpack(ARGV))", b"0"])),
        Way::Function => client.call_bytes(&behind([b"FCALL", b"f", b"0"])),
    }
}

/// A user who has some rights to keys by their last digit, and the digits of keys it may not use, and may not
/// write.
struct Drawn {
    rules: String,
    hidden: String,
    fixed: String,
}

/// Draws a user. Half of them have their rights in a selector.
fn draw(rng: &mut Rng) -> Drawn {
    let (mut patterns, mut hidden, mut fixed) = (String::new(), String::from("45"), String::from("45"));
    for digit in 0..4 {
        let right = rng.below(5);
        if let Some(mark) = ["", "%R", "%W", "", ""].get(right).filter(|_| right > 0) {
            patterns += &format!("{mark}~*{digit} ");
        }
        match right {
            0 => {
                hidden += &digit.to_string();
                fixed += &digit.to_string();
            }
            1 => fixed += &digit.to_string(),
            _ => {}
        }
    }
    let rules = match rng.percent(50) {
        true => format!("{patterns}{COMMANDS} db=0"),
        false => format!("resetdbs ({patterns}{COMMANDS} db=0) (+get +set ~none db=1)"),
    };
    Drawn { rules, hidden, fixed }
}

/// A random call, of one of the tables or to another database.
fn drawn_call(groups: &[grammar::Group], rng: &mut Rng) -> Option<Vec<Vec<u8>>> {
    if rng.percent(5) {
        let line = *rng.pick(ELSEWHERE);
        return Some(line.split(' ').map(|word| word.as_bytes().to_vec()).collect());
    }
    let group = &groups[rng.below(groups.len())];
    let line = &group.lines[rng.below(group.lines.len())];
    let Body::Command(parts) = &line.body else { return None };
    if line.check != Check::Exact || !line.damage {
        return None;
    }
    let mut words = Vec::new();
    grammar::expand(parts, rng, &mut words);
    Some(words)
}

/// Fills a server anew. `salt` makes other contents of what is hidden, and of the second database.
fn prepare(admin: &mut Client, user: &Drawn, salt: usize) {
    admin.expect("FLUSHALL", "+OK");
    let open: String = "0123".chars().filter(|digit| !user.hidden.contains(*digit)).collect();
    fill(admin, &open, 0);
    fill(admin, &user.hidden, salt);
    admin.expect("SELECT 1", "+OK");
    fill(admin, "04", salt);
    admin.expect("SELECT 0", "+OK");
    admin.expect(&format!("ACL SETUSER u reset on nopass {}", user.rules), "+OK");
}

/// The data that a user may not change: keys of the first database, and all of the second.
fn kept(admin: &mut Client, user: &Drawn) -> Vec<String> {
    let mut kept = contents(admin, &user.fixed);
    admin.expect("SELECT 1", "+OK");
    kept.extend(contents(admin, "012345"));
    admin.expect("SELECT 0", "+OK");
    kept
}

#[test]
fn forbidden_keys_show_nowhere() {
    if foreign() {
        return;
    }
    let servers = [Server::start(), Server::start()];
    let mut admins = servers.each_ref().map(Server::client);
    for admin in &mut admins {
        assert_eq!(admin.call_bytes(&[b"FUNCTION", b"LOAD", LIBRARY]), "\"l\"");
    }
    let groups: Vec<_> = grammar::groups().into_iter().filter(|group| GROUPS.contains(&group.name)).collect();
    let (mut denied, mut allowed) = (0, 0);
    for number in 0..USERS {
        let mut rng = Rng::new(7, number);
        let user = draw(&mut rng);
        for (salt, admin) in admins.iter_mut().enumerate() {
            prepare(admin, &user, salt);
        }
        let mut clients = servers.each_ref().map(Server::client);
        clients.iter_mut().for_each(|client| client.expect("AUTH u x", "+OK"));
        let before = admins.each_mut().map(|admin| kept(admin, &user));
        for turn in 0..CALLS {
            let Some(words) = drawn_call(&groups, &mut rng) else { continue };
            let ways = [Way::Alone, Way::Alone, Way::Queued, Way::Script, Way::Function, Way::Aside];
            let way = *rng.pick(&ways);
            let [here, there] = [0, 1].map(|at| call(&mut clients[at], way, &words));
            let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            assert_eq!(here, there, "{}: {turn}: {shown:?}, {way:?}", user.rules);
            denied += usize::from(here.contains("permissions"));
            allowed += usize::from(!here.contains('-'));
        }
        let after = admins.each_mut().map(|admin| kept(admin, &user));
        assert_eq!(before, after, "{}: a forbidden key was changed", user.rules);
        let [here, there] = admins.each_mut().map(|admin| contents(admin, "0123"));
        let open = |all: &[String]| -> Vec<String> {
            let is_open = |text: &&String| !user.hidden.contains(&text[1..2]);
            all.iter().filter(is_open).cloned().collect()
        };
        assert_eq!(
            open(&here),
            open(&there),
            "{}: what is forbidden flowed into what is allowed",
            user.rules
        );
    }
    let calls = USERS as usize * CALLS;
    assert!(denied > calls / 10 && allowed > calls / 20, "{denied} denied, {allowed} allowed");
}
