//! All clients by id, pausing them, parking them, and telling subscribers of keyspace events.

use crate::call::Flow;
use crate::pubsub::Shared;
use crate::session::{ClientInfo, flag};
use crate::stats::Counter;
use crate::waits::What;
use crate::{Local, Server, Session};
use command::{Command, facts};
use config::notify;
use keyspace::{Class, Event};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Clients looked at under one lock.
const PAGE: usize = 64;

/// Every connected client.
pub struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    connected: AtomicUsize,
    last_id: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    /// Those that subscribed to anything, those that watch keys, and how many keys.
    subscribed: AtomicUsize,
    watching: AtomicUsize,
    watched_keys: AtomicUsize,
    /// By loop.
    buffers: Box<[Buffers]>,
}

/// What the clients of a loop had in their buffers when it last looked at all of them, in bytes.
#[derive(Default)]
struct Buffers {
    all: AtomicU64,
    input_max: AtomicU64,
    output_max: AtomicU64,
}

/// Bytes in the buffers of some clients, and the most that one had unread or unsent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffered {
    pub all: u64,
    pub input_max: u64,
    pub output_max: u64,
}

impl Buffered {
    /// One client more: what it sent and nobody read, what it was not sent yet, and room kept for it.
    pub fn add(&mut self, input: u64, output: u64, free: u64) {
        self.all += input + output + free;
        self.input_max = self.input_max.max(input);
        self.output_max = self.output_max.max(output);
    }
}

impl Clients {
    /// Of a server with so many loops.
    pub fn new(loops: usize) -> Clients {
        Clients {
            by_id: Mutex::default(),
            connected: AtomicUsize::new(0),
            last_id: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            subscribed: AtomicUsize::new(0),
            watching: AtomicUsize::new(0),
            watched_keys: AtomicUsize::new(0),
            buffers: (0..loops).map(|_| Buffers::default()).collect(),
        }
    }

