//! The servers under test: where they are, how one is started on a free loopback port, and the kernel's
//! figures for it.
//!
//! A [`Server`] owns its process. Dropping it kills and reaps it and removes its directory. If this program
//! itself is killed, the kernel kills the server too. CPU time is the on-CPU nanoseconds of all threads as
//! the scheduler counts them, memory is the resident set. Both are measured from outside, the same for every
//! server.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::secure;
use crate::sys;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The entrance of a server, beside its port for plain RESP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    #[default]
    Plain,
    /// A further port with TLS, and a certificate made for this start. Clients show none.
    Tls,
    /// Users are kept in a file, [`USERS`].
    Users,
}

/// The file of users in a server's folder, and the user that it begins with.
pub const USERS: &str = "users.acl";
pub const EVERYBODY: &str = "user default on nopass ~* &* +@all\n";
/// The end of a start's error if the program was built without TLS.
pub const WITHOUT_TLS: &str = "Failed finding TLS support";

/// A server program.
#[derive(Clone)]
pub struct Target {
    pub label: String,
    pub path: PathBuf,
    pub cpus: Vec<usize>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// The file of a control group; the program joins it by writing to the file.
    pub group: Option<PathBuf>,
    pub door: Door,
}

impl Target {
    /// The same program with further arguments.
    pub fn with(&self, arguments: &[&str]) -> Target {
        let mut target = self.clone();
        target.arguments.extend(arguments.iter().map(|argument| argument.to_string()));
        target
    }

    /// The same program with this entrance.
    pub fn at(&self, door: Door) -> Target {
        Target { door, ..self.clone() }
    }

    /// The first line of `--version`, shortened to the version.
    pub fn version(&self) -> String {
        let output = Command::new(&self.path).arg("--version").stdin(Stdio::null()).output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default().trim();
        let words: Vec<&str> = line
            .split_whitespace()
            .filter(|word| !["sha=", "bits=", "build="].iter().any(|noise| word.starts_with(noise)))
            .collect();
        if words.is_empty() { "unknown version".to_string() } else { words.join(" ") }
    }
}

pub struct Server {
    pub label: String,
    pub port: u16,
    endpoint: Endpoint,
    /// The port with TLS, or 0.
    pub tls_port: u16,
    child: Child,
    dir: PathBuf,
}

/// The longest that a start may take without an answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl Server {
    /// Starts the program with nothing saved or logged to disk, and waits until it answers PING. Errors: in
    /// words, with the end of the program's own output.
    pub fn start(target: &Target) -> Result<Server, String> {
        let mut last = String::new();
        for _ in 0..3 {
            match Server::try_start(target) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(format!("{} did not start: {last}", target.label))
    }

    fn try_start(target: &Target) -> Result<Server, String> {
        let port = free_port().map_err(|e| e.to_string())?;
        let dir = std::env::temp_dir().join(format!("evenkeel-bench-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        let started = entrance(target.door, &dir).and_then(|(tls_port, words)| {
            Ok((
                tls_port,
                spawn(&target.with(&words.iter().map(String::as_str).collect::<Vec<_>>()), port, &dir)?,
            ))
        });
        let (tls_port, child) = started.map_err(|e| {
            let _ = fs::remove_dir_all(&dir);
            format!("{}: {e}", target.path.display())
        })?;
        let mut server = Server {
            label: target.label.clone(),
            port,
            endpoint: Endpoint::local(port),
            tls_port,
            child,
            dir,
        };
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            match Client::connect(Endpoint::local(port)).and_then(|mut client| client.words("PING")) {
                Ok(_) => return Ok(server),
                // A load may take as long as it wants.
                Err(error) if error.to_string().starts_with("LOADING") => {
                    deadline = Instant::now() + PATIENCE
                }
                Err(_) => {}
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("it ended with {status}{}", server.log_tail()));
            }
            if Instant::now() > deadline {
                return Err(format!("no answer to PING within {PATIENCE:?}{}", server.log_tail()));
            }
            sleep(Duration::from_millis(10));
        }
    }

    pub fn client(&self) -> io::Result<Client> {
        Client::connect(self)
    }

    /// The folder it runs in.
    pub fn folder(&self) -> &Path {
        &self.dir
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// On-CPU nanoseconds of all threads since they started.
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(self.pid())
    }

    /// Processor time of the process, with that of threads that have ended; in steps of 10 ms.
    pub fn cpu_whole_ns(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let behind = text.rsplit(')').next().unwrap_or_default();
        behind.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()
            * 10_000_000
    }

    /// Resident bytes.
    pub fn rss(&self) -> u64 {
        rss(self.pid())
    }

    /// The peak of resident bytes.
    pub fn rss_peak(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    }

    /// Waits until the server is nearly idle and its memory steady, at most `limit`.
    pub fn settle(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let step = Duration::from_millis(30);
        let mut quiet = 0;
        let (mut cpu, mut rss) = (self.cpu_ns(), self.rss());
        while quiet < 3 && Instant::now() < deadline {
            sleep(step);
            let (cpu_now, rss_now) = (self.cpu_ns(), self.rss());
            let still = cpu_now - cpu < 1_200_000 && rss_now.abs_diff(rss) <= rss / 1000;
            quiet = if still { quiet + 1 } else { 0 };
            (cpu, rss) = (cpu_now, rss_now);
        }
    }

    /// The way the server ended, if it did. A process that was just killed gets a moment to be gone.
    pub fn obituary(&mut self) -> Option<String> {
        sleep(Duration::from_millis(50));
        let status = self.child.try_wait().ok()??;
        Some(format!("{} ended with {status}{}", self.label, self.log_tail()))
    }

    fn log_tail(&self) -> String {
        let text = fs::read(self.dir.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let tail: Vec<&str> = text.lines().rev().take(5).collect();
        tail.iter().rev().fold(String::new(), |all, line| format!("{all}\n    {line}"))
    }
}

