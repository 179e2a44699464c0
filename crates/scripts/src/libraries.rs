//! Changes of libraries of functions: FUNCTION LOAD, DELETE, FLUSH, DUMP, RESTORE.
//!
//! - L1: a library's code is run once before it is accepted, on a thread and in an engine of its own. It may
//!   take half a second, and no loop waits for it.
//! - L2: libraries are replaced under one lock. Either all libraries of a dump are accepted, or none.

use super::quiet::Deadline;
use super::{Change, Libraries, LibraryCode, Quiet, Scripts};
use command::options::is;
use command::{Command, Error};
use rdb::{OPCODE_FUNCTION, OPCODE_FUNCTION_CANDIDATE, Reader, VERSION_FUNCTIONS};
use resp::{Args, OwnedArgs, Reply};
use script::{Engine, Limits, ScriptFlags};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stdx::turns::Turn;

/// Nanoseconds a library may take to register its functions.
const LOAD_NS: u64 = 500_000_000;
/// The same for a library of a file: it was accepted before, perhaps by a faster machine.
const FILE_NS: u64 = 60_000_000_000;

/// A library that was accepted.
struct Accepted {
    name: String,
    functions: Vec<(String, Option<String>, ScriptFlags)>,
    code: Arc<LibraryCode>,
}

/// The fate of libraries that exist already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// All go.
    Flush,
    /// They stay; one of the same name is an error.
    Append,
    /// Libraries of the same name go.
    Replace,
}

/// Libraries to be added, all or none (L2); their names are all different.
pub struct Addition {
    libraries: Vec<Accepted>,
    policy: Policy,
    /// FUNCTION LOAD: its errors quote names, and its answer is the library's name.
    is_load: bool,
}

/// A change that a command asks for.
pub enum AskedChange {
    Load(Box<[u8]>, Policy),
    Restore(Vec<u8>, Policy),
    Other(Change),
}

/// The change that a command asks for.
pub fn asked_for(command: &Command, args: Args<'_>) -> Result<AskedChange, Error> {
    match command.name {
        "function|load" => load(args),
        "function|restore" => restore(args),
        "function|delete" => Ok(delete(args)),
        _ => flush(args),
    }
}

impl AskedChange {
    /// Tries the libraries to be loaded. The many libraries of a dump are tried only while a client waits for
    /// the answer. Cost: running the code of each library once (L1), within the given memory.
    pub fn prepare(
        self,
        limits: &Limits,
        gone: Option<&AtomicBool>,
        turn: Option<&Turn>,
    ) -> Result<Change, String> {
        self.prepare_within(limits, LOAD_NS, (gone, turn))
    }

    /// As [`AskedChange::prepare`], for a library of a snapshot or a log.
    pub fn prepare_from_file(self, limits: &Limits) -> Result<Change, String> {
        self.prepare_within(limits, FILE_NS, (None, None))
    }

    fn prepare_within(
        self,
        limits: &Limits,
        time_ns: u64,
        (gone, turn): (Option<&AtomicBool>, Option<&Turn>),
    ) -> Result<Change, String> {
        let deadline = |gone| Deadline { until_ns: stdx::clock::thread_cpu_ns() + time_ns, gone, turn };
        let (libraries, policy, is_load) = match self {
            AskedChange::Other(change) => return Ok(change),
            AskedChange::Load(code, policy) => {
                let tried = try_library(&mut engine(limits), code, deadline(None))?;
                (vec![tried], policy, true)
            }
            AskedChange::Restore(payload, policy) => {
                (accept_all(&payload, limits, || deadline(gone))?, policy, false)
            }
        };
        Ok(Change::AddLibraries(Addition { libraries, policy, is_load }))
    }
}

impl Change {
    /// Answers the command that asked for the change.
    pub fn answer(&self, out: &mut Reply) {
        match self {
            Change::AddLibraries(Addition { libraries, is_load: true, .. }) => {
                libraries.iter().for_each(|library| out.bulk(library.name.as_bytes()));
            }
            _ => out.ok(),
        }
    }
}

/// The words that tell followers of a change. A plain LOAD gets REPLACE, for a follower may still have the
/// library. A payload gets a version that both Redis and Valkey take.
pub fn told_words(asked: &AskedChange, args: Args<'_>) -> OwnedArgs {
    if let AskedChange::Restore(payload, _) = asked
        && let Some((body, _)) = rdb::open(payload).filter(|(_, version)| *version != VERSION_FUNCTIONS)
    {
        let mut payload = body.to_vec();
        rdb::seal(&mut payload, VERSION_FUNCTIONS);
        let words = [&b"FUNCTION"[..], args.at(1), &payload];
        return words.into_iter().chain(args.iter().skip(3)).collect();
    }
    let replaces = matches!(asked, AskedChange::Load(_, Policy::Append));
    let names = [&b"FUNCTION"[..], args.at(1)];
    names.into_iter().chain(replaces.then_some(&b"REPLACE"[..])).chain(args.iter().skip(2)).collect()
}

