//! A server of its own: this program, started for the run and ended with it.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::options::PREFIX;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest that a start may take without an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The word of the command line that becomes the server.
pub const PART: &str = "server-process";

/// A running server in a temporary folder. Dropping it ends it and removes the folder.
pub struct Own {
    pub endpoint: Endpoint,
    child: Child,
    dir: PathBuf,
}

impl Own {
    /// Starts it on a free port of this machine, without snapshots and log, and waits until it answers.
    /// Errors: it did not start, with the end of its output.
    pub fn start() -> Result<Own, String> {
        let mut last = String::new();
        for _ in 0..3 {
            match Own::try_start() {
                Ok(own) => return Ok(own),
                Err(why) => last = why,
            }
        }
        Err(format!("the server for the benchmark did not start: {last}"))
    }

    fn try_start() -> Result<Own, String> {
        let port = free_port().map_err(|e| e.to_string())?;
        let dir = std::env::temp_dir().join(format!("evenkeel-bench-{}-{port}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let child = spawn(port, &dir).map_err(|e| {
            let _ = fs::remove_dir_all(&dir);
            e.to_string()
        })?;
        let endpoint = Endpoint { prefix: PREFIX.to_owned(), ..Endpoint::local(port) };
        let mut own = Own { endpoint, child, dir };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if Client::connect(&own.endpoint).and_then(|mut client| client.words("PING")).is_ok() {
                return Ok(own);
            }
            if let Ok(Some(status)) = own.child.try_wait() {
                return Err(format!("it ended with {status}{}", own.log_tail()));
            }
            if Instant::now() > deadline {
                return Err(format!("no answer within {} s{}", PATIENCE.as_secs(), own.log_tail()));
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn log_tail(&self) -> String {
        let text = fs::read(self.dir.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let tail: Vec<&str> = text.lines().rev().take(5).collect();
        tail.iter().rev().fold(String::new(), |all, line| format!("{all}\n    {line}"))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn spawn(port: u16, dir: &Path) -> io::Result<Child> {
    let log = File::create(dir.join("log"))?;
    Command::new(std::env::current_exe()?)
        .args(["bench", PART, "--port", &port.to_string(), "--bind", "127.0.0.1"])
        // The story `rows` reads the demonstration database, whose file goes with the folder.
        .args(["--save", "", "--appendonly", "no", "--demo", "yes", "--dir"])
        .arg(dir)
        .env("TMPDIR", dir)
        .current_dir(dir)
        // A Ctrl-C at the terminal is not for it.
        .process_group(0)
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log)
        .spawn()
}

/// Becomes the server that [`Own`] starts, which the kernel ends with its parent. Returns only if that fails.
pub fn become_server(args: &[OsString]) -> io::Error {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    match std::env::current_exe() {
        Ok(program) => Command::new(program).args(args).exec(),
        Err(error) => error,
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
