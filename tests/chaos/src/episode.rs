//! Episodes: the bytes of one connection between two moments at which it is idle.
//!
//! - Every episode is a function of the generator of random numbers and of the server's docs.
//! - A *counted* episode gets exactly one reply for each request, without pushes.

use crate::grammar::{Table, is_forbidden};
use crate::scripts;
use crate::words::{self, Word};
use support::rng::Rng;
use support::wire::{encode, quote, quote_all};

pub struct Episode {
    /// The way it is sent, for people.
    pub way: &'static str,
    /// The requests, if the episode has any.
    pub requests: Vec<Vec<Word>>,
    pub bytes: Vec<u8>,
    pub end: End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Every request gets one reply.
    Counted,
    /// The session may be in any state. A RESET makes it new.
    Reset,
    /// The connection is closed after the last byte.
    Close,
    /// No more bytes are sent. The connection is read until the server closes it.
    Garbage,
    /// Bytes for the port that speaks HTTP.
    Http,
}

/// Commands after which replies are not one for each request, or which change the meaning of the next
/// request.
const STATEFUL: &[&str] = &[
    "multi",
    "exec",
    "discard",
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
    "quit",
    "reset",
    "hello",
    "auth",
    "monitor",
    "psync",
    "sync",
];

fn is_stateful(words: &[Word]) -> bool {
    let lower =
        |at: usize| words.get(at).map(|w| String::from_utf8_lossy(w).to_lowercase()).unwrap_or_default();
    STATEFUL.contains(&lower(0).as_str())
        || lower(0) == "client" && ["reply", "kill", "tracking"].contains(&lower(1).as_str())
}

impl Episode {
    pub fn draw(table: &Table, rng: &mut Rng) -> Episode {
        match rng.below(100) {
            0..=21 => pipeline("alone", vec![table.call(rng)]),
            22..=43 => pipeline("in a pipeline", (0..rng.between(2, 30)).map(|_| table.call(rng)).collect()),
            44..=55 => transaction(table, rng),
            56..=67 => by_script(table, rng),
            68..=71 => {
                let calls = (0..rng.between(1, 10)).map(|_| table.call(rng)).collect::<Vec<_>>();
                let hello = vec![b"HELLO".to_vec(), b"3".to_vec()];
                let mut episode = pipeline("with RESP3", [&[hello], &calls[..]].concat());
                episode.end = End::Reset;
                episode
            }
            72..=74 => inline(table, rng),
            75..=79 => subscriber(table, rng),
            80..=84 => half(table, rng),
            85..=88 => garbage(table, rng),
            89..=91 => http(rng),
            92 => flush(rng),
            _ => {
                let text = scripts::text(rng);
                pipeline("a script", vec![vec![b"EVAL".to_vec(), text, b"0".to_vec()]])
            }
        }
    }

    /// The bytes sent, as lines for people.
    pub fn shown(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.requests.iter().take(40).map(|words| show(words)).collect();
        if self.requests.len() > 40 {
            lines.push(format!("... {} requests in all", self.requests.len()));
        }
        if self.requests.is_empty() {
            lines.push(quote(&self.bytes));
        }
        lines
    }
}

/// A request in the form of redis-cli.
pub fn show(words: &[Word]) -> String {
    let shown: Vec<String> = words.iter().take(60).map(|word| quote_long(word)).collect();
    let more = if words.len() > 60 { format!(" ... {} words", words.len()) } else { String::new() };
    shown.join(" ") + &more
}

/// Quotes a word. Scripts are of most interest, so they are shown up to a length that is still readable.
fn quote_long(word: &[u8]) -> String {
    if word.len() <= 2000 { quote_all(word) } else { quote(word) }
}

fn bytes_of(requests: &[Vec<Word>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|words| encode(words, &mut bytes));
    bytes
}

fn pipeline(way: &'static str, requests: Vec<Vec<Word>>) -> Episode {
    let end = if requests.iter().any(|words| is_stateful(words)) { End::Reset } else { End::Counted };
    Episode { way, bytes: bytes_of(&requests), requests, end }
}

fn word(text: impl AsRef<str>) -> Word {
    text.as_ref().as_bytes().to_vec()
}

