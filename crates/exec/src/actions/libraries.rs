//! How libraries of functions come and go: FUNCTION LOAD, DELETE, FLUSH, DUMP, RESTORE.
//!
//! - L1: a library's code is run once before it is accepted, on a thread and in an engine of its own: it may take half a
//!   second, and no loop waits for it.
//! - L2: libraries are replaced under one lock: of a dump all are accepted, or none.

use super::{Act, PLAIN, Row, aside};
use crate::Server;
use crate::call::Flow;
use crate::scripts::{Deadline, Libraries};
use command::Error;
use command::options::is;
use rdb::{OPCODE_FUNCTION, OPCODE_FUNCTION_CANDIDATE, Reader, VERSION_FUNCTIONS};
use resp::Args;
use script::{Engine, Library, Limits};
use std::sync::Arc;

pub(super) const ACTIONS: &[Row] = &[
    Row("function|load", load, PLAIN),
    Row("function|delete", delete, PLAIN),
    Row("function|flush", flush, PLAIN),
    Row("function|dump", dump, PLAIN),
    Row("function|restore", restore, PLAIN),
];

/// Nanoseconds a library may take to register its functions.
const LOAD_NS: u64 = 500_000_000;

/// A library that was accepted, with its code.
struct Accepted {
    library: Library,
    code: Arc<[u8]>,
}

/// What happens to libraries that are there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// All go.
    Flush,
    /// They stay; one of the same name is an error.
    Append,
    /// Those of the same name go.
    Replace,
}

/// `FUNCTION LOAD [REPLACE] code`: answers the library's name. Cost: running its code once (L1).
fn load(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let mut policy = Policy::Append;
    for option in args.to(args.len() - 1).from(2).iter() {
        if !is(option, "replace") {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Unknown option given: {option}").into());
        }
        policy = Policy::Replace;
    }
    let code: Arc<[u8]> = args.at(args.len() - 1).into();
    let server = act.server.clone();
    aside(act, "library", move |out| {
        let name = try_library(&mut Engine::new(Limits::default()), code).and_then(|accepted| {
            let name = accepted.library.name.clone();
            let quoted = |name: &str| format!("ERR Library '{name}' already exists");
            install(&server, vec![accepted], policy, quoted).map(|()| name)
        });
        match name {
            Ok(name) => out.bulk(name.as_bytes()),
            Err(text) => out.error(&text),
        }
    })
}

/// `FUNCTION DELETE library`
fn delete(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let name = String::from_utf8_lossy(args.at(2)).into_owned();
    let mut libraries = act.server.scripts.libraries.lock();
    if libraries.code.remove(&name).is_none() {
        return Err(Error::new("ERR Library not found"));
    }
    libraries.functions.retain(|_, (lib, _, _)| *lib != name);
    drop(libraries);
    act.server.scripts.touch_libraries();
    act.out.ok();
    Ok(Flow::Done)
}

