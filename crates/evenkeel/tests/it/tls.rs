//! TLS over real sockets, on both transports: rustls is the client.

use crate::support::{Client, PATIENCE, Secure, Server, encode, encode_line, foreign, free_port, run, said};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion, version};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// Roots and certificates in a folder.
pub struct Papers {
    pub dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Papers {
    /// A root, and certificates from it for the server and for clients.
    pub fn new() -> Papers {
        let dir = tempfile::tempdir().expect("a folder");
        let papers = Papers { issuer: root(dir.path(), "root.crt"), dir };
        papers.write("server", |_| ());
        papers.write("client", |params| params.distinguished_name.push(DnType::CommonName, "default"));
        papers.write("alice", |params| params.distinguished_name.push(DnType::CommonName, "alice"));
        papers.write("nul", |params| params.distinguished_name.push(DnType::CommonName, "default\0x"));
        papers.write("second", |_| ());
        papers.write("expired", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
        papers
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a certificate and its key.
    pub fn write(&self, name: &str, change: impl Fn(&mut CertificateParams)) {
        sign(self.dir.path(), name, &self.issuer, change);
    }

    /// The words that start a server with these certificates.
    pub fn words(&self) -> Vec<String> {
        self.words_for("server")
    }

    /// The words that start a server with a certificate of this name.
    pub fn words_for(&self, name: &str) -> Vec<String> {
        let file = |name: &str| self.path(name).display().to_string();
        let (cert, key, root) =
            (file(&format!("{name}.crt")), file(&format!("{name}.key")), file("root.crt"));
        ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &root]
            .map(str::to_owned)
            .to_vec()
    }

    /// Locks the key of a certificate with the password `secret`, as `name.locked`.
    pub fn lock(&self, name: &str) -> String {
        let (key, locked) = (self.path(&format!("{name}.key")), self.path(&format!("{name}.locked")));
        let words = ["pkcs8", "-topk8", "-passout", "pass:secret", "-in"];
        let run = Command::new("openssl").args(words).arg(key).arg("-out").arg(&locked).output();
        let output = run.expect("openssl is needed");
        assert!(output.status.success(), "{}", said(&output));
        locked.display().to_string()
    }

    pub fn client(
        &self,
        name: Option<&str>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for cert in CertificateDer::pem_file_iter(self.path("root.crt")).expect("a file") {
            roots.add(cert.expect("a certificate")).expect("a root");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        let Some(name) = name else { return Arc::new(config.with_no_client_auth()) };
        let chain = CertificateDer::pem_file_iter(self.path(&format!("{name}.crt"))).expect("a file");
        let chain = chain.map(|cert| cert.expect("a certificate")).collect();
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).expect("a key");
        Arc::new(config.with_client_auth_cert(chain, key).expect("a pair"))
    }
}

pub fn root(folder: &Path, name: &str) -> Issuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("a certificate");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    std::fs::write(folder.join(name), params.self_signed(&key).expect("signed").pem()).expect("written");
    Issuer::new(params, key)
}

pub fn sign(
    folder: &Path,
    name: &str,
    issuer: &Issuer<'static, KeyPair>,
    change: impl Fn(&mut CertificateParams),
) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a certificate");
    change(&mut params);
    let key = KeyPair::generate().expect("a key");
    let write = |end: &str, text: String| {
        std::fs::write(folder.join(format!("{name}.{end}")), text).expect("written")
    };
    write("crt", params.signed_by(&key, issuer).expect("signed").pem());
    write("key", key.serialize_pem());
}

pub const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// A server with TLS.
pub struct House {
    pub papers: Papers,
    pub server: Server,
    pub tls: SocketAddr,
    https: SocketAddr,
}

impl House {
    fn start(args: &[&str]) -> House {
        let papers = Papers::new();
        let words = papers.words();
        for _ in 0..4 {
            let [tls, https] = [free_port(), free_port()];
            let (tls_word, https_word) = (tls.to_string(), https.to_string());
            let mut all: Vec<&str> = vec!["--tls-port", &tls_word, "--http-tls-port", &https_word];
            if !args.contains(&"--tls-handshake-timeout") {
                all.extend(["--tls-handshake-timeout", "600"]);
            }
            // The watch for neighbours has descriptors open for a while, and tests count them.
            all.extend(["--watch-neighbours", "no"]);
            all.extend(words.iter().map(String::as_str));
            all.extend(args);
            let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
            if let Some(server) = Server::start_on_with(free_port(), &all) {
                return House { papers, server, tls: at(tls), https: at(https) };
            }
        }
        panic!("the server does not start with {args:?}");
    }

