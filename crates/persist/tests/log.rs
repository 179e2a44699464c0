//! The log on disks that fail, and what is loaded of it.

mod stream;

use persist::disk::{Faults, Faulty, Power, RealDisk};
use persist::log::{Append, Batch, Log};
use persist::stream::{Item, Mark, Outlet};
use persist::{
    Fsync, Hooks, LogOptions, LogState, Place, Preallocate, Settings, Writer, describe_log, repair_log,
};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stream::{Recovered, Source, recover, recover_on, write_base};

fn settings(fsync: Fsync) -> Settings {
    Settings {
        fsync,
        retry: Duration::from_millis(5),
        stuck: Duration::from_secs(60),
        // The keeper syncs, too, and would have the errors that are meant for the log.
        preallocate: Preallocate::No,
        ..Settings::default()
    }
}

fn place(dir: &Path) -> Place {
    Place::new(dir.join("appendonlydir"), "appendonly.aof")
}

/// A log that is written, and what it told.
struct Living {
    writer: Writer,
    durable: Arc<AtomicU64>,
    states: Arc<Mutex<Vec<LogState>>>,
    asked: Arc<AtomicU64>,
}

fn open(disk: Arc<dyn persist::disk::Disk>, place: &Place, settings: Settings) -> Living {
    let loaded = recover(place).expect("sound");
    let durable = Arc::new(AtomicU64::new(0));
    let (states, asked): (Arc<Mutex<Vec<LogState>>>, Arc<AtomicU64>) = Default::default();
    let (told, stands, asks) = (Arc::clone(&durable), Arc::clone(&states), Arc::clone(&asked));
    let hooks = Hooks {
        durable: Box::new(move |lsn| told.store(lsn, Ordering::SeqCst)),
        state: Box::new(move |state| stands.lock().expect("no panic").push(state)),
        rewrite: Box::new(move |_| {
            asks.fetch_add(1, Ordering::SeqCst);
        }),
        latency: Box::new(|_| {}),
    };
    let last = loaded.log.lsn;
    let writer =
        Writer::open(disk, place.clone(), Some(loaded.log), last, settings, hooks).expect("a directory");
    Living { writer, durable, states, asked }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Living {
    fn is_durable(&self, lsn: u64) {
        until("it is durable", || self.durable.load(Ordering::SeqCst) >= lsn);
    }

    fn is_written(&self) {
        until("it is written", || self.writer.pending_bytes() == 0);
    }
}

fn all_there(place: &Place, source: &Source) -> Recovered {
    let recovered = recover(place).expect("sound");
    let commands = recovered.assert_prefix(source, "all");
    assert_eq!(commands, source.done.len());
    recovered
}

fn incrs(place: &Place) -> Vec<PathBuf> {
    let text = std::fs::read(place.manifest()).expect("a manifest");
    let manifest = persist::Manifest::parse(&text).expect("sound");
    manifest.incrs().map(|entry| place.path(&entry.name)).collect()
}

#[test]
fn what_is_written_is_loaded_again_over_several_lives() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let mut source = Source::new(1, 0);
    for (epoch, fsync) in
        [(1, Fsync::EverySecond), (2, Fsync::Always), (3, Fsync::No), (4, Fsync::EverySecond)]
    {
        let living = open(Arc::new(RealDisk), &place, settings(fsync));
        assert_eq!(living.writer.epoch(), epoch);
        let mut outlet = living.writer.outlet();
        source.goes_on(source.done.len(), source.lsn);
        (0..200).for_each(|_| source.give(&mut outlet));
        let expected = if fsync == Fsync::Always { source.lsn } else { persist::EVERYTHING };
        living.is_durable(expected);
        living.writer.close().expect("room");
        let recovered = all_there(&place, &source);
        assert_eq!((recovered.log.lsn, recovered.log.epoch), (source.lsn, epoch));
    }
    let about = describe_log(&place, 0).expect("a manifest").expect("a log");
    assert!(about.is_sound() && !about.is_torn() && about.files.len() == 4, "{about}");
}

