//! The commands of a transaction, kept until EXEC.
//!
//! ```text
//! chunks: [ words: SET k v INCR n …   entries: (SET, from 0) (INCR, from 3) … ] [ … ]     256 commands each
//! ```
//!
//! - Q1: nothing of it is ever copied or freed as a whole on a loop. Chunks are handed over, and freed by the
//!   reclaimer.
//! - Q2: the facts that EXEC needs of the commands are counted as they come.
//!
//! Cost: `push` O(words), no allocation for most commands; `at` O(1).

use command::facts::{self, has_unknown_keys};
use command::{Command, Handler, Run};
use resp::{Args, OwnedArgs};
use std::sync::Arc;
use stdx::budget::{Budget, Full, Holding};

/// Commands of a chunk.
const CHUNK: usize = 256;
/// Bytes or words from which on a command has an allocation of its own.
const OWN: usize = 1024;
/// Bytes of a command besides its words.
const ENTRY: usize = size_of::<Entry>();
/// Largest number of databases emptied under locks.
const FLUSHES: usize = 4;
/// Chunks from which on they are freed elsewhere.
const MANY: usize = 4;

/// See the module.
#[derive(Default)]
pub struct Queue {
    #[allow(clippy::vec_box, reason = "the list of them is moved when it grows: it must stay small")]
    chunks: Vec<Box<Chunk>>,
    len: usize,
    words: usize,
    bytes: usize,
    /// Commands that change something.
    writes: usize,
    /// Commands that only look at keys.
    reads: usize,
    /// Commands that may change or tell something without being writes: scripts, PUBLISH.
    others: usize,
    /// Commands that are functions of the keys they name, or ask for others (SORT BY).
    keyed: usize,
    /// `SET key value`, without options.
    sets: usize,
    /// Commands up to the last that looks for scripts and functions.
    looked_until: usize,
    /// EVAL and its kin, and the calls of functions among them.
    scripts: usize,
    functions: usize,
    /// Commands that may need more memory.
    hungry: usize,
    denied_beside: usize,
    /// Commands whose time grows with the keyspace.
    tours: usize,
    /// Commands that exchange or empty databases: some microseconds each.
    flushes: usize,
    /// Actions that may take long.
    slow: usize,
    /// Commands that change libraries of functions.
    libraries: usize,
    /// PUBLISH.
    published: usize,
    /// Bytes that only the queue keeps, taken from the budget of work.
    own: usize,
    holding: Holding,
}

/// Whether a command of a transaction that runs over an overlay waits for the commit (`scripts::deferred`).
pub fn is_deferred(command: &Command) -> bool {
    matches!(command.run, Run::Exec)
        && !needs_engine(command)
        && !command.is(facts::AT_PLACE)
        && !facts::changes_libraries(command)
}

/// Whether it looks for scripts and functions.
pub fn needs_engine(command: &Command) -> bool {
    command.is(facts::SCRIPT | facts::ENGINE)
}

#[derive(Default)]
struct Chunk {
    words: OwnedArgs,
    entries: Vec<Entry>,
}

struct Entry {
    command: &'static Command,
    words: Words,
}

enum Words {
    /// Words of the chunk: the first, and their number.
    Here(u32, u32),
    Own(Arc<OwnedArgs>),
}

impl Chunk {
    fn at(&self, i: usize) -> (&'static Command, Args<'_>) {
        let entry = &self.entries[i];
        let args = match &entry.words {
            Words::Here(from, count) => self.words.args().slice(*from as usize, *count as usize),
            Words::Own(args) => args.args(),
        };
        (entry.command, args)
    }
}

impl Queue {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Words of all commands.
    #[inline]
    pub fn words(&self) -> usize {
        self.words
    }

    /// About the memory its words take.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds memory for the queued words. Errors: `Full`, the budget has no room.
    pub fn hold(&mut self, work: &Arc<Budget>) -> Result<(), Full> {
        self.holding.set(work, self.own as u64)
    }

    #[inline]
    pub fn has_writes(&self) -> bool {
        self.writes > 0
    }

    /// Whether it has a command that only looks at keys.
    #[inline]
    pub fn has_reads(&self) -> bool {
        self.reads > 0
    }

