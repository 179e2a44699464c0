//! Event loops, listeners and connections: the only client sockets.
//!
//! ```text
//! turn:  wait ─► fresh: read, run a quantum each ─► write ─► a slice of long work ─► write ─► timers
//!                at most 200 µs or 64 of them            ▲ in turns: continued connections,
//!                                                          mail, new connections, long work, messages, expiry
//! ```
//!
//! - N1: a connection is served for at most one quantum ([`QUANTUM_NS`]) before the others. Fresh short
//!   requests go before continued slices and before the first requests of new connections. So a crowd that
//!   arrives waits for itself (`arrivals.rs`), and so does one that leaves.
//! - N2: output is written once per turn and connection. A client that does not read is not read from either,
//!   once [`OUT_HIGH`] bytes wait for it.
//! - N3: a loop touches only its own connections; other threads talk to them by mail.
//! - N4: nothing here waits but a transport's `wait`: `epoll_wait`, or `io_uring_enter`.
#![deny(unsafe_code)]

mod arrivals;
mod conn;
mod doors;
mod epoll;
mod event_loop;
mod gates;
mod handshakes;
mod input;
mod listed;
mod load;
mod prefetch;
#[allow(unsafe_code, reason = "the one address of this crate's unsafe code")]
mod ring;
mod socket;
mod timers;
mod transport;
mod uring;

pub use conn::link::{Stream, adopt};
pub use doors::{Change, Listeners};
pub use handshakes::Handshakes;
pub use socket::prepare;

use config::Config;
use event_loop::EventLoop;
use exec::Server;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How long one connection is served before the others, in nanoseconds.
pub const QUANTUM_NS: u64 = 100_000;
/// Bytes waiting for a client above which none of its further commands runs.
pub const OUT_HIGH: usize = 256 * 1024;

/// The interface by which the loops talk to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    Epoll,
    IoUring,
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Backend::Epoll => "epoll",
            Backend::IoUring => "io_uring",
        }
    }

    /// Chooses what `io-backend` asks for, or epoll if the system has no io_uring; then with the reason.
    /// Makes an io_uring for trial, unless epoll is asked for. Cost: less than a millisecond.
    pub fn choose(config: &Config) -> (Backend, Option<std::io::Error>) {
        let asked = config.live.io_backend.get();
        if asked == EPOLL {
            return (Backend::Epoll, None);
        }
        match ring::Ring::trial() {
            Ok(()) => (Backend::IoUring, None),
            Err(e) => (Backend::Epoll, Some(e)),
        }
    }
}

/// Index of `epoll` among the values of `io-backend`.
const EPOLL: i64 = 1;
/// Connections per loop that get a place in the kernel's table; it finds further ones a little slower.
const DIRECT_MAX: usize = 16 * 1024;

/// Starts one thread per event loop; the first one accepts. Errors: a set of arrivals, a set of listeners or a thread
/// cannot
/// be made.
pub fn start(
    server: &Arc<Server>,
    listeners: Listeners,
    backend: Backend,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let _ = server.multiplexing.set(backend.name());
    let busy = load::Load::new(server.loops());
    let mut listeners = Some(listeners);
    (0..server.loops())
        .map(|id| {
            let (server, load, arrivals) = (server.clone(), busy.clone(), arrivals::Arrivals::new()?);
            let doors = doors::Doors::new(listeners.take().unwrap_or_default())?;
            std::thread::Builder::new().name(format!("loop-{id}")).spawn(move || {
                machine::threads::own_arena();
                machine::threads::prompt();
                machine::stacks::observable();
                serve(EventLoop::new(id, server, doors, load, arrivals), backend);
            })
        })
        .collect()
}

/// Runs a loop on the chosen transport, or on epoll if that fails. An io_uring belongs to the thread that
/// makes it, so it is made here.
fn serve(mut event_loop: EventLoop, backend: Backend) {
    if backend == Backend::IoUring {
        let (mailbox, listeners) = event_loop.watched();
        let direct = event_loop.clients_max().min(DIRECT_MAX);
        match uring::Uring::new(mailbox, &listeners, direct as u32) {
            Ok(mut io) => return event_loop.run(&mut io),
            Err(e) => log::warn!("an event loop cannot get an io_uring ({e}) and uses epoll"),
        }
    }
    let (mailbox, listeners) = event_loop.watched();
    match epoll::Epoll::new(mailbox, &listeners) {
        Ok(mut io) => event_loop.run(&mut io),
        Err(e) => {
            log::error!("an event loop can use neither io_uring nor epoll, the server ends: {e}");
            std::process::abort();
        }
    }
}
