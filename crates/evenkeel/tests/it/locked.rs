//! One server at a time has a directory, and a log whose files somebody takes away.

use crate::snapshots::{await_info, ready, start_in};
use crate::support::{Client, Server, binary, foreign, free_port, run, said};
use crate::waits::until;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];
const LOCK: &str = "evenkeel.lock";

/// Starts a server that may refuse.
fn begin(dir: &Path, more: &[&str]) -> Child {
    let dir = dir.display().to_string();
    let mut command = Command::new(binary());
    command.args(["--port", &free_port().to_string(), "--dir", &dir]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the binary")
}

/// Starts a server that must end at once, with a message that names the lock and its holder.
#[track_caller]
fn refused(dir: &Path, more: &[&str], holder: u32) {
    let dir = dir.display().to_string();
    let all = [&["--port", "0", "--dir", &dir], more].concat();
    let ended = run(&all);
    let said = said(&ended);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains(LOCK) && said.contains(&format!("process {holder}")), "{said}");
}

/// All files below a folder but those of the history, which the running server writes each minute, with what is in
/// them.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name == "history" {
            continue;
        }
        if path.is_dir() {
            all.extend(files(&path).into_iter().map(|(below, text)| (format!("{name}/{below}"), text)));
        } else {
            // The log fills its room with lines of dashes ahead of time.
            let mut text = std::fs::read(&path).expect("a file");
            text.truncate(text.iter().rposition(|byte| !b"-#\n".contains(byte)).map_or(0, |last| last + 1));
            all.insert(name, text);
        }
    }
    all
}

fn write(client: &mut Client, keys: std::ops::Range<u32>) {
    for key in keys {
        client.expect(&format!("SET key:{key} v"), "+OK");
    }
}

fn kill(server: &mut Server) {
    server.signal("KILL");
    server.exit_code();
}

/// No second server gets at the log, or at the snapshot, of one that runs; and nothing is changed by the trial.
#[test]
fn a_second_server_ends_and_changes_nothing() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    write(&mut client, 0..50);
    let before = files(folder.path());
    refused(folder.path(), ALWAYS, server.pid());
    refused(folder.path(), &["--appendonly", "no"], server.pid());
    refused(folder.path(), &["--appendonly", "no", "--save", "900 1"], server.pid());
    assert_eq!(files(folder.path()), before);
    write(&mut client, 50..101);
    kill(&mut server);
    // A lock that was left behind means nothing.
    assert!(folder.path().join(LOCK).exists());
    let server = start_in(folder.path(), ALWAYS);
    ready(&server).expect("DBSIZE", ":101");
}

/// A server without any files of its own may run in the directory of another, and must not write there.
#[test]
fn a_server_in_memory_cannot_take_the_files_of_another() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    write(&mut client, 0..50);
    let before = files(folder.path());
    let other = start_in(folder.path(), &[]);
    let mut second = ready(&other);
    second.expect("SET foreign v", "+OK");
    let held = format!("process {}", server.pid());
    for command in ["CONFIG SET appendonly yes", "SAVE", "DEBUG RELOAD", "CONFIG SET appendonly yes"] {
        let refusal = second.call(command);
        assert!(refusal.starts_with('-') && refusal.contains(&held), "{command}: {refusal}");
    }
    second.expect("CONFIG GET appendonly", "[\"appendonly\", \"no\"]");
    second.expect("BGSAVE", "+Background saving started");
    await_info(&mut second, "rdb_last_bgsave_status:err\\r");
    assert_eq!(files(folder.path()), before);
    client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
    await_info(&mut client, "aof_rewrites:2\\r");
    write(&mut client, 50..101);
    kill(&mut server);
    // The directory is free now, and its log is put aside, not overwritten.
    second.expect("CONFIG SET appendonly yes", "+OK");
    await_info(&mut second, "aof_rewrites:1\\r");
    assert!(folder.path().join("appendonlydir.before-1").exists());
    drop((second, other));
    std::fs::remove_dir_all(folder.path().join("appendonlydir")).expect("it is there");
    std::fs::rename(folder.path().join("appendonlydir.before-1"), folder.path().join("appendonlydir"))
        .expect("the name is free");
    let server = start_in(folder.path(), ALWAYS);
    ready(&server).expect("DBSIZE", ":101");
}