#[test]
fn empty_files_do_not_pile_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    for _ in 0..5 {
        open(Arc::new(RealDisk), &place, settings(Fsync::Always)).writer.close().expect("room");
    }
    until("old files are removed", || {
        let living = open(Arc::new(RealDisk), &place, settings(Fsync::Always));
        std::thread::sleep(Duration::from_millis(20));
        living.writer.close().expect("room");
        std::fs::read_dir(&place.dir).expect("a folder").count() <= 3
    });
}

#[test]
fn the_policy_changes_while_it_writes() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let living = open(Arc::new(RealDisk), &place, settings(Fsync::EverySecond));
    let (mut outlet, mut source) = (living.writer.outlet(), Source::new(3, 0));
    for round in 0..60 {
        let fsync = [Fsync::Always, Fsync::EverySecond, Fsync::No][round % 3];
        let preallocate = [Preallocate::Auto, Preallocate::Yes, Preallocate::No][round / 3 % 3];
        living.writer.set(Settings { preallocate, ..settings(fsync) });
        (0..5).for_each(|_| source.give(&mut outlet));
        match fsync {
            Fsync::Always => until("durable", || living.durable.load(Ordering::SeqCst) == source.lsn),
            _ => living.is_durable(persist::EVERYTHING),
        }
    }
    living.writer.close().expect("room");
    all_there(&place, &source);
}

#[test]
fn everysec_syncs_once_a_second() {
    let disk = Power::default();
    let living = {
        let hooks = Hooks::default();
        let place = Place::new("/nowhere", "appendonly.aof");
        Writer::open(Arc::new(disk.clone()), place, None, 0, settings(Fsync::EverySecond), hooks)
    };
    let living = living.expect("a directory");
    let (mut outlet, mut source) = (living.outlet(), Source::new(3, 0));
    source.give(&mut outlet);
    until("written", || living.pending_bytes() == 0);
    until("synced", || living.figures().syncs.count >= 1);
    until("idle", || living.figures().pending_syncs == 0);
    living.close().expect("room");
}

#[test]
fn a_full_disk_stops_the_log_and_it_goes_on_by_itself() {
    for (errno, short) in [(Errno::NOSPC, None), (Errno::IO, Some(1000))] {
        let dir = tempfile::tempdir().expect("a folder");
        let place = place(dir.path());
        let disk = Faulty::default();
        let living = open(Arc::new(disk.clone()), &place, settings(Fsync::Always));
        let (mut outlet, mut source) = (living.writer.outlet(), Source::new(9, 0));
        source.value_max = 3000;
        source.give(&mut outlet);
        living.is_durable(source.lsn);
        let acknowledged = source.lsn;
        disk.set(Faults { writes: Some((disk.written() + 2_500, errno)), short, ..Faults::default() });
        (0..20).for_each(|_| source.give(&mut outlet));
        until("it stops", || !living.writer.state().is_running());
        let figures = living.writer.figures();
        assert!(!figures.is_write_ok && figures.buffer_length_bytes > 0, "{figures:?}");
        let LogState::Stopped(why) = living.writer.state() else { panic!("it stopped") };
        assert!(why.contains("appendonlydir"), "{why}");
        let half = recover_on(&RealDisk, &place, LogOptions::default()).expect("whole batches");
        assert!(half.log.lsn >= acknowledged && living.durable.load(Ordering::SeqCst) <= half.log.lsn);
        disk.set(Faults::default());
        living.is_durable(source.lsn);
        until("it runs", || living.writer.state().is_running());
        assert_eq!(living.states.lock().expect("no panic").len(), 2);
        assert_eq!(living.writer.figures().buffer_length_bytes, 0);
        living.writer.close().expect("room");
        all_there(&place, &source);
    }
}