    pub fn connect_with(&self, at: SocketAddr, config: &Arc<ClientConfig>) -> Result<Secure, std::io::Error> {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut session = ClientConnection::new(config.clone(), name).expect("a client");
        let mut stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        while session.is_handshaking() || session.wants_write() {
            session.complete_io(&mut stream)?;
        }
        Ok(Secure::new(session, stream))
    }

    pub fn stream(&self) -> Secure {
        self.connect_with(self.tls, &self.papers.client(Some("client"), BOTH)).expect("a connection")
    }

    pub fn client(&self) -> Client {
        Client::secure(self.stream())
    }

    /// Why a client with this certificate, or none, is not served; empty: it is.
    pub fn refusal(&self, paper: Option<&str>) -> String {
        let asked = self.connect_with(self.tls, &self.papers.client(paper, BOTH));
        // With TLS 1.3 a client hears of its refusal only now.
        let asked = asked.and_then(|mut stream| ping(&mut stream));
        asked.err().map(|e| e.to_string()).unwrap_or_default()
    }

    pub fn figure(&self, name: &str) -> u64 {
        let info = self.server.client().call("INFO evenkeel");
        let at = info.find(&format!("{name}:")).expect("the figure") + name.len() + 1;
        info[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
    }
}

/// Asks for a reply. Errors: the reason that the server gave, also if it was gone before all was written.
pub fn ping(stream: &mut Secure) -> std::io::Result<()> {
    let asked = stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut [0; 7]));
    let Err(e) = asked else { return Ok(()) };
    while stream.conn.read_tls(&mut stream.sock).is_ok_and(|n| n > 0) {
        stream.conn.process_new_packets().map_err(std::io::Error::other)?;
    }
    Err(e)
}

/// Runs a test on both transports.
pub fn on_both(args: &[&str], test: impl Fn(&House)) {
    if foreign() {
        return;
    }
    for backend in ["epoll", "io_uring"] {
        test(&House::start(&[&["--io-backend", backend], args].concat()));
    }
}

/// Reads to the end. True: the server said that this is the end.
pub fn rest(stream: &mut Secure) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let cut_off = stream.read_to_end(&mut bytes).err();
    if let Some(e) = &cut_off {
        assert!(matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{e}");
    }
    (bytes, cut_off.is_none())
}

#[test]
fn short_and_long_requests_and_replies_come_through() {
    on_both(&[], |house| {
        for version in BOTH {
            let config = house.papers.client(Some("client"), &[version]);
            let stream = house.connect_with(house.tls, &config).expect("a connection");
            let mut client = Client::secure(stream);
            client.expect("FLUSHALL", "+OK");
            client.expect("SET k v", "+OK");
            client.expect("GET k", "\"v\"");
            // More requests than any buffer holds, and replies that wait for their reader.
            let value = "x".repeat(100);
            let pipeline: Vec<u8> =
                (0..20_000).flat_map(|i| encode_line(&format!("SET {i} {value}{i}"))).collect();
            client.send(pipeline);
            (0..20_000).for_each(|_| client.expect_reply("+OK"));
            client.send((0..20_000).flat_map(|i| encode_line(&format!("GET {i}"))).collect::<Vec<u8>>());
            (0..20_000).for_each(|i| client.expect_reply(&format!("\"{value}{i}\"")));
            // A long value, and a reply that is streamed.
            let long: Vec<u8> = (0..5_000_000u32).map(|i| b'a' + (i / 7 % 26) as u8).collect();
            assert_eq!(client.call_bytes(&[b"SET", b"long", &long]), "+OK");
            client.request(&[b"GET", b"long"]);
            assert_eq!(client.raw(10), b"$5000000\r\n");
            assert!(client.raw(long.len()) == long && client.raw(2) == b"\r\n");
            let items: Vec<String> = (0..60_000).map(|i| format!("item:{i}")).collect();
            let words: Vec<&[u8]> =
                [&b"RPUSH"[..], b"list"].into_iter().chain(items.iter().map(|i| i.as_bytes())).collect();
            assert_eq!(client.call_bytes(&words), ":60000");
            let all: Vec<u8> =
                items.iter().flat_map(|i| format!("${}\r\n{i}\r\n", i.len()).into_bytes()).collect();
            client.send(encode_line("LRANGE list 0 -1"));
            assert_eq!(client.raw(8), b"*60000\r\n");
            assert!(client.raw(all.len()) == all);
            client.expect("PING", "+PONG");
        }
    });
}

