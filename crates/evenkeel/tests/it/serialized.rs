//! DUMP and RESTORE through sockets: large values, transactions, scripts.

use crate::support::{Client, Server};

/// Makes a list of `n` elements, some of them numbers.
fn fill(client: &mut Client, key: &str, n: usize) {
    for from in (0..n).step_by(1_000) {
        let words: Vec<String> =
            (from..from + 1_000).map(|i| format!("{}{i}", ["", "word"][i % 2])).collect();
        client.call(&format!("RPUSH {key} {}", words.join(" ")));
    }
}

/// The payload of a key.
fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    client.request(&[b"DUMP", key.as_bytes()]);
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n") {
        header.extend(client.raw(1));
    }
    let len = std::str::from_utf8(&header[1..header.len() - 2]).expect("digits").parse().expect("a length");
    let payload = client.raw(len);
    client.raw(2);
    payload
}

#[test]
fn a_long_list_is_written_and_read_aside_while_others_are_served() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    fill(&mut client, "long", 200_000);
    let payload = dump(&mut client, "long");
    assert!(payload.len() > 1_000_000);
    client.request(&[b"RESTORE", b"copy", b"0", &payload]);
    for i in 0..100 {
        other.expect(&format!("SET other {i}"), "+OK");
    }
    assert_eq!(client.reply(), "+OK");
    client.expect("LLEN copy", ":200000");
    client.expect("LRANGE copy 0 3", r#"["0", "word1", "2", "word3"]"#);
    client.expect("LRANGE copy -2 -1", r#"["199998", "word199999"]"#);
    // A broken payload is refused, whichever thread reads it.
    let mut broken = payload.clone();
    broken[500_000] ^= 1;
    client.request(&[b"RESTORE", b"broken", b"0", &broken]);
    assert_eq!(client.reply(), "-ERR DUMP payload version or checksum are wrong");
    client.expect("EXISTS broken", ":0");
}

#[test]
fn values_are_copied_in_transactions_and_scripts() {
    let server = Server::start();
    let mut client = server.client();
    fill(&mut client, "list", 5_000);
    client.expect("HSET hash f v g 1", ":2");
    let script = "for i = 1, #KEYS do redis.call('RESTORE', KEYS[i]..':copy', 0, redis.call('DUMP', KEYS[i])) end \
                  return redis.call('LLEN', KEYS[1]..':copy')";
    client.request(&[b"EVAL", script.as_bytes(), b"2", b"list", b"hash"]);
    assert_eq!(client.reply(), ":5000");
    client.expect("HMGET hash:copy f g", r#"["v", "1"]"#);
    let payload = dump(&mut client, "list");
    client.expect("MULTI", "+OK");
    client.request(&[b"RESTORE", b"again", b"100000", &payload]);
    assert_eq!(client.reply(), "+QUEUED");
    client.expect("LLEN again", "+QUEUED");
    client.expect("EXEC", "[+OK, :5000]");
    client.request(&[b"RESTORE", b"again", b"0", &payload]);
    assert_eq!(client.reply(), "-BUSYKEY Target key name already exists.");
}

/// MRESTORE of `count` copies of a payload, and of a list at the end.
fn restore_many(client: &mut Client, count: usize, payload: &[u8], last: &[u8]) {
    let (number, keys) =
        ((count + 1).to_string(), (0..count).map(|i| format!("many:{i}")).collect::<Vec<_>>());
    let mut words: Vec<&[u8]> = vec![b"MRESTORE", number.as_bytes()];
    keys.iter().for_each(|key| words.extend([key.as_bytes(), b"0", payload]));
    words.extend([&b"last"[..], b"0", last, b"REPLACE"]);
    client.request(&words);
}

#[test]
fn many_are_restored_at_once_however_long_that_takes() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.expect("HSET hash f v g 1", ":2");
    fill(&mut client, "list", 20_000);
    let (hash, list) = (dump(&mut client, "hash"), dump(&mut client, "list"));
    for count in [3, 2_000] {
        // By itself, in a transaction, and by a script.
        for way in ["", "MULTI", "EVAL"] {
            let all = |ok: &str| format!("[{}]", vec![ok; count + 1].join(", "));
            match way {
                "" => {
                    restore_many(&mut client, count, &hash, &list);
                    (0..20).for_each(|i| other.expect(&format!("SET other {i}"), "+OK"));
                    assert_eq!(client.reply(), all("+OK"));
                }
                "MULTI" => {
                    client.expect("MULTI", "+OK");
                    restore_many(&mut client, count, &hash, &list);
                    assert_eq!(client.reply(), "+QUEUED");
                    client.expect("LLEN last", "+QUEUED");
                    client.expect("EXEC", &format!("[{}, :20000]", all("+OK")));
                }
                _ => {
                    let script = "local words = {} for i = 1, ARGV[1] do \
                                  for _, word in ipairs({'many:' .. i - 1, 0, ARGV[2]}) do words[#words + 1] = word end end \
                                  return #redis.call('MRESTORE', ARGV[1], unpack(words))";
                    let few = count.min(1_000).to_string();
                    client.request(&[b"EVAL", script.as_bytes(), b"0", few.as_bytes(), &hash]);
                    assert_eq!(client.reply(), format!(":{few}"));
                }
            }
            client.expect(&format!("HMGET many:{} f g", count.min(1_000) - 1), r#"["v", "1"]"#);
            client.expect(&format!("EXISTS many:{count}"), ":0");
            if way != "EVAL" {
                client.expect("LINDEX last 19999", "\"word19999\"");
            }
            client.expect("FLUSHALL", "+OK");
        }
    }
}

#[test]
fn strings_are_compressed_unless_told_otherwise() {
    let server = Server::start();
    let mut client = server.client();
    let text = "all work and no play ".repeat(10_000);
    client.request(&[b"SET", b"text", text.as_bytes()]);
    client.expect_reply("+OK");
    // Nothing but zeros, of which a few are stored.
    client.expect("SETBIT bits 100000000 1", ":0");
    client.expect("SET short aaaaaaaaaaaaaaaaaaaa", "+OK");
    for (compression, text_len, bits_len) in
        [("yes", 0..5_000, 0..200_000), ("no", 210_000..210_030, 12_500_001..12_500_030)]
    {
        client.expect(&format!("CONFIG SET rdbcompression {compression}"), "+OK");
        for (key, len) in [("text", text_len), ("bits", bits_len), ("short", 32..33)] {
            let payload = dump(&mut client, key);
            assert!(len.contains(&payload.len()), "{key}: {} bytes", payload.len());
            client.request(&[b"RESTORE", b"copy", b"0", &payload, b"REPLACE"]);
            client.expect_reply("+OK");
            let read = format!("return redis.call('GET', '{key}') == redis.call('GET', 'copy')");
            client.request(&[b"EVAL", read.as_bytes(), b"2", key.as_bytes(), b"copy"]);
            client.expect_reply(":1");
        }
    }
}

/// Collections of long elements: a real Redis reads those written here, and the other way round, compressed
/// or not.
#[test]
fn elements_are_compressed_as_others_read_them() {
    let Some(redis) = Server::redis(&[]) else { return };
    let server = Server::start();
    let (mut ours, mut theirs) = (server.client(), redis.client());
    let text = |i: usize| format!("\"{i} {}\"", "all work and no play ".repeat(40));
    let line = |command: &str, words: &dyn Fn(usize) -> String| {
        (0..300).fold(command.to_owned(), |line, i| line + " " + &words(i))
    };
    let fills = [
        (line("RPUSH list", &text), "LRANGE list 0 -1"),
        (line("SADD set", &text), "SORT set ALPHA"),
        (line("ZADD zset", &|i| format!("{i} {}", text(i))), "ZRANGE zset 0 -1 WITHSCORES"),
        (line("HSET hash", &|i| format!("{i} {}", text(i))), "HMGET hash 0 1 77 299"),
    ];
    for (fill, read) in &fills {
        let key = read.split(' ').nth(1).expect("a key");
        ours.expect(fill, ":300");
        let expected = ours.call(read);
        ours.expect("CONFIG SET rdbcompression no", "+OK");
        let plain = dump(&mut ours, key);
        ours.expect("CONFIG SET rdbcompression yes", "+OK");
        let compressed = dump(&mut ours, key);
        assert!(
            plain.len() > 250_000 && compressed.len() < 25_000,
            "{key}: {} {}",
            plain.len(),
            compressed.len()
        );
        for payload in [plain, compressed] {
            theirs.request(&[b"RESTORE", key.as_bytes(), b"0", &payload, b"REPLACE"]);
            theirs.expect_reply("+OK");
            theirs.expect(read, &expected);
        }
        let payload = dump(&mut theirs, key);
        ours.request(&[b"RESTORE", key.as_bytes(), b"0", &payload, b"REPLACE"]);
        ours.expect_reply("+OK");
        ours.expect(read, &expected);
    }
}
