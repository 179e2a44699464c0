//! A server and its only event loop, without sockets: clients are called one after the other, and time stands
//! still unless the test moves it.

use exec::mail::Mail;
use exec::piece::Delivery;
use exec::session::{ClientInfo, flag};
use exec::{Flow, Local, Server, Session, Sessions, Stream, blocking, drive};
use keyspace::{At, CommitSink, Effects, Lsn, Mark, Sweep, Swept, To};
use resp::{OwnedArgs, Reply};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// When the first command runs (milliseconds since 1970).
const BEGIN_MS: u64 = 1_700_000_000_000;
/// How long a reply may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Told words, with their place.
#[derive(Clone, Debug)]
pub struct Told {
    pub lsn: Lsn,
    /// None: the command has none.
    pub db: Option<u32>,
    pub to: To,
    pub words: Vec<Vec<u8>>,
}

impl Told {
    pub fn text(&self) -> String {
        format!("{:6} {:?} {}", self.lsn, self.db, quote(&self.words))
    }
}

/// Words as a person reads them.
pub fn quote<W: AsRef<[u8]>>(words: &[W]) -> String {
    let words: Vec<String> = words.iter().map(|word| word.as_ref().escape_ascii().to_string()).collect();
    let mut text = words.join(" ");
    text.truncate(300);
    text
}

/// Collects what is told.
#[derive(Clone, Default)]
pub struct Stenographer {
    told: Arc<Mutex<Vec<Told>>>,
    /// Lists that were told by one pointer.
    lists: Arc<AtomicUsize>,
}

impl Stenographer {
    /// All that was told since the last time, in the order of the LSNs.
    pub fn take(&self) -> Vec<Told> {
        let mut told = std::mem::take(&mut *self.told.lock().expect("no panic"));
        told.sort_by_key(|told| told.lsn);
        told
    }

    pub fn len(&self) -> usize {
        self.told.lock().expect("no panic").len()
    }

    pub fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

impl CommitSink for Stenographer {
    fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
        let words = words.map(<[u8]>::to_vec).collect();
        self.told.lock().expect("no panic").push(Told { lsn: at.lsn, db: at.db, to: at.to, words });
    }

    fn shared(&self, at: At, effects: Arc<dyn Effects>) {
        self.lists.fetch_add(1, Ordering::Relaxed);
        effects.each(&mut |db, words| self.words(At { db, ..at }, words));
    }

    fn mark(&self, _: Lsn, _: Mark) {}
}

struct Client {
    session: Session,
    /// A reply comes by mail.
    waits: bool,
    reply: Vec<u8>,
}

pub struct World {
    pub server: Arc<Server>,
    pub told: Stenographer,
    local: Local,
    clients: Vec<Client>,
    letters: Vec<Mail>,
    done: Vec<Delivery>,
    sweep: Sweep,
}

impl World {
    pub fn new(clients: usize) -> World {
        let server = Server::start(Arc::default(), 1).expect("it starts");
        let told = Stenographer::default();
        server.keyspace.listen(Arc::new(told.clone()));
        let mut local = Local::new(0, &server);
        local.log.now_ms = BEGIN_MS;
        let clients = (1..=clients as u64).map(new_client).collect();
        World { server, told, local, clients, letters: Vec::new(), done: Vec::new(), sweep: Sweep::default() }
    }

    pub fn now_ms(&self) -> u64 {
        self.local.log.now_ms
    }

    pub fn set_now_ms(&mut self, now_ms: u64) {
        self.local.log.now_ms = now_ms;
    }

    /// Moves the clock on.
    pub fn pass(&mut self, ms: u64) {
        self.local.log.now_ms += ms;
    }

    /// Has a client begin anew.
    pub fn reconnect(&mut self, client: usize) {
        self.finish(client);
        self.call(client, &[b"RESET".to_vec()]);
    }

    /// Has a client call a command, and waits for its reply. None: it waits for keys.
    pub fn call(&mut self, client: usize, words: &[Vec<u8>]) -> Option<Vec<u8>> {
        self.start(client, words);
        self.answer(client)
    }

    /// Has a client call a command. Its reply may come later. The reply of the one before is waited for.
    pub fn start(&mut self, client: usize, words: &[Vec<u8>]) {
        self.finish(client);
        if words.is_empty() {
            return;
        }
        let args: OwnedArgs = words.iter().map(Vec::as_slice).collect();
        let began = Instant::now();
        loop {
            let Client { session, waits, reply } = &mut self.clients[client];
            let mut out = Reply::new(session.speech.resp3);
            self.local.log.lap();
            let flow = exec::execute(&self.server, &mut self.local, session, args.args().into(), &mut out);
            *waits = false;
            match flow {
                Flow::Done => {}
                Flow::Close => session.speech.closing = false,
                Flow::Stream(stream) => drain(stream, &mut out),
                Flow::Parked(_) => *waits = true,
                Flow::Held(_) => {
                    assert!(began.elapsed() < PATIENCE, "{words:?} is held for ever");
                    self.pump();
                    continue;
                }
            }
            *reply = out.into_bytes();
            return;
        }
    }

