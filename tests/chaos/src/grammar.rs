//! Calls made from COMMAND DOCS of the running server: every argument of its type, or nearly, or not at all.
//!
//! ```text
//!   COMMAND DOCS ─► Table ─► call(rng) ─► words as the docs say ─► spoil: a word less, another, many more
//! ```
//!
//! The calls follow from the docs and the generator of random numbers alone, never from a reply.

use crate::scripts;
use crate::words::{self, Word};
use support::rng::Rng;
use support::wire::{Conn, Frame};

/// Calls that are not made: they end the server, hold it up on purpose, or talk to other machines. CONFIG SET
/// has its own actor, which restores its settings.
const LEFT_OUT: &[&str] = &[
    "shutdown",
    "debug panic",
    "debug point",
    "debug stall",
    "debug sleep",
    "debug http-show",
    "debug log",
    "config set",
    "config rewrite",
    "replicaof",
    "slaveof",
    "cluster",
    "failover",
    "evenkeel source",
    "swapdb",
];

#[derive(Debug)]
pub struct Call {
    /// Lower case. A subcommand has two words.
    pub name: Vec<String>,
    group: String,
    args: Vec<Arg>,
}

#[derive(Debug, Clone)]
struct Arg {
    name: String,
    kind: String,
    token: Option<String>,
    optional: bool,
    multiple: bool,
    multiple_token: bool,
    args: Vec<Arg>,
}

pub struct Table {
    calls: Vec<Call>,
    without: Vec<String>,
}

impl Table {
    /// Reads the docs of a server. `without`: further names to leave out.
    pub fn read(conn: &mut Conn, without: &[String]) -> Result<Table, String> {
        let reply = conn.call(&["COMMAND", "DOCS"]);
        let mut table = Table { calls: Vec::new(), without: without.to_vec() };
        let items = reply.items().ok_or_else(|| format!("COMMAND DOCS was answered {reply}"))?;
        for pair in items.chunks_exact(2) {
            table.add(&[], &pair[0], &pair[1]);
        }
        // Commands without docs.
        for (name, words) in [("debug", DEBUG), ("object", &["help"]), ("evenkeel", &["phases", "help"])] {
            for sub in words {
                if !table.calls.iter().any(|call| call.name == [name, sub]) {
                    table.calls.push(Call::new(&[name, sub], "server", vec![Arg::free("word", true)]));
                }
            }
        }
        table.calls.retain(|call| !is_left_out(&call.name.join(" "), &[]));
        if table.calls.len() < 100 {
            return Err(format!("COMMAND DOCS tells of {} commands only", table.calls.len()));
        }
        table.calls.retain(|call| !is_left_out(&call.name.join(" "), without));
        Ok(table)
    }

    fn add(&mut self, above: &[String], name: &Frame, docs: &Frame) {
        // As on the wire: `client|kill`.
        let name = text(name).to_lowercase();
        let own = name.rsplit('|').next().unwrap_or(&name).to_owned();
        let name = [above, &[own]].concat();
        let subs = field(docs, "subcommands").and_then(Frame::items);
        if let Some(subs) = subs {
            subs.chunks_exact(2).for_each(|pair| self.add(&name, &pair[0], &pair[1]));
            return;
        }
        let args = field(docs, "arguments").map(arguments).unwrap_or_default();
        let group = field(docs, "group").map(text).unwrap_or_default();
        self.calls.push(Call { name, group, args });
    }

    /// A call of any command that is not left out.
    pub fn call(&self, rng: &mut Rng) -> Vec<Word> {
        loop {
            let call = rng.pick(&self.calls);
            let mut words = call.words(rng);
            if rng.percent(35) && !is_delicate(&words) {
                spoil(&mut words, rng);
            }
            if !is_forbidden(&words, &self.without) {
                return words;
            }
        }
    }
}

const DEBUG: &[&str] = &[
    "change-repl-id",
    "digest",
    "digest-value",
    "error",
    "htstats",
    "jmap",
    "object",
    "protocol",
    "quicklist-packed-threshold",
    "set-active-expire",
    "stringmatch-len",
];