fn line(text: impl AsRef<str>) -> Vec<Word> {
    text.as_ref().split(' ').map(word).collect()
}

fn transaction(table: &Table, rng: &mut Rng) -> Episode {
    let mut requests = Vec::new();
    if rng.percent(20) {
        requests.push(vec![word("WATCH"), words::key(rng, None)]);
    }
    requests.push(line("MULTI"));
    let count = if rng.percent(3) { rng.between(400, 2000) } else { rng.between(1, 12) };
    if count > 400 {
        // A long transaction that ends: plain writes.
        requests.extend(
            (0..count).map(|i| vec![word("SET"), format!("w{}", i % 300).into_bytes(), words::value(rng)]),
        );
    } else {
        requests.extend((0..count).map(|_| table.call(rng)));
    }
    requests.push(line(if rng.percent(92) { "EXEC" } else { "DISCARD" }));
    // A queued command is always answered by QUEUED. A command that ends the transaction early is not.
    let mut episode = pipeline("in a transaction", requests);
    episode.end = End::Reset;
    episode
}

/// Runs several calls. Each call is words of ARGV, with their number before them.
const BY_SCRIPT: &str = "local at, out = 1, {} while at <= #ARGV do local n = tonumber(ARGV[at]) \
    local r = redis.pcall(unpack(ARGV, at + 1, at + n)) out[#out + 1] = type(r) at = at + n + 1 end return out";
/// Gives the replies back unchanged.
const BACK: &str = "return redis.pcall(unpack(ARGV))";
const BACK_RESP3: &str = "redis.setresp(3) return redis.pcall(unpack(ARGV))";
const NAKED: &str = "return redis.call(unpack(ARGV))";

fn by_script(table: &Table, rng: &mut Rng) -> Episode {
    let few = |rng: &mut Rng| loop {
        let call = table.call(rng);
        // The limit of unpack.
        if call.len() < 5000 {
            break call;
        }
    };
    let mut request = vec![word(if rng.percent(85) { "EVAL" } else { "EVAL_RO" })];
    if rng.percent(50) {
        request.extend([word(BY_SCRIPT), word("0")]);
        for _ in 0..rng.between(1, 8) {
            let call = few(rng);
            request.push(call.len().to_string().into_bytes());
            request.extend(call);
        }
    } else {
        request.extend([word(rng.pick(&[BACK, BACK_RESP3, NAKED])), word("0")]);
        request.extend(few(rng));
    }
    pipeline("by a script", vec![request])
}

fn inline(table: &Table, rng: &mut Rng) -> Episode {
    let call = table.call(rng);
    // A word with a line break would cut the line in two, and the second could be anything.
    let odd = |word: &Word| word.iter().any(|b| matches!(b, b'\n' | b'\r' | 0)) || word.len() > 2000;
    let words: Vec<String> = call.iter().filter(|word| !odd(word)).map(|word| quote(word)).collect();
    let bytes = format!("{}\r\n", words.join(" ")).into_bytes();
    Episode { way: "inline", requests: Vec::new(), bytes, end: End::Reset }
}

fn subscriber(table: &Table, rng: &mut Rng) -> Episode {
    let mut requests = Vec::new();
    if rng.percent(50) {
        requests.push(line("HELLO 3"));
    }
    for _ in 0..rng.between(1, 4) {
        let mut subscribe = vec![word(rng.pick(&["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"]))];
        let many = if rng.percent(5) { rng.between(1000, 12_000) } else { rng.between(1, 4) };
        subscribe.extend((0..many).map(|i| match rng.below(3) {
            0 => words::hostile(rng),
            _ => format!("c{}", i % 7000).into_bytes(),
        }));
        requests.push(subscribe);
        requests.push(vec![word("PUBLISH"), word("c0"), words::value(rng)]);
        if rng.percent(40) {
            requests.push(table.call(rng));
        }
        if rng.percent(20) {
            requests.push(vec![word("CLIENT"), word("REPLY"), word(rng.pick(&["OFF", "SKIP", "ON"]))]);
        }
        if rng.percent(40) {
            requests.push(line(rng.pick(&[
                "UNSUBSCRIBE",
                "PUNSUBSCRIBE",
                "SUNSUBSCRIBE c0 c1",
                "UNSUBSCRIBE c1",
            ])));
        }
    }
    let mut episode = pipeline("subscribed", requests);
    episode.end = if rng.percent(80) { End::Reset } else { End::Close };
    episode
}

