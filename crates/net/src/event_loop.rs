//! One event loop. See the crate's head for the order of a turn.

use crate::conn::{Conn, Next, State};
use crate::socket::Socket;
use crate::timers::Timers;
use exec::mail::{Mail, Published};
use exec::session::ClientInfo;
use exec::{Local, Server, Session};
use keyspace::{Sweep, Swept};
use resp::Batch;
use rustix::event::{Timespec, epoll};
use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::points::{self, Point};

/// What the first loop accepts from.
#[derive(Default)]
pub struct Listeners {
    /// Non-blocking.
    pub tcp: Vec<TcpListener>,
    pub unix: Vec<UnixListener>,
}

/// Connections accepted per turn: an accept storm is taken in slices.
const ACCEPTS: usize = 16;
/// Housekeeping interval, in milliseconds.
const CRON_MS: u64 = 100;
/// Nanoseconds of expiry sweeping per turn while there is something to sweep.
const SWEEP_NS: u64 = 50_000;

const MAILBOX: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 256;

/// How busy each loop is, in thousandths of the last interval.
#[derive(Clone)]
pub(crate) struct Load(Arc<[AtomicU64]>);

impl Load {
    pub(crate) fn new(loops: usize) -> Load {
        Load((0..loops).map(|_| AtomicU64::new(0)).collect())
    }

    fn of(&self, id: usize) -> u64 {
        self.0[id].load(Ordering::Relaxed)
    }

    /// Where a new connection goes: to the first loop unless that is busy and another is less so. Spreading early would
    /// only add wake-ups across cores.
    fn place(&self) -> usize {
        let least = (0..self.0.len()).min_by_key(|id| (self.of(*id), *id)).unwrap_or(0);
        if self.of(0) > 700 && self.of(least) + 200 < self.of(0) { least } else { 0 }
    }
}

pub(crate) struct EventLoop {
    server: Arc<Server>,
    local: Local,
    epoll: OwnedFd,
    listeners: Listeners,
    conns: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
    by_id: HashMap<u64, usize>,
    continued: VecDeque<usize>,
    dirty: Vec<usize>,
    closing: Vec<usize>,
    mail: Vec<Mail>,
    batch: Batch,
    timers: Timers,
    sweep: Sweep,
    sweeping: bool,
    next_cron_ms: u64,
    load: Load,
    busy_ns: u64,
    window_started_ns: u64,
    stopping: bool,
}

