//! A keyspace with one loop and no clients, on a disk whose power fails.

use crate::walking::Saving;
use crate::writing::Writer;
use crate::{Durability, Ending, Files, Host, Libraries, Parts, Purpose, Replay, Wish};
use config::Config;
use keyspace::{Keyspace, Lsn, View};
use observe::Observe;
use persist::disk::{Disk, Outage, Power, RealDisk};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use work::piece::{Desk, Letter, Step, Tray};
use work::works::{Work, Works};

/// A server of which nothing is left but its keyspace.
struct Bare(Arc<Keyspace>);

struct NoLibraries;

impl Libraries for NoLibraries {
    fn is_empty(&self) -> bool {
        true
    }

    fn each(&self, _: &mut dyn FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
        Ok(())
    }
}

impl Host for Bare {
    fn libraries(&self) -> Arc<dyn Libraries> {
        Arc::new(NoLibraries)
    }

    fn load_library(&self, _: &[u8], _: bool) -> Result<(), String> {
        Err("there are no libraries".into())
    }

    fn flush_libraries(&self) -> Result<(), String> {
        Ok(())
    }

    fn incoming_libraries(&self) -> Result<Box<dyn crate::Incoming>, String> {
        Err("there are no libraries".into())
    }

    fn replay(&self) -> Result<Replay, String> {
        // SELECT alone: nothing is written behind the base.
        Ok(Box::new(|args| if args[0] == b"SELECT" { Ok(()) } else { Err("no command was logged".into()) }))
    }

    fn set_durable(&self, lsn: Lsn) {
        self.0.set_durable(lsn);
    }

    fn retry(&self) {}
}

/// See the module.
struct Server {
    durability: Arc<Durability>,
    ends: Arc<AtomicBool>,
}

impl Server {
    fn start(dir: &Path, disk: Arc<dyn Disk>) -> Server {
        let config = Arc::new(Config::default());
        config.live.dir.set(dir.as_os_str().as_encoded_bytes());
        config.live.save_points.set(b"");
        let files = Files::open_on(&config, disk).unwrap();
        let (keyspace, observe) = (Keyspace::new(1), Arc::new(Observe::new(config.clone(), 1)));
        let (post, letters) = channel();
        let post = Arc::new(move |_: usize, letter| drop(post.send(letter)));
        let turns = stdx::turns::Turns::new(1);
        let work = Work::start(keyspace.clone(), turns, observe.clone(), Arc::default(), post);
        let ends = Arc::<AtomicBool>::default();
        let (of_loop, its_end) = (work.clone(), ends.clone());
        std::thread::spawn(move || drive(&of_loop, &letters, &its_end));
        let host = Box::new(Bare(keyspace.clone()));
        let durability =
            Durability::new(Parts { keyspace, config, observe, work, loops: 1, started_ms: 1, host });
        durability.store_in(files);
        Server { durability, ends }
    }

    fn put(&self, key: &str) {
        let mut view = View::locked_one(&self.durability.keyspace, key.as_bytes(), 0, 1);
        view.put_string(key.as_bytes(), b"value", None);
        drop(view.finish());
    }

    fn keys(&self) -> usize {
        self.durability.keyspace.len(0)
    }

    /// Takes a snapshot and waits for its end.
    fn save(&self) -> Result<(), String> {
        let (done, wait) = channel();
        let tell = move |saved: Result<&Path, &str>| -> crate::Answer {
            let saved = saved.map(drop).map_err(str::to_owned);
            Box::new(move || drop(done.send(saved)))
        };
        let mut works = Works::default();
        assert!(self.durability.begin(&mut works, Purpose::Save, Some(Box::new(tell))));
        (self.durability.work.post)(0, Letter::Back(works.pop().unwrap()));
        wait.recv().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let _ = self.durability.files().unwrap().close_log(&self.durability);
    }
}

/// The loop: it does one piece after the other.
fn drive(work: &Arc<Work>, letters: &Receiver<Letter>, ends: &AtomicBool) {
    while let Ok(Letter::Back(mut piece)) = letters.recv() {
        while !ends.load(Ordering::Acquire) {
            let now_ms = stdx::clock::wall_ms();
            let mut desk =
                Desk { work, loop_id: 0, now_ms, tray: Tray::default(), doer: &|_| None, home: &mut () };
            match piece.advance(&mut desk) {
                Step::More(next) => piece = next,
                _ => break,
            }
        }
    }
}

