//! Handshakes of TLS, on threads of their own. They cost up to a millisecond of processor time each, and a
//! client may take as long as it likes for its part.
//!
//! ```text
//! loop 0: accept ──letter──► thread tls-n: epoll over its sockets ──whole──► Mail::Adopt ──► loop 0: welcome
//!            │                    │  one read, one step for each that is ready
//!            └ all places taken:  └ too late: closed. Refused: an alert, and closed later (HS7)
//!              the rest waits in the kernel
//! ```
//!
//! - HS1: at most `tls-handshakes-max` handshakes are under way. A loop accepts no further client until one
//!   ends.
//! - HS2: a thread waits for no client: sockets are not blocking, and each step reads at most [`READ`] bytes.
//! - HS3: a handshake ends within `tls-handshake-timeout`, and within [`HURRY_MS`] while all places are taken.
//!   So clients that take their time keep others out for a second at most.
//! - HS4: what the peer said behind its handshake goes along with its connection, and no byte is read twice.
//! - HS5: a panic ends one handshake.
//! - HS6: handshakes under way count to `maxclients` and `maxclients-per-address` like clients.
//! - HS7: a client that was sent an alert can read it. Its socket stays for up to [`PARTING_MS`], of at most
//!   [`PARTING_MAX`] clients, and what it sends is dropped. Closed at once, the system would reset the
//!   connection before the alert is read.
//!
//! Threads are nice: a loop and a thread that want the same core share it 3 : 1.

use crate::socket::Socket;
use exec::Server;
use exec::mail::Mail;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::letterbox::{Bell, Letterbox};
use tls::{Greeted, Inner, Keeper, Progress};

/// Bytes read at once from one client.
const READ: usize = 16 * 1024;
/// Time for a handshake while all places are taken, in milliseconds.
const HURRY_MS: u64 = 1000;
/// How long a refused client may take to read why, and how many may at a time in each thread.
const PARTING_MS: u64 = 1000;
const PARTING_MAX: usize = 64;
/// Time between two looks at the clock while handshakes are under way.
const LOOK_MS: i64 = 100;
/// Sockets served between two looks at letters and at the clock.
const EVENTS: usize = 64;
const NICE: i32 = 5;
/// The token of the letterbox.
const LETTERS: u64 = u64::MAX;

/// A client that was accepted.
pub(crate) struct Newcomer {
    pub(crate) socket: Socket,
    pub(crate) address: String,
    pub(crate) here: String,
    /// The client is on this machine.
    pub(crate) near: bool,
    pub(crate) http: bool,
    /// TLS, once the hands are shaken.
    pub(crate) tls: Option<Greeted>,
    /// Its place while it shakes hands.
    pub(crate) place: Option<Place>,
}

/// Handshakes under way: in all threads, and by host.
#[derive(Default)]
struct Pending {
    all: AtomicUsize,
    by_host: Mutex<HashMap<String, usize>>,
}