#[test]
fn a_sync_that_fails_gives_the_file_up() {
    for fsync in [Fsync::Always, Fsync::EverySecond] {
        let dir = tempfile::tempdir().expect("a folder");
        let place = place(dir.path());
        let disk = Faulty::default();
        let living = open(Arc::new(disk.clone()), &place, settings(fsync));
        let (mut outlet, mut source) = (living.writer.outlet(), Source::new(11, 0));
        (0..3).for_each(|_| source.give(&mut outlet));
        until("synced", || living.writer.figures().syncs.count >= 1 && living.writer.pending_bytes() == 0);
        disk.set(Faults { sync_once: Some(Errno::IO), ..Faults::default() });
        (0..3).for_each(|_| source.give(&mut outlet));
        until("a new file", || incrs(&place).len() == 2);
        (0..3).for_each(|_| source.give(&mut outlet));
        if fsync == Fsync::Always {
            living.is_durable(source.lsn);
        }
        living.is_written();
        assert_eq!(living.asked.load(Ordering::SeqCst), 0);
        living.writer.close().expect("room");
        all_there(&place, &source);
    }
}

#[test]
fn syncs_that_fail_again_and_again_lose_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let disk = Faulty::default();
    let living = open(Arc::new(disk.clone()), &place, settings(Fsync::Always));
    let (mut outlet, mut source) = (living.writer.outlet(), Source::new(37, 0));
    source.give(&mut outlet);
    living.is_durable(source.lsn);
    let acknowledged = source.lsn;
    for _ in 0..40 {
        disk.set(Faults { sync_once: Some(Errno::IO), ..Faults::default() });
        source.give(&mut outlet);
        std::thread::sleep(Duration::from_millis(3));
    }
    disk.set(Faults { sync: Some((0, Errno::IO)), ..Faults::default() });
    source.give(&mut outlet);
    until("it stops", || !living.writer.state().is_running());
    assert!(living.durable.load(Ordering::SeqCst) >= acknowledged);
    disk.set(Faults::default());
    living.is_durable(source.lsn);
    living.writer.close().expect("room");
    all_there(&place, &source);
}

#[test]
fn more_unsynced_than_is_kept_asks_for_a_rewrite() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let disk = Faulty::default();
    let limits = Settings { unsynced_max: 1_000, ..settings(Fsync::EverySecond) };
    let living = open(Arc::new(disk.clone()), &place, limits);
    let (mut outlet, mut source) = (living.writer.outlet(), Source::new(11, 0));
    let began = Instant::now();
    while living.asked.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "it asks");
        disk.set(Faults { sync_once: Some(Errno::IO), ..Faults::default() });
        (0..20).for_each(|_| source.give(&mut outlet));
        std::thread::sleep(Duration::from_millis(50));
    }
    disk.set(Faults::default());
    assert!(living.writer.figures().has_gap && living.writer.wants_rewrite(0, 0));
    let rewriting = living.writer.begin_rewrite().expect("room");
    outlet.take(source.mark(rewriting.mark));
    let bytes =
        write_base(Arc::new(RealDisk), &rewriting.base, source.done.len(), source.lsn, 1).expect("room");
    living.writer.finish_rewrite(&rewriting, bytes).expect("room");
    source.give(&mut outlet);
    until("the gap is closed", || !living.writer.figures().has_gap);
    living.writer.close().expect("room");
    all_there(&place, &source);
}