impl AsRef<Endpoint> for Server {
    fn as_ref(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Makes in `dir` the files that a door needs. Returns the port with TLS, or 0, and further arguments.
fn entrance(door: Door, dir: &Path) -> io::Result<(u16, Vec<String>)> {
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    match door {
        Door::Plain => Ok((0, Vec::new())),
        Door::Tls => {
            let (port, [certificate, key]) = (free_port()?, secure::papers(dir)?);
            let (port_word, certificate, key) =
                (port.to_string(), certificate.display().to_string(), key.display().to_string());
            Ok((
                port,
                words(&[
                    "--tls-port",
                    &port_word,
                    "--tls-cert-file",
                    &certificate,
                    "--tls-key-file",
                    &key,
                    "--tls-auth-clients",
                    "no",
                ]),
            ))
        }
        Door::Users => {
            let file = dir.join(USERS);
            fs::write(&file, EVERYBODY)?;
            Ok((0, words(&["--aclfile", &file.display().to_string()])))
        }
    }
}

fn spawn(target: &Target, port: u16, dir: &Path) -> io::Result<Child> {
    let log = File::create(dir.join("log"))?;
    let mut command = Command::new(&target.path);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(&target.arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log);
    sys::bind_child(&mut command, &target.cpus);
    if let Some(group) = &target.group {
        sys::join_group(&mut command, File::options().write(true).open(group)?);
    }
    command.spawn()
}

/// On-CPU nanoseconds of all threads of a process since they started.
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()))
        .sum()
}

/// Resident bytes of a process.
pub fn rss(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    pages.unwrap_or(0) * sys::page_size()
}

pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The folder where `make peers` puts programs.
pub fn peers_folder(told: Option<&str>) -> PathBuf {
    told.map(PathBuf::from)
        .or_else(|| std::env::var_os("EVENKEEL_PEERS").map(PathBuf::from))
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/evenkeel-peers")))
        .unwrap_or_default()
        .join("bin")
}

/// Finds the servers to measure. The second part lists missing ones in words.
pub fn discover(evenkeel: Option<&str>, peers: Option<&str>, cpus: &[usize]) -> (Vec<Target>, Vec<String>) {
    let beside_us = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("evenkeel")));
    let cache = peers_folder(peers);
    let candidates = [
        (
            "Evenkeel",
            evenkeel.and_then(|path| std::path::absolute(path).ok()).or(beside_us).unwrap_or_default(),
            "cargo build --release",
        ),
        ("Valkey", cache.join("valkey-server"), "make peers"),
        ("Redis", cache.join("redis8-server"), "make peers"),
    ];
    let (mut targets, mut missing) = (Vec::new(), Vec::new());
    for (label, path, remedy) in candidates {
        if path.is_file() {
            targets.push(Target {
                label: label.to_string(),
                path,
                cpus: cpus.to_vec(),
                arguments: Vec::new(),
                group: None,
                door: Door::Plain,
            });
        } else {
            missing.push(format!("{label} is missing ({}); `{remedy}` makes it", path.display()));
        }
    }
    (targets, missing)
}
