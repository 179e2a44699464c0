//! The append-only log, as clients and operators see it.

use crate::held::figure;
use crate::snapshots::{await_info, fill, ready, start_in};
use crate::support::{Client, PATIENCE, Server, foreign, run, said};
use crate::waits::until;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];
const EVERYSEC: &[&str] = &["--appendonly", "yes"];

/// How long a reply that must not come is waited for.
const SILENCE: Duration = Duration::from_millis(150);

fn log_files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir.join("appendonlydir")).expect("the log").flatten();
    let mut names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The last file of commands.
fn last_file(dir: &Path) -> PathBuf {
    let seq = |name: &String| -> Option<u64> { name.split('.').nth(2)?.parse().ok() };
    let files = log_files(dir);
    let last = files.iter().filter(|name| name.ends_with(".incr.aof")).max_by_key(|name| seq(name));
    dir.join("appendonlydir").join(last.expect("a file of commands"))
}

/// Ends a server at once.
fn kill(server: &mut Server) {
    server.signal("KILL");
    server.exit_code();
}

/// Ends a server in order.
#[track_caller]
fn end(server: &mut Server) {
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let digest = {
        let mut server = start_in(folder.path(), ALWAYS);
        let mut client = ready(&server);
        fill(&mut client);
        for line in [
            "MULTI",
            "INCR n",
            "RPUSH list tail",
            "EXEC",
            "EVAL \"for i = 1, 50 do redis.call('SET', 's' .. i, i) end redis.call('HSET', 'hash', 'by', 'script')\" 0",
            "SPOP words 1",
            "GETEX text EX 100000",
            "INCRBYFLOAT number 0.5",
            "EXPIRE ints 100000",
            "COPY list copied DB 9",
            "SWAPDB 9 10",
            "SELECT 10",
            "MOVE copied 3",
            "SELECT 0",
        ] {
            let reply = client.call(line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        }
        let digest = client.call("DEBUG DIGEST");
        client.expect("DEBUG LOADAOF", "+OK");
        client.expect("DEBUG DIGEST", &digest);
        kill(&mut server);
        digest
    };
    let server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    client.expect("DEBUG DIGEST", &digest);
    client.expect("FCALL f 0", ":7");
    let ttl: i64 = client.call("TTL text").trim_start_matches(':').parse().expect("a number");
    assert!((99_000..=100_000).contains(&ttl), "{ttl}");
    // It goes on from there.
    client.expect("SET more x", "+OK");
}

#[test]
fn an_orderly_end_loses_nothing() {
    if foreign() {
        return;
    }
    for fsync in ["always", "everysec", "no"] {
        let folder = tempfile::tempdir().expect("a folder");
        let args = ["--appendonly", "yes", "--appendfsync", fsync];
        let mut server = start_in(folder.path(), &args);
        let mut client = ready(&server);
        fill(&mut client);
        let digest = client.call("DEBUG DIGEST");
        server.signal("TERM");
        assert_eq!(server.exit_code(), Some(0), "{fsync}");
        let server = start_in(folder.path(), &args);
        ready(&server).expect("DEBUG DIGEST", &digest);
    }
}

#[test]
fn a_rewrite_makes_the_log_short_and_loses_nothing() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let digest = {
        let mut server = start_in(folder.path(), ALWAYS);
        let mut client = ready(&server);
        fill(&mut client);
        for n in 0..200 {
            client.expect(&format!("SET counter {n}"), "+OK");
        }
        client.expect("DEBUG POINT save-write HOLD 1", "+OK");
        client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
        await_info(&mut client, "aof_rewrite_in_progress:1\\r");
        client.expect("BGREWRITEAOF", "-ERR Background append only file rewriting already in progress");
        let refused = client.call("BGSAVE");
        assert!(refused.starts_with("-ERR Another child process is active (AOF?)"), "{refused}");
        // Writes go on, and are acknowledged.
        client.expect("APPEND text !", ":12");
        client.expect("SADD ints 17", ":1");
        client.expect("DEBUG POINT save-write OFF", "+OK");
        await_info(&mut client, "aof_rewrites:2\\r");
        client.expect("SADD ints 18", ":1");
        assert!(log_files(folder.path()).iter().any(|name| name.ends_with(".base.rdb")));
        let digest = client.call("DEBUG DIGEST");
        kill(&mut server);
        digest
    };
    let server = start_in(folder.path(), ALWAYS);
    ready(&server).expect("DEBUG DIGEST", &digest);
}

