//! Bytes for a server that speaks TLS: whatever they are, what was whole before them is answered, nothing
//! behind them is, the connection ends, and others go on.
//!
//! ```text
//! bytes ─► first byte: raw bytes │ a damaged greeting │ steps behind a handshake
//!            └─► a socket ─► handshake's thread ─► loop ─► records ─► requests      (one server for all)
//! ```
//!
//! A step is a byte that chooses it and its operands: a request in one record or some, a new key, the client's
//! farewell, or damage. See [`Step`].

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Silence after which the server is at fault.
const PATIENCE: Duration = Duration::from_secs(20);
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";
/// Steps of one run.
const STEPS: usize = 64;

/// A server in this process, on both versions, and clients that trust it.
struct House {
    address: SocketAddr,
    config: Arc<ClientConfig>,
    old: Arc<ClientConfig>,
}

/// The one server of this process.
fn house() -> &'static House {
    static HOUSE: OnceLock<House> = OnceLock::new();
    HOUSE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        write_papers(dir.path());
        let file = |name: &str| dir.path().join(name).display().to_string();
        let settings = tls::Settings::of(|name| match name {
            "tls-cert-file" => file("server.crt"),
            "tls-key-file" => file("server.key"),
            "tls-auth-clients" => "no".to_owned(),
            "tls-session-caching" => "yes".to_owned(),
            "tls-session-cache-size" => "100".to_owned(),
            "tls-session-cache-timeout" => "300".to_owned(),
            _ => String::new(),
        });
        let loaded = tls::Loaded::read(&settings.expect("settings")).expect("certificates");
        let socket = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        socket.set_nonblocking(true).expect("a socket");
        let address = socket.local_addr().expect("an address");
        let server = exec::Server::start(Arc::default(), 1).expect("a server");
        let keeper = Arc::new(tls::Keeper::new(loaded));
        let handshakes = net::Handshakes::start(&server, &keeper).expect("threads");
        let handshakes = Some(Arc::new(handshakes));
        let listeners = net::Listeners { tls: vec![socket], handshakes, ..Default::default() };
        // It runs as long as the process.
        let loops = net::start(&server, listeners, net::Backend::Epoll).expect("its threads");
        std::mem::forget((server, loops));
        let [config, old] = [&rustls::version::TLS13, &rustls::version::TLS12].map(|v| client(dir.path(), v));
        House { address, config, old }
    })
}

fn write_papers(dir: &Path) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a certificate");
    let text = params.self_signed(&key).expect("signed").pem();
    std::fs::write(dir.join("server.crt"), text).expect("written");
    std::fs::write(dir.join("server.key"), key.serialize_pem()).expect("written");
}

fn client(dir: &Path, version: &'static rustls::SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let certificate =
        rustls::pki_types::CertificateDer::from_pem_file(dir.join("server.crt")).expect("a file");
    roots.add(certificate).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// The check: see the module.
pub fn records(data: &[u8]) {
    let Some((&way, rest)) = data.split_first() else { return };
    let house = house();
    let config = if way & 4 == 0 { &house.config } else { &house.old };
    match way & 3 {
        0 => raw(house, rest),
        1 => greeting(house, config, rest),
        _ => steps(house, config, rest),
    }
    assert_eq!(stdx::panics::caught(), 0, "a panic was contained");
    // Others are served.
    let mut other = Peer::greet(house, &house.config);
    other.ask();
    other.end();
}

/// Bytes that are no client's.
fn raw(house: &House, bytes: &[u8]) {
    let mut stream = connect(house);
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    drain(&mut stream);
}

/// A handshake in which some bytes of the client are others. Pairs of bytes say which, and by how much.
fn greeting(house: &House, config: &Arc<ClientConfig>, changes: &[u8]) {
    let (mut stream, mut session) = (connect(house), session(config));
    let mut at = 0;
    for _ in 0..4 {
        let mut sent = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut sent).expect("memory");
        }
        for (i, byte) in sent.iter_mut().enumerate() {
            let changed = changes.chunks_exact(2).filter(|pair| usize::from(pair[0]) == (at + i) % 256);
            *byte ^= changed.fold(0, |sum, pair| sum ^ pair[1]);
        }
        at += sent.len();
        if stream.write_all(&sent).is_err() || !session.is_handshaking() {
            break;
        }
        // It waits for an answer or the end; neither comes if the greeting now lacks bytes.
        stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a time limit");
        match session.read_tls(&mut stream) {
            Ok(n) if n > 0 && session.process_new_packets().is_ok() => {}
            _ => break,
        }
    }
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let _ = stream.shutdown(Shutdown::Write);
    drain(&mut stream);
}

/// The step that a byte stands for.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Requests in one record each; one byte: how many.
    Ask,
    /// A request whose record is sent in pieces; one byte: their length.
    Pieces,
    /// A request in records of a few bytes; one byte: their length.
    Crumbs,
    /// Keys are changed (TLS 1.3), and a request follows.
    Rekey,
    /// A request whose record is changed; two bytes: where, and by how much. No change is none.
    Flip,
    /// A record is cut; one byte: how much of it is sent.
    Cut,
    /// A header of a record, whose four bytes follow, and what else follows.
    Forge,
    /// A record is sent twice.
    Twice,
    /// The client says that it sends nothing more.
    Farewell,
}

const ALL: [Step; 9] = [
    Step::Ask,
    Step::Pieces,
    Step::Crumbs,
    Step::Rekey,
    Step::Flip,
    Step::Cut,
    Step::Forge,
    Step::Twice,
    Step::Farewell,
];

