//! Both interfaces of the event loops to the kernel serve alike. (All other tests run on the default one, or
//! on the one that EVENKEEL_TEST_IO_BACKEND names.)

use crate::support::{Client, PATIENCE, Server, encode, encode_line, foreign};
use crate::waits::until;
use std::time::Duration;

fn on_both(test: impl Fn(&Server)) {
    if foreign() {
        return;
    }
    for backend in ["epoll", "io_uring"] {
        test(&Server::start_with(&["--io-backend", backend, "--maxclients", "2000"]));
    }
}

#[test]
fn info_names_what_the_loops_wait_with() {
    on_both(|server| {
        let mut client = server.client();
        let backend = client.call("CONFIG GET io-backend");
        let info = client.call("INFO server");
        // Where io_uring is forbidden the server falls back to epoll and says so.
        let fell_back = backend.contains("io_uring") && info.contains("multiplexing_api:epoll");
        if fell_back {
            server.await_words("no io_uring here");
        }
        let named = ["epoll", "io_uring"].into_iter().find(|name| backend.contains(name)).expect("a name");
        assert!(info.contains(&format!("multiplexing_api:{named}\\r\\n")) || fell_back, "{info}");
        client.expect(
            "CONFIG SET io-backend epoll",
            "-ERR CONFIG SET failed (possibly related to argument 'io-backend') - can't set immutable config",
        );
    });
}

#[test]
fn a_slow_reader_gets_every_byte_in_order() {
    on_both(|server| {
        let mut client = server.client();
        let value: Vec<u8> = (0..300_000u32).map(|i| (i / 13) as u8).collect();
        client.request(&[b"SET", b"v", &value]);
        client.expect_reply("+OK");
        for n in 0..100 {
            client.send(encode_line("GET v"));
            client.send(encode_line(&format!("ECHO {n}")));
        }
        std::thread::sleep(Duration::from_millis(200));
        for n in 0..100 {
            assert_eq!(client.raw(9), b"$300000\r\n");
            assert!(client.raw(300_000) == value, "reply {n}");
            assert_eq!(client.raw(2), b"\r\n");
            client.expect_reply(&format!("\"{n}\""));
        }
    });
}

#[test]
fn a_request_may_come_in_any_pieces() {
    on_both(|server| {
        let mut client = server.client();
        let mut bytes = Vec::new();
        for n in 0..40 {
            bytes.extend(encode(&[b"RPUSH", b"l", format!("element {n}").as_bytes()]));
        }
        for piece in bytes.chunks(7) {
            client.send(piece);
        }
        (1..=40).for_each(|n| client.expect_reply(&format!(":{n}")));
        let value = vec![b'x'; 3_000_000];
        let request = encode(&[b"SET", b"v", &value]);
        for piece in request.chunks(100_001) {
            client.send(piece);
            std::thread::sleep(Duration::from_millis(1));
        }
        client.expect_reply("+OK");
        client.expect("STRLEN v", ":3000000");
    });
}

#[test]
fn places_of_clients_that_left_are_used_again() {
    on_both(|server| {
        let mut stays = server.client();
        for round in 0..30 {
            let mut clients: Vec<Client> = (0..30).map(|_| server.client()).collect();
            for (at, client) in clients.iter_mut().enumerate() {
                match at % 4 {
                    // Left in the middle of a request, of a wait, of an unread reply, and in peace.
                    0 => client.send("*2\r\n$3\r\nGET\r\n$100000\r\nx"),
                    1 => client.send(encode_line("BLPOP nosuch 0")),
                    2 => client.send(encode_line("CLIENT LIST").repeat(20)),
                    _ => client.expect(&format!("ECHO {round}"), &format!("\"{round}\"")),
                }
            }
            drop(clients);
            stays.expect("PING", "+PONG");
        }
        until("clients that left are counted no more", || {
            stays.call("INFO clients").contains("connected_clients:1\\r\\n")
        });
    });
}

#[test]
fn the_last_reply_goes_out_before_the_connection_ends() {
    on_both(|server| {
        let mut setup = server.client();
        setup.request(&[b"SET", b"v", &vec![b'x'; 2_000_000]]);
        setup.expect_reply("+OK");
        let mut client = server.client();
        client.send(encode_line("GET v"));
        client.send(encode_line("QUIT"));
        client.send(encode_line("PING"));
        client.skip(b"$2000000\r\n".len() + 2_000_000 + 2);
        client.expect_reply("+OK");
        client.expect_reply("(closed)");
        let mut half = server.client();
        half.send(encode_line("GET v"));
        half.send(encode_line("INCR n"));
        half.end_sending();
        half.skip(b"$2000000\r\n".len() + 2_000_000 + 2);
        half.expect_reply(":1");
        half.expect_reply("(closed)");
    });
}

#[test]
fn a_client_that_stops_sending_still_gets_its_replies() {
    on_both(|server| {
        for n in 0..200 {
            let mut client = server.client();
            client.send(encode_line(&format!("ECHO {n}")));
            if n % 3 == 0 {
                client.send("QUIT\r\n");
            }
            client.end_sending();
            client.expect_reply(&format!("\"{n}\""));
            if n % 3 == 0 {
                client.expect_reply("+OK");
            }
            assert!(client.is_closed_within(PATIENCE));
        }
    });
}