    /// Whether it has a write, or a command that may cause one or tell something (scripts, PUBLISH).
    #[inline]
    pub fn may_change(&self) -> bool {
        self.writes > 0 || self.others > 0
    }

    /// Whether it has a command that is refused while memory is short.
    #[inline]
    pub fn is_denied_oom(&self) -> bool {
        self.hungry > 0
    }

    /// Whether it has a command that is refused while a copy is loaded beside the data.
    #[inline]
    pub fn is_denied_beside(&self) -> bool {
        self.denied_beside > 0
    }

    /// Whether every command is a function of keys.
    #[inline]
    pub fn is_keyed(&self) -> bool {
        self.keyed == self.len
    }

    /// Whether the `i`-th command changes the scripts, and a later one may look for them. `drafted`: an earlier
    /// one changed them, or functions.
    pub fn changes_scripts(&self, i: usize, drafted: bool) -> bool {
        let command = self.at(i).0;
        let changes = command.is(facts::CHANGES_CODE) && !facts::changes_libraries(command);
        changes && (drafted || i < self.looked_until)
    }

    /// Whether its time shows only when it runs.
    #[inline]
    pub fn is_open_ended(&self) -> bool {
        self.looked_until + self.tours + self.libraries > 0 || self.flushes > FLUSHES
    }

    /// Whether it has actions that may take long.
    #[inline]
    pub fn has_slow_actions(&self) -> bool {
        self.slow > 0
    }

    /// Whether it changes libraries of functions.
    #[inline]
    pub fn changes_libraries(&self) -> bool {
        self.libraries > 0
    }

    /// Whether it has a PUBLISH.
    #[inline]
    pub fn publishes(&self) -> bool {
        self.published > 0
    }

    /// Whether it has an EVAL or EVALSHA, and whether an FCALL.
    pub fn has_scripts(&self) -> (bool, bool) {
        (self.scripts > self.functions, self.functions > 0)
    }

    /// Whether every command is `SET key value`.
    #[inline]
    pub fn is_sets(&self) -> bool {
        self.sets == self.len
    }

    /// Adds a command. `kept` are its words, if they are kept anyway.
    pub fn push(&mut self, command: &'static Command, args: Args<'_>, kept: Option<Arc<OwnedArgs>>) {
        let bytes = kept.as_ref().map_or_else(|| args.bytes(), |kept| kept.mem_bytes());
        self.len += 1;
        self.words += args.len();
        self.bytes += bytes + 16 * args.len();
        // Every share has a part that is granted whatever others hold, so the words of one queue are one
        // share.
        kept.iter().for_each(|kept| kept.give_up_share());
        self.own += ENTRY + bytes + 8 * args.len();
        self.writes += usize::from(command.is_write());
        self.reads += usize::from(command.has(command::table::READONLY));
        self.others += usize::from(!command.is_write() && command.may_replicate());
        self.hungry += usize::from(command.has(command::table::DENYOOM));
        self.keyed += usize::from(matches!(command.run, Run::Read(_) | Run::Write(_)));
        self.sets += usize::from(command.is_plain_set(args));
        if !matches!(command.run, Run::Read(_) | Run::Write(_)) {
            let is = |facts: u32| usize::from(command.is(facts));
            if needs_engine(command) {
                self.looked_until = self.len;
            }
            self.denied_beside += usize::from(command.has(command::table::NO_ASYNC_LOADING));
            self.slow += is(facts::SLOW_ACTION);
            self.libraries += usize::from(facts::changes_libraries(command));
            self.scripts += is(facts::SCRIPT);
            self.functions += is(facts::FUNCTION);
            self.tours += is(facts::TOUR);
            self.flushes += is(facts::FLUSHES);
            self.published += is(facts::PASSES_PATTERNS);
        }
        let own = kept.is_some() || bytes >= OWN || args.len() >= OWN;
        let chunk = self.room();
        let words = match own {
            true => Words::Own(kept.unwrap_or_else(|| Arc::new(args.to_owned()))),
            false => {
                let from = chunk.words.len();
                chunk.words.extend(args.iter());
                Words::Here(from as u32, args.len() as u32)
            }
        };
        chunk.entries.push(Entry { command, words });
    }

