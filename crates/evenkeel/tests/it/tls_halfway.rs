//! Certificates and clients that change while handshakes of TLS are half done: none of these is mixed up, none
//! holds a place for ever, and no other connection hears of it.

use crate::held::await_figure;
use crate::support::{Client, PATIENCE, Secure, encode_line};
use crate::tls::{BOTH, House, on_both, ping, rest};
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How far a client's handshake is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// It is connected, and has said nothing.
    Silent,
    /// Half of its first message is sent.
    HalfHello,
    /// Its first message is sent, and the server's answer has come.
    Answered,
}

const STAGES: [Stage; 3] = [Stage::Silent, Stage::HalfHello, Stage::Answered];

/// A client in the middle of its handshake.
struct Half {
    session: ClientConnection,
    stream: TcpStream,
    /// The rest of its first message.
    rest: Vec<u8>,
    stage: Stage,
}

impl Half {
    /// Begins a handshake. `count`: those that are under way with it, so that its thread has it when this
    /// returns.
    fn begin(house: &House, config: &Arc<ClientConfig>, stage: Stage, count: u64) -> Half {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut session = ClientConnection::new(config.clone(), name).expect("a client");
        let mut hello = Vec::new();
        session.write_tls(&mut hello).expect("memory");
        let mut stream = TcpStream::connect(house.tls).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let sent = match stage {
            Stage::Silent => 0,
            Stage::HalfHello => hello.len() / 2,
            Stage::Answered => hello.len(),
        };
        stream.write_all(&hello[..sent]).expect("sent");
        if stage == Stage::Answered {
            stream.peek(&mut [0]).expect("an answer");
        }
        await_figure(&mut house.server.client(), "tls_handshakes_waiting", |waiting| waiting == count);
        Half { session, stream, rest: hello.split_off(sent), stage }
    }

    fn address(&self) -> String {
        self.stream.local_addr().expect("an address").to_string()
    }

    /// Goes through with it. Errors: the server ends it.
    fn finish(mut self) -> std::io::Result<Secure> {
        self.stream.write_all(&self.rest)?;
        while self.session.is_handshaking() || self.session.wants_write() {
            self.session.complete_io(&mut self.stream)?;
        }
        Ok(Secure::new(self.session, self.stream))
    }
}

/// The certificate that the server showed.
fn shown(stream: &Secure) -> Vec<u8> {
    stream.conn.peer_certificates().expect("certificates")[0].as_ref().to_vec()
}

/// Descriptors that the server has open.
fn descriptors(house: &House) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", house.server.pid())).expect("its descriptors").count()
}

/// Waits until nothing of the clients but `control` is left: no handshake, no client, no descriptor.
fn await_nothing(house: &House, control: &mut Client, descriptors_before: usize) {
    await_figure(control, "tls_handshakes_waiting", |waiting| waiting == 0);
    await_figure(control, "connected_clients", |connected| connected == 1);
    let deadline = Instant::now() + PATIENCE;
    while descriptors(house) != descriptors_before {
        assert!(Instant::now() < deadline, "{} descriptors, {descriptors_before} before", descriptors(house));
        std::thread::yield_now();
    }
}

/// Connections of every kind that must not notice anything: idle ones with TLS and without, one that waits, one
/// in the middle of a request.
struct Others {
    idle: Client,
    plain: Client,
    waits: Client,
    speaks: Client,
}

impl Others {
    fn begin(house: &House) -> Others {
        let [mut idle, mut waits, mut speaks] = [house.client(), house.client(), house.client()];
        let mut plain = house.server.client();
        idle.expect("PING", "+PONG");
        speaks.send("*2\r\n$4\r\nECHO\r\n$4\r\nha");
        waits.send(encode_line("BLPOP queue 0"));
        await_figure(&mut plain, "blocked_clients", |blocked| blocked == 1);
        Others { idle, plain, waits, speaks }
    }

    fn go_on(mut self) {
        self.idle.expect("PING", "+PONG");
        self.plain.expect("RPUSH queue job", ":1");
        self.waits.expect_reply("[\"queue\", \"job\"]");
        self.speaks.send("lf\r\n");
        self.speaks.expect_reply("\"half\"");
    }
}

/// A way to have the certificate read again, and its name.
type Reload<'a> = (&'a str, &'a dyn Fn(&mut Client));

