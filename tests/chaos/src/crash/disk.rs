//! A disk that gets full, and empties again: writes are refused, all else goes on, and nothing acknowledged is
//! lost.

use super::files::{self, LOG};
use super::life::{Life, Start, info};
use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::wire::{Conn, Frame, encode};

const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which a reply comes that waits for nothing.
const SOON: Duration = Duration::from_secs(3);
const IMAGE_BYTES: u64 = 16 << 20;
const BALLAST_BYTES: usize = 6 << 20;
const VALUE_BYTES: usize = 4000;

/// A small file system of its own, unmounted at the end.
struct Mount {
    place: PathBuf,
}

impl Mount {
    fn new(dir: &Path) -> Result<Mount, String> {
        let (image, place) = (dir.join("image"), dir.join("mount"));
        fs::create_dir_all(&place).map_err(|e| e.to_string())?;
        fs::File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).map_err(|e| e.to_string())?;
        let run = |program: &str, args: &[&str], paths: &[&Path]| {
            let output = Command::new(program)
                .args(args)
                .args(paths)
                .output()
                .map_err(|e| format!("{program}: {e}"))?;
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if output.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
        };
        run("mkfs.ext4", &["-q", "-F", "-m", "0"], &[&image])?;
        run("mount", &["-o", "loop"], &[&image, &place])?;
        Ok(Mount { place })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.place).output();
    }
}

/// The way in which the disk gets full.
pub enum Full {
    /// A file system of 16 MB with ballast.
    Mounted,
    /// A limit of the size of files.
    Limited,
}

/// Runs it once. Gives a sentence for the report.
pub fn run(server: &Path, dir: &Path, full: &Full, fsync: &str) -> Result<String, String> {
    let work = dir.join(format!("full-{fsync}"));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).map_err(|e| e.to_string())?;
    let outcome = match full {
        Full::Limited => fill(server, &work, &work.join("log"), None, fsync),
        Full::Mounted => match Mount::new(&work) {
            Err(why) => Ok(format!("skipped ({why})")),
            Ok(mount) => {
                fill(server, &mount.place, &work.join("log"), Some(&mount.place.join("ballast")), fsync)
            }
        },
    };
    if outcome.is_ok() {
        let _ = fs::remove_dir_all(&work);
    }
    outcome
}

fn fill(
    server: &Path,
    data: &Path,
    log: &Path,
    ballast: Option<&Path>,
    fsync: &str,
) -> Result<String, String> {
    if let Some(ballast) = ballast {
        fs::write(ballast, vec![b'b'; BALLAST_BYTES]).map_err(|e| e.to_string())?;
    }
    // The writes that wait have to fit when there is room again.
    let words = [
        "--appendonly",
        "yes",
        "--appendfsync",
        fsync,
        "--log-stuck",
        "2",
        "--log-pending-soft",
        "1mb",
        "--log-pending-hard",
        "2mb",
        "--auto-aof-rewrite-percentage",
        "0",
    ];
    let args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut life = started(Life::start(server, data, &args, log)?)?;
    if ballast.is_none() {
        life.limit_files(Some(2 << 20))?;
    }
    let mut filler =
        Filler { conn: life.conn()?, next: 0, unanswered: VecDeque::new(), acked: BTreeSet::new() };
    filler.begin(&life)?;
    filler.fill(&life)?;
    goes_on(&life, &filler.acked)?;
    let held = filler.unanswered.len();
    match ballast {
        Some(ballast) => fs::remove_file(ballast).map_err(|e| e.to_string())?,
        None => life.limit_files(None)?,
    }
    let resumed = resumes(&life)?;
    filler.read(PATIENCE)?;
    filler.goes_on(&life)?;
    let mut conn = life.conn()?;
    let synced = conn.call(&["WAITAOF", "1", "0", "30000"]);
    if !matches!(synced.items(), Some([Frame::Int(1), _])) {
        let of_log = figures(&mut conn);
        return Err(format!("WAITAOF was answered {synced} after the disk had room again: {of_log}"));
    }
    if let Some(how) = life.ended() {
        return Err(how);
    }
    life.kill();
    files::doctor(server, data)?;
    let mut life = started(Life::start(server, data, &args, log)?)?;
    check(&mut life.conn()?, &filler.acked)?;
    life.end()?;
    let acked = filler.acked.len();
    Ok(format!(
        "{acked} writes acknowledged, all there; {held} held; writes went on {resumed} ms after there was room"
    ))
}

/// The figures of the log, in one line.
fn figures(conn: &mut Conn) -> String {
    let reply = conn.call(&["INFO", "persistence"]);
    let text = String::from_utf8_lossy(reply.text().unwrap_or_default()).into_owned();
    text.lines().filter(|line| line.starts_with("aof_")).collect::<Vec<_>>().join(" ")
}

fn started(start: Start) -> Result<Life, String> {
    match start {
        Start::Ready(life) => Ok(life),
        Start::Ended(status, said) => Err(format!("the server did not start ({status}):\n{said}")),
    }
}

fn value(nr: usize) -> Vec<u8> {
    let mut value = format!("{nr} ").into_bytes();
    value.resize(VALUE_BYTES, b'0' + (nr % 10) as u8);
    value
}

/// A connection that writes, and the numbers whose replies have not come.
struct Filler {
    conn: Conn,
    next: usize,
    unanswered: VecDeque<usize>,
    acked: BTreeSet<usize>,
}

