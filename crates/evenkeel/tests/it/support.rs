//! A server process for a test, and a client small enough to be trusted.
//!
//! ```ignore
//! let server = Server::start();
//! let mut client = server.client();
//! client.expect("RPUSH l a b", ":2");
//! client.expect("LRANGE l 0 -1", r#"["a", "b"]"#);
//! ```
//!
//! Replies are compared as text, so that a failing test shows all of them: `+OK`, `-ERR ...`, `:1`, `"bulk"`
//! (escaped), `(nil)` for `$-1`, `(nil array)` for `*-1`, `[...]`, and for RESP3 `(null)`, `{key: value}`,
//! `~[...]`, `>[...]`, `,1.5`, `#t`, `=txt:...`, `(123`.

#![allow(dead_code, reason = "a toolbox: not every tool is used at every time")]

use dial::{Conn, Stream};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Whether the server under test is another one than Evenkeel.
pub fn foreign() -> bool {
    std::env::var_os("EVENKEEL_TEST_SERVER").is_some()
}

pub fn binary() -> PathBuf {
    let own = || PathBuf::from(env!("CARGO_BIN_EXE_evenkeel"));
    std::env::var_os("EVENKEEL_TEST_SERVER").map_or_else(own, PathBuf::from)
}

/// The back end of the event loops in the tests: that of EVENKEEL_TEST_IO_BACKEND, else the default.
fn io_backend() -> Vec<String> {
    let named = std::env::var("EVENKEEL_TEST_IO_BACKEND");
    named.map(|name| vec!["--io-backend".to_owned(), name]).unwrap_or_default()
}

/// DEBUG POINT settings of every server. For example, EVENKEEL_TEST_POINT="move DELAY 1" sends all
/// connections from loop to loop. All tests must still pass, except those of points.
fn armed() -> String {
    let point = std::env::var("EVENKEEL_TEST_POINT");
    point.map(|point| format!("DEBUG POINT {point}\r\n")).unwrap_or_default()
}

