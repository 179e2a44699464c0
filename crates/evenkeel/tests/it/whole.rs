//! Commands about the keyspace as a whole, inside scripts, and commands of very many words.

use crate::support::{Client, Server, encode};

/// Makes `count` keys `k0 …` by one MSET.
fn fill(client: &mut Client, count: usize) {
    let words: Vec<String> = (0..count).flat_map(|i| [format!("k{i}"), i.to_string()]).collect();
    let mut args: Vec<&[u8]> = vec![b"MSET"];
    args.extend(words.iter().map(|word| word.as_bytes()));
    client.send(encode(&args));
    client.expect_reply("+OK");
}

/// Emptying an empty database touches no watched key; the loss of a watched key is noticed.
#[test]
fn who_watches_what_goes_with_its_database_notices() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let queue: Vec<String> = (0..600).map(|i| format!("SET q:{i} x")).collect();
    for flush in ["FLUSHALL", "FLUSHDB", "EVAL \"return redis.call('FLUSHALL')\" 0"] {
        for (watched, again, count, done) in [
            ("there", "PING", 1, false),
            ("there", "SET there again", 1, false),
            ("there", "PING", 600, false),
            ("there", "SET there again", 600, false),
            ("missing", "PING", 1, true),
            ("missing", "PING", 600, true),
            ("missing", "SET missing x", 600, false),
        ] {
            other.expect("SET there x", "+OK");
            client.expect(&format!("WATCH {watched}"), "+OK");
            assert!(!other.call(flush).starts_with('-'));
            assert!(!other.call(again).starts_with('-'));
            client.expect("MULTI", "+OK");
            queue.iter().take(count).for_each(|line| client.expect(line, "+QUEUED"));
            let reply = client.call("EXEC");
            assert_eq!(reply != "(nil array)", done, "{flush}, {watched}, {again}, {count}: {reply}");
            other.call("FLUSHALL");
        }
    }
}

#[test]
fn a_script_looks_at_the_whole_keyspace_and_changes_it() {
    let server = Server::start();
    let mut client = server.client();
    // Few keys are handled on the loop, many on a thread.
    for count in [40, 3_000] {
        client.expect("FLUSHALL", "+OK");
        fill(&mut client, count);
        client.expect("EVAL \"return #redis.call('KEYS', '*')\" 0", &format!(":{count}"));
        client.expect("EVAL \"return redis.call('DBSIZE')\" 0", &format!(":{count}"));
        client.expect("EVAL \"return redis.call('KEYS', 'k7')\" 0", "[\"k7\"]");
        client.expect("EVAL \"return redis.call('EXISTS', redis.call('RANDOMKEY'))\" 0", ":1");
        let own = "EVAL \"redis.call('SET', 'new', 1) redis.call('DEL', 'k1', 'k2') return {#redis.call('KEYS', '*'), \
                   redis.call('DBSIZE')}\" 0";
        client.expect(own, &format!("[:{0}, :{0}]", count - 1));
        let walk = "EVAL \"local c, n = '0', 0 repeat local r = redis.call('SCAN', c, 'COUNT', 50, 'TYPE', 'string') \
                    c = r[1] n = n + #r[2] until c == '0' return n\" 0";
        client.expect(walk, &format!(":{}", count - 1));
        let sweep = "EVAL \"for _, k in ipairs(redis.call('KEYS', 'k*')) do redis.call('DEL', k) end return \
                     redis.call('DBSIZE')\" 0";
        client.expect(sweep, ":1");
        client.expect("KEYS *", "[\"new\"]");
    }
}

#[test]
fn a_script_empties_a_database_and_fills_it_again() {
    let server = Server::start();
    let mut client = server.client();
    fill(&mut client, 1_000);
    client.expect("SELECT 1", "+OK");
    client.expect("SET other 1", "+OK");
    client.expect("SELECT 0", "+OK");
    let script = "EVAL \"redis.call('FLUSHDB') local n = redis.call('DBSIZE') redis.call('SET', 'k5', 'again') return \
                  {n, redis.call('DBSIZE'), redis.call('EXISTS', 'k4'), redis.call('GET', 'k5')}\" 0";
    client.expect(script, "[:0, :1, :0, \"again\"]");
    client.expect("KEYS *", "[\"k5\"]");
    client.expect("SELECT 1", "+OK");
    client.expect("GET other", "\"1\"");
    client.expect("EVAL \"redis.call('FLUSHALL') return redis.call('KEYS', '*')\" 0", "[]");
    client.expect("DBSIZE", ":0");
}