/// Writes the files of one directory into another, which is empty.
fn put_elsewhere(files: Outage, from: &Path, to: &Path) {
    for (path, bytes) in files {
        let path = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// Whatever call of the disk is the last before the power fails: a log that was said to be written holds the
/// data, and a start finds either this log or none.
#[test]
fn a_log_that_begins_is_whole_or_none() {
    for call in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let disk = Power::default();
        let server = Server::start(dir.path(), Arc::new(disk.clone()));
        ["a", "b", "c"].iter().for_each(|key| server.put(key));
        disk.dies_at(call);
        server.durability.config.live.appendonly.set(true);
        let begun = server.durability.files().unwrap().switch_log(&server.durability, true);
        let lived = !disk.is_dead();
        disk.dies();
        if begun.is_err() {
            assert!(server.durability.synced(false).is_none(), "there is no log");
            assert!(server.durability.keyspace.durable() == Lsn::MAX, "no reply waits");
        }
        for seed in 0..4 {
            let later = tempfile::tempdir().unwrap();
            put_elsewhere(disk.outage(call * 4 + seed), dir.path(), later.path());
            let next = Server::start(later.path(), Arc::new(RealDisk));
            next.durability.config.live.appendonly.set(true);
            next.durability.expect_load().unwrap();
            next.durability.load_at_start().unwrap();
            let keys = next.keys();
            assert!(keys == 3 || keys == 0 && begun.is_err(), "call {call}: {keys} keys, {begun:?}");
        }
        if lived {
            assert_eq!(begun, Ok(()));
            assert!(call > 10, "{call}");
            return;
        }
    }
}

/// A snapshot fails at any call of the disk, and the one before stays.
#[test]
fn a_snapshot_is_the_new_one_or_the_one_before() {
    for call in 0.. {
        let (dir, later) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let disk = Power::default();
        let server = Server::start(dir.path(), Arc::new(disk.clone()));
        server.put("a");
        server.save().unwrap();
        server.put("b");
        disk.dies_at(disk.calls() + call);
        let saved = server.save();
        let lived = !disk.is_dead();
        put_elsewhere(disk.outage(call + 1), dir.path(), later.path());
        let next = Server::start(later.path(), Arc::new(RealDisk));
        next.durability.expect_load().unwrap();
        next.durability.load_at_start().unwrap();
        assert!(next.keys() == 2 || next.keys() == 1 && saved.is_err(), "call {call}: {saved:?}");
        if lived {
            assert_eq!(saved, Ok(()));
            return;
        }
    }
}

/// A server without save points ends at once, and one that shall save has its file.
#[test]
fn the_end_takes_the_last_snapshot_that_is_wished_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), Arc::new(RealDisk));
    server.put("a");
    server.durability.end_in_order(Some(Ending::default())).unwrap();
    assert!(!dir.path().join("dump.rdb").exists());
    server.durability.give_up_end();
    server.durability.give_back();
    server.durability.end_in_order(Some(Ending { wish: Wish::Save, ..Ending::default() })).unwrap();
    assert!(dir.path().join("dump.rdb").exists());
}

/// A rewrite whose thread could not be started is over: another snapshot may begin.
#[test]
fn a_rewrite_without_a_thread_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), Arc::new(RealDisk));
    let durability = &server.durability;
    assert!(durability.take());
    let ((queue, batches), (give_back, empty)) = (channel(), channel());
    let (answer, answered) = channel();
    let first = Some(Box::new(Saving::new(durability, (Purpose::Rewrite, None), queue, empty)));
    let done = move |saved: Result<&Path, &str>| -> crate::Answer {
        let failed = saved.is_err();
        Box::new(move || answer.send(failed).unwrap())
    };
    drop(Writer {
        durability: durability.clone(),
        purpose: Purpose::Rewrite,
        file: dir.path().join("dump.rdb"),
        first,
        rewrite: None,
        spool: None,
        place: None,
        batches,
        give_back,
        done: Some(Box::new(done)),
        began: std::time::Instant::now(),
    });
    assert_eq!(answered.recv(), Ok(true));
    assert!(!durability.is_busy());
    server.save().unwrap();
}

/// A copy is expected to take what the last one took for each byte of its server, within bounds.
#[test]
fn copies_are_reckoned_by_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Arc::new(RealDisk));
    let durability = &server.durability;
    assert_eq!(durability.copy_bytes(500), 500);
    for (bytes, theirs, expected) in [
        (300, Some(1000), 150),
        (300, None, 150),
        (300, Some(0), 150),
        (3000, Some(1000), 1500),
        (1 << 60, Some(1), 5000),
        (1, Some(1 << 60), 50),
    ] {
        durability.note_ratio(bytes, theirs);
        assert_eq!(durability.copy_bytes(500), expected, "{bytes} for {theirs:?}");
    }
    assert_eq!(durability.copy_bytes(u64::MAX), u64::MAX / 10);
}

/// An outlet that keeps the order thread waiting until it is told to go on.
struct Slow(Receiver<()>);

impl persist::stream::Outlet for Slow {
    fn take(&mut self, _: persist::stream::Item) {
        let _ = self.0.recv();
    }

    fn turn(&mut self, _: u64) {}
}

/// A log that begins while replicas hear of the stream is not given what was told before: it would be behind its
/// own begin.
#[test]
fn a_log_begins_while_others_hear_of_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Arc::new(RealDisk));
    let durability = &server.durability;
    let (go, wait) = channel();
    let listening = durability.stream.add(|_| Box::new(Slow(wait))).unwrap();
    for value in [b"1", b"2", b"3"] {
        let mut words = [&b"SET"[..], b"k", value].into_iter();
        assert!(durability.keyspace.tell_apart(keyspace::To::All, &mut words).is_some());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let its = durability.clone();
    let begins = std::thread::spawn(move || its.files()?.switch_log(&its, true));
    std::thread::sleep(std::time::Duration::from_millis(50));
    drop(go);
    assert_eq!(begins.join().unwrap(), Ok(()));
    assert_eq!(durability.log_stopped(), None);
    listening.end();
}
