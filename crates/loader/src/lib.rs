//! The program as a client of servers: `load`, `copy` and `ping`. Loads data faster than by commands: values
//! are serialized here, as DUMP would answer them, and sent by RESTORE. Works with every server that speaks
//! Redis's protocol.
//!
//! ```text
//! file ─► Rows ─► Shape (key template, kind) ─► Piece ─► Sender: several connections ─► replies ─► Account
//! ```
//!
//! The words about a server, the signals and TLS are also used by crate `bench`.
//!
//! Only the wire protocol and the payloads ([`rdb`]) are used, so an application may do the same.

#![forbid(unsafe_code)]

mod advice;
mod copy;
mod load;
mod memory;
mod options;
mod ping;
mod progress;
mod quotes;
mod resume;
mod rows;
mod send;
mod shape;
mod stop;
mod template;
mod wire;

pub use memory::memory_available;
pub use progress::number;
pub use stop::Stop;
pub use wire::Conn;

use std::ffi::OsString;

/// Why the work did not end well.
#[derive(Debug)]
pub struct Failure {
    /// Lines for a terminal, which names and texts of servers in them cannot steer.
    pub reason: String,
    /// 130 or 143 after SIGINT or SIGTERM, else 1.
    pub exit_code: u8,
}

impl Failure {
    /// `reason`: lines, in which texts of servers may stand as they are.
    pub fn new(reason: &str, exit_code: u8) -> Failure {
        Failure { reason: plain_lines(reason), exit_code }
    }
}

/// Lines for a terminal, which nothing in them steers. O(bytes).
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(dial::plain).collect();
    lines.join("\n")
}

/// Runs `evenkeel load`, `copy` or `ping` with its arguments, the name of the command first. Returns the last
/// line to print. Mistakes in the arguments, and requests for help, end the process. `load` and `copy` take
/// over SIGINT and SIGTERM.
pub fn run(args: &[OsString]) -> Result<String, Failure> {
    match args.first().and_then(|name| name.to_str()) {
        Some("copy") => {
            let options = reach::read::<options::Copy>(args).unwrap_or_else(|error| error.exit());
            until_stopped(|stop| copy::run(&options, stop))
        }
        Some("ping") => {
            let options = reach::read::<ping::Ping>(args).unwrap_or_else(|error| {
                let _ = error.print();
                // Health checks of containers know 0 and 1 only.
                std::process::exit(error.use_stderr().into())
            });
            ping::run(&options).map_err(|reason| Failure::new(&reason, 1))
        }
        _ => {
            let options = reach::read::<options::Load>(args).unwrap_or_else(|error| error.exit());
            until_stopped(|stop| load::run(&options, stop))
        }
    }
}

fn until_stopped(work: impl FnOnce(&Stop) -> Result<String, String>) -> Result<String, Failure> {
    let stop = Stop::on_signals().map_err(|e| Failure::new(&format!("cannot handle signals: {e}"), 1))?;
    work(&stop).map_err(|reason| Failure::new(&reason, stop.exit_code().unwrap_or(1)))
}

/// Whether `word` is a command that [`run`] takes.
pub fn is_command(word: &OsString) -> bool {
    word == "load" || word == "copy" || word == "ping"
}

/// The command lines that [`run`] takes, for completions and man pages.
pub fn commands() -> [clap::Command; 3] {
    use clap::CommandFactory;
    [options::Load::command(), options::Copy::command(), ping::Ping::command()]
}