/// One of the servers that start together in a directory serves. The others end.
#[test]
fn of_servers_that_start_together_one_serves() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut all: Vec<Child> = (0..4).map(|_| begin(folder.path(), ALWAYS)).collect();
    let mut ended = 0;
    until("all but one have ended", || {
        ended = all.iter_mut().map(Child::try_wait).filter(|ended| matches!(ended, Ok(Some(_)))).count();
        ended >= 3
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(all.iter_mut().map(Child::try_wait).filter(|ended| matches!(ended, Ok(None))).count(), 1);
    for mut child in all {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert!(!folder.path().join("appendonlydir.before-1").exists());
}

/// The lock of the new `dir` is taken before that of the old one is let go of. That of a running log stays.
#[test]
fn a_new_dir_is_locked_before_the_old_one_is_left() {
    if foreign() {
        return;
    }
    let (first, second) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (one, two) = (first.path().display(), second.path().display());
    let saves = ["--save", "900 1", "--enable-protected-configs", "yes"];
    let server = start_in(first.path(), &saves);
    let other = start_in(second.path(), &saves);
    let (mut client, mut others) = (ready(&server), ready(&other));
    let refusal = client.call(&format!("CONFIG SET dir {two}"));
    assert!(refusal.contains(&format!("process {}", other.pid())), "{refusal}");
    client.expect("CONFIG GET dir", &format!("[\"dir\", \"{one}\"]"));
    // A change that is refused for another reason leaves no lock.
    let third = tempfile::tempdir().expect("a folder");
    let dir = third.path().display();
    let refusal = client.call(&format!("CONFIG SET dir {dir} dbfilename a/b"));
    assert!(refusal.contains("just a filename"), "{refusal}");
    assert!(files(third.path()).is_empty());
    others.expect(&format!("CONFIG SET dir {dir}"), "+OK");
    assert!(files(second.path()).is_empty());
    client.expect(&format!("CONFIG SET dir {two}"), "+OK");
    others.expect("CONFIG SET appendonly yes", "+OK");
    await_info(&mut others, "aof_rewrites:1\\r");
    others.expect(&format!("CONFIG SET dir {one}"), "+OK");
    // The log is still there, and so is its lock.
    refused(third.path(), ALWAYS, other.pid());
    refused(first.path(), ALWAYS, other.pid());
}

/// A lock whose file somebody removes is made again; nobody else gets in.
#[test]
fn a_removed_lock_is_made_again() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    std::fs::remove_file(folder.path().join(LOCK)).expect("it is there");
    until("the lock is there", || {
        client.expect("SET k v", "+OK");
        folder.path().join(LOCK).exists()
    });
    refused(folder.path(), ALWAYS, server.pid());
}

/// A repair of files in use would cut what the server has just written.
#[test]
fn the_doctor_repairs_no_files_in_use() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    write(&mut client, 0..10);
    let log = folder.path().join("appendonlydir");
    for place in [folder.path(), &log] {
        let doctor =
            Command::new(binary()).arg("doctor").arg(place).arg("--fix").output().expect("the binary");
        let said = String::from_utf8_lossy(&doctor.stderr).into_owned();
        assert_eq!(doctor.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("process {}", server.pid())), "{said}");
    }
    write(&mut client, 10..20);
}

/// A log that somebody removes or moves away is an error, and is made anew by the server itself.
#[test]
fn a_log_that_vanished_is_made_anew() {
    if foreign() {
        return;
    }
    for part in ["the folder", "a move of the folder", "its files", "the manifest", "the commands"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = start_in(folder.path(), ALWAYS);
        let mut client = ready(&server);
        write(&mut client, 0..20);
        let log = folder.path().join("appendonlydir");
        let remove_all = |ending: &str| {
            for entry in std::fs::read_dir(&log).expect("the log").flatten() {
                if entry.file_name().to_string_lossy().ends_with(ending) {
                    std::fs::remove_file(entry.path()).expect("it is there");
                }
            }
        };
        match part {
            "the folder" => std::fs::remove_dir_all(&log).expect("it is there"),
            "a move of the folder" => std::fs::rename(&log, folder.path().join("away")).expect("a name"),
            "its files" => remove_all(""),
            "the manifest" => remove_all(".manifest"),
            _ => remove_all(".incr.aof"),
        }
        await_info(&mut client, "aof_rewrites:2\\r");
        server.await_words("was removed or moved away while the server runs");
        // Writes that come meanwhile are refused.
        until("writes go on", || client.call("SET key:20 v") == "+OK");
        kill(&mut server);
        let server = start_in(folder.path(), ALWAYS);
        let mut client = ready(&server);
        for key in 0..=20 {
            client.expect(&format!("GET key:{key}"), "\"v\"");
        }
    }
}

/// Files that somebody puts in the place of the log are not overwritten: writes stop until a person says what
/// is to be done.
#[test]
fn a_log_that_was_replaced_stops_writes_until_it_is_made_anew() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    write(&mut client, 0..5);
    let (log, backup) = (folder.path().join("appendonlydir"), folder.path().join("backup"));
    std::fs::create_dir(&backup).expect("room");
    for (name, text) in files(&log) {
        std::fs::write(backup.join(name), text).expect("room");
    }
    write(&mut client, 5..10);
    std::fs::rename(&log, folder.path().join("old")).expect("the name is free");
    std::fs::rename(&backup, &log).expect("the name is free");
    let restored = files(&log);
    // A write before that is seen waits, and is closed unanswered some seconds later.
    until("the log is stopped", || client.call("INFO persistence").contains("aof_last_write_status:err"));
    let last = client.call("SET key:10 v");
    assert!(
        last.starts_with("-MISCONF Errors writing to the AOF file") && last.contains("BGREWRITEAOF"),
        "{last}"
    );
    assert!(client.call("INFO persistence").contains("aof_stopped:"));
    client.expect("GET key:9", "\"v\"");
    assert_eq!(files(&log), restored);
    client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
    until("writes go on", || client.call("SET key:10 v") == "+OK");
    assert_eq!(files(&folder.path().join("appendonlydir.before-1")), restored);
    kill(&mut server);
    let server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    for key in 0..=10 {
        client.expect(&format!("GET key:{key}"), "\"v\"");
    }
}

/// A server with a log and no data serves at once: it has nothing to load, and its log needs no base.
#[test]
fn a_start_in_an_empty_folder_loads_nothing() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), ALWAYS);
    let mut client = server.client();
    client.expect("SET k v", "+OK");
    kill(&mut server);
    let server = start_in(folder.path(), ALWAYS);
    ready(&server).expect("GET k", "\"v\"");
}