#[test]
fn the_log_begins_and_ends_while_the_server_runs() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let digest = {
        let mut server = start_in(folder.path(), &[]);
        let mut client = ready(&server);
        fill(&mut client);
        client.expect(
            "WAITAOF 1 0 0",
            "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        );
        let refused = client.call("BGREWRITEAOF");
        assert!(refused.starts_with("-ERR "), "{refused}");
        client.expect("CONFIG SET appendonly yes", "+OK");
        await_info(&mut client, "aof_rewrites:1\\r");
        client.expect("SET late x", "+OK");
        client.expect("WAITAOF 1 0 0", "[:1, :0]");
        let digest = client.call("DEBUG DIGEST");
        kill(&mut server);
        digest
    };
    let server = start_in(folder.path(), EVERYSEC);
    let mut client = ready(&server);
    client.expect("DEBUG DIGEST", &digest);
    client.expect("CONFIG SET appendonly no", "+OK");
    server.await_words("was ended");
    client.expect("SET without log", "+OK");
}

/// A base is of one moment. When whole tables go at that moment, before it has what was committed last, it is
/// taken anew: the log begins all the same.
#[test]
fn a_log_begins_though_databases_are_emptied_as_it_begins() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let digest = {
        let mut server = start_in(folder.path(), &[]);
        let mut client = ready(&server);
        let begins = [
            ("CONFIG SET appendonly yes", "+OK"),
            ("BGREWRITEAOF", "+Background append only file rewriting started"),
        ];
        for (n, (command, reply)) in (1..).zip(begins) {
            client.expect("DEBUG POINT commit-fold HOLD 1", "+OK");
            let mut commits = server.client();
            let fill = b"for i = 1, 50000 do redis.call('SET', KEYS[1] .. i, i) end";
            commits.request(&[b"EVAL", fill, b"1", b"key:"]);
            until("half of a commit is there", || client.call("DEBUG POINT commit-fold") == ":1");
            client.expect("DEBUG POINT save-walk HOLD 1", "+OK");
            client.expect(command, reply);
            until("the walk is held", || client.call("DEBUG POINT save-walk") == ":1");
            client.expect("FLUSHALL", "+OK");
            client.expect("SET after it", "+OK");
            client.expect("DEBUG POINT save-walk OFF", "+OK");
            client.expect("DEBUG POINT commit-fold OFF", "+OK");
            await_info(&mut client, &format!("aof_rewrites:{n}\\r"));
            let began_anew = server.output().matches("begins again").count();
            assert_eq!(began_anew, n, "{}", server.output());
            await_info(&mut client, "aof_last_bgrewrite_status:ok\\r");
            client.expect("WAITAOF 1 0 0", "[:1, :0]");
            client.expect("DBSIZE", ":1");
        }
        let digest = client.call("DEBUG DIGEST");
        kill(&mut server);
        digest
    };
    let server = start_in(folder.path(), EVERYSEC);
    ready(&server).expect("DEBUG DIGEST", &digest);
}

/// Under `no` the log is synced for a client that waits for it, and for nobody else.
#[test]
fn waitaof_is_answered_under_no_too() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), &["--appendonly", "yes", "--appendfsync", "no"]);
    let (mut client, mut leaves) = (ready(&server), server.client());
    for n in 1..=3 {
        client.expect(&format!("SET k{n} v"), "+OK");
        client.expect("WAITAOF 1 0 0", "[:1, :0]");
    }
    client.expect("SET k4 v", "+OK");
    leaves.send("WAITAOF 1 0 0\r\n");
    drop(leaves);
    client.expect("WAITAOF 1 0 0", "[:1, :0]");
    client.expect("CONFIG SET appendfsync always", "+OK");
    client.expect("SET k5 v", "+OK");
    kill(&mut server);
    let server = start_in(folder.path(), EVERYSEC);
    ready(&server).expect("DBSIZE", ":5");
}

