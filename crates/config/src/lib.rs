//! The configuration: one table row per directive. Values come from a redis.conf and a command line; CONFIG
//! shows and changes them, and all other code reads them through [`Live`].
//!
//! ```text
//! args ──▶ Sources ──load──▶ Draft ──▶ Config ── values: bytes by row, for CONFIG alone  (one lock)
//! rows ─(kind, default, effect)──┘        └───── live:   typed atomics, for all threads  (no lock)
//! ```
//!
//! To add a directive, add a row to `rows.rs`, and a field to [`Live`] if it works. A directive that is not
//! in the table does not exist. The row of a directive that is accepted without effect says so.
//!
//! - C1: a CONFIG SET applies all of its pairs or none.
//! - C2: `live` and `values` agree whenever the lock is free. (The limits behind OBJECT ENCODING are in
//!   `value::limits` instead, one set for the process.)
//! - C3: the lock is held to handle the pairs of one command, never for I/O.
//!
//! Costs: reading [`Live`] is one relaxed load; CONFIG GET is O(patterns · rows).

#![forbid(unsafe_code)]

mod args;
mod asking;
mod handbook;
mod kind;
mod later;
mod live;
mod load;
mod machine;
mod rewrite;
mod rows;
mod table;
mod users;
mod words;

pub use args::{HELP, Invocation, Sources, directives, parse, version};
pub use asking::Asking;
pub use handbook::{handbook, sample};
pub use kind::{Kind, Parsed, notify};
pub use live::{Access, Live, Number, OutputLimit, Switch, Text};
pub use load::{Idle, LoadError, Mistake, Place};
pub use machine::{free_bytes as free_memory_bytes, memory_bytes};
pub use rewrite::replace_file;
pub use rows::RDB_VERSIONS;
pub use table::{Change, Directive, Effect, find, may_be_secret, table};

use load::Draft;
use parking_lot::{Mutex, RwLock};
use resp::{Args, Reply};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A listener for changes by CONFIG SET.
pub trait Observer: Send + Sync {
    /// Called before any change. An error refuses the whole CONFIG SET with this sentence.
    fn check(&self, directive: &Directive, value: &Parsed) -> Result<(), String> {
        let _ = (directive, value);
        Ok(())
    }

    /// Called before a change of directives that read files or open sockets, with the new values; without
    /// any, all
    /// such files are to be read again. It may block. An error refuses the change with this sentence. What
    /// was prepared is put into
    /// force by [`Observer::settle`], or dropped. Calls come one after the other.
    fn prepare(&self, config: &Config, changes: &[(&Directive, Vec<u8>)]) -> Result<(), String> {
        let _ = (config, changes);
        Ok(())
    }

    /// Called after [`Observer::prepare`], once the values are changed.
    fn settle(&self) {}

    /// Called in place of [`Observer::settle`] if the change is refused.
    fn give_up(&self) {}

    /// Called after a directive has a new value. It must not call CONFIG SET.
    fn changed(&self, directive: &Directive, live: &Live) {
        let _ = (directive, live);
    }
}

/// The configuration of one running server.
pub struct Config {
    /// The limits for commands, connections and jobs.
    pub live: Live,
    values: RwLock<Vec<Vec<u8>>>,
    /// Each row's value when it is not configured.
    usual: Vec<Vec<u8>>,
    /// The last line that set each row at the start.
    given: Vec<Option<(Place, String)>>,
    idle: Vec<Idle>,
    renames: Vec<(Vec<u8>, Vec<u8>)>,
    /// The `source` lines, and whether they stand in the main file.
    sources: Vec<(mapping::Spec, bool)>,
    /// The users of the `user` lines, and the names of those that stand elsewhere than in the main file.
    users: Vec<acl::User>,
    foreign_users: Vec<Vec<u8>>,
    file: Option<PathBuf>,
    rewriting: Mutex<()>,
    later: later::Later,
    /// Held while files are read or sockets opened for a change.
    preparing: Mutex<()>,
    observers: RwLock<Vec<Box<dyn Observer>>>,
}