/// A handshake goes on with the certificate that it began with, as in Redis, where a connection keeps its
/// context. SIGHUP and CONFIG SET do the same; files that cannot be used change nothing for anybody.
#[test]
fn a_handshake_goes_on_with_the_certificate_it_began_with() {
    on_both(&["--tls-handshake-threads", "1"], |house| {
        let path = |name: &str| house.papers.path(name).display().to_string();
        let mut control = house.server.client();
        let reloads: [Reload<'_>; 3] = [
            ("SIGHUP", &|_| {
                house.papers.write("server", |_| ());
                house.server.signal("HUP");
                house.server.await_words("the files of TLS were read again");
            }),
            ("a SIGHUP that fails", &|_| {
                std::fs::write(house.papers.path("server.key"), "none").expect("written");
                house.server.signal("HUP");
                house.server.await_words("the files of TLS stay as they were");
            }),
            ("CONFIG SET", &|control| {
                let (cert, key) = (path("second.crt"), path("second.key"));
                control.expect(&format!("CONFIG SET tls-cert-file {cert} tls-key-file {key}"), "+OK");
            }),
        ];
        for (name, reload) in reloads {
            let others = Others::begin(house);
            let before = shown(&house.stream());
            let mut halves = Vec::new();
            for (version, stage) in BOTH.iter().flat_map(|version| STAGES.map(|stage| (version, stage))) {
                let config = house.papers.client(Some("client"), &[version]);
                halves.push(Half::begin(house, &config, stage, halves.len() as u64 + 1));
            }
            reload(&mut control);
            let after = shown(&house.stream());
            assert_eq!(before == after, name == "a SIGHUP that fails", "{name}");
            for half in halves {
                let stage = half.stage;
                let stream = half.finish().expect("it goes on");
                assert!(shown(&stream) == before, "{name}, {stage:?}");
                let mut client = Client::secure(stream);
                client.expect("PING", "+PONG");
                client.expect("ACL WHOAMI", "\"default\"");
            }
            assert!(shown(&house.stream()) == after, "{name}");
            others.go_on();
            await_figure(&mut control, "tls_handshakes_waiting", |waiting| waiting == 0);
        }
        assert_eq!(house.figure("tls_handshakes_failed"), 0);
    });
}

/// The demand for a client's certificate is settled when its handshake begins, too.
#[test]
fn a_handshake_goes_on_with_what_was_asked_of_its_client() {
    on_both(&["--tls-handshake-threads", "1"], |house| {
        let mut control = house.server.client();
        let nobody = house.papers.client(None, BOTH);
        for (ask, then) in [("no", "yes"), ("yes", "no")] {
            control.expect(&format!("CONFIG SET tls-auth-clients {ask}"), "+OK");
            for stage in STAGES {
                let half = Half::begin(house, &nobody, stage, 1);
                control.expect(&format!("CONFIG SET tls-auth-clients {then}"), "+OK");
                assert_eq!(house.refusal(None).is_empty(), then == "no");
                let served = half.finish().and_then(|mut stream| ping(&mut stream));
                assert_eq!(served.is_ok(), ask == "no", "{stage:?}: {served:?}");
                control.expect(&format!("CONFIG SET tls-auth-clients {ask}"), "+OK");
                await_figure(&mut control, "tls_handshakes_waiting", |waiting| waiting == 0);
            }
        }
    });
}

/// A session is resumed only under the settings it began with (tls T4), also one whose handshake ended after
/// they changed.
#[test]
fn a_session_of_a_handshake_that_was_overtaken_is_not_resumed() {
    on_both(&["--tls-handshake-threads", "1"], |house| {
        for version in BOTH {
            // The client's store of sessions is part of this.
            let config = house.papers.client(Some("client"), &[version]);
            let half = Half::begin(house, &config, Stage::Answered, 1);
            house.papers.write("server", |_| ());
            let path = |end: &str| house.papers.path(&format!("server.{end}")).display().to_string();
            let words = format!("CONFIG SET tls-cert-file {} tls-key-file {}", path("crt"), path("key"));
            house.server.client().expect(&words, "+OK");
            let mut stream = half.finish().expect("it goes on");
            let before = shown(&stream);
            // The answer comes behind the tickets.
            ping(&mut stream).expect("a reply");
            let kind = |stream: &Secure| stream.conn.handshake_kind().expect("a whole handshake");
            let mut second = house.connect_with(house.tls, &config).expect("a connection");
            assert_eq!(kind(&second), rustls::HandshakeKind::Full);
            assert!(shown(&second) != before);
            ping(&mut second).expect("a reply");
            let third = house.connect_with(house.tls, &config).expect("a connection");
            assert_eq!(kind(&third), rustls::HandshakeKind::Resumed);
        }
    });
}

