//! FUNCTION LOAD, DELETE, FLUSH, DUMP, RESTORE. `scripts/src/libraries.rs` explains how libraries come and
//! go.

use super::{Act, PLAIN, Row, aside};
use crate::Flow;
use crate::Server;
use command::Error;
use keyspace::To;
use resp::{Args, OwnedArgs, Reply};
use scripts::libraries::{self, AskedChange};
use std::time::Duration;

pub(super) const ACTIONS: &[Row] = &[
    Row("function|load", |act, args| perform(act, libraries::load(args)?, args), PLAIN),
    Row("function|delete", |act, args| perform(act, libraries::delete(args), args), PLAIN),
    Row("function|flush", |act, args| perform(act, libraries::flush(args)?, args), PLAIN),
    Row("function|dump", dump, PLAIN),
    Row("function|restore", |act, args| perform(act, libraries::restore(args)?, args), PLAIN),
];

/// Interval of the checks while an answer is held back.
const LOOK: Duration = Duration::from_millis(10);

/// Loads a library from a file. Cost: its code runs once, on this thread.
///
/// Errors: a sentence.
pub(crate) fn load_from_file(server: &Server, code: &[u8]) -> Result<(), String> {
    let limits = server.scripts.limits(&server.config.live);
    let asked = AskedChange::Load(code.into(), libraries::Policy::Append);
    asked.prepare(&limits, None, None).and_then(|change| change.make(&server.scripts.code))
}

/// The words that tell followers of a change. A plain LOAD gets REPLACE, for a follower may still have the
/// library.
fn told_words(asked: &AskedChange, args: Args<'_>) -> OwnedArgs {
    let replaces = matches!(asked, AskedChange::Load(_, libraries::Policy::Append));
    let names = [&b"FUNCTION"[..], args.at(1)];
    names.into_iter().chain(replaces.then_some(&b"REPLACE"[..])).chain(args.iter().skip(2)).collect()
}

/// Changes libraries, on a thread.
fn perform(act: &mut Act<'_, '_>, asked: AskedChange, args: Args<'_>) -> Result<Flow, Error> {
    let words = act.server.keyspace.listens().then(|| told_words(&asked, args));
    let code = act.server.scripts.code.clone();
    let limits = act.server.scripts.limits(&act.server.config.live);
    let (server, gone) = (act.server.clone(), act.session.cancel.clone());
    let change = move |asked: AskedChange, out: &mut Reply| {
        let prepared =
            libraries::apart(&server.scripts, move |turn| asked.prepare(&limits, Some(&gone), Some(turn)));
        let mut told = true;
        let tell = || told = is_told(&server, words.as_ref());
        let made = prepared.and_then(|change| change.make_and_tell(&code, tell).map(|()| change));
        if !told {
            wait_for_end(&server, words.as_ref());
        }
        server.scripts.tidy_idle();
        match made {
            Ok(change) => change.answer(out),
            Err(text) => out.error(&text),
        }
    };
    aside(act, "library", move |out| change(asked, out))
}

/// Tells a change to those that listened when it was asked for. False: they listen no more.
fn is_told(server: &Server, words: Option<&OwnedArgs>) -> bool {
    words.is_none_or(|words| server.keyspace.tell_apart(To::All, &mut words.args().iter()).is_some())
}

/// Holds back the answer to a change that came too late for the log: the server is about to end, and a change that
/// was answered must be in the log. If the server goes on, the log gets the change.
fn wait_for_end(server: &Server, words: Option<&OwnedArgs>) {
    while server.work.pause.stops_writes(stdx::clock::wall_ms()) {
        std::thread::sleep(LOOK);
    }
    is_told(server, words);
}

/// `FUNCTION DUMP`: the code of all libraries, as a payload that Redis and Valkey from 7.0 on restore. Cost:
/// O(bytes), on a thread.
fn dump(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let libraries = act.server.scripts.code.libraries();
    aside(act, "dump", move |out| {
        let codes: Vec<&[u8]> = libraries.code.values().map(|code| &*code.text).collect();
        out.bulk(&libraries::payload_of(&codes));
    })
}
