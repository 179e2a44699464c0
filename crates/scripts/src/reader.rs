//! The way in which a script gets its keys: directly on a loop, through its loop on a thread (C5).

use super::*;
use work::piece::Letter;

/// A request of a script on a thread: a command that is no function of the keyspace.
pub struct Request {
    pub client: u64,
    pub words: OwnedArgs,
    pub resp3: bool,
    pub reply: Arc<Answer<Vec<u8>>>,
}

/// Loads keys into an overlay: directly on a loop, through a loop from a script's thread (C5).
pub(super) fn load(overlay: &mut Overlay, keys: Vec<(usize, Box<[u8]>)>, reader: &mut Option<&mut Reader>) {
    match reader {
        Some(reader) => drop(reader.load(overlay, keys)),
        None => keys.iter().for_each(|(db, key)| overlay.load(*db, [&**key])),
    }
}

/// Makes keys count as used at `now_ms`, whether they are known or not. O(keys).
pub(super) fn touch(
    overlay: &Overlay,
    keys: Vec<(usize, Box<[u8]>)>,
    now_ms: u64,
    reader: &mut Option<&mut Reader>,
) {
    let (lsn, used_ms) = (overlay.snapshot().lsn(), Some(now_ms));
    let Some(reader) = reader else {
        let keyspace = overlay.snapshot().keyspace();
        for (db, key) in &keys {
            keyspace.read_each(lsn, used_ms, *db, &[&**key], &mut |_| true);
        }
        return;
    };
    // The values are not needed.
    let request = reader.request(overlay, AskedKeys::Named(keys), 0);
    drop(reader.ask(ReadKeys { used_ms, ..request }));
}

/// Fetches a part of the whole. On a loop only a small one: a script that wants more goes to a thread.
pub(super) fn load_chunk(
    keyspace: &Keyspace,
    overlay: &mut Overlay,
    part: (usize, u64, usize),
    reader: &mut Option<&mut Reader>,
) -> bool {
    if let Some(reader) = reader {
        return reader.load_chunk(overlay, part);
    }
    let (db, position, want) = part;
    let mut chunk = Chunk::default();
    let small = keyspace.len(db) <= SMALL_WHOLE;
    if small {
        while !keyspace.extend_chunk(overlay.snapshot().lsn(), db, position, want, &mut chunk) {}
        overlay.insert_chunk(db, position, chunk);
    }
    small
}

/// The keys a script declares: words of its command, and their database.
struct Declared {
    words: Arc<OwnedArgs>,
    db: usize,
    keys: usize,
}

/// A script's thread and the loop that reads keys for it (C5).
pub struct Reader {
    scripts: Arc<Scripts>,
    loop_id: usize,
    answer: Arc<Answer<Box<ReadKeys>>>,
    /// Number of requests for keys that were not declared.
    asked: usize,
    /// The declared keys, until the script asks for a key that it does not know. A script that only
    /// overwrites asks for none.
    declared: Option<Declared>,
    /// Whether the script read a good part of all keys in its last run.
    roamed: bool,
    /// The number of neighbours in its last request, of those it got, and of those that the script then read.
    near: usize,
    neighbours: usize,
    adopted: usize,
    /// Nanoseconds spent waiting for its loop.
    pub(super) waited_ns: Cell<u64>,
    /// The thread's turn; given back while it waits for the loop.
    pub(super) turn: Turn,
}

impl Reader {
    /// `roamed` is the result of [`Reader::roams`] in the script's last run.
    pub(super) fn new(scripts: &Arc<Scripts>, loop_id: usize, roamed: bool) -> Reader {
        Reader {
            scripts: scripts.clone(),
            loop_id,
            answer: Arc::default(),
            asked: 0,
            declared: None,
            roamed,
            near: 0,
            neighbours: 0,
            adopted: 0,
            waited_ns: Cell::new(0),
            turn: scripts.work.turns.enter(),
        }
    }

    /// Number of keys to be read around one that is asked for. A round trip costs as much as some hundred
    /// more keys. So a script that has asked for a fair share of all keys gets their neighbours too, more
    /// each time. It soon has them all, and has cost at most twice what it would have.
    fn near(&mut self, keys: usize) -> usize {
        self.asked += 1;
        if self.roamed || self.asked >= ALONE + keys / FAIR {
            self.near = (2 * self.near).clamp(NEAR, NEAR_MAX);
        }
        self.near
    }

    /// Whether the script has read a good part of the neighbours it was given.
    pub(super) fn roams(&self, overlay: &Overlay) -> bool {
        (self.adopted + overlay.near_read()) * 4 > self.neighbours
    }

