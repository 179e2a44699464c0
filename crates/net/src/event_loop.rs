//! One event loop. See the crate's head for the order of a turn.

use crate::conn::{Conn, Flushed, Next, State};
use crate::socket::Socket;
use crate::timers::Timers;
use crate::transport::{Event, Pool, Received, Transport};
use exec::mail::{Mail, Published};
use exec::session::ClientInfo;
use exec::{Local, Server, Session};
use keyspace::{Sweep, Swept};
use resp::Batch;
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::points::{self, Point};

/// What the first loop accepts from.
#[derive(Default)]
pub struct Listeners {
    /// Non-blocking.
    pub tcp: Vec<TcpListener>,
    pub unix: Vec<UnixListener>,
}

impl Listeners {
    fn len(&self) -> usize {
        self.tcp.len() + self.unix.len()
    }
}

/// Connections accepted per turn: an accept storm is taken in slices.
const ACCEPTS: usize = 16;
/// Housekeeping interval, in milliseconds.
const CRON_MS: u64 = 100;
/// Nanoseconds of expiry sweeping per turn while there is something to sweep.
const SWEEP_NS: u64 = 50_000;

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
    listeners: Listeners,
    /// By listener: somebody may be waiting to be accepted.
    accepting: Vec<bool>,
    /// Somebody could not be accepted: no descriptor was left.
    starved: bool,
    conns: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
    by_id: HashMap<u64, usize>,
    continued: VecDeque<usize>,
    dirty: Vec<usize>,
    /// Their last words are on the way; they are looked at again when those are out.
    leaving: Vec<usize>,
    closing: Vec<usize>,
    mail: Vec<Mail>,
    /// Replies that became ready in a slice of long work.
    done: Vec<exec::job::Delivery>,
    batch: Batch,
    pool: Pool,
    timers: Timers,
    sweep: Sweep,
    sweeping: bool,
    next_cron_ms: u64,
    load: Load,
    cpu_ns: u64,
    window_started_ns: u64,
    stopping: bool,
}

impl EventLoop {
    pub(crate) fn new(id: usize, server: Arc<Server>, listeners: Listeners, load: Load) -> EventLoop {
        let local = Local::new(id, &server);
        EventLoop {
            next_cron_ms: local.now_ms,
            window_started_ns: local.clock_ns,
            server,
            local,
            accepting: vec![true; listeners.len()],
            listeners,
            starved: false,
            conns: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            continued: VecDeque::new(),
            dirty: Vec::new(),
            leaving: Vec::new(),
            closing: Vec::new(),
            mail: Vec::new(),
            done: Vec::new(),
            batch: Batch::new(),
            pool: Pool::default(),
            timers: Timers::default(),
            sweep: Sweep::default(),
            sweeping: false,
            load,
            cpu_ns: 0,
            stopping: false,
        }
    }

    /// What a transport has to watch besides connections: the mailbox, and the listeners by number.
    pub(crate) fn watched(&self) -> (BorrowedFd<'_>, Vec<BorrowedFd<'_>>) {
        let tcp = self.listeners.tcp.iter().map(AsFd::as_fd);
        let listeners = tcp.chain(self.listeners.unix.iter().map(AsFd::as_fd)).collect();
        (self.server.mailbox(self.local.id).as_fd(), listeners)
    }

    /// Connections there may be at most.
    pub(crate) fn clients_max(&self) -> usize {
        self.server.config.live.maxclients.size()
    }

    pub(crate) fn run<T: Transport>(&mut self, io: &mut T) {
        let mut events = Vec::with_capacity(256);
        while !self.stopping {
            io.wait(self.timeout(), &mut events, &mut self.pool);
            self.local.tick();
            for slot in std::mem::take(&mut self.leaving) {
                self.mark_dirty(slot);
            }
            for event in events.drain(..) {
                self.serve(io, event);
            }
            self.accept(io);
            self.read_mail(io);
            if let Some(slot) = self.continued.pop_front() {
                self.continue_one(slot);
            }
            self.do_works();
            self.write_all(io);
            self.close_all(io);
            self.keep_house(io);
            stdx::reclaim::flush();
            // The end of the turn, for the statistics.
            self.local.lap();
        }
        self.say_goodbye(io);
    }

