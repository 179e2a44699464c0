//! Executes told commands, as a log or a primary gives them, without a client.
//!
//! ```text
//! words ─► row by its own name ─┬─ MULTI … EXEC: kept, then all under one set of locks
//!                               ├─ a write: under the locks of its keys, as its handler does it anywhere
//!                               └─ SELECT, FUNCTION LOAD and its kin, PUBLISH: here
//! ```
//!
//! - Y1: nothing counts as expired. The words tell of each removal, and they come from another clock.
//! - Y2: the first run settled everything that limits a client: memory, pauses, sizes, errors of the disk.
//! - Y3: the sink is told nothing. Keyspace events, and clients that wait for keys, are told.
//! - Y4: a group is visible whole or not at all.
//!
//! Cost: that of the command. One buffer holds the words of all commands, one after the other.

pub mod contents;
#[cfg(debug_assertions)]
pub mod shadow;

use command::facts::{self, has_unknown_keys};
use command::keys::{database, settle, shards_of};
use command::{Budget, Caller, Command, Cx, Error, Handler, Run, registry};
use keyspace::{Changes, KeySet, Keyspace, View};
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use stdx::locks::Bits;

/// Bytes of words and replies above which their buffer is given back.
const KEPT: usize = 1 << 20;

/// The owner of the keyspace, and of all else that told commands change.
pub trait Host: Send + Sync {
    fn keyspace(&self) -> &Arc<Keyspace>;

    /// Tells changes to keyspace events and waiting clients (Y3).
    fn tell(&self, changes: Changes);

    /// Delivers a message: whether its channel is one of shards, the channel, and the text.
    fn publish(&self, shard: bool, channel: &[u8], text: &[u8]);

    /// Changes libraries. `in_group`: the locks it needs are held. Errors: it cannot.
    fn change_libraries(
        &self,
        command: &'static Command,
        args: Args<'_>,
        in_group: bool,
    ) -> Result<(), Error>;
}

/// An execution of told commands, with its database and open group. See the module.
pub struct Replay<H> {
    host: Arc<H>,
    db: usize,
    words: OwnedArgs,
    /// The commands since MULTI, if there was one.
    group: Group,
    in_group: bool,
    /// Receives replies, which nobody reads.
    out: Reply,
    random: u64,
}

impl<H: Host> Replay<H> {
    /// Begins in database 0.
    pub fn new(host: &Arc<H>) -> Replay<H> {
        Replay {
            host: host.clone(),
            db: 0,
            words: OwnedArgs::new(),
            group: Group::default(),
            in_group: false,
            out: Reply::new(false),
            random: 1,
        }
    }

    /// The database of the next command.
    pub fn db(&self) -> usize {
        self.db
    }

    /// Whether a group is open. Its commands have not been executed yet.
    pub fn is_in_group(&self) -> bool {
        self.in_group
    }

    /// Executes one command.
    ///
    /// # Errors
    /// The command cannot be executed; the text names it. In a group the other commands take effect, and the
    /// error is the first.
    pub fn apply(&mut self, args: &[&[u8]]) -> Result<(), String> {
        let Some(name) = args.first() else { return Err("a command without words".into()) };
        let named = |error: String| format!("{}: {error}", name.escape_ascii());
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        for word in args {
            if !words.fits(word.len()) {
                return Err(named("ERR the words are longer than 4 GiB".into()));
            }
            words.push(word);
        }
        let done = self.take(words.args());
        if words.mem_bytes() <= KEPT {
            self.words = words;
        }
        if self.out.capacity() > KEPT {
            self.out = Reply::new(false);
        }
        done.map_err(named)
    }

    /// Executes a command, or keeps it for the end of its group.
    fn take(&mut self, args: Args<'_>) -> Result<(), String> {
        let command = row(args).map_err(told)?;
        if command.is(facts::INSIDE_MULTI) {
            return self.frame(command);
        }
        if self.in_group {
            self.group.push(command, args);
            return Ok(());
        }
        self.alone(command, args).map_err(told)
    }

