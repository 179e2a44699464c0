//! Listening sockets of the accepting loop. They may change while the loop runs.
//!
//! ```text
//! listeners ─► Doors: an epoll set ─► the transport watches the set ─► accepted from in slices
//!                └─ Change: others join, some go (CONFIG SET port, bind …)
//! ```
//!
//! - D1: a transport watches the set alone, so it does not know when listeners change.
//! - D2: a listener in the set is reported when a client comes, once. It is accepted from until none is left.
//! - D3: a listener that goes has stopped listening before; it is forgotten here.
//!
//! Cost: a short system call each time clients come.

use crate::handshakes::Handshakes;
use crate::socket;
use exec::Server;
use exec::mail::Mail;
use rustix::event::{Timespec, epoll};
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

/// Listeners fetched at once.
const READY: usize = 8;

/// Listening sockets that the first loop accepts from.
#[derive(Default)]
pub struct Listeners {
    /// Non-blocking.
    pub tcp: Vec<TcpListener>,
    pub unix: Vec<UnixListener>,
    /// For HTTP. Non-blocking.
    pub http: Vec<TcpListener>,
    /// For TLS, and for HTTP over TLS. Non-blocking.
    pub tls: Vec<TcpListener>,
    pub https: Vec<TcpListener>,
    /// Threads that shake hands; there must be some before anything listens for TLS.
    pub handshakes: Option<Arc<Handshakes>>,
}

impl Listeners {
    fn doors(self) -> Vec<Door> {
        let plain = self.tcp.into_iter().map(|socket| Door::tcp(socket, false, false));
        let unix = self.unix.into_iter().map(Door::unix);
        let http = self.http.into_iter().map(|socket| Door::tcp(socket, true, false));
        let tls = self.tls.into_iter().map(|socket| Door::tcp(socket, false, true));
        let https = self.https.into_iter().map(|socket| Door::tcp(socket, true, true));
        plain.chain(unix).chain(http).chain(tls).chain(https).collect()
    }
}

/// A change of the sockets listened on.
pub struct Change {
    /// Non-blocking sockets that listen already.
    pub opened: Listeners,
    /// Addresses of the sockets that have stopped listening.
    pub closed: Vec<SocketAddr>,
}

impl Change {
    /// Has the accepting loop use the new sockets, and forget the closed ones. Cost: a letter.
    pub fn send(self, server: &Server) {
        server.send(0, Mail::Adopt(Box::new(self)));
    }
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A listening socket, and what its clients are.
pub(crate) struct Door {
    pub(crate) listener: Listener,
    pub(crate) http: bool,
    /// Clients shake hands first.
    pub(crate) is_secure: bool,
    /// Clients may be waiting to be accepted.
    pub(crate) accepting: bool,
    /// The address at which connections arrive. None: the socket listens on several, or is a unix socket.
    pub(crate) arrival: Option<String>,
    token: u64,
    address: Option<SocketAddr>,
}

impl Door {
    fn tcp(listener: TcpListener, http: bool, is_secure: bool) -> Door {
        let address = listener.local_addr().ok();
        let arrival = address.filter(|address| !address.ip().is_unspecified()).map(|a| a.to_string());
        let listener = Listener::Tcp(listener);
        Door { listener, http, is_secure, accepting: true, arrival, token: 0, address }
    }

    fn unix(listener: UnixListener) -> Door {
        let listener = Listener::Unix(listener);
        let (http, is_secure) = (false, false);
        Door { listener, http, is_secure, accepting: true, arrival: None, token: 0, address: None }
    }
}

pub(crate) struct Doors {
    set: OwnedFd,
    all: Vec<Door>,
    /// The token of the next door.
    next: u64,
    /// The `tcp-keepalive` that was set on the listeners, for connections to inherit.
    prepared: Option<u64>,
    pub(crate) handshakes: Option<Arc<Handshakes>>,
}

impl Doors {
    /// Makes the set of these listeners. Errors: the system has no descriptor to give.
    pub(crate) fn new(listeners: Listeners) -> io::Result<Doors> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut doors = Doors { set, all: Vec::new(), next: 0, prepared: None, handshakes: None };
        doors.open(listeners)?;
        Ok(doors)
    }