#[test]
fn requests_may_come_together_with_the_handshake() {
    on_both(&[], |house| {
        let config = house.papers.client(Some("client"), BOTH);
        let name = ServerName::try_from("localhost").expect("a name");
        for last in [false, true] {
            let mut session = ClientConnection::new(config.clone(), name.clone()).expect("a client");
            // Sent as soon as the handshake permits.
            session.writer().write_all(b"PING\r\nECHO early\r\n").expect("room");
            let mut stream = Secure::new(session, TcpStream::connect(house.tls).expect("a connection"));
            stream.sock.set_read_timeout(Some(PATIENCE)).expect("a time limit");
            stream.conn.complete_io(&mut stream.sock).expect("a handshake");
            if last {
                stream.conn.send_close_notify();
            } else {
                stream.write_all(b"QUIT\r\n").expect("sent");
            }
            stream.flush().expect("sent");
            let (bytes, clean) = rest(&mut stream);
            let text = String::from_utf8(bytes).expect("text");
            let replies = if last { "+PONG\r\n$5\r\nearly\r\n" } else { "+PONG\r\n$5\r\nearly\r\n+OK\r\n" };
            assert_eq!((&*text, clean), (replies, true));
        }
    });
}

#[test]
fn messages_blocked_clients_and_monitors_are_served() {
    on_both(&[], |house| {
        let (mut hears, mut waits, mut watches) = (house.client(), house.client(), house.client());
        hears.expect("SUBSCRIBE news", "[\"subscribe\", \"news\", :1]");
        watches.expect("MONITOR", "+OK");
        waits.send(encode_line("BLPOP queue 0"));
        let mut plain = house.server.client();
        let deadline = Instant::now() + PATIENCE;
        while !plain.call("INFO clients").contains("blocked_clients:1") {
            assert!(Instant::now() < deadline, "nobody is blocked");
        }
        let long = "n".repeat(200_000);
        plain.expect("PUBLISH news short", ":1");
        plain.expect(&format!("PUBLISH news {long}"), ":1");
        hears.expect_reply("[\"message\", \"news\", \"short\"]");
        hears.expect_reply(&format!("[\"message\", \"news\", \"{long}\"]"));
        plain.expect("RPUSH queue job", ":1");
        waits.expect_reply("[\"queue\", \"job\"]");
        let mut shown = String::new();
        while !shown.contains("rpush") && !shown.contains("RPUSH") {
            shown = watches.reply();
        }
        hears.expect("UNSUBSCRIBE news", "[\"unsubscribe\", \"news\", :0]");
        hears.expect("PING", "+PONG");
    });
}

#[test]
fn half_records_and_handshakes_byte_by_byte_hold_up_nobody() {
    on_both(&["--tls-handshake-threads", "1", "--event-loops", "1"], |house| {
        let mut other = house.client();
        let name = ServerName::try_from("localhost").expect("a name");
        let config = house.papers.client(Some("client"), BOTH);
        let mut session = ClientConnection::new(config, name).expect("a client");
        let mut stream = TcpStream::connect(house.tls).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let mut bytes = 0;
        while session.is_handshaking() || session.wants_write() {
            let mut out = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut out).expect("memory");
            }
            for (i, byte) in out.iter().enumerate() {
                stream.write_all(&[*byte]).expect("the server reads");
                bytes += 1;
                if i % 64 == 0 {
                    other.expect("PING", "+PONG");
                    house.client().expect("PING", "+PONG");
                }
            }
            if session.is_handshaking() {
                session.read_tls(&mut stream).expect("an answer");
                session.process_new_packets().expect("records");
            }
        }
        assert!(bytes > 500, "{bytes}");
        for text in [encode(&[b"ECHO", &[b'x'; 10_000]]), encode_line("PING")] {
            session.writer().write_all(&text).expect("room");
            let mut record = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut record).expect("memory");
            }
            let (begin, end) = record.split_at(record.len() / 2);
            stream.write_all(begin).expect("the server reads");
            (0..20).for_each(|_| other.expect("PING", "+PONG"));
            stream.write_all(end).expect("the server reads");
        }
        let mut client = Client::secure(Secure::new(session, stream));
        client.expect_reply(&format!("{:?}", "x".repeat(10_000)));
        client.expect_reply("+PONG");
    });
}

