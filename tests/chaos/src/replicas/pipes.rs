//! The ways between servers: a proxy for each server that follows and each that is followed. It cuts at any
//! byte, delays, stops, and lets through so many bytes a second.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// All ways, made when first needed.
pub struct Pipes {
    ports: Vec<u16>,
    made: Mutex<HashMap<(usize, usize), Arc<Pipe>>>,
}

/// One way. Its faults last until [`Pipe::heal`]; a cut is over at once.
pub struct Pipe {
    pub port: u16,
    to: u16,
    open: Mutex<Vec<TcpStream>>,
    refuses: AtomicBool,
    holds: AtomicBool,
    delay_ms: AtomicU64,
    /// Bytes of the primary in a second; 0: as many as there are.
    rate: AtomicU64,
    /// Bytes of both sides until the next cut; negative: none comes.
    until_cut: AtomicI64,
    ended: AtomicBool,
}

impl Pipes {
    /// `ports`: of the servers, by their numbers.
    pub fn new(ports: Vec<u16>) -> Pipes {
        Pipes { ports, made: Mutex::default() }
    }

    /// The way from a server that follows to the one that it follows. Errors: no port is free.
    pub fn between(&self, follower: usize, followed: usize) -> Result<Arc<Pipe>, String> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipe) = made.get(&(follower, followed)) {
            return Ok(pipe.clone());
        }
        let pipe = Pipe::to(self.ports[followed])?;
        made.insert((follower, followed), pipe.clone());
        Ok(pipe)
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(|pipe| pipe.heal());
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        for pipe in self.made.lock().unwrap_or_else(PoisonError::into_inner).values() {
            pipe.ended.store(true, Relaxed);
            pipe.heal();
            pipe.cut();
            let _ = TcpStream::connect(("127.0.0.1", pipe.port));
        }
    }
}

impl Pipe {
    fn to(to: u16) -> Result<Arc<Pipe>, String> {
        let failed = |e: std::io::Error| format!("a proxy: {e}");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let pipe = Arc::new(Pipe {
            port,
            to,
            open: Mutex::default(),
            refuses: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            delay_ms: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            until_cut: AtomicI64::new(-1),
            ended: AtomicBool::new(false),
        });
        let its = pipe.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if its.ended.load(Relaxed) {
                    return;
                }
                match client {
                    Ok(client) if !its.refuses.load(Relaxed) => its.serve(client),
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Ok(pipe)
    }

    /// Ends all connections, perhaps in the middle of what is under way.
    pub fn cut(&self) {
        for socket in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Cuts once so many more bytes have passed.
    pub fn cut_after(&self, bytes: i64) {
        self.until_cut.store(bytes, Relaxed);
    }

    /// Cuts, and takes no new connection.
    pub fn refuse(&self) {
        self.refuses.store(true, Relaxed);
        self.cut();
    }

    /// Passes nothing on, and reads nothing.
    pub fn hold(&self) {
        self.holds.store(true, Relaxed);
    }

    /// Each piece of bytes takes so long.
    pub fn delay(&self, ms: u64) {
        self.delay_ms.store(ms, Relaxed);
    }

    /// So many bytes of the primary pass in a second.
    pub fn slow(&self, bytes: u64) {
        self.rate.store(bytes, Relaxed);
    }

    pub fn heal(&self) {
        self.refuses.store(false, Relaxed);
        self.holds.store(false, Relaxed);
        self.delay_ms.store(0, Relaxed);
        self.rate.store(0, Relaxed);
        self.until_cut.store(-1, Relaxed);
    }

    fn serve(self: &Arc<Self>, client: TcpStream) {
        let to = SocketAddr::from(([127, 0, 0, 1], self.to));
        let Ok(server) = dial::tcp(to, Duration::from_secs(5)) else { return };
        let _ = client.set_nodelay(true);
        let (Ok(from), Ok(back)) = (client.try_clone(), server.try_clone()) else { return };
        let (Ok(one), Ok(other)) = (client.try_clone(), server.try_clone()) else { return };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).extend([one, other]);
        let (its, also) = (self.clone(), self.clone());
        std::thread::spawn(move || its.carry(from, back, false));
        std::thread::spawn(move || also.carry(server, client, true));
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, of_primary: bool) {
        let mut bytes = [0; 16 * 1024];
        loop {
            while self.holds.load(Relaxed) && !self.ended.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let rate = if of_primary { self.rate.load(Relaxed) } else { 0 };
            let piece = if rate > 0 { (rate as usize / 20).clamp(1, bytes.len()) } else { bytes.len() };
            let Ok(n @ 1..) = from.read(&mut bytes[..piece]) else { break };
            let pause_ms = self.delay_ms.load(Relaxed) + (n as u64 * 1000).checked_div(rate).unwrap_or(0);
            if pause_ms > 0 {
                std::thread::sleep(Duration::from_millis(pause_ms));
            }
            let cut = self.counted(n);
            if to.write_all(&bytes[..cut.unwrap_or(n)]).is_err() || cut.is_some() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// The bytes of a piece that still pass, if the cut falls into it.
    fn counted(&self, n: usize) -> Option<usize> {
        let before = self.until_cut.fetch_update(Relaxed, Relaxed, |left| match left {
            0.. => Some((left - n as i64).max(-1)),
            _ => None,
        });
        before.ok().filter(|left| *left < n as i64).map(|left| left as usize)
    }
}
