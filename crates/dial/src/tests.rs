//! Against streams and listeners of this process that behave badly.

use crate::{Address, Conn, Error, Frame, Login, Tls};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tls::{Client, PeerName, Trust};

/// Long enough never to pass.
const LONG: Duration = Duration::from_secs(60);
/// It passes where nothing comes.
const SHORT: Duration = Duration::from_millis(20);

/// A connection, and its other end.
fn pair() -> (Conn, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Conn::over(ours, LONG).unwrap(), theirs)
}

/// A listener whose only connection is given to `serve`.
fn listen<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (addr, thread::spawn(move || serve(listener.accept().unwrap().0)))
}

/// Reads as many bytes as `expected` has and answers.
fn answer(stream: &mut TcpStream, expected: &str, reply: &str) {
    let mut request = vec![0; expected.len()];
    stream.read_exact(&mut request).unwrap();
    assert_eq!(String::from_utf8_lossy(&request), expected);
    stream.write_all(reply.as_bytes()).unwrap();
}

fn bulk(text: &str) -> Frame {
    Frame::Bulk(text.as_bytes().to_vec())
}

#[test]
fn replies_are_read_however_they_are_cut() {
    let wire = b"*2\r\n$5\r\nhello\r\n:7\r\n>1\r\n+news\r\n%1\r\n+k\r\n_\r\n";
    for step in 1..wire.len() {
        let (mut conn, mut peer) = pair();
        let chunks = thread::spawn(move || {
            for chunk in wire.chunks(step) {
                peer.write_all(chunk).unwrap();
                thread::yield_now();
            }
        });
        assert_eq!(conn.reply().unwrap(), Frame::Array(vec![bulk("hello"), Frame::Int(7)]));
        assert_eq!(conn.reply().unwrap(), Frame::Push(vec![Frame::Simple(b"news".to_vec())]));
        assert_eq!(conn.reply().unwrap(), Frame::Map(vec![(Frame::Simple(b"k".to_vec()), Frame::Null)]));
        chunks.join().unwrap();
        assert!(matches!(conn.reply(), Err(Error::Closed { at_once: false })));
    }
}

#[test]
fn a_late_reply_is_not_lost() {
    let (mut conn, mut peer) = pair();
    for half in ["*2\r\n+a\r\n$4\r\n", "lo", "ng"] {
        peer.write_all(half.as_bytes()).unwrap();
        assert!(matches!(conn.reply_within(SHORT), Err(Error::Late)));
        assert!(matches!(conn.reply_within(Duration::ZERO), Err(Error::Late)));
    }
    peer.write_all(b"\r\n+next\r\n").unwrap();
    assert_eq!(conn.reply().unwrap(), Frame::Array(vec![Frame::Simple(b"a".to_vec()), bulk("long")]));
    assert_eq!(conn.reply_within(LONG).unwrap(), Frame::Simple(b"next".to_vec()));
    conn.set_timeout(SHORT);
    assert!(matches!(conn.reply(), Err(Error::Late)), "the limit that was set");
}

#[test]
fn a_connection_that_is_closed_says_whether_anything_came() {
    let (mut conn, peer) = pair();
    drop(peer);
    assert!(matches!(conn.reply(), Err(Error::Closed { at_once: true })));
    assert!(conn.send(b"x").is_err());
    let (mut conn, mut peer) = pair();
    peer.write_all(b"$10\r\nhalf").unwrap();
    drop(peer);
    assert!(matches!(conn.reply(), Err(Error::Closed { at_once: false })));
    assert!(matches!(conn.reply(), Err(Error::Closed { at_once: false })), "and again");
    assert_eq!(conn.received(), b"$10\r\nhalf");
}

#[test]
fn a_server_that_does_not_read_makes_sending_late() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut conn = Conn::over(ours, SHORT).unwrap();
    assert!(matches!(conn.send(&vec![b'x'; 64 << 20]), Err(Error::Late)));
}

