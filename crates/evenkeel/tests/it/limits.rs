//! Memory kept for readers is limited in age and bytes, and a client over a limit learns its name.

use crate::held::{await_figure, figure};
use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use std::time::{Duration, Instant};

const MANY: usize = 2000;

/// A server with two large sets; none if the server under test has no points to hold at.
fn laden() -> Option<Server> {
    if foreign() {
        return None;
    }
    let server = Server::start();
    let mut client = server.client();
    for (key, step) in [("big", 1), ("other", 2)] {
        let words: String = (0..MANY).map(|i| format!(" m{}", i * step)).collect();
        client.call(&format!("SADD {key}{words}"));
    }
    Some(server)
}

#[track_caller]
fn await_reply(client: &mut Client, line: &str, reply: &str) {
    let deadline = Instant::now() + PATIENCE;
    while client.call(line) != reply {
        assert!(Instant::now() < deadline, "{line} does not answer {reply}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

const TOO_OLD: &str = "-ERR snapshot-max-age exceeded: ";

#[test]
fn long_reads_that_never_end_are_ended() {
    let Some(server) = laden() else { return };
    let mut control = server.client();
    control.expect("CONFIG SET snapshot-max-age 1", "+OK");
    // A job and KEYS are held, a script runs for ever: each loses its snapshot and gets an error.
    for (n, (point, line)) in
        [("job-end", "SDIFF big other"), ("stream", "KEYS *"), ("", "EVAL \"while true do end\" 0")]
            .into_iter()
            .enumerate()
    {
        if !point.is_empty() {
            control.expect(&format!("DEBUG POINT {point} HOLD 1"), "+OK");
        }
        let mut reader = server.client();
        reader.send(encode_line(line));
        await_figure(&mut control, "snapshots_revoked_age", |revoked| revoked == n as u64 + 1);
        if !point.is_empty() {
            control.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
        }
        let told = reader.reply();
        assert!(told.starts_with(TOO_OLD), "{line}: {told}");
        // The connection is as good as before.
        reader.expect("SCARD big", &format!(":{MANY}"));
    }
    server.await_words("snapshot-max-age exceeded");
    await_figure(&mut control, "snapshots_open", |open| open == 0);
}

#[test]
fn scripts_that_run_too_long_are_ended_and_did_nothing() {
    let Some(server) = laden() else { return };
    let (mut control, mut client) = (server.client(), server.client());
    control.expect("CONFIG SET script-max-time 50", "+OK");
    for spin in ["while true do end", "while true do pcall(function() while true do end end) end"] {
        let line = format!("EVAL \"redis.call('SET', 'done', 1) {spin}\" 0");
        let told = client.call(&line);
        assert_eq!(told, "-ERR Error running script: script-max-time exceeded: 50 ms", "{line}");
        client.send(format!("MULTI\r\n{line}\r\nEXEC\r\n"));
        client.expect_reply("+OK");
        client.expect_reply("+QUEUED");
        let told = client.reply();
        assert!(told.starts_with("-EXECABORT") && told.contains("script-max-time"), "{told}");
    }
    control.expect("EXISTS done", ":0");
    control.expect("CONFIG SET script-max-time 0", "+OK");
    client.expect("EVAL \"local n = 0 for i = 1, 30000000 do n = n + 1 end return n\" 0", ":30000000");
}

#[test]
fn a_write_that_lost_its_snapshot_did_nothing() {
    let Some(server) = laden() else { return };
    let mut control = server.client();
    control.expect("CONFIG SET snapshot-max-age 1", "+OK");
    control.expect("DEBUG POINT job-end HOLD 1", "+OK");
    let mut writer = server.client();
    writer.send(encode_line("SUNIONSTORE into big other"));
    await_figure(&mut control, "snapshots_revoked_age", |revoked| revoked == 1);
    control.expect("DEBUG POINT job-end OFF", "+OK");
    assert!(writer.reply().starts_with(TOO_OLD));
    writer.expect("EXISTS into", ":0");
    control.expect("CONFIG SET snapshot-max-age 600", "+OK");
    assert!(writer.call("SUNIONSTORE into big other").starts_with(':'));
}

#[test]
fn what_is_kept_for_a_snapshot_is_limited() {
    let Some(server) = laden() else { return };
    let mut control = server.client();
    control.expect("CONFIG SET snapshot-max-retained 1mb", "+OK");
    control.expect("DEBUG POINT job-end HOLD 1", "+OK");
    let mut reader = server.client();
    reader.send(encode_line("SDIFF big other"));
    await_reply(&mut control, "DEBUG POINT job-end", ":1");
    let mut other = server.client();
    let value = "x".repeat(100_000);
    (0..8).for_each(|i| other.expect(&format!("SET key:{i} {value}"), "+OK"));
    // These keys came after the snapshot: nothing is kept of them.
    await_figure(&mut control, "snapshot_retained_bytes", |bytes| bytes > 0 && bytes < 100_000);
    control.expect("DEBUG POINT job-end OFF", "+OK");
    assert!(reader.reply().contains("\"m1\""));
    // These keys exist before, and go.
    control.expect("DEBUG POINT job-end HOLD 1", "+OK");
    (8..16).for_each(|i| other.expect(&format!("SET key:{i} {value}"), "+OK"));
    reader.send(encode_line("SDIFF big other"));
    await_reply(&mut control, "DEBUG POINT job-end", ":1");
    (0..8).for_each(|i| other.expect(&format!("DEL key:{i}"), ":1"));
    await_figure(&mut control, "snapshot_retained_bytes", |bytes| bytes > 800_000);
    assert_eq!(figure(&mut control, "snapshots_revoked_retained"), 0);
    (8..16).for_each(|i| other.expect(&format!("DEL key:{i}"), ":1"));
    await_figure(&mut control, "snapshots_revoked_retained", |revoked| revoked == 1);
    await_figure(&mut control, "snapshot_retained_bytes", |bytes| bytes == 0);
    control.expect("DEBUG POINT job-end OFF", "+OK");
    let told = reader.reply();
    assert!(told.starts_with("-ERR snapshot-max-retained exceeded: "), "{told}");
}

#[test]
fn who_reads_a_removed_value_too_slowly_is_cut_off() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut other) = (server.client(), server.client());
    let value = "x".repeat(1 << 20);
    for key in ["doomed", "shared"] {
        (0..32).for_each(|i| other.expect(&format!("RPUSH {key} {i}{value}"), &format!(":{}", i + 1)));
    }
    control.expect("CONFIG SET snapshot-max-retained 40mb", "+OK");
    // Two clients read a value that will be removed, one a value that stays; none of them reads on.
    let mut readers: Vec<Client> = ["doomed", "doomed", "shared"]
        .iter()
        .map(|key| {
            let mut reader = server.client();
            reader.send(encode_line(&format!("LRANGE {key} 0 -1")));
            reader.skip("*32\r\n".len());
            reader
        })
        .collect();
    other.expect("DEL doomed", ":1");
    await_figure(&mut control, "stream_retained_bytes", |bytes| (32 << 20..40 << 20).contains(&bytes));
    assert_eq!(figure(&mut control, "streams_cut_retained"), 0);
    control.expect("CONFIG SET snapshot-max-retained 20mb", "+OK");
    await_figure(&mut control, "streams_cut_retained", |cut| cut == 2);
    await_figure(&mut control, "stream_retained_bytes", |bytes| bytes == 0);
    server.await_words("snapshot-max-retained exceeded");
    let mut patient = readers.pop().expect("three readers");
    for mut cut in readers {
        assert!(cut.is_closed_within(PATIENCE));
    }
    let element = "$1048577\r\n".len() + 1 + value.len() + 2;
    patient.skip(32 * element + 22);
    patient.expect("PING", "+PONG");
}

/// Replies that are made whole before they are sent count too. A client that does not read its reply is cut
/// off.
#[test]
fn replies_that_were_made_whole_are_limited_too() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut other) = (server.client(), server.client());
    let (element, value) = ("x".repeat(50_000), "x".repeat(6_000));
    (0..600).for_each(|i| other.expect(&format!("RPUSH list {i}{element}"), &format!(":{}", i + 1)));
    (0..5_000).for_each(|i| other.expect(&format!("SET k{i} {value}"), "+OK"));
    let keys: String = (0..5_000).map(|i| format!(" k{i}")).collect();
    control.expect("CONFIG SET rdbcompression no", "+OK");
    let requests = ["DUMP list".to_owned(), format!("MGET{keys}"), "SORT list ALPHA".to_owned()];
    for (n, request) in requests.iter().enumerate() {
        let mut reader = server.client();
        reader.send(encode_line(request));
        reader.skip(1);
        await_figure(&mut control, "stream_retained_bytes", |bytes| bytes > 20 << 20);
        control.expect("CONFIG SET snapshot-max-retained 10mb", "+OK");
        await_figure(&mut control, "streams_cut_retained", |cut| cut == n as u64 + 1);
        assert!(reader.is_closed_within(PATIENCE), "{request}");
        control.expect("CONFIG SET snapshot-max-retained 1gb", "+OK");
        await_figure(&mut control, "stream_retained_bytes", |bytes| bytes == 0);
    }
}