impl EventLoop {
    pub(crate) fn new(
        id: usize,
        server: Arc<Server>,
        listeners: Listeners,
        load: Load,
    ) -> std::io::Result<EventLoop> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let read = epoll::EventFlags::IN;
        epoll::add(&epoll, server.mailbox(id), epoll::EventData::new_u64(MAILBOX), read)?;
        let fds = listeners.tcp.iter().map(AsFd::as_fd).chain(listeners.unix.iter().map(AsFd::as_fd));
        for (i, fd) in fds.enumerate() {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(LISTENER + i as u64), read)?;
        }
        let local = Local::new(id, &server);
        Ok(EventLoop {
            epoll,
            next_cron_ms: local.now_ms,
            window_started_ns: local.clock_ns,
            server,
            local,
            listeners,
            conns: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            continued: VecDeque::new(),
            dirty: Vec::new(),
            closing: Vec::new(),
            mail: Vec::new(),
            batch: Batch::new(),
            timers: Timers::default(),
            sweep: Sweep::default(),
            sweeping: false,
            load,
            busy_ns: 0,
            stopping: false,
        })
    }

    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(256);
        while !self.stopping {
            let timeout = self.timeout();
            events.clear();
            // The only error that can happen here is an interruption, which is an empty turn.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
            self.local.tick();
            let woke_ns = self.local.clock_ns;
            for event in &events {
                self.serve(event.data.u64(), event.flags);
            }
            self.read_mail();
            if let Some(slot) = self.continued.pop_front() {
                self.continue_one(slot);
            }
            self.write_all();
            self.close_all();
            self.keep_house();
            stdx::reclaim::flush();
            self.busy_ns += self.local.lap() - woke_ns;
        }
        self.say_goodbye();
    }

    /// How long the loop may sleep: not at all while there is something to do.
    fn timeout(&self) -> Option<Timespec> {
        let ms =
            if !self.continued.is_empty() || self.sweeping || self.server.mailbox(self.local.id).is_rung() {
                0
            } else {
                let next = self.timers.next_ms().unwrap_or(u64::MAX).min(self.next_cron_ms);
                next.saturating_sub(self.local.now_ms).min(CRON_MS)
            };
        Some(Timespec { tv_sec: 0, tv_nsec: ms as i64 * 1_000_000 })
    }

    fn serve(&mut self, token: u64, flags: epoll::EventFlags) {
        if token == MAILBOX {
            return;
        }
        if token >= LISTENER {
            return self.accept((token - LISTENER) as usize);
        }
        let slot = token as usize;
        let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else { return };
        if flags.contains(epoll::EventFlags::OUT) && conn.pending_out() > 0 {
            self.mark_dirty(slot);
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        let Some(conn) = self.conns[slot].as_mut() else { return };
        if !conn.wants_input() && flags.contains(epoll::EventFlags::HUP) {
            return self.closing.push(slot);
        }
        match conn.read(&self.server, &self.local) {
            Next::Close => self.closing.push(slot),
            Next::Wait => {}
            // A connection in the queue has had its quantum: it waits for its turn.
            Next::Continue if conn.queued => {}
            Next::Continue => self.advance(slot),
        }
    }

    /// One quantum for a connection.
    fn advance(&mut self, slot: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let next = conn.advance(&self.server, &mut self.local, &mut self.batch);
        if let Some(at) = conn.new_deadline() {
            self.timers.add(at, conn.session.id);
        }
        if conn.pending_out() > 0 || next == Next::Wait {
            self.mark_dirty(slot);
        }
        match next {
            Next::Close if self.conns[slot].as_ref().is_some_and(|c| c.pending_out() > 0) => {}
            Next::Close => self.closing.push(slot),
            Next::Continue => self.queue(slot),
            Next::Wait => {}
        }
    }

    fn queue(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].as_mut()
            && !conn.queued
        {
            conn.queued = true;
            self.continued.push_back(slot);
        }
    }

    fn continue_one(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].as_mut() {
            conn.queued = false;
            self.local.lap();
            self.advance(slot);
        }
    }

    fn mark_dirty(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].as_mut()
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Writes every connection that has something to say, once.
    fn write_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            conn.dirty = false;
            let flushed = conn.flush(&self.local);
            match flushed {
                Err(_) => self.closing.push(slot),
                Ok(_) if conn.is_finished() => self.closing.push(slot),
                Ok(all) => {
                    if !all && conn.exceeds_output_limit(&self.server, self.local.now_ms) {
                        log::warn!(
                            "client {} closed: {} bytes wait for it, more than client-output-buffer-limit allows",
                            conn.session.id,
                            conn.pending_out()
                        );
                        self.closing.push(slot);
                        continue;
                    }
                    let work = conn.has_work();
                    self.watch(slot, !all);
                    if work {
                        self.queue(slot);
                    }
                }
            }
        }
        self.dirty = dirty;
    }

    /// Tells epoll what to wait for, if that changed.
    fn watch(&mut self, slot: usize, output: bool) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let wanted = (conn.wants_input(), output);
        if conn.interest == wanted {
            return;
        }
        conn.interest = wanted;
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, wanted.0);
        flags.set(epoll::EventFlags::OUT, wanted.1);
        if epoll::modify(&self.epoll, &conn.socket, epoll::EventData::new_u64(slot as u64), flags).is_err() {
            self.closing.push(slot);
        }
    }

    // ----- accepting and closing -------------------------------------------------------------------------------------

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS {
            let accepted = match listener.checked_sub(self.listeners.tcp.len()) {
                None => self.listeners.tcp[listener].accept().and_then(|(stream, peer)| {
                    let here = stream.local_addr()?.to_string();
                    let keepalive = self.server.config.live.tcp_keepalive_s.get() as u64;
                    Ok((Socket::tcp(stream, keepalive)?, peer.to_string(), here, peer.ip().is_loopback()))
                }),
                Some(i) => self.listeners.unix[i].accept().and_then(|(stream, _)| {
                    let path = self.server.config.live.unixsocket.string();
                    Ok((Socket::unix(stream)?, format!("{path}:0"), format!("{path}:0"), true))
                }),
            };
            match accepted {
                Ok((socket, address, here, near)) => self.welcome(socket, address, here, near),
                Err(_) => return,
            }
        }
    }

    /// Checks a new connection and gives it to a loop.
    fn welcome(&mut self, mut socket: Socket, address: String, local_address: String, near: bool) {
        let live = &self.server.config.live;
        let refusal = if self.server.clients.len() >= live.maxclients.size() {
            Some("-ERR max number of clients reached\r\n")
        } else if !near && live.protected_mode.get() && live.requirepass.is_empty() {
            Some(
                "-DENIED Evenkeel is running in protected mode: no password is set, so only clients on the same machine \
                 are served. Set a password (requirepass) or, knowing what it means, protected-mode no.\r\n",
            )
        } else {
            None
        };
        if let Some(text) = refusal {
            self.server.clients.refused.fetch_add(1, Ordering::Relaxed);
            // Best effort: the client may be gone already.
            let _ = socket.write(text.as_bytes());
            return;
        }
        let id = self.server.clients.next_id();
        let astray = usize::from(points::stays(Point::Accept, id));
        let loop_id = (self.load.place() + astray) % self.server.loops();
        let unix = matches!(socket, Socket::Unix(_));
        let info = Arc::new(ClientInfo::new(
            id,
            loop_id,
            address,
            local_address,
            socket.raw(),
            unix,
            self.local.now_ms,
        ));
        self.server.clients.add(info.clone());
        let session = Session::new(info, live.requirepass.is_empty());
        let conn = Box::new(Conn::new(socket, session, &self.server));
        if loop_id == self.local.id {
            self.adopt(conn);
        } else {
            self.server.send(loop_id, Mail::Adopt(Box::new(conn)));
        }
    }

    fn adopt(&mut self, conn: Box<Conn>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        let data = epoll::EventData::new_u64(slot as u64);
        if epoll::add(&self.epoll, &conn.socket, data, epoll::EventFlags::IN).is_err() {
            self.server.clients.remove(conn.session.id);
            return self.free.push(slot);
        }
        self.by_id.insert(conn.session.id, slot);
        self.conns[slot] = Some(conn);
    }

    fn close_all(&mut self) {
        while let Some(slot) = self.closing.pop() {
            let Some(mut conn) = self.conns[slot].take() else { continue };
            let _ = epoll::delete(&self.epoll, &conn.socket);
            self.by_id.remove(&conn.session.id);
            exec::clients::goodbye(&self.server, &mut self.local, &mut conn.session);
            self.free.push(slot);
        }
    }

    // ----- mail ------------------------------------------------------------------------------------------------------

    fn read_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        // Serving mail may cause more mail to this loop; it is read in the same turn once, then in the next.
        for _ in 0..2 {
            self.server.mailbox(self.local.id).drain(&mut mail);
            for letter in mail.drain(..) {
                self.open(letter);
            }
        }
        self.mail = mail;
    }

    fn open(&mut self, letter: Mail) {
        match letter {
            Mail::Reply { client, bytes, stream } => self.deliver(client, &bytes, stream),
            Mail::Job(job) => {
                if let Some(done) = exec::call::finish_job(&self.server, &mut self.local, job) {
                    self.deliver(done.client, &done.bytes, done.stream);
                }
            }
            Mail::Script(job) => {
                if let Some(done) = exec::scripts::finish(&self.server, &mut self.local, job) {
                    self.deliver(done.client, &done.bytes, done.stream);
                }
            }
            Mail::Read(request) => request.answer(&self.server.keyspace),
            Mail::Publish(message) => self.publish(&message),
            Mail::Kill { client } => {
                if let Some(slot) = self.by_id.get(&client) {
                    self.closing.push(*slot);
                }
            }
            Mail::Retry => self.retry_held(),
            Mail::Adopt(any) => {
                if let Ok(conn) = any.downcast::<Box<Conn>>() {
                    self.adopt(*conn);
                }
            }
            Mail::Shutdown => self.stopping = true,
        }
    }

    fn deliver(&mut self, client: u64, bytes: &[u8], stream: Option<Box<dyn exec::Stream>>) {
        let Some(&slot) = self.by_id.get(&client) else { return };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        conn.resume(bytes, stream);
        self.mark_dirty(slot);
        self.queue(slot);
    }

    fn publish(&mut self, message: &Published) {
        let clients = self.local.subscribers(message).to_vec();
        for client in clients {
            let Some(&slot) = self.by_id.get(&client) else { continue };
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            conn.push(|out| exec::pubsub::write(message, out));
            self.mark_dirty(slot);
        }
    }

    /// Runs again what CLIENT PAUSE held, if it ended.
    fn retry_held(&mut self) {
        for slot in 0..self.conns.len() {
            if let Some(conn) = self.conns[slot].as_mut()
                && matches!(conn.state, State::Held(_))
            {
                conn.release();
                self.queue(slot);
            }
        }
    }

    // ----- housekeeping ----------------------------------------------------------------------------------------------

    fn keep_house(&mut self) {
        while let Some(client) = self.timers.due(self.local.now_ms) {
            self.time_out(client);
        }
        if self.sweeping {
            self.sweep_some();
        }
        if self.local.now_ms >= self.next_cron_ms {
            self.next_cron_ms = self.local.now_ms + CRON_MS;
            self.cron();
        }
    }

    /// A parked client's deadline has come, or a held one may run again.
    fn time_out(&mut self, client: u64) {
        let Some(&slot) = self.by_id.get(&client) else { return };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        match conn.state {
            State::Held(at) if at <= self.local.now_ms => {
                conn.release();
                self.queue(slot);
            }
            State::Parked(Some(at)) if at <= self.local.now_ms => {
                match self.server.park.leave(&self.server.keyspace, client) {
                    Some(waiter) => self.deliver(client, &waiter.null(), None),
                    // Somebody is serving it at this moment; its reply is on the way, or it goes on waiting.
                    None => self.timers.add(self.local.now_ms + 1, client),
                }
            }
            State::Held(at) | State::Parked(Some(at)) => self.timers.add(at, client),
            _ => {}
        }
    }

    fn sweep_some(&mut self) {
        let until = stdx::clock::mono_ns() + SWEEP_NS;
        loop {
            let mut told = Vec::new();
            let swept =
                self.sweep.step(&self.server.keyspace, self.local.now_ms, |changes| told.push(changes));
            for changes in told {
                self.server.after(&mut self.local, changes);
            }
            if swept == Swept::Round {
                self.sweeping = false;
                return;
            }
            if stdx::clock::mono_ns() >= until {
                return;
            }
        }
    }

    fn cron(&mut self) {
        // The first loop sweeps; one is enough, and two would only meet at the same shards.
        self.sweeping |= self.local.id == 0;
        let elapsed = (self.local.clock_ns - self.window_started_ns).max(1);
        self.load.0[self.local.id].store((self.busy_ns * 1000 / elapsed).min(1000), Ordering::Relaxed);
        self.busy_ns = 0;
        self.window_started_ns = self.local.clock_ns;
        let timeout_ms = self.server.config.live.timeout_s.get() as u64 * 1000;
        if timeout_ms > 0 {
            for slot in 0..self.conns.len() {
                let Some(conn) = self.conns[slot].as_ref() else { continue };
                let idle =
                    self.local.now_ms.saturating_sub(conn.session.info.last_ms.load(Ordering::Relaxed));
                if idle > timeout_ms && conn.state == State::Running && conn.session.subs.is_empty() {
                    self.closing.push(slot);
                }
            }
            self.close_all();
        }
        if self.local.id == 0 {
            self.server.keyspace.prune();
        }
        exec::clients::cron(&self.server, &mut self.local);
    }

    /// Sends what can be sent before the process ends.
    fn say_goodbye(&mut self) {
        for conn in self.conns.iter_mut().flatten() {
            let _ = conn.flush(&self.local);
        }
    }
}