#[test]
fn commands_of_very_many_words_do_what_short_ones_do() {
    let server = Server::start();
    let mut client = server.client();
    fill(&mut client, 5_000);
    client.expect("DBSIZE", ":5000");
    let names: Vec<String> = (0..6_000).map(|i| format!("k{i}")).collect();
    let with = |command: &'static [u8]| {
        let mut args = vec![command];
        args.extend(names.iter().map(|name| name.as_bytes()));
        encode(&args)
    };
    client.send(with(b"EXISTS"));
    client.expect_reply(":5000");
    client.send(with(b"MGET"));
    let expected: Vec<String> =
        (0..6_000).map(|i| if i < 5_000 { format!("\"{i}\"") } else { "(nil)".into() }).collect();
    client.expect_reply(&format!("[{}]", expected.join(", ")));
    // A large COUNT is answered whole, in slices.
    let mut walked = 0;
    let mut cursor = String::from("0");
    loop {
        let reply = client.call(&format!("SCAN {cursor} COUNT 2500 TYPE string"));
        walked += reply.matches("\"k").count();
        cursor = reply[2..].split('"').next().unwrap_or_default().into();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(walked, 5_000);
    client.expect("SCAN 0 COUNT 100000 TYPE list", "[\"0\", []]");
    client.send(with(b"DEL"));
    client.expect_reply(":5000");
    client.expect("DBSIZE", ":0");
    // The last of several values for one key counts; a wrong number of words is an error.
    let mut args: Vec<&[u8]> = vec![b"MSET"];
    args.extend((0..999).flat_map(|i| [&b"same"[..], if i == 998 { b"last" } else { b"x" }]));
    client.send(encode(&args));
    client.expect_reply("+OK");
    client.expect("GET same", "\"last\"");
    args.push(b"odd");
    client.send(encode(&args));
    client.expect_reply("-ERR wrong number of arguments for 'mset' command");
}

#[test]
fn a_long_transaction_is_run_whole_and_its_watched_keys_count() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    for plain in [true, false] {
        client.expect("FLUSHALL", "+OK");
        client.expect("MULTI", "+OK");
        for i in 0..1_000 {
            client.expect(&format!("SET k{i} {i}"), "+QUEUED");
        }
        if !plain {
            client.expect("INCR k7", "+QUEUED");
            client.expect("LPUSH k7 x", "+QUEUED");
        }
        client.send(encode(&[b"EXEC"]));
        let reply = client.reply();
        assert!(reply.starts_with("[+OK, +OK"), "{}", &reply[..40]);
        assert_eq!(reply.contains(", :8, -WRONGTYPE"), !plain);
        client.expect("DBSIZE", ":1000");
        client.expect("WATCH k3", "+OK");
        client.expect("MULTI", "+OK");
        for i in 0..500 {
            client.expect(&format!("SET k{i} again"), "+QUEUED");
        }
        other.expect("SET k3 other", "+OK");
        client.expect("EXEC", "(nil array)");
        client.expect("MGET k2 k3", "[\"2\", \"other\"]");
    }
}

#[test]
fn a_watched_key_that_expires_ends_a_transaction_and_one_that_had_does_not() {
    let server = Server::start_with(&["--hz", "1"]);
    let mut client = server.client();
    client.expect("DEBUG SET-ACTIVE-EXPIRE 0", "+OK");
    // A few commands run at once, many as a job.
    for count in [1, 500] {
        let transaction = |client: &mut Client| {
            client.expect("MULTI", "+OK");
            (0..count).for_each(|i| client.expect(&format!("SET k{i} 1"), "+QUEUED"));
            client.send(encode(&[b"EXEC"]));
            client.reply()
        };
        let mut ms = 20;
        loop {
            client.expect(&format!("SET brief 1 PX {ms}"), "+OK");
            client.expect("WATCH brief", "+OK");
            // It existed, unless this machine took longer than that.
            if client.call("EXISTS brief") == ":1" {
                break;
            }
            client.expect("UNWATCH", "+OK");
            ms *= 2;
        }
        std::thread::sleep(std::time::Duration::from_millis(ms + 5));
        assert_eq!(transaction(&mut client), "(nil array)");

        client.expect(&format!("SET brief 1 PX {ms}"), "+OK");
        std::thread::sleep(std::time::Duration::from_millis(ms + 5));
        client.expect("WATCH brief", "+OK");
        client.expect("EXISTS brief", ":0");
        assert!(transaction(&mut client).starts_with("[+OK"));
    }
}

/// An exchange does not look up watching clients; EXEC compares.
#[test]
fn who_watches_a_database_that_is_exchanged_notices() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let queue: Vec<String> = (0..600).map(|i| format!("SET q:{i} x")).collect();
    for swap in ["SWAPDB 0 1", "SWAPDB 1 0", "EVAL \"return redis.call('SWAPDB', 0, 1)\" 0"] {
        for (here, there, count, done) in [
            (true, true, 1, false),
            (true, false, 1, false),
            (false, true, 1, false),
            (false, false, 1, true),
            (true, false, 600, false),
            (false, true, 600, false),
            (false, false, 600, true),
        ] {
            other.expect("FLUSHALL", "+OK");
            for (db, is_there) in [(1, there), (0, here)] {
                other.expect(&format!("SELECT {db}"), "+OK");
                other.call(if is_there { "SET k x" } else { "PING" });
            }
            client.expect("WATCH k", "+OK");
            other.expect(swap, "+OK");
            client.expect("MULTI", "+OK");
            queue.iter().take(count).for_each(|line| client.expect(line, "+QUEUED"));
            let reply = client.call("EXEC");
            assert_eq!(reply != "(nil array)", done, "{swap}, {here}, {there}, {count}: {reply}");
        }
    }
}
