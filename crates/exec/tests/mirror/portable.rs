//! Every write of the table, called at random: what it tells is executed by a mirror, and, if its row says
//! that old servers know it, by a Redis 7.0. Both hold the same.

use crate::load::CLIENTS;
use crate::world::{self, Told, World};
use crate::{Mirror, compare};
use apply::contents::{self, Contents, Value};
use command::table::Command;
use command::{Run, facts, registry};
use evenkeel_differential::grammar::{self, Body, Part, expand};
use evenkeel_differential::words;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use support::rng::Rng;
use support::server::Server;
use support::wire::{Conn, Frame};

/// Calls of a walk, and between two comparisons.
const CALLS: usize = 48_000;
const STRETCH: usize = 500;

/// Calls that the tables of the differential tester lack. Their lower-case words are drawn.
const MORE: &[&str] = &[
    "MSETEX 2 str val str val PX msecs",
    "MSETEX 1 str val NX",
    "MSETEX 2 str val str val KEEPTTL",
    "MSETEX 1 str val XX EXAT at",
    "MRESTORE 2 key 0 payload key 1000000 payload REPLACE",
    "MRESTORE 1 key 33177117420000 payload REPLACE ABSTTL",
    "MRESTORE 1 newkey 1000000 payload",
    "PFADD hll val val",
    "PFADD hll2 val",
    "PFMERGE hll hll2",
    "PFDEBUG TODENSE hll2",
    "XGROUP CREATE strm group 0 MKSTREAM",
    "XADD q9 7-1 field short",
    "XGROUP CREATE q9 g9 0 MKSTREAM",
    "XCLAIM q9 g9 consumer 0 7-1 FORCE",
    "XCLAIM q9 g9 consumer 0 7-1 FORCE",
    "XCLAIM q9 g9 consumer 0 7-1 FORCE",
    "XCLAIM q9 g9 consumer 0 7-1 FORCE",
    "XREADGROUP GROUP g9 consumer STREAMS q9 >",
    "XREADGROUP GROUP g9 consumer STREAMS q9 >",
    "XACK q9 g9 7-1",
    "XADD q6 7-1 field short",
    "XADD q6 7-1 field short",
    "XGROUP CREATE q6 g6 0 MKSTREAM",
    "XCLAIM q6 g6 consumer 0 7-1 FORCE",
    "XCLAIM q6 g6 consumer 0 7-1 FORCE",
    "XCLAIM q6 g6 consumer 0 7-1 FORCE",
    "XCLAIM q6 g6 consumer 0 7-1 FORCE",
    "XREADGROUP GROUP g6 consumer STREAMS q6 >",
    "XACKDEL q6 g6 IDS 1 7-1",
    "XACKDEL q6 g6 DELREF IDS 2 7-1 7-2",
    "XACKDEL q6 g6 ACKED IDS 1 7-1",
    "XADD q5 7-1 field short",
    "XADD q5 7-1 field short",
    "XDELEX q5 IDS 2 7-1 sid",
    "XDELEX q5 ACKED IDS 1 7-1",
    "XDELEX q7 DELREF IDS 2 sid sid",
    "XDELEX strm IDS 2 sid sid",
    "XDELEX strm ACKED IDS 2 sid sid",
    "XADD q7 DELREF MAXLEN 1 * field short",
    "XTRIM q7 ACKED MAXLEN 1",
    "XADD q8 7-1 field short",
    "XDEL q8 7-1",
    "DEL q8",
    "XADD q7 * field short",
    "XADD q4 IDMP val val * field short",
    "XADD q4 IDMP short val MAXLEN ~ 2 * field short",
    "XADD strm IDMPAUTO val MAXLEN 3 * field val",
    "XCFGSET q4 IDMP-DURATION 1 IDMP-MAXSIZE 2",
    "XCFGSET q4 IDMP-DURATION 2",
    "XCFGSET strm IDMP-MAXSIZE 5",
    "XADD q3 7-1 field short",
    "XIDMPRECORD q3 val short 7-1",
    "XIDMPRECORD strm val short sid",
    "XADD q7 MAXLEN ~ 2 * field short",
    "XADD q7 MINID ~ sid LIMIT 3 * field short field short",
    "XTRIM q7 MAXLEN ~ 3",
    "XREADGROUP GROUP group consumer NOACK COUNT 2 STREAMS strm >",
    "XREADGROUP GROUP group consumer STREAMS strm >",
    "XCLAIM strm group consumer 0 sid sid IDLE 5 FORCE LASTID sid",
    "XAUTOCLAIM strm group consumer 1 - COUNT 3",
    "SMOVE set set a",
    "DELIFEQ str short",
    "DELEX str",
    "DELEX str IFEQ short",
    "DELEX str IFNE short",
    "DELEX str IFDNE 0123456789abcdef",
    "SET str short IFEQ short EX secs",
    "SET str val IFNE short PX msecs",
    "SET str val IFDNE 0123456789abcdef KEEPTTL",
    "SET str val IFDEQ 0123456789abcdef",
    "SET str short",
    "SET str short XX GET",
    "SET str short NX PXAT pat",
    "SET str 3.5",
    "HSET hash field 1.5",
    "HSETEX hash PX msecs FIELDS 2 field val field val",
    "HSETEX hash FNX FIELDS 1 field val",
    "HSETEX hash KEEPTTL FIELDS 2 field val field val",
    "HSETEX hash EXAT 1 FIELDS 1 field val",
    "HGETEX hash EX secs FIELDS 2 field field",
    "HGETEX hash PERSIST FIELDS 1 field",
    "HGETEX hash PXAT 1 FIELDS 1 field",
    "HGETDEL hash FIELDS 2 field field",
    "HPEXPIRE hash msecs FIELDS 2 field field",
    "HEXPIRE hash secs FIELDS 1 field",
    "HEXPIREAT hash at FIELDS 1 field",
    "HPEXPIREAT hash pat FIELDS 1 field",
    "HPERSIST hash FIELDS 2 field field",
    "R.APPENDINTARRAY r1 1 2 3",
    "R.SETINTARRAY r2 5 9",
    "SADD set a b c d e f",
    "SPOP set",
    "SPOP set 2",
    "SREM set a b c",
    "SMOVE set set a",
    "SMOVE set set b",
    "SORT list ALPHA STORE list",
    "BITOP DIFF str str str",
    "BITOP DIFF1 str str str str",
    "BITOP ANDOR str str str",
    "BITOP ONE str str str",
    "ZADD zset 1 a 3 b 2 c 1 aa 5 cc",
    "ZREMRANGEBYLEX zset [a [c",
    "ZREMRANGEBYLEX zset (aa +",
    "ZRANGESTORE zset zset [a [c BYLEX",
    "ZRANGESTORE zset zset + (a BYLEX REV LIMIT 1 2",
    "ZRANGESTORE zset zset -inf +inf BYSCORE LIMIT -2 2",
    "HGETEX hash PERSIST FIELDS 2 field field",
    "HINCRBY hash field 3",
    "ZADD zset 0x10 a 0X1p-2 b",
    "ZINCRBY zset +0x1 a",
    "ZUNIONSTORE zset 2 zset zset WEIGHTS 0x2 1",
    "GEOADD gset 0x1 0x2 place",
    "GEORADIUS gset 0x1 0x2 0x100 km STORE gset2",
    "HINCRBYFLOAT hash field 0.5",
    "SORT set ALPHA BY s* GET s* GET # STORE list",
];

