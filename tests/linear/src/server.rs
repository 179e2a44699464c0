//! The server under test: a child process on a free port of 127.0.0.1, in an empty folder of its own, ended when its
//! handle is dropped.

use crate::wire::Conn;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    pub addr: SocketAddr,
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
        let dir = std::env::temp_dir().join(format!("evenkeel-linear-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let log = fs::File::create(dir.join("log"))?;
        let child = Command::new(binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--enable-debug-command", "yes", "--dir"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut server = Server { addr, child, dir };
        server.await_ready()?;
        Ok(server)
    }

    fn await_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("ended at once ({status}):\n{}", self.log_tail())));
            }
            if Conn::open(self.addr).and_then(|mut conn| conn.call(&["PING"])).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(io::Error::other(format!("did not answer PING:\n{}", self.log_tail())))
    }

    /// How the process ended, if it did.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(format!("the server ended ({status}):\n{}", self.log_tail())),
            _ => None,
        }
    }

    /// The end of what the server wrote to its terminal.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.dir.join("log")).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(3000)..];
        String::from_utf8_lossy(tail).into_owned()
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
