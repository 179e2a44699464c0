//! Connections that commands open to other servers. The program around the server encrypts them, if it is
//! configured to.
//!
//! A program has one server, so what encrypts is the process's own: a handler, which needs it, knows no server.

pub use dial::Stream;
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

/// The encryption of connections.
pub trait Outgoing: Send + Sync {
    /// Begins TLS on a fresh connection to `host` within `limit`, or gives it back as it is, as configured
    /// now. Blocks. Errors: a sentence.
    fn wrap(&self, socket: TcpStream, host: &str, limit: Duration) -> Result<Box<dyn Stream>, String>;
}

static OUTGOING: OnceLock<Box<dyn Outgoing>> = OnceLock::new();

/// Names what encrypts, once. Without it nothing is encrypted.
pub fn encrypt_by(outgoing: Box<dyn Outgoing>) {
    // A second call would be a mistake of the program; the first one counts.
    let _ = OUTGOING.set(outgoing);
}

/// See [`Outgoing::wrap`].
pub(crate) fn wrap(socket: TcpStream, host: &str, limit: Duration) -> Result<Box<dyn Stream>, String> {
    match OUTGOING.get() {
        Some(outgoing) => outgoing.wrap(socket, host, limit),
        None => Ok(Box::new(socket)),
    }
}
