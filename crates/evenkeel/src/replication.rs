//! The link to a primary, wired: what REPLICAOF wishes is done by one thread, one wish after the other.
//!
//! ```text
//! REPLICAOF ─► wishes ─► thread `role`: link ended ─► demote or promote ─► thread `link`, if there is a primary
//!                                                                             └─► net: the stream, on a loop
//! ```

mod beside;
mod failover;

use crate::secure;
use exec::info::Following;
use exec::mail::Mail;
use parking_lot::Mutex;
use replication::replica::{Follower, FullCopy, Host, Phase, Position, Settings, Socket, State, Wire};
use role::link::Link;
use role::replicas::Replicas;
use role::{Address, Failover};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The present link, for figures.
type Current = Arc<Mutex<Option<Arc<State>>>>;

/// How long the end of the link is waited for.
const REST: Duration = Duration::from_secs(2);
/// How long a wait is before it is looked around.
const LOOK_MS: u64 = 100;

/// Starts the thread `role`, and follows the server that the configuration names, once the data of the start
/// are loaded. Before the first client. Errors: there is no thread.
pub fn start(server: &Arc<exec::Server>) -> io::Result<()> {
    let (wishes, wished) = channel::<Wish>();
    let current = Current::default();
    let ahead = Arc::<AtomicUsize>::default();
    let (weak, of_wishes) = (Arc::downgrade(server), current.clone());
    let follower = Wishes { wishes, ahead: ahead.clone(), server: weak, current: of_wishes };
    server.role.set_follower(Box::new(follower));
    let keeper = Keeper { server: server.clone(), ahead, current, link: None, from: None, is_demoted: false };
    std::thread::Builder::new().name("role".into()).spawn(move || keeper.keep(&wished))?;
    let configured = server.config.live.replicaof.string();
    if let Some((host, port)) = configured.rsplit_once(' ')
        && let Ok(port) = port.parse()
    {
        let primary = Address { host: host.to_owned(), port };
        server.role.follow_from_start(primary).map_err(io::Error::other)?;
    }
    Ok(())
}

/// A wish for the thread `role`.
enum Wish {
    Follow(Option<Address>),
    FailOver(Failover),
    /// The link ends; the other side of this hears it.
    Rest(Sender<()>),
}

/// The end of REPLICAOF and FAILOVER.
struct Wishes {
    wishes: Sender<Wish>,
    /// Wishes to follow whose link is still the one before.
    ahead: Arc<AtomicUsize>,
    server: Weak<exec::Server>,
    current: Current,
}

impl role::Follower for Wishes {
    fn follow(&self, primary: Option<Address>) {
        self.ahead.fetch_add(1, Ordering::AcqRel);
        // The thread lives as long as the process.
        let _ = self.wishes.send(Wish::Follow(primary));
    }

    fn fail_over(&self, wish: Failover) {
        let _ = self.wishes.send(Wish::FailOver(wish));
    }

    fn rest(&self) {
        let (done, is_done) = channel();
        if self.wishes.send(Wish::Rest(done)).is_ok() {
            // The thread may be at something that takes longer than an end may.
            let _ = is_done.recv_timeout(REST);
        }
    }

    fn figures(&self) -> Following {
        let Some(server) = self.server.upgrade() else { return Following::default() };
        let live = &server.config.live;
        let state = self.current.lock().clone();
        let known = state.map(|state| state.figures()).unwrap_or_default();
        let now_ms = stdx::clock::wall_ms();
        let seconds = |since_ms: u64| now_ms.saturating_sub(since_ms) / 1000;
        let is_connected = known.phase == Phase::Connected;
        // The link to the primary before is none to this one.
        let is_up = is_connected && self.ahead.load(Ordering::Acquire) == 0;
        let (heard_ms, offset) = match server.role.present_link() {
            Some(link) if is_connected => (link.heard_ms(), Some(link.position().0)),
            _ => (known.heard_ms, known.position.as_ref().map(|at| at.offset)),
        };
        Following {
            state: match known.phase {
                Phase::Down => "connect",
                Phase::Connecting => "connecting",
                Phase::Handshake => "handshake",
                Phase::Sync => "sync",
                Phase::Connected if !is_up => "connect",
                Phase::Connected => "connected",
            },
            is_up,
            error: known.error.unwrap_or_default(),
            silent_s: (heard_ms > 0).then(|| seconds(heard_ms)),
            down_s: (known.down_since_ms > 0).then(|| seconds(known.down_since_ms)),
            sync: (known.phase == Phase::Sync).then_some((known.total_bytes, known.read_bytes)),
            id: known.position.map(|at| at.id),
            offset,
            priority: live.replica_priority.get(),
            is_read_only: live.replica_read_only.get(),
            is_announced: live.replica_announced.get(),
            full_syncs: known.full_syncs,
            partial_syncs: known.partial_syncs,
            ..Following::default()
        }
    }
}