/// Calls, by the name of their row.
pub type Calls = BTreeMap<&'static str, Vec<Call>>;

pub enum Call {
    Line(Vec<Part>),
    Words(&'static str),
}

impl Call {
    pub fn draw(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        match self {
            Call::Line(parts) => {
                let mut words = Vec::new();
                expand(parts, rng, &mut words);
                words
            }
            Call::Words(line) => {
                let draw =
                    |word: &str| words::generate(word, rng).unwrap_or_else(|| word.as_bytes().to_vec());
                line.split(' ').map(draw).collect()
            }
        }
    }
}

fn is_walked(command: &Command) -> bool {
    command.is_write() && matches!(command.run, Run::Write(_) | Run::Whole(_))
}

/// Every row that is walked, also of a container.
fn rows() -> impl Iterator<Item = &'static Command> {
    registry::all().flat_map(|command| [command].into_iter().chain(command.subs)).filter(|row| is_walked(row))
}

/// The row of this name, if it is walked.
pub fn row_of(name: &str) -> Option<&'static Command> {
    rows().find(|row| row.name == name)
}

/// The row of a call that is walked. `sub`: its second word.
fn row(name: &str, sub: Option<&str>) -> Option<&'static Command> {
    let found = registry::find(name.as_bytes())?;
    let found = match found.subs.is_empty() {
        true => found,
        false => registry::find_sub(found, sub?.as_bytes())?,
    };
    is_walked(found).then_some(found)
}