/// Whether these words must not be sent, wherever they come from.
pub fn is_forbidden(words: &[Word], without: &[String]) -> bool {
    let lower =
        |at: usize| words.get(at).map(|w| String::from_utf8_lossy(w).to_lowercase()).unwrap_or_default();
    let (first, second) = (lower(0), lower(1));
    // More than a thousand keys per call are left to DEBUG POPULATE in furnish.
    is_left_out(&format!("{first} {second}"), without) || first == "debug" && second == "populate"
}

fn is_left_out(name: &str, without: &[String]) -> bool {
    let names = LEFT_OUT.iter().copied().chain(without.iter().map(String::as_str));
    names
        .into_iter()
        .any(|out| name == out || name.strip_prefix(out).is_some_and(|rest| rest.starts_with(' ')))
}

/// Whether a call reaches other clients. Such calls are not damaged, as they would close the judges'
/// connections.
fn is_delicate(words: &[Word]) -> bool {
    let is =
        |at: usize, name: &str| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    is(0, "client") && (is(1, "kill") || is(1, "pause") || is(1, "unblock")) || is(0, "migrate")
}

impl Call {
    fn new(name: &[&str], group: &str, args: Vec<Arg>) -> Call {
        Call { name: name.iter().map(|word| (*word).to_owned()).collect(), group: group.into(), args }
    }

    /// The words of one call, by the docs.
    fn words(&self, rng: &mut Rng) -> Vec<Word> {
        let mut out: Vec<Word> = self.name.iter().map(|word| word.to_uppercase().into_bytes()).collect();
        if let Some(more) = special(&self.name.join(" "), rng) {
            out.extend(more);
            return out;
        }
        let kind = match self.group.as_str() {
            "string" | "bitmap" => Some(b's'),
            "list" => Some(b'l'),
            "hash" => Some(b'h'),
            "set" => Some(b't'),
            "sorted-set" | "sorted_set" => Some(b'z'),
            "module" | "roaring" => Some(b'r'),
            _ => None,
        };
        let mut fill = Fill { kind: kind.filter(|_| rng.percent(85)), keys: None };
        self.args.iter().for_each(|arg| fill.some(arg, rng, &mut out));
        out
    }
}

/// Facts collected while a call is made.
struct Fill {
    kind: Option<u8>,
    /// The announced number of keys.
    keys: Option<usize>,
}

impl Fill {
    fn some(&mut self, arg: &Arg, rng: &mut Rng, out: &mut Vec<Word>) {
        if arg.optional && !rng.percent(35) {
            return;
        }
        let is_key = arg.kind == "key";
        let times = match (arg.multiple, self.keys.take_if(|_| is_key)) {
            (true, Some(keys)) => keys,
            (true, None) if rng.percent(1) => rng.between(300, 3000),
            (true, None) => rng.between(1, 4),
            (false, _) => 1,
        };
        for nr in 0..times {
            if let Some(token) = arg.token.as_ref().filter(|_| nr == 0 || arg.multiple_token) {
                out.push(token.clone().into_bytes());
            }
            self.one(arg, rng, out);
        }
    }

    fn one(&mut self, arg: &Arg, rng: &mut Rng, out: &mut Vec<Word>) {
        if rng.percent(3) {
            return out.push(words::hostile(rng));
        }
        let word = match arg.kind.as_str() {
            "pure-token" => return,
            "oneof" if !arg.args.is_empty() => {
                let chosen = rng.pick(&arg.args).clone();
                return self.some(&Arg { optional: false, ..chosen }, rng, out);
            }
            "block" => return arg.args.iter().for_each(|arg| self.some(arg, rng, out)),
            "key" if rng.percent(90) => words::key(rng, self.kind),
            "key" => words::hostile(rng),
            "integer" if arg.name == "numkeys" => {
                let keys = rng.between(1, 3);
                self.keys = rng.percent(90).then_some(keys);
                keys.to_string().into_bytes()
            }
            "integer" => words::number(rng),
            "double" if arg.name == "timeout" => rng
                .pick(&["0", "0.001", "0.01", "0.05", "0.1", "1", "-1", "inf", "nan", "1e300"])
                .as_bytes()
                .to_vec(),
            "double" if rng.percent(50) => format!("{}.5", rng.integer(-20, 20)).into_bytes(),
            "double" => words::number(rng),
            "unix-time" => rng
                .pick(&["1", "0", "-1", "4102444800", "4102444800000", "9223372036854775807", "1700000000"])
                .as_bytes()
                .to_vec(),
            "pattern" => {
                rng.pick(&["*", "s*", "[a-z]?", "nosuch*", "*->f0", "", "[", "h?"]).as_bytes().to_vec()
            }
            _ => named(arg, rng),
        };
        out.push(word);
    }
}