/// A request without its end.
fn half(table: &Table, rng: &mut Rng) -> Episode {
    let mut requests: Vec<Vec<Word>> = (0..rng.below(5)).map(|_| table.call(rng)).collect();
    let mut bytes = bytes_of(&requests);
    let last = match rng.below(3) {
        0 => {
            let huge = *rng.pick(&[100_000, 1 << 20, 500 << 20]);
            let mut bytes = format!("*3\r\n$3\r\nSET\r\n$2\r\nw1\r\n${huge}\r\n").into_bytes();
            bytes.extend(vec![b'h'; rng.below(200_000)]);
            bytes
        }
        _ => {
            let call = table.call(rng);
            let whole = bytes_of(std::slice::from_ref(&call));
            requests.push(call);
            whole[..rng.below(whole.len())].to_vec()
        }
    };
    bytes.extend(last);
    Episode { way: "and half a request", requests, bytes, end: End::Close }
}

fn garbage(table: &Table, rng: &mut Rng) -> Episode {
    let bytes = match rng.below(12) {
        0 => (0..rng.between(1, 400)).map(|_| rng.next() as u8).collect(),
        1 => word(rng.pick(&[
            "*-1\r\n",
            "*0\r\n",
            "*2147483648\r\n",
            "*99999999999999999999\r\n",
            "*1048577\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n$-5\r\n",
            "*1\r\n$536870913\r\n",
            "*1\r\n$99999999999999999999\r\n",
            "*1\r\n+PING\r\n",
            "*1\r\n*1\r\n$4\r\nPING\r\n",
            "*+1\r\n$4\r\nPING\r\n",
            "* 1\r\n$ 4\r\nPING\r\n",
            "*1\n$4\nPING\n",
            "$4\r\nPING\r\n",
            "\r\n\r\n\r\n",
            "\0\0\0\0",
            ">1\r\n$4\r\nPING\r\n",
            "*1\r\n$0\r\n\r\n",
            "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4294967296\r\n",
        ])),
        2 => format!("*{}\r\n", rng.pick(words::NUMBERS)).into_bytes(),
        3 => format!("*2\r\n$4\r\nECHO\r\n${}\r\n", rng.pick(words::NUMBERS)).into_bytes(),
        4 => vec![b'a'; 70_000],
        5 => [b"*".to_vec(), vec![b'1'; 70_000]].concat(),
        6 => b"GET \"unbalanced\r\nGET 'x\r\n".to_vec(),
        7 => b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        8 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        9 => {
            let count = *rng.pick(&[1000, 20_000, 200_000]);
            b"*1\r\n$0\r\n\r\n".repeat(count / 10)
        }
        10 => {
            let mut bytes = format!("*{}\r\n", 1 << 20).into_bytes();
            bytes.extend(b"$1\r\na\r\n".repeat(rng.between(1, 100_000)));
            bytes
        }
        _ => {
            // A sound request with a few damaged bytes. It must not become a forbidden one.
            loop {
                let call = table.call(rng);
                let mut bytes = bytes_of(std::slice::from_ref(&call));
                for _ in 0..rng.between(1, 4) {
                    let at = rng.below(bytes.len());
                    bytes[at] = rng.next() as u8;
                }
                if !is_forbidden(&call, &[]) {
                    break bytes;
                }
            }
        }
    };
    Episode { way: "garbage", requests: Vec::new(), bytes, end: End::Garbage }
}

fn flush(rng: &mut Rng) -> Episode {
    let mut requests = vec![line(rng.pick(&["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC", "FLUSHDB SYNC"]))];
    requests.extend(furnish(rng));
    pipeline("emptied and furnished", requests)
}