    /// How long the loop may sleep: not at all while there is something to do.
    fn timeout(&self) -> Duration {
        let busy = !self.continued.is_empty()
            || !self.dirty.is_empty()
            || !self.leaving.is_empty()
            || self.sweeping
            || self.local.works.any()
            || self.accepting.contains(&true)
            || self.server.mailbox(self.local.id).is_rung();
        if busy {
            return Duration::ZERO;
        }
        let next = self.timers.next_ms().unwrap_or(u64::MAX).min(self.next_cron_ms);
        Duration::from_millis(next.saturating_sub(self.local.now_ms).min(CRON_MS))
    }

    fn serve<T: Transport>(&mut self, io: &mut T, event: Event) {
        match event {
            // Mail is looked for each turn.
            Event::Mail => {}
            Event::Listener(number) => self.accepting[number] = true,
            Event::Readable(slot) | Event::Arrived(slot, _) => {
                self.receive(io, slot, &event);
                io.done(event);
            }
            Event::Ended(slot) => self.end(slot),
            Event::Writable(slot) => {
                if let Some(conn) = self.conns[slot].as_mut() {
                    conn.unblock();
                    self.mark_dirty(slot);
                }
            }
            Event::Unsent { slot, bytes, from, blocked } => {
                if let Some(conn) = self.conns[slot].as_mut() {
                    conn.put_back(bytes, from, blocked);
                    self.mark_dirty(slot);
                }
            }
            Event::Broken(slot) => self.closing.push(slot),
            Event::Free(slot) => self.free.push(slot),
        }
    }

    fn receive<T: Transport>(&mut self, io: &mut T, slot: usize, event: &Event) {
        let Some(mut conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else { return };
        let received = conn.receive(io, event);
        let (n, fresh) = match received {
            Ok(Received::Bytes(bytes)) => (bytes.len(), bytes),
            Ok(Received::Appended(n)) => (n, &[][..]),
            Ok(Received::Nothing) => return,
            Ok(Received::Ended) => return self.end(slot),
            Err(_) => return self.closing.push(slot),
        };
        match conn.came(n, &self.server, &self.local) {
            Next::Close => self.closing.push(slot),
            Next::Wait => {}
            // A connection in the queue has had its quantum: it waits for its turn.
            Next::Continue if conn.queued => conn.keep(fresh),
            Next::Continue => {
                self.advance(slot, fresh);
                match self.conns[slot].as_mut() {
                    Some(served) => conn = served,
                    None => return,
                }
            }
        }
        if conn.listening && !conn.wants_input() {
            self.listen(io, slot);
        }
    }

    /// The peer will send no more.
    fn end(&mut self, slot: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        match conn.end() {
            Next::Close => self.closing.push(slot),
            Next::Wait => {}
            Next::Continue if conn.queued => {}
            Next::Continue => self.advance(slot, &[]),
        }
    }

    /// One quantum for a connection.
    fn advance(&mut self, slot: usize, fresh: &[u8]) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let next = conn.advance(&self.server, &mut self.local, &mut self.batch, &mut self.pool, fresh);
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
            self.advance(slot, &[]);
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
    fn write_all<T: Transport>(&mut self, io: &mut T) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let mut again = Vec::new();
        for slot in dirty.drain(..) {
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            conn.dirty = false;
            match conn.flush(io, slot, &self.local, &mut self.pool) {
                Err(_) => self.closing.push(slot),
                Ok(Flushed::All) if conn.is_finished() => self.closing.push(slot),
                Ok(flushed) => {
                    if flushed == Flushed::Blocked
                        && conn.exceeds_output_limit(&self.server, self.local.now_ms)
                    {
                        log::warn!(
                            "client {} closed: {} bytes wait for it, more than client-output-buffer-limit allows",
                            conn.session.id,
                            conn.pending_out()
                        );
                        self.closing.push(slot);
                        continue;
                    }
                    match flushed {
                        Flushed::Queued if conn.is_finished() => self.leaving.push(slot),
                        Flushed::Queued if conn.pending_out() > 0 => again.push(slot),
                        Flushed::Part => again.push(slot),
                        _ => {}
                    }
                    let work = conn.has_work();
                    if conn.listening != conn.wants_input() {
                        self.listen(io, slot);
                    }
                    if work {
                        self.queue(slot);
                    }
                }
            }
        }
        self.dirty = dirty;
        again.into_iter().for_each(|slot| self.mark_dirty(slot));
    }

