//! Servers under test, ours or others. Each is a child process on a free port of 127.0.0.1, in its own empty
//! folder, and ends when its handle is dropped.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    pub addr: SocketAddr,
    binary: PathBuf,
    args: Vec<String>,
    child: Child,
    dir: PathBuf,
}

impl Server {
    pub fn start(binary: &Path) -> io::Result<Server> {
        Server::start_with(binary, &[])
    }

    /// Starts a server with its own arguments.
    pub fn start_with(binary: &Path, args: &[String]) -> io::Result<Server> {
        // A port found free may be taken before the child binds it. The child then exits, and another port is
        // tried.
        let mut last = io::Error::other("did not start");
        for _ in 0..5 {
            match Server::try_start(binary, args) {
                Ok(server) => return Ok(server),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn try_start(binary: &Path, args: &[String]) -> io::Result<Server> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = std::env::temp_dir().join(format!("evenkeel-test-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let log = fs::File::create(dir.join("log"))?;
        let child = Command::new(binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            // On a slow machine a script must not become one that is answered with BUSY.
            .args(["--enable-debug-command", "yes", "--busy-reply-threshold", "600000", "--dir"])
            .arg(&dir)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut server = Server { addr, binary: binary.to_owned(), args: args.to_vec(), child, dir };
        server.await_ready()?;
        Ok(server)
    }

    fn await_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("ended at once ({status}):\n{}", self.log_tail())));
            }
            if answers(self.addr).is_ok_and(|first| first == b'+') {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(io::Error::other(format!("did not answer PING:\n{}", self.log_tail())))
    }

    /// False once the process ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The way the process ended, if it did.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(format!("the server ended ({status}):\n{}", self.log_tail())),
            _ => None,
        }
    }

    /// Starts a new process in place of this one, which hung or ended.
    pub fn restart(&mut self) -> io::Result<()> {
        let fresh = Server::start_with(&self.binary, &self.args)?;
        *self = fresh;
        Ok(())
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.dir.join("log")).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(3000)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    /// The whole log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }

    /// Memory of the process that is in RAM.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) << 10
    }

    /// The open descriptors of the process, as the system names them: `socket:[17]`, paths.
    pub fn descriptors(&self) -> Vec<String> {
        let all = fs::read_dir(format!("/proc/{}/fd", self.child.id())).into_iter().flatten().flatten();
        all.filter_map(|one| Some(fs::read_link(one.path()).ok()?.to_string_lossy().into_owned())).collect()
    }

    /// Limits the process's own memory (RLIMIT_DATA); requests for more fail.
    pub fn limit_data(&self, bytes: u64) -> io::Result<()> {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Data, limit)?;
        Ok(())
    }

    /// Ends the process at once.
    pub fn kill(&mut self) {
        // The pid is our own child's and not yet waited for, so no other process can have it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first byte of the answer to PING.
fn answers(addr: SocketAddr) -> io::Result<u8> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut first = [0];
    stream.read_exact(&mut first)?;
    Ok(first[0])
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