    fn request(&self, overlay: &Overlay, asked: AskedKeys, keys: usize) -> ReadKeys {
        ReadKeys {
            lsn: overlay.snapshot().lsn(),
            used_ms: overlay.used_ms(),
            found: Vec::with_capacity(keys),
            batches: KeyBatches::default(),
            asked,
            near: 0,
            until: u64::MAX,
            around: Around::default(),
            part: None,
            chunk: Chunk::default(),
            broken: false,
            reply: self.answer.clone(),
        }
    }

    /// Asks the loop and waits. `None`: the process is ending. A panic there goes on here, where it is
    /// contained.
    fn ask(&self, request: ReadKeys) -> Option<Box<ReadKeys>> {
        let post = || (self.scripts.work.post)(self.loop_id, Letter::Read(Box::new(request)));
        let read = self.wait_for(post, &self.answer);
        if read.as_ref().is_some_and(|read| read.broken) {
            stdx::panics::go_on();
        }
        read
    }

    /// Makes the loop perform an action for a client, and returns its reply.
    pub(super) fn have_performed(&self, client: u64, args: resp::Args<'_>, resp3: bool) -> Option<Vec<u8>> {
        let reply = Arc::new(Answer::default());
        let request = Request { client, words: args.to_owned(), resp3, reply: reply.clone() };
        let post = || self.scripts.house.post(self.loop_id, crate::Letter::Request(Box::new(request)));
        self.wait_for(post, &reply)
    }

    fn wait_for<T>(&self, post: impl FnOnce(), answer: &Answer<T>) -> Option<T> {
        let asked_ns = stdx::clock::mono_ns();
        post();
        let read = self.turn.aside(|| {
            loop {
                match answer.wait() {
                    Some(read) => break Some(read),
                    None if self.scripts.house.is_ending() => break None,
                    None => {}
                }
            }
        });
        self.waited_ns.set(self.waited_ns.get() + stdx::clock::mono_ns() - asked_ns);
        read
    }

    /// Fetches a part of the whole that a handler asked for. False: none can be had.
    fn load_chunk(&self, overlay: &mut Overlay, part: (usize, u64, usize)) -> bool {
        // A loop that made room bit by bit would move megabytes at a time.
        let keys = part.2.min(self.scripts.keyspace.len(part.0));
        let chunk = Chunk { keys: Vec::with_capacity(keys + keys / 8), next: None };
        let request =
            ReadKeys { part: Some(part), chunk, ..self.request(overlay, AskedKeys::Named(Vec::new()), 0) };
        let Some(read) = self.ask(request) else { return false };
        overlay.insert_chunk(part.0, part.1, read.chunk);
        true
    }

    /// Loads keys. False: the loop does not answer, as the process ends.
    pub(super) fn load(&mut self, overlay: &mut Overlay, keys: Vec<(usize, Box<[u8]>)>) -> bool {
        let mut keys = keys;
        if let Some(declared) = self.declared.take() {
            self.load_declared(overlay, declared);
            keys.retain(|(db, key)| !overlay.knows(*db, key));
        }
        let count = keys.len();
        keys.retain(|(db, key)| !overlay.adopt(*db, key));
        self.adopted += count - keys.len();
        let Some((db, first)) = keys.first().map(|(db, key)| (*db, hash_bytes(key))) else { return true };
        let near = self.near(self.scripts.keyspace.len(db));
        let count = keys.len();
        let until = overlay.near_end(db, first);
        let request = ReadKeys { near, until, ..self.request(overlay, AskedKeys::Named(keys), count) };
        let Some(read) = self.ask(request) else { return false };
        let ReadKeys { asked: AskedKeys::Named(keys), found, around, .. } = *read else { return false };
        for ((db, key), base) in keys.iter().zip(found) {
            overlay.insert(*db, hash_bytes(key), key, base);
        }
        self.neighbours += around.keys.len();
        if around.to > first {
            overlay.insert_near(db, first, around.to, around.keys);
        }
        true
    }

    /// Notes the keys a script declares: all of them are loaded when it asks for the first key.
    pub(super) fn declares(&mut self, run: &ScriptRun) {
        let (words, db, keys) = (run.words.clone(), run.db, run.declared);
        self.declared = (keys > 0).then_some(Declared { words, db, keys });
    }

    /// Loads the keys the script declares. Cost: O(keys), most of it on the loop.
    fn load_declared(&mut self, overlay: &mut Overlay, Declared { words, db, keys }: Declared) {
        let hashes = words.args().slice(BEFORE_KEYS, keys).iter().map(hash_bytes).collect();
        let asked = AskedKeys::Words(words, db, BEFORE_KEYS, hashes);
        if let Some(read) = self.ask(self.request(overlay, asked, 0)) {
            overlay.insert_many(read.batches);
        }
    }
}
