//! A proxy in front of a server, which cuts connections at chosen bytes, and may slow them.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// See the module. It ends with the process, or when it is dropped.
pub struct Proxy {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    to: SocketAddr,
    /// Bytes of the server after which each next connection is cut; beyond the list none is.
    cuts: Mutex<Vec<u64>>,
    open: Mutex<Vec<TcpStream>>,
    /// New connections are refused, and bytes of the server stay where they are.
    closed: AtomicBool,
    stopped: AtomicBool,
    /// Bytes of the server that pass in a millisecond; 0: no limit.
    pace: AtomicU64,
    connections: AtomicU64,
    ended: AtomicBool,
}

impl Proxy {
    /// A proxy to a server. `cuts`: see there.
    pub fn to(server: SocketAddr, cuts: &[u64]) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            to: server,
            cuts: Mutex::new(cuts.iter().rev().copied().collect()),
            open: Mutex::default(),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            pace: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let its = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if its.ended.load(Ordering::Relaxed) {
                    return;
                }
                if !its.closed.load(Ordering::Relaxed) {
                    its.serve(client);
                }
            }
        });
        Proxy { addr, shared }
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for socket in self.shared.open.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Refuses new connections, or takes them again.
    pub fn close(&self, closed: bool) {
        self.shared.closed.store(closed, Ordering::Relaxed);
    }

    /// Holds all bytes of the server, or lets them go on.
    pub fn stop(&self, stopped: bool) {
        self.shared.stopped.store(stopped, Ordering::Relaxed);
    }

    /// Lets so many bytes of the server pass in a millisecond; 0: any number.
    pub fn slow(&self, bytes_per_ms: u64) {
        self.shared.pace.store(bytes_per_ms, Ordering::Relaxed);
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Cuts that are still to come.
    pub fn cuts_left(&self) -> usize {
        self.shared.cuts.lock().len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.cut();
        let _ = TcpStream::connect(self.addr);
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.to) else { return };
        self.connections.fetch_add(1, Ordering::Relaxed);
        let limit = self.cuts.lock().pop();
        let both = |socket: &TcpStream| socket.try_clone().expect("a socket");
        self.open.lock().extend([both(&client), both(&server)]);
        let (from, to) = (both(&client), both(&server));
        let its = self.clone();
        std::thread::spawn(move || its.carry(from, to, None, false));
        let its = self.clone();
        std::thread::spawn(move || its.carry(server, client, limit, true));
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, mut limit: Option<u64>, of_server: bool) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            while of_server && self.stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let pace = if of_server { self.pace.load(Ordering::Relaxed) } else { 0 };
            if let Some(ms) = (n as u64).checked_div(pace) {
                std::thread::sleep(Duration::from_millis(ms));
            }
            let passed = limit.map_or(n, |left| left.min(n as u64) as usize);
            if to.write_all(&bytes[..passed]).is_err() {
                break;
            }
            if let Some(left) = &mut limit {
                *left -= passed as u64;
                if *left == 0 {
                    break;
                }
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
