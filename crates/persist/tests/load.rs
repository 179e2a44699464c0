//! Loads: the keys they give to a keyspace, their reports, and the files they refuse.

mod files;

use files::{Key, load, payload, resummed, sample_file, samples, written};
use keyspace::{Keyspace, View};
use persist::{Damaged, IntoKeyspace, Kept, Options, Progress, Unknown};
use rdb::file::{Format, Problem};
use std::sync::atomic::Ordering;
use value::{List, Str, Value};

#[test]
fn all_of_a_file_is_loaded() {
    for format in [Format::REDIS, Format::VALKEY] {
        let (file, order) = sample_file(format);
        let (report, found, progress) = load(&file, Damaged::Refuse, Unknown::Refuse);
        let report = report.expect("sound");
        assert_eq!(
            (report.format, report.keys, report.bytes),
            (format, order.len() as u64, file.len() as u64)
        );
        assert!(report.is_summed && report.damage.is_none() && report.skipped.count == 0);
        let keys = found.keys.into_inner().expect("no panic");
        for db in [0, 3] {
            for (i, value) in samples().iter().enumerate() {
                let expire_ms = (i % 3 == 0).then_some(4_000_000_000_000 + i as u64);
                let key: Key = (db, format!("key{i}").into_bytes());
                assert_eq!(keys.get(&key), Some(&(payload(value), expire_ms)), "{i}");
            }
        }
        let aux = found.aux.into_inner().expect("no panic");
        assert_eq!(aux[1], (b"evenkeel-lsn".to_vec(), b"123456789".to_vec()));
        assert_eq!(found.functions.into_inner().expect("no panic"), [b"#!lua name=lib"]);
        assert_eq!(progress.keys.load(Ordering::Relaxed), order.len() as u64);
        assert_eq!(progress.read_bytes.load(Ordering::Relaxed), file.len() as u64);
    }
}

fn text(i: usize, len: usize) -> Value {
    let bytes: Vec<u8> = (0..len).map(|j| (i * 31 + j * j) as u8 ^ (j >> 7) as u8).collect();
    Value::Str(Str::from_slice(&bytes))
}

/// Many pieces, large values among them.
fn large_file() -> (Vec<u8>, Vec<Key>) {
    let mut order = Vec::new();
    let file = written(Format::REDIS, |file| {
        file.database(0, 3_000, 0).expect("room");
        for i in 0..3_000 {
            let key = format!("key{i}").into_bytes();
            let value = match i % 500 {
                250 => text(i, 600_000),
                499 => Value::List((0..50_000).map(|j| format!("element {j} of {i}")).collect::<List>()),
                _ => text(i, 700),
            };
            file.key(&key, &value, Kept::default()).expect("room");
            order.push((0, key));
        }
    });
    (file, order)
}

#[test]
fn a_large_file_is_loaded_into_a_keyspace() {
    let (file, order) = large_file();
    for workers in [0, 1, 4] {
        let keyspace = Keyspace::new(16);
        let into = IntoKeyspace::new(&keyspace, 1, |_| Ok(()));
        let options = Options { workers, ..Options::default() };
        let report = persist::load(&file[..], options, &into, &Progress::default()).expect("sound");
        assert_eq!((report.keys, keyspace.len(0)), (3_000, 3_000));
        keyspace.check_invariants();
        for (i, (_, key)) in order.iter().enumerate().step_by(250) {
            let view = View::locked_one(&keyspace, key, 0, 1);
            let found = view.owned(key).expect("it was loaded");
            let len = if i % 500 == 250 { 600_000 } else { 700 };
            assert_eq!(payload(&found.value), payload(&text(i, len)), "{i}");
        }
    }
}

#[test]
fn what_has_expired_is_left_out_unless_all_is_kept() {
    let file = written(Format::REDIS, |file| {
        file.database(2, 2, 2).expect("room");
        for (key, ms) in [("past", 1_000), ("future", 4_000_000_000_000)] {
            let kept = Kept { expire_ms: Some(ms), idle_s: Some(50), ..Kept::default() };
            file.key(key.as_bytes(), &text(1, 10), kept).expect("room");
        }
    });
    for (now_ms, keys) in [(2_000, 1), (0, 2)] {
        let keyspace = Keyspace::new(16);
        let into = IntoKeyspace::new(&keyspace, now_ms, |_| Ok(()));
        persist::load(&file[..], Options::default(), &into, &Progress::default()).expect("sound");
        assert_eq!((keyspace.len(2), keyspace.expires(2)), (keys, keys));
        assert_eq!(into.expired(), 2 - keys as u64);
    }
}

