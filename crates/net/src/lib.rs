//! Event loops, listeners and connections: the only client sockets.
//!
//! ```text
//! turn:  wait ─► fresh: read, run a quantum each ─► mail ─► one continued slice ─► write once ─► timers, sweep
//!                                                             ▲ round-robin: pipelines, streamed replies
//! ```
//!
//! - N1: a connection is served for at most one quantum ([`QUANTUM_NS`]) before the others; fresh short requests go
//!   before continued slices.
//! - N2: output is written once per turn and connection; a client that does not read is not read from either, once
//!   [`OUT_HIGH`] bytes wait for it.
//! - N3: a loop touches only its own connections; others talk to it by mail.
//! - N4: nothing here waits but `epoll_wait`.
#![forbid(unsafe_code)]

mod conn;
mod event_loop;
mod socket;
mod timers;

pub use event_loop::Listeners;

use exec::Server;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How long one connection is served before the others, in nanoseconds.
pub const QUANTUM_NS: u64 = 100_000;
/// Bytes waiting for a client above which no further command of it is run.
pub const OUT_HIGH: usize = 256 * 1024;

/// Starts one thread per event loop; the first one accepts.
pub fn start(server: &Arc<Server>, listeners: Listeners) -> std::io::Result<Vec<JoinHandle<()>>> {
    let busy = event_loop::Load::new(server.loops());
    let mut listeners = Some(listeners);
    (0..server.loops())
        .map(|id| {
            let mut event_loop = event_loop::EventLoop::new(
                id,
                server.clone(),
                listeners.take().unwrap_or_default(),
                busy.clone(),
            )?;
            std::thread::Builder::new().name(format!("loop-{id}")).spawn(move || event_loop.run())
        })
        .collect()
}
