//! The connection to the primary that this server follows, as a connection of a loop.
//!
//! - NL1: it stays on its loop, and nothing closes it but its end, its own commands, and who made it.
//! - NL2: a command of it that runs elsewhere ends before the connection does: what it changed is known then.

use super::*;
use exec::mail::Mail;
use exec::session::ClientInfo;
use role::link::{Link, Linked};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// A socket with the stream of a primary.
pub enum Stream {
    Tcp(TcpStream),
    /// Another thread decrypts it.
    Pipe(UnixStream),
}

/// Gives the stream of a primary to a loop. `early`: bytes of it that came already. Gives the client's id.
/// O(early). Errors: the socket cannot be used.
pub fn adopt(server: &Arc<Server>, stream: Stream, early: &[u8], link: Arc<Link>) -> std::io::Result<u64> {
    let loop_id = server.loops() - 1;
    let address = server.role.primary().map_or(String::new(), |at| format!("{}:{}", at.host, at.port));
    let (socket, is_unix) = match stream {
        Stream::Tcp(tcp) => {
            tcp.set_nonblocking(true)?;
            (Socket::Tcp(tcp), false)
        }
        Stream::Pipe(pipe) => (Socket::unix(pipe)?, true),
    };
    let here = socket.local_address().map_or(String::new(), |here| here.to_string());
    let (id, now_ms) = (server.observe.clients.next_id(), stdx::clock::wall_ms());
    let info = Arc::new(ClientInfo::new(id, loop_id, address, here, socket.raw(), is_unix, now_ms));
    server.observe.clients.add(info.clone());
    let mut session = Session::new(info, &server.acl, true);
    let db = link.position().1;
    session.select(db);
    let mut linked = Linked::new(link);
    linked.note_came(early.len(), now_ms);
    session.become_link(linked);
    server.role.link(id, &server.work.follows);
    let mut conn = Conn::new(socket, session, server);
    conn.keep(early);
    server.send(loop_id, Mail::Adopt(Box::new(Box::new(conn))));
    Ok(id)
}

impl Conn {
    /// Whether it is the connection to the primary.
    #[inline]
    pub(crate) fn is_link(&self) -> bool {
        self.session.link.is_some()
    }

    /// Before a command: notes that all that came is done, but for so many bytes. The command may go elsewhere,
    /// or open a group that never ends.
    pub(super) fn note_before(&mut self, unread: usize) {
        if self.session.multi.is_none()
            && let Some(link) = &mut self.session.link
        {
            link.note_done(unread, self.session.db);
        }
    }

    /// After a slice: notes how far the stream is applied, and says it if that is due. True: its commands end
    /// it.
    #[cold]
    pub(crate) fn note_applied(&mut self, server: &Server, now_ms: u64) -> bool {
        let unread = self.unread();
        let rests = self.state == State::Running && self.held.is_none() && self.large.is_none();
        let between = rests && self.session.multi.is_none() && self.stream.is_none();
        let db = self.session.db;
        let Some(link) = &mut self.session.link else { return false };
        if between {
            server.keyspace.carry_apart();
            link.note_done(unread, db);
        }
        if !self.orphaned {
            link.acknowledge(&mut self.out, now_ms, || server.durable_offset());
        }
        link.is_to_close()
    }

    /// Its primary's bytes go to its own replicas, with the effect of the command that they are.
    #[cold]
    pub(super) fn carry(&self, keyspace: &keyspace::Keyspace, bytes: &[u8]) {
        let multi = self.session.multi.as_ref();
        let selected = multi.and_then(|multi| multi.selected);
        // As `note_before` does.
        keyspace.carry(bytes, selected.unwrap_or(self.session.db), multi.is_none());
    }

    /// As `carry`, for bytes behind the last command, which nothing counts yet.
    #[cold]
    pub(super) fn carry_rest(&self, keyspace: &keyspace::Keyspace, bytes: &[u8]) {
        keyspace.carry(bytes, self.session.db, false);
    }

    /// The command has ended, is under way elsewhere, or runs again later.
    #[cold]
    pub(super) fn carried(&self, keyspace: &keyspace::Keyspace, flow: &Flow, again: bool) {
        match flow {
            Flow::Held(_) if again => keyspace.carry_again(),
            Flow::Held(_) | Flow::Parked(_) => {}
            _ => keyspace.carry_done(self.session.db),
        }
    }

    /// Says how far the stream is applied, if that is due. True: there is something to send.
    pub(crate) fn acknowledge(&mut self, server: &Server, now_ms: u64) -> bool {
        if self.orphaned {
            return false;
        }
        if let Some(link) = &mut self.session.link {
            link.acknowledge(&mut self.out, now_ms, || server.durable_offset());
        }
        !self.out.is_empty()
    }

    /// The primary has gone, or is to be left (NL2). True: it has to run on before it can be closed.
    pub(crate) fn end_link(&mut self) -> bool {
        (self.eof, self.orphaned) = (true, true);
        self.out.clear();
        self.gates.forget();
        self.unsent = None;
        self.state != State::Running
    }
}
