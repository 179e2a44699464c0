//! FUNCTION LOAD, DELETE, FLUSH, DUMP, RESTORE. `scripts/src/libraries.rs` explains how libraries come and
//! go.

use super::answer::aside;
use crate::Server;
use crate::act::{Act, PLAIN, Row};
use command::Error;
use command::Flow;
use keyspace::Why;
use resp::{Args, OwnedArgs, Reply};
use scripts::libraries::{self, AskedChange};
use std::sync::atomic::Ordering;

pub(super) const ACTIONS: &[Row] = &[
    Row("function|load", |act, args| perform(act, libraries::load(args)?, args), PLAIN),
    Row("function|delete", |act, args| perform(act, libraries::delete(args), args), PLAIN),
    Row("function|flush", |act, args| perform(act, libraries::flush(args)?, args), PLAIN),
    Row("function|dump", dump, PLAIN),
    Row("function|restore", |act, args| perform(act, libraries::restore(args)?, args), PLAIN),
];

/// Changes libraries, on a thread of its own. O(code), its compilation, and its run as far as it registers
/// functions. Errors: those of the change (`scripts::libraries`).
fn perform(act: &mut Act<'_, '_>, asked: AskedChange, args: Args<'_>) -> Result<Flow, Error> {
    let words = act.server.keyspace.listens().then(|| libraries::told_words(&asked, args));
    let code = act.server.scripts.code.clone();
    let limits = act.server.scripts.limits(&act.server.config.live);
    let (server, gone, client) = (act.server.clone(), act.session.cancel.clone(), act.session.id);
    let change = move |asked: AskedChange, out: &mut Reply| {
        let prepared =
            libraries::apart(&server.scripts, move |turn| asked.prepare(&limits, Some(&gone), Some(turn)));
        let keyspace = &server.keyspace;
        let made = prepared.and_then(|change| {
            wait_for_writes(&server, client);
            if server.work.follows.refuses(client) {
                return Err(work::follows::READONLY.to_owned());
            }
            let heard = change.make_for_all(&code, keyspace, words.as_ref())?;
            // Replicas may have heard it, and the log not any more.
            Ok((change, heard && !keyspace.still.has(Why::End)))
        });
        if let (Ok((_, false)), Some(words)) = (&made, &words) {
            wait_for_end(&server, client, words);
        }
        server.scripts.tidy_idle();
        match made {
            Ok((change, _)) => {
                keyspace.stats.dirty.fetch_add(1, Ordering::Relaxed);
                change.answer(out);
            }
            Err(text) => out.error(&text),
        }
    };
    aside(act, "library", move |out| change(asked, out))
}

/// Waits while nothing may change: the server is about to end, or a replica to lead. The change was asked for
/// before. The client's wait has that name.
fn wait_for_writes(server: &Server, client: u64) {
    let ns = server.work.pause.wait_for_writes();
    server
        .observe
        .clients
        .get(client)
        .iter()
        .for_each(|info| _ = info.paused_ns.fetch_add(ns, Ordering::Relaxed));
}

/// Holds back the answer to a change that came too late for the log: the server is about to end, and a change
/// that was answered must be in the log. If the server goes on, the log gets the change.
fn wait_for_end(server: &Server, client: u64, words: &OwnedArgs) {
    wait_for_writes(server, client);
    server.keyspace.change_beside(|| true, Some(&mut words.args().iter()));
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
