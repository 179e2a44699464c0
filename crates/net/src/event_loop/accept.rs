//! Accepts, checks, places and closes connections. All happens in slices: accepting or closing one costs the
//! kernel some microseconds.

use super::{EventLoop, SLICE_NS};
use crate::conn::{self, Conn, State};
use crate::doors::Listener;
use crate::handshakes::Newcomer;
use crate::socket::Socket;
use crate::transport::{Event, Transport};
use exec::Session;
use exec::mail::Mail;
use exec::session::ClientInfo;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::points::{self, Point};

/// Bytes of a first request that are read at once; the rest is received as usual.
const FIRST_BYTES: usize = 16 * 1024;

impl EventLoop {
    /// Accepts a slice of the clients that wait.
    pub(super) fn accept<T: Transport>(&mut self, io: &mut T) {
        if self.doors.is_accepting() {
            // Connections inherit it.
            self.doors.prepare(self.server.config.live.tcp_keepalive_s.get() as u64);
        }
        let until = self.local.log.lap() + SLICE_NS;
        for listener in 0..self.doors.len() {
            while self.doors.at(listener).is_some_and(|door| door.accepting)
                && self.local.log.lap() < until
                && self.has_room_for_handshake(listener)
            {
                match self.accept_one(listener) {
                    Ok(newcomer) => self.meet(io, listener, newcomer),
                    Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => {
                        self.doors.pause(listener);
                        self.starved |= e.kind() != ErrorKind::WouldBlock;
                    }
                }
            }
        }
    }

    /// Serves the first requests of some new connections.
    pub(super) fn greet_some<T: Transport>(&mut self, io: &mut T) {
        if !self.calling {
            return;
        }
        let until = self.local.log.lap() + SLICE_NS;
        let mut room = std::mem::take(&mut self.first_words);
        while self.local.log.lap() < until {
            if self.callers.is_empty() {
                self.arrivals.callers(&mut self.callers);
            }
            let Some(slot) = self.callers.pop_front() else {
                self.calling = false;
                break;
            };
            self.greet(io, slot, &mut room);
        }
        self.first_words = room;
    }