impl Pending {
    fn count(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    fn count_of(&self, host: &str) -> usize {
        self.by_host.lock().get(host).copied().unwrap_or(0)
    }
}

/// The place of one handshake among those under way; dropping it gives the place back.
pub(crate) struct Place {
    pending: Arc<Pending>,
    host: String,
}

impl Place {
    fn take(pending: &Arc<Pending>, address: &str) -> Place {
        let host = host(address).to_owned();
        pending.all.fetch_add(1, Ordering::Relaxed);
        *pending.by_host.lock().entry(host.clone()).or_default() += 1;
        Place { pending: pending.clone(), host }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pending.all.fetch_sub(1, Ordering::Relaxed);
        let mut by_host = self.pending.by_host.lock();
        if let Entry::Occupied(mut count) = by_host.entry(std::mem::take(&mut self.host)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// An address without its port.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Threads that shake hands with clients, as the accepting loop sees them.
pub struct Handshakes {
    server: Arc<Server>,
    desks: Vec<Arc<Letterbox<Newcomer, Wake>>>,
    pending: Arc<Pending>,
    next: AtomicUsize,
}

struct Wake(OwnedFd);

impl Bell for Wake {
    fn ring(&self) {
        // A write fails only when the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl Handshakes {
    /// Starts the threads. Errors: the system has none to give.
    pub fn start(server: &Arc<Server>, keeper: &Arc<Keeper>) -> io::Result<Handshakes> {
        let count = match server.config.live.tls_handshake_threads.size() {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get() / 2).clamp(1, 4),
            count => count,
        };
        let pending = Arc::<Pending>::default();
        let mut desks = Vec::new();
        for number in 0..count {
            let wake = Wake(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
            let desk = Arc::new(Letterbox::new(wake));
            let hall = Hall::new(server.clone(), keeper.clone(), desk.clone(), pending.clone())?;
            std::thread::Builder::new().name(format!("tls-{number}")).spawn(move || hall.run())?;
            desks.push(desk);
        }
        Ok(Handshakes { server: server.clone(), desks, pending, next: AtomicUsize::new(0) })
    }

    /// Whether another handshake may begin (HS1).
    pub(crate) fn has_room(&self) -> bool {
        self.pending() < limit(&self.server)
    }

    /// Handshakes under way.
    pub(crate) fn pending(&self) -> usize {
        self.pending.count()
    }

    /// Handshakes under way with clients of an address, which has its port behind it.
    pub(crate) fn pending_of(&self, address: &str) -> usize {
        self.pending.count_of(host(address))
    }

    /// Begins a handshake. Waits at most for another letter to be put in.
    pub(crate) fn begin(&self, mut newcomer: Newcomer) {
        newcomer.place = Some(Place::take(&self.pending, &newcomer.address));
        let desk = self.next.fetch_add(1, Ordering::Relaxed) % self.desks.len();
        self.desks[desk].send(newcomer);
    }
}

fn limit(server: &Server) -> usize {
    server.config.live.tls_handshakes_max.size()
}

/// A handshake under way.
struct Shake {
    newcomer: Newcomer,
    hands: tls::Handshake,
    since_ms: u64,
    /// Bytes to be sent, and how many of them were.
    out: Vec<u8>,
    sent: usize,
    /// The socket is full.
    blocked: bool,
}

/// The state of a handshake after a step.
enum Step {
    /// It waits for its client.
    Waits,
    Whole,
    Failed(String),
}

/// One thread.
struct Hall {
    server: Arc<Server>,
    keeper: Arc<Keeper>,
    desk: Arc<Letterbox<Newcomer, Wake>>,
    pending: Arc<Pending>,
    epoll: OwnedFd,
    shakes: HashMap<u64, Shake>,
    /// Tokens, oldest first. Some are of handshakes that have ended.
    order: VecDeque<u64>,
    last: u64,
    /// Refused clients, and until when they may stay (HS7); oldest first.
    parting: VecDeque<(Socket, u64)>,
    looked_ms: u64,
    room: Vec<u8>,
}

impl Hall {
    fn new(
        server: Arc<Server>,
        keeper: Arc<Keeper>,
        desk: Arc<Letterbox<Newcomer, Wake>>,
        pending: Arc<Pending>,
    ) -> io::Result<Hall> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &desk.bell().0, epoll::EventData::new_u64(LETTERS), edges)?;
        Ok(Hall {
            server,
            keeper,
            desk,
            pending,
            epoll,
            shakes: HashMap::new(),
            order: VecDeque::new(),
            last: 0,
            parting: VecDeque::new(),
            looked_ms: 0,
            room: Vec::with_capacity(READ),
        })
    }

    fn run(mut self) {
        machine::threads::demote(NICE);
        machine::stacks::observable();
        let mut letters = Vec::new();
        loop {
            let ready = self.wait();
            self.desk.drain(&mut letters);
            let now_ms = now_ms();
            letters.drain(..).for_each(|newcomer| self.begin(newcomer, now_ms));
            ready.into_iter().filter(|token| *token != LETTERS).for_each(|token| self.advance(token));
            self.end_late(now_ms);
            self.see_off(now_ms);
        }
    }

    /// Sleeps until a socket is ready, a letter comes, or it is time to look at the clock.
    fn wait(&self) -> Vec<u64> {
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = match (self.desk.is_rung(), self.shakes.is_empty() && self.parting.is_empty()) {
            (true, _) => Some(&at_once),
            (_, true) => None,
            _ => Some(&look),
        };
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        // The only error possible here is an interruption; the next call then reports the events.
        match epoll::wait(&self.epoll, &mut events, timeout) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn begin(&mut self, newcomer: Newcomer, now_ms: u64) {
        let inner = if newcomer.http { Inner::Http } else { Inner::Resp };
        let hands = match self.keeper.greet(inner) {
            Ok(hands) => hands,
            Err(e) => return self.fail(newcomer, &e.to_string()),
        };
        self.last += 1;
        let (token, wanted) = (self.last, epoll::EventFlags::IN);
        if let Err(e) = epoll::add(&self.epoll, &newcomer.socket, epoll::EventData::new_u64(token), wanted) {
            return self.fail(newcomer, &e.to_string());
        }
        let shake = Shake { newcomer, hands, since_ms: now_ms, out: Vec::new(), sent: 0, blocked: false };
        self.shakes.insert(token, shake);
        self.order.push_back(token);
        self.note();
    }

    /// Does a step of a handshake whose socket is ready.
    fn advance(&mut self, token: u64) {
        let Some(mut shake) = self.shakes.remove(&token) else { return };
        let was_blocked = shake.blocked;
        let step = stdx::panics::contain(|| shake.step(&mut self.room)); // HS5
        match step.unwrap_or_else(Step::Failed) {
            Step::Waits => {
                if shake.blocked == was_blocked || self.listen(token, &shake).is_ok() {
                    self.shakes.insert(token, shake);
                    return;
                }
                self.leave(shake.newcomer.socket.as_fd());
                self.fail(shake.newcomer, "the system cannot watch its socket");
            }
            Step::Whole => self.finish(shake),
            Step::Failed(why) => {
                self.leave(shake.newcomer.socket.as_fd());
                match shake.send_alert() {
                    true => self.refuse(shake.newcomer, &why),
                    false => self.fail(shake.newcomer, &why),
                }
            }
        }
    }

    fn listen(&self, token: u64, shake: &Shake) -> rustix::io::Result<()> {
        let wanted = if shake.blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        epoll::modify(&self.epoll, &shake.newcomer.socket, epoll::EventData::new_u64(token), wanted)
    }

    fn leave(&self, socket: std::os::fd::BorrowedFd<'_>) {
        // The call can only fail for a socket that is not there.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Sends a whole connection to the accepting loop (HS4).
    fn finish(&mut self, shake: Shake) {
        let Shake { mut newcomer, hands, .. } = shake;
        self.leave(newcomer.socket.as_fd());
        match hands.finish() {
            Ok(greeted) => {
                (newcomer.tls, newcomer.place) = (Some(greeted), None);
                self.server.observe.clients.handshakes.done.fetch_add(1, Ordering::Relaxed);
                self.server.send(0, Mail::Adopt(Box::new(newcomer)));
            }
            Err(e) => self.fail(newcomer, &e.to_string()),
        }
        self.note();
    }

    fn fail(&self, newcomer: Newcomer, why: &str) {
        drop(self.end(newcomer, why));
    }

    /// Ends a handshake whose client was told why (HS7).
    fn refuse(&mut self, newcomer: Newcomer, why: &str) {
        let socket = self.end(newcomer, why);
        socket.end_sending();
        if self.parting.len() == PARTING_MAX {
            self.parting.pop_front();
        }
        self.parting.push_back((socket, now_ms() + PARTING_MS));
    }

    /// Counts a handshake that failed. A peer that hears the end then finds it counted, and its place free.
    fn end(&self, newcomer: Newcomer, why: &str) -> Socket {
        log::debug!("no TLS with {}: {why}", newcomer.address);
        self.server.observe.clients.handshakes.failed.fetch_add(1, Ordering::Relaxed);
        let Newcomer { place, socket, .. } = newcomer;
        drop(place);
        self.note();
        socket
    }

    /// Closes sockets of refused clients that have gone or had their time, every [`LOOK_MS`].
    /// O([`PARTING_MAX`]) system calls.
    fn see_off(&mut self, now_ms: u64) {
        if self.parting.is_empty() || now_ms.saturating_sub(self.looked_ms) < LOOK_MS as u64 {
            return;
        }
        self.looked_ms = now_ms;
        let (parting, room) = (&mut self.parting, &mut self.room);
        parting.retain_mut(|(socket, until_ms)| {
            room.clear();
            let read = socket.read_into(room, READ);
            let stays = match read {
                Ok(n) => n > 0,
                Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            };
            stays && now_ms < *until_ms
        });
    }

    fn note(&self) {
        let pending = self.pending.count() as u64;
        self.server.observe.clients.handshakes.waiting.store(pending, Ordering::Relaxed);
    }

    /// Ends handshakes that have lasted too long (HS3). O(those that ended).
    fn end_late(&mut self, now_ms: u64) {
        let usual_ms = self.server.config.live.tls_handshake_s.size() as u64 * 1000;
        let full = self.pending.count() >= limit(&self.server);
        let limit_ms = if full { usual_ms.min(HURRY_MS) } else { usual_ms };
        while let Some(token) = self.order.front().copied() {
            match self.shakes.get(&token) {
                Some(shake) if now_ms.saturating_sub(shake.since_ms) < limit_ms => return,
                Some(_) => {
                    if let Some(shake) = self.shakes.remove(&token) {
                        self.leave(shake.newcomer.socket.as_fd());
                        self.fail(shake.newcomer, "the handshake took too long");
                    }
                }
                None => {}
            }
            self.order.pop_front();
        }
    }
}

impl Shake {
    /// Sends, and reads once (HS2).
    fn step(&mut self, room: &mut Vec<u8>) -> Step {
        if let Err(e) = self.send() {
            return Step::Failed(e.to_string());
        }
        if self.blocked {
            return Step::Waits;
        }
        if self.hands.progress() == Progress::Done {
            return Step::Whole;
        }
        room.clear();
        match self.newcomer.socket.read_into(room, READ) {
            Ok(0) => return Step::Failed("the client went".to_owned()),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Step::Waits;
            }
            Err(e) => return Step::Failed(e.to_string()),
        }
        let progress = match self.hands.take(room) {
            Ok(progress) => progress,
            Err(e) => return Step::Failed(e.to_string()),
        };
        self.hands.answer(&mut self.out);
        match self.send() {
            Ok(()) if self.blocked || progress == Progress::More => Step::Waits,
            Ok(()) => Step::Whole,
            Err(e) => Step::Failed(e.to_string()),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.blocked = false;
        while self.sent < self.out.len() {
            match self.newcomer.socket.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        (self.out, self.sent) = (Vec::new(), 0);
        Ok(())
    }

    /// Tells the client why, as far as its socket has room. False: it hears nothing.
    fn send_alert(&mut self) -> bool {
        self.hands.answer(&mut self.out);
        !self.out.is_empty() && self.send().is_ok()
    }
}

/// Milliseconds of a clock that is never set.
fn now_ms() -> u64 {
    stdx::clock::mono_ns() / 1_000_000
}