#[test]
fn who_comes_after_the_last_snapshot_waits_and_is_told_for_whom() {
    let Some(server) = laden() else { return };
    let mut control = server.client();
    control.expect("CONFIG SET slowlog-log-slower-than 200000", "+OK");
    control.expect("DEBUG POINT job-end HOLD 64", "+OK");
    let mut first: Vec<Client> = (0..64).map(|_| server.client()).collect();
    for client in &mut first {
        client.send(encode_line("SDIFF big other"));
    }
    await_reply(&mut control, "DEBUG POINT job-end", ":64");
    let mut late: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for (client, line) in late.iter_mut().zip(["SDIFF big other", "KEYS *", "EVAL \"while true do end\" 0"]) {
        client.send(encode_line(line));
    }
    await_figure(&mut control, "snapshots_waiting", |waiting| waiting == 3);
    // Short work finds a place.
    let mut other = server.client();
    other.expect("EVAL \"return redis.call('SCARD', KEYS[1])\" 1 big", &format!(":{MANY}"));
    other.expect("SET a 1", "+OK");
    std::thread::sleep(Duration::from_millis(250));
    control.expect("SLOWLOG RESET", "+OK");
    control.expect("DEBUG POINT job-end OFF", "+OK");
    first.iter_mut().for_each(|client| assert!(client.reply().contains("\"m1\"")));
    assert!(late[0].reply().contains("\"m1\""));
    assert_eq!(late[1].reply().matches(", ").count(), 2);
    await_reply(&mut control, "SCRIPT KILL", "+OK");
    assert!(late[2].reply().contains("killed by user"));
    for client in &mut late {
        let id = client.call("CLIENT ID");
        let why = control.call(&format!("EVENKEEL WHY {}", id.trim_start_matches(':')));
        assert!(why.contains("waited-for-snapshot") && why.to_lowercase().contains("sdiff"), "{why}");
    }
    await_figure(&mut control, "snapshots_waiting", |waiting| waiting == 0);
    // A command is slow that was answered late, however short its run was.
    let log = control.call("SLOWLOG WHY -1");
    assert!(log.contains("us for a snapshot") && log.contains("KEYS"), "{log}");
    assert!(control.call("EVENKEEL PHASES").contains("waited-for-snapshot"));
}