    /// Tells the transport whether more input is welcome.
    fn listen<T: Transport>(&mut self, io: &mut T, slot: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        conn.listening = conn.wants_input();
        if io.set_input(slot, &conn.socket, conn.listening).is_err() {
            self.closing.push(slot);
        }
    }

    // ----- accepting and closing -------------------------------------------------------------------------------------

    /// Accepts a slice of those who wait.
    fn accept<T: Transport>(&mut self, io: &mut T) {
        let mut room = ACCEPTS;
        for listener in 0..self.accepting.len() {
            while self.accepting[listener] && room > 0 {
                room -= 1;
                match self.accept_one(listener) {
                    Ok((socket, address, here, near)) => self.welcome(io, socket, address, here, near),
                    Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => {
                        self.accepting[listener] = false;
                        self.starved |= e.kind() != ErrorKind::WouldBlock;
                    }
                }
            }
        }
    }

    fn accept_one(&self, listener: usize) -> std::io::Result<(Socket, String, String, bool)> {
        match listener.checked_sub(self.listeners.tcp.len()) {
            None => {
                let (stream, peer) = self.listeners.tcp[listener].accept()?;
                let aborted = |_| std::io::Error::from(ErrorKind::ConnectionAborted);
                let here = stream.local_addr().map_err(aborted)?.to_string();
                let keepalive = self.server.config.live.tcp_keepalive_s.get() as u64;
                let socket = Socket::tcp(stream, keepalive).map_err(aborted)?;
                Ok((socket, peer.to_string(), here, peer.ip().is_loopback()))
            }
            Some(i) => {
                let (stream, _) = self.listeners.unix[i].accept()?;
                let path = format!("{}:0", self.server.config.live.unixsocket.string());
                Ok((Socket::unix(stream)?, path.clone(), path, true))
            }
        }
    }