/// Effects that a bug lost before they came to the log: it says so, acknowledges nothing of the gap, and goes
/// on by itself when a base has them.
#[test]
fn effects_that_were_lost_stop_the_log_until_a_base_has_them() {
    for fsync in [Fsync::Always, Fsync::EverySecond] {
        let dir = tempfile::tempdir().expect("a folder");
        let place = place(dir.path());
        let living = open(Arc::new(RealDisk), &place, settings(fsync));
        let (mut outlet, mut source) = (living.writer.outlet(), Source::new(23, 0));
        (0..5).for_each(|_| source.give(&mut outlet));
        until("it is durable", || living.writer.synced() >= source.lsn);
        let (kept, acknowledged) = (source.done.len(), living.durable.load(Ordering::SeqCst));
        let synced = living.writer.synced();
        // A rewrite that began before does not have them.
        let early = living.writer.begin_rewrite().expect("room");
        outlet.take(source.mark(early.mark));
        let early_lsn = source.lsn;
        drop(source.block());
        outlet.take(Item::Break(source.lsn, "a bug".into()));
        until("it asks", || living.asked.load(Ordering::SeqCst) > 0);
        let LogState::Stopped(why) = living.writer.state() else { panic!("it is stopped") };
        assert!(why.contains("a bug") && living.writer.torn() == Some(why));
        let bytes = write_base(Arc::new(RealDisk), &early.base, kept, early_lsn, 1).expect("room");
        living.writer.finish_rewrite(&early, bytes).expect("room");
        // The disk has all that came before.
        assert_eq!(recover(&place).expect("sound").assert_prefix(&source, "torn"), kept);
        assert!(living.writer.figures().has_gap && living.writer.wants_rewrite(0, 0));
        let rewriting = living.writer.begin_rewrite().expect("room");
        outlet.take(source.mark(rewriting.mark));
        let (commands, lsn) = (source.done.len(), source.lsn);
        source.give(&mut outlet);
        living.is_written();
        // A kill now leaves a file behind the gap, and no base that fills it: a start has what came before.
        let killed = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(&place.dir).expect("the log").flatten() {
            std::fs::copy(entry.path(), killed.path().join(entry.file_name())).expect("room");
        }
        let left = Place::new(killed.path().to_owned(), b"appendonly.aof".to_vec());
        let about = describe_log(&left, 0).expect("it can be read").expect("a log");
        assert!(
            about
                .files
                .last()
                .and_then(|file| file.damage)
                .is_some_and(|(_, why)| why.contains("lost writes"))
        );
        let strict = LogOptions { truncated: false, ..LogOptions::default() };
        let refused = recover_on(&RealDisk, &left, strict).err().expect("it may not be left out").to_string();
        assert!(refused.contains("lost writes before this file"), "{refused}");
        let recovered = recover(&left).expect("sound");
        assert_eq!(recovered.assert_prefix(&source, "behind a gap"), kept);
        assert!(recovered.log.left_out.len() == 1 && killed.path().join("damaged-1").exists());
        assert_eq!(recover(&left).expect("sound").assert_prefix(&source, "once more"), kept);
        assert_eq!(living.durable.load(Ordering::SeqCst), acknowledged);
        assert!(living.writer.synced() == synced && !living.writer.state().is_running());
        let bytes = write_base(Arc::new(RealDisk), &rewriting.base, commands, lsn, 1).expect("room");
        living.writer.finish_rewrite(&rewriting, bytes).expect("room");
        until("it runs", || living.writer.state().is_running());
        until("it is durable", || living.writer.synced() >= source.lsn);
        if fsync == Fsync::Always {
            living.is_durable(source.lsn);
        }
        assert_eq!((living.writer.torn(), living.writer.figures().has_gap), (None, false));
        living.writer.close().expect("room");
        all_there(&place, &source);
    }
}

/// A log that lacks effects does not end as if it had all.
#[test]
fn a_log_that_lacks_effects_says_so_at_its_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let living = open(Arc::new(RealDisk), &place, settings(Fsync::EverySecond));
    let (mut outlet, mut source) = (living.writer.outlet(), Source::new(29, 0));
    (0..5).for_each(|_| source.give(&mut outlet));
    let kept = source.done.len();
    drop(source.block());
    outlet.take(Item::Break(source.lsn, "a bug".into()));
    let why = living.writer.close().expect_err("it lacks effects");
    assert!(why.contains("a bug"), "{why}");
    assert_eq!(recover(&place).expect("sound").assert_prefix(&source, "torn"), kept);
}

