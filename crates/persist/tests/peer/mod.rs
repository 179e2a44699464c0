//! Real servers, and what they and we say a file holds.
#![allow(dead_code)]

use persist::{Damaged, Install, Loaded, NotTaken, Options, Progress, Report, Unknown};
use rdb::file::Damage;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use support::server::Server;
use support::wire::{Conn, Frame};
use value::{Elem, Value};

/// Programs, and whether they have fields that expire.
pub const SERVERS: &[(&str, bool)] =
    &[("redis-server", false), ("redis8-server", true), ("valkey-server", true)];

type Key = (u64, Vec<u8>);

/// A value as commands tell it.
#[derive(Debug, PartialEq)]
pub enum Told {
    Str(Vec<u8>),
    List(Vec<Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
    /// Scores as bits.
    ZSet(BTreeMap<Vec<u8>, u64>),
    Hash(BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>),
}

fn told(value: &Value) -> Told {
    let bytes = |elem: Elem<'_>| match elem {
        Elem::Int(number) => number.to_string().into_bytes(),
        Elem::Bytes(bytes) => bytes.to_vec(),
    };
    match value {
        Value::Str(v) => Told::Str(v.as_ref().to_vec()),
        Value::List(v) => Told::List(v.iter().map(bytes).collect()),
        Value::Set(v) => Told::Set(v.iter().map(bytes).collect()),
        Value::ZSet(v) => {
            Told::ZSet(v.iter().map(|(member, score)| (member.to_vec(), score.to_bits())).collect())
        }
        Value::Hash(v) => {
            let field = |entry: value::hash::Entry<'_>| {
                let time = Some(entry.expire_at).filter(|at| *at != value::trie::NEVER);
                (entry.field.to_vec(), (entry.value.to_vec(), time))
            };
            Told::Hash(v.entries_from(0).map(field).collect())
        }
        Value::Stream(_) => panic!("no test asks for it"),
        Value::Roaring(_) | Value::Roaring64(_) => panic!("no server has it"),
    }
}

/// The contents of a server, as it tells them.
pub struct Seen {
    pub keys: BTreeMap<Key, (Told, Option<u64>)>,
}

impl Seen {
    pub fn assert_same(&self, contents: &Contents, what: &str) {
        let ours = contents_of(contents);
        let names = |keys: &BTreeMap<Key, (Told, Option<u64>)>| keys.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&self.keys), names(&ours), "{what}");
        for (key, theirs) in &self.keys {
            assert_eq!(Some(theirs), ours.get(key), "{what} {} {}", key.0, key.1.escape_ascii());
        }
    }
}

pub struct Owned {
    pub value: Value,
    pub expire_ms: Option<u64>,
}

/// The contents of a file.
#[derive(Default)]
pub struct Contents {
    pub keys: BTreeMap<Key, Owned>,
    pub functions: Vec<Vec<u8>>,
}

impl Contents {
    pub fn put(&mut self, db: u64, key: &[u8], value: Value) {
        self.keys.insert((db, key.to_vec()), Owned { value, expire_ms: None });
    }

    pub fn databases(&self) -> BTreeSet<u32> {
        self.keys.keys().map(|(db, _)| *db as u32).collect()
    }
}

pub fn contents_of(contents: &Contents) -> BTreeMap<Key, (Told, Option<u64>)> {
    contents.keys.iter().map(|(key, owned)| (key.clone(), (told(&owned.value), owned.expire_ms))).collect()
}

/// Collects what is loaded.
#[derive(Default)]
struct Collect(Mutex<Contents>);

impl Install for Collect {
    fn function(&self, code: &[u8]) -> Result<(), String> {
        self.0.lock().expect("no panic").functions.push(code.to_vec());
        Ok(())
    }

    fn install(&self, batch: &mut Vec<Loaded>) -> Result<(), NotTaken> {
        let mut contents = self.0.lock().expect("no panic");
        for (index, loaded) in batch.drain(..).enumerate() {
            let owned = Owned { value: loaded.value, expire_ms: loaded.expire_ms };
            if contents.keys.insert((loaded.db.into(), loaded.key.into()), owned).is_some() {
                return Err(NotTaken::Twice(index));
            }
        }
        Ok(())
    }
}

/// Loads a file.
pub fn read(path: &Path, unknown: Unknown) -> Result<(Contents, Report), Damage<std::io::Error>> {
    let (collect, options) = (Collect::default(), Options { workers: 3, damaged: Damaged::Refuse, unknown });
    let report = persist::load_file(path, options, &collect, &Progress::default())?;
    Ok((collect.0.into_inner().expect("no panic"), report))
}

fn binary(name: &str) -> Option<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let peers = std::env::var_os("EVENKEEL_PEERS").map(PathBuf::from);
    let cached = peers.unwrap_or_else(|| home.join(".cache/evenkeel-peers")).join("bin").join(name);
    let found = if cached.exists() { cached } else { PathBuf::from(name) };
    let runs = Command::new(&found).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if runs.is_err() {
        eprintln!("no {name}: nothing compared with it");
        return None;
    }
    Some(found)
}

/// Has a server's own checker look at a file. The server is it, by another name.
pub fn check(name: &str, path: &Path) {
    let Some(server) = binary(name) else { return };
    let checked = Command::new(server).arg0("redis-check-rdb").arg(path).output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && said.contains("RDB looks OK"), "{name}: {said}");
}

/// Has a server's own checker look at the manifest of a log.
pub fn check_log(name: &str, manifest: &Path) {
    let Some(server) = binary(name) else { return };
    let checked = Command::new(server).arg0("redis-check-aof").arg(manifest).output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success() && said.contains("All AOF files and manifest are valid"),
        "{name}: {said}"
    );
}