/// Each WAITAOF waits for what was written before it: neither for what an earlier one waited for, nor only for
/// a log that has no base yet.
#[test]
fn waitaof_waits_for_its_own_writes_when_the_log_was_switched() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_in(folder.path(), &[EVERYSEC, &["--log-stuck", "600"]].concat());
    let (mut control, mut writer) = (ready(&server), server.client());
    control.expect("DEBUG POINT log-write HOLD 1", "+OK");
    writer.expect("SET first x", "+OK");
    until("the log's thread is held", || control.call("DEBUG POINT log-write") == ":1");
    writer.send("WAITAOF 1 0 0\r\n");
    until("it waits", || control.call("CLIENT LIST").contains("cmd=waitaof"));
    control.expect("CONFIG SET appendonly no", "+OK");
    writer.expect_reply("-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.");
    control.expect("DEBUG POINT log-write OFF", "+OK");
    server.await_words("was ended");
    // A log without its base makes nothing durable.
    control.expect("DEBUG POINT save-walk HOLD 1", "+OK");
    control.expect("CONFIG SET appendonly yes", "+OK");
    until("the walk is held", || control.call("DEBUG POINT save-walk") == ":1");
    control.expect("WAITAOF 1 0 300", "[:0, :0]");
    control.expect("DEBUG POINT save-walk OFF", "+OK");
    control.expect("WAITAOF 1 0 0", "[:1, :0]");
    control.expect("DEBUG POINT log-write HOLD 1", "+OK");
    writer.expect("SET second x", "+OK");
    until("the log's thread is held", || control.call("DEBUG POINT log-write") == ":1");
    writer.expect("WAITAOF 1 0 300", "[:0, :0]");
    control.expect("DEBUG POINT log-write OFF", "+OK");
    writer.expect("WAITAOF 1 0 0", "[:1, :0]");
}

/// A log that cannot be begun is tried again while it is wanted: an operator who makes room need do nothing
/// else.
#[test]
fn a_log_that_could_not_begin_begins_when_there_is_room() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), &[]);
    let mut client = ready(&server);
    let big = "x".repeat(100_000);
    client.expect(&format!("SET big {big}"), "+OK");
    limit_files(&server, "4096");
    client.expect("CONFIG SET appendonly yes rdbcompression no", "+OK");
    server.await_words("was not begun, and is tried again in 2 s");
    await_info(&mut client, "aof_last_bgrewrite_status:err\\r");
    client.expect("SET k v", "+OK");
    limit_files(&server, "unlimited");
    await_info(&mut client, "aof_rewrites:1\\r");
    await_info(&mut client, "aof_last_bgrewrite_status:ok\\r");
    client.expect("WAITAOF 1 0 0", "[:1, :0]");
    kill(&mut server);
    let server = start_in(folder.path(), EVERYSEC);
    let mut client = ready(&server);
    client.expect("GET k", "\"v\"");
    client.expect("STRLEN big", ":100000");
    let names = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(names, 2, "the log and the lock: nothing of the vain tries is left");
}

/// The end of the log ends its rewrite too, which leaves nothing. BGSAVE CANCEL does not: a rewrite is no
/// BGSAVE.
#[test]
fn a_rewrite_ends_with_its_log_and_leaves_nothing() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_in(folder.path(), EVERYSEC);
    let mut client = ready(&server);
    fill(&mut client);
    client.expect("DEBUG POINT save-write HOLD 1", "+OK");
    client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
    until("the writer is held", || client.call("DEBUG POINT save-write") == ":1");
    client.expect("BGSAVE CANCEL", "-ERR Background saving is currently not in progress or scheduled");
    client.expect("CONFIG SET appendonly no", "+OK");
    client.expect("DEBUG POINT save-write OFF", "+OK");
    server.await_words("was ended");
    await_info(&mut client, "aof_last_bgrewrite_status:ok\\r");
    await_info(&mut client, "rdb_bgsave_in_progress:0\\r");
    let files = std::fs::read_dir(folder.path().join("appendonlydir")).expect("the log's folder");
    for file in files {
        let name = file.expect("an entry").file_name();
        assert!(!name.to_string_lossy().starts_with("temp-"), "{name:?}");
    }
    client.expect("SET k v", "+OK");
}

