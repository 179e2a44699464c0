//! Directories of real servers read here, and directories written here read by them and by their checkers.
//! Servers that are not on this machine are left out, and it is said which.

mod peer;
mod stream;

use peer::{Peer, SERVERS};
use persist::disk::RealDisk;
use persist::stream::{Item, Outlet};
use persist::{Fsync, Hooks, Place, Preallocate, Settings, Writer, describe_log};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stream::{Done, Source, recover, write_base};

type Keys = BTreeMap<(u64, Vec<u8>), Vec<u8>>;

/// The keys that commands leave.
fn keys_of<'d>(done: impl Iterator<Item = &'d Done>) -> Keys {
    let mut keys = Keys::new();
    for done in done {
        match &done.args[..] {
            [set, key, value] if set.eq_ignore_ascii_case(b"SET") => {
                keys.insert((done.db, key.clone()), value.clone());
            }
            [incr, key] if incr.eq_ignore_ascii_case(b"INCR") => {
                let value = keys.entry((done.db, key.clone())).or_insert_with(|| b"0".to_vec());
                let number: i64 = String::from_utf8_lossy(value).parse().expect("a number");
                *value = (number + 1).to_string().into_bytes();
            }
            other => panic!("{other:?}"),
        }
    }
    keys
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("room");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("room");
    }
}

/// Has every server start from a directory, and compares what they say. They may append and rewrite.
fn servers_read(place: &Place, expected: &Keys, what: &str) {
    for (name, _) in SERVERS {
        let dir = tempfile::tempdir().expect("a folder");
        copy(&place.dir, &dir.path().join("appendonlydir"));
        peer::check_log(name, &dir.path().join("appendonlydir").join("appendonly.aof.manifest"));
        let Some(mut peer) = Peer::start_in(name, dir, &["--appendonly", "yes"]) else { continue };
        let mut seen = peer.strings();
        seen.remove(&(0, b"base".to_vec()));
        assert!(seen == *expected, "{name} {what}: {} keys of {}", seen.len(), expected.len());
        // It goes on, and we go on after it.
        peer.run(&["SELECT", "3"]);
        peer.run(&["SET", "theirs", "1"]);
        peer.run(&["INCR", "theirs"]);
        let dir = peer.stop();
        let theirs = Place::new(dir.path().join("appendonlydir"), "appendonly.aof");
        let recovered = recover(&theirs).expect("sound");
        let mut all = expected.clone();
        all.insert((3, b"theirs".to_vec()), b"2".to_vec());
        assert!(keys_of(recovered.done.iter()) == all || recovered.in_base > 0, "{name} {what}");
        assert!(recovered.log.cut.is_empty(), "{name} {what}");
    }
}

fn settings(fsync: Fsync, preallocate: Preallocate) -> Settings {
    Settings { fsync, preallocate, ..Settings::default() }
}