#[test]
fn a_handshake_that_does_not_go_on_is_ended() {
    on_both(&["--tls-handshake-timeout", "1", "--tls-handshakes-max", "4"], |house| {
        let mut silent: Vec<TcpStream> =
            (0..12).map(|_| TcpStream::connect(house.tls).expect("a connection")).collect();
        silent.iter_mut().for_each(|stream| stream.write_all(&[22, 3, 1]).expect("sent"));
        // All places are taken, again and again; others come in all the same.
        let deadline = std::time::Instant::now() + PATIENCE;
        let (config, mut tries) = (house.papers.client(Some("client"), BOTH), 0);
        while house.connect_with(house.tls, &config).and_then(|mut stream| ping(&mut stream)).is_err() {
            assert!(std::time::Instant::now() < deadline, "nobody else comes in");
            // A handshake on a slow machine may need more than the second that it has.
            tries += 1;
            if house.figure("tls_handshakes_failed") >= 12 + tries {
                house.server.client().expect("CONFIG SET tls-handshake-timeout 600", "+OK");
            }
        }
        for stream in &mut silent {
            stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
            assert!(stream.read_to_end(&mut Vec::new()).is_ok_and(|n| n == 0));
        }
        let failed = house.figure("tls_handshakes_failed");
        assert!(failed >= 12, "{failed}");
        // No TLS at all is told by an alert, and ended at once.
        house.server.client().expect("CONFIG SET tls-handshake-timeout 600", "+OK");
        let mut wrong = TcpStream::connect(house.tls).expect("a connection");
        wrong.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        wrong.write_all(b"PING\r\n").expect("sent");
        let mut alert = Vec::new();
        wrong.read_to_end(&mut alert).expect("an end");
        assert_eq!((alert.len(), alert.first()), (7, Some(&21)));
        assert_eq!(house.figure("tls_handshakes_failed"), failed + 1);
        assert_eq!(house.figure("tls_handshakes_waiting"), 0);
    });
}

#[test]
fn certificates_of_clients_let_in_and_name_users() {
    on_both(&["--requirepass", "secret", "--tls-auth-clients-user", "cn"], |house| {
        assert!(house.refusal(None).contains("CertificateRequired"), "{}", house.refusal(None));
        assert!(house.refusal(Some("expired")).contains("Expired"), "{}", house.refusal(Some("expired")));
        assert_ne!(house.refusal(Some("nul")), "");
        let other = root(house.papers.dir.path(), "other.crt");
        sign(house.papers.dir.path(), "stranger", &other, |_| ());
        let stranger = house.refusal(Some("stranger"));
        assert!(stranger.contains("UnknownCA") || stranger.contains("UnknownIssuer"), "{stranger}");
        // The name of the only user needs no password; another one does.
        house.client().expect("PING", "+PONG");
        let alice = house.papers.client(Some("alice"), BOTH);
        let mut alice = Client::secure(house.connect_with(house.tls, &alice).expect("a connection"));
        alice.expect("PING", "-NOAUTH Authentication required.");
        alice.expect("AUTH secret", "+OK");
        let whoami = || {
            let config = house.papers.client(Some("alice"), BOTH);
            let mut client = Client::secure(house.connect_with(house.tls, &config).expect("a connection"));
            client.call("ACL WHOAMI")
        };
        for (rules, who) in [("on +@all", "\"alice\""), ("off", "-NOAUTH Authentication required.")] {
            alice.expect(&format!("ACL SETUSER alice {rules}"), "+OK");
            assert_eq!(whoami(), who, "{rules}");
        }
        alice.expect("CONFIG SET tls-auth-clients optional", "+OK");
        alice.expect("CONFIG SET tls-auth-clients-user off", "+OK");
        for paper in [None, Some("client"), Some("nul")] {
            let config = house.papers.client(paper, BOTH);
            let mut client = Client::secure(house.connect_with(house.tls, &config).expect("a connection"));
            client.expect("PING", "-NOAUTH Authentication required.");
        }
        assert_ne!(house.refusal(Some("stranger")), "");
    });
}