#[test]
fn under_always_a_reply_waits_for_the_disk_and_nobody_else_does() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_in(folder.path(), &[ALWAYS, &["--log-stuck", "600"]].concat());
    let mut other = ready(&server);
    other.expect("MSET untouched 1 a 1 b 1 c 1", "+OK");
    other.expect("DEBUG POINT log-sync HOLD 1", "+OK");
    let requests = [
        "SET a 2",
        "MULTI\r\nINCR b\r\nEXEC",
        "EVAL \"return redis.call('INCR', KEYS[1])\" 1 c",
        "RPUSH queue x",
    ];
    let mut blocked = server.client();
    blocked.send("BLPOP waited 0\r\n");
    let mut waiting: Vec<Client> = requests
        .iter()
        .map(|request| {
            let mut client = server.client();
            for line in request.split("\r\n") {
                client.send(crate::support::encode_line(line));
            }
            client
        })
        .collect();
    other.send("RPUSH waited y\r\n");
    let mut reader = server.client();
    until("all have run", || {
        let list = reader.call("CLIENT LIST");
        ["cmd=set ", "cmd=exec ", "cmd=eval ", "cmd=rpush "].iter().all(|command| list.contains(command))
    });
    for client in waiting.iter_mut().chain([&mut blocked]) {
        let came = client.reply_within(SILENCE);
        assert!(came.is_none() || came.as_deref() == Some("+OK"), "{came:?}");
    }
    // Somebody else is served: reads of what nobody touched, and whatever is no write.
    reader.expect("GET untouched", "\"1\"");
    reader.expect("PING", "+PONG");
    reader.expect("PUBLISH c m", ":0");
    // A read of what is not durable yet waits with it, also if a long command wrote it.
    let pairs: String = (0..600).map(|n| format!(" many:{n} x")).collect();
    let mut bulk = server.client();
    bulk.send(crate::support::encode_line(&format!("MSET{pairs}")));
    let deadline = Instant::now() + PATIENCE;
    while !reader.call("INFO keyspace").contains("db0:keys=6") {
        assert!(Instant::now() < deadline, "the MSET does not commit");
    }
    let mut reader_of_many = server.client();
    reader_of_many.send("GET many:7\r\n");
    assert_eq!(reader_of_many.reply_within(SILENCE), None);
    reader.send("GET a\r\n");
    assert_eq!(reader.reply_within(SILENCE), None);
    let mut free = server.client();
    free.expect("DEBUG POINT log-sync OFF", "+OK");
    reader.expect_reply("\"2\"");
    reader_of_many.expect_reply("\"x\"");
    bulk.expect_reply("+OK");
    blocked.expect_reply("[\"waited\", \"y\"]");
    other.expect_reply(":1");
    // All that tell of waits say for what.
    let waits = free.call("EVENKEEL WAITS");
    assert!(waits.contains("\"log\"") && waits.contains("\"aof-fsync-always\""), "{waits}");
    let id = reader.call("CLIENT ID");
    let why = free.call(&format!("EVENKEEL WHY {}", id.trim_start_matches(':')));
    assert!(why.contains("\"waited-for-log\""), "{why}");
    let slow = free.call("SLOWLOG WHY");
    assert!(slow.contains("for the disk of the append-only log"), "{slow}");
    assert!(slow.contains("behind the disk of the append-only log, aof-fsync-always, "), "{slow}");
}

/// The code of a library runs on a thread of its own. One that is ready when the log has ended is not answered.
#[test]
fn a_library_that_was_answered_is_there_after_an_end_in_order() {
    if foreign() {
        return;
    }
    for ms in (0..200).step_by(10) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = start_in(folder.path(), ALWAYS);
        let mut client = ready(&server);
        client.expect("SET k 1", "+OK");
        let code = "#!lua name=late\nlocal n = 0 for i = 1, 1e6 do n = n + i end \
                    redis.register_function('late', function() return n end)";
        client.request(&[b"FUNCTION", b"LOAD", code.as_bytes()]);
        std::thread::sleep(Duration::from_millis(ms));
        server.signal("TERM");
        let answered = client.reply() == "\"late\"";
        assert_eq!(server.exit_code(), Some(0));
        let server = start_in(folder.path(), ALWAYS);
        let mut client = ready(&server);
        client.expect("GET k", "\"1\"");
        let is_there = client.call("FUNCTION LIST").contains("late");
        assert!(is_there || !answered, "after {ms} ms");
    }
}

/// The code of a small library.
fn library(name: &str, answer: &str) -> String {
    format!("#!lua name={name}\nredis.register_function('{name}', function() return {answer} end)")
}