/// A row, its name as the client wrote it, and the new value.
type Pair<'a> = (usize, &'a [u8], &'a [u8]);

impl Default for Config {
    /// Every directive at its default.
    fn default() -> Config {
        Config::new(Draft::defaults(), None)
    }
}

impl Config {
    /// Reads the file, standard input and the options. The error holds all mistakes, up to twenty.
    pub fn load(sources: &Sources, stdin: &mut dyn Read) -> Result<Config, LoadError> {
        let mut draft = Draft::defaults();
        draft.read(sources, stdin)?;
        let file = sources.file.as_ref().map(|f| std::fs::canonicalize(f).unwrap_or_else(|_| f.clone()));
        Ok(Config::new(draft, file))
    }

    fn new(mut draft: Draft, file: Option<PathBuf>) -> Config {
        let mut usual: Vec<Vec<u8>> = table().iter().map(|row| row.default.as_bytes().to_vec()).collect();
        if let (Some(dir), Ok(here)) = (find(b"dir"), std::env::current_dir()) {
            usual[dir] = here.into_os_string().into_vec();
            if draft.given[dir].is_none() {
                draft.values[dir] = usual[dir].clone();
            }
        }
        let declared = draft.declared();
        let foreign = declared.iter().filter(|(_, in_file)| !in_file).map(|(user, _)| user.name().to_vec());
        let config = Config {
            foreign_users: foreign.collect(),
            users: declared.into_iter().map(|(user, _)| user).collect(),
            live: Live::default(),
            values: RwLock::new(draft.values),
            usual,
            given: draft.given,
            idle: draft.idle,
            renames: draft.renames,
            sources: draft.sources,
            file,
            rewriting: Mutex::default(),
            later: later::Later::default(),
            preparing: Mutex::default(),
            observers: RwLock::default(),
        };
        for (row, value) in table().iter().zip(config.values.read().iter()) {
            // K1: a shown value parses to itself.
            if let Ok((parsed, _)) = row.accept(std::slice::from_ref(value), value) {
                (row.live)(&config.live, &parsed);
            }
        }
        config
    }

    /// Adds an observer, which is called before and after every change.
    pub fn observe(&self, observer: Box<dyn Observer>) {
        self.observers.write().push(observer);
    }