/// A panic of a thread of the log is an error like that of a disk: the file is given up, and all is tried
/// again.
#[test]
fn a_panic_while_it_writes_or_syncs_loses_nothing() {
    for fsync in [Fsync::Always, Fsync::EverySecond, Fsync::No] {
        let dir = tempfile::tempdir().expect("a folder");
        let place = place(dir.path());
        let disk = Faulty::default();
        let living = open(Arc::new(disk.clone()), &place, settings(fsync));
        let (mut outlet, mut source) = (living.writer.outlet(), Source::new(31, 0));
        (0..5).for_each(|_| source.give(&mut outlet));
        living.is_written();
        let caught = stdx::panics::caught();
        for panics in [1, 2, 3, 5] {
            disk.set(Faults { panics, ..Faults::default() });
            source.give(&mut outlet);
            until("it goes on", || living.writer.pending_bytes() == 0 && living.writer.state().is_running());
            if fsync == Fsync::Always {
                living.is_durable(source.lsn);
            }
        }
        assert!(stdx::panics::caught() > caught);
        let is_named =
            |state: &LogState| matches!(state, LogState::Stopped(why) if why.contains("told to panic"));
        assert!(living.states.lock().expect("no panic").iter().any(is_named));
        disk.set(Faults::default());
        living.writer.close().expect("room");
        // Under `no` more is unsynced than is kept: what was in the file that was given up is still there.
        all_there(&place, &source);
    }
}

#[test]
fn lsns_that_go_back_stop_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let options = settings(Fsync::Always);
    let writer = Writer::open(Arc::new(RealDisk), place, None, 100, options, Hooks::default()).expect("room");
    let (mut outlet, mut source) = (writer.outlet(), Source::new(13, 5));
    source.give(&mut outlet);
    until("it stops", || !writer.state().is_running());
    let LogState::Stopped(why) = writer.state() else { panic!("it stopped") };
    assert!(why.contains("go back"), "{why}");
    assert!(writer.pending_bytes() > 0);
}

#[test]
fn a_disk_that_hangs_stops_the_log_and_nothing_is_acknowledged() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let disk = Faulty::default();
    let hurried = Settings { stuck: Duration::from_millis(300), ..settings(Fsync::Always) };
    let living = open(Arc::new(disk.clone()), &place, hurried);
    let (mut outlet, mut source) = (living.writer.outlet(), Source::new(13, 0));
    source.give(&mut outlet);
    living.is_durable(source.lsn);
    let acknowledged = source.lsn;
    disk.gate.set_closed(true);
    (0..5).for_each(|_| source.give(&mut outlet));
    until("it stops", || !living.writer.state().is_running());
    assert_eq!(living.durable.load(Ordering::SeqCst), acknowledged);
    disk.gate.set_closed(false);
    living.is_durable(source.lsn);
    until("it runs", || living.writer.state().is_running());
    living.writer.close().expect("room");
    all_there(&place, &source);
}

#[test]
fn a_rewrite_replaces_what_was_before_its_mark() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let living = open(Arc::new(RealDisk), &place, settings(Fsync::Always));
    let (mut outlet, mut source) = (living.writer.outlet(), Source::new(17, 0));
    for round in 0..3 {
        (0..20).for_each(|_| source.give(&mut outlet));
        living.is_durable(source.lsn);
        // It rests after a failure.
        assert_eq!(living.writer.wants_rewrite(100, 1_000), round < 2);
        let rewriting = living.writer.begin_rewrite().expect("room");
        assert!(living.writer.begin_rewrite().is_err() && !living.writer.wants_rewrite(100, 1_000));
        outlet.take(source.mark(rewriting.mark));
        let (commands, lsn) = (source.done.len(), source.lsn);
        (0..2).for_each(|_| source.give(&mut outlet));
        if round == 1 {
            living.writer.fail_rewrite(&rewriting);
            assert!(!living.writer.figures().rewrite.is_ok);
            assert!(!living.writer.wants_rewrite(1, 1), "it rests");
        } else {
            let bytes = write_base(Arc::new(RealDisk), &rewriting.base, commands, lsn, 1).expect("room");
            living.writer.finish_rewrite(&rewriting, bytes).expect("it is at its mark");
            let figures = living.writer.figures();
            assert!(figures.rewrite.is_ok && figures.base_size_bytes <= figures.current_size_bytes);
        }
        assert!(living.writer.finish_rewrite(&rewriting, 0).is_err());
    }
    living.is_durable(source.lsn);
    until("old files are removed", || std::fs::read_dir(&place.dir).expect("a folder").count() == 3);
    living.writer.close().expect("room");
    let recovered = all_there(&place, &source);
    assert!(recovered.in_base > 0 && recovered.log.base.is_some());
}

