//! Where the files of snapshots go while `dir` and `dbfilename` change, and that nothing stays behind.

use crate::cli::sent_file;
use crate::snapshots::{await_info, fill, ready, start_in};
use crate::support::{Client, PATIENCE, Server, foreign};
use std::path::{Path, PathBuf};
use std::time::Instant;

const PROTECTED: &[&str] = &["--enable-protected-configs", "yes"];

/// A server on one of two folders.
struct Folders {
    _home: tempfile::TempDir,
    old: PathBuf,
    new: PathBuf,
    server: Server,
    client: Client,
}

impl Folders {
    fn start(more: &[&str]) -> Folders {
        let home = tempfile::tempdir().expect("a folder");
        let [old, new] = ["old", "new"].map(|name| home.path().join(name));
        [&old, &new].into_iter().for_each(|dir| std::fs::create_dir(dir).expect("a folder"));
        let server = start_in(&old, &[PROTECTED, more].concat());
        let mut client = ready(&server);
        fill(&mut client);
        Folders { _home: home, old, new, server, client }
    }

    /// Both settings in one command.
    fn set(&mut self, dir: &Path, name: &str) {
        self.client.expect(&format!("CONFIG SET dir {} dbfilename {name}", dir.display()), "+OK");
    }

    fn point(&mut self, point: &str, mode: &str) {
        self.client.expect(&format!("DEBUG POINT {point} {mode}"), "+OK");
    }

    /// A client that asks for the file alone and waits for it.
    fn copying(&mut self) -> Client {
        let mut reader = self.server.client();
        reader.expect("REPLCONF rdb-only 1", "+OK");
        reader.send("SYNC\r\n");
        reader
    }
}

/// The names in a folder, but for that of the lock.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the folder").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "evenkeel.lock");
    names.sort();
    names
}

