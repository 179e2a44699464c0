//! Bytes in, bytes out: pipelines, pieces, limits, mistakes.

use crate::support::{Client, PATIENCE, Server, encode, encode_line, foreign};
use std::time::{Duration, Instant};

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = Server::start();
    let mut client = server.client();
    let mut out = Vec::new();
    for n in 0..10_000 {
        out.extend(encode_line(&format!("ECHO {n}")));
    }
    client.send(&out);
    for n in 0..10_000 {
        client.expect_reply(&format!("\"{n}\""));
    }
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let server = Server::start();
    let mut client = server.client();
    for byte in encode_line("SET key \"a\\r\\nb\"") {
        client.send([byte]);
        std::thread::sleep(Duration::from_micros(300));
    }
    client.expect_reply("+OK");
    client.expect("GET key", r#""a\r\nb""#);
}

#[test]
fn a_pipeline_may_be_cut_anywhere() {
    let server = Server::start();
    let mut client = server.client();
    let text =
        [encode_line("SET k v1"), encode_line("GET k"), b"PING\r\n".to_vec(), encode_line("DEL k")].concat();
    for cut in 1..text.len() {
        client.send(&text[..cut]);
        std::thread::sleep(Duration::from_micros(200));
        client.send(&text[cut..]);
        for reply in ["+OK", "\"v1\"", "+PONG", ":1"] {
            client.expect_reply(reply);
        }
    }
}

#[test]
fn inline_commands_are_split_and_unquoted_as_in_a_shell() {
    let server = Server::start();
    let mut client = server.client();
    for (line, reply) in [
        ("PING\r\n", "+PONG"),
        ("PING\n", "+PONG"),
        ("  PING   hi \r\n", "\"hi\""),
        ("ECHO 'single \\' quoted'\r\n", "\"single ' quoted\""),
        ("ECHO \"\\x41\\n\\t\\\\\"\r\n", r#""A\n\t\\""#),
        ("ECHO \"\"\r\n", "\"\""),
        ("\r\n\r\nPING\r\n", "+PONG"),
    ] {
        client.send(line);
        client.expect_reply(reply);
    }
}

#[test]
fn empty_requests_are_skipped() {
    let server = Server::start();
    let mut client = server.client();
    client.send("*0\r\n*-1\r\n\r\n*1\r\n$4\r\nPING\r\n");
    client.expect_reply("+PONG");
}

#[test]
fn each_mistake_of_the_protocol_has_its_text_and_ends_the_connection() {
    let server = Server::start();
    let long = |mark: &str| format!("{mark}{}", "1".repeat(70_000));
    for (bytes, reply) in [
        ("*x\r\n".to_owned(), "-ERR Protocol error: invalid multibulk length"),
        ("*99999999999999999999\r\n".to_owned(), "-ERR Protocol error: invalid multibulk length"),
        ("*1\r\n$x\r\n".to_owned(), "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$-1\r\n".to_owned(), "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n$536870913\r\n".to_owned(), "-ERR Protocol error: invalid bulk length"),
        ("*1\r\n:4\r\n".to_owned(), "-ERR Protocol error: expected '$', got ':'"),
        ("*1\r\nPING\r\n".to_owned(), "-ERR Protocol error: expected '$', got 'P'"),
        ("*1\r\n$4\r\nPINGxx".to_owned(), "-ERR Protocol error: invalid CRLF in request"),
        ("SET k \"open\r\n".to_owned(), "-ERR Protocol error: unbalanced quotes in request"),
        ("SET k 'a'b\r\n".to_owned(), "-ERR Protocol error: unbalanced quotes in request"),
        (long(""), "-ERR Protocol error: too big inline request"),
        (long("*"), "-ERR Protocol error: too big mbulk count string"),
        (format!("*1\r\n{}", long("$")), "-ERR Protocol error: too big bulk count string"),
    ] {
        let mut client = server.client();
        client.expect("PING", "+PONG");
        client.send_if_open(&bytes);
        client.expect_reply(reply);
        client.expect_reply("(closed)");
    }
    server.client().expect("PING", "+PONG");
}

#[test]
fn replies_before_a_mistake_still_arrive() {
    let server = Server::start();
    let mut client = server.client();
    client.send("SET k v\r\nGET k\r\n*1\r\n$x\r\nPING\r\n");
    for reply in ["+OK", "\"v\"", "-ERR Protocol error: invalid bulk length", "(closed)"] {
        client.expect_reply(reply);
    }
}

#[test]
fn unknown_commands_and_wrong_arities_are_errors_that_keep_the_connection() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("NOSUCH a b", "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' ");
    client.expect("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: ");
    client.expect("GET", "-ERR wrong number of arguments for 'get' command");
    client.expect("get a b", "-ERR wrong number of arguments for 'get' command");
    client.expect("PING", "+PONG");
}

