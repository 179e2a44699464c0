//! FUNCTION LOAD, DELETE, FLUSH, DUMP, RESTORE. How libraries come and go is said in `scripts/src/libraries.rs`.

use super::{Act, PLAIN, Row, aside};
use crate::Flow;
use crate::Server;
use command::Error;
use resp::{Args, Reply};
use scripts::libraries::{self, AskedChange};

pub(super) const ACTIONS: &[Row] = &[
    Row("function|load", |act, args| perform(act, libraries::load(args)?), PLAIN),
    Row("function|delete", |act, args| perform(act, libraries::delete(args)), PLAIN),
    Row("function|flush", |act, args| perform(act, libraries::flush(args)?), PLAIN),
    Row("function|dump", dump, PLAIN),
    Row("function|restore", |act, args| perform(act, libraries::restore(args)?), PLAIN),
];

/// Takes a library of a file that is loaded. Cost: its code runs once, on this thread.
///
/// Errors: a sentence.
pub(crate) fn load_from_file(server: &Server, code: &[u8]) -> Result<(), String> {
    let limits = server.scripts.limits(&server.config.live);
    let asked = AskedChange::Load(code.into(), libraries::Policy::Append);
    asked.prepare(&limits, None, None).and_then(|change| change.make(&server.scripts.code))
}

/// Makes a change of libraries, on a thread.
fn perform(act: &mut Act<'_, '_>, asked: AskedChange) -> Result<Flow, Error> {
    let code = act.server.scripts.code.clone();
    let limits = act.server.scripts.limits(&act.server.config.live);
    let (server, gone) = (act.server.clone(), act.session.cancel.clone());
    let change = move |asked: AskedChange, out: &mut Reply| {
        let prepared =
            libraries::apart(&server.scripts, move |turn| asked.prepare(&limits, Some(&gone), Some(turn)));
        let made = prepared.and_then(|change| change.make(&code).map(|()| change));
        server.scripts.tidy_idle();
        match made {
            Ok(change) => change.answer(out),
            Err(text) => out.error(&text),
        }
    };
    aside(act, "library", move |out| change(asked, out))
}

/// `FUNCTION DUMP`: every library's code, in a payload that Redis and Valkey from 7.0 on restore. Cost: O(bytes), on a
/// thread.
fn dump(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let libraries = act.server.scripts.code.libraries();
    aside(act, "dump", move |out| {
        let codes: Vec<&[u8]> = libraries.code.values().map(|code| &*code.text).collect();
        out.bulk(&libraries::payload_of(&codes));
    })
}
