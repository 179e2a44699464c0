//! Commands that are too long for their loop: they become a job, a bulk or a walk.

use crate::mail::Mail;
use crate::parts::ReplyMode;
use crate::{Local, Server, Session, drive};
use command::Flow;
use command::{Command, Error, Handler, Run};
use observe::tally::Thresholds;
use park::Waiter;
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
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

/// Begins a piece of long work; its client is parked until the reply comes.
fn away(server: &Arc<Server>, local: &mut Local, piece: Box<dyn Piece>) -> Flow {
    local.away = true;
    drive::begin(server, local, piece);
    Flow::Parked(None)
}

/// Sends a command to a worker. Its words are taken over from the connection if they are many, else copied.
pub(crate) fn start(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    (command, handler, args): (&'static Command, Handler, Args<'_>),
    out: &mut Reply,
) -> Flow {
    let args = local.incoming.clone().unwrap_or_else(|| Arc::new(args.to_owned()));
    let few = args.len() < MANY_WORDS;
    let look = session.look_of(command, &server.keyspace, local.log.now_ms);
    let client = Client { look, ..client(server, local, session, out.resp3()) };
    let body = Body::One(Call { command, handler, args });
    let job = Job::new(client, body, server.memory.work.clone(), few);
    away(server, local, job)
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
pub(crate) fn start_exec(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    queue: Queue,
    out: &mut Reply,
) -> Flow {
    if bulk::is_bulk(session.watched.len(), &queue) {
        return begin_bulk(server, local, session, bulk::of_exec(queue), out);
    }
    let watch = session.watched.take();
    let thresholds = Thresholds::of(&server.config.live, &server.observe.stats.hotkeys);
    let client = client(server, local, session, out.resp3());
    away(server, local, Job::of_exec(client, queue, watch, server.memory.work.clone(), thresholds))
}

/// Runs a command of many words as a bulk. None: it is no such command.
pub(crate) fn start_bulk(
    server: &Arc<Server>,
    local: &mut Local,
    session: &Session,
    command: &Command,
    args: Args<'_>,
    out: &mut Reply,
) -> Option<Flow> {
    if session.sees_expired(&server.keyspace) {
        // A bulk takes expired keys for absent ones.
        return None;
    }
    let answer = bulk::answer(command, args)?;
    let words = local.incoming.clone().unwrap_or_else(|| Arc::new(args.to_owned()));
    Some(begin_bulk(server, local, session, (answer.words(words), answer), out))
}

fn begin_bulk(
    server: &Arc<Server>,
    local: &mut Local,
    session: &Session,
    what: (bulk::BulkWords, bulk::Answer),
    out: &mut Reply,
) -> Flow {
    let who = Who { client: session.id, command: what.0.command(), loop_id: local.log.id };
    let (info, gone) = (session.info.clone(), session.cancel.clone());
    let attempt = Attempt::new(who, info, Some(gone), server.memory.work.clone());
    match BulkJob::new(attempt, session.db, what, out.resp3()) {
        Ok(job) => away(server, local, job),
        Err(_) => {
            out.error(&Error::work_memory().text());
            Flow::Done
        }
    }
}

/// `KEYS pattern`: the reply streams as soon as a snapshot is open.
pub(crate) fn start_keys(server: &Arc<Server>, local: &mut Local, session: &Session, args: Args<'_>) -> Flow {
    let client = (session.info.clone(), session.cancel.clone(), local.log.id);
    let place = (session.db, session.sees_expired(&server.keyspace));
    let mut keys = Keys::new(&server.work, client, place, args.at(1), session.speech.resp3);
    if keys.open() {
        return Flow::Stream(keys);
    }
    stdx::panics::changes();
    away(server, local, keys)
}

/// Begins a long SCAN. None: it is short.
pub(crate) fn start_scan(server: &Arc<Server>, session: &Session, args: Args<'_>) -> Option<Flow> {
    let (cursor, count) = long_scan(args)?;
    let (its, keyspace) = (server.clone(), server.keyspace.clone());
    let tell = Box::new(move |changes| {
        let ready = its.tell(changes);
        if !ready.is_empty() {
            its.send(0, Mail::Ready(ready));
        }
    });
    let place = (session.db, session.sees_expired(&server.keyspace));
    let words: (OwnedArgs, u64, usize) = (args.to_owned(), cursor, count);
    Some(Flow::Stream(Scan::new(keyspace, tell, place, session.speech.resp3, words)))
}

/// Begins a read of very many keys in slices. None: it is no such command.
pub(crate) fn start_gather(
    server: &Arc<Server>,
    session: &Session,
    command: &Command,
    args: Args<'_>,
    incoming: Option<&Arc<OwnedArgs>>,
) -> Option<Flow> {
    let (info, gone) = (&session.info, &session.cancel);
    let look = session.look_of(command, &server.keyspace, stdx::clock::wall_ms());
    let reader = Reader { info, gone, db: session.db, resp3: session.speech.resp3, look };
    Some(Flow::Stream(Gather::start(&server.work, reader, command, args, incoming)?))
}

#[cfg(test)]
mod tests;