/// Clients of TLS find the server at another port, and at one where there was none before.
#[test]
fn tls_is_served_elsewhere_and_later() {
    on_both(&["--tls-auth-clients", "no"], |house| {
        let (mut old, mut plain) = (house.client(), house.server.client());
        let port = free_port();
        plain.expect(&format!("CONFIG SET tls-port {port}"), "+OK");
        old.expect("PING", "+PONG");
        let new = SocketAddr::from(([127, 0, 0, 1], port));
        let config = house.papers.client(None, BOTH);
        Client::secure(house.connect_with(new, &config).expect("a connection")).expect("PING", "+PONG");
        assert!(TcpStream::connect(house.tls).is_err());
    });
    if foreign() {
        return;
    }
    let (house, server) = (House::start(&[]), Server::start());
    let (mut plain, port) = (server.client(), free_port());
    let refused = plain.call(&format!("CONFIG SET tls-port {port}"));
    assert!(
        refused.starts_with("-ERR CONFIG SET failed (possibly related to argument 'tls-port')"),
        "{refused}"
    );
    let words: Vec<String> = house.papers.words().iter().map(|word| word.replace("--", "")).collect();
    plain.expect(&format!("CONFIG SET tls-port {port} tls-auth-clients no {}", words.join(" ")), "+OK");
    let new = SocketAddr::from(([127, 0, 0, 1], port));
    let config = house.papers.client(None, BOTH);
    Client::secure(house.connect_with(new, &config).expect("a connection")).expect("PING", "+PONG");
}

#[test]
fn files_are_read_again_while_connections_go_on() {
    on_both(&["--tls-auth-clients", "no"], |house| {
        let (mut old, mut plain) = (house.client(), house.server.client());
        let folder = house.papers.dir.path();
        let path = |name: &str| house.papers.path(name).display().to_string();
        let serial = || {
            let stream = house.stream();
            stream.conn.peer_certificates().expect("certificates")[0].as_ref().to_vec()
        };
        let first = serial();
        // Files that do not fit change nothing.
        for (name, file) in
            [("cert", "none"), ("cert", "second.crt"), ("key", "root.crt"), ("ca-cert", "none")]
        {
            let reply = plain.call(&format!("CONFIG SET tls-{name}-file {}", path(file)));
            assert!(
                reply.starts_with(&format!(
                    "-ERR CONFIG SET failed (possibly related to argument 'tls-{name}-file')"
                )),
                "{reply}"
            );
        }
        plain.expect("CONFIG SET tls-protocols TLSv1", "-ERR CONFIG SET failed (possibly related to argument 'tls-protocols') - tls-protocols: TLSv1 is unsafe and does not exist here. Use TLSv1.2 and TLSv1.3");
        assert!(plain.call("CONFIG GET tls-cert-file").contains("server.crt"));
        plain.expect("MULTI", "+OK");
        plain.expect(&format!("CONFIG SET tls-cert-file {}", path("second.crt")), "+QUEUED");
        assert!(plain.call("EXEC").contains("not allowed in a transaction"));
        assert_eq!(serial(), first);
        old.expect("PING", "+PONG");
        // A pair goes together.
        let (cert, key) = (path("second.crt"), path("second.key"));
        plain.expect(&format!("CONFIG SET tls-cert-file {cert} tls-key-file {key} timeout 100"), "+OK");
        let second = serial();
        assert_ne!(second, first);
        assert!(plain.call("CONFIG GET timeout").contains("\"100\""));
        // New contents of the same files, by the signal; a bad one is told in the log.
        sign(folder, "second", &house.papers.issuer, |_| ());
        house.server.signal("HUP");
        house.server.await_words("the files of TLS were read again");
        assert_ne!(serial(), second);
        let third = serial();
        std::fs::write(house.papers.path("second.key"), "none").expect("written");
        house.server.signal("HUP");
        house.server.await_words("the files of TLS stay as they were: tls-key-file");
        assert_eq!(serial(), third);
        old.expect("PING", "+PONG");
    });
}