/// Keys of every kind. The last of each kind is large.
pub fn furnish(rng: &mut Rng) -> Vec<Vec<Word>> {
    let mut requests = Vec::new();
    for nr in 0..4 {
        requests.push(vec![word("SET"), format!("s{nr}").into_bytes(), words::value(rng)]);
        let many = |what: &str, kind: char, each: usize, rng: &mut Rng| {
            let mut request = vec![word(what), format!("{kind}{nr}").into_bytes()];
            for i in 0..rng.between(1, 30) {
                if what == "ZADD" {
                    request.push(i.to_string().into_bytes());
                }
                request.push(format!("m{i}").into_bytes());
                if each == 2 && what != "ZADD" {
                    request.push(words::value(rng));
                }
            }
            request
        };
        requests.push(many("RPUSH", 'l', 1, rng));
        requests.push(many("HSET", 'h', 2, rng));
        requests.push(many("SADD", 't', 1, rng));
        requests.push(many("ZADD", 'z', 2, rng));
        requests.push(line(format!("R.SETINTARRAY r{nr} 1 2 3 100 65536 4294967295")));
    }
    requests.push(vec![word("SET"), word("s4"), vec![b'L'; 300_000]]);
    for (what, kind) in [("RPUSH", 'l'), ("SADD", 't')] {
        let mut request = vec![word(what), format!("{kind}4").into_bytes()];
        request.extend((0..12_000).map(|i| format!("m{i}").into_bytes()));
        requests.push(request);
    }
    for (what, kind) in [("HSET", 'h'), ("ZADD", 'z')] {
        let mut request = vec![word(what), format!("{kind}4").into_bytes()];
        request.extend((0..6_000).flat_map(|i| [i.to_string().into_bytes(), format!("{i}").into_bytes()]));
        requests.push(request);
    }
    requests.push(line("R.SETRANGE r4 0 300000"));
    requests
}

fn http(rng: &mut Rng) -> Episode {
    let id = || words::NUMBERS;
    let target = match rng.below(14) {
        0 => "/healthz".to_owned(),
        1 => "/readyz".into(),
        2 => "/metrics".into(),
        3 => "/openapi.json".into(),
        4..=6 => format!("/items/{}", rng.below(2000)),
        7 => format!("/items/{}", rng.pick(id()).replace(' ', "%20")),
        8 => format!(
            "/items?ids={}",
            (0..rng.between(1, 60)).map(|i| i.to_string()).collect::<Vec<_>>().join(",")
        ),
        9 => format!(
            "/items?ids={}",
            rng.pick(&[",", "1,,2", "%", "%zz", "1%2C2", "x", "1&ids=2", "", "1,1,1"])
        ),
        10 => format!("/{}", "a".repeat(*rng.pick(&[1, 1000, 40_000, 70_000]))),
        11 => rng
            .pick(&["*", "//", "/../x", "http://a/items/1", "/items/%00", "/items/", "/items/1?x=y#z"])
            .to_string(),
        _ => "/".into(),
    };
    let method = *rng.pick(&["GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "DELETE", "get", "PRI", "X"]);
    let version = *rng.pick(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.1 x", ""]);
    let mut text = format!("{method} {target} {version}\r\nHost: localhost\r\n");
    for _ in 0..rng.below(4) {
        text += *rng.pick(&[
            "Connection: close\r\n",
            "Connection: keep-alive\r\n",
            "Content-Length: 5\r\n",
            "Content-Length: 0\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length: -1\r\n",
            "Transfer-Encoding: chunked\r\n",
            "If-None-Match: *\r\n",
            "If-None-Match: , ,\"a\", W/\"b\"\r\n",
            "If-Match: \"x\r\n",
            "If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
            "If-Unmodified-Since: x\r\n",
            "Expect: 100-continue\r\n",
            "Upgrade: h2c\r\n",
            "Authorization: Bearer x\r\n",
            "Range: bytes=0-1\r\n",
            "X: \0\r\n",
            " folded\r\n",
            "NoColon\r\n",
            "Host: b\r\n",
        ]);
    }
    if rng.percent(5) {
        text += &"a: b\r\n".repeat(*rng.pick(&[60, 100, 10_000]));
    }
    text += "\r\n";
    let mut bytes = text.into_bytes();
    match rng.below(8) {
        0 => bytes = bytes.repeat(rng.between(2, 60)),
        1 => bytes.truncate(rng.below(bytes.len())),
        2 => bytes.extend(b"hello"),
        3 => {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next() as u8;
        }
        _ => {}
    }
    Episode { way: "HTTP", requests: Vec::new(), bytes, end: End::Http }
}
