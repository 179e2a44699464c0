//! Every command of the table with senseless words, over sockets: alone, in MULTI, by `redis.pcall`, as long
//! work, over HTTP. Each is answered, and nothing panics. (`command`'s own test of this checks what a handler
//! touches.)
//!
//! EVENKEEL_HOSTILE_ROUNDS says how often (default: 1).

use crate::held::figure;
use crate::http::{Http, shown};
use crate::support::{Client, foreign};
use std::net::SocketAddr;

/// The same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn one<'a>(&mut self, of: &[&'a [u8]]) -> &'a [u8] {
        of[self.below(of.len())]
    }
}

/// Commands that are not tried, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("shutdown", "ends the server"),
    ("debug", "has a panic and stalls for those who ask for them"),
    ("migrate", "waits for another server"),
    ("client|kill", "closes the connection that asks"),
    ("client|pause", "holds everybody, for as long as it is told"),
    ("client|reply", "takes the answers away"),
    ("config|set", "has a test of its own, of all directives"),
    ("config|rewrite", "needs a file"),
    ("evenkeel|source", "opens databases"),
    ("hello", "changes how the answers are to be read"),
    ("quit", "closes the connection"),
    ("multi", "is a way of calling all others here"),
    ("exec", "is a way of calling all others here"),
    ("discard", "is a way of calling all others here"),
    ("wait", "waits as long as it is told"),
    ("waitaof", "waits as long as it is told"),
    ("subscribe", "answers several times, as do those below"),
    ("psubscribe", ""),
    ("ssubscribe", ""),
    ("unsubscribe", ""),
    ("punsubscribe", ""),
    ("sunsubscribe", ""),
    ("sync", "hands the connection over"),
    ("psync", "hands the connection over"),
    ("monitor", "never ends"),
];

/// The place of the time-out of a command that waits: the first word, or the last.
fn timeout_at(name: &str, words: usize) -> Option<usize> {
    match name {
        "blmpop" | "bzmpop" => Some(1),
        "blpop" | "brpop" | "blmove" | "brpoplpush" | "bzpopmin" | "bzpopmax" => Some(words - 1),
        _ => None,
    }
}

const KEYS: [&[u8]; 11] =
    [b"text", b"number", b"list", b"hash", b"set", b"zset", b"bits", b"wide", b"none", b"", b"item:1"];

const WORDS: [&[u8]; 64] = [
    b"0",
    b"1",
    b"2",
    b"3",
    b"-1",
    b"-2",
    b"7",
    b"100",
    b"65536",
    b"4294967296",
    b"2147483647",
    b"-2147483648",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"1e309",
    b"nan",
    b"inf",
    b"-inf",
    b"1.5",
    b"0x10",
    b"",
    b"\0",
    b"\r\n",
    b"*",
    b"[",
    b"[a",
    b"(1",
    b"+",
    b"-",
    b"\xff\xfe",
    b"#!lua \0\nreturn 1",
    b"#!lua name=\"\0",
    b"return 1",
    b"%s",
    b"i64",
    b"u8",
    b"#1",
    b"'",
    b"\\",
    b"LIMIT",
    b"COUNT",
    b"GET",
    b"STORE",
    b"BY",
    b"WITHSCORES",
    b"WEIGHTS",
    b"AGGREGATE",
    b"FIELDS",
    b"NX",
    b"XX",
    b"EX",
    b"PX",
    b"KEEPTTL",
    b"REPLACE",
    b"DB",
    b"MATCH",
    b"TYPE",
    b"BYLEX",
    b"BYSCORE",
    b"LEFT",
    b"RIGHT",
    b"MIN",
    b"AND",
];

fn call(name: &str, arity: i64, dice: &mut Dice, many: usize) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = name.split('|').map(|word| word.as_bytes().to_vec()).collect();
    let more = if arity < 0 { many + dice.below(8) } else { 0 };
    let len = (arity.unsigned_abs() as usize + more).saturating_sub(usize::from(dice.below(20) == 0));
    while words.len() < len {
        words.push(match dice.below(10) {
            0..=3 => dice.one(&KEYS).to_vec(),
            4 => vec![b'x'; dice.below(2000)],
            5 => dice.below(len).to_string().into_bytes(),
            _ => dice.one(&WORDS).to_vec(),
        });
    }
    if let Some(at) = timeout_at(name, words.len()).filter(|at| *at > 0)
        && let Some(word) = words.get_mut(at)
    {
        *word = b"0.001".to_vec();
    }
    words
}

