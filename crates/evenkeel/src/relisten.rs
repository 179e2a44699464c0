//! Listening at other addresses while the server runs: CONFIG SET of ports and addresses.
//!
//! ```text
//! CONFIG SET ─► prepare: new sockets listen ─► settle: old ones stop, the accepting loop gets the new ones
//!                                         └──► give_up: the new ones are closed
//! ```
//!
//! - RL1: a socket whose address and kind stay is left alone, and connected clients stay.
//! - RL2: a new socket listens before an old one stops. An old one that is in its way (`*` and 127.0.0.1 with
//!   one
//!   port) stops first. It listens again if the change fails.
//! - RL3: an address that cannot be listened on refuses the change, and all is as before.
//! - RL4: once the server ends, nothing is opened.

use crate::secure::Served;
use crate::sockets::{Closer, Held, Kind, Line, addresses, bind, cannot_listen, in_use};
use config::{Config, Directive};
use exec::Server;
use net::{Change, Handshakes, Listeners};
use parking_lot::Mutex;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Weak};

/// Where a kind of clients is listened for: the directives of addresses and port.
const PLACES: [(Kind, &str, &str); 4] = [
    (Kind::Tcp, "bind", "port"),
    (Kind::Tls, "bind", "tls-port"),
    (Kind::Http, "http-bind", "http-port"),
    (Kind::Https, "http-bind", "http-tls-port"),
];

/// An address to listen on.
struct Wanted {
    kind: Kind,
    address: SocketAddr,
    /// This machine may lack it.
    optional: bool,
}

/// A change that is prepared.
#[derive(Default)]
struct Ready {
    opened: Vec<(Held, TcpListener)>,
    /// Addresses of sockets that go, and of those among them that have stopped already (RL2).
    closed: Vec<SocketAddr>,
    stopped: Vec<SocketAddr>,
}

/// Follows CONFIG SET.
pub struct Follower {
    closer: Weak<Closer>,
    server: Weak<Server>,
    served: Served,
    /// The threads for TLS, once there are some.
    handshakes: Mutex<Option<Arc<Handshakes>>>,
    line: Mutex<Option<Line>>,
    ready: Mutex<Option<Ready>>,
}

impl Follower {
    pub fn new(
        closer: &Arc<Closer>,
        server: &Arc<Server>,
        served: Served,
        handshakes: Option<Arc<Handshakes>>,
    ) -> Follower {
        let handshakes = Mutex::new(handshakes);
        let (closer, server) = (Arc::downgrade(closer), Arc::downgrade(server));
        Follower { closer, server, served, handshakes, line: Mutex::default(), ready: Mutex::default() }
    }

    /// Opens what is wanted and not there. Errors: a sentence for the log; all is as before.
    fn open(&self, wanted: &[Wanted], line: Line) -> Result<Ready, String> {
        let mut ready = Ready::default();
        let is_wanted = |held: &Held| wanted.iter().any(|w| w.kind == held.kind && w.address == held.address);
        let known = self.with(|held| {
            let gone = held.iter().filter(|held| !is_wanted(held));
            ready.closed = gone.map(|held| held.address).collect();
            held.iter().map(|held| (held.kind, held.address)).collect::<Vec<_>>()
        })?;
        let new = wanted.iter().filter(|w| !known.contains(&(w.kind, w.address)));
        for Wanted { kind, address, optional } in new {
            match self.listen(*address, line, &mut ready) {
                Ok(socket) => match Held::of(*kind, &socket) {
                    Ok(held) => ready.opened.push((held, socket)),
                    Err(e) => return Err(self.undo(ready, line, cannot_listen(*address, &e))),
                },
                Err(e) if *optional && !in_use(&e) => {}
                Err(e) => return Err(self.undo(ready, line, cannot_listen(*address, &e))),
            }
        }
        Ok(ready)
    }

    /// Listens on an address. Sockets that are to go and are in the way stop (RL2).
    fn listen(&self, address: SocketAddr, line: Line, ready: &mut Ready) -> std::io::Result<TcpListener> {
        let first = bind(address, line);
        if !first.as_ref().is_err_and(in_use) {
            return first;
        }
        let is_in_the_way = |held: &Held| {
            held.address.port() == address.port()
                && ready.closed.contains(&held.address)
                && !ready.stopped.contains(&held.address)
        };
        let stopped = self.with(|held| {
            let stops = held.iter().filter(|held| is_in_the_way(held));
            stops.inspect(|held| held.stop()).map(|held| held.address).collect::<Vec<_>>()
        });
        let stopped = stopped.unwrap_or_default();
        if stopped.is_empty() {
            return first;
        }
        ready.stopped.extend(stopped);
        bind(address, line)
    }