/// A port that was free a moment ago: another one each time, and none that the system gives to outgoing
/// connections.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(37);
    for _ in 0..PORTS.len() {
        let nth = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32;
        let port = PORTS.start + nth as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Below the ports of outgoing connections.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Runs the server's binary to its end, for starts that must fail.
pub fn run(args: &[&str]) -> Output {
    let mut child = Command::new(binary())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server's binary");
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().expect("its status").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the server started although it should not have: {args:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output")
}

/// Both outputs of a process as one text.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A running server on a free port of 127.0.0.1, with an empty folder of its own. Ends when dropped.
pub struct Server {
    pub addr: SocketAddr,
    pub dir: tempfile::TempDir,
    child: Child,
}

impl Server {
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// Starts with more command line words; `{dir}` in them is the server's folder.
    pub fn start_with(args: &[&str]) -> Server {
        for _ in 0..4 {
            if let Some(server) = Server::try_start(&binary(), free_port(), args) {
                return server;
            }
        }
        panic!("the server does not start with {args:?}");
    }

    /// Starts a server that also serves HTTP, at the returned address.
    pub fn start_http(args: &[&str]) -> (Server, SocketAddr) {
        for _ in 0..4 {
            let port = free_port();
            let words = port.to_string();
            let all: Vec<&str> = ["--http-port", &words].iter().chain(args).copied().collect();
            if let Some(server) = Server::try_start(&binary(), free_port(), &all) {
                return (server, SocketAddr::from(([127, 0, 0, 1], port)));
            }
        }
        panic!("the server does not start with {args:?}");
    }

    /// Starts with a configuration file.
    pub fn start_file(file: &Path) -> Server {
        Server::start_file_with(file, &[])
    }

    /// The same with more words.
    pub fn start_file_with(file: &Path, args: &[&str]) -> Server {
        let file = file.to_str().expect("a name in UTF-8");
        let started = (0..4).find_map(|_| Server::try_start_by(&binary(), Some(file), free_port(), args));
        started.unwrap_or_else(|| panic!("the server does not start with {file}"))
    }

    /// Starts on a port that must be free.
    pub fn start_on(port: u16) -> Server {
        Server::try_start(&binary(), port, &[]).expect("the server starts on that port")
    }

    /// The same with more words; None if it does not start.
    pub fn start_on_with(port: u16, args: &[&str]) -> Option<Server> {
        Server::try_start(&binary(), port, args)
    }

    /// A real Redis to talk with. None, with a notice, where there is none.
    pub fn redis(args: &[&str]) -> Option<Server> {
        let redis = Path::new("redis-server");
        let found = Command::new(redis).arg("--version").stdout(Stdio::null()).status().is_ok();
        if !found {
            eprintln!("no redis-server: nothing compared");
            return None;
        }
        (0..4).find_map(|_| Server::try_start(redis, free_port(), args)).map(Server::loaded)
    }

    /// Waits until the other server, which answers at once, has read its files.
    fn loaded(self) -> Server {
        let deadline = Instant::now() + PATIENCE;
        while self.client().call("PING").starts_with("-LOADING") {
            assert!(Instant::now() < deadline, "it does not finish loading:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }

    /// A server that `make peers` has built. None, with a notice, where there is none.
    pub fn peer(program: &str, args: &[&str]) -> Option<Server> {
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
        let peers = std::env::var_os("EVENKEEL_PEERS").map(PathBuf::from);
        let program = peers.unwrap_or_else(|| home.join(".cache/evenkeel-peers")).join("bin").join(program);
        if !program.exists() {
            eprintln!("no {}: nothing compared", program.display());
            return None;
        }
        (0..4).find_map(|_| Server::try_start(&program, free_port(), args)).map(Server::loaded)
    }

    /// `None` if it ended at once, which may be because another process took the port.
    fn try_start(program: &Path, port: u16, args: &[&str]) -> Option<Server> {
        Server::try_start_by(program, None, port, args)
    }

    fn try_start_by(program: &Path, file: Option<&str>, port: u16, args: &[&str]) -> Option<Server> {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().display().to_string();
        let log = std::fs::File::create(dir.path().join("output")).expect("a log");
        let backend = if program == binary() { io_backend() } else { Vec::new() };
        let child = Command::new(program)
            .args(file)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(backend)
            .args(["--enable-debug-command", "yes", "--enable-protected-configs", "yes", "--dir", &folder])
            .args(args.iter().map(|arg| arg.replace("{dir}", &folder)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log)
            .spawn()
            .expect("the server's binary");
        let mut server = Server { addr: SocketAddr::from(([127, 0, 0, 1], port)), dir, child };
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if server.child.try_wait().expect("its status").is_some() {
                eprintln!("{}", server.output());
                return None;
            }
            // Another process has the port, and may be the one that answers.
            let said = server.output();
            let waits = said.contains("trying again for a moment") && !said.contains("started, process");
            if !waits && let Ok(stream) = TcpStream::connect(server.addr) {
                // Gone from the server's list of clients before the test begins.
                let mut probe = Client::over(stream);
                let first = if program == binary() { armed() } else { String::new() };
                probe.send_if_open(format!("{first}QUIT\r\n"));
                assert!(probe.is_closed_within(PATIENCE), "QUIT does not close");
                // Otherwise another process took the port.
                if probe.line.received().ends_with(b"+OK\r\n") {
                    return Some(server);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not answer:\n{}", server.output());
    }

    /// The output of the server on its terminal.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("output")).unwrap_or_default()
    }

    /// Waits until its log has these words; a thread of its own writes it.
    #[track_caller]
    pub fn await_words(&self, words: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.output().contains(words) {
            assert!(Instant::now() < deadline, "nothing of {words:?} in the log:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn client(&self) -> Client {
        Client::to(self.addr)
    }

    /// A client that speaks RESP3.
    pub fn client3(&self) -> Client {
        let mut client = self.client();
        let hello = client.call("HELLO 3");
        assert!(hello.starts_with('{'), "{hello}");
        client
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_none()
    }

    /// Sends a signal by its name (`TERM`) to the server's own process.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Waits for the process to end by itself.
    pub fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Resident memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        kilobytes * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server ({ended:?}) said:\n{}", self.output());
        }
    }
}

/// A connection with TLS.
pub type Secure = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

struct Wrapped(Secure);

impl Read for Wrapped {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl Write for Wrapped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Stream for Wrapped {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.0.sock.limit_reads(limit)
    }
    fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        self.0.sock.limit_writes(limit)
    }
    /// Nobody hears of it before something is sent.
    fn end_sending(&self) -> io::Result<()> {
        self.0.sock.end_sending()
    }
}

/// One connection.
pub struct Client {
    line: Conn,
}

impl Client {
    fn over(stream: impl Stream + 'static) -> Client {
        Client { line: Conn::over(stream, PATIENCE).expect("a time limit") }
    }

    pub fn to(address: SocketAddr) -> Client {
        Client::over(dial::tcp(address, PATIENCE).expect("a connection"))
    }

    pub fn unix(path: &Path) -> Client {
        Client::over(UnixStream::connect(path).expect("a connection"))
    }

    pub fn secure(stream: Secure) -> Client {
        Client::over(Wrapped(stream))
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.line.send(bytes.as_ref()).expect("the server reads");
    }

    /// Sends bytes, whether or not the server still reads them.
    pub fn send_if_open(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.line.send(bytes.as_ref());
    }

    pub fn end_sending(&mut self) {
        self.line.end_sending().expect("half a connection");
    }

    /// Sends a request without waiting for its reply.
    pub fn request(&mut self, args: &[&[u8]]) {
        self.send(encode(args));
    }

    /// Sends a request written as in redis-cli and returns its reply: words, or quoted texts with `\n`, `\r`,
    /// `\t`, `\xHH` and `\"`.
    pub fn call(&mut self, line: &str) -> String {
        self.send(encode_line(line));
        self.reply()
    }

    pub fn call_bytes(&mut self, args: &[&[u8]]) -> String {
        self.request(args);
        self.reply()
    }

    #[track_caller]
    pub fn expect(&mut self, line: &str, reply: &str) {
        let got = self.call(line);
        assert_eq!(got, reply, "the reply to {line}");
    }

    /// Compares a reply whose elements may come in any order: both sides are sorted by line.
    #[track_caller]
    pub fn expect_unordered(&mut self, line: &str, elements: &[&str]) {
        let got = self.call(line);
        let inner = got.trim_start_matches(['~', '>']).trim_start_matches('[').trim_end_matches(']');
        let mut got: Vec<&str> = inner.split(", ").filter(|part| !part.is_empty()).collect();
        let mut wanted: Vec<String> = elements.iter().map(|element| format!("{element:?}")).collect();
        got.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(got, wanted, "the reply to {line}");
    }

    #[track_caller]
    pub fn expect_reply(&mut self, reply: &str) {
        assert_eq!(self.reply(), reply);
    }

    /// The next reply as text; see the module's head.
    #[track_caller]
    pub fn reply(&mut self) -> String {
        match self.reply_within(PATIENCE) {
            Some(reply) => reply,
            None => panic!("no reply; so far {:?}", String::from_utf8_lossy(self.line.received())),
        }
    }

    /// The next reply, or `None` when it does not come in time. A closed connection is the text `(closed)`.
    pub fn reply_within(&mut self, limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            let mut at = 0;
            let mut text = String::new();
            if render(self.line.received(), &mut at, &mut text).is_some() {
                self.line.consume(at);
                return Some(text);
            }
            match self.fill(deadline) {
                Filled::More => {}
                Filled::Closed => return Some("(closed)".to_owned()),
                Filled::Late => return None,
            }
        }
    }

    /// Whether the server closes the connection, after at most one reply that was under way.
    pub fn is_closed_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            match self.fill(deadline) {
                Filled::More => {}
                Filled::Closed => return true,
                Filled::Late => return false,
            }
        }
    }

    /// Exactly `n` bytes as they come.
    pub fn raw(&mut self, n: usize) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        while self.line.received().len() < n {
            let came = self.fill(deadline);
            assert!(matches!(came, Filled::More), "only {} of {n} bytes came", self.line.received().len());
        }
        let bytes = self.line.received()[..n].to_vec();
        self.line.consume(n);
        bytes
    }

    /// Reads and drops all that comes until the server closes the connection; returns how many bytes that were.
    pub fn drain(&mut self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        let mut count = 0;
        loop {
            let have = self.line.received().len();
            self.line.consume(have);
            count += have;
            match self.fill(deadline) {
                Filled::More => {}
                Filled::Closed => return count + self.line.received().len(),
                Filled::Late => panic!("the connection stays open behind {count} bytes"),
            }
        }
    }

    /// Reads and drops exactly `n` bytes.
    pub fn skip(&mut self, n: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut left = n;
        loop {
            let have = left.min(self.line.received().len());
            self.line.consume(have);
            left -= have;
            if left == 0 {
                return;
            }
            assert!(matches!(self.fill(deadline), Filled::More), "{left} of {n} bytes did not come");
        }
    }

    fn fill(&mut self, deadline: Instant) -> Filled {
        let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        else {
            return Filled::Late;
        };
        match self.line.receive(left) {
            Ok(_) => Filled::More,
            Err(dial::Error::Late) => Filled::Late,
            Err(_) => Filled::Closed,
        }
    }
}

enum Filled {
    More,
    Closed,
    Late,
}

/// A request as client libraries write it.
pub fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// A request from a line as typed into redis-cli.
pub fn encode_line(line: &str) -> Vec<u8> {
    let args = words(line);
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    encode(&args)
}

fn words(line: &str) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = line.as_bytes();
    loop {
        rest = rest.trim_ascii_start();
        let Some((&first, tail)) = rest.split_first() else { return out };
        if first != b'"' {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            out.push(rest[..end].to_vec());
            rest = &rest[end..];
            continue;
        }
        let mut word = Vec::new();
        rest = tail;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            match byte {
                b'"' => break,
                b'\\' => rest = unescape(rest, &mut word),
                _ => word.push(byte),
            }
        }
        out.push(word);
    }
}

