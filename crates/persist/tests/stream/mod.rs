//! Streams of effects with what they should leave, and loads that note what they did.
#![allow(dead_code)]

use persist::disk::{Disk, RealDisk};
use persist::stream::{Block, Item, Mark, Outlet};
use persist::{
    Apply, Install, Kept, Loaded, LoadedLog, LogError, LogOptions, NotTaken, Place, Progress, SaveFile,
    load_log,
};
use rdb::file::Format;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use value::{Str, Value};

/// A command as it takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub db: u64,
    /// Commands of one group have one number.
    pub group: u64,
    pub args: Vec<Vec<u8>>,
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % end.max(1)
    }
}

fn put(out: &mut Vec<u8>, args: &[Vec<u8>]) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// Makes a stream.
pub struct Source {
    pub random: Random,
    pub lsn: u64,
    selected: Option<u64>,
    groups: u64,
    /// All commands so far, with their LSNs.
    pub done: Vec<(u64, Done)>,
    pub value_max: u64,
}

impl Source {
    pub fn new(seed: u64, lsn: u64) -> Source {
        Source { random: Random(seed | 1), lsn, selected: None, groups: 0, done: Vec::new(), value_max: 300 }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.below(8) {
            0 => b"\r\n#EK 1 1 1 1 0 99999999 0000000000000000 00000000\r\n".to_vec(),
            1 => b"*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n".to_vec(),
            2 => vec![0; self.random.below(self.value_max) as usize],
            3 => vec![b'#'; self.random.below(self.value_max) as usize],
            _ => (0..self.random.below(self.value_max)).map(|_| self.random.below(256) as u8).collect(),
        }
    }

    /// A block of some groups.
    pub fn block(&mut self) -> Block {
        let (mut bytes, first) = (Vec::new(), self.lsn + 1);
        let groups = 1 + self.random.below(4);
        for _ in 0..groups {
            // There are gaps.
            self.lsn += 1 + self.random.below(3);
            self.group(&mut bytes);
        }
        Block { first, last: self.lsn, bytes, groups: groups as u32 }
    }

    fn group(&mut self, out: &mut Vec<u8>) {
        self.groups += 1;
        let db = match self.random.below(6) {
            0 => self.random.below(3),
            _ => self.selected.unwrap_or(0),
        };
        if self.selected != Some(db) {
            put(out, &[b"SELECT".to_vec(), db.to_string().into_bytes()]);
            self.selected = Some(db);
        }
        let commands = if self.random.below(4) == 0 { 2 + self.random.below(3) } else { 1 };
        if commands > 1 {
            put(out, &[b"MULTI".to_vec()]);
        }
        for i in 0..commands {
            let args = vec![b"SET".to_vec(), format!("k{}:{i}", self.lsn).into_bytes(), self.value()];
            put(out, &args);
            self.done.push((self.lsn, Done { db, group: self.groups, args }));
        }
        if commands > 1 {
            put(out, &[b"EXEC".to_vec()]);
        }
    }

    /// A mark here. The next group selects.
    pub fn mark(&mut self, mark: Mark) -> Item {
        self.selected = None;
        Item::Mark(self.lsn, mark)
    }

    /// A stream that begins anew behind what was recovered.
    pub fn goes_on(&mut self, commands: usize, lsn: u64) {
        self.done.truncate(commands);
        (self.lsn, self.selected) = (self.lsn.max(lsn), None);
        self.groups += 1;
    }

    pub fn give(&mut self, outlet: &mut dyn Outlet) {
        let block = self.block();
        outlet.take(Item::Block(block));
        outlet.turn(self.lsn);
    }
}

/// Notes what a load does. A base holds the commands that it stands for.
#[derive(Default)]
pub struct Replay {
    pub done: Vec<Done>,
    db: u64,
    group: u64,
    in_group: bool,
}