/// A word that stands for itself.
fn literal(part: Option<&Part>) -> Option<&'static str> {
    match part {
        Some(Part::Literal(word)) => Some(word),
        _ => None,
    }
}

pub fn calls() -> Calls {
    let mut calls = Calls::new();
    for line in grammar::groups().into_iter().flat_map(|group| group.lines) {
        if let Body::Command(parts) = line.body
            && let Some(name) = literal(parts.first())
            && let Some(command) = row(name, literal(parts.get(1)))
        {
            calls.entry(command.name).or_default().push(Call::Line(parts));
        }
    }
    for line in MORE {
        let mut words = line.split(' ');
        let (name, sub) = (words.next().unwrap_or_default(), words.next());
        let command = row(name, sub).unwrap_or_else(|| panic!("{name} is a write"));
        calls.entry(command.name).or_default().push(Call::Words(line));
    }
    calls
}

/// Calls the rows at random, and lets `look` compare from time to time. Each must have told something.
fn walk(
    world: &mut World,
    rows: &[(&'static Command, &[Call])],
    mut look: impl FnMut(&mut World) -> Result<(), String>,
) {
    let mut rng = Rng::new(crate::number("EVENKEEL_SEED").unwrap_or(1), 7);
    let (mut called, mut told) = (Vec::new(), BTreeSet::new());
    for i in 0..CALLS {
        let (command, calls) = rng.pick(rows);
        if command.is(facts::FLUSHES) && !rng.percent(10) {
            continue;
        }
        let words = rng.pick(calls).draw(&mut rng);
        called.push(world::quote(&words));
        let before = world.told.len();
        world.call(0, &words);
        world.finish(0);
        if world.told.len() > before {
            told.insert(command.name);
        }
        if i % STRETCH == STRETCH - 1 {
            look(world).unwrap_or_else(|error| {
                panic!("{}\n{error}", called[called.len().saturating_sub(30)..].join("\n"))
            });
            called.clear();
        }
    }
    let silent: Vec<&str> =
        rows.iter().map(|(row, _)| row.name).filter(|name| !told.contains(name)).collect();
    assert!(silent.is_empty(), "never changed anything: {silent:?}");
}

#[test]
fn every_write_is_told_in_words_that_do_the_same() {
    let calls = calls();
    let rows_called: Vec<_> =
        calls.iter().map(|(name, calls)| (row_of(name).expect("a row"), &calls[..])).collect();
    let without: Vec<&str> = rows()
        .filter(|command| command.group != "roaring")
        .map(|command| command.name)
        .filter(|name| !calls.contains_key(name))
        .collect();
    assert!(without.is_empty(), "no calls of {without:?}");
    let (mut world, mut mirror) = (World::new(CLIENTS), Mirror::new());
    walk(&mut world, &rows_called, |world| compare(world, &mut mirror));
}

/// A stream, as XINFO STREAM FULL tells of it.
fn stream(info: &Frame) -> contents::Stream {
    /// The value behind a name.
    fn of<'f>(frame: &'f Frame, name: &str) -> &'f Frame {
        let items = frame.items().expect("names and values");
        let at = items.iter().step_by(2).position(|item| item.text() == Some(name.as_bytes()));
        &items[at.unwrap_or_else(|| panic!("no {name}")) * 2 + 1]
    }
    let text = |frame: &Frame| frame.text().expect("a text").to_vec();
    let items = |frame: &Frame| frame.items().expect("a list").to_vec();
    let number = |frame: &Frame| match frame {
        Frame::Int(number) => Some(*number as u64),
        _ => None,
    };
    let pending = |frame: &Frame| {
        let words = items(frame);
        let number = |at: usize| number(&words[at]).expect("a number");
        (text(&words[0]), text(&words[1]), number(2), number(3))
    };
    let group = |frame: &Frame| {
        let group = contents::Group {
            last_id: text(of(frame, "last-delivered-id")),
            entries_read: number(of(frame, "entries-read")),
            pending: items(of(frame, "pending")).iter().map(pending).collect(),
            consumers: items(of(frame, "consumers")).iter().map(|c| text(of(c, "name"))).collect(),
        };
        (text(of(frame, "name")), group)
    };
    let entry = |frame: &Frame| {
        let words = items(frame);
        (text(&words[0]), items(&words[1]).iter().map(text).collect())
    };
    contents::Stream {
        last_id: text(of(info, "last-generated-id")),
        max_deleted_id: text(of(info, "max-deleted-entry-id")),
        entries_added: number(of(info, "entries-added")).expect("a number"),
        entries: items(of(info, "entries")).iter().map(entry).collect(),
        groups: items(of(info, "groups")).iter().map(group).collect(),
        producers: None,
    }
}

