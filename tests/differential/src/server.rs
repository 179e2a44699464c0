//! Starting and ending the servers that are compared: each a child process on a free port of 127.0.0.1, in its own
//! empty folder, ended when its handle is dropped.

use crate::wire::{Conn, Frame};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What an oracle is, as far as generators and the tolerated list care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `redis` or `valkey`
    pub flavour: String,
    pub version: (u32, u32),
}

impl Identity {
    pub fn name(&self) -> String {
        format!("{}-{}.{}", self.flavour, self.version.0, self.version.1)
    }
}

pub struct Server {
    pub addr: SocketAddr,
    binary: PathBuf,
    child: Child,
    dir: PathBuf,
}

impl Server {
    pub fn start(binary: &Path) -> io::Result<Server> {
        // A port found free may be taken before the child binds it: the child then exits, and another is tried.
        let mut last = io::Error::other("did not start");
        for _ in 0..5 {
            match Server::try_start(binary) {
                Ok(server) => return Ok(server),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn try_start(binary: &Path) -> io::Result<Server> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = std::env::temp_dir().join(format!("evenkeel-differential-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let log = fs::File::create(dir.join("log"))?;
        let child = Command::new(binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            // A slow machine must not make a script one to be told BUSY about.
            .args(["--enable-debug-command", "yes", "--busy-reply-threshold", "600000", "--dir"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut server = Server { addr, binary: binary.to_owned(), child, dir };
        server.await_ready()?;
        Ok(server)
    }

    fn await_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("ended at once ({status}):\n{}", self.log_tail())));
            }
            let answer = Conn::open(self.addr).map(|mut conn| conn.call(&["PING"]));
            if matches!(answer, Ok(Frame::Simple(_))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(io::Error::other(format!("did not answer PING:\n{}", self.log_tail())))
    }

    /// False once the process ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// A new process in place of this one, which hung or ended.
    pub fn restart(&mut self) -> io::Result<()> {
        let fresh = Server::start(&self.binary)?;
        *self = fresh;
        Ok(())
    }

    /// The end of what the server wrote to its terminal.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.dir.join("log")).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(3000)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    pub fn identity(&self) -> io::Result<Identity> {
        let Frame::Bulk(info) = Conn::open(self.addr)?.call(&["INFO", "server"]) else {
            return Err(io::Error::other("INFO server did not answer a text"));
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let (flavour, version) = match field("valkey_version") {
            Some(version) => ("valkey", version),
            None => ("redis", field("redis_version").unwrap_or("0.0")),
        };
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        Ok(Identity { flavour: flavour.to_owned(), version })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The pid is our own child's and not yet waited for, so it cannot have been given to somebody else.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