/// `FUNCTION LOAD [REPLACE] code`: answers the library's name.
pub fn load(args: Args<'_>) -> Result<AskedChange, Error> {
    let mut policy = Policy::Append;
    for option in args.to(args.len() - 1).from(2).iter() {
        if !is(option, "replace") {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Unknown option given: {option}").into());
        }
        policy = Policy::Replace;
    }
    Ok(AskedChange::Load(args.at(args.len() - 1).into(), policy))
}

/// `FUNCTION DELETE library`
pub fn delete(args: Args<'_>) -> AskedChange {
    AskedChange::Other(Change::DeleteLibrary(String::from_utf8_lossy(args.at(2)).into_owned()))
}

/// `FUNCTION FLUSH [ASYNC | SYNC]`
pub fn flush(args: Args<'_>) -> Result<AskedChange, Error> {
    if args.len() > 3 || args.get(2).is_some_and(|mode| !is(mode, "sync") && !is(mode, "async")) {
        return Err(Error::new("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
    }
    Ok(AskedChange::Other(Change::FlushLibraries))
}

/// The payload of FUNCTION DUMP for these libraries.
pub fn payload_of(codes: &[&[u8]]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(codes.iter().map(|code| code.len() + 10).sum::<usize>() + 10);
    for code in codes {
        payload.push(OPCODE_FUNCTION);
        rdb::put_string(&mut payload, code);
    }
    rdb::seal(&mut payload, VERSION_FUNCTIONS);
    payload
}

/// `FUNCTION RESTORE payload [FLUSH | APPEND | REPLACE]`: adds the libraries of a dump, all or none (L2).
///
/// Errors: the fault of the payload or of a library in it, or a name that exists already.
pub fn restore(args: Args<'_>) -> Result<AskedChange, Error> {
    if args.len() > 4 {
        let name = String::from_utf8_lossy(&args.at(1)[..args.at(1).len().min(128)]);
        return Err(format!(
            "ERR unknown subcommand or wrong number of arguments for '{name}'. Try FUNCTION HELP."
        )
        .into());
    }
    let policy = match args.get(3) {
        None => Policy::Append,
        Some(word) if is(word, "append") => Policy::Append,
        Some(word) if is(word, "replace") => Policy::Replace,
        Some(word) if is(word, "flush") => Policy::Flush,
        Some(_) => {
            return Err(Error::new(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    Ok(AskedChange::Restore(args.at(2).to_vec(), policy))
}

/// The libraries of a payload, each tried; names that come twice in it are refused.
fn accept_all<'a>(
    payload: &[u8],
    limits: &Limits,
    deadline: impl Fn() -> Deadline<'a>,
) -> Result<Vec<Accepted>, String> {
    let mut engine = engine(limits);
    let mut all: Vec<Accepted> = Vec::new();
    for code in codes_of(payload)? {
        let new = try_library(&mut engine, code, deadline())?;
        if all.iter().any(|old| old.name == new.name) {
            return Err(format!("ERR Library '{}' already exists", new.name));
        }
        let mut known = all.iter().flat_map(|old| &old.functions);
        let is_new = |old: &str| new.functions.iter().any(|(name, ..)| name.eq_ignore_ascii_case(old));
        if let Some((twice, ..)) = known.find(|(old, ..)| is_new(old)) {
            return Err(format!("ERR Function {twice} already exists"));
        }
        all.push(new);
    }
    Ok(all)
}

/// Takes a payload apart.
fn codes_of(payload: &[u8]) -> Result<Vec<Box<[u8]>>, String> {
    let (body, _) = rdb::open(payload).ok_or("ERR DUMP payload version or checksum are wrong")?;
    let mut reader = Reader::new(body);
    let mut codes = Vec::new();
    while let Ok(kind) = reader.byte() {
        match kind {
            OPCODE_FUNCTION => {}
            OPCODE_FUNCTION_CANDIDATE => return Err("ERR Pre-GA function format not supported".into()),
            _ => return Err("ERR given type is not a function".into()),
        }
        codes.push(reader.string().map_err(|_| "ERR Failed loading library payload")?.as_ref().into());
    }
    Ok(codes)
}

/// Runs or compiles clients' code as long work runs: behind all others, and in turns. The waiting caller may
/// take locks, and is not demoted.
pub fn apart<T: Send>(
    scripts: &Scripts,
    work: impl FnOnce(&Turn) -> Result<T, String> + Send,
) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("library-code".into()).spawn_scoped(scope, || {
            machine::threads::demote(scripts.work.observe.crowd.rank().nice());
            work(&scripts.work.turns.enter())
        });
        match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err("ERR the library could not be tried".into())),
            Err(e) => Err(format!("ERR no thread could be started: {e}")),
        }
    })
}

/// An engine to try libraries in, ready for them.
fn engine(limits: &Limits) -> Engine {
    let mut engine = Engine::new(limits.clone());
    engine.prepare_for_libraries();
    engine
}