/// A transaction that writes keys and changes libraries.
fn change_both(client: &mut Client) {
    client.expect("MULTI", "+OK");
    client.expect("SET before 1", "+QUEUED");
    let code = library("young", "2");
    client.request(&[b"FUNCTION", b"LOAD", code.as_bytes()]);
    assert_eq!(client.reply(), "+QUEUED");
    client.expect("FCALL young 0", "+QUEUED");
    client.expect("FUNCTION DELETE old", "+QUEUED");
    client.expect("SET after 1", "+QUEUED");
    client.expect("EXEC", "[+OK, \"young\", :2, +OK, +OK]");
}

/// Keys and libraries that a transaction changes are one record, so a crash keeps both or neither.
#[test]
fn libraries_and_keys_of_a_transaction_are_one_record() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    {
        let mut server = start_in(folder.path(), EVERYSEC);
        let mut client = ready(&server);
        let code = library("old", "1");
        client.request(&[b"FUNCTION", b"LOAD", code.as_bytes()]);
        assert_eq!(client.reply(), "\"old\"");
        // A torn batch goes as a whole: this one is to stay.
        client.expect("WAITAOF 1 0 0", "[:1, :0]");
        change_both(&mut client);
        end(&mut server);
    }
    let file = last_file(folder.path());
    let whole = std::fs::read(&file).expect("the file");
    let find = |word: &str| {
        let at = whole.windows(word.len()).position(|part| part == word.as_bytes());
        at.unwrap_or_else(|| panic!("{word} is not in {}", String::from_utf8_lossy(&whole)))
    };
    let places = ["name=old", "MULTI", "before", "name=young", "DELETE", "after", "EXEC"];
    let places: Vec<usize> = places.iter().map(|word| find(word)).collect();
    assert!(places.is_sorted(), "{places:?}");
    for cut in &places[2..] {
        std::fs::write(&file, &whole[..*cut]).expect("the file");
        let mut server = start_in(folder.path(), EVERYSEC);
        let mut client = ready(&server);
        client.expect("EXISTS before after", ":0");
        client.expect("FCALL old 0", ":1");
        client.expect("FCALL young 0", "-ERR Function not found");
        kill(&mut server);
    }
    std::fs::write(&file, &whole).expect("the file");
    let server = start_in(folder.path(), EVERYSEC);
    let mut client = ready(&server);
    client.expect("EXISTS before after", ":2");
    client.expect("FCALL young 0", ":2");
    client.expect("FCALL old 0", "-ERR Function not found");
}

/// A bug on the way to the log ends nothing. Writes are refused until a new base has what was lost, and nothing
/// of it is acknowledged before.
#[test]
fn a_panic_on_the_way_to_the_log_refuses_writes_until_there_is_a_new_base() {
    if foreign() {
        return;
    }
    for (args, always) in [(ALWAYS, true), (EVERYSEC, false)] {
        for mends in [true, false] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut server = start_in(folder.path(), args);
            let (mut client, mut other) = (ready(&server), server.client());
            client.expect("SET before 1", "+OK");
            client.expect("WAITAOF 1 0 0", "[:1, :0]");
            client.expect("CONFIG SET log-stuck 600", "+OK");
            client.expect("DEBUG POINT save-write HOLD 1", "+OK");
            client.expect("DEBUG POINT log-order PANIC 1", "+OK");
            other.send("SET lost 2\r\n");
            await_info(&mut client, "aof_last_write_status:err\\r");
            let refused = client.call("SET refused 3");
            assert!(refused.starts_with("-MISCONF Errors writing to the AOF file: "), "{refused}");
            assert!(refused.contains("log-order") || refused.contains("LogOrder"), "{refused}");
            client.expect("GET before", "\"1\"");
            assert_eq!(figure(&mut client, "panics_contained"), 1);
            match always {
                true => assert_eq!(other.reply_within(SILENCE), None, "it is not durable"),
                false => assert_eq!(other.reply(), "+OK"),
            }
            if mends {
                client.expect("DEBUG POINT save-write OFF", "+OK");
                await_info(&mut client, "aof_last_write_status:ok\\r");
                if always {
                    assert_eq!(other.reply(), "+OK");
                }
                client.expect("SET after 4", "+OK");
                client.expect("WAITAOF 1 0 0", "[:1, :0]");
            }
            kill(&mut server);
            let server = start_in(folder.path(), args);
            let expected =
                if mends { "[\"1\", \"2\", (nil), \"4\"]" } else { "[\"1\", (nil), (nil), (nil)]" };
            ready(&server).expect("MGET before lost refused after", expected);
        }
    }
}