    /// The reply of a client; None: it waits for keys.
    fn answer(&mut self, client: usize) -> Option<Vec<u8>> {
        let began = Instant::now();
        loop {
            self.pump();
            let known = &self.clients[client];
            if !known.waits {
                return Some(known.reply.clone());
            }
            if known.session.info.flags.load(Ordering::Relaxed) & flag::BLOCKED != 0
                && !self.local.works.any()
            {
                return None;
            }
            assert!(began.elapsed() < PATIENCE, "client {client} gets no reply");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Waits for a client's reply; one that waits for keys waits no longer.
    pub fn finish(&mut self, client: usize) -> Vec<u8> {
        loop {
            if let Some(reply) = self.answer(client) {
                return reply;
            }
            let id = self.clients[client].session.id;
            if blocking::leave(&self.server, &mut self.local, id).is_some() {
                let known = &mut self.clients[client];
                known.session.set_flag(flag::BLOCKED, false);
                known.session.away = None;
                known.waits = false;
                known.reply = b"*-1\r\n".to_vec();
            }
        }
    }

    /// Waits for all that is under way but for clients that wait for keys.
    pub fn settle(&mut self) {
        for client in 0..self.clients.len() {
            self.answer(client);
        }
        self.pump();
    }

    /// Removes all that has expired.
    pub fn sweep(&mut self) {
        let mut sweep = std::mem::take(&mut self.sweep);
        for _ in 0..2 {
            let now_ms = self.now_ms();
            let mut told = Vec::new();
            while sweep.step(&self.server.keyspace, now_ms, |changes| told.push(changes)) != Swept::Round {}
            told.into_iter().for_each(|changes| self.server.after(&mut self.local, changes));
        }
        self.sweep = sweep;
    }

    /// Evicts some keys.
    pub fn evict(&mut self, policy: keyspace::Policy, keys: usize) {
        self.server.keyspace.set_eviction(0, policy, 5);
        let mut told = Vec::new();
        for _ in 0..keys {
            self.server.keyspace.evict(0, self.local.log.now_ms, &mut |changes| told.push(changes));
        }
        self.server.keyspace.set_eviction(0, keyspace::Policy::None, 5);
        told.into_iter().for_each(|changes| self.server.after(&mut self.local, changes));
    }

    /// Does a loop's turns until there is nothing to do here.
    fn pump(&mut self) {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "long work never ends");
            self.server.mailbox(0).drain(&mut self.letters);
            let idle = self.letters.is_empty() && !self.local.works.any();
            for letter in std::mem::take(&mut self.letters) {
                self.open(letter);
            }
            let mut done = std::mem::take(&mut self.done);
            drive::advance(&self.server, &mut self.local, &mut done);
            done.drain(..).for_each(|delivery| self.deliver(delivery));
            self.done = done;
            if idle {
                return;
            }
        }
    }

    fn session(&mut self, client: u64) -> Option<&mut Client> {
        self.clients.get_mut(client.checked_sub(1)? as usize)
    }

    fn open(&mut self, letter: Mail) {
        let mut done = std::mem::take(&mut self.done);
        let mut sessions = Table(&mut self.clients);
        // A client that waits for keys goes on waiting, and no other letter concerns a test without sockets.
        exec::receive(&self.server, &mut self.local, &mut sessions, letter, &mut done);
        done.drain(..).for_each(|delivery| self.deliver(delivery));
        self.done = done;
    }

    fn deliver(&mut self, delivery: Delivery) {
        let Delivery { client, bytes, stream, spent, selected } = delivery;
        let Some(at) = client.checked_sub(1).filter(|at| (*at as usize) < self.clients.len()) else { return };
        let session = &mut self.clients[at as usize].session;
        selected.into_iter().for_each(|db| session.select(db));
        let stream = exec::waited::ended(&self.server, &mut self.local, session, spent, &bytes, stream);
        self.reply(client, bytes, stream);
    }

    fn reply(&mut self, client: u64, bytes: Vec<u8>, stream: Option<Box<dyn Stream>>) {
        let Some(client) = self.session(client) else { return };
        let mut out = Reply::new(client.session.speech.resp3);
        out.encoded(&bytes);
        stream.into_iter().for_each(|stream| drain(stream, &mut out));
        client.session.set_flag(flag::BLOCKED, false);
        client.session.away = None;
        (client.waits, client.reply) = (false, out.into_bytes());
    }
}

/// The clients, by their numbers.
struct Table<'a>(&'a mut [Client]);

impl Sessions for Table<'_> {
    fn session(&mut self, client: u64) -> Option<&mut Session> {
        self.0.get_mut(client.checked_sub(1)? as usize).map(|client| &mut client.session)
    }

    fn waits_until(&self, _: u64) -> Option<u64> {
        None
    }
}

fn new_client(id: u64) -> Client {
    let info = Arc::new(ClientInfo::new(id, 0, String::new(), String::new(), 0, true, BEGIN_MS));
    Client { session: Session::new(info, &acl::Acl::default(), true), waits: false, reply: Vec::new() }
}

fn drain(mut stream: Box<dyn Stream>, out: &mut Reply) {
    while stream.fill(out, 16 << 10) {}
}
