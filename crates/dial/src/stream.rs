//! The streams below a connection.

use crate::{Address, Error};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tls::Wrapped;

/// A blocking stream whose reads and writes end in time.
pub trait Stream: Read + Write + Send {
    /// Limits each read from here on. `limit` is not 0. Errors: the system's.
    fn limit_reads(&self, limit: Duration) -> io::Result<()>;

    /// Limits each write from here on. `limit` is not 0. Errors: the system's.
    fn limit_writes(&self, limit: Duration) -> io::Result<()>;

    /// Closes the sending half. Errors: the system's.
    fn end_sending(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(limit))
    }

    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(limit))
    }

    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl<S: Stream + ?Sized> Stream for Box<S> {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        (**self).limit_reads(limit)
    }

    fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        (**self).limit_writes(limit)
    }

    fn end_sending(&self) -> io::Result<()> {
        (**self).end_sending()
    }
}

impl<S: Stream> Stream for Wrapped<S> {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.stream().limit_reads(limit)
    }

    fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        self.stream().limit_writes(limit)
    }

    /// Without the farewell of TLS.
    fn end_sending(&self) -> io::Result<()> {
        self.stream().end_sending()
    }
}

/// Connects a socket over TCP, with TCP_NODELAY, to the first address of `place` that takes it. For clients
/// that poll it themselves; [`crate::Conn::open`] does the rest, too. Errors: the last attempt's.
pub fn tcp(place: impl ToSocketAddrs, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for to in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&to, limit) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Connects, and begins TLS.
pub fn connect(address: &Address) -> Result<Box<dyn Stream>, Error> {
    if address.place.contains('/') {
        if address.tls.is_some() {
            return Err(Error::Tls("there is none over a Unix socket".to_owned()));
        }
        return Ok(Box::new(UnixStream::connect(&address.place).map_err(Error::Connect)?));
    }
    let stream = tcp(&address.place, address.connect).map_err(Error::Connect)?;
    match &address.tls {
        None => Ok(Box::new(stream)),
        Some(tls) => Ok(Box::new(tls.wrap(stream, address.timeout).map_err(Error::Tls)?)),
    }
}
