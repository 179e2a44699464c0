//! Files for tests, and what is loaded of them.

#![allow(dead_code, reason = "every user takes its part")]

use persist::disk::RealDisk;
use persist::{Damaged, Install, Kept, Loaded, NotTaken, Options, Progress, Report, SaveFile, Unknown};
use rdb::file::{Damage, Format};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use value::{Hash, Ints, List, Set, Str, Value, ZSet};

pub type Key = (u32, Vec<u8>);
/// The payload of each key's value, and its time.
pub type Found = BTreeMap<Key, (Vec<u8>, Option<u64>)>;

/// Collects what is loaded: each key with the payload of its value and its time.
#[derive(Default)]
pub struct Collect {
    pub keys: Mutex<Found>,
    /// In the order in which they came.
    pub order: Mutex<Vec<Key>>,
    pub aux: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    pub functions: Mutex<Vec<Vec<u8>>>,
}

pub fn payload(value: &Value) -> Vec<u8> {
    let payload = serial::encode::<()>(value, 0, &mut |_| Ok(())).expect("nothing stops it");
    payload.expect("nothing expired")
}

impl Install for Collect {
    fn databases(&self) -> u64 {
        16
    }

    fn aux(&self, name: &[u8], value: &[u8]) {
        self.aux.lock().expect("no panic").push((name.to_vec(), value.to_vec()));
    }

    fn function(&self, code: &[u8]) -> Result<(), String> {
        self.functions.lock().expect("no panic").push(code.to_vec());
        if code == b"bad" { Err("it does not compile".into()) } else { Ok(()) }
    }

    fn install(&self, batch: &mut Vec<Loaded>) -> Result<(), NotTaken> {
        let (mut keys, mut order) =
            (self.keys.lock().expect("no panic"), self.order.lock().expect("no panic"));
        for (index, loaded) in batch.drain(..).enumerate() {
            let key = (loaded.db, loaded.key.to_vec());
            order.push(key.clone());
            if keys.insert(key, (payload(&loaded.value), loaded.expire_ms)).is_some() {
                return Err(NotTaken::Twice(index));
            }
        }
        Ok(())
    }
}

/// Loads with two workers.
pub fn load(
    file: &[u8],
    damaged: Damaged,
    unknown: Unknown,
) -> (Result<Report, Damage<std::io::Error>>, Collect, Progress) {
    let (collect, progress) = (Collect::default(), Progress::default());
    let options = Options { workers: 2, damaged, unknown };
    let report = persist::load(file, options, &collect, &progress);
    (report, collect, progress)
}

/// A value of each type, small.
pub fn samples() -> Vec<Value> {
    let mut timed: Hash = [("f", "v"), ("g", "w"), ("h", "x")].into_iter().collect();
    timed.set_expire(b"g", Some(4_000_000_000_000));
    vec![
        Value::Str(Str::from_slice(b"text")),
        Value::Str(Str::from_slice(b"-17")),
        Value::Str(Str::from_slice(&b"abcd".repeat(20))),
        Value::List(["a", "2", ""].into_iter().collect::<List>()),
        Value::Set(["1", "2"].into_iter().collect::<Set>()),
        Value::Set(["x", "y", &"z".repeat(40)].into_iter().collect::<Set>()),
        Value::ZSet([("m", 1.5), ("n", f64::INFINITY)].into_iter().collect::<ZSet>()),
        Value::Hash([("f", "v"), ("g", "7")].into_iter().collect::<Hash>()),
        Value::Hash(timed),
        Value::Roaring([1, 2, 3, 70_000].into_iter().collect::<Ints>()),
        Value::Roaring64([1, 1 << 40].into_iter().collect::<Ints>()),
    ]
}

/// Writes a file with [`SaveFile`].
pub fn written(format: Format, fill: impl FnOnce(&mut SaveFile)) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("dump.rdb");
    let mut file = SaveFile::create(Arc::new(RealDisk), &path, format).expect("a folder");
    fill(&mut file);
    file.finish().expect("room");
    std::fs::read(path).expect("the file")
}

/// A file with the samples in two databases, and its keys in order.
pub fn sample_file(format: Format) -> (Vec<u8>, Vec<Key>) {
    let mut keys = Vec::new();
    let file = written(format, |file| {
        file.aux(b"redis-ver", b"7.4.0").expect("room");
        file.aux(b"evenkeel-lsn", b"123456789").expect("room");
        file.function(b"#!lua name=lib").expect("room");
        for db in [0, 3] {
            file.database(db, 11, 4).expect("room");
            for (i, value) in samples().iter().enumerate() {
                let key = format!("key{i}").into_bytes();
                let expire_ms = (i % 3 == 0).then_some(4_000_000_000_000 + i as u64);
                file.key(&key, value, Kept { expire_ms, ..Kept::default() }).expect("room");
                keys.push((db, key));
            }
        }
    });
    (file, keys)
}

/// The same with the sum of what is there.
pub fn resummed(mut file: Vec<u8>) -> Vec<u8> {
    let end = file.len() - 8;
    let sum = rdb::crc64(0, &file[..end]);
    file[end..].copy_from_slice(&sum.to_le_bytes());
    file
}
