//! A server on a port and a folder of its own, which both outlive its processes.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::wire::{Conn, Frame};

/// Time in which a process answers after its start. Only one that hangs takes so long.
const START: Duration = Duration::from_secs(120);

pub struct Node {
    pub nr: usize,
    binary: PathBuf,
    pub is_ours: bool,
    pub port: u16,
    dir: PathBuf,
    child: Option<Child>,
    pub appendonly: bool,
    settings: Vec<String>,
    pub is_stopped: bool,
}

/// The fields of INFO.
pub struct Info(BTreeMap<String, String>);

impl Info {
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |text| text)
    }

    /// 0 if it is missing.
    pub fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }

    pub fn follows(&self) -> bool {
        self.text("role") == "slave"
    }

    /// It follows, and the connection to its primary works.
    pub fn is_up(&self) -> bool {
        self.follows() && self.text("master_link_status") == "up"
    }

    /// A copy of all data is under way.
    pub fn is_copying(&self) -> bool {
        self.text("master_sync_in_progress") == "1" || self.text("loading") == "1"
    }

    pub fn offset(&self) -> i64 {
        self.number("master_repl_offset")
    }

    /// Its lines whose names contain one of some words.
    pub fn shown(&self, words: &[&str]) -> String {
        let lines = self.0.iter().filter(|(name, _)| words.iter().any(|word| name.contains(word)));
        lines.map(|(name, value)| format!("{name}:{value}")).collect::<Vec<_>>().join(" ")
    }
}

/// A free port outside the range of outgoing connections, so that it stays free while the server is down.
pub fn free_port() -> u16 {
    let random = RandomState::new();
    let mut ports = (0u32..).map(|nr| 15_000 + (random.hash_one(nr) % 15_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap_or(0)
}

impl Node {
    pub fn new(nr: usize, binary: &Path, is_ours: bool, dir: &Path, settings: Vec<String>) -> Node {
        let dir = dir.join(format!("node{nr}"));
        let (binary, port) = (binary.to_owned(), free_port());
        Node { nr, binary, is_ours, port, dir, child: None, appendonly: false, settings, is_stopped: false }
    }

    pub fn name(&self) -> String {
        let program = self.binary.file_name().unwrap_or_default().to_string_lossy();
        format!("{} ({program}, {})", self.nr, self.port)
    }

    pub fn settings(&self) -> String {
        self.settings.join(" ")
    }

    /// Starts a process, and waits until it answers, be it that it is loading. Errors: it ends, or is silent.
    pub fn start(&mut self, upstream: Option<u16>) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("node {}: {e}", self.nr);
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let log = File::options().create(true).append(true).open(self.dir.join("log")).map_err(failed)?;
        let mut command = Command::new(&self.binary);
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(&self.dir)
            .args(["--appendonly", if self.appendonly { "yes" } else { "no" }])
            .args(&self.settings);
        if let Some(port) = upstream {
            command.args(["--replicaof", "127.0.0.1", &port.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        self.child = Some(command.spawn().map_err(failed)?);
        self.is_stopped = false;
        let began = Instant::now();
        while began.elapsed() < START {
            if let Some(how) = self.ended() {
                return Err(how);
            }
            if self.conn().is_ok_and(|mut conn| !matches!(conn.call(&["PING"]), Frame::Gone(_))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("node {} does not answer after its start", self.name()))
    }

    /// Waits until the data are loaded. Errors: it ends, or never has loaded them.
    pub fn loaded(&mut self) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < START {
            if let Some(how) = self.ended() {
                return Err(how);
            }
            if self.info().is_some_and(|info| info.text("loading") == "0") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("node {} loads and loads", self.name()))
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// How the process ended by itself, if it did.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(format!("node {} ended by itself ({status})", self.name()))
    }

    pub fn conn(&self) -> Result<Conn, String> {
        connect(self.port)
    }

    /// INFO. `None`: it does not answer with one.
    pub fn info(&self) -> Option<Info> {
        let mut conn = self.conn().ok()?;
        conn.set_patience(Duration::from_secs(30));
        let mut lines = BTreeMap::new();
        let reply = conn.call(&["INFO"]);
        for line in String::from_utf8_lossy(reply.text().filter(|_| !reply.is_error())?).lines() {
            if let Some((name, value)) = line.split_once(':') {
                lines.insert(name.to_owned(), value.trim().to_owned());
            }
        }
        Some(Info(lines))
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The pid is our own child's and not yet waited for, so no other process can have it.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.is_stopped = false;
    }

    /// Ends it in order. Errors: it does not end.
    pub fn end(&mut self) -> Result<(), String> {
        self.signal(Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < START {
            let Some(child) = &mut self.child else { return Ok(()) };
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    self.child = None;
                    return Ok(());
                }
            }
        }
        Err(format!("SIGTERM does not end node {}", self.name()))
    }

    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        self.is_stopped = true;
    }

    pub fn go_on(&mut self) {
        self.signal(Signal::CONT);
        self.is_stopped = false;
    }

    /// The log of all its processes.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }

    /// The end of the log, without the watchdog's lines.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().filter(|line| !is_stall(line)).collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    pub fn resident_bytes(&self) -> u64 {
        let Some(child) = &self.child else { return 0 };
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A line of the watchdog, of which a busy machine makes many.
pub fn is_stall(line: &str) -> bool {
    line.contains(" stalled for ")
}

/// A connection to a server. It may be stopped for some time, so patience is long.
pub fn connect(port: u16) -> Result<Conn, String> {
    let mut conn =
        Conn::open(SocketAddr::from(([127, 0, 0, 1], port))).map_err(|e| format!("a connection: {e}"))?;
    conn.set_patience(START);
    Ok(conn)
}