/// Makes the value of one key malformed, with a right sum.
fn broken_at(file: &[u8], order: &[Key], nth: usize) -> Vec<u8> {
    let name = [b"\x10\x04", &order[nth].1[..]].concat();
    let mut file = file.to_vec();
    let at = file.windows(name.len()).position(|bytes| bytes == name).expect("the key");
    file[at + name.len() + 1] = 0xff;
    resummed(file)
}

/// Hashes as one string each, of which nothing is checked when they are passed over.
fn packed_file() -> (Vec<u8>, Vec<Key>) {
    let mut order = Vec::new();
    let file = written(Format::REDIS, |file| {
        file.database(1, 90, 0).expect("room");
        for i in 0..90 {
            let key = format!("k{i:03}").into_bytes();
            // A listpack of two elements, "f" and a number. Much stands between, so that there are many
            // pieces.
            let pack = [&b"\x0c\x00\x00\x00\x02\x00\x81f\x02"[..], &[i as u8, 1, 0xff]].concat();
            let entry = [b"\x10\x04", &key[..], &[pack.len() as u8], &pack].concat();
            file.entries(&entry, 1).expect("room");
            file.key(format!("between{i}").as_bytes(), &text(i, 100_000), Kept::default()).expect("room");
            order.push((1, key));
            order.push((1, format!("between{i}").into_bytes()));
        }
    });
    (file, order)
}

#[test]
fn what_precedes_a_malformed_value_is_kept_exactly() {
    let (file, order) = packed_file();
    let (whole, _, _) = load(&file, Damaged::Refuse, Unknown::Refuse);
    whole.expect("sound");
    for nth in [0, 2, 60, 178] {
        let broken = broken_at(&file, &order, nth);
        let key = &order[nth].1;
        let (refused, _, _) = load(&broken, Damaged::Refuse, Unknown::Refuse);
        let refused = refused.expect_err("it is malformed");
        assert_eq!(refused.key.as_deref(), Some(&key[..]));
        let said = refused.to_string();
        let expected = format!(
            "file offset {}, key \"{}\", database 1: the value is malformed",
            refused.offset,
            key.escape_ascii()
        );
        assert_eq!(said, expected);
        let (report, kept, _) = load(&broken, Damaged::KeepPrefix, Unknown::Refuse);
        let report = report.expect("what precedes is kept");
        assert_eq!(report.damage.as_ref().map(ToString::to_string), Some(said));
        assert_eq!(report.left_bytes(broken.len() as u64), broken.len() as u64 - refused.offset);
        assert_eq!(kept.order.into_inner().expect("no panic"), order[..nth]);
        assert_eq!(report.keys, nth as u64);
    }
}

#[test]
fn the_first_damage_is_told() {
    let (file, order) = packed_file();
    let broken = broken_at(&broken_at(&file, &order, 150), &order, 30);
    for _ in 0..20 {
        let (refused, _, _) = load(&broken[..broken.len() - 9], Damaged::Refuse, Unknown::Refuse);
        assert_eq!(refused.expect_err("malformed").key.as_deref(), Some(&order[30].1[..]));
    }
}

#[test]
fn a_wrong_sum_alone_keeps_all_and_says_so() {
    let (mut file, order) = sample_file(Format::REDIS);
    let last = file.len() - 1;
    file[last] ^= 1;
    let (refused, _, _) = load(&file, Damaged::Refuse, Unknown::Refuse);
    let refused = refused.expect_err("the sum is wrong");
    assert!(matches!(refused.what, Problem::Sum { .. }), "{refused}");
    let (report, _, _) = load(&file, Damaged::KeepPrefix, Unknown::Refuse);
    let report = report.expect("all is kept");
    assert_eq!((report.keys, report.left_bytes(file.len() as u64)), (order.len() as u64, 0));
    assert!(!report.is_summed && report.damage.is_some());
}