/// A client is listed, and found by CLIENT KILL, once its handshake is over (Redis lists it before). A kill of
/// all others in the middle of it ends those, and neither ends nor damages the handshake.
#[test]
fn client_kill_finds_a_client_once_its_handshake_is_over() {
    on_both(&["--tls-handshake-threads", "1"], |house| {
        let mut control = house.server.client();
        let config = house.papers.client(Some("client"), BOTH);
        for stage in STAGES {
            let mut other = house.stream();
            ping(&mut other).expect("a reply");
            let half = Half::begin(house, &config, stage, 1);
            let address = half.address();
            assert!(!control.call("CLIENT LIST").contains(&address), "{stage:?}");
            control.expect(&format!("CLIENT KILL {address}"), "-ERR No such client");
            control.expect(&format!("CLIENT KILL ADDR {address}"), ":0");
            control.expect(&format!("CLIENT KILL ADDR {address} USER default TYPE normal"), ":0");
            control.call("CLIENT KILL TYPE normal USER default SKIPME yes");
            assert_eq!(rest(&mut other), (Vec::new(), true), "{stage:?}");
            let mut stream = half.finish().expect("it goes on");
            ping(&mut stream).expect("a reply");
            let list = control.call("CLIENT LIST");
            assert!(list.contains(&format!("addr={address} ")), "{list}");
            control.expect(&format!("CLIENT KILL ADDR {address} USER default TYPE normal"), ":1");
            assert_eq!(rest(&mut stream), (Vec::new(), true), "{stage:?}");
        }
    });
}

/// However a handshake ends, its descriptor and its place among `maxclients` are free again.
#[test]
fn nothing_is_left_of_handshakes_that_end_halfway() {
    const MOST: &str = "6";
    on_both(&["--tls-handshake-threads", "1", "--maxclients", MOST], |house| {
        let mut control = house.server.client();
        await_figure(&mut control, "connected_clients", |connected| connected == 1);
        let before = descriptors(house);
        let config = house.papers.client(Some("client"), BOTH);
        for stage in STAGES {
            // More of each kind than there are places.
            for end in ["leaves", "ends sending", "talks nonsense", "resets", "is killed"].repeat(8) {
                let mut half = Half::begin(house, &config, stage, 1);
                control.expect(&format!("CLIENT KILL ADDR {}", half.address()), ":0");
                match end {
                    "leaves" => drop(half),
                    "ends sending" => {
                        half.stream.shutdown(std::net::Shutdown::Write).expect("half a connection");
                        half.stream.read_to_end(&mut Vec::new()).expect("an end");
                    }
                    "talks nonsense" => {
                        half.stream.write_all(&[b'x'; 20_000]).expect("sent");
                        // It ends, by an alert or by a reset because not all of that was read.
                        let _ = half.stream.read_to_end(&mut Vec::new());
                    }
                    "resets" => {
                        sockopt::set_socket_linger(&half.stream, Some(Duration::ZERO)).expect("an option");
                        drop(half);
                    }
                    _ => {
                        let address = half.address();
                        let mut stream = half.finish().expect("it goes on");
                        ping(&mut stream).expect("a reply");
                        control.expect(&format!("CLIENT KILL ADDR {address}"), ":1");
                        assert_eq!(rest(&mut stream), (Vec::new(), true));
                    }
                }
                await_nothing(house, &mut control, before);
            }
        }
        assert!(control.call("INFO stats").contains("rejected_connections:0\\r"));
    });
}

/// Clients are killed at any moment around the end of their handshakes: each is served or ended, and each
/// handshake is counted once.
#[test]
fn kills_around_the_end_of_handshakes_lose_nobody() {
    const THREADS: u64 = 4;
    const EACH: u64 = 25;
    on_both(&["--event-loops", "2"], |house| {
        let mut control = house.server.client();
        await_figure(&mut control, "connected_clients", |connected| connected == 1);
        let before = descriptors(house);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let config = house.papers.client(Some("client"), BOTH);
                        for _ in 0..EACH {
                            // It may be killed before its reply.
                            let _ = house
                                .connect_with(house.tls, &config)
                                .and_then(|mut stream| ping(&mut stream));
                        }
                    })
                })
                .collect();
            let mut kills = 0;
            while kills < 100 || !clients.iter().all(|client| client.is_finished()) {
                control.call(["CLIENT KILL TYPE normal", "CLIENT KILL USER default"][kills % 2]);
                kills += 1;
            }
        });
        await_nothing(house, &mut control, before);
        let ended = house.figure("tls_handshakes_done") + house.figure("tls_handshakes_failed");
        assert_eq!(ended, THREADS * EACH);
    });
}

/// A client that is refused and still writes can read why. It has a second for that, so a slow machine may take
/// some tries.
#[test]
fn a_refused_client_that_writes_on_can_read_why() {
    on_both(&["--tls-handshake-threads", "1"], |house| {
        let config = house.papers.client(None, &[&rustls::version::TLS13]);
        let mut control = house.server.client();
        let told = (1..=50).any(|nth| {
            let mut stream =
                house.connect_with(house.tls, &config).expect("a client finishes before the server");
            await_figure(&mut control, "tls_handshakes_failed", |failed| failed == nth);
            // The first write would be answered by a reset, and the second find it.
            let written = (0..2).all(|_| stream.sock.write_all(&[0; 100]).is_ok());
            let why = ping(&mut stream).expect_err("it is refused").to_string();
            assert!(why.contains("CertificateRequired") || !written, "{why}");
            written
        });
        assert!(told);
        // Nothing of them stays.
        await_figure(&mut control, "tls_handshakes_waiting", |waiting| waiting == 0);
    });
}