/// The contents of a server, as it tells them. `times`: it knows times of fields.
pub fn seen(conn: &mut Conn, times: bool) -> Contents {
    let texts = |frame: Frame| -> Vec<Vec<u8>> {
        let text = |item: &Frame| item.text().unwrap_or_default().to_vec();
        frame.items().unwrap_or_default().iter().map(text).collect()
    };
    let mut contents = Contents::new();
    for db in 0..16 {
        conn.call(&["SELECT", &db.to_string()]);
        for key in texts(conn.call(&["KEYS", "*"])) {
            let mut ask = |words: &[&str]| {
                let mut all: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
                all.insert(1, key.clone());
                conn.call_bytes(&all)
            };
            let at = match ask(&["PEXPIRETIME"]) {
                Frame::Int(at) => u64::try_from(at).ok(),
                _ => None,
            };
            let value = match ask(&["TYPE"]).text().unwrap_or_default() {
                b"string" => Value::Str(ask(&["GET"]).text().unwrap_or_default().to_vec()),
                b"list" => Value::List(texts(ask(&["LRANGE", "0", "-1"]))),
                b"set" => Value::Set(texts(ask(&["SMEMBERS"])).into_iter().collect()),
                b"stream" => {
                    let words = ["XINFO", "STREAM", "", "FULL", "COUNT", "0"];
                    let mut words = words.map(|word| word.as_bytes().to_vec());
                    words[2].clone_from(&key);
                    Value::Stream(stream(&conn.call_bytes(&words)))
                }
                b"zset" => {
                    let pairs = texts(ask(&["ZRANGE", "0", "-1", "WITHSCORES"]));
                    let score = |text: &[u8]| String::from_utf8_lossy(text).parse::<f64>().expect("a score");
                    Value::ZSet(
                        pairs.chunks(2).map(|pair| (pair[0].clone(), score(&pair[1]).to_bits())).collect(),
                    )
                }
                _ => {
                    let pairs = texts(ask(&["HGETALL"]));
                    let count = (pairs.len() / 2).to_string().into_bytes();
                    let mut words = vec![b"HPEXPIRETIME".to_vec(), key.clone(), b"FIELDS".to_vec(), count];
                    words.extend(pairs.iter().step_by(2).cloned());
                    let at = if times { conn.call_bytes(&words) } else { Frame::Null };
                    let at = at.items().unwrap_or_default();
                    let field = |(i, pair): (usize, &[Vec<u8>])| {
                        let at = match at.get(i) {
                            Some(Frame::Int(at)) if *at > 0 => *at as u64,
                            // It has just expired.
                            Some(Frame::Int(-2)) => 1,
                            _ => value::trie::NEVER,
                        };
                        (pair[0].clone(), (pair[1].clone(), at))
                    };
                    Value::Hash(pairs.chunks(2).enumerate().map(field).collect())
                }
            };
            contents.insert((db, key), (value, at));
        }
    }
    contents
}