    /// The file the configuration came from, if any.
    pub fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }

    /// The `rename-command` lines in order: the usual name, and the new one. An empty new name removes the
    /// command.
    pub fn renames(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.renames
    }

    /// The `source` lines in order.
    pub fn sources(&self) -> impl Iterator<Item = &mapping::Spec> {
        self.sources.iter().map(|(spec, _)| spec)
    }

    /// The users of the `user` lines.
    pub fn users(&self) -> &[acl::User] {
        &self.users
    }

    /// The number of threads that serve connections: as configured, or one per core.
    pub fn event_loops(&self) -> usize {
        match self.live.event_loops.size() {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        }
    }

    /// The addresses to listen on. The flag: it is no error if this machine has no such address.
    pub fn bind(&self) -> Vec<(String, bool)> {
        addresses(&self.live.bind.string())
    }

    /// The addresses for HTTP, in the form of [`Config::bind`], which it defaults to.
    pub fn http_bind(&self) -> Vec<(String, bool)> {
        if self.live.http_bind.is_empty() { self.bind() } else { addresses(&self.live.http_bind.string()) }
    }

    /// Directives without effect that were configured to other than the default: name and reason. O(rows).
    pub fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        let values = self.values.read();
        let rows = table().iter().enumerate();
        let idle = rows.filter_map(|(at, row)| match row.effect {
            Effect::Accepted(reason) if self.given[at].is_some() && values[at] != self.usual[at] => {
                Some((row.name, reason))
            }
            _ => None,
        });
        idle.collect()
    }

    /// The lines of the configuration that changed nothing, and why: of directives without effect, lines that a
    /// later one replaced, and new names of commands that do not exist. O(lines).
    pub fn idle_lines(&self) -> Vec<Idle> {
        let mut idle = self.idle.clone();
        for (name, reason) in self.without_effect() {
            let given = find(name.as_bytes()).and_then(|at| self.given[at].clone());
            idle.extend(given.map(|(place, text)| Idle { place, text, reason: reason.into() }));
        }
        idle
    }

    /// A directive's value once these changes are made; empty if there is no such directive. O(changes)
    pub fn value_after(&self, changes: &[(&Directive, Vec<u8>)], name: &str) -> String {
        let changed = changes.iter().find(|(row, _)| row.name == name).map(|(_, value)| value.clone());
        let value = changed.or_else(|| self.value(name)).unwrap_or_default();
        String::from_utf8_lossy(&value).into_owned()
    }

    /// Sets the value of a directive that another command changes, as CONFIG GET and CONFIG REWRITE show it. No
    /// observer is told. O(1).
    pub fn note(&self, name: &str, shown: &[u8]) {
        if let Some(at) = find(name.as_bytes()) {
            self.values.write()[at] = shown.to_vec();
        }
    }

    /// A directive's value as CONFIG GET shows it. `None`: no such directive. O(1).
    pub fn value(&self, name: &str) -> Option<Vec<u8>> {
        find(name.as_bytes()).map(|at| self.values.read()[at].clone())
    }

    /// Reads settings that belong together, none of them from before and none from after the same CONFIG SET.
    /// O(what is read), under the lock (C3).
    pub fn together<T>(&self, read: impl FnOnce(&Live) -> T) -> T {
        let _unchanged = self.values.read();
        read(&self.live)
    }

    /// `CONFIG GET pattern [pattern ...]`: names and values. Each name appears once, an alias under its own
    /// name.
    ///
    /// Cost: O(patterns · names).
    pub fn get<'a>(&self, patterns: impl IntoIterator<Item = &'a [u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let patterns: Vec<&[u8]> = patterns.into_iter().collect();
        let mut asking = self.ask();
        while asking.step(patterns.len(), |at| patterns[at], &mut { usize::MAX }) {}
        asking.found()
    }

    /// Begins a CONFIG GET in steps, of the values as they are now. O(settings)
    pub fn ask(&self) -> Asking {
        Asking::of(self.values.read().clone())
    }

    /// `CONFIG SET name value [name value ...]`: applies all pairs or none. `words` are the words after SET;
    /// `local` means that the client is on this machine. The error is the whole text of the reply. It blocks
    /// if [`may_block`] says so.
    pub fn set(&self, words: &[&[u8]], local: bool) -> Result<(), String> {
        if words.is_empty() || words.len() == 1 {
            return Err("ERR wrong number of arguments for 'config|set' command".into());
        }
        if words.len() % 2 == 1 {
            return Err("ERR syntax error".into());
        }
        let pairs = self.settable(words, local)?;
        let observers = self.observers.read();
        let prepares = pairs.iter().any(|(at, ..)| table()[*at].prepared);
        let _alone = prepares.then(|| self.preparing.lock());
        if prepares {
            self.prepare(&observers, &pairs)?;
        }
        let changed = self.change(&observers, &pairs);
        if prepares {
            for observer in observers.iter() {
                if changed.is_ok() { observer.settle() } else { observer.give_up() }
            }
        }
        changed
    }

    /// Changes the values of CONFIG SET's pairs, all or none. Errors: the whole text of the reply.
    fn change(&self, observers: &[Box<dyn Observer>], pairs: &[Pair<'_>]) -> Result<(), String> {
        let mut values = self.values.write();
        let mut ready = Vec::with_capacity(pairs.len());
        for &(at, name, value) in pairs {
            let row = &table()[at];
            let accepted = row.accept(&[value.to_vec()], &values[at]).and_then(|(parsed, shown)| {
                observers.iter().try_for_each(|o| o.check(row, &parsed))?;
                Ok((at, parsed, shown))
            });
            ready.push(accepted.map_err(|reason| refused(name, &reason))?);
        }
        // C1: nothing can fail from here on.
        for (at, parsed, shown) in ready {
            (table()[at].live)(&self.live, &parsed);
            values[at] = shown;
        }
        drop(values);
        for &(at, ..) in pairs {
            observers.iter().for_each(|o| o.changed(&table()[at], &self.live));
        }
        Ok(())
    }

    /// Lets observers read the files and open the sockets that a change names. C3: no other lock is held.
    /// Errors: the whole text of
    /// the reply.
    fn prepare(&self, observers: &[Box<dyn Observer>], pairs: &[Pair<'_>]) -> Result<(), String> {
        let mut changes = Vec::new();
        for &(at, name, value) in pairs {
            let now = self.values.read()[at].clone();
            let accepted = table()[at].accept(&[value.to_vec()], &now);
            let (_, shown) = accepted.map_err(|reason| refused(name, &reason))?;
            changes.push((&table()[at], shown));
        }
        let name = pairs.iter().find(|(at, ..)| table()[*at].prepared).map_or(&b""[..], |(_, name, _)| name);
        let prepared = observers.iter().try_for_each(|o| o.prepare(self, &changes));
        prepared.map_err(|reason| {
            observers.iter().for_each(|o| o.give_up());
            refused(name, &reason)
        })
    }

    /// Reads the files again that directives name; their values stay. It blocks. Errors: a sentence; what was
    /// read before stays in force.
    pub fn read_files_again(&self) -> Result<(), String> {
        let observers = self.observers.read();
        let _alone = self.preparing.lock();
        observers.iter().try_for_each(|o| o.prepare(self, &[]))?;
        observers.iter().for_each(|o| o.settle());
        Ok(())
    }

    /// The rows of CONFIG SET's pairs, if all exist, differ from each other, and may be changed now.
    fn settable<'a>(&self, words: &[&'a [u8]], local: bool) -> Result<Vec<Pair<'a>>, String> {
        let mut pairs: Vec<Pair<'_>> = Vec::with_capacity(words.len() / 2);
        for pair in words.chunks_exact(2) {
            let (name, value) = (pair[0], pair[1]);
            let Some(at) = find(name) else {
                let name = String::from_utf8_lossy(name);
                return Err(format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'"));
            };
            match table()[at].change {
                Change::Startup => return Err(refused(name, "can't set immutable config")),
                Change::Protected if !self.live.protected_configs_access().admits(local) => {
                    return Err(refused(name, "can't set protected config"));
                }
                _ if pairs.iter().any(|(other, ..)| *other == at) => {
                    return Err(refused(name, "duplicate parameter"));
                }
                _ => pairs.push((at, name, value)),
            }
        }
        Ok(pairs)
    }

    /// Has `write`, which calls [`Config::rewrite`], done on a thread of its own: one thread at most, which
    /// writes once more for all that come while it writes. The log says how it fails. O(1)
    ///
    /// Errors: there is no file to write, or no thread.
    pub fn rewrite_later(
        &self,
        write: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        self.own_file()?;
        self.later.write(write)
    }

    fn own_file(&self) -> Result<&PathBuf, String> {
        self.file.as_ref().ok_or_else(|| "ERR The server is running without a config file".to_owned())
    }

    /// `CONFIG REWRITE`: writes the current values, the sources served and the users into the file. `users`:
    /// the words of a `user` line for each; None: they are kept elsewhere. The error is the whole text of the
    /// reply.
    ///
    /// It reads, writes and syncs files: call it where blocking is allowed, not on an event loop.
    pub fn rewrite(&self, sources: &[mapping::Spec], users: Option<Vec<Vec<Vec<u8>>>>) -> Result<(), String> {
        let path = self.own_file()?;
        let failed = |e: std::io::Error| format!("ERR Rewriting config file: {e}");
        // Several threads may rewrite; they take turns.
        let _alone = self.rewriting.lock();
        let old = match std::fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(failed)?,
        };
        let values = self.values.read().clone();
        let sources = self.own_sources(sources);
        let users = users.map(|users| self.own_users(users));
        let text = rewrite::rewritten(&old, &values, &self.usual, &sources, users.as_deref());
        replace_file(path, &text, 0o644).map_err(failed)
    }

    /// The users that belong into the file: not those of an included file or the command line, and `default`
    /// only if it is another one than a new server has.
    fn own_users(&self, users: Vec<Vec<Vec<u8>>>) -> Vec<Vec<Vec<u8>>> {
        let password = self.live.requirepass.get();
        let usual = acl::Acl::default();
        usual.require(&password);
        let usual = usual.everybody().line();
        let is_usual = |words: &[Vec<u8>]| [&[b"user".to_vec()], words].concat().join(&b' ') == usual;
        let own = |words: &Vec<Vec<u8>>| !is_usual(words) && !self.foreign_users.contains(&words[0]);
        users.into_iter().filter(own).collect()
    }

    /// The sources served that belong into the file. Sources of an included file or the command line are left
    /// out; the log warns of each that is served differently now.
    fn own_sources(&self, served: &[mapping::Spec]) -> Vec<mapping::Spec> {
        let elsewhere: Vec<_> =
            self.sources.iter().filter(|(_, in_file)| !in_file).map(|(spec, _)| spec).collect();
        for spec in elsewhere.iter().filter(|spec| !served.contains(spec)) {
            log::warn!(
                "CONFIG REWRITE: source '{}' was changed or removed, but is defined in an included file or on the \
                 command line; the next start will use that definition",
                spec.name
            );
        }
        let is_own = |spec: &&mapping::Spec| elsewhere.iter().all(|other| other.name != spec.name);
        served.iter().filter(is_own).cloned().collect()
    }
}