    /// MULTI, EXEC, DISCARD.
    fn frame(&mut self, command: &'static Command) -> Result<(), String> {
        match (command.name, self.in_group) {
            ("multi", false) => self.in_group = true,
            ("multi", true) => return Err("ERR MULTI calls can not be nested".into()),
            ("exec" | "discard", true) => {
                self.in_group = false;
                let mut group = std::mem::take(&mut self.group);
                let done = if command.is(facts::RUNS_QUEUE) { self.group(&group) } else { Ok(()) };
                group.clear();
                self.group = group;
                return done;
            }
            _ => return Err("ERR it follows no MULTI".into()),
        }
        Ok(())
    }

    fn alone(&mut self, command: &'static Command, args: Args<'_>) -> Result<(), Error> {
        let Some(handler) = write(command) else { return self.act(command, args, false) };
        let (host, now_ms) = (self.host.clone(), stdx::clock::wall_ms());
        let keyspace = host.keyspace();
        let mut view = match command.run {
            Run::Whole(_) => View::open(keyspace, self.db, now_ms),
            _ if has_unknown_keys(command, args) => View::whole(keyspace, self.db, now_ms),
            _ => locked(keyspace, command, args, self.db, now_ms),
        };
        if view.has_intents() {
            settle(&mut view, [(command, args)].into_iter(), self.db);
        }
        let done = self.run(&mut view, handler, args);
        self.host.tell(view.finish());
        done
    }

    /// Executes the commands of a group under one set of locks (Y4). O(its commands).
    fn group(&mut self, group: &Group) -> Result<(), String> {
        let (host, now_ms) = (self.host.clone(), stdx::clock::wall_ms());
        let keyspace = host.keyspace();
        let shards = shards_needed(group);
        let mut view = View::locked(keyspace, shards, self.db, now_ms);
        if view.has_intents() {
            self.settle(group, shards, &mut view);
        }
        let mut failed = None;
        for (command, args) in group.iter() {
            view.select(self.db);
            let done = match write(command) {
                Some(handler) => self.run(&mut view, handler, args),
                None => self.act(command, args, true),
            };
            if let Err(error) = done {
                failed.get_or_insert_with(|| format!("{}: {}", command.name, error.text()));
            }
        }
        self.host.tell(view.finish());
        failed.map_or(Ok(()), Err)
    }

    /// Writes what long commits decided but have not written yet, for the keys of a group.
    #[cold]
    fn settle(&self, group: &Group, shards: Bits, view: &mut View<'_>) {
        if shards == Bits::below(keyspace::SHARDS) {
            return view.settle_all();
        }
        let (mut db, mut keys) = (self.db, Vec::new());
        for (command, args) in group.iter() {
            if command.is(facts::SELECTS) {
                db = database(self.host.keyspace().databases(), args.at(1)).unwrap_or(db);
            }
            command.each_key(args, &mut |i, _| keys.push((db, args.at(i))));
        }
        view.settle(&keys, true);
    }

    fn run(&mut self, view: &mut View<'_>, handler: Handler, args: Args<'_>) -> Result<(), Error> {
        view.set_expired_live(); // Y1
        self.out.clear();
        // A long reply is left unwritten.
        let caller = Caller { may_stream: true, in_replay: true, ..Caller::default() };
        let mut cx = Cx::new(view, &mut self.out, caller, Budget::unlimited(None), self.random);
        let done = handler(&mut cx, args);
        self.random = cx.random();
        done
    }