    /// Checks a new connection and gives it to a loop.
    fn welcome<T: Transport>(
        &mut self,
        io: &mut T,
        mut socket: Socket,
        address: String,
        local_address: String,
        near: bool,
    ) {
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
            self.adopt(io, conn);
        } else {
            self.server.send(loop_id, Mail::Adopt(Box::new(conn)));
        }
    }

    fn adopt<T: Transport>(&mut self, io: &mut T, conn: Box<Conn>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        if io.add(slot, &conn.socket).is_err() {
            self.server.clients.remove(conn.session.id);
            return self.free.push(slot);
        }
        self.by_id.insert(conn.session.id, slot);
        self.conns[slot] = Some(conn);
    }

    fn close_all<T: Transport>(&mut self, io: &mut T) {
        while let Some(slot) = self.closing.pop() {
            let Some(mut conn) = self.conns[slot].take() else { continue };
            self.by_id.remove(&conn.session.id);
            exec::clients::goodbye(&self.server, &mut self.local, &mut conn.session);
            if io.remove(slot, conn.socket) {
                self.free.push(slot);
            }
        }
    }

    /// A slice of what long work needs of this loop.
    fn do_works(&mut self) {
        if !self.local.works.any() {
            return;
        }
        let mut done = std::mem::take(&mut self.done);
        exec::works::advance(&self.server, &mut self.local, &mut done);
        for delivery in done.drain(..) {
            self.deliver(delivery.client, delivery.bytes, delivery.stream);
        }
        self.done = done;
    }

    // ----- mail ------------------------------------------------------------------------------------------------------

    fn read_mail<T: Transport>(&mut self, io: &mut T) {
        let mut mail = std::mem::take(&mut self.mail);
        // Serving mail may cause more mail to this loop; it is read in the same turn once, then in the next.
        for _ in 0..2 {
            self.server.mailbox(self.local.id).drain(&mut mail);
            for letter in mail.drain(..) {
                self.open(io, letter);
            }
        }
        self.mail = mail;
    }

    fn open<T: Transport>(&mut self, io: &mut T, letter: Mail) {
        match letter {
            Mail::Reply { client, bytes, stream } => self.deliver(client, bytes, stream),
            Mail::Job(job) => {
                if let Some(done) = exec::job::finish(&self.server, &mut self.local, job) {
                    self.deliver(done.client, done.bytes, done.stream);
                }
            }
            Mail::Script(job) => {
                if let Some(done) = exec::scripts::finish(&self.server, &mut self.local, job) {
                    self.deliver(done.client, done.bytes, done.stream);
                }
            }
            Mail::Read(request) => self.local.works.read(request),
            Mail::Publish(message) => self.publish(&message),
            Mail::Kill { client } => {
                if let Some(slot) = self.by_id.get(&client) {
                    self.closing.push(*slot);
                }
            }
            Mail::Retry => self.retry_held(),
            Mail::Adopt(any) => {
                if let Ok(conn) = any.downcast::<Box<Conn>>() {
                    self.adopt(io, *conn);
                }
            }
            Mail::Shutdown => self.stopping = true,
        }
    }

    fn deliver(&mut self, client: u64, bytes: Vec<u8>, stream: Option<Box<dyn exec::Stream>>) {
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

    fn keep_house<T: Transport>(&mut self, io: &mut T) {
        while let Some(client) = self.timers.due(self.local.now_ms) {
            self.time_out(client);
        }
        if self.sweeping {
            self.sweep_some();
        }
        if self.local.now_ms >= self.next_cron_ms {
            self.next_cron_ms = self.local.now_ms + CRON_MS;
            self.cron(io);
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
                    Some(waiter) => self.deliver(client, waiter.null(), None),
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

    fn cron<T: Transport>(&mut self, io: &mut T) {
        // The first loop sweeps; one is enough, and two would only meet at the same shards.
        self.sweeping |= self.local.id == 0;
        // Time in the kernel counts: most of a short request's work is there.
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let cpu_ns = spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64;
        let elapsed = (self.local.clock_ns - self.window_started_ns).max(1);
        let busy = ((cpu_ns - self.cpu_ns) * 1000 / elapsed).min(1000);
        self.load.0[self.local.id].store(busy, Ordering::Relaxed);
        self.cpu_ns = cpu_ns;
        if std::mem::take(&mut self.starved) {
            self.accepting.fill(true);
        }
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
            self.close_all(io);
        }
        if self.local.id == 0 {
            self.server.keyspace.prune();
        }
        exec::works::retry_waiting(&self.server, &mut self.local);
        exec::clients::cron(&self.server, &mut self.local);
    }

    /// Sends what can be sent before the process ends.
    fn say_goodbye<T: Transport>(&mut self, io: &mut T) {
        for slot in 0..self.conns.len() {
            if let Some(conn) = self.conns[slot].as_mut() {
                let _ = conn.flush(io, slot, &self.local, &mut self.pool);
            }
        }
        io.wait(Duration::ZERO, &mut Vec::new(), &mut self.pool);
    }
}
