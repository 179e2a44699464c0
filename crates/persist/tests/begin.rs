//! A log that begins where another one was, while the power goes at every call of the disk: the old log is
//! there under one of its names, or the new one with its base. And logs whose files somebody takes away.

mod stream;

use persist::disk::{Outage, Power};
use persist::stream::{Item, Outlet};
use persist::{Fsync, Hooks, LogState, Place, Preallocate, Settings, Writer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stream::{Source, recover, write_base};

const OLD: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nold\r\n$1\r\nv\r\n";

fn settings(fsync: Fsync) -> Settings {
    Settings {
        fsync,
        preallocate: Preallocate::No,
        retry: Duration::from_millis(2),
        stuck: Duration::from_millis(50),
        ..Settings::default()
    }
}

/// A rewrite whose base holds everything so far.
fn rewrite(
    writer: &Writer,
    disk: Arc<dyn persist::disk::Disk>,
    source: &mut Source,
    outlet: &mut dyn Outlet,
) -> Result<(), String> {
    let rewriting = writer.begin_rewrite().map_err(|error| error.to_string())?;
    outlet.take(source.mark(rewriting.mark));
    let (commands, lsn) = (source.done.len(), source.lsn);
    outlet.take(Item::Block(source.block()));
    match write_base(disk, &rewriting.base, commands, lsn, writer.epoch()) {
        Ok(bytes) => writer.finish_rewrite(&rewriting, bytes).map_err(|error| error.to_string()),
        Err(error) => {
            writer.fail_rewrite(&rewriting);
            Err(error.to_string())
        }
    }
}

/// Puts the old log aside and begins another, as `CONFIG SET appendonly yes` does. Returns the commands in its
/// base.
fn begin(disk: &Power, place: &Place, source: &mut Source) -> io::Result<usize> {
    persist::put_unfinished_aside(disk, place)?;
    persist::put_aside(disk, &place.dir, "before")?;
    persist::mark_unfinished(disk, place)?;
    let files = Arc::new(disk.clone());
    let settings = settings(Fsync::EverySecond);
    let writer = Writer::open(files.clone(), place.clone(), None, 0, settings, Hooks::default())?;
    let mut outlet = writer.outlet();
    source.give(&mut outlet);
    let commands = source.done.len();
    rewrite(&writer, files, source, &mut outlet).map_err(io::Error::other)?;
    persist::mark_finished(disk, place)?;
    Ok(commands)
}

/// Makes a folder hold these files, and nothing else.
fn put_tree(files: &Outage, dir: &Path) {
    std::fs::remove_dir_all(dir).expect("it is there");
    std::fs::create_dir(dir).expect("room");
    for (path, bytes) in files {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("room");
        std::fs::write(path, bytes).expect("room");
    }
}

fn manifest_of_old(dir: &Path) -> PathBuf {
    dir.join("appendonly.aof.manifest")
}

#[test]
fn power_that_goes_while_a_log_begins_costs_neither_the_old_nor_the_new_one() {
    let home = tempfile::tempdir().expect("a folder");
    let dir = home.path().join("appendonlydir");
    let place = Place::new(&dir, "appendonly.aof");
    let old: Outage = [
        (manifest_of_old(&dir), b"file appendonly.aof.1.incr.aof seq 1 type i\n".to_vec()),
        (dir.join("appendonly.aof.1.incr.aof"), OLD.to_vec()),
    ]
    .into();
    let (mut dies_at, mut lived) = (0, false);
    while !lived {
        for seed in 0..6 {
            let disk = Power::new(old.clone());
            disk.dies_at(dies_at);
            let mut source = Source::new(dies_at + 3, 0);
            let begun = begin(&disk, &place, &mut source);
            lived = !disk.is_dead();
            let what = format!("call {dies_at}, seed {seed}: {begun:?}");
            put_tree(&disk.outage(dies_at * 17 + seed), home.path());
            persist::put_unfinished_aside(&persist::disk::RealDisk, &place).expect("room");
            let found = recover(&place).unwrap_or_else(|error| panic!("{what}: {error}"));
            let aside = home.path().join("appendonlydir.before-1");
            let is_old = |dir: &Path| {
                std::fs::read(dir.join("appendonly.aof.1.incr.aof")).is_ok_and(|text| text == OLD)
                    && manifest_of_old(dir).exists()
            };
            let began = begun.unwrap_or(0);
            if is_old(&dir) && began == 0 {
                assert!(!aside.exists(), "{what}");
                assert_eq!(found.done.len(), 1, "{what}");
                continue;
            }
            assert!(is_old(&aside), "{what}");
            assert!(found.in_base >= began, "{what}: {} in the base", found.in_base);
            // Without its base nothing of the new one counts.
            assert!(found.in_base > 0 || found.done.is_empty(), "{what}");
            found.assert_prefix(&source, &what);
        }
        dies_at += 1;
    }
    assert!(dies_at > 20, "{dies_at} calls");
}

/// Waits for something that the log's threads do.
#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nothing is told to be durable while the files are gone, and a rewrite brings them back.
#[test]
fn a_lost_directory_stops_the_log_until_a_rewrite() {
    let home = tempfile::tempdir().expect("a folder");
    let place = Place::new(home.path().join("log"), "appendonly.aof");
    let durable = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let told = Arc::clone(&durable);
    let asked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asks = Arc::clone(&asked);
    let hooks = Hooks {
        durable: Box::new(move |lsn| told.store(lsn, std::sync::atomic::Ordering::SeqCst)),
        rewrite: Box::new(move |_| asks.store(true, std::sync::atomic::Ordering::SeqCst)),
        ..Hooks::default()
    };
    let disk: Arc<dyn persist::disk::Disk> = Arc::new(persist::disk::RealDisk);
    let settings = Settings { stuck: Duration::from_secs(60), ..settings(Fsync::Always) };
    let writer = Writer::open(Arc::clone(&disk), place.clone(), None, 0, settings, hooks).expect("room");
    let (mut source, mut outlet) = (Source::new(5, 0), writer.outlet());
    source.give(&mut outlet);
    let durable = || durable.load(std::sync::atomic::Ordering::SeqCst);
    let lsn = source.lsn;
    until("it is durable", || durable() >= lsn);
    std::fs::remove_dir_all(&place.dir).expect("it is there");
    until("it is stopped", || matches!(writer.state(), LogState::Stopped(why) if why.contains("removed")));
    until("a rewrite is wanted", || asked.load(std::sync::atomic::Ordering::SeqCst));
    let before = durable();
    source.give(&mut outlet);
    until("it is written", || writer.pending_bytes() == 0);
    assert_eq!(durable(), before);
    rewrite(&writer, disk, &mut source, &mut outlet).expect("room");
    let lsn = source.lsn;
    outlet.turn(lsn);
    until("it writes again", || writer.state() == LogState::Running && durable() >= lsn);
    let found = recover(&place).expect("a log");
    assert_eq!(found.assert_prefix(&source, "anew"), source.done.len());
    writer.close().expect("a disk");
}

/// A guard that says no stops the log; nothing is lost when it says yes again.
#[test]
fn a_directory_that_another_has_stops_the_log() {
    let home = tempfile::tempdir().expect("a folder");
    let place = Place::new(home.path().join("log"), "appendonly.aof");
    let disk: Arc<dyn persist::disk::Disk> = Arc::new(persist::disk::RealDisk);
    let settings = Settings { stuck: Duration::from_secs(60), ..settings(Fsync::Always) };
    let writer = Writer::open(disk, place.clone(), None, 0, settings, Hooks::default()).expect("room");
    let taken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_taken = Arc::clone(&taken);
    writer.guard(move || match is_taken.load(std::sync::atomic::Ordering::SeqCst) {
        true => Err("another has it".to_owned()),
        false => Ok(()),
    });
    until(
        "it is stopped",
        || matches!(writer.state(), LogState::Stopped(why) if why.contains("another has it")),
    );
    let (mut source, mut outlet) = (Source::new(5, 0), writer.outlet());
    source.give(&mut outlet);
    taken.store(false, std::sync::atomic::Ordering::SeqCst);
    until("it writes again", || writer.state() == LogState::Running && writer.pending_bytes() == 0);
    writer.close().expect("a disk");
    let found = recover(&place).expect("a log");
    assert_eq!(found.assert_prefix(&source, "all"), source.done.len());
}