fn said(frame: &Frame) -> String {
    format!("{}: {}", frame.kind(), frame.text().unwrap_or_default().escape_ascii())
}

/// A server and a connection to it.
pub struct Peer {
    server: Server,
    conn: Conn,
    dir: tempfile::TempDir,
    has_field_times: bool,
}

impl Peer {
    /// Starts a server, with a file to load. None, and said so, where there is none.
    pub fn start(name: &str, file: Option<&Path>) -> Option<Peer> {
        let dir = tempfile::tempdir().expect("a folder");
        if let Some(file) = file {
            std::fs::copy(file, dir.path().join("dump.rdb")).expect("room");
        }
        Peer::start_in(name, dir, &[])
    }

    /// Starts a server in a directory. None, and said so, where there is none.
    pub fn start_in(name: &str, dir: tempfile::TempDir, args: &[&str]) -> Option<Peer> {
        let binary = binary(name)?;
        let folder = dir.path().to_str().expect("a name in UTF-8");
        let args: Vec<String> = ["--dir", folder].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
        let server = Server::start_with(&binary, &args).expect("it starts");
        let conn = Conn::open(server.addr).expect("a connection");
        let has_field_times = SERVERS.iter().any(|(server, times)| *server == name && *times);
        let mut peer = Peer { server, conn, dir, has_field_times };
        while peer.conn.call(&["DBSIZE"]).is_error() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Some(peer)
    }

    /// Where it saves.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("dump.rdb")
    }

    /// Waits until no rewrite of the log is under way.
    pub fn settle(&mut self) {
        let running = |info: &[u8]| !info.windows(26).any(|part| part == b"aof_rewrite_in_progress:0\r");
        while running(self.call(&[b"INFO", b"persistence"]).text().unwrap_or_default()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Ends the server, all written. Gives its directory.
    pub fn stop(mut self) -> tempfile::TempDir {
        // The connection is closed instead of an answer.
        let _ = self.conn.call(&["SHUTDOWN", "NOSAVE"]);
        while self.server.is_alive() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.dir
    }

    /// All strings it has.
    pub fn strings(&mut self) -> BTreeMap<Key, Vec<u8>> {
        let seen = self.contents();
        let text = |(key, (told, _))| match told {
            Told::Str(text) => (key, text),
            _ => panic!("it has strings"),
        };
        seen.keys.into_iter().map(text).collect()
    }

    pub fn run(&mut self, words: &[&str]) -> Frame {
        let frame = self.conn.call(words);
        assert!(!frame.is_error() && !matches!(frame, Frame::Gone(_)), "{words:?}: {}", said(&frame));
        frame
    }

    fn call(&mut self, words: &[&[u8]]) -> Frame {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        let frame = self.conn.call_bytes(&words);
        assert!(!frame.is_error(), "{words:?}: {}", said(&frame));
        frame
    }

    pub fn number(&mut self, words: &[&[u8]]) -> i64 {
        match self.call(words) {
            Frame::Int(number) => number,
            other => panic!("{}", said(&other)),
        }
    }

    fn texts(&mut self, words: &[&[u8]]) -> Vec<Vec<u8>> {
        let frame = self.call(words);
        let text = |item: &Frame| match item {
            Frame::Int(number) => number.to_string().into_bytes(),
            item => item.text().expect("a text").to_vec(),
        };
        frame.items().expect("an array").iter().map(text).collect()
    }

    /// All it has.
    pub fn contents(&mut self) -> Seen {
        let mut keys = BTreeMap::new();
        for db in 0..16 {
            self.call(&[b"SELECT", db.to_string().as_bytes()]);
            for key in self.texts(&[b"KEYS", b"*"]) {
                let at = self.number(&[b"PEXPIRETIME", &key]);
                let value = self.value(&key);
                keys.insert((db, key), (value, u64::try_from(at).ok()));
            }
        }
        self.call(&[b"SELECT", b"0"]);
        Seen { keys }
    }

    fn value(&mut self, key: &[u8]) -> Told {
        let kind = self.call(&[b"TYPE", key]).text().expect("a word").to_vec();
        match &kind[..] {
            b"string" => Told::Str(self.call(&[b"GET", key]).text().expect("a text").to_vec()),
            b"list" => Told::List(self.texts(&[b"LRANGE", key, b"0", b"-1"])),
            b"set" => Told::Set(self.texts(&[b"SMEMBERS", key]).into_iter().collect()),
            b"zset" => {
                let flat = self.texts(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]);
                let score = |text: &[u8]| -> f64 {
                    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).expect("a number")
                };
                Told::ZSet(flat.chunks(2).map(|pair| (pair[0].clone(), score(&pair[1]).to_bits())).collect())
            }
            b"hash" => {
                let flat = self.texts(&[b"HGETALL", key]);
                let fields: Vec<&[u8]> = flat.iter().step_by(2).map(|field| &field[..]).collect();
                let times = self.times(key, &fields);
                let field =
                    |(pair, time): (&[Vec<u8>], Option<u64>)| (pair[0].clone(), (pair[1].clone(), time));
                Told::Hash(flat.chunks(2).zip(times).map(field).collect())
            }
            kind => panic!("{}", kind.escape_ascii()),
        }
    }

    fn times(&mut self, key: &[u8], fields: &[&[u8]]) -> Vec<Option<u64>> {
        if !self.has_field_times {
            return vec![None; fields.len()];
        }
        let count = fields.len().to_string();
        let mut words = vec![&b"HPEXPIRETIME"[..], key, b"FIELDS", count.as_bytes()];
        words.extend(fields);
        let times = self.texts(&words);
        times.iter().map(|time| std::str::from_utf8(time).ok()?.parse().ok()).collect()
    }
}