/// The state of the thread `role`.
struct Keeper {
    server: Arc<exec::Server>,
    /// See [`Wishes`].
    ahead: Arc<AtomicUsize>,
    current: Current,
    link: Option<Follower>,
    /// Where the stream of the last primary ended, for the next one: it may have the same history.
    from: Option<Position>,
    /// The server was made a replica, and no primary since.
    is_demoted: bool,
}

impl Keeper {
    fn keep(mut self, wished: &Receiver<Wish>) {
        while let Ok(wish) = wished.recv() {
            let wish = match wish {
                Wish::FailOver(wish) => {
                    self.fail_over(&wish);
                    continue;
                }
                Wish::Rest(done) => {
                    self.unlink();
                    let _ = done.send(());
                    continue;
                }
                Wish::Follow(wish) => wish,
            };
            self.unlink();
            self.ahead.fetch_sub(1, Ordering::AcqRel);
            match wish {
                Some(primary) => self.follow(primary, false),
                None => self.lead(),
            }
        }
    }

    /// Ends the link, if there is one.
    fn unlink(&mut self) {
        if let Some(link) = self.link.take() {
            self.server.end_link();
            self.from = link.stop();
        }
        *self.current.lock() = None;
    }

    fn follow(&mut self, Address { host, port }: Address, hands_over: bool) {
        while self.server.durability.is_loading() {
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
        log::info!("this server follows {host}:{port} from now on");
        let led = !self.is_demoted;
        if led {
            self.is_demoted = true;
            self.server.demote();
            // The stream that replicas were told here may be known to the primary, which may have been one of
            // them.
            self.from = self.replicas().and_then(|replicas| {
                let was_followed = replicas.position().is_some();
                replicas.follows();
                let (id, offset, db) = replicas.position().filter(|_| was_followed)?;
                Some(Position { id, offset, db })
            });
        }
        let ours = Arc::new(Ours { server: self.server.clone(), led: AtomicBool::new(led) });
        match Follower::start(ours, (host, port), self.from.clone(), hands_over) {
            Ok(link) => {
                *self.current.lock() = Some(link.state().clone());
                self.link = Some(link);
            }
            Err(error) => log::error!("no thread could be started for the link: {error}"),
        }
    }

    fn replicas(&self) -> Option<&dyn Replicas> {
        self.server.replicas.get().map(|replicas| &**replicas)
    }

    fn lead(&mut self) {
        self.is_demoted = false;
        let from = self.from.take();
        let behind = from.map_or(String::new(), |at| format!(" behind offset {} of {}", at.offset, at.id));
        log::info!("this server leads from now on{behind}");
        if self.server.keyspace.follows()
            && let Some(replicas) = self.replicas()
        {
            // Before the first write of its own.
            replicas.leads();
        }
        self.server.promote();
    }
}

/// This server, as its link sees it.
struct Ours {
    server: Arc<exec::Server>,
    /// The data are this server's own: it led before, and has nothing of this primary yet.
    led: AtomicBool,
}

impl Host for Ours {
    fn settings(&self) -> Settings {
        let (live, config) = (&self.server.config.live, &self.server.config);
        let number = |name: &str| {
            let value = config.value(name).unwrap_or_default();
            String::from_utf8_lossy(&value).parse::<u16>().unwrap_or(0)
        };
        let tls = config.value("tls-replication").as_deref() == Some(b"yes");
        let own = if tls { number("tls-port") } else { number("port") };
        let announced = u16::try_from(live.replica_announce_port.get()).unwrap_or(0);
        Settings {
            user: live.masteruser.get().to_vec(),
            password: live.masterauth.get().to_vec(),
            port: if announced > 0 { announced } else { own },
            address: live.replica_announce_ip.get().to_vec(),
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.server.config.live.repl_timeout_s.get().max(1) as u64)
    }

    fn secure(&self, tcp: TcpStream, host: &str, limit: Duration) -> Result<Socket, String> {
        let secure =
            secure::to_primary(&tcp, host, limit)?.map(|wire| Box::new(Encrypted(wire)) as Box<dyn Wire>);
        Ok(Socket { tcp, secure })
    }

    fn loses(&self, from: &Position, info: Option<&str>) {
        if let Some(replicas) = self.server.replicas.get() {
            replicas.loses((&from.id, from.offset), info, self.led.load(Ordering::Acquire));
        }
    }

    fn ends_with_signs(&self) -> bool {
        self.server.replicas.get().is_some_and(|replicas| replicas.ends_with_signs())
    }

    fn before_signs(&self, from: &Position, info: &str) -> Option<u64> {
        self.server.replicas.get()?.before_signs((&from.id, from.offset), info)
    }

    fn load(&self, copy: FullCopy<'_>) -> Result<usize, String> {
        beside::load(&self.server, copy)
    }