/// Runs a library's code (L1). Returns its registered functions and the time it took.
fn try_library(engine: &mut Engine, text: Box<[u8]>, deadline: Deadline<'_>) -> Result<Accepted, String> {
    let began_ns = stdx::clock::thread_cpu_ns();
    let library = engine.load_library(&text, &mut Quiet(deadline))?;
    let load_ns = stdx::clock::thread_cpu_ns() - began_ns;
    engine.delete_library(&library);
    let functions = library.functions.into_iter().map(|f| (f.name, f.description, f.flags)).collect();
    Ok(Accepted {
        name: library.name,
        functions,
        code: Arc::new(LibraryCode { text, load_ns: load_ns.into() }),
    })
}

impl Addition {
    /// Adds the libraries. Errors: a name that exists already. Cost: O(all functions) for each that is
    /// replaced.
    pub fn make(&self, libraries: &mut Libraries) -> Result<(), String> {
        match self.policy {
            Policy::Flush => *libraries = Libraries::default(),
            _ => self.refuse_taken_names(libraries)?,
        }
        for Accepted { name, functions, code } in &self.libraries {
            libraries.remove(name);
            libraries.code.insert(name.clone(), code.clone());
            for (function, description, flags) in functions {
                let known = (name.clone(), description.clone(), *flags);
                libraries.add(function, known);
            }
        }
        Ok(())
    }

    /// Errors: a name that is taken. Libraries are checked before functions, as in Redis. Replaced libraries
    /// take their functions with them.
    fn refuse_taken_names(&self, libraries: &Libraries) -> Result<(), String> {
        let known = self.libraries.iter().find(|new| libraries.code.contains_key(&new.name));
        if let (Some(Accepted { name, .. }), Policy::Append) = (known, self.policy) {
            return Err(match self.is_load {
                true => format!("ERR Library '{name}' already exists"),
                false => format!("ERR Library {name} already exists"),
            });
        }
        let replaced = |name: &str| self.libraries.iter().any(|new| new.name == name);
        for (function, ..) in self.libraries.iter().flat_map(|new| &new.functions) {
            if libraries.function(function).is_some_and(|(_, (owner, ..))| !replaced(owner)) {
                return Err(format!("ERR Function {function} already exists"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, function: &str) -> Box<[u8]> {
        let code =
            format!("#!lua name={name}\nredis.register_function('{function}', function() return 1 end)");
        code.as_bytes().into()
    }

    #[test]
    fn a_dump_gives_back_the_code_of_every_library() {
        let codes = [library("one", "f"), library("two", "g")];
        assert_eq!(codes_of(&payload_of(&codes.each_ref().map(|code| &**code))), Ok(codes.to_vec()));
        assert_eq!(codes_of(&payload_of(&[])), Ok(vec![]));
    }

    #[test]
    fn a_dump_is_told_in_a_version_of_both_dialects() {
        let dump = payload_of(&[&library("one", "f")]);
        for version in [10, 12, 80] {
            let mut theirs = dump[..dump.len() - 10].to_vec();
            rdb::seal(&mut theirs, version);
            let words: [&[u8]; 4] = [b"function", b"restore", &theirs, b"FLUSH"];
            let words = OwnedArgs::from_slices(&words);
            let asked = restore(words.args()).expect("a change");
            let told = told_words(&asked, words.args());
            let told: Vec<&[u8]> = told.args().iter().collect();
            assert_eq!(told, [&b"FUNCTION"[..], b"restore", &dump, b"FLUSH"], "{version}");
        }
    }

    #[test]
    fn what_is_no_dump_of_functions_is_named() {
        let sealed = |body: &[u8]| {
            let mut payload = body.to_vec();
            rdb::seal(&mut payload, 10);
            codes_of(&payload).unwrap_err()
        };
        assert_eq!(codes_of(b"").unwrap_err(), "ERR DUMP payload version or checksum are wrong");
        assert_eq!(sealed(b"\x00\x01a"), "ERR given type is not a function");
        assert_eq!(sealed(b"\xf6\x01a"), "ERR Pre-GA function format not supported");
        assert_eq!(sealed(b"\xf5"), "ERR Failed loading library payload");
        assert_eq!(sealed(b"\xf5\xc3\x05\x40\x50aaaaa"), "ERR Failed loading library payload");
    }

    #[test]
    fn names_that_come_twice_in_a_dump_are_refused() {
        let deadline = || Deadline { until_ns: u64::MAX, gone: None, turn: None };
        let refused = |codes: &[Box<[u8]>]| {
            let codes: Vec<&[u8]> = codes.iter().map(|code| &**code).collect();
            accept_all(&payload_of(&codes), &Limits::default(), deadline).map(|all| all.len())
        };
        assert_eq!(refused(&[library("one", "f"), library("two", "g")]), Ok(2));
        let twice = refused(&[library("one", "f"), library("one", "g")]);
        assert_eq!(twice.unwrap_err(), "ERR Library 'one' already exists");
        let twice = refused(&[library("one", "f"), library("two", "f")]);
        assert_eq!(twice.unwrap_err(), "ERR Function f already exists");
    }
}
