//! The tools beside servers that lie: they end, say why in one line that steers no terminal, and take little
//! memory.

use crate::support::{Server, foreign};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_evenkeel");
/// No tool may take longer beside a liar: their own limits are some seconds.
const END: Duration = Duration::from_secs(240);
/// Kilobytes that a tool may take. A debug build alone has some 120 MB with the symbols of a stack.
const MEMORY_MAX_KB: u64 = 700 << 10;
const ESCAPES: &str = "\x1b]0;pwned\x07\x1b[2J\u{9b}31m\u{202e}";

/// How a liar answers: once for each request.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Says(&'static str),
    /// The first text, then the second without end.
    Floods(&'static str, &'static str),
    /// A byte of a reply now and then.
    Trickles,
    Closes(&'static str),
    Nests,
    Escapes(&'static str),
}

const LIES: [Lie; 18] = [
    Lie::Says(""),
    Lie::Says("HTTP/1.1 400 Bad Request\r\n\r\n"),
    Lie::Says("$9223372036854775807\r\nabc"),
    Lie::Says("*-1\r\n"),
    Lie::Says("%1\r\n+a\r\n*2\r\n:1\r\n%0\r\n"),
    Lie::Says(",nan\r\n"),
    Lie::Says(":-7\r\n"),
    Lie::Says("-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
    Lie::Floods("$100000000000\r\n", "xxxx"),
    Lie::Floods("*9223372036854775807\r\n", ":1\r\n"),
    Lie::Floods("-ERR ", "xxxx"),
    Lie::Floods("", "|1\r\n+a\r\n+b\r\n"),
    Lie::Trickles,
    Lie::Closes("*3\r\n$5\r\nhel"),
    Lie::Closes(""),
    Lie::Nests,
    Lie::Escapes("-ERR "),
    Lie::Escapes("-WRONGPASS "),
];

impl Lie {
    fn tell(self, stream: &mut TcpStream) -> std::io::Result<()> {
        match self {
            Lie::Says(text) => stream.write_all(text.as_bytes()),
            Lie::Floods(head, more) => {
                stream.write_all(head.as_bytes())?;
                let many = more.repeat(1 << 16);
                loop {
                    stream.write_all(many.as_bytes())?;
                }
            }
            Lie::Trickles => {
                stream.write_all(b"+")?;
                loop {
                    stream.write_all(b"x")?;
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            Lie::Closes(text) => {
                stream.write_all(text.as_bytes())?;
                Err(std::io::ErrorKind::ConnectionAborted.into())
            }
            Lie::Nests => stream.write_all(&[b"*1\r\n".repeat(10_000), b":1\r\n".to_vec()].concat()),
            Lie::Escapes(code) => stream.write_all(format!("{code}{ESCAPES}\r\n").as_bytes()),
        }
    }
}

/// A server that answers whatever comes with this lie, and its address.
fn liar(lie: Lie) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    if lie.tell(&mut stream).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// The end of a tool: exit code, what it said, the most memory that it had in kilobytes.
fn ended(words: &[&str]) -> (Option<i32>, String, u64) {
    let mut child = Command::new(BINARY)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut pipes: Vec<Box<dyn Read + Send>> = Vec::new();
    pipes.extend(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    pipes.extend(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let readers: Vec<_> = pipes
        .into_iter()
        .map(|mut pipe| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = pipe.read_to_end(&mut bytes);
                bytes
            })
        })
        .collect();
    let (begin, mut peak) = (Instant::now(), 0);
    let status = loop {
        let about = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let most = about.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        peak = peak.max(most.split_whitespace().next().and_then(|kb| kb.parse().ok()).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("its end") {
            break status;
        }
        if begin.elapsed() > END {
            let _ = child.kill();
            panic!("{words:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let said: Vec<u8> = readers.into_iter().flat_map(|reader| reader.join().expect("read")).collect();
    (status.code(), String::from_utf8(said).expect("UTF-8"), peak)
}

#[test]
fn no_lie_of_a_server_hangs_steers_or_fills_a_tool() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let rows = folder.path().join("rows.csv");
    std::fs::write(&rows, "id,name\n1,a\n").expect("written");
    let rows = rows.display().to_string();
    let target = Server::start();
    let to = target.addr.to_string();
    let lies: Vec<_> = LIES.into_iter().map(|lie| (lie, liar(lie))).collect();
    let one = |lie: Lie, place: &str| {
        let tools: [&[&str]; 6] = [
            &["ping", place, "--timeout", "2"],
            &["ping", place, "--timeout", "2", "-a", "pw"],
            &["stat", place, "-c", "2", "-i", "0.2"],
            &["bench", "keys", "--against", place, "--seconds", "0.2", "--keys", "1000", "--timeout", "1"],
            &["load", &rows, "--key", "u:{id}", "--to", place, "--timeout", "1"],
            &["copy", "--from", place, "--to", &to, "--timeout", "1"],
        ];
        for words in tools {
            let (code, said, peak) = ended(words);
            let seen = format!("{lie:?}, {}: {code:?} {said}", words[0]);
            assert_eq!(code, Some(1), "{seen}");
            assert!(!said.contains("panicked") && !said.trim().is_empty(), "{seen}");
            assert!(said.trim().lines().count() <= 2 && said.len() < 2_000, "{seen}");
            let steers = |char: char| (char.is_control() && char != '\n') || char == '\u{202e}';
            assert!(!said.chars().any(steers), "{said:?}");
            assert!(peak < MEMORY_MAX_KB, "{seen}: {peak} KB");
        }
    };
    // All liars at once, as most of them only let wait.
    std::thread::scope(|scope| {
        for (lie, place) in &lies {
            scope.spawn(move || one(*lie, place));
        }
    });
}

#[test]
fn a_signal_ends_the_wait_for_a_silent_server() {
    if foreign() {
        return;
    }
    let silent = liar(Lie::Says(""));
    let copy = ["copy", "--from", &silent, "--to", &silent];
    let load = ["load", "/dev/null", "--format", "csv", "--key", "{id}", "--to", &silent];
    for words in [&copy[..], &load] {
        let child = Command::new(BINARY).args(words).stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let pid = rustix::process::Pid::from_child(&child);
        // Until it handles signals: before, one would end it without a word.
        let caught = || {
            let about = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let mask = about.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
            u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & (1 << 14) != 0)
        };
        crate::waits::until("it handles signals", caught);
        std::thread::sleep(Duration::from_millis(300));
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("sent");
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("its end") {
                break status;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{words:?} waits on");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(143), "{words:?}");
    }
}

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let place = server.addr.to_string();
    let tools: [&[&str]; 6] = [
        &["stat", &place, "-i", "0.1", "-c", "50"],
        &["stat", &place, "-i", "0.1", "-c", "50", "--json"],
        &["top", &place, "--once"],
        &[
            "bench",
            "script",
            "--against",
            &place,
            "--keys",
            "1000",
            "--seconds",
            "0.2",
            "--expect",
            "script.max_ms<0",
        ],
        &["ping", &place],
        &["man"],
    ];
    for words in tools {
        let mut child = Command::new(BINARY)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked") && output.status.code().is_some(), "{words:?}: {said}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    if foreign() {
        return;
    }
    for option in ["--json", "--html", "--md"] {
        let (code, said, _) =
            ended(&["bench", "copy", "--against", "127.0.0.1:1", option, "/no/such/folder/file"]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.starts_with("cannot write /no/such/folder/file: "), "{said}");
    }
}