    /// The chunk the next command goes to.
    fn room(&mut self) -> &mut Chunk {
        if self.chunks.last().is_none_or(|chunk| chunk.entries.len() == CHUNK) {
            // The next commands are probably like the last.
            let chunk = self.chunks.last().map_or(Chunk::default(), |last| Chunk {
                words: OwnedArgs::with_capacity(last.words.len(), last.words.args().bytes()),
                entries: Vec::with_capacity(CHUNK),
            });
            self.chunks.push(Box::new(chunk));
        }
        self.chunks.last_mut().expect("pushed above")
    }

    /// The `i`-th command. Panics past the end.
    #[inline]
    pub fn at(&self, i: usize) -> (&'static Command, Args<'_>) {
        self.chunks[i / CHUNK].at(i % CHUNK)
    }

    /// The words of the `i`-th command, if they are many. A caller that keeps them takes a share. Panics past
    /// the end.
    #[inline]
    pub fn kept(&self, i: usize) -> Option<Arc<OwnedArgs>> {
        match &self.chunks[i / CHUNK].entries[i % CHUNK].words {
            Words::Own(words) => Some(words.clone()),
            Words::Here(..) => None,
        }
    }

    /// Brings the `i`-th command nearer to the cache: first its entry, then the places of its words, then the
    /// words.
    #[inline]
    pub fn prefetch(&self, i: usize, step: usize) {
        let chunk = &self.chunks[i / CHUNK];
        let entry = &chunk.entries[i % CHUNK];
        match (step, &entry.words) {
            (0, _) => stdx::cache::prefetch(entry),
            (1, Words::Here(from, _)) => chunk.words.args().prefetch_place(*from as usize + 1),
            (2, Words::Here(from, _)) => chunk.words.args().prefetch_word(*from as usize + 1),
            _ => {}
        }
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&'static Command, Args<'_>)> + Clone {
        self.chunks.iter().flat_map(|chunk| (0..chunk.entries.len()).map(|i| chunk.at(i)))
    }

    /// Forgets the commands.
    pub fn clear(&mut self) {
        *self = Queue::default();
    }

    /// Whether a command of it may ask for keys it does not name. O(words).
    pub fn has_unknown_keys(&self) -> bool {
        self.iter().any(|(command, args)| has_unknown_keys(command, args))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.chunks.len() >= MANY {
            let (chunks, share) = (std::mem::take(&mut self.chunks), self.holding.take());
            stdx::reclaim::defer(self.bytes, move || drop((chunks, share)));
        }
    }
}