#[test]
fn bytes_that_are_no_reply_are_refused_again_and_again() {
    let (mut conn, mut peer) = pair();
    peer.write_all(b"+fine\r\nHTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    assert!(conn.reply().is_ok());
    for _ in 0..2 {
        assert!(matches!(conn.reply(), Err(Error::NotResp(_))));
    }
    let (mut conn, mut peer) = pair();
    peer.write_all(&b"*1\r\n".repeat(resp::MAX_DEPTH + 2)).unwrap();
    peer.write_all(b":1\r\n").unwrap();
    assert!(matches!(conn.reply(), Err(Error::NotResp(_))), "nested too deeply");
}

#[test]
fn a_reply_of_100_mb_is_refused_while_it_comes() {
    for head in ["$104857600\r\n", "*104857600\r\n", ""] {
        let (mut conn, mut peer) = pair();
        conn.set_reply_max(1 << 20);
        let flood = thread::spawn(move || {
            peer.write_all(head.as_bytes()).unwrap();
            // Until nobody reads.
            while peer.write_all(&b"+\r\n".repeat(1000)).is_ok() {}
        });
        // Without a head each is a short reply.
        let replies = if head.is_empty() { 2000 } else { 0 };
        (0..replies).for_each(|_| assert_eq!(conn.reply().unwrap(), Frame::Simple(Vec::new())));
        if !head.is_empty() {
            assert!(matches!(conn.reply(), Err(Error::TooLong(limit)) if limit == 1 << 20));
        }
        assert!(conn.received().len() < 4 << 20, "{} bytes", conn.received().len());
        drop(conn);
        flood.join().unwrap();
    }
}

#[test]
fn a_length_that_is_only_announced_takes_no_memory() {
    for head in ["$536870912\r\nx", "*536870912\r\n:1\r\n", "%536870912\r\n", "$9223372036854775807\r\nx"] {
        let (mut conn, mut peer) = pair();
        peer.write_all(head.as_bytes()).unwrap();
        assert!(matches!(conn.reply_within(SHORT), Err(Error::Late)));
        assert!(conn.input.room().len() <= 256 << 10);
    }
}

#[test]
fn memory_of_a_long_reply_is_given_back() {
    let (mut conn, mut peer) = pair();
    const LENGTH: usize = 40 << 20;
    let long = thread::spawn(move || {
        peer.write_all(format!("${LENGTH}\r\n").as_bytes()).unwrap();
        peer.write_all(&vec![b'x'; LENGTH]).unwrap();
        peer.write_all(b"\r\n").unwrap();
        peer
    });
    assert_eq!(conn.reply().unwrap(), Frame::Bulk(vec![b'x'; LENGTH]));
    let mut peer = long.join().unwrap();
    peer.write_all(b"+next\r\n").unwrap();
    assert_eq!(conn.reply().unwrap(), Frame::Simple(b"next".to_vec()));
    assert!(conn.input.room().len() <= 256 << 10);
}

#[test]
fn a_pipeline_does_not_lock_up_with_a_server_that_waits_for_its_reader() {
    const SIZE: usize = 64 << 10;
    const REQUESTS: usize = 60;
    let request = |size| vec![b"ECHO".to_vec(), vec![b'x'; size]];
    let mut sizes: Vec<usize> = (0..200).map(|i| i % 7).collect();
    sizes.extend([SIZE; REQUESTS]);
    let requests: Vec<_> = sizes.iter().map(|size| request(*size)).collect();
    let (addr, server) = listen(move |mut stream| {
        for size in sizes {
            let mut wire = Vec::new();
            crate::put_request(&mut wire, &request(size));
            stream.read_exact(&mut wire).unwrap();
            // Nothing more is read before this is gone.
            stream.write_all(format!("${}\r\n{}\r\n", 4 * SIZE, "y".repeat(4 * SIZE)).as_bytes()).unwrap();
        }
    });
    let mut conn = Conn::open(&Address::from(addr)).unwrap();
    let replies = conn.pipeline(&requests).unwrap();
    assert_eq!(replies.len(), requests.len());
    assert!(replies.iter().all(|reply| reply.text().is_some_and(|text| text.len() == 4 * SIZE)));
    server.join().unwrap();
    assert!(conn.pipeline::<Vec<u8>>(&[]).unwrap().is_empty());
}

#[test]
fn bytes_can_be_read_without_frames() {
    let (mut conn, mut peer) = pair();
    peer.write_all(b"+OK\r\nraw").unwrap();
    while conn.received().len() < 8 {
        conn.receive(LONG).unwrap();
    }
    assert!(conn.reply().unwrap().is_ok());
    assert_eq!(conn.received(), b"raw");
    conn.consume(2);
    assert_eq!(conn.received(), b"w");
    conn.consume(7);
    assert_eq!(conn.received(), b"");
    conn.end_sending().unwrap();
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    peer.write_all(b":1\r\n").unwrap();
    assert_eq!(conn.reply().unwrap(), Frame::Int(1), "the other half is still open");
}

#[test]
fn a_login_is_sent_as_the_address_says() {
    let login = |user: Option<&str>| Login { user: user.map(str::to_owned), password: "secret".to_owned() };
    let auth = "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n";
    let auth_user = "*3\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$6\r\nsecret\r\n";
    let hello = "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n";
    let both = "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$6\r\nsecret\r\n";
    for (login, protocol, wire) in [
        (Some(login(None)), None, auth),
        (Some(login(Some("ann"))), None, auth_user),
        (None, Some(3), hello),
        (Some(login(None)), Some(3), both),
    ] {
        let (addr, server) = listen(move |mut stream| answer(&mut stream, wire, "+OK\r\n"));
        Conn::open(&Address { login, protocol, ..Address::from(addr) }).unwrap();
        server.join().unwrap();
    }
    let (addr, server) = listen(move |mut stream| answer(&mut stream, auth, "-WRONGPASS no\r\n"));
    let address = Address { login: Some(login(None)), ..Address::from(addr) };
    assert!(!format!("{address:?}").contains("secret"));
    let refused = Conn::open(&address).map(drop);
    assert!(matches!(refused, Err(Error::Refused { command: "AUTH", text }) if text == b"WRONGPASS no"));
    server.join().unwrap();
}

#[test]
fn a_unix_socket_is_a_place_with_a_slash() {
    let path = std::env::temp_dir().join(format!("dial-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || listener.accept().unwrap().0.write_all(b"+here\r\n").unwrap());
    let place = path.to_str().unwrap();
    assert_eq!(Conn::open(&Address::new(place)).unwrap().reply().unwrap(), Frame::Simple(b"here".to_vec()));
    server.join().unwrap();
    let encrypted = Conn::open(&Address { tls: Some(anyone()), ..Address::new(place) }).map(drop);
    assert!(matches!(encrypted, Err(Error::Tls(_))));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Conn::open(&Address::new(place)), Err(Error::Connect(_))));
}

fn anyone() -> Tls {
    Tls::new(Client::new(Trust::Anyone, None).unwrap(), PeerName::of("localhost").unwrap())
}

#[test]
fn a_server_without_tls_is_told_from_one_that_has_it() {
    let refused = |addr: SocketAddr, timeout| {
        let address = Address { tls: Some(anyone()), ..Address::from(addr) };
        match Conn::open(&address.with_timeout(timeout)).map(drop) {
            Err(Error::Tls(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let (addr, server) = listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"-ERR unknown command\r\n");
    });
    assert!(!refused(addr, LONG).is_empty());
    server.join().unwrap();
    let (addr, server) = listen(drop);
    assert!(!refused(addr, LONG).is_empty());
    server.join().unwrap();
    let (addr, server) = listen(|mut stream| std::io::copy(&mut stream, &mut std::io::sink()));
    assert_eq!(refused(addr, SHORT), "it does not answer; is that its port for TLS?");
    let _ = server.join().unwrap();
}

#[test]
fn nobody_there_is_an_error_of_connecting() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(matches!(Conn::open(&Address::from(addr)), Err(Error::Connect(_))));
    assert!(matches!(Conn::open(&Address::new("no-port")), Err(Error::Connect(_))));
}
