//! `evenkeel stat` and `evenkeel top`, beside Evenkeel and a real Redis.

use crate::support::{PATIENCE, Server, foreign, said};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_evenkeel");

fn stat(args: &[&str]) -> Output {
    Command::new(BINARY).arg("stat").args(args).stdin(Stdio::null()).output().expect("the program")
}

/// The lines of `stat --json` that tell figures.
fn figures(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line.get("note").is_none()).collect()
}

/// Sends GETs from a thread for as long as the returned sender lives.
fn load(server: &Server) -> std::sync::mpsc::Sender<()> {
    let mut client = server.client();
    let (sender, ended) = channel();
    client.expect("SET a 1", "+OK");
    std::thread::spawn(move || {
        while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            client.expect("GET a", "\"1\"");
        }
    });
    sender
}

#[test]
fn stat_prints_what_a_server_does_as_json() {
    if foreign() {
        return;
    }
    for own in [true, false] {
        let server = if own { Some(Server::start()) } else { Server::redis(&[]) };
        let Some(server) = server else { continue };
        let _load = load(&server);
        let lines = figures(&stat(&[&server.addr.to_string(), "--count", "2", "--json"]));
        assert_eq!(lines.len(), 2);
        for line in &lines {
            let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} of {line}"));
            assert_eq!(line["server"], if own { "evenkeel" } else { "redis" });
            assert!(
                number("ops") > 1.0 && number("input_bytes") > 20.0 && number("output_bytes") > 5.0,
                "{line}"
            );
            assert!(number("clients") >= 2.0 && number("memory") > 100_000.0, "{line}");
            assert_eq!((line["hit_rate"].as_f64(), line["evicted"].as_f64()), (Some(1.0), Some(0.0)));
        }
        let latency = &lines[1]["latency_us"];
        assert_eq!(latency["from"], if own { "server" } else { "ping" });
        assert!(
            latency["p50"].as_u64().is_some_and(|us| us > 0)
                && latency["p999"].as_u64() >= latency["p50"].as_u64(),
            "{latency}"
        );
    }
}

#[test]
fn stat_logs_in_by_a_file_and_says_what_it_may_not() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("ACL SETUSER ann on >s3cret +info", "+OK");
    client.expect("ACL SETUSER default off", "+OK");
    let file = server.dir.path().join("password");
    std::fs::write(&file, "s3cret\n").expect("written");
    let (place, file) = (server.addr.to_string(), file.display().to_string());
    let output = stat(&[&place, "--user", "ann", "--password-file", &file, "-c", "1", "-i", "0.2"]);
    let text = said(&output);
    assert!(output.status.success() && text.contains("-- EVENKEEL NOW: NOPERM"), "{text}");
    assert!(text.contains("round trips of this tool's PINGs"), "{text}");
    // Without the right login nothing is printed but the reason.
    for args in [&[&*place, "-c", "1"][..], &[&place, "--user", "ann", "-a", "wrong", "-c", "1"]] {
        let output = stat(args);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty() && said(&output).contains(&place), "{}", said(&output));
    }
}

/// A program on a terminal of its own of 80 by 24, with what it prints.
struct Typed {
    child: Child,
    printed: Receiver<Vec<u8>>,
    text: String,
}

impl Typed {
    /// Runs words of a shell by script(1). None, with a notice, where there is none.
    fn start(line: &str) -> Option<Typed> {
        let line = format!("stty rows 24 cols 80; {line}");
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::piped());
        let Ok(mut child) = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn() else {
            eprintln!("no script(1): not tried");
            return None;
        };
        let (sender, printed) = channel();
        let mut out = child.stdout.take().expect("its output");
        std::thread::spawn(move || {
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut buf) {
                if sender.send(buf[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Some(Typed { child, printed, text: String::new() })
    }

    fn until(&mut self, sought: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.text.contains(sought) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {sought:?} in {:?}", self.text);
            if let Ok(bytes) = self.printed.recv_timeout(left.min(Duration::from_millis(100))) {
                self.text.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    fn press(&mut self, keys: &[u8]) {
        let input = self.child.stdin.as_mut().expect("its input");
        input.write_all(keys).and_then(|()| input.flush()).expect("it reads");
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_draws_and_gives_the_terminal_back() {
    if foreign() {
        return;
    }
    for own in [true, false] {
        let server = if own { Some(Server::start()) } else { Server::redis(&[]) };
        let Some(server) = server else { continue };
        server.client().expect("CLIENT SETNAME nobody", "+OK");
        for keys in [&b"q"[..], b"\x03", b"??/clients\rsjkp3q"] {
            let line =
                format!("echo before $(stty -g).; {BINARY} top {}; echo after $? $(stty -g).", server.addr);
            let Some(mut top) = Typed::start(&line) else { return };
            top.until(if own { "evenkeel 0" } else { "redis " });
            top.until("latency");
            top.press(keys);
            top.until("after 0 ");
            top.until(".\r\n");
            let text = &top.text;
            // The other screen was left, and the cursor is shown.
            let left = text.find("\x1b[?1049l").expect("the first screen");
            assert!(left > text.find("\x1b[?1049h").expect("the other screen"), "{text:?}");
            assert!(text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "{text:?}");
            let modes = |mark: &str| {
                text.split(mark).nth(1).and_then(|rest| rest.split('.').next()).map(str::to_owned)
            };
            assert_eq!(modes("before "), modes("after 0 "), "{text:?}");
        }
    }
}

#[test]
fn top_without_a_terminal_says_so() {
    if foreign() {
        return;
    }
    let output = Command::new(BINARY).arg("top").stdin(Stdio::null()).output().expect("the program");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("evenkeel top needs a terminal"), "{}", said(&output));
}

#[test]
fn stat_comes_back_after_the_server() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let port = server.addr.port();
    let place = server.addr.to_string();
    let mut stat = Command::new(BINARY);
    let stat = stat.args(["stat", &place, "-i", "0.2"]).stdout(Stdio::piped()).stdin(Stdio::null());
    let mut child = stat.spawn().expect("the program");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let mut until = |sought: &str| {
        let mut line = String::new();
        while !line.contains(sought) {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut out, &mut line).expect("a line") > 0, "no {sought}");
        }
    };
    until("ops/s");
    drop(server);
    until(&format!("-- lost {place}: "));
    let _server = Server::start_on(port);
    until("-- connected again");
    until("ops/s");
    let _ = child.kill();
    let _ = child.wait();
}