#[test]
fn a_gigabyte_nobody_reads_is_little_memory_even_when_its_value_goes() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut reader, mut other) = (server.client(), server.client());
    let value = "x".repeat(1 << 20);
    (0..64).for_each(|_| {
        other.call_bytes(&[b"RPUSH", b"list", value.as_bytes()]);
    });
    let before = server.resident_bytes();
    reader.send("LRANGE list 0 -1\r\n".repeat(16));
    reader.skip("*64\r\n".len());
    // Overwritten three times, read on once: only the value that is being read stays.
    for _ in 0..3 {
        other.expect("DEL list", ":1");
        (0..64).for_each(|_| {
            other.call_bytes(&[b"RPUSH", b"list", value.as_bytes()]);
        });
    }
    other.expect("DEL list", ":1");
    await_figure(&mut other, "reclaim_pending_bytes", |bytes| bytes == 0);
    let after = server.resident_bytes();
    assert!(after < before + (96 << 20), "{before} bytes became {after}");
    let element = "$1048576\r\n".len() + value.len() + 2;
    reader.skip(64 * element);
    (1..16).for_each(|_| reader.expect_reply("[]"));
    reader.expect("PING", "+PONG");
}

/// Publishes until so many bytes wait for the subscriber.
fn fill(server: &Server, bytes: u64) {
    let mut publisher = server.client();
    let message = "x".repeat(1 << 20);
    let waiting = |publisher: &mut Client| {
        let list = publisher.call("CLIENT LIST TYPE pubsub");
        let at = list.find(" obl=").map_or(0, |at| {
            let digits = list[at + 5..].bytes().take_while(u8::is_ascii_digit).count();
            list[at + 5..][..digits].parse().expect("a number")
        });
        (list.contains(" obl="), at)
    };
    for _ in 0..100 {
        publisher.call_bytes(&[b"PUBLISH", b"news", message.as_bytes()]);
        let (there, queued) = waiting(&mut publisher);
        if !there || queued > bytes {
            return;
        }
    }
    panic!("100 MB were published, and nothing waits");
}