/// Steps of a client that has shaken hands, up to the first damage.
fn steps(house: &House, config: &Arc<ClientConfig>, data: &[u8]) {
    let mut peer = Peer::greet(house, config);
    let mut data = data.iter().copied();
    for _ in 0..STEPS {
        let Some(choice) = data.next() else { break };
        let step = ALL[usize::from(choice) % ALL.len()];
        let mut operand = || data.next().unwrap_or(0);
        match step {
            Step::Ask => (0..operand() % 4 + 1).for_each(|_| peer.ask()),
            Step::Pieces => {
                let piece = usize::from(operand() % 32) + 1;
                let sealed = peer.seal(PING);
                sealed.chunks(piece).for_each(|piece| peer.send(piece));
                peer.hear(1);
            }
            Step::Crumbs => {
                let crumb = usize::from(operand() % 8) + 1;
                let sealed: Vec<u8> = PING.chunks(crumb).flat_map(|crumb| peer.seal(crumb)).collect();
                peer.send(&sealed);
                peer.hear(1);
            }
            Step::Rekey => {
                // It fails for TLS 1.2, and changes nothing then.
                let _ = peer.session.refresh_traffic_keys();
                peer.ask();
            }
            _ => return peer.damage(step, &mut data),
        }
    }
    peer.end();
}

/// A client that has shaken hands.
struct Peer {
    stream: TcpStream,
    session: ClientConnection,
}

impl Peer {
    fn greet(house: &House, config: &Arc<ClientConfig>) -> Peer {
        let (mut stream, mut session) = (connect(house), session(config));
        while session.is_handshaking() || session.wants_write() {
            session.complete_io(&mut stream).expect("a handshake");
        }
        Peer { stream, session }
    }

    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        self.session.writer().write_all(plain).expect("memory");
        while self.session.wants_write() {
            self.session.write_tls(&mut sealed).expect("memory");
        }
        sealed
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn ask(&mut self) {
        let sealed = self.seal(PING);
        self.send(&sealed);
        self.hear(1);
    }

    /// Reads so many answers, and that nothing else comes with them.
    fn hear(&mut self, n: usize) {
        let mut heard = Vec::new();
        while heard.len() < n * PONG.len() {
            assert!(self.receive(&mut heard), "closed instead of an answer; so far {heard:?}");
        }
        assert_eq!(heard, PONG.repeat(n));
    }

    /// Reads once. False: the server has closed the connection.
    fn receive(&mut self, plain: &mut Vec<u8>) -> bool {
        match self.session.read_tls(&mut self.stream) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(e) if is_closed(&e) => return false,
            Err(e) => panic!("neither an answer nor the end: {e}"),
        }
        let processed = self.session.process_new_packets();
        let mut chunk = [0; 256];
        while let Ok(n) = self.session.reader().read(&mut chunk) {
            plain.extend_from_slice(&chunk[..n]);
            if n == 0 {
                return false;
            }
        }
        // An alert ends it too.
        processed.is_ok()
    }

    /// Does the last step, after which the server answers what is whole, and ends.
    fn damage(mut self, step: Step, data: &mut dyn Iterator<Item = u8>) {
        let mut sealed = self.seal(PING);
        let mut operand = || data.next().unwrap_or(0);
        let answers = match step {
            Step::Flip => {
                let (at, by) = (usize::from(operand()) % sealed.len(), operand());
                sealed[at] ^= by;
                // Not all versions of TLS protect the first bytes of a record's header.
                0..=usize::from(by == 0 || at < 3)
            }
            Step::Cut => {
                let to = usize::from(operand()) % (sealed.len() + 1);
                let whole = usize::from(to == sealed.len());
                sealed.truncate(to);
                whole..=whole
            }
            Step::Forge => {
                sealed = data.take(64 * 1024).collect();
                if sealed.len() >= 4 {
                    // The type, and the length in two bytes; the version is one that exists.
                    let [kind, high, low] = [sealed[0], sealed[1], sealed[2]];
                    drop(sealed.splice(..4, [kind, 3, 3, high, low]));
                }
                0..=0
            }
            Step::Twice => {
                sealed = sealed.repeat(2);
                0..=1
            }
            _ => {
                self.session.send_close_notify();
                sealed.extend(self.seal(b""));
                1..=1
            }
        };
        let _ = self.stream.write_all(&sealed);
        self.finish(answers);
    }

    fn end(self) {
        self.finish(0..=0);
    }

    /// Sends nothing more, and reads to the end: so many answers, and nothing else.
    fn finish(mut self, answers: RangeInclusive<usize>) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        while self.receive(&mut heard) {}
        assert_eq!(heard, PONG.repeat(heard.len() / PONG.len()));
        assert!(answers.contains(&(heard.len() / PONG.len())), "{answers:?} answers, not {heard:?}");
        drain(&mut self.stream);
    }
}

fn connect(house: &House) -> TcpStream {
    let stream = TcpStream::connect(house.address).expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    stream
}

fn session(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(config.clone(), name).expect("a client")
}

fn is_closed(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

/// Reads until the server has closed the connection.
fn drain(stream: &mut TcpStream) {
    let mut room = [0; 4096];
    loop {
        match stream.read(&mut room) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if is_closed(&e) => return,
            Err(e) => panic!("the server does not close: {e}"),
        }
    }
}
