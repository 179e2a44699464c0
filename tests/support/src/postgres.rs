//! A PostgreSQL of the tests' own, in a temporary folder on a free port.

use rustix::process::{Pid, Signal, kill_process};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

pub struct Server {
    folder: tempfile::TempDir,
    pub port: u16,
    process: Mutex<Option<Child>>,
}

/// The server shared by all tests that run at the same time and do it no harm.
pub fn shared() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Server::start());
        *shared = Arc::downgrade(&server);
        server
    })
}

/// The folder of the programs.
fn programs() -> PathBuf {
    let told = Command::new("pg_config").arg("--bindir").output();
    let told = told.ok().map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    found.sort();
    let mut candidates = told.into_iter().chain(found.into_iter().rev());
    candidates
        .find(|folder| folder.join("initdb").exists())
        .expect("PostgreSQL is installed (tests/run.sh does it)")
}

/// The user to run it as: it refuses to run as the superuser.
fn user() -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let ids = |name: &str| {
        let line = passwd.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut numbers = line.split(':').skip(2);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    is_root.then(|| ids("postgres").or_else(|| ids("nobody")).expect("a user that is not root"))
}

/// A free port outside the range for outgoing connections, so that it stays free while the server is stopped.
fn free_port() -> u16 {
    let random = RandomState::new();
    let mut ports = (0u32..).map(|nr| 15_000 + (random.hash_one(nr) % 15_000) as u16);
    ports.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

fn command(program: &str) -> Command {
    let mut command = Command::new(programs().join(program));
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

impl Server {
    pub fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        if let Some((user, group)) = user() {
            chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let data = folder.path().join("data");
        let made = command("initdb")
            .args(["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale", "C", "-D"])
            .arg(&data)
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // Connections over TCP with a user name need its password.
        let hba = "local all all trust\nhost all app 127.0.0.1/32 scram-sha-256\nhost all old 127.0.0.1/32 md5\n\
                   host all plain 127.0.0.1/32 password\nhost all all 127.0.0.1/32 trust\n";
        std::fs::write(data.join("pg_hba.conf"), hba).unwrap();
        let port = free_port();
        let server = Server { folder, port, process: Mutex::new(None) };
        server.run();
        server
    }

    pub fn run(&self) {
        self.run_with(&[]);
    }

    /// Starts it with other settings than usual.
    pub fn run_with(&self, settings: &[&str]) {
        let folder = self.folder.path();
        let mut run = command("postgres");
        run.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).args(["-p", &self.port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "wal_level=logical",
            "fsync=off",
            "max_replication_slots=40",
            "max_wal_senders=40",
            "max_connections=200",
            "shared_buffers=16MB",
            "autovacuum=off",
        ] {
            run.args(["-c", setting]);
        }
        settings.iter().for_each(|setting| {
            run.args(["-c", setting]);
        });
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        *self.process.lock().unwrap() = Some(run.stderr(log).spawn().unwrap());
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() || !self.answers() {
            let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(60), "it does not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs statements in database `postgres`. Errors: the words of psql.
    pub fn sql(&self, text: &str) -> Result<String, String> {
        let port = self.port.to_string();
        let asked = command("psql")
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
                "-XqAt",
                "-v",
                "ON_ERROR_STOP=1",
                "-p",
                &port,
                "-c",
                text,
            ])
            .stdout(Stdio::piped())
            .output()
            .map_err(|e| e.to_string())?;
        match asked.status.success() {
            true => Ok(String::from_utf8_lossy(&asked.stdout).trim_end().into()),
            false => Err(String::from_utf8_lossy(&asked.stderr).into()),
        }
    }

    fn answers(&self) -> bool {
        let asked =
            command("pg_isready").args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status();
        asked.is_ok_and(|status| status.success())
    }

    /// Writes a file that only the server may read, beside its data.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((user, group)) = user() {
            chown(&path, Some(user), Some(group)).unwrap();
        }
        path
    }

    /// Stops it. INT: clients are disconnected. QUIT: as in a crash.
    pub fn stop(&self, signal: Signal) {
        if let Some(mut process) = self.process.lock().unwrap_or_else(|e| e.into_inner()).take() {
            let pid = Pid::from_child(&process);
            let _ = kill_process(pid, Signal::CONT);
            let _ = kill_process(pid, signal);
            let _ = process.wait();
        }
    }

    /// Stops or continues all of its processes.
    pub fn signal(&self, signal: Signal) {
        let postmaster = self.process.lock().unwrap().as_ref().map(Pid::from_child).unwrap();
        let parent = |pid: Pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
        };
        let all = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let children = all
            .filter_map(Pid::from_raw)
            .filter(|pid| parent(*pid) == Some(postmaster.as_raw_nonzero().get()));
        for pid in children.chain([postmaster]) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Signal::QUIT);
    }
}

/// A connection for many statements, each in its own transaction. Starting psql for each would take longer
/// than they do.
pub struct Session {
    psql: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Server {
    pub fn session(&self) -> Session {
        let mut psql = command("psql")
            .args(["-h", "127.0.0.1", "-U", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1", "-p"])
            .arg(self.port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (psql.stdin.take().unwrap(), psql.stdout.take().unwrap());
        Session { psql, input, output: BufReader::new(output) }
    }
}

impl Session {
    /// Runs one statement and returns its rows, one per line. Panics if it fails, after psql has printed why.
    pub fn run(&mut self, statement: &str) -> String {
        const END: &str = "the end of the answer";
        writeln!(self.input, "{statement};\n\\echo {END}").expect("psql is there");
        self.input.flush().expect("psql is there");
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("text");
            assert!(read > 0, "it fails: {statement}");
            if line.trim_end() == END {
                return answer.trim_end().to_owned();
            }
            answer += &line;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}
