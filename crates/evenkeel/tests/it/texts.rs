//! Scripts with long texts, very many scripts, and libraries that take long to load. Their cost is paid on
//! threads, and they answer as short ones do.

use crate::held::{Hold, eventually, laden, others_are_served};
use crate::support::{Client, Server, foreign};

/// A script of `bytes` bytes that returns its key, its argument and a number.
fn script(bytes: usize, n: usize) -> String {
    let begin = "local x = 1\n";
    let line = "if x == 0 then x = {KEYS[1], 'abc'} end\n";
    let lines = line.repeat(bytes / line.len() + 1);
    format!("{begin}{lines}return {{KEYS[1], ARGV[1], {n}, redis.call('INCR', 'ran')}}")
}

fn eval(client: &mut Client, command: &str, text: &str) -> String {
    client.call_bytes(&[command.as_bytes(), text.as_bytes(), b"1", b"k", b"v"])
}

const SIZES: [usize; 5] = [100, 1_900, 5_000, 40_000, 300_000];

#[test]
fn scripts_of_all_sizes_answer_alike() {
    let server = Server::start();
    let mut client = server.client();
    let mut ran = 0;
    for (n, size) in SIZES.into_iter().enumerate() {
        let text = script(size, n);
        let mut check = |reply: String| {
            ran += 1;
            assert_eq!(reply, format!("[\"k\", \"v\", :{n}, :{ran}]"), "{size} bytes");
        };
        (0..3).for_each(|_| check(eval(&mut client, "EVAL", &text)));
        let sha = client.call_bytes(&[b"SCRIPT", b"LOAD", text.as_bytes()]).replace('"', "");
        check(eval(&mut client, "EVALSHA", &sha));
        check(eval(&mut server.client(), "EVALSHA", &sha));
        client.expect("MULTI", "+OK");
        assert_eq!(eval(&mut client, "EVALSHA", &sha), "+QUEUED");
        assert_eq!(eval(&mut client, "EVAL", &text), "+QUEUED");
        client.expect(
            "EXEC",
            &format!("[[\"k\", \"v\", :{n}, :{}], [\"k\", \"v\", :{n}, :{}]]", ran + 1, ran + 2),
        );
        ran += 2;
        let shown = client.call(&format!("SCRIPT EXISTS {sha}"));
        assert_eq!(shown, "[:1]");
    }
}

/// A transaction whose scripts are new to the server.
#[test]
fn long_scripts_are_loaded_within_transactions() {
    let server = Server::start();
    let mut client = server.client();
    for (n, size) in SIZES.into_iter().enumerate() {
        let text = script(size, 1_000 + n);
        client.expect("DEL ran", &format!(":{}", i32::from(n > 0)));
        client.expect("MULTI", "+OK");
        assert_eq!(client.call_bytes(&[b"SCRIPT", b"LOAD", text.as_bytes()]), "+QUEUED");
        assert_eq!(eval(&mut client, "EVAL", &text), "+QUEUED");
        let replies = client.call("EXEC");
        assert!(replies.ends_with(&format!("[\"k\", \"v\", :{}, :1]]", 1_000 + n)), "{size} bytes");
    }
}

#[test]
fn errors_in_long_scripts_are_those_of_short_ones() {
    let server = Server::start();
    let mut client = server.client();
    for size in SIZES {
        let pad = "\n".repeat(size);
        let error = eval(&mut client, "EVAL", &format!("{pad}return ="));
        let line = size + 1;
        let compiling = "-ERR Error compiling script (new function): user_script:";
        assert_eq!(error, format!("{compiling}{line}: unexpected symbol near '='"));
        assert!(
            eval(&mut client, "EVAL", &format!("{pad}return {{}} .. 1")).starts_with("-ERR user_script:")
        );
        let writes = format!("#!lua\n{pad}return redis.call('SET', KEYS[1], 1)");
        let refused = "-ERR Can not execute a script with write flag using *_ro command.";
        assert_eq!(eval(&mut client, "EVAL_RO", &writes), refused);
        let reads = format!("#!lua flags=no-writes\n{pad}return redis.call('SET', KEYS[1], 1)");
        let refused = eval(&mut client, "EVAL", &reads);
        assert!(
            refused.starts_with("-ERR Write commands are not allowed from read-only scripts."),
            "{refused}"
        );
        let plain = format!("{pad}return redis.call('SET', KEYS[1], 1)");
        let refused = eval(&mut client, "EVAL_RO", &plain);
        assert!(
            refused.starts_with("-ERR Write commands are not allowed from read-only scripts."),
            "{refused}"
        );
        client.expect("EXISTS k", ":0");
    }
    let text = script(5_000, 0);
    let many = client.call_bytes(&[b"EVAL", text.as_bytes(), b"5", b"k"]);
    assert_eq!(many, "-ERR Number of keys can't be greater than number of args");
}