#[test]
fn a_subscriber_over_the_hard_limit_is_cut_off() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut subscriber = server.client();
    server.client().expect("CONFIG SET client-output-buffer-limit \"pubsub 8mb 0 0\"", "+OK");
    assert!(subscriber.call("SUBSCRIBE news").starts_with('['));
    fill(&server, 8 << 20);
    assert!(subscriber.is_closed_within(PATIENCE));
    let mut control = server.client();
    await_figure(&mut control, "client_output_buffer_limit_disconnections", |cut| cut == 1);
    server.await_words("client-output-buffer-limit");
}

#[test]
fn a_subscriber_over_the_soft_limit_is_cut_off_when_its_time_is_up() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut patient, mut cut) = (server.client(), server.client());
    let mut control = server.client();
    control.expect("CONFIG SET client-output-buffer-limit \"pubsub 0 1mb 600\"", "+OK");
    assert!(patient.call("SUBSCRIBE news").starts_with('['));
    fill(&server, 1 << 20);
    // Its time is not up, and nothing more is published; then its time is up.
    assert_eq!(figure(&mut control, "client_output_buffer_limit_disconnections"), 0);
    assert!(control.call("CLIENT LIST TYPE pubsub").contains(" obl="));
    assert!(cut.call("SUBSCRIBE nothing").starts_with('['));
    control.expect("CONFIG SET client-output-buffer-limit \"pubsub 0 1mb 1\"", "+OK");
    await_figure(&mut control, "client_output_buffer_limit_disconnections", |cut| cut == 1);
    assert!(patient.is_closed_within(PATIENCE));
    cut.expect("PING", "[\"pong\", \"\"]");
}

#[test]
fn a_large_reply_nobody_reads_counts_to_the_normal_limit() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut reader) = (server.client(), server.client());
    control.expect("CONFIG SET client-output-buffer-limit \"normal 16mb 0 0\"", "+OK");
    // One reply that does not stream: 64 MB at once.
    reader.send(encode_line("EVAL \"return string.rep('x', 67108864)\" 0"));
    await_figure(&mut control, "client_output_buffer_limit_disconnections", |cut| cut == 1);
    assert!(reader.is_closed_within(PATIENCE));
    // A streamed reply waits in its value, not in the buffer.
    control.expect("SETBIT wide 536870911 1", ":0");
    let mut reader = server.client();
    reader.send("GET wide\r\n");
    reader.skip("$67108864\r\n".len() + (64 << 20) + 2);
    reader.expect("PING", "+PONG");
}