/// Has a server execute what was told. Errors: what it does not know.
fn tell(conn: &mut Conn, told: &[Told]) -> Result<(), String> {
    for group in told.chunk_by(|a, b| a.lsn == b.lsn) {
        let mut call = |words: &[Vec<u8>]| {
            let reply = conn.call_bytes(words);
            let failed =
                reply.is_error() || reply.items().is_some_and(|items| items.iter().any(Frame::is_error));
            match failed {
                true => {
                    let said = group.iter().map(Told::text).collect::<Vec<_>>().join("\n");
                    Err(format!("{reply}, in the group\n{said}"))
                }
                false => Ok(()),
            }
        };
        call(&[b"MULTI".to_vec()])?;
        for told in group {
            if let Some(db) = told.db {
                call(&[b"SELECT".to_vec(), db.to_string().into_bytes()])?;
            }
            call(&told.words)?;
        }
        call(&[b"EXEC".to_vec()])?;
    }
    Ok(())
}

#[test]
fn a_redis_7_executes_what_rows_say_it_knows() {
    let Ok(redis) = Server::start(Path::new("redis-server")) else {
        return eprintln!("no redis-server: nothing compared with it");
    };
    let mut conn = Conn::open(redis.addr).expect("a connection");
    let calls = calls();
    let known = |command: &&Command| (1..=700).contains(&command.portable_from());
    let rows: Vec<_> =
        calls.iter().filter_map(|(name, calls)| Some((row_of(name).filter(known)?, &calls[..]))).collect();
    let mut world = World::new(CLIENTS);
    // The other server has a clock of its own.
    world.set_now_ms(stdx::clock::wall_ms());
    walk(&mut world, &rows, |world| {
        let told = world.told.take();
        tell(&mut conn, &told)?;
        let ours = unproduced(contents::of(&world.server.keyspace, world.now_ms()));
        let theirs = seen(&mut conn, false);
        let Some(((_, key), difference)) = contents::difference(&ours, &theirs) else { return Ok(()) };
        let about: Vec<String> =
            told.iter().filter(|told| told.words.contains(&key)).map(Told::text).collect();
        Err(format!("{difference}\ntold of it:\n{}", about.join("\n")))
    });
}

/// Without what streams remember of producers, which no server of another make is told.
pub fn unproduced(mut contents: Contents) -> Contents {
    for (value, _) in contents.values_mut() {
        if let Value::Stream(stream) = value {
            stream.producers = None;
        }
    }
    contents
}

/// Without how many entries groups have read, and without consumers that have nothing: what Redis logs of
/// XREADGROUP does not tell them.
fn uncounted(mut contents: Contents) -> Contents {
    for (value, _) in contents.values_mut() {
        if let Value::Stream(stream) = value {
            for group in stream.groups.values_mut() {
                group.entries_read = None;
                group.consumers.clear();
            }
        }
    }
    contents
}

/// Servers, and whether they know times of fields.
const SERVERS: &[(&str, bool)] = &[("redis-server", false), ("redis8-server", true), ("valkey-server", true)];