impl Access {
    /// Whether the action is open to a client, which is on this machine if `local`.
    pub fn admits(self, local: bool) -> bool {
        match self {
            Access::No => false,
            Access::Yes => true,
            Access::Local => local,
        }
    }
}

/// The addresses of a value of `bind`, in the form of [`Config::bind`]. O(words)
pub fn addresses(words: &str) -> Vec<(String, bool)> {
    let address = |word: &str| match word.strip_prefix('-') {
        Some(optional) => (optional.to_owned(), true),
        None => (word.to_owned(), false),
    };
    words.split_whitespace().map(address).collect()
}

fn refused(name: &[u8], reason: &str) -> String {
    let name = String::from_utf8_lossy(name);
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
}

/// Whether a CONFIG SET with these words after SET may block: it reads files or opens sockets.
pub fn may_block<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> bool {
    words.into_iter().step_by(2).filter_map(find).any(|at| table()[at].prepared)
}

/// `CONFIG GET pattern [pattern ...]` as a reply. Cost: as [`Config::get`].
pub fn get(config: &Config, args: Args<'_>, out: &mut Reply) {
    let found = config.get(args.from(2).iter());
    out.map(found.len());
    for (name, value) in found {
        out.bulk(&name);
        out.bulk(&value);
    }
}

/// `CONFIG SET name value [name value ...]` as a reply. `local`: the client is on this machine. Errors: those
/// of [`Config::set`].
pub fn set(config: &Config, args: Args<'_>, local: bool, out: &mut Reply) {
    let words: Vec<&[u8]> = args.from(2).iter().collect();
    match config.set(&words, local) {
        Ok(()) => out.ok(),
        Err(text) => out.error(&text),
    }
}

/// The lines of `CONFIG HELP`.
pub const CONFIG_HELP: [&str; 11] = [
    "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Set the configuration <directive> to <value>.",
    "RESETSTAT",
    "    Reset statistics reported by the INFO command.",
    "REWRITE",
    "    Rewrite the configuration file.",
    "HELP",
    "    Prints this help.",
];

#[cfg(test)]
mod tests;