/// `FUNCTION FLUSH [ASYNC | SYNC]`
fn flush(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() > 3 || args.get(2).is_some_and(|mode| !is(mode, "sync") && !is(mode, "async")) {
        return Err(Error::new("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
    }
    let gone = std::mem::take(&mut *act.server.scripts.libraries.lock());
    crate::job::discard(gone);
    act.server.scripts.touch_libraries();
    act.out.ok();
    Ok(Flow::Done)
}

/// `FUNCTION DUMP`: every library's code, in a payload that Redis and Valkey from 7.0 on restore. Cost: O(bytes), on a
/// thread.
fn dump(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let codes: Vec<Arc<[u8]>> = act.server.scripts.libraries.lock().code.values().cloned().collect();
    aside(act, "dump", move |out| out.bulk(&payload_of(&codes)))
}

fn payload_of(codes: &[Arc<[u8]>]) -> Vec<u8> {
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
/// Cost: running the code of each once, on a thread (L1). Errors: what is wrong with the payload, with a library in it, or
/// which name exists already.
fn restore(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
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
    let (server, payload) = (act.server.clone(), args.at(2).to_vec());
    aside(act, "restore", move |out| {
        let plain = |name: &str| format!("ERR Library {name} already exists");
        match accept_all(&payload).and_then(|accepted| install(&server, accepted, policy, plain)) {
            Ok(()) => out.ok(),
            Err(text) => out.error(&text),
        }
    })
}

/// The libraries of a payload, each tried; names that come twice in it are refused.
fn accept_all(payload: &[u8]) -> Result<Vec<Accepted>, String> {
    let mut engine = Engine::new(Limits::default());
    let mut all: Vec<Accepted> = Vec::new();
    for code in codes_of(payload)? {
        let new = try_library(&mut engine, code)?;
        if all.iter().any(|old| old.library.name == new.library.name) {
            return Err(format!("ERR Library '{}' already exists", new.library.name));
        }
        let mut known = all.iter().flat_map(|old| &old.library.functions);
        if let Some(twice) = known.find(|old| new.library.functions.iter().any(|f| f.name == old.name)) {
            return Err(format!("ERR Function {} already exists", twice.name));
        }
        all.push(new);
    }
    Ok(all)
}

/// Takes a payload apart.
fn codes_of(payload: &[u8]) -> Result<Vec<Arc<[u8]>>, String> {
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

/// Runs a library's code to see what it registers (L1).
fn try_library(engine: &mut Engine, code: Arc<[u8]>) -> Result<Accepted, String> {
    let mut host = Deadline(stdx::clock::mono_ns() + LOAD_NS);
    let library = engine.load_library(&code, &mut host)?;
    engine.delete_library(&library);
    Ok(Accepted { library, code })
}

/// Adds libraries, all or none (L2); their names are all different. Cost: O(their functions), and O(all functions) to
/// remove replaced ones, under the lock.
fn install(
    server: &Server,
    accepted: Vec<Accepted>,
    policy: Policy,
    exists: impl Fn(&str) -> String,
) -> Result<(), String> {
    let mut libraries = server.scripts.libraries.lock();
    // What goes is freed after the lock is released.
    let mut gone = Libraries::default();
    match policy {
        Policy::Flush => gone = std::mem::take(&mut *libraries),
        _ => refuse_taken_names(&libraries, &accepted, policy, exists)?,
    }
    for Accepted { library, code } in accepted {
        let name = library.name;
        if libraries.code.insert(name.clone(), code).is_some() {
            libraries.functions.retain(|_, (lib, _, _)| *lib != name);
        }
        for f in library.functions {
            libraries.functions.insert(f.name, (name.clone(), f.description, f.flags));
        }
    }
    drop(libraries);
    drop(gone);
    server.scripts.touch_libraries();
    Ok(())
}

/// Libraries are looked at before functions, as in Redis. Replaced libraries take their functions with them.
fn refuse_taken_names(
    libraries: &Libraries,
    accepted: &[Accepted],
    policy: Policy,
    exists: impl Fn(&str) -> String,
) -> Result<(), String> {
    let known = accepted.iter().find(|new| libraries.code.contains_key(&new.library.name));
    if let (Some(known), Policy::Append) = (known, policy) {
        return Err(exists(&known.library.name));
    }
    let replaced = |name: &str| accepted.iter().any(|new| new.library.name == name);
    for function in accepted.iter().flat_map(|new| &new.library.functions) {
        if libraries.functions.get(&function.name).is_some_and(|(owner, _, _)| !replaced(owner)) {
            return Err(format!("ERR Function {} already exists", function.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, function: &str) -> Arc<[u8]> {
        let code =
            format!("#!lua name={name}\nredis.register_function('{function}', function() return 1 end)");
        code.as_bytes().into()
    }

    #[test]
    fn a_dump_gives_back_the_code_of_every_library() {
        let codes = [library("one", "f"), library("two", "g")];
        assert_eq!(codes_of(&payload_of(&codes)), Ok(codes.to_vec()));
        assert_eq!(codes_of(&payload_of(&[])), Ok(vec![]));
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
        let refused = |codes: &[Arc<[u8]>]| accept_all(&payload_of(codes)).map(|all| all.len());
        assert_eq!(refused(&[library("one", "f"), library("two", "g")]), Ok(2));
        let twice = refused(&[library("one", "f"), library("one", "g")]);
        assert_eq!(twice.unwrap_err(), "ERR Library 'one' already exists");
        let twice = refused(&[library("one", "f"), library("two", "f")]);
        assert_eq!(twice.unwrap_err(), "ERR Function f already exists");
    }
}