/// The thread that writes the log gives the file up, and writes the same again.
#[test]
fn a_panic_of_the_thread_that_writes_loses_nothing() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), ALWAYS);
    let mut client = ready(&server);
    for point in ["log-write", "log-sync", "log-afresh"] {
        client.expect(&format!("SET before-{point} 1"), "+OK");
        client.expect(&format!("DEBUG POINT {point} PANIC 2"), "+OK");
        if point == "log-afresh" {
            client.expect("DEBUG POINT log-write PANIC 1", "+OK");
        }
        client.expect(&format!("SET at-{point} 2"), "+OK");
        client.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
    }
    assert!(figure(&mut client, "panics_contained") >= 4);
    let digest = client.call("DEBUG DIGEST");
    kill(&mut server);
    let server = start_in(folder.path(), ALWAYS);
    ready(&server).expect("DEBUG DIGEST", &digest);
}

/// A client that is told of `appendfsync always` relies on it, although the log's thread has not heard of it.
#[test]
fn always_holds_from_the_moment_it_is_set() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server =
        start_in(folder.path(), &["--appendonly", "yes", "--appendfsync", "no", "--log-stuck", "600"]);
    let mut client = ready(&server);
    client.expect("SET before 1", "+OK");
    client.expect("DEBUG POINT log-rotate HOLD 1", "+OK");
    client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
    until("the log's thread is held", || client.call("DEBUG POINT log-rotate") == ":1");
    client.expect("SET k 1", "+OK");
    let mut free = server.client();
    // The weaker setting and the stronger one again: the log's thread sees neither of them alone.
    for mode in ["always", "everysec", "always"] {
        free.expect(&format!("CONFIG SET appendfsync {mode}"), "+OK");
    }
    let (mut writer, mut reader) = (server.client(), server.client());
    writer.send("SET k 2\r\n");
    reader.send("GET before\r\n");
    assert_eq!(writer.reply_within(SILENCE), None);
    assert_eq!(reader.reply_within(SILENCE), None);
    free.expect("CONFIG SET appendfsync no", "+OK");
    writer.expect_reply("+OK");
    reader.expect_reply("\"1\"");
    free.expect("CONFIG SET appendfsync always", "+OK");
    writer.send("SET k 3\r\n");
    assert_eq!(writer.reply_within(SILENCE), None);
    free.expect("DEBUG POINT log-rotate OFF", "+OK");
    writer.expect_reply("+OK");
    reader.expect("GET k", "\"3\"");
}

/// Above `log-pending-soft` writes wait, reads do not, and all that tell of waits say for what.
#[test]
fn writes_wait_for_a_log_that_falls_behind() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        ["--appendonly", "yes", "--appendfsync", "no", "--log-stuck", "600", "--log-pending-soft", "1mb"];
    let server = start_in(folder.path(), &options);
    let (mut client, mut other) = (ready(&server), server.client());
    client.expect("DEBUG POINT log-rotate HOLD 1", "+OK");
    client.expect("BGREWRITEAOF", "+Background append only file rewriting started");
    until("the log's thread is held", || client.call("DEBUG POINT log-rotate") == ":1");
    let value = "x".repeat(100_000);
    let id = client.call("CLIENT ID").trim_start_matches(':').to_owned();
    let held = (0..1000).any(|n| {
        client.send(crate::support::encode_line(&format!("SET k{n} {value}")));
        loop {
            if client.reply_within(SILENCE).is_some() {
                return false;
            }
            if other.call(&format!("CLIENT LIST ID {id}")).contains(" flags=b ") {
                return true;
            }
        }
    });
    assert!(held, "all writes are taken");
    other.expect("STRLEN k0", ":100000");
    other.expect("PING", "+PONG");
    other.expect("DEBUG POINT log-rotate OFF", "+OK");
    client.expect_reply("+OK");
    let why = other.call(&format!("EVENKEEL WHY {id}"));
    assert!(why.contains("\"waited-for-log\"") && !why.contains("reclaim"), "{why}");
    let phases = other.call("EVENKEEL PHASES");
    assert!(phases.contains("waited-for-log"), "{phases}");
}

