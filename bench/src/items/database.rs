//! A PostgreSQL of the bench's own: in a temporary folder, on a free port, with no waits for a disk.

use crate::server;
use crate::sys;
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SETTINGS: &[&str] = &[
    "listen_addresses=127.0.0.1",
    "wal_level=logical",
    "fsync=off",
    "max_wal_size=4GB",
    "max_replication_slots=20",
    "max_wal_senders=20",
    "max_connections=100",
    "shared_buffers=512MB",
    "autovacuum=off",
];

pub struct Database {
    folder: PathBuf,
    programs: PathBuf,
    port: u16,
    process: Child,
}

impl Database {
    /// Makes and starts one. Errors: in words, for example that PostgreSQL is not installed.
    pub fn start() -> Result<Database, String> {
        let programs = programs()?;
        let port = server::free_port().map_err(|e| e.to_string())?;
        let folder = std::env::temp_dir().join(format!("evenkeel-bench-{}-{port}", std::process::id()));
        make_folder(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let started = initialise(&programs, &folder).and_then(|()| run(&programs, &folder, port));
        let process = started.inspect_err(|_| {
            let _ = fs::remove_dir_all(&folder);
        })?;
        let mut database = Database { folder, programs, port, process };
        database.wait()?;
        Ok(database)
    }

    fn wait(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match self.session() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(format!("PostgreSQL: {error}")),
                Err(_) => sleep(Duration::from_millis(20)),
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(format!("PostgreSQL ended with {status}: {log}"));
            }
        }
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub fn session(&self) -> io::Result<Session> {
        Session::connect(self.port)
    }

    /// On-CPU nanoseconds of its living processes.
    pub fn cpu_ns(&self) -> u64 {
        let postmaster = self.process.id();
        let parent = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let children = pids.filter(|&pid| parent(pid) == Some(postmaster));
        children.chain([postmaster]).map(server::cpu_ns).sum()
    }

    pub fn version(&self) -> String {
        let output = command(&self.programs, "postgres").arg("--version").stdout(Stdio::piped()).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string()).unwrap_or_default()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let data = self.folder.join("data");
        let stop =
            command(&self.programs, "pg_ctl").args(["stop", "-m", "immediate", "-D"]).arg(data).status();
        if !stop.is_ok_and(|status| status.success()) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The folder of the programs: from `pg_config`, else the newest version in Debian's folders.
fn programs() -> Result<PathBuf, String> {
    let told = Command::new("pg_config").arg("--bindir").output().ok();
    let told = told.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    found.sort();
    let mut candidates = told.into_iter().chain(found.into_iter().rev());
    candidates
        .find(|folder| folder.join("initdb").exists())
        .ok_or("PostgreSQL is missing; `apt-get install postgresql` brings it".to_string())
}

/// The user to run it as. Used if we are the superuser, which it refuses.
fn user() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").map(|me| me.uid()).ok()? != 0 {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    ids("postgres").or_else(|| ids("nobody"))
}

fn make_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    match user() {
        Some((user, group)) => chown(folder, Some(user), Some(group)),
        None => Ok(()),
    }
}

fn command(programs: &Path, name: &str) -> Command {
    let mut command = Command::new(programs.join(name));
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn initialise(programs: &Path, folder: &Path) -> Result<(), String> {
    let made = command(programs, "initdb")
        .args(["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale", "C", "-D"])
        .arg(folder.join("data"))
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| format!("initdb: {e}"))?;
    let told = String::from_utf8_lossy(&made.stderr);
    if made.status.success() { Ok(()) } else { Err(format!("initdb: {told}")) }
}

fn run(programs: &Path, folder: &Path, port: u16) -> Result<Child, String> {
    let log = File::create(folder.join("log")).map_err(|e| e.to_string())?;
    let mut command = command(programs, "postgres");
    command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).args(["-p", &port.to_string()]);
    SETTINGS.iter().for_each(|setting| {
        command.args(["-c", setting]);
    });
    sys::bind_child(&mut command, &[]);
    command.stderr(log).spawn().map_err(|e| format!("postgres: {e}"))
}

/// A connection that runs statements.
pub struct Session {
    stream: BufReader<TcpStream>,
}

impl Session {
    fn connect(port: u16) -> io::Result<Session> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(180)))?;
        let mut session = Session { stream: BufReader::with_capacity(256 << 10, stream) };
        let hello = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        session.send(&[], hello)?;
        session.read_all()?;
        Ok(session)
    }

    /// Runs statements and returns the columns of every row, each as text. Errors: the server's text; the
    /// connection's.
    pub fn run(&mut self, statements: &str) -> io::Result<Vec<Vec<String>>> {
        self.send(b"Q", &[statements.as_bytes(), b"\0"].concat())?;
        self.read_all()
    }

    fn send(&mut self, kind: &[u8], body: &[u8]) -> io::Result<()> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        self.stream.get_mut().write_all(&[kind, &length, body].concat())
    }

    /// Reads until the server is ready for the next statements.
    fn read_all(&mut self) -> io::Result<Vec<Vec<String>>> {
        let (mut rows, mut failed) = (Vec::new(), None);
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut body = vec![0; (length as usize).saturating_sub(4)];
            self.stream.read_exact(&mut body)?;
            match head[0] {
                b'D' => rows.push(columns(&body).ok_or(io::ErrorKind::InvalidData)?),
                b'E' => failed = Some(message(&body)),
                b'Z' => break,
                _ => {}
            }
        }
        failed.map_or(Ok(rows), |text| Err(io::Error::other(text)))
    }
}

/// The columns of a DataRow; NULL is empty.
fn columns(body: &[u8]) -> Option<Vec<String>> {
    let (count, mut rest) = body.split_first_chunk()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        let (text, after) = after.split_at_checked(length)?;
        columns.push(String::from_utf8_lossy(text).into_owned());
        rest = after;
    }
    Some(columns)
}

/// The text of an ErrorResponse.
fn message(body: &[u8]) -> String {
    let text = body.split(|&b| b == 0).find_map(|field| field.strip_prefix(b"M"));
    String::from_utf8_lossy(text.unwrap_or(b"an error without a message")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_errors_are_read() {
        assert_eq!(
            columns(b"\0\x02\0\0\0\x02ab\xff\xff\xff\xff"),
            Some(vec!["ab".to_string(), String::new()])
        );
        assert_eq!(columns(b"\0\x01\0\0\0\x09ab"), None);
        assert_eq!(message(b"SERROR\0C42P01\0Mno such table\0\0"), "no such table");
    }
}
