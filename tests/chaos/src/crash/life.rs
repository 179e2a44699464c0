//! A server on files that outlive it.

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use support::wire::{Conn, Frame};

/// Time for a start, and for an end. Nothing but a server that hangs takes so long, however busy the machine
/// is.
const PATIENCE: Duration = Duration::from_secs(1800);

pub struct Life {
    pub addr: SocketAddr,
    child: Child,
    log: PathBuf,
}

/// The outcome of a start.
pub enum Start {
    Ready(Life),
    /// It ended: how, and what it said.
    Ended(ExitStatus, String),
}

impl Life {
    /// Starts a process. What it says goes to a file.
    pub fn spawn(binary: &Path, dir: &Path, args: &[String], log: &Path) -> Result<Life, String> {
        Life::spawn_by(&[binary.display().to_string()], dir, args, log)
    }

    /// Starts a process by a program and its first words.
    fn spawn_by(program: &[String], dir: &Path, args: &[String], log: &Path) -> Result<Life, String> {
        let (binary, first) = program.split_first().ok_or("no program")?;
        let failed = |e: std::io::Error| format!("{binary}: {e}");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).map_err(failed)?.port();
        let said = File::create(log).map_err(failed)?;
        let child = Command::new(binary)
            .args(first)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(dir)
            .args(args)
            .stdin(Stdio::null())
            .stdout(said.try_clone().map_err(failed)?)
            .stderr(said)
            .spawn()
            .map_err(failed)?;
        Ok(Life { addr: SocketAddr::from(([127, 0, 0, 1], port)), child, log: log.to_owned() })
    }

    /// Starts it, and waits until the data is loaded.
    pub fn start(binary: &Path, dir: &Path, args: &[String], log: &Path) -> Result<Start, String> {
        Life::start_by(&[binary.display().to_string()], dir, args, log)
    }

    /// As `start`, by a program that takes the place of another one, and its first words.
    pub fn start_by(program: &[String], dir: &Path, args: &[String], log: &Path) -> Result<Start, String> {
        for _ in 0..5 {
            let mut life = Life::spawn_by(program, dir, args, log)?;
            match life.ready()? {
                // A port found free may be taken before the server has it.
                Some(_) if life.said().contains("in use") => {}
                Some(status) => return Ok(Start::Ended(status, life.said())),
                None => return Ok(Start::Ready(life)),
            }
        }
        Err("no port is free".into())
    }

    /// Waits until the data is loaded. Some: the process ended.
    fn ready(&mut self) -> Result<Option<ExitStatus>, String> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().map_err(|e| e.to_string())? {
                return Ok(Some(status));
            }
            if let Ok(mut conn) = Conn::open(self.addr)
                && conn.call(&["PING"]) == Frame::Simple(b"PONG".to_vec())
                && info(&mut conn, "loading").as_deref() == Some("0")
            {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        Err(format!("not ready after {} s:\n{}", PATIENCE.as_secs(), self.said()))
    }

    pub fn conn(&self) -> Result<Conn, String> {
        let mut conn = Conn::open(self.addr).map_err(|e| format!("a connection: {e}"))?;
        conn.set_patience(PATIENCE);
        Ok(conn)
    }

    /// The end of what the process said.
    pub fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned()
    }

    /// How the process ended by itself, if it did.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!("the server ended by itself ({status}):\n{}", self.said()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        // The pid is our own child's and not yet waited for, so no other process can have it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it in order. Errors: it does not end, or says that something went wrong.
    pub fn end(&mut self) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(|e| e.to_string())?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match self.child.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("SIGTERM ended it so: {status}\n{}", self.said())),
                None => std::thread::sleep(Duration::from_millis(3)),
            }
        }
        Err(format!("SIGTERM did not end it:\n{}", self.said()))
    }

    /// Files may not grow beyond this; none: as they like.
    pub fn limit_files(&self, bytes: Option<u64>) -> Result<(), String> {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, limit)
            .map(drop)
            .map_err(|e| e.to_string())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A field of INFO.
pub fn info(conn: &mut Conn, name: &str) -> Option<String> {
    let reply = conn.call(&["INFO", "persistence"]);
    let text = String::from_utf8_lossy(reply.text()?).into_owned();
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}
