//! Valkey's own fuzzer (`valkey-benchmark --fuzz`, from Valkey 9.1 on) against our servers, in each of its
//! modes.
//!
//! Its own verdict is whether its clients are answered, and its seed is the clock. This test judges the
//! process, its memory, contained panics, and an earlier connection, which must be answered or closed.

use crate::Options;
use crate::fuzz::{is_told, serve};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::server::Server;
use support::wire::{Conn, Frame};

/// The values of `--fuzz-mode`, and their names here.
const MODES: [(&str, &str); 4] = [
    ("", "valid"),
    ("malformed-commands", "malformed"),
    ("config-commands", "CONFIG"),
    ("malformed-commands,config-commands", "malformed and CONFIG"),
];

/// Commands of one run, after which it is started again.
const COMMANDS: &str = "40000";

/// Runs it, a tenth of the time in each mode. Returns the numbers of modes passed and failed.
pub fn run(peer: &Path, options: &Options) -> (usize, usize) {
    let help = Command::new(peer).arg("--help").output();
    let knows =
        help.is_ok_and(|help| [help.stdout, help.stderr].concat().windows(6).any(|word| word == b"--fuzz"));
    if !knows {
        println!("fuzz: {} has no --fuzz (Valkey has it from 9.1 on): left out", peer.display());
        return (0, 0);
    }
    let (mut passed, mut failed) = (0, 0);
    for (mode, name) in MODES {
        match one(peer, options, mode) {
            Ok((commands, peak)) => {
                println!("fuzz: Valkey's fuzzer, {name}: {commands} commands run, peak {} MB", peak >> 20);
                passed += 1;
            }
            Err(why) => {
                println!("FAULT: Valkey's fuzzer, {name}: {why}");
                failed += 1;
            }
        }
    }
    (passed, failed)
}

/// Ends the child when the time is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn one(peer: &Path, options: &Options, mode: &str) -> Result<(u64, u64), String> {
    let (mut server, _) = serve(options)?;
    let mut judge = Judge { conn: Conn::open(server.addr).map_err(|e| e.to_string())?, hang: options.hang };
    judge.conn.set_patience(options.hang);
    let deadline = Instant::now() + options.time / 10;
    let mut peak = 0;
    while Instant::now() < deadline {
        let mut command = Command::new(peer);
        command.args([
            "-h",
            "127.0.0.1",
            "-p",
            &server.addr.port().to_string(),
            "-n",
            COMMANDS,
            "-c",
            "8",
            "-r",
            "50",
        ]);
        command.args(["--fuzz", "--fuzz-loglevel", "error"]);
        if !mode.is_empty() {
            command.args(["--fuzz-mode", mode]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = Running(command.spawn().map_err(|e| e.to_string())?);
        while Instant::now() < deadline && matches!(running.0.try_wait(), Ok(None)) {
            watch(&mut server, options, &mut peak)?;
            judge.ask(&server)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        watch(&mut server, options, &mut peak)?;
    }
    Ok((judge.commands(), peak))
}

fn watch(server: &mut Server, options: &Options, peak: &mut u64) -> Result<(), String> {
    let resident = server.resident_bytes();
    *peak = resident.max(*peak);
    let said = |server: &Server| {
        let log = server.log();
        log.lines().filter(|line| is_told(line)).map(|line| format!("\n    {line}")).collect::<String>()
    };
    if let Some(how) = server.ended() {
        return Err(format!("{how}{}", said(server)));
    }
    if resident > options.cap_mb << 20 {
        let log = said(server);
        server.kill();
        return Err(format!("{} MB resident with --maxmemory {}{log}", resident >> 20, options.maxmemory));
    }
    if server.log().contains("panicked at") && !options.allows_panics {
        return Err(format!("a panic{}", said(server)));
    }
    Ok(())
}

struct Judge {
    conn: Conn,
    hang: Duration,
}

impl Judge {
    /// Number of commands the server has run. 0 after a CONFIG SET of a password, when it cannot be asked any
    /// more.
    fn commands(&mut self) -> u64 {
        let reply = self.conn.call(&["INFO", "stats"]);
        let text = reply.text().map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default();
        let count =
            text.lines().find_map(|line| line.strip_prefix("total_commands_processed:")?.trim().parse().ok());
        count.unwrap_or(0)
    }

    /// Checks the connection. It may be closed (CLIENT KILL) and made to wait (CLIENT PAUSE), but not for
    /// ever.
    fn ask(&mut self, server: &Server) -> Result<(), String> {
        match self.conn.call(&["PING"]) {
            Frame::Simple(_) | Frame::Error(_) | Frame::Bulk(_) => Ok(()),
            Frame::Gone("connection closed") => {
                if let Ok(fresh) = Conn::open(server.addr) {
                    self.conn = fresh;
                    self.conn.set_patience(self.hang);
                }
                Ok(())
            }
            other => Err(format!("PING was answered {other}")),
        }
    }
}
