//! How a command line names a server and logs in there: the options that all tools share.
//!
//! ```text
//! words ──read──► Server (clap) ──end──► End ──address: files of passwords and TLS──► Address ──► dial
//! ```
//!
//! Nothing connects here. Errors are sentences for the one who typed the words, and never show a password.
#![forbid(unsafe_code)]

mod options;
mod place;
mod tls;

pub use ::tls::Wrapped;

pub use options::{End, Options, Server, is_of_env, read};
pub use place::Named;
pub use tls::{Words, client};

/// A server, and the database that connections to it use.
#[derive(Clone, Debug)]
pub struct Address {
    pub server: dial::Address,
    pub db: u32,
}