#[test]
fn who_gives_back_more_than_can_be_freed_waits_and_others_do_not() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut attacker, mut other) = (server.client(), server.client(), server.client());
    let value = "x".repeat(1 << 20);
    (0..30).for_each(|i| other.expect(&format!("SET big:{i} {value}"), "+OK"));
    control.expect("CONFIG SET reclaim-max-pending 4mb", "+OK");
    control.expect("DEBUG POINT reclaim HOLD 1", "+OK");
    await_figure(&mut control, "reclaim_max_pending_bytes", |bytes| bytes == 4 << 20);
    for i in 0..30 {
        attacker.send(format!("DEL big:{i}\r\n"));
    }
    await_figure(&mut control, "reclaim_delays", |delays| delays > 0);
    let pending = figure(&mut control, "reclaim_pending_bytes");
    assert!((4 << 20..7 << 20).contains(&pending), "{pending} bytes wait");
    // Other clients write, and remove small values, and even a large one once.
    other.expect("SET a 1", "+OK");
    other.expect("INCR a", ":2");
    other.expect("DEL a", ":1");
    other.expect("SET big:29 small", "+OK");
    control.expect("EVAL \"return redis.call('SET', KEYS[1], 'x')\" 1 b", "+OK");
    assert!(server.client().call("DEL big:28") == ":1");
    // It still waits, and no more than that waits to be freed.
    let pending = figure(&mut control, "reclaim_pending_bytes");
    assert!(pending < 10 << 20, "{pending} bytes wait");
    attacker.expect_reply(":1");
    control.expect("EXISTS big:27", ":1");
    control.expect("DEBUG POINT reclaim OFF", "+OK");
    (1..28).for_each(|_| attacker.expect_reply(":1"));
    attacker.expect_reply(":0");
    attacker.expect_reply(":1");
    await_figure(&mut control, "reclaim_pending_bytes", |bytes| bytes == 0);
    assert!(control.call("EVENKEEL WAITS").contains("\"reclaim\""));
}

/// Words that are hashed, compared and shown on a loop are bounded; values and messages are not.
#[test]
fn keys_names_and_options_are_not_megabytes() {
    let server = Server::start();
    let mut client = server.client();
    let (long, word) = (vec![b'k'; 300 << 10], vec![b'w'; 200 << 10]);
    if crate::support::foreign() {
        return;
    }
    let key = "-ERR a key may have at most 262144 bytes";
    assert_eq!(client.call_bytes(&[b"SET", &long, b"v"]), key);
    assert_eq!(client.call_bytes(&[b"EVAL", b"return 1", b"1", &long]), key);
    assert_eq!(client.call_bytes(&[b"SET", &word, b"v"]), "+OK");
    assert_eq!(client.call_bytes(&[b"GET", &word]), "\"v\"");
    let wide = "-ERR a word of this command may have at most 65536 bytes";
    assert_eq!(client.call_bytes(&[b"CLIENT", b"SETNAME", &word]), wide);
    let many: Vec<&[u8]> =
        [b"CONFIG".as_slice(), b"GET"].into_iter().chain((0..30_000).map(|_| b"port".as_slice())).collect();
    assert_eq!(client.call_bytes(&many), "-ERR this command may have at most 10000 words");
    client.expect("MULTI", "+OK");
    assert_eq!(client.call_bytes(&[b"GET", &long]), key);
    assert!(client.call("EXEC").starts_with("-EXECABORT"));
    let echoed = format!("\"{}\"", "k".repeat(long.len()));
    assert_eq!(client.call_bytes(&[b"ECHO", &long]), echoed);
    assert_eq!(client.call_bytes(&[b"PING", &long]), echoed);
    assert_eq!(client.call_bytes(&[b"PUBLISH", b"c", &long]), ":0");
    client.expect("PING", "+PONG");
}

#[test]
fn scripts_with_very_many_words_and_large_strings_answer_as_others_do() {
    let server = Server::start();
    let mut client = server.client();
    for count in [10, 1_000, 100_000] {
        let words: Vec<&[u8]> = [b"EVAL".as_slice(), b"return {#ARGV, ARGV[#ARGV]}", b"0"]
            .into_iter()
            .chain((0..count).map(|_| b"w".as_slice()))
            .collect();
        assert_eq!(client.call_bytes(&words), format!("[:{count}, \"w\"]"));
    }
    client.expect("EVAL \"return #string.rep('x', 50000000)\" 0", ":50000000");
    client.expect("EVAL \"return #cjson.decode('[' .. string.rep('[],', 100000) .. '1]')\" 0", ":100001");
    client
        .expect("EVAL \"local t = {} for i = 1, 3000 do table.insert(t, 1, i) end return t[1]\" 0", ":3000");
}
