//! Saves on disks that fail: the file before stays as it was, nothing is left over, and the error names the
//! step.

use persist::disk::{Disk, Faults, Faulty, RealDisk};
use persist::{Kept, SaveError, SaveFile, Saved, Step, remove_leftovers, set_aside};
use rdb::file::Format;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use value::{Hash, Str, Value};

const BEFORE: &[u8] = b"the file before";

/// Saves about 700 KB.
fn save(disk: &Faulty, target: &Path) -> Result<Saved, SaveError> {
    let mut file = SaveFile::create(Arc::new(disk.clone()), target, Format::REDIS)?;
    file.aux(b"redis-ver", b"7.4.0")?;
    file.function(b"code")?;
    file.database(0, 100, 0)?;
    for i in 0_u64..100 {
        let text: Vec<u8> = (0..7_000_u64).map(|j| (i * 31 + j * j) as u8 ^ (j >> 7) as u8).collect();
        let kept = Kept { expire_ms: Some(4_000_000_000_000 + i), ..Kept::default() };
        file.key(format!("key{i}").as_bytes(), &Value::Str(Str::from_slice(&text)), kept)?;
    }
    file.finish()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        RealDisk.names(dir).expect("a folder").iter().map(|name| name.display().to_string()).collect();
    names.sort();
    names
}

fn sound(path: &Path) -> persist::Description {
    let bytes = std::fs::read(path).expect("the file");
    let about = persist::describe(&bytes[..], 0).expect("a header");
    assert!(about.damage.is_none(), "{about}");
    about
}

#[test]
fn a_save_goes_through_short_and_interrupted_writes() {
    for faults in [
        Faults::default(),
        Faults { short: Some(999), ..Faults::default() },
        Faults { interrupts: true, short: Some(65_536), ..Faults::default() },
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let (disk, target) = (Faulty::new(faults), dir.path().join("dump.rdb"));
        let saved = save(&disk, &target).expect("it goes through");
        let about = sound(&target);
        assert_eq!((saved.keys, saved.bytes), (100, about.bytes));
        assert_eq!((about.expiring, about.sum), (100, persist::Sum::Fits));
        assert_eq!(disk.log(), ["create", "sync", "rename", "sync_dir"]);
        assert_eq!(files(dir.path()), ["dump.rdb"]);
    }
}

#[test]
fn a_failure_leaves_the_file_before() {
    let full = |after| Faults { writes: Some((after, Errno::NOSPC)), ..Faults::default() };
    let cases = [
        (Faults { create: Some(Errno::ACCESS), ..Faults::default() }, Step::Create),
        (full(0), Step::Write),
        (full(300_000), Step::Write),
        // The last bytes.
        (full(700_000), Step::Write),
        (Faults { writes: Some((1_000, Errno::IO)), ..Faults::default() }, Step::Write),
        (Faults { sync: Some((0, Errno::IO)), ..Faults::default() }, Step::Sync),
        (Faults { rename: Some(Errno::IO), ..Faults::default() }, Step::Rename),
    ];
    for (faults, step) in cases {
        let dir = tempfile::tempdir().expect("a folder");
        let (disk, target) = (Faulty::new(faults), dir.path().join("dump.rdb"));
        std::fs::write(&target, BEFORE).expect("room");
        let error = save(&disk, &target).expect_err("it fails");
        assert_eq!(error.step, step, "{faults:?}: {error}");
        assert_eq!(std::fs::read(&target).expect("it is there"), BEFORE, "{faults:?}");
        assert_eq!(files(dir.path()), ["dump.rdb"], "{faults:?}");
        // It goes through when the disk is well again.
        disk.set(Faults::default());
        save(&disk, &target).expect("it goes through");
        sound(&target);
    }
}