/// A file that may not grow stands for a full disk.
#[test]
fn a_full_disk_stops_writes_until_there_is_room() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let digest = {
        let mut server = start_in(folder.path(), &["--appendonly", "yes", "--log-stuck", "5"]);
        let mut client = ready(&server);
        client.expect("SET k v", "+OK");
        client.expect("WAITAOF 1 0 0", "[:1, :0]");
        limit_files(&server, "4096");
        let big = format!("SET big {}", "x".repeat(8000));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reply = client.call(&big);
            if reply.starts_with("-MISCONF Errors writing to the AOF file: ") {
                break;
            }
            assert!(reply == "+OK" && Instant::now() < deadline, "{reply}");
            std::thread::sleep(Duration::from_millis(5));
        }
        client.expect("GET k", "\"v\"");
        client.expect("PING", "+PONG");
        let script = client.call("EVAL \"return redis.call('SET', 'k', 'w')\" 0");
        assert!(script.contains("MISCONF"), "{script}");
        await_info(&mut client, "aof_last_write_status:err\\r");
        limit_files(&server, "unlimited");
        let deadline = Instant::now() + PATIENCE;
        while client.call("SET k w") != "+OK" {
            assert!(Instant::now() < deadline, "writes do not go on");
            std::thread::sleep(Duration::from_millis(20));
        }
        client.expect("WAITAOF 1 0 0", "[:1, :0]");
        let digest = client.call("DEBUG DIGEST");
        kill(&mut server);
        digest
    };
    let server = start_in(folder.path(), EVERYSEC);
    ready(&server).expect("DEBUG DIGEST", &digest);
}

#[test]
fn a_log_that_cannot_be_written_can_be_ended() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start_in(folder.path(), EVERYSEC);
    let mut client = ready(&server);
    client.expect("SET k v", "+OK");
    limit_files(&server, "4096");
    let big = format!("SET big {}", "x".repeat(8000));
    let deadline = Instant::now() + PATIENCE;
    while !client.call(&big).starts_with("-MISCONF ") {
        assert!(Instant::now() < deadline);
    }
    // An end that would lose what was acknowledged does not happen.
    client.expect("SHUTDOWN", "-ERR Errors trying to SHUTDOWN. Check logs.");
    assert!(client.call("SET k w").starts_with("-MISCONF ") && server.is_running());
    client.expect("CONFIG SET appendonly no", "+OK");
    server.await_words("does not hold the last writes");
    client.expect("SET k w", "+OK");
    limit_files(&server, "unlimited");
    client.expect("CONFIG SET appendonly yes", "+OK");
    await_info(&mut client, "aof_rewrites:2\\r");
    kill(&mut server);
    let server = start_in(folder.path(), EVERYSEC);
    ready(&server).expect("GET k", "\"w\"");
}

#[test]
fn a_client_that_waits_for_a_full_disk_is_closed_and_not_told_that_all_is_well() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let args = [ALWAYS, &["--log-stuck", "600", "--aof-preallocate", "no"]].concat();
    let mut server = start_in(folder.path(), &args);
    let mut client = ready(&server);
    client.expect("SET k v", "+OK");
    let fill = b"for i = 1, 50000 do redis.call('SADD', KEYS[1], 'm' .. i) end";
    client.request(&[b"EVAL", fill, b"1", b"set"]);
    client.expect_reply("(nil)");
    client.expect("CONFIG SET log-stuck 1", "+OK");
    limit_files(&server, "4096");
    let mut writer = server.client();
    writer.send(crate::support::encode_line(&format!("SET big {}", "x".repeat(8000))));
    assert_eq!(writer.reply_within(PATIENCE).as_deref(), Some("(closed)"));
    server.await_words("1 clients were closed unanswered");
    client.expect("GET k", "\"v\"");
    // So are scripts and long commands that tell of nothing that waits for the disk.
    client.request(&[b"EVAL", b"return redis.call('GET', KEYS[1])", b"1", b"k"]);
    client.expect_reply("\"v\"");
    client.expect("SINTERCARD 2 set set", ":50000");
    client.request(&[b"EVAL", b"return redis.call('STRLEN', KEYS[1])", b"1", b"big"]);
    assert_eq!(client.reply_within(PATIENCE).as_deref(), Some("(closed)"));
    let mut client = server.client();
    client.expect("CONFIG SET log-stuck 600", "+OK");
    limit_files(&server, "unlimited");
    let deadline = Instant::now() + PATIENCE;
    while client.call("SET k w") != "+OK" {
        assert!(Instant::now() < deadline, "writes do not go on");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Nothing that was taken is dropped: the write whose end nobody heard of is there.
    kill(&mut server);
    let server = start_in(folder.path(), ALWAYS);
    ready(&server).expect("STRLEN big", ":8000");
}

