//! Loading data into a server, faster than by commands: values are serialized here, as DUMP would answer them, and sent
//! by RESTORE. Works with every server that speaks Redis's protocol.
//!
//! ```text
//! file ─► Rows ─► Shape (key template, kind) ─► Piece ─► Sender: batches over several connections ─► replies ─► Account
//! ```
//!
//! Nothing of the server is used but the wire and the payloads ([`rdb`]), so an application may do the same.

#![forbid(unsafe_code)]

mod copy;
mod load;
mod options;
mod progress;
mod resume;
mod rows;
mod send;
mod shape;
mod template;
mod wire;

use clap::Parser;
use std::ffi::OsString;

/// What `evenkeel load` and `evenkeel copy` do with their arguments, the name of the command first. Answers the last line
/// to print. Mistakes in the arguments, and requests for help, end the process.
pub fn run(args: &[OsString]) -> Result<String, String> {
    match args.first().and_then(|name| name.to_str()) {
        Some("copy") => copy::run(&options::Copy::parse_from(args)),
        _ => load::run(&options::Load::parse_from(args)),
    }
}

/// Whether this is one of the words [`run`] is for.
pub fn is_command(word: &OsString) -> bool {
    word == "load" || word == "copy"
}