/// A snapshot's file is named when it is asked for, as in Redis, whose child process keeps its working
/// directory. No moment of a CONFIG SET mixes an old folder with a new name, or leaves a copy for a client in
/// one while it is looked for in the other.
#[test]
fn a_file_goes_to_the_folder_that_was_set_when_it_was_asked_for() {
    if foreign() {
        return;
    }
    let mut both = Folders::start(&[]);
    for point in ["save-begin", "save-write", "save-end"] {
        for ask in ["BGSAVE", "SAVE", "SYNC"] {
            let (old, new) = (both.old.clone(), both.new.clone());
            both.set(&old, "old.rdb");
            both.point(point, "HOLD 1");
            let mut asks = match ask {
                "SYNC" => both.copying(),
                _ => both.server.client(),
            };
            match ask {
                "SYNC" => {}
                "SAVE" => asks.send("SAVE\r\n"),
                _ => asks.expect("BGSAVE", "+Background saving started"),
            }
            await_info(&mut both.client, "rdb_bgsave_in_progress:1\\r");
            both.set(&new, "new.rdb");
            both.point(point, "OFF");
            match ask {
                "SYNC" => assert!(sent_file(&mut asks).starts_with(b"REDIS")),
                "SAVE" => asks.expect_reply("+OK"),
                _ => {}
            }
            await_info(&mut both.client, "rdb_bgsave_in_progress:0\\r");
            let written: &[&str] = if ask == "SYNC" { &[] } else { &["old.rdb"] };
            assert_eq!((names(&old), names(&new)), (owned(written), owned(&[])), "{ask} at {point}");
            // The next one goes to the new place.
            both.client.expect("SAVE", "+OK");
            assert_eq!(names(&new), ["new.rdb"], "{ask} at {point}");
            written.iter().for_each(|name| std::fs::remove_file(old.join(name)).expect("it is there"));
            std::fs::remove_file(new.join("new.rdb")).expect("it is there");
        }
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The first of two clients leaves in the middle of its copy; the second gets its own, from the other folder.
#[test]
fn copies_for_two_clients_leave_nothing_in_either_folder() {
    if foreign() {
        return;
    }
    let mut both = Folders::start(&[]);
    let (old, new) = (both.old.clone(), both.new.clone());
    for point in ["save-begin", "save-write", "save-end"] {
        for leaves in [false, true] {
            both.set(&old, "dump.rdb");
            both.point(point, "HOLD 1");
            let mut first = both.copying();
            await_info(&mut both.client, "rdb_bgsave_in_progress:1\\r");
            let mut second = both.copying();
            both.set(&new, "dump.rdb");
            if leaves {
                drop(first);
            } else {
                both.point(point, "OFF");
                assert!(sent_file(&mut first).starts_with(b"REDIS"));
            }
            both.point(point, "OFF");
            assert!(sent_file(&mut second).starts_with(b"REDIS"));
            await_info(&mut both.client, "rdb_bgsave_in_progress:0\\r");
            assert_eq!((names(&old), names(&new)), (owned(&[]), owned(&[])), "{point}, {leaves}");
        }
    }
}

/// A copy that fails, because its folder is gone, or is cancelled, says so and leaves nothing.
#[test]
fn a_copy_that_fails_leaves_nothing() {
    if foreign() {
        return;
    }
    let mut both = Folders::start(&[]);
    let (old, new) = (both.old.clone(), both.new.clone());
    both.point("save-write", "HOLD 1");
    let mut reader = both.copying();
    await_info(&mut both.client, "rdb_bgsave_in_progress:1\\r");
    both.set(&new, "dump.rdb");
    both.client.expect("BGSAVE CANCEL", "+Background saving cancelled");
    both.point("save-write", "OFF");
    reader.expect_reply("-ERR the snapshot failed: it was cancelled");
    both.point("save-begin", "HOLD 1");
    reader.send("SYNC\r\n");
    await_info(&mut both.client, "rdb_bgsave_in_progress:1\\r");
    std::fs::remove_dir(&new).expect("it is empty");
    both.set(&old, "dump.rdb");
    both.point("save-begin", "OFF");
    let failed = reader.reply();
    assert!(failed.starts_with("-ERR the snapshot failed: cannot create"), "{failed}");
    reader.expect("PING", "+PONG");
    assert_eq!(names(&old), owned(&[]));
}

/// DEBUG RELOAD empties the server before it loads: it has to load the file that it has just written.
#[test]
fn a_reload_loads_the_file_that_it_wrote() {
    if foreign() {
        return;
    }
    let mut both = Folders::start(&[]);
    let digest = both.client.call("DEBUG DIGEST");
    both.point("save-begin", "HOLD 1");
    let mut reloads = both.server.client();
    reloads.send("DEBUG RELOAD\r\n");
    await_info(&mut both.client, "rdb_bgsave_in_progress:1\\r");
    let new = both.new.clone();
    both.set(&new, "dump.rdb");
    both.point("save-begin", "OFF");
    reloads.expect_reply("+OK");
    both.client.expect("DEBUG DIGEST", &digest);
    assert_eq!((names(&both.old), names(&new)), (owned(&["dump.rdb"]), owned(&[])));
}

/// The log stays where it began: a rewrite that lost half of it to another folder would lose the data.
#[test]
fn a_rewrite_stays_in_the_folder_of_its_log() {
    if foreign() {
        return;
    }
    const LOGGED: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];
    for point in ["save-begin", "save-write", "save-end"] {
        let mut both = Folders::start(LOGGED);
        both.point(point, "HOLD 1");
        both.client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
        await_info(&mut both.client, "aof_rewrite_in_progress:1\\r");
        let (old, new) = (both.old.clone(), both.new.clone());
        both.set(&new, "dump.rdb");
        both.client.expect("SET written meanwhile", "+OK");
        both.point(point, "OFF");
        await_info(&mut both.client, "aof_rewrite_in_progress:0\\r");
        both.client.expect("SET written afterwards", "+OK");
        assert_eq!((names(&old), names(&new)), (owned(&["appendonlydir"]), owned(&[])), "{point}");
        // The manifest is written once more when the files of before are removed.
        let began = Instant::now();
        loop {
            let log = names(&old.join("appendonlydir"));
            if !log.iter().any(|name| name.starts_with("temp-")) {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{log:?}");
            std::thread::yield_now();
        }
        let digest = both.client.call("DEBUG DIGEST");
        let Folders { _home: home, server, client, .. } = both;
        drop((client, server));
        let server = start_in(&old, LOGGED);
        ready(&server).expect("DEBUG DIGEST", &digest);
        drop((server, home));
    }
}

/// The end of the server takes the unfinished file along, as in Redis; the folder may be another one at the
/// next start.
#[test]
fn the_end_of_the_server_leaves_no_unfinished_file() {
    if foreign() {
        return;
    }
    for ask in ["BGSAVE\r\n", "REPLCONF rdb-only 1\r\nSYNC\r\n"] {
        let mut both = Folders::start(&["--save-rate-limit", "1000"]);
        let mut asks = both.server.client();
        asks.send(ask);
        let deadline = Instant::now() + PATIENCE;
        while names(&both.old).is_empty() {
            assert!(Instant::now() < deadline, "no file was begun");
        }
        assert!(names(&both.old).iter().all(|name| name.starts_with("temp-")));
        let new = both.new.clone();
        both.set(&new, "dump.rdb");
        both.client.send("SHUTDOWN NOSAVE\r\n");
        assert_eq!(both.server.exit_code(), Some(0));
        assert_eq!((names(&both.old), names(&both.new)), (owned(&[]), owned(&[])), "{ask:?}");
    }
}

/// The log stays in its folder when `dir` changes, so it cannot be loaded from the new one in its place.
#[test]
fn a_log_is_not_loaded_from_a_dir_that_came_behind_it() {
    if foreign() {
        return;
    }
    let mut folders = Folders::start(&["--appendonly", "yes"]);
    let (old, new) = (folders.old.clone(), folders.new.clone());
    let digest = folders.client.call("DEBUG DIGEST");
    folders.set(&new, "dump.rdb");
    let refused = folders.client.call("DEBUG LOADAOF");
    assert!(refused.contains("not in the present dir"), "{refused}");
    folders.client.expect("DEBUG DIGEST", &digest);
    folders.set(&old, "dump.rdb");
    folders.client.expect("DEBUG LOADAOF", "+OK");
    folders.client.expect("DEBUG DIGEST", &digest);
    folders.client.expect("SAVE", "+OK");
    for line in ["DEBUG RELOAD NOSAVE NOFLUSH MERGE", "DEBUG RELOAD MERGE"] {
        folders.client.expect(line, "+OK");
        folders.client.expect("DEBUG DIGEST", &digest);
    }
    let twice = folders.client.call("DEBUG RELOAD NOFLUSH NOSAVE");
    assert!(twice.contains("already exists") || twice.contains("comes twice"), "{twice}");
}