    /// Serves a connection among the arrivals that has sent something or ended.
    fn greet<T: Transport>(&mut self, io: &mut T, slot: usize, room: &mut Vec<u8>) {
        let Some(conn) = self.conns[slot].as_mut().filter(|conn| conn.outside) else { return };
        room.clear();
        let read = conn.socket.read_into(room, FIRST_BYTES);
        if read.as_ref().is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)) {
            return;
        }
        self.arrivals.remove(&conn.socket);
        conn.outside = false;
        match read {
            _ if conn.doomed => return,
            Ok(0) => self.end(slot),
            Ok(_) if conn.is_secure() => self.open_records(slot, room),
            Ok(n) => self.came(slot, n, room),
            Err(_) => self.lose(slot),
        }
        if self.conns[slot].as_ref().is_some_and(|conn| !conn.doomed && conn.listening != conn.wants_input())
        {
            self.listen(io, slot);
        }
    }

    fn accept_one(&self, number: usize) -> std::io::Result<Newcomer> {
        let aborted = || std::io::Error::from(ErrorKind::ConnectionAborted);
        let door = self.doors.at(number).ok_or_else(aborted)?;
        let listener = match &door.listener {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let path = format!("{}:0", self.server.config.live.unixsocket.string());
                let (socket, here) = (Socket::unix(stream)?, path.clone());
                return Ok(Newcomer {
                    socket,
                    address: path,
                    here,
                    near: true,
                    http: false,
                    tls: None,
                    place: None,
                });
            }
            Listener::Tcp(listener) => listener,
        };
        let (socket, peer) = Socket::accept(listener)?;
        let here = match &door.arrival {
            Some(address) => address.clone(),
            None => socket.local_address().map_err(|_| aborted())?.to_string(),
        };
        let near = peer.ip().is_loopback();
        let http = door.http;
        Ok(Newcomer { socket, address: peer.to_string(), here, near, http, tls: None, place: None })
    }

    /// Whether an address has as many clients as it may have. `more`: those that are no clients yet.
    pub(super) fn is_crowded(&self, address: &str, more: usize) -> bool {
        let most = self.server.config.live.maxclients_per_address.size();
        most > 0 && self.server.observe.clients.count_of(address) + more >= most
    }

    /// Checks a new connection and gives it to a loop.
    pub(super) fn welcome<T: Transport>(&mut self, io: &mut T, newcomer: Newcomer) {
        let Newcomer { mut socket, address, here, near, http, tls, .. } = newcomer;
        let live = &self.server.config.live;
        let refusal = if self.server.observe.clients.len() >= live.maxclients.size() {
            Some(("ERR", 503, "max number of clients reached"))
        } else if self.is_crowded(&address, 0) {
            Some(("ERR", 503, "max number of clients of one address reached"))
        } else if !near && live.protected_mode.get() && self.server.acl.is_open() {
            Some((
                "DENIED",
                403,
                "Evenkeel is running in protected mode: no password is set, so only clients on the same machine are \
                 served. Set a password (requirepass) or, knowing what it means, protected-mode no.",
            ))
        } else {
            None
        };
        if let Some((code, status, text)) = refusal {
            self.server.observe.clients.refused.fetch_add(1, Ordering::Relaxed);
            let text = match http {
                true => conn::refusal(status, text, self.local.log.now_ms),
                false => format!("-{code} {text}\r\n").into_bytes(),
            };
            let text = match tls {
                Some(tls::Greeted { mut session, .. }) => Conn::seal_refusal(&mut session, &text),
                None => text,
            };
            // Best effort: the client may be gone already.
            let _ = socket.write(&text);
            return;
        }
        let id = self.server.observe.clients.next_id();
        let loop_id = match (points::is_armed(Point::Accept), points::strays(Point::Accept, id)) {
            (false, _) => self.load.place(),
            (true, stays) => {
                if stays {
                    self.server.loops() - 1
                } else {
                    0
                }
            }
        };
        let unix = matches!(socket, Socket::Unix(_));
        let info =
            Arc::new(ClientInfo::new(id, loop_id, address, here, socket.raw(), unix, self.local.log.now_ms));
        self.server.observe.clients.add(info.clone());
        let mut session = Session::new(info, &self.server.acl, self.server.acl.is_open());
        if let Some(greeted) = &tls {
            exec::access::log_in_by_certificate(&self.server, &mut session, &greeted.names);
        }
        let conn = match http {
            true => Conn::http(socket, session, &self.server, self.local.log.now_ms),
            false => Conn::new(socket, session, &self.server),
        };
        let conn = Box::new(match tls {
            Some(greeted) => conn.secured(greeted.session, greeted.early),
            None => conn,
        });
        if loop_id == self.local.log.id {
            self.adopt(io, conn);
        } else {
            self.server.send(loop_id, Mail::Adopt(Box::new(conn)));
        }
    }

    pub(super) fn adopt<T: Transport>(&mut self, io: &mut T, mut conn: Box<Conn>) {
        let early = conn.take_early();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        if self.arrivals.add(slot, &conn.socket).and_then(|()| io.add(slot, &conn.socket)).is_err() {
            exec::parting::goodbye(&self.server, &mut self.local, &mut conn.session);
            return self.free.push(slot);
        }
        self.by_id.insert(conn.session.id, slot);
        self.https += usize::from(conn.is_http());
        let is_secure = conn.is_secure();
        conn.session.set_flag(exec::session::flag::SECURE, is_secure);
        if conn.is_link() {
            self.links.push(conn.session.id);
            // Its first bytes may be there already.
            conn.outside = false;
            self.arrivals.remove(&conn.socket);
            self.conns[slot] = Some(conn);
            self.queue(slot);
            self.mark_dirty(slot);
            return;
        }
        self.conns[slot] = Some(conn);
        if is_secure {
            self.hear_early(slot, &early);
        }
    }

    /// Notes that the peer is gone. Commands that it sent whole still run.
    pub(super) fn lose(&mut self, slot: usize) {
        let stays = self.conns[slot].as_mut().is_some_and(|conn| !conn.doomed && conn.orphan());
        if stays { self.queue(slot) } else { self.doom(slot) }
    }

    /// Schedules a connection to be closed. It is not served any more.
    pub(super) fn doom(&mut self, slot: usize) {
        let runs_elsewhere = |conn: &Conn| conn.is_link() && matches!(conn.state, State::Parked(_));
        if let Some(conn) = self.conns[slot].as_mut().filter(|conn| runs_elsewhere(conn)) {
            // It is closed when its command is done (link NL2).
            conn.end_link();
            return conn.session.info.killed.store(true, Ordering::Relaxed);
        }
        if let Some(conn) = self.conns[slot].as_mut()
            && !std::mem::replace(&mut conn.doomed, true)
        {
            conn.session.cancel.store(true, Ordering::Relaxed);
            self.closing.push_back(slot);
        }
    }

    /// Frees a slot once all queued events that may be about it are served.
    pub(super) fn rest<T: Transport>(&mut self, io: &mut T, slot: usize) {
        self.sort_in(io, Event::Free(slot));
    }

    /// Closes some of the connections that are to be closed: each costs the kernel some microseconds.
    pub(super) fn close_some<T: Transport>(&mut self, io: &mut T) {
        if self.closing.is_empty() {
            return;
        }
        let until = self.local.log.lap() + SLICE_NS;
        while let Some(slot) = self.closing.pop_front() {
            let Some(mut conn) = self.conns[slot].take() else { continue };
            if conn.is_link() {
                // The reply of its last command may have come since its last turn.
                conn.note_applied(&self.server, self.local.log.now_ms);
            }
            self.https -= usize::from(conn.is_http());
            self.by_id.remove(&conn.session.id);
            self.timers.forget(conn.session.id);
            exec::parting::goodbye(&self.server, &mut self.local, &mut conn.session);
            self.told -= conn.told;
            if conn.is_secure() && conn.sent_with != self.submissions {
                conn.say_last(io, slot);
            }
            if io.remove(slot, conn.dismiss(&self.server)) {
                self.rest(io, slot);
            }
            if self.local.log.lap() >= until {
                return;
            }
        }
    }
}