#[test]
fn a_key_with_a_password_is_served() {
    on_both(&["--tls-auth-clients", "no"], |house| {
        let locked = house.papers.lock("second");
        let (mut plain, cert) =
            (house.server.client(), house.papers.path("second.crt").display().to_string());
        let set = |password: &str| {
            format!("CONFIG SET tls-cert-file {cert} tls-key-file {locked} tls-key-file-pass {password}")
        };
        let wrong = format!(
            "-ERR CONFIG SET failed (possibly related to argument 'tls-cert-file') - tls-key-file {locked}: "
        );
        plain.expect(&set("\"\""), &format!("{wrong}the key has a password, and none is configured"));
        plain.expect(&set("guess"), &format!("{wrong}the password is wrong"));
        plain.expect(&set("secret"), "+OK");
        house.stream();
        // At the next start, too.
        let words = [
            &["--check-config", "--tls-port", "7", "--tls-cert-file", &cert, "--tls-key-file", &locked][..],
            &["--tls-auth-clients", "no"],
        ]
        .concat();
        let check = |more: &[&str]| {
            let output = run(&[&words[..], more].concat());
            (output.status.success(), said(&output))
        };
        assert!(check(&["--tls-key-file-pass", "secret"]).0);
        let (well, text) = check(&["--tls-key-file-pass", "guess"]);
        assert!(!well && text.contains("the password is wrong") && !text.contains("guess"), "{text}");
        // It is told to nobody.
        plain.expect("CONFIG SET slowlog-log-slower-than 0", "+OK");
        plain.expect(&set("secret"), "+OK");
        assert!(
            !plain.call("SLOWLOG GET").contains("\"secret\"") && !house.server.output().contains("secret")
        );
    });
}

/// Many small records in one piece are opened in parts; what they ask is answered in order, whatever ends them.
#[test]
fn a_flood_of_small_records_is_answered_in_order() {
    const RECORDS: usize = 3000;
    on_both(&["--event-loops", "1"], |house| {
        let mut other = house.client();
        for (version, ending) in BOTH.iter().flat_map(|version| [0, 1, 2, 3].map(|ending| (version, ending)))
        {
            let config = house.papers.client(Some("client"), &[version]);
            let mut stream = house.connect_with(house.tls, &config).expect("a connection");
            let mut sent = Vec::new();
            for i in 0..RECORDS {
                let text = match i {
                    // Some commands are not whole in one record.
                    i if i % 3 == 0 => format!("ECHO {i}\r\n"),
                    i if i % 3 == 1 => format!("ECHO {}", i),
                    _ => "\r\n".to_owned(),
                };
                stream.conn.writer().write_all(text.as_bytes()).expect("room");
                while stream.conn.wants_write() {
                    stream.conn.write_tls(&mut sent).expect("memory");
                }
            }
            let last = match ending {
                1 => "QUIT\r\nECHO never\r\n".as_bytes(),
                _ => b"",
            };
            stream.conn.writer().write_all(last).expect("room");
            if ending == 2 {
                stream.conn.send_close_notify();
            }
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut sent).expect("memory");
            }
            stream.sock.write_all(&sent).expect("the server reads");
            if ending == 3 {
                stream.sock.shutdown(std::net::Shutdown::Write).expect("half a connection");
            }
            let echo = |i: usize| format!("${}\r\n{i}\r\n", i.to_string().len());
            let mut replies: String = (0..RECORDS).filter(|i| i % 3 < 2).map(echo).collect();
            if ending == 1 {
                replies.push_str("+OK\r\n");
            }
            let mut heard = vec![0; replies.len()];
            stream.read_exact(&mut heard).expect("the replies");
            assert!(heard == replies.as_bytes(), "{ending}: {}", String::from_utf8_lossy(&heard));
            match ending {
                0 => Client::secure(stream).expect("PING", "+PONG"),
                _ => assert_eq!(rest(&mut stream), (Vec::new(), true), "{ending}"),
            }
            other.expect("PING", "+PONG");
        }
        // A blocked client's records wait, too, and it is killed with them.
        let mut blocked = house.stream();
        blocked.write_all(b"CLIENT SETNAME blocked\r\nBLPOP nothing 0\r\n").expect("sent");
        blocked.read_exact(&mut [0; 5]).expect("a reply");
        (0..200).for_each(|_| blocked.write_all(b"PING\r\n").expect("sent"));
        let deadline = Instant::now() + PATIENCE;
        while !other.call("INFO clients").contains("blocked_clients:1") {
            assert!(Instant::now() < deadline, "nobody is blocked");
        }
        other.expect("RPUSH nothing x", ":1");
        let mut heard = vec![0; 24 + 7 * 200];
        blocked.read_exact(&mut heard).expect("the replies");
        assert!(heard.ends_with(b"+PONG\r\n+PONG\r\n"), "{}", String::from_utf8_lossy(&heard));
    });
}