fn fill(client: &mut Client) {
    for line in [
        "RESET",
        "FLUSHALL",
        "SET text abcdef",
        "SET number 42",
        "RPUSH list a b c 1 2 3 a",
        "HSET hash f 1 g 2 1 x",
        "SADD set a b c",
        "ZADD zset 1 a 2 b 2 c inf d",
        "R.SETBIT bits 5 1",
        "R64.SETBIT wide 4294967299 1",
        "SET item:1 {}",
    ] {
        client.call(line);
    }
}

fn ask(client: &mut Client, words: &[Vec<u8>]) -> String {
    client.call_bytes(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Commands with the number of their words.
fn rows(client: &mut Client) -> Vec<(String, i64)> {
    let names = client.call("COMMAND LIST");
    let names: Vec<&str> = names.split('"').skip(1).step_by(2).collect();
    assert!(names.len() > 300, "{}", names.len());
    let known = |name: &&str| !LEFT_OUT.iter().any(|(left, _)| left == name);
    let arity = |client: &mut Client, name: &str| {
        let info = client.call(&format!("COMMAND INFO {name}"));
        let at = info.find(':').expect("a number");
        info[at + 1..].split(',').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    names.iter().filter(|name| known(name)).map(|name| ((*name).to_owned(), arity(client, name))).collect()
}

#[test]
fn every_row_answers_whatever_it_is_asked() {
    if foreign() {
        return;
    }
    let rounds: usize =
        std::env::var("EVENKEEL_HOSTILE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (server, mut client, at) = shown(&["--script-max-time", "2000", "--maxmemory", "1gb"]);
    let mut other = server.client();
    let rows = rows(&mut other);
    let mut dice = Dice(11);
    let script: Vec<Vec<u8>> = ["EVAL", "local ok = redis.pcall(unpack(ARGV)) return type(ok)", "0"]
        .iter()
        .map(|word| word.as_bytes().to_vec())
        .collect();
    for _ in 0..rounds {
        for (name, arity) in &rows {
            fill(&mut client);
            let mut said = Vec::new();
            // The last two ways have many words.
            let ways = if dice.below(4) == 0 { 5 } else { 3 };
            for way in 0..ways {
                // Long work begins at a thousand words, and so does work in slices.
                let words = call(name, *arity, &mut dice, if way == 3 { 1200 } else { 0 });
                said.push(
                    words.iter().take(30).map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>(),
                );
                match way {
                    0 | 3 => drop(ask(&mut client, &words)),
                    1 => {
                        client.expect("MULTI", "+OK");
                        ask(&mut client, &words);
                        // It may have left MULTI (RESET).
                        client.call("EXEC");
                    }
                    2 => drop(ask(&mut client, &[script.clone(), words].concat())),
                    _ => {
                        client.expect("MULTI", "+OK");
                        ask(&mut client, &words);
                        for n in 0..1000 {
                            client.send(format!("SET filler:{n} {n}\r\n"));
                        }
                        for _ in 0..1000 {
                            client.reply();
                        }
                        client.call("EXEC");
                    }
                }
            }
            assert_eq!(figure(&mut other, "panics_contained"), 0, "{name}: {said:?}\n{}", server.output());
        }
    }
    over_http(at, &mut dice, rounds);
    assert_eq!(figure(&mut other, "panics_contained"), 0, "{}", server.output());
    client.call("RESET");
    client.expect("ECHO there", "\"there\"");
}

/// Senseless ids.
fn over_http(at: SocketAddr, dice: &mut Dice, rounds: usize) {
    let mut http = Http::to(at);
    for _ in 0..rounds * 200 {
        let escape = |word: &[u8]| word.iter().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let word = |dice: &mut Dice| match dice.below(3) {
            0 => escape(dice.one(&KEYS)),
            1 => escape(dice.one(&WORDS)),
            _ => "1".repeat(dice.below(200)),
        };
        let target = match dice.below(4) {
            0 => format!("/items/{}", word(dice)),
            1 => format!("/items?ids={},{}", word(dice), word(dice)),
            2 => format!("/items?ids={}&{}", vec!["1"; dice.below(1100)].join(","), word(dice)),
            _ => ["/metrics", "/healthz", "/readyz", "/openapi.json", "/items", "/items/"][dice.below(6)]
                .to_owned(),
        };
        let tags = ["", "*", "\"", "W/\"a\"", ", ,\"a\"", "\"a\", W/\"b\"", "\u{0}"][dice.below(6)];
        let response = http.ask("GET", &target, &format!("If-None-Match: {tags}\r\n"));
        assert!(response.status < 500 || response.status == 503, "{target}: {}", response.status);
        if response.header("connection") == "close" || response.status == 414 || response.status == 431 {
            http = Http::to(at);
        }
    }
}