fn unescape<'a>(rest: &'a [u8], word: &mut Vec<u8>) -> &'a [u8] {
    let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    match rest {
        [b'x', a, b, tail @ ..] if hex(&[*a, *b]).is_some() => {
            word.extend(hex(&[*a, *b]));
            tail
        }
        [b'n', tail @ ..] => {
            word.push(b'\n');
            tail
        }
        [b'r', tail @ ..] => {
            word.push(b'\r');
            tail
        }
        [b't', tail @ ..] => {
            word.push(b'\t');
            tail
        }
        [byte, tail @ ..] => {
            word.push(*byte);
            tail
        }
        [] => rest,
    }
}

/// Writes the frame at `at` as text. `None` if it is not complete.
fn render(input: &[u8], at: &mut usize, out: &mut String) -> Option<()> {
    let rest = input.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (mark, line) = rest[..end].split_first()?;
    *at += end + 2;
    let text = String::from_utf8_lossy(line);
    let length = || text.parse::<i64>().unwrap_or_else(|_| panic!("a bad length: {text:?}"));
    match mark {
        b'+' | b'-' | b':' | b',' | b'(' | b'#' => {
            let _ = write!(out, "{}{text}", *mark as char);
        }
        b'_' => out.push_str("(null)"),
        b'$' if length() < 0 => out.push_str("(nil)"),
        b'*' if length() < 0 => out.push_str("(nil array)"),
        b'$' | b'=' => {
            let end = *at + length() as usize;
            let body = input.get(*at..end)?;
            assert_eq!(input.get(end..end + 2)?, b"\r\n", "the end of a bulk");
            *at = end + 2;
            match mark {
                b'$' => quoted(body, out),
                _ => out.push_str(&format!("={}", String::from_utf8_lossy(body))),
            }
        }
        b'*' => list(input, at, length(), "[", out)?,
        b'~' => list(input, at, length(), "~[", out)?,
        b'>' => list(input, at, length(), ">[", out)?,
        b'%' => {
            out.push('{');
            for index in 0..length() {
                out.push_str(if index == 0 { "" } else { ", " });
                render(input, at, out)?;
                out.push_str(": ");
                render(input, at, out)?;
            }
            out.push('}');
        }
        _ => panic!("an unknown type of reply: {:?}", String::from_utf8_lossy(&rest[..end])),
    }
    Some(())
}

fn list(input: &[u8], at: &mut usize, length: i64, open: &str, out: &mut String) -> Option<()> {
    out.push_str(open);
    for index in 0..length {
        out.push_str(if index == 0 { "" } else { ", " });
        render(input, at, out)?;
    }
    out.push(']');
    Some(())
}

fn quoted(body: &[u8], out: &mut String) {
    out.push('"');
    for &byte in body {
        match byte {
            b'"' | b'\\' => out.extend(['\\', byte as char]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b' '..=b'~' => out.push(byte as char),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('"');
}