fn limit_files(server: &Server, bytes: &str) {
    let pid = server.pid().to_string();
    let limit = format!("--fsize={bytes}:unlimited");
    let status = std::process::Command::new("prlimit").args(["--pid", &pid, &limit]).status();
    assert!(status.expect("prlimit").success());
}

#[test]
fn a_torn_end_is_cut_off_and_damage_before_it_is_named() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    {
        let mut server = start_in(folder.path(), EVERYSEC);
        let mut client = ready(&server);
        for n in 0..100 {
            client.expect(&format!("SET k{n} {n}"), "+OK");
            if n % 10 == 0 {
                client.expect("WAITAOF 1 0 0", "[:1, :0]");
            }
        }
        end(&mut server);
    }
    let file = last_file(folder.path());
    let whole = std::fs::read(&file).expect("the file");
    std::fs::write(&file, &whole[..whole.len() - 200]).expect("the file");
    {
        let mut server = start_in(folder.path(), EVERYSEC);
        let mut client = ready(&server);
        server.await_words("was torn");
        let keys: usize = client.call("DBSIZE").trim_start_matches(':').parse().expect("a number");
        assert!((80..100).contains(&keys), "{keys}");
        kill(&mut server);
    }
    let mut broken = whole;
    let at = broken.windows(4).position(|four| four == b"\r\nk3").expect("k3..") + 2;
    broken[at] = b'K';
    std::fs::write(&file, &broken).expect("the file");
    let dir = folder.path().display().to_string();
    let socket = format!("{dir}/s");
    let args = ["--port", "0", "--unixsocket", &socket, "--save", "", "--dir", &dir, "--appendonly", "yes"];
    let output = run(&args);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(".incr.aof") && text.contains("offset"), "{text}");
    let doctor = run(&["doctor", &dir]);
    let text = said(&doctor);
    assert!(doctor.status.code() == Some(1) && text.contains("damaged at offset"), "{text}");
}

#[test]
fn redis_starts_from_our_log_and_we_from_its() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let expected = [
        ("GET text", "\"a short one!\""),
        ("LRANGE list 0 -1", "[\"a\", \"b\"]"),
        ("GET other", "\"db\""),
        ("EXISTS before after", ":2"),
        ("FCALL young 0", ":2"),
        ("FCALL old 0", "-ERR Function not found"),
    ];
    let write = |client: &mut Client| {
        client.expect("SET text \"a short one\"", "+OK");
        client.expect("APPEND text !", ":12");
        client.expect("RPUSH list a b", ":2");
        client.expect("SETEX gone 100 x", "+OK");
        client.expect("MULTI", "+OK");
        client.expect("SET other db", "+QUEUED");
        client.expect("SADD s 1 2", "+QUEUED");
        client.expect("EXEC", "[+OK, :2]");
        let code = library("old", "1");
        client.request(&[b"FUNCTION", b"LOAD", code.as_bytes()]);
        assert_eq!(client.reply(), "\"old\"");
        change_both(client);
    };
    {
        let mut server = start_in(folder.path(), EVERYSEC);
        write(&mut ready(&server));
        end(&mut server);
    }
    let Some(mut redis) = Server::redis(&["--dir", &dir, "--appendonly", "yes"]) else { return };
    let mut client = redis.client();
    for (line, reply) in expected {
        client.expect(line, reply);
    }
    client.expect("SET by redis", "+OK");
    client.expect("MULTI", "+OK");
    let code = library("theirs", "3");
    client.request(&[b"FUNCTION", b"LOAD", code.as_bytes()]);
    assert_eq!(client.reply(), "+QUEUED");
    client.expect("SET with it", "+QUEUED");
    client.expect("EXEC", "[\"theirs\", +OK]");
    redis.signal("TERM");
    assert_eq!(redis.exit_code(), Some(0));
    let server = start_in(folder.path(), EVERYSEC);
    let mut client = ready(&server);
    for (line, reply) in expected {
        client.expect(line, reply);
    }
    client.expect("GET by", "\"redis\"");
    client.expect("GET with", "\"it\"");
    client.expect("FCALL theirs 0", ":3");
}
