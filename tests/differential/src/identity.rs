//! The identity of an oracle, which generators and the tolerated list use.

use crate::wire::{Conn, Frame};
use std::io;
use std::net::SocketAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `redis` or `valkey`
    pub flavour: String,
    pub version: (u32, u32),
}

impl Identity {
    /// Asks the server.
    pub fn of(addr: SocketAddr) -> io::Result<Identity> {
        let Frame::Bulk(info) = Conn::open(addr)?.call(&["INFO", "server"]) else {
            return Err(io::Error::other("INFO server did not answer a text"));
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let (flavour, version) = match field("valkey_version") {
            Some(version) => ("valkey", version),
            None => ("redis", field("redis_version").unwrap_or("0.0")),
        };
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        Ok(Identity { flavour: flavour.to_owned(), version })
    }

    pub fn name(&self) -> String {
        format!("{}-{}.{}", self.flavour, self.version.0, self.version.1)
    }
}