/// A program that is installed, or that `make peers` has built.
pub fn program(name: &str) -> PathBuf {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let peers = std::env::var_os("EVENKEEL_PEERS").map(PathBuf::from);
    let built = peers.unwrap_or_else(|| home.join(".cache/evenkeel-peers")).join("bin").join(name);
    if built.exists() { built } else { name.into() }
}

/// The commands of a log.
fn commands(mut log: &[u8]) -> Vec<Vec<Vec<u8>>> {
    fn line<'a>(log: &mut &'a [u8]) -> &'a [u8] {
        let end = log.windows(2).position(|two| two == b"\r\n").expect("whole lines");
        let (line, rest) = (&log[..end], &log[end + 2..]);
        *log = rest;
        line
    }
    let number = |line: &[u8]| String::from_utf8_lossy(&line[1..]).parse::<usize>().expect("a number");
    let mut commands = Vec::new();
    while !log.is_empty() {
        let head = line(&mut log);
        if head.starts_with(b"#") {
            continue;
        }
        let mut word = || {
            let length = number(line(&mut log));
            let word = log[..length].to_vec();
            log = &log[length + 2..];
            word
        };
        commands.push((0..number(head)).map(|_| word()).collect());
    }
    commands
}

/// Real servers are called at random, and what they write into their logs is executed.
#[test]
fn logs_of_real_servers_are_executed() {
    let calls = calls();
    let calls: Vec<&Call> = calls.values().flatten().collect();
    for (name, times) in SERVERS {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().to_str().expect("a name in UTF-8").to_owned();
        // Without a sync it writes its log before it answers.
        let args = ["--dir", &folder, "--appendonly", "yes", "--appendfsync", "no"].map(str::to_owned);
        let Ok(server) = Server::start_with(&program(name), &args) else {
            eprintln!("no {name}: none of its logs is read");
            continue;
        };
        let mut conn = Conn::open(server.addr).expect("a connection");
        let mut rng = Rng::new(crate::number("EVENKEEL_SEED").unwrap_or(1), 9);
        for _ in 0..CALLS / 4 {
            let words = rng.pick(&calls).draw(&mut rng);
            let waits = words[0].to_ascii_uppercase().starts_with(b"B") && !words[0].starts_with(b"BIT");
            // Its order of equal elements is not that of its log.
            let sorts = words[0].eq_ignore_ascii_case(b"SORT");
            let empties = words[0].starts_with(b"FLUSH") && !rng.percent(10);
            // Which members those find over different scores is not promised.
            let by_member = [&b"ZREMRANGEBYLEX"[..], b"ZRANGESTORE"].contains(&&words[0][..])
                && words.iter().skip(1).any(|word| word.starts_with(b"z"));
            if !waits && !empties && !sorts && !by_member {
                conn.call_bytes(&words);
            }
        }
        for words in ["MULTI", "SET a 1", "SELECT 1", "SPOP t1", "INCRBYFLOAT s1 1.5", "EXEC"] {
            conn.call(&words.split(' ').collect::<Vec<_>>());
        }
        let theirs = uncounted(seen(&mut conn, *times));
        let log = dir.path().join("appendonlydir/appendonly.aof.1.incr.aof");
        let log = std::fs::read(&log).expect("its log");
        let mirror = &mut Mirror::new();
        let log = commands(&log);
        for words in &log {
            let slices: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let done = mirror.replay.apply(&slices);
            done.unwrap_or_else(|error| panic!("{name}: {error}: {}", world::quote(words)));
        }
        let ours = uncounted(contents::of(&mirror.server.keyspace, stdx::clock::wall_ms()));
        if let Some(((_, key), difference)) = contents::difference(&ours, &theirs) {
            let about = log.iter().filter(|words| words.contains(&key));
            let about: Vec<String> = about.map(|words| world::quote(words)).collect();
            panic!("{name}: {difference}\nin its log:\n{}", about.join("\n"));
        }
    }
}