#[test]
fn line_ends_in_names_do_not_reach_error_replies() {
    let server = Server::start();
    let mut client = server.client();
    let reply = client.call_bytes(&[b"no\r\nsuch", b"a\r\nb"]);
    assert!(reply.starts_with("-ERR unknown command 'no  such'"), "{reply}");
    client.expect("PING", "+PONG");
}

#[test]
fn a_value_of_many_megabytes_passes_both_ways() {
    let server = Server::start();
    let mut client = server.client();
    let big: Vec<u8> = (0..40_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    client.request(&[b"SET", b"big", &big]);
    client.expect_reply("+OK");
    client.expect("STRLEN big", ":40000000");
    client.request(&[b"GET", b"big"]);
    assert_eq!(client.raw(11), b"$40000000\r\n");
    assert_eq!(client.raw(big.len()), big);
    assert_eq!(client.raw(2), b"\r\n");
}

#[test]
fn a_reader_that_does_not_read_keeps_nobody_else_waiting() {
    let server = Server::start();
    let mut slow = server.client();
    let value = vec![b'x'; 1_000_000];
    slow.request(&[b"SET", b"big", &value]);
    slow.expect_reply("+OK");
    let get = encode(&[b"GET", b"big"]);
    slow.send(get.repeat(60));
    let mut other = server.client();
    for n in 0..200 {
        other.expect(&format!("SET k{n} v"), "+OK");
    }
    for _ in 0..60 {
        assert_eq!(slow.raw(10), b"$1000000\r\n");
        slow.skip(value.len() + 2);
    }
    slow.expect("PING", "+PONG");
}

#[test]
fn a_client_that_leaves_in_the_middle_of_things_leaves_nothing_behind() {
    let server = Server::start();
    let mut stay = server.client();
    for _ in 0..50 {
        let mut client = server.client();
        client.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\nxxxx");
        drop(client);
        let mut client = server.client();
        client.send(encode_line("DEBUG SLEEP 0").repeat(3));
        drop(client);
        let mut client = server.client();
        client.expect("MULTI", "+OK");
        client.expect("SET k v", "+QUEUED");
        drop(client);
    }
    stay.expect("EXISTS k", ":0");
    let mut left = String::new();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        left = stay.call("CLIENT LIST");
        if left.matches("id=").count() == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("clients that left are still listed: {left}");
}

#[test]
fn requests_that_were_sent_are_answered_though_the_sender_closed_its_half() {
    let server = Server::start();
    let mut client = server.client();
    client.send(encode_line("ECHO last").repeat(500));
    client.end_sending();
    for _ in 0..500 {
        client.expect_reply("\"last\"");
    }
    client.expect_reply("(closed)");
}

#[test]
fn random_bytes_never_hurt() {
    let server = Server::start();
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let pieces: [&[u8]; 12] = [
        b"*",
        b"$",
        b"\r\n",
        b"3",
        b"-1",
        b"GET",
        b"PING\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\0",
        b"\"",
        b"999999",
        b"k",
    ];
    for round in 0..400 {
        let mut client = server.client();
        let mut bytes = Vec::new();
        for _ in 0..random() % 40 {
            match random() % 3 {
                0 => bytes.push(random() as u8),
                _ => bytes.extend_from_slice(pieces[(random() % pieces.len() as u64) as usize]),
            }
        }
        client.send_if_open(&bytes);
        if round % 50 == 0 {
            server.client().expect("PING", "+PONG");
        }
    }
    server.client().expect("PING", "+PONG");
}

#[test]
fn an_announced_length_costs_no_memory_before_its_bytes_arrive() {
    let server = Server::start();
    let before = server.resident_bytes();
    let mut clients: Vec<Client> = (0..50).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n");
        client.send("some bytes");
    }
    server.client().expect("PING", "+PONG");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 100_000_000, "{grown} bytes for lengths that were only announced");
}

