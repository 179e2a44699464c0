//! The place of a server, and the way in.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tls::{Client, PeerName, Wrapped};

/// A busy server takes longer to begin TLS than its system takes to connect.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The place of a server, how to log in there, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Address {
    /// `host:port`, or the path of a Unix socket, which contains a `/`.
    pub place: String,
    /// Over TCP only.
    pub tls: Option<Tls>,
    pub login: Option<Login>,
    /// The version for HELLO. `None`: no HELLO is sent, so the connection speaks RESP2.
    pub protocol: Option<u8>,
    /// Limit of each attempt to connect, one for every address of the host. A Unix socket has none.
    pub connect: Duration,
    /// Limit of each wait for bytes, in both directions; must not be 0.
    pub timeout: Duration,
}

impl Address {
    /// No TLS, no login, RESP2, 5 seconds to connect, 30 to wait.
    pub fn new(place: impl Into<String>) -> Address {
        let place = place.into();
        Address { place, tls: None, login: None, protocol: None, connect: CONNECT, timeout: TIMEOUT }
    }

    pub fn with_timeout(self, timeout: Duration) -> Address {
        Address { timeout, ..self }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Address {
        Address::new(addr.to_string())
    }
}

/// A user and its password. The password is not shown by `Debug`.
#[derive(Clone)]
pub struct Login {
    /// `None`: the default user.
    pub user: Option<String>,
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How connections to one server are encrypted.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Client,
    name: PeerName,
}

impl Tls {
    /// `name`: the server's, for SNI and for its certificate.
    pub fn new(client: Client, name: PeerName) -> Tls {
        Tls { client, name }
    }

    /// Begins TLS on a fresh connection, and leaves limits of the handshake on the stream. Errors: the server
    /// has no TLS, it does not answer, or a certificate is refused.
    pub fn wrap(&self, stream: TcpStream, timeout: Duration) -> Result<Wrapped<TcpStream>, String> {
        let limit = timeout.min(HANDSHAKE_MAX);
        let limits = stream.set_read_timeout(Some(limit)).and(stream.set_write_timeout(Some(limit)));
        limits.map_err(|e| e.to_string())?;
        self.client.wrap(&self.name, stream, limit).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "it does not answer; is that its port for TLS?".to_owned()
            }
            _ => e.to_string(),
        })
    }
}