/// Its thread compiles it and runs it; it can be killed there.
#[test]
fn a_long_text_is_no_work_of_a_loop() {
    let Some(server) = laden() else { return };
    let (mut client, mut other) = (server.client(), server.client());
    let text = script(5_000, 7);
    let words: [&[u8]; 5] = [b"EVAL", text.as_bytes(), b"1", b"k", b"v"];
    let mut hold = Hold::first_at(&server, "script-start");
    client.request(&words);
    hold.await_victim();
    others_are_served(&server);
    hold.release();
    client.expect_reply("[\"k\", \"v\", :7, :1]");
    // Now a loop takes over the compiled script.
    assert_eq!(eval(&mut other, "EVAL", &text), "[\"k\", \"v\", :7, :2]");
    let endless = format!("{}while true do end", "\n".repeat(5_000));
    client.request(&[b"EVAL", endless.as_bytes(), b"0"]);
    eventually(&mut other, "SCRIPT KILL", "+OK");
    assert!(client.reply().contains("Script killed by user"));
}

/// As in Redis from 7.4 on: scripts that came only by EVAL are forgotten when there are many.
#[test]
fn of_many_scripts_those_that_were_loaded_stay() {
    let server = Server::start();
    let mut client = server.client();
    if foreign() {
        return;
    }
    let loaded = client.call("SCRIPT LOAD \"return 'loaded'\"").replace('"', "");
    let first = client.call("EVAL \"return redis.sha1hex('return 0')\" 0").replace('"', "");
    for i in 0..700 {
        client.expect(&format!("EVAL \"return {i}\" 0"), &format!(":{i}"));
    }
    client.expect(&format!("SCRIPT EXISTS {loaded} {first}"), "[:1, :0]");
    let info = client.call("INFO everything");
    assert!(info.contains("number_of_cached_scripts:501"), "{info}");
    assert!(info.contains("evicted_scripts:201"), "{info}");
    // It is known again when it is used again.
    client.expect("EVAL \"return 0\" 0", ":0");
    client.expect(&format!("EVALSHA {first} 0"), ":0");
    client.expect("SCRIPT FLUSH", "+OK");
    client.expect(&format!("SCRIPT EXISTS {loaded} {first}"), "[:0, :0]");
    client.expect("EVAL \"return 0\" 0", ":0");
    client.expect(&format!("EVALSHA {first} 0"), ":0");
}

/// Functions of a library that takes long to load are called like others, again and again.
#[test]
fn functions_of_a_heavy_library_are_called_like_others() {
    let server = Server::start();
    let mut client = server.client();
    let heavy = "#!lua name=heavy\nlocal x = 0 for i = 1, 300000 do x = x + i end \
                 redis.register_function('heavy', function(keys) return redis.call('INCR', keys[1]) end)";
    let light = "#!lua name=light\n\
                 redis.register_function('light', function(keys) return redis.call('INCR', keys[1]) end)";
    for code in [heavy, light] {
        assert!(client.call_bytes(&[b"FUNCTION", b"LOAD", code.as_bytes()]).starts_with('"'));
    }
    for i in 0..20 {
        client.expect("FCALL heavy 1 k", &format!(":{}", 4 * i + 1));
        client.expect("FCALL light 1 k", &format!(":{}", 4 * i + 2));
        client.expect("MULTI", "+OK");
        client.expect("FCALL light 1 k", "+QUEUED");
        client.expect("FCALL heavy 1 k", "+QUEUED");
        client.expect("EXEC", &format!("[:{}, :{}]", 4 * i + 3, 4 * i + 4));
    }
    client.expect("FUNCTION DELETE light", "+OK");
    client.expect("FCALL light 1 k", "-ERR Function not found");
    client.expect("FCALL heavy 1 k", ":81");
}

#[test]
fn very_many_scripts_are_asked_for() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SCRIPT DEBUG NO", "+OK");
    let sha = client.call("SCRIPT LOAD \"return 1\"").replace('"', "");
    for count in [1, 10, 1_000, 50_000] {
        let words: Vec<&[u8]> = [b"SCRIPT".as_slice(), b"EXISTS"]
            .into_iter()
            .chain((0..count).map(|i| if i % 3 == 0 { sha.as_bytes() } else { b"nothing" }))
            .collect();
        let wanted: Vec<String> = (0..count).map(|i| format!(":{}", i32::from(i % 3 == 0))).collect();
        assert_eq!(client.call_bytes(&words), format!("[{}]", wanted.join(", ")));
    }
}