impl Apply for Replay {
    fn apply(&mut self, args: &[&[u8]]) -> Result<(), String> {
        if args[0].eq_ignore_ascii_case(b"SELECT") {
            self.db = String::from_utf8_lossy(args[1]).parse().map_err(|_| "no database".to_owned())?;
            return Ok(());
        }
        if !self.in_group {
            self.group += 1;
        }
        let args = args.iter().map(|arg| arg.to_vec()).collect();
        self.done.push(Done { db: self.db, group: self.group, args });
        Ok(())
    }

    fn group_begin(&mut self) {
        self.group += 1;
        self.in_group = true;
    }

    fn group_end(&mut self) -> Result<(), String> {
        self.in_group = false;
        Ok(())
    }

    fn file_begin(&mut self) {
        self.db = 0;
    }
}

/// Takes the keys of a base.
#[derive(Default)]
pub struct Base {
    pub keys: Mutex<Vec<(u64, Vec<u8>)>>,
    pub commands: AtomicU64,
}

impl Install for Base {
    fn aux(&self, name: &[u8], value: &[u8]) {
        if name == b"commands" {
            let commands = String::from_utf8_lossy(value).parse().expect("a number");
            self.commands.store(commands, Ordering::Relaxed);
        }
    }

    fn function(&self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn install(&self, batch: &mut Vec<Loaded>) -> Result<(), NotTaken> {
        let keys = batch.drain(..).map(|loaded| (u64::from(loaded.db), loaded.key.into()));
        self.keys.lock().expect("no panic").extend(keys);
        Ok(())
    }
}

/// The contents of a directory.
pub struct Recovered {
    /// Commands that a base stands for, and those that were applied.
    pub in_base: usize,
    pub done: Vec<Done>,
    pub log: LoadedLog,
}

impl Recovered {
    /// Checks that it is a prefix of a stream, and gives how many commands.
    pub fn assert_prefix(&self, source: &Source, what: &str) -> usize {
        let behind = &source.done[self.in_base.min(source.done.len())..];
        assert!(self.done.len() <= behind.len(), "{what}: {} of {}", self.done.len(), behind.len());
        let mut same = (0, 0);
        for (index, (ours, (lsn, theirs))) in self.done.iter().zip(behind).enumerate() {
            let what = || format!("{what}: command {index} at LSN {lsn}");
            assert_eq!((ours.db, &ours.args), (theirs.db, &theirs.args), "{}", what());
            if index > 0 {
                assert_eq!(ours.group == same.0, theirs.group == same.1, "{}: a group is split", what());
            }
            same = (ours.group, theirs.group);
        }
        if let Some((_, next)) = behind.get(self.done.len()) {
            assert!(self.done.is_empty() || next.group != same.1, "{what}: half a group");
        }
        self.in_base + self.done.len()
    }
}

pub fn recover(place: &Place) -> Result<Recovered, LogError> {
    recover_on(&RealDisk, place, LogOptions::default())
}

pub fn recover_on(disk: &dyn Disk, place: &Place, options: LogOptions) -> Result<Recovered, LogError> {
    let (base, mut replay) = (Base::default(), Replay::default());
    let log = load_log(disk, place, options, &base, &mut replay, &Progress::default())?;
    let in_base = base.commands.into_inner() as usize;
    Ok(Recovered { in_base, done: replay.done, log: log.unwrap_or_default() })
}

/// Writes a base that stands for so many commands.
pub fn write_base(
    disk: Arc<dyn Disk>,
    path: &Path,
    commands: usize,
    lsn: u64,
    epoch: u64,
) -> Result<u64, persist::SaveError> {
    let mut file = SaveFile::create(disk, path, Format::lowest(rdb::Dialect::Redis, false, false))?;
    file.aux(b"evenkeel-lsn", lsn.to_string().as_bytes())?;
    file.aux(b"evenkeel-epoch", epoch.to_string().as_bytes())?;
    file.aux(b"commands", commands.to_string().as_bytes())?;
    file.database(0, 1, 0)?;
    file.key(b"base", &Value::Str(Str::from_slice(b"value")), Kept::default())?;
    Ok(file.finish()?.bytes)
}