    fn run(&self, socket: Socket, early: Vec<u8>, at: Position, state: &Arc<State>) -> (Position, String) {
        self.led.store(false, Ordering::Release);
        if let Some(replicas) = self.server.replicas.get() {
            replicas.goes_on(&at.id, at.offset, at.db);
        }
        let link = Arc::new(Link::new(at.offset, at.db));
        self.server.role.set_present_link(Some(link.clone()));
        let why = self.serve(socket, &early, &link, state);
        self.server.role.set_present_link(None);
        let (offset, db) = link.position();
        let why =
            link.take_why().or(why.err()).unwrap_or_else(|| "the primary closed the connection".to_owned());
        (Position { id: at.id, offset, db }, why)
    }
}

impl Ours {
    /// Gives the stream to a loop, and waits for its end. Errors: why this side ended it.
    fn serve(&self, socket: Socket, early: &[u8], link: &Arc<Link>, state: &State) -> Result<(), String> {
        let failed = |error: io::Error| format!("the connection cannot be used: {error}");
        let Socket { tcp, secure } = socket;
        let Some(secure) = secure else {
            let client =
                net::adopt(&self.server, net::Stream::Tcp(tcp), early, link.clone()).map_err(failed)?;
            return self.watch(client, link, state, || link.wait_for_end(LOOK_MS));
        };
        let (near, far) = UnixStream::pair().map_err(failed)?;
        near.set_nonblocking(true).map_err(failed)?;
        let client = net::adopt(&self.server, net::Stream::Pipe(far), early, link.clone()).map_err(failed)?;
        let mut pump = Pump { tcp, secure, pipe: Some(near), waiting: Vec::new(), from: 0, more: false };
        self.watch(client, link, state, || {
            pump.turn();
            link.wait_for_end(0)
        })
    }

    /// Waits for the link's end, and ends it if the primary is silent or the link is stopped.
    fn watch(
        &self,
        client: u64,
        link: &Link,
        state: &State,
        mut has_ended: impl FnMut() -> bool,
    ) -> Result<(), String> {
        let mut why = Ok(());
        while !has_ended() {
            let silent_ms = stdx::clock::wall_ms().saturating_sub(link.heard_ms());
            let is_silent = u128::from(silent_ms) >= self.timeout().as_millis();
            if why.is_ok() && (is_silent || state.is_stopped()) {
                why = Err(match is_silent {
                    true => "the primary was silent for longer than repl-timeout".to_owned(),
                    false => "the link was ended".to_owned(),
                });
                self.server.send(self.server.loops() - 1, Mail::Kill { client });
            }
        }
        why
    }
}

/// A wire of `exec`.
struct Encrypted(Box<dyn exec::outgoing::Stream>);

impl Read for Encrypted {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Write for Encrypted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Carries bytes between an encrypted connection and a loop.
struct Pump {
    tcp: TcpStream,
    secure: Box<dyn Wire>,
    /// None: the primary has ended.
    pipe: Option<UnixStream>,
    /// Plaintext on its way to the loop, and how many bytes of it are there.
    waiting: Vec<u8>,
    from: usize,
    /// More may be decrypted already.
    more: bool,
}

/// Bytes carried at once.
const CARRIED: usize = 64 * 1024;

impl Pump {
    /// Waits for something to carry, for [`LOOK_MS`] at most, and carries it.
    fn turn(&mut self) {
        if self.carry().is_err() {
            // The loop hears the end.
            self.pipe = None;
        }
    }

    fn carry(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            std::thread::sleep(Duration::from_millis(2));
            return Ok(());
        };
        let busy = self.from < self.waiting.len();
        let to_loop = if busy { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let from_primary = if busy { PollFlags::empty() } else { PollFlags::IN };
        let mut polled = [PollFd::new(pipe, to_loop), PollFd::new(&self.tcp, from_primary)];
        let ready = !busy && std::mem::take(&mut self.more);
        let wait_ms = if ready { 0 } else { LOOK_MS as i64 };
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
        poll(&mut polled, Some(&limit))?;
        let [of_pipe, of_tcp] = polled.map(|fd| fd.revents());
        if of_pipe.intersects(PollFlags::IN | PollFlags::HUP) {
            let mut said = [0; 4096];
            match pipe.read(&mut said) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.secure.write_all(&said[..n]).and_then(|()| self.secure.flush())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if ready || !busy && !of_tcp.is_empty() {
            self.waiting.resize(CARRIED, 0);
            let read = self.secure.read(&mut self.waiting);
            self.waiting.truncate(*read.as_ref().unwrap_or(&0));
            (self.from, self.more) = (0, self.waiting.len() == CARRIED);
            match read {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
        if self.from < self.waiting.len() {
            match pipe.write(&self.waiting[self.from..]) {
                Ok(n) => self.from += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
