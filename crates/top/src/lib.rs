//! Terminal tools for the one on call: `evenkeel stat`, a line a second, and `evenkeel top`, the whole screen.
//!
//! ```text
//! replies ──► Moment, Model ──► lines, tables ──► terminal
//! ```
//!
//! They speak RESP2 alone, so they work with Evenkeel, Redis and Valkey; what a server does not tell is said to
//! be missing. A text of the server reaches the terminal through `text::shown` only (T1).
#![forbid(unsafe_code)]

mod draw;
mod heat;
mod link;
mod model;
mod moment;
mod once;
mod options;
mod poll;
mod reply;
#[cfg(test)]
mod samples;
mod screen;
mod stat;
mod table;
mod text;
mod ui;
mod views;

use std::ffi::OsString;

/// The command lines of `top` and `stat`, for completions and man pages.
pub fn commands() -> [clap::Command; 2] {
    use clap::CommandFactory;
    [options::Top::command(), options::Stat::command()]
}

/// Runs `evenkeel top` or `evenkeel stat` with its arguments, the name of the command first, to its end.
/// Mistakes in the arguments, and requests for help, end the process. Errors: the server cannot be reached, or
/// there is no terminal.
pub fn run(args: &[OsString]) -> Result<(), String> {
    if args.first().is_some_and(|name| name == "top") {
        let options = reach::read::<options::Top>(args).unwrap_or_else(|error| error.exit());
        if options.once { once::run(&options) } else { screen::run(&options) }
    } else {
        let options = reach::read::<options::Stat>(args).unwrap_or_else(|error| error.exit());
        stat::run(&options)
    }
}