/// Handshakes under way count to the limits like clients, so nobody gets more of them than connections.
#[test]
fn handshakes_count_to_the_connections_of_their_address() {
    on_both(&["--maxclients-per-address", "3"], |house| {
        // One place is for the client that looks at figures.
        let mut first = house.client();
        // Its answer says that the server, too, is done with the handshake.
        first.expect("PING", "+PONG");
        let half = TcpStream::connect(house.tls).expect("a connection");
        let config = house.papers.client(Some("client"), BOTH);
        let connect = || house.connect_with(house.tls, &config);
        let mut plain = house.server.client();
        let deadline = Instant::now() + PATIENCE;
        while !plain.call("INFO evenkeel").contains("tls_handshakes_waiting:1") {
            assert!(Instant::now() < deadline, "no handshake is under way");
        }
        assert!(connect().is_err());
        let info = plain.call("INFO evenkeel");
        assert!(info.contains("tls_handshakes_done:1") && info.contains("tls_handshakes_failed:0"), "{info}");
        drop(half);
        while connect().is_err() {
            assert!(Instant::now() < deadline, "the place is not given back");
        }
        plain.expect("PING", "+PONG");
    });
}

#[test]
fn connections_end_cleanly() {
    on_both(&["--event-loops", "1"], |house| {
        let mut plain = house.server.client();
        let mut quits = house.stream();
        quits.write_all(b"PING\r\nQUIT\r\n").expect("sent");
        assert_eq!(rest(&mut quits), (b"+PONG\r\n+OK\r\n".to_vec(), true));
        // A client that only ends its socket loses nothing that it asked for.
        let mut ends = house.stream();
        ends.write_all(b"SET ended yes\r\nPING\r\n").expect("sent");
        ends.sock.shutdown(std::net::Shutdown::Write).expect("half a connection");
        let (bytes, clean) = rest(&mut ends);
        assert_eq!((&bytes[..], clean), (&b"+OK\r\n+PONG\r\n"[..], true));
        plain.expect("GET ended", "\"yes\"");
        let mut killed = house.stream();
        killed.write_all(b"CLIENT ID\r\n").expect("sent");
        let mut id = [0; 16];
        let n = killed.read(&mut id).expect("a reply");
        let id = String::from_utf8_lossy(&id[1..n - 2]).into_owned();
        plain.expect(&format!("CLIENT KILL ID {id}"), ":1");
        assert_eq!(rest(&mut killed), (Vec::new(), true));
        // One that is killed while much waits for it, which it does not read.
        let mut slow = house.stream();
        assert_eq!(plain.call_bytes(&[b"SET", b"long", &vec![b'x'; 20_000_000]]), "+OK");
        slow.write_all(b"CLIENT SETNAME slow\r\nGET long\r\nGET long\r\n").expect("sent");
        let list = |plain: &mut Client| plain.call("CLIENT LIST");
        let deadline = Instant::now() + PATIENCE;
        while !list(&mut plain)
            .split("\\n")
            .any(|line| line.contains("name=slow") && !line.contains(" obl=0 "))
        {
            assert!(Instant::now() < deadline, "nothing waits for it");
        }
        let line = list(&mut plain);
        let line = line.split("\\n").find(|line| line.contains("name=slow")).expect("the client").to_owned();
        let id = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("id=").or(word.strip_prefix("\"id=")))
            .expect("its id");
        plain.expect(&format!("CLIENT KILL ID {id}"), ":1");
        let (bytes, _) = rest(&mut slow);
        assert!(bytes.len() < 40_000_000);
        plain.expect("PING", "+PONG");
        // The server's end is told, too.
        let mut last = house.stream();
        last.write_all(b"PING\r\n").expect("sent");
        last.read_exact(&mut [0; 7]).expect("a reply");
        house.server.signal("TERM");
        assert_eq!(rest(&mut last), (Vec::new(), true));
    });
}