#[test]
fn a_full_disk_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = Faulty::new(Faults { writes: Some((0, Errno::NOSPC)), ..Faults::default() });
    let error = save(&disk, &dir.path().join("dump.rdb")).expect_err("it fails").to_string();
    assert!(error.starts_with("cannot write ") && error.contains("No space left on device"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_synced_is_told_though_the_file_is_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = Faulty::new(Faults { sync_dir: Some(Errno::IO), ..Faults::default() });
    let target = dir.path().join("dump.rdb");
    let error = save(&disk, &target).expect_err("it is not durable");
    assert_eq!(error.step, Step::SyncDirectory);
    sound(&target);
}

/// A file that is read once and removed is not synced: nothing fails once it has its name, and would leave it
/// behind.
#[test]
fn a_passing_file_is_whole_on_a_disk_that_syncs_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let faults = Faults { sync: Some((0, Errno::IO)), sync_dir: Some(Errno::IO), ..Faults::default() };
    let (disk, target) = (Faulty::new(faults), dir.path().join("temp-1-2.rdb"));
    let mut file = SaveFile::create(Arc::new(disk.clone()), &target, Format::REDIS).expect("a folder");
    file.forgo_power_loss();
    file.text(b"k", b"v", Kept::default()).expect("room");
    assert_eq!(file.finish().expect("it goes through").keys, 1);
    sound(&target);
    assert_eq!(disk.log(), ["create", "rename"]);
}

#[test]
fn a_save_that_is_dropped_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let target = dir.path().join("dump.rdb");
    let file = SaveFile::create(Arc::new(RealDisk), &target, Format::REDIS).expect("a folder");
    assert_eq!(files(dir.path()).len(), 1);
    drop(file);
    assert!(files(dir.path()).is_empty());
}

#[test]
fn fields_that_expire_need_a_version_that_has_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut hash: Hash = [("f", "v"), ("g", "w")].into_iter().collect();
    hash.set_expire(b"f", Some(5_000));
    let value = Value::Hash(hash);
    for (format, can) in [
        (Format::lowest(rdb::Dialect::Redis, true, false), false),
        (Format::REDIS, true),
        (Format::VALKEY, true),
    ] {
        let target = dir.path().join("dump.rdb");
        let mut file = SaveFile::create(Arc::new(RealDisk), &target, format).expect("a folder");
        let before = file.size_bytes();
        let written = file.key(b"key", &value, Kept::default());
        assert_eq!(written.is_ok(), can, "{format}");
        assert_eq!(file.size_bytes() > before, can, "{format}");
        file.finish().expect("a refused key is no failure");
        let about = sound(&target);
        assert_eq!(about.databases.get(&0).map_or(0, |db| db.all.keys), u64::from(can));
    }
}

#[test]
fn temporary_files_of_processes_that_are_gone_are_removed() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut child = std::process::Command::new("true").spawn().expect("it runs");
    let gone = child.id();
    child.wait().expect("it ends");
    let names = [
        (format!("temp-{gone}-0.rdb"), false),
        (format!("temp-{}-17.rdb", std::process::id()), false),
        ("temp-1-0.rdb".to_owned(), true),
        (format!("temp-{gone}.rdb"), true),
        (format!("temp-{gone}-x.rdb"), true),
        ("temp-x-1.rdb".to_owned(), true),
        ("temp--1-1.rdb".to_owned(), true),
        ("dump.rdb".to_owned(), true),
    ];
    for (name, _) in &names {
        std::fs::write(dir.path().join(name), "").expect("room");
    }
    assert_eq!(remove_leftovers(&RealDisk, dir.path()).expect("a folder"), 2);
    let mut left: Vec<_> = names.iter().filter(|(_, stays)| *stays).map(|(name, _)| name.clone()).collect();
    left.sort();
    assert_eq!(files(dir.path()), left);
}

#[test]
fn the_rest_of_a_damaged_file_is_set_aside() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("dump.rdb");
    let bytes: Vec<u8> = (0..700_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    std::fs::write(&path, &bytes).expect("room");
    let disk = Faulty::new(Faults { short: Some(99_999), interrupts: true, ..Faults::default() });
    for (n, from) in [(1, 0), (2, 300_001), (3, 700_000)] {
        let copy = set_aside(&disk, &path, from as u64).expect("room");
        assert_eq!(copy, dir.path().join(format!("damaged-{n}")));
        assert!(std::fs::read(copy).expect("the copy") == bytes[from..]);
    }
    disk.set(Faults { writes: Some((1_500_000, Errno::NOSPC)), ..Faults::default() });
    set_aside(&disk, &path, 0).expect_err("the disk is full");
    assert_eq!(files(dir.path()), ["damaged-1", "damaged-2", "damaged-3", "dump.rdb"]);
    assert!(std::fs::read(&path).expect("it is there") == bytes);
}