/// A word of type string, chosen by the argument's name.
fn named(arg: &Arg, rng: &mut Rng) -> Word {
    match arg.name.as_str() {
        "script" => scripts::text(rng),
        "sha1" => b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db".to_vec(),
        "function" => rng.pick(&["f_get", "f_all", "f_loop", "nosuch"]).as_bytes().to_vec(),
        "function-code" | "library-code" => scripts::library(rng),
        "serialized-value" => words::payload(rng),
        "member" | "field" | "element" | "pivot" => format!("m{}", rng.below(30)).into_bytes(),
        "min" | "max" | "start" | "stop" | "end" => match rng.below(4) {
            0 => {
                rng.pick(&["-", "+", "(1", "[a", "(a", "-inf", "+inf", "(inf", "[", "("]).as_bytes().to_vec()
            }
            _ => words::number(rng),
        },
        "encoding" => rng
            .pick(&["u8", "i64", "u63", "i1", "u64", "i65", "u0", "u", "i-1", "u99999999999", "i16"])
            .as_bytes()
            .to_vec(),
        "cursor" => rng.pick(&["0", "1", "17", "18446744073709551615", "-1", "x"]).as_bytes().to_vec(),
        "command" | "command-name" | "arg" => {
            let words = ["SORT", "EVAL", "XADD", "MIGRATE", "ZUNIONSTORE", "BITOP", "SET", "2", "1", "-1"];
            match rng.below(3) {
                0 => words::hostile(rng),
                _ => rng.pick(&words).as_bytes().to_vec(),
            }
        }
        "channel" | "shardchannel" | "pattern" => {
            rng.pick(&["c0", "c1", "c*", "", "[", "c[01]"]).as_bytes().to_vec()
        }
        "parameter" => rng.pick(&["*", "max*", "[", "hz", "save", "????????"]).as_bytes().to_vec(),
        "section" => {
            rng.pick(&["all", "everything", "stats", "commandstats", "latencystats", "x"]).as_bytes().to_vec()
        }
        "event" => rng.pick(&["command", "x", "", "expire-cycle"]).as_bytes().to_vec(),
        _ => words::value(rng),
    }
}

/// Arguments of calls with insufficient docs, or whose reach must be kept small.
fn special(name: &str, rng: &mut Rng) -> Option<Vec<Word>> {
    match name {
        "client kill" => of(rng.pick(&[
            "ID -1",
            "ID 999999999999",
            "ID 0",
            "ID x",
            "ADDR 127.0.0.1:1",
            "LADDR 127.0.0.1:1",
            "USER nosuch",
            "TYPE replica",
            "TYPE master",
            "TYPE pubsub",
            "TYPE x",
            "MAXAGE 9223372036854775807",
            "127.0.0.1:1",
            "SKIPME",
        ])),
        // A pause holds the judges up too.
        "client pause" => {
            of(rng.pick(&["0", "5 WRITE", "10 ALL", "20", "-1", "x", "9223372036854775808", "3 x"]))
        }
        "client unblock" => of(rng.pick(&["-1", "999999999 ERROR", "x", "0 TIMEOUT", "7 x"])),
        "migrate" => of(rng.pick(&[
            "127.0.0.1 1 s0 0 10",
            "127.0.0.1 1 nosuch 0 10 COPY REPLACE",
            "127.0.0.1 x s0 0 10",
            "127.0.0.1 1 s0 -1 10 KEYS s1 s2",
            "127.0.0.1 65536 s0 0 0",
        ])),
        "eval" | "eval_ro" => {
            let mut words = vec![scripts::text(rng)];
            words.extend(keys_and_args(rng));
            Some(words)
        }
        "fcall" | "fcall_ro" => {
            let mut words = vec![rng.pick(&["f_get", "f_all", "f_loop", "nosuch"]).as_bytes().to_vec()];
            words.extend(keys_and_args(rng));
            Some(words)
        }
        "script load" => Some(vec![scripts::text(rng)]),
        "function load" if rng.percent(80) => Some(vec![b"REPLACE".to_vec(), scripts::library(rng)]),
        "function restore" => Some(vec![words::payload(rng), b"REPLACE".to_vec()]),
        _ => None,
    }
}