#[test]
fn a_torn_end_is_cut_and_damage_before_it_is_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let mut source = Source::new(19, 0);
    let living = open(Arc::new(RealDisk), &place, settings(Fsync::Always));
    let mut outlet = living.writer.outlet();
    for _ in 0..6 {
        source.give(&mut outlet);
        living.is_durable(source.lsn);
    }
    living.writer.close().expect("room");
    let file = incrs(&place).pop().expect("a file");
    let whole = std::fs::read(&file).expect("a file");
    for len in (0..whole.len()).rev().step_by(7) {
        std::fs::write(&file, &whole[..len]).expect("room");
        let strict = LogOptions { truncated: false, ..LogOptions::default() };
        let about = describe_log(&place, 0).expect("a manifest").expect("a log");
        assert!(about.is_sound(), "{len}: {about}");
        assert_eq!(recover_on(&RealDisk, &place, strict).is_err(), about.is_torn(), "{len}");
        let repaired = repair_log(&RealDisk, &place).expect("only torn");
        assert_eq!(repaired.cut.len(), usize::from(about.is_torn()), "{len}");
        let recovered = recover_on(&RealDisk, &place, strict).expect("repaired");
        recovered.assert_prefix(&source, "cut");
        assert!(recovered.log.cut.is_empty());
    }
    // A line end between two lines is damage like any other.
    let line_ends = (1..whole.len()).filter(|at| whole[*at..].starts_with(b"#EK 1 ")).map(|at| at - 1);
    for at in (0..whole.len()).step_by(5).chain(line_ends) {
        let mut changed = whole.clone();
        changed[at] ^= 0x55;
        std::fs::write(&file, &changed).expect("room");
        match recover(&place) {
            Err(error) => assert!(error.to_string().contains("offset"), "{error}"),
            Ok(recovered) => {
                // Only the line at the very end, which stands for no batch, and filler may change unseen.
                assert_eq!(recovered.assert_prefix(&source, "changed"), source.done.len(), "byte {at}");
            }
        }
    }
}

/// A client that begins to wait is not left to the thread's next look, which comes after seconds.
#[test]
fn a_turn_that_came_before_it_was_wanted_counts_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut source = Source::new(23, 0);
    let living = open(Arc::new(RealDisk), &place(dir.path()), settings(Fsync::EverySecond));
    let mut outlet = living.writer.outlet();
    source.give(&mut outlet);
    living.writer.want_turns(true);
    let await_synced = |lsn| {
        while living.writer.synced() < lsn {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    await_synced(source.lsn);
    let began = Instant::now();
    for more in 1..=10 {
        living.writer.want_turns(false);
        std::thread::sleep(Duration::from_millis(20));
        outlet.turn(source.lsn + more);
        living.writer.want_turns(true);
        await_synced(source.lsn + more);
    }
    assert!(began.elapsed() < Duration::from_secs(40), "it looks only now and then");
    living.writer.close().expect("room");
}

#[test]
fn a_file_of_before_redis_7_becomes_the_base() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let old = dir.path().join("appendonly.aof");
    std::fs::write(&old, b"*2\r\n$6\r\nSELECT\r\n$1\r\n2\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n")
        .expect("room");
    let recovered = recover(&place).expect("sound");
    assert!(!old.exists() && place.path(b"appendonly.aof").exists());
    assert_eq!((recovered.done.len(), recovered.done[0].db), (1, 2));
    // It ended between the two steps.
    std::fs::rename(place.path(b"appendonly.aof"), &old).expect("it is there");
    assert_eq!(recover(&place).expect("sound").done.len(), 1);
    assert_eq!(recover(&place).expect("sound").done.len(), 1);
}

