//! Messages to the other nodes of a cluster, for their subscribers: PUBLISH is heard everywhere.
//!
//! ```text
//! PUBLISH ─► own subscribers
//!      └───► a queue for each node ─► thread `peer`: a connection, one message after the other
//! ```
//!
//! - PE1: a publisher never waits for a node. A message that is too much for a queue, or finds no connection,
//!   is dropped, as messages are for subscribers who are away. The log says when a node cannot be reached, and
//!   when it can again; a message that finds its queue full leaves no trace.
//! - PE2: a node passes on what its own clients publish, never what another node told it.

use crate::secure;
use cluster::map::Node;
use cluster::member::Member;
use config::Config;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Bytes that may wait for a node.
const QUEUE_MAX: u64 = 32 << 20;
/// Limit of a connect, and of a wait for bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time until a node that could not be reached is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// Time after which a thread looks whether its node is still there.
const IDLE: Duration = Duration::from_secs(1);

/// See the module.
pub struct Peers {
    member: Arc<Member>,
    config: Arc<Config>,
    links: Mutex<HashMap<String, Link>>,
}

/// The way to one node.
struct Link {
    queue: Sender<Arc<[u8]>>,
    waiting: Arc<AtomicU64>,
}

impl Peers {
    pub fn new(member: Arc<Member>, config: Arc<Config>) -> Peers {
        Peers { member, config, links: Mutex::default() }
    }

    /// Tells all other nodes of the map. O(nodes + bytes)
    pub fn publish(&self, channel: &[u8], message: &[u8]) {
        let topology = self.member.topology();
        let others = topology.map.nodes.iter().filter(|node| node.id != topology.me().id && !node.is_down);
        let mut words = Vec::new();
        dial::put_request(&mut words, &[&b"PUBLISH"[..], channel, message]);
        let bytes: Arc<[u8]> = words.into();
        let mut links = self.links.lock();
        links.retain(|id, _| topology.map.node(id).is_some());
        for node in others {
            let link = links.entry(node.id.clone()).or_insert_with(|| self.start(&node.id));
            let more = bytes.len() as u64;
            if link.waiting.fetch_add(more, Ordering::AcqRel) + more > QUEUE_MAX {
                link.waiting.fetch_sub(more, Ordering::AcqRel);
            } else if link.queue.send(bytes.clone()).is_err() {
                *link = self.start(&node.id);
            }
        }
    }

    /// Starts the thread of a node. Without one, its messages are dropped.
    fn start(&self, id: &str) -> Link {
        let (queue, messages) = channel();
        let waiting = Arc::<AtomicU64>::default();
        let peer = Peer {
            id: id.to_owned(),
            member: self.member.clone(),
            config: self.config.clone(),
            waiting: waiting.clone(),
        };
        let started = std::thread::Builder::new().name("peer".into()).spawn(move || peer.run(&messages));
        if let Err(error) = started {
            log::warn!("no thread for messages to node {id}: {error}");
        }
        Link { queue, waiting }
    }
}

/// The thread of a node.
struct Peer {
    id: String,
    member: Arc<Member>,
    config: Arc<Config>,
    waiting: Arc<AtomicU64>,
}

impl Peer {
    fn run(self, messages: &Receiver<Arc<[u8]>>) {
        let (mut wire, mut failed): (Option<Box<dyn Write>>, Option<Instant>) = (None, None);
        let mut lost: u64 = 0;
        loop {
            let bytes = match messages.recv_timeout(IDLE) {
                Ok(bytes) => bytes,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.waiting.fetch_sub(bytes.len() as u64, Ordering::AcqRel);
            if wire.is_none() && failed.is_none_or(|at| at.elapsed() >= AGAIN) {
                (wire, failed) = match self.connect() {
                    Ok(connected) => {
                        if std::mem::take(&mut lost) > 0 {
                            log::info!("messages reach node {} again", self.id);
                        }
                        (Some(connected), None)
                    }
                    Err(why) => {
                        if lost == 0 {
                            log::warn!("messages do not reach node {}: {why}", self.id);
                        }
                        (None, Some(Instant::now()))
                    }
                };
            }
            // An ended connection is noticed with a write; the message is told again once.
            let told = |wire: &mut Box<dyn Write>| wire.write_all(&bytes).and_then(|()| wire.flush()).is_ok();
            if !wire.as_mut().is_some_and(told) {
                wire = self.connect().ok();
                if !wire.as_mut().is_some_and(told) {
                    wire = None;
                    failed.get_or_insert_with(Instant::now);
                    lost += 1;
                }
            }
        }
    }

    /// Connects and says that this is a node. Errors: a sentence.
    fn connect(&self) -> Result<Box<dyn Write>, String> {
        let topology = self.member.topology();
        let node = topology.map.node(&self.id).ok_or("it is no longer in the map")?;
        let (tcp, live) = (dial_node(node)?, &self.config.live);
        let secured = secure::to_primary(&tcp, &node.host, PATIENCE)?;
        let (user, password) = (live.masteruser.get().to_vec(), live.masterauth.get().to_vec());
        let mut words = Vec::new();
        let mut answers = 1;
        if !password.is_empty() {
            let mut login = vec![&b"AUTH"[..], &user, &password];
            login.retain(|word| !word.is_empty());
            dial::put_request(&mut words, &login);
            answers += 1;
        }
        dial::put_request(&mut words, &[&b"REPLCONF"[..], b"evenkeel-peer", b"1"]);
        dial::put_request(&mut words, &[&b"CLIENT"[..], b"REPLY", b"OFF"]);
        match secured {
            Some(mut stream) => {
                greet(&mut stream, &words, answers).map(|()| Box::new(stream) as Box<dyn Write>)
            }
            None => {
                let mut stream = tcp;
                greet(&mut stream, &words, answers).map(|()| Box::new(stream) as Box<dyn Write>)
            }
        }
    }
}

fn dial_node(node: &Node) -> Result<TcpStream, String> {
    let port = if node.port > 0 { node.port } else { node.tls };
    let found = (node.host.as_str(), port).to_socket_addrs().map_err(|e| e.to_string())?;
    let mut last = "its host has no address".to_owned();
    for address in found {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(tcp) => {
                let limits = tcp.set_nodelay(true).and_then(|()| tcp.set_write_timeout(Some(PATIENCE)));
                limits.and_then(|()| tcp.set_read_timeout(Some(PATIENCE))).map_err(|e| e.to_string())?;
                return Ok(tcp);
            }
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

/// Sends the first words and reads so many answers of one line. Errors: one of them is an error.
fn greet(stream: &mut (impl Read + Write), words: &[u8], answers: usize) -> Result<(), String> {
    stream.write_all(words).and_then(|()| stream.flush()).map_err(|e| e.to_string())?;
    let (mut line, mut left, mut byte) = (Vec::new(), answers, [0]);
    while left > 0 {
        match stream.read(&mut byte) {
            Ok(0) => return Err("it closed the connection".to_owned()),
            Ok(_) if byte[0] == b'\n' => {
                if line.first() != Some(&b'+') {
                    return Err(String::from_utf8_lossy(&line).trim().to_owned());
                }
                line.clear();
                left -= 1;
            }
            Ok(_) if line.len() < 1024 => line.push(byte[0]),
            Ok(_) => return Err("its answer is none of a server".to_owned()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}