    fn open(&mut self, listeners: Listeners) -> io::Result<()> {
        if let Some(handshakes) = &listeners.handshakes {
            self.handshakes = Some(handshakes.clone());
        }
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        for mut door in listeners.doors() {
            door.token = self.next;
            self.next += 1;
            epoll::add(&self.set, &door.listener, epoll::EventData::new_u64(door.token), edges)?;
            self.all.push(door);
        }
        self.prepared = None;
        Ok(())
    }

    /// Makes a change (D3). O(listeners)
    pub(crate) fn change(&mut self, change: Change) {
        let Change { opened, closed } = change;
        let (gone, stay): (Vec<Door>, Vec<Door>) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|door| door.address.is_some_and(|address| closed.contains(&address)));
        self.all = stay;
        // Another descriptor of the socket may be open.
        for door in gone {
            let _ = epoll::delete(&self.set, &door.listener);
        }
        if let Err(e) = self.open(opened) {
            log::error!("clients of a new listening socket cannot be accepted: {e}");
        }
    }

    /// Marks the doors at which clients have come (D2).
    pub(crate) fn look(&mut self) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::uninit() }; READY];
        while let Ok((events, _)) = epoll::wait(&self.set, &mut room, Some(&at_once)) {
            for event in events.iter() {
                let token = event.data.u64();
                self.all.iter_mut().filter(|door| door.token == token).for_each(|door| door.accepting = true);
            }
            if events.len() < READY {
                return;
            }
        }
    }

    /// Sets on the listeners what connections inherit, if that has changed.
    pub(crate) fn prepare(&mut self, keepalive_s: u64) {
        if self.prepared.replace(keepalive_s) == Some(keepalive_s) {
            return;
        }
        for door in &self.all {
            if let Listener::Tcp(listener) = &door.listener {
                socket::prepare(listener, keepalive_s);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn at(&self, number: usize) -> Option<&Door> {
        self.all.get(number)
    }

    pub(crate) fn is_accepting(&self) -> bool {
        self.all.iter().any(|door| door.accepting)
    }

    pub(crate) fn accept_again(&mut self) {
        self.all.iter_mut().for_each(|door| door.accepting = true);
    }

    pub(crate) fn pause(&mut self, number: usize) {
        if let Some(door) = self.all.get_mut(number) {
            door.accepting = false;
        }
    }
}

impl AsFd for Doors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    fn listener() -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    fn accepting(doors: &Doors) -> Vec<bool> {
        doors.all.iter().map(|door| door.accepting).collect()
    }

    #[test]
    fn a_door_is_reported_once_for_what_comes_also_after_a_change() {
        let [first, second, third] = [listener(), listener(), listener()];
        let [a, b, c] = [&first, &second, &third].map(|socket| socket.local_addr().unwrap());
        let tcp = vec![first, second];
        let mut doors = Doors::new(Listeners { tcp, ..Listeners::default() }).unwrap();
        assert_eq!(accepting(&doors), [true, true]);
        (0..2).for_each(|at| doors.pause(at));
        let _client = TcpStream::connect(b).unwrap();
        doors.look();
        assert_eq!(accepting(&doors), [false, true]);
        doors.pause(1);
        doors.look();
        assert!(!doors.is_accepting());
        let opened = Listeners { http: vec![third], ..Listeners::default() };
        doors.change(Change { opened, closed: vec![a] });
        assert_eq!(accepting(&doors), [false, true]);
        assert!(doors.at(1).unwrap().http && doors.at(1).unwrap().arrival == Some(c.to_string()));
        (0..2).for_each(|at| doors.pause(at));
        let _clients = [b, c].map(|address| TcpStream::connect(address).unwrap());
        doors.look();
        assert_eq!(accepting(&doors), [true, true]);
        assert!(TcpStream::connect(a).is_err());
    }
}