impl Filler {
    fn send(&mut self, n: usize) {
        let mut bytes = Vec::new();
        for nr in self.next..self.next + n {
            encode(&[b"SET".to_vec(), format!("d:{nr}").into_bytes(), value(nr)], &mut bytes);
            self.unanswered.push_back(nr);
        }
        self.next += n;
        self.conn.send(&bytes);
    }

    /// Writes until all writes of a turn are taken: a machine so slow that the log counts as stuck closes those
    /// who wait.
    fn goes_on(&mut self, life: &Life) -> Result<(), String> {
        let began = Instant::now();
        loop {
            if self.conn.is_gone() {
                self.conn = life.conn()?;
            }
            self.send(100);
            if self.read(PATIENCE)? {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err("writes were refused after the disk had room again".into());
            }
        }
    }

    /// Reads replies, as long as they come. False: one of them is a refusal, or does not come, or the
    /// connection was closed.
    fn read(&mut self, patience: Duration) -> Result<bool, String> {
        let mut all = true;
        while let Some(nr) = self.unanswered.front().copied() {
            match self.conn.read_within(patience) {
                None => return Ok(false),
                Some(Frame::Simple(_)) => drop(self.acked.insert(nr)),
                Some(Frame::Error(text)) if text.starts_with(b"MISCONF") => all = false,
                Some(Frame::Gone(_)) => {
                    self.unanswered.clear();
                    return Ok(false);
                }
                Some(other) => return Err(format!("a write was answered {other}")),
            }
            self.unanswered.pop_front();
        }
        Ok(all)
    }

    /// Writes until one is acknowledged: on a busy machine the log may count as stuck before it is full.
    fn begin(&mut self, life: &Life) -> Result<(), String> {
        let began = Instant::now();
        while self.acked.is_empty() {
            if began.elapsed() > PATIENCE {
                return Err("no write is acknowledged, though the disk has room".into());
            }
            if self.conn.is_gone() {
                self.conn = life.conn()?;
            }
            if self.unanswered.is_empty() {
                self.send(1);
            }
            self.read(SOON)?;
        }
        Ok(())
    }

    /// Fills the disk. Writes that are not durable get no reply; others are refused.
    fn fill(&mut self, life: &Life) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.unanswered.is_empty() && !self.conn.is_gone() {
                self.send(50);
            }
            // On a busy machine the log may count as stuck before the disk is full, and refuse writes for that.
            let is_full = |conn: &mut Conn| info(conn, "aof_last_write_status").as_deref() == Some("err");
            if !self.read(SOON)? && is_refused(life)? && is_full(&mut life.conn()?) {
                return Ok(());
            }
        }
        Err(format!("{} writes of {VALUE_BYTES} bytes, and none was refused with MISCONF", self.next))
    }
}

fn is_refused(life: &Life) -> Result<bool, String> {
    let mut probe = life.conn()?;
    probe.send(b"SET probe x\r\n");
    match probe.read_within(SOON) {
        Some(Frame::Error(text)) if text.starts_with(b"MISCONF") => Ok(true),
        Some(other @ Frame::Error(_)) => Err(format!("a write to a full disk was answered {other}")),
        _ => Ok(false),
    }
}

/// Reads, PING, INFO and PUBLISH are answered meanwhile.
fn goes_on(life: &Life, acked: &BTreeSet<usize>) -> Result<(), String> {
    let mut conn = life.conn()?;
    conn.set_patience(PATIENCE);
    let nr = acked.first().copied().ok_or("not one write was acknowledged before the disk was full")?;
    let got = conn.call(&["GET", &format!("d:{nr}")]);
    if got.text() != Some(&value(nr)) {
        return Err(format!("GET was answered {got} while the disk was full"));
    }
    for line in
        [&["PING"][..], &["PUBLISH", "c", "m"], &["EVAL", "return redis.call('GET', KEYS[1])", "1", "d:0"]]
    {
        let reply = conn.call(line);
        if matches!(reply, Frame::Error(_) | Frame::Gone(_)) {
            return Err(format!("{} was answered {reply} while the disk was full", line[0]));
        }
    }
    match info(&mut conn, "aof_last_write_status").as_deref() {
        Some("err") => Ok(()),
        other => Err(format!("aof_last_write_status is {other:?} while the disk is full")),
    }
}

/// Waits until a write is done, and gives the milliseconds.
fn resumes(life: &Life) -> Result<u128, String> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let mut probe = life.conn()?;
        probe.send(b"SET probe y\r\n");
        match probe.read_within(SOON) {
            Some(Frame::Simple(_)) => return Ok(began.elapsed().as_millis()),
            Some(Frame::Error(text)) if text.starts_with(b"MISCONF") => {}
            Some(Frame::Gone(_)) | None => {}
            Some(other) => return Err(format!("a write was answered {other} after there was room")),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let of_log = figures(&mut life.conn()?);
    Err(format!(
        "writes are refused for {} s after there was room: {of_log}\n{}",
        PATIENCE.as_secs(),
        life.said()
    ))
}

fn check(conn: &mut Conn, acked: &BTreeSet<usize>) -> Result<(), String> {
    let all: Vec<usize> = acked.iter().copied().collect();
    for some in all.chunks(100) {
        let mut bytes = Vec::new();
        some.iter().for_each(|nr| encode(&[b"GET".to_vec(), format!("d:{nr}").into_bytes()], &mut bytes));
        conn.send(&bytes);
        for nr in some {
            let got = conn.read();
            if got.text() != Some(&value(*nr)) {
                return Err(format!("write {nr} was acknowledged, and after the crash it is {got} ({LOG})"));
            }
        }
    }
    Ok(())
}