#[test]
fn a_snapshot_may_precede_the_commands_of_a_base() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let old = dir.path().join("appendonly.aof");
    write_base(Arc::new(RealDisk), &old, 5, 17, 3).expect("room");
    let mut bytes = std::fs::read(&old).expect("a file");
    let snapshot = bytes.len();
    bytes.extend_from_slice(b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n");
    std::fs::write(&old, &bytes).expect("room");
    let recovered = recover(&place).expect("sound");
    assert_eq!((recovered.in_base, recovered.done.len(), recovered.done[0].db), (5, 1, 1));
    assert_eq!((recovered.log.lsn, recovered.log.epoch), (17, 3));
    let about = describe_log(&place, 0).expect("a manifest").expect("a log");
    assert!(about.is_sound() && about.files[0].rdb.is_some() && about.files[0].commands == 2, "{about}");
    // The commands at its end may be torn, as long as nothing follows. The snapshot may not.
    let base = place.path(b"appendonly.aof");
    std::fs::write(&base, &bytes[..bytes.len() - 1]).expect("room");
    let recovered = recover(&place).expect("torn");
    assert_eq!((recovered.done.len(), recovered.log.cut.len()), (0, 1));
    assert_eq!(std::fs::read(&base).expect("a file").len(), snapshot + 23);
    std::fs::write(&base, &bytes[..snapshot - 1]).expect("room");
    let error = recover(&place).err().expect("it is damaged").to_string();
    assert!(error.contains("offset"), "{error}");
}

#[test]
fn what_a_server_appends_behind_a_torn_batch_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let mut source = Source::new(41, 0);
    let living = open(Arc::new(RealDisk), &place, settings(Fsync::Always));
    let mut outlet = living.writer.outlet();
    for _ in 0..3 {
        source.give(&mut outlet);
        living.is_durable(source.lsn);
    }
    drop(living);
    let file = incrs(&place).pop().expect("a file");
    let set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n";
    let theirs = [b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n", &set[..]].concat();
    let whole = std::fs::read(&file).expect("a file");
    // Ours has lost its line, theirs was appended; and theirs alone, behind filler, with a torn end.
    for (tail, commands) in [([&set[..], &theirs].concat(), 2), (theirs.clone(), 1), (set.to_vec(), 0)] {
        std::fs::write(&file, [&whole[..], &tail].concat()).expect("room");
        let recovered = recover(&place).expect("sound");
        assert_eq!(recovered.done.len(), source.done.len() + commands);
        assert_eq!(
            (recovered.log.is_foreign, recovered.log.cut.len()),
            (commands > 0, usize::from(commands == 0))
        );
    }
    let filler = [b"#", &b"-".repeat(62)[..], b"\n"].concat();
    std::fs::write(&file, [&whole[..], &filler, &theirs, &set[..9]].concat()).expect("room");
    let recovered = recover(&place).expect("torn");
    assert_eq!((recovered.done.len(), recovered.log.cut.len()), (source.done.len() + 1, 1));
}