    pub fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn add(&self, info: Arc<ClientInfo>) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.connected.fetch_add(1, Ordering::Relaxed);
        self.by_id.lock().insert(info.id, info);
    }

    pub fn remove(&self, id: u64) {
        if self.by_id.lock().remove(&id).is_some() {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn get(&self, id: u64) -> Option<Arc<ClientInfo>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A client has subscribed to something, or to nothing any more. Its loop says so.
    pub(crate) fn note_subscribed(&self, info: &ClientInfo, now: bool) {
        let before = match now {
            true => info.flags.fetch_or(flag::PUBSUB, Ordering::Relaxed),
            false => info.flags.fetch_and(!flag::PUBSUB, Ordering::Relaxed),
        };
        match (before & flag::PUBSUB != 0, now) {
            (false, true) => self.subscribed.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.subscribed.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    /// A client watches so many keys from now on. Its loop says so.
    pub(crate) fn note_watching(&self, info: &ClientInfo, keys: usize) {
        let before = info.watching.swap(keys as u32, Ordering::Relaxed) as usize;
        match (before, keys) {
            (0, 0) => return,
            (0, _) => self.watching.fetch_add(1, Ordering::Relaxed),
            (_, 0) => self.watching.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        // Modulo 2^64, in which a difference below zero is one as well.
        self.watched_keys.fetch_add(keys.wrapping_sub(before), Ordering::Relaxed);
    }

    /// A loop has looked at the buffers of all its clients.
    pub fn note_buffers(&self, loop_id: usize, found: Buffered) {
        let buffers = &self.buffers[loop_id];
        buffers.all.store(found.all, Ordering::Relaxed);
        buffers.input_max.store(found.input_max, Ordering::Relaxed);
        buffers.output_max.store(found.output_max, Ordering::Relaxed);
    }

    /// What loops found when they last looked: a tenth of a second ago, with many clients a second. O(loops).
    pub fn buffered(&self) -> Buffered {
        let mut sum = Buffered::default();
        for buffers in &self.buffers {
            sum.all += buffers.all.load(Ordering::Relaxed);
            sum.input_max = sum.input_max.max(buffers.input_max.load(Ordering::Relaxed));
            sum.output_max = sum.output_max.max(buffers.output_max.load(Ordering::Relaxed));
        }
        sum
    }

    /// Clients that subscribed to anything, those that watch keys, and how many keys they watch.
    pub fn engaged(&self) -> (usize, usize, usize) {
        let [subscribed, watching, keys] =
            [&self.subscribed, &self.watching, &self.watched_keys].map(|n| n.load(Ordering::Relaxed));
        (subscribed, watching, keys)
    }

    /// The next clients by number, oldest first, up to `max` of them. O(max); the lock is held for copying pointers only.
    pub fn page(&self, after: u64, max: usize) -> Vec<Arc<ClientInfo>> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.by_id.lock().range(range).take(max).map(|(_, info)| info.clone()).collect()
    }

    /// All clients, oldest first, page by page: who comes or goes meanwhile may be missed. Never holds the lock for long.
    pub fn each(&self) -> impl Iterator<Item = Arc<ClientInfo>> {
        let mut page = Vec::new().into_iter();
        let mut after = 0;
        std::iter::from_fn(move || {
            if page.len() == 0 {
                page = self.page(after, PAGE).into_iter();
            }
            let info: Arc<ClientInfo> = page.next()?;
            after = info.id;
            Some(info)
        })
    }
}

/// CLIENT PAUSE.
#[derive(Default)]
pub struct Pause {
    /// 0: there is none. Else when it ends (milliseconds since 1970), shifted, and in the last bit whether it is one of writes only.
    word: AtomicU64,
    /// Long writes on their way that it holds.
    pub(crate) held: AtomicUsize,
    /// Clients whose command it holds.
    postponed: Arc<AtomicUsize>,
}

/// A client whose command CLIENT PAUSE holds, counted as long as this is.
pub(crate) struct Postponed(Arc<AtomicUsize>);

impl Drop for Postponed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pause {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.word.load(Ordering::Acquire) != 0
    }

    /// A longer or stricter pause is not weakened by a later one.
    pub fn set(&self, until_ms: u64, writes_only: bool) {
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let (until_ms, writes_only) = match word {
                0 => (until_ms, writes_only),
                _ => (until_ms.max(word >> 1), writes_only && word & 1 == 1),
            };
            Some(until_ms.clamp(1, u64::MAX >> 1) << 1 | u64::from(writes_only))
        });
    }

    pub fn clear(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// Ends it if its time is over; true if it goes on.
    #[inline]
    pub(crate) fn goes_on(&self, now_ms: u64) -> bool {
        let word = self.word.load(Ordering::Acquire);
        if word != 0 && word >> 1 <= now_ms {
            // Not another one that began meanwhile.
            let _ = self.word.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        word >> 1 > now_ms
    }

    /// Whether nothing may change now: CLIENT PAUSE of either kind.
    #[inline]
    pub fn stops_writes(&self, now_ms: u64) -> bool {
        self.word.load(Ordering::Acquire) >> 1 > now_ms
    }

    /// Milliseconds since 1970 at which it ends.
    pub fn until_ms(&self) -> u64 {
        self.word.load(Ordering::Acquire) >> 1
    }

    /// Until when it holds what commands (milliseconds since 1970; only those that write?), if it goes on.
    pub fn state(&self, now_ms: u64) -> Option<(u64, bool)> {
        let word = self.word.load(Ordering::Acquire);
        (word >> 1 > now_ms).then_some((word >> 1, word & 1 == 1))
    }

    /// Clients that wait for its end: with a command that has not run, or a long write that is not committed.
    pub fn waiting(&self) -> usize {
        self.postponed.load(Ordering::Relaxed) + self.held.load(Ordering::Relaxed)
    }

    fn postpone(&self) -> Postponed {
        self.postponed.fetch_add(1, Ordering::Relaxed);
        Postponed(self.postponed.clone())
    }

    /// Whether this command must wait.
    pub(crate) fn holds(&self, command: &Command, session: &Session, now_ms: u64) -> bool {
        if !self.goes_on(now_ms) {
            return false;
        }
        let changes = command.is_write()
            || command.may_replicate()
            || command.is(facts::RUNS_QUEUE) && session.multi.as_ref().is_some_and(|m| m.queue.has_writes());
        let writes_only = self.word.load(Ordering::Acquire) & 1 == 1;
        !command.is(facts::PAUSES) && (changes || !writes_only)
    }
}

/// Lets a command wait for the end of CLIENT PAUSE.
pub(crate) fn hold(server: &Server, local: &Local, session: &mut Session) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    session.postponed.get_or_insert_with(|| server.pause.postpone());
    session.waits_for_itself(What::Pause, local.clock_ns);
    Flow::Held(server.pause.until_ms())
}

/// Publishes keyspace events as `notify-keyspace-events` asks.
pub(crate) fn notify(server: &Server, events: &[Event]) {
    let wanted = server.config.live.notify.get() as u32;
    for event in events {
        if wanted & notify::KEYSPACE != 0 {
            let channel = keyspace_channel(event.db, &event.key);
            server.pubsub.announce(server, false, &channel, || Shared::Own(event.name.as_bytes().into()));
        }
        if wanted & notify::KEYEVENT != 0 {
            let channel = keyevent_channel(event.db, event.name);
            server.pubsub.announce(server, false, channel.as_bytes(), || Shared::Own((&*event.key).into()));
        }
    }
}

/// Where the events of a key are told.
pub(crate) fn keyspace_channel(db: usize, key: &[u8]) -> Vec<u8> {
    let mut channel = format!("__keyspace@{db}__:").into_bytes();
    channel.extend_from_slice(key);
    channel
}

/// Where the keys of an event are told.
pub(crate) fn keyevent_channel(db: usize, name: &str) -> String {
    format!("__keyevent@{db}__:{name}")
}

/// The classes the keyspace has to collect, from the configured flags.
pub fn wanted_classes(flags: u32) -> u32 {
    if flags & (notify::KEYSPACE | notify::KEYEVENT) == 0 {
        return 0;
    }
    let pairs = [
        (notify::GENERIC, Class::Generic),
        (notify::STRING, Class::String),
        (notify::LIST, Class::List),
        (notify::SET, Class::Set),
        (notify::HASH, Class::Hash),
        (notify::ZSET, Class::ZSet),
        (notify::EXPIRED, Class::Expired),
        (notify::EVICTED, Class::Evicted),
        (notify::STREAM, Class::Stream),
        (notify::NEW, Class::New),
        (notify::KEY_MISS, Class::KeyMiss),
    ];
    pairs.iter().filter(|(bit, _)| flags & bit != 0).fold(0, |bits, (_, class)| bits | class.bit())
}

/// Ends everything a client that goes has with others: what it waits for, watches, listens to and runs elsewhere.
pub fn goodbye(server: &Server, local: &mut Local, session: &mut Session) {
    session.cancel.store(true, Ordering::Relaxed);
    if session.info.killed.load(Ordering::Relaxed) {
        // What it sent last is not wanted either, unless that is decided.
        server.scripts.stop(session.id);
        server.snapshots.stop(session.id);
    }
    if session.info.flags.load(Ordering::Relaxed) & flag::BLOCKED != 0
        && crate::blocking::leave(server, local, session.id).is_none()
    {
        // Somebody may be trying to serve it at this moment and find nothing: look again later.
        local.leaving.push(session.id);
    }
    crate::transaction::leave(server, local, session);
    crate::actions::leave_all(server, local, session);
    server.clients.remove(session.id);
}

/// A loop's share of the housekeeping, ten times a second.
pub fn cron(server: &Arc<Server>, local: &mut Local) {
    let leaving = std::mem::take(&mut local.leaving);
    for client in leaving {
        if crate::blocking::leave(server, local, client).is_none() && server.park.holds(client) {
            local.leaving.push(client);
        }
    }
    server.pause.goes_on(local.now_ms);
    if let Some(lua) = &mut local.lua {
        lua.heed();
        let (scripts, functions) = lua.bytes();
        local.recorder.set(Counter::LuaBytes, scripts as u64);
        local.recorder.set(Counter::LuaFunctionBytes, functions as u64);
    }
    if local.id == 0 {
        let orphan_ms = server.config.live.script_orphan_ms.size() as u64;
        crate::lines::tend(server, local.clock_ns);
        server.scripts.end_orphans(local.clock_ns / 1_000_000, orphan_ms);
        // The allocator asks its arenas one by one, and whoever holds one may not be running.
        let (errand, now_ms) = (server.clone(), local.now_ms);
        server.clerk.send(move || {
            let speeds = errand.stats.sample(now_ms, crate::memory::look(&errand, now_ms));
            errand.measured.note_speeds(speeds);
            errand.measured.sample(now_ms, &errand.crowd);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(id: u64) -> Arc<ClientInfo> {
        Arc::new(ClientInfo::new(id, 0, String::new(), String::new(), 0, false, 0))
    }

    #[test]
    fn who_subscribed_or_watches_is_counted_once_however_often_it_is_said() {
        let clients = Clients::new(1);
        let both = [client(1), client(2)];
        both.iter().for_each(|info| clients.add(info.clone()));
        for info in &both {
            clients.note_subscribed(info, true);
            clients.note_subscribed(info, true);
        }
        for keys in [1, 3, 3, 2] {
            clients.note_watching(&both[0], keys);
        }
        clients.note_watching(&both[1], 5);
        assert_eq!((clients.len(), clients.engaged()), (2, (2, 2, 7)));
        clients.note_subscribed(&both[0], false);
        clients.note_subscribed(&both[0], false);
        clients.note_watching(&both[0], 0);
        clients.note_watching(&both[0], 0);
        assert_eq!(clients.engaged(), (1, 1, 5));
        // One that never came in does not go either.
        clients.remove(3);
        clients.remove(1);
        clients.remove(1);
        assert_eq!(clients.len(), 1);
    }

    #[test]
    fn buffers_of_all_loops_add_up() {
        let clients = Clients::new(2);
        let mut found = Buffered::default();
        found.add(10, 0, 5);
        found.add(0, 30, 0);
        clients.note_buffers(0, found);
        clients.note_buffers(1, Buffered { all: 100, input_max: 60, output_max: 1 });
        assert_eq!(clients.buffered(), Buffered { all: 145, input_max: 60, output_max: 30 });
        clients.note_buffers(1, Buffered::default());
        assert_eq!(clients.buffered(), Buffered { all: 45, input_max: 10, output_max: 30 });
    }
}
