//! A disk that is really full, where the machine lets a small one be mounted; elsewhere it is said that it
//! does not.

mod stream;

use persist::disk::RealDisk;
use persist::{Fsync, Hooks, Place, Preallocate, Settings, Writer};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stream::{Source, recover};

/// A file system in memory, as long as it is used.
struct Mounted<'d>(&'d Path);

impl<'d> Mounted<'d> {
    fn new(dir: &'d Path) -> Option<Mounted<'d>> {
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=512k", "none"]).arg(dir).output();
        let is_mounted = mounted.is_ok_and(|mounted| mounted.status.success());
        if !is_mounted {
            eprintln!("nothing can be mounted: no disk was really full");
        }
        is_mounted.then_some(Mounted(dir))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A mount that stays goes with the machine.
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_small_disk_fills_up_and_is_emptied_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(_mounted) = Mounted::new(dir.path()) else { return };
    let ballast = dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 300 << 10]).expect("room");
    let place = Place::new(dir.path().join("appendonlydir"), "appendonly.aof");
    let durable = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&durable);
    let hooks = Hooks { durable: Box::new(move |lsn| told.store(lsn, Ordering::SeqCst)), ..Hooks::default() };
    // There is no room for so much filler.
    let options = Settings {
        fsync: Fsync::Always,
        preallocate: Preallocate::Yes,
        retry: Duration::from_millis(20),
        ..Settings::default()
    };
    let writer = Writer::open(Arc::new(RealDisk), place.clone(), None, 0, options, hooks).expect("room");
    let (mut outlet, mut source) = (writer.outlet(), Source::new(3, 0));
    source.value_max = 20_000;
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}: {:?}", writer.figures());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let began = Instant::now();
    while writer.state().is_running() {
        assert!(began.elapsed() < Duration::from_secs(20), "it fills up");
        if writer.pending_bytes() < 50_000 {
            source.give(&mut outlet);
        }
    }
    let acknowledged = durable.load(Ordering::SeqCst);
    assert!(acknowledged > 0 && acknowledged < source.lsn);
    // A load cuts ends off, so it has a directory of its own.
    let aside = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(&place.dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, aside.path().join(path.file_name().expect("a name"))).expect("room");
    }
    let half = recover(&Place::new(aside.path(), "appendonly.aof")).expect("whole batches");
    half.assert_prefix(&source, "full");
    assert!(half.log.lsn >= acknowledged);
    std::fs::remove_file(&ballast).expect("it is there");
    until("it goes on", &|| durable.load(Ordering::SeqCst) >= source.lsn);
    assert!(writer.state().is_running());
    writer.close().expect("room");
    let recovered = recover(&place).expect("sound");
    assert_eq!(recovered.assert_prefix(&source, "all"), source.done.len());
}
