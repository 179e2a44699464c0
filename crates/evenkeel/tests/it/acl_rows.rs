//! Whatever a limited user calls, what it may not read does not show in any reply, and what it may not write
//! stays as it is.
//!
//! ```text
//! two servers, the same but for keys that the user may not read
//!   └─ the same calls of the user: alone, in a transaction, in a script ─► the same replies, the same data
//! ```
//!
//! Keys end in a digit: 0 and 2 may be used, 1 may be read, 3 may be written, and nothing else is allowed. As
//! in Redis, the existence, type and length of a key that may only be written are told.
//! Calls that answer about all keys, or by chance, are left out.

use crate::support::{Client, Server, foreign};
use ::support::rng::Rng;
use evenkeel_differential::grammar::{self, Body};
use evenkeel_differential::step::Check;

const USER: &str = "ACL SETUSER u on nopass ~*[02] %R~*1 %W~*3 +@all -@admin -@dangerous -@connection -dbsize -scan \
                    -randomkey -function -script -lscan -keys -info";
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
];
const CALLS: usize = 3000;
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
    Script,
}

fn call(client: &mut Client, way: Way, words: &[Vec<u8>]) -> String {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    match way {
        Way::Alone => client.call_bytes(&words),
        Way::Queued => {
            client.expect("MULTI", "+OK");
            let queued = client.call_bytes(&words);
            format!("{queued} {}", client.call("EXEC"))
        }
        Way::Script => {
            let head: [&[u8]; 3] = [b"EVAL", b"return redis.pcall(unpack(ARGV))", b"0"];
            client.call_bytes(&[&head[..], &words].concat())
        }
    }
}

#[test]
fn forbidden_keys_show_nowhere() {
    if foreign() {
        return;
    }
    let servers = [Server::start(), Server::start()];
    let mut admins = servers.each_ref().map(Server::client);
    let mut users = servers.each_ref().map(Server::client);
    for (salt, admin) in admins.iter_mut().enumerate() {
        fill(admin, "0123", 0);
        fill(admin, "45", salt);
        admin.expect(USER, "+OK");
    }
    users.iter_mut().for_each(|user| user.expect("AUTH u x", "+OK"));
    let before = admins.each_mut().map(|admin| contents(admin, "145"));
    let groups: Vec<_> = grammar::groups().into_iter().filter(|group| GROUPS.contains(&group.name)).collect();
    let mut rng = Rng::new(7, 0);
    let (mut denied, mut allowed) = (0, 0);
    for turn in 0..CALLS {
        let group = &groups[rng.below(groups.len())];
        let line = &group.lines[rng.below(group.lines.len())];
        let Body::Command(parts) = &line.body else { continue };
        if line.check != Check::Exact || !line.damage {
            continue;
        }
        let mut words = Vec::new();
        grammar::expand(parts, &mut rng, &mut words);
        let way = [Way::Alone, Way::Queued, Way::Script][rng.below(3)];
        let [here, there] = [0, 1].map(|at| call(&mut users[at], way, &words));
        let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        assert_eq!(here, there, "{turn}: {shown:?}, {way:?}");
        denied += usize::from(here.contains("permissions"));
        allowed += usize::from(!here.contains('-'));
    }
    assert!(denied > CALLS / 10 && allowed > CALLS / 20, "{denied} denied, {allowed} allowed");
    let after = admins.each_mut().map(|admin| contents(admin, "145"));
    assert_eq!(before, after, "a forbidden key was changed");
    let [here, there] = admins.each_mut().map(|admin| contents(admin, "02"));
    assert_eq!(here, there, "what is forbidden flowed into what is allowed");
}
