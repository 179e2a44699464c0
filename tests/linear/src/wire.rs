//! Connections to the server under test.

use dial::{Address, Conn};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Time after which a server without a reply counts as hung. No figure is tested by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn open(addr: SocketAddr) -> io::Result<Conn> {
    let address = Address { connect: PATIENCE, ..Address::from(addr).with_timeout(PATIENCE) };
    Ok(Conn::open(&address)?)
}

/// Opens a connection and selects a database.
pub fn open_db(addr: SocketAddr, db: usize) -> io::Result<Conn> {
    let mut conn = open(addr)?;
    match conn.call(&["SELECT", &db.to_string()])? {
        frame if frame.is_ok() => Ok(conn),
        other => Err(io::Error::other(format!("SELECT answered {other:?}"))),
    }
}