#[test]
fn a_broken_record_ends_its_connection_alone() {
    on_both(&[], |house| {
        let (mut broken, mut other) = (house.stream(), house.client());
        broken.write_all(b"SET broken no\r\n").expect("sent");
        broken.read_exact(&mut [0; 5]).expect("a reply");
        broken.conn.writer().write_all(b"SET broken yes\r\n").expect("room");
        let mut record = Vec::new();
        broken.conn.write_tls(&mut record).expect("memory");
        *record.last_mut().expect("a byte") ^= 1;
        broken.sock.write_all(&record).expect("sent");
        let e = broken.read(&mut [0; 10]).expect_err("it is closed");
        assert!(e.to_string().contains("BadRecordMac") || e.to_string().contains("DecryptError"), "{e}");
        other.expect("GET broken", "\"no\"");
    });
}

#[test]
fn connections_move_between_loops() {
    on_both(&["--event-loops", "2"], |house| {
        let mut clients: Vec<Client> = (0..6).map(|_| house.client()).collect();
        clients[0].expect("DEBUG POINT move DELAY 1", "+OK");
        let long = "x".repeat(50_000);
        for round in 0..20 {
            for (i, client) in clients.iter_mut().enumerate() {
                client.send([encode_line(&format!("SET {i} {round}{long}")), encode_line("PING")].concat());
            }
            for (i, client) in clients.iter_mut().enumerate() {
                client.expect_reply("+OK");
                client.expect_reply("+PONG");
                client.expect(&format!("GET {i}"), &format!("\"{round}{long}\""));
            }
        }
        let info = clients[0].call("INFO stats");
        clients[0].expect("DEBUG POINT move OFF", "+OK");
        let moved = clients[0].call("INFO evenkeel");
        assert!(moved.contains("connections_moved") || info.contains("moved"), "nothing moved");
    });
}

#[test]
fn http_is_served_over_tls_and_kept_alive() {
    on_both(&["--http-tls-auth-clients", "no"], |house| {
        let config = house.papers.client(None, BOTH);
        let mut stream = house.connect_with(house.https, &config).expect("a connection");
        for _ in 0..3 {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
            let mut text = String::new();
            while !text.ends_with("\"role\":\"primary\"}") {
                let mut part = [0; 1000];
                let n = stream.read(&mut part).expect("a response");
                assert!(n > 0, "{text}");
                text.push_str(&String::from_utf8_lossy(&part[..n]));
            }
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        }
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("sent");
        let (bytes, clean) = rest(&mut stream);
        assert!(clean && String::from_utf8_lossy(&bytes).contains("evenkeel"));
        // The cookie of the console never leaves by an open connection.
        let mut stream = house.connect_with(house.https, &config).expect("a connection");
        stream
            .write_all(
                b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                  Evenkeel-Console: 1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
            )
            .expect("sent");
        let (bytes, clean) = rest(&mut stream);
        let text = String::from_utf8_lossy(&bytes);
        assert!(clean && text.contains("HttpOnly; SameSite=Strict; Secure\r\n"), "{text}");
        // A malformed request is told why, and its connection ends.
        let mut stream = house.connect_with(house.https, &config).expect("a connection");
        stream.write_all(b"NONSENSE\r\n\r\n").expect("sent");
        let (bytes, clean) = rest(&mut stream);
        assert!(clean && bytes.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&bytes));
        assert!(house.refusal(None).contains("CertificateRequired"));
    });
}

#[test]
fn a_full_server_and_a_wrong_configuration_say_so() {
    on_both(&["--maxclients", "1"], |house| {
        let first = house.client();
        let refused = house.connect_with(house.tls, &house.papers.client(Some("client"), BOTH));
        assert!(refused.is_err());
        drop(first);
    });
    if foreign() {
        return;
    }
    let papers = Papers::new();
    let words = papers.words();
    let check = |more: &[&str]| {
        let mut all = vec!["--check-config", "--tls-port", "7"];
        all.extend(words.iter().map(String::as_str));
        all.extend(more);
        let output = run(&all);
        (output.status.success(), said(&output))
    };
    assert!(check(&[]).0, "{}", check(&[]).1);
    let (well, text) = check(&["--tls-key-file", "/none"]);
    assert!(!well && text.contains("tls-key-file /none: No such file"), "{text}");
    papers.write("server", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let (well, text) = check(&[]);
    assert!(well && text.contains("has expired"), "{text}");
    let output = run(&["--port", "0", "--tls-port", "7"]);
    assert!(!output.status.success() && said(&output).contains("TLS needs tls-cert-file"));
}