#[test]
fn files_without_a_manifest_and_links_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    std::fs::create_dir(&place.dir).expect("room");
    assert!(recover(&place).expect("nothing").done.is_empty());
    let file = place.path(b"appendonly.aof.1.incr.aof");
    std::fs::write(&file, "x").expect("room");
    assert!(recover(&place).is_err());
    std::fs::remove_file(&file).expect("it is there");
    std::fs::write(dir.path().join("elsewhere"), "").expect("room");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &file).expect("room");
    std::fs::write(place.manifest(), "file appendonly.aof.1.incr.aof seq 1 type i\n").expect("room");
    let error = recover(&place).err().expect("a link").to_string();
    assert!(error.contains("incr.aof"), "{error}");
    std::fs::remove_file(&file).expect("it is there");
    assert!(recover(&place).is_err(), "the file is missing");
}

#[test]
fn a_transaction_without_its_end_is_not_applied() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    std::fs::create_dir(&place.dir).expect("room");
    let file = place.path(b"appendonly.aof.1.incr.aof");
    std::fs::write(place.manifest(), "file appendonly.aof.1.incr.aof seq 1 type i\n").expect("room");
    let whole = b"#TS:1700000000\r\n*3\r\n$3\r\nset\r\n$1\r\na\r\n$1\r\n1\r\n*1\r\n$5\r\nMULTI\r\n\
        *3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n*1\r\n$4\r\nEXEC\r\n";
    for len in 0..=whole.len() {
        std::fs::write(&file, &whole[..len]).expect("room");
        let recovered = recover(&place).expect("torn at most");
        let expected = if len == whole.len() { 2 } else { usize::from(len >= 43) };
        assert_eq!(recovered.done.len(), expected, "{len}");
        assert_eq!(recovered.log.cut.is_empty(), [0, 16, 43, whole.len()].contains(&len), "{len}");
    }
    for text in [
        "*1\r\n$4\r\nEXEC\r\n",
        "*1\r\n$5\r\nMULTI\r\n*1\r\n$5\r\nMULTI\r\n",
        "SET a 1\r\n",
        "*0\r\n",
        "*-1\r\n",
    ] {
        std::fs::write(&file, text).expect("room");
        let error = recover(&place).err().expect("it is damaged").to_string();
        assert!(error.contains("offset"), "{error}");
    }
}

#[test]
fn the_local_log_is_a_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let mut log = persist::local_log(Arc::new(RealDisk), place, 1).expect("room");
    let (mut source, mut positions, mut batches) = (Source::new(23, 0), Vec::new(), Vec::new());
    for number in 0..5 {
        let block = source.block();
        let batch =
            Batch { epoch: 1, number, first: block.first, last: block.last, blocks: Arc::new([block]) };
        let expected = log.end().expect("it is there");
        let Append::Done(position) = log.append(&batch, expected) else { panic!("there is room") };
        assert!(matches!(log.append(&batch, expected), Append::Conflict));
        positions.push(position);
        batches.push(batch);
    }
    let records: Vec<_> =
        log.tail(positions[1]).expect("files").map(|record| record.expect("sound")).collect();
    assert_eq!(records.len(), 3);
    for (record, (batch, position)) in records.iter().zip(batches.iter().zip(&positions).skip(2)) {
        assert_eq!((record.first, record.last, record.position), (batch.first, batch.last, *position));
        assert!(record.bytes.ends_with(&batch.blocks[0].bytes));
    }
    log.trim(positions[0]).expect("nothing to do");
}

#[test]
fn a_mark_divides_the_files_exactly() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = place(dir.path());
    let living = open(Arc::new(RealDisk), &place, settings(Fsync::EverySecond));
    let (mut outlet, mut source) = (living.writer.outlet(), Source::new(29, 0));
    let mut ends = Vec::new();
    for mark in 100..110 {
        (0..3).for_each(|_| outlet.take(Item::Block(source.block())));
        outlet.take(source.mark(Mark(mark)));
        ends.push(source.lsn);
    }
    living.writer.close().expect("room");
    let about = describe_log(&place, 0).expect("a manifest").expect("a log");
    let lasts: Vec<_> = about.files.iter().filter_map(|file| file.last_lsn).collect();
    assert_eq!(lasts, ends);
    all_there(&place, &source);
}