#[test]
fn a_request_of_many_arguments_is_one_request() {
    let server = Server::start();
    let mut client = server.client();
    let mut args: Vec<Vec<u8>> = vec![b"RPUSH".to_vec(), b"l".to_vec()];
    args.extend((0..200_000).map(|n: u32| n.to_string().into_bytes()));
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    client.request(&args);
    client.expect_reply(":200000");
    client.expect("LINDEX l 123456", "\"123456\"");
}

#[test]
fn resp3_types_are_used_where_redis_uses_them() {
    let server = Server::start();
    let mut client = server.client3();
    client.expect("HSET h f v", ":1");
    client.expect("SADD s m", ":1");
    client.expect("ZADD z 1.5 m", ":1");
    client.expect("HGETALL h", r#"{"f": "v"}"#);
    client.expect("SMEMBERS s", r#"~["m"]"#);
    client.expect("ZSCORE z m", ",1.5");
    client.expect("ZRANGE z 0 -1 WITHSCORES", r#"[["m", ,1.5]]"#);
    client.expect("GET nosuch", "(null)");
    client.expect("LPOP nosuch 2", "(null)");
    client.expect("CONFIG GET databases", r#"{"databases": "16"}"#);
    client.expect("HELLO 4", "-NOPROTO unsupported protocol version");
    client.expect("SUBSCRIBE c", r#">["subscribe", "c", :1]"#);
    client.expect("GET nosuch", "(null)");
    assert!(client.call("HELLO 2").starts_with('['));
    client.expect("GET nosuch", "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context");
}

#[test]
fn quit_says_goodbye_and_closes() {
    let server = Server::start();
    let mut client = server.client();
    client.send("SET k v\r\nQUIT\r\nSET k w\r\n");
    for reply in ["+OK", "+OK", "(closed)"] {
        client.expect_reply(reply);
    }
    server.client().expect("GET k", "\"v\"");
}

#[test]
fn a_bulk_length_over_the_limit_is_refused_by_the_configured_limit() {
    let server = Server::start_with(&["--proto-max-bulk-len", "1mb"]);
    let mut client = server.client();
    client.send("*2\r\n$4\r\nECHO\r\n$1048577\r\n");
    client.expect_reply("-ERR Protocol error: invalid bulk length");
    let mut client = server.client();
    client.expect("SETRANGE k 1048576 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    if !foreign() {
        client.expect("CONFIG GET proto-max-bulk-len", r#"["proto-max-bulk-len", "1048576"]"#);
    }
}

/// Connections in the middle of long words are read besides the others. Some leave, others take their places,
/// and the rest come to their end.
#[test]
fn long_words_arrive_whole_beside_others_that_are_given_up() {
    const CROWD: usize = 120;
    let server = Server::start_with(&["--io-backend", "epoll"]);
    let word = |i: usize| (i % 7).to_string().repeat(300_000 + i);
    let (mut senders, mut half) = (Vec::new(), Vec::new());
    for i in 0..CROWD {
        let request = encode(&[b"SET", format!("k{i}").as_bytes(), word(i).as_bytes()]);
        let mut client = server.client();
        client.send(&request[..100_000]);
        if i % 2 == 0 {
            senders.push((i, client, request));
        } else {
            half.push(client);
        }
    }
    let mut others = Vec::new();
    for (n, (_, sender, request)) in senders.iter_mut().enumerate() {
        sender.send(&request[100_000..200_000]);
        half.pop();
        let mut other = server.client();
        other.expect(&format!("SET other{n} x"), "+OK");
        others.push(other);
    }
    for (_, sender, request) in &mut senders {
        sender.send(&request[200_000..]);
    }
    for (i, sender, _) in &mut senders {
        sender.expect_reply("+OK");
        let length = format!(":{}", 300_000 + *i);
        sender.expect(&format!("STRLEN k{i}"), &length);
        let text = word(*i);
        sender.expect(&format!("GETRANGE k{i} 299990 -1"), &format!("\"{}\"", &text[299_990..]));
    }
    others.iter_mut().enumerate().for_each(|(n, other)| other.expect(&format!("GET other{n}"), "\"x\""));
    others[0].expect("EXISTS k1 k3 k119", ":0");
}