fn of(line: impl AsRef<str>) -> Option<Vec<Word>> {
    Some(line.as_ref().split(' ').map(|word| word.as_bytes().to_vec()).collect())
}

fn keys_and_args(rng: &mut Rng) -> Vec<Word> {
    let keys = rng.below(3);
    let mut words = vec![keys.to_string().into_bytes()];
    (0..keys).for_each(|_| words.push(words::key(rng, None)));
    (0..rng.below(4)).for_each(|_| words.push(words::value(rng)));
    words
}

/// Damages a call: words missing, exchanged, doubled, hostile, or many.
fn spoil(words: &mut Vec<Word>, rng: &mut Rng) {
    for _ in 0..rng.between(1, 2) {
        let at = rng.between(1, words.len().max(2) - 1).min(words.len() - 1);
        match rng.below(8) {
            0 if words.len() > 1 => {
                words.remove(at);
            }
            1 => words.truncate(at + 1),
            2 => words.insert(at + 1, words::hostile(rng)),
            3 => words.insert(at + 1, words[at].clone()),
            4 if words.len() > 2 => {
                let other = rng.between(1, words.len() - 1);
                words.swap(at, other);
            }
            5 if rng.percent(10) => {
                let word = words::hostile(rng);
                let many = if word.len() > 1000 { 50 } else { *rng.pick(&[50, 400, 1000, 10_001, 20_000]) };
                words.extend(std::iter::repeat_n(word, many));
            }
            _ if at > 0 => words[at] = words::hostile(rng),
            _ => words.push(words::hostile(rng)),
        }
    }
}

impl Arg {
    fn free(name: &str, multiple: bool) -> Arg {
        let (name, kind) = (name.to_owned(), "string".to_owned());
        Arg { name, kind, token: None, optional: true, multiple, multiple_token: false, args: Vec::new() }
    }
}

fn arguments(frame: &Frame) -> Vec<Arg> {
    let argument = |docs: &Frame| {
        let flags = field(docs, "flags").and_then(Frame::items).unwrap_or_default();
        let has = |name: &str| flags.iter().any(|flag| text(flag) == name);
        Arg {
            name: field(docs, "name").map(text).unwrap_or_default(),
            kind: field(docs, "type").map(text).unwrap_or_default(),
            token: field(docs, "token").map(text),
            optional: has("optional"),
            multiple: has("multiple"),
            multiple_token: has("multiple_token"),
            args: field(docs, "arguments").map(arguments).unwrap_or_default(),
        }
    };
    frame.items().unwrap_or_default().iter().map(argument).collect()
}

/// The value of a name in a RESP2 map.
fn field<'a>(map: &'a Frame, name: &str) -> Option<&'a Frame> {
    map.items()?.chunks_exact(2).find(|pair| text(&pair[0]) == name).map(|pair| &pair[1])
}

fn text(frame: &Frame) -> String {
    frame.text().map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_never_sent() {
        let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        for line in [
            "shutdown",
            "SHUTDOWN NOSAVE",
            "Debug Panic",
            "DEBUG POPULATE 5",
            "CLUSTER MEET a 1",
            "config SET a b",
        ] {
            assert!(is_forbidden(&words(line), &[]), "{line}");
        }
        for line in ["GET shutdown", "DEBUG OBJECT s0", "CONFIG GET *", "EVENKEEL WAITS"] {
            assert!(!is_forbidden(&words(line), &[]), "{line}");
        }
        assert!(is_forbidden(&words("GET a"), &["get".to_owned()]));
    }
}
