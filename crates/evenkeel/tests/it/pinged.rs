//! `evenkeel ping`, as health checks call it.

use crate::support::{Server, foreign, free_port, run, said};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Exit code and words of `evenkeel ping` with these words.
fn ping(words: &[&str]) -> (Option<i32>, String) {
    let output = run(&[&["ping"], words].concat());
    (output.status.code(), said(&output))
}

/// A server that answers everything with these bytes, and its address.
fn answers(bytes: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(bytes.as_bytes());
            // Until the client has gone.
            let _ = stream.read(&mut [0; 1]);
        }
    });
    address
}

#[test]
fn a_server_that_answers_is_alive_whether_or_not_it_wants_a_password() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (place, port) = (server.addr.to_string(), server.addr.port().to_string());
    assert_eq!(ping(&[&place]), (Some(0), "PONG\n".into()));
    assert_eq!(ping(&["--host", "127.0.0.1", "--port", &port]), (Some(0), "PONG\n".into()));
    assert_eq!(ping(&[&format!("redis://{place}/0")]), (Some(0), "PONG\n".into()));

    server.client().expect("CONFIG SET requirepass s3cret", "+OK");
    let (code, words) = ping(&[&place]);
    assert!(code == Some(0) && words.starts_with("NOAUTH "), "{code:?} {words}");
    let file = server.dir.path().join("password");
    for (password, code_wanted, words_wanted) in [("s3cret\n", 0, "PONG\n"), ("wrong\n", 1, "WRONGPASS")] {
        std::fs::write(&file, password).expect("written");
        let (code, words) = ping(&[&place, "--password-file", &file.display().to_string()]);
        assert!(code == Some(code_wanted) && words.contains(words_wanted), "{code:?} {words}");
    }
}

#[test]
fn what_is_no_sign_of_life_ends_with_1_and_the_reason() {
    if foreign() {
        return;
    }
    let (code, words) = ping(&["--port", &free_port().to_string()]);
    assert!(code == Some(1) && words.contains("cannot connect to 127.0.0.1:"), "{code:?} {words}");
    for (bytes, why) in [
        ("-LOADING Redis is loading the dataset in memory\r\n", "it is loading its data"),
        ("-ERR max number of clients reached\r\n", "answers 'ERR max number of clients reached'"),
        ("+OK\r\n", "something else than PONG"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak RESP"),
    ] {
        let (code, words) = ping(&[&answers(bytes)]);
        assert!(code == Some(1) && words.contains(why), "{bytes:?}: {code:?} {words}");
    }
    // A wrong call is 1 as well: containers know 0 and 1 only.
    let (code, words) = ping(&["--nonsense"]);
    assert!(code == Some(1) && words.contains("--nonsense"), "{code:?} {words}");
    assert_eq!(ping(&["--help"]).0, Some(0));
}

#[test]
fn a_silent_server_is_waited_for_a_second_or_as_long_as_said() {
    if foreign() {
        return;
    }
    let silent = answers("");
    for (words, least_ms) in [(&[][..], 1000), (&["--timeout", "0.2"], 200)] {
        let begin = Instant::now();
        let (code, words) = ping(&[&[&*silent], words].concat());
        let took = begin.elapsed();
        assert!(code == Some(1) && words.contains("does not answer"), "{code:?} {words}");
        assert!(took >= Duration::from_millis(least_ms) && took < Duration::from_secs(10), "{took:?}");
    }
}