    /// Takes a change back: closes what is new, and listens again where that had stopped it. Returns the
    /// reason.
    fn undo(&self, ready: Ready, line: Line, why: String) -> String {
        drop(ready.opened);
        let again = self.with(|held| {
            for held in held.iter().filter(|held| ready.stopped.contains(&held.address)) {
                if let Err(e) = held.listen_again(line) {
                    log::error!("{} is lost: {}", held.address, cannot_listen(held.address, &e));
                }
            }
        });
        again.err().unwrap_or(why)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<Held>) -> T) -> Result<T, String> {
        let closer = self.closer.upgrade();
        closer.and_then(|closer| closer.with(work)).ok_or_else(|| "the server ends".to_owned())
    }

    /// Starts the threads for TLS unless they run. Errors: a sentence.
    fn shake_hands(&self) -> Result<(), String> {
        let mut handshakes = self.handshakes.lock();
        if handshakes.is_none()
            && let (Some(server), Some(keeper)) = (self.server.upgrade(), self.served.get())
        {
            let started = Handshakes::start(&server, keeper);
            *handshakes = Some(Arc::new(started.map_err(|e| format!("no thread could be started: {e}"))?));
        }
        Ok(())
    }
}

/// The addresses to listen on once these changes are made. Errors: a sentence.
fn wanted(config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<Vec<Wanted>, String> {
    let value = |name: &str| config.value_after(changes, name);
    let mut all = Vec::new();
    for (kind, bind, port) in PLACES {
        let port: u16 = value(port).parse().unwrap_or(0);
        let mut names = value(bind);
        if bind == "http-bind" && names.is_empty() {
            names = value("bind");
        }
        for (name, optional) in config::addresses(&names).iter().filter(|_| port != 0) {
            let found = addresses(name, port, *optional).map_err(|e| e.0)?;
            all.extend(found.into_iter().map(|address| Wanted { kind, address, optional: *optional }));
        }
    }
    Ok(all)
}

impl config::Observer for Follower {
    fn prepare(&self, config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<(), String> {
        let ours = |name: &str| PLACES.iter().any(|(_, bind, port)| [*bind, *port].contains(&name));
        let Some(first) = changes.iter().map(|(row, _)| row.name).find(|name| ours(name)) else {
            return Ok(());
        };
        let line = Line::of(config);
        *self.line.lock() = Some(line);
        let opened = wanted(config, changes).and_then(|wanted| {
            if wanted.iter().any(|w| matches!(w.kind, Kind::Tls | Kind::Https)) {
                self.shake_hands()?;
            }
            self.open(&wanted, line)
        });
        let opened = opened.map_err(|why| {
            log::warn!("CONFIG SET {first}: {why}");
            match first.ends_with("bind") {
                true => "Failed to bind to specified addresses.".to_owned(),
                false => "Unable to listen on this port. Check server logs.".to_owned(),
            }
        });
        *self.ready.lock() = Some(opened?);
        Ok(())
    }

    fn settle(&self) {
        let Some(ready) = self.ready.lock().take() else { return };
        let Some(server) = self.server.upgrade() else { return };
        let mut opened = Listeners { handshakes: self.handshakes.lock().clone(), ..Listeners::default() };
        // Once the server ends, the new sockets are closed like the others (RL4).
        let _ = self.with(|held| {
            let (gone, stay) =
                std::mem::take(held).into_iter().partition(|h| ready.closed.contains(&h.address));
            *held = stay;
            let gone: Vec<Held> = gone;
            for old in gone {
                log::info!("not listening on {} any more", old.address);
                old.stop();
            }
            for (new, socket) in ready.opened {
                log::info!("listening on {}", new.address);
                match new.kind {
                    Kind::Tcp => opened.tcp.push(socket),
                    Kind::Http => opened.http.push(socket),
                    Kind::Tls => opened.tls.push(socket),
                    Kind::Https => opened.https.push(socket),
                }
                held.push(new);
            }
        });
        Change { opened, closed: ready.closed }.send(&server);
    }

    fn give_up(&self) {
        if let (Some(ready), Some(line)) = (self.ready.lock().take(), *self.line.lock()) {
            self.undo(ready, line, String::new());
        }
    }
}
