//! Commands that are too long for their loop: they become a job, a bulk or a walk.

use crate::act::Act;
use crate::mail::Mail;
use crate::parts::ReplyMode;
use crate::{Local, Server, Session, drive};
use command::Flow;
use command::{Command, Error, Handler, Run};
use observe::tally::Thresholds;
use park::Waiter;
use resp::{Args, OwnedArgs};
use std::sync::Arc;
use stdx::budget::Budget;
use work::attempt::Attempt;
use work::bulk::{self, BulkJob};
use work::gather::{Gather, Reader};
use work::job::{Body, Call, Client, Job, MANY_WORDS};
use work::keys::{Keys, Scan, long_scan};
use work::piece::{Piece, Who};
use work::queue::Queue;

/// Describes a client to its job.
fn client(server: &Server, local: &mut Local, session: &Session, resp3: bool) -> Client {
    Client {
        loop_id: local.log.id,
        info: session.info.clone(),
        gone: session.cancel.clone(),
        db: session.db,
        resp3,
        may_stream: session.speech.reply_mode == ReplyMode::On,
        now_ms: local.log.now_ms,
        look: session.look(&server.keyspace, local.log.now_ms),
        random: local.random(),
    }
}

/// The memory that a client's long work is taken from.
pub(crate) fn budget(server: &Server, session: &Session) -> Arc<Budget> {
    if session.link.is_some() { server.role.work.clone() } else { server.memory.work.clone() }
}

/// Begins a piece of long work; its client is parked until the reply comes.
fn away(act: &mut Act<'_, '_>, piece: Box<dyn Piece>) -> Flow {
    act.is_job = true;
    drive::begin(act.server, act.local, piece);
    Flow::Parked(None)
}

/// Describes the client of a command to its job.
fn client_of(act: &mut Act<'_, '_>) -> Client {
    client(act.server, act.local, act.session, act.out.resp3())
}

/// Sends a command to a worker. Its words are taken over from the connection if they are many, else copied.
pub(crate) fn start(
    act: &mut Act<'_, '_>,
    command: &'static Command,
    handler: Handler,
    args: Args<'_>,
) -> Flow {
    let args = act.keep(args);
    let few = args.len() < MANY_WORDS;
    let look = act.session.look_of(command, &act.server.keyspace, act.local.log.now_ms);
    let client = Client { look, ..client_of(act) };
    let body = Body::One(Call { command, handler, args });
    let job = Job::new(client, body, budget(act.server, act.session), few);
    away(act, job)
}

/// Hands a client that was blocked on its keys to a job. Cost: O(words).
pub(crate) fn serve(server: &Arc<Server>, local: &mut Local, session: &Session, waiter: &Waiter) {
    let (Run::Write(handler) | Run::Read(handler)) = waiter.command.run else { return };
    let args = Arc::new(waiter.args.args().to_owned());
    let client = client(server, local, session, waiter.resp3);
    let body = Body::One(Call { command: waiter.command, handler, args });
    drive::begin(server, local, Job::new(client, body, server.memory.work.clone(), true));
}

/// Sends the queue of an EXEC to a worker, or commits it as a bulk. Cost: O(1).
pub(crate) fn start_exec(act: &mut Act<'_, '_>, queue: Queue) -> Flow {
    if bulk::is_bulk(act.session.watched.len(), &queue) {
        return begin_bulk(act, bulk::of_exec(queue));
    }
    let watch = act.session.watched.take();
    let thresholds = Thresholds::of(&act.server.config.live, &act.server.observe.stats.hotkeys);
    let client = client_of(act);
    away(act, Job::of_exec(client, queue, watch, budget(act.server, act.session), thresholds))
}

/// Runs a command of many words as a bulk. None: it is no such command.
pub(crate) fn start_bulk(act: &mut Act<'_, '_>, command: &Command, args: Args<'_>) -> Option<Flow> {
    if act.session.sees_expired(&act.server.keyspace) {
        // A bulk takes expired keys for absent ones.
        return None;
    }
    let answer = bulk::answer(command, args)?;
    let words = act.keep(args);
    Some(begin_bulk(act, (answer.words(words), answer)))
}

fn begin_bulk(act: &mut Act<'_, '_>, what: (bulk::BulkWords, bulk::Answer)) -> Flow {
    let session = &*act.session;
    let who = Who { client: session.id, command: what.0.command(), loop_id: act.local.log.id };
    let (info, gone) = (session.info.clone(), session.cancel.clone());
    let attempt = Attempt::new(who, info, Some(gone), budget(act.server, session));
    match BulkJob::new(attempt, session.db, what, act.out.resp3()) {
        Ok(job) => away(act, job),
        Err(_) => {
            act.out.error(&Error::work_memory().text());
            Flow::Done
        }
    }
}

/// `KEYS pattern`: the reply streams as soon as a snapshot is open.
pub(crate) fn start_keys(act: &mut Act<'_, '_>, args: Args<'_>) -> Flow {
    let (server, session) = (act.server, &*act.session);
    let client = (session.info.clone(), session.cancel.clone(), act.local.log.id);
    let place = (session.db, session.sees_expired(&server.keyspace));
    let mut keys = Keys::new(&server.work, client, place, args.at(1), session.speech.resp3);
    if keys.open() {
        return Flow::Stream(keys);
    }
    stdx::panics::changes();
    away(act, keys)
}

/// Begins a long SCAN. None: it is short.
pub(crate) fn start_scan(act: &Act<'_, '_>, args: Args<'_>) -> Option<Flow> {
    let (cursor, count) = long_scan(args)?;
    let (its, keyspace) = (act.server.clone(), act.server.keyspace.clone());
    let tell = Box::new(move |changes| {
        let ready = its.tell(changes);
        if !ready.is_empty() {
            its.send(0, Mail::Ready(ready));
        }
    });
    let place = (act.session.db, act.session.sees_expired(&keyspace));
    let words: (OwnedArgs, u64, usize) = (args.to_owned(), cursor, count);
    Some(Flow::Stream(Scan::new(keyspace, tell, place, act.session.speech.resp3, words)))
}

/// Begins a read of very many keys in slices. None: it is no such command.
pub(crate) fn start_gather(act: &Act<'_, '_>, command: &Command, args: Args<'_>) -> Option<Flow> {
    let session = &*act.session;
    let (info, gone) = (&session.info, &session.cancel);
    let look = session.look_of(command, &act.server.keyspace, stdx::clock::wall_ms());
    let reader = Reader { info, gone, db: session.db, resp3: session.speech.resp3, look };
    Some(Flow::Stream(Gather::start(&act.server.work, reader, command, args, act.kept)?))
}

#[cfg(test)]
mod tests;
