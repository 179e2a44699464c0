//! A client's socket: TCP or unix, always non-blocking.

use rustix::net::{RecvFlags, SocketFlags, sockopt};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Most unsent bytes that the system takes from a connection. Without a bound it takes megabytes, which leave
/// the cache before they are sent.
const NOT_SENT: u32 = 128 * 1024;

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Sets on a listener what the connections accepted from it inherit; seven system calls for each would take
/// longer than accepting it. Must be called before the listener listens: a connection made earlier inherits
/// nothing.
pub fn prepare(listener: &impl AsFd, keepalive_s: u64) {
    // A system that does not know one of these options still serves.
    let _ = sockopt::set_tcp_nodelay(listener, true);
    let _ = socket2::SockRef::from(listener).set_tcp_notsent_lowat(NOT_SENT);
    let _ = sockopt::set_socket_keepalive(listener, keepalive_s > 0);
    if keepalive_s > 0 {
        let _ = sockopt::set_tcp_keepidle(listener, Duration::from_secs(keepalive_s));
        let _ = sockopt::set_tcp_keepintvl(listener, Duration::from_secs((keepalive_s / 3).max(1)));
        let _ = sockopt::set_tcp_keepcnt(listener, 3);
    }
}

impl Socket {
    /// Accepts a connection and returns it with its peer's address. It has inherited what [`prepare`] set.
    pub(crate) fn accept(listener: &TcpListener) -> io::Result<(Socket, SocketAddr)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer) = rustix::net::acceptfrom_with(listener, flags)?;
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
        Ok((Socket::Tcp(TcpStream::from(socket)), peer))
    }

    pub(crate) fn unix(stream: UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket::Unix(stream))
    }

    /// Appends up to `room` bytes to `buf`. Ok(0): the peer closed.
    pub(crate) fn read_into(&mut self, buf: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        buf.reserve(room);
        let from = buf.len();
        if buf.capacity() - from > room {
            // Reading all that fits there might be megabytes, too much at once.
            buf.resize(from + room, 0);
            let read = rustix::io::read(self.as_fd(), &mut buf[from..]);
            buf.truncate(from + read.unwrap_or(0));
            return Ok(read?);
        }
        // Reading straight into the spare capacity saves a copy, a tenth of the work per request.
        Ok(rustix::io::read(self.as_fd(), rustix::buffer::spare_capacity(buf))?)
    }

    /// Whether bytes of the peer wait in the socket.
    pub(crate) fn has_unread(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(self, &mut [0u8; 1], flags).is_ok_and(|(_, n)| n > 0)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.write(bytes),
            Socket::Unix(s) => s.write(bytes),
        }
    }

    /// Tells the peer that nothing more comes; its bytes can still be read.
    pub(crate) fn end_sending(&self) {
        // A peer that is gone need not be told.
        let _ = match self {
            Socket::Tcp(s) => s.shutdown(std::net::Shutdown::Write),
            Socket::Unix(s) => s.shutdown(std::net::Shutdown::Write),
        };
    }

    /// The local address of a TCP connection. Errors: a unix socket.
    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        match self {
            Socket::Tcp(s) => s.local_addr(),
            Socket::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) fn raw(&self) -> i32 {
        match self {
            Socket::Tcp(s) => s.as_raw_fd(),
            Socket::Unix(s) => s.as_raw_fd(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(s) => s.as_fd(),
            Socket::Unix(s) => s.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However much room there is, no more is read at once than was asked for.
    #[test]
    fn no_more_is_read_than_was_asked_for() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut far = Socket::unix(far).unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        for (capacity, room) in [(0, 7), (200, 7), (200, 200), (1, 256)] {
            near.write_all(&bytes).unwrap();
            let mut got = Vec::with_capacity(capacity);
            while got.len() < bytes.len() {
                let before = got.len();
                let n = far.read_into(&mut got, room).unwrap();
                assert!((1..=room).contains(&n) && got.len() == before + n);
            }
            assert_eq!(got, bytes);
            assert!(far.read_into(&mut got, room).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock));
            assert_eq!(got, bytes);
        }
        drop(near);
        assert_eq!(far.read_into(&mut Vec::with_capacity(1000), 7).unwrap(), 0);
    }

    #[test]
    fn who_is_accepted_has_what_the_listener_was_given() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for keepalive_s in [300, 0] {
            prepare(&listener, keepalive_s);
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, peer) = Socket::accept(&listener).unwrap();
            assert_eq!(peer, near.local_addr().unwrap());
            assert!(sockopt::tcp_nodelay(&socket).unwrap());
            assert_eq!(socket2::SockRef::from(&socket).tcp_notsent_lowat().unwrap(), NOT_SENT);
            assert_eq!(sockopt::socket_keepalive(&socket).unwrap(), keepalive_s > 0);
            if keepalive_s > 0 {
                assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(300));
                assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), Duration::from_secs(100));
                assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 3);
            }
            let flags = rustix::fs::fcntl_getfl(&socket).unwrap();
            assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
            let flags = rustix::io::fcntl_getfd(&socket).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
}