#[test]
fn a_key_that_comes_twice_is_refused() {
    let file = written(Format::REDIS, |file| {
        for db in [0, 1, 0] {
            file.database(db, 1, 0).expect("room");
            file.key(b"key", &text(1, 10), Kept::default()).expect("room");
        }
    });
    let keyspace = Keyspace::new(16);
    let into = IntoKeyspace::new(&keyspace, 1, |_| Ok(()));
    let refused = persist::load(&file[..], Options::default(), &into, &Progress::default());
    let refused = refused.expect_err("it comes twice").to_string();
    assert!(refused.ends_with(", key \"key\", database 0: the key comes twice"), "{refused}");
}

#[test]
fn databases_and_libraries_that_are_not_taken_fail_the_load() {
    let file = written(Format::REDIS, |file| file.database(16, 1, 0).expect("room"));
    for damaged in [Damaged::Refuse, Damaged::KeepPrefix] {
        let (refused, _, _) = load(&file, damaged, Unknown::Refuse);
        let refused = refused.expect_err("there are 16").to_string();
        assert_eq!(refused, "file offset 11, database 16: there is no database 16 here (databases 16)");
        let file = written(Format::REDIS, |file| file.function(b"bad").expect("room"));
        let (refused, _, _) = load(&file, damaged, Unknown::Refuse);
        let refused = refused.expect_err("it is bad").to_string();
        assert_eq!(refused, "file offset 14: a library of functions: it does not compile");
    }
}

/// A value of a module.
#[test]
fn what_is_not_supported_is_refused_or_left_out_by_name() {
    let module = rdb::module_body(b"somemodul", 3, b"data");
    let module = [&module[..1], b"\x06module", &module[1..]].concat();
    for (entry, what) in [(module, "a value of the module somemodul (version 3)")] {
        let file = written(Format::REDIS, |file| {
            file.database(4, 2, 0).expect("room");
            file.key(b"before", &text(1, 10), Kept::default()).expect("room");
            file.entries(&entry, 1).expect("room");
            file.key(b"behind", &text(1, 10), Kept::default()).expect("room");
        });
        for damaged in [Damaged::Refuse, Damaged::KeepPrefix] {
            let (refused, _, _) = load(&file, damaged, Unknown::Refuse);
            let refused = refused.expect_err("not supported").to_string();
            assert!(refused.contains("database 4: ") && refused.contains(what), "{refused}");
        }
        let (report, found, _) = load(&file, Damaged::Refuse, Unknown::Skip);
        let report = report.expect("it is left out");
        assert_eq!((report.keys, report.skipped.count), (2, 1));
        assert_eq!(report.skipped.names[0].0, 4);
        assert_eq!(found.keys.into_inner().expect("no panic").len(), 2);
    }
}

/// A reader that fails in the middle.
struct Failing<'a>(&'a [u8]);

impl std::io::Read for Failing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.0.is_empty() {
            return Err(std::io::Error::other("the disk is gone"));
        }
        std::io::Read::read(&mut self.0, buffer)
    }
}

#[test]
fn an_input_that_fails_is_named() {
    let (file, _) = large_file();
    let (collect, options) = (files::Collect::default(), Options { workers: 2, ..Options::default() });
    let refused = persist::load(Failing(&file[..1_000_000]), options, &collect, &Progress::default());
    let refused = refused.expect_err("it fails").to_string();
    assert!(refused.ends_with("the file cannot be read: the disk is gone"), "{refused}");
}

/// Panics at the second piece.
#[derive(Default)]
struct Panics(std::sync::atomic::AtomicU32);

impl persist::Install for Panics {
    fn function(&self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn install(&self, _: &mut Vec<persist::Loaded>) -> Result<(), persist::NotTaken> {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) < 1, "on purpose");
        Ok(())
    }
}

#[test]
fn a_panic_of_the_install_ends_the_load() {
    let (file, _) = packed_file();
    for damaged in [Damaged::Refuse, Damaged::KeepPrefix] {
        let load = || {
            let options = Options { workers: 2, damaged, unknown: Unknown::Refuse };
            persist::load(&file[..], options, &Panics::default(), &Progress::default())
        };
        assert!(std::panic::catch_unwind(load).is_err());
    }
}