fn written(writer: &Writer) {
    let began = Instant::now();
    while writer.pending_bytes() > 0 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn servers_start_from_our_directory_in_every_state() {
    for (fsync, preallocate) in [(Fsync::Always, Preallocate::Yes), (Fsync::EverySecond, Preallocate::No)] {
        let dir = tempfile::tempdir().expect("a folder");
        let place = Place::new(dir.path(), "appendonly.aof");
        let writer = Writer::open(
            Arc::new(RealDisk),
            place.clone(),
            None,
            0,
            settings(fsync, preallocate),
            Hooks::default(),
        );
        let writer = writer.expect("room");
        let (mut outlet, mut source) = (writer.outlet(), Source::new(5, 0));
        let expected = |source: &Source| keys_of(source.done.iter().map(|(_, done)| done));
        (0..100).for_each(|_| source.give(&mut outlet));
        written(&writer);
        if preallocate == Preallocate::Yes {
            let file = place.path(b"appendonly.aof.1.incr.aof");
            let began = Instant::now();
            while file.metadata().expect("a file").len() < 8 << 20 {
                assert!(began.elapsed() < Duration::from_secs(20), "it is prepared");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // As after a kill.
        servers_read(&place, &expected(&source), "while it is written");
        let rewriting = writer.begin_rewrite().expect("room");
        servers_read(&place, &expected(&source), "a rewrite has begun");
        outlet.take(source.mark(rewriting.mark));
        let (commands, lsn) = (source.done.len(), source.lsn);
        (0..20).for_each(|_| source.give(&mut outlet));
        written(&writer);
        servers_read(&place, &expected(&source), "behind the mark");
        let bytes = write_base(Arc::new(RealDisk), &rewriting.base, commands, lsn, 1).expect("room");
        writer.finish_rewrite(&rewriting, bytes).expect("at the mark");
        outlet.take(Item::Block(source.block()));
        writer.close().expect("room");
        let behind = keys_of(source.done[commands..].iter().map(|(_, done)| done));
        servers_read(&place, &behind, "behind a rewrite, at its clean end");
    }
}

#[test]
fn a_torn_end_is_cut_by_servers_as_by_us() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = Place::new(dir.path(), "appendonly.aof");
    let options = settings(Fsync::EverySecond, Preallocate::No);
    let writer = Writer::open(Arc::new(RealDisk), place.clone(), None, 0, options, Hooks::default());
    let writer = writer.expect("room");
    let (mut outlet, mut source) = (writer.outlet(), Source::new(5, 0));
    (0..10).for_each(|_| source.give(&mut outlet));
    writer.close().expect("room");
    let file = place.path(b"appendonly.aof.1.incr.aof");
    let whole = std::fs::read(&file).expect("a file");
    std::fs::write(&file, &whole[..whole.len() - 300]).expect("room");
    let recovered = recover(&place).expect("torn");
    assert_eq!(recovered.log.cut.len(), 1);
    let kept = recovered.assert_prefix(&source, "cut");
    servers_read(&place, &keys_of(source.done[..kept].iter().map(|(_, done)| done)), "cut");
}

#[test]
fn directories_of_real_servers_are_read() {
    for (name, _) in SERVERS {
        for preamble in ["yes", "no"] {
            let dir = tempfile::tempdir().expect("a folder");
            let args =
                ["--appendonly", "yes", "--aof-timestamp-enabled", "yes", "--aof-use-rdb-preamble", preamble];
            let named = [&args[..], &["--appendfilename", "a log.aof"]].concat();
            let Some(mut peer) = Peer::start_in(name, dir, &named) else { continue };
            for i in 0..50 {
                peer.run(&["SET", &format!("before{i}"), "v"]);
            }
            peer.run(&["BGREWRITEAOF"]);
            peer.settle();
            peer.run(&["SELECT", "2"]);
            peer.run(&["MULTI"]);
            peer.run(&["SET", "in a transaction", "1"]);
            peer.run(&["INCR", "counter"]);
            peer.run(&["EXEC"]);
            for i in 0..50 {
                peer.run(&["SET", &format!("after{i}"), "\r\n#EK 1\r\n"]);
            }
            let expected = peer.strings();
            let dir = peer.stop();
            let place = Place::new(dir.path().join("appendonlydir"), "a log.aof");
            let about = describe_log(&place, 0).expect("a manifest").expect("a log");
            assert!(about.is_sound() && !about.is_torn(), "{name}: {about}");
            let base = stream::Base::default();
            let mut replay = stream::Replay::default();
            let (options, progress) = (persist::LogOptions::default(), persist::Progress::default());
            let log = persist::load_log(&RealDisk, &place, options, &base, &mut replay, &progress);
            let log = log.expect("sound").expect("a log");
            assert_eq!(log.base.is_some(), preamble == "yes", "{name}");
            let mut found = keys_of(replay.done.iter().filter(|done| done.args.len() < 4));
            let in_base = base.keys.into_inner().expect("no panic");
            found.extend(in_base.into_iter().map(|key| (key, b"v".to_vec())));
            assert_eq!(found, expected, "{name}");
            assert!(log.lsn == 0 && log.cut.is_empty() && !log.is_foreign, "{name}");
        }
    }
}