/// The handler of a command that is a function of keys.
pub fn handler(command: &Command) -> Option<Handler> {
    match command.run {
        Run::Read(handler) | Run::Write(handler) => Some(handler),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::registry;

    fn words(i: usize) -> Vec<Vec<u8>> {
        let text = |n: usize| vec![b'a' + (i % 26) as u8; n];
        match i % 7 {
            0 => vec![b"GET".to_vec(), text(i % 50)],
            3 => vec![b"SET".to_vec(), text(5), text(OWN * (i % 3))],
            5 => std::iter::once(b"PUBLISH".to_vec()).chain((0..2).map(|_| text(i % 9))).collect(),
            _ => vec![b"SET".to_vec(), text(9), text(i % 30)],
        }
    }

    /// Commands of all sizes, against a list of lists.
    #[test]
    fn commands_come_out_as_they_went_in() {
        let mut queue = Queue::default();
        let mut model = Vec::new();
        for i in 0..3 * CHUNK + 17 {
            let words = words(i);
            let slices: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let owned = OwnedArgs::from_slices(&slices);
            let command = registry::find(&words[0]).unwrap();
            let kept = (i % 11 == 0).then(|| Arc::new(owned.clone()));
            queue.push(command, owned.args(), kept);
            model.push((command.name, words));
        }
        let shown = |(command, args): (&'static Command, Args<'_>)| {
            (command.name, args.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
        };
        assert_eq!(queue.iter().map(shown).collect::<Vec<_>>(), model);
        (0..model.len()).for_each(|i| assert_eq!(shown(queue.at(i)), model[i]));
        assert_eq!(queue.len(), model.len());
        assert_eq!(queue.words(), model.iter().map(|(_, words)| words.len()).sum::<usize>());
        assert!(queue.has_writes() && !queue.is_keyed() && !queue.is_sets());
        queue.clear();
        assert!(queue.is_empty() && queue.iter().next().is_none());
    }

    #[test]
    fn what_it_is_made_of_is_known() {
        let mut queue = Queue::default();
        let mut push = |words: &[&[u8]]| {
            let owned = OwnedArgs::from_slices(words);
            queue.push(registry::find(words[0]).unwrap(), owned.args(), None);
            (queue.is_sets(), queue.is_keyed(), queue.has_writes())
        };
        assert_eq!(push(&[b"SET", b"a", b"1"]), (true, true, true));
        assert_eq!(push(&[b"SET", b"a", b"1", b"NX"]), (false, true, true));
        assert_eq!(push(&[b"PUBLISH", b"a", b"1"]), (false, false, true));
    }

    fn queue_of(commands: &[&[&[u8]]]) -> Queue {
        let mut queue = Queue::default();
        for words in commands {
            let owned = OwnedArgs::from_slices(words);
            queue.push(command::resolve(owned.args()).unwrap(), owned.args(), None);
        }
        queue
    }

    const SET: &[&[u8]] = &[b"CONFIG", b"SET", b"a", b"b"];
    const FLUSH: &[&[u8]] = &[b"FUNCTION", b"FLUSH"];
    const CALL: &[&[u8]] = &[b"FCALL_RO", b"f", b"0"];
    const EVAL: &[&[u8]] = &[b"EVALSHA", b"f", b"0"];

    #[test]
    fn how_it_may_be_run_is_known() {
        let queued = |commands: &[&[&[u8]]]| {
            let queue = queue_of(commands);
            (queue.is_open_ended(), queue.has_scripts(), queue.has_slow_actions())
        };
        let none = (false, false);
        assert_eq!(queued(&[&[b"PUBLISH", b"a", b"1"], &[b"SCAN", b"0"], SET]), (false, none, false));
        assert_eq!(queued(&[&[b"KEYS", b"*"], &[b"CLIENT", b"LIST"]]), (true, none, true));
        assert_eq!(queued(&[CALL, SET]), (true, (false, true), false));
        assert_eq!(queued(&[CALL, EVAL]), (true, (true, true), false));
        assert_eq!(queued(&[FLUSH, SET]), (true, none, true));
        assert_eq!(queued(&[FLUSH, CALL]), (true, (false, true), true));
    }

    #[test]
    fn changes_of_scripts_that_somebody_looks_for_are_known() {
        let changes = |commands: &[&[&[u8]]]| {
            let queue = queue_of(commands);
            (0..queue.len()).filter(|i| queue.changes_scripts(*i, false)).collect::<Vec<usize>>()
        };
        let (load, forget): (&[&[u8]], &[&[u8]]) = (&[b"SCRIPT", b"LOAD", b"x"], &[b"SCRIPT", b"FLUSH"]);
        let none: [usize; 0] = [];
        assert_eq!(changes(&[forget, SET]), none);
        assert_eq!(changes(&[forget, CALL]), [0]);
        assert_eq!(changes(&[CALL, forget]), none);
        assert_eq!(changes(&[CALL, forget, SET, FLUSH, EVAL, forget]), [1]);
        assert_eq!(changes(&[load, forget]), none);
        assert_eq!(changes(&[forget, load]), [0]);
        assert_eq!(changes(&[forget, &[b"SCRIPT", b"EXISTS", b"x"]]), [0]);
    }

    #[test]
    fn what_waits_for_the_commit_is_known() {
        let is =
            |name: &str| is_deferred(command::places::all().iter().find(|row| row.name == name).unwrap());
        assert!(["subscribe", "config|set", "publish", "echo"].iter().all(|name| is(name)));
        let at_place = ["select", "eval", "fcall", "script|load", "function|load", "get", "keys"];
        assert!(!at_place.iter().any(|name| is(name)));
    }
}
