//! The directory at every named point, as a kill leaves it there: it is loaded, and has what was told to be
//! durable.

mod stream;

use persist::disk::{Faults, Faulty, RealDisk};
use persist::stream::Outlet;
use persist::{Fsync, Hooks, Place, Preallocate, Settings, Writer};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stdx::points::{self, Mode, Point};
use stream::{Source, recover, write_base};

const POINTS: [Point; 8] = [
    Point::LogWrite,
    Point::LogSync,
    Point::LogIncr,
    Point::LogManifest,
    Point::LogRotate,
    Point::LogBase,
    Point::LogUnlink,
    Point::LogAfresh,
];

/// Copies a directory in which others work, as it is at one moment: its manifest did not change meanwhile.
fn copy(place: &Place, to: &Path) {
    let began = Instant::now();
    loop {
        let manifest = std::fs::read(place.manifest()).expect("a manifest");
        let entries = std::fs::read_dir(&place.dir).expect("a folder");
        let copied = entries.into_iter().try_for_each(|entry| {
            let path = entry?.path();
            std::fs::copy(&path, to.join(path.file_name().expect("a name"))).map(drop)
        });
        if copied.is_ok() && std::fs::read(place.manifest()).expect("a manifest") == manifest {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{copied:?}");
        std::fs::read_dir(to).expect("a folder").for_each(|entry| {
            std::fs::remove_file(entry.expect("an entry").path()).expect("it is there");
        });
    }
}

/// Lets everybody go on, also after a panic.
struct Released(Point);

impl Drop for Released {
    fn drop(&mut self) {
        points::set(self.0, Mode::Off);
    }
}

/// Lives until some thread is held at a point, loads what is there then, and lives on.
fn live(place: &Place, source: &mut Source, point: Point, fsync: Fsync) {
    let disk = Faulty::default();
    let durable = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&durable);
    let hooks = Hooks { durable: Box::new(move |lsn| told.store(lsn, Ordering::SeqCst)), ..Hooks::default() };
    let retry = Duration::from_millis(10);
    let settings = Settings { fsync, preallocate: Preallocate::No, retry, ..Settings::default() };
    let writer = Writer::open(Arc::new(disk.clone()), place.clone(), None, 0, settings, hooks).expect("room");
    let mut outlet = writer.outlet();
    let is_held = || points::held(point) > 0;
    let until = |holds: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !holds() && !is_held() {
            assert!(began.elapsed() < Duration::from_secs(20), "{point:?}");
            std::thread::sleep(Duration::from_micros(300));
        }
    };
    (0..5).for_each(|_| source.give(&mut outlet));
    until(&|| writer.pending_bytes() == 0);
    points::set(point, Mode::Hold(1));
    let released = Released(point);
    let mut killed = None;
    std::thread::scope(|scope| {
        let rewrites = scope.spawn(|| {
            let mut outlet = writer.outlet();
            let source = &mut *source;
            let rewriting = writer.begin_rewrite().expect("room");
            outlet.take(source.mark(rewriting.mark));
            let (commands, lsn) = (source.done.len(), source.lsn);
            (0..5).for_each(|_| source.give(&mut outlet));
            let bytes = write_base(Arc::new(RealDisk), &rewriting.base, commands, lsn, 1).expect("room");
            writer.finish_rewrite(&rewriting, bytes).expect("at the mark");
            // The keeper's manifest may have the error that is meant for the log.
            let rounds = if point == Point::LogAfresh { 2_000 } else { 1 };
            for _ in 0..rounds {
                if !points::is_armed(point) || points::held(point) > 0 {
                    break;
                }
                disk.set(Faults { sync_once: Some(Errno::IO), ..Faults::default() });
                source.give(&mut outlet);
                std::thread::sleep(Duration::from_millis(5));
            }
            disk.set(Faults::default());
        });
        until(&|| rewrites.is_finished());
        // The keeper may come to it later.
        until(&|| false);
        let acknowledged = durable.load(Ordering::SeqCst);
        let dir = tempfile::tempdir().expect("a folder");
        copy(place, dir.path());
        drop(released);
        rewrites.join().expect("no panic");
        killed = Some((dir, acknowledged));
    });
    let (dir, acknowledged) = killed.expect("it was copied");
    check(dir.path(), source, acknowledged, point);
    writer.close().expect("room");
    let recovered = recover(place).expect("sound");
    assert_eq!(recovered.assert_prefix(source, "at its end"), source.done.len());
}

fn check(dir: &Path, source: &Source, acknowledged: u64, point: Point) {
    let recovered =
        recover(&Place::new(dir, "appendonly.aof")).unwrap_or_else(|error| panic!("{point:?}: {error}"));
    let commands = recovered.assert_prefix(source, &format!("{point:?}"));
    let acknowledged = if acknowledged == persist::EVERYTHING { 0 } else { acknowledged };
    let needed = source.done.iter().take_while(|(lsn, _)| *lsn <= acknowledged).count();
    assert!(commands >= needed, "{point:?}: {commands} of {needed}");
}

#[test]
fn a_kill_at_any_point_loses_nothing_that_was_told() {
    for point in POINTS {
        for fsync in [Fsync::Always, Fsync::EverySecond] {
            let dir = tempfile::tempdir().expect("a folder");
            let mut source = Source::new(31, 0);
            live(&Place::new(dir.path(), "appendonly.aof"), &mut source, point, fsync);
        }
    }
}