    /// Performs a command that is no function of the keyspace. `in_group`: the locks it needs are held.
    fn act(&mut self, command: &'static Command, args: Args<'_>, in_group: bool) -> Result<(), Error> {
        match command.name {
            "select" => self.db = database(self.host.keyspace().databases(), args.at(1))?,
            "publish" | "spublish" => {
                let shard = !command.is(facts::PASSES_PATTERNS);
                self.host.publish(shard, args.at(1), args.at(2));
            }
            // A primary of another kind sends PING to check its link.
            "ping" => {}
            _ if facts::changes_libraries(command) => self.host.change_libraries(command, args, in_group)?,
            _ => return Err(Error::new("ERR a log cannot have this command")),
        }
        Ok(())
    }
}

/// The commands of a group. Its memory serves the next one.
#[derive(Default)]
struct Group {
    chunks: Vec<Chunk>,
}

#[derive(Default)]
struct Chunk {
    words: OwnedArgs,
    /// Row, index of the first word, and count of words.
    commands: Vec<(&'static Command, usize, usize)>,
}

impl Group {
    fn push(&mut self, command: &'static Command, args: Args<'_>) {
        let has_room = |chunk: &Chunk| chunk.words.mem_bytes() < KEPT && chunk.words.fits(args.bytes());
        if !self.chunks.last().is_some_and(has_room) {
            self.chunks.push(Chunk::default());
        }
        let Some(chunk) = self.chunks.last_mut() else { return };
        chunk.commands.push((command, chunk.words.len(), args.len()));
        chunk.words.extend(args.iter());
    }

    fn iter(&self) -> impl Iterator<Item = (&'static Command, Args<'_>)> {
        self.chunks.iter().flat_map(|chunk| {
            let args = chunk.words.args();
            chunk.commands.iter().map(move |(command, from, count)| (*command, args.slice(*from, *count)))
        })
    }

    /// Forgets the commands, but keeps some of the memory.
    fn clear(&mut self) {
        self.chunks.truncate(1);
        self.chunks.retain(|chunk| chunk.words.mem_bytes() < KEPT);
        for chunk in &mut self.chunks {
            chunk.words.clear();
            chunk.commands.clear();
        }
    }
}

fn told(error: Error) -> String {
    error.text().into_owned()
}

/// The row of told words: by the command's own name, else by its renamed one.
fn row(args: Args<'_>) -> Result<&'static Command, Error> {
    match registry::find_own(args.at(0)) {
        Some(command) if command.subs.is_empty() && command.arity_fits(args.len()) => Ok(command),
        Some(command) if command.subs.is_empty() => Err(command.arity_error()),
        Some(container) => {
            let sub = args.get(1).and_then(|name| registry::find_sub(container, name));
            let sub = sub.ok_or(Error::new("ERR unknown subcommand"))?;
            if sub.arity_fits(args.len()) { Ok(sub) } else { Err(sub.arity_error()) }
        }
        None => command::resolve(args),
    }
}

/// The handler of a write.
fn write(command: &Command) -> Option<Handler> {
    match command.run {
        Run::Write(handler) => Some(handler),
        Run::Whole(handler) if command.is_write() => Some(handler),
        _ => None,
    }
}

/// The keys of a command, locked.
fn locked<'k>(keyspace: &'k Keyspace, command: &Command, args: Args<'_>, db: usize, now_ms: u64) -> View<'k> {
    if let Some(key) = command.single_key().and_then(|at| args.get(at)) {
        return View::locked_one(keyspace, key, db, now_ms);
    }
    let mut keys = KeySet::default();
    command.each_key(args, &mut |i, _| keys.add(args.at(i)));
    View::locked_many(keyspace, &keys, db, now_ms)
}

/// The shards of the keys of a group.
fn shards_needed(group: &Group) -> Bits {
    let mut shards = Bits::EMPTY;
    for (command, args) in group.iter() {
        if matches!(command.run, Run::Whole(_)) || has_unknown_keys(command, args) {
            return Bits::below(keyspace::SHARDS);
        }
        if facts::changes_libraries(command) {
            shards.insert(keyspace::BESIDE);
        }
        shards = shards.union(&shards_of(command, args));
    }
    shards
}
